"""Field paths: locations within nested values.

A path's segment is a key of an object, or an index of a list, where -1 is the last item. A segment
with `*`, `?` or `[` is a pattern, and `**` matches any number of segments.
"""

from __future__ import annotations

import itertools
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

from chronolake.errors import SourceError
from chronolake.source.declarative.templating.templates import evaluate
from chronolake.source.records.lookup import MISSING, list_index, look_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_ANY_DEPTH = "**"
#: The number of an object's field names that are shown, and the length of each.
_NAMES, _SHOWN = 5, 40


class Place(NamedTuple):
    """A value and its location."""

    holder: dict[str, Any] | list[Any]
    key: Any
    value: Any


def evaluate_path(
    texts: Sequence[str], config: Mapping[str, Any], parameters: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return a path whose segments are evaluated as templates of the config.

    A segment that evaluates to a number is an index, never a key.
    """
    variables = {"config": config, "parameters": parameters}
    segments = [evaluate(text, variables, default=text) for text in texts]
    return tuple(
        segment if isinstance(segment, str | int | float) else None for segment in segments
    )


def is_pattern(segment: object) -> bool:
    """Return whether a segment may match several keys."""
    return isinstance(segment, str) and any(sign in segment for sign in "*?[")


def is_empty(value: object) -> bool:
    """Return whether a value means that there is nothing: null, "", [] or {}."""
    return value is None or (isinstance(value, str | list | dict) and not value)


def find_missing_part(body: Any, path: Sequence[Any], above: tuple[Any, ...] = ()) -> str | None:
    """Return the first part of a path that a body lacks, or None if the path exists.

    Nothing is missing within an empty value: the API reports that there is nothing. For a pattern,
    one value that contains the rest of the path is enough, because records may lack optional
    fields, while an error response lacks the whole path.

    Args:
        body: a response's value.
        path: the path where its records should be.
        above: the path to the body.

    Returns:
        The path up to its missing segment, and a description of the value that is there instead.
    """
    if not path or is_empty(body):
        return None
    segment, rest, here = path[0], path[1:], (*above, path[0])
    if segment == _ANY_DEPTH:
        deeper = (place.value for place in find_places(body, path[:1]))
        found = [value for value in (body, *deeper) if not is_empty(value)]
    elif is_pattern(segment):
        found = [place.value for place in _children(body, segment)]
    else:
        value = look_up(body, (segment,))
        found = [] if value is MISSING else [value]
    if not found:
        return f"`{'.'.join(map(str, here))}` (found {_describe(body)})"
    first = None
    for value in found:
        missing = find_missing_part(value, rest, here)
        if missing is None:
            return None
        first = first or missing
    return first


def _describe(value: Any) -> str:
    """Return a description of a value without its content."""
    if isinstance(value, dict):
        names = [repr(str(name)[:_SHOWN]) for name in itertools.islice(value, _NAMES)]
        more = ", …" if len(value) > _NAMES else ""
        return f"an object with {', '.join(names)}{more}"
    if isinstance(value, list):
        return f"a list of length {len(value)}"
    return "a string" if isinstance(value, str) else "a number or a boolean"


def find_places(value: Any, path: Sequence[Any]) -> Iterator[Place]:
    """Yield all locations that match a path of at least one segment, in document order."""
    head, rest = path[0], path[1:]
    if head == _ANY_DEPTH:
        if rest:
            yield from find_places(value, rest)
        for place in _children(value, "*"):
            if not rest:
                yield place
            yield from find_places(place.value, path)
        return
    for place in _children(value, head):
        if rest:
            yield from find_places(place.value, rest)
        else:
            yield place


def get_only_value(value: Any, path: Sequence[Any]) -> Any:
    """Return the only value at a path, or MISSING.

    Raises:
        SourceError: a pattern matches several values.
    """
    if not any(map(is_pattern, path)):
        return look_up(value, path)
    found = [place.value for place in find_places(value, path)]
    if len(found) > 1:
        raise SourceError(
            f"The field path {list(path)} matches several values in one response.",
            hint="Use a segment '*' to get all of them.",
        )
    return found[0] if found else MISSING


def remove(place: Place) -> None:
    """Remove a value; in a list, the other values keep their index."""
    holder, key, _ = place
    if isinstance(holder, dict):
        holder.pop(key, None)
    elif key == len(holder) - 1:
        del holder[key]
    elif key < len(holder):
        holder[key] = None


def put(record: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Store a value at a path; create missing objects and lists on the way.

    Raises:
        SourceError: a value on the path is neither an object nor a list.
    """
    holder: Any = record
    for segment, following in itertools.pairwise(path):
        held = look_up(holder, (segment,))
        if held is MISSING:
            held = [] if following.isdecimal() else {}
            _set_segment(holder, path, segment, held)
        if not isinstance(held, dict | list):
            raise _blocked_path_error(path)
        holder = held
    _set_segment(holder, path, path[-1], value)


def _set_segment(holder: Any, path: Sequence[str], segment: str, value: Any) -> None:
    if isinstance(holder, dict):
        holder[segment] = value
        return
    if not segment.isdecimal():
        raise _blocked_path_error(path)
    index = int(segment)
    holder.extend([None] * (index + 1 - len(holder)))
    holder[index] = value


def _blocked_path_error(path: Sequence[str]) -> SourceError:
    return SourceError(
        f"The field {list(path)} cannot be added to a record: a value on its "
        "path is not an object.",
        hint="Choose another path for the added field.",
    )


def _children(value: Any, segment: Any) -> list[Place]:
    if isinstance(value, dict):
        if is_pattern(segment):
            return [Place(value, key, child) for key, child in value.items() if _fits(key, segment)]
        return [Place(value, segment, value[segment])] if segment in value else []
    if isinstance(value, list):
        if is_pattern(segment):
            return [Place(value, at, child) for at, child in enumerate(value) if _fits(at, segment)]
        index = list_index(segment, value)
        return [] if index is None else [Place(value, index, value[index])]
    return []


def _fits(key: object, pattern: str) -> bool:
    return pattern == "*" or fnmatchcase(str(key), pattern)
