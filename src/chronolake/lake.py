"""A lake: a folder (or bucket) of Iceberg tables, their catalog, and the Spark session for them."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote, urlencode, urlsplit
from uuid import uuid4

from pyspark.sql import functions as F  # noqa: N812
from sqlalchemy.engine import make_url

from chronolake import session
from chronolake.config import LakeConfig, load
from chronolake.description import TableDescription, describe_loaded
from chronolake.errors import (
    BatchError,
    LakeError,
    TableNotFoundError,
    UnknownColumnError,
    ValueRefusedError,
)
from chronolake.iceberg import Catalog
from chronolake.types import END, EPSILON_MICROS, START, Mode, TableName

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import date
    from types import TracebackType

    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame, SparkSession

#: Up to these, planning a batch takes longer than running it.
_LIGHT_ROWS: Final = 200_000
_LIGHT_BYTES: Final = 256 * 2**10
_SQLITE_OPTIONS: Final = "journal_mode=WAL&busy_timeout=30000&synchronous=NORMAL"


class Lake:
    """An open lake. Use `Lake.open`; it can be a context manager."""

    def __init__(self, config: LakeConfig, sessions: session.Sessions) -> None:
        self.config = config
        self.spark = sessions.spark
        self._light = sessions.light
        self.catalog = Catalog(sessions.spark)
        self._locks: defaultdict[TableName, threading.RLock] = defaultdict(threading.RLock)
        self._writers: Counter[TableName] = Counter()
        self._guard = threading.Lock()

    @classmethod
    def open(cls, path: str | Path, *, config: LakeConfig | None = None) -> Self:
        """Open the lake in a folder, and make the folder if it is missing.

        Args:
            path: the lake's folder; `chronolake.yml` in it (or in the working directory) is read.
            config: use this instead of reading a file.

        Raises:
            ConfigurationError: chronolake.yml or the environment is wrong.
            MissingRequirementError: no Java, or no jars.
            LakeError: the folder or the catalog cannot be used.
        """
        settings = config or load(Path(path))
        try:
            settings.path.mkdir(parents=True, exist_ok=True)
        except OSError as failure:
            raise LakeError(
                f"The lake's folder cannot be made: {failure.strerror}.",
                hint="Choose a folder that can be written.",
            ) from failure
        sessions = session.start(
            settings.spark.master, settings.spark.conf, catalog_settings(settings)
        )
        return cls(settings, sessions)

    def close(self) -> None:
        """Stop nothing that others may use: the JVM lives as long as the process."""

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
        """Where the tables' files lie: a folder or an object-store address."""
        return self.config.warehouse_location

    def new_location(self) -> str:
        """A folder for a new table; unique, and not derived from the table's name."""
        return f"{self.warehouse.rstrip('/')}/tables/{uuid4().hex}"

    def tables(self) -> list[TableName]:
        """Every table of the lake, sorted by schema and name."""
        return self.catalog.tables()

    def table(self, name: str | TableName) -> LakeTable:
        """A table to read.

        Args:
            name: `schema.table`; a part that holds a dot stands in backticks.

        Raises:
            TableNotFoundError: it does not exist.
            SchemaError: `name` does not name a table.
        """
        parsed = TableName.parse(name) if isinstance(name, str) else name
        if self.describe(parsed) is None:
            raise TableNotFoundError(
                "The table does not exist.",
                table=str(parsed),
                hint="`chronolake tables` lists those that do.",
            )
        return LakeTable(self, parsed)

    def describe(self, name: TableName) -> TableDescription | None:
        """The description of a table, or None if it does not exist."""
        table = self.catalog.find(name)
        return None if table is None else describe_loaded(table)

    def session_for(self, name: TableName, batch_bytes: int) -> SparkSession:
        """The session in which a batch of files of so many bytes goes into a table."""
        table = self.catalog.find(name)
        rows = None if table is None else table.rows
        is_small = rows is not None and rows <= _LIGHT_ROWS and batch_bytes <= _LIGHT_BYTES
        return self._light if is_small else self.spark

    @contextmanager
    def writing(self, name: TableName) -> Iterator[None]:
        """Hold a table: in this process, one thread at a time writes to it; may be nested."""
        with self._guard:
            lock = self._locks[name]
            self._writers[name] += 1
        try:
            with lock, session.active(self.spark):
                yield
        finally:
            with self._guard:
                self._writers[name] -= 1

    def is_written(self, name: TableName) -> bool:
        """Whether a thread of this process writes to a table, or waits to."""
        with self._guard:
            return self._writers[name] > 0


class LakeTable:
    """A table of an open lake, for reading."""

    def __init__(self, lake: Lake, name: TableName) -> None:
        self._lake = lake
        self.name = name

    @property
    def df(self) -> DataFrame:
        """The table's rows, with all columns; a history table's are versions."""
        return self._lake.spark.table(f"{session.CATALOG}.{self.name.sql}")

    def describe(self) -> TableDescription:
        """The table's columns, key and mode."""
        description = self._lake.describe(self.name)
        if description is None:
            raise TableNotFoundError("The table was dropped.", table=str(self.name))
        return description

    def history(self, **key: Any) -> DataFrame:
        """Versions ordered by key and start; of one record, if its key columns are given.

        Args:
            key: values of key columns; None means null.

        Raises:
            BatchError: the table is not in history mode.
            UnknownColumnError: a column that is not part of the record's key.
            ValueRefusedError: a value that is none of its column's type.
        """
        description = self._history_description()
        rows = self.df
        for column, value in key.items():
            if column not in description.record_key:
                raise UnknownColumnError(
                    "The column is not part of the record's key.",
                    table=str(self.name),
                    column=column,
                    hint=f"Name columns of the key: {', '.join(description.record_key)}.",
                )
            wanted = self._literal(value, description.by_name[column].type.sql, column)
            rows = rows.where(F.col(session_quoted(column)).eqNullSafe(wanted))
        order = (*description.record_key, START)
        return rows.orderBy(*(F.col(session_quoted(column)) for column in order))

    def as_of(self, at: date | datetime | str) -> DataFrame:
        """Each record's version at an instant: start <= `at` < end + epsilon.

        Args:
            at: an instant; a naive datetime is taken as UTC, a text as ISO 8601, a date as its
                first instant in UTC.

        Raises:
            BatchError: the table is not in history mode.
            ValueRefusedError: the text is no time.
        """
        self._history_description()
        text = _iso(at) if isinstance(at, datetime) else str(at)
        instant = self._literal(text, "timestamp")
        after_end = F.col(END) + F.expr(f"interval {EPSILON_MICROS} microseconds")
        # Tmax + epsilon is still a timestamp of the year 10000 to Spark, so nothing overflows.
        return self.df.where((F.col(START) <= instant) & (instant < after_end))

    def _literal(self, value: Any, kind: str, column: str | None = None) -> Expression:
        """A value as a literal of a Spark type, checked now and not when Spark comes to it."""
        literal = F.lit(value).try_cast(kind)
        if value is not None:
            row = self._lake.spark.range(1).select(literal.isNull()).first()
            if row is None or row[0]:
                raise ValueRefusedError(
                    f"{value!r} is no {kind}.",
                    table=str(self.name),
                    column=column,
                    hint="Times are written as 2024-05-02T00:00:00Z.",
                )
        return literal

    def _history_description(self) -> TableDescription:
        description = self.describe()
        if description.mode is not Mode.HISTORY:
            raise BatchError(
                f"The table is in {description.mode} mode and keeps no history.",
                table=str(self.name),
                hint="Only history tables have versions and past states.",
            )
        return description


def session_quoted(column: str) -> str:
    """A column name as `pyspark.sql.functions.col` wants it: in backticks."""
    return "`" + column.replace("`", "``") + "`"


def _iso(at: datetime) -> str:
    aware = at if at.tzinfo else at.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat()


def catalog_settings(config: LakeConfig) -> dict[str, str]:
    """The Iceberg catalog's settings for Spark, without their prefix.

    SQLite in the lake's folder by default; a `postgresql://` address is a JDBC catalog there, an
    `http(s)://` address an Iceberg REST catalog. The configuration's own properties come over
    these.
    """
    return {**_address_settings(config), **config.catalog.properties}


def _address_settings(config: LakeConfig) -> dict[str, str]:
    warehouse = config.warehouse_location
    uri = config.catalog.uri
    if uri is None:
        return _jdbc(f"jdbc:sqlite:{config.catalog_file}?{_SQLITE_OPTIONS}", warehouse)
    if urlsplit(uri).scheme in {"http", "https"}:
        return {"type": "rest", "uri": uri, "warehouse": warehouse}
    url = make_url(uri)
    port = f":{url.port}" if url.port else ""
    # Such as sslmode, which the Java driver knows by the same name.
    options = f"?{urlencode(url.normalized_query, doseq=True)}" if url.query else ""
    settings = _jdbc(
        f"jdbc:postgresql://{url.host or 'localhost'}{port}/{url.database}{options}", warehouse
    )
    if url.username:
        settings["jdbc.user"] = unquote(url.username)
    if url.password:
        settings["jdbc.password"] = str(url.password)
    return settings


def _jdbc(uri: str, warehouse: str) -> dict[str, str]:
    return {
        "type": "jdbc",
        "uri": uri,
        "warehouse": warehouse,
        "jdbc.schema-version": "V1",
    }
