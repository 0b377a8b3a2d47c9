"""Records that are generated from a stream's JSON schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from support.declarative.mockapi import clock

_DEEPEST = 12
_FORMATS = {
    "date": "%Y-%m-%d",
    "time": "%H:%M:%S",
    "date-time": "%Y-%m-%dT%H:%M:%SZ",
}
_PLACES = ("url", "uri", "href", "link")


def record(schema: Mapping[str, Any], number: int, full: Sequence[tuple[str, ...]] = ()) -> Any:
    """Make a record that fits a schema.

    Args:
        schema: the schema.
        number: of the record; every third one lacks values where the schema allows it.
        full: places that always have a value.
    """
    heads = {path[0] for path in full if path}
    found = _value("record", {**schema, "type": "object"}, number, 0)
    if number % 3 == 2:
        for key, property_schema in (schema.get("properties") or {}).items():
            if key not in heads and _may_be_null(property_schema):
                found[key] = None
    return found


def _may_be_null(schema: Any) -> bool:
    return isinstance(schema, dict) and "null" in (schema.get("type") or ())


def _value(name: str, schema: Any, number: int, depth: int) -> Any:
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return None
    if "const" in schema:
        return schema["const"]
    choices = [choice for choice in schema.get("enum") or () if choice is not None]
    if choices:
        return choices[number % len(choices)]
    for several in ("oneOf", "anyOf", "allOf"):
        forms = [form for form in schema.get(several) or () if form.get("type") != "null"]
        if forms and "properties" not in schema:
            return _value(name, {**schema, several: None, **forms[0]}, number, depth)
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    kind = next((kind for kind in kinds if kind != "null"), "null")
    if kind == "object" or "properties" in schema:
        properties = schema.get("properties") or {}
        return {
            key: _value(key, property_, number, depth + 1) for key, property_ in properties.items()
        }
    if kind == "array":
        items = schema.get("items")
        first = items[0] if isinstance(items, list) and items else items
        return [_value(name, first, number + at, depth + 1) for at in range(2)] if first else []
    return _scalar(name, kind or "string", str(schema.get("format", "")), number)


def _scalar(name: str, kind: str, form: str, number: int) -> Any:
    if kind == "integer":
        return number + 1
    if kind == "number":
        return number + 0.5
    if kind == "boolean":
        return number % 2 == 0
    if kind == "null":
        return None
    if form in _FORMATS:
        return (clock.BEGIN + timedelta(hours=number % 400)).strftime(_FORMATS[form])
    if any(part in name.lower() for part in _PLACES):
        return f"https://example.test/{name}/{name}-{number}"
    return f"{name}-{number}"


def schema_at(schema: Any, path: Sequence[str]) -> Mapping[str, Any]:
    """Return the part of a schema for a place; empty if the schema has none."""
    for key in path:
        properties = schema.get("properties") if isinstance(schema, dict) else None
        schema = (properties or {}).get(key)
    return schema if isinstance(schema, dict) else {}


def kinds_of(schema: Mapping[str, Any]) -> list[str]:
    """Return the types that a schema names."""
    kinds = schema.get("type")
    return [str(kind) for kind in kinds] if isinstance(kinds, list) else [str(kinds)]


def key_value(name: str, schema: Mapping[str, Any], number: int) -> Any:
    """Make a value of a key, which no other record has."""
    kinds = kinds_of(schema)
    if "string" not in kinds and ("integer" in kinds or "number" in kinds):
        return 1000 + number
    if any(part in name.lower() for part in _PLACES):
        return f"https://example.test/{name}/key-{number}"
    return f"{name}-key-{number}"


def put(holder: Any, path: Sequence[Any], value: Any) -> None:
    """Put a value at a place; a value on the way to it that is not an object becomes one."""
    for key in path[:-1]:
        if isinstance(holder, list):
            if not holder:
                holder.append({})
            holder = holder[0]
        if not isinstance(holder.get(key), dict | list):
            holder[key] = {}
        holder = holder[key]
    if isinstance(holder, list):
        holder = holder[0] if holder else holder.append({}) or holder[0]
    holder[path[-1]] = value


def at(holder: Any, path: Sequence[Any]) -> Any:
    """Return the value at a place, or None."""
    for key in path:
        holder = holder.get(key) if isinstance(holder, dict) else None
    return holder
