"""What differs in a table since it was last read, where there is no log to tell.

Source: `seeds/history-mode.txt` ("History mode and … Teleport Sync differences"). The server makes
`fingerprints` of all rows. `shares` of them are compared with those `kept` from the snapshot
before, and only the rows that differ are read: a `look` at a table brings them together.
"""

from chronolake.source.postgres.difference.kept import FingerprintFolder
from chronolake.source.postgres.difference.look import Look

__all__ = ["FingerprintFolder", "Look"]
