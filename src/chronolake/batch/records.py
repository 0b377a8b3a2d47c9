"""Where CSV records begin and end, and whether they keep the dialect.

The dialect: comma, LF or CRLF, quotes doubled within quotes, no escape character. A quote opens a
cell only at its very start, so a newline ends a record exactly when an even number of quotes stands
before it. That makes cutting a stream into whole records a matter of counting, and `flaw` proves
for each block that the counting was right.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

BLOCK_SIZE: Final = 4 << 20
#: The longest record, in bytes, that is held in memory.
RECORD_LIMIT: Final = 64 << 20

#: What `flaw` says of a line without a cell, which a record of several columns cannot be.
EMPTY_LINE: Final = "a line is empty"

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
    pending: list[bytes | memoryview] = []
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
        # Views, so that what makes up a block is copied once; and no name for it, so that it goes
        # when who asked for it has done with it.
        pending.append(memoryview(chunk)[:cut])
        rest = chunk[cut:]
        # A cut is outside quotes, so only the quotes after it count.
        inside = bool(rest.count(b'"') & 1)
        yield _joined(pending)
        pending, held = ([rest], len(rest)) if rest else ([], 0)
    if held:
        yield _joined(pending)


def _joined(parts: list[bytes | memoryview]) -> bytes:
    """The parts as one; the list is empty afterwards."""
    whole = b"".join(parts)
    parts.clear()
    return whole


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
    look = _Look(
        content,
        at_quotes=b'"' in block,
        at_returns=b"\r" in block,
        at_blanks=width > 1
        and (b"\r" in block or block.startswith(b"\n") or _has_pair(block, b"\n\n")),
    )
    if not (look.at_quotes or look.at_returns or look.at_blanks):
        return None
    # In steps: where every byte is a quote, their places take eight times as much memory.
    for begin in range(0, len(content), BLOCK_SIZE):
        found = look.further(begin, begin + BLOCK_SIZE)
        if found is not None:
            return _records_before(content, found[0]), found[1]
    if look.opened is not None:
        return _records_before(content, look.opened), "a quoted cell is not closed"
    return None


@dataclass
class _Look:
    """A look at the bytes of a block, from its begin to its end.

    Attributes:
        content: the block.
        at_quotes: whether it has any.
        at_returns: whether it has carriage returns.
        at_blanks: whether it may have lines without a cell.
        opened: the place of the quote that is open by now.
    """

    content: NDArray[np.uint8]
    at_quotes: bool
    at_returns: bool
    at_blanks: bool
    opened: int | None = None

    def further(self, begin: int, end: int) -> tuple[int, str] | None:
        """Look at the bytes from one place to another; gives the place of a flaw, and its words."""
        part = self.content[begin:end]
        inside = self.opened is not None
        quotes = np.empty(0, dtype=np.intp)
        if self.at_quotes:
            quotes = np.flatnonzero(part == _QUOTE) + begin
            if len(quotes):
                opening, closing = quotes[inside::2], quotes[1 - inside :: 2]
                stray = self._stray(opening, closing)
                if stray is not None:
                    return stray
                if (len(quotes) & 1) ^ inside:
                    self.opened = int(opening[-1]) if len(opening) else self.opened
                else:
                    self.opened = None
        if self.at_returns:
            returns = _outside(np.flatnonzero(part == _CR) + begin, quotes, inside=inside)
            lone = returns[self._beside(returns, 1) != _LF]
            if len(lone):
                return int(lone[0]), "a carriage return stands outside quotes without a line feed"
        if self.at_blanks:
            ends = np.flatnonzero(part == _LF) + begin
            before = self._beside(ends, -1)
            blank = (before == _LF) | ((before == _CR) & (self._beside(ends, -2) == _LF))
            blank = _outside(ends[blank], quotes, inside=inside)
            if len(blank):
                return int(blank[0]), EMPTY_LINE
        return None

    def _stray(
        self, opening: NDArray[np.intp], closing: NDArray[np.intp]
    ) -> tuple[int, str] | None:
        """The first place where the quotes do not open, double or close as they must."""
        before, after = self._beside(opening, -1), self._beside(closing, 1)
        # A quote beside a closing one doubles it.
        fits = (before == _COMMA) | (before == _LF) | (before == _QUOTE)
        ends = (after == _COMMA) | (after == _LF) | (after == _CR) | (after == _QUOTE)
        ends |= closing == len(self.content) - 1
        stray: list[tuple[int, str]] = []
        if not fits.all():
            place = int(opening[np.argmin(fits)])
            stray.append((place, "a quote stands within a cell that is not quoted"))
        if not ends.all():
            stray.append((int(closing[np.argmin(ends)]), "text follows a closing quote"))
        return min(stray, default=None)

    def _beside(self, places: NDArray[np.intp], distance: int) -> NDArray[np.uint8]:
        """The bytes so far after some places; a line feed before the first, none after the last."""
        beside = places + distance
        found = self.content[np.clip(beside, 0, len(self.content) - 1)]
        found[beside < 0] = _LF
        found[beside >= len(self.content)] = 0
        return found


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


def _outside(
    places: NDArray[np.intp], quotes: NDArray[np.intp], *, inside: bool
) -> NDArray[np.intp]:
    """The places outside quotes; `inside` says whether the first of them are within some."""
    if not len(quotes):
        return places[:0] if inside else places
    outside: NDArray[np.intp] = places[np.searchsorted(quotes, places) % 2 == inside]
    return outside


def _records_before(content: NDArray[np.uint8], place: int) -> int:
    count, inside = 0, False
    for begin in range(0, place, BLOCK_SIZE):
        part = content[begin : min(begin + BLOCK_SIZE, place)]
        quotes = np.flatnonzero(part == _QUOTE)
        count += len(_outside(np.flatnonzero(part == _LF), quotes, inside=inside))
        inside ^= bool(len(quotes) & 1)
    return count
