"""A target follows its table through rollbacks, new tables, mode switches and new columns."""

from __future__ import annotations

import pytest

from chronolake import core
from chronolake.core import migration
from chronolake.target.publication import Outcome
from chronolake.types import Column, ColumnType, Kind, Mode
from support.target.targets import COLUMNS, HISTORY, LIVE, Target, delete, write, write_versions


@pytest.mark.sampled
def test_rollback_of_the_lake_is_published(target: Target) -> None:
    lake = target.lake
    write(lake, range(10), "first")
    before = lake.catalog.load(LIVE).snapshot_id
    write(lake, range(5, 15), "second")
    delete(lake, [0], "third")
    target.publish(LIVE)
    lake.sql(f"CALL chronolake.system.rollback_to_snapshot('sales.customers', {before})")
    result = target.publish(LIVE)
    assert result.outcome is Outcome.CHANGED
    target.expect_equal(LIVE)


@pytest.mark.long
def test_table_that_was_made_again_is_loaded(target: Target) -> None:
    lake = target.lake
    write(lake, range(10), "first")
    target.publish(LIVE)
    migration.drop_table(lake, LIVE)
    write(lake, range(3), "again")
    result = target.publish(LIVE)
    assert (result.outcome, result.reason) == (
        Outcome.LOADED,
        "the published snapshot was expired",
    )
    target.expect_equal(LIVE)


@pytest.mark.long
@pytest.mark.sampled
def test_emptied_table_is_published(target: Target) -> None:
    write(target.lake, range(10), "first")
    target.publish(LIVE)
    delete(target.lake, range(10), "all")
    target.publish(LIVE)
    target.expect_equal(LIVE)
    assert target.rows(LIVE) == []
    write(target.lake, [1], "again")
    target.publish(LIVE)
    target.expect_equal(LIVE)


@pytest.mark.sampled
def test_columns_follow_the_lake(target: Target) -> None:
    lake = target.lake
    write(lake, range(10), "first")
    target.publish(LIVE)
    number = Column("number", ColumnType(Kind.INT))
    core.alter(lake, LIVE, [*COLUMNS, number], drop_columns=False)
    lake.sql("UPDATE sales.customers SET number = 7 WHERE id < 5")
    assert target.publish(LIVE).outcome is Outcome.CHANGED
    target.expect_equal(LIVE)

    core.alter(lake, LIVE, [*COLUMNS, Column("number", ColumnType(Kind.LONG))], drop_columns=False)
    migration.rename_column(lake, LIVE, "name", "label")
    assert target.publish(LIVE).outcome is Outcome.CHANGED
    target.expect_equal(LIVE)

    columns = [COLUMNS[0], Column("label", ColumnType(Kind.STRING)), COLUMNS[2]]
    core.alter(lake, LIVE, columns, drop_columns=True)
    assert target.publish(LIVE).outcome is Outcome.CHANGED
    target.expect_equal(LIVE)

    core.alter(
        lake,
        LIVE,
        [COLUMNS[0], Column("label", ColumnType(Kind.BINARY)), COLUMNS[2]],
        drop_columns=True,
    )
    # The lake has another column with the same name.
    target.publish(LIVE)
    target.expect_equal(LIVE)


@pytest.mark.sampled
def test_mode_switches_are_published(target: Target) -> None:
    lake = target.lake
    write(lake, range(10), "first")
    target.publish(LIVE)
    for mode in (Mode.SOFT_DELETE, Mode.HISTORY, Mode.LIVE):
        core.switch_mode(lake, LIVE, mode)
        target.publish(LIVE)
        target.expect_equal(LIVE)


@pytest.mark.long
def test_resync_of_history_is_published(target: Target) -> None:
    lake = target.lake
    write_versions(lake, 1, ["a", "b"])
    target.publish(HISTORY)
    lake.sql("DELETE FROM sales.orders WHERE id = 1")
    write_versions(lake, 1, ["b"])
    write_versions(lake, 2, ["a", "b", "c"])
    assert target.publish(HISTORY).outcome is Outcome.CHANGED
    target.expect_equal(HISTORY)


@pytest.mark.long
def test_expired_snapshot_is_loaded_again(target: Target) -> None:
    lake = target.lake
    write(lake, range(10), "first")
    target.publish(LIVE)
    write(lake, range(3), "second")
    lake.sql(
        "CALL chronolake.system.expire_snapshots(table => 'sales.customers', "
        "older_than => TIMESTAMP '2099-01-01 00:00:00', retain_last => 1)"
    )
    assert target.publish(LIVE).outcome is Outcome.LOADED
    target.expect_equal(LIVE)
