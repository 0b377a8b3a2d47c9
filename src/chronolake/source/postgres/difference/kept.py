"""Fingerprints of a table as it was when it was last read, kept until it is read again.

They are in a folder beside the raw lake, a file for each share of all keys, and count only while
the stream's checkpoint names them and its raw lake ends with the file that it ended with then: what
has landed since is not in them, whoever landed it, and wherever a process died.
"""

from __future__ import annotations

import shutil
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import orjson
import pyarrow as pa

from chronolake.errors import SourceError
from chronolake.source.postgres.difference.fingerprints import KEY, share_of, to_stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from chronolake.rawlake import ObjectFolder

_TELLS: Final = "fingerprints.json"
#: Then come the number of its rows and a check of its bytes.
_SHARE: Final = "share-{:05d}-"
_SHARES: Final = "share-*"


@dataclass(frozen=True)
class Fingerprints:
    """Fingerprints of a table in a snapshot; it goes to the executors.

    Attributes:
        path: their folder.
        shares: how many shares of all keys there are.
    """

    path: Path
    shares: int

    @property
    def name(self) -> str:
        """By which a checkpoint names them."""
        return self.path.name

    @property
    def are_all_there(self) -> bool:
        """Whether every share has a file: none is written of rows that are not told apart."""
        return len({path.name.split("-")[1] for path in self._files()}) == self.shares

    @property
    def are_whole(self) -> bool:
        """Whether all files are as they were written."""
        return self.are_all_there and None not in map(_content, self._files())

    @property
    def rows(self) -> int:
        """Of how many rows they are."""
        return sum(int(path.name.split("-")[2]) for path in self._files())

    def _files(self) -> list[Path]:
        return list(self.path.glob(_SHARES))

    def write(self, share: int, rows: pa.Table) -> None:
        """Write those of a share, in the order of their keys; the same again does no harm."""
        data = to_stream(rows)
        name = f"{_SHARE.format(share)}{rows.num_rows}-{zlib.crc32(data):08x}"
        staged = self.path / f"{uuid4().hex}.staged"
        staged.write_bytes(data)
        staged.replace(self.path / name)

    def read(self, share: int, shares: int) -> pa.Table:
        """Those of a share of all keys, in the order of their keys.

        Args:
            share: its number.
            shares: how many there are; perhaps not as many as when they were written.

        Raises:
            SourceError: a file is not there, or not as it was written.
        """
        first = share * self.shares // shares
        last = ((share + 1) * self.shares - 1) // shares
        found = pa.concat_tables(self._read(number) for number in range(first, last + 1))
        if shares <= self.shares:
            return found
        mine = share_of(found[KEY].to_numpy(), shares) == share
        return found.filter(pa.array(mine))

    def _read(self, number: int) -> pa.Table:
        prefix = _SHARE.format(number)
        for path in self.path.glob(f"{prefix}*"):
            if (data := _content(path)) is not None:
                return pa.ipc.open_stream(data).read_all()
        raise SourceError(
            "Fingerprints of the last run are damaged or gone.",
            file=str(self.path / prefix),
            hint="Run it again: it compares all rows with the table then.",
        )


def _content(path: Path) -> bytes | None:
    """What a file holds; None, if that is not what was written."""
    data = path.read_bytes()
    return data if path.name.endswith(f"-{zlib.crc32(data):08x}") else None


@dataclass(frozen=True)
class FingerprintFolder:
    """The fingerprints of a stream's table.

    Attributes:
        path: where they are.
        landed: what has landed of the stream.
    """

    path: Path
    landed: ObjectFolder

    def recalled(self, name: str | None, says: Mapping[str, Any]) -> Fingerprints | None:
        """Those that a checkpoint names, if they are of all that has landed, and of nothing else.

        Args:
            name: their name; None: it names none.
            says: what they are of, and how they were made.

        Raises:
            SourceError: the folder cannot be read.
        """
        if name is None:
            return None
        with _told(self.path):
            try:
                told = orjson.loads((self.path / name / _TELLS).read_bytes())
            except (FileNotFoundError, orjson.JSONDecodeError):
                return None
            found = Fingerprints(self.path / name, told["shares"])
            counts = told["says"] == says and told["landed"] == self.landed.last()
            return found if counts and found.are_all_there else None

    def begun(self, shares: int) -> Fingerprints:
        """New ones, of which none are written yet.

        Raises:
            SourceError: the folder cannot be written.
        """
        found = Fingerprints(self.path / uuid4().hex, shares)
        with _told(self.path):
            found.path.mkdir(parents=True)
        return found

    def finish(self, found: Fingerprints, says: Mapping[str, Any]) -> None:
        """Let fingerprints count: what they tell of has landed, and a checkpoint names them.

        Args:
            found: all of them are written.
            says: what they are of, and how they were made.

        Raises:
            SourceError: the folder cannot be written.
        """
        told = {"says": says, "shares": found.shares, "landed": self.landed.last()}
        with _told(self.path):
            staged = found.path / f"{_TELLS}.staged"
            staged.write_bytes(orjson.dumps(told))
            staged.replace(found.path / _TELLS)

    def remove_all_but(self, name: str | None) -> None:
        """Remove those that no checkpoint names."""
        for path in self.path.glob("*"):
            if path.name != name:
                shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as failure:
        raise SourceError(
            f"Fingerprints cannot be kept: {failure.strerror}.",
            file=str(path),
            hint="See that it can be written and has room, or remove it; then run it again.",
        ) from failure
