"""Secret values of sources, and a search for them in all files below a folder.

Files are searched as they are, and decoded: Parquet and Arrow files by their values, Iceberg's
compressed metadata and manifests by their bytes. Encrypted or unknown compressed files would hide
values, so the search itself is tested with values that are stored.
"""

from __future__ import annotations

import gzip
import hashlib
import hmac
import itertools
import random
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from chronolake.relocation.avro_file import read_long

KEY = "a secret key of the tests"
#: Rules for columns by the beginning of their names, as settings of a pipeline.
RULES = (
    "columns: {exclude: ['exclude_*'], hash: ['hash_*'], hash_key: '" + KEY + "', "
    "mask: {'null_*': null, 'masked_*': hidden}}"
)
ACTIONS = ("exclude", "hash", "null", "masked")
#: What masked columns contain.
MASKED = {"null": None, "masked": "hidden"}

#: A column of each of these types for each action; integers are hashed as their digits.
TYPES = {"text": "text", "number": "bigint"}
COLUMNS = [f"{action}_{kind}" for action, kind in itertools.product(ACTIONS, TYPES)]
STORED_COLUMNS = [name for name in COLUMNS if not name.startswith("exclude_")]

_AVRO = b"Obj\x01"
_SYNC_BYTES = 16


def hashed(text: str) -> str:
    """Return the hash of a value, computed independently."""
    return hmac.new(KEY.encode(), text.encode(), hashlib.sha256).hexdigest()


def stored_row(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return a row as the lake stores it, without excluded columns."""
    cells = [row["id"], row["name"]]
    for name in STORED_COLUMNS:
        action = name.split("_")[0]
        if action in MASKED:
            cells.append(MASKED[action])
        else:
            cells.append(None if row[name] is None else hashed(str(row[name])))
    return tuple(cells)


@dataclass
class Secrets:
    """Secret values, which all are different and recognizable."""

    chance: random.Random = field(default_factory=lambda: random.Random(7))
    values: list[bytes] = field(default_factory=list)

    def text(self) -> str:
        """Return a new secret text."""
        text = f"secret-{self.chance.randrange(10**15):015}"
        self.values.append(text.encode())
        return text

    def number(self) -> int:
        """Return a new secret number of 64 bits."""
        number = self.chance.randrange(10**17, 10**18)
        self.values += [str(number).encode(), number.to_bytes(8, "little")]
        self.values.append(number.to_bytes(8, "big"))
        return number

    def row(self) -> dict[str, Any]:
        """Return a new secret value for each of `COLUMNS`."""
        return {name: self.text() if name.endswith("text") else self.number() for name in COLUMNS}

    def found_in(self, folder: Path, *, apart_from: Sequence[str] = ()) -> list[str]:
        """Return the files that contain a secret value.

        Args:
            folder: contains the files, at any depth.
            apart_from: names of files that may contain secrets, such as those of the source.
        """
        files = (path for path in folder.rglob("*") if path.is_file())
        return [
            f"{path.relative_to(folder)}: {value!r}"
            for path in files
            if path.name not in apart_from
            for value in self.values
            if any(value in content for content in _contents(path))
        ]

    def are_in(self, text: str) -> bool:
        """Return whether a text contains a secret value."""
        return any(value in text.encode() for value in self.values)


def _contents(path: Path) -> list[bytes]:
    """Return a file's bytes, and the decoded bytes of compressed formats."""
    data = path.read_bytes()
    found = [data]
    if data[:4] == b"PAR1" == data[-4:]:
        found += _values(pq.read_table(path))
    elif data[:6] == b"ARROW1":
        found += _arrow_values(data)
    elif data[:4] == b"\xff\xff\xff\xff":
        found += _values(pa.ipc.open_stream(data).read_all())
    elif data[:2] == b"\x1f\x8b":
        found.append(gzip.decompress(data))
    elif data[:4] == _AVRO:
        found += _avro_blocks(data)
    return found


def _arrow_values(data: bytes) -> Iterator[bytes]:
    """Yield the values of an Arrow file, or of the part of one that a killed process wrote."""
    # A file is a stream between a mark of 8 bytes and a footer.
    try:
        batches = pa.ipc.open_stream(data[8:])
    except pa.ArrowInvalid:
        return
    while True:
        try:
            batch = batches.read_next_batch()
        except (StopIteration, pa.ArrowInvalid, OSError):
            return
        yield from _values(pa.Table.from_batches([batch]))


def _values(table: pa.Table) -> Iterable[bytes]:
    return [repr(table.column(name).to_pylist()).encode() for name in table.column_names]


def _avro_blocks(data: bytes) -> Iterator[bytes]:
    """Yield the blocks of an Avro container file, decompressed."""
    place, codec = len(_AVRO), b"null"
    while True:
        count, place = read_long(data, place)
        if not count:
            break
        for _ in range(abs(count)):
            size, place = read_long(data, place)
            name, place = data[place : place + size], place + size
            size, place = read_long(data, place)
            if name == b"avro.codec":
                codec = data[place : place + size]
            place += size
    place += _SYNC_BYTES
    while place < len(data):
        _, place = read_long(data, place)
        size, place = read_long(data, place)
        block = data[place : place + size]
        assert codec in {b"null", b"deflate"}, codec
        yield block if codec == b"null" else zlib.decompress(block, -15)
        place += size + _SYNC_BYTES
