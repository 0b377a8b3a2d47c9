"""Small batches of a soft-delete and of a history table, each with every kind of file."""

from __future__ import annotations

from typing import Final

from support.oracle import ACTIVE, END, KEEP, MILLISECOND, START, TMAX, Row
from support.server.caller import DELETED, SYNCED
from support.server.caller import HISTORY as VERSIONED
from support.server.sent_rows import Batch

T: Final = 1_704_067_200_000_000
HOUR: Final = 3_600_000_000
_KEYS: Final = range(12)
LIVE: Final = ["id*:LONG", "a:STRING", "n:LONG", SYNCED, DELETED]
HISTORY: Final = ["id*:LONG", "a:STRING", "n:LONG", *VERSIONED]


def _live_rows(time: int, text: str) -> list[Row]:
    marks = {"_fivetran_synced": time, "_fivetran_deleted": False}
    return [{"id": key, "a": f"{text}{key}", "n": key, **marks} for key in _KEYS]


def _versions(time: int, text: str) -> list[Row]:
    times = {START: time, END: TMAX, ACTIVE: True, "_fivetran_synced": time}
    return [{"id": key, "a": f"{text}{key}", "n": key, **times} for key in _KEYS]


FIRST_LIVE: Final = Batch(replace=_live_rows(T, "first"))
FIRST_HISTORY: Final = Batch(replace=_versions(T, "first"))


def live_batch() -> Batch:
    """Return a batch that follows the first one of a soft-delete table."""
    rows = _live_rows(T + HOUR, "second")
    return Batch(
        replace=[*rows[:3], rows[3] | {"id": 99}],
        update=[row | {"n": KEEP} for row in rows[3:6]],
        delete=rows[6:8],
    )


def history_batch() -> Batch:
    """Return a batch that follows the first one of a history table."""
    rows = _versions(T + HOUR, "second")
    closed = {END: T + 2 * HOUR - MILLISECOND, ACTIVE: False}
    return Batch(
        earliest=[{"id": row["id"], START: row[START]} for row in rows[:6]],
        replace=[*(row | closed for row in rows[:2]), *rows[2:4]],
        update=[row | {START: T + 2 * HOUR, "a": KEEP} for row in rows[:2]]
        + [row | {"n": KEEP} for row in rows[4:6]],
        delete=[row | {START: None, END: T + HOUR} for row in rows[6:8]],
    )
