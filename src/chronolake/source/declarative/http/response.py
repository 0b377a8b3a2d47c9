"""Responses, their JSON within memory bounds, and the response cache.

JSON of an API, and how much memory its values take, which is known before they are made.

What a server answers.

Answers that are asked for again within one run, e.g. a parent stream's by each of its children.

Source: `specs/airbyte-declarative.md` (2.5).
"""

from __future__ import annotations

import io
import json
import os
import re
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any, Final

import httpx
import orjson

from chronolake.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from _typeshed import WriteableBuffer


#: Bytes that the values of one answer may take.
MEMORY: Final = 512 << 20
#: Bytes for each of these signs. Measured: `{},` takes 72, `[],` 85, `"ab",` 62, `{"a":"bc"},` 253.
_SIGNS: Final = {b"{": 190, b"{}": -118, b"[": 64, b",": 58, b":": 40}
_OF_TEMPLATES: Final = 32 << 20
#: A string, or what stands between two.
_PARTS: Final = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"|[^"]++|"', re.DOTALL)


def size_of(text: bytes, limit: int = MEMORY) -> int:
    """Return about how many bytes the values of a JSON text take; more than the limit: too many.

    Args:
        text: the text, which need not be good JSON.
        limit: what matters; a text that may take more is looked at a second time, without the signs
            that stand within strings.
    """
    size = _size(text) + len(text) * _width(text)
    if size <= limit:
        return size
    size = 0
    for found in _PARTS.finditer(text):
        string = found[1]
        size += _size(found[0]) if string is None else len(string) * _width(string)
        if size > limit:
            break
    return size


def parsed(text: bytes, limit: int = MEMORY) -> Any:
    """Return the value of a JSON text; NaN, Infinity and half surrogate pairs count as JSON.

    Raises:
        ValueError: it is not JSON.
        RecursionError: values stand within too many others.
        SourceError: its values take more than the limit, in bytes; nothing has been made of it.
    """
    expect_small(text, limit)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)


def loads(text: str) -> Any:
    """Return the value of a JSON text that a template has.

    Raises:
        ValueError: it is not JSON, or its values take more than 32 MiB.
    """
    data = text.encode()
    if size_of(data, _OF_TEMPLATES) > _OF_TEMPLATES:
        raise ValueError("too many values")
    return json.loads(data)


def expect_small(text: bytes, limit: int = MEMORY) -> None:
    """Refuse a JSON text whose values take more than the limit, in bytes.

    Raises:
        SourceError: they do.
    """
    if size_of(text, limit) > limit:
        raise too_large(limit)


def too_large(limit: int) -> SourceError:
    """Return the error for an answer whose values do not fit."""
    return SourceError(
        f"An answer holds more values than fit into {limit >> 20} MiB.",
        hint="Ask for smaller pages, or raise the source's response_memory_mib.",
    )


def _size(text: bytes) -> int:
    return sum(text.count(sign) * size for sign, size in _SIGNS.items())


def _width(text: bytes) -> int:
    """The most bytes that a byte of a string takes, once it is a character."""
    if text.isascii():
        return 4 if b"\\ud" in text or b"\\uD" in text else 2 if b"\\u" in text else 1
    # Characters beyond Latin-1 begin with such bytes, and widen the whole string.
    return 4 if max(text) >= 0xF0 else 2 if max(text) >= 0xC4 else 1  # noqa: PLR2004 - UTF-8


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


_LIMIT: Final = 64 << 20


class AnswerCache:
    """The answers used last; any number of threads may use it.

    Args:
        limit: bytes that all bodies together may have.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._size = 0
        self._answers: OrderedDict[Hashable, Answer] = OrderedDict()
        self._lock = threading.Lock()

    def kept(self, key: Hashable) -> Answer | None:
        """The answer to a request, if it is still there."""
        with self._lock:
            answer = self._answers.get(key)
            if answer is not None:
                self._answers.move_to_end(key)
            return answer

    def keep(self, key: Hashable, answer: Answer) -> None:
        """Keeps an answer, in place of those that were not used for longest."""
        with self._lock:
            before = self._answers.pop(key, None)
            self._size += len(answer.body) - (len(before.body) if before else 0)
            self._answers[key] = answer
            while self._size > self._limit:
                _, oldest = self._answers.popitem(last=False)
                self._size -= len(oldest.body)

    def forget(self) -> None:
        """Keep none of them any more."""
        with self._lock:
            self._answers.clear()
            self._size = 0
