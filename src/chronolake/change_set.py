"""The change set: what a batch asks of a table, as one Spark DataFrame.

A change set has one row per row of the batch's files. Three columns come first:

* `OP` (int): what to do, an `Op`.
* `SEQ` (bigint): the row's place in the request, file ordinal * 2**40 + row in the file, from 0.
  Within one `Op`, a greater one came later. Files are numbered through the request's lists in the
  order earliest, replace, update, delete.
* `UNMODIFIED` (array<bigint>): null, or bit words. Bit `i % 64` of word `i // 64` says that the
  `i`-th data column keeps its stored value; the cell itself is null.

Then come the data columns, under their own names and in their stored Spark types.

What a source gives that is pulled are *record versions* instead: one row for each time that a state
of a record was landed. Beside the data columns they have

* `MODIFIED` (bigint): when the record became so, in microseconds since 1970. Key and `MODIFIED`
  identify a version.
* `SEQUENCE` (string): of several rows of a version the greatest counts; a longer one is greater,
  equal lengths compare by bytes.
* `DELETED_AT`, `PURGED_AT` (bigint): when the record was deleted or purged, in microseconds since
  1970, or null.
* `PROVIDES_DATA` (boolean): whether the row says what the record was. One that does not is a
  *mark*: it says that the record was purged (`PURGED_AT`), or deleted at the time `MODIFIED`
  (`DELETED_AT` is the same), and its data columns besides the key are null.
* `OMITTED` (array<string>): null, or the data columns of which the row says nothing, and which are
  null in it: they are as they were in the version before. There is one, and it was not deleted or
  purged before the row's own time: the first row of a record's life tells everything.
* `LANDED_FILE` (string), `LANDED_ROW` (bigint): where the row stands. Between rows of one sequence
  the later counts; file names are ordered like sequences.

Versions that are landed in our own raw lake have no file yet. They may do without `PROVIDES_DATA`,
where only purges are marks, and without `OMITTED`, and they may have

* `OPERATED` (string): what the source did, in its own words, for those who read the lake.
* `FOLLOWS` (string): null, or the `SEQUENCE` of a mark. The row's record is that one under another
  key, and `OMITTED` columns are as they were there. They are filled in before the row lands.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from chronolake.errors import SchemaError

if TYPE_CHECKING:
    from chronolake.types import TableName

#: Names of columns and schemas that begin so, in any case, are Chronolake's own.
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
    """The kind of file that a change came in."""

    EARLIEST = 0
    REPLACE = 1
    UPDATE = 2
    DELETE = 3


def expect_unreserved(name: TableName) -> None:
    """Raise if a table's schema is one of Chronolake's own, such as that of scratch tables.

    Raises:
        SchemaError: it is.
    """
    if name.schema.casefold().startswith(RESERVED):
        raise SchemaError(
            f"Schemas whose names begin with {RESERVED} are reserved.",
            table=str(name),
            hint="Choose another schema.",
        )
