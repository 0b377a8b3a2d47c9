"""Instants: what a text means, which rows are true then, which snapshot was current."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from chronolake.cells import instant
from chronolake.errors import ValueRefusedError
from chronolake.types import (
    END,
    EPSILON_MICROS,
    EPSILON_PROPERTY,
    HISTORY_SINCE_PROPERTY,
    START,
    now_micros,
)

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression

    from chronolake.look.catalog import LookedUp

_MICROS: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: In minutes.
_GREATEST_OFFSET: Final = 18 * 60
_ISO: Final = re.compile(
    r"(?P<year>\d{4})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2})"
    r"(?:[T ](?P<hour>\d{1,2}):(?P<minute>\d{1,2})"
    r"(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d+))?)?"
    r" ?(?:(?P<utc>Z|UTC)|(?P<sign>[+-])(?P<hours>\d{1,2}):?(?P<minutes>\d{2})?)?)?)?)?",
    re.ASCII | re.IGNORECASE,
)


def micros_of(text: str, *, table: str | None = None) -> int:
    """A time in ISO 8601 as microseconds since 1970; without an offset it is taken as UTC.

    What is finer than a microsecond is cut off.

    Raises:
        ValueRefusedError: the text is no time of the years 1 to 9999.
    """
    parts = _ISO.fullmatch(text.strip())
    micros = None if parts is None else _micros(parts)
    if micros is None:
        raise ValueRefusedError(
            f"{text[:50]!r} is no time.",
            hint="Times are written as 2024-05-02T00:00:00Z.",
            table=table,
        )
    return micros


def _micros(parts: re.Match[str]) -> int | None:
    year, month, day = (int(parts[name] or 1) for name in ("year", "month", "day"))
    hour, minute, second = (int(parts[name] or 0) for name in ("hour", "minute", "second"))
    offset = int(parts["hours"] or 0) * 60 + int(parts["minutes"] or 0)
    try:
        whole = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    if offset > _GREATEST_OFFSET:
        return None
    micros = (whole - _EPOCH) // _MICROS + int((parts["fraction"] or "0").ljust(6, "0")[:6])
    # Integers: in UTC it may be beyond the years that Python's datetime has.
    return micros - (-1 if parts["sign"] == "-" else 1) * offset * 60_000_000


def epsilon_of(found: LookedUp) -> int:
    """Microseconds between a version's end and the start of the next."""
    return int(found.table.properties.get(EPSILON_PROPERTY, EPSILON_MICROS))


def known_since(found: LookedUp) -> str | None:
    """ISO instant of a table's switch to history mode: what was before is not known.

    None if the table always kept history, or keeps none.
    """
    since = found.table.properties.get(HISTORY_SINCE_PROPERTY)
    return instant(int(since)) if since else None


def true_at(micros: int, epsilon: int) -> BooleanExpression:
    """Versions with start <= time < end + epsilon, as `LakeTable.as_of`."""
    from pyiceberg.expressions import And  # noqa: PLC0415 - slow to import

    return And(since(micros), until(micros - epsilon))


def since(micros: int) -> BooleanExpression:
    """Versions that start at a time or before it."""
    from pyiceberg.expressions import LessThanOrEqual  # noqa: PLC0415 - slow to import
    from pyiceberg.expressions.literals import LongLiteral  # noqa: PLC0415 - slow to import

    return LessThanOrEqual(START, LongLiteral(micros))


def until(micros: int) -> BooleanExpression:
    """Versions that end after a time."""
    from pyiceberg.expressions import GreaterThan  # noqa: PLC0415 - slow to import
    from pyiceberg.expressions.literals import LongLiteral  # noqa: PLC0415 - slow to import

    return GreaterThan(END, LongLiteral(micros))


@dataclass(frozen=True)
class Published:
    """A snapshot that was once a table's current one.

    Attributes:
        at_micros: when it became so, in microseconds since 1970.
        snapshot_id: its identity.
    """

    at_micros: int
    snapshot_id: int


def published(found: LookedUp) -> list[Published]:
    """The snapshots that were published and are still kept, by time.

    A write makes several snapshots and publishes the last one: no reader ever saw the others.
    """
    metadata = found.table.metadata
    kept = {snapshot.snapshot_id for snapshot in metadata.snapshots}
    told = [
        Published(entry.timestamp_ms * 1_000, entry.snapshot_id)
        for entry in metadata.snapshot_log
        if entry.snapshot_id in kept
    ]
    current = found.table.current_snapshot()
    if current is not None and (not told or told[-1].snapshot_id != current.snapshot_id):
        told.append(Published(current.timestamp_ms * 1_000, current.snapshot_id))
    return sorted(told, key=lambda one: one.at_micros)


def current_at(found: LookedUp, micros: int) -> Published | None:
    """The newest snapshot that was published at a time or before it; None: nothing ever was.

    Raises:
        ValueRefusedError: the snapshots of that time are no longer kept.
    """
    every = published(found)
    if not every:
        return None
    before = [one for one in every if one.at_micros <= micros]
    if not before:
        raise ValueRefusedError(
            f"What the table was at {instant(micros)} is not kept: it has no history, and its "
            f"oldest snapshot is of {instant(every[0].at_micros)}.",
            hint="Ask for a later time. A table in history mode keeps what was.",
            table=str(found.name),
        )
    return before[-1]


def asked_or_now(text: str | None, *, table: str) -> int:
    """An instant that was asked for, or this one.

    Raises:
        ValueRefusedError: the text is no time.
    """
    return now_micros() if text is None else micros_of(text, table=table)
