"""What a snapshot's manifests list: its data files, delete files and deletion vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronolake.look.deleted import readable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.manifest import ManifestEntry, ManifestFile

    from chronolake.look.catalog import LookedUp


def entries(
    found: LookedUp, snapshot_id: int | None = None
) -> Iterator[tuple[ManifestFile, ManifestEntry]]:
    """The live entries of a snapshot, each with its manifest.

    Args:
        found: the table.
        snapshot_id: the snapshot; the current one by default.

    Raises:
        LakeError: a manifest, or the list of them, cannot be read; it names the file.
    """
    table, io = found.table, found.table.io
    if snapshot_id is None:
        snapshot = table.current_snapshot()
    else:
        snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        return
    with readable(found.name, snapshot.manifest_list):
        manifests = snapshot.manifests(io)
    for manifest in manifests:
        with readable(found.name, manifest.manifest_path):
            listed = manifest.fetch_manifest_entry(io)
        for entry in listed:
            yield manifest, entry
