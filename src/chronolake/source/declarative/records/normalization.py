"""Values of records, converted to the types that a stream's schema declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_TRUE = frozenset(("y", "yes", "t", "true", "on", "1"))
_FALSE = frozenset(("n", "no", "f", "false", "off", "0"))
_SIMPLE = frozenset(("string", "number", "integer", "boolean", "null"))
_SCALARS = (str, float, int, bool, type(None))


@dataclass
class Converter:
    """What is done to a value of one part of a schema: first to itself, then to what it holds.

    Attributes:
        own: converts the value itself, or None.
        properties: converters of an object's fields, of those that have something to do.
        items: the converter of a list's items, or None.
        others: converters of the same value that the schema refers to.
    """

    own: Callable[[Any], Any] | None = None
    properties: dict[str, Converter] = field(default_factory=dict)
    items: Converter | None = None
    others: list[Converter] = field(default_factory=list)

    def within(self, value: Any) -> None:
        """Converts in place what a value holds; what cannot be converted is kept."""
        if isinstance(value, dict):
            for name, converter in self.properties.items():
                if name in value:
                    value[name] = converter.converted(value[name])
        elif isinstance(value, list) and self.items is not None:
            value[:] = map(self.items.converted, value)
        for other in self.others:
            other.within(value)

    def converted(self, value: Any) -> Any:
        """A value with all it holds, converted as far as it can be."""
        if self.own is not None:
            value = self.own(value)
        if isinstance(value, dict | list):
            self.within(value)
        return value


def converter_of(schema: Mapping[str, Any]) -> Converter:
    """What converts records to a JSON schema: by `type`, `properties`, `items` and local `$ref`.

    A value is converted where its schema has one type besides null. As in the reference, a null
    that the type does not include becomes the text `None`, or false.
    """
    return _compiled(schema, schema, {})


def _compiled(part: Any, schema: Mapping[str, Any], known: dict[str, Converter]) -> Converter:
    converter = Converter()
    if not isinstance(part, Mapping):
        return converter
    converter.own = _conversion(part)
    properties = part.get("properties")
    if isinstance(properties, Mapping):
        parts = {name: _compiled(one, schema, known) for name, one in properties.items()}
        converter.properties = {name: one for name, one in parts.items() if one != Converter()}
    if isinstance(part.get("items"), Mapping):
        converter.items = _compiled(part["items"], schema, known)
    if isinstance(reference := part.get("$ref"), str):
        converter.others.append(_referred(reference, schema, known))
    return converter


def _referred(reference: str, schema: Mapping[str, Any], known: dict[str, Converter]) -> Converter:
    if reference not in known:
        # Known before it is compiled, as a schema may refer to itself.
        known[reference] = Converter()
        found: Any = schema
        for name in reference.removeprefix("#").split("/")[1:]:
            found = found.get(name) if isinstance(found, Mapping) else None
        known[reference].others.append(_compiled(found, schema, known))
    return known[reference]


def _conversion(part: Mapping[str, Any]) -> Callable[[Any], Any] | None:
    declared = part.get("type", [])
    types = [declared] if isinstance(declared, str) else declared
    wanted = [one for one in types if one != "null"]
    if isinstance(declared, list) and len(wanted) != 1:
        return None
    convert = _list_conversion(part) if wanted == ["array"] else _CONVERSIONS.get("".join(wanted))
    if convert is None:
        return None
    may_be_null = "null" in types

    def own(value: Any) -> Any:
        if value is None and may_be_null:
            return None
        try:
            return convert(value)
        except (ValueError, TypeError, OverflowError):
            return value

    return own


def _list_conversion(part: Mapping[str, Any]) -> Callable[[Any], Any] | None:
    items = part.get("items", {})
    kinds = items.get("type", []) if isinstance(items, Mapping) else None
    if not isinstance(kinds, list) or not _SIMPLE.issuperset(kinds):
        return None
    return lambda value: [value] if isinstance(value, _SCALARS) else value


def _truth(value: Any) -> bool:
    if not isinstance(value, str):
        return bool(value)
    text = value.lower().strip()
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise ValueError


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "string": str,
    "number": float,
    "integer": int,
    "boolean": _truth,
}
