"""Two servers write to one lake: no batch is lost, and none is mixed with another."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import postgresql
import pytest

from support.crash.server_process import Served, configure, serve
from support.oracle import ACTIVE, END, START, TMAX, Row
from support.server.caller import HISTORY, SYNCED, catalog
from support.server.sent_rows import Batch, SentTable, differences, plain_rows

_T: Final = 1_704_067_200_000_000
_HOUR: Final = 3_600_000_000
_SHARED: Final = range(40)
_LIVE: Final = ["id*:LONG", "a:STRING", SYNCED]
_HISTORY: Final = ["id*:LONG", "a:STRING", *HISTORY]


@contextmanager
def two(
    lake: Path, folder: Path, *, failpoint: str | None = None, uri: str | None = None
) -> Iterator[tuple[Served, Served]]:
    """Yield two servers; the first one has a failpoint."""
    configure(lake, catalog=uri)
    with (
        serve(lake, folder, failpoint=failpoint, catalog=uri) as one,
        # A lake has one engine, and so one `up`.
        serve(lake, folder, catalog=uri, in_up=False) as other,
    ):
        yield one, other


def _live(label: str, own: int) -> Batch:
    """Return a batch with its label in every shared key, and one key of its own."""
    return Batch(
        replace=[{"id": key, "a": label, "_fivetran_synced": _T} for key in (*_SHARED, own)]
    )


def _version(key: int, hour: int, label: str) -> Row:
    start = _T + hour * _HOUR
    times = {START: start, END: TMAX, ACTIVE: True, "_fivetran_synced": start}
    return {"id": key, "a": label, **times}


def _race(lake: Path, folder: Path, *, batches: int, uri: str | None = None) -> None:
    with two(lake, folder, uri=uri) as servers:
        live = [SentTable(server.caller, "live", _LIVE) for server in servers]
        history = [SentTable(server.caller, "history", _HISTORY) for server in servers]
        live[0].create()
        history[0].create()
        model = history[0].oracle()
        batches_of = {
            (who, number): Batch(
                replace=[_version(1000 * who + key, number, f"{who}/{number}") for key in _SHARED]
            )
            for who in (0, 1)
            for number in range(batches)
        }

        def write(who: int) -> None:
            for number in range(batches):
                label = f"{who}/{number}"
                live[who].send(live[who].request(_live(label, 1000 + 100 * who + number)))
                history[who].send(history[who].request(batches_of[who, number]))

        stop, seen = threading.Event(), set()

        def watch() -> None:
            while not stop.wait(0.05):
                table = catalog(lake, uri).load_table(("crash", "live"))
                seen.add(
                    frozenset(
                        row["a"]
                        for row in plain_rows(table.scan().to_arrow())
                        if row["id"] in _SHARED
                    )
                )

        with ThreadPoolExecutor(3) as pool:
            watching = pool.submit(watch)
            for done in [pool.submit(write, who) for who in (0, 1)]:
                done.result()
            stop.set()
            watching.result()
        mixed = [labels for labels in seen if len(labels) > 1]
        assert not mixed
        rows = live[0].rows()
        assert len({row["a"] for row in rows if row["id"] in _SHARED}) == 1
        own = {row["id"]: row["a"] for row in rows if row["id"] not in _SHARED}
        assert own == {1000 + 100 * who + number: f"{who}/{number}" for who, number in batches_of}
        for batch in batches_of.values():
            model.write(**batch.rows)
        assert not history[0].differences(model)
        assert set(live[0].caller.iceberg("live").metadata.refs) == {"main"}


@pytest.mark.long
def test_two_servers_lose_and_mix_no_batch(tmp_path: Path) -> None:
    _race(tmp_path / "lake", tmp_path, batches=3)


@pytest.mark.long
def test_two_servers_lose_and_mix_no_batch_of_many(tmp_path: Path) -> None:
    _race(tmp_path / "lake", tmp_path, batches=15)


@pytest.mark.long
def test_two_servers_share_a_postgresql_catalog(tmp_path: Path) -> None:
    with postgresql.server() as uri:
        _race(tmp_path / "lake", tmp_path, batches=5, uri=uri)


@pytest.mark.long
def test_a_batch_that_was_overtaken_is_staged_again(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with two(lake, tmp_path, failpoint="publish.before-commit=pause:2") as (slow, fast):
        # The slow server's first write passes the failpoint; its second is held there.
        ours, theirs = (SentTable(server.caller, "history", _HISTORY) for server in (slow, fast))
        ours.create()
        model = ours.oracle()
        first = Batch(replace=[_version(key, 0, "first") for key in _SHARED])
        ours.send(ours.request(first))
        late = Batch(replace=[_version(key, 1, "slow") for key in _SHARED])
        quick = Batch(replace=[_version(key, 2, "fast") for key in (*_SHARED, 77)])
        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(ours.send, ours.request(late))
            slow.wait_until_paused()
            theirs.send(theirs.request(quick))
            slow.paused.unlink()
            held.result()
        for batch in (first, quick, late):
            model.write(**batch.rows)
        assert not ours.differences(model)
        # Once for the other batch, and perhaps for the maintenance that followed it.
        assert slow.events("staged_again")
        assert set(ours.caller.iceberg("history").metadata.refs) == {"main"}


@pytest.mark.long
def test_a_rewrite_that_was_overtaken_loses_no_batch(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with two(lake, tmp_path, failpoint="rewrite.before-commit=pause") as (slow, fast):
        ours, theirs = (SentTable(server.caller, "live", _LIVE) for server in (slow, fast))
        changed = [*_LIVE, "n:LONG"]
        ours.caller.create("live", changed)
        first = _live("first", 100)
        for row in first.replace:
            row["n"] = row["id"]
        theirs = SentTable(fast.caller, "live", changed)
        theirs.send(theirs.request(first))
        retyped = [*_LIVE, "n:STRING"]
        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(slow.caller.alter, "live", retyped)
            slow.wait_until_paused()
            second = _live("second", 200)
            for row in second.replace:
                row["n"] = -row["id"]
            theirs.send(theirs.request(second))
            slow.paused.unlink()
            assert held.result().success
        model = theirs.oracle()
        for batch in (first, second):
            model.write(**batch.rows)
        expected = [row | {"n": str(row["n"])} for row in model.rows()]
        assert not differences(theirs.rows(), expected, ["id"])
