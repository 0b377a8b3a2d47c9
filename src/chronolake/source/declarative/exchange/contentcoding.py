"""Bodies as servers compress them, undone piece by piece so that none grows beyond bounds."""

from __future__ import annotations

import zlib
from typing import Final

#: What requests say they understand, in this order.
ACCEPTED: Final = "gzip, deflate"
_PIECE: Final = 1 << 20
#: Texts are seldom a hundred times as large as what they are packed in; so many bytes may be.
_RATIO: Final = 200
_SUSPICIOUS: Final = 64 << 20


class CodingError(Exception):
    """A body is not what its `Content-Encoding` says, or ends too early."""


class UnknownCodingError(CodingError):
    """A body is compressed in a way nobody asked for."""


class Decompression:
    """One body on its way.

    Args:
        coding: the answer's `Content-Encoding`, or nothing.
        limit: bytes after which no more are made.

    Raises:
        UnknownCodingError: the coding is neither gzip nor deflate nor none.
    """

    def __init__(self, coding: str | None, limit: int) -> None:
        name = (coding or "identity").strip().lower()
        if name not in {"identity", "", "gzip", "x-gzip", "deflate"}:
            raise UnknownCodingError(name)
        self._plain = name in {"identity", ""}
        self._gzip = name in {"gzip", "x-gzip"}
        self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16 if self._gzip else zlib.MAX_WBITS)
        self._limit = limit
        self._begun = False
        self.body = bytearray()

    @property
    def exceeded(self) -> bool:
        """Whether the body is larger than the limit."""
        return len(self.body) > self._limit

    def is_bomb(self, packed: int) -> bool:
        """Return whether the body is suspiciously large for so many bytes that have come."""
        size = len(self.body)
        return not self._plain and size > _SUSPICIOUS and size > _RATIO * packed

    def take(self, data: bytes) -> None:
        """Undoes one piece; stops where the limit is exceeded.

        Raises:
            CodingError: the piece is not compressed as announced.
        """
        if self._plain:
            self.body += data
            return
        if not (self._begun or self._gzip) and data and data[0] & 0x0F != zlib.DEFLATED:
            # "deflate" is zlib's form, which begins with its method; some leave the head out.
            self._stream = zlib.decompressobj(-zlib.MAX_WBITS)
        self._begun = self._begun or bool(data)
        try:
            while data and not self.exceeded:
                self.body += self._stream.decompress(data, _PIECE)
                data = self._stream.unconsumed_tail or self._next_member()
        except zlib.error as error:
            raise CodingError(str(error)) from error

    def drained(self) -> bytes:
        """What there is of the body; it is not kept any longer."""
        body, self.body = bytes(self.body), bytearray()
        return body

    def end(self) -> bytes:
        """The whole body, or what has come of it since it was drained.

        Raises:
            CodingError: it ends too early.
        """
        if self._begun and not self._plain:
            self.body += self._stream.flush()
            if not self._stream.eof:
                raise CodingError("the compressed body ends too early")
        return bytes(self.body)

    def _next_member(self) -> bytes:
        """What follows a gzip member, if it is one, too."""
        rest = self._stream.unused_data
        if not self._gzip or not rest.startswith(b"\x1f\x8b"):
            return b""
        self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
        return rest
