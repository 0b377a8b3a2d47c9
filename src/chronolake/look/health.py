"""How well kept a table's files are, from its metadata alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chronolake.cells import instant

if TYPE_CHECKING:
    from pyiceberg.table.snapshots import Snapshot

    from chronolake.config import LakeConfig
    from chronolake.look.catalog import LookedUp


@dataclass(frozen=True)
class Health:
    """How well kept a table's files are.

    Attributes:
        small_files: how many data files a compaction could save at best, by which maintenance
            decides.
        data_files: data files.
        delete_ratio: which share of the stored rows deletion vectors mark, from 0 to 1.
        maintained_at: ISO instant of the last compaction; None: there was none, or its snapshot is
            no longer kept.
        snapshots: snapshots that are kept.
    """

    small_files: int
    data_files: int
    delete_ratio: float
    maintained_at: str | None
    snapshots: int


def health(found: LookedUp, config: LakeConfig) -> Health:
    """How well kept a table's files are.

    The summaries of snapshots tell all of it: nothing is read besides the metadata that `found`
    holds already.
    """
    table = found.table
    told = _told(table.current_snapshot())
    data_files = int(told.get("total-data-files", 0))
    rows = int(told.get("total-records", 0))
    removed = int(told.get("total-position-deletes", 0))
    size = int(told.get("total-files-size", 0))
    return Health(
        small_files=config.maintenance.spare_files(data_files, size),
        data_files=data_files,
        delete_ratio=removed / rows if rows else 0.0,
        maintained_at=_compacted_at(found),
        snapshots=len(table.metadata.snapshots),
    )


def _told(snapshot: Snapshot | None) -> dict[str, str]:
    if snapshot is None or snapshot.summary is None:
        return {}
    return dict(snapshot.summary.additional_properties)


def _compacted_at(found: LookedUp) -> str | None:
    """When files were last rewritten without a change of rows."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in found.table.metadata.snapshots}
    snapshot = found.table.current_snapshot()
    while snapshot is not None:
        is_rewrite = snapshot.summary is not None and snapshot.summary.operation.value == "replace"
        if is_rewrite and int(_told(snapshot).get("deleted-data-files", 0)):
            return instant(snapshot.timestamp_ms * 1_000)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else by_id.get(parent)
    return None
