"""Formatting for people: cell values as text, counts, sizes, and hints for unknown names.

Cell values have forms for people, for JSON and for one line of a terminal. The other direction is
here, too: `parse_key_value` parses a key's text into a stored value.

Times stay integers until they are formatted, because Python's datetime overflows near both ends of
the supported range. Values for the terminal can neither break its layout nor control it.
"""

from __future__ import annotations

import base64
import difflib
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
from rich.text import Text

from chronolake.errors import ValueRefusedError
from chronolake.types import Column, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chronolake.types import TableName


_STEP: Final = 1024


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a hint for an unknown name.

    Args:
        name: the unknown name.
        known: the valid names.
        otherwise: the hint if no valid name is similar.
    """
    near = _nearest(name, known)
    return otherwise if near is None else f"Did you mean {near!r}?"


def unknown_table_hint(name: str, known: Iterable[str]) -> str:
    """Return a hint for a table that does not exist.

    Args:
        name: the table's name as it is printed.
        known: the names of the lake's tables.
    """
    near = _nearest(name, known)
    # Without quotes, as commands accept it.
    reported = "" if near is None else f"Did you mean {near}? "
    return f"{reported}`chronolake tables` lists the tables; names are case-sensitive."


def _nearest(name: str, known: Iterable[str]) -> str | None:
    names = list(known)
    by_case = {known_name.casefold(): known_name for known_name in names}
    if name.casefold() in by_case:
        return by_case[name.casefold()]
    return next(iter(difflib.get_close_matches(name, names, n=1)), None)


def format_count(number: int, noun: str) -> str:
    """Format a count: "1 stream", "2 streams", "1,000 records"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size(count: int) -> str:
    """Format a number of bytes: 1.5 MiB."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < _STEP:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= _STEP
    return f"{amount:,.1f} TiB"


#: A cell in JSON; decimals, times, dates and binary values are strings.
Cell: TypeAlias = str | int | float | bool | None

_WITHOUT_JSON = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}
#: Example of a value of each kind except strings.
EXAMPLES = {
    Kind.BOOLEAN: "true",
    Kind.SHORT: "42",
    Kind.INT: "42",
    Kind.LONG: "42",
    Kind.FLOAT: "12.5",
    Kind.DOUBLE: "12.5",
    Kind.DECIMAL: "12.50",
    Kind.NAIVE_DATE: "2024-02-29",
    Kind.NAIVE_DATETIME: "2024-02-29T10:15:30",
    Kind.UTC_DATETIME: "2024-02-29T10:15:30.123Z",
    Kind.NAIVE_TIME: "10:15:30",
    Kind.BINARY: "base64, such as AAEC",
}


def instant(micros: int, *, zone: str = "Z") -> str:
    """Format microseconds since 1970-01-01T00:00:00 UTC as ISO 8601, without trailing zeros.

    Args:
        micros: any time from the year 1 to 9999 and beyond.
        zone: suffix after the digits; the empty string for a time without a time zone.
    """
    text = str(np.datetime64(micros, "us"))
    whole, _, fraction = text.partition(".")
    fraction = fraction.rstrip("0")
    if fraction:
        # Milliseconds are written with three digits, as in the batch files.
        return f"{whole}.{fraction.ljust(3, '0')}{zone}"
    return whole + zone


def date(days: int) -> str:
    """Format days since 1970-01-01 as ISO 8601."""
    return str(np.datetime64(days, "D"))


def cells(values: pa.ChunkedArray | pa.Array) -> list[Cell]:
    """Convert a column of any stored type to cells."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        zone = "Z" if kind.tz else ""
        return [
            None if micros is None else instant(micros * _UNITS.get(kind.unit, 1), zone=zone)
            for micros in values.cast(pa.int64()).to_pylist()
        ]
    if pa.types.is_date32(kind):
        days = values.cast(pa.int32()).to_pylist()
        return [None if day is None else date(day) for day in days]
    if pa.types.is_float32(kind):
        return [None if value is None else single(value) for value in values.to_pylist()]
    return [plain(value) for value in values.to_pylist()]


def single(value: float) -> Cell:
    """Convert a four-byte float by its shortest text: 0.1, not 0.10000000149011612."""
    return plain(float(str(np.float32(value))))


def plain(value: object) -> Cell:
    """Convert a value that is neither a date nor a time to a cell; bytes become base64."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else _WITHOUT_JSON[str(value)]
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def parse_key_value(
    column: Column, text: str, *, table: str
) -> str | int | float | bool | bytes | Decimal:
    """Parse a text into the stored value: times in microseconds, dates in days since 1970.

    Raises:
        ValueRefusedError: the text is not a valid value of the column's type.
    """
    kind = column.type.kind
    try:
        if kind is Kind.BINARY:
            return base64.b64decode(text, validate=True)
        value = pa.scalar(text).cast(column.type.arrow)
    except (ValueError, pa.ArrowException) as failure:
        example = EXAMPLES.get(kind)
        raise ValueRefusedError(
            f"The key's value is not a valid {column.type}.",
            hint=f"Write it like {example}." if example else None,
            table=table,
            column=column.name,
        ) from failure
    if kind in {Kind.NAIVE_DATE, Kind.NAIVE_DATETIME, Kind.UTC_DATETIME}:
        return int(value.value)
    result: str | int | float | bool | Decimal = value.as_py()
    return result


#: Number of characters of a value that are shown.
LONGEST: Final = 120
_LONGEST_NAME: Final = 1_000


def cell(value: Cell) -> Text:
    """Format a cell on one line, as `label`; strings that look like null or nothing are quoted."""
    if value is None:
        return Text("null", style="dim italic")
    if isinstance(value, bool):
        return Text("true" if value else "false")
    if value in {"", "null"}:
        return Text(f'"{value}"')
    return label(str(value))


def name_of(table: TableName) -> str:
    """Format a table's name in full, as commands accept it, on one line."""
    return label(str(table), longest=_LONGEST_NAME).plain


def label(text: str, *, longest: int = LONGEST) -> Text:
    """Format a text on one line: escape unprintable characters and truncate long texts."""
    # Escaped, a value can neither break the layout nor control the terminal.
    shown = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text[:longest]
    )
    if len(text) > longest:
        shown += f"… ({len(text):,} characters)"
    return Text(shown)
