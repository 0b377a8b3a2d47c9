"""Fingerprints of a table as it was when it was last read, kept until it is read again.

They are in a folder beside the raw lake, a file for each range of pages, and count only while the
stream's checkpoint names them and its raw lake ends with the file that it ended with then: what has
landed since is not in them, whoever landed it, and wherever a process died.
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

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from chronolake.rawlake import ObjectFolder

_TELLS: Final = "fingerprints.json"
#: A file is named for its part, its first page, the number of its rows and a check of its bytes.
_FILES: Final = "pages-*"


class KeptFile:
    """A file of fingerprints that is being written."""

    def __init__(self, schema: pa.Schema) -> None:
        self._sink = pa.BufferOutputStream()
        self._stream = pa.ipc.new_stream(self._sink, schema)
        self._rows = 0

    def write(self, rows: pa.Table) -> None:
        """Add fingerprints of further pages."""
        self._stream.write_table(rows)
        self._rows += rows.num_rows

    def save(self, folder: Path, oid: int, begin: int) -> None:
        """Put it in its place as a whole; the same again does no harm."""
        self._stream.close()
        data = self._sink.getvalue()
        staged = folder / f"{uuid4().hex}.staged"
        staged.write_bytes(data)
        staged.replace(folder / f"pages-{oid}-{begin}-{self._rows}-{zlib.crc32(data):08x}")


@dataclass(frozen=True)
class Fingerprints:
    """Fingerprints of a table in a snapshot; it goes to the executors.

    Attributes:
        path: their folder.
    """

    path: Path

    @property
    def name(self) -> str:
        """By which a checkpoint names them."""
        return self.path.name

    @property
    def are_whole(self) -> bool:
        """Whether all files that there are are as they were written."""
        return None not in map(_content, self.path.glob(_FILES))

    @property
    def rows(self) -> int:
        """Of how many rows they are."""
        return sum(int(path.name.split("-")[3]) for path in self.path.glob(_FILES))

    def files(self) -> dict[tuple[int, int], str]:
        """The names of their files, by the part's oid and the first page."""
        found = {}
        for path in self.path.glob(_FILES):
            _, oid, begin, *_ = path.name.split("-")
            found[int(oid), int(begin)] = path.name
        return found

    @contextmanager
    def writing(self, oid: int, begin: int, schema: pa.Schema) -> Iterator[KeptFile]:
        """A file for some pages, which is there when the block has ended.

        Args:
            oid: the part that has the pages.
            begin: the first of them.
            schema: the columns of the fingerprints.
        """
        file = KeptFile(schema)
        yield file
        file.save(self.path, oid, begin)

    def read(self, name: str) -> pa.Table:
        """The fingerprints of a file, in the order of their places.

        Raises:
            SourceError: it is not there, or not as it was written.
        """
        path = self.path / name
        data = _content(path)
        if data is None:
            raise SourceError(
                "Fingerprints of the last run are damaged or gone.",
                file=str(path),
                hint="Run it again: it compares all rows with the table then.",
            )
        return pa.ipc.open_stream(data).read_all().combine_chunks()


def _content(path: Path) -> bytes | None:
    """What a file holds; None, if it is gone, or that is not what was written."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
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
            found = Fingerprints(self.path / name)
            counts = told["says"] == says and told["landed"] == self.landed.last()
            return found if counts and told["files"] == len(found.files()) else None

    def begun(self) -> Fingerprints:
        """New ones, of which none are written yet.

        Raises:
            SourceError: the folder cannot be written.
        """
        found = Fingerprints(self.path / uuid4().hex)
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
        told = {"says": says, "files": len(found.files()), "landed": self.landed.last()}
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
