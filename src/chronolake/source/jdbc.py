"""Any database that Spark can read over JDBC: each run reads every table completely.

Source: `seeds/history-mode.txt` ("History mode and … Teleport Sync differences"). Rows that differ
from the table in the lake land with the time of the run. Values have the types that Spark's reader
returns. Values that no column type can hold (arrays, structures, intervals) are strings.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final, Protocol

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import types as spark_types

from chronolake.change_set import RESERVED
from chronolake.errors import ConfigurationError, SourceError
from chronolake.frames import select
from chronolake.iceberg import spark_words
from chronolake.landing import landed_micros
from chronolake.source.protocol import (
    CaptureMethod,
    Snapshot,
    StreamDescriptor,
    StreamFailure,
    raw_folder,
)
from chronolake.source.relational.single_rows import expect_columns
from chronolake.stream_modes import StreamCapabilities
from chronolake.types import Column, ColumnType, Kind, literal, now_micros, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from chronolake.config import JdbcAddress, JdbcSource, Project
    from chronolake.lake import Lake
    from chronolake.source.protocol import ChangeBatch, Offset, Where


_ROWS_AT_ONCE: Final = 10_000

#: Driver classes by prefix of the JDBC URL.
_DRIVERS: Final = {
    "jdbc:db2:": "com.ibm.db2.jcc.DB2Driver",
    "jdbc:mariadb:": "org.mariadb.jdbc.Driver",
    "jdbc:mysql:": "com.mysql.cj.jdbc.Driver",
    "jdbc:oracle:": "oracle.jdbc.OracleDriver",
    "jdbc:postgresql:": "org.postgresql.Driver",
    "jdbc:sqlite:": "org.sqlite.JDBC",
    "jdbc:sqlserver:": "com.microsoft.sqlserver.jdbc.SQLServerDriver",
}

#: The kinds of databases with which it was tested.
_RUN: Final = ("jdbc:postgresql:", "jdbc:sqlite:")

#: Options for drivers that would otherwise wait for locks without a timeout or an error.
_TIMEOUT_OPTIONS: Final = {"jdbc:sqlserver:": {"lockTimeout": "300000"}}

#: Column with the row number within the rows of one key.
_PLACE: Final = f"{RESERVED}place"

_KINDS: Final[dict[type[spark_types.DataType], Kind]] = {
    spark_types.BooleanType: Kind.BOOLEAN,
    spark_types.ByteType: Kind.SHORT,
    spark_types.ShortType: Kind.SHORT,
    spark_types.IntegerType: Kind.INT,
    spark_types.LongType: Kind.LONG,
    spark_types.FloatType: Kind.FLOAT,
    spark_types.DoubleType: Kind.DOUBLE,
    spark_types.DateType: Kind.NAIVE_DATE,
    spark_types.TimestampType: Kind.UTC_DATETIME,
    spark_types.TimestampNTZType: Kind.NAIVE_DATETIME,
    spark_types.BinaryType: Kind.BINARY,
}
_NESTED: Final = (spark_types.ArrayType, spark_types.MapType, spark_types.StructType)


class Reader(Protocol):
    """A reader of tables as DataFrames. Each action on a DataFrame queries the database."""

    def table(self, spark: SparkSession, name: str, *, split_by: str | None = None) -> DataFrame:
        """Return all rows of a table.

        Args:
            spark: the session that reads the rows.
            name: the table's name in SQL.
            split_by: a column of numbers, dates or times; several tasks read ranges of it.
        """
        ...

    def query(self, spark: SparkSession, statement: str) -> DataFrame:
        """Return the result of one SELECT."""
        ...

    def read_error(self, subject: str, failure: Exception) -> SourceError:
        """Return an error with the message of Spark or the driver, without secrets.

        Args:
            subject: the object that could not be read, for the message.
            failure: the exception that was raised.
        """
        ...


@dataclass(frozen=True)
class JdbcReader:
    """A reader of the database at a JDBC address."""

    address: JdbcAddress

    def table(self, spark: SparkSession, name: str, *, split_by: str | None = None) -> DataFrame:
        """Return all rows of a table (see `Reader`)."""
        options = self._options
        if split_by is None:
            return spark.read.format("jdbc").options(dbtable=name, **options).load()
        ends = f"SELECT min({split_by}) AS least, max({split_by}) AS greatest FROM {name}"
        least, greatest = self.query(spark, ends).collect()[0]
        if least is not None:
            options |= {
                "partitionColumn": split_by,
                "lowerBound": _bound(least),
                "upperBound": _bound(greatest),
                "numPartitions": str(spark.sparkContext.defaultParallelism),
            }
        return spark.read.format("jdbc").options(dbtable=name, **options).load()

    def query(self, spark: SparkSession, statement: str) -> DataFrame:
        """Return the result of one SELECT (see `Reader`)."""
        return spark.read.format("jdbc").options(query=statement, **self._options).load()

    def read_error(self, subject: str, failure: Exception) -> SourceError:
        """Return an error with the message of Spark or the driver (see `Reader`)."""
        message = spark_words(failure) or type(failure).__name__
        address = self.address
        for secret in filter(None, [address.url, address.password, *address.properties.values()]):
            message = message.replace(secret, "…")
        return SourceError(
            f"{subject} cannot be read: {message}",
            hint="Check the address, the user's privileges and the table's name. If the "
            "driver's class is not found, set `driver`, and add its jar to spark.jars "
            "below lake.spark.conf.",
        )

    @property
    def _options(self) -> dict[str, str]:
        options = {
            "url": self.address.url,
            "driver": self.address.driver or driver_of(self.address.url),
            "user": self.address.user,
            "password": self.address.password,
        }
        url = self.address.url
        timeouts = (
            timeout_options
            for begin, timeout_options in _TIMEOUT_OPTIONS.items()
            if url.startswith(begin)
        )
        return {
            "fetchsize": str(_ROWS_AT_ONCE),
            "preferTimestampNTZ": "true",
            **next(timeouts, {}),
            **self.address.properties,
            **{key: value for key, value in options.items() if value is not None},
        }


def columns_of(
    fields: Iterable[spark_types.StructField], key: Sequence[str], name: str
) -> list[Column]:
    """Return the data columns for the fields of a Spark schema.

    Raises:
        SourceError: a key column is missing.
    """
    fields = list(fields)
    names = [field.name for field in fields]
    missing = [column for column in key if column not in names]
    if missing:
        raise SourceError(
            f"The table {name} has no column {', '.join(missing)}.",
            hint=f"Its columns are {', '.join(names)}: correct tables.{name}.key.",
        )
    return [
        Column(field.name, _type_of(field.dataType), primary_key=field.name in key)
        for field in fields
    ]


def cell_expression(field: spark_types.StructField, *, unless: str = "false") -> str:
    """Return a SQL expression that casts a field to its column type in the lake.

    Args:
        field: the field of Spark's schema.
        unless: a SQL condition under which the value is null.
    """
    column = quote(field.name)
    if isinstance(field.dataType, _NESTED):
        value = f"to_json({column})"
    else:
        value = f"CAST({column} AS {_type_of(field.dataType).sql})"
    return f"IF({unless}, NULL, {value}) AS {column}"


def expect_distinct(rows: DataFrame, key: Sequence[str], name: str) -> DataFrame:
    """Return the rows with a check that fails at execution if two rows have the same key.

    Without the check, one of the two rows would be lost.

    Args:
        key: the key columns from the configuration.
        name: the table, for the message.
    """
    names = ", ".join(map(quote, key))
    error_message = literal(
        f"Two rows of {name} have the same {', '.join(key)}: set the table's key to "
        "columns that identify its rows."
    )
    numbered = f"row_number() OVER (PARTITION BY {names} ORDER BY {names}) AS {_PLACE}"
    return rows.selectExpr("*", numbered).where(
        f"IF({_PLACE} > 1, raise_error({error_message}), true)"
    )


def _bound(value: object) -> str:
    # The bounds only decide how tasks share the rows; they do not filter any.
    return str(int(value)) if isinstance(value, Decimal | float) else str(value)


def driver_of(url: str) -> str | None:
    """Return the class of the driver for a JDBC URL, or None if it is not known."""
    return next((name for begin, name in _DRIVERS.items() if url.startswith(begin)), None)


def _type_of(type_: spark_types.DataType) -> ColumnType:
    if isinstance(type_, spark_types.DecimalType):
        return ColumnType(Kind.DECIMAL, type_.precision, type_.scale)
    if isinstance(type_, _NESTED):
        return ColumnType(Kind.JSON)
    return ColumnType(_KINDS.get(type(type_), Kind.STRING))


_EPSILON_MICROS: Final = 1


def streams_of(
    project: Project, pipeline: str, config: JdbcAddress, capture_method: CaptureMethod
) -> list[StreamDescriptor]:
    """Return a stream for each configured table."""
    return [
        StreamDescriptor(
            StreamCapabilities(name, reports_changes=True),
            capture_method,
            _EPSILON_MICROS,
            raw_folder(project, pipeline, name),
            is_ours=True,
            key=tuple(table.key),
            default_table=name.rpartition(".")[2],
        )
        for name, table in config.tables.items()
    ]


def latest_micros(stored: Offset) -> int:
    """Return the greatest time in an offset, in microseconds since 1970, or 0 if it has none.

    A pipeline may change its method of reading a database. Later versions must have later times
    than the ones that have landed.
    """
    return max((int(stored[name]) for name in stored if name.endswith("_micros")), default=0)


def matching(rows: DataFrame, where: Where, name: str) -> DataFrame:
    """Return the rows that match. The database does the work, as far as Spark can express it.

    Args:
        name: the table, for messages.

    Raises:
        SourceError: the table does not have a column.
        ConfigurationError: a value does not have the column's type.
    """
    types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    expect_columns(name, types, where)
    conditions = []
    for record in where:
        cells = []
        for column, text in record.items():
            value = f"try_cast({literal(text)} AS {types[column]})"
            if rows.sparkSession.sql(f"SELECT {value} IS NULL").head(1)[0][0]:
                raise ConfigurationError(
                    f"{text!r} is not a value of the column {column}, which has the type "
                    f"{types[column]}.",
                    column=column,
                    hint="Correct the value.",
                )
            cells.append(f"{quote(column)} = {value}")
        conditions.append(f"({' AND '.join(cells)})")
    return rows.where(" OR ".join(conditions))


def read_tables(
    reader: Reader,
    positions: Mapping[str, Offset | None],
    read: Callable[[str, Offset], Iterator[ChangeBatch | Snapshot]],
) -> Iterator[ChangeBatch | Snapshot | StreamFailure]:
    """Read tables one after the other. A table that fails does not stop the others.

    Args:
        reader: the database reader, which formats errors.
        positions: the offset of each table; None if nothing of the table has landed.
        read: reads a table from an offset, which is empty if nothing has landed.
    """
    for name, stored in positions.items():
        try:
            yield from read(name, stored or {})
        except SourceError as failure:
            yield StreamFailure(name, failure)
        except (Py4JError, PySparkException) as failure:
            yield StreamFailure(name, reader.read_error(f"The table {name}", failure))


def snapshot_of(
    name: str,
    rows: DataFrame,
    key: Sequence[str],
    *,
    at_micros: int,
    sequence: str,
    position: Offset,
) -> Snapshot:
    """Return all rows of a table as a snapshot. Reading fails if two rows have the same key.

    Raises:
        SourceError: the table lacks a key column.
    """
    columns = columns_of(rows.schema, key, name)
    cells = map(cell_expression, rows.schema)
    checked = select(expect_distinct(rows, key, name), cells)
    return Snapshot(name, checked, columns, at_micros, sequence, position)


@dataclass(frozen=True)
class JdbcDatabase:
    """The tables of a database, compared with the lake by complete reads."""

    project: Project
    pipeline: str
    config: JdbcSource

    @property
    def experimental(self) -> str | None:
        """Return why the source is experimental (see `ExperimentalSource`)."""
        if self.config.url.lower().startswith(_RUN):
            return None
        kind = ":".join(self.config.url.split(":", 2)[:2])
        return f"It has not been run against a database of the kind {kind} yet."

    def discover(self) -> list[StreamDescriptor]:
        """Return the configured tables."""
        return streams_of(self.project, self.pipeline, self.config, CaptureMethod.SNAPSHOT_DIFF)

    def read(
        self,
        lake: Lake,
        positions: Mapping[str, Offset | None],
        *,
        full_refresh: bool,  # noqa: ARG002 - every run reads everything
    ) -> Iterator[ChangeBatch | Snapshot | StreamFailure]:
        """Read all tables. Changes made while a table is read may be included or not."""
        reader = JdbcReader(self.config)

        def read(name: str, stored: Offset) -> Iterator[Snapshot]:
            split_by = self.config.tables[name].split_by
            yield self._snapshot(name, reader.table(lake.spark, name, split_by=split_by), stored)

        return read_tables(reader, positions, read)

    def read_where(
        self, lake: Lake, stream: str, position: Offset, where: Where
    ) -> Iterator[ChangeBatch | Snapshot | StreamFailure]:
        """Read the matching rows of a table."""
        reader = JdbcReader(self.config)

        def read(name: str, stored: Offset) -> Iterator[Snapshot]:
            yield self._snapshot(
                name, matching(reader.table(lake.spark, name), where, name), stored
            )

        return read_tables(reader, {stream: position}, read)

    def _snapshot(self, name: str, rows: DataFrame, stored: Offset) -> Snapshot:
        # After a crash, only the landed files show the last time that was used.
        landed = landed_micros(raw_folder(self.project, self.pipeline, name))
        at_micros = max(now_micros(), latest_micros(stored) + 1, landed + 1)
        return snapshot_of(
            name,
            rows,
            self.config.tables[name].key,
            at_micros=at_micros,
            sequence=f"{at_micros:016x}",
            position={"last_micros": at_micros},
        )

    def acknowledge(self, positions: Mapping[str, Offset]) -> None:
        """Do nothing: the database keeps no state for a pipeline."""
