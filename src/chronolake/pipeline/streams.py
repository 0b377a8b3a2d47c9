"""Streams of a pipeline: the source's streams with their configuration and target tables."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Final

import structlog

from chronolake.change_set import expect_unreserved
from chronolake.config import (
    ModeSetting,
    OnPurge,
    PostgresMethod,
    PostgresSource,
    SchemaChanges,
    StreamConfig,
    VersionedDataLakeSource,
    is_pattern,
)
from chronolake.errors import (
    ConfigurationError,
    LakeError,
    SourceError,
    TableExistsError,
    TableNotFoundError,
)
from chronolake.extras import require
from chronolake.formatting import did_you_mean
from chronolake.landing import ColumnRules, namings_of
from chronolake.pipeline.column_names import ColumnNames
from chronolake.pipeline.column_types import ColumnTypes
from chronolake.pipeline.tracked_columns import TrackedColumns
from chronolake.source.protocol import TokenHoldingSource
from chronolake.stream_modes import best_mode, check_mode
from chronolake.types import STREAM_PROPERTY, Mode, TableName

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from chronolake.config import PipelineConfig, Project
    from chronolake.landing import BadFile, Namings, ObjectFolder
    from chronolake.source.protocol import Source, StreamDescriptor

log = structlog.get_logger(__name__)

#: The extras that types of sources need; the others need only the core.
_EXTRAS: Final = {"postgres": "postgres", "mysql": "mysql", "declarative": "api"}
_SNAPSHOTS: Final = "postgres snapshots"
_HOURLY_LAKE: Final = "data lake v1"
#: The module and class of each type of source: it is imported only if needed.
_SOURCES: Final = {
    "airbyte": ("chronolake.source.connectors.airbyte", "AirbyteConnector"),
    "copies": ("chronolake.source.files.copies", "DatedCopies"),
    "data_lake": ("chronolake.source.data_lake", "DataLake"),
    "data_lake_v2": ("chronolake.source.data_lake", "DataLake"),
    _HOURLY_LAKE: ("chronolake.source.data_lake", "HourlyDataLake"),
    "declarative": ("chronolake.source.declarative.source", "DeclarativeApi"),
    "files": ("chronolake.source.files.records", "RecordFiles"),
    "fivetran": ("chronolake.source.connectors.fivetran", "FivetranProject"),
    "history": ("chronolake.source.files.history", "HistoryTable"),
    "jdbc": ("chronolake.source.jdbc", "JdbcDatabase"),
    "mysql": ("chronolake.source.mysql.database", "MysqlDatabase"),
    "postgres": ("chronolake.source.postgres.database", "PostgresDatabase"),
    _SNAPSHOTS: ("chronolake.source.postgres.snapshot_source", "SnapshotDatabase"),
    "python": ("chronolake.source.python.source", "PythonFunctions"),
    "singer": ("chronolake.source.connectors.singer", "SingerTap"),
    "sqlserver": ("chronolake.source.sqlserver.database", "SqlServerDatabase"),
}


@dataclass(frozen=True)
class Stream:
    """A stream of a pipeline: its descriptor in the source, and its configuration.

    Attributes:
        pipeline: the pipeline's name.
        descriptor: the stream as its source declares it.
        table: the table that it writes.
        mode: the configured mode.
        is_auto: whether the configured mode is `auto`.
        keep_source_timestamp: whether a history table stores the source's own time as a column.
        on_purge: what happens to a record that was purged in the source.
        names: the renamed columns.
        rules: the columns that are excluded, hashed or masked.
        types: the columns that are cast.
        schema_changes: what happens if the source adds, removes or changes columns.
        tracked: in history mode, the columns whose changes start a version; None: all changes do.
    """

    pipeline: str
    descriptor: StreamDescriptor
    table: TableName
    mode: Mode
    keep_source_timestamp: bool
    on_purge: OnPurge
    names: ColumnNames = field(default_factory=ColumnNames)
    is_auto: bool = False
    rules: ColumnRules = field(default_factory=ColumnRules)
    types: ColumnTypes = field(default_factory=ColumnTypes)
    schema_changes: SchemaChanges = SchemaChanges.EVOLVE
    tracked: TrackedColumns | None = None

    @property
    def name(self) -> str:
        """Return the stream's name in the source."""
        return self.descriptor.capabilities.name

    @property
    def key(self) -> tuple[str, ...]:
        """Return the columns that identify a record, by their names in the lake."""
        # In another system's files, the identifier's name is fixed.
        names = self.names.lake_names(self.descriptor.key) if self.descriptor.is_ours else {}
        return tuple(names.get(name, name) for name in self.descriptor.key)

    @property
    def place(self) -> str:
        """Return the stream's path in chronolake.yml."""
        return f"pipelines.{self.pipeline}.streams.{self.name}"

    @property
    def folder(self) -> ObjectFolder:
        """Return the folder of its record versions."""
        return self.descriptor.folder

    @property
    def namings(self) -> Namings:
        """Return the former and current names of the fields of its files.

        Raises:
            SourceError: a control record cannot be read.
        """
        found = namings_of(self.folder)
        # Files that Chronolake landed already have the lake's names.
        return found if self.descriptor.is_ours else replace(found, of_others=self.names.pairs)

    @property
    def rules_of_files(self) -> ColumnRules:
        """Return the rules of the fields of its files; none for files that Chronolake landed."""
        return (
            ColumnRules() if self.descriptor.is_ours else self.rules.renamed(dict(self.names.pairs))
        )

    @property
    def types_of_files(self) -> ColumnTypes:
        """Return the types of the fields of its files; none for files that Chronolake landed."""
        if self.descriptor.is_ours:
            return ColumnTypes()
        return self.types.renamed(dict(self.names.pairs))

    @property
    def erases_files(self) -> bool:
        """Return whether purges also erase data in the files; only in Chronolake's own."""
        return self.on_purge is OnPurge.ERASE and self.descriptor.is_ours

    @property
    def identity(self) -> str:
        """Return the stream's identity in table properties."""
        return f"{self.pipeline}/{self.name}"


def pipeline_of(project: Project, name: str) -> PipelineConfig:
    """Return a pipeline of a project.

    Raises:
        ConfigurationError: the project does not have a pipeline of this name.
    """
    if name in project.pipelines:
        return project.pipelines[name]
    known = ", ".join(project.pipelines) or "none"
    raise ConfigurationError(
        f"{project.file} has no pipeline {name!r}.",
        hint=did_you_mean(name, project.pipelines, f"It has: {known}."),
    )


def source_of(project: Project, pipeline: str) -> Source:
    """Return the source of a pipeline, with access to its stored tokens.

    Raises:
        ConfigurationError: the pipeline does not exist.
        MissingExtraError: the packages that read the source are not installed.
    """
    source = build_source(project, pipeline)
    if isinstance(source, TokenHoldingSource):
        from chronolake.pipeline.token_store import StoredTokens  # noqa: PLC0415 - it loads SQLAlchemy

        source.use_token_store(StoredTokens(project.lake, pipeline))
    return source


def raise_if_not_installed(project: Project, pipeline: str) -> None:
    """Raise an error unless the packages that read the source of a pipeline are installed.

    Raises:
        ConfigurationError: the pipeline does not exist.
        MissingExtraError: a package is not installed.
    """
    source = pipeline_of(project, pipeline).source
    if source.type in _EXTRAS:
        require(_EXTRAS[source.type], f"A source of the type {source.type}")


def build_source(project: Project, pipeline: str) -> Source:
    """Return the source of a pipeline, which does not know stored tokens.

    Raises:
        ConfigurationError: the pipeline does not exist.
        MissingExtraError: the packages that read the source are not installed.
    """
    raise_if_not_installed(project, pipeline)
    config = pipeline_of(project, pipeline).source
    kind: str = config.type
    if isinstance(config, PostgresSource) and config.method is PostgresMethod.SNAPSHOT_DIFF:
        kind = _SNAPSHOTS
    if isinstance(config, VersionedDataLakeSource) and config.version == 1:
        kind = _HOURLY_LAKE
    module, name = _SOURCES[kind]
    made: Source = getattr(import_module(module), name)(project, pipeline, config)
    return made


def streams_of(
    project: Project, pipeline: str, source: Source | None = None, *, any_mode: bool = False
) -> list[Stream]:
    """Return the streams of a pipeline.

    Args:
        project: the configuration.
        pipeline: the pipeline's name.
        source: its source; None for the configured one.
        any_mode: whether to include streams that do not support their configured mode.

    Raises:
        ConfigurationError: the pipeline does not exist, or a configured stream does not exist in
            the source, does not support its mode, or has the same table as another one.
        SourceError: the source cannot be read.
    """
    found = list_streams(project, pipeline, source, any_mode=any_mode)
    if found.errors:
        raise found.errors[0]
    return found.streams


@dataclass(frozen=True)
class Listing:
    """The streams of a pipeline, with the errors of its configuration.

    Attributes:
        streams: the valid streams.
        errors: errors of invalid streams, and of configured streams that do not exist.
    """

    streams: list[Stream]
    errors: list[ConfigurationError]


def list_streams(
    project: Project, pipeline: str, source: Source | None = None, *, any_mode: bool = False
) -> Listing:
    """Return the streams of a pipeline with all errors; arguments as for `streams_of`.

    Raises:
        ConfigurationError: the pipeline does not exist, or its source's configuration is invalid.
        SourceError: the source cannot be read.
    """
    config = pipeline_of(project, pipeline)
    descriptors = {
        descriptor.capabilities.name: descriptor
        for descriptor in (source or source_of(project, pipeline)).discover()
        if config.tables.select(descriptor.capabilities.name)
    }
    errors = _unmatched_tables(project, pipeline, descriptors)
    errors += [
        ConfigurationError(
            f"{project.file}: pipelines.{pipeline}.{_setting_of(config, name)}: the source has no "
            "such stream.",
            hint=did_you_mean(name, descriptors, f"It has: {', '.join(descriptors) or 'none'}."),
        )
        for name in dict.fromkeys([*config.streams, *config.rename.tables])
        if name not in descriptors and config.tables.select(name)
    ]
    streams: list[Stream] = []
    tables: dict[TableName, str] = {}
    for descriptor in descriptors.values():
        try:
            stream = _build_stream(project, config, pipeline, descriptor, any_mode=any_mode)
        except ConfigurationError as failure:
            errors.append(failure)
            continue
        streams.append(stream)
        if (other := tables.setdefault(stream.table, stream.name)) != stream.name:
            errors.append(
                ConfigurationError(
                    f"{project.file}: the streams {other} and {stream.name} of {pipeline} have the "
                    f"same table, {stream.table}.",
                    hint="Set another table for one of them: "
                    f"pipelines.{pipeline}.rename.tables: {{{other}: …}}",
                )
            )
    return Listing(streams, errors)


def _unmatched_tables(
    project: Project, pipeline: str, names: Collection[str]
) -> list[ConfigurationError]:
    """Return errors about settings of `tables` that no stream matches.

    Args:
        project: the configuration.
        pipeline: the pipeline's name.
        names: the streams that are replicated.
    """
    place = f"{project.file}: pipelines.{pipeline}.tables.include"
    included = project.pipelines[pipeline].tables.include
    if included and not names:
        return [
            ConfigurationError(
                f"{place}: no stream of the source matches.",
                hint="Write names of streams as `chronolake discover` lists them without `tables`, "
                "or patterns such as 'public.*'.",
            )
        ]
    folded = {name.casefold() for name in names}
    return [
        ConfigurationError(
            f"{place}: the source has no stream {name!r}, or `exclude` excludes it.",
            hint=did_you_mean(name, names, f"Included are: {', '.join(names)}."),
        )
        for name in included
        if not is_pattern(name) and name.casefold() not in folded
    ]


def expect_filled_by(stream: Stream, owner: str | None) -> None:
    """Raise if another stream, or no stream, writes a table.

    Args:
        stream: the stream that is configured to write the table.
        owner: the `pipeline/stream` that writes it, or None.

    Raises:
        TableExistsError: the owner is not this stream.
    """
    if owner == stream.identity:
        return
    owned = f"it is filled by {owner}" if owner else "it was not created by a pipeline"
    raise TableExistsError(
        f"The stream {stream.identity} cannot fill the table: {owned}.",
        table=str(stream.table),
        hint="Set another table for the stream: "
        f"pipelines.{stream.pipeline}.streams.{stream.name}.table.",
    )


def key_error(
    stream: Stream, key: Sequence[str], stored: Sequence[str], *, file: str | None = None
) -> SourceError:
    """Return the error for records with another key than their table.

    Args:
        stream: the stream that writes the table.
        key: the fields that identify the records now.
        stored: the fields that identify them in the table.
        file: the last file with the records, if they have landed.
    """
    ours = (
        f"Move the folder {stream.folder.path} elsewhere, and set another table in chronolake.yml: "
        f"pipelines.{stream.pipeline}.rename.tables: {{{stream.name}: …}}. The next sync loads all "
        "data into the new table; this table stays unchanged."
    )
    theirs = "Move the files with the new key to a separate lake, and sync it to another table."
    return SourceError(
        f"The source's key is {', '.join(key)}, but the table's key is {', '.join(stored)}.",
        table=str(stream.table),
        file=file,
        hint=ours if stream.descriptor.is_ours else theirs,
    )


def select_streams(streams: Sequence[Stream], pipeline: str, names: Sequence[str]) -> list[Stream]:
    """Return the named streams of a pipeline, or all if no names are given.

    Raises:
        ConfigurationError: a named stream does not exist.
    """
    by_name = {stream.name: stream for stream in streams}
    for name in names:
        if name not in by_name:
            raise ConfigurationError(
                f"The pipeline {pipeline} has no stream {name!r}.",
                hint=did_you_mean(name, by_name, f"It has: {', '.join(by_name) or 'none'}."),
            )
    return [by_name[name] for name in dict.fromkeys(names)] or list(streams)


def with_current_configuration(stream: Stream, project: Project) -> Stream:
    """Return a stream with a project's current configuration, but the same table and source.

    Raises:
        ConfigurationError: the stream does not support the configured mode.
    """
    config = project.pipelines.get(stream.pipeline)
    if config is None:
        return stream
    return replace(
        _build_stream(project, config, stream.pipeline, stream.descriptor, any_mode=False),
        table=stream.table,
    )


def _with_rule_of_table(
    project: Project, descriptor: StreamDescriptor, table: TableName
) -> StreamDescriptor:
    """Return a stream with what the name or a setting of its table means for its modes, if any."""
    is_history_only = project.lake.is_history_only(table)
    if not is_history_only and project.lake.history_only_setting(table) is None:
        return descriptor
    rule = replace(descriptor.capabilities, is_history_table=is_history_only)
    return replace(descriptor, capabilities=rule)


def _build_stream(
    project: Project,
    config: PipelineConfig,
    pipeline: str,
    descriptor: StreamDescriptor,
    *,
    any_mode: bool,
) -> Stream:
    name = descriptor.capabilities.name
    own = config.streams.get(name, StreamConfig())
    table_name = own.table or config.rename.tables.get(name) or descriptor.default_table or name
    table = TableName(config.target_schema or pipeline, table_name)
    expect_unreserved(table)
    descriptor = _with_rule_of_table(project, descriptor, table)
    setting = own.mode or config.mode
    is_auto = setting is ModeSetting.AUTO
    mode = best_mode(descriptor.capabilities) if is_auto else Mode(setting.value)
    if not any_mode:
        check_mode(descriptor.capabilities, mode, table=table)
    keeps_time = own.keep_source_timestamp
    rules = ColumnRules.of(config, name)
    place = f"pipelines.{pipeline}.streams.{name}"
    rules.expect_stored(descriptor.key, place=place)
    if descriptor.cursor is not None:
        reason = "it is the stream's cursor, and its values are stored in the state"
        rules.expect_plain([descriptor.cursor], place=place, reason=reason)
    if is_auto and mode is not Mode.HISTORY:
        _raise_if_history_is_lost(project, pipeline, name, table)
    names = ColumnNames(
        tuple({**config.rename.columns, **config.columns.rename}.items()),
        tuple({**own.rename, **own.columns.rename}.items()),
    )
    tracked = TrackedColumns.of(config, name, names.pairs) if mode is Mode.HISTORY else None
    return Stream(
        pipeline=pipeline,
        descriptor=descriptor,
        table=table,
        mode=mode,
        keep_source_timestamp=config.keep_source_timestamp if keeps_time is None else keeps_time,
        on_purge=own.on_purge or config.on_purge,
        names=names,
        is_auto=is_auto,
        rules=rules,
        types=ColumnTypes.of(config, name, rules, place=place),
        schema_changes=own.schema_changes or config.schema_changes,
        tracked=tracked,
    )


def _raise_if_history_is_lost(project: Project, pipeline: str, name: str, table: TableName) -> None:
    """Raise if `auto` would drop a table's history because its source no longer supports it."""
    from chronolake import inspect  # noqa: PLC0415 - only some streams need it, and it loads PyIceberg

    try:
        stored = inspect.look_up(project.lake, table)
    except (LakeError, TableNotFoundError):
        # The table does not exist; or the lake cannot be read, which the next step reports.
        return
    if stored.mode is Mode.HISTORY and stored.iceberg.properties.get(STREAM_PROPERTY):
        raise ConfigurationError(
            f"The table {table} keeps history, and the stream {name} of the source no longer "
            "supports it.",
            table=str(table),
            hint=f"Set pipelines.{pipeline}.streams.{name}.mode: soft-delete to drop the history, "
            "or set another table for the stream.",
        )


def _setting_of(config: PipelineConfig, name: str) -> str:
    return f"streams.{name}" if name in config.streams else f"rename.tables.{name}"


def warn_of_quarantine(stream: Stream, bad: Sequence[BadFile]) -> None:
    """Log the files that are left out of a table."""
    for file in bad:
        log.warning(
            "file_quarantined",
            table=str(stream.table),
            file=file.mark,
            reason=file.reason,
            column=file.column,
        )
