"""Checks of the source protocol, for the tests of sources.

A check drives a source as a pipeline does, in memory: it lands batches, stores offsets, stops at
any point, and continues with a new object. It needs no test framework and no tables:

    from chronolake.source import conformance

    @pytest.mark.parametrize("check", conformance.CHECKS, ids=conformance.name_of)
    def test_source(check, tmp_path):
        check(lambda: my_subject(tmp_path))

Copies (`CopyBatch`) are not covered: they may be read in any order, which these checks do not know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from chronolake import exact_json
from chronolake.arrow_tasks import ArrowRows
from chronolake.errors import ChronolakeError, SourceError
from chronolake.landing import wider
from chronolake.source.protocol import (
    ALL_STREAMS,
    DELETED_AT,
    MODIFIED,
    OMITTED,
    PROVIDES_DATA,
    PURGED_AT,
    SEQUENCE,
    CaptureMethod,
    ChangeBatch,
    ChangeSource,
    Reconciliation,
    SharedOffset,
    Snapshot,
    StreamFailure,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from chronolake.lake import Lake
    from chronolake.source.protocol import Offset, StreamDescriptor
    from chronolake.types import ColumnType

__all__ = [
    "CHECKS",
    "Check",
    "ConformanceError",
    "NewSubject",
    "Subject",
    "check_source",
    "name_of",
]

#: At most this many points of a run are tried as the place of a crash.
_CRASHES: Final = 12
#: An error names this many of the keys or columns.
_SHOWN: Final = 3

_Key: TypeAlias = tuple[Any, ...]
_Row: TypeAlias = dict[str, Any]
_Batch: TypeAlias = "ChangeBatch | Snapshot | Reconciliation"


class ConformanceError(ChronolakeError):
    """A source does not follow the source protocol. The message contains keys, but no values."""


@dataclass(frozen=True)
class Subject:
    """A source under test, with the system that it reads.

    Attributes:
        open: returns a new source of the same system, as a new process has it.
        lake: a lake, whose Spark session a source may use; nothing is written to it.
        change: changes some records of the system; a log, a cursor or a complete read shows it.
        broken: a context in which reads fail when some, but not all records were read; None: that
            cannot be arranged.
        count: returns the number of records that exist in the system, by stream; None: it is not
            known.
        makes_snapshots: whether `read` with `full_refresh` returns all records.
        has_times: whether the system knows when a record changed. Without that, a change may have
            another time when it is read again before it has landed.
    """

    open: Callable[[], ChangeSource]
    lake: Lake
    change: Callable[[], object]
    broken: Callable[[], AbstractContextManager[object]] | None = None
    count: Callable[[], Mapping[str, int]] | None = None
    makes_snapshots: bool = True
    has_times: bool = True


#: Returns a subject whose system always has the same content, which no check has changed.
NewSubject: TypeAlias = Callable[[], Subject]
Check: TypeAlias = Callable[[NewSubject], None]


def _first_run(subject: Subject) -> _Run:
    """Return a run that has read everything for the first time."""
    run = _Run()
    run.read(subject)
    run.expect_success()
    return run


def check_source(new_subject: NewSubject) -> None:
    """Run all checks.

    Raises:
        ConformanceError: the source does not follow the protocol.
    """
    for check in CHECKS:
        check(new_subject)


def name_of(check: Check) -> str:
    """Return the name of a check, for the names of tests."""
    return check.__name__.removeprefix("check_")


@dataclass(frozen=True)
class _Landed:
    """A batch with its rows.

    Attributes:
        batch: the batch.
        rows: its rows.
    """

    batch: _Batch
    rows: list[_Row]

    @property
    def stream(self) -> str:
        return self.batch.stream

    @property
    def key_columns(self) -> list[str]:
        return [column.name for column in self.batch.columns if column.primary_key]

    def key_of(self, row: Mapping[str, Any]) -> _Key:
        return tuple(_plain(row.get(name)) for name in self.key_columns)

    def data_of(self, row: Mapping[str, Any]) -> _Row:
        """Return the values of a row that are not null: a new column is null in old rows."""
        names = (column.name for column in self.batch.columns)
        return {name: _plain(row[name]) for name in names if row.get(name) is not None}


@dataclass
class _Table:
    """The records of a stream as its batches leave them.

    Attributes:
        records: the last version of each record: its order, and its data, or None if it was
            deleted.
        changes: all versions that have landed.
    """

    records: dict[_Key, tuple[tuple[int, int, str], _Row | None]] = field(default_factory=dict)
    changes: list[tuple[_Key, _Row | None]] = field(default_factory=list)

    def present(self) -> dict[_Key, _Row]:
        """Return the records that exist."""
        return {key: data for key, (_, data) in self.records.items() if data is not None}

    def land(self, landed: _Landed) -> None:
        """Add the rows of a batch."""
        match landed.batch:
            case Snapshot() as batch:
                self._replace(landed, batch)
            case Reconciliation() as batch:
                self._merge(landed)
                known = {landed.key_of(row) for row in landed.rows}
                for key, (order, data) in list(self.records.items()):
                    is_looked_up = (batch.since_micros or 0) <= order[0] <= batch.at_micros
                    if is_looked_up and key not in known and data is not None:
                        self.records[key] = ((batch.at_micros, 0, ""), None)
            case _:
                self._merge(landed)

    def _replace(self, landed: _Landed, batch: Snapshot) -> None:
        if not landed.rows and not batch.may_be_empty:
            return
        order = (batch.at_micros, len(batch.sequence), batch.sequence)
        rows = list(landed.rows)
        if batch.order is not None:
            name = batch.order
            rows.sort(key=lambda row: row[name])
        flags = [flag for flag in (batch.present, batch.exists) if flag is not None]
        found = {
            landed.key_of(row): landed.data_of(row) if all(row[flag] for flag in flags) else None
            for row in rows
        }
        missing = self.records.keys() - found.keys() if batch.present is None else ()
        for key, data in [*found.items(), *((key, None) for key in missing)]:
            known = self.records.get(key)
            if data != (None if known is None else known[1]):
                self.records[key] = (order, data)
                self.changes.append((key, data))

    def _merge(self, landed: _Landed) -> None:
        rows = sorted(landed.rows, key=_order_of)
        for row in rows:
            key, order = landed.key_of(row), _order_of(row)
            is_gone = row.get(DELETED_AT) is not None or row.get(PURGED_AT) is not None
            if not is_gone and row.get(PROVIDES_DATA) is False:
                continue
            known = self.records.get(key)
            data = None if is_gone else landed.data_of(row)
            if data is not None and row.get(OMITTED):
                before = (known[1] if known is not None else None) or {}
                data |= {name: before[name] for name in row[OMITTED] if name in before}
            self.changes.append((key, data))
            if known is None or order >= known[0]:
                self.records[key] = (order, data)


@dataclass
class _Run:
    """What pipelines have landed and stored of a source.

    Attributes:
        positions: the stored offsets.
        tables: the records, by stream.
        landed: the batches of all runs, in their order.
        failures: the failures of streams in the last run.
    """

    positions: dict[str, Offset] = field(default_factory=dict)
    tables: dict[str, _Table] = field(default_factory=dict)
    landed: list[_Landed] = field(default_factory=list)
    failures: list[StreamFailure] = field(default_factory=list)

    def read(
        self,
        subject: Subject,
        *,
        full_refresh: bool = False,
        batches: int | None = None,
        lose: bool = False,
    ) -> list[_Landed]:
        """Read a source as a run of a pipeline does.

        Args:
            subject: the source.
            full_refresh: whether to read everything.
            batches: the number of batches after which the process dies; None: it does not.
            lose: whether it dies before the last one of them has landed.

        Returns:
            The batches of this run.
        """
        source = subject.open()
        names = [found.capabilities.name for found in source.discover()]
        source.acknowledge(dict(self.positions))
        wanted = {name: self.positions.get(name) for name in names}
        self.failures, found = [], []
        items = source.read(subject.lake, wanted, full_refresh=full_refresh)
        with closing(items) if isinstance(items, GeneratorType) else nullcontext():
            for item in items if batches != 0 else ():
                match item:
                    case ChangeBatch() | Snapshot() | Reconciliation():
                        landed = _Landed(item, _rows_of(item))
                        found.append(landed)
                        if not (lose and len(found) == batches):
                            self._land(landed)
                            source.acknowledge(dict(self.positions))
                    case SharedOffset():
                        self.positions[ALL_STREAMS] = _stored(item.position)
                        source.acknowledge(dict(self.positions))
                    case StreamFailure():
                        self.failures.append(item)
                if len(found) == batches:
                    break
        return found

    def _land(self, landed: _Landed) -> None:
        self.tables.setdefault(landed.stream, _Table()).land(landed)
        self.positions[landed.stream] = _stored(landed.batch.position)
        self.landed.append(landed)

    def present(self) -> dict[str, dict[_Key, _Row]]:
        """Return the records that exist, by stream."""
        return {name: table.present() for name, table in self.tables.items()}

    def expect_success(self) -> None:
        """Raise if a stream has failed in the last run."""
        for failure in self.failures:
            raise ConformanceError(
                f"The stream {failure.stream} failed: {failure.error}",
                hint="Checks need a source that can be read.",
            )


def check_capabilities(new_subject: NewSubject) -> None:
    """Check that descriptors are complete, and that batches are of their streams and methods."""
    subject = new_subject()
    streams = _streams_of(subject)
    run = _first_run(subject)
    subject.change()
    changed = run.read(subject)
    for landed in run.landed:
        descriptor = streams.get(landed.stream)
        if descriptor is None:
            raise _error(landed.stream, "is not described, but has a batch", "Describe it.")
        if not landed.batch.columns:
            continue
        if set(descriptor.key) != set(landed.key_columns):
            raise _error(
                landed.stream,
                f"has the key {_list(descriptor.key)}, but its batches {_list(landed.key_columns)}",
                "Use the same key columns in both.",
            )
    for landed in changed:
        method = streams[landed.stream].capture_method
        is_snapshot = isinstance(landed.batch, Snapshot) and landed.batch.present is None
        if method is CaptureMethod.EVERY_CHANGE and is_snapshot:
            raise _error(
                landed.stream,
                "captures every change, but returned a snapshot after the first run",
                "Return a ChangeBatch, or set capture_method to SNAPSHOT_DIFF.",
            )
        is_change = isinstance(landed.batch, ChangeBatch) and bool(landed.rows)
        if method is CaptureMethod.SNAPSHOT_DIFF and is_change:
            raise _error(
                landed.stream,
                "is captured by snapshots, but returned changes",
                "Return a Snapshot, or set another capture_method.",
            )
    if not any(landed.rows for landed in changed):
        raise _error("", "returned nothing after the change of its system", "See Subject.change.")


def check_completeness(new_subject: NewSubject) -> None:
    """Check that all records of the system are read, and that deleted ones do not remain."""
    subject, run = new_subject(), _Run()
    if subject.count is None:
        return
    for change in (lambda: None, subject.change):
        change()
        run.read(subject)
        run.expect_success()
        for name, number in subject.count().items():
            read = len(run.present().get(name, {}))
            if read != number:
                raise _error(
                    name,
                    f"has {number} records in its system, but {read} were read",
                    "The offset is ahead of the records, or changes were discarded too early.",
                )


def check_keys(new_subject: NewSubject) -> None:
    """Check that each row has its whole key, and that distinct rows are distinct."""
    subject = new_subject()
    run = _first_run(subject)
    subject.change()
    run.read(subject)
    for landed in run.landed:
        if not landed.rows:
            continue
        if not landed.key_columns:
            raise _error(landed.stream, "has rows without key columns", "Set Column.primary_key.")
        for row in landed.rows:
            for name in landed.key_columns:
                if row.get(name) is None:
                    raise _error(
                        landed.stream,
                        f"has a row without {name}, which is part of its key",
                        "Fail the stream, or choose another key.",
                    )
        is_distinct = not isinstance(landed.batch, Reconciliation) and landed.batch.is_distinct
        counts = Counter(map(landed.key_of, landed.rows))
        if is_distinct and (repeated := [key for key, count in counts.items() if count > 1]):
            raise _error(
                landed.stream,
                f"repeats the records {_list(repeated)} in a batch that is_distinct",
                "Set is_distinct to False.",
            )


def check_offsets(new_subject: NewSubject) -> None:
    """Check that offsets are JSON, and that an idle source returns nothing new."""
    subject = new_subject()
    run = _first_run(subject)
    before = run.present()
    idle = run.read(subject)
    run.expect_success()
    if (difference := _difference(before, run.present())) is not None:
        raise ConformanceError(
            f"A run without changes in the system changed {difference}.",
            hint="The offset does not describe what was read.",
        )
    for landed in idle:
        if isinstance(landed.batch, ChangeBatch) and landed.rows and not landed.batch.may_repeat:
            raise _error(
                landed.stream,
                "returned rows that have landed before in a batch without may_repeat",
                "Continue after the offset, or set may_repeat.",
            )


def check_times(new_subject: NewSubject) -> None:
    """Check that the times of versions increase, and have sequences."""
    subject = new_subject()
    run = _first_run(subject)
    subject.change()
    run.read(subject)
    last: dict[tuple[str, _Key], int] = {}
    reports = {name: found.capabilities for name, found in _streams_of(subject).items()}
    for landed in run.landed:
        if isinstance(landed.batch, Snapshot):
            for key in {landed.key_of(row) for row in landed.rows}:
                if landed.batch.at_micros <= last.get((landed.stream, key), 0):
                    raise _error(
                        landed.stream,
                        "has a snapshot that is not later than the versions before it",
                        "Store the last time in the offset, and add a microsecond.",
                    )
                last[landed.stream, key] = landed.batch.at_micros
            continue
        for row in landed.rows:
            if not isinstance(row.get(MODIFIED), int) or not isinstance(row.get(SEQUENCE), str):
                raise _error(
                    landed.stream, "has a version without a time or sequence", "Set both columns."
                )
        if isinstance(landed.batch, Reconciliation) or landed.batch.may_repeat:
            continue
        for row in sorted(landed.rows, key=_order_of):
            key = landed.key_of(row)
            is_late = row[MODIFIED] < last.get((landed.stream, key), 0)
            if is_late and reports[landed.stream].reports_changes:
                raise _error(
                    landed.stream,
                    f"has a later change of {_list([key])} with an earlier time",
                    "Add a microsecond to the last time if a clock is set back.",
                )
            last[landed.stream, key] = row[MODIFIED]


def check_schema(new_subject: NewSubject) -> None:
    """Check that the same read has the same columns, and that types only become wider."""
    first, second = _Run(), _Run()
    for run in (first, second):
        subject = new_subject()
        run.read(subject)
        run.expect_success()
        subject.change()
        run.read(subject)
    if (one := _columns_of(first)) != (other := _columns_of(second)):
        names = [name for name in one.keys() | other.keys() if one.get(name) != other.get(name)]
        raise ConformanceError(
            f"Two reads of the same system have different columns: {_list(names)}.",
            hint="Return the columns that the source declares, in each batch.",
        )
    types: dict[tuple[str, str], ColumnType] = {}
    for landed in first.landed:
        names = [column.name for column in landed.batch.columns]
        if len(set(names)) < len(names):
            raise _error(landed.stream, "has two columns of the same name", "Rename one.")
        for column in landed.batch.columns:
            known = types.setdefault((landed.stream, column.name), column.type)
            if wider(known, column.type) != column.type:
                raise _error(
                    landed.stream,
                    f"changed {column.name} from {known} to {column.type}, which is narrower",
                    "Store the types in the offset, and only widen them.",
                )
            types[landed.stream, column.name] = column.type
        for row in landed.rows:
            if unknown := [name for name in row if not (name in names or _is_technical(name))]:
                declared = getattr(landed.batch, "present", None), *_texts_of(landed.batch)
                if more := [name for name in unknown if name not in declared]:
                    raise _error(
                        landed.stream, f"has undeclared columns {_list(more)}", "Declare them."
                    )


def check_restart(new_subject: NewSubject) -> None:
    """Check that a process that dies at any point leads to the same records."""
    complete, points = _reference(new_subject)
    for point in points:
        for lose in (False, True):
            if lose and not point:
                continue
            subject, run = new_subject(), _Run()
            run.read(subject, batches=point, lose=lose)
            run.read(subject)
            run.expect_success()
            _expect_same(complete, run, f"after {point} batches" + (" (lost)" if lose else ""))


def check_restart_after_changes(new_subject: NewSubject) -> None:
    """Check that a process that dies while it reads changes leads to the same records."""
    subject, complete = new_subject(), _Run()
    complete.read(subject)
    subject.change()
    changes = len(complete.read(subject))
    complete.expect_success()
    for point in _points(changes):
        for lose in (False, True):
            if lose and not point:
                continue
            subject, run = new_subject(), _Run()
            run.read(subject)
            subject.change()
            run.read(subject, batches=point, lose=lose)
            run.read(subject)
            run.expect_success()
            where = f"after {point} batches of changes" + (" (lost)" if lose else "")
            _expect_same(complete, run, where)


def check_repeated_rows(new_subject: NewSubject) -> None:
    """Check that a batch that was lost is repeated with the same rows."""
    _, points = _reference(new_subject)
    for point in filter(None, points):
        subject, run = new_subject(), _Run()
        lost = run.read(subject, batches=point, lose=True)[-1]
        found: dict[_Key, list[_Row | None]] = {}
        for landed in run.read(subject):
            if landed.stream == lost.stream:
                for row in landed.rows:
                    compared = _comparable(landed, row, is_timed=subject.has_times)
                    found.setdefault(landed.key_of(row), []).append(compared)
        for row in lost.rows:
            if _comparable(lost, row, is_timed=subject.has_times) not in found.get(
                lost.key_of(row), ()
            ):
                raise _error(
                    lost.stream,
                    f"returned the record {_list([lost.key_of(row)])} of batch {point} differently "
                    "or not at all when it was read again",
                    "Keep changes until they are acknowledged, and compute times from the source.",
                )


def check_acknowledge(new_subject: NewSubject) -> None:
    """Check that offsets may be acknowledged again, and before anything was read."""
    subject, run = new_subject(), _Run()
    subject.open().acknowledge({})
    run.read(subject)
    run.expect_success()
    before = run.present()
    source = subject.open()
    for _ in range(2):
        source.acknowledge(dict(run.positions))
    subject.change()
    run.read(subject)
    run.expect_success()
    if run.present() == before:
        raise ConformanceError(
            "A change after an acknowledged offset was not read.",
            hint="acknowledge must discard only what its offsets include.",
        )


def check_full_refresh(new_subject: NewSubject) -> None:
    """Check that a full refresh returns all records, and deletes the others."""
    subject, run = new_subject(), _Run()
    if not subject.makes_snapshots:
        return
    run.read(subject)
    subject.change()
    run.read(subject)
    run.expect_success()
    before = run.present()
    run.read(subject, full_refresh=True)
    run.expect_success()
    if (difference := _difference(before, run.present())) is not None:
        raise ConformanceError(
            f"A full refresh changed {difference}, which were up to date.",
            hint="Read everything if full_refresh is set, or return all changes without it.",
        )
    fresh = _Run()
    fresh.read(subject, full_refresh=True)
    fresh.expect_success()
    if missing := _missing(before, fresh.present()):
        raise ConformanceError(
            f"A full refresh did not return {missing}.",
            hint="Ignore the offset if full_refresh is set.",
        )


def check_incomplete_read(new_subject: NewSubject) -> None:
    """Check that a read that fails midway is reported, deletes nothing, and can be continued."""
    subject, run = new_subject(), _Run()
    if subject.broken is None:
        return
    run.read(subject)
    run.expect_success()
    before = run.present()
    with subject.broken():
        try:
            run.read(subject, full_refresh=subject.makes_snapshots)
            error = next((failure.error for failure in run.failures), None)
        except ChronolakeError as raised:
            error = raised
    if error is None:
        raise ConformanceError(
            "A read that failed midway did not report it.", hint="Yield a StreamFailure."
        )
    if not isinstance(error, ChronolakeError) or not error.hint:
        raise ConformanceError(
            f"A read failed with a {type(error).__name__} without a hint.",
            hint="Raise a SourceError with a hint that names the next step.",
        )
    if missing := _missing(before, run.present()):
        raise ConformanceError(
            f"A read that failed midway deleted {missing}.",
            hint="Return a Snapshot only when everything was read.",
        )
    run.read(subject)
    run.expect_success()
    if (difference := _difference(before, run.present())) is not None:
        raise ConformanceError(
            f"The run after a read that failed midway changed {difference}.",
            hint="The offset is ahead of the records that were read.",
        )


#: All checks. Each takes a function that returns a new subject.
CHECKS: Final[tuple[Check, ...]] = (
    check_capabilities,
    check_completeness,
    check_keys,
    check_offsets,
    check_times,
    check_schema,
    check_restart,
    check_restart_after_changes,
    check_repeated_rows,
    check_acknowledge,
    check_full_refresh,
    check_incomplete_read,
)


def _streams_of(subject: Subject) -> dict[str, StreamDescriptor]:
    found = subject.open().discover()
    names = [stream.capabilities.name for stream in found]
    if not names:
        raise _error("", "has no streams", "Return descriptors from discover.")
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise _error("", f"describes {_list(repeated)} twice", "Names of streams are unique.")
    again = [stream.capabilities.name for stream in subject.open().discover()]
    if set(again) != set(names):
        raise _error("", "describes other streams each time", "Names of streams are stable.")
    return dict(zip(names, found, strict=True))


def _reference(new_subject: NewSubject) -> tuple[_Run, Sequence[int]]:
    """Return a run that does not die, and the points at which others do."""
    complete = _Run()
    batches = len(complete.read(new_subject()))
    complete.expect_success()
    return complete, _points(batches)


def _points(batches: int) -> list[int]:
    step = max(1, batches // _CRASHES)
    return sorted({*range(0, batches + 1, step), batches})


def _expect_same(complete: _Run, run: _Run, where: str) -> None:
    """Raise if a run that died and was continued has other records or changes."""
    if missing := _missing(complete.present(), run.present()):
        raise ConformanceError(
            f"A run that died {where} lost {missing}.",
            hint="The offset is ahead of the records, or changes were discarded too early.",
        )
    if (difference := _difference(complete.present(), run.present())) is not None:
        raise ConformanceError(
            f"A run that died {where} led to other values of {difference}.",
            hint="Changes that are read again must be equal, in the same order.",
        )
    for name, table in complete.tables.items():
        landed = run.tables.get(name, _Table()).changes
        if lost := [key for key, data in table.changes if (key, data) not in landed]:
            raise ConformanceError(
                f"A run that died {where} lost changes of {name}: {_list(lost)}.",
                hint="Keep changes until they are acknowledged.",
            )


def _difference(
    before: Mapping[str, Mapping[_Key, _Row]], after: Mapping[str, Mapping[_Key, _Row]]
) -> str | None:
    """Return which records differ, or None."""
    for name in before.keys() | after.keys():
        one, other = before.get(name, {}), after.get(name, {})
        if keys := [key for key in [*one, *other] if one.get(key) != other.get(key)]:
            return f"records of {name}: {_list(dict.fromkeys(keys))}"
    return None


def _missing(
    before: Mapping[str, Mapping[_Key, _Row]], after: Mapping[str, Mapping[_Key, _Row]]
) -> str:
    """Return which records are missing, or an empty text."""
    for name, records in before.items():
        if keys := [key for key in records if key not in after.get(name, {})]:
            return f"records of {name}: {_list(keys)}"
    return ""


def _columns_of(run: _Run) -> dict[str, tuple[str, bool]]:
    """Return the last type of each column, and whether it is part of the key."""
    return {
        f"{landed.stream}.{column.name}": (str(column.type), column.primary_key)
        for landed in run.landed
        for column in landed.batch.columns
    }


def _comparable(landed: _Landed, row: Mapping[str, Any], *, is_timed: bool) -> _Row:
    """Return what must be equal when a row is read again: the time, unless it is that of a read."""
    data = landed.data_of(row)
    is_dated = (
        is_timed
        and isinstance(landed.batch, ChangeBatch)
        and not (landed.batch.is_undated or landed.batch.may_repeat)
    )
    descriptor = {MODIFIED: row.get(MODIFIED)} if is_dated else {}
    return {**data, **descriptor, DELETED_AT: row.get(DELETED_AT) is not None}


def _rows_of(batch: _Batch) -> list[_Row]:
    rows: Any = batch.rows if isinstance(batch, Snapshot) else batch.versions
    if rows is None:
        return []
    try:
        # Rows that Spark collects have times without a zone.
        found: list[_Row] = (
            rows.collect() if isinstance(rows, ArrowRows) else rows.toArrow().to_pylist()
        )
    except (Py4JError, PySparkException) as failure:
        # Spark reads them when they land, and a run reports it.
        raise SourceError(
            f"Rows of {batch.stream} cannot be read.", hint="The log of Spark names the reason."
        ) from failure
    return found


def _stored(position: Offset) -> Offset:
    """Return an offset as it is stored and read again."""
    try:
        stored: Offset = exact_json.loads(exact_json.dumps(dict(position)))
    except (TypeError, ValueError):
        raise ConformanceError(
            "An offset is not JSON.",
            hint="Store only texts, numbers, lists and mappings with texts as keys.",
        ) from None
    if stored != dict(position):
        raise ConformanceError(
            "An offset is not the same after it was stored as JSON.",
            hint="Use texts as keys, and lists instead of tuples.",
        )
    return stored


def _order_of(row: Mapping[str, Any]) -> tuple[int, int, str]:
    sequence = row.get(SEQUENCE) or ""
    return row.get(MODIFIED) or 0, len(sequence), sequence


def _is_technical(name: str) -> bool:
    return name.startswith("__chronolake_")


def _texts_of(batch: _Batch) -> Iterator[str]:
    if isinstance(batch, Snapshot):
        yield from batch.texts.values()


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


def _list(found: Any) -> str:
    shown = [", ".join(map(str, name)) if isinstance(name, tuple) else str(name) for name in found]
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more


def _error(stream: str, problem: str, hint: str) -> ConformanceError:
    what = f"The stream {stream}" if stream else "The source"
    return ConformanceError(f"{what} {problem}.", hint=hint)
