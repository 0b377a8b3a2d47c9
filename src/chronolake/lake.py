"""The lake: a folder (or bucket) of Iceberg tables, their catalog, and its Spark session."""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections import Counter, defaultdict
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote, urlencode
from uuid import uuid4

from sqlalchemy.engine import make_url

from chronolake import cancellation, identity, permissions, rest_catalog, session, storage
from chronolake.config import CatalogKind, LakeConfig, load
from chronolake.containment import Containment
from chronolake.description import TableDescription, describe_loaded
from chronolake.errors import LakeLocationWarning, MissingRequirementError, TableNotFoundError
from chronolake.executor_files import ExecutorFiles
from chronolake.extras import POSTGRESQL_CATALOG, require
from chronolake.formatting import unknown_table_hint
from chronolake.garbage_collection import collect_garbage
from chronolake.iceberg import Catalog, durability, metadata_of, read_metadata
from chronolake.lake_table import LakeFrame, LakeTable, lake_frame
from chronolake.location import as_url, plain, scheme_of
from chronolake.types import TableName

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from types import TracebackType

    from pyspark.sql import SparkSession

    from chronolake.iceberg import IcebergTable, StoredMetadata

#: Up to these sizes, planning a batch takes longer than running it.
_LIGHT_ROWS: Final = 200_000
_LIGHT_BYTES: Final = 256 * 2**10
#: Bytes per column, the minimum size of a file with few rows; wide rows take seconds to compile.
_LIGHT_BYTES_OF_COLUMN: Final = 512
#: Up to this size, a few tasks can shuffle the batch and its records' versions.
_MODERATE_BYTES: Final = 16 * 2**20
_SQLITE_OPTIONS: Final = "journal_mode=WAL&busy_timeout=30000"
#: Up to this size of all data that is known to be read, Java starts with options for small work.
_SMALL_WORK_BYTES: Final = 64 * 2**20
#: Reading the metadata of more tables would take longer than the options can save.
_MAX_NOTED_TABLES: Final = 100
#: A table with 1,000 columns takes half a megabyte.
_MAX_CACHED_TABLES: Final = 200
#: Seconds for which a missing requirement is reported again without another attempt to start.
_RETRY_SECONDS: Final = 30.0
#: Without a timeout, a call would wait forever for a server that does not respond.
_POSTGRESQL_OPTIONS: Final = {"socketTimeout": "60", "tcpKeepAlive": "true"}
#: Whether Iceberg's client renews tokens by a token exchange instead of its credential.
_EXCHANGE: Final = "token-exchange-enabled"
#: Iceberg's client would wait for a REST catalog without a limit, and repeat reads for 30 seconds.
_REST_OPTIONS: Final = {
    "rest.client.connection-timeout-ms": "10000",
    "rest.client.socket-timeout-ms": "60000",
    "rest.client.max-retries": "3",
    # The catalog may send temporary credentials for a table's files; PyIceberg asks for them, too.
    "header.X-Iceberg-Access-Delegation": "vended-credentials",
}


class Lake:
    """An open lake. Use `Lake.open`; it can be a context manager."""

    def __init__(
        self,
        config: LakeConfig,
        starting: Callable[[], AbstractContextManager[object]] = nullcontext,
        *,
        is_short_lived: bool = False,
        spark: SparkSession | None = None,
    ) -> None:
        self.config = config
        self._given = spark
        self._starting = starting
        self._is_short_lived = is_short_lived
        self._started: session.Sessions | None = None
        self._start_lock = threading.RLock()
        self._work: float | None = None
        self._metadata: dict[str, StoredMetadata] = {}
        self._executor_files: ExecutorFiles | None = None
        self._missing: tuple[MissingRequirementError, float] | None = None
        self.containment = Containment(config)
        is_rest = config.catalog.kind is CatalogKind.REST
        self.catalog = Catalog(
            lambda: self.spark,
            self.containment,
            self._load_metadata if is_rest else self._read_metadata,
        )
        self._locks: defaultdict[TableName, threading.RLock] = defaultdict(threading.RLock)
        self._writers: Counter[TableName] = Counter()
        self._guard = threading.Lock()

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        config: LakeConfig | str | Path | None = None,
        spark: SparkSession | None = None,
    ) -> Self:
        """Open the lake in a folder, and create the folder if it is missing.

        Args:
            path: the lake's folder; `chronolake.yml` in it (or in the working directory) is read.
            config: another file to read, or a configuration to use instead of a file.
            spark: the application's own Spark session, for example of a notebook or a cluster of
                EMR or Dataproc. The lake gets sessions of its own beside it, without its
                `spark.sql.` settings; of `spark` in chronolake.yml, only such settings have an
                effect. By default a session that runs in this process is used, and otherwise one
                is started.

        Raises:
            ConfigurationError: chronolake.yml or the environment is invalid.
            MissingRequirementError: Java, a jar, or the driver of a catalog in PostgreSQL is
                missing.
            StorageError: the folder cannot be written.
            LakeError: the catalog cannot be used, or the Spark session lacks settings or jars; the
                error lists them.
        """
        lake = cls.prepare(
            config
            if isinstance(config, LakeConfig)
            else load(Path(path), file=None if config is None else Path(config)),
            spark=spark,
        )
        lake.catalog.connect()
        return lake

    @classmethod
    def prepare(
        cls,
        settings: LakeConfig,
        *,
        starting: Callable[[], AbstractContextManager[object]] = nullcontext,
        is_short_lived: bool = False,
        spark: SparkSession | None = None,
    ) -> Self:
        """Open a lake as `open` does, but start Spark only when it is first needed.

        Args:
            settings: the configuration of the lake.
            starting: returns the context in which Spark starts.
            is_short_lived: whether the process ends with the work of this lake. Only then may Java
                start with options for the work that is noted (`note_work`).
            spark: as for `open`.

        Raises:
            MissingRequirementError: the driver of a catalog in PostgreSQL is missing.
            StorageError: the folder cannot be written.
        """
        if settings.catalog.kind is CatalogKind.POSTGRESQL:
            require("postgres", POSTGRESQL_CATALOG)
        permissions.make_lake(settings)
        storage.register_folder(settings.path)
        if scheme_of(settings.warehouse_location):
            storage.register_bucket(settings.warehouse_location)
        if settings.fsync:
            durability.make_names_durable(settings.path)
        return cls(settings, starting, is_short_lived=is_short_lived, spark=spark)

    @property
    def spark(self) -> SparkSession:
        """Return the session for statements of any size; the first use starts Spark.

        Raises:
            MissingRequirementError: Java or a jar is missing.
            LakeError: a Spark session without Iceberg already runs in this process.
        """
        return self._sessions.spark

    @property
    def is_local(self) -> bool:
        """Return whether Spark's tasks run, or will run, in this process's own JVM."""
        return session.runs_locally(self.config.spark.master)

    @property
    def executor_files(self) -> ExecutorFiles:
        """Return the driver's files as Spark's tasks see them."""
        if self._executor_files is None:
            config = self.config
            self._executor_files = ExecutorFiles(
                config.warehouse_location,
                config.object_storage,
                # On a cluster, the folder of a lake has to be shared, unless it is in a bucket.
                are_shared=self.is_local or config.local_warehouse is not None,
            )
        return self._executor_files

    @property
    def has_files_of_tasks(self) -> bool:
        """Return whether files that tasks would read are on the driver's own disk."""
        return self.is_local or not self.executor_files.are_shared

    @property
    def has_started(self) -> bool:
        """Return whether Spark has been started for this lake."""
        return self._started is not None

    def note_work(self, size: float) -> None:
        """Note the size of data that will be processed; Java then starts with options to match.

        Without a note before the start, a lot of work is expected: options for small work shorten a
        command of some seconds, and make long ones slower: their code is optimized less.

        Args:
            size: in bytes, in addition to what was noted before; infinite if it is not known.
        """
        self._work = (self._work or 0) + size

    def note_tables(self, names: Collection[TableName]) -> None:
        """Note that tables may be read as a whole; a table that does not exist may become large.

        Args:
            names: the tables, whose metadata is read without a JVM.
        """
        if self.has_started:
            return
        can_read = self.catalog.reads_without_java and len(names) <= _MAX_NOTED_TABLES
        self.note_found(self.catalog.peek(list(names)) if can_read else [None])

    def note_found(self, tables: Iterable[IcebergTable | None]) -> None:
        """Note that tables may be read as a whole, as `note_tables` does; None does not exist."""
        if self.has_started:
            return
        sizes = [None if table is None else table.bytes for table in tables]
        self.note_work(sum(math.inf if size is None else size for size in sizes))

    @property
    def _is_small(self) -> bool:
        if self._work is None or not self._is_short_lived:
            return False
        return self._work <= _SMALL_WORK_BYTES

    @property
    def _sessions(self) -> session.Sessions:
        if self._started is None:
            with self._start_lock:
                if self._started is None:
                    self._started = self._start_once()
        return self._started

    def _start_once(self) -> session.Sessions:
        """Start Spark; every stream of a run without Java or jars gets the error of the first."""
        if self._missing is not None and time.monotonic() < self._missing[1] + _RETRY_SECONDS:
            raise self._missing[0]
        try:
            return self._start()
        except MissingRequirementError as failure:
            self._missing = failure, time.monotonic()
            raise

    def _start(self) -> session.Sessions:
        config = self.config
        with session.starting():
            with self._starting(), permissions.private_umask(config):
                sessions = session.start(
                    config.spark.master,
                    spark_conf(config),
                    catalog_settings(config),
                    schemes=config.schemes,
                    is_small=self._is_small,
                    given=self._given,
                )
            _make_durable(config, sessions.spark)
        return sessions

    def _read_metadata(self, names: Collection[TableName]) -> dict[TableName, StoredMetadata]:
        """Read the current metadata of those tables that exist, without a JVM."""
        properties = self.config.pyiceberg_properties
        found = {}
        for name, file in identity.metadata_files(self.config, names).items():
            # Metadata files never change. In an object store, each read takes a request.
            metadata = self._metadata.get(file) or read_metadata(file, properties)
            if len(self._metadata) >= _MAX_CACHED_TABLES:
                self._metadata = {}
            found[name] = self._metadata[file] = metadata
        return found

    def _load_metadata(self, names: Collection[TableName]) -> dict[TableName, StoredMetadata]:
        """Load the current metadata of tables from a REST catalog, without a JVM."""
        found = {}
        catalog = rest_catalog.open_catalog(self.config)
        for name in names:
            table = rest_catalog.find_table(self.config, catalog, name)
            if table is not None:
                found[name] = metadata_of(table)
        return found

    def __repr__(self) -> str:
        where = self.config.catalog.label if self.config.catalog.uri else "SQLite"
        return f"<Lake {self.config.path}, catalog: {where}>"

    def close(self) -> None:
        """Keep the shared Spark session: the JVM runs as long as the process."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def warehouse(self) -> str:
        """Return the root of the tables' files: a folder or object-store URL, with its scheme."""
        return as_url(self.config.warehouse_location)

    def new_location(self) -> str | None:
        """Return a folder for a new table, or None if the catalog chooses it.

        It is unique and does not depend on the table's name.
        """
        if not self.config.chooses_locations:
            return None
        return f"{self.warehouse.rstrip('/')}/tables/{uuid4().hex}"

    def made_location(self, location: str) -> bool:
        """Return whether `new_location` created a folder, so that it contains only one table."""
        if not self.config.chooses_locations:
            return False
        folder, _, name = location.rpartition("/")
        tables = f"{self.config.warehouse_location.rstrip('/')}/tables"
        # Earlier versions stored folders without their scheme.
        return plain(folder) == plain(tables) and _is_hexadecimal(name)

    def tables(self) -> list[TableName]:
        """Return every table of the lake, sorted by schema and name.

        Raises:
            LakeLocationError: the catalog has no tables, but the lake's folder contains files of
                tables.
        """
        found = self.catalog.tables()
        if not found:
            identity.raise_if_unlisted(self.config)
        return found

    def table(self, name: str | TableName) -> LakeTable:
        """Return a table for reading.

        Args:
            name: `schema.table`; a part that contains a dot is in backticks.

        Raises:
            TableNotFoundError: the table does not exist.
            SchemaError: `name` is not a valid table name.
        """
        parsed = TableName.parse(name) if isinstance(name, str) else name
        found = self.catalog.find(parsed)
        if found is None:
            raise self.missing(parsed)
        if not self.config.contains(found.location):
            warnings.warn(
                f"The table {parsed} is located outside the opened lake, in {found.location}: the "
                "lake was copied or moved. The table can be read, but not written.",
                LakeLocationWarning,
                stacklevel=2,
            )
        return LakeTable(self.spark, self.catalog, parsed)

    def sql(self, statement: str, **parameters: Any) -> LakeFrame:
        """Run a statement of Spark SQL in which tables are `schema.table`.

        Do not change tables that Chronolake writes this way: that would break their invariants.

        Args:
            statement: the statement; `:name` is the placeholder of a parameter.
            parameters: the parameters' values.

        Returns:
            The result as a DataFrame that has not been read.
        """
        with session.active(self.spark):
            return lake_frame(self.spark.sql(statement, args=parameters or None))

    def missing(self, name: TableName) -> TableNotFoundError:
        """Return the error for a missing table; its hint suggests the most similar name."""
        return TableNotFoundError(
            "The table does not exist.",
            table=str(name),
            hint=unknown_table_hint(str(name), map(str, self.tables())),
        )

    def describe(self, name: TableName) -> TableDescription | None:
        """Return the description of a table, or None if it does not exist."""
        (table,) = self.catalog.peek([name])
        return None if table is None else describe_loaded(table)

    def session_for(self, name: TableName, batch_bytes: int) -> SparkSession:
        """Return the session for writing a batch of files of this total size to a table."""
        return self._session_by_size(
            name, batch_bytes, self._sessions.moderate, self._sessions.spark
        )

    def session_for_versions(self, name: TableName, landed_bytes: int) -> SparkSession:
        """Return the session for applying landed files of this total size to a table."""
        return self._session_by_size(
            name, landed_bytes, self._sessions.moderate_wide, self._sessions.wide
        )

    def _session_by_size(
        self, name: TableName, size: int, moderate: SparkSession, large: SparkSession
    ) -> SparkSession:
        if self._is_light(name, size):
            return self._sessions.light
        return moderate if size <= _MODERATE_BYTES else large

    def _is_light(self, name: TableName, size: int) -> bool:
        if size > _MODERATE_BYTES:
            return False
        (table,) = self.catalog.peek([name])
        columns = 0 if table is None else len(table.fields)
        if size > _LIGHT_BYTES + _LIGHT_BYTES_OF_COLUMN * columns:
            return False
        rows = 0 if table is None else table.rows
        return rows is not None and rows <= _LIGHT_ROWS

    @contextmanager
    def writing(self, name: TableName) -> Iterator[None]:
        """Lock a table, so that one thread of this process at a time writes to it; may be nested.

        Raises:
            CallCancelledError: the call of this thread was cancelled.
            LakeLocationError: the lake was copied or moved.
        """
        self.containment.expect_writable()
        with self._guard:
            lock = self._locks[name]
            self._writers[name] += 1
        try:
            with cancellation.acquire(lock), session.active(self.spark):
                yield
        finally:
            with self._guard:
                self._writers[name] -= 1
            collect_garbage()

    def cancel_jobs(self) -> None:
        """Cancel the jobs of Spark that run for this lake in this process."""
        if self._started is not None:
            self._started.cancel_jobs()

    def is_written(self, name: TableName) -> bool:
        """Return whether a thread of this process writes to a table, or waits to."""
        with self._guard:
            return self._writers[name] > 0


def spark_conf(config: LakeConfig) -> dict[str, str]:
    """Return the settings of Spark for a lake, without those of its catalog."""
    masks = {} if config.shared else permissions.HADOOP_UMASK
    return {**masks, **config.spark.conf}


def _make_durable(config: LakeConfig, spark: SparkSession) -> None:
    folder = config.local_warehouse
    if folder is not None:
        storage.register_folder(folder)
    if not config.fsync:
        if folder is not None:
            durability.leave_unsynced(spark, folder)
        return
    if folder is None:
        return
    permissions.make_folder(folder, shared=config.shared)
    durability.sync_tables(spark, folder, by_manifest_list=config.catalog.kind is CatalogKind.REST)


def _is_hexadecimal(text: str) -> bool:
    return len(text) == 32 and all(letter in "0123456789abcdef" for letter in text)  # noqa: PLR2004


def catalog_settings(config: LakeConfig) -> dict[str, str]:
    """Return the Iceberg catalog's settings for Spark, without their prefix.

    The default is SQLite in the lake's folder; a `postgresql://` address is a JDBC catalog there,
    an `http(s)://` address an Iceberg REST catalog. The configuration's own properties override
    these.
    """
    storage = config.object_storage.for_java(config.storage_url)
    return {**_address_settings(config), **storage, **config.catalog.properties}


def _address_settings(config: LakeConfig) -> dict[str, str]:
    requested = config.requested_warehouse
    warehouse = {} if requested is None else {"warehouse": requested}
    uri = config.catalog.uri
    if uri is None:
        options = f"{_SQLITE_OPTIONS}&synchronous={'FULL' if config.fsync else 'NORMAL'}"
        return {**_jdbc(f"jdbc:sqlite:{config.catalog_file}?{options}"), **warehouse}
    if config.catalog.kind is CatalogKind.REST:
        return {
            "type": "rest",
            "uri": uri,
            **_REST_OPTIONS,
            # By default, a token is renewed by a token exchange, which many servers do not have.
            **({_EXCHANGE: "false"} if "credential" in config.catalog.properties else {}),
            **warehouse,
        }
    url = make_url(uri)
    port = f":{url.port}" if url.port else ""
    # Such as sslmode, which has the same name in the Java driver.
    options = urlencode({**_POSTGRESQL_OPTIONS, **url.normalized_query}, doseq=True)
    server = url.host or "localhost"
    settings = _jdbc(f"jdbc:postgresql://{server}{port}/{url.database}?{options}") | warehouse
    if url.username:
        settings["jdbc.user"] = unquote(url.username)
    if url.password:
        settings["jdbc.password"] = str(url.password)
    return settings


def _jdbc(uri: str) -> dict[str, str]:
    return {"type": "jdbc", "uri": uri, "jdbc.schema-version": "V1"}
