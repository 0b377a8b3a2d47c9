"""Monthly active rows: how many distinct rows were written to a table in a calendar month.

A row is a key; in a history table, a version. A batch's rows are counted as it is published, in the
same commit, by UTC month: as a theta sketch, which is exact up to some thousands and within about
3 % beyond (twice the standard error), and which can be merged, so that a row that is written twice
in a month counts once. Removing a row, closing a version, or writing a version again that says the
same, counts nothing. The table is never looked at.

The sketch of the present month is a property of the table; of months that are over, only their
number remains.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import datasketches
import orjson

from chronolake.types import USAGE_PREFIX, quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chronolake.iceberg import IcebergTable

#: Exact up to 2**12 rows at least; a sketch takes up to 40 KB.
_LOG_ENTRIES: Final = 12


def sketching(columns: Sequence[str], condition: str) -> str:
    """A SQL aggregate over rows: the sketch of those that meet a condition.

    Args:
        columns: the columns that tell rows apart.
        condition: SQL: whether a row counts.
    """
    # A null hashes like nothing at all: whether it is one goes in by itself.
    parts = ", ".join(f"{quoted(name)}, {quoted(name)} IS NULL" for name in columns)
    return f"theta_sketch_agg(xxhash64({parts}), {_LOG_ENTRIES}) FILTER (WHERE {condition})"


def counted(
    table: IcebergTable, sketch: bytes | None, *, now: datetime | None = None
) -> dict[str, str]:
    """The properties that change when the rows of a sketch are published.

    Args:
        table: the table that they are written to.
        sketch: of the rows that are written, or None: there are none.
        now: the time; the present by default.
    """
    if sketch is None:
        return {}
    name = USAGE_PREFIX + (now or datetime.now(UTC)).strftime("%Y-%m")
    union = datasketches.theta_union(_LOG_ENTRIES)
    union.update(datasketches.compact_theta_sketch.deserialize(sketch))
    stored = table.property_of(name)
    if stored is not None:
        before = base64.b64decode(orjson.loads(stored).get("sketch", ""))
        if not before:
            # Another process's clock has begun the next month: this one is closed.
            return {}
        union.update(datasketches.compact_theta_sketch.deserialize(before))
    merged = union.get_result()
    if merged.is_empty():
        return {}
    value: dict[str, Any] = {
        "rows": round(merged.get_estimate()),
        "exact": not merged.is_estimation_mode(),
        "sketch": base64.b64encode(merged.serialize()).decode(),
    }
    changed = {name: orjson.dumps(value).decode()}
    # All properties are read only for the first rows of a month: that is slow.
    for other, text in (table.properties if stored is None else {}).items():
        if other.startswith(USAGE_PREFIX) and other != name:
            # The month is over: nothing will be added to it.
            number = orjson.loads(text)
            number.pop("sketch", None)
            changed[other] = orjson.dumps(number).decode()
    return changed
