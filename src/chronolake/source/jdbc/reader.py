"""What a database has, as Spark reads it over JDBC.

Values have the types that Spark's reader gives them; what no column can hold (arrays, structures,
intervals) is a text.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final, Protocol

from pyspark.sql import types as spark_types

from chronolake.changes import RESERVED
from chronolake.errors import SourceError
from chronolake.iceberg import spark_words
from chronolake.types import Column, ColumnType, Kind, literal, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from chronolake.config import JdbcAddress

_ROWS_AT_ONCE: Final = 10_000

#: The drivers of addresses that begin so.
_DRIVERS: Final = {
    "jdbc:db2:": "com.ibm.db2.jcc.DB2Driver",
    "jdbc:mariadb:": "org.mariadb.jdbc.Driver",
    "jdbc:mysql:": "com.mysql.cj.jdbc.Driver",
    "jdbc:oracle:": "oracle.jdbc.OracleDriver",
    "jdbc:postgresql:": "org.postgresql.Driver",
    "jdbc:sqlite:": "org.sqlite.JDBC",
    "jdbc:sqlserver:": "com.microsoft.sqlserver.jdbc.SQLServerDriver",
}

#: What a driver is told that would wait for locks without end, and without a word.
_PATIENT: Final = {"jdbc:sqlserver:": {"lockTimeout": "300000"}}

#: A number within the rows of one key, while they are counted.
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
    """Gives what a database has as DataFrames; each look at one asks the database."""

    def table(self, spark: SparkSession, name: str, *, split_by: str | None = None) -> DataFrame:
        """All rows of a table.

        Args:
            spark: the session that reads them.
            name: the table, as SQL has it.
            split_by: a column of numbers, dates or times, by whose ranges several tasks read.
        """
        ...

    def query(self, spark: SparkSession, statement: str) -> DataFrame:
        """What one SELECT gives."""
        ...

    def said(self, what: str, failure: Exception) -> SourceError:
        """What Spark or the driver said, without what is nobody's business.

        Args:
            what: what could not be read, for the message.
            failure: what was raised.
        """
        ...


@dataclass(frozen=True)
class JdbcReader:
    """A database at an address."""

    address: JdbcAddress

    def table(self, spark: SparkSession, name: str, *, split_by: str | None = None) -> DataFrame:
        """All rows of a table (see `Reader`)."""
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
        """What one SELECT gives (see `Reader`)."""
        return spark.read.format("jdbc").options(query=statement, **self._options).load()

    def said(self, what: str, failure: Exception) -> SourceError:
        """What Spark or the driver said (see `Reader`)."""
        words = spark_words(failure) or type(failure).__name__
        address = self.address
        for secret in filter(None, [address.url, address.password, *address.properties.values()]):
            words = words.replace(secret, "…")
        return SourceError(
            f"{what} cannot be read: {words}",
            hint="Check the address, the user's rights and the table's name. A driver whose "
            "class is not found: name it with `driver`, and its jar with spark.jars below "
            "lake.spark.conf.",
        )

    @property
    def _options(self) -> dict[str, str]:
        given = {
            "url": self.address.url,
            "driver": self.address.driver or _driver_of(self.address.url),
            "user": self.address.user,
            "password": self.address.password,
        }
        url = self.address.url
        patience = (told for begin, told in _PATIENT.items() if url.startswith(begin))
        return {
            "fetchsize": str(_ROWS_AT_ONCE),
            "preferTimestampNTZ": "true",
            **next(patience, {}),
            **self.address.properties,
            **{key: value for key, value in given.items() if value is not None},
        }


def columns_of(
    fields: Iterable[spark_types.StructField], key: Sequence[str], name: str
) -> list[Column]:
    """The data columns of what Spark has read.

    Raises:
        SourceError: one of the key's is not among them.
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


def cell(field: spark_types.StructField, *, unless: str = "false") -> str:
    """A column of what Spark has read, in the type that a table gives it, as SQL.

    Args:
        field: the column.
        unless: a condition under which it is null.
    """
    column = quoted(field.name)
    if isinstance(field.dataType, _NESTED):
        value = f"to_json({column})"
    else:
        value = f"CAST({column} AS {_type_of(field.dataType).sql})"
    return f"IF({unless}, NULL, {value}) AS {column}"


def expect_distinct(rows: DataFrame, key: Sequence[str], name: str) -> DataFrame:
    """Rows that fail when they are read if two of them have one key: one of them would be lost.

    Args:
        rows: the rows.
        key: the columns that tell them apart, as the configuration says.
        name: the table, for the message.
    """
    names = ", ".join(map(quoted, key))
    words = literal(
        f"Two rows of {name} have the same {', '.join(key)}: name the columns that tell rows apart "
        "as the table's key."
    )
    numbered = f"row_number() OVER (PARTITION BY {names} ORDER BY {names}) AS {_PLACE}"
    return rows.selectExpr("*", numbered).where(f"IF({_PLACE} > 1, raise_error({words}), true)")


def _bound(value: object) -> str:
    # Where ranges begin and end matters to how tasks share the rows, and to nothing else.
    return str(int(value)) if isinstance(value, Decimal | float) else str(value)


def _driver_of(url: str) -> str | None:
    return next((name for begin, name in _DRIVERS.items() if url.startswith(begin)), None)


def _type_of(kind: spark_types.DataType) -> ColumnType:
    if isinstance(kind, spark_types.DecimalType):
        return ColumnType(Kind.DECIMAL, kind.precision, kind.scale)
    if isinstance(kind, _NESTED):
        return ColumnType(Kind.JSON)
    return ColumnType(_KINDS.get(type(kind), Kind.STRING))
