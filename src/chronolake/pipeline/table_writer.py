"""Writer of a stream's table: its columns follow from landed files, whose rows it writes.

The table's offset is stored in its properties and published with the rows: the applied files
(`applied_files`), and the observed types of every field, which determine the columns' types. So a
table is a function of the files up to the last applied one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import orjson
import structlog

from chronolake.change_set import RESERVED
from chronolake.config import OnPurge, SchemaChanges
from chronolake.core.apply_versions import write_versions
from chronolake.core.pipeline_table import SYSTEM_COLUMNS, create_pipeline_table, layout_of
from chronolake.description import describe_loaded
from chronolake.errors import SourceError
from chronolake.landing import (
    Landing,
    columns_of,
    merge_types,
    naming_bad_files,
    parse_field_type,
    type_of,
)
from chronolake.landing.reader import SOURCE_TIME
from chronolake.pipeline.applied_files import AppliedFiles
from chronolake.pipeline.properties import (
    CAPTURE_METHOD_PROPERTY,
    FIELDS_PROPERTY,
    LAKE_PROPERTY,
    NAMES_PROPERTY,
    ON_PURGE_PROPERTY,
    RENAMES_PROPERTY,
    RULES_PROPERTY,
    TRACK_HISTORY_PROPERTY,
)
from chronolake.pipeline.schema_changes import compare_columns, raise_if_frozen
from chronolake.pipeline.streams import expect_filled_by, key_error
from chronolake.source.protocol import CaptureMethod
from chronolake.types import OF_VERSIONS, STREAM_PROPERTY, Mode, now_micros

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from chronolake.core.scd2_sql import Layout
    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.landing import Namings
    from chronolake.landing.reader import TypesByField
    from chronolake.pipeline.column_types import ColumnTypes
    from chronolake.pipeline.lease import Lease
    from chronolake.pipeline.schema_changes import ColumnChange
    from chronolake.pipeline.streams import Stream
    from chronolake.types import Column, TableName

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class TableWriter:
    """The context of all steps that write a stream's table or compare it with its files.

    Attributes:
        stream: the stream with its current configuration.
        lease: the lease of its pipeline.
    """

    lake: Lake
    stream: Stream
    lease: Lease

    @cached_property
    def namings(self) -> Namings:
        """Return the former and current names of fields as of the first call.

        Raises:
            SourceError: a control record cannot be read.
        """
        return self.stream.namings

    def find(self) -> StoredTable | None:
        """Return the current table, or None if it does not exist."""
        return self.stored(self.lake.catalog.find(self.stream.table))

    def stored(self, table: IcebergTable | None) -> StoredTable | None:
        """Return a state of the stream's table with this context; None for a missing table."""
        return None if table is None else StoredTable(self, table)

    @property
    def properties(self) -> dict[str, str]:
        """Return the table properties about the stream that writes it."""
        return {
            STREAM_PROPERTY: self.stream.identity,
            CAPTURE_METHOD_PROPERTY: self.stream.descriptor.capture_method,
            ON_PURGE_PROPERTY: self.stream.on_purge,
            LAKE_PROPERTY: str(self.stream.folder.path),
            **_renames_of(self.stream),
            **_tracking_of(self.stream),
            **self.lease.properties,
        }

    def create(self, name: TableName, columns: Sequence[Column], **given: Any) -> None:
        """Create a table with the stream's mode and settings."""
        is_compared = self.stream.descriptor.capture_method is CaptureMethod.SNAPSHOT_DIFF
        create_pipeline_table(
            self.lake,
            name,
            columns,
            mode=self.stream.mode,
            epsilon_micros=self.stream.descriptor.epsilon_micros,
            hashed=[
                column for column in columns if is_compared and column.name != SOURCE_TIME.name
            ],
            **given,
        )


@dataclass(frozen=True)
class StoredTable:
    """A stream's table as it was loaded.

    Attributes:
        writer: the stream that is configured to write it.
    """

    writer: TableWriter
    table: IcebergTable

    @property
    def stream(self) -> Stream:
        """Return the stream that is configured to write the table."""
        return self.writer.stream

    @property
    def applied(self) -> AppliedFiles:
        """Return the files that the table was built from."""
        return AppliedFiles.of(self.table)

    @property
    def observed(self) -> TypesByField:
        """Return the observed types of every field in the files of the table."""
        stored = orjson.loads(self.table.property_of(FIELDS_PROPERTY) or "{}")
        return {field: frozenset(map(parse_field_type, texts)) for field, texts in stored.items()}

    @property
    def current_names(self) -> dict[str, str]:
        """Return the current names of numbered fields, by their names in the table."""
        stored = orjson.loads(self.table.property_of(NAMES_PROPERTY) or "{}")
        current = self.writer.namings.now
        return {name: current.get(int(number), name) for number, name in stored.items()}

    @property
    def matches_configuration(self) -> bool:
        """Return whether the table's rows match the configuration."""
        return matches_configuration(self.table, self.stream)

    @property
    def is_renamed(self) -> bool:
        """Return whether the source has renamed fields since the table was built."""
        return any(name != now for name, now in self.current_names.items())

    @property
    def is_of_lake(self) -> bool:
        """Return whether the table was built from the lake that its stream is configured to read.

        If the lake has moved, the last file of the table exists at the new location.
        """
        before = self.table.property_of(LAKE_PROPERTY)
        if before is None or before == str(self.stream.folder.path):
            return True
        furthest = self.applied.furthest
        is_there = furthest is None or self.stream.folder.has(furthest)
        return is_there and self.stream.folder.is_same_object(before)

    def expect_own(self) -> None:
        """Raise if another stream, or no stream, writes the table.

        Raises:
            TableExistsError: another stream writes it, or it was not created by a pipeline.
        """
        expect_filled_by(self.stream, self.table.property_of(STREAM_PROPERTY))

    def expect_same_lake(self) -> None:
        """Raise if the table was built from the files of another lake than the configured one.

        Raises:
            SourceError: it was.
        """
        if self.is_of_lake:
            return
        raise SourceError(
            f"The table was built from {self.table.property_of(LAKE_PROPERTY)}, but chronolake.yml "
            f"now names {self.stream.folder.path}. Its earlier files would be skipped.",
            table=str(self.table.name),
            hint=f"To rebuild the table from the new lake, run `chronolake resync "
            f"{self.stream.pipeline} --stream {self.stream.name}`. To keep the table, set another "
            "`table:` for the stream.",
        )

    def expect_same_key(self, key: Sequence[str], *, file: str | None = None) -> None:
        """Raise if records have another key than the table.

        Args:
            key: the current names of the fields that identify the records.
            file: the last file with the records, if they have landed.

        Raises:
            SourceError: the keys differ.
        """
        now = self.current_names
        stored = [now.get(name, name) for name in describe_loaded(self.table).record_key]
        if set(stored) != set(key):
            raise key_error(self.stream, key, stored, file=file)


def write(
    writer: TableWriter,
    name: TableName,
    landed: Landing,
    observed: TypesByField,
    *,
    applied: AppliedFiles,
    counts: bool = True,
) -> int:
    """Write landed rows to a table that already has the necessary columns.

    Args:
        writer: the context.
        name: the table.
        landed: the files.
        observed: the observed types of every field, in the table's files and these.
        applied: the applied files including these.
        counts: whether the written rows count for the month's usage.

    Returns:
        The number of rows of the table that are new or changed.
    """
    stream = writer.stream
    description = describe_loaded(writer.lake.catalog.load(name))
    by_name = {column.name: column for column in columns_for(stream, observed, landed.key)}
    layout = layout_of(description)
    # A column that another engine added is not in the source; new rows are null there.
    ordered = [by_name.get(column) or description.by_name[column] for column in layout.data]
    types_by_field = {field: sorted(map(str, types)) for field, types in observed.items() if types}
    with naming_bad_files(landed.files):
        result = write_versions(
            writer.lake,
            name,
            _versions_of(landed, ordered, stream.types_of_files),
            synced_micros=now_micros(),
            batch=f"{stream.identity}-{uuid4().hex[:8]}",
            properties={
                **applied.properties,
                FIELDS_PROPERTY: orjson.dumps(types_by_field).decode(),
                NAMES_PROPERTY: _names_to_json(landed.namings.now),
                **writer.properties,
            },
            guard=writer.lease.guard,
            counts=counts,
            has_each_once=landed.has_each_once,
            expected_rows=landed.rows,
            not_hashed=(SOURCE_TIME.name,),
            erased=_columns_to_erase(stream, layout),
            tracked=None if stream.tracked is None else stream.tracked.select(layout.data),
        )
    log.info(
        "files_applied",
        table=str(stream.table),
        batch=result.batch,
        watermark=applied.watermark,
        files=len(landed.files),
        rows=landed.rows,
        written=result.written,
        seconds={stage: round(spent, 3) for stage, spent in result.seconds.items()},
    )
    return result.written


def _versions_of(landed: Landing, columns: Sequence[Column], types: ColumnTypes) -> DataFrame:
    """Return the rows of files as record versions, with columns cast to their configured types."""
    cast = {
        column.name
        for column in columns
        if column.name in landed.observed and types.type_of(column.name) is not None
    }
    read = [
        replace(column, type=type_of(landed.observed[column.name]) or column.type)
        if column.name in cast
        else column
        for column in columns
    ]
    versions = landed.versions(read)
    return types.cast(versions, [column for column in read if column.name in cast])


def stored_types(stream: Stream, landed: Landing) -> TypesByField:
    """Return the observed types of every field in files, as its values are stored."""
    types = stream.types_of_files
    return {
        name: frozenset({kind}) if observed and (kind := types.type_of(name)) else observed
        for name, observed in landed.stored_types.items()
    }


def matches_configuration(table: IcebergTable, stream: Stream) -> bool:
    """Return whether a table's rows match the configuration of its stream."""
    description = describe_loaded(table)
    keeps_time = SOURCE_TIME.name in description.by_name
    return (
        description.mode is stream.mode
        and table.property_of(ON_PURGE_PROPERTY) == stream.on_purge
        and (table.property_of(RENAMES_PROPERTY) or "{}")
        == _renames_of(stream).get(RENAMES_PROPERTY, "{}")
        and (table.property_of(RULES_PROPERTY) or "") == _renames_of(stream).get(RULES_PROPERTY, "")
        and (table.property_of(TRACK_HISTORY_PROPERTY) or "")
        == _tracking_of(stream).get(TRACK_HISTORY_PROPERTY, "")
        and keeps_time is keeps_source_time(stream)
    )


def accepted_types(stored: StoredTable, landed: Landing) -> TypesByField:
    """Return the observed types of the fields in more files of a table that are stored.

    Raises:
        SourceError: the columns have changed, and the schema is frozen.
    """
    stream = stored.stream
    types = stored_types(stream, landed)
    if stream.descriptor.is_ours:
        # Changes were detected before the data landed.
        return types
    known = {name for name, observed in stored.observed.items() if observed}
    if stream.schema_changes is SchemaChanges.DISCARD:
        types = {name: observed for name, observed in types.items() if name in known}
    columns = columns_for(stream, merge_types(stored.observed, types), landed.key)
    raise_if_frozen(stream, column_changes(stored, landed, columns))
    return types


def column_changes(
    stored: StoredTable, landed: Landing, columns: Sequence[Column]
) -> tuple[ColumnChange, ...]:
    """Return the changes of a table's columns by files of another system.

    Args:
        stored: the table.
        landed: the files.
        columns: the columns with these files.
    """
    if stored.stream.descriptor.is_ours:
        return ()
    known = columns_for(stored.stream, stored.observed, landed.key)
    return _changes(known, columns)


def changes_between(
    before: StoredTable | None, after: StoredTable | None
) -> tuple[ColumnChange, ...]:
    """Return the changes of a table's columns by a rebuild from files of another system."""
    if before is None or after is None or before.stream.descriptor.is_ours:
        return ()
    key = describe_loaded(after.table).record_key
    both = (columns_for(stored.stream, stored.observed, key) for stored in (before, after))
    return _changes(*both)


def _changes(before: Sequence[Column], after: Sequence[Column]) -> tuple[ColumnChange, ...]:
    types = {column.name: column.type for column in before}
    return tuple(compare_columns(types, after))


def _columns_to_erase(stream: Stream, layout: Layout) -> list[str]:
    """Return the columns that a purge empties: the record's data, but not its key and version."""
    if stream.on_purge is OnPurge.CLOSE:
        return []
    kept = {*layout.key, SOURCE_TIME.name, *OF_VERSIONS}
    return [name for name in layout.data if name not in kept]


def columns_for(stream: Stream, observed: TypesByField, key: Sequence[str]) -> tuple[Column, ...]:
    """Return the columns that the stream's table needs for the observed types of its fields.

    Args:
        observed: the observed types of every field.
        key: the fields that identify a record.

    Raises:
        SourceError: a field has the name of a system column.
    """
    for name, types in observed.items():
        if types and (name in SYSTEM_COLUMNS or name.startswith(RESERVED)):
            raise SourceError(
                f"The source has a field {name}, but Chronolake reserves this name.",
                table=str(stream.table),
                column=name,
                hint="Rename it in chronolake.yml: "
                f"{stream.place}.rename: {{{name}: source_{name.strip('_')}}}",
            )
    columns = columns_of(observed, key)
    if not keeps_source_time(stream):
        return columns
    return (
        *(column for column in columns if column.primary_key),
        SOURCE_TIME,
        *(column for column in columns if not column.primary_key),
    )


def keeps_source_time(stream: Stream) -> bool:
    """Return whether the stream's table stores the source's own time as a column."""
    return stream.mode is not Mode.HISTORY or stream.keep_source_timestamp


def _renames_of(stream: Stream) -> dict[str, str]:
    """Return table properties of renamed fields and their rules, for files of another system."""
    if stream.descriptor.is_ours:
        return {}
    return {
        RENAMES_PROPERTY: orjson.dumps(dict(sorted(stream.names.pairs))).decode(),
        RULES_PROPERTY: " ".join(filter(None, [stream.rules.digest, stream.types.digest])),
    }


def _tracking_of(stream: Stream) -> dict[str, str]:
    """Return the table property of the columns whose changes start a version."""
    return {} if stream.tracked is None else {TRACK_HISTORY_PROPERTY: stream.tracked.to_json()}


def table_settings(stream: Stream) -> dict[str, object]:
    """Return a table's settings for the control record of its raw lake."""
    return {
        "mode": stream.mode,
        "keep_source_timestamp": keeps_source_time(stream),
        "on_purge": stream.on_purge,
        **({} if stream.tracked is None else {"track_history": stream.tracked.to_json()}),
    }


def _names_to_json(names: dict[int, str]) -> str:
    return orjson.dumps({str(number): name for number, name in sorted(names.items())}).decode()


def watermark_of(stored: StoredTable | None) -> str | None:
    """Return the file after which the next are applied to a stream's table; None to apply all.

    Raises:
        TableExistsError: the table has another owner.
        SourceError: the table was built from another lake's files.
    """
    if stored is None:
        return None
    stored.expect_own()
    stored.expect_same_lake()
    return stored.applied.watermark
