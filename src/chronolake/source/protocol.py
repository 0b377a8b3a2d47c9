"""What a pipeline reads: a source says which streams it has, and what can be known of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from chronolake.landing import ObjectFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame

    from chronolake.arrow_tasks import ArrowRows
    from chronolake.config import Project
    from chronolake.lake import Lake
    from chronolake.limits import StreamCapabilities
    from chronolake.types import Column

#: How far a stream has come in its source, in the source's own terms: what JSON can hold.
Offset = Mapping[str, Any]


class CaptureMethod(StrEnum):
    """What a stream can see of the changes in its source."""

    #: Every change, from a log.
    EVERY_CHANGE = "every-change"
    #: The state at each look: what changed back and forth between two looks is not seen.
    OBSERVED_CHANGES = "observed-changes"
    #: What differs between two complete reads.
    SNAPSHOT_DIFF = "snapshot-diff"


@dataclass(frozen=True)
class StreamDescriptor:
    """A stream as its source declares it.

    Attributes:
        capabilities: its name, and what decides about its modes.
        capture_method: what it can see.
        epsilon_micros: microseconds between versions of a record: as fine as the source's times.
        folder: where its record versions are, or land.
        is_ours: whether they land there by ourselves, so that the files are ours to change.
        key: the fields that identify a record.
        default_table: what its table is called if the configuration does not say; the stream's
            name, if None.
        cursor: the field by which it is read incrementally; None: it is not, or there is a log.
        quarantines: whether its table goes on without files that cannot be read.
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


class Source(Protocol):
    """A place that a pipeline brings streams from."""

    def discover(self) -> Sequence[StreamDescriptor]:
        """The streams that the configuration wants of it.

        Raises:
            ConfigurationError: one that is wanted is not there.
            SourceError: the source cannot be read.
        """
        ...


@dataclass(frozen=True)
class ChangeBatch:
    """What a source brings at once of a stream.

    Attributes:
        stream: its name.
        versions: record versions (`chronolake.change_set`), as `rawlake.land` takes them; None:
            there are none, and the columns become known if there are any. What is brought twice is
            the same in key, time and values, and in the order of its sequences.
        columns: the stream's data columns as the source declares them, the key among them.
        position: how far the stream is with these.
        numbers: what tells columns apart when they get other names, by their names. Columns without
            a number are told apart by their names; None: all of them always are.
        is_distinct: whether the source vouches that no two of `versions` are of one record.
        may_repeat: whether `versions` may say of a record what was brought before: then only those
            land that say something else than the one before them.
        is_undated: whether the same may be so of two of `versions`.
        has_followers: whether some of `versions` go on with another record's values
            (`changes.FOLLOWS`).
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


@dataclass(frozen=True)
class Snapshot:
    """What a stream has at one time, all of it or some records: what differs from its table lands.

    Attributes:
        stream: its name.
        rows: the records, by their data columns.
        columns: these columns as the source declares them, the key among them.
        at_micros: when, in microseconds since 1970: later than all that was brought before.
        sequence: what orders it among versions (`chronolake.change_set`).
        position: how far the stream is with it.
        numbers: as of a piece.
        present: None: `rows` are all the records that there are. Or a boolean column of `rows`
            beside the data columns: they are the records that were looked at, and it tells which
            of them are there. Of one that is not only the key is told.
        is_distinct: whether the source vouches that no record is among `rows` twice.
        may_be_empty: False: there are no rows, and that is not to be believed of a stream that has
            had some.
        texts: for some columns, a column of `rows` beside the data columns with the texts of values
            that the declared type cannot hold; the value itself is null there.
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
    may_be_empty: bool = True
    texts: Mapping[str, str] = field(default_factory=dict)


#: What a position says of the last time that a table was compared with all that its source has, if
#: it ever was: `at` (when that began, in microseconds since 1970), and how many records were
#: `missed`, `deleted` and `returned`.
COMPARED: Final = "compared"


@dataclass(frozen=True)
class Reconciliation:
    """All records that a stream has, each as it is since it was changed.

    What the table has not lands as if it had been brought when it changed; what is not among them
    is deleted, as of the begin of the census. A record that the table has as deleted, and that has
    not changed since, is there again from then on. With its position it is noted (`COMPARED`).

    Attributes:
        stream: its name.
        versions: the records as record versions (`chronolake.change_set`); they are computed more
            than once. A record may be there several times: its last version counts.
        columns: the stream's data columns as the source declares them, the key among them.
        rows: how many versions there are.
        at_micros: when it began, in microseconds since 1970.
        position: how far the stream is with it.
        since_micros: of the table's records, those whose last version is from before were not
            looked for, and stay as they are; None: there are no such ones.
        until_micros: so are those whose last version is from after it; the census' begin, if that
            is earlier.
        is_dated: whether the versions' times tell when the records changed; otherwise a record
            differs from the table by its values only, and has changed when the census began.
        may_be_empty: whether it may be that there are no records any more.
        again: reads everything once more, and gives a census of what both reads have brought; None:
            that has been done. Pages shift while they are read, and one read may miss a record.
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


@dataclass(frozen=True)
class ReadProgress:
    """How much a source has read of a stream in a run so far, for those who watch.

    A source that gives none is taken to have read what it brings.

    Attributes:
        stream: its name.
        rows: rows that have been read.
    """

    stream: str
    rows: int


@dataclass(frozen=True)
class CaughtUp:
    """A stream that is complete so far, while others keep the source waiting.

    Its table is brought up to date at once; more of it may come later in the run.

    Attributes:
        stream: its name.
    """

    stream: str


@dataclass(frozen=True)
class StreamFailure:
    """What keeps a source from bringing more of one stream; the others go on."""

    stream: str
    error: Exception


@dataclass(frozen=True)
class DescribedStream:
    """What a source declares of a stream's records.

    Attributes:
        stream: its name.
        columns: its data columns, the key among them; more may come with the records.
        numbers: as of a piece.
    """

    stream: str
    columns: Sequence[Column]
    numbers: Mapping[str, int] | None = None


@runtime_checkable
class DescribedSource(Source, Protocol):
    """A source that declares what its streams consist of."""

    def describe_streams(self, names: Collection[str]) -> Iterator[DescribedStream | StreamFailure]:
        """What it declares of some streams, each for itself.

        Args:
            names: streams that it offers.

        Raises:
            SourceError: the source cannot be read.
            ConfigurationError: it is not configured as it has to be.
        """
        ...


class Level(StrEnum):
    """How a source is, as far as one look at it tells."""

    OK = "ok"
    #: It works, and may not always.
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class CheckResult:
    """What a look at a source says.

    Attributes:
        what: about what.
        level: whether that is as it should be.
        message: how it is.
        fix: what mends it, as it can be typed in; None if nothing has to be.
    """

    what: str
    level: Level
    message: str
    fix: str | None = None


@dataclass(frozen=True)
class Lag:
    """What a source keeps for a pipeline, and how much of it is still to be read.

    Attributes:
        behind_bytes: what the source has written since what has landed.
        kept_bytes: what it keeps for the pipeline.
        warning: what may go wrong if nothing is done, or None.
    """

    behind_bytes: int
    kept_bytes: int
    warning: str | None = None


@runtime_checkable
class LaggingSource(Source, Protocol):
    """A source that keeps what it has not told yet."""

    def lag(self) -> Lag:
        """How far behind a pipeline is.

        Raises:
            SourceError: the source cannot be reached.
        """
        ...


@runtime_checkable
class CheckedSource(Source, Protocol):
    """A source that can say what it lacks."""

    def check(
        self, *, create: bool, positions: Mapping[str, Offset] | None = None
    ) -> Sequence[CheckResult]:
        """Look at the source, and say what it lacks.

        Args:
            create: whether to make in it what a pipeline needs of its own.
            positions: how far the lake's streams are in it; None if that is not known.

        Raises:
            SourceError: it cannot be reached, or refuses.
        """
        ...


@runtime_checkable
class ChangeSource(Source, Protocol):
    """A source that keeps no lake of its own: what it brings lands in the pipeline's raw lake."""

    def read(
        self, lake: Lake, positions: Mapping[str, Offset | None], *, full_refresh: bool
    ) -> Iterator[
        ChangeBatch | Snapshot | Reconciliation | ReadProgress | CaughtUp | StreamFailure
    ]:
        """Bring what streams have by now, piece by piece.

        What follows a piece that could not land is of no use for its stream, and is passed over.

        Args:
            lake: the lake whose Spark does the work.
            positions: for each stream that is wanted what its last piece that landed said; None:
                nothing has landed yet.
            full_refresh: whether a snapshot is wanted, whatever is known: what a log has comes
                first.
        """
        ...

    def acknowledge(self, positions: Mapping[str, Offset]) -> None:
        """Be told, perhaps again, that all up to these positions is durable and may be forgotten.

        Args:
            positions: of every stream that anything has ever landed of, wanted or not.
        """
        ...


class TokenStore(Protocol):
    """What a source has to know again, in whatever command asks it next: tokens that change."""

    def load_token(self, name: str) -> Mapping[str, Any] | None:
        """What is remembered under a name by now; None: nothing is.

        Raises:
            LakeError: the operational store does not answer.
        """
        ...

    def renew(
        self, name: str, change: Callable[[Mapping[str, Any] | None], Mapping[str, Any]]
    ) -> None:
        """Remember something else; of all processes only one at a time does.

        Args:
            name: under which name.
            change: is told what is remembered by now, and gives what is to be: what JSON can hold.
                It is kept when this method returns.

        Raises:
            PipelineBusyError: another process does not come to an end with it.
            LakeError: the operational store does not answer.
            Exception: whatever `change` raises.
        """
        ...


@runtime_checkable
class TokenHoldingSource(Source, Protocol):
    """A source that has to remember more than where its streams are: tokens that change."""

    def use_token_store(self, memory: TokenStore) -> None:
        """Be given a memory; called before anything else is asked of the source.

        A look at the source remembers as a run does: it may have to change a token, and who does
        not know the new one is locked out.
        """
        ...


def raw_folder(project: Project, pipeline: str, stream: str) -> ObjectFolder:
    """Where what is pulled for a stream lands: in the folder `raw` of the project's lake."""
    # What names of tables may have and those of folders may not.
    safe = stream.replace("%", "%25").replace("/", "%2F")
    return ObjectFolder(project.lake.path / "raw", pipeline, safe)


def spool_folder(project: Project, pipeline: str) -> Path:
    """Where a source keeps what a pipeline brings until it has landed."""
    return project.lake.path / "raw" / "_spool" / pipeline.replace("/", "_")


def fingerprint_folder(project: Project, pipeline: str) -> Path:
    """Where a source keeps what it needs to see what has changed in streams since they landed."""
    return project.lake.path / "raw" / "_fingerprints" / pipeline.replace("/", "_")
