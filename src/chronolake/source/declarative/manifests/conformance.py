"""Whether a value is what a JSON schema says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from chronolake.errors import ConfigurationError

#: Where a value does not fit, and what is asked of it there.
Misfit = tuple[str, str]
_Check = Callable[[Any, Any, Mapping[str, Any], Any], Iterator[Misfit]]

_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: _is_number(value) and float(value).is_integer(),
}


def misfit_of(value: Any, schema: Any) -> Misfit | None:
    """Where a value does not fit a schema first, and what is asked of it there; or None.

    Nothing of the value itself is told. `format` is a remark, as in JSON Schema.

    Raises:
        ConfigurationError: the schema is none, or refers to another document.
    """
    try:
        return next(_misfits(value, schema, schema), None)
    except (AttributeError, TypeError, ValueError, RecursionError, re.error) as failure:
        raise ConfigurationError(
            "A JSON schema that a value has to fit is none.", hint="Correct it in the manifest."
        ) from failure


def _misfits(value: Any, schema: Any, whole: Any) -> Iterator[Misfit]:
    if isinstance(schema, bool):
        if not schema:
            yield "", "nothing may be there"
        return
    if "$ref" in schema:
        yield from _misfits(value, _referred(schema["$ref"], whole), whole)
    for keyword, asked in schema.items():
        applies_to, check = _CHECKS.get(keyword, _NO_CHECK)
        if applies_to(value):
            yield from check(value, asked, schema, whole)


def _fits(value: Any, schema: Any, whole: Any) -> bool:
    return next(_misfits(value, schema, whole), None) is None


def _within(key: object, value: Any, schema: Any, whole: Any) -> Iterator[Misfit]:
    for place, message in _misfits(value, schema, whole):
        yield f"/{key}{place}", message


def _referred(reference: str, whole: Any) -> Any:
    found = whole
    if not reference.startswith("#"):
        raise ConfigurationError(
            f"A JSON schema refers to {reference}, which is not read.",
            hint="Put all of the schema into the manifest.",
        )
    for part in filter(None, reference[1:].split("/")):
        key = part.replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(key)] if isinstance(found, list) else found[key]
        except (KeyError, IndexError) as missing:
            raise ValueError(reference) from missing
    return found


def _is_number(value: Any) -> bool:
    return _TYPES["number"](value)


def _is_any(_: Any) -> bool:
    return True


def _same(one: Any, other: Any) -> bool:
    """As JSON has it: true is not 1, and 1.0 is."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _typed(value: Any, asked: Any, _: Any, __: Any) -> Iterator[Misfit]:
    kinds = [asked] if isinstance(asked, str) else asked
    if not any(_TYPES[kind](value) for kind in kinds if kind in _TYPES):
        yield "", f"it has to be of the type {' or '.join(kinds)}"


def _told(holds: Callable[[Any, Any], bool], words: str) -> _Check:
    """A check of the value against what the keyword says, and nothing else."""

    def check(value: Any, asked: Any, _: Any, __: Any) -> Iterator[Misfit]:
        if not holds(value, asked):
            yield "", words.format(asked)

    return check


def _required(value: Any, asked: Any, _: Any, __: Any) -> Iterator[Misfit]:
    yield from (("", f"it lacks {name}") for name in asked if name not in value)


def _dependent(value: Any, asked: Any, _: Any, whole: Any) -> Iterator[Misfit]:
    for name, needs in asked.items():
        if name not in value:
            continue
        if isinstance(needs, list):
            yield from _required(value, needs, None, None)
        else:
            yield from _misfits(value, needs, whole)


def _properties(value: Any, asked: Any, _: Any, whole: Any) -> Iterator[Misfit]:
    for name, schema in asked.items():
        if name in value:
            yield from _within(name, value[name], schema, whole)


def _patterns(value: Any, asked: Any, _: Any, whole: Any) -> Iterator[Misfit]:
    for pattern, schema in asked.items():
        for name in value:
            if re.search(pattern, name):
                yield from _within(name, value[name], schema, whole)


def _others(value: Any, asked: Any, schema: Mapping[str, Any], whole: Any) -> Iterator[Misfit]:
    patterns = schema.get("patternProperties", {})
    for name in value:
        if name in schema.get("properties", {}):
            continue
        if not any(re.search(pattern, name) for pattern in patterns):
            yield from _within(name, value[name], asked, whole)


def _names(value: Any, asked: Any, _: Any, whole: Any) -> Iterator[Misfit]:
    for name in value:
        yield from _within(name, name, asked, whole)


def _items(value: Any, asked: Any, schema: Mapping[str, Any], whole: Any) -> Iterator[Misfit]:
    if isinstance(asked, list):
        yield from _first_items(value, asked, schema, whole)
        return
    before = len(schema.get("prefixItems", ()))
    for number, item in enumerate(value[before:], before):
        yield from _within(number, item, asked, whole)


def _first_items(value: Any, asked: Any, _: Any, whole: Any) -> Iterator[Misfit]:
    for number, (item, schema) in enumerate(zip(value, asked, strict=False)):
        yield from _within(number, item, schema, whole)


def _more_items(value: Any, asked: Any, schema: Mapping[str, Any], whole: Any) -> Iterator[Misfit]:
    before = schema.get("items")
    if isinstance(before, list):
        for number, item in enumerate(value[len(before) :], len(before)):
            yield from _within(number, item, asked, whole)


def _contains(value: Any, asked: Any, _: Any, whole: Any) -> Iterator[Misfit]:
    if not any(_fits(item, asked, whole) for item in value):
        yield "", "it lacks an item that has to be there"


def _all(value: Any, asked: Any, _: Any, whole: Any) -> Iterator[Misfit]:
    for schema in asked:
        yield from _misfits(value, schema, whole)


def _some(value: Any, asked: Any, _: Any, whole: Any) -> Iterator[Misfit]:
    if not any(_fits(value, schema, whole) for schema in asked):
        yield "", "it is none of the things that it may be"


def _one(value: Any, asked: Any, _: Any, whole: Any) -> Iterator[Misfit]:
    if sum(_fits(value, schema, whole) for schema in asked) != 1:
        yield "", "it is not exactly one of the things that it may be"


def _none(value: Any, asked: Any, _: Any, whole: Any) -> Iterator[Misfit]:
    if _fits(value, asked, whole):
        yield "", "it is what it may not be"


def _depending(value: Any, asked: Any, schema: Mapping[str, Any], whole: Any) -> Iterator[Misfit]:
    way = "then" if _fits(value, asked, whole) else "else"
    yield from _misfits(value, schema.get(way, True), whole)


def _distinct(values: list[Any]) -> bool:
    return not any(_same(one, other) for at, one in enumerate(values) for other in values[at + 1 :])


_object, _array, _text = _TYPES["object"], _TYPES["array"], _TYPES["string"]

_CHECKS: Final[Mapping[str, tuple[Callable[[Any], bool], _Check]]] = {
    "type": (_is_any, _typed),
    "enum": (
        _is_any,
        _told(lambda value, asked: any(_same(value, one) for one in asked), "it is none of {}"),
    ),
    "const": (_is_any, _told(_same, "it is not {}")),
    "allOf": (_is_any, _all),
    "anyOf": (_is_any, _some),
    "oneOf": (_is_any, _one),
    "not": (_is_any, _none),
    "if": (_is_any, _depending),
    "required": (_object, _required),
    "dependencies": (_object, _dependent),
    "dependentRequired": (_object, _dependent),
    "dependentSchemas": (_object, _dependent),
    "properties": (_object, _properties),
    "patternProperties": (_object, _patterns),
    "additionalProperties": (_object, _others),
    "propertyNames": (_object, _names),
    "minProperties": (_object, _told(lambda value, n: len(value) >= n, "it has less than {} keys")),
    "maxProperties": (_object, _told(lambda value, n: len(value) <= n, "it has more than {} keys")),
    "items": (_array, _items),
    "prefixItems": (_array, _first_items),
    "additionalItems": (_array, _more_items),
    "contains": (_array, _contains),
    "minItems": (_array, _told(lambda value, n: len(value) >= n, "it has less than {} items")),
    "maxItems": (_array, _told(lambda value, n: len(value) <= n, "it has more than {} items")),
    "uniqueItems": (_array, _told(lambda value, n: not n or _distinct(value), "it repeats items")),
    "minLength": (_text, _told(lambda value, n: len(value) >= n, "it has less than {} letters")),
    "maxLength": (_text, _told(lambda value, n: len(value) <= n, "it has more than {} letters")),
    "pattern": (
        _text,
        _told(lambda value, one: bool(re.search(one, value)), "it does not match {}"),
    ),
    "minimum": (_is_number, _told(lambda value, n: value >= n, "it is less than {}")),
    "maximum": (_is_number, _told(lambda value, n: value <= n, "it is greater than {}")),
    "exclusiveMinimum": (_is_number, _told(lambda value, n: value > n, "it is not over {}")),
    "exclusiveMaximum": (_is_number, _told(lambda value, n: value < n, "it is not under {}")),
    "multipleOf": (_is_number, _told(lambda value, n: value % n == 0, "it is no multiple of {}")),
}
_NO_CHECK: Final[tuple[Callable[[Any], bool], _Check]] = (lambda _: False, _all)
