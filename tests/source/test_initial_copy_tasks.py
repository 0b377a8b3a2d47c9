"""Slices read by Spark's tasks make the same tables and requests, with one budget and token."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from test_declarative import TOKEN, Shop

from chronolake.config import load_project
from chronolake.pipeline.store import Status, Store
from chronolake.source.declarative import stream_run
from support.declarative.apis import Api, ReceivedRequest, Reply
from support.processes import run_command_until_failpoint

_DAYS = 12


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with Api() as api:
        shop = Shop(tmp_path, api)
        _read_only_orders(shop, "spark_from_mib: 0\n      concurrency: 4")
        yield shop


def _read_only_orders(shop: Shop, more: str) -> None:
    shop.configure(more=f"only: [orders]\n      {more}", end=f"2026-01-{_DAYS + 1}")
    file = shop.project.file
    words = "      customers: {mode: live}\n      notes: {mode: soft-delete}\n"
    file.write_text(file.read_text().replace(words, "").replace("    streams:\n", ""))
    shop.project = load_project(file)


def _slice_counts(shop: Shop) -> list[int]:
    """Return the number of slices that each job of a sync read."""
    with capture_logs() as reported:
        shop.sync()
    return [event["slices"] for event in reported if event["event"] == "slices_spread"]


@pytest.mark.long
def test_tasks_read_what_the_driver_would(shop: Shop) -> None:
    for number in range(1, 3 * _DAYS):
        shop.put(number, f"{1 + number % _DAYS:02d}", state="new", total=number)
    # Fields that no schema declares have different types in different slices.
    shop.put(50, "02", extra=1)
    shop.put(51, "09", extra="one")
    assert _slice_counts(shop) == [_DAYS + 1]
    days = [f"{day:02d}" for day in range(1, _DAYS + 2)]
    asked = [
        (request.params["since"], request.params.get("offset")) for request in shop.api.requests
    ]
    assert len(asked) == len(set(asked))
    assert shop.days_asked() == days
    assert [row[:2] for row in shop.versions("id", "state")] == [
        *((number, "new") for number in range(1, 3 * _DAYS)),
        (50, None),
        (51, None),
    ]
    extra = {row["id"]: row["extra"] for row in shop.table("orders").to_pylist()}
    assert extra[50] == "1"
    assert extra[51] == "one"
    assert Store.open(shop.project.lake).checkpoints("shop")["orders"]["state"] == {
        "updated_at": f"2026-01-{_DAYS}T12:00:00Z"
    }
    assert not list(shop.folder.rglob("*.arrow"))


@pytest.mark.long
def test_failed_slice_in_a_task_keeps_records_of_other_slices(shop: Shop) -> None:
    for number in range(1, _DAYS + 1):
        shop.put(number, f"{number:02d}", state="new")
    shop.closed_days = {"02", "07"}
    with capture_logs():
        (run,) = shop.sync().values()
    assert run.status is Status.FAILED
    assert "/orders returned status 403" in str(run.error)
    assert [row[0] for row in shop.versions("id")] == [1, 3, 4, 5, 6, 8, 9, 10, 11, 12]
    shop.days_asked()
    shop.closed_days = set()
    shop.sync_or_fail()
    assert shop.days_asked()[:2] == ["02", "07"]
    assert len(shop.versions("id")) == _DAYS


@pytest.mark.long
def test_all_tasks_together_keep_to_the_budget(shop: Shop) -> None:
    budget = """
api_budget:
  type: HTTPAPIBudget
  policies:
    - type: MovingWindowCallRatePolicy
      rates: [{type: Rate, limit: 4, interval: PT1S}]
      matchers: []
"""
    manifest = shop.folder / "shop.yaml"
    manifest.write_text(manifest.read_text() + budget)
    shop.put(1, "01", state="new")
    times = _call_times(shop)
    assert _slice_counts(shop)
    assert len(times) == _DAYS + 1
    # The fifth call is made at least a second after the first; it may take a while to arrive.
    assert all(later - earlier > 0.9 for earlier, later in zip(times, times[4:], strict=False))


def _call_times(shop: Shop) -> list[float]:
    times: list[float] = []

    def answer(asked: ReceivedRequest) -> Reply:
        times.append(time.monotonic())
        return shop.answer_orders(asked)

    shop.api.on("/orders", answer)
    return times


@pytest.mark.long
def test_tasks_share_the_token_that_the_driver_keeps(shop: Shop) -> None:
    bearer = """{type: BearerAuthenticator, api_token: "{{ config['token'] }}"}"""
    oauth = """
      type: OAuthAuthenticator
      token_refresh_endpoint: "{{ config['url'] }}/token"
      client_id: we
      client_secret: secret-of-ours
      refresh_token: "{{ config['token'] }}"
      refresh_token_updater: {refresh_token_config_path: [token]}
    error_handler:
      type: DefaultErrorHandler
      response_filters:
        - {type: HttpResponseFilter, http_codes: [401], action: REFRESH_TOKEN_THEN_RETRY}
"""
    manifest = shop.folder / "shop.yaml"
    manifest.write_text(manifest.read_text().replace(bearer, oauth))
    for number in range(1, _DAYS + 1):
        shop.put(number, f"{number:02d}", state="new")
    given: list[str] = []
    lock = threading.Lock()

    def token(asked: ReceivedRequest) -> Reply:
        # Each refresh token is good for one use, and the first access token for six requests.
        with lock:
            number = len(given)
            assert asked.form["refresh_token"] == (f"refresh-{number}" if number else TOKEN)
            given.append(f"access-{number + 1}")
        reported = {"access_token": given[-1], "refresh_token": f"refresh-{number + 1}"}
        return Reply({**reported, "expires_in": 3600})

    used: dict[str, int] = {}

    def orders(asked: ReceivedRequest) -> Reply:
        sent = asked.headers["authorization"].removeprefix("Bearer ")
        with lock:
            used[sent] = used.get(sent, 0) + 1
            if sent != given[-1] or (len(given) == 1 and used[sent] > 6):
                return Reply({"error": "token"}, status=401)
        return shop.answer_orders(asked, token=sent)

    shop.api.on("/token", token)
    shop.api.on("/orders", orders)
    assert _slice_counts(shop)
    assert len(shop.versions("id")) == _DAYS
    assert len(given) == 2


@pytest.mark.long
def test_a_task_that_is_killed_leaves_what_is_finished(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a slow disk, notes are skipped, and no later slice would write them here.
    monkeypatch.setattr(stream_run, "_NOTING_SHARE", float("inf"))
    for number in range(1, _DAYS + 1):
        shop.put(number, f"{number:02d}", state="new")
    calm = threading.Event()

    def orders(asked: ReceivedRequest) -> Reply:
        if asked.params["since"][8:10] == "06" and not calm.is_set():
            calm.set()
            assert _becomes_true(lambda: _count_finished_slices(shop) > 1)
            for worker in _clients_of(shop.api.port):
                os.kill(worker, signal.SIGKILL)
        return shop.answer_orders(asked)

    shop.api.on("/orders", orders)
    with capture_logs():
        (run,) = shop.sync().values()
    assert run.status is Status.FAILED
    assert "Spark's tasks failed before all slices were read" in str(run.error)
    first = set(shop.days_asked())
    shop.sync_or_fail()
    assert len(shop.versions("id")) == _DAYS
    # The slices that were noted before the task died are not requested again.
    assert len(first & set(shop.days_asked())) < _DAYS


def _count_finished_slices(shop: Shop) -> int:
    """Return the number of slices of orders that are noted as finished, with a record each."""
    journals = list(shop.project.lake.path.glob("raw/_spool/**/journal.json"))
    return sum(len(json.loads(journal.read_text())["parts"]) for journal in journals)


def _becomes_true(is_so: Callable[[], bool]) -> bool:
    """Return whether a condition becomes true within half a minute."""
    until = time.monotonic() + 30
    while not is_so() and time.monotonic() < until:
        time.sleep(0.02)
    return is_so()


def _clients_of(port: int) -> set[int]:
    """Return the processes that are connected to a port of this machine, except this one."""
    connections = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    sockets = {
        f"socket:[{connection[9]}]"
        for connection in connections
        if connection[2].endswith(f":{port:04X}")
    }
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        # Processes and files may start and end in the meantime.
        with suppress(OSError):
            if str(link.readlink()) in sockets:
                found.add(int(link.parts[2]))
    return found - {os.getpid()}


@pytest.mark.long
def test_separate_executors_read_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    monkeypatch.setenv("SPARK_HOME", str(Path(spec.origin).parent))
    with Api() as api:
        shop = Shop(tmp_path, api)
        _read_only_orders(shop, "spark_from_mib: 0\n      concurrency: 4")
        file = shop.project.file
        file.write_text(file.read_text().replace("'local[2]'", "'local-cluster[2,1,1024]'"))
        for number in range(1, 3 * _DAYS):
            shop.put(number, f"{1 + number % _DAYS:02d}", state="new")
        assert not run_command_until_failpoint(
            "sync", "shop", "--project", str(tmp_path), failpoint=""
        )
        assert [row[0] for row in shop.versions("id")] == list(range(1, 3 * _DAYS))
