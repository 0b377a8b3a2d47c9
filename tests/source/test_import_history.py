"""Existing tables of versions become history tables with exactly these versions."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog

from chronolake.config import load
from chronolake.core import verify
from chronolake.lake import Lake
from chronolake.types import ACTIVE, END, START, TableName
from support.commands import run_words
from support.datalakes import iceberg, iceberg_in, project

_T = datetime(2026, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def _at(hours: float) -> datetime:
    return _T + timedelta(hours=hours)


class Imported:
    """A project into which tables of versions are imported."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capsys = capsys
        self.project = project(folder, "  {}\n")

    def run(self, path: Path | str, *words: str) -> tuple[int, str]:
        code, reported, errors = run_words(
            self.capsys,
            *("import-history", "crm.customers", str(path), "--key", "id"),
            *(*words, "--project", str(self.folder)),
        )
        return code, reported + errors

    def versions(self, *columns: str) -> list[tuple[Any, ...]]:
        found = iceberg(self.project, "crm", "customers").scan().to_arrow().to_pylist()
        lake = Lake.open(self.project.lake.path, config=self.project.lake)
        assert verify(lake, TableName("crm", "customers")).holds
        return sorted(
            (
                *(row[column] for column in columns),
                row[START],
                None if row[ACTIVE] else row[END],
            )
            for row in found
        )


@pytest.fixture
def imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Imported:
    return Imported(tmp_path / "project", capsys)


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def _snapshot(number: int, name: str, begin: float, end: float | None) -> dict[str, Any]:
    """Return a row of a dbt snapshot, whose times have no zone."""
    times = {
        "dbt_valid_from": _at(begin).replace(tzinfo=None),
        "dbt_valid_to": None if end is None else _at(end).replace(tzinfo=None),
    }
    return {"id": number, "name": name, "dbt_scd_id": f"{number}{begin}", **times}


_DBT = ("--start", "dbt_valid_from", "--end", "dbt_valid_to")


@pytest.mark.long
def test_a_dbt_snapshot(imported: Imported, tmp_path: Path) -> None:
    rows = [
        _snapshot(1, "a", 0, 1),
        _snapshot(1, "b", 1, None),
        # Deleted at 2, and back at 5; then deleted again.
        _snapshot(2, "a", 0, 2),
        _snapshot(2, "a", 5, 6),
        # The same values in two versions.
        _snapshot(3, "a", 0, 3),
        _snapshot(3, "a", 3, None),
    ]
    path = _write(tmp_path / "snapshot.parquet", rows)
    code, reported = imported.run(path, *_DBT)
    assert code == 0, reported
    expected = [
        (1, "a", _at(0), _at(1) - _MICROSECOND),
        (1, "b", _at(1), None),
        (2, "a", _at(0), _at(2)),
        (2, "a", _at(5), _at(6)),
        (3, "a", _at(0), _at(3) - _MICROSECOND),
        (3, "a", _at(3), None),
    ]
    assert imported.versions("id", "name") == expected
    names = iceberg(imported.project, "crm", "customers").schema().column_names
    assert [name for name in names if not name.startswith("_")] == ["id", "name"]
    # The snapshot went on: imported again, only what is new is written.
    rows[1]["dbt_valid_to"] = rows[5]["dbt_valid_to"] = _at(7).replace(tzinfo=None)
    rows.append(_snapshot(1, "c", 7, None))
    _write(path, rows)
    code, reported = imported.run(path, *_DBT)
    assert code == 0, reported
    expected[1] = (1, "b", _at(1), _at(7) - _MICROSECOND)
    expected[5] = (3, "a", _at(3), _at(7))
    assert imported.versions("id", "name") == sorted([*expected, (1, "c", _at(7), None)])


@pytest.mark.long
def test_a_dbt_snapshot_with_records_of_deletions(imported: Imported, tmp_path: Path) -> None:
    rows = [
        {**_snapshot(1, "a", 0, 2), "dbt_is_deleted": "False"},
        {**_snapshot(1, "a", 2, 4), "dbt_is_deleted": "True"},
        {**_snapshot(1, "b", 4, None), "dbt_is_deleted": "False"},
    ]
    folder = tmp_path / "snapshot"
    folder.mkdir()
    with (folder / "part.csv").open("w", newline="") as file:
        lines = csv.DictWriter(file, rows[0])
        lines.writeheader()
        lines.writerows(rows)
    words = ("--deleted", "dbt_is_deleted", "--format", "csv", "--time-zone", "Europe/Berlin")
    code, reported = imported.run(folder, *_DBT, *words, "--json")
    assert code == 0, reported
    assert {json.loads(line)["event"] for line in reported.splitlines()} >= {"run-ended"}
    # Midnight in Berlin is eleven o'clock of UTC.
    assert imported.versions("id", "name") == [
        ("1", "a", _at(-1), _at(1)),
        ("1", "b", _at(3), None),
    ]


def test_fivetrans_history_mode(imported: Imported, tmp_path: Path) -> None:
    millisecond = timedelta(milliseconds=1)
    forever = datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)
    rows = [
        ("a", _at(0), _at(1) - millisecond, False),
        ("b", _at(1), _at(2) - millisecond, False),
        ("c", _at(2), forever, True),
    ]
    path = _write(
        tmp_path / "customers.parquet",
        [
            {
                "id": 1,
                "name": name,
                "_fivetran_start": start,
                "_fivetran_end": end,
                "_fivetran_active": is_active,
                "_fivetran_synced": end,
            }
            for name, start, end, is_active in rows
        ],
    )
    code, reported = imported.run(path, "--start", "_fivetran_start", "--end", "_fivetran_end")
    assert code == 0, reported
    assert imported.versions("name") == [
        ("a", _at(0), _at(1) - millisecond),
        ("b", _at(1), _at(2) - millisecond),
        ("c", _at(2), None),
    ]


def test_an_iceberg_table(imported: Imported, tmp_path: Path) -> None:
    catalog = SqlCatalog("other", uri=f"sqlite:///{tmp_path / 'c.db'}", warehouse=str(tmp_path))
    catalog.create_namespace("gold")
    rows = pa.Table.from_pylist(
        [
            {"id": 1, "name": "a", "__START_AT": _at(0), "__END_AT": _at(1)},
            {"id": 1, "name": "b", "__START_AT": _at(1), "__END_AT": None},
        ]
    )
    table = catalog.create_table("gold.customers", rows.schema)
    table.append(rows)
    path = table.metadata_location.removeprefix("file://")
    code, reported = imported.run(path, "--start", "__START_AT", "--end", "__END_AT")
    assert code == 0, reported
    assert imported.versions("id", "name") == [
        (1, "a", _at(0), _at(1) - _MICROSECOND),
        (1, "b", _at(1), None),
    ]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([(0, 2), (1, None)], "1 versions overlap the next version of their record"),
        ([(0, None), (1, None)], "1 versions overlap"),
        ([(0, 1), (0, 2)], "1 versions overlap"),
        ([(3, 2)], "1 versions end before they start"),
    ],
)
def test_flawed_intervals_are_refused(
    imported: Imported, tmp_path: Path, rows: list[tuple[float, float | None]], reason: str
) -> None:
    found = [_snapshot(7, "a", begin, end) for begin, end in rows]
    path = _write(tmp_path / "snapshot.parquet", [*found, _snapshot(1, "a", 0, None)])
    code, reported = imported.run(path, *_DBT)
    assert code == 1
    assert reason in reported
    assert "such as one of id = 7" in reported
    assert "snapshot.parquet" in "".join(reported.split())


def test_missing_columns_and_files_are_named(imported: Imported, tmp_path: Path) -> None:
    path = _write(tmp_path / "snapshot.parquet", [_snapshot(1, "a", 0, None)])
    for words, reason in {
        (path, "--start", "begin", "--end", "dbt_valid_to"): "no column begin",
        (tmp_path / "none.parquet", *_DBT): "No file matches the path",
        (path, *_DBT, "--time-zone", "Berlin"): "unknown time zone",
        (tmp_path / "file", *_DBT): "No file matches the path",
    }.items():
        code, reported = imported.run(*map(str, words))
        assert code == 1
        assert reason in " ".join(reported.split())


#: The lengths of versions of a record, and of the gaps after them.
_LIFE = st.lists(st.tuples(st.integers(1, 3), st.sampled_from([0, 0, 1, 5])), max_size=5)


@settings(
    max_examples=2,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(_LIFE, min_size=1, max_size=30).filter(any), st.booleans())
def test_any_intervals_without_overlaps(
    imported: Imported, tmp_path: Path, lives: list[Any], is_last_active: bool
) -> None:
    rows, expected = [], []
    for key, life in enumerate(lives):
        hour = 0
        for number, (length, gap) in enumerate(life):
            begin, end = hour, hour + length
            is_last = number == len(life) - 1
            is_active = is_last and is_last_active
            rows.append(_snapshot(key, f"v{number}", begin, None if is_active else end))
            meets_next = gap == 0 and not is_last
            finish = _at(end) - _MICROSECOND if meets_next else _at(end)
            expected.append((key, f"v{number}", _at(begin), None if is_active else finish))
            hour = end + gap
    imported.project = project(tmp_path / f"project{len(list(tmp_path.iterdir()))}", "  {}\n")
    imported.folder = imported.project.file.parent
    path = _write(tmp_path / "snapshot.parquet", rows)
    code, reported = imported.run(path, *_DBT)
    assert code == 0, reported
    assert imported.versions("id", "name") == sorted(expected)


def test_a_lake_without_a_project_is_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = _write(tmp_path / "customers.parquet", [_snapshot(1, "Ada", 0, None)])
    words = ("--key", "id", "--start", "dbt_valid_from", "--end", "dbt_valid_to")
    code, _, errors = run_words(
        capsys, "import-history", "crm.customers", str(path), *words, "--lake", "lake"
    )
    assert code == 0, errors
    (row,) = iceberg_in(load(tmp_path / "lake"), "crm", "customers").scan().to_arrow().to_pylist()
    assert (row["id"], row[START], row[ACTIVE]) == (1, _at(0), True)
