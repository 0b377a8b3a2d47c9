"""Incremental streams of an API are compared with all of its records from time to time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chronolake.config import load_project
from chronolake.pipeline.store import Status, Store
from chronolake.types import ACTIVE, DELETED, END, START
from support.commands import run_words
from support.declarative.apis import Api, ReceivedRequest, Reply
from support.processes import run_command_until_failpoint
from support.source.apishop import ApiShop, parameter


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[ApiShop]:
    with Api() as api:
        yield ApiShop(tmp_path, api)


def _open_with_undated_records(shop: ApiShop) -> None:
    for number, day in ((1, "02-01"), (2, "01-20"), (3, "01-20")):
        shop.put(number, day, state="new")
    shop.orders[4] = {"id": 4, "state": "undated"}
    shop.sync_or_fail()
    del shop.orders[2]
    # A change that the cursor does not show.
    shop.put(3, "01-20", state="paid")


@pytest.mark.long
def test_reconciliation_deletes_records_missing_in_the_api(shop: ApiShop) -> None:
    shop.configure("orders: {detect_deletes: PT0.001S}")
    _open_with_undated_records(shop)
    begun = datetime.now(UTC)
    shop.sync_or_fail()

    assert shop.reconciliation() == {"missed": 1, "deleted": 1, "returned": 0}
    assert shop.rows("orders", "id", "state", ACTIVE) == [
        (1, "new", True),
        (2, "new", False),
        (3, "paid", True),
        (4, "undated", True),
    ]
    ((_, start, end),) = (row for row in shop.rows("orders", "id", START, END) if row[0] == 2)
    assert start == datetime(2026, 1, 20, 12, tzinfo=UTC)
    assert begun < end < datetime.now(UTC)

    # The record is back unchanged, so its cursor shows no change.
    shop.put(2, "01-20", state="new")
    shop.sync_or_fail()
    assert shop.reconciliation() == {"missed": 1, "deleted": 0, "returned": 1}
    assert [row[:2] for row in shop.rows("orders", "id", ACTIVE)] == [
        (1, True),
        (2, False),
        (2, True),
        (3, True),
        (4, True),
    ]
    state = Store.open(shop.project.lake).checkpoints("shop")["orders"]["state"]
    assert state == {"updated_at": "2026-02-01T12:00:00Z"}
    assert shop.agrees()


@pytest.mark.long
def test_records_missing_in_the_api_are_deleted_without_history_too(shop: ApiShop) -> None:
    shop.configure(
        "soft: {detect_deletes: PT0.001S, mode: soft-delete}",
        "live: {detect_deletes: PT0.001S, mode: live}",
    )
    _open_with_undated_records(shop)
    shop.sync_or_fail()

    assert shop.rows("soft", "id", "state", DELETED) == [
        (1, "new", False),
        (2, "new", True),
        (3, "paid", False),
        (4, "undated", False),
    ]
    assert shop.rows("live", "id", "state") == [(1, "new"), (3, "paid"), (4, "undated")]

    # The record is back unchanged, so its cursor shows no change.
    shop.put(2, "01-20", state="new")
    shop.sync_or_fail()
    assert (2, "new", False) in shop.rows("soft", "id", "state", DELETED)
    assert (2, "new") in shop.rows("live", "id", "state")
    assert shop.agrees()


@pytest.mark.long
def test_incomplete_reconciliation_deletes_nothing(
    shop: ApiShop, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2, 3):
        shop.put(number, f"0{number}-01")
    shop.put(4, "08-01")
    shop.sync_or_fail()
    del shop.orders[2], shop.orders[4]
    # Only a comparison requests all of this: the stream has been read until August.
    shop.is_closed = lambda asked: asked.params["since"].startswith("2026-01-01")
    run = shop.sync()["orders"]
    assert run.status is Status.FAILED
    assert "so no record was deleted: GET /orders returned status 403" in str(run.error)
    assert [row for row in shop.rows("orders", "id", ACTIVE) if not row[1]] == []

    shop.is_closed = lambda _: False
    shop.sync_or_fail()
    gone = [row[0] for row in shop.rows("orders", "id", ACTIVE) if not row[1]]
    assert gone == [2, 4]
    _, reported, _ = run_words(capsys, "status", "--project", str(shop.folder))
    assert "reconciled with its source" in reported
    assert "2 deleted" in reported
    assert not list(shop.folder.rglob("*.arrow"))

    # A week has not passed.
    shop.configure("orders: {detect_deletes: weekly}")
    del shop.orders[3]
    shop.api.requests.clear()
    shop.sync_or_fail()
    assert {request.params["since"] for request in shop.api.requests} == {"2026-08-01T12:00:00Z"}
    assert (3, True) in shop.rows("orders", "id", ACTIVE)
    # A full refresh need not wait.
    shop.sync_or_fail(full_refresh=True)
    assert (3, False) in shop.rows("orders", "id", ACTIVE)


@pytest.mark.long
def test_a_record_that_changes_while_everything_is_read_is_not_deleted(shop: ApiShop) -> None:
    shop.put(1, state="new")
    shop.put(2, state="new")
    shop.sync_or_fail()

    def changes(asked: ReceivedRequest) -> bool:
        if asked.params["since"].startswith("2026-01-01"):
            # The record leaves its slice before that is read, for a time after all requested ones.
            time.sleep(1.2)
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            shop.orders[2] = {"id": 2, "updated_at": now, "state": "paid"}
            shop.is_closed = lambda _: False
        return False

    shop.is_closed = changes
    shop.sync_or_fail()
    assert shop.reconciliation() == {"missed": 1, "deleted": 0, "returned": 0}
    assert shop.rows("orders", "id", "state", ACTIVE) == [
        (1, "new", True),
        (2, "new", False),
        (2, "paid", True),
    ]


@pytest.mark.long
def test_a_record_that_pages_have_skipped_is_not_deleted(shop: ApiShop) -> None:
    manifest = shop.folder / "shop.yaml"
    reported = json.loads(manifest.read_text())
    for stream in reported["streams"]:
        if stream["name"] == "orders":
            stream["retriever"]["paginator"] = {
                "type": "DefaultPaginator",
                "pagination_strategy": {"type": "OffsetIncrement", "page_size": 2},
                "page_token_option": parameter("offset"),
            }
    manifest.write_text(json.dumps(reported))
    shop.project = load_project(shop.project.file)
    for number in range(1, 6):
        shop.put(number)
    goes: set[int] = set()

    def page(asked: ReceivedRequest) -> Reply:
        begin = int(asked.params.get("offset", 0))
        whole = shop.records_between(asked, list(shop.orders.values())).body["data"]
        if begin == 0 and len(whole) > 3 and asked.params["since"].startswith("2026-01-01"):
            # Between this page and the next, record 3 moves to a page that has already been read.
            for number in list(goes):
                shop.orders.pop(number)
            goes.clear()
        return Reply({"data": whole[begin : begin + 2]})

    shop.api.on("/orders", page)
    shop.sync_or_fail()
    goes.add(1)
    shop.sync_or_fail()
    assert [row for row in shop.rows("orders", "id", ACTIVE) if not row[1]] == []
    assert shop.reconciliation() == {"missed": 0, "deleted": 0, "returned": 0}
    # The record is really deleted, which the next sync sees because nothing moves.
    shop.sync_or_fail()
    assert [row for row in shop.rows("orders", "id", ACTIVE) if not row[1]] == [(1, False)]
    assert shop.reconciliation() == {"missed": 0, "deleted": 1, "returned": 0}


def test_a_clock_that_is_ahead_of_ours_hides_no_change(shop: ApiShop) -> None:
    shop.put(1, state="new")
    shop.put(2, state="new")
    shop.sync_or_fail()

    def changes(asked: ReceivedRequest) -> bool:
        if asked.params["since"].startswith("2026-01-01"):
            ahead = datetime.now(UTC) + timedelta(minutes=2)
            at = ahead.strftime("%Y-%m-%dT%H:%M:%SZ")
            shop.orders[2] = {"id": 2, "updated_at": at, "state": "paid"}
            shop.is_closed = lambda _: False
        return False

    shop.is_closed = changes
    shop.sync_or_fail()
    assert shop.reconciliation() == {"missed": 1, "deleted": 0, "returned": 0}
    assert [row[:2] for row in shop.rows("orders", "id", "state", ACTIVE) if row[2]] == [
        (1, "new"),
        (2, "paid"),
    ]


def test_empty_api_deletes_nothing_unless_allowed(shop: ApiShop) -> None:
    shop.configure("orders: {detect_deletes: PT0.001S}")
    shop.put(1, state="new")
    shop.sync_or_fail()
    shop.orders.clear()
    (run,) = shop.sync().values()
    assert run.status is Status.FAILED
    assert "returned no records" in str(run.error)
    assert "streams.orders.may_become_empty" in str(run.hint)
    assert shop.rows("orders", "id", ACTIVE) == [(1, True)]

    shop.configure("orders: {detect_deletes: PT0.001S, may_become_empty: true}")
    shop.sync_or_fail()
    assert shop.rows("orders", "id", ACTIVE) == [(1, False)]


@pytest.mark.long
def test_a_cursor_that_counts_is_compared_too(shop: ApiShop) -> None:
    shop.configure("counted: {detect_deletes: PT0.001S, mode: soft-delete}")
    shop.put(1, state="new")
    shop.put(2, state="new")
    shop.sync_or_fail()
    # A cursor that counts has no time: unchanged records stay.
    del shop.orders[2]
    shop.sync_or_fail()
    assert shop.reconciliation("counted") == {"missed": 0, "deleted": 1, "returned": 0}
    shop.orders.clear()
    (run,) = shop.sync().values()
    assert run.status is Status.FAILED
    assert "returned no records" in str(run.error)

    shop.configure("counted: {detect_deletes: PT0.001S, may_become_empty: true, mode: soft-delete}")
    shop.sync_or_fail()
    assert shop.rows("counted", "id", DELETED) == [(1, True), (2, True)]


@pytest.mark.long
def test_partitions_of_parents_that_are_gone_are_deleted(shop: ApiShop) -> None:
    shop.configure(
        "notes: {detect_deletes: PT0.001S, mode: live}",
        "turns: {detect_deletes: PT0.001S, mode: live}",
    )
    shop.put(1, "02-01")
    shop.put(2, "03-01")
    shop.note(1, {"id": 1, "updated_at": "2026-02-01T00:00:00Z"})
    shop.note(
        2,
        {"id": 2, "updated_at": "2026-02-01T00:00:00Z"},
        {"id": 3, "updated_at": "2026-03-01T00:00:00Z"},
    )
    shop.sync_or_fail()
    del shop.notes[2], shop.orders[1]
    shop.api.requests.clear()
    shop.sync_or_fail()
    # The two streams read in turns; one reads all records, the other only new ones. They do so
    # twice, because records have been deleted.
    asked = [request.path for request in shop.api.requests if request.path in {"/all", "/orders"}]
    assert [path for path, _ in groupby(asked)] == ["/orders", *("/all", "/orders") * 2]
    assert shop.rows("turns", "id") == [(2,)]
    assert shop.rows("notes", "id") == [(1,)]
    assert shop.reconciliation("notes") == {"missed": 0, "deleted": 2, "returned": 0}


def test_records_outside_the_reconciled_range_stay_unchanged(shop: ApiShop) -> None:
    soon = datetime.now(UTC) + timedelta(days=30)
    end = soon + timedelta(days=300)
    shop.configure("orders: {detect_deletes: PT0.001S}", end=f"{end:%Y-%m-%dT%H:%M:%SZ}")
    shop.put(1, "01-15")
    shop.put(2, "08-01")
    shop.orders[3] = {"id": 3, "updated_at": f"{soon:%Y-%m-%dT%H:%M:%SZ}"}
    shop.sync_or_fail()
    assert len(shop.rows("orders", "id")) == 3

    manifest = shop.folder / "shop.yaml"
    later = manifest.read_text().replace("2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z")
    manifest.write_text(later)
    shop.orders = {4: {"id": 4, "updated_at": "2026-03-01T00:00:00Z"}}
    shop.sync_or_fail()
    # From before the start, and from the future.
    assert shop.rows("orders", "id", ACTIVE) == [(1, True), (2, False), (3, True), (4, True)]

    shop.configure("orders: {detect_deletes: PT0.001S}", end="2026-09-01T00:00:00Z")
    run = shop.sync()["orders"]
    assert "is only read up to 2026-09-01T00:00:00+00:00" in str(run.error)


_STEPS = [
    "read.slice-done=kill:3",
    "read.census-taken=kill",
    "read.missed-landed=kill",
    "land.staged=kill:2",
    "land.done=kill:2",
    "land.checkpointed=kill:1",
    "publish.before-commit=kill",
]


@pytest.mark.long
def test_reconciliation_can_be_killed_at_every_step(shop: ApiShop) -> None:
    words = ("sync", "shop", "--project", str(shop.folder))
    for number in range(1, 20):
        shop.put(number, state="new")
    shop.put(20, "08-01", state="new")
    assert not run_command_until_failpoint(*words, failpoint="")
    for number, failpoint in enumerate(_STEPS, 1):
        del shop.orders[number]
        # The cursor does not show this change.
        shop.put(number + 10, state=f"state {number}")
        assert run_command_until_failpoint(*words, failpoint=failpoint), failpoint
        there = {row[0] for row in shop.rows("orders", "id", ACTIVE) if row[1]}
        assert there >= shop.orders.keys(), failpoint
    assert not run_command_until_failpoint(*words, failpoint="")

    now = {row[0]: row[1] for row in shop.rows("orders", "id", "state", ACTIVE) if row[2]}
    assert now == {number: order["state"] for number, order in shop.orders.items()}
    seen = shop.rows("orders", "id", START)
    assert len(seen) == len(set(seen))
    assert not list(shop.folder.rglob("*.arrow"))
    assert shop.agrees()


class Model:
    """A model of a table of records by their numbers, as far as runs can have seen it."""

    def __init__(self) -> None:
        self.known: dict[int, dict[str, Any]] = {}
        self.deleted: set[int] = set()
        self.since = ""

    def read(self, world: dict[int, dict[str, Any]]) -> None:
        """Model an incremental run: read changes since the latest record that such a run saw."""
        found = [record for record in world.values() if record["updated_at"] >= self.since]
        self.since = max([self.since, *(record["updated_at"] for record in found)])
        # A record that changed before it was deleted does not show that it is back.
        self.known |= {
            record["id"]: dict(record) for record in found if record["id"] not in self.deleted
        }

    def compare(self, world: dict[int, dict[str, Any]]) -> None:
        """Model a run that compares all records."""
        self.deleted |= self.known.keys() - world.keys()
        self.deleted -= world.keys()
        self.known = {number: dict(record) for number, record in world.items()}


_NUMBERS = st.integers(1, 5)
_CHANGES = st.lists(
    st.one_of(
        # A change or a new record, possibly one that was deleted; its cursor may stay behind.
        st.tuples(st.just("put"), _NUMBERS, st.integers(1, 28), st.sampled_from("abc")),
        st.tuples(st.just("gone"), _NUMBERS, st.just(0), st.just("")),
    ),
    max_size=6,
)
_RUNS = st.lists(st.tuples(_CHANGES, st.booleans()), min_size=3, max_size=6)


@pytest.mark.long
@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(_RUNS, st.sampled_from(["history", "soft-delete", "live"]))
def test_reconciliation_corrects_the_table_after_any_changes(
    tmp_path_factory: pytest.TempPathFactory,
    runs: list[tuple[list[tuple[str, int, int, str]], bool]],
    mode: str,
) -> None:
    with Api() as api:
        shop = ApiShop(tmp_path_factory.mktemp("world"), api)
        model = Model()
        # A table needs a record.
        shop.put(9, "01-02", state="a")
        for number, (changes, is_compared) in enumerate(runs):
            for what, record, day, state in changes:
                if what == "gone":
                    shop.orders.pop(record, None)
                    continue
                # The cursor of a record does not decrease while the record exists.
                times = [
                    records[record]["updated_at"]
                    for records in (shop.orders, model.known)
                    if record in records
                ]
                shop.put(record, max([f"03-{day:02d}", *(at[5:10] for at in times)]), state=state)
            often = "PT0.001S" if is_compared else "weekly"
            shop.configure(f"orders: {{detect_deletes: {often}, mode: {mode}}}")
            shop.sync_or_fail()
            model.read(shop.orders)
            if is_compared and number:
                model.compare(shop.orders)

            known = sorted((record["id"], record["state"]) for record in model.known.values())
            assert _present_records(shop, mode) == known


def _present_records(shop: ApiShop, mode: str) -> list[tuple[Any, ...]]:
    """Return the records that a table has now: their numbers and states."""
    if mode == "live":
        return shop.rows("orders", "id", "state")
    rows = shop.rows("orders", "id", "state", ACTIVE if mode == "history" else DELETED)
    return sorted(row[:2] for row in rows if row[2] is (mode == "history"))
