"""Which type holds the values of a field, whose files do not agree on one.

A field's values come in forms: texts, and typed values beside them. What forms were ever seen of a
field, in whatever order, decides its type: the narrowest that holds them all.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from chronolake.types import ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

_INTS: Final = (-(2**31), 2**31 - 1)
#: Beyond, not every integer is a double.
_EXACT: Final = 2**53


class Form(StrEnum):
    """How a field's value is written."""

    TEXT = "text"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    FLOAT = "float"
    TIMESTAMP = "timestamp"
    TIME = "time"
    DATE = "date"


class Seen(StrEnum):
    """What was seen of a field's values, as far as its type depends on it."""

    TEXT = "text"
    BOOLEAN = "boolean"
    #: An integer of 32 bits, of more, and one that is no double.
    INT = "int"
    LONG = "long"
    WIDE = "wide"
    FLOAT = "float"
    TIMESTAMP = "timestamp"
    TIME = "time"
    DATE = "date"


_ALONE: Final = {
    Seen.BOOLEAN: Kind.BOOLEAN,
    Seen.FLOAT: Kind.DOUBLE,
    Seen.TIMESTAMP: Kind.UTC_DATETIME,
    Seen.TIME: Kind.NAIVE_TIME,
    Seen.DATE: Kind.NAIVE_DATE,
}
_INTEGERS: Final = {Seen.INT, Seen.LONG, Seen.WIDE}


def of_integers(least: int, greatest: int) -> Seen:
    """What integers between two bounds, which are among them, amount to."""
    if _INTS[0] <= least and greatest <= _INTS[1]:
        return Seen.INT
    return Seen.LONG if least >= -_EXACT and greatest <= _EXACT else Seen.WIDE


def type_of(seen: Iterable[Seen]) -> ColumnType | None:
    """The narrowest type that holds all values of a field, or None if it never had one."""
    every = set(seen)
    if not every:
        return None
    if every <= _INTEGERS:
        return ColumnType(Kind.INT if every == {Seen.INT} else Kind.LONG)
    if every <= {Seen.INT, Seen.LONG, Seen.FLOAT}:
        return ColumnType(Kind.DOUBLE)
    if len(every) == 1:
        return ColumnType(_ALONE.get(every.pop(), Kind.STRING))
    return ColumnType(Kind.STRING)
