"""Decoder of table maps: the description of a table that precedes its changes in the binary log.

Source: MySQL's source documentation, "Table_map_event". With `binlog_row_metadata=FULL`, a table
map contains everything that is needed to read the rows after it: names, signs, character sets,
labels and the primary key, as they were at the time of the change. The log is therefore understood
without the statements that altered the table, and without the present catalog.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from chronolake.errors import SourceError
from chronolake.source.mysql.fields import FieldReader, log_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class LogType(IntEnum):
    """The type of a column in the log (`enum_field_types`)."""

    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    VARCHAR = 15
    BIT = 16
    TIMESTAMP2 = 17
    DATETIME2 = 18
    TIME2 = 19
    COMPRESSED_BLOB = 140
    COMPRESSED_VARCHAR = 141
    VECTOR = 242
    JSON = 245
    NEWDECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


#: The collation of values that are bytes.
BINARY_COLLATION: Final = 63
_UTF8_COLLATION: Final = 45
_T = LogType
_METADATA_BYTES: Final = {
    **dict.fromkeys((_T.VARCHAR, _T.VAR_STRING, _T.STRING, _T.NEWDECIMAL, _T.BIT), 2),
    **dict.fromkeys((_T.ENUM, _T.SET, _T.COMPRESSED_VARCHAR), 2),
    **dict.fromkeys((_T.FLOAT, _T.DOUBLE, _T.TIMESTAMP2, _T.DATETIME2, _T.TIME2), 1),
    **dict.fromkeys((_T.TINY_BLOB, _T.MEDIUM_BLOB, _T.LONG_BLOB, _T.BLOB), 1),
    **dict.fromkeys((_T.JSON, _T.GEOMETRY, _T.VECTOR, _T.COMPRESSED_BLOB), 1),
}
#: Types whose signs are described; a bit for each.
_NUMERIC: Final = frozenset(
    {
        *(_T.TINY, _T.SHORT, _T.INT24, _T.LONG, _T.LONGLONG, _T.YEAR),
        *(_T.NEWDECIMAL, _T.FLOAT, _T.DOUBLE),
    }
)
#: Types whose character sets are described.
_CHARACTER: Final = frozenset(
    {_T.STRING, _T.VAR_STRING, _T.VARCHAR, _T.BLOB, _T.COMPRESSED_BLOB, _T.COMPRESSED_VARCHAR}
)
#: Signs are sent in whole bytes.
_BITS: Final = 8
_LABELLED: Final = frozenset({_T.ENUM, _T.SET})
#: Numbers of optional fields: collations of texts or of labels, which may have a default.
_OF_TEXTS: Final = frozenset({2, 3})
_WITH_DEFAULT: Final = frozenset({2, 10})
_SET_LABELS: Final = 5
_KEY_WITH_PREFIXES: Final = 9
#: Bytes of a table map before its payload: the table's number and flags.
_POST_HEADER: Final = 8


@dataclass(frozen=True)
class LogColumn:
    """A column of a table as the log describes it.

    Attributes:
        name: its name; empty if the log does not contain names.
        type: its type.
        metadata: lengths, precision or similar, in the form that depends on the type.
        is_unsigned: whether a number has no sign.
        collation: the number of its collation; `BINARY_COLLATION` for bytes; None without.
        labels: the labels of an ENUM or a SET, in their order, as bytes in the character set of
            `collation`.
        is_identity: whether it belongs to the primary key.
        is_prefix_identity: whether only a prefix of it does.
    """

    name: str
    type: LogType
    metadata: tuple[int, ...] = ()
    is_unsigned: bool = False
    collation: int | None = None
    labels: tuple[bytes, ...] = ()
    is_identity: bool = False
    is_prefix_identity: bool = False

    def as_text(self) -> LogColumn:
        """Return the column with texts instead of its values."""
        return replace(self, type=LogType.VARCHAR, collation=_UTF8_COLLATION)


@dataclass(frozen=True)
class Relation:
    """A table's description that applies to the changes after it.

    Attributes:
        schema: its database.
        name: its name.
        columns: its columns, in the order of the values in rows.
    """

    schema: str
    name: str
    columns: tuple[LogColumn, ...]

    @property
    def has_names(self) -> bool:
        """Return whether the log contains the columns' names."""
        return all(column.name for column in self.columns)


def decode_table_map(event: bytes, *, is_mariadb: bool) -> Relation:
    """Decode a table map.

    Args:
        event: the event after its header of 19 bytes, without a checksum.
        is_mariadb: whether the server is MariaDB, which also describes the collations of
            geometries.

    Raises:
        SourceError: it is not valid, or has a column of an unknown type.
    """
    reader = FieldReader(event, _POST_HEADER)
    schema, table = _read_name(reader)
    number = reader.number()
    types = reader.take(number)
    columns = list(_typed_columns(types, FieldReader(reader.text()), f"{schema}.{table}"))
    reader.take((number + 7) // 8)
    has_charset = _has_charset_in_mariadb if is_mariadb else _has_charset
    while not reader.is_at_end:
        kind = reader.byte()
        columns = _described(columns, kind, FieldReader(reader.text()), has_charset)
    return Relation(schema, table, tuple(columns))


def decode_table_name(event: bytes) -> tuple[str, str]:
    """Return the database and the name of the table that an event describes.

    Args:
        event: the event after its header of 19 bytes.

    Raises:
        SourceError: it is not valid.
    """
    return _read_name(FieldReader(event, _POST_HEADER))


def _read_name(reader: FieldReader) -> tuple[str, str]:
    schema = reader.take(reader.byte()).decode()
    reader.byte()
    table = reader.take(reader.byte()).decode()
    reader.byte()
    return schema, table


def _typed_columns(types: bytes, metadata: FieldReader, table: str) -> Iterator[LogColumn]:
    for code in types:
        try:
            kind = LogType(code)
        except ValueError:
            raise SourceError(
                f"The table {table} has a column of the type {code}, which is not supported.",
                hint="Exclude the table: tables: {exclude: [...]} in chronolake.yml.",
            ) from None
        given = tuple(metadata.take(_METADATA_BYTES.get(kind, 0)))
        if kind is LogType.STRING and given[0] in {LogType.ENUM, LogType.SET}:
            # ENUM and SET are sent as STRING, with their own type in the metadata.
            kind = LogType(given[0])
        yield LogColumn("", kind, given)


def _described(
    columns: Sequence[LogColumn], kind: int, field: FieldReader, has_charset: Callable[..., bool]
) -> list[LogColumn]:
    """Return columns with what an optional field contains of them."""
    found = list(columns)
    for place, change in _descriptions(found, kind, field, has_charset):
        found[place] = replace(found[place], **change)
    return found


def _descriptions(
    columns: Sequence[LogColumn], kind: int, field: FieldReader, has_charset: Callable[..., bool]
) -> Iterator[tuple[int, dict[str, Any]]]:
    match kind:
        case 1:
            yield from _signs(_places(columns, _is_numeric), field.data)
        case 2 | 3 | 10 | 11:
            places = _places(columns, has_charset if kind in _OF_TEXTS else _has_labels)
            numbers = _collations(field, len(places), has_default=kind in _WITH_DEFAULT)
            yield from zip(places, ({"collation": number} for number in numbers), strict=True)
        case 4:
            for place in range(len(columns)):
                yield place, {"name": field.text().decode()}
        case 5 | 6:
            kind_of_labels = LogType.SET if kind == _SET_LABELS else LogType.ENUM
            for place, column in enumerate(columns):
                if column.type is kind_of_labels:
                    yield place, {"labels": tuple(field.text() for _ in range(field.number()))}
        case 8 | 9:
            while not field.is_at_end:
                place = field.number()
                is_prefix = kind == _KEY_WITH_PREFIXES and field.number() > 0
                yield place, {"is_identity": True, "is_prefix_identity": is_prefix}
        # The types of geometries, and which columns are invisible, do not matter here.


def _collations(field: FieldReader, columns: int, *, has_default: bool) -> list[int]:
    if not has_default:
        return [field.number() for _ in range(columns)]
    collations = [field.number()] * columns
    while not field.is_at_end:
        place = field.number()
        collations[place] = field.number()
    return collations


def _signs(numeric: Sequence[int], data: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    bits = list(_bits(data))
    if not 0 <= len(bits) - len(numeric) < _BITS:
        raise log_error(f"the signs of {len(numeric)} numeric columns have {len(bits)} bits")
    # The last byte is filled up.
    yield from zip(numeric, ({"is_unsigned": bit} for bit in bits), strict=False)


def _bits(data: bytes) -> Iterator[bool]:
    for byte in data:
        for bit in reversed(range(_BITS)):
            yield bool(byte >> bit & 1)


def _places(columns: Sequence[LogColumn], is_meant: Callable[[LogColumn], bool]) -> list[int]:
    return [place for place, column in enumerate(columns) if is_meant(column)]


def _is_numeric(column: LogColumn) -> bool:
    return column.type in _NUMERIC


def _has_charset(column: LogColumn) -> bool:
    return column.type in _CHARACTER


def _has_charset_in_mariadb(column: LogColumn) -> bool:
    return column.type in _CHARACTER or column.type is LogType.GEOMETRY


def _has_labels(column: LogColumn) -> bool:
    return column.type in _LABELLED
