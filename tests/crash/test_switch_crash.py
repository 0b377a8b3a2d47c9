"""Mode switches on the command line, and re-syncs, are killed at every step.

Those over gRPC are in `test_crash.py` and `test_migration_crash.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from chronolake import core
from chronolake.core import migration
from chronolake.failpoints import FAILPOINTS
from chronolake.lake import Lake
from chronolake.types import (
    ACTIVE,
    DELETED,
    END,
    START,
    SYNCED,
    Column,
    ColumnType,
    Kind,
    Mode,
    TableName,
)
from support.datalakes import iceberg_in
from support.lakes import lake_config
from support.processes import run_command_until_failpoint, run_until_failpoint

_T: Final = 1_704_067_200_000_000
_DAY: Final = 86_400_000_000
_REWRITING: Final = tuple(name for name in FAILPOINTS if name.startswith(("rewrite.", "publish.")))
_STAGING: Final = tuple(
    name for name in FAILPOINTS if name.startswith(("write.", "staged.", "publish."))
)
_TIME: Final = ColumnType(Kind.UTC_DATETIME)
_BASE: Final = (
    Column("id", ColumnType(Kind.INT), primary_key=True),
    Column("name", ColumnType(Kind.STRING)),
    Column(SYNCED, _TIME),
)
_VERSIONED: Final = (
    Column(START, _TIME, primary_key=True),
    Column(END, _TIME),
    Column(ACTIVE, ColumnType(Kind.BOOLEAN)),
)
_COLUMNS: Final = {
    Mode.LIVE: _BASE,
    Mode.SOFT_DELETE: (*_BASE, Column(DELETED, ColumnType(Kind.BOOLEAN))),
    Mode.HISTORY: (*_BASE, *_VERSIONED),
}
#: Record 1 has another value, 2 is unchanged, 3 is deleted, and 4 is new.
_PRESENT: Final = (
    "SELECT CAST(id AS INT) AS id, name, timestamp_micros(start) AS _fivetran_start FROM VALUES "
    f"(1, 'changed', {_T + 5 * _DAY}L), (2, 'b', {_T}L), (4, 'd', {_T + 6 * _DAY}L) "
    "AS rows (id, name, start)"
)
_RESYNC: Final = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from chronolake.lake import Lake
from chronolake.types import TableName
from crash.test_switch_crash import resynced
from support.lakes import lake_config
folder = Path(sys.argv[1])
resynced(Lake.open(folder, config=lake_config(folder)), TableName("s", sys.argv[2]))
"""


def resynced(lake: Lake, name: TableName) -> None:
    """Re-sync the table with the present rows."""
    rows = lake.spark.sql(_PRESENT)
    core.resync(
        lake, name, rows, at_micros=_T + 9 * _DAY, batch="r", gone=core.MissingRecords.CLOSE
    )


def _filled(lake: Lake, name: TableName, mode: Mode) -> None:
    core.create(lake, name, _COLUMNS[mode])
    rows = []
    for key, text in ((1, "a"), (2, "b"), (3, "c")):
        cells = [str(key), f"'{text}'", f"timestamp_micros({_T + key}L)"]
        if mode is Mode.SOFT_DELETE:
            cells.append(str(key == 3).lower())
        if mode is Mode.HISTORY:
            until = "timestamp'9999-12-31 23:59:59.999'"
            if key == 3:
                # Deleted, after a change.
                older = [
                    *cells,
                    f"timestamp_micros({_T}L)",
                    f"timestamp_micros({_T + _DAY}L - 1000)",
                ]
                rows.append([*older, "false"])
                cells += [f"timestamp_micros({_T + _DAY}L)", f"timestamp_micros({_T + 2 * _DAY}L)"]
                cells.append("false")
            else:
                cells += [f"timestamp_micros({_T}L)", until, "true"]
        rows.append(cells)
    values = ", ".join(f"({', '.join(row)})" for row in rows)
    lake.spark.sql(f"INSERT INTO {name.sql} VALUES {values}")


def _state(lake: Lake, name: TableName) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return columns and rows as PyIceberg sees them, without the times of their sync."""
    found = iceberg_in(lake.config, name.schema, name.table).scan().to_arrow()
    found = found.drop_columns([SYNCED])
    for place, field in enumerate(found.schema):
        if pa.types.is_timestamp(field.type):
            found = found.set_column(place, field.name, found[field.name].cast(pa.int64()))
    return found.column_names, sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    folder = tmp_path_factory.mktemp("switched")
    (folder / "chronolake.yml").write_text(
        "lake: {spark: {master: 'local[2]', conf: {spark.driver.memory: 1g, "
        "spark.driver.extraJavaOptions: '-XX:TieredStopAtLevel=1'}}}\n"
    )
    with Lake.open(folder, config=lake_config(folder)) as opened:
        yield opened


def _check(
    lake: Lake,
    mode: Mode,
    points: tuple[str, ...],
    change: Callable[[TableName], None],
    is_killed: Callable[[TableName, str], bool],
) -> None:
    twin = TableName("s", f"{mode}_twin_{len(lake.tables())}")
    _filled(lake, twin, mode)
    old = _state(lake, twin)
    change(twin)
    new = _state(lake, twin)
    assert new != old
    for point in points:
        name = TableName("s", f"t{len(lake.tables())}")
        _filled(lake, name, mode)

        assert is_killed(name, f"{point}=kill"), f"{point} is not on the way"

        after_commit = {"publish.after-commit", "rewrite.after-commit"}
        assert _state(lake, name) == (new if point in after_commit else old), point
        assert not is_killed(name, "")
        assert _state(lake, name) == new, point
        assert core.verify(lake, name).holds


def _check_switch(lake: Lake, before: Mode, after: Mode, points: tuple[str, ...]) -> None:
    def is_killed(name: TableName, failpoint: str) -> bool:
        words = ("mode", str(name), after.value, "--yes", "--lake", str(lake.config.path))
        return run_command_until_failpoint(*words, failpoint=failpoint)

    def change(name: TableName) -> None:
        migration.switch_mode(lake, name, after)

    _check(lake, before, points, change, is_killed)


def _check_resync(lake: Lake, points: tuple[str, ...]) -> None:
    def is_killed(name: TableName, failpoint: str) -> bool:
        return run_until_failpoint(_RESYNC, str(lake.config.path), name.table, failpoint=failpoint)

    _check(lake, Mode.HISTORY, points, lambda name: resynced(lake, name), is_killed)


@pytest.mark.long
def test_a_switch_to_live_is_killed_and_done_again(lake: Lake) -> None:
    _check_switch(lake, Mode.HISTORY, Mode.LIVE, ("rewrite.before-commit",))


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Mode.HISTORY, Mode.LIVE),
        (Mode.SOFT_DELETE, Mode.LIVE),
        (Mode.LIVE, Mode.SOFT_DELETE),
        (Mode.LIVE, Mode.HISTORY),
    ],
)
def test_a_switch_may_be_killed_at_every_step(lake: Lake, before: Mode, after: Mode) -> None:
    _check_switch(lake, before, after, _REWRITING)


@pytest.mark.long
def test_a_resync_may_be_killed_at_every_step(lake: Lake) -> None:
    _check_resync(lake, _STAGING)


@pytest.mark.long
def test_the_command_that_resyncs_may_be_killed_at_every_step(lake: Lake) -> None:
    def is_killed(name: TableName, failpoint: str) -> bool:
        words = ("resync", str(name), "--lake", str(lake.config.path), "--from", _PRESENT)
        rules = ("--at", "2024-01-10", "--missing", "close", "--yes")
        return run_command_until_failpoint(*words, *rules, failpoint=failpoint)

    _check(lake, Mode.HISTORY, _STAGING, lambda name: resynced(lake, name), is_killed)
