"""The change set: the changes that a batch requests for a table, as one Spark DataFrame.

A change set has one row for each row of the batch's files. Its first three columns are:

* `OP` (int): the operation, an `Op`.
* `SEQ` (bigint): the row's position in the request, file ordinal * 2**40 + row in the file, from 0.
  Within one `Op`, the row with the greater position is later. Files are numbered through the
  request's lists in the order earliest, replace, update, delete.
* `UNMODIFIED` (array<bigint>): null, or bit words. If bit `i % 64` of word `i // 64` is set, the
  `i`-th data column keeps its stored value, and the cell is null.

The data columns follow, with their own names and stored Spark types.

Pipelines produce *record versions* instead: one row for each landed state of a record. They have
the data columns and these:

* `MODIFIED` (bigint): when the record changed to this state, in microseconds since 1970. The
  key and `MODIFIED` identify a version.
* `SEQUENCE` (string): of the rows of one version, the row with the greatest sequence wins. A longer
  sequence is greater; sequences of equal length compare by bytes.
* `DELETED_AT`, `PURGED_AT` (bigint): when the record was deleted or purged, in microseconds since
  1970, or null.
* `PROVIDES_DATA` (boolean): whether the row contains the record's data. A row without data is a
  *tombstone*: the record was purged (`PURGED_AT`), or was deleted at `MODIFIED` (`DELETED_AT` has
  the same value), and all data columns except the key are null. If it has neither time, it is a
  *retraction*: rows of its version with a smaller sequence have no effect.
* `OMITTED` (array<string>): null, or the data columns that the row does not provide, which are null
  in it. They keep the values of the previous version. A previous version exists, and was not
  deleted or purged before the row's own time: the first row after an insert provides all columns.
* `LANDED_FILE` (string), `LANDED_ROW` (bigint): the file and row number where the row is stored.
  Of the rows with one sequence, the later one wins; file names are ordered like sequences.

Versions that are about to be landed in Chronolake's own raw lake have no file yet. They may lack
`PROVIDES_DATA`, if only purges are tombstones, and `OMITTED`. They may have these columns:

* `OPERATED` (string): the source's name of the operation, for readers of the raw lake.
* `FOLLOWS` (string): null, or the `SEQUENCE` of a tombstone. The row's record is the tombstone's
  record under another key, and `OMITTED` columns keep their values from it. They are filled in
  before the row is landed.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from chronolake.errors import SchemaError

if TYPE_CHECKING:
    from chronolake.types import TableName

#: Prefix, in any case, of the columns and schemas that are reserved for Chronolake.
RESERVED: Final = "__chronolake_"
OP: Final = "__chronolake_op"
SEQ: Final = "__chronolake_seq"
UNMODIFIED: Final = "__chronolake_unmodified"

MODIFIED: Final = "__chronolake_modified"
SEQUENCE: Final = "__chronolake_sequence"
PROVIDES_DATA: Final = "__chronolake_tells"
OMITTED: Final = "__chronolake_untold"
DELETED_AT: Final = "__chronolake_deleted_at"
PURGED_AT: Final = "__chronolake_purged_at"
LANDED_FILE: Final = "__chronolake_file_name"
LANDED_ROW: Final = "__chronolake_file_row"
OPERATED: Final = "__chronolake_operated"
FOLLOWS: Final = "__chronolake_follows"
VERSION_COLUMNS: Final = (
    MODIFIED,
    SEQUENCE,
    DELETED_AT,
    PURGED_AT,
    PROVIDES_DATA,
    OMITTED,
    LANDED_FILE,
    LANDED_ROW,
)

ROWS_PER_FILE: Final = 2**40
BITS_PER_WORD: Final = 64


class Op(IntEnum):
    """The kind of batch file that a change was read from."""

    EARLIEST = 0
    REPLACE = 1
    UPDATE = 2
    DELETE = 3


def expect_unreserved(name: TableName) -> None:
    """Raise if a table's schema is reserved for Chronolake, such as the one of scratch tables.

    Raises:
        SchemaError: it is.
    """
    if name.schema.casefold().startswith(RESERVED):
        raise SchemaError(
            f"Schemas whose names begin with {RESERVED} are reserved.",
            table=str(name),
            hint="Choose another schema.",
        )
