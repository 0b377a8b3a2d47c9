"""Properties of pipeline tables, published with their rows."""

from __future__ import annotations

from typing import Final

#: The token of the last lease with which the table was written.
LEASE_PROPERTY: Final = "chronolake.lease"
#: The file after which the next ones are applied.
WATERMARK_PROPERTY: Final = "chronolake.watermark"
#: The last file that was ever applied.
FURTHEST_PROPERTY: Final = "chronolake.furthest"
#: Number of files that were applied up to that one.
FILES_PROPERTY: Final = "chronolake.files"
#: The folder of the files.
LAKE_PROPERTY: Final = "chronolake.raw-lake"
#: The observed types of every field, as JSON.
FIELDS_PROPERTY: Final = "chronolake.fields"
#: The table's names of numbered fields, as JSON.
NAMES_PROPERTY: Final = "chronolake.names"
#: How the stream captures changes.
CAPTURE_METHOD_PROPERTY: Final = "chronolake.sight"
#: What happens to purged records: `close` or `erase`.
ON_PURGE_PROPERTY: Final = "chronolake.on-purge"
#: Renamed fields of files that another system writes, as JSON.
RENAMES_PROPERTY: Final = "chronolake.renames"
#: The columns whose changes start a version, as JSON; missing: every change does.
TRACK_HISTORY_PROPERTY: Final = "chronolake.track-history"
#: A digest of the rules of fields of such files (`landing.ColumnRules`).
RULES_PROPERTY: Final = "chronolake.column-rules"
