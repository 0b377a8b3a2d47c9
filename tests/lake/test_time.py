"""A table at a time, between two times, and in another mode; in Python and on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, time, timedelta, timezone
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from chronolake import core
from chronolake.core import migration
from chronolake.errors import (
    BatchError,
    CommitError,
    HistoryWarning,
    SchemaError,
    TableExistsError,
    ValueRefusedError,
)
from chronolake.lake import Lake
from chronolake.types import Column, ColumnType, Kind, Mode, TableName
from support.commands import run_command

COLUMNS = (
    Column("id", ColumnType(Kind.LONG), primary_key=True),
    Column("key.2", ColumnType(Kind.STRING), primary_key=True),
    Column("name", ColumnType(Kind.STRING)),
    Column("old", ColumnType(Kind.DOUBLE)),
    Column("_fivetran_synced", ColumnType(Kind.UTC_DATETIME)),
)
HISTORY = (
    Column("_fivetran_start", ColumnType(Kind.UTC_DATETIME), primary_key=True),
    Column("_fivetran_end", ColumnType(Kind.UTC_DATETIME)),
    Column("_fivetran_active", ColumnType(Kind.BOOLEAN)),
)
DELETED = Column("_fivetran_deleted", ColumnType(Kind.BOOLEAN))
_numbers = count()


@pytest.fixture
def name() -> TableName:
    return TableName("in time", f"t{next(_numbers)}")


@pytest.fixture
def versions(lake: Lake, name: TableName) -> Iterator[TableName]:
    """Create four records with known changes.

    Record 1 changes on the 3rd and is deleted on the 5th; 2 never changes; 3 begins on the 4th.
    Record 4 gets a second version on the 3rd with the same values.
    """
    core.create(lake, name, (*COLUMNS, *HISTORY))
    spans = [
        (1, "a", 0.5, 1, "2024-01-02 23:59:59.999"),
        (1, "b", 0.5, 3, "2024-01-05 00:00:00"),
        (2, "c", "NaN", 1, None),
        (3, "d", None, 4, None),
        (4, "e", 1.5, 1, "2024-01-02 23:59:59.999"),
        (4, "e", 1.5, 3, None),
    ]
    rows = ", ".join(
        f"({key}, 'x', '{text}', CAST({'NULL' if old is None else repr(str(old))} AS DOUBLE), "
        f"timestamp'2024-01-0{day} 00:00:00', timestamp'2024-01-0{day} 00:00:00', "
        f"timestamp'{end or '9999-12-31 23:59:59.999'}', {end is None})"
        for key, text, old, day, end in spans
    )
    lake.spark.sql(f"INSERT INTO {name.sql} VALUES {rows}")
    return name  # type: ignore[return-value]


def fill(lake: Lake, name: TableName, *, soft: bool) -> None:
    core.create(lake, name, (*COLUMNS, *([DELETED] if soft else [])))
    rows = ", ".join(
        f"({key}, 'x', 'n{key}', {key}.5, timestamp'2024-01-0{key} 00:00:00'"
        f"{f', {key == 2}' if soft else ''})"
        for key in (1, 2, 3)
    )
    lake.spark.sql(f"INSERT INTO {name.sql} VALUES {rows}")


@pytest.mark.parametrize(
    ("at", "names"),
    [
        ("2023-12-31T23:59:59.999999Z", {}),
        ("2024-01-01", {1: "a", 2: "c", 4: "e"}),
        # The version ends a millisecond before the next begins, and is valid until then.
        ("2024-01-02T23:59:59.999999Z", {1: "a", 2: "c", 4: "e"}),
        ("2024-01-03T00:00:00Z", {1: "b", 2: "c", 4: "e"}),
        ("2024-01-05T00:00:00.000999Z", {1: "b", 2: "c", 3: "d", 4: "e"}),
        ("2024-01-05T00:00:00.001Z", {2: "c", 3: "d", 4: "e"}),
        ("9999-12-31T23:59:59.999999Z", {2: "c", 3: "d", 4: "e"}),
    ],
)
def test_time_travel_returns_earlier_states_of_a_table(
    lake: Lake, versions: TableName, at: str, names: dict[int, str]
) -> None:
    found = lake.table(versions).as_of(at).select("id", "name").collect()
    assert {row[0]: row[1] for row in found} == names
    assert len(found) == len(names)


def test_diff_lists_the_records_that_differ_between_two_times(
    lake: Lake, versions: TableName
) -> None:
    def between(before: str, after: str) -> dict[int, tuple[Any, ...]]:
        rows = lake.table(versions).diff(before, after).collect()
        return {
            row.key.id: (row.change, row.old and row.old.name, row.new and row.new.name)
            for row in rows
        }

    assert between("2024-01-02", "2024-01-04") == {
        1: ("changed", "a", "b"),
        3: ("inserted", None, "d"),
    }
    assert between("2024-01-04", "2024-01-06") == {1: ("deleted", "b", None)}
    assert between("2024-01-02", "2024-01-06") == {
        1: ("deleted", "a", None),
        3: ("inserted", None, "d"),
    }
    assert between("2024-01-06", "2024-01-06") == {}
    # Nothing exists at the first instant, and records that ended before the last are not counted.
    assert set(between("0001-01-01", "9999-12-31")) == {2, 3, 4}


def test_times_in_the_wrong_order_and_no_times_are_refused(
    lake: Lake, versions: TableName, name: TableName
) -> None:
    with pytest.raises(ValueRefusedError, match="is after"):
        lake.table(versions).diff("2024-01-02", "2024-01-01")
    with pytest.raises(ValueRefusedError, match="not a valid time"):
        lake.table(versions).as_of("yesterday-ish")
    live = TableName(name.schema, f"{name.table}_live")
    core.create(lake, live, COLUMNS)
    with pytest.raises(BatchError, match="keeps no history"):
        lake.table(live).diff("2024-01-01", "2024-01-02")


def test_diff_prints_what_differs(
    lake: Lake, versions: TableName, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("diff", f"`in time`.{versions.table}", "--from", "2024-01-02", "--to", "2024-01-04")
    code, reported, _ = run_command(lake.config.path, capsys, *words, "--json")
    assert code == 0
    assert [json.loads(line) for line in reported.splitlines()] == [
        {
            "key": {"id": 1, "key.2": "x"},
            "change": "changed",
            "old": {"name": "a"},
            "new": {"name": "b"},
        },
        {
            "key": {"id": 3, "key.2": "x"},
            "change": "inserted",
            "old": None,
            "new": {"name": "d", "old": None},
        },
    ]
    code, reported, _ = run_command(lake.config.path, capsys, *words)
    assert code == 0
    assert "a → b" in reported
    assert "id=3, key.2=x" in reported
    code, reported, _ = run_command(lake.config.path, capsys, *words, "--limit", "1")
    assert "first 1 records" in reported
    assert "id=3" not in reported


@pytest.mark.sampled
@pytest.mark.parametrize("soft", [True, False])
def test_a_switch_to_history_and_back_loses_no_row(
    lake: Lake, name: TableName, *, soft: bool
) -> None:
    fill(lake, name, soft=soft)
    before = lake.table(name).df.orderBy("id").collect()
    mode = Mode.SOFT_DELETE if soft else Mode.LIVE
    assert migration.switch_mode(lake, name, Mode.HISTORY)
    assert not migration.switch_mode(lake, name, Mode.HISTORY)
    assert lake.table(name).describe().mode is Mode.HISTORY
    assert core.verify(lake, name).holds
    assert migration.switch_mode(lake, name, mode)
    after = lake.table(name).df.orderBy("id").collect()
    assert [row.asDict() for row in after] == [row.asDict() for row in before]
    assert lake.table(name).describe().columns == (*COLUMNS, *([DELETED] if soft else []))


def test_live_and_soft_delete_tables_become_each_other(lake: Lake, name: TableName) -> None:
    fill(lake, name, soft=True)
    assert migration.switch_mode(lake, name, Mode.LIVE)
    assert [row.id for row in lake.table(name).df.orderBy("id").collect()] == [1, 3]
    assert migration.switch_mode(lake, name, Mode.SOFT_DELETE)
    found = lake.table(name).df.orderBy("id").collect()
    assert [(row.id, row._fivetran_deleted) for row in found] == [(1, False), (3, False)]


def test_a_question_about_the_time_before_the_switch_is_answered_with_a_warning(
    lake: Lake, name: TableName
) -> None:
    fill(lake, name, soft=True)
    migration.switch_mode(lake, name, Mode.HISTORY)
    assert lake.table(name).as_of("2024-01-03").count() == 2
    with pytest.warns(HistoryWarning, match=r"history since 2024-01-03T00:00:00Z"):
        assert lake.table(name).as_of("2024-01-02T23:59:59Z").count() == 0
    with pytest.warns(HistoryWarning, match=r"history since 2024-01-03T00:00:00Z"):
        lake.table(name).history()
    copy = TableName(name.schema, f"{name.table}_copy")
    migration.copy_table(lake, name, copy)
    with pytest.warns(HistoryWarning):
        lake.table(copy).diff("2024-01-02", "2024-01-04")
    migration.switch_mode(lake, copy, Mode.LIVE)
    assert lake.table(copy).describe().history_since is None


def test_mode_prints_its_plan_and_requires_yes_before_data_is_lost(
    lake: Lake, versions: TableName, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("mode", f"`in time`.{versions.table}", "soft-delete")
    plan = {
        "table": str(versions),
        "from": "history",
        "to": "soft-delete",
        "done": False,
        "added_columns": ["_fivetran_deleted"],
        "dropped_columns": ["_fivetran_start", "_fivetran_end", "_fivetran_active"],
        "rows_before": 6,
        "rows_after": 4,
        "loses": "all versions except the newest of each record, and the times at which versions "
        "were valid",
    }
    code, reported, _ = run_command(lake.config.path, capsys, *words, "--dry-run", "--json")
    assert (code, json.loads(reported)) == (0, plan)
    code, _, reported = run_command(lake.config.path, capsys, *words)
    assert code == 2
    assert "2 of 6 versions" in " ".join(reported.split())
    assert lake.table(versions).describe().mode is Mode.HISTORY
    keep = ("--yes", "--keep-history-as", f"`in time`.{versions.table}_kept")
    code, reported, _ = run_command(lake.config.path, capsys, *words, *keep, "--json")
    assert (code, json.loads(reported)) == (0, plan | {"done": True})
    assert lake.table(f"`in time`.{versions.table}_kept").df.count() == 6
    found = lake.table(versions).df.orderBy("id").collect()
    assert [(row.id, row.name, row._fivetran_deleted) for row in found] == [
        (1, "b", True),
        (2, "c", False),
        (3, "d", False),
        (4, "e", False),
    ]
    # The copy is not overwritten, and a table without history has no history to keep.
    assert run_command(lake.config.path, capsys, "mode", words[1], "history", *keep)[0] == 2
    code, reported, _ = run_command(lake.config.path, capsys, *words)
    assert code == 0
    assert "nothing to do" in reported


def test_an_invalid_marker_loses_no_deletion_marks(
    lake: Lake, name: TableName, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(lake, name, soft=True)
    words = ("mode", f"`in time`.{name.table}")

    for mode in ("history", "live"):
        for more in ((), ("--dry-run",), ("--yes", "--json")):
            code, _, reported = run_command(
                lake.config.path, capsys, *words, mode, "--marker", "deletd", *more
            )
            assert code == 1
            assert "does not have this column to mark deleted rows" in reported
    # Another column that could be the marker: the table's own deletion marks would be lost.
    migration.add_column_with_default(
        lake, name, Column("gone", ColumnType(Kind.BOOLEAN)), lambda _: pa.scalar(False)
    )
    marked = (*words, "history", "--marker", "gone")
    code, reported, _ = run_command(lake.config.path, capsys, *marked, "--dry-run", "--json")
    assert code == 0
    assert "the values of _fivetran_deleted" in json.loads(reported)["loses"]
    assert run_command(lake.config.path, capsys, *marked)[0] == 2
    # A name that does not exist is an error, also beside one that does.
    for mode in ("history", "live"):
        both = (*words, mode, "--marker", "gone", "--marker", "_fivetran_delete", "--yes")
        code, _, reported = run_command(lake.config.path, capsys, *both)
        assert code == 1
        assert "does not have this column to mark deleted rows" in reported
        assert "Did you mean '_fivetran_deleted'?" in " ".join(reported.split())
    assert [row.id for row in lake.table(name).df.where("_fivetran_deleted").collect()] == [2]


def test_a_marker_without_effect_is_refused(
    lake: Lake, name: TableName, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(lake, name, soft=True)
    migration.switch_mode(lake, name, Mode.HISTORY)
    words = ("mode", f"`in time`.{name.table}", "live", "--marker", "gone", "--yes")
    code, _, reported = run_command(lake.config.path, capsys, *words)
    assert code == 2
    assert "its active versions remain" in " ".join(reported.split())


def test_a_marker_of_another_name_is_made_where_it_is_missing(lake: Lake, name: TableName) -> None:
    fill(lake, name, soft=False)
    migration.switch_mode(lake, name, Mode.SOFT_DELETE, markers=["gone"])
    found = lake.table(name).df.select("_fivetran_deleted", "gone").distinct().collect()
    assert [tuple(row) for row in found] == [(False, False)]


def test_a_switch_that_was_planned_on_another_state_is_refused(lake: Lake, name: TableName) -> None:
    fill(lake, name, soft=False)
    planned_on = lake.catalog.load(name)
    lake.spark.sql(f"ALTER TABLE {name.sql} ADD COLUMN more INT")
    before = lake.catalog.load(name).snapshot_id
    with pytest.raises(CommitError, match="Another process has written to the table"):
        migration.switch_mode(lake, name, Mode.SOFT_DELETE, planned_on=planned_on)
    assert lake.catalog.load(name).snapshot_id == before
    now = lake.catalog.load(name)
    assert migration.switch_mode(lake, name, Mode.SOFT_DELETE, planned_on=now)


def test_a_view_is_dropped_with_its_table_also_if_the_request_is_repeated(
    lake: Lake, versions: TableName
) -> None:
    def view_is_there() -> bool:
        names = lake.spark.sql("SHOW VIEWS IN `in time`").collect()
        return f"{versions.table}_current" in {row.viewName for row in names}

    core.create_current_view(lake, versions)
    kept = TableName("in time", f"{versions.table}_renamed")
    # As if the process had died before it dropped the view.
    lake.catalog.rename(versions, kept)
    assert view_is_there()
    assert not migration.rename_table(lake, versions, kept)
    assert not view_is_there()

    lake.catalog.rename(kept, versions)
    view = core.create_current_view(lake, versions)
    with pytest.raises(TableExistsError, match="A view with this name already exists"):
        core.create(lake, view, COLUMNS)


def test_a_copy_keeps_the_distance_of_versions(lake: Lake, versions: TableName) -> None:
    """A copy keeps the distance of versions, which may be a microsecond, in later changes, too."""
    lake.spark.sql(
        f"ALTER TABLE {versions.sql} SET TBLPROPERTIES ('chronolake.epsilon-micros' = '1')"
    )
    lake.spark.sql(
        f"UPDATE {versions.sql} SET _fivetran_end = _fivetran_end + INTERVAL 999 MICROSECONDS "
        "WHERE second(_fivetran_end) = 59 AND NOT _fivetran_active"
    )
    assert core.verify(lake, versions).holds
    copy = TableName("in time", f"{versions.table}_copy")

    migration.copy_table(lake, versions, copy)
    migration.add_column_in_history(
        lake,
        copy,
        Column("new", ColumnType(Kind.INT)),
        lambda kind: pa.scalar(7, kind.arrow),
        at_micros=1_704_844_800_000_000,
    )

    assert lake.table(copy).describe().epsilon == 1
    assert core.verify(lake, copy).holds
    for at in ("2024-01-02T23:59:59.999999Z", "2024-01-09T23:59:59.999999Z"):
        found = lake.table(copy).as_of(at).groupBy("id").count().collect()
        assert found, at
        assert {row["count"] for row in found} == {1}, at


def test_questions_at_the_edges_of_python(lake: Lake, versions: TableName) -> None:
    found = lake.table(versions)
    east, west = timezone(timedelta(hours=5)), timezone(timedelta(hours=-5))
    assert found.as_of(datetime.max.replace(tzinfo=east)).count() == 3
    assert found.as_of(datetime.min.replace(tzinfo=west)).count() == 0
    with pytest.raises(ValueRefusedError, match="is not a valid time"):
        found.as_of("12:00")
    with pytest.raises(ValueRefusedError, match="is not a valid bigint") as refused:
        found.history(id=2**70)
    assert "Times" not in (refused.value.hint or "")


def test_a_zero_has_no_sign(lake: Lake, name: TableName) -> None:
    key = Column("f", ColumnType(Kind.DOUBLE), primary_key=True)
    core.create(lake, name, (key, *HISTORY))
    lake.spark.sql(
        f"INSERT INTO {name.sql} VALUES (-0.0D, timestamp'2024-01-01 00:00:00', "
        "timestamp'9999-12-31 23:59:59.999', true)"
    )
    assert lake.table(name).history(f=0.0).count() == 1
    assert lake.table(name).history(f=-0.0).count() == 1


def test_a_view_shows_todays_state(
    lake: Lake, versions: TableName, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("view", f"`in time`.{versions.table}", "--json")
    for _ in range(2):
        code, reported, _ = run_command(lake.config.path, capsys, *words)
        assert (code, json.loads(reported)["view"]) == (0, f"{versions}_current")
    view = f"`in time`.{versions.table}_current"
    found = lake.spark.sql(f"SELECT * FROM {view} ORDER BY id")
    assert found.columns == [column.name for column in COLUMNS]
    assert [row.id for row in found.collect()] == [2, 3, 4]
    # The view is not listed as a table, and does not take a table's name.
    assert TableName("in time", f"{versions.table}_current") not in lake.tables()
    live = TableName("in time", f"{versions.table}_live")
    core.create(lake, live, COLUMNS)
    with pytest.raises(SchemaError, match="live mode"):
        core.create_current_view(lake, live)
    taken = TableName("in time", f"{live.table}_current")
    core.create(lake, taken, COLUMNS)
    migration.switch_mode(lake, live, Mode.HISTORY)
    with pytest.raises(TableExistsError, match="view's name"):
        core.create_current_view(lake, live)


def test_a_time_of_day_in_a_key_may_be_spelled_in_any_way(lake: Lake, name: TableName) -> None:
    key = Column("at", ColumnType(Kind.NAIVE_TIME), primary_key=True)
    core.create(lake, name, (key, *HISTORY))
    lake.spark.sql(
        f"INSERT INTO {name.sql} SELECT at, timestamp'2024-01-01 00:00:00', "
        "timestamp'9999-12-31 23:59:59.999', true FROM VALUES ('09:05:00'), ('24:00:00') AS v (at)"
    )
    found = lake.table(name)
    for asked in ("09:05:00", "9:05", "09:05:00.0", time(9, 5)):
        assert [row["at"] for row in found.history(at=asked).collect()] == ["09:05:00"], asked
    assert found.history(at="24:00:00").count() == 1
    assert found.history(at="9:06").count() == 0
    assert found.history(at=None).count() == 0
