"""History tables have what Fivetran's dbt packages read of them (docs/readers.md).

The packages themselves are not run here: they are not Python packages. Their models cast the times,
build keys of the record and its start, and join versions to days.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest

from chronolake import core
from chronolake.change_set import OP, SEQ, UNMODIFIED, Op
from chronolake.types import ACTIVE, END, START, Column, ColumnType, Kind, TableName

if TYPE_CHECKING:
    from chronolake.lake import Lake

NAME: Final = TableName("crm", "account")
COLUMNS: Final = (
    Column("id", ColumnType(Kind.STRING), primary_key=True),
    Column("name", ColumnType(Kind.STRING)),
    Column("_fivetran_synced", ColumnType(Kind.UTC_DATETIME)),
    Column(START, ColumnType(Kind.UTC_DATETIME), primary_key=True),
    Column(END, ColumnType(Kind.UTC_DATETIME)),
    Column(ACTIVE, ColumnType(Kind.BOOLEAN)),
)
#: Records, the times of their changes, and their names then; None for a delete.
BATCHES: Final = (
    (("1", "2026-01-01T00:00:00Z", "a"), ("2", "2026-01-01T12:00:00Z", "b")),
    (("1", "2026-01-03T06:00:00Z", "c"), ("2", "2026-01-03T12:00:00Z", None)),
    (("1", "2026-01-05T00:00:00Z", "d"), ("2", "2026-01-05T00:00:00Z", "e")),
)


def write(lake: Lake, batch: int) -> None:
    rows = []
    for place, (key, at, name) in enumerate(BATCHES[batch]):
        end = "9999-12-31T23:59:59.999Z" if name else at
        rows += [
            f"SELECT {int(op)} AS {OP}, {place}L AS {SEQ}, CAST(NULL AS ARRAY<BIGINT>) AS "
            f"{UNMODIFIED}, '{key}' AS id, nullif('{name or ''}', '') AS name, TIMESTAMP'{at}' AS "
            f"_fivetran_synced, TIMESTAMP'{at}' AS {START}, TIMESTAMP'{end}' AS {END}, "
            f"{name is not None} AS {ACTIVE}"
            for op in ([Op.EARLIEST, Op.REPLACE] if name else [Op.DELETE])
        ]
    frame = lake.spark.sql(" UNION ALL ".join(rows))
    core.write_history_batch(lake, NAME, frame, columns=COLUMNS, batch=f"b{batch}")


def ask(lake: Lake, statement: str) -> list[tuple[Any, ...]]:
    rows = lake.table(NAME).df.toArrow()
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.register("rows_of_the_table", rows)
        database.execute("CREATE TABLE account AS SELECT * FROM rows_of_the_table")
        return database.execute(statement).fetchall()


@pytest.mark.long
def test_models_of_history_find_their_columns_and_rules(lake: Lake) -> None:
    core.create(lake, NAME, COLUMNS)
    for batch in range(len(BATCHES)):
        write(lake, batch)

    types = dict(ask(lake, "SELECT column_name, data_type FROM information_schema.columns"))
    assert types[ACTIVE] == "BOOLEAN"
    instants = (START, END, "_fivetran_synced")
    assert {types[name] for name in instants} == {"TIMESTAMP WITH TIME ZONE"}
    # Models cast the times to timestamps without a zone, and to dates; Tmax survives that.
    assert ask(
        lake, f"SELECT DISTINCT CAST({END} AS TIMESTAMP)::TEXT FROM account WHERE {ACTIVE}"
    ) == [("9999-12-31 23:59:59.999",)]
    # The key of a version is the record and its start.
    assert ask(lake, f"SELECT id FROM account GROUP BY id, {START} HAVING count(*) > 1") == []
    # Models of the present read the active row of each record.
    present = f"SELECT id, name FROM account WHERE coalesce({ACTIVE}, true) ORDER BY id"
    assert ask(lake, present) == [("1", "d"), ("2", "e")]
    # A version ends a millisecond before the next one, unless the record was deleted between them.
    gaps = (
        f"SELECT id, epoch_us(lead({START}) OVER (PARTITION BY id ORDER BY {START})) "
        f"- epoch_us({END}) AS gap FROM account QUALIFY gap IS NOT NULL ORDER BY id, {START}"
    )
    assert ask(lake, gaps) == [("1", 1_000), ("1", 1_000), ("2", 36 * 3_600_000_000)]
    # Daily models join versions to days: one row a record and day, while the record exists.
    days = (
        "SELECT id, day(at), name FROM range(TIMESTAMP '2026-01-01', TIMESTAMP '2026-01-07', "
        f"INTERVAL 1 DAY) AS days(at) JOIN account ON CAST({START} AS TIMESTAMP) <= at "
        f"AND CAST({END} AS TIMESTAMP) >= at ORDER BY id, at"
    )
    assert ask(lake, days) == [
        *(("1", day, "a") for day in (1, 2, 3)),
        ("1", 4, "c"),
        *(("1", day, "d") for day in (5, 6)),
        *(("2", day, "b") for day in (2, 3)),
        *(("2", day, "e") for day in (5, 6)),
    ]
