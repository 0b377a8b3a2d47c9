"""Records of runs and their streams, and the differences of source states before and after.

States are JSON. Most are one line, but one with a cursor for each of ten thousand partitions is a
megabyte, and would be stored a hundred times. So only the differences of large states are stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from chronolake import exact_json
from chronolake.masking import mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from chronolake.types import Mode


class Status(StrEnum):
    """The outcome of a run or of one of its streams."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    PARTIAL = "partial"
    FAILED = "failed"
    #: The store has it as running, but its process has ended. Never stored.
    DEAD = "dead"
    #: The store contains a status that this version does not know. Never stored.
    UNKNOWN = "not known"


class Stage(StrEnum):
    """The current activity of a running stream."""

    #: Other streams of the run are processed first.
    WAITING = "waiting"
    #: The source's data is read, and lands in Chronolake's own raw lake.
    LANDING = "landing"
    #: Landed files are applied to the table.
    APPLYING = "applying"


@dataclass(frozen=True)
class ModeChange:
    """A switch of a table to another mode.

    Attributes:
        before, after: its modes.
        rows: number of its rows afterwards (of a history table: versions).
        seconds: duration.
    """

    before: Mode
    after: Mode
    rows: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Return the change as JSON types."""
        return {
            "from": self.before.value,
            "to": self.after.value,
            "rows": self.rows,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class Run:
    """A run of a pipeline.

    Attributes:
        id: the run's identity.
        pipeline: the pipeline's name.
        began: start time, ISO 8601 in UTC.
        ended: end time, or None.
        status: the outcome.
        holder: the process, as host and process id.
        error: the error of the run as a whole, or None.
        hint: what to do about the error, or None.
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
    """A stream in a run.

    Attributes:
        run: the run's identity.
        stream: the stream's name.
        table_name: the table that it writes.
        status: the outcome.
        files: files that were applied.
        bytes: their size.
        rows: their rows, including duplicates.
        written: rows of the table that are new or changed.
        seconds: duration.
        position: the table's watermark, or None.
        error: why the stream failed and where, or None.
        hint: what to do about the error, or None.
        stage: the current activity; None if the stream has ended.
        rows_read: rows that the source returned; None if unknown.
        landed_files: files that have landed in Chronolake's own raw lake; None for the files of
            another system.
        landed_bytes: their size, or None.
        landed_rows: their rows, or None.
        files_left: files that are still to be applied; None if they have not been listed yet.
        bytes_left: their size, or None.
        position_before: the table's watermark before the run, or None.
        state_before: the stream's state in its source before the run, as JSON (`encode_states`), or
            None.
        state_after: the same after the run, or None.
        landing_seconds: duration of landing, or None. Streams of one log land at the same time.
        applying_seconds: duration of applying files, or None.
        column_changes: changes of the source's columns (`schema_changes.ColumnChange`), a JSON
            list, or None.
        mode_changes: switches of the table's mode (`ModeChange`), a JSON list, or None.
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
    landing_seconds: float | None = None
    applying_seconds: float | None = None
    column_changes: str | None = None
    mode_changes: str | None = None

    @property
    def changed_modes(self) -> list[dict[str, Any]]:
        """Return the switches of the table's mode, as JSON types."""
        return _list_of(self.mode_changes)

    def with_mode_change(self, change: ModeChange) -> StreamRun:
        """Return the stream after another switch of its table's mode."""
        every = [*self.changed_modes, change.as_json()]
        return replace(self, mode_changes=exact_json.dumps(every).decode())

    @property
    def changed_columns(self) -> list[dict[str, Any]]:
        """Return the changes of the source's columns, as JSON types."""
        return _list_of(self.column_changes)


def _list_of(stored: str | None) -> list[dict[str, Any]]:
    """Return a stored JSON list; an empty one for None."""
    found: list[dict[str, Any]] = [] if stored is None else exact_json.loads(stored.encode())
    return found


@dataclass(frozen=True)
class StreamTotals:
    """The sums of all ended runs of a stream, which never decrease.

    Attributes:
        pipeline: the pipeline's name.
        stream: the stream's name.
        table_name: the table that it wrote in its last run.
        runs: number of runs.
        failures: number of failed runs of the stream.
        files: files that were applied.
        bytes: their size.
        rows: their rows, including duplicates.
        written: rows of the table that were new or changed.
        landed_rows: rows that landed in Chronolake's own raw lake.
        landed_bytes: the size of their files.
        landing_seconds: duration of landing.
        applying_seconds: duration of applying files.
        succeeded: end of the last successful run, ISO 8601 in UTC, or None.
    """

    pipeline: str
    stream: str
    table_name: str
    runs: int = 0
    failures: int = 0
    files: int = 0
    bytes: int = 0
    rows: int = 0
    written: int = 0
    landed_rows: int = 0
    landed_bytes: int = 0
    landing_seconds: float = 0.0
    applying_seconds: float = 0.0
    succeeded: str | None = None

    def with_run(self, stream: StreamRun, ended: str) -> StreamTotals:
        """Return the sums with another run.

        Args:
            stream: the stream in an ended run.
            ended: the end of the run, ISO 8601 in UTC.
        """
        has_succeeded = stream.status is Status.SUCCEEDED
        return replace(
            self,
            table_name=stream.table_name,
            runs=self.runs + 1,
            failures=self.failures + (not has_succeeded),
            succeeded=ended if has_succeeded else self.succeeded,
            **{name: getattr(self, name) + (getattr(stream, name) or 0) for name in _SUMMED},
        )


#: The fields of `StreamRun` that `StreamTotals` sums up.
_SUMMED: Final = (
    "files",
    "bytes",
    "rows",
    "written",
    "landed_rows",
    "landed_bytes",
    "landing_seconds",
    "applying_seconds",
)


@dataclass(frozen=True)
class VerificationResult:
    """The last result of `chronolake verify` for a table.

    Attributes:
        table_name: the table.
        at: time of the verification, ISO 8601 in UTC.
        holds: whether all invariants hold.
        rows: number of verified rows.
        against_lake: whether the table was also compared with its raw lake.
        broken: the violated invariants, one per line, or None; it never contains values of rows.
    """

    table_name: str
    at: str
    holds: bool
    rows: int
    against_lake: bool
    broken: str | None = None


def now() -> str:
    """Return the current time as ISO 8601 in UTC, with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


#: States up to this size are stored completely.
WHOLE_BYTES: Final = 8_192
#: Number of changes that are stored of a larger state.
_MOST_CHANGES: Final = 50
#: Key in a partially stored state; its value is the total number of changes.
CUT: Final = "… changes in all"
_MISSING: Final = object()


class ChangeKind(StrEnum):
    """The kind of change at one path of a state."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True)
class Change:
    """A change of a state at one path.

    Attributes:
        path: the path, such as `state.partitions[3].cursor`.
        kind: the kind of change.
        before: the old value, as JSON types; None if it was added.
        after: the new value; None if it was removed.
    """

    path: str
    kind: ChangeKind
    before: Any
    after: Any


def diff_states(before: Any, after: Any) -> list[Change]:
    """Return the differences between two JSON values, in the order of their paths."""
    return [
        Change(
            _format_path(path),
            ChangeKind.ADDED
            if old is _MISSING
            else ChangeKind.REMOVED
            if new is _MISSING
            else ChangeKind.CHANGED,
            None if old is _MISSING else old,
            None if new is _MISSING else new,
        )
        for path, old, new in _walk_differences((), before, after)
    ]


def encode_states(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> tuple[str | None, str | None]:
    """Return two states in the form in which they are stored.

    Args:
        before: a stream's state before a run, or None.
        after: its state after the run, or None.

    Returns:
        Both as JSON, with masked secrets. If one is large, both contain only the diff_states, by
        path (see `CUT`).
    """
    if after is not None:
        after = mask(dict(after), dict(before or {}))
    before = None if before is None else mask(dict(before))
    texts = tuple(None if state is None else exact_json.dumps(state) for state in (before, after))
    if all(text is None or len(text) <= WHOLE_BYTES for text in texts):
        decoded = (None if text is None else text.decode() for text in texts)
        return next(decoded), next(decoded)
    found = list(_walk_differences((), dict(before or {}), dict(after or {})))
    shown = found[:_MOST_CHANGES]
    sides: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for path, *both in shown:
        for side, value in zip(sides, both, strict=True):
            if value is not _MISSING:
                side[_format_path(path)] = _shorten(value)
    for side in sides:
        side[CUT] = len(found)
    first, second = (exact_json.dumps(side).decode() for side in sides)
    return None if before is None else first, None if after is None else second


def _shorten(value: Any) -> Any:
    text = exact_json.dumps(value)
    limit = WHOLE_BYTES // _MOST_CHANGES
    return value if len(text) <= limit else f"({len(text):,} bytes)"


def _walk_differences(
    path: tuple[str | int, ...], old: Any, new: Any
) -> Iterator[tuple[tuple[str | int, ...], Any, Any]]:
    # Objects and lists that were added or removed are reported value by value, too.
    if old is _MISSING and isinstance(new, (dict, list)) and new:
        old = type(new)()
    elif new is _MISSING and isinstance(old, (dict, list)) and old:
        new = type(old)()
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(name for name in new if name not in old)]:
            yield from _walk_differences(
                (*path, name), old.get(name, _MISSING), new.get(name, _MISSING)
            )
    elif isinstance(old, list) and isinstance(new, list):
        for place in range(max(len(old), len(new))):
            first = old[place] if place < len(old) else _MISSING
            second = new[place] if place < len(new) else _MISSING
            yield from _walk_differences((*path, place), first, second)
    elif type(old) is not type(new) or old != new:
        yield path, old, new


def _format_path(path: tuple[str | int, ...]) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isidentifier():
            text += f".{part}" if text else part
        else:
            text += f"[{exact_json.dumps(part).decode()}]"
    return text
