"""The sections of chronolake.yml: their keys, defaults and limits, and intervals such as `12h`."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    field_validator,
    model_validator,
)

from chronolake.config.section import Section
from chronolake.config.storage import StorageConfig, scheme_of_file_io
from chronolake.durations import length_of, seconds_of
from chronolake.errors import SchemaError
from chronolake.location import SCHEMES, as_url, cut_in_urls, is_inside, scheme_of
from chronolake.masking import URL_ESCAPES, may_show_password
from chronolake.stream_modes import has_history_suffix
from chronolake.types import RELIED_ON, TableName, stored_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isodate import Duration


_NAMED_PERIODS: Final = {"daily": "P1D", "weekly": "P7D", "monthly": "P1M"}
_NEVER: Final = "never"
_ZERO: Final = "0"
_OFF: Final = "off"
#: Tolerance, because daily runs are never exactly a day apart.
_SLACK: Final = timedelta(hours=1)
_SLACK_PART: Final = 20


def _check_period(text: str) -> str:
    if text != _NEVER:
        _length_of(text)
    return text


def _length_of(text: str) -> timedelta | Duration:
    """Return the length of an interval other than `never`.

    Raises:
        ValueError: the text is not a valid interval.
    """
    try:
        return length_of(_NAMED_PERIODS.get(text, text))
    except ValueError:
        raise ValueError(
            f"write {', '.join(_NAMED_PERIODS)}, {_NEVER}, a length of time such as 12h or 10d, "
            "or an ISO 8601 duration such as P10D"
        ) from None


#: The interval of repeated work, in a configuration.
Period = Annotated[str, AfterValidator(_check_period)]


def is_never(period: str | None) -> bool:
    """Return whether an interval is missing or `never`."""
    return period is None or period == _NEVER


def is_due(period: str | None, last: datetime | None, now: datetime) -> bool:
    """Return whether repeated work is due.

    Args:
        period: the interval; None means never.
        last: when the work was last done, or None.
        now: the current time. Work is due up to an hour before the end of the interval; otherwise
            work that runs once a day would be a day late.
    """
    if period is None or is_never(period):
        return False
    if last is None:
        return True
    try:
        end: datetime = last + _length_of(period)
    except (OverflowError, ValueError):
        # After the last supported year.
        return False
    return now >= end - min(_SLACK, (end - last) / _SLACK_PART)


class CatalogKind(StrEnum):
    """The kind of an Iceberg catalog."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"
    REST = "rest"


def _as_text(value: object) -> object:
    """Convert YAML values of settings to the text that Spark and Iceberg expect."""
    if not isinstance(value, dict):
        return value
    return {
        str(name): str(item).lower() if isinstance(item, bool) else str(item)
        for name, item in value.items()
        if isinstance(item, str | int | float)
    } | {str(name): item for name, item in value.items() if not isinstance(item, str | int | float)}


def _as_interval(value: object) -> object:
    """Check a length of time that may be 0, which YAML reads as a number."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str):
        _interval_seconds(text)
    return text


def _interval_seconds(text: str) -> float:
    """Return a length of time that may be 0, in seconds.

    Raises:
        ValueError: the text is not a valid length.
    """
    return 0.0 if text == _ZERO else seconds_of(text)


Settings = Annotated[dict[str, str], BeforeValidator(_as_text)]


class CatalogConfig(Section):
    """The Iceberg catalog that lists the lake's tables."""

    uri: str | None = Field(
        default=None,
        repr=False,
        description="The URI of the catalog: postgresql://user:password@host:port/database, or "
        "http(s)://… of an Iceberg REST catalog. Default: the SQLite file DIR/catalog.db.",
    )
    warehouse: str | None = Field(
        default=None,
        min_length=1,
        description="The name of the warehouse in a REST catalog that has several. Default: the "
        "URL in lake.warehouse, if there is one.",
    )
    properties: Settings = Field(
        default_factory=dict,
        repr=False,
        description="Additional properties of the Iceberg catalog, such as s3.endpoint, token or "
        "credential. Spark's and PyIceberg's catalogs both get them.",
    )

    @classmethod
    def section_of(cls, value: object) -> object:
        """Return the section for a catalog that is written as its URI only, or as `sqlite`."""
        if not isinstance(value, str):
            return value
        return {} if value == CatalogKind.SQLITE else {"uri": value}

    @field_validator("uri")
    @classmethod
    def _check_uri(cls, uri: str | None) -> str | None:
        if uri is None:
            return None
        try:
            parts = urlsplit(uri)
            has_host = bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:
            raise ValueError("not a valid URL") from None
        if may_show_password(uri):
            raise ValueError(
                "the user or password contains a character that must be escaped in a URL; write "
                f"{URL_ESCAPES}"
            )
        if parts.scheme == "postgres":
            uri = "postgresql" + uri.removeprefix("postgres")
        elif parts.scheme not in {"postgresql", "http", "https"}:
            raise ValueError(
                "not a valid catalog; write postgresql://user:password@host/database or "
                "http(s)://…, or omit it for a SQLite file in the lake's folder"
            )
        if not has_host:
            raise ValueError("the URL does not contain a host")
        if parts.scheme.startswith("postgres") and not parts.path.strip("/"):
            raise ValueError("the URL does not contain a database")
        return uri

    @model_validator(mode="after")
    def _check_warehouse(self) -> Self:
        if self.warehouse is not None and self.kind is not CatalogKind.REST:
            raise ValueError(
                "warehouse: only REST catalogs have named warehouses; lake.warehouse is where "
                "tables are stored"
            )
        return self

    @property
    def kind(self) -> CatalogKind:
        """Return the kind of catalog of the URI."""
        if self.uri is None:
            return CatalogKind.SQLITE
        if self.uri.startswith("postgresql:"):
            return CatalogKind.POSTGRESQL
        return CatalogKind.REST

    @property
    def label(self) -> str:
        """Return a description of the catalog for logs, without user, password and query."""
        if self.uri is None:
            return "sqlite"
        parts = urlsplit(self.uri)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class SparkConfig(Section):
    """The Spark session of the lake."""

    master: str = Field(
        default="local[*]", min_length=1, description="Spark's master URL, such as local[4]."
    )
    conf: Settings = Field(
        default_factory=dict,
        repr=False,
        description="Spark settings. They override Chronolake's.",
    )

    @field_validator("conf")
    @classmethod
    def _check_conf(cls, conf: dict[str, str]) -> dict[str, str]:
        for name, value in RELIED_ON.items():
            if name in conf and conf[name].lower() != value.lower():
                raise ValueError(
                    f"{name} must be {value}, because values depend on it; remove this setting"
                )
        return conf


class MaintenanceConfig(Section):
    """When tables are maintained, and what is kept."""

    automatic: bool = Field(
        default=True,
        description="Whether `serve` and `sync` maintain tables automatically when they reach a "
        "threshold.",
    )
    small_files: int = Field(
        default=64,
        ge=2,
        description="A table with at least this many small data files is compacted.",
    )
    small_file_bytes: int = Field(
        default=32 * 1024 * 1024,
        ge=1,
        description="A data file below this size, in bytes, is small.",
    )
    deletion_vector_ratio: float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="A table is compacted when this fraction of its stored rows, and at least "
        "10,000, is marked as deleted.",
    )
    snapshot_age_hours: float = Field(
        default=24,
        ge=0,
        description="Snapshots older than this many hours are expired.",
    )
    keep_snapshots: int = Field(
        default=10,
        ge=1,
        description="Number of newest snapshots that are kept regardless of their age.",
    )
    orphan_age_hours: float = Field(
        default=72,
        ge=24,
        description="Files that no snapshot references are removed when they are older than this "
        "many hours. The minimum is 24, so that files of a running write are not removed.",
    )

    def spare_files(self, data_files: int, size: int) -> int:
        """Return the maximum number of data files that a compaction could remove.

        Args:
            data_files: the current number of data files.
            size: their total size in bytes.
        """
        return max(0, data_files - 1 - size // self.small_file_bytes)


class EngineConfig(Section):
    """The process that keeps Spark running between commands."""

    idle: Annotated[str, BeforeValidator(_as_interval)] = Field(
        default="10m",
        description="A command in a terminal that had to start Spark leaves an engine running, "
        "which ends when it was idle for this time: 30s, 10m, 1h. 0: it leaves none.",
    )

    @property
    def idle_seconds(self) -> float:
        """Return the time after which the engine ends, in seconds; 0 if none is left running."""
        return _interval_seconds(self.idle)


def _as_address(value: object) -> object:
    """Check `host:port`, or `off`, which YAML reads as false."""
    if value is False:
        return _OFF
    if isinstance(value, str) and value != _OFF:
        parse_address(value)
    return value


def parse_address(text: str) -> tuple[str, int] | None:
    """Split `host:port`; return None for `off`.

    Raises:
        ValueError: the text is neither.
    """
    if text == _OFF:
        return None
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.path or parts.query or parts.username:
        raise ValueError(f"write host:port, such as 127.0.0.1:8787 or [::1]:8787, or {_OFF}")
    return host, port


class DestinationConfig(Section):
    """The gRPC destination that `up` runs; the options of `serve`."""

    port: int = Field(default=50052, ge=0, le=65_535, description="TCP port to listen on.")
    hosts: list[str] = Field(
        default_factory=list, description="Addresses to listen on. Default: 127.0.0.1 and ::1."
    )
    allow_plaintext: bool = Field(
        default=False, description="Whether to listen outside loopback without TLS."
    )
    files_root: Path | None = Field(
        default=None, description="Batch files outside this folder are rejected."
    )
    batch_format: Literal["csv", "parquet"] = Field(
        default="csv", description="Format of the batch files to request."
    )
    tls_cert: Path | None = Field(default=None, description="The certificate chain, PEM.")
    tls_key: Path | None = Field(default=None, description="The certificate's private key, PEM.")
    tls_client_ca: Path | None = Field(
        default=None, description="Only clients with a certificate of these authorities, PEM."
    )
    metrics_port: int | None = Field(
        default=None, ge=0, le=65_535, description="Port of the destination's own metrics."
    )
    max_workers: int = Field(
        default=8, ge=1, le=1_000, description="Maximum number of concurrent calls."
    )


class UpConfig(Section):
    """What `chronolake up` runs beside the pipelines."""

    ui: Annotated[str, BeforeValidator(_as_address)] = Field(
        default="127.0.0.1:8787", description="The address of the web UI, or off."
    )
    health: Annotated[str, BeforeValidator(_as_address)] = Field(
        default="127.0.0.1:8788", description="The address of /healthz and /metrics, or off."
    )
    grace: Annotated[str, BeforeValidator(_as_interval)] = Field(
        default="25s",
        description="How long running commands and syncs have to finish when `up` ends: 30s, 5m.",
    )
    destination: DestinationConfig | None = Field(
        default=None, description="The gRPC destination. Default: none."
    )

    @property
    def grace_seconds(self) -> float:
        """Return the grace period in seconds."""
        return _interval_seconds(self.grace)


#: Parts of a path that stores and libraries understand in different ways.
_NO_PARTS: Final = frozenset({"", ".", ".."})


def check_location(location: str) -> str:
    """Check a folder or the URL of a bucket, and return it.

    Raises:
        ValueError: it is a URL of another scheme, or has no bucket, or a path that not all
            libraries understand in the same way.
    """
    scheme, has_scheme, rest = location.partition("://")
    if not has_scheme or scheme == "file":
        return location
    if scheme not in SCHEMES:
        raise ValueError(
            "not a valid location; write a folder, s3://bucket/path, gs://bucket/path or "
            "abfss://container@account.dfs.core.windows.net/path"
        )
    bucket, _, key = rest.partition("/")
    if not bucket or (scheme == "abfss" and "@" not in bucket):
        raise ValueError("the URL does not contain a bucket")
    if cut := cut_in_urls(rest):
        # All files of a table would replace the object of the shorter name.
        raise ValueError(f"Iceberg cuts off URLs of buckets at {cut}; choose another path")
    parts = key.rstrip("/").split("/") if key.rstrip("/") else []
    if not _NO_PARTS.isdisjoint(parts) or not key.isprintable():
        raise ValueError(
            "the path in the bucket contains an empty part (//), a part . or .., or a control "
            "character; choose another path"
        )
    return location


FormatVersion = Literal[2, 3]


def _as_format_version(value: object) -> object:
    """Convert the text of an environment variable or a flag."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


class TableConfig(Section):
    """Settings of one table."""

    format_version: Annotated[FormatVersion | None, BeforeValidator(_as_format_version)] = Field(
        default=None, description="As `lake.format_version`, for this table."
    )
    history_only: bool | None = Field(
        default=None,
        description="Whether a table can only be in history mode. Default: true if its name, or "
        "that of its stream, ends in _history, in lower case.",
    )
    deleted_columns: list[str] = Field(
        default_factory=list,
        description="The BOOLEAN columns that mark deleted rows of a table without a pipeline, "
        "in addition to _fivetran_deleted. A switch to history mode honors all: a row is deleted "
        "if any existing one is true.",
    )


class LakeSection(Section):
    """The key `lake` of chronolake.yml."""

    catalog: Annotated[CatalogConfig, BeforeValidator(CatalogConfig.section_of)] = Field(
        default=CatalogConfig()
    )
    store: str | None = Field(
        default=None,
        min_length=1,
        repr=False,
        description="The operational store of runs, offsets and leases: "
        "postgresql://user:password@host:port/database, or a SQLite file (relative to the lake's "
        "folder). Default: the catalog's database; with a REST catalog, the SQLite file "
        "DIR/store.db.",
    )
    warehouse: str | None = Field(
        default=None,
        min_length=1,
        description="Where tables are stored: a folder (relative to the lake's folder), "
        "s3://bucket/path, gs://bucket/path or "
        "abfss://container@account.dfs.core.windows.net/path. Default: the lake's folder; a REST "
        "catalog chooses the location.",
    )
    raw: str | None = Field(
        default=None,
        min_length=1,
        description="Where pipelines land files: a folder (relative to the lake's folder) or a URL "
        "as for `warehouse`. Default: `raw` in the warehouse if that is a bucket, otherwise in the "
        "lake's folder, where it also stays if it has files already.",
    )
    storage: StorageConfig = Field(
        default=StorageConfig(), description="How the object store of the lake is reached."
    )
    format_version: Annotated[FormatVersion | None, BeforeValidator(_as_format_version)] = Field(
        default=None,
        description="Iceberg's format version of new tables: 3 marks deleted rows with deletion "
        "vectors, 2 with position delete files, which more readers support. Default: 3 for new "
        "tables; tables that are made again, for example by `rebuild`, keep their version.",
    )
    tables: dict[str, TableConfig] = Field(
        default_factory=dict, description="Settings of single tables, keyed by schema.table."
    )
    fsync: bool = Field(
        default=True,
        description="Whether every file that a commit references, and the catalog's commit "
        "itself, is synced to disk before a batch is acknowledged. If false, a power failure can "
        "damage tables. Applies to local folders and the SQLite catalog.",
    )
    shared: bool = Field(
        default=False,
        description="Whether the umask determines who may read and write the lake. If false, its "
        "folders and files are created with access for their owner only (0700 and 0600).",
    )
    spark: SparkConfig = Field(default=SparkConfig())
    maintenance: MaintenanceConfig = Field(default=MaintenanceConfig())

    @field_validator("store")
    @classmethod
    def _check_store(cls, store: str | None) -> str | None:
        if store is None or "://" not in store:
            return store
        uri = CatalogConfig(uri=store).uri
        if uri is None or not uri.startswith("postgresql:"):
            raise ValueError("not a valid store; write postgresql://… or a file")
        return uri

    @field_validator("tables")
    @classmethod
    def _check_tables(cls, tables: dict[str, TableConfig]) -> dict[str, TableConfig]:
        for name in tables:
            try:
                TableName.parse(name)
            except SchemaError as failure:
                raise ValueError(f"{failure.message} {failure.hint}".rstrip(".")) from None
        return tables

    @field_validator("warehouse", "raw")
    @classmethod
    def _check_location(cls, location: str | None) -> str | None:
        return None if location is None else check_location(location)


class LakeConfig(LakeSection):
    """A lake's complete and validated configuration."""

    path: Path
    #: The schemes of the object stores that pipelines read.
    source_schemes: frozenset[str] = frozenset()

    @property
    def catalog_file(self) -> Path:
        """Return the SQLite file of the catalog, which exists only for this kind of catalog."""
        return self.path / "catalog.db"

    @property
    def catalog_database(self) -> str | Path | None:
        """Return the catalog's database: a PostgreSQL URI, or a SQLite file; None for REST."""
        if self.catalog.kind is CatalogKind.REST:
            return None
        return self.catalog.uri or self.catalog_file

    @property
    def store_database(self) -> str | Path:
        """Return the operational store's database: a PostgreSQL URI, or a SQLite file."""
        if self.store is None:
            return self.catalog_database or self.path / "store.db"
        return self.store if "://" in self.store else self.path / Path(self.store).expanduser()

    @property
    def chooses_locations(self) -> bool:
        """Return whether new tables are stored in `warehouse_location`, not where REST chooses."""
        return self.warehouse is not None or self.catalog.kind is not CatalogKind.REST

    @property
    def local_warehouse(self) -> Path | None:
        """Return the root of the tables' storage as a folder; None if it is elsewhere."""
        location = self.warehouse_location
        return Path(location) if self.chooses_locations and not scheme_of(location) else None

    @property
    def warehouse_location(self) -> str:
        """Return the root of the tables' storage: an absolute path, or the URL of a bucket.

        It is the lake's folder if the catalog chooses where tables are stored.
        """
        return str(self.path) if self.warehouse is None else self._resolve(self.warehouse)

    @property
    def storage_url(self) -> str:
        """Return the root of the tables' storage, or only its scheme if the catalog chooses it."""
        scheme = scheme_of_file_io(self.catalog.properties.get("io-impl"))
        if self.chooses_locations or scheme is None:
            return self.warehouse_location
        return f"{scheme}://"

    @property
    def requested_warehouse(self) -> str | None:
        """Return the warehouse for which the catalog is asked: a name, or a location."""
        if self.catalog.warehouse is not None:
            return self.catalog.warehouse
        return as_url(self.warehouse_location) if self.chooses_locations else None

    @property
    def raw_location(self) -> str:
        """Return the root of the landed files: an absolute path, or the URL of a bucket."""
        if self.raw is not None:
            return self._resolve(self.raw)
        folder = self.path / "raw"
        if scheme_of(self.warehouse_location) is None or (folder / "parquet").is_dir():
            return str(folder)
        return f"{self.warehouse_location}/raw"

    @property
    def schemes(self) -> frozenset[str]:
        """Return the schemes of the object stores that Spark has to reach."""
        found = {
            scheme_of(self.warehouse_location),
            scheme_of(self.raw_location),
            scheme_of(self.storage_url),
        }
        return self.source_schemes | {scheme for scheme in found if scheme is not None}

    @property
    def object_storage(self) -> StorageConfig:
        """Return how the object store is reached; the catalog's properties fill what is not set."""
        return self.storage.with_properties(self.catalog.properties)

    @property
    def pyiceberg_properties(self) -> dict[str, str]:
        """Return the properties of the catalog for PyIceberg, with those of its FileIO."""
        warehouse = self.requested_warehouse
        return {
            **self.object_storage.for_pyiceberg(self.storage_url),
            **({} if warehouse is None else {"warehouse": warehouse}),
            **self.catalog.properties,
        }

    def format_version_of(self, name: TableName) -> int | None:
        """Return the configured format version of a table, or None."""
        for table in self._settings_of(name):
            if table.format_version is not None:
                return table.format_version
        return self.format_version

    def is_history_only(self, name: TableName) -> bool:
        """Return whether a table can only be in history mode, by its setting or its name."""
        found = self.history_only_setting(name)
        return has_history_suffix(name.table) if found is None else found

    def history_only_setting(self, name: TableName) -> bool | None:
        """Return `history_only` of a table, or None if it is not set."""
        settings = (table.history_only for table in self._settings_of(name))
        return next((setting for setting in settings if setting is not None), None)

    def deleted_columns_of(self, name: TableName) -> tuple[str, ...]:
        """Return the configured columns that mark deleted rows of a table."""
        for table in self._settings_of(name):
            return tuple(map(stored_name, table.deleted_columns))
        return ()

    def _settings_of(self, name: TableName) -> Iterator[TableConfig]:
        """Yield the settings of a table, whose name may be written in several ways."""
        for written, table in self.tables.items():
            if TableName.parse(written) == name:
                yield table

    def _resolve(self, location: str) -> str:
        if scheme_of(location):
            return location.rstrip("/")
        return str((self.path / Path(location.removeprefix("file://")).expanduser()).resolve())

    def contains(self, location: str) -> bool:
        """Return whether a location is in the warehouse or in the lake's folder.

        If the catalog chooses the locations, all of them belong to the lake.
        """
        if not self.chooses_locations:
            return True
        return is_inside(location, self.warehouse_location) or is_inside(location, str(self.path))
