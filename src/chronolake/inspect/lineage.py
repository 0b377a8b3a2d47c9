"""The lineage of a record: the records it was restored from, and those restored from it.

Source: `seeds/data-lake-v2.txt`: `grax__restoredfrom` holds the identifier of the record from which
a record was restored. A restored record has its own identifier, so the histories of both are
separate timelines; this column links them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from chronolake.formatting import cells
from chronolake.inspect.scan import StoredRows
from chronolake.types import RESTORED_FROM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chronolake.inspect.catalog import CatalogTable

#: The maximum number of records in each direction.
MAX_RECORDS: Final = 100


@dataclass(frozen=True)
class Lineage:
    """The records that are linked with a record, by the value of the key's only column.

    Attributes:
        column: the key's column.
        restored_from: the record's predecessors, the nearest first.
        restored_as: the records that were restored from it, and from these, the nearest first.
        is_complete: whether all linked records are listed; no direction has more than
            `MAX_RECORDS`.
    """

    column: str
    restored_from: tuple[str, ...] = ()
    restored_as: tuple[str, ...] = ()
    is_complete: bool = True

    @property
    def incomplete(self) -> str:
        """Return the message for people if `is_complete` is false."""
        return f"More records are linked: only the nearest {MAX_RECORDS} of a direction are listed."

    def __bool__(self) -> bool:
        return bool(self.restored_from or self.restored_as)


def lineage_of(table: CatalogTable, key: Mapping[str, str | None]) -> Lineage | None:
    """Return the lineage of a record, in both directions and over several restores.

    Only the key and the links are read, of the rows with a link. Up to `MAX_RECORDS` records are
    returned in each direction.

    Args:
        table: the table.
        key: the value of every key column, as text.

    Returns:
        The lineage; None if the table has no links, or a key of several columns.

    Raises:
        LakeError: the table's files cannot be read.
    """
    from pyiceberg.expressions import NotNull  # noqa: PLC0415 - slow to import

    names = {column.name for column in table.columns}
    if RESTORED_FROM not in names or len(table.key) != 1:
        return None
    (column,) = table.key
    identifier = key.get(column)
    if identifier is None:
        return Lineage(column)
    stored = StoredRows(table)
    found = [
        pa.table({"record": _texts(rows[column]), "from": _texts(rows[RESTORED_FROM])})
        for rows in stored.batches((column, RESTORED_FROM), NotNull(RESTORED_FROM))
    ]
    if not found:
        return Lineage(column)
    # Every version of a restored record has the link.
    links = pa.concat_tables(found).group_by(["record", "from"]).aggregate([])
    predecessors = _follow(links, identifier, "record", "from")
    successors = _follow(links, identifier, "from", "record")
    return Lineage(
        column,
        predecessors[:MAX_RECORDS],
        successors[:MAX_RECORDS],
        is_complete=max(len(predecessors), len(successors)) <= MAX_RECORDS,
    )


def _texts(values: pa.ChunkedArray) -> pa.Array:
    """Return values as they are written in a key."""
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return values.cast(pa.string()).combine_chunks()
    return pa.array([None if value is None else str(value) for value in cells(values)], pa.string())


def _follow(links: pa.Table, identifier: str, start: str, end: str) -> tuple[str, ...]:
    """Return the records that are reached over links, by distance and then by name.

    If there are more than `MAX_RECORDS`, then not all of them, but more than these.
    """
    known = {identifier: None}
    nearest = [identifier]
    while nearest and len(known) <= MAX_RECORDS:
        is_linked = pc.is_in(links[start], pa.array(nearest, pa.string()))
        found = sorted(set(links.filter(is_linked)[end].to_pylist()))
        # A record may be restored into one that it came from: each is listed once.
        nearest = [record for record in found if record not in known]
        known |= dict.fromkeys(nearest)
    return tuple(known)[1:]
