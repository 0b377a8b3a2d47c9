"""What is known of landed rows before their table is looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chronolake.changes import (
    DELETED_AT,
    LANDED_FILE,
    LANDED_ROW,
    MODIFIED,
    PURGED_AT,
    SEQUENCE,
    TELLS,
    UNTOLD,
)
from chronolake.errors import IncompleteRowsError
from chronolake.table import usage
from chronolake.table.incoming import ORDERED, bounds_of
from chronolake.types import Mode, quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from chronolake.description import TableDescription
    from chronolake.table.layout import Layout


#: Of more files with incomplete rows the names are not told.
_FILES: Final = 1_000


@dataclass(frozen=True)
class Pulled:
    """Landed rows and what is known about them.

    Attributes:
        view: the rows as a SQL name.
        rows: how many.
        marks: how many of them only say that a record is gone.
        purges: how many of these are purges.
        untold: the data columns of which some row says nothing.
        since: the least modification time in microseconds, or None.
        bounds: bounds of the key columns for which that is useful, as SQL.
        sketch: of the versions they tell of (`table/usage.py`).
        deleted: how many say when their record was deleted.
        plain_marks: how many only say that it was deleted at the row's own time.
        latest: the latest time that any of them tells, in microseconds, or None.
        has_each_once: whether it is known that no two are of one record.
    """

    view: str
    rows: int
    marks: int
    purges: int
    untold: tuple[str, ...]
    since: int | None
    bounds: dict[str, tuple[str, str]]
    sketch: bytes | None
    deleted: int
    plain_marks: int
    latest: int | None
    has_each_once: bool

    @property
    def are_states(self) -> bool:
        """Whether each row is its record's one version, which is active."""
        return self.has_each_once and not (self.deleted or self.marks or self.untold)

    @property
    def say_one_thing_each(self) -> bool:
        """Whether each row is all there is of its record: a version, or its end at that time."""
        are_plain = self.deleted == self.marks == self.plain_marks
        return self.has_each_once and are_plain and not (self.purges or self.untold)


def measured(
    spark: SparkSession,
    view: str,
    description: TableDescription,
    layout: Layout,
    *,
    has_each_once: bool,
) -> Pulled:
    """Look once at landed rows, without their data columns.

    Args:
        spark: the session that reads them.
        view: the rows as a SQL name.
        description: the table.
        layout: the same, as far as versions are concerned.
        has_each_once: whether it is known that no two rows are of one record.

    Raises:
        IncompleteRowsError: a row lacks its key, its time or its sequence.
    """
    ordered = [name for name in layout.key if description.by_name[name].type.kind in ORDERED]
    needed = [*(quoted(name) for name in layout.key), MODIFIED, SEQUENCE]
    incomplete = " OR ".join(f"{name} IS NULL" for name in needed)
    is_told = TELLS if layout.mode is Mode.LIVE else f"{TELLS} OR {PURGED_AT} IS NOT NULL"
    sketch = usage.sketching(layout.counted, is_told)
    place = f"struct({LANDED_FILE} AS file, {LANDED_ROW} AS row)"
    sorted_files = f"array_sort(collect_set({LANDED_FILE}) FILTER (WHERE {incomplete}))"
    found = [
        "count(1) AS rows",
        f"min({place}) FILTER (WHERE {incomplete}) AS place",
        f"count_if(NOT {TELLS}) AS marks",
        f"count_if({PURGED_AT} IS NOT NULL) AS purges",
        f"count({DELETED_AT}) AS deleted",
        f"count_if(NOT {TELLS} AND {DELETED_AT} = {MODIFIED}) AS plain_marks",
        f"max(greatest({MODIFIED}, {DELETED_AT}, {PURGED_AT})) AS latest",
        f"array_distinct(flatten(collect_set({UNTOLD}))) AS untold",
        f"count_if({incomplete}) AS incomplete",
        f"slice({sorted_files}, 1, {_FILES}) AS files",
        f"min({MODIFIED}) AS since",
        f"{sketch} AS sketch",
    ]
    for number, name in enumerate(ordered):
        column = quoted(name)
        found += [f"min({column}) AS least{number}", f"max({column}) AS greatest{number}"]
    (row,) = spark.sql(f"SELECT {', '.join(found)} FROM {view}").collect()
    if row["incomplete"]:
        error = IncompleteRowsError(
            f"{row['incomplete']} rows lack their key, modification time or sequence; this is the "
            "first.",
            table=str(description.name),
            file=row["place"]["file"],
            row=row["place"]["row"] + 1,
            hint=f"Every row needs {', '.join(layout.key)}, a time and a sequence.",
        )
        error.files = row["files"]
        raise error
    return Pulled(
        view=view,
        rows=row["rows"],
        marks=row["marks"],
        purges=row["purges"],
        # A name that is none of the table's columns says nothing about it.
        untold=tuple(
            name for name in layout.data if name in row["untold"] and name not in layout.key
        ),
        since=row["since"],
        bounds={
            name: bounds_of(
                description.by_name[name].type.kind, row[f"least{number}"], row[f"greatest{number}"]
            )
            for number, name in enumerate(ordered)
            if row["rows"]
        },
        sketch=row["sketch"],
        deleted=row["deleted"],
        plain_marks=row["plain_marks"],
        latest=row["latest"],
        has_each_once=has_each_once,
    )
