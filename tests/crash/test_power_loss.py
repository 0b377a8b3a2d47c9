"""A loss of power at any moment loses nothing that was acknowledged, and breaks no table."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest

from chronolake.source.protocol import raw_folder
from support import processes
from support.crash.powerloss import Disk
from support.crash.server_process import configure, serve
from support.lake.changelog import STREAM, ChangeLog, shop
from support.oracle import ACTIVE, END, KEEP, START, TMAX, Row
from support.pipeline_model import LandedRow
from support.server.caller import DELETED, HISTORY, SYNCED, catalog
from support.server.sent_rows import Batch, SentTable, differences, plain_rows

_T: Final = 1_704_067_200_000_000
_HOUR: Final = 3_600_000_000
_LIVE: Final = ["id*:LONG", "a:STRING", "n:LONG", SYNCED, DELETED]
_WIDER: Final = [*_LIVE, "b:STRING"]
_HISTORY: Final = ["id*:LONG", "a:STRING", "n:LONG", *HISTORY]


def _live(time: int, text: str) -> list[Row]:
    marks = {"_fivetran_synced": time, "_fivetran_deleted": False}
    return [{"id": key, "a": f"{text}{key}", "n": key, **marks} for key in range(12)]


def _versions(time: int, text: str) -> list[Row]:
    times = {START: time, END: TMAX, ACTIVE: True, "_fivetran_synced": time}
    return [{"id": key, "a": f"{text}{key}", "n": key, **times} for key in range(12)]


_LATER: Final = Batch(
    replace=_live(_T + _HOUR, "second")[:3],
    update=[row | {"n": KEEP} for row in _live(_T + _HOUR, "second")[3:6]],
    delete=_live(_T + _HOUR, "second")[6:8],
)
_LATER_VERSIONS: Final = Batch(
    earliest=[{"id": key, START: _T + _HOUR} for key in range(6)],
    replace=_versions(_T + _HOUR, "second")[2:4],
    update=[row | {"n": KEEP} for row in _versions(_T + _HOUR, "second")[4:6]],
    delete=[row | {START: None, END: _T + _HOUR} for row in _versions(_T, "first")[6:8]],
)


def _steps(live: SentTable, history: SentTable) -> list[tuple[SentTable, Callable[[], Any]]]:
    """Return calls of a caller, each with the table that it changes."""
    caller = live.caller

    def sent(table: SentTable, batch: Batch) -> Callable[[], Any]:
        return lambda: table.send(table.request(batch))

    def done(call: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> None:
            assert call().success

        return run

    return [
        (live, live.create),
        (live, sent(live, Batch(replace=_live(_T, "first")))),
        (live, sent(live, _LATER)),
        (history, history.create),
        (history, sent(history, Batch(replace=_versions(_T, "first")))),
        (history, sent(history, _LATER_VERSIONS)),
        (live, done(lambda: caller.alter("live", _WIDER))),
        (live, done(lambda: caller.migrate("live", "SOFT_DELETE_TO_HISTORY"))),
        (history, done(lambda: caller.truncate("history", (_T + 1) / 1000))),
    ]


def _rows(lake: Path, name: str) -> list[Row] | None:
    found = catalog(lake)
    if not found.table_exists(("crash", name)):
        return None
    return plain_rows(found.load_table(("crash", name)).scan().to_arrow())


@pytest.mark.long
@pytest.mark.parametrize(
    ("fsync", "master"),
    [
        (True, "local[2]"),
        # Executors with their own JVM write the files.
        pytest.param(True, "local-cluster[1,2,1024]", marks=pytest.mark.long),
        # Without fsync the test must fail; this checks the recording of syncs itself.
        pytest.param(False, "local[2]", marks=pytest.mark.long),
    ],
)
def test_a_loss_of_power_leaves_what_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: bool, master: str
) -> None:
    spec = find_spec("pyspark")
    assert spec is not None
    monkeypatch.setenv("SPARK_HOME", str(Path(str(spec.origin)).parent))
    disk = Disk.under(tmp_path)
    lake = disk.root / "lake"
    configure(lake, fsync=fsync, master=master)
    with monkeypatch.context() as preloaded:
        for name, value in disk.environment().items():
            preloaded.setenv(name, value)
        with serve(lake, tmp_path) as server:
            live = SentTable(server.caller, "live", _LIVE)
            history = SentTable(server.caller, "history", _HISTORY)
            states: list[dict[str, list[Row] | None]] = [{"live": None, "history": None}]
            acknowledged, steps = [disk.syncs], _steps(live, history)
            for table, call in steps:
                call()
                acknowledged.append(disk.syncs)
                states.append({**states[-1], table.name: _rows(lake, table.name)})
            server.kill()

    lost = []
    with disk.only_synced() as replay:
        for number in disk.moments("catalog.db", acknowledged):
            replay.after(number)
            last = max(n for n, at in enumerate(acknowledged) if at <= number)
            # Until the next response, one table changes.
            names = [table.name for table, _ in steps[last : last + 1]]
            for name in ("live", "history") if number in acknowledged else names:
                may_be = [state[name] for state in states[last : last + 2]]
                if problem := _problem(lake, name, may_be):
                    lost.append(f"after sync {number}, step {last}, {name}: {problem}")
        if master != "local[2]":
            # The restored tables can be written.
            replay.after(acknowledged[-1])
            configure(lake)
            with serve(lake, tmp_path) as again:
                sent = SentTable(again.caller, "history", _HISTORY)
                sent.send(sent.request(Batch(replace=_versions(_T + 5 * _HOUR, "again"))))
                assert any(row["a"].startswith("again") for row in sent.rows())
    if fsync:
        assert not lost, "\n".join(lost)
    else:
        assert lost


#: A run of the pipeline `shop`, which records after how many syncs its source forgets which
#: changes.
_PROGRAM: Final = f"""
import os, sys
from pathlib import Path
sys.path[:0] = {[str(Path(__file__).parents[1])]!r}
from support.lake.changelog import STREAM, ChangeLog, shop
from chronolake.lake import Lake
from chronolake.pipeline.store import Status
from chronolake.pipeline.sync import sync

class Noting(ChangeLog):
    def acknowledge(self, positions):
        syncs = Path(os.environ["SYNCED_LOG"], "counter").read_text().strip()
        with open(sys.argv[2], "a") as notes:
            notes.write(f"{{syncs}} {{positions[STREAM]['number']}}\\n")
        super().acknowledge(positions)

there = shop(Path(sys.argv[1]))
with Lake.open(there.lake.path, config=there.lake) as lake:
    assert sync(lake, there, "shop", source=Noting(there)).status is Status.SUCCEEDED
"""


@pytest.mark.long
def test_a_source_forgets_only_what_survives_a_loss_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, notes = Disk.under(tmp_path), tmp_path / "notes"
    log = ChangeLog(shop(disk.root / "project"))
    with monkeypatch.context() as preloaded:
        for name, value in disk.environment().items():
            preloaded.setenv(name, value)
        for begin in (0, 60):
            log.append(
                [
                    LandedRow(f"k{n}", _T + n, f"{n}", (1, n), fields={"Name": f"n{n}", "Size": n})
                    for n in range(begin, begin + 60)
                ]
            )
            code, reported = processes.run_program(
                _PROGRAM, str(log.project.file.parent), str(notes)
            )
            assert code == 0, reported
    forgotten = [tuple(map(int, line.split())) for line in notes.read_text().splitlines()]
    assert forgotten[-1][1] == 120

    raw, lake = raw_folder(log.project, "shop", STREAM), log.project.lake.path
    with disk.only_synced() as replay:
        for number in disk.moments("catalog.db", [at for at, _ in forgotten]):
            replay.after(number)
            upto = max(last for at, last in forgotten if at <= number)
            landed = {
                int(sequence, 16)
                for file in raw.files()
                for sequence in pq.read_table(file.path)["grax__idseq"].to_pylist()
            }
            assert set(range(1, upto + 1)) <= landed, f"after sync {number}"
            table = catalog(lake)
            if table.table_exists(("shop", STREAM)):
                assert table.load_table(("shop", STREAM)).scan().to_arrow().num_rows in {0, 60, 120}


def _problem(lake: Path, name: str, may_be: list[list[Row] | None]) -> str:
    try:
        found = _rows(lake, name)
    except Exception as failure:  # noqa: BLE001 - whatever a reader runs into is a broken table
        return f"{type(failure).__name__}: {failure}"
    if found is None or None in may_be:
        return "" if found in may_be or (found == [] and [] in may_be) else "not as acknowledged"
    return min((differences(found, rows or [], ["id"]) for rows in may_be), key=len)
