"""Fields of events in the binary log.

Source: MySQL's documentation of its protocol, "Basic Data Types". Numbers are little-endian.
"""

from __future__ import annotations

from typing import Final

from chronolake.errors import SourceError

#: First bytes of numbers of variable length; smaller ones are the number itself.
_WIDTHS: Final = {252: 2, 253: 3, 254: 8}
_LEAST_WIDTH: Final = 252


def log_error(what: str) -> SourceError:
    """Return an error about a binary log that cannot be read."""
    return SourceError(
        f"The server's binary log is not valid: {what}.",
        hint="Nothing of it was applied. Check that the server is MySQL 8.0 or later, or MariaDB "
        "10.5 or later; if so, report a bug.",
    )


class FieldReader:
    """A reader of the fields of an event, in their order.

    Args:
        data: the event.
        place: where the first field begins.

    Raises:
        SourceError: from every method, if the event ends before the field does.
    """

    def __init__(self, data: bytes, place: int = 0) -> None:
        self.data = data
        self.place = place

    @property
    def is_at_end(self) -> bool:
        """Return whether no field follows."""
        return self.place >= len(self.data)

    def take(self, size: int) -> bytes:
        """Read some bytes."""
        begin, self.place = self.place, self.place + size
        if self.place > len(self.data):
            raise log_error("an event ends too early")
        return self.data[begin : self.place]

    def byte(self) -> int:
        """Read an unsigned 8-bit integer."""
        return self.take(1)[0]

    def unsigned(self, width: int) -> int:
        """Read an unsigned integer of a fixed width in bytes."""
        return int.from_bytes(self.take(width), "little")

    def number(self) -> int:
        """Read a number of variable length."""
        first = self.byte()
        if first < _LEAST_WIDTH:
            return first
        if first not in _WIDTHS:
            raise log_error(f"a length begins with the byte {first}")
        return self.unsigned(_WIDTHS[first])

    def text(self) -> bytes:
        """Read bytes after their number."""
        return self.take(self.number())

    def rest(self) -> bytes:
        """Read all remaining bytes."""
        return self.take(len(self.data) - self.place)
