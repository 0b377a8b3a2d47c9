"""Encodings of databases: text is read as it is stored, and decoded here.

A single text in the log that the server cannot convert to UTF-8 would prevent reading all tables.
Text is therefore read as it is stored. Encodings with one byte for each character are decoded by
Python, whose tables equal PostgreSQL's. For multi-byte encodings Python's tables differ: the server
is asked to convert each character, once.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import psycopg
import pyarrow as pa
from psycopg.adapt import Loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from psycopg.abc import Buffer

    #: Converts stored characters to UTF-8; None for a character without an equivalent.
    Convert: TypeAlias = Callable[[Sequence[bytes]], Mapping[bytes, bytes | None]]

_UTF8: Final = "utf-8"
#: Python's replacement for bytes that are not a character.
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
#: Encodings that Python and PostgreSQL decode identically, and Python's names for them.
PYTHON_CODECS: Final = {
    "SQL_ASCII": _UTF8,
    "UTF8": _UTF8,
    **{
        f"LATIN{number}": f"iso8859-{part}"
        for number, part in enumerate((1, 2, 3, 4, 9, 10, 13, 14, 15, 16), start=1)
    },
    **{f"ISO_8859_{part}": f"iso8859-{part}" for part in (5, 6, 7, 8)},
    **{f"WIN{page}": f"cp{page}" for page in (866, 874, *range(1250, 1259))},
    "KOI8R": "koi8-r",
    "KOI8U": "koi8-u",
}
_PAIR: Final = rb"[\x80-\xff]{2}"
_JAPANESE: Final = rb"\x8e[\x80-\xff]|\x8f[\x80-\xff]{2}|" + _PAIR
#: Multi-byte encodings of databases, with patterns of their characters.
MULTI_BYTE: Final = {
    "EUC_JP": _JAPANESE,
    "EUC_JIS_2004": _JAPANESE,
    "EUC_KR": _JAPANESE,
    "EUC_CN": _PAIR,
    "EUC_TW": rb"\x8e[\x80-\xff]{3}|\x8f[\x80-\xff]{2}|" + _PAIR,
}
#: Text types of the catalog, and types that contain text.
_NAMES: Final = ("text", "varchar", "name", "bpchar", '"char"')
_JSON: Final = ("json", "jsonb")


class Undecodable(str):
    """A name that is invalid in its database's encoding, with its bytes escaped in hexadecimal."""

    __slots__ = ()


@dataclass(eq=False)
class TextCodec:
    """A decoder of text as a database stores it.

    Attributes:
        name: Python's name of the encoding, or PostgreSQL's if it is in `MULTI_BYTE`.
        convert: asks the server to convert characters of such an encoding.
    """

    name: str = _UTF8
    convert: Convert | None = None
    _known: dict[bytes, bytes | None] = field(default_factory=dict, repr=False)

    def text(self, stored: bytes) -> str:
        """Decode a name; return an `Undecodable` if it is not valid."""
        if self.convert is None:
            return _decode_name(stored, self.name)
        pieces = self._split(stored)
        decoded = [self._known.get(piece, piece) for piece in pieces]
        if None in decoded:
            return Undecodable(stored.decode("ascii", "backslashreplace"))
        return b"".join(piece for piece in decoded if piece is not None).decode()

    def decode_with_replacement(self, stored: bytes) -> str:
        """Decode text; characters that are not valid are replaced."""
        if self.convert is None:
            return stored.decode(self.name, "replace")
        replacement = _REPLACEMENT.encode()
        pieces = self._split(stored)
        return b"".join(self._known.get(piece, piece) or replacement for piece in pieces).decode()

    def to_utf8(
        self, data: pa.Buffer, offsets: NDArray[np.int64]
    ) -> tuple[pa.Buffer, NDArray[np.int64], NDArray[np.bool_] | None]:
        """Convert texts to UTF-8.

        Args:
            data: the concatenated bytes of the texts.
            offsets: the offset of each text, and the end of the last one.

        Returns:
            The same in UTF-8, and flags of invalid texts; None if all are valid, or if that is not
            known yet, because they are in UTF-8 already.
        """
        if self.name == _UTF8:
            return data, offsets, None
        if self.convert is None:
            return _single_byte_to_utf8(data, offsets, self.name)
        return self._convert_multi_byte(data, offsets)

    def _convert_multi_byte(
        self, data: pa.Buffer, offsets: NDArray[np.int64]
    ) -> tuple[pa.Buffer, NDArray[np.int64], NDArray[np.bool_] | None]:
        stored = np.frombuffer(data, np.uint8)
        if not (stored & 0x80).any():
            return data, offsets, None
        # Texts never contain a zero byte, so it can separate them.
        pieces = self._split(np.insert(stored, offsets[1:], 0).tobytes())
        known = self._known
        converted = [known.get(piece, piece) or b"?" for piece in pieces]
        texts = np.frombuffer(b"".join(converted), np.uint8)
        ends = np.flatnonzero(texts == 0)
        moved = np.concatenate(([0], ends - np.arange(len(ends))))
        buffer = pa.py_buffer(texts[texts != 0])
        if not any(known.get(piece, piece) is None for piece in pieces):
            return buffer, moved, None
        is_invalid = np.zeros(len(ends), np.bool_)
        number = 0
        for piece in pieces:
            if piece == b"\0":
                number += 1
            elif known.get(piece, piece) is None:
                is_invalid[number] = True
        return buffer, moved, is_invalid

    def _split(self, stored: bytes) -> list[bytes]:
        """Split text into ASCII runs and single other characters, and convert unknown ones."""
        pieces: list[bytes] = _characters_of(self.name).findall(stored)
        unknown = [piece for piece in {*pieces} if piece[0] & 0x80 and piece not in self._known]
        if unknown and self.convert is not None:
            self._known.update(self.convert(unknown))
        return pieces


@dataclass
class InvalidTextSearch:
    """A search for the first text that is invalid or has no equivalent in UTF-8.

    Attributes:
        encoding: the database's encoding.
    """

    encoding: str
    _found: tuple[str, str] | None = None
    _places: dict[bytes, tuple[str, str]] = field(default_factory=dict)

    def add(self, place: tuple[str, str], stored: bytes) -> None:
        """Add the next text, with its place."""
        if self.encoding in MULTI_BYTE:
            for piece in _characters_of(self.encoding).findall(stored):
                if piece[0] & 0x80:
                    self._places.setdefault(piece, place)
        elif self._found is None and not is_valid(stored, PYTHON_CODECS.get(self.encoding, _UTF8)):
            self._found = place

    def first(self, connection: psycopg.Connection) -> tuple[str, str] | None:
        """Return the place of the first invalid text, or None.

        Args:
            connection: a connection to the database, which converts characters that Python does not
                know.

        Raises:
            psycopg.Error: the server does not respond.
        """
        if not self._places:
            return self._found
        known = convert_characters(connection, list(self._places))
        places = (place for piece, place in self._places.items() if known[piece] is None)
        return next(places, None)


#: The codec of most databases.
UTF_8: Final = TextCodec()


def codec_of(connection: psycopg.Connection, convert: Convert) -> TextCodec:
    """Return the codec for text as the connected database stores it.

    Args:
        connection: a connection to the database.
        convert: asks a server to convert characters (`convert_characters`); only used for
            `MULTI_BYTE` encodings.
    """
    encoding = encoding_of(connection)
    if encoding in MULTI_BYTE:
        return TextCodec(encoding, convert)
    return TextCodec(PYTHON_CODECS.get(encoding, _UTF8))


def encoding_of(connection: psycopg.Connection) -> str:
    """Return PostgreSQL's name of a database's encoding."""
    return connection.info.parameter_status("server_encoding") or ""


def convert_characters(
    connection: psycopg.Connection, characters: Sequence[bytes]
) -> Mapping[bytes, bytes | None]:
    """Convert characters to UTF-8 with the server; None for those that it cannot convert.

    Raises:
        psycopg.Error: the server does not respond.
    """
    query = (
        "SELECT convert(stored, %s, 'UTF8') FROM unnest(%s::bytea[]) WITH ORDINALITY "
        "AS c(stored, place) ORDER BY place"
    )
    try:
        with connection.transaction():
            rows = connection.execute(query, (encoding_of(connection), list(characters))).fetchall()
    except psycopg.DataError:
        if len(characters) == 1:
            return {characters[0]: None}
        middle = len(characters) // 2
        halves = (characters[:middle], characters[middle:])
        return {
            character: text
            for half in halves
            for character, text in convert_characters(connection, half).items()
        }
    return {character: bytes(text) for character, (text,) in zip(characters, rows, strict=True)}


@contextmanager
def name_cursor(connection: psycopg.Connection) -> Iterator[psycopg.Cursor]:
    """Return a cursor that can read every name in the catalog while the block runs.

    A name that is invalid in its database's encoding, or that has no equal in UTF-8, becomes an
    `Undecodable` instead of an error. Parameters that may not be ASCII are passed in UTF-8, as
    bytes, and converted by the server.
    """
    encoding = encoding_of(connection)
    cursor = connection.cursor()
    if encoding == "UTF8" or encoding not in {*PYTHON_CODECS, *MULTI_BYTE}:
        yield cursor
        return
    codec = codec_of(connection, partial(convert_characters, connection))
    for name in _NAMES:
        cursor.adapters.register_loader(name, _loader(codec.text))
    for name in _JSON:
        cursor.adapters.register_loader(
            name, _loader(lambda stored: json.loads(codec.decode_with_replacement(stored)))
        )
    # The driver does not know all of the encodings in `MULTI_BYTE`: then, nothing is converted.
    sent_as = "SQL_ASCII" if encoding in MULTI_BYTE else encoding
    connection.execute(f"SET client_encoding TO '{sent_as}'")
    try:
        yield cursor
    finally:
        # A failed transaction restores the setting itself.
        if connection.info.transaction_status != psycopg.pq.TransactionStatus.INERROR:
            connection.execute("SET client_encoding TO 'UTF8'")


def _loader(decode: Callable[[bytes], Any]) -> type[Loader]:
    class StoredTextLoader(Loader):
        def load(self, data: Buffer) -> Any:
            return decode(bytes(data))

    return StoredTextLoader


def _decode_name(stored: bytes, codec: str) -> str:
    try:
        return stored.decode(codec)
    except UnicodeDecodeError:
        return Undecodable(stored.decode(codec, "backslashreplace"))


def is_valid(text: bytes, codec: str) -> bool:
    """Return whether bytes are valid text for one of Python's codecs."""
    try:
        text.decode(codec)
    except UnicodeDecodeError:
        return False
    return True


def find_invalid_utf8(data: pa.Buffer, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return flags of the texts that are not valid UTF-8."""
    ends = offsets.tolist()
    is_invalid = np.zeros(len(ends) - 1, np.bool_)
    for number, (begin, end) in enumerate(pairwise(ends)):
        is_invalid[number] = not is_valid(data[begin:end].to_pybytes(), _UTF8)
    return is_invalid


def _single_byte_to_utf8(
    data: pa.Buffer, offsets: NDArray[np.int64], codec: str
) -> tuple[pa.Buffer, NDArray[np.int64], NDArray[np.bool_]]:
    """Convert texts of a single-byte encoding to UTF-8."""
    widths, is_unknown = _widths(codec)
    stored = np.frombuffer(data, np.uint8)
    ends = np.zeros(len(stored) + 1, np.int64)
    np.cumsum(widths[stored], out=ends[1:])
    unknown = np.zeros(len(stored) + 1, np.int64)
    np.cumsum(is_unknown[stored], out=unknown[1:])
    is_invalid: NDArray[np.bool_] = np.diff(unknown[offsets]) > 0
    texts = stored.tobytes().decode(codec, "replace").encode()
    return pa.py_buffer(texts), ends[offsets], is_invalid


@cache
def _widths(codec: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the UTF-8 length of each byte's character, and flags of bytes without a character."""
    texts = [bytes([byte]).decode(codec, "replace") for byte in range(256)]
    widths = np.array([len(text.encode()) for text in texts], np.int64)
    return widths, np.array([text == _REPLACEMENT for text in texts], np.bool_)


@cache
def _characters_of(encoding: str) -> re.Pattern[bytes]:
    """Return a pattern that splits text: a zero byte, an ASCII run, or one other character."""
    return re.compile(rb"\x00|[\x01-\x7f]+|" + MULTI_BYTE[encoding] + rb"|[\x80-\xff]")
