"""Record versions that a source brings again although nothing has changed: they don't land.

APIs give the last record of the run before once more, and with a lookback window many; records that
do not say when they were changed come in every run. A version of such a record would only say what
the table says already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.functions import expr

from chronolake.changes import DELETED_AT, MODIFIED, PURGED_AT, RESERVED, SEQUENCE
from chronolake.description import describe_loaded
from chronolake.pipeline.snapshot import PRESENT, Sides
from chronolake.rawlake import widened
from chronolake.session import CATALOG
from chronolake.table.incoming import ORDERED, bounds_of
from chronolake.types import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.types import Column

_KEY: Final = f"{RESERVED}key_"
_STORED_KEY: Final = f"{RESERVED}stored_key_"
_SAYS: Final = f"{RESERVED}says"
_BEFORE: Final = f"{RESERVED}before"
_IS_FIRST: Final = f"{RESERVED}is_first"
_SAID: Final = f"{RESERVED}said"
_IS_STORED: Final = f"{RESERVED}is_stored"
_FACTS: Final = (MODIFIED, SEQUENCE, DELETED_AT, PURGED_AT)


def changed(
    lake: Lake, versions: DataFrame, columns: Sequence[Column], table: IcebergTable | None
) -> DataFrame:
    """Return the record versions that say something else than the version before them.

    The version before one is that of the same record in `versions`, in the order of their times and
    sequences; before the first of them it is what the table has now.

    Args:
        lake: the lake whose Spark does the work.
        versions: record versions (`chronolake.changes`) of records that are there. They are
            computed more than once.
        columns: their data columns, the key among them.
        table: the table, with all that has landed; None: there is none yet.
    """
    key = [column for column in columns if column.primary_key]
    description = None if table is None else describe_loaded(table)
    sides = None if description is None else Sides.of(columns, description)
    says = _struct(columns) if sides is None else sides.says
    common = {one.name: one.type for one in columns} if sides is None else sides.common
    keys = [f"{_KEY}{number}" for number in range(len(key))]
    order = f"OVER (PARTITION BY {', '.join(keys)} ORDER BY {MODIFIED}, {SEQUENCE})"
    cells = [quoted(column.name) for column in columns]
    given = versions.selectExpr(
        *cells,
        *_FACTS,
        f"{says} AS {_SAYS}",
        *(
            f"{widened(one, common[one.name])} AS {name}"
            for one, name in zip(key, keys, strict=True)
        ),
    ).selectExpr(
        "*", f"lag({_SAYS}) {order} AS {_BEFORE}", f"row_number() {order} = 1 AS {_IS_FIRST}"
    )
    if table is None or description is None or sides is None:
        return given.where(f"{_IS_FIRST} OR NOT {_SAYS} <=> {_BEFORE}").selectExpr(*cells, *_FACTS)

    stored = [f"{_STORED_KEY}{number}" for number in range(len(key))]
    present = lake.spark.table(f"{CATALOG}.{table.name.sql}").where(PRESENT[description.mode])
    for condition in _bounds(versions, key, sides):
        present = present.where(condition)
    present = present.selectExpr(
        f"{sides.said} AS {_SAID}",
        f"true AS {_IS_STORED}",
        *(
            f"{widened(sides.by_name[one.name], common[one.name])} AS {name}"
            for one, name in zip(key, stored, strict=True)
        ),
    )
    same = " AND ".join(f"{one} = {other}" for one, other in zip(keys, stored, strict=True))
    is_repeated = (
        f"IF({_IS_FIRST}, coalesce({_IS_STORED}, false) AND {_SAYS} <=> {_SAID}, "
        f"{_SAYS} <=> {_BEFORE})"
    )
    found = given.join(present, expr(same), "left").where(f"NOT {is_repeated}")
    return found.selectExpr(*cells, *_FACTS)


def _struct(columns: Sequence[Column]) -> str:
    named = (f"'c{number}', {quoted(one.name)}" for number, one in enumerate(columns))
    return f"named_struct({', '.join(named)})"


def _bounds(versions: DataFrame, key: Sequence[Column], sides: Sides) -> list[str]:
    """Conditions on a table by which files without these records are passed over, as SQL."""
    ordered = [
        one for one in key if one.type.kind in ORDERED and sides.by_name[one.name].type == one.type
    ]
    if not ordered:
        return []
    found = [f"{which}({quoted(one.name)})" for one in ordered for which in ("min", "max")]
    (row,) = versions.selectExpr(*found).collect()
    conditions = []
    for number, one in enumerate(ordered):
        least, greatest = row[2 * number], row[2 * number + 1]
        if least is None:
            return ["false"]
        first, last = bounds_of(one.type.kind, least, greatest)
        conditions.append(f"{quoted(one.name)} BETWEEN {first} AND {last}")
    return conditions
