"""What a server answers."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any, Final

import httpx

from chronolake.errors import SourceError
from chronolake.source.declarative.exchange.jsontext import MEMORY, parsed

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

#: A body that is read as a whole has so many bytes at most.
MOST_AT_ONCE: Final = 512 << 20


@dataclass(frozen=True)
class Answer:
    """A whole answer.

    Attributes:
        headers: case does not matter in their names.
        body: after what `Content-Encoding` says has been undone; empty if it is in a file.
        url: where it came from in the end, after redirects.
        file: where the body is if it may be too large for memory; `close` removes it.
        may_lack_records: whether the manifest's error handler accepts it as it is, so that records
            are not missed where they should be.
        is_public: whether the request had no credentials, because of where it went.
        memory: bytes that the values in it may take.
    """

    status: int
    headers: httpx.Headers
    body: bytes
    url: str
    method: str
    file: IO[bytes] | None = None
    may_lack_records: bool = False
    is_public: bool = False
    memory: int = MEMORY

    @property
    def ok(self) -> bool:
        """Whether the status tells of no error."""
        return self.status < httpx.codes.BAD_REQUEST

    def json(self) -> Any:
        """The body's value.

        Raises:
            ValueError: the body is no JSON.
            SourceError: its values take too much memory.
        """
        return parsed(self.body, self.memory)

    def opened(self) -> io.BufferedReader[Any]:
        """The body from its beginning, to be read piece by piece."""
        return io.BufferedReader(
            io.BytesIO(self.body) if self.file is None else _Reading(self.file)
        )

    def whole(self) -> bytes:
        """The body, wherever it is.

        Raises:
            SourceError: it is too large for memory.
        """
        if self.file is None:
            return self.body
        if os.fstat(self.file.fileno()).st_size > MOST_AT_ONCE:
            raise SourceError(
                f"A download of more than {MOST_AT_ONCE} bytes can only be read as a whole.",
                hint="Let the manifest ask for smaller parts, or for CSV or lines of JSON.",
            )
        return self.opened().read()

    def close(self) -> None:
        """Removes the file, if there is one."""
        if self.file is not None:
            self.file.close()

    @cached_property
    def links(self) -> dict[str, dict[str, str]]:
        """The `Link` header's links by their `rel`, or by their URL where there is none."""
        response = httpx.Response(self.status, headers=self._only_links())
        return {key: dict(link) for key, link in response.links.items() if key is not None}

    def _only_links(self) -> dict[str, str]:
        return {"Link": self.headers["Link"]} if "Link" in self.headers else {}


class _Reading(io.RawIOBase):
    """A file from its beginning, at a place of its own; closing it leaves the file open."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        ends = os.fstat(self._file.fileno()).st_size
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: ends}[whence]
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        data = os.pread(self._file.fileno(), len(view), self._at)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)
