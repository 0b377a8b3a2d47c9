"""Any database that Spark reads over JDBC: each run reads every table as a whole.

Source: `seeds/history-mode.txt` ("History mode and … Teleport Sync differences"). What differs from
the table in the lake is brought, at the time of the run. Values have the types that Spark's reader
gives them; what no column can hold (arrays, structures, intervals) is a text.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import types as spark_types

from chronolake.changes import RESERVED
from chronolake.errors import SourceError
from chronolake.iceberg import spark_words
from chronolake.limits import StreamTraits
from chronolake.source.offered import Failure, OfferedStream, Sight, Snapshot, raw_folder
from chronolake.types import Column, ColumnType, Kind, literal, now_micros, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from chronolake.config import JdbcSource, JdbcTable, Project
    from chronolake.lake import Lake
    from chronolake.source.offered import Position

_EPSILON_MICROS: Final = 1
_ROWS_AT_ONCE: Final = 10_000
_PLACE: Final = f"{RESERVED}place"

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


@dataclass(frozen=True)
class JdbcDatabase:
    """The tables of a database, by the difference of complete reads."""

    project: Project
    pipeline: str
    config: JdbcSource

    def offered(self) -> list[OfferedStream]:
        """The tables that the configuration names."""
        return [
            OfferedStream(
                StreamTraits(name, tells_changes=True, is_reimported=False),
                Sight.SNAPSHOT_DIFF,
                _EPSILON_MICROS,
                raw_folder(self.project, self.pipeline, name),
                is_ours=True,
                key=tuple(table.key),
                default_table=name.rpartition(".")[2],
            )
            for name, table in self.config.tables.items()
        ]

    def bring(
        self,
        lake: Lake,
        positions: Mapping[str, Position | None],
        *,
        anew: bool,  # noqa: ARG002 - every run reads everything
    ) -> Iterator[Snapshot | Failure]:
        """All tables as they are; what changes while one is read may be in it or not."""
        for name, told in positions.items():
            before = 0 if told is None else int(told["last_micros"])
            try:
                snapshot = self._read(lake.spark, name, after_micros=before)
            except SourceError as failure:
                yield Failure(name, failure)
            except (Py4JError, PySparkException) as failure:
                yield Failure(name, self._said(name, failure))
            else:
                yield snapshot

    def landed(self, positions: Mapping[str, Position]) -> None:
        """The database keeps nothing for a pipeline."""

    def _read(self, spark: SparkSession, name: str, *, after_micros: int) -> Snapshot:
        table = self.config.tables[name]
        at = max(now_micros(), after_micros + 1)
        rows = self._rows(spark, name, table)
        missing = [column for column in table.key if column not in rows.columns]
        if missing:
            raise SourceError(
                f"The table {name} has no column {', '.join(missing)}.",
                hint=f"Its columns are {', '.join(rows.columns)}: correct tables.{name}.key.",
            )
        columns = [
            Column(field.name, _type_of(field.dataType), primary_key=field.name in table.key)
            for field in rows.schema
        ]
        cells = [_cell(field.name, field.dataType) for field in rows.schema]
        return Snapshot(
            name,
            _expect_distinct(rows, table.key, name).selectExpr(*cells),
            columns,
            at,
            f"{at:016x}",
            {"last_micros": at},
        )

    def _rows(self, spark: SparkSession, name: str, table: JdbcTable) -> DataFrame:
        options = self._options
        if table.split_by is None:
            return spark.read.format("jdbc").options(dbtable=name, **options).load()
        ends = f"(SELECT min({table.split_by}), max({table.split_by}) FROM {name}) ends"
        least, greatest = (
            spark.read.format("jdbc").options(dbtable=ends, **options).load().collect()[0]
        )
        if least is not None:
            options |= {
                "partitionColumn": table.split_by,
                "lowerBound": _bound(least),
                "upperBound": _bound(greatest),
                "numPartitions": str(spark.sparkContext.defaultParallelism),
            }
        return spark.read.format("jdbc").options(dbtable=name, **options).load()

    @property
    def _options(self) -> dict[str, str]:
        given = {
            "url": self.config.url,
            "driver": self.config.driver or _driver_of(self.config.url),
            "user": self.config.user,
            "password": self.config.password,
        }
        return {
            "fetchsize": str(_ROWS_AT_ONCE),
            "preferTimestampNTZ": "true",
            **self.config.properties,
            **{key: value for key, value in given.items() if value is not None},
        }

    def _said(self, name: str, failure: Exception) -> SourceError:
        """What Spark or the driver said, without what is nobody's business."""
        words = spark_words(failure) or type(failure).__name__
        secrets = [self.config.url, self.config.password, *self.config.properties.values()]
        for secret in filter(None, secrets):
            words = words.replace(secret, "…")
        return SourceError(
            f"The table {name} cannot be read: {words}",
            hint="Check the address, the user's rights and the table's name. A driver whose "
            "class is not found: name it with `driver`, and its jar with spark.jars below "
            "lake.spark.conf.",
        )


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


def _cell(name: str, kind: spark_types.DataType) -> str:
    """A column in the type of its own, as SQL."""
    column = quoted(name)
    if isinstance(kind, _NESTED):
        return f"to_json({column}) AS {column}"
    return f"CAST({column} AS {_type_of(kind).sql}) AS {column}"


def _expect_distinct(rows: DataFrame, key: Sequence[str], name: str) -> DataFrame:
    """Rows that fail when they are read if two of them have one key: one of them would be lost."""
    names = ", ".join(map(quoted, key))
    words = literal(
        f"Two rows of {name} have the same {', '.join(key)}: name the columns that tell rows apart "
        "as the table's key."
    )
    numbered = f"row_number() OVER (PARTITION BY {names} ORDER BY {names}) AS {_PLACE}"
    return rows.selectExpr("*", numbered).where(f"IF({_PLACE} > 1, raise_error({words}), true)")
