"""The upsert fold of a batch: a pure function over sorted Arrow rows.

Source: `seeds/destination-connector.txt` ("WriteBatchRequest"). The rows of a key are its *events*:
the stored row, then the batch's replace, update and delete rows, each in the order of the request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from chronolake.change_set import RESERVED
from chronolake.core.key_groups import NONE, Runs, Unmodified, integers, take

if TYPE_CHECKING:
    from chronolake.core.scd2_fold import Layout

KIND: Final = f"{RESERVED}kind"
#: Number of a key's update rows that had no row to change; 0 for a row that is kept.
IGNORED: Final = f"{RESERVED}ignored"

# Kinds of events, in their order.
STORED: Final = 0
REPLACE: Final = 1
UPDATE: Final = 2
DELETE: Final = 3


def final_rows(events: pa.Table, layout: Layout) -> pa.Table:
    """Return the final row of each key, and no row for a key that is deleted or never existed.

    `events` are rows sorted by key, `KIND` and position in the batch, with the table's columns and
    `UNMODIFIED`.

    Returns:
        The table's columns, and `IGNORED` (bigint): 0, or the number of the key's update rows if no
        row existed to change; the other cells of such a row are undefined.
    """
    runs = Runs.of(events, layout.key)
    kind = integers(events.column(KIND))
    bits = Unmodified(events, layout.carried)
    updates, stored = kind == UPDATE, kind == STORED
    has_row = runs.last_at_or_before(stored | (kind == REPLACE)) != NONE
    ignored = np.where(has_row, 0, runs.count_so_far(updates))
    # A key that is finally deleted is in the result only to count its ignored updates.
    is_in_result = updates | (kind == REPLACE) | (ignored > 0)
    chosen = np.flatnonzero((runs.last == np.arange(len(kind))) & is_in_result)
    columns = {}
    for name in layout.columns:
        if name in layout.key or (name in layout.carried and name not in layout.unmodified):
            columns[name] = take(events, name, chosen)
            continue
        # A column that the batch does not contain keeps its stored value, whatever the kind of row.
        given = ~(updates & bits[name]) if name in layout.carried else stored
        columns[name] = take(events, name, runs.last_at_or_before(given)[chosen])
    return pa.table({**columns, IGNORED: pa.array(ignored[chosen])})
