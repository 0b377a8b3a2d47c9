"""A number that tells whether two rows say the same, so that the rows need not be kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronolake.look.order import comparable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.uint64]

_NULL: Final = np.uint64(0x9E37_79B9_7F4A_7C15)
_FIRST: Final = np.uint64(0xBF58_476D_1CE4_E5B9)
_SECOND: Final = np.uint64(0x94D0_49BB_1331_11EB)


class Fingerprints:
    """Fingerprints of rows, comparable with each other only if their secret is the same.

    Two rows that differ have the same one with a probability of 2**-64. Who writes the rows cannot
    choose them so, for he does not know the secret.

    Args:
        secret: 16 bytes by chance.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._text_key = secret.hex()[:16]
        self._start = np.uint64(int.from_bytes(secret[:8]))
        self._factor = np.uint64(int.from_bytes(secret[8:]) | 1)

    def of(self, columns: Sequence[pa.ChunkedArray]) -> pa.Array:
        """A fingerprint for each row of some columns, in their order: equal if all cells are.

        All NaN are equal, and so are both zeros.
        """
        count = len(columns[0]) if columns else 0
        marks = np.full(count, self._start, np.uint64)
        for column in columns:
            marks = _mixed(marks * self._factor + self._numbers(comparable(column)))
        return pa.array(marks)

    def _numbers(self, values: pa.ChunkedArray) -> Numbers:
        is_null = np.asarray(values.is_null())
        kind = values.type
        if pa.types.is_integer(kind):
            numbers = np.asarray(pc.fill_null(values, 0)).astype(np.int64).view(np.uint64)
        else:
            numbers = self._of_texts(values)
        numbers = _mixed(numbers ^ self._start)
        return np.where(is_null, _NULL, numbers)

    def _of_texts(self, values: pa.ChunkedArray) -> Numbers:
        from pandas.util import hash_array  # noqa: PLC0415 - slow to import

        kind = values.type
        if pa.types.is_decimal(kind):
            values = values.cast(pa.string())
        elif not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
            texts = [repr(value) for value in values.to_pylist()]
            values = pa.chunked_array([pa.array(texts, pa.string())])
        empty = b"" if pa.types.is_binary(values.type) else ""
        objects = np.asarray(pc.fill_null(values, empty).to_numpy(), object)
        return np.asarray(hash_array(objects, hash_key=self._text_key, categorize=False))


def _mixed(numbers: Numbers) -> Numbers:
    """A bijection in which each bit depends on all others."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _FIRST
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _SECOND
    return numbers ^ (numbers >> np.uint64(31))
