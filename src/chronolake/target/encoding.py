r"""Rows as the text format that PostgreSQL's COPY and MySQL's LOAD DATA both read.

Fields are separated by tabs and rows by line feeds; a backslash escapes, and `\N` is NULL. All
conversions of values are made here, column by column in Arrow.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronolake.errors import TargetError
from chronolake.types import TMAX_SECOND_MICROS, TMIN_MICROS, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chronolake.target.limits import TargetColumn, TargetLimits

_TEXT: Final = pa.string()
_NULL: Final = "\\N"
_SPECIAL: Final = "[\\\\\t\n\r\\x00]"
_ESCAPES: Final = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"), ("\0", "\\0"))


@dataclass
class RowEncoder:
    """Encodes Arrow batches, and counts the values that were changed because they do not fit.

    Attributes:
        limits: the target's limits.
        columns: the columns of the batches.
        table: the table, for errors.
        changed: the number of changed values by column.
        rows: the number of encoded rows by operation, which the caller counts.
    """

    limits: TargetLimits
    columns: Sequence[TargetColumn]
    table: str
    changed: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)

    def encode(self, rows: pa.RecordBatch, operations: pa.Array | None = None) -> pa.Buffer:
        """Return rows as text.

        Args:
            rows: values of the columns, by position.
            operations: a text for each row that precedes its values.

        Raises:
            TargetError: a value does not fit, and has no documented conversion.
        """
        texts = [] if operations is None else [operations]
        texts += [self.texts(rows.column(n), column) for n, column in enumerate(self.columns)]
        return join(texts)

    def texts(self, values: pa.Array, column: TargetColumn, *, escaped: bool = True) -> pa.Array:
        """Return the values of a column as texts of the target; NULL is null.

        Args:
            values: the values.
            column: the column.
            escaped: whether special characters are escaped.
        """
        kind = column.type.kind
        if column.is_key:
            self._expect_key(values, column)
        if kind is Kind.BOOLEAN:
            return pc.if_else(values, pa.scalar("1"), pa.scalar("0"))
        if kind in {Kind.FLOAT, Kind.DOUBLE}:
            return self._numbers(values, column)
        if kind in {Kind.NAIVE_DATETIME, Kind.UTC_DATETIME}:
            return self._times(values, column)
        if kind is Kind.BINARY:
            return self._binaries(values, escaped=escaped)
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            return self._strings(values, column, escaped=escaped)
        return pc.cast(values, _TEXT)

    def _expect_key(self, values: pa.Array, column: TargetColumn) -> None:
        if values.null_count:
            raise self._error("A key is NULL, which targets do not support.", column)
        if column.max_length is None:
            return
        if column.type.kind is Kind.BINARY:
            longest = pc.max(pc.binary_length(values)).as_py() or 0
            limit = column.max_length * 4
        else:
            longest = pc.max(pc.utf8_length(values)).as_py() or 0
            limit = column.max_length
        if longest > limit:
            raise self._error(
                f"A key has a length of {longest}, and {self.limits.product} supports up to "
                f"{limit} here.",
                column,
            )
        if self.limits.pads_keys and column.type.kind is not Kind.BINARY:
            has_spaces = pc.any(pc.ends_with(values, " ")).as_py()
            if has_spaces:
                raise self._error(
                    "A key ends with a space, which this version of MySQL ignores.", column
                )

    def _numbers(self, values: pa.Array, column: TargetColumn) -> pa.Array:
        if not self.limits.has_infinity:
            is_finite = pc.is_finite(values)
            lost = pc.sum(pc.invert(is_finite)).as_py() or 0
            if lost:
                if column.is_key:
                    raise self._error(
                        f"A key is not a finite number, and {self.limits.product} has no others.",
                        column,
                    )
                self.changed[column.name] += lost
                values = pc.if_else(is_finite, values, pa.scalar(None, values.type))
            values = values.cast(pa.float64())
        return pc.cast(values, _TEXT)

    def _times(self, values: pa.Array, column: TargetColumn) -> pa.Array:
        micros = values.cast(pa.timestamp("us", tz=values.type.tz)).cast(pa.int64())
        if (bounds := self.limits.bounds(column)) is not None:
            micros = self._clamp(micros, column, *bounds)
        if not self.limits.has_fractions:
            micros = self._cut_fractions(micros, column)
        return pc.cast(micros.cast(pa.timestamp("us")), _TEXT)

    def _clamp(self, micros: pa.Array, column: TargetColumn, tmin: int, tmax: int) -> pa.Array:
        """Return times within limits; Tmin and Tmax of the lake become those of the target."""
        below, above = pc.less(micros, tmin), pc.greater(micros, tmax)
        is_limit = pc.or_(
            pc.equal(micros, TMIN_MICROS), pc.greater_equal(micros, TMAX_SECOND_MICROS)
        )
        outside = pc.and_not(pc.or_(below, above), is_limit)
        if lost := pc.sum(outside).as_py() or 0:
            self.changed[column.name] += lost
        return pc.if_else(below, tmin, pc.if_else(above, tmax, micros))

    def _cut_fractions(self, micros: pa.Array, column: TargetColumn) -> pa.Array:
        seconds = pc.floor(pc.divide(micros.cast(pa.float64()), 1_000_000.0)).cast(pa.int64())
        whole = pc.multiply(seconds, 1_000_000)
        if lost := pc.sum(pc.not_equal(whole, micros)).as_py() or 0:
            self.changed[column.name] += lost
        return whole

    def _binaries(self, values: pa.Array, *, escaped: bool) -> pa.Array:
        # Arrow has no function for it.
        prefix = "" if self.limits.kind == "mysql" else "\\\\x" if escaped else "\\x"
        texts = [
            None if value is None else f"{prefix}{value.hex()}" for value in values.to_pylist()
        ]
        return pa.array(texts, _TEXT)

    def _strings(self, values: pa.Array, column: TargetColumn, *, escaped: bool) -> pa.Array:
        if not (pc.any(pc.match_substring_regex(values, _SPECIAL)).as_py()):
            return values
        if self.limits.kind == "postgres" and pc.any(pc.match_substring(values, "\0")).as_py():
            raise self._error(
                "A text contains the character NUL (U+0000), which PostgreSQL does not support.",
                column,
            )
        if escaped:
            for character, replacement in _ESCAPES:
                values = pc.replace_substring(values, character, replacement)
        return values

    def _error(self, message: str, column: TargetColumn) -> TargetError:
        return TargetError(
            message,
            table=self.table,
            column=column.name,
            hint="Change the value in the source, or exclude the column or the table.",
        )


def join(texts: Sequence[pa.Array]) -> pa.Buffer:
    """Return the lines of rows, from the texts of their fields."""
    arrays: list[Any] = [pc.cast(array, pa.large_string()) for array in texts]
    options = {"null_handling": "replace", "null_replacement": _NULL}
    separator = pa.scalar("\t", pa.large_string())
    lines = pc.binary_join_element_wise(*arrays, separator, **options)
    ends = pc.binary_join_element_wise(
        lines, pa.scalar("", pa.large_string()), pa.scalar("\n", pa.large_string())
    )
    _, offsets, buffer = ends.buffers()
    if buffer is None:
        return pa.py_buffer(b"")
    first, last = np.frombuffer(offsets, np.int64)[[ends.offset, ends.offset + len(ends)]]
    return buffer.slice(int(first), int(last - first))
