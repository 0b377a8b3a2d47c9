"""What differs in a table since it was last read, where there is no log to tell.

Source: `seeds/history-mode.txt` ("History mode and … Teleport Sync differences"). The server makes
`fingerprints` of all rows, which are compared by their `ctid_ranges` with those `fingerprints` from
the snapshot before. What is left of both is brought together by its `ctid_ranges`, and only the
rows that differ are
read: a `diff` at a table does all of it.
"""

from chronolake.source.postgres.snapshot_diff.diff import SnapshotDiff
from chronolake.source.postgres.snapshot_diff.fingerprints import FingerprintFolder

__all__ = ["FingerprintFolder", "SnapshotDiff"]
