"""How far a stream was in its source before and after a run: kept small, and what differs.

States are JSON. Most are a line; one with a cursor for each of ten thousand partitions is a
megabyte, and would be kept a hundred times over. So of a large one only what differs is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import orjson

from chronolake.masking import masked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: A state of at most so many bytes is kept whole.
WHOLE_BYTES: Final = 8_192
#: Of a larger one so many changes.
_MOST_CHANGES: Final = 50
#: Stands in a state that is not kept whole: of how many changes it holds the first.
CUT: Final = "… changes in all"
_MISSING: Final = object()


class ChangeKind(StrEnum):
    """What became of one place of a state."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True)
class Change:
    """One place of a state that a run has changed.

    Attributes:
        path: where, as in `state.partitions[3].cursor`.
        kind: what became of it.
        before: what stood there, as JSON's own types; None if it was added.
        after: what stands there; None if it was removed.
    """

    path: str
    kind: ChangeKind
    before: Any
    after: Any


def differences(before: Any, after: Any) -> list[Change]:
    """What differs between two values of JSON's own types, in the order of their places."""
    return [
        Change(
            _spelled(path),
            ChangeKind.ADDED
            if old is _MISSING
            else ChangeKind.REMOVED
            if new is _MISSING
            else ChangeKind.CHANGED,
            None if old is _MISSING else old,
            None if new is _MISSING else new,
        )
        for path, old, new in _differing((), before, after)
    ]


def kept(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> tuple[str | None, str | None]:
    """Two states as they are kept.

    Args:
        before: a stream's state before a run; None: there was none.
        after: its state after the run, or None.

    Returns:
        Both as JSON, without what looks like a secret. If one is large, both hold by path only
        what differs (see `CUT`).
    """
    if after is not None:
        after = masked(dict(after), dict(before or {}))
    before = None if before is None else masked(dict(before))
    texts = tuple(None if one is None else orjson.dumps(one) for one in (before, after))
    if all(text is None or len(text) <= WHOLE_BYTES for text in texts):
        told = (None if text is None else text.decode() for text in texts)
        return next(told), next(told)
    found = list(_differing((), dict(before or {}), dict(after or {})))
    shown = found[:_MOST_CHANGES]
    sides: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for path, *both in shown:
        for side, value in zip(sides, both, strict=True):
            if value is not _MISSING:
                side[_spelled(path)] = _short(value)
    for side in sides:
        side[CUT] = len(found)
    first, second = (orjson.dumps(side).decode() for side in sides)
    return None if before is None else first, None if after is None else second


def _short(value: Any) -> Any:
    text = orjson.dumps(value)
    limit = WHOLE_BYTES // _MOST_CHANGES
    return value if len(text) <= limit else f"({len(text):,} bytes)"


def _differing(
    path: tuple[str | int, ...], old: Any, new: Any
) -> Iterator[tuple[tuple[str | int, ...], Any, Any]]:
    # What came or went as a whole is told place by place, too.
    if old is _MISSING and isinstance(new, (dict, list)) and new:
        old = type(new)()
    elif new is _MISSING and isinstance(old, (dict, list)) and old:
        new = type(old)()
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(name for name in new if name not in old)]:
            yield from _differing((*path, name), old.get(name, _MISSING), new.get(name, _MISSING))
    elif isinstance(old, list) and isinstance(new, list):
        for place in range(max(len(old), len(new))):
            first = old[place] if place < len(old) else _MISSING
            second = new[place] if place < len(new) else _MISSING
            yield from _differing((*path, place), first, second)
    elif type(old) is not type(new) or old != new:
        yield path, old, new


def _spelled(path: tuple[str | int, ...]) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isidentifier():
            text += f".{part}" if text else part
        else:
            text += f"[{orjson.dumps(part).decode()}]"
    return text
