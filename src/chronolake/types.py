"""Logical column types, table names, and the system columns with their time limits.

Sources: `seeds/destination-connector.txt` ("Examples of data types"), `seeds/history-mode.txt`
("System columns added to tables with history mode").
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from chronolake.errors import SchemaError, UnsupportedTypeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.types import DataType

SYNCED: Final = "_fivetran_synced"
DELETED: Final = "_fivetran_deleted"
ROW_ID: Final = "_fivetran_id"
START: Final = "_fivetran_start"
END: Final = "_fivetran_end"
ACTIVE: Final = "_fivetran_active"
HISTORY_COLUMNS: Final = (START, END, ACTIVE)
#: Pipeline tables: the row's version in the source (`core/scd2_sql.py`).
VERSION: Final = "_chronolake_version"
#: Of data lakes (`seeds/data-lake-v2.txt`): who deleted a record (`grax` for archives, `source` for
#: deletions in the source), and the identifier of the record from which a record was restored.
DELETE_SOURCE: Final = "grax__deletesource"
RESTORED_FROM: Final = "grax__restoredfrom"
#: Both belong to a version, not to the data of its record: a purge keeps them.
OF_VERSIONS: Final = (DELETE_SOURCE, RESTORED_FROM)
#: Tables that are compared with snapshots of their source: a hash of the row (`core/row_hash.py`).
HASH: Final = "_chronolake_hash"

TMAX_TEXT: Final = "9999-12-31T23:59:59.999Z"
TMIN_TEXT: Final = "0001-01-01T00:00:00Z"
# Microseconds since 1970-01-01T00:00:00Z, because Python's datetime overflows near both ends.
TMAX_MICROS: Final = 253_402_300_799_999_000
#: An active version that ends in this second, or later, ends at Tmax.
TMAX_SECOND_MICROS: Final = 253_402_300_799_000_000
TMIN_MICROS: Final = -62_135_596_800_000_000
LAST_MICROS: Final = 253_402_300_799_999_999

#: Spark settings that users must not override, because they would change values.
RELIED_ON: Final[dict[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "true",
    "spark.sql.ansi.enabled": "true",
    # Names may contain `${…}`, which Spark would replace with settings and environment variables.
    "spark.sql.variable.substitute": "false",
    # Foreign Parquet files may contain nanoseconds, for which Spark has no type.
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    # A file that cannot be read is an error: its rows would be missing.
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
}

#: Iceberg's own columns of every table. A table with a column of such a name cannot be read.
METADATA_COLUMNS: Final = frozenset(
    {
        "_file",
        "_pos",
        "_deleted",
        "_spec_id",
        "_partition",
        "_row_id",
        "_last_updated_sequence_number",
    }
)

#: Table property: the time from which a history table has history, in microseconds since 1970. It
#: is set when a table of another mode is switched to history; without it, no history is known to be
#: missing.
HISTORY_SINCE_PROPERTY: Final = "chronolake.history-since"

#: Table property: the `pipeline/stream` that writes the table; no other writer may change it.
STREAM_PROPERTY: Final = "chronolake.stream"

#: Table property: the identity of the lake (`identity.py`) that created the table, or that checked
#: once that all of its files are inside the lake.
LAKE_PROPERTY: Final = "chronolake.lake"

#: Schema of the scratch tables that rewrites fill; no user sees it.
SCRATCH_SCHEMA: Final = "__chronolake_scratch"

#: Table properties: usage by month, such as `chronolake.usage.2026-11` (`core/usage.py`).
USAGE_PREFIX: Final = "chronolake.usage."

#: Default distance between a version's end and the next version's start.
EPSILON_MICROS: Final = 1_000
#: Table property: that distance in microseconds, for tables of sources with finer times.
EPSILON_PROPERTY: Final = "chronolake.epsilon-micros"

MAX_PRECISION: Final = 38
DEFAULT_PRECISION: Final = 38
DEFAULT_SCALE: Final = 10


class Kind(StrEnum):
    """The fifteen logical types of `seeds/destination-connector.txt`."""

    BOOLEAN = "BOOLEAN"
    SHORT = "SHORT"
    INT = "INT"
    LONG = "LONG"
    DECIMAL = "DECIMAL"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    NAIVE_DATE = "NAIVE_DATE"
    NAIVE_DATETIME = "NAIVE_DATETIME"
    UTC_DATETIME = "UTC_DATETIME"
    BINARY = "BINARY"
    XML = "XML"
    STRING = "STRING"
    JSON = "JSON"
    NAIVE_TIME = "NAIVE_TIME"


class Mode(StrEnum):
    """How a table stores changes; the system columns determine it."""

    LIVE = "live"
    SOFT_DELETE = "soft-delete"
    HISTORY = "history"


#: Conditions for the current rows of a table.
PRESENT: Final = {
    Mode.HISTORY: ACTIVE,
    Mode.SOFT_DELETE: f"NOT coalesce({DELETED}, false)",
    Mode.LIVE: "true",
}


_ARROW: Final[dict[Kind, pa.DataType]] = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.SHORT: pa.int32(),
    Kind.INT: pa.int32(),
    Kind.LONG: pa.int64(),
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.NAIVE_DATE: pa.date32(),
    Kind.NAIVE_DATETIME: pa.timestamp("us"),
    Kind.UTC_DATETIME: pa.timestamp("us", tz="UTC"),
    Kind.BINARY: pa.binary(),
    Kind.XML: pa.string(),
    Kind.STRING: pa.string(),
    Kind.JSON: pa.string(),
    Kind.NAIVE_TIME: pa.string(),
}

# Spark SQL type names. SHORT is stored as int and NAIVE_TIME as string, because Iceberg has no
# two-byte integer and Spark 4.1 has no time of day.
_SPARK: Final[dict[Kind, str]] = {
    Kind.BOOLEAN: "boolean",
    Kind.SHORT: "int",
    Kind.INT: "int",
    Kind.LONG: "bigint",
    Kind.FLOAT: "float",
    Kind.DOUBLE: "double",
    Kind.NAIVE_DATE: "date",
    Kind.NAIVE_DATETIME: "timestamp_ntz",
    Kind.UTC_DATETIME: "timestamp",
    Kind.BINARY: "binary",
    Kind.XML: "string",
    Kind.STRING: "string",
    Kind.JSON: "string",
    Kind.NAIVE_TIME: "string",
}


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A logical type with its parameters.

    `precision` and `scale` are set exactly for DECIMAL (1..38, and 0..precision).
    """

    kind: Kind
    precision: int | None = None
    scale: int | None = None

    def __post_init__(self) -> None:
        """Set the default precision and scale, and validate them.

        Raises:
            UnsupportedTypeError: the precision is not 1 to 38, or the scale is greater than the
                precision.
        """
        if self.kind is not Kind.DECIMAL:
            object.__setattr__(self, "precision", None)
            object.__setattr__(self, "scale", None)
            return
        if self.precision is None:
            object.__setattr__(self, "precision", DEFAULT_PRECISION)
            object.__setattr__(self, "scale", DEFAULT_SCALE)
        elif self.scale is None:
            object.__setattr__(self, "scale", 0)
        precision, scale = self.precision or 0, self.scale or 0
        if not 1 <= precision <= MAX_PRECISION or not 0 <= scale <= precision:
            raise UnsupportedTypeError(
                f"DECIMAL({precision},{scale}) is not supported: the precision must be 1 to "
                f"{MAX_PRECISION} and the scale 0 to the precision.",
                hint="Declare a smaller decimal, or STRING.",
            )

    def __str__(self) -> str:
        if self.kind is Kind.DECIMAL:
            return f"DECIMAL({self.precision},{self.scale})"
        return str(self.kind)

    @classmethod
    def parse(cls, text: str) -> ColumnType:
        """Parse the text that `str` returns.

        Raises:
            ValueError: the text is not a valid type.
        """
        name, _, parameters = text.rstrip(")").partition("(")
        return cls(Kind(name), *(int(number) for number in filter(None, parameters.split(","))))

    @property
    def arrow(self) -> pa.DataType:
        """Return the Arrow type of a column of this type."""
        if self.kind is Kind.DECIMAL:
            return pa.decimal128(self.precision, self.scale)
        return _ARROW[self.kind]

    @property
    def sql(self) -> str:
        """Return the Spark SQL name of the type that such a column is stored as."""
        if self.kind is Kind.DECIMAL:
            return f"decimal({self.precision},{self.scale})"
        return _SPARK[self.kind]

    @property
    def spark(self) -> DataType:
        """Return the Spark type that such a column is stored as."""
        from pyspark.sql import types  # noqa: PLC0415

        if self.kind is Kind.DECIMAL:
            return types.DecimalType(self.precision or 0, self.scale or 0)
        by_name = {
            "boolean": types.BooleanType(),
            "int": types.IntegerType(),
            "bigint": types.LongType(),
            "float": types.FloatType(),
            "double": types.DoubleType(),
            "date": types.DateType(),
            "timestamp": types.TimestampType(),
            "timestamp_ntz": types.TimestampNTZType(),
            "binary": types.BinaryType(),
            "string": types.StringType(),
        }
        return by_name[_SPARK[self.kind]]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table with its declared type."""

    name: str
    type: ColumnType
    primary_key: bool = False


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A table in a schema; both parts may contain any characters."""

    schema: str
    table: str

    def __str__(self) -> str:
        """Return `schema.table` in the form that `parse` and commands accept."""
        return ".".join(self.spelled)

    @property
    def spelled(self) -> tuple[str, str]:
        """Return the parts of `str`, in backticks if a part would otherwise be ambiguous."""
        return _part(self.schema), _part(self.table)

    @property
    def levels(self) -> tuple[str, ...]:
        """Return the levels of the schema, which dots separate: `a.b` is the schema `b` in `a`."""
        return levels_of(self.schema)

    @property
    def sql(self) -> str:
        """Return the name as Spark SQL within the lake's catalog: quoted identifiers."""
        return ".".join(map(quote, (*self.levels, self.table)))

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Parse the text that `str` returns; a part that contains a dot is in backticks.

        Raises:
            SchemaError: the text does not have two parts.
        """
        parts: list[str] = []
        rest = text
        while rest:
            if rest.startswith("`"):
                end, part = 1, ""
                while True:
                    close = rest.find("`", end)
                    if close < 0:
                        parts = []
                        break
                    part += rest[end:close]
                    if rest[close + 1 : close + 2] != "`":
                        rest = rest[close + 1 :]
                        parts.append(part)
                        break
                    part, end = part + "`", close + 2
                if not parts or (rest and not rest.startswith(".")):
                    parts = []
                    break
                rest = rest[1:]
            else:
                part, _, rest = rest.partition(".")
                parts.append(part)
        if len(parts) != 2 or not all(parts):  # noqa: PLR2004
            raise SchemaError(
                f"{text!r} is not a valid table name.",
                hint="Write schema.table; put a part that contains a dot in backticks.",
            )
        return cls(*parts)


def levels_of(schema: str) -> tuple[str, ...]:
    """Return the levels of a schema.

    A REST catalog stores schemas within schemas. A JDBC catalog stores the levels as one text.
    """
    levels = tuple(schema.split("."))
    # A level cannot be empty.
    return levels if all(levels) else (schema,)


def _part(part: str) -> str:
    # Forms and scripts strip whitespace from their inputs.
    is_plain = "." not in part and not part.startswith("`") and part == part.strip()
    return part if is_plain else quote(part)


def now_micros() -> int:
    """Return the current time in microseconds since 1970."""
    return time.time_ns() // 1_000


def quote(identifier: str) -> str:
    """Quote an identifier for Spark SQL: in backticks, with backticks doubled."""
    return "`" + identifier.replace("`", "``") + "`"


def literal(value: str) -> str:
    """Quote a text as a literal of Spark SQL."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def stored_name(sent: str) -> str:
    """Return the name under which a sender's column is stored.

    A name that Iceberg reserves gets one more `_`, and so do names that would then be duplicates:
    `_file` is stored as `_file_`, `_file_` as `_file__`. All other names are stored unchanged.
    """
    return f"{sent}_" if sent.rstrip("_") in METADATA_COLUMNS else sent


def sent_name(stored: str) -> str:
    """Return the sender's name of a stored column, the inverse of `stored_name`."""
    return stored[:-1] if stored.rstrip("_") in METADATA_COLUMNS else stored


def mode_of(columns: Iterable[str]) -> Mode:
    """Return the mode of a table with these column names.

    A table is in history mode if it has all three history columns, in soft-delete mode if it has
    `_fivetran_deleted`, and live otherwise.
    """
    names = set(columns)
    if names.issuperset(HISTORY_COLUMNS):
        return Mode.HISTORY
    return Mode.SOFT_DELETE if DELETED in names else Mode.LIVE
