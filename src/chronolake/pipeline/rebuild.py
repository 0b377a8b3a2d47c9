"""Rebuild of a stream's table from all files of its lake, and comparison with such a rebuild."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from chronolake.core.pipeline_table import SYSTEM_COLUMNS
from chronolake.core.publish import TableMovedError
from chronolake.core.rewrite import drop_abandoned, drop_scratch, new_subfolder
from chronolake.core.row_hash import hash_of, hashed_columns
from chronolake.core.sql import column_list
from chronolake.core.staging import stage_name
from chronolake.core.table_swap import lasting_properties, replace_with
from chronolake.core.verify import Invariant
from chronolake.core.views import drop_current_view
from chronolake.description import describe_loaded
from chronolake.errors import (
    ChronolakeError,
    ConfigurationError,
    SourceError,
    TableNotFoundError,
)
from chronolake.landing import (
    Quarantine,
    bad_file_error,
    bad_files_in,
    inspect_files,
    merge_types,
)
from chronolake.landing.field_types import MODIFIED as SOURCE_TIME
from chronolake.pipeline.applied_files import AppliedFiles
from chronolake.pipeline.properties import TRACK_HISTORY_PROPERTY
from chronolake.pipeline.purge import erase_all
from chronolake.pipeline.streams import warn_of_quarantine
from chronolake.pipeline.table_writer import (
    StoredTable,
    TableWriter,
    accepted_types,
    columns_for,
    write,
)
from chronolake.session import CATALOG
from chronolake.types import (
    HASH,
    PRESENT,
    SCRATCH_SCHEMA,
    SYNCED,
    Mode,
    TableName,
    now_micros,
    quote,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.landing import BadFile, DataFile
    from chronolake.pipeline.lease import Lease
    from chronolake.pipeline.streams import Stream

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class RebuildResult:
    """The result of a rebuild.

    Attributes:
        files: the files that the table was built from.
        read: number of their rows, including duplicates.
        written: number of rows of the table.
    """

    files: tuple[DataFile, ...]
    read: int
    written: int


def rebuild(
    lake: Lake,
    stream: Stream,
    lease: Lease,
    *,
    upto: DataFile | None = None,
    may_be_other: bool = False,
) -> RebuildResult:
    """Rebuild a stream's table from all of its files, and replace it atomically.

    Readers see the old table until then. A crash leaves it unchanged.

    Args:
        stream: the stream; its table exists.
        lease: the lease of its pipeline.
        upto: the last file to apply; by default the last that was ever applied.
        may_be_other: whether the files may be those of another lake than before.

    Raises:
        SourceError: a file cannot be read, no file exists, or files that the table was built from
            are missing.
        LeaseLostError: another process runs the pipeline.
        CommitConflictError: another writer published meanwhile; the table is unchanged.
    """
    drop_abandoned(lake)
    stored = StoredTable(TableWriter(lake, stream, lease), lake.catalog.load(stream.table))
    table = stored.table
    stored.expect_own()
    lease.guard(table)
    if not may_be_other:
        stored.expect_same_lake()
    before = stored.applied
    last = upto.mark if upto is not None else before.furthest

    def expect_unmoved(current: IcebergTable) -> None:
        # Compaction does not matter: the table contains what the lake has up to its watermark.
        lease.guard(current)
        same = str(current.metadata.uuid()) == str(table.metadata.uuid())
        if not same or AppliedFiles.of(current) != before:
            raise TableMovedError(
                "Another process has applied files meanwhile.", table=str(stream.table)
            )

    if last is not None:
        erase_all(stored.writer, last)
    began = now_micros()
    with _built_from_lake(stored, last, tries_all=True) as built:
        _warn_of_dropped(stored, built.table)
        with lake.writing(stream.table):
            replace_with(table, built.table, began_micros=began, expect=expect_unmoved)
            if stream.mode is not Mode.HISTORY:
                # The view would select columns that the table no longer has.
                drop_current_view(lake, stream.table)
        return RebuildResult(built.files, built.read, built.rows)


def _warn_of_dropped(stored: StoredTable, built: IcebergTable) -> None:
    """Warn of columns that a table loses, because other engines added them."""
    known = {field.name for field in built.fields} | stored.observed.keys() | SYSTEM_COLUMNS.keys()
    # The source's time is a column of the other modes: switching drops it on purpose.
    known.add(SOURCE_TIME)
    dropped = [field.name for field in stored.table.fields if field.name not in known]
    if dropped:
        log.warning("columns_of_others_dropped", table=str(stored.table.name), columns=dropped)


@dataclass(frozen=True)
class Differences:
    """The differences between a table and its lake.

    Attributes:
        columns: columns of the lake that the table lacks or has with another type.
        rows: rows of the table.
        missing: rows of the lake, up to the table's watermark, that the table lacks.
        extra: rows of the table that the lake lacks.
        hashes: current rows with a wrong row hash: a source that is compared by hashes would miss
            changes of them, or find changes where nothing changed.
    """

    columns: tuple[str, ...]
    rows: int
    missing: int
    extra: int
    hashes: int = 0

    @property
    def count(self) -> int:
        """Return the number of columns and rows that differ."""
        return len(self.columns) + self.missing + self.extra + self.hashes

    @property
    def invariant(self) -> Invariant:
        """Return the invariant that there are no differences, for the report of the table."""
        broken = f"{self.missing:,} rows are missing, {self.extra:,} are unexpected"
        if self.hashes:
            broken += f"; {self.hashes:,} rows have a wrong row hash"
        if self.columns:
            broken += f"; columns are missing or have another type: {', '.join(self.columns)}"
        text = "the table matches its raw lake"
        return Invariant(text, self.count, broken if self.count else None)


def differences(lake: Lake, stream: Stream, lease: Lease) -> Differences:
    """Compare a stream's table with a rebuild from its lake.

    Raises:
        SourceError: a file cannot be read, or no file exists.
        TableNotFoundError: the stream does not have a table yet.
    """
    drop_abandoned(lake)
    stored = TableWriter(lake, stream, lease).find()
    if stored is None:
        raise TableNotFoundError(
            "The stream has no table yet.",
            table=str(stream.table),
            hint=f"Run `chronolake sync {stream.pipeline}` first.",
        )
    stored.expect_own()
    if stored.is_renamed or not stored.matches_configuration:
        raise ConfigurationError(
            "The table no longer matches its configuration, or the source has renamed columns.",
            table=str(stream.table),
            hint=f"Run `chronolake sync {stream.pipeline}` first.",
        )
    stored.expect_same_lake()
    with _built_from_lake(stored, stored.applied.furthest) as built:
        types = {field.name: field.type for field in stored.table.fields}
        others = {field.name: field.type for field in built.table.fields}
        # The lake does not contain the time of a sync, and a hash adds no information.
        for unknown in (SYNCED, HASH):
            others.pop(unknown, None)
        columns = tuple(name for name, kind in others.items() if types.get(name) != kind)
        names = [name for name in types if name in others.keys() - set(columns)]
        # As one column, because Spark's stack overflows if it compares more than a thousand.
        ours, theirs = (
            f"SELECT struct({column_list(names)}) FROM {CATALOG}.{name.sql}"
            for name in (stream.table, built.table.name)
        )
        (found,) = built.spark.sql(
            f"SELECT (SELECT count(1) FROM ({ours})) AS rows, "
            f"(SELECT count(1) FROM ({theirs} EXCEPT ALL {ours})) AS missing, "
            f"(SELECT count(1) FROM ({ours} EXCEPT ALL {theirs})) AS extra"
        ).collect()
        hashes = _wrong_hashes(built.spark, stored.table)
    return Differences(columns, found["rows"], found["missing"], found["extra"], hashes)


def _wrong_hashes(spark: SparkSession, table: IcebergTable) -> int:
    """Return the number of current rows whose hash is not the hash of their values."""
    description = describe_loaded(table)
    hashed = hashed_columns(table, description)
    if hashed is None:
        return 0
    rows = spark.table(f"{CATALOG}.{table.name.sql}").where(PRESENT[description.mode])
    wrong: int = rows.where(f"NOT ({quote(HASH)} <=> {hash_of(hashed, quote)})").count()
    return wrong


@dataclass(frozen=True)
class _Built:
    """A scratch table that was built from files of a lake.

    Attributes:
        read: number of their rows.
        rows: number of rows of the table.
        spark: the session that built it.
    """

    table: IcebergTable
    files: tuple[DataFile, ...]
    read: int
    rows: int
    spark: SparkSession


@contextmanager
def _built_from_lake(
    stored: StoredTable, last: str | None, *, tries_all: bool = False
) -> Iterator[_Built]:
    """Build a scratch table from all files up to one; drop it when the block ends.

    Args:
        stored: the stream's table.
        last: the last file.
        tries_all: whether to read files again that the table's build left out, and to leave out
            other bad ones if the stream quarantines them; by default, use the files of the table.
    """
    stream = stored.stream
    lake_files = stream.folder.files()
    place = next((number for number, file in enumerate(lake_files) if file.mark == last), None)
    if place is None:
        raise SourceError(
            "The last file that was applied to the table is missing from the raw lake."
            if last
            else "No file has been applied to the table yet.",
            table=str(stream.table),
            file=last,
            hint="Restore the files of the raw lake: the table can only be built from them.",
        )
    files = lake_files[: place + 1]
    _expect_all_there(stored, lake_files)
    bad = () if tries_all else (stored.applied.quarantine or Quarantine()).files
    hidden: list[TableName] = []
    try:
        while True:
            hidden.append(TableName(SCRATCH_SCHEMA, stage_name()))
            try:
                built = _fill(stored, hidden[-1], files, bad)
                break
            except ChronolakeError as failure:
                more = bad_files_in(failure, Quarantine(tuple(bad)).readable(files))
                if not (more and tries_all and stream.descriptor.quarantines):
                    raise
                warn_of_quarantine(stream, more)
                bad = (*bad, *more)
        yield built
    finally:
        # Its files now belong to the table, or are orphans in its folder that maintenance removes.
        for name in hidden:
            drop_scratch(stored.writer.lake, name, purge=False)


def _fill(
    stored: StoredTable, hidden: TableName, files: Sequence[DataFile], bad: Sequence[BadFile]
) -> _Built:
    """Create a scratch table and write the files to it, without the bad ones."""
    writer, stream, lake = stored.writer, stored.stream, stored.writer.lake
    good = Quarantine(tuple(bad)).readable(files)
    if not good:
        raise bad_file_error(files, bad)
    spark = lake.session_for_versions(stream.table, sum(file.size for file in good))
    landed = inspect_files(spark, good, writer.namings, stream.rules_of_files)
    # Columns keep their position in the table.
    now = stored.current_names
    rules = stream.rules_of_files
    observed = merge_types(
        {
            now.get(name, name): frozenset()
            for name in stored.observed
            if not rules.is_excluded(now.get(name, name))
        },
        accepted_types(stored, landed),
    )
    lasting = lasting_properties(lake, stored.table)
    # The writer sets it again if the stream still has the setting.
    lasting.pop(TRACK_HISTORY_PROPERTY, None)
    writer.create(
        hidden,
        columns_for(stream, observed, landed.key),
        properties=lasting,
        location=new_subfolder(stored.table),
        replaced=stored.table,
    )
    applied = AppliedFiles().with_files(files, bad)
    if applied.quarantine is None and stored.applied.quarantine is not None:
        applied = replace(applied, quarantine=Quarantine())
    written = write(writer, hidden, landed, observed, applied=applied, counts=False)
    return _Built(lake.catalog.load(hidden), landed.files, landed.rows, written, spark)


def _expect_all_there(stored: StoredTable, files: Sequence[DataFile]) -> None:
    """Raise if files that a table was built from are missing, so that a rebuild would lose rows.

    Raises:
        SourceError: some are missing in the lake.
    """
    if not stored.is_of_lake:
        return
    applied = stored.applied
    missing = applied.count_missing(files)
    if missing > 0:
        raise SourceError(
            f"{missing:,} of the {applied.files:,} files that the table was built from are missing "
            "from the raw lake. A rebuild would lose their rows.",
            table=str(stored.stream.table),
            hint="Restore the files. To start over with the remaining files, drop the table.",
        )
