"""JSON of an API, and how much memory its values take, which is known before they are made."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import orjson

from chronolake.errors import SourceError

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
