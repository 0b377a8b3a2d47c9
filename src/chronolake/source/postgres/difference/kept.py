"""Fingerprints of a table as it was when it was last read, kept until it is read again.

They are in a folder beside the raw lake, a file for each share of all keys, and count only while
the stream's checkpoint names them and they are not retired: what lands after them is not in them.
Before anything lands they are retired, and the checkpoint that follows names others. So they are
never those of a state that the raw lake does not end with, wherever a process dies.
"""

from __future__ import annotations

import shutil
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import orjson
import pyarrow as pa

from chronolake.errors import SourceError
from chronolake.rawlake.naming import make_durable
from chronolake.source.postgres.difference.fingerprints import KEY, share_of, to_stream

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_TOLD: Final = "fingerprints.json"
#: Then come the number of its rows and a check of its bytes.
_SHARE: Final = "share-{:05d}-"
_DOUBT: Final = "doubt-"


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
    def is_doubtful(self) -> bool:
        """Whether two rows have the same key, or keys of the same hash."""
        return any(self.path.glob(f"{_DOUBT}*"))

    @property
    def rows(self) -> int:
        """Of how many rows they are."""
        return sum(int(path.name.split("-")[2]) for path in self.path.glob("share-*"))

    def doubt(self, share: int) -> None:
        """Note that the rows of a share cannot be told apart."""
        (self.path / f"{_DOUBT}{share}").touch()

    def write(self, share: int, rows: pa.Table) -> None:
        """Write those of a share, in the order of their keys; the same again does no harm."""
        data = to_stream(rows)
        name = f"{_SHARE.format(share)}{rows.num_rows}-{zlib.crc32(data):08x}"
        staged = self.path / f"{uuid4().hex}.staged"
        staged.write_bytes(data)
        make_durable(staged)
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
            data = path.read_bytes()
            if path.name.endswith(f"-{zlib.crc32(data):08x}"):
                return pa.ipc.open_stream(data).read_all()
        raise SourceError(
            "Fingerprints of the last run are damaged or gone.",
            file=str(self.path / prefix),
            hint="Run it again: it compares all rows with the table then.",
        )


@dataclass(frozen=True)
class FingerprintFolder:
    """The fingerprints of a stream's table.

    Attributes:
        path: where they are.
    """

    path: Path

    def recalled(self, name: str | None, says: Mapping[str, Any]) -> Fingerprints | None:
        """Those that a checkpoint names.

        Args:
            name: their name; None: it names none.
            says: what they are of, and how they were made.

        Returns:
            None: there are none, or they are retired, or of something else.
        """
        if name is None:
            return None
        try:
            told = orjson.loads((self.path / name / _TOLD).read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):
            return None
        if told["says"] != says:
            return None
        return Fingerprints(self.path / name, told["shares"])

    def begun(self, shares: int) -> Fingerprints:
        """New ones, of which none are written yet."""
        found = Fingerprints(self.path / uuid4().hex, shares)
        found.path.mkdir(parents=True)
        return found

    def finish(self, found: Fingerprints, says: Mapping[str, Any]) -> None:
        """Let fingerprints count, as soon as a checkpoint names them.

        Args:
            found: all of them are written.
            says: what they are of, and how they were made.
        """
        told = {"says": says, "shares": found.shares}
        staged = found.path / f"{_TOLD}.staged"
        staged.write_bytes(orjson.dumps(told))
        make_durable(staged)
        staged.replace(found.path / _TOLD)
        make_durable(found.path)
        make_durable(self.path)

    def retire(self, found: Fingerprints) -> None:
        """Let fingerprints count no more, also after a loss of power; they can still be read."""
        (found.path / _TOLD).unlink(missing_ok=True)
        make_durable(found.path)

    def remove_all_but(self, name: str | None) -> None:
        """Remove those that no checkpoint names."""
        for path in self.path.glob("*"):
            if path.name != name:
                shutil.rmtree(path, ignore_errors=True)
