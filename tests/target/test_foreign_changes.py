"""Changes of a target table by others are reported, and never overwritten silently."""

from __future__ import annotations

import pytest

from chronolake.config import PostgresTarget
from chronolake.errors import TargetChangedError
from chronolake.target.publication import Outcome
from support.target.targets import LIVE, Target, write

_CHANGES = {
    "update": "UPDATE {table} SET name = 'foreign' WHERE id = 3",
    "delete": "DELETE FROM {table} WHERE id = 3",
    "insert": "INSERT INTO {table} (id, name) VALUES (100, 'foreign')",
    "truncate": "TRUNCATE TABLE {table}",
    "added column": "ALTER TABLE {table} ADD COLUMN more int",
    "dropped": "DROP TABLE {table}",
}


@pytest.mark.long
def test_changes_by_others_are_errors_until_taken_over(target: Target) -> None:
    """One lake for all of them, because each is taken over."""
    write(target.lake, range(10), "first")
    target.publish(LIVE)
    for number, (kind, statement) in enumerate(_CHANGES.items()):
        target.run(statement.format(table=target.table(LIVE)))
        write(target.lake, [number], f"next {number}")
        with pytest.raises(TargetChangedError) as caught:
            target.publish(LIVE)
        assert caught.value.table == str(LIVE), kind
        assert "--take-over" in (caught.value.hint or ""), kind
        taken = target.publish(LIVE, takes_over=True)
        assert taken.outcome is Outcome.LOADED
        target.expect_equal(LIVE)
    assert target.publish(LIVE).outcome is Outcome.UNCHANGED


def test_table_of_others_is_not_replaced(target: Target) -> None:
    write(target.lake, range(10), "first")
    if isinstance(target.config, PostgresTarget):
        target.run("CREATE SCHEMA sales")
    target.run(f"CREATE TABLE {target.table(LIVE)} (id int)")
    with pytest.raises(TargetChangedError, match="did not create"):
        target.publish(LIVE)
    target.publish(LIVE, takes_over=True)
    target.expect_equal(LIVE)


@pytest.mark.sampled
def test_rows_that_triggers_did_not_see_are_noticed(target: Target) -> None:
    """Rows are counted by operation: others have switched off the triggers for a moment."""
    write(target.lake, range(10), "first")
    target.publish(LIVE)
    table = target.table(LIVE)
    if isinstance(target.config, PostgresTarget):
        target.run(f"SET chronolake.writer = 'on'; DELETE FROM {table} WHERE id = 3")
    else:
        target.run("SET @chronolake_writer = 1", f"DELETE FROM {table} WHERE id = 3")
    write(target.lake, [3], "second")
    with pytest.raises(TargetChangedError, match="does not have the rows"):
        target.publish(LIVE)
