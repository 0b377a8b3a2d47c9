"""Changing the type of stored values: what Iceberg does in place, and what needs a rewrite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa  # noqa: TC002 - Spark reads the annotation
from pyspark.sql import functions as F  # noqa: N812

from chronolake.texts.columns import EMPTY_IS_VALUE, TEXT_KINDS, fitting
from chronolake.types import ColumnType, Kind

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression

_WHOLE: Final = {Kind.SHORT, Kind.INT, Kind.LONG}
_FLOATING: Final = {Kind.FLOAT, Kind.DOUBLE}
_NUMBERS: Final = _WHOLE | _FLOATING | {Kind.DECIMAL, Kind.BOOLEAN}
_TIMES: Final = {Kind.NAIVE_DATE, Kind.NAIVE_DATETIME, Kind.UTC_DATETIME}
_SHORT_LIMITS: Final = (-(2**15), 2**15 - 1)
_WIDENING: Final = {
    (Kind.SHORT, Kind.INT),
    (Kind.SHORT, Kind.LONG),
    (Kind.INT, Kind.LONG),
    (Kind.FLOAT, Kind.DOUBLE),
    (Kind.NAIVE_TIME, Kind.STRING),
}


def is_in_place(old: ColumnType, new: ColumnType) -> bool:
    """Whether a column's type can change without touching its values."""
    if old.kind is Kind.DECIMAL and new.kind is Kind.DECIMAL:
        return old.scale == new.scale and (new.precision or 0) >= (old.precision or 0)
    if old.kind in TEXT_KINDS and new.kind in TEXT_KINDS:
        return True
    return (old.kind, new.kind) in _WIDENING


def converted(value: Expression, old: ColumnType, new: ColumnType) -> Expression:
    """A value in its new type, or null where it does not fit.

    Texts are read and written as batch files do (`seeds/destination-connector.txt`, "Examples of
    data types"), but for bytes, which are a text's UTF-8. Numbers are no times, and times no
    numbers: no unit is theirs. What has a fraction is rounded: half up to a decimal with fewer
    digits, and to the nearest floating-point number, which must be finite. Otherwise a value fits
    if it would come back as it was.
    """
    if new.kind is Kind.BINARY:
        return _as_text(value, old.kind).cast("binary")
    if new.kind in TEXT_KINDS and old.kind is Kind.BINARY:
        return F.when(F.call_function("is_valid_utf8", value.cast("string")), value.cast("string"))
    if new.kind in TEXT_KINDS:
        return _as_text(value, old.kind)
    if old.kind in TEXT_KINDS:
        return _read(value, new)
    if not any({old.kind, new.kind} <= alike for alike in (_NUMBERS, _TIMES)):
        return F.lit(None).cast(new.sql)
    return _cast(value, old, new)


def is_lost(value: Expression, result: Expression, old: ColumnType, new: ColumnType) -> Expression:
    """Whether `converted` made null of a value that is something.

    An empty text is nothing where it is no value of the new type, as in batch files.
    """
    is_value = value.isNotNull()
    if old.kind in TEXT_KINDS and new.kind not in EMPTY_IS_VALUE:
        is_value &= value != ""
    return is_value & result.isNull()


def _read(text: Expression, kind: ColumnType) -> Expression:
    def read(texts: pa.Array) -> pa.Array:
        return fitting(texts, kind)

    return F.arrow_udf(read, kind.sql)(text)


def _cast(value: Expression, old: ColumnType, new: ColumnType) -> Expression:
    result = value.try_cast(new.sql)
    if new.kind is Kind.SHORT:
        result = F.when(result.between(*_SHORT_LIMITS), result)
    if new.kind not in {*_FLOATING, Kind.DECIMAL} or old.kind in _WHOLE:
        # What does not come back as it was has lost something: a fraction, a time of day, a number
        # that became true.
        result = F.when(result.try_cast(old.sql).eqNullSafe(value), result)
    if new.kind in _FLOATING:
        if old.kind in _WHOLE:
            # This one comes back as the greatest of all, which it is not.
            result = F.when(result < F.lit(2.0**63), result)
        overflows = F.abs(result) == F.lit(float("inf")).cast(new.sql)
        was_infinite = F.abs(value.try_cast("double")) == F.lit(float("inf"))
        result = F.when(~overflows | was_infinite, result)
    return result


def _as_text(value: Expression, kind: Kind) -> Expression:
    match kind:
        case Kind.UTC_DATETIME:
            return F.concat(_iso(value), F.lit("Z"))
        case Kind.NAIVE_DATETIME:
            return _iso(value)
        case _:
            return value.cast("string")


def _iso(value: Expression) -> Expression:
    """An ISO time without the zeros that end its fraction, and without an empty fraction."""
    seconds = F.date_format(value, "yyyy-MM-dd'T'HH:mm:ss")
    fraction = F.regexp_replace(F.date_format(value, "SSSSSS"), "0+$", "")
    return F.concat(seconds, F.when(fraction != "", F.concat(F.lit("."), fraction)).otherwise(""))
