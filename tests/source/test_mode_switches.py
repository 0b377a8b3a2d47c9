"""A table is switched to another mode while a sync of its pipeline reads the source."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import psycopg
import pytest
from test_declarative import Shop

from chronolake.config import load_project
from chronolake.failpoints import FAILPOINTS
from chronolake.pipeline import scheduled
from chronolake.pipeline.events import Event, EventKind
from chronolake.pipeline.lease import hold_lease
from chronolake.pipeline.rebuild import rebuild as apply_rebuild
from chronolake.pipeline.runs import Status
from chronolake.pipeline.store import MODE_REQUESTS, Store
from chronolake.pipeline.sync import sync
from chronolake.source.declarative import stream_run
from chronolake.types import ACTIVE, DELETED
from support.commands import run_words
from support.datalakes import iceberg
from support.declarative.apis import Api, ReceivedRequest, Reply
from support.processes import KILLED, run_command
from support.source import databases
from support.waiting import wait_until

_DAYS = 27


class Orders(Shop):
    """The orders of a shop: each day of them is a slice of several pages."""

    def __init__(self, folder: Path, api: Api) -> None:
        folder.mkdir()
        super().__init__(folder, api)
        self.set("history", 10)
        #: What happens before the first page of a day is answered, by day.
        self.before: dict[str, Callable[[], object]] = {}
        for day in range(1, _DAYS + 1):
            self.put(day, f"{day:02d}", state="new")
            self.put(100 + day, f"{day:02d}", state="new")
            self.put(200 + day, f"{day:02d}", state="new")
        api.on("/orders", self.answer_late)

    def answer_late(self, asked: ReceivedRequest) -> Reply:
        self.before.pop(asked.params["since"][8:10], lambda: None)()
        return self.answer_orders(asked)

    def set(self, mode: str, end: int) -> None:
        """Set the mode of the table, and the last day."""
        more = "only: [orders]\n      concurrency: 2"
        self.configure(mode=mode, more=more, end=f"2026-01-{end}", own="{}")

    def begin(self) -> None:
        """Sync the first days, and let others follow, with changes of the first."""
        self.sync_or_fail()
        self.api.requests.clear()
        self.put(1, "20", state="paid")
        self.put(2, "21", state="paid")
        self.set("history", _DAYS + 1)

    @property
    def mode(self) -> str:
        """Return the mode of the table, as PyIceberg sees it."""
        names = set(self.table("orders").column_names)
        return "history" if ACTIVE in names else "soft-delete" if DELETED in names else "live"

    @property
    def on_purge(self) -> str:
        """Return the setting by which the table was built."""
        return iceberg(self.project, "shop", "orders").properties["chronolake.on-purge"]

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table, without the times and places of their reads."""
        table = self.table("orders")
        names = [name for name in table.column_names if not name.startswith("_chronolake")]
        rows = table.select(names).drop_columns(["_fivetran_synced"]).to_pylist()
        return sorted(rows, key=lambda row: tuple(map(str, row.values())))

    def pages(self) -> Counter[tuple[str, str | None]]:
        """Return how often each page was read."""
        return Counter((page.params["since"], page.params.get("offset")) for page in self.requests)

    @property
    def requests(self) -> list[ReceivedRequest]:
        return list(self.api.requests)

    def run(self, *words: str, failpoint: str = "") -> tuple[int, str]:
        return run_command(*words, "--project", str(self.folder), failpoint=failpoint)

    def requested(self) -> list[tuple[str, str]]:
        """Return the mode and the state of the stored requests."""
        with Store.open(self.project.lake).transaction() as connection:
            rows = connection.execute(MODE_REQUESTS.select()).all()
        return [(row.mode, row.state) for row in rows]


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Orders]:
    with Api() as api:
        yield Orders(tmp_path / "shop", api)


def _expect_as_between_syncs(orders: Orders, mode: str, folder: Path) -> None:
    """Raise unless the table is that of another lake that was switched between two syncs."""
    found = orders.rows()
    twin = Orders(folder, orders.api)
    twin.orders = orders.orders
    twin.begin()
    twin.sync_or_fail()
    twin.set(mode, _DAYS + 1)
    twin.sync_or_fail()
    assert found == twin.rows()


@pytest.mark.long
@pytest.mark.parametrize(
    "modes", [("live",), pytest.param(("live", "soft-delete"), marks=pytest.mark.long)]
)
def test_a_table_is_switched_during_a_long_read_of_an_api(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modes: tuple[str, ...]
) -> None:
    """The API answers only after the table was switched: no page is read twice."""
    # Each day lands on its own.
    monkeypatch.setattr(stream_run, "_LANDING_BYTES", 0)
    orders.begin()

    def switch(mode: str) -> None:
        orders.set(mode, _DAYS + 1)
        wait_until(lambda: orders.mode == mode, f"The table is not in {mode} mode.")

    for number, mode in enumerate(modes):
        orders.before[str(12 + 5 * number)] = lambda mode=mode: switch(mode)
    rebuilt: list[Any] = []

    def rebuild(*given: Any, **named: Any) -> Any:
        rebuilt.append(given)
        return apply_rebuild(*given, **named)

    monkeypatch.setattr("chronolake.pipeline.apply.rebuild", rebuild)
    events: list[Event] = []
    result = sync(
        orders.lake, orders.project, "shop", watch=events.append, reread=lambda: orders.project
    )

    (stream,) = result.streams
    assert stream.status is Status.SUCCEEDED, stream.error
    assert set(orders.pages().values()) == {1}
    assert len(orders.pages()) > _DAYS
    assert [event.mode for event in events if event.kind is EventKind.SWITCHED] == list(modes)
    # Each of them rebuilds the table once, and nothing else does.
    assert len(rebuilt) == len(modes)
    (recorded,) = Store.open(orders.project.lake).streams_of(result.run)
    assert [change["to"] for change in recorded.changed_modes] == list(modes)
    _expect_as_between_syncs(orders, modes[-1], tmp_path / "twin")


def _during_a_sync(orders: Orders, failpoint: str = "") -> tuple[threading.Thread, list[Any]]:
    """Start a sync in another process; return when the API holds back a page."""
    ended: list[Any] = []
    reached = threading.Event()
    released = threading.Event()
    orders.before["14"] = lambda: (reached.set(), released.wait(600))
    thread = threading.Thread(
        target=lambda: ended.append(orders.run("sync", "shop", failpoint=failpoint))
    )
    thread.start()
    wait_until(reached.is_set, "The sync does not read.")
    return thread, [ended, released]


@pytest.mark.long
def test_a_command_switches_a_table_that_another_process_syncs(
    orders: Orders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orders.begin()
    thread, (ended, released) = _during_a_sync(orders)
    try:
        # The other process reads another chronolake.yml.
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        for name in ("chronolake.yml", "shop.yaml"):
            text = (orders.folder / name).read_text().replace("mode: history", "mode: live")
            (elsewhere / name).write_text(text)
        words = ("mode", "shop.orders", "live")
        lake = ("--lake", str(orders.project.lake.path))
        code, _, error = run_words(
            capsys, *words, *lake, "--config", str(elsewhere / "chronolake.yml")
        )
        assert code == 1
        assert "in its chronolake.yml the mode of the stream orders is history" in " ".join(
            error.split()
        )
        assert orders.requested() == [("live", "refused")]
        assert orders.mode == "history"

        orders.set("live", _DAYS + 1)
        code, output = orders.run(*words, "--json")
        assert code == 0, output
        found = orjson.loads(output[output.index("{") :])
        assert (found["from"], found["to"]) in {("history", "live"), ("live", "live")}
        assert orders.mode == "live"
        assert not ended
    finally:
        released.set()
        thread.join()
    assert ended[0][0] == 0, ended[0][1]
    assert "switching to live mode" in ended[0][1]
    assert set(orders.pages().values()) == {1}
    _expect_as_between_syncs(orders, "live", tmp_path / "twin")


_STEPS = (
    "switch.begun",
    "rewrite.before-commit",
    "rewrite.after-commit",
    "switch.done",
    "switch.answered",
)


def test_every_step_of_a_switch_is_tested() -> None:
    steps = {name for name in FAILPOINTS if name.startswith("switch.")}
    assert steps <= {*_STEPS, "switch.requested"}


@pytest.mark.long
@pytest.mark.parametrize("step", _STEPS)
def test_the_process_that_syncs_may_be_killed_at_every_step(
    orders: Orders, tmp_path: Path, step: str
) -> None:
    """The command completes the switch, and the next sync continues."""
    orders.begin()
    thread, (ended, released) = _during_a_sync(orders, failpoint=f"{step}=kill")
    try:
        # The lease of another process, which the command finds when it begins.
        store = Store.open(orders.project.lake)
        orders.set("live", _DAYS + 1)
        code, output = orders.run("mode", "shop.orders", "live")
        assert code == 0, output
        assert orders.mode == "live"
        if step == "switch.answered" and not ended:
            # The process had switched the table before the command requested it.
            assert not store.runs(limit=1)[0].ended
    finally:
        released.set()
        thread.join()
    assert ended[0][0] in {KILLED, 0}, ended[0][1]
    assert ended[0][0] == KILLED or step == "switch.answered", ended[0][1]

    code, output = orders.run("sync", "shop")

    assert code == 0, output
    _expect_as_between_syncs(orders, "live", tmp_path / "twin")


@pytest.mark.long
@pytest.mark.parametrize("step", _STEPS[:3])
def test_a_restarted_sync_completes_the_switch(orders: Orders, tmp_path: Path, step: str) -> None:
    """No command waits: the switch was requested by chronolake.yml alone."""
    orders.begin()
    thread, (ended, released) = _during_a_sync(orders, failpoint=f"{step}=kill")
    orders.set("live", _DAYS + 1)
    thread.join()
    released.set()
    assert ended[0][0] == KILLED, ended[0][1]
    assert orders.mode == ("live" if step == "rewrite.after-commit" else "history")
    code, output = orders.run("sync", "shop")
    assert code == 0, output
    _expect_as_between_syncs(orders, "live", tmp_path / "twin")


@pytest.mark.long
def test_the_command_may_be_killed_after_its_request(orders: Orders, tmp_path: Path) -> None:
    orders.begin()
    thread, (ended, released) = _during_a_sync(orders)
    try:
        orders.set("live", _DAYS + 1)
        code, output = orders.run("mode", "shop.orders", "live", failpoint="switch.requested=kill")
        assert code == KILLED, output
        wait_until(lambda: orders.requested() == [("live", "done")], "It was not answered.")
        assert orders.mode == "live"
        code, output = orders.run("mode", "shop.orders", "live")
        assert code == 0, output
        assert "nothing to do" in output
    finally:
        released.set()
        thread.join()
    assert ended[0][0] == 0, ended[0][1]
    _expect_as_between_syncs(orders, "live", tmp_path / "twin")


@pytest.mark.long
def test_a_switch_may_be_cancelled_while_it_waits(orders: Orders) -> None:
    """The request is withdrawn, and chronolake.yml decides."""
    orders.begin()
    orders.set("live", _DAYS + 1)
    store = Store.open(orders.project.lake)
    # Another command runs the pipeline, and answers no requests.
    with hold_lease(store, "shop", above=100):
        command = subprocess.Popen(
            [sys.executable, "-m", "chronolake", "mode", "shop.orders", "live", "--no-engine"],
            cwd=orders.folder,
            env={**os.environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            wait_until(lambda: orders.requested() == [("live", "requested")], "no request")
            command.send_signal(signal.SIGINT)
            output, _ = command.communicate(timeout=600)
        finally:
            if command.poll() is None:
                command.kill()
    assert command.returncode not in {0, None}, output
    assert "Waiting for the sync of the pipeline shop to pause" in " ".join(output.split())
    assert orders.requested() == [("live", "cancelled")]
    assert orders.mode == "history"
    orders.set("history", _DAYS + 1)
    code, output = orders.run("sync", "shop")
    assert code == 0, output
    assert orders.mode == "history"


@pytest.mark.long
def test_a_table_of_an_idle_pipeline_is_switched_at_once(orders: Orders) -> None:
    """`up` does not wait for the next sync: it is due in a year."""
    orders.begin()
    orders.api.requests.clear()

    def project(mode: str) -> None:
        orders.set(mode, _DAYS + 1)
        file = orders.project.file
        file.write_text(file.read_text().replace("  shop:\n", "  shop:\n    every: '0 0 1 1 *'\n"))
        orders.project = load_project(file)

    project("history")
    is_stopped = threading.Event()
    thread = threading.Thread(
        target=scheduled.sync_on_schedule,
        args=(orders.lake, lambda: orders.project, "shop", is_stopped),
    )
    thread.start()
    try:
        for mode in ("live", "soft-delete"):
            project(mode)
            wait_until(lambda mode=mode: orders.mode == mode, f"The table is not in {mode} mode.")
        file = orders.project.file
        file.write_text(file.read_text().replace("  shop:\n", "  shop:\n    on_purge: erase\n", 1))
        orders.project = load_project(file)
        wait_until(lambda: orders.on_purge == "erase", "The other setting was not applied.")
    finally:
        is_stopped.set()
        thread.join()
    assert not orders.requests
    # A command needs no sync either.
    project("history")
    code, output = orders.run("mode", "shop.orders", "history")
    assert code == 0, output
    assert orders.mode == "history"
    assert not orders.requests


# ------------------------------------------------------------------------- PostgreSQL


class Stalling:
    """A proxy to a PostgreSQL server that holds back a row until it is released.

    Attributes:
        copied: the first pages of the ranges that were copied.
    """

    def __init__(self, address: str, row: bytes) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None
        self._server = (parts.hostname, parts.port or 5432)
        self._row = row
        self.held = threading.Event()
        self.released = threading.Event()
        self.copied: list[int] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        port = self._listening.getsockname()[1]
        user = parts.netloc.rpartition("@")[0]
        self.address = parts._replace(netloc=f"{user}@127.0.0.1:{port}").geturl()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self.released.set()
        self._listening.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._server)
                for source, sink, note in (
                    (client, server, self._note_copies),
                    (server, client, self._hold_row),
                ):
                    threading.Thread(
                        target=self._forward, args=(source, sink, note), daemon=True
                    ).start()

    def _forward(
        self, source: socket.socket, sink: socket.socket, note: Callable[[bytes], None]
    ) -> None:
        with suppress(OSError):
            before = b""
            while data := source.recv(65_536):
                # The row may arrive in two parts.
                note(before[-16:] + data)
                sink.sendall(data)
                before = data
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _note_copies(self, data: bytes) -> None:
        if b"COPY (SELECT" in data:
            self.copied += [int(page) for page in re.findall(rb"ctid >= '\((\d+),0\)'", data)]

    def _hold_row(self, data: bytes) -> None:
        if self._row in data:
            self.held.set()
            assert self.released.wait(600)


@pytest.mark.long
@pytest.mark.parametrize("is_resync", [True, False], ids=["resync", "first copy"])
def test_a_table_is_switched_during_a_copy_of_many_ranges(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_resync: bool
) -> None:
    """A range of a copy is read only after the table was switched: no range is read twice.

    The table of a re-sync is compared with the copy, as it was before the switch. While another
    table is copied for the first time, a small one is switched.
    """
    monkeypatch.setattr("chronolake.source.postgres.initial_copy._RANGE_PAGES", 2)
    stalling = Stalling(address, b"held back")
    try:
        shop = databases.Shop(tmp_path / "lake", stalling.address)
        _fill(shop)
        name = "big" if is_resync else "small"
        streams = "{}" if is_resync else "{public.big: {mode: soft-delete}}"
        if is_resync:
            stalling.released.set()
            shop.sync_or_fail()
            with psycopg.connect(address, autocommit=True) as there:
                there.execute("DELETE FROM big WHERE id = 7")
            stalling.released.clear()
            stalling.held.clear()
        else:
            shop.configure(more=", tables: [public.small]")
            shop.sync_or_fail()
            shop.configure(streams=streams)
        stalling.copied.clear()
        switched: list[str] = []

        def switch() -> None:
            assert stalling.held.wait(600)
            shop.configure(mode="live", streams=streams)
            wait_until(lambda: ACTIVE not in shop.table(name).column_names, "not switched")
            switched.append(name)
            stalling.released.set()

        thread = threading.Thread(target=switch)
        thread.start()
        result = sync(
            shop.lake,
            shop.project,
            "shop",
            full_refresh=is_resync,
            reread=lambda: shop.project,
        )
        thread.join()

        assert result.status is Status.SUCCEEDED, result.streams
        assert switched == [name]
        pages = Counter(stalling.copied)
        assert len(pages) > 10
        # Both tables have a first range.
        assert {count for page, count in pages.items() if page} == {1}
        rows = shop.table("big").select(["id", "text"]).to_pylist()
        with psycopg.connect(address) as there:
            expected = there.execute("SELECT id, text FROM big ORDER BY id").fetchall()
        assert sorted((row["id"], row["text"]) for row in rows) == expected
        assert shop.agrees()
    finally:
        stalling.close()
        with psycopg.connect(address, autocommit=True) as there:
            there.execute("DROP PUBLICATION IF EXISTS chronolake_shop")
            there.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


def _fill(shop: databases.Shop) -> None:
    """Create a table of many pages, and one with a row."""
    shop.run(
        "DROP SCHEMA IF EXISTS public CASCADE",
        "CREATE SCHEMA public",
        "CREATE TABLE big (id bigint PRIMARY KEY, text text)",
        "INSERT INTO big SELECT n, repeat(md5(n::text), 12) FROM generate_series(1, 1000) AS n",
        "UPDATE big SET text = 'held back' WHERE id = 500",
        "CREATE TABLE small (id bigint PRIMARY KEY, text text)",
        "INSERT INTO small VALUES (1, 'one')",
        "VACUUM ANALYZE big",
    )
    shop.prepare()
