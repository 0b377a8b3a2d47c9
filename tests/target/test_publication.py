"""A target table has the rows of its table in the lake, whatever has happened to it."""

from __future__ import annotations

import pytest

from chronolake import core
from chronolake.change_set import OP, SEQ, UNMODIFIED, Op
from chronolake.target.publication import Outcome
from chronolake.types import Column, ColumnType, Kind, TableName
from support.target.targets import (
    HISTORY,
    LIVE,
    Target,
    delete,
    write,
    write_versions,
)


@pytest.mark.long
def test_load_is_followed_by_changes_only(target: Target) -> None:
    write(target.lake, range(1_000), "first")
    loaded = target.publish(LIVE)
    assert (loaded.outcome, loaded.rows) == (Outcome.LOADED, {"I": 1_000})
    target.expect_equal(LIVE)
    assert target.publish(LIVE).outcome is Outcome.UNCHANGED

    write(target.lake, range(990, 1_010), "second")
    delete(target.lake, [1, 2, 3], "third")
    changed = target.publish(LIVE)
    assert (changed.outcome, changed.rows) == (Outcome.CHANGED, {"I": 10, "U": 10, "D": 3})
    target.expect_equal(LIVE)


@pytest.mark.long
def test_history_table_has_all_versions(target: Target) -> None:
    for key in range(5):
        write_versions(target.lake, key, ["a", "b"])
    target.publish(HISTORY)
    target.expect_equal(HISTORY)
    write_versions(target.lake, 3, ["a", "b", "c\\\\t\\n"])
    changed = target.publish(HISTORY)
    assert changed.rows == {"U": 2, "I": 1}
    target.expect_equal(HISTORY)


@pytest.mark.long
def test_compaction_alone_changes_no_row(target: Target) -> None:
    for batch in range(4):
        write(target.lake, range(batch * 5, batch * 5 + 10), f"batch {batch}")
    target.publish(LIVE)
    before = target.lake.catalog.load(LIVE).snapshot_id
    core.maintain(target.lake, LIVE)
    assert target.lake.catalog.load(LIVE).snapshot_id != before
    changed = target.publish(LIVE)
    assert (changed.outcome, changed.rows) == (Outcome.CHANGED, {})
    target.expect_equal(LIVE)


@pytest.mark.long
def test_zeros_keep_their_signs(target: Target) -> None:
    """Databases and Spark take 0 and -0 as equal, but a program that reads them may not."""
    name = TableName("sales", "zeros")
    columns = [
        Column("id", ColumnType(Kind.LONG), primary_key=True),
        Column("number", ColumnType(Kind.DOUBLE)),
        Column("_fivetran_synced", ColumnType(Kind.UTC_DATETIME)),
    ]
    core.create(target.lake, name, columns)

    def put(*rows: str) -> None:
        found = target.lake.spark.sql(
            f"SELECT {int(Op.REPLACE)} AS {OP}, id AS {SEQ}, CAST(null AS array<bigint>) AS "
            f"{UNMODIFIED}, id, number, timestamp '2026-01-01' AS _fivetran_synced "
            f"FROM VALUES {', '.join(rows)} AS t(id, number)"
        )
        core.write_batch(target.lake, name, found, columns=columns, batch=rows[0])

    put("(1L, 0D)", "(2L, -0D)", "(3L, 0D)")
    target.publish(name)
    target.expect_equal(name)
    put("(1L, -0D)", "(2L, 0D)")
    assert target.publish(name).rows == {"U": 2}
    target.expect_equal(name)
