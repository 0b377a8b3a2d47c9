"""The key `pipelines` of chronolake.yml: sources, and settings of their streams and tables."""

from __future__ import annotations

import re
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import parse_qsl, urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, field_validator, model_validator

from chronolake.config.columns import ColumnSettings, TrackHistory
from chronolake.config.file_sources import (  # noqa: TC001 - pydantic reads them
    CopiesSource,
    FilesSource,
    HistorySource,
)
from chronolake.config.patterns import TablePatterns
from chronolake.config.section import Section
from chronolake.config.sections import Period, check_location
from chronolake.config.storage import StorageConfig  # noqa: TC001 - pydantic reads it
from chronolake.schedule import Timing
from chronolake.types import Mode

#: A host, a host pattern, or a server's scheme, host and port.
_HOST: Final = re.compile(
    r"https?://(?:[^\s/@?#*:\[\]]+|\[[0-9a-fA-F:.]+\])(?::\d{1,5})?/?|[^\s/@?#]+"
)


class ModeSetting(StrEnum):
    """The configured mode of a stream."""

    AUTO = "auto"
    LIVE = Mode.LIVE.value
    SOFT_DELETE = Mode.SOFT_DELETE.value
    HISTORY = Mode.HISTORY.value


class OnBadFile(StrEnum):
    """What happens to a stream with a file that cannot be read or stored."""

    #: The stream fails, and its table is unchanged.
    FAIL = "fail"
    #: The file is left out of the table and recorded in it.
    QUARANTINE = "quarantine"


class DataLakeSource(Section):
    """A Data Lake v2 that another system writes."""

    type: Literal["data_lake_v2"]
    path: str = Field(
        min_length=1,
        description="The folder that contains `parquet/v2` (version 1: `parquet`), or "
        "s3://bucket/path, gs://bucket/path or "
        "abfss://container@account.dfs.core.windows.net/path. A relative path is resolved "
        "against the folder of chronolake.yml.",
    )
    storage: StorageConfig | None = Field(
        default=None,
        description="How the object store is reached. Default: as that of the lake.",
    )
    org: str = Field(min_length=1, description="The organization: X in `org=X`.")
    objects: list[str] | None = Field(
        default=None, description="The objects to replicate. Default: all objects."
    )
    on_bad_file: OnBadFile = Field(
        default=OnBadFile.FAIL,
        description="fail: a stream with a file that cannot be read fails; quarantine: its table "
        "continues without the file, which `status` and `verify` list.",
    )

    @field_validator("path")
    @classmethod
    def _check_path(cls, path: str) -> str:
        return check_location(path)


class VersionedDataLakeSource(DataLakeSource):
    """A data lake of any version that another system writes."""

    type: Literal["data_lake"]  # type: ignore[assignment] # another name, with one more setting
    version: Literal[1, 2] = Field(
        default=2,
        description="2: Data Lake v2; 1: Data Lake v1 (History Stream), whose files are in "
        "`day=YYYY-MM-DD/hr=HH`.",
    )


class PostgresMethod(StrEnum):
    """How changes in a PostgreSQL database are captured."""

    #: From the server's log.
    LOGICAL_REPLICATION = "logical_replication"
    #: By reading every table in every run.
    SNAPSHOT_DIFF = "snapshot_diff"


class ValuesAs(StrEnum):
    """The format of arrays and composite values."""

    #: PostgreSQL's text format.
    TEXT = "text"
    #: JSON as returned by `to_jsonb`.
    JSON = "json"


class MoneyAs(StrEnum):
    """The type of money values."""

    #: PostgreSQL's text format.
    TEXT = "text"
    #: A decimal number.
    DECIMAL = "decimal"


class PostgresSource(Section):
    """A PostgreSQL database."""

    type: Literal["postgres"]
    dsn: str = Field(
        min_length=1,
        repr=False,
        description="The server's address: postgresql://user:${PASSWORD}@host:5432/database.",
    )
    method: PostgresMethod = Field(
        default=PostgresMethod.LOGICAL_REPLICATION,
        description="How changes are captured: logical_replication reads the server's log; "
        "snapshot_diff reads every table in every run and needs no preparation of the server.",
    )
    schemas: list[str] = Field(
        default=["public"], min_length=1, description="The schemas whose tables are replicated."
    )
    tables: list[str] | None = Field(
        default=None,
        description="The tables to replicate, as schema.table. Default: all tables of the schemas.",
    )
    slot: str | None = Field(
        default=None,
        pattern="^[a-z0-9_]{1,63}$",
        description="The name of the replication slot. Default: chronolake_ and the pipeline's "
        "name.",
    )
    publication: str | None = Field(
        default=None,
        min_length=1,
        description="The name of the publication. Default: the slot's name.",
    )
    failover: bool = Field(
        default=False,
        description="Whether the slot is a failover slot (PostgreSQL 17 or later). Standbys keep "
        "a copy of it, so that replication continues at the lake's offset after a standby is "
        "promoted.",
    )
    snapshot_timeout: int = Field(
        default=60,
        ge=1,
        description="Seconds that a run waits for open transactions before it copies tables. "
        "Meanwhile, the log is read for the other tables.",
    )
    arrays: ValuesAs = Field(
        default=ValuesAs.TEXT,
        description="text: arrays in PostgreSQL's text format, {1,2}; json: arrays as JSON, [1,2].",
    )
    composites: ValuesAs = Field(
        default=ValuesAs.TEXT,
        description="text: composite values in PostgreSQL's text format; json: JSON objects with "
        "the names of their attributes.",
    )
    money: MoneyAs = Field(
        default=MoneyAs.TEXT,
        description="text: money in PostgreSQL's text format, $1.50; decimal: a decimal number.",
    )
    generated_columns: bool = Field(
        default=False,
        description="Whether generated columns are replicated. logical_replication reads stored "
        "ones, which PostgreSQL 18 or later publishes; snapshot_diff also reads virtual ones.",
    )

    def slot_for(self, pipeline: str) -> str:
        """Return the name of a pipeline's replication slot."""
        allowed = "".join(char if char.isascii() and char.isalnum() else "_" for char in pipeline)
        return self.slot or f"chronolake_{allowed.lower()}"[:63]

    @property
    def server(self) -> tuple[str, str]:
        """Return the host and port in the address; aliases of localhost are equal."""
        if "://" in self.dsn:
            parts = urlsplit(self.dsn)
            given = dict(parse_qsl(parts.query))
            hosts, _, port = parts.netloc.rpartition("@")[2].rpartition(":")
            if not port.isdigit():
                hosts, port = parts.netloc.rpartition("@")[2], ""
        else:
            words = (word.partition("=") for word in self.dsn.split())
            given = {name.strip(): value.strip(" '") for name, _, value in words}
            hosts, port = "", ""
        host = (given.get("host") or given.get("hostaddr") or hosts).lower()
        own = {"", "localhost", "127.0.0.1", "::1", "[::1]"}
        return ("" if host in own else host), given.get("port") or port or "5432"


class MysqlSource(Section):
    """A MySQL or MariaDB server."""

    type: Literal["mysql"]
    dsn: str = Field(
        min_length=1,
        repr=False,
        description="The server's address: mysql://user:${PASSWORD}@host:3306/database. Options: "
        "ssl-mode, ssl-ca, ssl-cert, ssl-key and unix-socket, as in MySQL's own programs.",
    )
    databases: list[str] | None = Field(
        default=None,
        min_length=1,
        description="The databases whose tables are replicated. Default: the one in `dsn`.",
    )
    tables: list[str] | None = Field(
        default=None,
        description="The tables to replicate, as database.table. Default: all tables of the "
        "databases.",
    )
    server_id: int | None = Field(
        default=None,
        ge=1,
        lt=2**32 - 1,
        description="The number under which the binary log is read, and the next one; no replica "
        "of the server may have them. Default: a number that depends on the lake and the pipeline.",
    )
    snapshot_timeout: int = Field(
        default=60,
        ge=1,
        description="Seconds that a run waits for prepared XA transactions, and without GTIDs for "
        "open transactions, before it copies a table.",
    )
    generated_columns: bool = Field(
        default=False, description="Whether generated columns are replicated."
    )

    def server_id_for(self, pipeline: str, lake: str) -> int:
        """Return the number of a pipeline of a lake as a replica."""
        if self.server_id is not None:
            return self.server_id
        digest = sha256(f"{lake} {pipeline}".encode()).digest()
        # Far from the numbers that people choose.
        return 2**31 + int.from_bytes(digest[:3], "big") * 2


class JdbcTable(Section):
    """A table that is read over JDBC."""

    key: list[str] = Field(min_length=1, description="The columns that identify a row.")
    split_by: str | None = Field(
        default=None,
        min_length=1,
        description="A column of numbers, dates or times: several tasks read its ranges in "
        "parallel. Default: one task reads the complete table.",
    )


class JdbcAddress(Section):
    """A database that Spark reads over JDBC, and its tables to replicate."""

    url: str = Field(
        pattern="^jdbc:",
        repr=False,
        description="The database's JDBC URL: jdbc:sqlserver://host:1433;…",
    )
    driver: str | None = Field(
        default=None,
        min_length=1,
        description="The class of the JDBC driver, if the URL does not determine it. Set the "
        "driver's jar with spark.jars in lake.spark.conf.",
    )
    user: str | None = Field(default=None, description="The database user.")
    password: str | None = Field(
        default=None,
        repr=False,
        description="The user's password. Take it from the environment: ${PASSWORD}.",
    )
    properties: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="Additional options of Spark's JDBC reader and of the driver.",
    )
    tables: dict[str, JdbcTable] = Field(
        min_length=1, description="The tables to replicate, keyed by their names as written in SQL."
    )


class JdbcSource(JdbcAddress):
    """A database over JDBC whose tables are read completely."""

    type: Literal["jdbc"]


class SqlServerMethod(StrEnum):
    """How changes in a SQL Server database are captured."""

    #: Change tracking: the keys of changed rows, with their current state.
    CHANGE_TRACKING = "change_tracking"
    #: Change data capture: every change.
    CDC = "cdc"


class SqlServerSource(JdbcAddress):
    """A SQL Server database. Experimental: it has not been run against a server yet."""

    type: Literal["sqlserver"]
    method: SqlServerMethod = Field(
        description="change_tracking reads the current state of rows that have changed; cdc reads "
        "every change."
    )
    time_zone: str = Field(
        default="UTC",
        description="Time zone of the server's clock, such as Europe/Berlin. cdc uses it for "
        "commit times.",
    )

    @field_validator("time_zone")
    @classmethod
    def _check_time_zone(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError):
            raise ValueError("unknown time zone; write a name such as Europe/Berlin") from None
        return name

    @model_validator(mode="after")
    def _check_table_names(self) -> Self:
        for name in self.tables:
            schema, _, table = name.partition(".")
            if not schema or not table or "." in table:
                raise ValueError(f"write the table {name!r} with its schema: dbo.items")
        return self


def _check_hosts(hosts: list[str]) -> list[str]:
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise ValueError(
                f"{host!r} is not a valid host; write api.example.com, *.example.com, or "
                "https://api.example.com for a server that gets the credentials as well"
            )
    return hosts


class OnPartitionLimit(StrEnum):
    """What happens to a stream with more partitions than the limit of stored states."""

    #: The oldest states are dropped, and their partitions are read completely next time.
    DROP_OLDEST = "drop_oldest"
    #: All partitions have one cursor from then on.
    GLOBAL_CURSOR = "global_cursor"


class DeclarativeSource(Section):
    """An HTTP API that the manifest of a low-code connector describes."""

    type: Literal["declarative"]
    manifest: str = Field(
        min_length=1,
        description="The manifest: a YAML file, a folder with manifest.yaml, or an installed "
        "package airbyte-source-….",
    )
    config: dict[str, Any] = Field(
        default_factory=dict,
        repr=False,
        description="The settings that the manifest's `spec` defines. Take secrets from the "
        "environment: ${TOKEN}.",
    )
    only: list[str] | None = Field(
        default=None,
        min_length=1,
        description="The streams to replicate. Default: all streams that can be read.",
    )
    concurrency: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Maximum number of concurrent requests. Default: the manifest's value, or 4.",
    )
    spark_from_mib: int = Field(
        default=64,
        ge=0,
        description="The driver reads up to this number of MiB of a stream; Spark's tasks read "
        "the rest.",
    )
    allowed_hosts: Annotated[list[str], AfterValidator(_check_hosts)] | None = Field(
        default=None,
        min_length=1,
        description="The hosts to which requests are allowed, as api.example.com or "
        "*.example.com. Default: any host. A server that an API links to gets the API's "
        "credentials only if it is listed as https://api.example.com.",
    )
    response_timeout: float = Field(
        default=900,
        gt=0,
        description="Maximum duration of a complete response in seconds.",
    )
    response_memory_mib: int = Field(
        default=512,
        ge=1,
        description="Maximum memory for the values of one response, in MiB.",
    )
    allow_components: bool = Field(
        default=False,
        description="Whether the connector's Python classes may run. They are defined in "
        "components.py beside the manifest or in its package, and run without restrictions.",
    )
    may_lack_records: list[str] = Field(
        default_factory=list,
        description="Streams whose responses may lack the path to the records (field_path); such "
        "a response has no records. In other streams this is an error.",
    )
    may_repeat_tokens: list[str] = Field(
        default_factory=list,
        description="Streams whose API uses one page token for all pages. In other streams a "
        "repeated token is an error.",
    )
    on_partition_limit: OnPartitionLimit = Field(
        default=OnPartitionLimit.DROP_OLDEST,
        description="What happens beyond 10,000 partitions. drop_oldest: the oldest states are "
        "dropped, and their partitions are read completely next time; global_cursor: from then "
        "on, all partitions share one cursor.",
    )


class Capture(StrEnum):
    """How a function reports changes."""

    #: Each record is a change of its own.
    LOG = "log"
    #: A run yields the records that have changed since the state.
    POLLING = "polling"
    #: A run yields all records.
    SNAPSHOT = "snapshot"


class PythonSource(Section):
    """Functions, generators or classes of the project that yield records."""

    type: Literal["python"]
    run: str | list[str] = Field(
        min_length=1,
        description="The functions: `mymodule:orders`, or a list of them. Modules beside "
        "chronolake.yml are found before installed ones.",
    )
    config: dict[str, Any] = Field(
        default_factory=dict,
        repr=False,
        description="Values of their parameters. Take secrets from the environment: ${TOKEN}.",
    )
    key: str | list[str] | None = Field(
        default=None,
        min_length=1,
        description="For functions without a decorator: the fields that identify a record. "
        "Default: the whole record.",
    )
    cursor: str | None = Field(
        default=None,
        min_length=1,
        description="For functions without a decorator: the field with the time of a record's "
        "last change.",
    )
    deletes: str | None = Field(
        default=None,
        min_length=1,
        description="For functions without a decorator: the field that is set in deleted records.",
    )
    capture: Capture | None = Field(
        default=None,
        description="For functions without a decorator. snapshot: a run yields all records; "
        "polling: those that have changed; log: each record is a change. Default: polling with a "
        "cursor, otherwise snapshot.",
    )
    show_messages: bool | None = Field(
        default=None,
        description="Whether errors contain the texts of exceptions, which may contain values of "
        "records. Default: unless columns are excluded, hashed or masked.",
    )

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of functions without a decorator that are set."""
        given = {name: getattr(self, name) for name in ("key", "cursor", "deletes", "capture")}
        return {name: value for name, value in given.items() if value is not None}


class ConnectorSection(Section):
    """A connector: a program that reports records on its standard output."""

    package: str | None = Field(
        default=None,
        min_length=1,
        description="The Python package of the connector, with its version: "
        "airbyte-source-faker==7.2.1. It is installed into an environment of its own.",
    )
    requirements: list[str] = Field(
        default_factory=list,
        description="Further packages for that environment, as pip has them.",
    )
    python: str | None = Field(
        default=None,
        min_length=1,
        description="The Python of that environment, if the package needs another version: a "
        "program, or a version such as 3.10. Default: the one that runs chronolake.",
    )
    command: str | list[str] | None = Field(
        default=None,
        min_length=1,
        description="Instead of a package: the program with its arguments. A path is relative to "
        "chronolake.yml.",
    )
    config: dict[str, Any] = Field(
        default_factory=dict,
        repr=False,
        description="The connector's own configuration. Take secrets from the environment: "
        "${TOKEN}.",
    )
    environment: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="Environment variables of the program. Of those of chronolake, it gets only "
        "PATH, HOME, the locale, the time zone, proxies and certificates.",
    )
    only: list[str] | None = Field(
        default=None, min_length=1, description="The streams to replicate. Default: all streams."
    )
    keys: dict[str, list[str]] = Field(
        default_factory=dict,
        description="The fields that identify a record, by stream. Default: what the connector "
        "reports, or the whole record.",
    )
    cursors: dict[str, str] = Field(
        default_factory=dict,
        description="The field for incremental reads, by stream. Default: what the connector "
        "reports.",
    )
    silent_seconds: float = Field(
        default=1800,
        gt=0,
        description="The connector is stopped if it reports nothing for this number of seconds.",
    )
    show_messages: bool | None = Field(
        default=None,
        description="Whether the log and errors contain messages of the connector, which may "
        "contain values of records. Default: unless columns are excluded, hashed or masked.",
    )

    @model_validator(mode="after")
    def _check_program(self) -> Self:
        if (self.package is None) == (self.command is None):
            raise ValueError("set either package or command")
        if self.command is not None and (self.requirements or self.python):
            raise ValueError("requirements and python are for a package, not for a command")
        return self


class AirbyteSource(ConnectorSection):
    """A connector of the Airbyte protocol."""

    type: Literal["airbyte"]


class FivetranSource(Section):
    """A project of the Fivetran Connector SDK."""

    type: Literal["fivetran"]
    path: str = Field(
        min_length=1,
        description="The project's folder, with connector.py. A relative path is resolved against "
        "the folder of chronolake.yml.",
    )
    config: dict[str, Any] = Field(
        default_factory=dict,
        repr=False,
        description="The project's configuration. Default: its configuration.json. Take secrets "
        "from the environment: ${TOKEN}.",
    )
    sdk: str = Field(
        default="fivetran-connector-sdk==3.0.0",
        description="The SDK's package and version. It is installed into an environment of its "
        "own, with the packages of the project's requirements.txt.",
    )
    python: str | None = Field(
        default=None,
        min_length=1,
        description="Instead of that environment: a Python program with these packages.",
    )
    environment: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="Environment variables of the project. Of those of chronolake, it gets only "
        "PATH, HOME, the locale, the time zone, proxies and certificates.",
    )
    only: list[str] | None = Field(
        default=None, min_length=1, description="The tables to replicate. Default: all tables."
    )
    keys: dict[str, list[str]] = Field(
        default_factory=dict,
        description="Tables that `schema` of connector.py does not declare, with their key "
        "columns: {orders: [id]}; [] for a table without a key.",
    )
    silent_seconds: float = Field(
        default=1800,
        gt=0,
        description="The project is stopped if it reports nothing for this number of seconds.",
    )
    show_messages: bool | None = Field(
        default=None,
        description="Whether the log and errors contain messages of the project, which may "
        "contain values of records. Default: unless columns are excluded, hashed or masked.",
    )


class SingerSource(ConnectorSection):
    """A tap of the Singer specification."""

    type: Literal["singer"]


class OnPurge(StrEnum):
    """What happens to a record that was purged in the source."""

    #: Its versions end, and keep their data.
    CLOSE = "close"
    #: Its versions end, and keep only their key and times.
    ERASE = "erase"


class SchemaChanges(StrEnum):
    """What happens if a stream's source adds, removes or changes columns."""

    #: The table follows: columns are added, and types become wider.
    EVOLVE = "evolve"
    #: The stream fails, and its table is unchanged.
    FREEZE = "freeze"
    #: New columns are not stored.
    DISCARD = "discard"


class Nested(StrEnum):
    """The format of objects within records."""

    #: A JSON text.
    JSON = "json"
    #: A column for each field that the schema declares.
    COLUMNS = "columns"


class Rename(Section):
    """Renamed tables and columns."""

    tables: dict[str, str] = Field(
        default_factory=dict, description="New names of tables, keyed by stream."
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="New names of columns in all streams, keyed by their names in the source.",
    )

    @field_validator("tables", "columns")
    @classmethod
    def _check_names(cls, names: dict[str, str]) -> dict[str, str]:
        return _raise_if_empty(names)


def _raise_if_empty(names: dict[str, str]) -> dict[str, str]:
    for name, now in names.items():
        if not now:
            raise ValueError(f"the new name of {name!r} is empty")
    return names


class StreamConfig(Section):
    """The settings of one stream."""

    mode: ModeSetting | None = Field(
        default=None,
        description="The mode of the stream's table: auto, live, soft-delete or history.",
    )
    table: str | None = Field(
        default=None, min_length=1, description="The table's name. Default: the stream's name."
    )
    rename: dict[str, str] = Field(
        default_factory=dict,
        description="New names of columns, keyed by their names in the source; the same as "
        "`columns.rename`.",
    )
    columns: ColumnSettings = Field(
        default_factory=ColumnSettings,
        description="Columns of the stream that are excluded, hashed, masked, renamed or cast. A "
        "setting of a stream overrides that of its pipeline.",
    )
    keep_source_timestamp: bool | None = Field(
        default=None,
        description="In history mode, whether the source's own time remains as a column beside "
        "_fivetran_start.",
    )
    on_purge: OnPurge | None = Field(
        default=None,
        description="close: versions of a purged record end; erase: their data is removed as well.",
    )
    schema_changes: SchemaChanges | None = Field(
        default=None, description="evolve, freeze or discard, as for the pipeline."
    )
    track_history: TrackHistory | Literal["all"] | None = Field(
        default=None, description="The tracked columns, as for the pipeline."
    )
    detect_deletes: Period | None = Field(
        default=None,
        description="For declarative sources: how often the stream is read completely to find "
        "deleted records: daily, weekly, monthly, never, 12h, P10D.",
    )
    may_become_empty: bool = Field(
        default=False,
        description="For declarative and Python sources: whether a complete read that returns no "
        "records deletes all records of the table.",
    )
    nested: Nested | None = Field(
        default=None,
        description="For declarative sources. json: objects in records are stored as JSON; "
        "columns: each field that the schema declares for them is a column.",
    )
    cursor_in_key: bool = Field(
        default=False,
        description="For declarative sources: whether the cursor field is part of the key.",
    )

    @field_validator("rename")
    @classmethod
    def _check_names(cls, names: dict[str, str]) -> dict[str, str]:
        return _raise_if_empty(names)


#: Settings that are only valid for declarative sources.
_API_SETTINGS: Final = {"detect_deletes", "may_become_empty", "nested", "cursor_in_key"}


def _check_timing(text: str) -> str:
    Timing.parse(text)
    return text


class PipelineConfig(Section):
    """A source, and the settings of its streams."""

    source: Annotated[
        DataLakeSource
        | VersionedDataLakeSource
        | MysqlSource
        | PostgresSource
        | JdbcSource
        | SqlServerSource
        | DeclarativeSource
        | PythonSource
        | AirbyteSource
        | SingerSource
        | FivetranSource
        | CopiesSource
        | HistorySource
        | FilesSource,
        Field(discriminator="type"),
    ] = Field(description="The source to replicate.")
    target_schema: str | None = Field(
        default=None,
        alias="schema",
        min_length=1,
        description="The schema of the pipeline's tables. Default: the pipeline's name.",
    )
    every: Annotated[str, AfterValidator(_check_timing)] | None = Field(
        default=None,
        description="When `chronolake up` syncs the pipeline: an interval (30s, 5m, 1h), or a cron "
        "expression in UTC ('*/5 * * * *'). Default: only on command.",
    )
    mode: ModeSetting = Field(
        default=ModeSetting.AUTO,
        description="The default mode of streams. auto: history if the source supports it, "
        "otherwise soft-delete.",
    )
    keep_source_timestamp: bool = Field(
        default=False, description="The default of `streams.NAME.keep_source_timestamp`."
    )
    on_purge: OnPurge = Field(
        default=OnPurge.CLOSE, description="The default of `streams.NAME.on_purge`."
    )
    schema_changes: SchemaChanges = Field(
        default=SchemaChanges.EVOLVE,
        description="What happens if a source adds, removes or changes columns. evolve: the table "
        "follows; freeze: the stream fails, and its table is unchanged; discard: new columns are "
        "not stored.",
    )
    track_history: TrackHistory | Literal["all"] = Field(
        default="all",
        description="In history mode, the columns whose changes start a new version: only or "
        "except, with names or patterns. Changes of other columns update the active version. "
        "Default: every change starts a version.",
    )
    detect_deletes: Period | None = Field(
        default=None,
        description="The default of `streams.NAME.detect_deletes` for streams that have an "
        "incremental cursor and a key.",
    )
    nested: Nested = Field(default=Nested.JSON, description="The default of `streams.NAME.nested`.")
    rename: Rename = Field(
        default_factory=Rename,
        description="New names of tables and columns in the lake.",
    )
    tables: TablePatterns = Field(
        default_factory=TablePatterns,
        description="The streams of the source to replicate, by names and patterns.",
    )
    columns: ColumnSettings = Field(
        default_factory=ColumnSettings,
        description="Columns that are excluded, hashed, masked, renamed or cast in all streams.",
    )
    streams: dict[str, StreamConfig] = Field(
        default_factory=dict, description="Settings of single streams, keyed by stream name."
    )

    @property
    def hides_messages(self) -> bool:
        """Return whether messages of the source's program may contain values that are hidden."""
        is_shown = getattr(self.source, "show_messages", None)
        return self.hides_values if is_shown is None else not is_shown

    @property
    def hides_values(self) -> bool:
        """Return whether columns of any stream are excluded, hashed or masked."""
        sections = [self.columns, *(stream.columns for stream in self.streams.values())]
        return any(section.has_rules for section in sections)

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        sections = {
            "columns": (self.columns, self.rename.columns),
            **{
                f"streams.{name}.columns": (stream.columns, stream.rename)
                for name, stream in self.streams.items()
            },
        }
        for place, (columns, renamed) in sections.items():
            if columns.hash and not (columns.hash_key or self.columns.hash_key):
                raise ValueError(
                    f"{place}.hash needs a key: set columns.hash_key of the pipeline to ${{NAME}}, "
                    "a variable of the environment with a secret text"
                )
            for name in sorted(columns.rename.keys() & renamed.keys()):
                if columns.rename[name] != renamed[name]:
                    raise ValueError(f"{place}.rename and `rename` name the column {name} twice")
        return self

    @model_validator(mode="after")
    def _check_api_settings(self) -> Self:
        if isinstance(self.source, DeclarativeSource):
            return self
        refused = _API_SETTINGS - {"may_become_empty"}
        if not isinstance(self.source, PythonSource | ConnectorSection):
            refused = _API_SETTINGS
        sections: dict[str, Section] = {
            "": self,
            **{f"streams.{name}.": stream for name, stream in self.streams.items()},
        }
        for place, section in sections.items():
            for key in sorted(refused & section.model_fields_set):
                kinds = "declarative"
                if key == "may_become_empty":
                    kinds += ", python, airbyte or singer"
                raise ValueError(f"{place}{key} is only supported for sources of the type {kinds}")
        return self
