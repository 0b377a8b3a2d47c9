"""Parser of user-supplied times: command options, `as_of` and `diff`, the web UI, and RPCs.

Cells of batch files and formats of manifests have their own grammars, which their specifications
define.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Final

from chronolake.errors import ValueRefusedError
from chronolake.types import now_micros

_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_GREATEST_OFFSET_MINUTES: Final = 18 * 60
_ISO: Final = re.compile(
    r"(?P<year>\d{4})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2})"
    r"(?:[T ](?P<hour>\d{1,2}):(?P<minute>\d{1,2})"
    r"(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d+))?)?"
    r" ?(?:(?P<utc>Z|UTC)|(?P<sign>[+-])(?P<hours>\d{1,2}):?(?P<minutes>\d{2})?)?)?)?)?",
    re.ASCII | re.IGNORECASE,
)


def micros_of(at: str | date, *, table: str | None = None) -> int:
    """Return the microseconds since 1970 (UTC) of an instant.

    Args:
        at: ISO 8601 text such as `2024-05-02T00:00:00Z`; a date, month or year means its first
            instant. Or a `datetime` or `date`. Without an offset it is in UTC. Digits beyond
            microseconds are truncated.
        table: the table that the error names.

    Returns:
        The instant; with an offset it may be up to a day outside the years 1 to 9999.

    Raises:
        ValueRefusedError: `at` is not a valid time.
    """
    if isinstance(at, datetime):
        aware = at if at.tzinfo else at.replace(tzinfo=UTC)
        return (aware - _EPOCH) // _MICROSECOND
    text = at.isoformat() if isinstance(at, date) else at
    parts = _ISO.fullmatch(text.strip()) if isinstance(text, str) else None
    micros = None if parts is None else _micros(parts)
    if micros is None:
        raise ValueRefusedError(
            f"{str(text)[:50]!r} is not a valid time.",
            hint="Write times like 2024-05-02T00:00:00Z.",
            table=table,
        )
    return micros


def datetime_of(micros: int) -> datetime:
    """Return the time in UTC of an instant in microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=micros)


def micros_or_now(at: str | None, *, table: str) -> int:
    """Return the microseconds since 1970 of an instant, or of the present if none is given.

    Raises:
        ValueRefusedError: as for `micros_of`.
    """
    return now_micros() if at is None else micros_of(at, table=table)


def _micros(parts: re.Match[str]) -> int | None:
    year, month, day = (int(parts[name] or 1) for name in ("year", "month", "day"))
    hour, minute, second = (int(parts[name] or 0) for name in ("hour", "minute", "second"))
    offset = int(parts["hours"] or 0) * 60 + int(parts["minutes"] or 0)
    try:
        whole = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    if offset > _GREATEST_OFFSET_MINUTES:
        return None
    micros = (whole - _EPOCH) // _MICROSECOND + int((parts["fraction"] or "0").ljust(6, "0")[:6])
    # Computed with integers: in UTC the instant may be outside the range of Python's datetime.
    return micros - (-1 if parts["sign"] == "-" else 1) * offset * 60_000_000
