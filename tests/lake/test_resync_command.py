"""`chronolake resync TABLE --from …`: sources, refusals, the dry run, and a plain model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronolake import core
from chronolake.cli.resync import MissingSetting
from chronolake.core import MissingRecords
from chronolake.errors import CommitError
from chronolake.lake import Lake
from chronolake.table_resync import prepare
from chronolake.types import DELETED, Column, ColumnType, Kind, TableName
from support.commands import run_command
from support.datalakes import iceberg_in

TMAX_MICROS = 253_402_300_799_999_000
_T = 1_704_067_200_000_000
_DAY = 86_400_000_000
_TIME = ColumnType(Kind.UTC_DATETIME)
_LIVE = (
    Column("id", ColumnType(Kind.LONG), primary_key=True),
    Column("v", ColumnType(Kind.INT)),
    Column("_fivetran_synced", _TIME),
)
_HISTORY = (
    *_LIVE,
    Column("_fivetran_start", _TIME, primary_key=True),
    Column("_fivetran_end", _TIME),
    Column("_fivetran_active", ColumnType(Kind.BOOLEAN)),
)
_numbers = count()

#: id, v, synced, start, end, active
Version = tuple[int, int | None, int, int, int, bool]
Run = Callable[..., tuple[int, dict[str, Any] | None, str]]


def stored(lake: Lake, name: TableName) -> list[Version]:
    found = iceberg_in(lake.config, name.schema, name.table).scan().to_arrow()
    columns = [
        (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
        for column in found.columns
    ]
    return in_order(zip(*columns, strict=True))


def in_order(versions: Iterable[Version]) -> list[Version]:
    """Return versions by record and start; values may be null, which Python does not order."""
    return sorted(versions, key=itemgetter(0, 3))


def fill(lake: Lake, name: TableName, versions: list[Version]) -> None:
    core.create(lake, name, _HISTORY)
    rows = ", ".join(
        f"({key}, {'NULL' if value is None else value}, timestamp_micros({synced}), "
        f"timestamp_micros({start}), timestamp_micros({end}), {active})"
        for key, value, synced, start, end, active in versions
    )
    if rows:
        lake.spark.sql(f"INSERT INTO {name.sql} VALUES {rows}")


BEFORE: list[Version] = [
    (1, 10, _T, _T, _T + _DAY - 1000, False),
    (1, 11, _T + _DAY, _T + _DAY, TMAX_MICROS, True),
    (2, 20, _T, _T, TMAX_MICROS, True),
]


@pytest.fixture
def name(lake: Lake) -> TableName:
    made = TableName("resynced", f"t{next(_numbers)}")
    fill(lake, made, BEFORE)
    return made


@pytest.fixture
def run(
    lake: Lake,
    name: TableName,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    monkeypatch.chdir(tmp_path)

    def resync(source: str, *words: str, table: TableName = name) -> Any:
        code, reported, problem = run_command(
            lake.config.path,
            capsys,
            *("resync", str(table), "--from", source, "--json", "--at", "2024-01-10", *words),
        )
        return code, json.loads(reported) if reported else None, problem

    return resync


AT = _T + 9 * _DAY
QUERY = "SELECT * FROM VALUES (1, 12), (2, 20) AS rows (id, v)"
RESYNCED: list[Version] = [
    BEFORE[0],
    (1, 11, _T + _DAY, _T + _DAY, AT - 1000, False),
    (1, 12, AT, AT, TMAX_MICROS, True),
    (2, 20, AT, _T, TMAX_MICROS, True),
]


def test_a_dry_run_counts_and_changes_nothing(lake: Lake, name: TableName, run: Run) -> None:
    snapshot = lake.catalog.load(name).snapshot_id
    code, plan, _ = run("SELECT 1 AS id, 12 AS v", "--dry-run")
    assert code == 0
    assert plan == {
        "table": str(name),
        "from": "query",
        "at": "2024-01-10T00:00:00Z",
        "missing": "deactivate",
        "done": False,
        "records": 1,
        "unchanged": 0,
        "added": 1,
        "closed": 1,
        "shortened": 0,
        "replaced": 0,
        "removed": 0,
        "ended": 1,
        "loses": "1 active record",
    }
    assert stored(lake, name) == BEFORE
    assert lake.catalog.load(name).snapshot_id == snapshot


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["query", "csv", "jsonl", "parquet", "folder", "glob", "table"])
def test_every_kind_of_source_makes_the_same_table(
    lake: Lake, name: TableName, run: Run, tmp_path: Path, kind: str
) -> None:
    ids, values = [1, 2], [12, 20]
    table = pa.table({"id": ids, "v": values})
    (tmp_path / "out").mkdir()
    match kind:
        case "query":
            source = QUERY
        case "csv":
            source = "rows.csv"
            (tmp_path / source).write_text("id,v\n1,12\n2,20\n")
        case "jsonl":
            source = "rows.jsonl"
            (tmp_path / source).write_text('{"id": 1, "v": 12}\n{"id": 2, "v": 20}\n')
        case "parquet":
            source = str(tmp_path / "rows.parquet")
            pq.write_table(table, source)
        case "table":
            other = TableName("resynced", f"live{next(_numbers)}")
            core.create(lake, other, (*_LIVE, Column(DELETED, ColumnType(Kind.BOOLEAN))))
            lake.spark.sql(
                f"INSERT INTO {other.sql} VALUES (1, 12, current_timestamp(), false), "
                "(2, 20, current_timestamp(), NULL), (3, 30, current_timestamp(), true)"
            )
            source = str(other)
        case _:
            for number in (0, 1):
                pq.write_table(table.slice(number, 1), tmp_path / "out" / f"{number}.parquet")
            source = "out/*.parquet" if kind == "glob" else "out"
    words = ("--format", "parquet") if kind == "folder" else ()
    code, report, problem = run(source, *words)
    assert code == 0, problem
    assert report is not None
    assert report["from"] == {"query": "query", "table": "table"}.get(kind, "files")
    assert stored(lake, name) == RESYNCED
    # Again, nothing changes.
    assert run(source, *words)[0] == 0
    assert stored(lake, name) == RESYNCED


@pytest.mark.long
def test_the_active_versions_of_another_history_table_are_a_source(
    lake: Lake, name: TableName, run: Run
) -> None:
    other = TableName("resynced", f"other{next(_numbers)}")
    fill(lake, other, [*BEFORE[:2], (2, 21, _T, _T + 2 * _DAY, TMAX_MICROS, True)])
    code, _, problem = run(str(other))
    assert code == 0, problem
    assert stored(lake, name) == [
        BEFORE[0],
        (1, 11, AT, _T + _DAY, TMAX_MICROS, True),
        (2, 20, _T, _T, _T + 2 * _DAY - 1000, False),
        (2, 21, AT, _T + 2 * _DAY, TMAX_MICROS, True),
    ]


def test_a_loss_needs_a_confirmation(lake: Lake, name: TableName, run: Run) -> None:
    source = f"SELECT 1 AS id, 9 AS v, timestamp_micros({_T - _DAY}) AS _fivetran_start"
    code, _, problem = run(source)
    assert code == 2
    assert "would lose 2 later versions, 1 active record. Confirm with --yes" in problem
    assert stored(lake, name) == BEFORE
    code, report, _ = run(source, "--yes")
    assert code == 0
    assert report is not None
    assert report["removed"] == 2
    assert stored(lake, name) == [
        (1, 9, AT, _T - _DAY, TMAX_MICROS, True),
        (2, 20, _T, _T, AT - 1000, False),
    ]


@pytest.mark.long
def test_an_end_that_moves_needs_a_confirmation(lake: Lake, run: Run) -> None:
    name = TableName("resynced", f"ended{next(_numbers)}")
    fill(lake, name, [(1, 10, _T, _T, _T + 4 * _DAY, False)])
    source = f"SELECT 1 AS id, 11 AS v, timestamp_micros({_T + 2 * _DAY}) AS _fivetran_start"
    code, plan, problem = run(source, "--dry-run", table=name)
    assert code == 0, problem
    assert plan is not None
    assert (plan["added"], plan["shortened"]) == (1, 1)
    code, _, problem = run(source, table=name)
    assert code == 2
    assert "would lose 1 shortened version. Confirm with --yes" in problem
    assert run(source, "--yes", table=name)[0] == 0
    assert stored(lake, name) == [
        (1, 10, _T, _T, _T + 2 * _DAY - 1000, False),
        (1, 11, AT, _T + 2 * _DAY, TMAX_MICROS, True),
    ]


@pytest.mark.parametrize("change", ["rows", "columns"])
def test_what_others_wrote_since_the_source_was_read_is_not_overwritten(
    lake: Lake, name: TableName, change: str
) -> None:
    query = f"SELECT 1 AS id, 11 AS v, timestamp_micros({_T + _DAY}) AS _fivetran_start"
    gone = MissingRecords.DEACTIVATE
    with prepare(lake, name, query, base=Path(), at_micros=AT, gone=gone) as prepared:
        if change == "rows":
            later = f"timestamp_micros({AT + _DAY}), timestamp_micros({TMAX_MICROS}), true"
            lake.spark.sql(
                f"INSERT INTO {name.sql} VALUES (3, 30, timestamp_micros({AT - 1}), {later})"
            )
        else:
            lake.spark.sql(f"ALTER TABLE {name.sql} ADD COLUMN more INT")
        left = stored(lake, name), lake.catalog.load(name).snapshot_id
        with pytest.raises(CommitError, match="Another process has written to the table") as error:
            prepared.run()
    assert "Run it again" in (error.value.hint or "")
    assert (stored(lake, name), lake.catalog.load(name).snapshot_id) == left


@pytest.mark.parametrize("damage", ["head", "middle"])
def test_a_damaged_file_is_named(
    lake: Lake, name: TableName, run: Run, tmp_path: Path, damage: str
) -> None:
    rows = pa.table({"id": list(range(5_000)), "v": [1] * 5_000})
    for file in ("a", "b"):
        pq.write_table(rows, tmp_path / f"{file}.parquet", compression="none", use_dictionary=False)
    content = bytearray((tmp_path / "b.parquet").read_bytes())
    if damage == "head":
        content = content[:100]
    else:
        content[4:400] = bytes(396)
    (tmp_path / "b.parquet").write_bytes(content)

    code, _, problem = run(str(tmp_path / "*.parquet"))

    assert code == 1
    error = json.loads(problem)
    assert "cannot be read" in error["message"]
    assert error["file"].endswith("b.parquet" if damage == "head" else "*.parquet")
    assert "complete" in error["hint"]
    assert "lake's files" not in problem
    assert stored(lake, name) == BEFORE


def test_a_time_in_the_future_is_refused(lake: Lake, name: TableName, run: Run) -> None:
    code, _, problem = run(QUERY, "--at", "2900-01-01")
    assert code == 2
    assert "in the future" in problem
    assert stored(lake, name) == BEFORE


@pytest.mark.parametrize(
    ("source", "words", "error"),
    [
        ("SELECT 1 AS id", (), "lacks a column"),
        ("SELECT 1 AS v", (), "lacks a key column"),
        ("SELECT 1 AS id, 2 AS v, 3 AS other", (), "does not have"),
        ("SELECT 1 AS id, 2 AS v, true AS _fivetran_active", (), "that the re-sync computes"),
        ("SELECT 1 AS id, 2 AS v, false AS _fivetran_deleted", (), "not marked as deleted"),
        ("SELECT 1 AS id, 2 AS v, 3 AS v", (), "have the same name"),
        ("SELECT 1 AS id, 2 AS v", ("--start", "at"), "does not have the column of --start"),
        ("SELECT 1 AS id, 'secret' AS v", (), "1 value of type STRING does not fit"),
        ("SELECT 1 AS id, 3000000000 AS v", (), "1 value of type LONG does not fit"),
        ("SELECT 1 AS id, 2 AS v, 5 AS at", ("--start", "at"), "1 value of type INT does not fit"),
        ("SELECT NULL AS id, 2 AS v", (), "1 row of the re-sync has no id"),
        (
            "SELECT 1 AS id, 2 AS v, CAST(NULL AS TIMESTAMP) AS at",
            ("--start", "at"),
            "has no _fivetran_start",
        ),
        ("VALUES (1, 1), (1, 2)", (), "column that the table does not have"),
        ("SELECT * FROM VALUES (1, 1), (1, 2) AS r (id, v)", (), "1 records more than once"),
        ("SELECT 1 AS id, 2 AS v", ("--at", "2024-01-01"), "synced after the time"),
        ("SELECT nothing", (), "Spark cannot run the statement"),
        ("SELECT 1 AS id; DROP TABLE x", (), "Spark cannot run the statement"),
        ("nowhere.table", (), "does not exist"),
        ("nothing/*.parquet", (), "does not exist"),
        ("*.parquet", (), "No file matches"),
    ],
)
@pytest.mark.sampled
def test_what_is_not_valid_is_refused_before_anything_changes(
    lake: Lake, name: TableName, run: Run, source: str, words: tuple[str, ...], error: str
) -> None:
    snapshot = lake.catalog.load(name).snapshot_id
    code, _, problem = run(source, *words, "--yes")
    assert code == 1
    assert error in problem
    assert "secret" not in problem
    assert lake.catalog.load(name).snapshot_id == snapshot


@pytest.mark.long
def test_tables_that_cannot_be_re_synced_are_refused(lake: Lake, name: TableName, run: Run) -> None:
    live = TableName("resynced", f"plain{next(_numbers)}")
    core.create(lake, live, _LIVE)
    code, _, problem = run(QUERY, table=live)
    assert code == 1
    assert "in live mode" in problem
    assert f"chronolake mode '{live}' history" in problem
    code, _, problem = run(str(name))
    assert code == 1
    assert "from itself" in problem
    lake.spark.sql(
        f"ALTER TABLE {name.sql} SET TBLPROPERTIES ('chronolake.stream' = 'crm/Account')"
    )
    code, _, problem = run(QUERY, "--yes")
    assert code == 1
    assert "chronolake resync crm --stream Account" in problem
    assert stored(lake, name) == BEFORE


def test_options_of_the_other_kind_are_refused(
    lake: Lake, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(QUERY, "--stream", "orders")[0] == 2
    code, _, problem = run_command(lake.config.path, capsys, "resync", "crm", "--dry-run")
    assert code == 2
    assert "need --from" in problem
    assert [one.value for one in MissingSetting] != []
    assert {one.value for one in MissingSetting} == {one.value for one in MissingRecords}


def modelled(
    versions: list[Version], rows: dict[int, tuple[int | None, int | None]], gone: str, at: int
) -> list[Version]:
    """Return a table after a re-sync, as the document describes it.

    Args:
        rows: value and start by key; without a start, a row that differs starts at the re-sync.
    """
    result: list[Version] = []
    for key in sorted({version[0] for version in versions} | rows.keys()):
        mine = [version for version in versions if version[0] == key]
        active = next((version for version in mine if version[5]), None)
        if key not in rows:
            for _, value, synced, start, end, is_active in mine:
                if is_active and gone != "stay" and synced < at:
                    ended = at - (1000 if gone == "deactivate" else 0)
                    result.append((key, value, synced, start, max(start, ended), False))
                else:
                    result.append((key, value, synced, start, end, is_active))
            continue
        value, start_ = rows[key]
        if start_ is None:
            same = active is not None and active[1] == value
            start_ = active[3] if same and active else max(at, active[3] if active else at)
        for _, old, synced, start, end, is_active in mine:
            if start >= start_:
                continue
            cut = is_active or end > start_ - 1000
            until = start_ - 1000 if cut else end
            result.append((key, old, synced, start, until, False if cut else is_active))
        result.append((key, value, at, start_, TMAX_MICROS, True))
    return in_order(result)


@st.composite
def tables(draw: st.DrawFn) -> list[Version]:
    found: list[Version] = []
    for key in range(3):
        starts = sorted(draw(st.sets(st.integers(0, 5), max_size=3)))
        for place, day in enumerate(starts):
            following = starts[place + 1] if place + 1 < len(starts) else None
            start = _T + day * _DAY
            is_active = following is None and draw(st.booleans())
            end = start + 3_600_000_000
            if following is not None and draw(st.booleans()):
                end = _T + following * _DAY - 1000
            value = draw(st.sampled_from([None, 1, 2]))
            until = TMAX_MICROS if is_active else end
            found.append((key, value, start, start, until, is_active))
    return found


@pytest.mark.long
@settings(max_examples=25)
@given(
    versions=tables(),
    rows=st.dictionaries(st.integers(0, 3), st.sampled_from([None, 1, 2]), max_size=4),
    days=st.one_of(st.none(), st.lists(st.integers(0, 6), min_size=4, max_size=4)),
    gone=st.sampled_from([*MissingRecords]),
)
def test_a_re_sync_is_what_the_model_says(
    lake: Lake,
    versions: list[Version],
    rows: dict[int, int | None],
    days: list[int] | None,
    gone: MissingRecords,
) -> None:
    name = TableName("resynced", f"model{next(_numbers)}")
    fill(lake, name, versions)
    starts = {key: None if days is None else _T + days[key] * _DAY for key in rows}
    expected = modelled(versions, {key: (rows[key], starts[key]) for key in rows}, gone.value, AT)
    values = ", ".join(
        f"({key}, CAST({'NULL' if value is None else value} AS INT), "
        f"timestamp_micros({starts[key] or 0}))"
        for key, value in rows.items()
    )
    columns = "id, v" if days is None else "id, v, _fivetran_start"
    query = f"SELECT {columns} FROM VALUES (9, NULL, timestamp_micros(0)){', ' if values else ''}"
    query += f"{values} AS rows (id, v, _fivetran_start) WHERE id < 9"
    with prepare(lake, name, query, base=Path(), at_micros=AT, gone=gone) as prepared:
        plan = prepared.plan
        prepared.run()
    assert stored(lake, name) == expected
    assert core.verify(lake, name).holds
    # The plan's counts describe the same change.
    assert plan.records == len(rows)
    assert plan.unchanged + plan.added + plan.replaced == len(rows)
    assert len(expected) == len(versions) + plan.added - plan.removed
    was = {(version[0], version[3]) for version in versions}
    now = {(version[0], version[3]) for version in expected}
    assert plan.removed == len(was - now)
    assert plan.added == len(now - was)
    stays = {(version[0], version[3]): version[4] for version in expected if not version[5]}
    shortened = 0
    for key, _, _, start, end, is_active in versions:
        shortened += not is_active and stays.get((key, start), end) != end
    assert plan.shortened == shortened
