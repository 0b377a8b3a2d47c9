"""When records changed, by a field of their own."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

#: How a text with a date and a time begins.
_BEGIN: Final = re.compile(r"(\d{4}-\d{2}-\d{2}[Tt ]|\d{8}[Tt])\d")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def micros_of(values: pa.Array) -> pa.Array | None:
    """Return times in microseconds since 1970; a time without a zone is in UTC.

    Args:
        values: timestamps, or texts such as 2026-11-27T10:00:00Z.

    Returns:
        Integers, null where there is no time; None: no value is a time. Dates are not: two
        changes of a day would have the same time.
    """
    if pa.types.is_string(values.type):
        try:
            if pc.any(pc.less_equal(pc.utf8_length(values), len("2026-11-27"))).as_py():
                return _micros_of_each(values)
            values = values.cast(pa.timestamp("us", tz="UTC"))
        except pa.ArrowInvalid:
            return _micros_of_each(values)
    if not pa.types.is_timestamp(values.type):
        return None
    return values.cast(pa.timestamp("us")).cast(pa.int64())


def _micros_of_each(texts: pa.Array) -> pa.Array | None:
    """Return the times in texts of different forms, without regard to the others."""
    found = [_micros_in(text) for text in texts.to_pylist()]
    if found.count(None) == len(found):
        return None
    return pa.array(found, pa.int64())


def _micros_in(text: str | None) -> int | None:
    if text is None or not _BEGIN.match(text):
        return None
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
