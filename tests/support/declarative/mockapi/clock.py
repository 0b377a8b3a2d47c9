"""Times in the formats of manifests, written and read by the formats' own definition."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

#: The current time of all tests.
NOW = datetime.now(UTC).replace(microsecond=0)
#: The start date of sources whose configuration has one.
BEGIN = NOW - timedelta(days=40)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Units per second of each format.
_COUNTS = {"%s": 1, "%s_as_float": 1, "%ms": 1_000, "%epoch_microseconds": 1_000_000}
_MILLISECONDS = "%_ms"


def written(at: datetime, form: str) -> str:
    """Write a time in a format."""
    micros = (at - _EPOCH) // timedelta(microseconds=1)
    if form == "%s_as_float":
        return str(micros / 1_000_000)
    if form in _COUNTS:
        return str(micros * _COUNTS[form] // 1_000_000)
    # The %s of strftime ignores the time zone.
    form = form.replace("%s", str(micros // 1_000_000))
    return at.strftime(form.replace(_MILLISECONDS, f"{at.microsecond // 1000:03d}"))


def read(value: Any, forms: Sequence[str]) -> datetime | None:
    """Parse a value by the first format that fits; return None if none of them does."""
    for form in forms:
        try:
            if form in _COUNTS:
                return _EPOCH + timedelta(seconds=float(value) / _COUNTS[form])
            at = datetime.strptime(str(value), form.replace(_MILLISECONDS, "%f"))  # noqa: DTZ007
        except (ValueError, TypeError, OverflowError):
            continue
        return at if at.tzinfo else at.replace(tzinfo=UTC)
    return None


def forms_of(cursor: dict[str, Any]) -> list[str]:
    """Return the formats that records of a cursor may have."""
    return [*(cursor.get("cursor_datetime_formats") or ()), cursor["datetime_format"]]
