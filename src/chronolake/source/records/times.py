"""When records changed, by a field of their own."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def micros_of(values: pa.Array) -> pa.Array | None:
    """Return times in microseconds since 1970; a time without a zone is in UTC.

    Args:
        values: timestamps, or texts such as 2026-11-27T10:00:00Z.

    Returns:
        Integers, null where there is no time; None if the values are not times. Dates are not: two
        changes of a day would have the same time.
    """
    if pa.types.is_string(values.type):
        if pc.any(pc.less_equal(pc.utf8_length(values), len("2026-11-27"))).as_py():
            return None
        try:
            values = values.cast(pa.timestamp("us", tz="UTC"))
        except pa.ArrowInvalid:
            try:
                values = values.cast(pa.timestamp("us"))
            except pa.ArrowInvalid:
                return None
    if not pa.types.is_timestamp(values.type):
        return None
    return values.cast(pa.timestamp("us")).cast(pa.int64())
