"""What differs in a table since it was last read, where there is no log to tell.

Source: `seeds/history-mode.txt` ("History mode and … Teleport Sync differences"). The server makes
`fingerprints` of all rows, which are compared by their `places` with those `kept` from the snapshot
before. What is left of both is brought together by its `keys`, and only the rows that differ are
read: a `look` at a table does all of it.
"""

from chronolake.source.postgres.difference.kept import FingerprintFolder
from chronolake.source.postgres.difference.look import Look

__all__ = ["FingerprintFolder", "Look"]
