"""Which type holds the values of a field, whose files do not agree on one.

A field's values come in forms: texts, and typed values beside them. What forms were ever seen of a
field, in whatever order, decides its type: the narrowest that holds them all. In files of our own a
field has the type that its source declared instead.
"""

from __future__ import annotations

from enum import StrEnum
from functools import reduce
from typing import TYPE_CHECKING, Final

from chronolake.types import MAX_PRECISION, ColumnType, Kind

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


#: How the values of a type are written, where there is more to write than a text.
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


#: What decides a field's type: a form that was seen, or a type that its source declared.
Mark = Seen | ColumnType

_EVERY_SEEN: Final = frozenset(Seen)

_ALONE: Final = {
    Seen.BOOLEAN: Kind.BOOLEAN,
    Seen.FLOAT: Kind.DOUBLE,
    Seen.TIMESTAMP: Kind.UTC_DATETIME,
    Seen.TIME: Kind.NAIVE_TIME,
    Seen.DATE: Kind.NAIVE_DATE,
}
_INTEGERS: Final = {Seen.INT, Seen.LONG, Seen.WIDE}
#: Whole numbers, and how many digits they have at most.
_DIGITS: Final = {Kind.SHORT: 5, Kind.INT: 10, Kind.LONG: 19}
_EXACT_AS_DOUBLE: Final = {Kind.SHORT, Kind.INT, Kind.FLOAT, Kind.DOUBLE}


def of_integers(least: int, greatest: int) -> Seen:
    """What integers between two bounds, which are among them, amount to."""
    if _INTS[0] <= least and greatest <= _INTS[1]:
        return Seen.INT
    return Seen.LONG if least >= -_EXACT and greatest <= _EXACT else Seen.WIDE


def mark(text: str) -> Mark:
    """A mark by its text: the inverse of `str`."""
    return Seen(text) if text in _EVERY_SEEN else ColumnType.parse(text)


def type_of(marks: Iterable[Mark]) -> ColumnType | None:
    """The narrowest type that holds all values of a field, or None if it never had one."""
    every = set(marks)
    declared = [mark for mark in every if isinstance(mark, ColumnType)]
    if declared:
        return reduce(wider, declared) if len(declared) == len(every) else ColumnType(Kind.STRING)
    if not every:
        return None
    if every <= _INTEGERS:
        return ColumnType(Kind.INT if every == {Seen.INT} else Kind.LONG)
    if every <= {Seen.INT, Seen.LONG, Seen.FLOAT}:
        return ColumnType(Kind.DOUBLE)
    seen = every.pop()
    if every or not isinstance(seen, Seen):
        return ColumnType(Kind.STRING)
    return ColumnType(_ALONE.get(seen, Kind.STRING))


def wider(one: ColumnType, other: ColumnType) -> ColumnType:
    """The narrowest type that holds all values of two types without a loss.

    In whatever order types are put together, the result is the same.
    """
    if one == other:
        return one
    kinds = {one.kind, other.kind}
    if kinds <= _DIGITS.keys():
        return max(one, other, key=lambda kind: _DIGITS[kind.kind])
    if kinds <= _EXACT_AS_DOUBLE:
        return ColumnType(Kind.DOUBLE)
    if kinds <= {*_DIGITS, Kind.DECIMAL}:
        whole = max(_whole_digits(one), _whole_digits(other))
        scale = max(one.scale or 0, other.scale or 0)
        if whole + scale <= MAX_PRECISION:
            return ColumnType(Kind.DECIMAL, whole + scale, scale)
    return ColumnType(Kind.STRING)


def _whole_digits(kind: ColumnType) -> int:
    if kind.kind is Kind.DECIMAL:
        return (kind.precision or 0) - (kind.scale or 0)
    return _DIGITS[kind.kind]
