"""The worked examples of `docs/resync.md`, which are those of the document on history mode."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from chronolake import core
from chronolake.formatting import instant
from chronolake.lake import Lake
from chronolake.types import Column, ColumnType, Kind, TableName
from support.commands import run_command
from support.datalakes import iceberg_in

PAGE = Path(__file__).parents[2] / "docs" / "resync.md"
NAME = TableName("shop", "counters")
TMAX = "9999-12-31T23:59:59.999Z"
_TIME = ColumnType(Kind.UTC_DATETIME)
COLUMNS = (
    Column("ID", ColumnType(Kind.STRING), primary_key=True),
    Column("counter", ColumnType(Kind.LONG)),
    Column("_fivetran_start", _TIME, primary_key=True),
    Column("_fivetran_end", _TIME),
    Column("_fivetran_active", ColumnType(Kind.BOOLEAN)),
    Column("_fivetran_synced", _TIME),
)
_BLOCK = re.compile(r"^```(\w[^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def micros(text: str) -> int:
    at = datetime.fromisoformat(TMAX if text == "Tmax" else text)
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def fill(lake: Lake, text: str) -> None:
    lake.catalog.drop(NAME, purge=True)
    core.create(lake, NAME, COLUMNS)
    rows = []
    for line in text.splitlines():
        key, counter, start, end, active, synced = (cell.strip() for cell in line.split("|"))
        times = [f"timestamp_micros({micros(time)})" for time in (start, end, synced)]
        rows.append(f"('{key}', {counter}, {times[0]}, {times[1]}, {active}, {times[2]})")
    lake.spark.sql(f"INSERT INTO {NAME.sql} VALUES {', '.join(rows)}")


def versions(lake: Lake) -> list[str]:
    found = iceberg_in(lake.config, NAME.schema, NAME.table).scan().to_arrow()
    lines = []
    for row in sorted(zip(*map(cells, found.columns), strict=True)):
        key, counter, start, end, active, synced = row
        until = "Tmax" if instant(end) == TMAX else instant(end)
        flag = str(active).lower()
        lines.append(f"{key} | {counter} | {instant(start)} | {until} | {flag} | {instant(synced)}")
    return lines


def cells(column: pa.ChunkedArray) -> list[object]:
    is_time = pa.types.is_timestamp(column.type)
    values: list[object] = (column.cast(pa.int64()) if is_time else column).to_pylist()
    return values


@pytest.mark.long
def test_the_page_shows_what_re_syncs_do(
    lake: Lake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    run: Counter[str] = Counter()
    for kind, text in _BLOCK.findall(PAGE.read_text()):
        what, *more = kind.split()
        if kind == "versions before":
            fill(lake, text)
        elif what == "versions":
            assert versions(lake) == text.splitlines()
            assert core.verify(lake, NAME).holds
        elif what == "csv":
            file = tmp_path / more[0]
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        else:
            assert what == "console"
            command, expected = text.split("\n", 1)
            words = shlex.split(command.removeprefix("$ chronolake "))
            code, reported, problem = run_command(lake.config.path, capsys, *words)
            assert code == 0, problem
            assert [line.split() for line in reported.splitlines()] == [
                line.split() for line in expected.splitlines()
            ]
        run[kind if what == "versions" else what] += 1
    assert run == {"versions before": 2, "versions": 4, "csv": 3, "console": 5}
