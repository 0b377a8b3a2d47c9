"""Conversion of texts in the binary log to UTF-8, as the server converts them.

The log contains texts in the character sets of their columns. Python's codecs differ from those of
the server in some characters, so the server itself converts the characters of other sets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from chronolake.errors import SourceError
from chronolake.source.mysql.connection import execute

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pymysql

_UTF8: Final = frozenset({"utf8", "utf8mb3", "utf8mb4", "ascii", "binary"})
#: Values are converted together up to this many bytes, and this many of them.
_TOGETHER_BYTES: Final = 2**20
_TOGETHER: Final = 1_000


@dataclass
class CharacterSets:
    """The character sets of a server.

    Attributes:
        connection: a connection to it.
    """

    connection: pymysql.Connection[Any]
    _names: dict[int, tuple[str, int]] = field(default_factory=dict)
    _tables: dict[str, list[bytes]] = field(default_factory=dict)

    def to_utf8(self, collation: int, values: pa.Array) -> pa.Array:
        """Return texts in the character set of a collation as strings.

        Args:
            collation: its number.
            values: the texts, as bytes.

        Raises:
            SourceError: the server does not know the collation, or a text is not valid.
        """
        name, width = self._character_set(collation)
        if name in _UTF8:
            target = pa.large_string() if values.type == pa.large_binary() else pa.string()
            try:
                return values.cast(target)
            except pa.ArrowInvalid as failure:
                raise SourceError(
                    f"A text in the binary log is not valid in the character set {name}.",
                    hint="Correct the row in the database, and run `chronolake resync`.",
                ) from failure
        if width == 1:
            return _by_table(values, self._table(name))
        return self._by_server(name, values)

    def _character_set(self, collation: int) -> tuple[str, int]:
        """Return the name of a collation's character set, and the bytes of its characters."""
        if not self._names:
            rows = execute(
                self.connection,
                "SELECT c.ID, s.CHARACTER_SET_NAME, s.MAXLEN FROM information_schema.COLLATIONS c "
                "JOIN information_schema.CHARACTER_SETS s "
                "ON s.CHARACTER_SET_NAME = c.CHARACTER_SET_NAME WHERE c.ID IS NOT NULL",
            )
            self._names = {int(number): (name, int(width)) for number, name, width in rows}
        found = self._names.get(collation)
        if found is None:
            raise SourceError(
                f"The binary log has texts with the collation {collation}, which the server does "
                "not know.",
                hint="It was compiled with other collations than the server that wrote the log.",
            )
        return found

    def _table(self, name: str) -> list[bytes]:
        """Return the UTF-8 bytes of each of the 256 characters of a character set."""
        if name not in self._tables:
            characters = (bytes([number]) for number in range(256))
            self._tables[name] = list(self._converted(name, characters))
        return self._tables[name]

    def _converted(self, name: str, texts: Iterable[bytes]) -> list[bytes]:
        cells = ", ".join(
            f"CAST(CONVERT(_{name} x'{t.hex()}' USING utf8mb4) AS BINARY)" for t in texts
        )
        (row,) = execute(self.connection, f"SELECT {cells}")
        return [bytes(cell) for cell in row]

    def _by_server(self, name: str, values: pa.Array) -> pa.Array:
        distinct = values.unique().drop_null()
        found: dict[bytes, str] = {}
        waiting: list[bytes] = []
        size = 0
        for text in [*distinct.to_pylist(), None]:
            if waiting and (text is None or size > _TOGETHER_BYTES or len(waiting) == _TOGETHER):
                converted = self._converted(name, waiting)
                found |= {a: b.decode() for a, b in zip(waiting, converted, strict=True)}
                waiting, size = [], 0
            if text is not None:
                waiting.append(text)
                size += len(text)
        converted_texts = [None if text is None else found[text] for text in values.to_pylist()]
        return pa.array(converted_texts, pa.string())


def _by_table(values: pa.Array, table: list[bytes]) -> pa.Array:
    """Return texts whose characters have one byte each, by the UTF-8 bytes of each character."""
    is_large = values.type == pa.large_binary()
    width = np.int64 if is_large else np.int32
    validity, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, width, len(values) + 1, values.offset * width().itemsize)
    codes = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]] if data else np.zeros(0, np.uint8)
    is_same = np.array([text == bytes([number]) for number, text in enumerate(table)], np.bool_)
    if is_same[codes].all():
        return values.cast(pa.large_string() if is_large else pa.string())
    lengths = np.array([len(text) for text in table], np.int64)
    longest = int(lengths.max())
    bytes_of = np.array([list(text.ljust(longest, b"\0")) for text in table], np.uint8)
    sizes = lengths[codes]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    content = np.empty(int(starts[-1]), np.uint8)
    for place in range(longest):
        has_byte = sizes > place
        content[starts[:-1][has_byte] + place] = bytes_of[codes[has_byte], place]
    found = pa.Array.from_buffers(
        pa.large_string(),
        len(values),
        [validity, pa.py_buffer(starts[ends - ends[0]]), pa.py_buffer(content)],
        offset=0,
    )
    return found if is_large else found.cast(pa.string())
