"""Values at a path of keys and indexes within nested values, as JSON has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The result for a path that does not exist.
MISSING: Any = object()


def look_up(value: Any, path: Sequence[Any]) -> Any:
    """Return the value at a path without patterns, or MISSING."""
    for segment in path:
        if isinstance(value, dict):
            value = value.get(segment, MISSING)
        elif isinstance(value, list):
            index = list_index(segment, value)
            value = MISSING if index is None else value[index]
        else:
            return MISSING
    return value


def list_index(segment: Any, values: list[Any]) -> int | None:
    """Return the place of a list's item from 0, or None if a segment is not an index of it."""
    try:
        index = int(segment)
    except (TypeError, ValueError, OverflowError):
        return None
    if not -len(values) <= index < len(values):
        return None
    return index % len(values)
