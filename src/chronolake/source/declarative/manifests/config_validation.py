"""Validation of a source's configuration against the manifest's specification (JSON schema).

The module also applies the specification's migrations and transformations, and masks the secrets
that the specification marks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final, assert_never
from urllib.parse import quote, quote_plus

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.field_paths import evaluate_path, find_places, put, remove
from chronolake.source.declarative.manifests.manifest import parse_rules
from chronolake.source.declarative.models.spec import (
    ConfigAddFields,
    ConfigRemapField,
    ConfigRemoveFields,
    CustomConfigTransformation,
    PredicateValidator,
)
from chronolake.source.declarative.records.transformations import KINDS
from chronolake.source.declarative.templating.templates import (
    as_mapping,
    as_truth,
    evaluate,
    is_template,
)

if TYPE_CHECKING:
    from chronolake.source.declarative.manifests.manifest import Manifest
    from chronolake.source.declarative.models.spec import ConfigTransformation, DpathValidator


#: The path of an invalid value, and what the schema requires there.
Violation = tuple[str, str]
_Check = Callable[[Any, Any, Mapping[str, Any], Any], Iterator[Violation]]

_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: _is_number(value) and float(value).is_integer(),
}


def find_violation(value: Any, schema: Any) -> Violation | None:
    """Return the first violation of a schema in a value, or None.

    The result contains nothing of the value itself. `format` is not checked, as in JSON Schema.

    Raises:
        ConfigurationError: the schema is invalid, or refers to another document.
    """
    try:
        return next(_violations(value, schema, schema), None)
    except (AttributeError, TypeError, ValueError, RecursionError, re.error) as failure:
        raise ConfigurationError(
            "A JSON schema in the manifest is not valid.", hint="Correct it in the manifest."
        ) from failure


def _violations(value: Any, schema: Any, whole: Any) -> Iterator[Violation]:
    if isinstance(schema, bool):
        if not schema:
            yield "", "no value is allowed"
        return
    if "$ref" in schema:
        yield from _violations(value, _resolve_reference(schema["$ref"], whole), whole)
    for keyword, expected in schema.items():
        applies_to, check = _CHECKS.get(keyword, _NO_CHECK)
        if applies_to(value):
            yield from check(value, expected, schema, whole)


def _fits(value: Any, schema: Any, whole: Any) -> bool:
    return next(_violations(value, schema, whole), None) is None


def _violations_within(key: object, value: Any, schema: Any, whole: Any) -> Iterator[Violation]:
    for place, message in _violations(value, schema, whole):
        yield f"/{key}{place}", message


def _resolve_reference(reference: str, whole: Any) -> Any:
    found = whole
    if not reference.startswith("#"):
        raise ConfigurationError(
            f"A JSON schema refers to {reference}, which is outside the schema.",
            hint="Write the complete schema into the manifest.",
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


def _equals(first: Any, other: Any) -> bool:
    """Compare two values as JSON does: `true` differs from 1, and 1.0 equals 1."""
    if isinstance(first, list) and isinstance(other, list):
        return len(first) == len(other) and all(map(_equals, first, other))
    if isinstance(first, dict) and isinstance(other, dict):
        return first.keys() == other.keys() and all(
            _equals(first[key], other[key]) for key in first
        )
    return isinstance(first, bool) == isinstance(other, bool) and bool(first == other)


def _check_type(value: Any, expected: Any, _: Any, __: Any) -> Iterator[Violation]:
    kinds = [expected] if isinstance(expected, str) else expected
    if not any(_TYPES[kind](value) for kind in kinds if kind in _TYPES):
        yield "", f"it must have the type {' or '.join(kinds)}"


def _check_by(holds: Callable[[Any, Any], bool], words: str) -> _Check:
    """Return a check that compares the value with the keyword's argument only."""

    def check(value: Any, expected: Any, _: Any, __: Any) -> Iterator[Violation]:
        if not holds(value, expected):
            yield "", words.format(expected)

    return check


def _check_required(value: Any, expected: Any, _: Any, __: Any) -> Iterator[Violation]:
    yield from (("", f"it lacks {name}") for name in expected if name not in value)


def _check_dependent(value: Any, expected: Any, _: Any, whole: Any) -> Iterator[Violation]:
    for name, needs in expected.items():
        if name not in value:
            continue
        if isinstance(needs, list):
            yield from _check_required(value, needs, None, None)
        else:
            yield from _violations(value, needs, whole)


def _check_properties(value: Any, expected: Any, _: Any, whole: Any) -> Iterator[Violation]:
    for name, schema in expected.items():
        if name in value:
            yield from _violations_within(name, value[name], schema, whole)


def _check_patterns(value: Any, expected: Any, _: Any, whole: Any) -> Iterator[Violation]:
    for pattern, schema in expected.items():
        for name in value:
            if re.search(pattern, name):
                yield from _violations_within(name, value[name], schema, whole)


def _check_additional(
    value: Any, expected: Any, schema: Mapping[str, Any], whole: Any
) -> Iterator[Violation]:
    patterns = schema.get("patternProperties", {})
    for name in value:
        if name in schema.get("properties", {}):
            continue
        if not any(re.search(pattern, name) for pattern in patterns):
            yield from _violations_within(name, value[name], expected, whole)


def _check_names(value: Any, expected: Any, _: Any, whole: Any) -> Iterator[Violation]:
    for name in value:
        yield from _violations_within(name, name, expected, whole)


def _check_items(
    value: Any, expected: Any, schema: Mapping[str, Any], whole: Any
) -> Iterator[Violation]:
    if isinstance(expected, list):
        yield from _check_first_items(value, expected, schema, whole)
        return
    before = len(schema.get("prefixItems", ()))
    for number, item in enumerate(value[before:], before):
        yield from _violations_within(number, item, expected, whole)


def _check_first_items(value: Any, expected: Any, _: Any, whole: Any) -> Iterator[Violation]:
    for number, (item, schema) in enumerate(zip(value, expected, strict=False)):
        yield from _violations_within(number, item, schema, whole)


def _check_more_items(
    value: Any, expected: Any, schema: Mapping[str, Any], whole: Any
) -> Iterator[Violation]:
    before = schema.get("items")
    if isinstance(before, list):
        for number, item in enumerate(value[len(before) :], len(before)):
            yield from _violations_within(number, item, expected, whole)


def _check_contains(value: Any, expected: Any, _: Any, whole: Any) -> Iterator[Violation]:
    if not any(_fits(item, expected, whole) for item in value):
        yield "", "it lacks a required item"


def _check_all_of(value: Any, expected: Any, _: Any, whole: Any) -> Iterator[Violation]:
    for schema in expected:
        yield from _violations(value, schema, whole)


def _check_any_of(value: Any, expected: Any, _: Any, whole: Any) -> Iterator[Violation]:
    if not any(_fits(value, schema, whole) for schema in expected):
        yield "", "it matches none of the alternatives"


def _check_one_of(value: Any, expected: Any, _: Any, whole: Any) -> Iterator[Violation]:
    if sum(_fits(value, schema, whole) for schema in expected) != 1:
        yield "", "it does not match exactly one of the alternatives"


def _check_not(value: Any, expected: Any, _: Any, whole: Any) -> Iterator[Violation]:
    if _fits(value, expected, whole):
        yield "", "it matches what is not allowed"


def _check_if(
    value: Any, expected: Any, schema: Mapping[str, Any], whole: Any
) -> Iterator[Violation]:
    way = "then" if _fits(value, expected, whole) else "else"
    yield from _violations(value, schema.get(way, True), whole)


def _are_distinct(values: list[Any]) -> bool:
    return not any(
        _equals(value, other) for at, value in enumerate(values) for other in values[at + 1 :]
    )


_object, _array, _text = _TYPES["object"], _TYPES["array"], _TYPES["string"]

_CHECKS: Final[Mapping[str, tuple[Callable[[Any], bool], _Check]]] = {
    "type": (_is_any, _check_type),
    "enum": (
        _is_any,
        _check_by(
            lambda value, expected: any(_equals(value, allowed) for allowed in expected),
            "it is not one of {}",
        ),
    ),
    "const": (_is_any, _check_by(_equals, "it is not {}")),
    "allOf": (_is_any, _check_all_of),
    "anyOf": (_is_any, _check_any_of),
    "oneOf": (_is_any, _check_one_of),
    "not": (_is_any, _check_not),
    "if": (_is_any, _check_if),
    "required": (_object, _check_required),
    "dependencies": (_object, _check_dependent),
    "dependentRequired": (_object, _check_dependent),
    "dependentSchemas": (_object, _check_dependent),
    "properties": (_object, _check_properties),
    "patternProperties": (_object, _check_patterns),
    "additionalProperties": (_object, _check_additional),
    "propertyNames": (_object, _check_names),
    "minProperties": (
        _object,
        _check_by(lambda value, n: len(value) >= n, "it has fewer than {} keys"),
    ),
    "maxProperties": (
        _object,
        _check_by(lambda value, n: len(value) <= n, "it has more than {} keys"),
    ),
    "items": (_array, _check_items),
    "prefixItems": (_array, _check_first_items),
    "additionalItems": (_array, _check_more_items),
    "contains": (_array, _check_contains),
    "minItems": (_array, _check_by(lambda value, n: len(value) >= n, "it has fewer than {} items")),
    "maxItems": (_array, _check_by(lambda value, n: len(value) <= n, "it has more than {} items")),
    "uniqueItems": (
        _array,
        _check_by(lambda value, n: not n or _are_distinct(value), "it repeats items"),
    ),
    "minLength": (
        _text,
        _check_by(lambda value, n: len(value) >= n, "it has fewer than {} characters"),
    ),
    "maxLength": (
        _text,
        _check_by(lambda value, n: len(value) <= n, "it has more than {} characters"),
    ),
    "pattern": (
        _text,
        _check_by(lambda value, pattern: bool(re.search(pattern, value)), "it does not match {}"),
    ),
    "minimum": (_is_number, _check_by(lambda value, n: value >= n, "it is less than {}")),
    "maximum": (_is_number, _check_by(lambda value, n: value <= n, "it is greater than {}")),
    "exclusiveMinimum": (
        _is_number,
        _check_by(lambda value, n: value > n, "it is not greater than {}"),
    ),
    "exclusiveMaximum": (
        _is_number,
        _check_by(lambda value, n: value < n, "it is not less than {}"),
    ),
    "multipleOf": (
        _is_number,
        _check_by(lambda value, n: value % n == 0, "it is not a multiple of {}"),
    ),
}
_NO_CHECK: Final[tuple[Callable[[Any], bool], _Check]] = (lambda _: False, _check_all_of)


_MASK: Final = "****"
_SECRET: Final = "airbyte_secret"  # noqa: S105 - a key of the specification
#: The minimum length of a secret to mask. A shorter one would mask parts of harmless words.
_SHORTEST_SECRET: Final = 3


def prepare_config(config: Mapping[str, Any], manifest: Manifest) -> dict[str, Any]:
    """Return a copy of the configuration with the manifest's rules applied, and validate it.

    The rules are part of the manifest's `spec`.

    Raises:
        ConfigurationError: a rule is invalid, or the configuration violates a validation.
    """
    rules, wrong = parse_rules(manifest.content)
    if wrong:
        line = "" if wrong[0].line is None else f", line {wrong[0].line}"
        raise ConfigurationError(
            f"{manifest.file}{line}: {wrong[0].path}: {wrong[0].message}.",
            hint="Correct the rules for the configuration in the manifest's `spec`.",
        )
    ready = deepcopy(dict(config))
    if rules is None:
        return ready
    migrations = [
        transformation
        for migration in rules.config_migrations
        for transformation in migration.transformations
    ]
    for step in (*migrations, *rules.transformations):
        # Custom transformations are not run. They only migrate configurations of older manifests.
        if not isinstance(step, CustomConfigTransformation):
            _transform(ready, step)
    for expected in rules.validations:
        _validate(ready, expected)
    return ready


def _transform(config: dict[str, Any], step: ConfigTransformation) -> None:
    variables: dict[str, Any] = {"config": config, "parameters": {}}
    match step:
        case ConfigRemapField():
            _remap(config, step)
        case ConfigRemoveFields():
            if step.condition and not as_truth(step.condition, variables):
                return
            for pointer in filter(None, step.field_pointers):
                for place in tuple(find_places(config, pointer)):
                    remove(place)
        case ConfigAddFields():
            for added in step.fields:
                kinds = (KINDS[added.value_type],) if added.value_type else ()
                value = evaluate(
                    added.value,
                    {"config": config, "parameters": added.parameters},
                    default=added.value,
                    kinds=kinds,
                )
                reported = {**variables, "value": value, "path": added.path}
                if not step.condition or as_truth(step.condition, reported):
                    _add_field(config, added.path, value)
        case _:
            assert_never(step)


def _remap(config: dict[str, Any], step: ConfigRemapField) -> None:
    *above, name = evaluate_path(step.field_path, config, {})
    holder: Any = config
    for segment in above:
        holder = holder.get(segment) if isinstance(holder, dict) else None
    if not isinstance(holder, dict) or not isinstance(holder.get(name), Hashable):
        return
    table = as_mapping(step.map, {"config": config, "parameters": {}})
    if name in holder and holder[name] in table:
        holder[name] = table[holder[name]]


def _add_field(config: dict[str, Any], path: list[str], value: Any) -> None:
    try:
        put(config, path, value)
    except SourceError as failure:
        raise ConfigurationError(
            f"The manifest cannot add {'.'.join(path)} to the configuration: a "
            "value on its path is not an object.",
            hint="The manifest's `spec` describes each field of the configuration.",
        ) from failure


def _validate(config: dict[str, Any], expected: DpathValidator | PredicateValidator) -> None:
    if isinstance(expected, PredicateValidator):
        what = "The value that the manifest computes from the configuration"
        reported = expected.value
        if is_template(reported):
            reported = evaluate(reported, {"config": config, "parameters": {}})
        values = [reported]
    else:
        path = evaluate_path(expected.field_path, {}, {})
        what = f"The configuration's {'.'.join(map(str, path))}"
        values = [place.value for place in find_places(config, path)]
    for value in values:
        if misfit := _find_violation_in(value, expected.validation_strategy.base_schema):
            place, words = misfit
            where = f" at {place}" if place else ""
            raise ConfigurationError(
                f"{what} is not valid{where}: {words}.",
                hint="The manifest's `spec` describes each field of the configuration.",
            )


def _find_violation_in(value: Any, schema: Mapping[str, Any]) -> Violation | None:
    if isinstance(value, str):
        # The schema applies to the JSON document that the string contains.
        try:
            value = json.loads(value)
        except ValueError:
            return "", "it is a string that is not valid JSON"
    return find_violation(value, schema)


def raise_if_incomplete(config: Mapping[str, Any], manifest: Manifest, where: str) -> None:
    """Raise ConfigurationError if a configuration lacks required keys.

    `where` is the location of the configuration, for the error message.

    Raises:
        ConfigurationError: a required key is missing.
    """
    if missing := missing_keys(config, manifest):
        raise ConfigurationError(
            f"{where} lacks {', '.join(missing)}.",
            hint="The manifest's `spec` describes each of them.",
        )


def missing_keys(config: Mapping[str, Any], manifest: Manifest) -> list[str]:
    """Return the keys that the specification requires and that the rules do not add either."""
    required = manifest.specification.get("required")
    missing = [
        str(name)
        for name in (required if isinstance(required, list) else [])
        if config.get(name) is None
    ]
    if missing:
        # A missing key is a better message than rules that fail, or render an empty string, because
        # of it.
        with suppress(ConfigurationError):
            ready = prepare_config(config, manifest)
            return [name for name in missing if ready.get(name) is None or ready[name] == ""]
    return missing


def create_mask(config: Mapping[str, Any], manifest: Manifest) -> Callable[[str], str]:
    """Return a function that masks the configuration's secrets in a text.

    The manifest's specification marks secrets with `airbyte_secret`.
    """
    reported = [*find_secrets(config, manifest.specification)]
    with suppress(ConfigurationError):
        # The rules may move a secret to a key that the specification marks.
        reported += find_secrets(prepare_config(config, manifest), manifest.specification)
    spelled = {form(text) for text in reported for form in (str, quote, quote_plus)}
    found = {text for text in spelled if len(text) >= _SHORTEST_SECRET}
    secrets = sorted(found, key=len, reverse=True)

    def mask(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, _MASK)
        return text

    return mask


def find_secrets(value: Any, schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the secrets in a value according to its JSON schema."""
    if schema.get(_SECRET):
        yield from _texts_in(value)
        return
    for union in ("oneOf", "anyOf", "allOf"):
        for alternative in schema.get(union) or ():
            if isinstance(alternative, dict):
                yield from find_secrets(value, alternative)
    if isinstance(value, dict):
        for name, inner in (schema.get("properties") or {}).items():
            if name in value and isinstance(inner, dict):
                yield from find_secrets(value[name], inner)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for item in value:
            yield from find_secrets(item, schema["items"])


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts_in(inner)
    elif value is not None:
        yield str(value)
