"""Refresh tokens for one use are never lost, whichever command uses them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from chronolake.errors import PipelineBusyError, SourceError
from chronolake.lake import Lake
from chronolake.pipeline import token_store
from chronolake.pipeline.lease import hold_lease
from chronolake.pipeline.store import Status, Store
from chronolake.pipeline.sync import sync
from chronolake.pipeline.token_store import StoredTokens
from support.commands import run_words
from support.datalakes import iceberg, project
from support.declarative.apis import Api, ReceivedRequest, Reply
from support.processes import COMMAND

#: A shop whose streams are listed by its API, which is called before any stream is read.
MANIFEST = """
version: 6.48.0
type: DeclarativeSource
check:
  type: CheckStream
  dynamic_streams_check_configs:
    - {type: DynamicStreamCheckConfig, dynamic_stream_name: tables}
definitions:
  retriever:
    type: SimpleRetriever
    requester:
      type: HttpRequester
      url_base: "{{ config['url'] }}"
      path: /tables
      authenticator:
        type: OAuthAuthenticator
        token_refresh_endpoint: "{{ config['url'] }}/token"
        refresh_token_updater: {}
    record_selector: {type: RecordSelector, extractor: {type: DpathExtractor, field_path: [data]}}
dynamic_streams:
  - type: DynamicDeclarativeStream
    name: tables
    stream_template:
      type: DeclarativeStream
      name: ""
      primary_key: id
      schema_loader: {type: InlineSchemaLoader, schema: {}}
      retriever:
        $ref: "#/definitions/retriever"
    components_resolver:
      type: HttpComponentsResolver
      retriever: {$ref: "#/definitions/retriever"}
      components_mapping:
        - type: ComponentMappingDefinition
          field_path: [name]
          value: "{{ components_values['name'] }}"
        - type: ComponentMappingDefinition
          field_path: [retriever, requester, path]
          value: "/tables/{{ components_values['name'] }}"
spec:
  type: Spec
  connection_specification:
    properties:
      credentials:
        type: object
        properties:
          refresh_token: {type: string, airbyte_secret: true}
          client_secret: {type: string, airbyte_secret: true}
"""


class Desk:
    """An API that accepts tokens issued by its desk; each refresh token is good for one use."""

    def __init__(self, folder: Path, api: Api) -> None:
        self.folder = folder
        self.rows = [{"id": 1, "state": "new"}]
        self.given = 0
        self.refused: list[str] = []
        self.seconds = 0
        self._good = "refresh-0"
        self._lock = threading.Lock()
        api.on("/token", self._refreshed)
        api.on("/tables", self._let_in(lambda: [{"name": "orders"}]))
        api.on("/tables/orders", self._let_in(lambda: self.rows))
        (folder / "desk.yaml").write_text(MANIFEST)
        self.project = project(
            folder,
            f"""  desk:
    mode: live
    source:
      type: declarative
      manifest: desk.yaml
      config:
        url: {api.url}
        credentials: {{client_id: me, client_secret: hush-hush, refresh_token: refresh-0}}
""",
        )

    def _refreshed(self, asked: ReceivedRequest) -> Reply:
        token = asked.form["refresh_token"]
        with self._lock:
            if token != self._good:
                self.refused.append(token)
                return Reply({"error": "invalid_grant"}, status=400)
            self.given += 1
            self._good = f"refresh-{self.given}"
            return Reply(
                {
                    "access_token": f"access-{self.given}",
                    "refresh_token": self._good,
                    "expires_in": self.seconds,
                },
                slow=0.05,
            )

    def _let_in(self, rows: Any) -> Any:
        def answer(asked: ReceivedRequest) -> Reply:
            if not asked.headers["authorization"].startswith("Bearer access-"):
                return Reply({}, status=401)
            return Reply({"data": rows()})

        return answer


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Api() as api:
        yield Desk(tmp_path, api)


@pytest.mark.long
def test_every_command_continues_with_the_token_of_the_last_one(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = Lake.open(desk.project.lake.path, config=desk.project.lake)
    shown = ""

    def sync_or_fail() -> list[Any]:
        assert sync(lake, desk.project, "desk").status is Status.SUCCEEDED
        return iceberg(desk.project, "desk", "orders").scan().to_arrow()["state"].to_pylist()

    def run(*words: str) -> None:
        nonlocal shown
        before = desk.given
        code, out, err = run_words(capsys, *words, "--project", str(desk.folder))
        assert code == 0, out + err
        assert desk.given > before, "no token was used"
        shown += out + err

    assert sync_or_fail() == ["new"]
    run("check")
    run("discover", "desk")
    run("read", "desk", "orders", "--json")
    run("status")
    run("state", "show", "desk")
    # Nobody waits for a run: it holds another lease.
    with hold_lease(Store.open(desk.project.lake), "desk"):
        run("check")
        run("read", "desk", "orders")
    desk.rows = [{"id": 1, "state": "paid"}]
    assert sync_or_fail() == ["paid"]
    assert desk.refused == []
    assert "access-" not in shown
    assert "refresh-" not in shown


def test_check_creates_the_token_store(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        code, out, err = run_words(capsys, "read", "desk", "orders", "--project", str(desk.folder))
        assert code == 0, out + err

    assert desk.project.lake.catalog_file.is_file()
    assert desk.refused == []


def test_a_token_that_is_still_good_is_used_by_all(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.seconds = 3600
    for words in (("read", "desk", "orders"), ("discover", "desk"), ("check",)):
        code, out, err = run_words(capsys, *words, "--project", str(desk.folder))
        assert code == 0, out + err

    assert desk.given == 1


@pytest.mark.long
def test_processes_use_a_token_one_after_the_other(desk: Desk) -> None:
    words = ["read", "desk", "orders", "--project", str(desk.folder)]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", COMMAND, *words],
            env=dict(os.environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(3)
    ]
    reported = [process.communicate(timeout=120)[0] for process in running]

    assert [process.returncode for process in running] == [0, 0, 0], reported
    assert desk.refused == []


# ---------------------------------------------------------------------- the store itself


@pytest.fixture
def stored(desk: Desk) -> StoredTokens:
    return StoredTokens(desk.project.lake, "desk")


def test_each_change_receives_the_last_stored_token(
    stored: StoredTokens,
) -> None:
    inside = threading.Semaphore(1)

    def add(known: Mapping[str, Any] | None) -> Mapping[str, Any]:
        assert inside.acquire(blocking=False), "two at once"
        number = (known or {"number": 0})["number"]
        inside.release()
        return {"number": number + 1}

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: stored.renew("a", add), range(8)))

    assert stored.load_token("a") == {"number": 8}
    assert stored.load_token("b") is None


def test_failed_renewal_changes_nothing(stored: StoredTokens) -> None:
    stored.renew("a", lambda _: {"number": 1})

    def fail(_: Mapping[str, Any] | None) -> Mapping[str, Any]:
        raise SourceError("no token")

    with pytest.raises(SourceError):
        stored.renew("a", fail)
    assert stored.load_token("a") == {"number": 1}
    stored.renew("a", lambda known: {"number": (known or {})["number"] + 1})
    assert stored.load_token("a") == {"number": 2}


def test_paused_process_keeps_its_token_unless_a_later_one_exists(
    stored: StoredTokens,
) -> None:
    store = Store.open(stored.config)
    store.store_token("desk", "a", {"number": 1}, since=None)
    store.store_token("desk", "b", {"number": 7}, since=None)
    # Other processes now hold the lease, and have not stored a newer token.
    store.store_token("desk", "a", {"number": 2}, since={"number": 1})
    assert stored.load_token("a") == {"number": 2}
    # Now they have.
    store.store_token("desk", "a", {"number": 3}, since={"number": 1})
    assert stored.load_token("a") == {"number": 2}
    assert stored.load_token("b") == {"number": 7}


def test_waiting_too_long_for_a_token_is_an_error(
    stored: StoredTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_store, "_PATIENCE", 0.3)
    with (
        hold_lease(Store.open(stored.config), "desk#remembered"),
        pytest.raises(PipelineBusyError, match="held the lock on the tokens of desk"),
    ):
        stored.renew("a", lambda _: {})
