"""The interface between sources and pipelines: streams, offsets, change batches and snapshots.

A new source, such as another database, implements `ChangeSource` (`docs/source-protocol.md`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, runtime_checkable

from chronolake.change_set import (
    DELETED_AT,
    FOLLOWS,
    MODIFIED,
    OMITTED,
    OPERATED,
    PROVIDES_DATA,
    PURGED_AT,
    RESERVED,
    SEQUENCE,
)
from chronolake.errors import ConfigurationError, SourceError
from chronolake.landing import ObjectFolder, location_of
from chronolake.location import CUT_IN_URLS, scheme_of
from chronolake.stream_modes import StreamCapabilities

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from datetime import datetime
    from pathlib import Path

    from pyspark.sql import DataFrame

    from chronolake.arrow_tasks import ArrowRows
    from chronolake.config import Project
    from chronolake.lake import Lake
    from chronolake.types import Column

__all__ = [
    "ALL_STREAMS",
    "COMPARED",
    "COPY",
    "DELETED_AT",
    "FOLLOWS",
    "MODIFIED",
    "OMITTED",
    "OPERATED",
    "PROVIDES_DATA",
    "PURGED_AT",
    "SEQUENCE",
    "CaptureMethod",
    "CaughtUp",
    "ChangeBatch",
    "ChangeSource",
    "CheckResult",
    "CheckedSource",
    "ConfigurationError",
    "CopiesLanded",
    "CopyBatch",
    "CopyRejected",
    "DatedCopy",
    "DescribedSource",
    "DescribedStream",
    "ExperimentalSource",
    "Lag",
    "LaggingSource",
    "Landable",
    "Level",
    "Offset",
    "ReadProgress",
    "Reconciliation",
    "SharedOffset",
    "Snapshot",
    "Source",
    "SourceError",
    "StateImportingSource",
    "StreamCapabilities",
    "StreamDescriptor",
    "StreamFailure",
    "TokenHoldingSource",
    "TokenStore",
    "fingerprint_folder",
    "raw_folder",
    "spool_folder",
]

#: A stream's offset in its source, in the source's own terms. JSON can represent it.
Offset = Mapping[str, Any]


class CaptureMethod(StrEnum):
    """The kinds of changes in its source that a stream captures."""

    #: Every change, from a log.
    EVERY_CHANGE = "every-change"
    #: The state at each poll: intermediate changes between two polls are not captured.
    OBSERVED_CHANGES = "observed-changes"
    #: The difference between two complete reads.
    SNAPSHOT_DIFF = "snapshot-diff"


@dataclass(frozen=True)
class StreamDescriptor:
    """A stream as its source declares it.

    Attributes:
        capabilities: the stream's name and the properties that decide which modes it supports.
        capture_method: which changes it captures.
        epsilon_micros: microseconds between versions of a record: the resolution of the source's
            times.
        folder: where its record versions are stored or land.
        is_ours: whether Chronolake lands the files itself, and therefore may change them.
        key: the fields that identify a record.
        default_table: the table's name unless the configuration sets one; None: the stream's name.
        cursor: the field of incremental reads; None: the stream has no cursor, or it is read from a
            log.
        quarantines: whether the table continues without files that cannot be read.
        has_all_columns: whether the columns of a batch are all that the stream has, so that a
            missing one was removed. Otherwise, the batch contains what the source declares
            (`DeclaredColumns`).
    """

    capabilities: StreamCapabilities
    capture_method: CaptureMethod
    epsilon_micros: int
    folder: ObjectFolder
    is_ours: bool = False
    key: tuple[str, ...] = ("Id",)
    default_table: str | None = None
    cursor: str | None = None
    quarantines: bool = False
    has_all_columns: bool = True


class Source(Protocol):
    """A system that a pipeline reads streams from."""

    def discover(self) -> Sequence[StreamDescriptor]:
        """Return the streams that the configuration selects.

        Raises:
            ConfigurationError: a selected stream does not exist.
            SourceError: the source cannot be read.
        """
        ...


@dataclass(frozen=True)
class DeclaredColumns:
    """What a source declares, if the columns of its batches include what earlier batches had.

    A column that was declared before, and is neither declared nor filled now, was removed. Whether
    other columns were removed is not known: a record may lack a field. Names are those of the
    source, also of columns that are not stored.

    Attributes:
        names: the columns that the source declares. Empty: it declares none, or may declare more in
            a later batch of the run; then none was removed.
        filled: the columns in which records have values, declared or not.
    """

    names: frozenset[str] = frozenset()
    filled: frozenset[str] = frozenset()

    def __contains__(self, name: object) -> bool:
        return name in self.names or name in self.filled

    def renamed(self, names: Mapping[str, str]) -> DeclaredColumns:
        """Return the same with new names, by the present ones."""
        return DeclaredColumns(
            frozenset(names.get(name, name) for name in self.names),
            frozenset(names.get(name, name) for name in self.filled),
        )


@dataclass(frozen=True)
class ChangeBatch:
    """Record versions of a stream that a source returns together.

    Attributes:
        stream: the stream's name.
        versions: record versions (`chronolake.change_set`) in the form that `landing` accepts;
            None for no versions; the columns are recorded if there are any. A version that is
            read twice has the same key, time and values, and the same order of sequences.
        columns: the stream's data columns as the source declares them, including the key; empty if
            there are no versions, and the columns of earlier batches remain.
        position: the stream's offset after these versions.
        numbers: column numbers by column name; they identify columns across renames. A column
            without a number is identified by its name; None: all of them are.
        is_distinct: whether the source guarantees that no two of `versions` belong to one record.
        may_repeat: whether `versions` may repeat what has landed of a record; only versions that
            differ from the preceding one then land.
        is_undated: whether two of `versions` may also repeat each other.
        has_followers: whether some of `versions` continue with another record's values
            (`change_set.FOLLOWS`).
        is_protected: whether the source has applied the column rules (`landing.ColumnRules`), as
            it must before it stores anything in a file.
        declared: what the source declares, unless `columns` are all it has
            (`StreamDescriptor.has_all_columns`).
    """

    stream: str
    versions: DataFrame | ArrowRows | None
    columns: Sequence[Column]
    position: Offset
    numbers: Mapping[str, int] | None = None
    is_distinct: bool = False
    may_repeat: bool = False
    is_undated: bool = False
    has_followers: bool = False
    is_protected: bool = False
    declared: DeclaredColumns = DeclaredColumns()


@dataclass(frozen=True)
class Snapshot:
    """All or some records of a stream at one time. Differences from its table land.

    Attributes:
        stream: the stream's name.
        rows: the records, with their data columns.
        columns: the data columns as the source declares them, including the key.
        at_micros: the snapshot's time in microseconds since 1970, later than all earlier versions.
        sequence: its order among versions (`chronolake.change_set`).
        position: the stream's offset after the snapshot.
        numbers: see `ChangeBatch`.
        present: None if `rows` are all records. Otherwise a boolean column of `rows` in addition to
            the data columns: `rows` are the records that were looked up, and the column says which
            of them exist. Rows of missing records contain only the key.
        is_distinct: whether the source guarantees that no record occurs twice in `rows`.
        order: a column of `rows` in addition to the data columns, or None. If a record occurs
            several times, the row with its greatest value is valid.
        exists: None if all records exist. Otherwise a boolean column of `rows` in addition to the
            data columns: whether the row is a record, and not the deletion of one.
        may_be_empty: False if there are no rows, and the stream must not be taken as emptied if it
            had rows before.
        texts: for some columns, a column of `rows` in addition to the data columns that contains
            values which the declared type cannot hold, as text; the value itself is null there.
        is_protected: see `ChangeBatch`, also for `declared`.
        again: reads everything a second time, and returns a snapshot with the records of both
            reads; None: one read cannot miss a record that exists. It is called if records are
            missing in `rows`.
    """

    stream: str
    rows: DataFrame | ArrowRows
    columns: Sequence[Column]
    at_micros: int
    sequence: str
    position: Offset
    numbers: Mapping[str, int] | None = None
    present: str | None = None
    is_distinct: bool = True
    order: str | None = None
    exists: str | None = None
    may_be_empty: bool = True
    texts: Mapping[str, str] = field(default_factory=dict)
    is_protected: bool = False
    declared: DeclaredColumns = DeclaredColumns()
    again: Callable[[], Snapshot] | None = None


#: The column of `CopyBatch.rows` with the number of a row's copy, from 1.
COPY: Final = f"{RESERVED}copy"


@dataclass(frozen=True)
class DatedCopy:
    """A complete copy of a stream's records at a time.

    Attributes:
        name: its file or folder, for messages.
        at_micros: its time in microseconds since 1970.
        was_landed: whether some of its differences may have landed already, from the same or from
            other content.
    """

    name: str
    at_micros: int
    was_landed: bool = False


@dataclass(frozen=True)
class CopyBatch:
    """Copies of a stream that follow each other. Each one's differences land with its time.

    Copies may be read in any order of their times: the table depends only on the copies. All landed
    copies with times between those of a batch are in the batch.

    Attributes:
        stream: the stream's name.
        copies: the copies by time. No two times are closer than two of the stream's epsilons.
        rows: the rows of all copies, with their data columns, and the copy's number in `COPY`. They
            are computed more than once if a copy is rejected. None: the batch's only copy does not
            exist any more, and equals the one before it from now on.
        columns: the data columns with types that contain the values of all copies, including the
            key.
        before_micros: the time of the last landed copy before them, or None.
        after_micros: the time of the first landed copy after them, or None.
        rows_before: the number of rows of the copy before them; None: it is not known.
        sequence: their order among versions (`chronolake.change_set`), later than in any batch
            before, also if that did not land as a whole.
        min_rows: a copy with fewer rows is rejected.
        most_deleted: a copy that lacks more than this share of the rows of the one before is
            rejected; None: there is no limit.
        position: returns the stream's offset after the batch.
    """

    stream: str
    copies: Sequence[DatedCopy]
    rows: DataFrame | None
    columns: Sequence[Column]
    before_micros: int | None
    after_micros: int | None
    rows_before: int | None
    sequence: str
    min_rows: int
    most_deleted: float | None
    position: Callable[[CopiesLanded | CopyRejected], Offset]


@dataclass(frozen=True)
class CopiesLanded:
    """All copies of a batch have landed.

    Attributes:
        rows: the number of rows of each copy.
    """

    rows: Sequence[int]


@dataclass(frozen=True)
class CopyRejected:
    """A copy of a batch is not a complete and valid copy; nothing of the batch has landed.

    Attributes:
        number: its number, from 1.
        reason: what is wrong, and what to do.
        may_be_temporary: whether the same copy may be read successfully later.
    """

    number: int
    reason: str
    may_be_temporary: bool = False


#: Key of an offset that describes the last reconciliation of a table with its source, if there was
#: one: `at` (its begin in microseconds since 1970), and how many records were `missed`, `deleted`
#: and `returned`.
COMPARED: Final = "compared"


@dataclass(frozen=True)
class Reconciliation:
    """All records of a stream, each with the time of its last change, to reconcile the table with.

    Records that the table lacks land as if they had been captured when they changed. Records that
    are missing here are deleted as of the start of the reconciliation. A record that is deleted in
    the table and has not changed since exists again from the reconciliation on. The result is
    stored with the offset (`COMPARED`).

    Attributes:
        stream: the stream's name.
        versions: the records as record versions (`chronolake.change_set`), computed more than once.
            If a record occurs several times, its last version wins.
        columns: the stream's data columns as the source declares them, including the key.
        rows: how many versions there are.
        at_micros: when the reconciliation began, in microseconds since 1970.
        position: the stream's offset after the reconciliation.
        since_micros: the table's records whose last version is earlier were not looked up and stay
            unchanged; None: there is no such limit.
        until_micros: the table's records whose last version is later were not looked up either; the
            begin of the reconciliation, if that is earlier.
        is_dated: whether the versions' times are the times of change. If not, a record differs from
            the table only by its values, and has changed when the reconciliation began.
        may_be_empty: whether the stream may have no records any more.
        again: reads everything a second time, and returns a reconciliation with the records of both
            reads; None: that is already done. Pages shift while they are read, so one read may miss
            a record.
        is_protected: see `ChangeBatch`, also for `declared`.
    """

    stream: str
    versions: DataFrame
    columns: Sequence[Column]
    rows: int
    at_micros: int
    position: Offset
    since_micros: int | None = None
    until_micros: int | None = None
    is_dated: bool = True
    may_be_empty: bool = False
    again: Callable[[], Reconciliation] | None = None
    is_protected: bool = False
    declared: DeclaredColumns = DeclaredColumns()


#: What can land.
Landable: TypeAlias = "ChangeBatch | Snapshot | Reconciliation | CopyBatch"


@dataclass(frozen=True)
class ReadProgress:
    """The number of rows that a source has read of a stream in a run, for progress displays.

    If a source does not report progress, the rows that it returns count as read.

    Attributes:
        stream: the stream's name.
        rows: how many rows were read.
    """

    stream: str
    rows: int


#: The name under which the offset that all streams share is passed to `ChangeSource.acknowledge`.
ALL_STREAMS: Final = ""


@dataclass(frozen=True)
class SharedOffset:
    """An offset that all streams of a source share, in addition to their own ones.

    It is stored at once, so a source returns it only when the batches of all streams up to it have
    landed (`ChangeSource.acknowledge`). The next run gets it by `acknowledge`, as `ALL_STREAMS`.

    Attributes:
        position: the offset.
    """

    position: Offset
    stream: str = field(default=ALL_STREAMS, init=False)


@dataclass(frozen=True)
class CaughtUp:
    """A stream that is up to date while the source still waits for other streams.

    Its table is updated at once. More of the stream may follow later in the run.

    Attributes:
        stream: the stream's name.
    """

    stream: str


@dataclass(frozen=True)
class StreamFailure:
    """An error that stops one stream of a source. The other streams continue."""

    stream: str
    error: Exception


@dataclass(frozen=True)
class DescribedStream:
    """The schema of a stream's records as the source declares it.

    Attributes:
        stream: the stream's name.
        columns: the data columns, including the key; records may add more.
        numbers: see `ChangeBatch`.
        excluded: the names of further columns that the configuration excludes.
    """

    stream: str
    columns: Sequence[Column]
    numbers: Mapping[str, int] | None = None
    excluded: tuple[str, ...] = ()


@runtime_checkable
class DescribedSource(Source, Protocol):
    """A source that declares the schemas of its streams."""

    def describe_streams(self, names: Collection[str]) -> Iterator[DescribedStream | StreamFailure]:
        """Return the schemas of some streams, or the failure of each that cannot be described.

        Args:
            names: streams that the source offers.

        Raises:
            SourceError: the source cannot be read.
            ConfigurationError: the source's configuration is incomplete or invalid.
        """
        ...


class Level(StrEnum):
    """The severity of a check's result."""

    OK = "ok"
    #: It works now, but may fail later.
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class CheckResult:
    """The result of one check of a source.

    Attributes:
        what: the object that was checked.
        level: the severity.
        message: the object's state.
        fix: a command or statement that fixes the problem; None if nothing needs to be fixed.
    """

    what: str
    level: Level
    message: str
    fix: str | None = None


@dataclass(frozen=True)
class Lag:
    """The replication lag of a pipeline, and what the source retains for it.

    Attributes:
        behind_bytes: bytes that the source has written since the last landed change.
        kept_bytes: bytes that the source retains for the pipeline.
        warning: what may go wrong if nothing is done, or None.
    """

    behind_bytes: int
    kept_bytes: int
    warning: str | None = None


@runtime_checkable
class LaggingSource(Source, Protocol):
    """A source that retains changes until a pipeline has read them."""

    def lag(self) -> Lag:
        """Return the lag of the pipeline.

        Raises:
            SourceError: the source cannot be reached.
        """
        ...


@runtime_checkable
class CheckedSource(Source, Protocol):
    """A source that can check its own prerequisites."""

    def check(
        self, *, create: bool, positions: Mapping[str, Offset] | None = None
    ) -> Sequence[CheckResult]:
        """Check the source, and return what is missing.

        Args:
            create: whether to create missing objects that the pipeline needs in the source.
            positions: the offsets of the lake's streams; None if they are not known.

        Raises:
            SourceError: the source cannot be reached, or refuses access.
        """
        ...


@runtime_checkable
class ExperimentalSource(Source, Protocol):
    """A source whose code may not have run against a real system of its kind."""

    @property
    def experimental(self) -> str | None:
        """Return why the source is experimental, as a sentence; None if it is not."""
        ...


@runtime_checkable
class ChangeSource(Source, Protocol):
    """A source without files of its own: its change batches land in the project's lake."""

    def read(
        self, lake: Lake, positions: Mapping[str, Offset | None], *, full_refresh: bool
    ) -> Iterator[
        ChangeBatch
        | Snapshot
        | Reconciliation
        | SharedOffset
        | CopyBatch
        | ReadProgress
        | CaughtUp
        | StreamFailure
    ]:
        """Read the new changes of streams, batch by batch.

        If a batch cannot land, the later batches of its stream are skipped.

        Args:
            lake: the lake whose Spark session does the work.
            positions: the selected streams, with the offset of the last batch that landed; None:
                nothing has landed yet.
            full_refresh: whether to read a snapshot in any case; pending changes of a log are read
                first.
        """
        ...

    def acknowledge(self, positions: Mapping[str, Offset]) -> None:
        """Let the source discard changes up to these offsets: all of them are durable.

        The call may be repeated.

        Args:
            positions: the offsets of all streams that have ever landed, selected or not, and the
                one that they share (`ALL_STREAMS`), if there is one.
        """
        ...


#: Selects records: those that match one of the mappings. A record matches if all of these columns,
#: by their names in the source, have these values, which are given as texts.
Where: TypeAlias = "Sequence[Mapping[str, str]]"


@runtime_checkable
class SelectiveSource(ChangeSource, Protocol):
    """A source that can read single records by their values."""

    def read_where(
        self, lake: Lake, stream: str, position: Offset, where: Where
    ) -> Iterator[ChangeBatch | Snapshot | ReadProgress | CaughtUp | StreamFailure]:
        """Read the records of a stream that match; pending changes of a log are read first.

        Args:
            lake: the lake whose Spark session does the work.
            stream: the stream's name.
            position: its stored offset.
            where: which records to read.

        Returns:
            Batches as of `read`. The last one is a snapshot of which `rows` are all matching
            records, but `present` is None.
        """
        ...


@runtime_checkable
class WindowedSource(ChangeSource, Protocol):
    """A source that can read what changed within a time range."""

    def expect_window(self, stream: str) -> None:
        """Raise if a stream cannot be read by a time range.

        Raises:
            ConfigurationError: it cannot.
        """
        ...

    def read_window(
        self, lake: Lake, stream: str, position: Offset, begin: datetime, end: datetime
    ) -> Iterator[ChangeBatch | ReadProgress | StreamFailure]:
        """Read the records of a stream that changed within a time range.

        Args:
            lake: the lake whose Spark session does the work.
            stream: the stream's name.
            position: its stored offset, which all batches keep.
            begin: the earliest time, with a time zone.
            end: the latest time, exclusive.
        """
        ...


@runtime_checkable
class StateImportingSource(Source, Protocol):
    """A source that can continue where another program has stopped reading."""

    def import_state(self, content: Any) -> Mapping[str, Offset]:
        """Return the offsets that continue another program's state.

        Args:
            content: the content of the program's state file, as JSON has it.

        Returns:
            The offsets by stream, and the one that streams share (`ALL_STREAMS`), if there is one.

        Raises:
            ConfigurationError: the content is not a state of this kind, or names an unknown stream.
            SourceError: the source's streams cannot be listed.
        """
        ...


class TokenStore(Protocol):
    """A persistent store for a source's refreshed tokens, shared by all commands."""

    def load_token(self, name: str) -> Mapping[str, Any] | None:
        """Return the token that is stored under a name, or None.

        Raises:
            LakeError: the operational store does not respond.
        """
        ...

    def renew(
        self, name: str, change: Callable[[Mapping[str, Any] | None], Mapping[str, Any]]
    ) -> None:
        """Replace a token under a lock: one process at a time.

        Args:
            name: the token's name.
            change: receives the stored token, and returns the new one, which JSON can represent. It
                is stored when this method returns.

        Raises:
            PipelineBusyError: another process holds the lock for too long.
            LakeError: the operational store does not respond.
            Exception: whatever `change` raises.
        """
        ...


@runtime_checkable
class TokenHoldingSource(Source, Protocol):
    """A source that stores tokens in addition to its streams' offsets."""

    def use_token_store(self, store: TokenStore) -> None:
        """Set the token store, before any other method is called.

        Checks use it as runs do: they may refresh a token, and a process without the new token is
        locked out.
        """
        ...


def raw_folder(project: Project, pipeline: str, stream: str) -> ObjectFolder:
    """Return the folder, or the folder of a bucket, where a stream's changes land."""
    lake = project.lake
    # Characters that names of tables may contain and those of folders may not.
    safe = stream.replace("%", "%25").replace("/", "%2F")
    if scheme_of(lake.raw_location) is not None:
        for letter in CUT_IN_URLS:
            escaped = f"%{ord(letter):02X}"
            safe, pipeline = safe.replace(letter, escaped), pipeline.replace(letter, escaped)
    return ObjectFolder(location_of(lake.raw_location, lake.object_storage), pipeline, safe)


def spool_folder(project: Project, pipeline: str) -> Path:
    """Return the folder where a source spools a pipeline's changes until they have landed."""
    return project.lake.path / "raw" / "_spool" / pipeline.replace("/", "_")


def fingerprint_folder(project: Project, pipeline: str) -> Path:
    """Return the folder where a source stores fingerprints of rows for its snapshot diffs."""
    return project.lake.path / "raw" / "_fingerprints" / pipeline.replace("/", "_")
