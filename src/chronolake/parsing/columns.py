"""Parsing of columns of texts to typed Arrow arrays, and of single values.

Parsers are vectorized where that is exact, and cell by cell elsewhere. `cells` is the reference for
every text: each fast parser here either returns the same values or returns None, so that `cells`
decides, or finds the cell that must be refused.

Single texts outside a batch file are parsed like a batch file's cells.
"""

from __future__ import annotations

import re
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronolake.errors import ValueRefusedError
from chronolake.parsing import cells
from chronolake.types import LAST_MICROS, MAX_PRECISION, TMIN_MICROS, ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Callable


TEXT_KINDS: Final = frozenset({Kind.STRING, Kind.JSON, Kind.XML})

#: Types in which an empty cell is a value; for others it is NULL.
EMPTY_IS_VALUE: Final = TEXT_KINDS | {Kind.BINARY}

#: The types that PyArrow's reader parses itself; decimals not always. Local times are not among
#: them, because PyArrow accepts parts of them, such as a day alone.
_DIRECT: Final[dict[Kind, pa.DataType]] = {
    **{
        kind: ColumnType(kind).arrow
        for kind in Kind
        if kind not in {Kind.DECIMAL, Kind.BINARY, Kind.NAIVE_DATETIME, Kind.NAIVE_TIME}
    },
    # Refuses values that are out of range.
    Kind.SHORT: pa.int16(),
}
# At a larger scale, a precision of 38 - scale is less than the scale itself.
_LARGEST_DIRECT_SCALE: Final = 19

MOVED: Final = "moved_into_years_1_to_9999"
ROUNDED: Final = "rounded_to_scale"
NOT_BASE64: Final = "not_base64_kept_as_text"

_CLOCKS: Final = r"^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?$"
#: Times with fewer characters have no seconds.
_SECONDS_FROM: Final = len("0001-01-01T00:00:00")
_WITHOUT_SECONDS: Final = r"^([0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2})(Z?)$"
# Seconds, then up to six digits that are kept; further digits are truncated.
_INSTANTS: Final = (
    r"^(?P<whole>[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"((?P<fraction>\.[0-9]{1,6})[0-9]*)?(?P<zone>Z?)$"
)
_WIDE: Final = 76


class CellRefusedError(Exception):
    """A cell is not a valid value of its column's type.

    Attributes:
        index: its position in the array.
        reason: the reason, without the cell's text.
        is_too_great: whether the cell fits a wider type.
    """

    def __init__(self, index: int, reason: str, *, is_too_great: bool = False) -> None:
        super().__init__(reason)
        self.index = index
        self.reason = reason
        self.is_too_great = is_too_great


def direct_type(kind: ColumnType) -> pa.DataType | None:
    """Return the type with which PyArrow's CSV reader may parse a column of this kind, or None.

    PyArrow's decimals overflow silently if a value at the column's scale has more digits than fit
    in 128 bits. PyArrow does refuse more digits than the type's precision, so that a precision of
    at most 38 less the scale makes it exact.
    """
    if kind.kind is not Kind.DECIMAL:
        return _DIRECT.get(kind.kind)
    precision, scale = kind.precision or 0, kind.scale or 0
    if scale > _LARGEST_DIRECT_SCALE:
        return None
    return pa.decimal128(min(precision, MAX_PRECISION - scale), scale)


def finalize(array: pa.Array, kind: ColumnType, tally: Counter[str]) -> pa.Array | None:
    """Convert an array from PyArrow's CSV reader to the column's type and range.

    Args:
        array: an array of the type from `direct_type`.
        kind: the column's type.
        tally: counts moved values.

    Returns:
        The array in its final type, or None if the text must be parsed.
    """
    match kind.kind:
        case Kind.SHORT:
            return array.cast(pa.int32())
        case Kind.FLOAT | Kind.DOUBLE:
            # An infinity may be a finite text that is too great for the type.
            return array if pc.all(pc.is_finite(array)).as_py() in (True, None) else None
        case Kind.DECIMAL:
            return _fit_precision(array, kind)
        case Kind.NAIVE_DATE:
            return clamp(array, pa.int32(), cells.FIRST_DAY, cells.LAST_DAY, tally)
        case Kind.NAIVE_DATETIME | Kind.UTC_DATETIME:
            return clamp(array, pa.int64(), TMIN_MICROS, LAST_MICROS, tally)
        case _:
            return array


def parse_texts(texts: pa.Array, kind: ColumnType, tally: Counter[str]) -> pa.Array:
    """Convert texts of cells to an array of the column's Arrow type.

    Args:
        texts: binary or string; null where the cell is NULL or unmodified. An empty text is NULL
            unless the column contains texts or bytes.
        kind: the column's type.
        tally: counts values that were moved, rounded or not Base64.

    Raises:
        CellRefusedError: for the first cell that does not fit.
    """
    if kind.kind is Kind.BINARY:
        return _parse_base64(texts, tally)
    text = _utf8(texts)
    if kind.kind in TEXT_KINDS:
        return text
    text = pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)
    if text.null_count == len(text):
        return pa.nulls(len(text), kind.arrow)
    try:
        array = _QUICK[kind.kind](text, kind, tally)
    except pa.ArrowException:
        array = None
    return _parse_each(text, kind, tally) if array is None else array


def parse_fitting(texts: pa.Array, kind: ColumnType) -> pa.Array:
    """Convert texts of cells to an array of the column's Arrow type, with null if one does not fit.

    As in batch files, times outside the years 1 to 9999 are moved to the nearest time in range.
    """
    tally: Counter[str] = Counter()
    try:
        return parse_texts(texts, kind, tally)
    except CellRefusedError:
        is_empty = pc.equal(texts, "")
        reported = pc.if_else(is_empty, pa.scalar(None, texts.type), texts)
        return _parse_each(reported, kind, tally, refuses=False)


def _utf8(texts: pa.Array) -> pa.Array:
    try:
        text = texts.cast(pa.string())
        text.validate(full=True)
    except pa.ArrowException:
        text = None
    if text is not None:
        return text
    for index, value in enumerate(texts.cast(pa.binary()).to_pylist()):
        try:
            (value or b"").decode()
        except UnicodeDecodeError:
            refused = index
            break
    raise CellRefusedError(refused, "it is not UTF-8")


def _parse_each(
    text: pa.Array, kind: ColumnType, tally: Counter[str], *, refuses: bool = True
) -> pa.Array:
    read = cells.READERS[kind.kind]
    note = ROUNDED if kind.kind is Kind.DECIMAL else MOVED
    values: list[cells.Value | None] = []
    adjusted = 0
    refused: CellRefusedError | None = None
    for index, cell in enumerate(text.to_pylist()):
        if cell is None:
            values.append(None)
            continue
        try:
            value, changed = read(cell, kind)
        except cells.RefusedError as error:
            if not refuses:
                values.append(None)
                continue
            too_great = isinstance(error, cells.TooGreatError)
            refused = CellRefusedError(index, str(error), is_too_great=too_great)
            break
        adjusted += changed
        values.append(value)
    if refused is not None:
        raise refused
    if adjusted:
        tally[note] += adjusted
    match kind.kind:
        case Kind.NAIVE_DATE:
            return pa.array(values, pa.int32()).cast(pa.date32())
        case Kind.NAIVE_DATETIME | Kind.UTC_DATETIME:
            return pa.array(values, pa.int64()).cast(kind.arrow)
        case _:
            return pa.array(values, kind.arrow)


def _parse_base64(texts: pa.Array, tally: Counter[str]) -> pa.Array:
    values: list[bytes | None] = []
    strange = 0
    for cell in texts.cast(pa.binary()):
        if not cell.is_valid:
            values.append(None)
            continue
        # Not copied: a cell may be large.
        value, fits = cells.octets(cell.as_buffer())
        strange += not fits
        values.append(value)
    if strange:
        tally[NOT_BASE64] += strange
    lengths = np.fromiter((len(value or b"") for value in values), np.int32, len(values))
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    are_there = pa.array([value is not None for value in values], pa.bool_())
    # Copied once; an array that grows with its values is copied several times.
    content = pa.py_buffer(b"".join(filter(None, values)))
    buffers = [are_there.buffers()[1], pa.py_buffer(offsets), content]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def clamp(
    array: pa.Array, width: pa.DataType, low: int, high: int, tally: Counter[str]
) -> pa.Array:
    """Move dates and times outside a range to its nearest end.

    Args:
        array: dates or times.
        width: the integer type in which they are stored.
        low: the least integer of the range.
        high: the greatest integer of the range.
        tally: counts moved values.
    """
    numbers = array.cast(width)
    span = pc.min_max(numbers)
    first, last = span["min"].as_py(), span["max"].as_py()
    if first is None or (low <= first and last <= high):
        return array
    bounds = pa.scalar(low, width), pa.scalar(high, width)
    kept = pc.max_element_wise(
        pc.min_element_wise(numbers, bounds[1], skip_nulls=False), bounds[0], skip_nulls=False
    )
    tally[MOVED] += pc.sum(pc.not_equal(kept, numbers)).as_py()
    return kept.cast(array.type)


def _fit_precision(array: pa.Array, kind: ColumnType) -> pa.Array | None:
    """Return decimals of the column's scale in its type; None if one has too many digits.

    PyArrow compares a text's digits with the precision before it adds zeros up to the scale.
    """
    precision, scale = kind.precision or 0, kind.scale or 0
    if array.type.precision > precision - scale:
        span = pc.min_max(array)
        limit = Decimal(10) ** (precision - scale)
        if span["max"].is_valid and not (
            -limit < span["min"].as_py() and span["max"].as_py() < limit
        ):
            return None
    if array.type == kind.arrow:
        return array
    return pa.Array.from_buffers(
        kind.arrow, len(array), array.buffers(), array.null_count, array.offset
    )


def _parse_integers(text: pa.Array, kind: ColumnType, tally: Counter[str]) -> pa.Array | None:
    if not _all_match(text, r"^-?[0-9]+$"):
        return None
    return finalize(text.cast(_DIRECT[kind.kind]), kind, tally)


def _parse_direct(text: pa.Array, kind: ColumnType, tally: Counter[str]) -> pa.Array | None:
    return finalize(text.cast(_DIRECT[kind.kind]), kind, tally)


def _parse_booleans(text: pa.Array, kind: ColumnType, tally: Counter[str]) -> pa.Array | None:
    lower = pc.utf8_lower(text)
    return _parse_direct(lower, kind, tally) if _all_match(lower, r"^(true|false)$") else None


def _parse_local_times(text: pa.Array, kind: ColumnType, tally: Counter[str]) -> pa.Array | None:
    if pc.min(pc.binary_length(text)).as_py() >= _SECONDS_FROM:
        try:
            return finalize(text.cast(kind.arrow), kind, tally)
        except pa.ArrowException:
            pass
    return _parse_times(text, kind, tally)


def _parse_times(text: pa.Array, kind: ColumnType, tally: Counter[str]) -> pa.Array | None:
    if pc.min(pc.binary_length(text)).as_py() < _SECONDS_FROM:
        text = pc.replace_substring_regex(text, _WITHOUT_SECONDS, r"\1:00\2")
    parts = pc.extract_regex(text, _INSTANTS)
    if parts.null_count != text.null_count:
        # Other formats, such as offsets: parsed by Arrow, which requires an offset in every text,
        # or by `cells`.
        return _parse_direct(text, kind, tally) if kind.kind is Kind.UTC_DATETIME else None
    whole, fraction = pc.struct_field(parts, "whole"), pc.struct_field(parts, "fraction")
    whole = pc.if_else(pc.is_valid(text), whole, pa.scalar(None, pa.string()))
    plain = pc.binary_join_element_wise(whole, fraction, "")
    times = finalize(plain.cast(pa.timestamp("us")), kind, tally)
    return None if times is None else times.cast(pa.int64()).cast(kind.arrow)


def _parse_clocks(text: pa.Array, kind: ColumnType, tally: Counter[str]) -> pa.Array | None:
    del kind, tally
    return trim_clocks(text) if _all_match(text, _CLOCKS) else None


def trim_clocks(clocks: pa.Array) -> pa.Array:
    """Return times of day `HH:MM:SS[.ffffff]` without trailing zeros of a fraction."""
    cut = pc.replace_substring_regex(clocks, r"(\.[0-9]*?)0+$", r"\1")
    return pc.replace_substring_regex(cut, r"\.$", "")


def _parse_decimals(text: pa.Array, kind: ColumnType, tally: Counter[str]) -> pa.Array | None:
    """Return Arrow's decimals, if the number of digits proves that they cannot overflow."""
    precision, scale = kind.precision or 0, kind.scale or 0
    whole = precision - scale
    longest = pc.max(pc.binary_length(text)).as_py()
    if longest <= whole and not _has_exponent(text):
        # Even all characters together cannot be too many digits before the point.
        try:
            return text.cast(kind.arrow)
        except pa.ArrowException:
            pass
    if not _all_match(text, rf"^[+-]?0*[0-9]{{0,{whole}}}(\.[0-9]*)?$") or longest > _WIDE:
        return None
    if _all_match(text, rf"^[+-]?[0-9]*(\.[0-9]{{0,{scale}}})?$"):
        return text.cast(kind.arrow)
    # Only the first digit beyond the scale decides how the last one is rounded.
    cut = pc.replace_substring_regex(text, rf"^(.*\.[0-9]{{{scale + 1}}})[0-9]*$", r"\1")
    exact = cut.cast(pa.decimal256(_WIDE, scale + 1))
    near = pc.round(exact, ndigits=scale, round_mode="half_towards_infinity")
    bound = pa.scalar(Decimal(10**whole), exact.type)
    if pc.any(pc.greater_equal(pc.abs(near), bound)).as_py():
        return None
    tally[ROUNDED] += pc.sum(pc.match_substring_regex(text, rf"\.[0-9]{{{scale}}}0*[1-9]")).as_py()
    return near.cast(pa.decimal256(_WIDE, scale)).cast(kind.arrow)


def _has_exponent(text: pa.Array) -> bool:
    """Return whether any text contains an E; by the bytes of the whole array, not cell by cell."""
    data = text.buffers()[2]
    if data is None:
        return False
    return bool(((np.frombuffer(data, dtype=np.uint8) | 0x20) == ord("e")).any())


def _all_match(text: pa.Array, pattern: str) -> bool:
    return pc.all(pc.match_substring_regex(text, pattern)).as_py() in (True, None)


_QUICK: Final[dict[Kind, Callable[[pa.Array, ColumnType, Counter[str]], pa.Array | None]]] = {
    Kind.BOOLEAN: _parse_booleans,
    Kind.SHORT: _parse_integers,
    Kind.INT: _parse_integers,
    Kind.LONG: _parse_integers,
    Kind.FLOAT: _parse_direct,
    Kind.DOUBLE: _parse_direct,
    Kind.DECIMAL: _parse_decimals,
    Kind.NAIVE_DATE: _parse_direct,
    Kind.NAIVE_DATETIME: _parse_local_times,
    Kind.UTC_DATETIME: _parse_times,
    Kind.NAIVE_TIME: _parse_clocks,
}


#: Matches the position of a missing zero before an hour of one digit.
_SHORT_HOUR: Final = re.compile(r"^\s*(?=[0-9]:)")


def value_of(text: str, kind: ColumnType) -> pa.Scalar:
    """Return the value of a text, as an Arrow scalar of `kind.arrow`.

    An empty text is null, except for columns of texts or bytes.

    Raises:
        ValueRefusedError: the text is not a valid value of the type.
    """
    try:
        return parse_texts(pa.array([text], pa.string()), kind, Counter())[0]
    except CellRefusedError as refused:
        raise ValueRefusedError(
            f"The value is not a valid {kind}: {refused.reason}.",
            hint="Write it in the format of batch files.",
        ) from None


def clocks_of(text: str) -> set[str]:
    """Return the texts by which a time of day, for example in a key, may be stored in a table.

    Args:
        text: the time as a user enters it: its hour may have one digit.

    Returns:
        Its normalized text (`cells.clock`), and the text itself: other engines format times
        differently, and PostgreSQL has a 24:00:00, which is not a valid time of day in a batch
        file.
    """
    try:
        return {cells.clock(_SHORT_HOUR.sub("0", text)), text}
    except cells.RefusedError:
        return {text}
