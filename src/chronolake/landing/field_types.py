"""Fields of landing files: their columns, physical types, and type inference.

A field's values have forms: texts, and typed values in a second column. All forms that were ever
seen of a field, in any order, decide its type: the narrowest that contains them all. In files of
our own, a field has the type that its source declared instead.

`Custom__c_b` contains the booleans of the field `Custom__c` if the file has a column `Custom__c`
and `Custom__c_b` is boolean; if not, it is a separate field. Files differ in that, so each file's
schema is interpreted separately, and compatible files are read together (`group_files`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from chronolake.types import DELETE_SOURCE, MAX_PRECISION, ColumnType, Kind, literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet


_INTS: Final = (-(2**31), 2**31 - 1)
#: Beyond this, not every integer is exact as a double.
_EXACT: Final = 2**53


class Form(StrEnum):
    """The form in which a field's value is stored."""

    TEXT = "text"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    FLOAT = "float"
    TIMESTAMP = "timestamp"
    TIME = "time"
    DATE = "date"


#: The forms of typed values, for types that have more than a text.
FORM_OF: Final = {
    Kind.BOOLEAN: Form.BOOLEAN,
    Kind.SHORT: Form.INTEGER,
    Kind.INT: Form.INTEGER,
    Kind.LONG: Form.INTEGER,
    Kind.FLOAT: Form.FLOAT,
    Kind.DOUBLE: Form.FLOAT,
    Kind.UTC_DATETIME: Form.TIMESTAMP,
    Kind.NAIVE_DATE: Form.DATE,
}


class ObservedType(StrEnum):
    """The types of the values that were observed in a field; together they decide its type."""

    TEXT = "text"
    BOOLEAN = "boolean"
    #: An integer of 32 bits, of more, and one that is not exact as a double.
    INT = "int"
    LONG = "long"
    WIDE = "wide"
    FLOAT = "float"
    TIMESTAMP = "timestamp"
    TIME = "time"
    DATE = "date"


#: An input of type inference: an observed type, or a declared one.
FieldType = ObservedType | ColumnType

_OBSERVED_TYPES: Final = frozenset(ObservedType)

_ALONE: Final = {
    ObservedType.BOOLEAN: Kind.BOOLEAN,
    ObservedType.FLOAT: Kind.DOUBLE,
    ObservedType.TIMESTAMP: Kind.UTC_DATETIME,
    ObservedType.TIME: Kind.NAIVE_TIME,
    ObservedType.DATE: Kind.NAIVE_DATE,
}
_INTEGERS: Final = {ObservedType.INT, ObservedType.LONG, ObservedType.WIDE}
#: Integers, with their maximum number of digits.
_DIGITS: Final = {Kind.SHORT: 5, Kind.INT: 10, Kind.LONG: 19}
_EXACT_AS_DOUBLE: Final = {Kind.SHORT, Kind.INT, Kind.FLOAT, Kind.DOUBLE}


def observed_integer_type(least: int, greatest: int) -> ObservedType:
    """Return the observed type of integers with the given least and greatest value."""
    if _INTS[0] <= least and greatest <= _INTS[1]:
        return ObservedType.INT
    return ObservedType.LONG if least >= -_EXACT and greatest <= _EXACT else ObservedType.WIDE


def parse_field_type(text: str) -> FieldType:
    """Parse an observed or declared type, the inverse of `str`."""
    return ObservedType(text) if text in _OBSERVED_TYPES else ColumnType.parse(text)


def type_of(types: Iterable[FieldType]) -> ColumnType | None:
    """Return the narrowest type that contains all values of a field; None if it has no values."""
    distinct = set(types)
    declared = [known for known in distinct if isinstance(known, ColumnType)]
    if declared:
        return (
            reduce(wider, declared) if len(declared) == len(distinct) else ColumnType(Kind.STRING)
        )
    if not distinct:
        return None
    if distinct <= _INTEGERS:
        return ColumnType(Kind.INT if distinct == {ObservedType.INT} else Kind.LONG)
    if distinct <= {ObservedType.INT, ObservedType.LONG, ObservedType.FLOAT}:
        return ColumnType(Kind.DOUBLE)
    observed = distinct.pop()
    if distinct or not isinstance(observed, ObservedType):
        return ColumnType(Kind.STRING)
    return ColumnType(_ALONE.get(observed, Kind.STRING))


def wider(first: ColumnType, other: ColumnType) -> ColumnType:
    """Return the narrowest type that contains all values of two types without loss.

    The result for several types does not depend on their order.
    """
    if first == other:
        return first
    kinds = {first.kind, other.kind}
    if kinds <= _DIGITS.keys():
        return max(first, other, key=lambda kind: _DIGITS[kind.kind])
    if kinds <= _EXACT_AS_DOUBLE:
        return ColumnType(Kind.DOUBLE)
    if kinds <= {*_DIGITS, Kind.DECIMAL}:
        whole = max(_whole_digits(first), _whole_digits(other))
        scale = max(first.scale or 0, other.scale or 0)
        if whole + scale <= MAX_PRECISION:
            return ColumnType(Kind.DECIMAL, whole + scale, scale)
    return ColumnType(Kind.STRING)


def _whole_digits(kind: ColumnType) -> int:
    if kind.kind is Kind.DECIMAL:
        return (kind.precision or 0) - (kind.scale or 0)
    return _DIGITS[kind.kind]


ID: Final = "Id"
MODIFIED: Final = "source__modified"
SEQUENCE: Final = "grax__idseq"
DELETED: Final = "grax__deleted"
PURGED: Final = "grax__purged"
#: When a row was added to a Data Lake v1, which has no modification time and no sequence.
ADDED: Final = "grax__added"
#: Salesforce's time of a record's modification, in a Data Lake v1.
SYSTEM_MODIFIED: Final = "SystemModstamp"
#: Other names of columns. The table of columns in `seeds/data-lake-v2.txt` has the first spelling,
#: its full example the second.
_SPELLINGS: Final = {"grax_deletesource": DELETE_SOURCE}
#: Columns that every file has.
GUARANTEED: Final = (ID, MODIFIED, SEQUENCE)
_TIMES: Final = (MODIFIED, DELETED, PURGED)
#: Columns that are not fields of the record.
OF_THE_LAKE: Final = (*GUARANTEED, DELETED, PURGED)
#: The same in a Data Lake v1.
HOURLY_GUARANTEED: Final = (ID,)
_OF_HOURLY_LAKE: Final = (*OF_THE_LAKE, ADDED)

SUFFIXES: Final = {
    "_b": Form.BOOLEAN,
    "_i": Form.INTEGER,
    "_f": Form.FLOAT,
    "_ts": Form.TIMESTAMP,
    "_t": Form.TIME,
    "_d": Form.DATE,
}


@dataclass(frozen=True)
class Physical:
    """The reading of a Parquet column by Spark.

    Attributes:
        ddl: the Spark type as which it is read, or None if it cannot be read.
        form: the form of its values.
        per_second: for times that are read as numbers, units per second.
        sql: SQL that converts Spark's value, with `{}` as its placeholder; None: no conversion.
    """

    ddl: str | None
    form: Form
    per_second: int | None = None
    sql: str | None = None

    def value(self, cell: str) -> str:
        """Return SQL for the value of a cell; digits finer than microseconds are truncated."""
        unit = self.per_second
        if self.sql is not None:
            return self.sql.replace("{}", cell)
        if self.form is Form.TIMESTAMP and unit:
            # Round towards the past.
            return f"timestamp_micros(CAST(floor({cell} / {unit // 10**6}BD) AS BIGINT))"
        if self.form is Form.TIME and unit:
            micros = f"CAST({cell} * {10**6}BD / {unit} AS BIGINT)"
            # The text after the date is the time of day, without trailing zeros of its fraction.
            return f"substring(CAST(timestamp_micros({micros}) AS STRING), 12)"
        return cell


@dataclass(frozen=True)
class Field:
    """One form of a field of the record, and the column that contains it.

    Attributes:
        name: the field.
        column: the column in the files.
        physical: how the column is read.
        declared: the type that the source declared, in files of our own.
        renamed: if values are names of fields: the renamed fields, with their current names.
        fallback: the same form of the field under another spelling of its column: it provides the
            values of the rows in which `column` has none.
    """

    name: str
    column: str
    physical: Physical
    declared: ColumnType | None = None
    renamed: tuple[tuple[str, str], ...] = ()
    fallback: Field | None = None

    @property
    def form(self) -> Form:
        """Return the form of the values."""
        return self.physical.form


Fields = dict[str, Field]


_TEXTS: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES: Final = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_binary_view,
)
_READ_AS: Final = (
    (
        lambda kind: any(is_text(kind) for is_text in _TEXTS),
        "string",
        Form.TEXT,
    ),
    (lambda kind: any(is_bytes(kind) for is_bytes in _BYTES), "binary", Form.TEXT),
    (pa.types.is_boolean, "boolean", Form.BOOLEAN),
    # Its greatest values exceed BIGINT.
    (pa.types.is_uint64, "decimal(20,0)", Form.TEXT),
    (pa.types.is_integer, "bigint", Form.INTEGER),
    (lambda kind: pa.types.is_float32(kind) or pa.types.is_float64(kind), "double", Form.FLOAT),
    (pa.types.is_date, "date", Form.DATE),
)
#: UUIDs in their usual notation, from the 16 bytes in a file.
_UUID: Final = "regexp_replace(lower(hex({})), '(.{8})(.{4})(.{4})(.{4})(.{12})', '$1-$2-$3-$4-$5')"
_BITS: Final = "CAST(conv(hex(concat(substring({}, 2, 1), substring({}, 1, 1))), 16, 10) AS INT)"
_FRACTION: Final = f"({_BITS} & 1023)"
_EXPONENT: Final = f"(shiftright({_BITS}, 10) & 31)"
#: Numbers of 16 bits (IEEE 754), from the two bytes in a file, little-endian.
_HALF: Final = (
    f"(IF({_BITS} >= 32768, -1D, 1D) * CASE {_EXPONENT} WHEN 0 THEN {_FRACTION} * power(2D, -24) "
    f"WHEN 31 THEN IF({_FRACTION} = 0, double('infinity'), double('NaN')) "
    f"ELSE (1D + {_FRACTION} / 1024D) * power(2D, {_EXPONENT} - 15) END)"
)
_JSON: Final = (
    "map('ignoreNullFields', 'false', "
    "'timestampFormat', \"yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]XXX\", "
    "'timestampNTZFormat', \"yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]\")"
)
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def physical(kind: pa.DataType) -> Physical:
    """Return how Spark reads a column of an Arrow type."""
    if pa.types.is_dictionary(kind):
        return physical(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.UuidType):
        return physical(kind.storage_type)
    if pa.types.is_nested(kind):
        return _nested_column(kind)
    return _of_time(kind) or _of_one_value(kind)


def _of_time(kind: pa.DataType) -> Physical | None:
    if pa.types.is_timestamp(kind):
        if kind.unit == "ns":
            return Physical("bigint", Form.TIMESTAMP, per_second=_PER_SECOND["ns"])
        return Physical("timestamp", Form.TIMESTAMP)
    if pa.types.is_time(kind):
        ddl = "int" if pa.types.is_time32(kind) else "bigint"
        return Physical(ddl, Form.TIME, per_second=_PER_SECOND[kind.unit])
    return None


def _of_one_value(kind: pa.DataType) -> Physical:
    if isinstance(kind, pa.UuidType):
        return Physical("binary", Form.TEXT, sql=_UUID)
    if pa.types.is_float16(kind):
        return Physical("binary", Form.FLOAT, sql=_HALF)
    if pa.types.is_decimal(kind) and kind.precision <= MAX_PRECISION:
        return Physical(f"decimal({kind.precision},{kind.scale})", Form.TEXT)
    found = (Physical(ddl, form) for fits, ddl, form in _READ_AS if fits(kind))
    return next(found, Physical(None, Form.TEXT))


# Nested values.


def _nested_column(kind: pa.DataType) -> Physical:
    """Return how Spark reads a column of structs, lists or maps: as JSON, nulls included."""
    ddl = _ddl(kind)
    if ddl is None:
        return Physical(None, Form.TEXT)
    return Physical(ddl, Form.TEXT, sql=f"to_json({_convert_parts(kind, '{}', 0)}, {_JSON})")


def _ddl(kind: pa.DataType) -> str | None:
    """Return the Spark type of a nested Arrow type; None if a part of it cannot be read."""
    if pa.types.is_struct(kind):
        parts = [(field.name, _ddl(field.type)) for field in kind]
        reported = [f"{quote(name)}: {ddl}" for name, ddl in parts if ddl is not None]
        return (
            f"struct<{', '.join(reported)}>" if reported and len(reported) == len(parts) else None
        )
    if pa.types.is_map(kind):
        key, item = _ddl(kind.key_type), _ddl(kind.item_type)
        return f"map<{key}, {item}>" if key and item else None
    if pa.types.is_nested(kind):
        item = _ddl(kind.value_type) if hasattr(kind, "value_type") else None
        return f"array<{item}>" if item else None
    return physical(kind).ddl


def _convert_parts(kind: pa.DataType, cell: str, depth: int) -> str:
    """Return SQL for a nested value in which Spark's value of every part is converted."""
    if not pa.types.is_nested(kind):
        return physical(kind).value(cell)
    one, other = f"one{depth}", f"other{depth}"
    if pa.types.is_struct(kind):
        parts = []
        for field in kind:
            part = _convert_parts(field.type, f"{cell}.{quote(field.name)}", depth)
            parts.append(f"{literal(field.name)}, {part}")
        found = f"IF({cell} IS NULL, NULL, named_struct({', '.join(parts)}))"
        changes = any(_changes(field.type) for field in kind)
    elif pa.types.is_map(kind):
        item = _convert_parts(kind.item_type, other, depth + 1)
        found = f"transform_values({cell}, ({one}, {other}) -> {item})"
        changes = _changes(kind.item_type)
    else:
        found = f"transform({cell}, {one} -> {_convert_parts(kind.value_type, one, depth + 1)})"
        changes = _changes(kind.value_type)
    return found if changes else cell


def _changes(kind: pa.DataType) -> bool:
    """Return whether Spark's value of a type, or of a part of it, has to be converted."""
    return _convert_parts(kind, "{}", 0) != "{}"


def fields_of(columns: Mapping[str, Physical], *, has_typed: bool = True) -> Fields:
    """Return the fields of a file by its columns, including those of the lake itself.

    Args:
        columns: the file's columns.
        has_typed: whether columns such as `X_b` contain typed values of other fields; not in a
            Data Lake v1.
    """
    found: Fields = {}
    # Shorter names first: a typed column belongs to a field that is already known.
    for name in sorted(columns, key=lambda column: (len(column), column)):
        stem = _stem_of(name, columns[name])
        is_typed = (
            has_typed
            and stem in found
            and found[stem].name == stem
            and found[stem].form is Form.TEXT
            and stem not in OF_THE_LAKE
            and name not in OF_THE_LAKE
        )
        field = stem if is_typed and stem else _SPELLINGS.get(name, name)
        found[name] = Field(field, name, columns[name])
    return {name: found[name] for name in columns}


def _stem_of(name: str, column: Physical) -> str | None:
    for suffix, form in SUFFIXES.items():
        if name.endswith(suffix) and column.form is form:
            return name.removesuffix(suffix)
    return None


#: The column that contains a form of a field.
_Places = dict[tuple[str, Form], str]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Group:
    """Files that can be read together.

    Attributes:
        fields: their fields, by column.
        files: their numbers in the list that was grouped.
    """

    fields: Fields
    files: tuple[int, ...]


def group_files(
    schemas: Iterable[tuple[Fields, AbstractSet[str], Sequence[int]]],
) -> list[Group]:
    """Group files into few groups in which each column has one meaning and each form one column.

    Args:
        schemas: the fields of files, their other columns that are not read, and the numbers of the
            files that have them.
    """
    groups: list[tuple[Fields, _Places, set[str], list[int]]] = []
    # Schemas with most columns first: the others mostly fit into them.
    for fields, unread, files in sorted(schemas, key=lambda item: (-len(item[0]), tuple(item[2]))):
        places = {(field.name, field.form): column for column, field in fields.items()}
        for known, known_places, known_unread, members in groups:
            # Spark refuses a file's column if its type differs from the type as which it is read.
            is_read = not (unread & known.keys() or known_unread & fields.keys())
            if is_read and _agree(known, fields) and _agree(known_places, places):
                known.update(fields)
                known_places.update(places)
                known_unread.update(unread)
                members.extend(files)
                break
        else:
            groups.append((dict(fields), places, set(unread), list(files)))
    return [Group(fields, tuple(sorted(files))) for fields, _, _, files in groups]


def _agree(known: Mapping[_Key, _Value], other: Mapping[_Key, _Value]) -> bool:
    return all(known.get(key, value) == value for key, value in other.items())


def by_field(fields: Fields) -> dict[str, dict[Form, Field]]:
    """Return the forms of every field, two spellings of one column merged."""
    found: dict[str, dict[Form, Field]] = {}
    # The documented spelling is first.
    for field in sorted(fields.values(), key=lambda field: field.column in _SPELLINGS):
        forms = found.setdefault(field.name, {})
        known = forms.get(field.form)
        forms[field.form] = field if known is None else replace(known, fallback=field)
    return found


def is_field(name: str, *, is_hourly: bool = False) -> bool:
    """Return whether a column is a field of the record, as opposed to one of the lake itself.

    Args:
        name: the column.
        is_hourly: whether the file is of a Data Lake v1.
    """
    return name not in (_OF_HOURLY_LAKE if is_hourly else OF_THE_LAKE)


def is_time(name: str) -> bool:
    """Return whether a column of the lake itself is a time."""
    return name in _TIMES
