"""Records of runs and their streams, with the difference of offsets before and after.

What is kept of a run: how it went, and how each of its streams did.

How far a stream was in its source before and after a run: kept small, and what differs.

States are JSON. Most are a line; one with a cursor for each of ten thousand partitions is a
megabyte, and would be kept a hundred times over. So of a large one only what differs is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import orjson

from chronolake.masking import masked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Status(StrEnum):
    """What became of a run, or of one of its streams."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    PARTIAL = "partial"
    FAILED = "failed"
    #: It runs as far as the store knows, and its process is gone. Never stored.
    DEAD = "dead"
    #: A word that this version does not know stands in the store. Never stored.
    UNKNOWN = "not known"


class Stage(StrEnum):
    """What a running stream does."""

    #: Other streams of the run come first.
    WAITING = "waiting"
    #: What its source has is read, and lands in our own raw lake.
    LANDING = "landing"
    #: What has landed is brought into its table.
    APPLYING = "applying"


@dataclass(frozen=True)
class Run:
    """One run of a pipeline.

    Attributes:
        id: its identity.
        pipeline: which pipeline.
        began: when, ISO 8601 in UTC.
        ended: when, or None.
        status: what became of it.
        holder: the process, as host and number.
        error: what kept it as a whole from going on, or None.
        hint: what to do about that, or None.
    """

    id: str
    pipeline: str
    began: str
    ended: str | None
    status: Status
    holder: str
    error: str | None = None
    hint: str | None = None


@dataclass(frozen=True)
class StreamRun:
    """One stream in one run.

    Attributes:
        run: the run's identity.
        stream: which stream.
        table_name: the table that it fills.
        status: what became of it.
        files: files that were applied.
        bytes: their size.
        rows: their rows, duplicates included.
        written: rows of the table that are new or changed.
        seconds: how long it took.
        position: how far the table has come in its source, or None.
        error: why it failed and where, or None.
        hint: what to do about that, or None.
        stage: what it does; None: it has ended.
        rows_read: rows that the source gave, as far as that is known, or None.
        landed_files: files that have landed in our own raw lake; None: somebody else writes it.
        landed_bytes: their size, or None.
        landed_rows: their rows, or None.
        files_left: files that are still to be applied; None: it has not come so far.
        bytes_left: their size, or None.
        position_before: how far the table was before the run, or None.
        state_before: how far the stream was in its source before the run, as JSON
            (`statediff.kept`), or None.
        state_after: the same after it, or None.
    """

    run: str
    stream: str
    table_name: str
    status: Status
    files: int = 0
    bytes: int = 0
    rows: int = 0
    written: int = 0
    seconds: float = 0.0
    position: str | None = None
    error: str | None = None
    hint: str | None = None
    stage: Stage | None = None
    rows_read: int | None = None
    landed_files: int | None = None
    landed_bytes: int | None = None
    landed_rows: int | None = None
    files_left: int | None = None
    bytes_left: int | None = None
    position_before: str | None = None
    state_before: str | None = None
    state_after: str | None = None


@dataclass(frozen=True)
class Verified:
    """What `chronolake verify` found last of a table.

    Attributes:
        table_name: which table.
        at: when it was looked at, ISO 8601 in UTC.
        holds: whether all promises held.
        rows: how many rows were looked at.
        against_lake: whether it was also compared with its raw lake.
        broken: the promises that were broken, one a line, or None; no values of rows.
    """

    table_name: str
    at: str
    holds: bool
    rows: int
    against_lake: bool
    broken: str | None = None


def now() -> str:
    """The time as ISO 8601 in UTC, with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


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
        reported = (None if text is None else text.decode() for text in texts)
        return next(reported), next(reported)
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
