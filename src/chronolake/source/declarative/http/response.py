"""HTTP responses: JSON parsing within a memory limit, and the response cache.

The memory that JSON values need is estimated before they are created. The cache keeps responses
that are requested repeatedly within one run, e.g. a parent stream's by each of its children.

Source: `specs/airbyte-declarative.md` (2.5).
"""

from __future__ import annotations

import io
import os
import re
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any, Final

import httpx

from chronolake import exact_json
from chronolake.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from _typeshed import WriteableBuffer


#: Default memory limit, in bytes, of the values of one response.
MEMORY: Final = 512 << 20
#: Bytes for each of these characters. Measured: `{},` takes 72, `[],` 85, `"ab",` 62, `{"a":"bc"},`
#: 253.
_CHARACTER_SIZES: Final = {b"{": 190, b"{}": -118, b"[": 64, b",": 58, b":": 40}
_TEMPLATE_LIMIT: Final = 32 << 20
#: A string, or the text between two strings.
_PARTS: Final = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"|[^"]++|"', re.DOTALL)


def size_of(text: bytes, limit: int = MEMORY) -> int:
    """Return the estimated memory, in bytes, of a JSON text's values.

    Args:
        text: the text, which need not be valid JSON.
        limit: threshold in bytes. A text above it is measured a second time, ignoring the
            structural characters within strings; that measurement stops above the limit.
    """
    size = _structure_size(text) + len(text) * _width(text)
    if size <= limit:
        return size
    size = 0
    for match in _PARTS.finditer(text):
        string = match[1]
        size += _structure_size(match[0]) if string is None else len(string) * _width(string)
        if size > limit:
            break
    return size


def parse_json(text: bytes, limit: int = MEMORY) -> Any:
    """Return the value of a JSON text, as `exact_json.loads` does, within a memory limit.

    Raises:
        ValueError: the text is not valid JSON.
        RecursionError: values are nested too deeply.
        SourceError: the values need more memory than the limit, in bytes; nothing was created.
    """
    raise_if_too_large(text, limit)
    return exact_json.loads(text)


def loads(text: str) -> Any:
    """Return the value of a JSON text for a template.

    Raises:
        ValueError: the text is not valid JSON, or its values need more than 32 MiB.
    """
    data = text.encode()
    if size_of(data, _TEMPLATE_LIMIT) > _TEMPLATE_LIMIT:
        raise ValueError("the values need too much memory")
    return exact_json.loads(data)


def raise_if_too_large(text: bytes, limit: int = MEMORY) -> None:
    """Raise if the values of a JSON text need more memory than the limit, in bytes.

    Raises:
        SourceError: they do.
    """
    if size_of(text, limit) > limit:
        raise too_large_error(limit)


def too_large_error(limit: int) -> SourceError:
    """Return the error for a response whose values need too much memory."""
    return SourceError(
        f"The values of a response need more than {limit >> 20} MiB of memory.",
        hint="Request smaller pages, or raise the source's response_memory_mib.",
    )


def _structure_size(text: bytes) -> int:
    return sum(text.count(sign) * size for sign, size in _CHARACTER_SIZES.items())


def _width(text: bytes) -> int:
    """Return the most bytes of memory that one byte of a string needs after decoding."""
    if text.isascii():
        return 4 if b"\\ud" in text or b"\\uD" in text else 2 if b"\\u" in text else 1
    # Characters beyond Latin-1 begin with these bytes; one of them widens the whole string.
    return 4 if max(text) >= 0xF0 else 2 if max(text) >= 0xC4 else 1  # noqa: PLR2004 - UTF-8


#: Largest body, in bytes, that is read as a whole.
MAX_BODY_IN_MEMORY: Final = 512 << 20


@dataclass(frozen=True)
class Response:
    """A complete HTTP response.

    Attributes:
        headers: names are case-insensitive.
        body: the decompressed body; empty if it is in a file.
        url: the final URL, after redirects.
        file: contains the body if it may be too large for memory; `close` removes it.
        may_lack_records: whether the manifest's error handler accepted the response as it is, so
            that missing records are not an error.
        is_public: whether the request was sent without credentials because of its target.
        memory_limit: memory limit of the values in the response, in bytes.
    """

    status: int
    headers: httpx.Headers
    body: bytes
    url: str
    method: str
    file: IO[bytes] | None = None
    may_lack_records: bool = False
    is_public: bool = False
    memory_limit: int = MEMORY

    @property
    def ok(self) -> bool:
        """Return True if the status is not an error."""
        return self.status < httpx.codes.BAD_REQUEST

    def json(self) -> Any:
        """Return the value of the JSON body.

        Raises:
            ValueError: the body is not valid JSON.
            SourceError: its values need too much memory.
        """
        return parse_json(self.body, self.memory_limit)

    def open(self) -> io.BufferedReader[Any]:
        """Open a stream of the body from its beginning."""
        return io.BufferedReader(
            io.BytesIO(self.body) if self.file is None else _FileReader(self.file)
        )

    def read_body(self) -> bytes:
        """Read the whole body, from memory or from its file.

        Raises:
            SourceError: the body is too large for memory.
        """
        if self.file is None:
            return self.body
        if os.fstat(self.file.fileno()).st_size > MAX_BODY_IN_MEMORY:
            raise SourceError(
                f"A download is larger than {MAX_BODY_IN_MEMORY} bytes, and its format can only be "
                "read as a whole.",
                hint="Change the manifest so that it requests smaller parts, CSV or JSON Lines.",
            )
        return self.open().read()

    def close(self) -> None:
        """Remove the file, if there is one."""
        if self.file is not None:
            self.file.close()

    @cached_property
    def links(self) -> dict[str, dict[str, str]]:
        """Return the `Link` header's links by their `rel`, or by their URL if they have none."""
        response = httpx.Response(self.status, headers=self._link_header())
        return {key: dict(link) for key, link in response.links.items() if key is not None}

    def _link_header(self) -> dict[str, str]:
        return {"Link": self.headers["Link"]} if "Link" in self.headers else {}


class _FileReader(io.RawIOBase):
    """A reader of a file with its own position; closing it does not close the file."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        end = os.fstat(self._file.fileno()).st_size
        self._position = (
            offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: end}[whence]
        )
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        data = os.pread(self._file.fileno(), len(view), self._position)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)


_CACHE_LIMIT: Final = 64 << 20


class ResponseCache:
    """A cache of the most recently used responses; thread-safe.

    Args:
        limit: total size of all bodies in bytes.
    """

    def __init__(self, limit: int = _CACHE_LIMIT) -> None:
        self._limit = limit
        self._size = 0
        self._responses: OrderedDict[Hashable, Response] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Response | None:
        """Return the cached response to a request, or None."""
        with self._lock:
            response = self._responses.get(key)
            if response is not None:
                self._responses.move_to_end(key)
            return response

    def put(self, key: Hashable, response: Response) -> None:
        """Store a response; evict the least recently used ones if the cache is full."""
        with self._lock:
            previous = self._responses.pop(key, None)
            self._size += len(response.body) - (len(previous.body) if previous else 0)
            self._responses[key] = response
            while self._size > self._limit:
                _, oldest = self._responses.popitem(last=False)
                self._size -= len(oldest.body)

    def clear(self) -> None:
        """Remove all responses."""
        with self._lock:
            self._responses.clear()
            self._size = 0
