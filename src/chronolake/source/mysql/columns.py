"""MySQL columns and the types that hold their values.

The log and the copy of a table both have values as texts. If a column has a value that its type
cannot hold (a zero date, a duration of more than a day, a decimal of more than 38 digits), the
column becomes a string: no value is lost or changed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from chronolake.source.mysql.connection import quoted
from chronolake.source.mysql.table_map import BINARY_COLLATION, LogType
from chronolake.source.relational.columns import bytes_of
from chronolake.types import MAX_PRECISION, ColumnType, Kind

if TYPE_CHECKING:
    import pyarrow as pa

    from chronolake.source.mysql.table_map import LogColumn

_INTEGERS: Final = {
    "tinyint": (Kind.SHORT, Kind.SHORT),
    "smallint": (Kind.SHORT, Kind.INT),
    "mediumint": (Kind.INT, Kind.INT),
    "int": (Kind.INT, Kind.LONG),
    "year": (Kind.SHORT, Kind.SHORT),
}
_KINDS: Final = {
    "binary": Kind.BINARY,
    "float": Kind.FLOAT,
    "double": Kind.DOUBLE,
    "date": Kind.NAIVE_DATE,
    "datetime": Kind.NAIVE_DATETIME,
    "timestamp": Kind.UTC_DATETIME,
    "time": Kind.NAIVE_TIME,
    "json": Kind.JSON,
}
#: Types whose values are bytes. Geometries are in the server's format: the number of their
#: reference system, and well-known binary (WKB).
_BINARY: Final = frozenset(
    {
        *("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector"),
        *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring"),
        *("multipolygon", "geometrycollection", "geomcollection"),
    }
)
#: Types of the log other than texts and bytes.
_OF_LOG: Final = {
    LogType.TINY: "tinyint",
    LogType.SHORT: "smallint",
    LogType.INT24: "mediumint",
    LogType.LONG: "int",
    LogType.LONGLONG: "bigint",
    LogType.YEAR: "year",
    LogType.FLOAT: "float",
    LogType.DOUBLE: "double",
    LogType.DATE: "date",
    LogType.DATETIME: "datetime",
    LogType.DATETIME2: "datetime",
    LogType.TIMESTAMP: "timestamp",
    LogType.TIMESTAMP2: "timestamp",
    LogType.TIME: "time",
    LogType.TIME2: "time",
    LogType.JSON: "json",
    LogType.ENUM: "text",
    LogType.SET: "text",
    LogType.GEOMETRY: "binary",
    LogType.VECTOR: "binary",
}
#: Decimals with the digits of an unsigned 64-bit integer.
_UNSIGNED_64: Final = ColumnType(Kind.DECIMAL, 20, 0)
#: An integer of this many bits fits into 64 bits with a sign.
_SIGNED_BITS: Final = 63
_ZERO_DATE: Final = r"^0000|-00"
_OUT_OF_RANGE: Final = {
    Kind.NAIVE_DATE: _ZERO_DATE,
    Kind.NAIVE_DATETIME: _ZERO_DATE,
    Kind.UTC_DATETIME: _ZERO_DATE,
    Kind.NAIVE_TIME: r"^-|^[0-9]{3}|^2[4-9]|^[3-9]",
}
_PARAMETERS: Final = re.compile(r"\(([0-9]+)(?:,([0-9]+))?\)")
_TIME: Final = r"^([0-9-]{10}) (.*)$"


def base_of(declared: str) -> str:
    """Return the name of a type without its parameters and attributes."""
    return re.split(r"[ (]", declared, maxsplit=1)[0]


def form_of_declared(declared: str) -> str:
    """Return the form of the values of a type in the catalog.

    Args:
        declared: the type, such as `decimal(65,30) unsigned` or `varchar(20)`.
    """
    base = base_of(declared.lower())
    is_unsigned = "unsigned" in declared.lower()
    if base in _BINARY:
        return "binary"
    if base in {"decimal", "bit"}:
        found = _PARAMETERS.search(declared)
        return f"{base}{found[0].replace(' ', '') if found else '(1)'}"
    if base in _INTEGERS or base == "bigint":
        return f"{base} unsigned" if is_unsigned else base
    return base if base in _KINDS else "text"


def form_of_logged(column: LogColumn) -> str:
    """Return the form of the values of a column in the log."""
    if column.type in _OF_LOG:
        form = _OF_LOG[column.type]
        return f"{form} unsigned" if column.is_unsigned and form not in _KINDS else form
    if column.type is LogType.NEWDECIMAL:
        precision, scale = column.metadata
        return f"decimal({precision},{scale})"
    if column.type is LogType.BIT:
        odd_bits, whole_bytes = column.metadata
        return f"bit({whole_bytes * 8 + odd_bits})"
    return "binary" if column.collation in {None, BINARY_COLLATION} else "text"


@dataclass(frozen=True)
class SourceColumn:
    """A column of a table.

    Attributes:
        number: identifies it in the lake across renames; None if it is not known.
        name: its name.
        form: the form of its values: its type without what does not matter for them, such as
            `bigint unsigned`, `decimal(65,30)`, `text` or `binary`.
    """

    number: int | None
    name: str
    form: str

    @property
    def base(self) -> str:
        """Return the name of its type."""
        return base_of(self.form)

    @property
    def _parameters(self) -> tuple[int, ...]:
        found = _PARAMETERS.search(self.form)
        return () if found is None else tuple(int(text) for text in found.groups() if text)

    @property
    def type(self) -> ColumnType:
        """Return the type for its values, except those that match `out_of_range_pattern`."""
        base, is_unsigned = self.base, self.form.endswith("unsigned")
        if base in _INTEGERS:
            return ColumnType(_INTEGERS[base][is_unsigned])
        if base == "bigint":
            return _UNSIGNED_64 if is_unsigned else ColumnType(Kind.LONG)
        if base == "bit":
            return self._bits
        if base == "decimal":
            precision, scale = (*self._parameters, 0)[:2]
            if precision <= MAX_PRECISION:
                return ColumnType(Kind.DECIMAL, precision, scale)
        return ColumnType(_KINDS.get(base, Kind.STRING))

    @property
    def _bits(self) -> ColumnType:
        (length,) = self._parameters or (1,)
        if length == 1:
            return ColumnType(Kind.BOOLEAN)
        return ColumnType(Kind.LONG) if length <= _SIGNED_BITS else _UNSIGNED_64

    @property
    def out_of_range_pattern(self) -> str | None:
        """Return a regular expression for texts that the type cannot hold, or None."""
        return _OUT_OF_RANGE.get(self.type.kind)

    def as_text(self) -> SourceColumn:
        """Return the column with texts instead of its values."""
        return replace(self, form="text")

    def values(self, texts: pa.Array, target: ColumnType) -> pa.Array:
        """Return the values of texts in a type that can hold them."""
        match target.kind:
            case Kind.BOOLEAN:
                return pc.not_equal(texts, "0")
            case Kind.BINARY:
                return bytes_of(texts)
            case Kind.UTC_DATETIME:
                texts = pc.replace_substring_regex(texts, _TIME, r"\1T\2Z")
            case Kind.STRING if self.type.kind is Kind.UTC_DATETIME:
                # In the format of a UTC_DATETIME value that is converted to a string.
                texts = pc.replace_substring_regex(texts, _TIME, r"\1T\2Z")
        return texts.cast(target.arrow)

    @property
    def is_float(self) -> bool:
        """Return whether its values are floating-point numbers."""
        return self.form in {"float", "double"}

    @property
    def copied(self) -> str:
        """Return the SQL expression with which the copy of a table reads it, as text."""
        name = quoted(self.name)
        if self.form == "binary":
            return f"HEX({name})"
        if self.form == "float":
            # The server prints six digits of a FLOAT, and all digits of the same DOUBLE.
            return f"{name} + 0e0"
        # Without the zeros of ZEROFILL, and bits as a number.
        is_integer = self.base in {*_INTEGERS, "bigint", "bit"} - {"year"}
        return f"{name} + 0" if is_integer else name
