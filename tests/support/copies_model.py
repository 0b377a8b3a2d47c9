"""A model of the history of dated copies in plain Python, without Chronolake.

Written from docs/sources/copies.md. Times may be of any type that can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Version(NamedTuple):
    """A version of a record: it begins at a copy, and ends at one unless it is active."""

    key: Any
    value: Any
    start: Any
    #: The time of the copy that has another value, or lacks the record; None for an active version.
    end: Any
    #: Whether the copy at `end` lacks the record.
    is_deleted: bool


def history(copies: Mapping[Any, Mapping[Any, Any]]) -> list[Version]:
    """Return the versions of all records, by key and start.

    Args:
        copies: the content of each copy by its time: values by key.
    """
    found = []
    times = sorted(copies)
    for key in sorted({key for content in copies.values() for key in content}):
        start = value = None
        is_there = False
        for time in times:
            content = copies[time]
            if is_there and (key not in content or content[key] != value):
                found.append(Version(key, value, start, time, key not in content))
                is_there = False
            if not is_there and key in content:
                is_there, start, value = True, time, content[key]
        if is_there:
            found.append(Version(key, value, start, None, is_deleted=False))
    return found
