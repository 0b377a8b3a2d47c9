"""The rows of many messages at once: numpy over one buffer, into Arrow.

A row is `int16` columns, and for each a byte: `n` (null), `u` (an unchanged large value, not sent),
or `t`, an `int32` length and the text. Rows of the same number of columns are read column by
column, all of them in one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from chronolake.source.postgres.encoding import UTF_8, TextCodec, invalid_utf8
from chronolake.source.postgres.messages import misunderstood

if TYPE_CHECKING:
    from collections.abc import Sequence

Bytes: TypeAlias = NDArray[np.uint8]
Places: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

_NULL: Final = ord("n")
_UNCHANGED: Final = ord("u")
_TEXT: Final = ord("t")
#: Beyond the last message, so that a number that begins in it can be read.
_PADDING: Final = b"\0" * 16
#: Texts that are longer on average are copied one by one: gathered, each byte costs nine.
_LONG_TEXT: Final = 512
_GREATEST_ARRAY: Final = 2**31 - 1


@dataclass(frozen=True)
class Messages:
    """Messages, one after the other in one buffer.

    Attributes:
        buffer: their bytes, and some more.
        offsets: where each begins, and where the last ends.
        codec: what decodes the texts in them.
    """

    buffer: Bytes
    offsets: Places
    codec: TextCodec = UTF_8

    @classmethod
    def of(cls, messages: Sequence[bytes], codec: TextCodec = UTF_8) -> Messages:
        """Put messages into one buffer."""
        offsets = np.zeros(len(messages) + 1, np.int64)
        lengths = np.fromiter(map(len, messages), np.int64, len(messages))
        np.cumsum(lengths, out=offsets[1:])
        buffer = np.frombuffer(b"".join([*messages, _PADDING]), np.uint8)
        return cls(buffer, offsets, codec)

    @property
    def kinds(self) -> Bytes:
        """The first byte of each; messages are not empty."""
        return self.buffer[self.offsets[:-1]]

    def unsigned(self, places: Places, width: int) -> Places:
        """The big-endian numbers at some places, of up to seven bytes."""
        found = self.buffer[places].astype(np.int64)
        for byte in range(1, width):
            found = (found << 8) | self.buffer[places + byte]
        return found


@dataclass(frozen=True)
class Cells:
    """One column of some rows.

    Attributes:
        texts: the values; null where there is none, or it was not sent.
        is_unchanged: where it was not sent.
        is_invalid: where it is not a text in the encoding that it was sent in, and null here; None
            if all are.
    """

    texts: pa.Array
    is_unchanged: Flags
    is_invalid: Flags | None = None

    @classmethod
    def none(cls, rows: int) -> Cells:
        """As many rows that are not there."""
        return cls(pa.nulls(rows, pa.string()), np.zeros(rows, np.bool_))

    def spread(self, where: Flags) -> Cells:
        """These rows among others, which have none."""
        numbers = np.cumsum(where) - 1
        taken = self.texts.take(pa.array(numbers, mask=~where))
        is_unchanged = np.zeros(len(where), np.bool_)
        is_unchanged[where] = self.is_unchanged
        is_invalid = None
        if self.is_invalid is not None:
            is_invalid = np.zeros(len(where), np.bool_)
            is_invalid[where] = self.is_invalid
        return Cells(taken, is_unchanged, is_invalid)


def cells_of(
    messages: Messages, places: Places, ends: Places, columns: int
) -> tuple[list[Cells], Places]:
    """Read one row from each of some messages.

    Args:
        messages: the buffer.
        places: where the rows begin.
        ends: where their messages end.
        columns: how many columns every row has.

    Returns:
        The columns, and where the rows end.

    Raises:
        ReplicationProtocolError: a row has another number of columns, or goes beyond its message.
    """
    places = _expect(places + 2, ends)
    numbers = messages.unsigned(places - 2, 2)
    if (numbers != columns).any():
        other = int(numbers[numbers != columns][0])
        raise misunderstood(f"a row has {other} columns, and its table {columns}")
    found = []
    for _ in range(columns):
        kinds = messages.buffer[_expect(places + 1, ends) - 1]
        is_text = kinds == _TEXT
        is_known = is_text | (kinds == _NULL) | (kinds == _UNCHANGED)
        if not is_known.all():
            raise misunderstood(f"a value is of the kind {chr(kinds[~is_known][0])!r}")
        starts = places + 1 + 4 * is_text
        _expect(starts, ends)
        # Where there is no text, what stands there is no length.
        lengths = np.where(is_text, messages.unsigned(places + 1, 4), 0)
        places = _expect(starts + lengths, ends)
        texts, is_invalid = _texts(messages, starts, lengths, is_text)
        found.append(Cells(texts, kinds == _UNCHANGED, is_invalid))
    return found, places


def _expect(places: Places, ends: Places) -> Places:
    """Places that lie within their messages."""
    if (places > ends).any():
        raise misunderstood("a row ends before its last column does")
    return places


def _texts(
    messages: Messages, starts: Places, lengths: Places, is_text: Flags
) -> tuple[pa.Array, Flags | None]:
    """Read texts; gives also which are not valid, and null, or None."""
    buffer = messages.buffer
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    total = int(offsets[-1])
    if total > _LONG_TEXT * len(lengths):
        pieces = zip(starts.tolist(), lengths.tolist(), strict=True)
        data = pa.py_buffer(
            b"".join(buffer[start : start + length].tobytes() for start, length in pieces)
        )
    else:
        places = np.arange(total) + np.repeat(starts - offsets[:-1], lengths)
        data = pa.py_buffer(buffer[places])
    data, offsets, is_invalid = messages.codec.recoded(data, offsets)
    if is_invalid is not None and is_invalid.any():
        return _strings(data, offsets, is_text & ~is_invalid), is_invalid
    array = _strings(data, offsets, is_text)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        is_invalid = invalid_utf8(data, offsets)
        return _strings(data, offsets, is_text & ~is_invalid), is_invalid
    return array, None


def _strings(data: pa.Buffer, offsets: Places, is_text: Flags) -> pa.Array:
    """Make an array of texts, null where there is none."""
    is_large = int(offsets[-1]) > _GREATEST_ARRAY
    nulls = len(is_text) - int(is_text.sum())
    validity = pa.py_buffer(np.packbits(is_text, bitorder="little")) if nulls else None
    width = np.int64 if is_large else np.int32
    return pa.Array.from_buffers(
        pa.large_string() if is_large else pa.string(),
        len(is_text),
        [validity, pa.py_buffer(offsets.astype(width)), data],
        nulls,
    )
