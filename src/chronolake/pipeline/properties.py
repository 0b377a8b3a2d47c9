"""What the tables of pipelines say about themselves: properties, published with their rows."""

from __future__ import annotations

from typing import Final

#: The token of the last lease under which the table was written.
LEASE_PROPERTY: Final = "chronolake.lease"
#: The file after which the next ones are applied.
WATERMARK_PROPERTY: Final = "chronolake.watermark"
#: The last file that was ever applied.
FURTHEST_PROPERTY: Final = "chronolake.furthest"
#: How many files were applied up to that one.
FILES_PROPERTY: Final = "chronolake.files"
#: The folder of the files.
LAKE_PROPERTY: Final = "chronolake.raw-lake"
#: What forms were seen of every field, as JSON.
FIELDS_PROPERTY: Final = "chronolake.fields"
#: The names that numbered fields have in the table, as JSON.
NAMES_PROPERTY: Final = "chronolake.names"
#: What the stream can see of its source.
SIGHT_PROPERTY: Final = "chronolake.sight"
#: What becomes of records whose data the source has forgotten: `close` or `erase`.
ON_PURGE_PROPERTY: Final = "chronolake.on-purge"
#: Other names of fields than in files that somebody else writes, as JSON.
RENAMES_PROPERTY: Final = "chronolake.renames"
