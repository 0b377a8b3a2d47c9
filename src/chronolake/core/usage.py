"""Monthly active rows: the distinct rows that were written to a table in a calendar month.

A row is a key; in a history table, a version. A batch's rows are counted when it is published, in
the same commit, by UTC month, as a theta sketch. The sketch is exact up to some thousands of rows
and within about 3 % above that (twice the standard error). Sketches can be merged, so that a row
that is written twice in a month counts once. Removing a row, closing a version, or writing an
identical version again is not counted. The table itself is never read.

The current month's sketch is a property of the table; for earlier months only the number is kept.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import datasketches
import orjson

from chronolake.sketches import FUNCTION
from chronolake.types import USAGE_PREFIX, quote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chronolake.iceberg import IcebergTable

#: Exact up to 2**12 rows at least; a sketch takes up to 40 KB.
_LOG_ENTRIES: Final = 12


def sketch_aggregate(columns: Sequence[str], condition: str) -> str:
    """Return a SQL aggregate: the sketch of the rows that meet a condition.

    Args:
        columns: the columns that identify a row.
        condition: SQL: whether a row counts.
    """
    # `xxhash64` skips nulls, so a separate flag is hashed for each column.
    parts = ", ".join(f"{quote(name)}, {quote(name)} IS NULL" for name in columns)
    return f"{FUNCTION}(xxhash64({parts}), {_LOG_ENTRIES}) FILTER (WHERE {condition})"


def monthly_properties(
    table: IcebergTable, sketch: bytes | None, *, now: datetime | None = None
) -> dict[str, str]:
    """Return the properties that change when the rows of a sketch are published.

    Args:
        table: the table to which the rows are written.
        sketch: the sketch of the written rows; None if no rows were written.
        now: the time, by default the current time.
    """
    if sketch is None:
        return {}
    name = USAGE_PREFIX + (now or datetime.now(UTC)).strftime("%Y-%m")
    union = datasketches.theta_union(_LOG_ENTRIES)
    # Spark 4.0 returns binary values as bytearray.
    union.update(datasketches.compact_theta_sketch.deserialize(bytes(sketch)))
    stored = table.property_of(name)
    if stored is not None:
        before = base64.b64decode(orjson.loads(stored).get("sketch", ""))
        if not before:
            # The clock of another process is in the next month already: this month is closed.
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
    # Reading all properties is slow, so it happens only for the first rows of a month.
    for other, text in (table.properties if stored is None else {}).items():
        if other.startswith(USAGE_PREFIX) and other != name:
            # The month is over: nothing will be added to it.
            number = orjson.loads(text)
            number.pop("sketch", None)
            changed[other] = orjson.dumps(number).decode()
    return changed
