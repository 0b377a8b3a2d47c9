"""Where CSV records begin and end, and whether they keep the dialect.

The dialect: comma, LF or CRLF, quotes doubled within quotes, no escape character. A quote opens a
cell only at its very start, so a newline ends a record exactly when an even number of quotes stands
before it. That makes cutting a stream into whole records a matter of counting, and `flaw` proves
for each block that the counting was right.
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

BLOCK_SIZE: Final = 4 << 20
#: The longest record, in bytes, that is held in memory.
RECORD_LIMIT: Final = 64 << 20

_QUOTE: Final = 34
_COMMA: Final = 44
_CR: Final = 13
_LF: Final = 10


class OverlongRecordError(Exception):
    """A record longer than the limit; the caller knows in which file and row."""


def blocks(
    read: Callable[[int], bytes], *, size: int = BLOCK_SIZE, limit: int = RECORD_LIMIT
) -> Iterator[bytes]:
    """Cut a stream into blocks of whole records, about `size` bytes each.

    Only the last block may end without a newline.

    Raises:
        OverlongRecordError: one record is longer than `limit` bytes.
    """
    pending: list[bytes] = []
    held = 0
    inside = False
    while chunk := read(size):
        quotes = _count(chunk, _QUOTE)
        cut = _last_end(chunk, quotes, inside=inside)
        if cut == 0:
            pending.append(chunk)
            held += len(chunk)
            inside ^= bool(quotes & 1)
            if held > limit:
                raise OverlongRecordError
            continue
        # Views, so that what makes up a block is copied once.
        block = b"".join([*pending, memoryview(chunk)[:cut]])
        rest = chunk[cut:]
        pending, held = ([rest], len(rest)) if rest else ([], 0)
        # A cut is outside quotes, so only the quotes after it count.
        inside = bool(rest.count(b'"') & 1)
        yield block
    if held:
        yield b"".join(pending)


def _last_end(chunk: bytes, quotes: int, *, inside: bool) -> int:
    """The place after the last newline outside quotes, or 0."""
    end = len(chunk)
    before = quotes
    while (newline := chunk.rfind(b"\n", 0, end)) >= 0:
        before -= chunk.count(b'"', newline, end)
        if not (before & 1) ^ inside:
            return newline + 1
        # Within quotes: the record began before the quote that opened the cell.
        end = chunk.rfind(b'"', 0, newline)
        if end < 0:
            return 0
        before -= 1
    return 0


def header_end(block: bytes) -> int:
    """The length of the first record of a block, its line end included."""
    end = 0
    while (newline := block.find(b"\n", end)) >= 0:
        end = newline + 1
        if not block.count(b'"', 0, newline) & 1:
            return end
    return len(block)


def names(header: bytes) -> list[str]:
    """The column names of a header record.

    Raises:
        UnicodeDecodeError: not UTF-8.
        csv.Error: the quotes do not match.
    """
    text = header.decode("utf-8-sig")
    read = csv.reader(io.StringIO(text, newline=""), strict=True)
    return next(read, None) or [""]


def flaw(block: bytes, *, width: int) -> tuple[int, str] | None:
    """Where a block of whole records leaves the dialect.

    Args:
        block: whole records, without the header.
        width: the number of columns; a record of several columns is no blank line.

    Returns:
        The number of records before the flaw and what is wrong, or None.
    """
    content = np.frombuffer(block, dtype=np.uint8)
    quotes = np.flatnonzero(content == _QUOTE) if b'"' in block else np.empty(0, dtype=np.intp)
    if len(quotes) and (place := _stray_quote(content, quotes)) is not None:
        return _records_before(content, quotes, place[0]), place[1]
    if b"\r" in block:
        returns = _outside(np.flatnonzero(content == _CR), quotes)
        following = content[np.minimum(returns + 1, len(content) - 1)]
        lone = returns[(following != _LF) | (returns == len(content) - 1)]
        if len(lone):
            return (
                _records_before(content, quotes, int(lone[0])),
                "a carriage return stands outside quotes without a line feed",
            )
    if width > 1 and (b"\r" in block or block.startswith(b"\n") or _has_pair(block, b"\n\n")):
        ends = np.flatnonzero(content == _LF)
        # The first line has one place less before it than the others.
        gaps = np.diff(ends, prepend=-1)
        blank = ends[(gaps == 1) | ((gaps == 2) & (content[ends - 1] == _CR))]  # noqa: PLR2004
        blank = _outside(blank, quotes)
        if len(blank):
            return _records_before(content, quotes, int(blank[0])), "a line is empty"
    return None


def has_hexadecimal(block: bytes) -> bool:
    """Whether `0x` or `0X` stands anywhere in a block."""
    return _has_pair(block, b"0x") or (b"X" in block and _has_pair(block, b"0X"))


def _has_pair(block: bytes, pair: bytes) -> bool:
    """`pair in block`, ten times as fast: two bytes are compared at once, as one number."""
    number = int.from_bytes(pair, "little")
    return any(
        (np.frombuffer(block, "<u2", (len(block) - first) // 2, first) == number).any()
        for first in (0, 1)
        if len(block) - first >= len(pair)
    )


def _count(content: bytes, value: int) -> int:
    # Four times as fast as bytes.count where there are many.
    return int(np.count_nonzero(np.frombuffer(content, dtype=np.uint8) == value))


def _stray_quote(content: NDArray[np.uint8], quotes: NDArray[np.intp]) -> tuple[int, str] | None:
    """The first place where the quotes do not open, double or close as they must."""
    opening, closing = quotes[0::2], quotes[1::2]
    last = len(content) - 1
    before = content[np.maximum(opening - 1, 0)]
    fits = (opening == 0) | (before == _COMMA) | (before == _LF)
    doubled = opening[1:] == closing[: len(opening) - 1] + 1
    fits[1:] |= doubled
    after = content[np.minimum(closing + 1, last)]
    ends = (closing == last) | (after == _COMMA) | (after == _LF) | (after == _CR)
    ends[: len(doubled)] |= doubled
    stray: list[tuple[int, str]] = []
    if not fits.all():
        stray.append(
            (int(opening[np.argmin(fits)]), "a quote stands within a cell that is not quoted")
        )
    if not ends.all():
        stray.append((int(closing[np.argmin(ends)]), "text follows a closing quote"))
    if len(opening) > len(closing):
        stray.append((int(opening[-1]), "a quoted cell is not closed"))
    return min(stray, default=None)


def _outside(places: NDArray[np.intp], quotes: NDArray[np.intp]) -> NDArray[np.intp]:
    """The places that have an even number of quotes before them."""
    if not len(quotes):
        return places
    outside: NDArray[np.intp] = places[np.searchsorted(quotes, places) % 2 == 0]
    return outside


def _records_before(content: NDArray[np.uint8], quotes: NDArray[np.intp], place: int) -> int:
    newlines = np.flatnonzero(content[:place] == _LF)
    return len(_outside(newlines, quotes[quotes < place]))
