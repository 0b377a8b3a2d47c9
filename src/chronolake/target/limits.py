"""Limits of targets: modes, identifiers, types, times, keys and rows, for every kind of target.

A table is checked against them before anything is written. `docs/targets.md` lists the conversions.
Source: `seeds/history-mode.txt` ("System columns", "Switching to history mode", "Limitations").
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from chronolake.errors import TargetError
from chronolake.types import (
    END,
    HASH,
    START,
    SYNCED,
    TMAX_MICROS,
    TMIN_MICROS,
    VERSION,
    Column,
    ColumnType,
    Kind,
    Mode,
    TableName,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

#: Chronolake's own columns, which are not published.
INTERNAL: Final = frozenset({VERSION, HASH})
#: Columns with times of Chronolake, which have the target's Tmin and Tmax.
SYSTEM_TIMES: Final = frozenset({START, END, SYNCED})
#: 2038-01-19T03:14:07.999Z and 1970-01-01T00:00:01Z, the limits of MySQL's TIMESTAMP.
MYSQL_TMAX_MICROS: Final = 2_147_483_647_999_000
MYSQL_TMAX_WHOLE_MICROS: Final = 2_147_483_647_000_000
MYSQL_TMIN_MICROS: Final = 1_000_000

#: Versions from which MySQL stores milliseconds, and compares texts without padding.
_MYSQL_WITH_MILLISECONDS: Final = (5, 7)
_MYSQL_WITHOUT_PADDING: Final = (8, 0, 17)
#: Bytes of a key column that is not a text, at most.
_FIXED_KEY_BYTES: Final = 18
_LONGEST_MYSQL_KEY: Final = 700
_BYTES_OF_CHARACTER: Final = 4
#: System columns of PostgreSQL, and names that InnoDB reserves in any spelling.
_POSTGRES_RESERVED: Final = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
_MYSQL_RESERVED: Final = frozenset({"db_row_id", "db_trx_id", "db_roll_ptr", "fts_doc_id"})


@dataclass(frozen=True)
class TargetColumn:
    """A column of a target table.

    Attributes:
        name: its name, in the lake and in the target.
        type: its type in the lake.
        field_id: Iceberg's id of the column, which it keeps when it is renamed.
        sql: its type in the target.
        is_key: whether it is a part of the primary key.
        max_length: the largest number of characters (bytes of a binary column) of a key column.
    """

    name: str
    type: ColumnType
    field_id: int
    sql: str
    is_key: bool = False
    max_length: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the column as JSON types."""
        return {**vars(self), "type": str(self.type)}

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> TargetColumn:
        """Return the column of a value of `as_json`."""
        return cls(**{**item, "type": ColumnType.parse(item["type"])})


@dataclass(frozen=True)
class TargetLimits:
    """What a kind of target can hold.

    Attributes:
        kind: the type in chronolake.yml.
        product: its name for people.
        modes: the modes of tables that it can hold.
        name_length: the length of the longest identifier.
        name_unit: its unit, `bytes` or `characters`.
        folds_case: whether names of columns that differ only in case are equal.
        columns: the largest number of columns; the temporary table with changes has one more.
        key_columns: the largest number of columns of a key.
        reserved: names of columns that the product has for itself, in lower case.
        row_bytes: the length of the longest row without the values that are stored separately.
        tmin: the earliest time of a system column, in microseconds since 1970.
        tmax: its latest time, which is the end of active versions.
        has_fractions: whether times have fractions of seconds.
        key_bytes: the length of the longest key; None if it depends on how well the values are
            compressed, which only the server knows.
        pads_keys: whether text keys that differ only in spaces at their ends are equal.
        decimal: the largest precision and scale.
        has_infinity: whether floating-point numbers may be infinite, or not a number.
        text_options: character set and collation of text columns.
    """

    kind: str
    product: str
    modes: frozenset[Mode]
    name_length: int = 63
    name_unit: str = "bytes"
    folds_case: bool = False
    columns: int = 1_599
    key_columns: int = 32
    reserved: frozenset[str] = _POSTGRES_RESERVED
    row_bytes: int = 8_160
    tmin: int = TMIN_MICROS
    tmax: int = TMAX_MICROS
    has_fractions: bool = True
    key_bytes: int | None = None
    pads_keys: bool = False
    decimal: tuple[int, int] = (38, 38)
    has_infinity: bool = True
    text_options: str = field(default="")

    def bounds(self, column: TargetColumn) -> tuple[int, int] | None:
        """Return the earliest and latest value of a time column; None if all values fit."""
        if column.type.kind is Kind.UTC_DATETIME and column.name in SYSTEM_TIMES:
            return (self.tmin, self.tmax) if self.clamps else None
        return None

    @property
    def clamps(self) -> bool:
        """Return whether some times of the lake are outside the target's limits."""
        return (self.tmin, self.tmax) != (TMIN_MICROS, TMAX_MICROS)


POSTGRES: Final = TargetLimits("postgres", "PostgreSQL", frozenset(Mode))
KAFKA: Final = TargetLimits("kafka", "Apache Kafka", frozenset({Mode.LIVE, Mode.SOFT_DELETE}))


def mysql_limits(version: tuple[int, ...], *, is_mariadb: bool) -> TargetLimits:
    """Return the limits of a version of MySQL or MariaDB."""
    has_fractions = is_mariadb or version >= _MYSQL_WITH_MILLISECONDS
    has_unpadded = is_mariadb or version >= _MYSQL_WITHOUT_PADDING
    collation = "utf8mb4_bin"
    if has_unpadded:
        collation = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
    return TargetLimits(
        "mysql",
        "MariaDB" if is_mariadb else "MySQL",
        frozenset(Mode),
        name_length=64,
        name_unit="characters",
        folds_case=True,
        columns=1_016,
        key_columns=32 if is_mariadb else 16,
        reserved=_MYSQL_RESERVED,
        row_bytes=8_126,
        tmin=MYSQL_TMIN_MICROS,
        tmax=MYSQL_TMAX_MICROS if has_fractions else MYSQL_TMAX_WHOLE_MICROS,
        has_fractions=has_fractions,
        key_bytes=3_072 if has_fractions else 767,
        pads_keys=not has_unpadded,
        decimal=(65, 30),
        has_infinity=False,
        text_options=f" CHARACTER SET utf8mb4 COLLATE {collation}",
    )


MYSQL: Final = mysql_limits((8, 4, 0), is_mariadb=False)
BY_KIND: Final = {limits.kind: limits for limits in (POSTGRES, MYSQL, KAFKA)}

_POSTGRES_TYPES: Final = {
    Kind.BOOLEAN: "boolean",
    Kind.SHORT: "integer",
    Kind.INT: "integer",
    Kind.LONG: "bigint",
    Kind.FLOAT: "real",
    Kind.DOUBLE: "double precision",
    Kind.NAIVE_DATE: "date",
    Kind.NAIVE_DATETIME: "timestamp without time zone",
    Kind.UTC_DATETIME: "timestamp with time zone",
    Kind.BINARY: "bytea",
    Kind.XML: "text",
    Kind.STRING: "text",
    Kind.JSON: "json",
    Kind.NAIVE_TIME: "text",
}
_MYSQL_TYPES: Final = {
    Kind.BOOLEAN: "tinyint(1)",
    Kind.SHORT: "int",
    Kind.INT: "int",
    Kind.LONG: "bigint",
    # MySQL prints only six digits of a FLOAT, and refuses some of its largest values.
    Kind.FLOAT: "double",
    Kind.DOUBLE: "double",
    Kind.NAIVE_DATE: "date",
    Kind.BINARY: "longblob",
}
_TEXTS: Final = frozenset({Kind.STRING, Kind.XML, Kind.JSON, Kind.NAIVE_TIME})
#: Bytes of a row in its page: its header, values of a fixed length, and references to long values.
_ROW_HEADER_BYTES: Final = 24
_POSTGRES_REFERENCE_BYTES: Final = 18
_MYSQL_REFERENCE_BYTES: Final = 41
_FIXED_BYTES: Final = {
    Kind.BOOLEAN: 1,
    Kind.SHORT: 4,
    Kind.INT: 4,
    Kind.LONG: 8,
    Kind.FLOAT: 8,
    Kind.DOUBLE: 8,
    Kind.NAIVE_DATE: 4,
    Kind.NAIVE_DATETIME: 8,
    Kind.UTC_DATETIME: 8,
}


def raise_unless_mode(limits: TargetLimits, table: TableName, mode: Mode) -> None:
    """Raise if a target cannot hold tables of a mode.

    Raises:
        TargetError: it cannot; the error names the modes that it supports.
    """
    if mode in limits.modes:
        return
    supported = " and ".join(mode.value for mode in Mode if mode in limits.modes)
    raise TargetError(
        f"{limits.product} does not support {mode.value} mode.",
        table=str(table),
        hint=f"It supports tables in {supported} mode: remove the table from the target, or change "
        "the mode of its stream.",
    )


def target_columns(
    limits: TargetLimits,
    table: TableName,
    columns: Iterable[tuple[Column, int]],
    identity: Collection[str],
) -> tuple[TargetColumn, ...]:
    """Return the columns of a target table.

    Args:
        limits: the target's limits.
        table: the table in the lake.
        columns: its columns, with Iceberg's ids.
        identity: the columns that identify its rows.

    Raises:
        TargetError: the target cannot hold the table.
    """
    published = [(column, number) for column, number in columns if column.name not in INTERNAL]
    names = [column.name for column, _ in published]
    for name in names:
        raise_unless_name(limits, name, table, column=name)
    _raise_if_equal(limits, table, names)
    if len(names) > limits.columns:
        raise TargetError(
            f"{limits.product} supports tables with up to {limits.columns} columns, and this one "
            f"has {len(names)}.",
            table=str(table),
            hint="Exclude columns in the pipeline, or remove the table from the target.",
        )
    keys = [column for column, _ in published if column.name in identity]
    if len(keys) > limits.key_columns:
        raise TargetError(
            f"{limits.product} supports keys with up to {limits.key_columns} columns, and this one "
            f"has {len(keys)}.",
            table=str(table),
            hint="Choose fewer columns as the key of the stream, or remove the table from the "
            "target.",
        )
    length = _key_length(limits, keys)
    return tuple(
        TargetColumn(
            column.name,
            column.type,
            number,
            _sql_type(limits, table, column, length, is_key=column in keys),
            column in keys,
            length if column in keys and _is_long(column) else None,
        )
        for column, number in published
    )


def raise_unless_name(
    limits: TargetLimits, name: str, table: TableName, *, column: str | None = None
) -> None:
    """Raise if an identifier of a table or column is not valid in a target.

    Raises:
        TargetError: it is too long, or has characters that the target does not support.
    """
    length = len(name.encode()) if limits.name_unit == "bytes" else len(name)
    what = "table" if column is None else "column"
    hint = "Set another name below `rename` of the " + ("target." if column is None else "stream.")
    if length > limits.name_length:
        raise TargetError(
            f"The name of the {what} has {length} {limits.name_unit}, and {limits.product} supports"
            f" up to {limits.name_length}.",
            table=str(table),
            column=column,
            hint=hint,
        )
    is_unusual = "\0" in name or not name
    if limits.kind == "mysql":
        is_unusual |= name != name.rstrip() or any(ord(letter) > 0xFFFF for letter in name)  # noqa: PLR2004
    if column is not None:
        is_unusual |= (name.lower() if limits.folds_case else name) in limits.reserved
    if is_unusual:
        raise TargetError(
            f"{limits.product} does not support the name of the {what}.",
            table=str(table),
            column=column,
            hint=hint,
        )


def _raise_if_equal(limits: TargetLimits, table: TableName, names: Sequence[str]) -> None:
    if not limits.folds_case:
        return
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(name.casefold(), name)
        if other != name:
            raise TargetError(
                f"{limits.product} does not distinguish the columns {other!r} and {name!r}.",
                table=str(table),
                column=name,
                hint="Set another name for one of them below `rename` of the stream.",
            )


def longest_row(limits: TargetLimits, columns: Iterable[TargetColumn]) -> int:
    """Return about how many bytes of a page a row needs in which no value is NULL.

    Long values are stored separately, and need only a reference in the page. Rows with NULL or
    short values need less: only the server knows whether a row fits.
    """
    sizes = [_bytes_in_page(limits, column) for column in columns]
    return _ROW_HEADER_BYTES + len(sizes) // 8 + sum(sizes)


def _bytes_in_page(limits: TargetLimits, column: TargetColumn) -> int:
    if column.type.kind is Kind.DECIMAL:
        return 4 + (column.type.precision or 0) // 2
    if not _is_long_kind(column.type.kind):
        return _FIXED_BYTES[column.type.kind]
    if limits.kind != "mysql":
        return _POSTGRES_REFERENCE_BYTES
    return _MYSQL_REFERENCE_BYTES if column.max_length is None else column.max_length * 4 + 2


def _is_long(column: Column) -> bool:
    return _is_long_kind(column.type.kind)


def _is_long_kind(kind: Kind) -> bool:
    return kind in _TEXTS or kind is Kind.BINARY


def _key_length(limits: TargetLimits, keys: Sequence[Column]) -> int | None:
    """Return the length of the text columns of a key; None if the target does not declare it."""
    if limits.key_bytes is None:
        return None
    texts = sum(_is_long(column) for column in keys)
    fixed = _FIXED_KEY_BYTES * (len(keys) - texts)
    room = (limits.key_bytes - fixed) // (_BYTES_OF_CHARACTER * max(1, texts))
    return min(room, _LONGEST_MYSQL_KEY)


def _sql_type(
    limits: TargetLimits, table: TableName, column: Column, length: int | None, *, is_key: bool
) -> str:
    kind = column.type.kind
    if kind is Kind.DECIMAL:
        precision, scale = column.type.precision or 0, column.type.scale or 0
        if scale > limits.decimal[1]:
            raise TargetError(
                f"{limits.product} supports decimals with up to {limits.decimal[1]} digits after "
                f"the point, and the column has {scale}.",
                table=str(table),
                column=column.name,
                hint="Cast the column to another type below `columns` of the stream.",
            )
        return f"{'numeric' if limits.kind == 'postgres' else 'decimal'}({precision},{scale})"
    if limits.kind != "mysql":
        # The type json has no order, and cannot be indexed.
        return "text" if is_key and kind is Kind.JSON else _POSTGRES_TYPES[kind]
    digits = "(6)" if limits.has_fractions else ""
    if kind in {Kind.UTC_DATETIME, Kind.NAIVE_DATETIME}:
        return f"{'timestamp' if column.name in SYSTEM_TIMES else 'datetime'}{digits}"
    if is_key and length is not None and kind is Kind.BINARY:
        return f"varbinary({length * _BYTES_OF_CHARACTER})"
    if kind in _TEXTS:
        base = f"varchar({length})" if is_key and length is not None else "longtext"
        return f"{base}{limits.text_options}"
    return _MYSQL_TYPES[kind]
