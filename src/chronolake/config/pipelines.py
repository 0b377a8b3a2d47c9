"""The key `pipelines` of chronolake.yml: sources, and settings of their streams and tables."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import parse_qsl, urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, field_validator, model_validator

from chronolake.config.intervals import Period  # noqa: TC001 - pydantic reads it
from chronolake.config.sections import Section
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
        description="The folder that holds `parquet/v2`; a relative one is taken from the folder "
        "of chronolake.yml.",
    )
    org: str = Field(min_length=1, description="The organisation: X in `org=X`.")
    objects: list[str] | None = Field(
        default=None, description="The objects to bring; every object there is when left out."
    )
    on_bad_file: OnBadFile = Field(
        default=OnBadFile.FAIL,
        description="fail: a stream with a file that cannot be read fails; quarantine: its table "
        "goes on without the file, which `status` and `verify` list.",
    )

    @field_validator("path")
    @classmethod
    def _folder(cls, path: str) -> str:
        if "://" in path:
            raise ValueError("a data lake is a folder; object stores are not read yet")
        return path


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
        description="Its address, postgresql://user:${PASSWORD}@host:5432/database.",
    )
    method: PostgresMethod = Field(
        default=PostgresMethod.LOGICAL_REPLICATION,
        description="How changes are found: logical_replication reads the server's log, "
        "snapshot_diff reads every table in every run and needs nothing of the server.",
    )
    schemas: list[str] = Field(
        default=["public"], min_length=1, description="The schemas whose tables are brought."
    )
    tables: list[str] | None = Field(
        default=None,
        description="The tables to bring, as schema.table; every table of the schemas when left "
        "out.",
    )
    slot: str | None = Field(
        default=None,
        pattern="^[a-z0-9_]{1,63}$",
        description="The replication slot; chronolake_ and the pipeline's name when left out.",
    )
    publication: str | None = Field(
        default=None, min_length=1, description="The publication; the slot's name when left out."
    )
    failover: bool = Field(
        default=False,
        description="Whether the slot is a failover slot (PostgreSQL 17 or later), which standbys "
        "keep a copy of: one that is promoted is read on from where the lake is.",
    )
    snapshot_timeout: int = Field(
        default=60,
        ge=1,
        description="Seconds that a run waits for open transactions before it copies tables; the "
        "log is read for the others meanwhile.",
    )
    arrays: ValuesAs = Field(
        default=ValuesAs.TEXT,
        description="text: arrays as PostgreSQL writes them, {1,2}; json: as JSON, [1,2].",
    )
    composites: ValuesAs = Field(
        default=ValuesAs.TEXT,
        description="text: composite values as PostgreSQL writes them; json: as JSON, by the names "
        "of their attributes.",
    )
    money: MoneyAs = Field(
        default=MoneyAs.TEXT,
        description="text: money as PostgreSQL writes it, $1.50; decimal: as a number.",
    )
    generated_columns: bool = Field(
        default=False,
        description="Whether generated columns are brought: from the log stored ones, which "
        "PostgreSQL 18 or later publishes, and with snapshot_diff virtual ones as well.",
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


class JdbcTable(Section):
    """A table that is read over JDBC."""

    key: list[str] = Field(min_length=1, description="The columns that identify a row.")
    split_by: str | None = Field(
        default=None,
        min_length=1,
        description="A column of numbers, dates or times, by whose ranges several tasks read at "
        "once; one task reads all of it when left out.",
    )


class JdbcAddress(Section):
    """A database that Spark reads over JDBC, and its tables to replicate."""

    url: str = Field(
        pattern="^jdbc:", repr=False, description="Its address, jdbc:sqlserver://host:1433;…"
    )
    driver: str | None = Field(
        default=None,
        min_length=1,
        description="The driver's class, where the address does not tell. Its jar is named by "
        "spark.jars below lake.spark.conf.",
    )
    user: str | None = Field(default=None, description="Who reads.")
    password: str | None = Field(
        default=None, repr=False, description="The password, from the environment: ${PASSWORD}."
    )
    properties: dict[str, str] = Field(
        default_factory=dict, repr=False, description="More options of Spark's reader and driver."
    )
    tables: dict[str, JdbcTable] = Field(
        min_length=1, description="The tables to bring, by their names as SQL has them."
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
    """A SQL Server database."""

    type: Literal["sqlserver"]
    method: SqlServerMethod = Field(
        description="change_tracking brings rows that have changed as they are by now; cdc brings "
        "every change."
    )
    time_zone: str = Field(
        default="UTC",
        description="Of the server's clock, in which cdc tells when transactions were committed: "
        "Europe/Berlin.",
    )

    @field_validator("time_zone")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError):
            raise ValueError("there is no such time zone; write one as Europe/Berlin") from None
        return name

    @model_validator(mode="after")
    def _named_in_full(self) -> Self:
        for name in self.tables:
            schema, _, table = name.partition(".")
            if not schema or not table or "." in table:
                raise ValueError(f"write the table {name!r} with its schema: dbo.items")
        return self


def _as_hosts(hosts: list[str]) -> list[str]:
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise ValueError(
                f"{host!r} is not a host; write api.example.com, *.example.com, or "
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
        description="What the manifest's `spec` asks for; secrets from the environment: ${TOKEN}.",
    )
    only: list[str] | None = Field(
        default=None,
        min_length=1,
        description="The streams to bring; every stream that can be read when left out.",
    )
    concurrency: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="How many requests are in flight at once; what the manifest says, or 4, when "
        "left out.",
    )
    spark_from_mib: int = Field(
        default=64,
        ge=0,
        description="A stream of which so many MiB have been read is read on by Spark's tasks; "
        "the driver alone reads smaller ones.",
    )
    allowed_hosts: Annotated[list[str], AfterValidator(_as_hosts)] | None = Field(
        default=None,
        min_length=1,
        description="The hosts that requests may go to, as api.example.com or *.example.com; any "
        "when left out. Servers that an API's links lead to get its credentials only if they are "
        "listed as https://api.example.com.",
    )
    response_timeout: float = Field(
        default=900,
        gt=0,
        description="Seconds that a whole answer may take.",
    )
    response_memory_mib: int = Field(
        default=512,
        ge=1,
        description="The memory that the values in one answer may take, in MiB.",
    )
    allow_components: bool = Field(
        default=False,
        description="Whether Python classes of the connector may run, which stand in components.py "
        "beside the manifest or in its package; nothing bounds what they do.",
    )
    may_lack_records: list[str] = Field(
        default_factory=list,
        description="Streams whose answers may have nothing where the manifest says that records "
        "are (field_path): then they have no records. In other streams that is an error.",
    )
    may_repeat_tokens: list[str] = Field(
        default_factory=list,
        description="Streams whose API uses one page token for all pages. In other streams a token "
        "that comes twice is an error.",
    )
    on_partition_limit: OnPartitionLimit = Field(
        default=OnPartitionLimit.DROP_OLDEST,
        description="Beyond 10,000 partitions: drop_oldest reads forgotten ones in full next "
        "time; global_cursor keeps one cursor for all from then on.",
    )


class OnPurge(StrEnum):
    """What happens to a record that was purged in the source."""

    #: Its versions end, and keep their data.
    CLOSE = "close"
    #: Its versions end, and keep only their key and times.
    ERASE = "erase"


class Nested(StrEnum):
    """The format of objects within records."""

    #: A JSON text.
    JSON = "json"
    #: A column for each field that the schema declares.
    COLUMNS = "columns"


class Rename(Section):
    """Renamed tables and columns."""

    tables: dict[str, str] = Field(
        default_factory=dict, description="Names of tables, by their streams."
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="Names of columns in all streams, by their names in the source.",
    )

    @field_validator("tables", "columns")
    @classmethod
    def _named(cls, names: dict[str, str]) -> dict[str, str]:
        return _with_names(names)


def _with_names(names: dict[str, str]) -> dict[str, str]:
    for name, now in names.items():
        if not now:
            raise ValueError(f"the new name of {name!r} is empty")
    return names


class StreamConfig(Section):
    """The settings of one stream."""

    mode: ModeSetting | None = Field(
        default=None, description="auto, live, soft-delete or history."
    )
    table: str | None = Field(
        default=None, min_length=1, description="The table's name; the stream's when left out."
    )
    rename: dict[str, str] = Field(
        default_factory=dict,
        description="Names of columns in the lake, by their names in the source.",
    )
    keep_source_timestamp: bool | None = Field(
        default=None,
        description="In history mode, whether the source's own time stays as a column beside "
        "_fivetran_start.",
    )
    on_purge: OnPurge | None = Field(
        default=None,
        description="close: versions of a purged record end; erase: their data goes as well.",
    )
    detect_deletes: Period | None = Field(
        default=None,
        description="Of a declarative source, how often the stream is read as a whole, to find "
        "what was deleted: daily, weekly, monthly, never, 12h, P10D.",
    )
    may_become_empty: bool = Field(
        default=False,
        description="With detect_deletes, whether a complete read without any record deletes all.",
    )
    nested: Nested | None = Field(
        default=None,
        description="Of a declarative source, json: objects in records are JSON texts; columns: "
        "the fields that the schema declares of them are columns.",
    )
    cursor_in_key: bool = Field(
        default=False,
        description="Of a declarative source, whether the cursor's field is part of the key.",
    )

    @field_validator("rename")
    @classmethod
    def _named(cls, names: dict[str, str]) -> dict[str, str]:
        return _with_names(names)


#: Settings that are only valid for declarative sources.
_OF_APIS: Final = {"detect_deletes", "may_become_empty", "nested", "cursor_in_key"}


class PipelineConfig(Section):
    """A source, and the settings of its streams."""

    source: Annotated[
        DataLakeSource | PostgresSource | JdbcSource | SqlServerSource | DeclarativeSource,
        Field(discriminator="type"),
    ] = Field(description="What is read.")
    target_schema: str | None = Field(
        default=None,
        alias="schema",
        min_length=1,
        description="The schema of the pipeline's tables; its own name when left out.",
    )
    mode: ModeSetting = Field(
        default=ModeSetting.AUTO,
        description="The mode of streams that do not say their own. auto: history where the "
        "source supports it, otherwise soft-delete.",
    )
    keep_source_timestamp: bool = Field(
        default=False, description="The same for streams that do not say their own."
    )
    on_purge: OnPurge = Field(
        default=OnPurge.CLOSE, description="The same for streams that do not say their own."
    )
    detect_deletes: Period | None = Field(
        default=None,
        description="The same for streams that do not say their own, and have an incremental "
        "cursor and a key.",
    )
    nested: Nested = Field(
        default=Nested.JSON, description="The same for streams that do not say their own."
    )
    rename: Rename = Field(
        default_factory=Rename,
        description="Other names of tables and columns in the lake than in the source.",
    )
    streams: dict[str, StreamConfig] = Field(
        default_factory=dict, description="What is different for single streams, by their names."
    )

    @model_validator(mode="after")
    def _known_to_the_source(self) -> Self:
        if isinstance(self.source, DeclarativeSource):
            return self
        sections: dict[str, Section] = {
            "": self,
            **{f"streams.{name}.": stream for name, stream in self.streams.items()},
        }
        for place, section in sections.items():
            for key in sorted(_OF_APIS & section.model_fields_set):
                raise ValueError(f"{place}{key} is for sources of the type declarative only")
        return self
