"""Differences of a table between two snapshots, without a log.

Source: `seeds/history-mode.txt` ("History mode and … Teleport Sync differences"). `fingerprints`
are computed by the server for all rows, and stored. `ctid_ranges` compares them with those of the
previous snapshot, and matches the remaining rows of both by key. `diff` does this for a table, and
reads only the rows that differ.
"""

from chronolake.source.postgres.snapshot_diff.diff import SnapshotDiff
from chronolake.source.postgres.snapshot_diff.fingerprints import FingerprintFolder

__all__ = ["FingerprintFolder", "SnapshotDiff"]
