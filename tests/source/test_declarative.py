"""HTTP APIs that a manifest describes are synced: their records become versions."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from chronolake.config import load_project
from chronolake.lake import Lake
from chronolake.pipeline.store import Status, Store, StreamRun
from chronolake.pipeline.sync import sync
from chronolake.source.declarative import stream_run
from chronolake.types import ACTIVE, END, START, now_micros
from support.commands import run_words
from support.datalakes import iceberg, project
from support.declarative.apis import Api, ReceivedRequest, Reply
from support.processes import run_command_until_failpoint

MANIFEST = """
version: 6.48.0
type: DeclarativeSource
check: {type: CheckStream, stream_names: [orders]}
definitions:
  requester:
    type: HttpRequester
    url_base: "{{ config['url'] }}"
    authenticator: {type: BearerAuthenticator, api_token: "{{ config['token'] }}"}
  selector: {type: RecordSelector, extractor: {type: DpathExtractor, field_path: [data]}}
  pages:
    type: DefaultPaginator
    page_size_option: {type: RequestOption, inject_into: request_parameter, field_name: limit}
    page_token_option: {type: RequestOption, inject_into: request_parameter, field_name: offset}
    pagination_strategy: {type: OffsetIncrement, page_size: 2}
  days:
    type: DatetimeBasedCursor
    cursor_field: updated_at
    datetime_format: "%Y-%m-%dT%H:%M:%SZ"
    start_datetime: "{{ config['start'] }}"
    end_datetime: "{{ config['end'] }}"
    step: P1D
    cursor_granularity: PT1S
    start_time_option: {type: RequestOption, inject_into: request_parameter, field_name: since}
    end_time_option: {type: RequestOption, inject_into: request_parameter, field_name: until}
  orders:
    type: DeclarativeStream
    name: orders
    primary_key: id
    retriever:
      type: SimpleRetriever
      requester: {$ref: "#/definitions/requester", path: /orders}
      record_selector: {$ref: "#/definitions/selector"}
      paginator: {$ref: "#/definitions/pages"}
    incremental_sync: {$ref: "#/definitions/days"}
    schema_loader:
      type: InlineSchemaLoader
      schema:
        type: object
        properties:
          id: {type: integer}
          state: {type: [string, "null"]}
          total: {type: number}
          placed: {type: string, format: date-time}
          updated_at: {type: string, format: date-time}
          lines: {type: array}
  plain:
    type: DeclarativeStream
    schema_loader: {type: InlineSchemaLoader, schema: {}}
streams:
  - $ref: "#/definitions/orders"
  - $ref: "#/definitions/plain"
    name: customers
    primary_key: [id]
    retriever:
      type: SimpleRetriever
      requester: {$ref: "#/definitions/requester", path: /customers}
      record_selector: {$ref: "#/definitions/selector"}
  - $ref: "#/definitions/plain"
    name: notes
    retriever:
      type: SimpleRetriever
      requester:
        $ref: "#/definitions/requester"
        path: "/orders/{{ stream_partition['order'] }}/notes"
      record_selector: {$ref: "#/definitions/selector"}
      partition_router:
        type: SubstreamPartitionRouter
        parent_stream_configs:
          - type: ParentStreamConfig
            stream: {$ref: "#/definitions/orders"}
            parent_key: id
            partition_field: order
spec:
  type: Spec
  connection_specification:
    required: [url, token]
    properties:
      token: {type: string, airbyte_secret: true}
"""
COUNTER = """    incremental_sync:
      type: IncrementingCountCursor
      cursor_field: id
      start_value: 0
"""
_NAME = "    name: customers\n"
COUNTED_CUSTOMERS = MANIFEST.replace(_NAME, _NAME + COUNTER)
TOKEN = "very-secret-token"


class Shop:
    """The API of a shop, and the pipeline `shop` that reads it."""

    def __init__(self, folder: Path, api: Api) -> None:
        self.api = api
        self.folder = folder
        self.orders: dict[int, dict[str, Any]] = {}
        self.customers: list[dict[str, Any]] = []
        self.notes: dict[int, list[dict[str, Any]]] = {}
        self.closed_days: set[str] = set()
        api.on("/orders", self.answer_orders)
        api.on("/customers", lambda _: Reply({"data": self.customers}))
        self.configure()
        self.lake = Lake.open(self.project.lake.path, config=self.project.lake)

    def configure(
        self,
        *,
        mode: str = "history",
        more: str = "",
        end: str = "2026-01-05",
        own: str = "customers: {mode: live}\n      notes: {mode: soft-delete}",
        manifest: str = MANIFEST,
    ) -> None:
        (self.folder / "shop.yaml").write_text(manifest)
        self.project = project(
            self.folder,
            f"""  shop:
    mode: {mode}
    source:
      type: declarative
      manifest: shop.yaml
      config:
        url: {self.api.url}
        token: {TOKEN}
        start: "2026-01-01T00:00:00Z"
        end: "{end}T00:00:00Z"
      {more}
    streams:
      {own}
""",
        )

    def put(self, number: int, day: str, **values: Any) -> None:
        """Store an order that was last updated at noon of a day."""
        known = self.orders.get(number, {"id": number, "lines": []})
        self.orders[number] = {**known, "updated_at": f"2026-01-{day}T12:00:00Z", **values}
        self.api.on(
            f"/orders/{number}/notes", lambda _: Reply({"data": self.notes.get(number, [])})
        )

    def answer_orders(self, asked: ReceivedRequest, token: str = TOKEN) -> Reply:
        if asked.headers["authorization"] != f"Bearer {token}":
            return Reply({}, status=401)
        asks = asked.params
        if asks["since"][8:10] in self.closed_days:
            return Reply({"error": "closed"}, status=403)
        found = [
            order
            for order in self.orders.values()
            if asks["since"] <= order["updated_at"] <= asks["until"]
        ]
        begin = int(asks.get("offset", 0))
        return Reply({"data": found[begin : begin + int(asks["limit"])]})

    def sync(self) -> dict[str, StreamRun]:
        return {stream.stream: stream for stream in sync(self.lake, self.project, "shop").streams}

    def sync_or_fail(self) -> None:
        assert {run.status for run in self.sync().values()} == {Status.SUCCEEDED}

    def table(self, name: str) -> pa.Table:
        return iceberg(self.project, "shop", name).scan().to_arrow()

    def versions(self, *columns: str) -> list[tuple[Any, ...]]:
        rows = self.table("orders").to_pylist()
        rows.sort(key=lambda row: (row["id"], row[START]))
        return [tuple(row[name] for name in (*columns, ACTIVE)) for row in rows]

    def days_asked(self) -> list[str]:
        """Return the days that were requested for orders since the last call."""
        found = sorted(
            {
                request.params["since"][8:10]
                for request in self.api.requests
                if request.path == "/orders"
            }
        )
        self.api.requests.clear()
        return found


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with Api() as api:
        yield Shop(tmp_path, api)


@pytest.mark.long
def test_records_become_versions_that_begin_when_they_were_changed(shop: Shop) -> None:
    shop.put(1, "01", state="new", total=5, placed="2026-01-01T10:00:00+02:00", lines=[{"a": 1}])
    shop.put(2, "02", state="new", total=7.5)
    shop.put(3, "03", state=None, total=None, extra={"b": [1]})
    shop.sync_or_fail()
    assert shop.versions("id", "state", "total", "lines") == [
        (1, "new", 5.0, '[{"a":1}]', True),
        (2, "new", 7.5, "[]", True),
        (3, None, None, "[]", True),
    ]
    table = shop.table("orders")
    assert table.schema.field("placed").type == pa.timestamp("us", tz="UTC")
    assert str(table.sort_by("id")["placed"][0]) == "2026-01-01 08:00:00+00:00"
    assert table.sort_by("id")["extra"].to_pylist() == [None, None, '{"b":[1]}']

    shop.configure(end="2026-01-08")
    shop.put(1, "06", state="paid")
    # The same time with other content: it replaces the version.
    shop.put(3, "03", state="late")
    shop.sync_or_fail()
    assert shop.versions("id", "state") == [
        (1, "new", False),
        (1, "paid", True),
        (2, "new", True),
        (3, "late", True),
    ]
    first = next(row for row in shop.table("orders").to_pylist() if row["state"] == "new")
    assert str(first[START]) == "2026-01-01 12:00:00+00:00"
    assert str(first[END]) == "2026-01-06 11:59:59.999000+00:00"


@pytest.mark.long
def test_streams_without_a_cursor_are_compared(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.put(1, "01", state="new")
    shop.customers = [{"id": 1, "name": "a"}, {"id": 2, "name": "b", "rank": 1}]
    shop.notes = {1: [{"text": "first"}, {"text": "second"}]}
    shop.sync_or_fail()
    shop.customers = [{"id": 1, "name": "a"}, {"id": 3, "name": "c", "rank": "none"}]
    shop.notes = {1: [{"text": "second"}]}
    shop.sync_or_fail()

    customers = shop.table("customers").sort_by("id").select(["id", "name", "rank"]).to_pylist()
    assert customers == [
        {"id": 1, "name": "a", "rank": None},
        {"id": 3, "name": "c", "rank": "none"},
    ]
    notes = shop.table("notes").sort_by("text").select(["text", "_fivetran_deleted"]).to_pylist()
    assert notes == [
        {"text": "first", "_fivetran_deleted": True},
        {"text": "second", "_fivetran_deleted": False},
    ]


@pytest.mark.long
def test_streams_without_a_cursor_have_history_of_their_reads(shop: Shop) -> None:
    shop.configure(own="{}")
    shop.put(1, "01", state="new")
    shop.customers = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    shop.notes = {1: [{"text": "first"}, {"text": "second"}]}
    times = [now_micros()]
    shop.sync_or_fail()
    times.append(now_micros())
    shop.customers = [{"id": 1, "name": "a"}, {"id": 2, "name": "c"}, {"id": 3, "name": "d"}]
    shop.notes = {1: [{"text": "second"}]}
    shop.sync_or_fail()
    times.append(now_micros())
    # Nothing is known of an incomplete read.
    shop.customers = []
    shop.api.on("/customers", Reply({"data": [{"id": 9}]}, status=403))
    assert shop.sync()["customers"].status is Status.FAILED
    times.append(now_micros())
    shop.customers = [{"id": 2, "name": "c"}]
    shop.api.on("/customers", lambda _: Reply({"data": shop.customers}))
    shop.sync_or_fail()
    times.append(now_micros())
    shop.customers = [{"id": 2, "name": "c"}, {"id": 1, "name": "a"}]
    shop.sync_or_fail()

    def spans(name: str, *columns: str) -> list[tuple[Any, ...]]:
        """Return the versions with the numbers of the reads in which they begin and end."""
        rows = shop.table(name).to_pylist()
        found = [
            (
                *(row[column] for column in columns),
                bisect_right(times, int(row[START].timestamp() * 1e6)),
                None if row[ACTIVE] else bisect_right(times, int(row[END].timestamp() * 1e6 + 1e3)),
            )
            for row in rows
        ]
        return sorted(found, key=str)

    assert spans("customers", "id", "name") == [
        (1, "a", 1, 4),
        (1, "a", 5, None),
        (2, "b", 1, 2),
        (2, "c", 2, None),
        (3, "d", 2, 4),
    ]
    assert spans("notes", "text") == [("first", 1, 2), ("second", 1, None)]


def test_the_last_of_a_record_in_a_complete_read_is_valid(shop: Shop) -> None:
    shop.configure(own="customers: {mode: history}")
    for names in ("ab", "bab", "ba"):
        shop.customers = [{"id": 1, "name": name} for name in names] + [{"id": 2, "name": "x"}]
        for _ in range(2):
            shop.sync_or_fail()
    found = shop.table("customers").select(["id", "name", ACTIVE]).to_pylist()
    after = [(1, "a", True), (1, "b", False), (2, "x", True)]
    assert sorted(tuple(row.values()) for row in found) == after


def test_record_that_moves_between_pages_is_not_deleted(shop: Shop) -> None:
    """A record of the first page is deleted, so that a later one moves into that page."""
    requester = '      requester: {$ref: "#/definitions/requester", path: /customers}\n'
    assert requester in MANIFEST
    paginator = """      paginator:
        type: DefaultPaginator
        page_token_option: {type: RequestOption, inject_into: request_parameter, field_name: offset}
        pagination_strategy: {type: OffsetIncrement, page_size: 2}
"""
    shop.configure(
        own="customers: {}",
        more="only: [customers]",
        manifest=MANIFEST.replace(requester, requester + paginator),
    )
    shop.customers = [{"id": number} for number in range(1, 6)]

    def answer(asked: ReceivedRequest) -> Reply:
        begin = int(asked.params.get("offset", 0))
        return Reply({"data": shop.customers[begin : begin + 2]})

    shop.api.on("/customers", answer)
    shop.sync_or_fail()
    assert len(shop.api.requests) == 3

    def answer_and_delete(asked: ReceivedRequest) -> Reply:
        found = answer(asked)
        shop.api.on("/customers", answer)
        del shop.customers[0]
        return found

    shop.api.on("/customers", answer_and_delete)
    shop.sync_or_fail()
    # The read has found the first record, and not the third.
    rows = shop.table("customers").to_pylist()
    assert sorted(row["id"] for row in rows if row[ACTIVE]) == [1, 2, 3, 4, 5]
    assert len(rows) == 5

    shop.api.on("/customers", answer)
    shop.sync_or_fail()
    rows = shop.table("customers").to_pylist()
    assert sorted(row["id"] for row in rows if row[ACTIVE]) == [2, 3, 4, 5]

    # A second read that fails changes nothing.
    del shop.customers[3]
    pages = [answer, answer, answer, lambda _: Reply({}, status=403)]
    shop.api.on("/customers", *pages)
    failed = shop.sync()["customers"]
    assert "could not be read a second time" in str(failed.error)
    assert shop.table("customers").to_pylist() == rows


def test_numbers_keep_every_digit(shop: Shop) -> None:
    """Keys and values beyond 64 bits, also within objects and as the ids of parents."""
    first, second = 2**64 + 1, 2**64 + 2
    shop.put(first, "01", state="new", total=7, lines=[{"a": 10**25}])
    shop.put(second, "01", state="new", total=5)
    shop.notes = {first: [{"text": "a"}], second: [{"text": "b", "n": 2**70}]}
    customers = Reply(
        f'{{"data": [{{"id": {first}, "n": 12345678901234567.89}}, {{"id": {second}}}]}}'.encode()
    )
    shop.api.on("/customers", customers)
    shop.sync_or_fail()

    def found() -> list[list[tuple[Any, ...]]]:
        columns = {"orders": ("id", "total", "lines"), "customers": ("id", "n"), "notes": ("n",)}
        return [
            sorted(
                (tuple(row[name] for name in names) for row in shop.table(table).to_pylist()),
                key=str,
            )
            for table, names in columns.items()
        ]

    expected = [
        [(str(first), 7.0, '[{"a":10000000000000000000000000}]'), (str(second), 5.0, "[]")],
        [(str(first), "12345678901234567.89"), (str(second), None)],
        [(str(2**70),), (None,)],
    ]
    assert found() == expected
    shop.put(first, "02", state="paid")
    shop.sync_or_fail()
    assert len(shop.versions("id")) == 3
    assert found()[1:] == expected[1:]


def test_an_answer_without_records_empties_no_table(shop: Shop) -> None:
    shop.customers = [{"id": 1, "name": "a"}]
    shop.notes = {}
    shop.sync_or_fail()
    shop.customers = []
    run = shop.sync()["customers"]
    assert run.status is Status.FAILED
    assert "returned no records, but its table has some" in str(run.error)
    assert shop.table("customers")["id"].to_pylist() == [1]

    file = shop.project.file
    setting = "customers: {mode: live, may_become_empty: true}"
    file.write_text(file.read_text().replace("customers: {mode: live}", setting))
    shop.project = load_project(file)
    shop.sync_or_fail()
    assert shop.table("customers").num_rows == 0


def test_page_without_valid_json_is_requested_again_by_the_next_run(shop: Shop) -> None:
    shop.put(1, "01", state="new")
    shop.put(2, "02", state="new")
    shop.api.on("/orders", Reply(b"<html>we are back soon</html>"), shop.answer_orders)
    run = shop.sync()["orders"]
    assert run.status is Status.FAILED
    assert "A response is not valid JSON" in str(run.error)
    shop.sync_or_fail()
    assert [row[0] for row in shop.versions("id")] == [1, 2]


def test_stream_that_only_counts_cannot_have_history(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.configure(manifest=COUNTED_CUSTOMERS)
    shop.customers = [{"id": 1}]
    shop.sync_or_fail()
    shop.configure(own="customers: {}", manifest=COUNTED_CUSTOMERS)
    code, _, reported = run_words(capsys, "sync", "shop", "--project", str(shop.folder))
    assert code
    assert "The stream customers cannot be in history mode" in reported
    # The user now looks up the supported modes.
    code, reported, _ = run_words(
        capsys, "discover", "shop", "--project", str(shop.folder), "--json"
    )
    assert code == 0
    customers = next(load for load in json.loads(reported) if load["stream"] == "customers")
    assert (customers["mode"], customers["modes"]) == ("history", ["live", "soft-delete"])
    # The command suggests no setting that `check` would reject.
    words = ("mode", "shop.customers", "history", "--project", str(shop.folder))
    code, _, error = run_words(capsys, *words)
    assert code == 1
    assert "The stream customers cannot be in history mode" in error
    assert "Set its mode to live or soft-delete." in " ".join(error.split())
    assert "Starting Spark" not in error


def test_auto_keeps_history_where_the_stream_supports_it(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    shop.configure(mode="auto", own="{}", manifest=COUNTED_CUSTOMERS)
    shop.put(1, "01", state="new")
    shop.customers = [{"id": 1, "name": "a"}]
    shop.notes = {1: [{"text": "first"}]}

    shop.sync_or_fail()

    known = {name: set(shop.table(name).column_names) for name in ("orders", "customers", "notes")}
    assert {name for name, columns in known.items() if START in columns} == {"orders", "notes"}
    deleted = {name for name, columns in known.items() if "_fivetran_deleted" in columns}
    assert deleted == {"customers"}
    words = ("--project", str(shop.folder))
    _, reported, _ = run_words(capsys, "status", *words)
    assert "history (auto)" in reported
    assert "soft-delete (auto)" in reported
    _, reported, _ = run_words(capsys, "check", *words)
    assert "orders (history, auto), customers (soft-delete, auto)" in reported
    _, reported, _ = run_words(capsys, "discover", "shop", *words, "--json")
    assert {(load["mode"], load["auto"]) for load in json.loads(reported)} == {
        ("history", True),
        ("soft-delete", True),
    }

    # A source that no longer supports history keeps the existing history.
    manifest = shop.folder / "shop.yaml"
    cursor = '    incremental_sync: {$ref: "#/definitions/days"}\n'
    assert cursor in manifest.read_text()
    manifest.write_text(manifest.read_text().replace(cursor, COUNTER))
    code, _, error = run_words(capsys, "sync", "shop", *words)
    assert code == 1
    assert "The table shop.orders keeps history" in " ".join(error.split())
    assert "mode: soft-delete to drop the history" in " ".join(error.split())
    assert START in shop.table("orders").column_names


def test_auto_is_the_default(shop: Shop) -> None:
    shop.configure(own="{}")
    file = shop.project.file
    file.write_text(file.read_text().replace("    mode: history\n", ""))
    assert load_project(file).pipelines["shop"].mode == "auto"


def test_failed_slice_keeps_records_of_other_slices(shop: Shop) -> None:
    for number in range(1, 5):
        shop.put(number, f"0{number}", state="new")
    shop.closed_days = {"02"}
    runs = shop.sync()
    assert runs["orders"].status is Status.FAILED
    assert "/orders returned status 403" in str(runs["orders"].error)
    assert [row[0] for row in shop.versions("id")] == [1, 3, 4]
    assert shop.days_asked() == ["01", "02", "03", "04", "05"]

    shop.closed_days = set()
    file = shop.project.file
    file.write_text(file.read_text().replace("concurrency: 1", ""))
    shop.sync()
    assert [row[0] for row in shop.versions("id")] == [1, 2, 3, 4]


def test_stream_that_cannot_land_requests_nothing_more(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_run, "_LANDING_BYTES", 1)
    for number in range(1, 20):
        shop.put(number, f"{number:02d}", state="new")
    shop.configure(more="only: [orders, customers]\n      concurrency: 1", end="2026-01-02")
    manifest = shop.project.file.read_text()
    shop.project.file.write_text(manifest.replace("      notes: {mode: soft-delete}\n", ""))
    shop.project = load_project(shop.project.file)
    shop.sync_or_fail()
    shop.days_asked()
    file = shop.folder / "shop.yaml"
    file.write_text(file.read_text().replace("primary_key: id", "primary_key: [id, state]"))
    config = shop.project.file.read_text().replace("2026-01-02T", "2026-01-20T")
    shop.project.file.write_text(config)
    shop.project = load_project(shop.project.file)
    shop.customers.append({"id": 7})
    runs = shop.sync()
    assert runs["orders"].status is Status.FAILED
    assert "The source's key is" in str(runs["orders"].error)
    # A few are requested ahead.
    assert len(shop.days_asked()) < 8
    # The other streams continue.
    assert runs["customers"].status is Status.SUCCEEDED
    assert shop.table("customers").num_rows == 1
    assert not list(shop.folder.rglob("*.arrow"))


@pytest.mark.long
def test_killed_run_requests_only_missing_slices(shop: Shop) -> None:
    shop.configure(more="only: [orders]")
    for number in range(1, 5):
        shop.put(number, f"0{number}", state="new")
    words = ("sync", "shop", "--project", str(shop.folder))
    file = shop.project.file
    file.write_text(
        file.read_text()
        .replace("only: [orders]", "only: [orders]\n      concurrency: 1")
        .replace("      customers: {mode: live}\n      notes: {mode: soft-delete}\n", "")
        .replace("    streams:\n", "")
    )
    assert run_command_until_failpoint(*words, failpoint="read.slice-noted=kill")
    assert shop.days_asked()[0] == "01"
    assert not run_command_until_failpoint(*words, failpoint="")

    assert shop.days_asked() == ["02", "03", "04", "05"]
    assert [row[0] for row in shop.versions("id")] == [1, 2, 3, 4]
    assert Store.open(shop.project.lake).checkpoints("shop")["orders"]["state"] == {
        "updated_at": "2026-01-04T12:00:00Z"
    }


_STEPS = [
    "read.slice-done=kill:1",
    "read.slice-done=kill:3",
    "read.slice-noted=kill",
    "land.staged=kill",
    "land.file-published=kill",
    "land.done=kill",
    "land.checkpointed=kill",
    "sync.surveyed=kill",
    "staged.appended=kill",
    "publish.before-commit=kill",
    "publish.after-commit=kill",
]


@pytest.mark.long
def test_sync_can_be_killed_at_every_step(shop: Shop) -> None:
    shop.configure(more="only: [orders, customers]", end="2026-01-20")
    file = shop.project.file
    file.write_text(file.read_text().replace("      notes: {mode: soft-delete}\n", ""))
    words = ("sync", "shop", "--project", str(shop.folder))
    for number, failpoint in enumerate(_STEPS, 1):
        shop.put(number, f"{number:02d}", state="new")
        shop.put(1, f"{number:02d}", state=f"state {number}")
        shop.customers = [{"id": id_, "name": f"{number}"} for id_ in range(number)]
        assert run_command_until_failpoint(*words, failpoint=failpoint), failpoint
    assert not run_command_until_failpoint(*words, failpoint="")

    now = {row[0]: row[1] for row in shop.versions("id", "state") if row[2]}
    assert now == {number: order["state"] for number, order in shop.orders.items()}
    assert sorted(shop.table("customers")["id"].to_pylist()) == list(range(len(_STEPS)))
    # No version appears twice, and every version was returned by the API.
    seen = shop.versions("id", "state")
    assert len(seen) == len(set(seen))
    assert not list(shop.folder.rglob("*.arrow"))


def test_discover_lists_keys_cursors_and_columns(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--project", str(shop.folder))
    code, reported, _ = run_words(capsys, "discover", "shop", "--schema", "--json", *where)
    assert code == 0
    streams = {load["stream"]: load for load in json.loads(reported)}
    assert [(name, stream["key"], stream["cursor"]) for name, stream in streams.items()] == [
        ("orders", ["id"], "updated_at"),
        ("customers", ["id"], None),
        ("notes", ["_fivetran_id"], None),
    ]
    columns = {column["name"]: column["type"] for column in streams["orders"]["columns"]}
    assert columns == {
        "id": "LONG",
        "state": "STRING",
        "total": "DOUBLE",
        "placed": "UTC_DATETIME",
        "updated_at": "UTC_DATETIME",
        "lines": "JSON",
    }
    _, reported, _ = run_words(capsys, "discover", "shop", "--schema", *where)
    assert "updated_at UTC_DATETIME cursor" in " ".join(reported.split())


def test_nothing_that_is_shown_has_the_secret(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.closed_days = {"01"}
    shop.put(1, "01", state="new")
    _, out, err = run_words(capsys, "sync", "shop", "--project", str(shop.folder))
    assert "403" in out + err
    assert TOKEN not in out + err
