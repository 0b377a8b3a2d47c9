"""A pgoutput decoder that reads message by message in plain Python, without Chronolake.

Written from PostgreSQL's documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from struct import unpack_from
from typing import Any

INVALID = "(invalid)"
UNCHANGED = "(unchanged)"


@dataclass
class Change:
    """A change of a row: the table's name, the operation, and the rows by column name."""

    table: str
    kind: str
    commit_lsn: int
    commit_micros: int
    old: dict[str, Any] | None = None
    new: dict[str, Any] | None = None


@dataclass
class Reader:
    """Reads messages in their order."""

    tables: dict[int, tuple[str, list[str]]] = field(default_factory=dict)
    commit: tuple[int, int] = (0, 0)

    def read(self, messages: Iterable[bytes]) -> Iterator[Change]:
        for message in messages:
            kind = chr(message[0])
            if kind == "B":
                lsn, micros = unpack_from(">qq", message, 1)
                self.commit = (lsn, micros + 946_684_800_000_000)
            elif kind == "R":
                self._describe(message)
            elif kind in "IUD":
                yield self._row(kind, message)
            elif kind == "T":
                (number,) = unpack_from(">i", message, 1)
                for oid in unpack_from(f">{number}I", message, 6):
                    yield Change(self.tables[oid][0], "T", *self.commit)

    def _describe(self, message: bytes) -> None:
        (oid,) = unpack_from(">I", message, 1)
        schema, name, rest = message[5:].split(b"\0", 2)
        del schema
        (number,) = unpack_from(">h", rest, 1)
        place, columns = 3, []
        for _ in range(number):
            end = rest.index(b"\0", place + 1)
            columns.append(rest[place + 1 : end].decode(errors="backslashreplace"))
            place = end + 9
        self.tables[oid] = (name.decode(errors="backslashreplace"), columns)

    def _row(self, kind: str, message: bytes) -> Change:
        (oid,) = unpack_from(">I", message, 1)
        name, columns = self.tables[oid]
        change = Change(name, kind, *self.commit)
        place = 5
        while place < len(message):
            tag = chr(message[place])
            row, place = _tuple(message, place + 1, columns)
            if tag == "N":
                change.new = row
            else:
                change.old = row
        return change


def _tuple(message: bytes, place: int, columns: list[str]) -> tuple[dict[str, Any], int]:
    place += 2
    row: dict[str, Any] = {}
    for column in columns:
        kind = chr(message[place])
        place += 1
        row[column] = UNCHANGED if kind == "u" else None
        if kind == "t":
            (length,) = unpack_from(">i", message, place)
            row[column] = _text(message[place + 4 : place + 4 + length])
            place += 4 + length
    return row, place


def _text(sent: bytes) -> str:
    """Return a value as text; `INVALID` if it is not UTF-8."""
    try:
        return sent.decode()
    except UnicodeDecodeError:
        return INVALID
