"""Single records, slices and windows of a stream are read again; everything else stays."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from chronolake.change_set import DELETED_AT, MODIFIED, PURGED_AT, SEQUENCE
from chronolake.errors import ConfigurationError
from chronolake.lake import Lake
from chronolake.pipeline.partial_reads import source_of_records, source_of_window
from chronolake.pipeline.runs import Status
from chronolake.pipeline.streams import source_of
from chronolake.pipeline.sync import sync
from chronolake.source.protocol import ChangeBatch, Offset, StreamDescriptor
from chronolake.types import ACTIVE, START, Column, ColumnType, Kind, now_micros
from support.commands import run_words
from support.datalakes import iceberg, project
from support.declarative.apis import Api, ReceivedRequest, Reply
from support.source.databases import Shop

_ORDERS = [
    "CREATE TABLE orders (id int PRIMARY KEY, region text, n int)",
    "INSERT INTO orders VALUES (1, 'EU', 1), (2, 'EU', 1), (3, 'US', 1)",
    "INSERT INTO orders VALUES (4, 'EU', 1), (5, 'US', 1)",
]


def _read(shop: Shop, *where: dict[str, str], is_slice: bool = False) -> None:
    source = source_of_records(shop.project, "shop", "public.orders", where, is_slice=is_slice)
    result = sync(shop.lake, shop.project, "shop", only=["public.orders"], source=source)
    assert result.status is Status.SUCCEEDED, result.streams


class _WrongSource:
    """A source whose rows differ from those of the database, at its present offset."""

    def __init__(self, shop: Shop, rows: Sequence[tuple[int, str, int, bool]]) -> None:
        self._source = source_of(shop.project, "shop")
        self._rows = rows

    def discover(self) -> Sequence[StreamDescriptor]:
        return self._source.discover()

    def acknowledge(self, positions: Mapping[str, Offset]) -> None:
        pass

    def read(
        self, lake: Lake, positions: Mapping[str, Offset | None], *, full_refresh: bool
    ) -> Iterator[ChangeBatch]:
        assert not full_refresh
        position = positions["public.orders"]
        assert position is not None
        at = max(now_micros(), position["last_micros"] + 1)
        rows = [
            (number, region, n, at, f"{position['lsn']:016x}", at if is_deleted else None, None)
            for number, region, n, is_deleted in self._rows
        ]
        names = f"{MODIFIED} long, {SEQUENCE} string, {DELETED_AT} long, {PURGED_AT} long"
        versions = lake.spark.createDataFrame(rows, f"id int, region string, n int, {names}")
        columns = [
            Column("id", ColumnType(Kind.INT), primary_key=True),
            Column("region", ColumnType(Kind.STRING)),
            Column("n", ColumnType(Kind.INT)),
        ]
        yield ChangeBatch("public.orders", versions, columns, {**position, "last_micros": at})


@pytest.mark.long
@pytest.mark.parametrize("method", ["logical_replication", "snapshot_diff"])
def test_records_and_slices_of_postgresql(shop: Shop, method: str) -> None:
    shop.run(*_ORDERS)
    shop.configure(method=method)
    if method == "logical_replication":
        shop.prepare()
    shop.sync_or_fail()

    def spoil(*rows: tuple[int, str, int, bool]) -> None:
        """Store rows in the lake that the database never had."""
        result = sync(shop.lake, shop.project, "shop", source=_WrongSource(shop, rows))
        assert result.status is Status.SUCCEEDED, result.streams

    spoil((1, "EU", 9, False), (2, "EU", 1, True), (3, "EU", 9, False), (98, "EU", 1, False))
    assert shop.present("orders", ["id", "n"]) == [(1, 9), (3, 9), (4, 1), (5, 1), (98, 1)]

    # What the log shows is read first, and not repeated.
    shop.run("UPDATE orders SET n = 7 WHERE id = 4", "UPDATE orders SET n = 7 WHERE id = 5")
    _read(shop, {"id": "1"}, {"id": "4"}, {"id": "98"}, {"id": "99"})
    seen_in_log = 7 if method == "logical_replication" else 1
    assert shop.present("orders", ["id", "n"]) == [(1, 1), (3, 9), (4, 7), (5, seen_in_log)]
    of_record_4 = [row for row in shop.versions("orders", ["id", "n"]) if row[0] == 4]
    assert of_record_4 == [(4, 1, False), (4, 7, True)]

    # The third record belongs to another slice, so it is looked up; nothing else is missing.
    spoil((97, "EU", 1, False))
    _read(shop, {"region": "EU"}, is_slice=True)
    assert shop.present("orders", ["id", "region", "n"]) == [
        (1, "EU", 1),
        (2, "EU", 1),
        (3, "US", 1),
        (4, "EU", 7),
        (5, "US", seen_in_log),
    ]
    before = shop.table("orders").num_rows
    _read(shop, {"region": "EU", "n": "7"}, {"region": "CA"}, is_slice=True)
    assert shop.table("orders").num_rows == before

    shop.run("INSERT INTO orders VALUES (6, 'US', 1)", "UPDATE orders SET n = 8 WHERE id = 4")
    shop.sync_or_fail()
    expected = [(1, 1), (2, 1), (3, 1), (4, 8), (5, 7), (6, 1)]
    assert shop.present("orders", ["id", "n"]) == expected
    verified = shop.table("orders")
    assert verified.num_rows == len(set(map(str, verified.to_pylist())))


@pytest.mark.long
def test_records_of_jdbc(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "office.db"
    source = (
        f"{{type: jdbc, url: 'jdbc:sqlite:{file}', tables: {{parts: {{key: [item, number]}}}}}}"
    )
    office = project(tmp_path, f"  office:\n    source: {source}\n")
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE parts (item INTEGER, number INTEGER, name TEXT)")
        connection.execute("INSERT INTO parts VALUES (1, 1, 'a'), (1, 2, 'b'), (2, 1, 'c')")

    def run(*words: str) -> tuple[int, str]:
        code, _, error = run_words(capsys, *words, "--project", str(tmp_path))
        return code, " ".join(error.split())

    words = ("resync", "office", "--stream", "parts")
    code, error = run(*words, "--key", "item=1,number=2")
    assert code == 1
    assert "Nothing of the stream parts has been read yet." in error
    assert run("sync", "office")[0] == 0
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE parts SET name = 'B'")
        connection.execute("DELETE FROM parts WHERE item = 2")

    assert run(*words, "--key", "item=1,number=2", "--key", '{"item": 2, "number": 1}')[0] == 0

    def present() -> list[tuple[Any, ...]]:
        rows = iceberg(office, "office", "parts").scan().to_arrow().to_pylist()
        return sorted((row["item"], row["number"], row["name"]) for row in rows if row[ACTIVE])

    assert present() == [(1, 1, "a"), (1, 2, "B")]
    code, error = run(*words, "--key", "item=1")
    assert code == 1
    assert "item is not the key: it consists of item, number. " in error
    code, error = run(*words, "--slice", "item=one")
    assert code == 1
    assert "'one' is not a value of the column item" in error
    code, error = run(*words, "--slice", '{"item": null}')
    assert code == 2
    assert "item is null" in error
    code, error = run(*words, "--slice", "colour=red")
    assert code == 1
    assert "The table parts has no column colour." in error
    assert "Its columns are item, number, name." in error
    code, error = run("resync", "office", "--key", "item=1,number=2")
    assert code == 2
    assert "name exactly one stream" in error
    code, error = run("backfill", "office", "--stream", "parts", "--from", "2026-01-01")
    assert code == 1
    assert "cannot read the changes of a time range" in error
    assert run(*words, "--slice", "item=1")[0] == 0
    assert present() == [(1, 1, "B"), (1, 2, "B")]


_MANIFEST = """version: 7.0.0
type: DeclarativeSource
check: {type: CheckStream, stream_names: [orders]}
streams:
  - type: DeclarativeStream
    name: orders
    primary_key: [id]
    retriever:
      type: SimpleRetriever
      requester:
        type: HttpRequester
        url_base: "{{ config['url'] }}"
        path: /orders
      record_selector: {type: RecordSelector, extractor: {type: DpathExtractor, field_path: [data]}}
    incremental_sync:
      type: DatetimeBasedCursor
      cursor_field: updated_at
      datetime_format: "%Y-%m-%dT%H:%M:%SZ"
      start_datetime: "2026-01-03T00:00:00Z"
      end_datetime: "2026-01-09T00:00:00Z"
      step: P1D
      cursor_granularity: PT1S
      start_time_option: {type: RequestOption, inject_into: request_parameter, field_name: since}
      end_time_option: {type: RequestOption, inject_into: request_parameter, field_name: until}
    schema_loader: {type: InlineSchemaLoader, schema: {}}
"""


@pytest.mark.long
def test_window_of_an_api(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    orders: dict[int, dict[str, Any]] = {}

    def put(number: int, day: int, text: str) -> None:
        orders[number] = {"id": number, "updated_at": f"2026-01-0{day}T12:00:00Z", "text": text}

    def answer(asked: ReceivedRequest) -> Reply:
        since, until = asked.params["since"], asked.params["until"]
        found = [order for order in orders.values() if since <= order["updated_at"] <= until]
        return Reply({"data": found})

    with Api() as api:
        api.on("/orders", answer)
        (tmp_path / "shop.yaml").write_text(_MANIFEST)
        shop = project(
            tmp_path,
            f"""  shop:
    source: {{type: declarative, manifest: shop.yaml, config: {{url: '{api.url}'}}}}
""",
        )
        for day in (1, 2, 4, 6):
            put(day, day, "new")

        def run(*words: str) -> tuple[int, str]:
            code, _, error = run_words(capsys, *words, "--project", str(tmp_path))
            return code, " ".join(error.split())

        assert run("sync", "shop")[0] == 0
        # The API changed a record without changing its time, and added one.
        orders[4]["text"] = "corrected"
        put(5, 5, "late")
        orders[6]["text"] = "corrected"
        api.requests.clear()
        window = ("--from", "2026-01-02", "--to", "2026-01-06")
        assert run("backfill", "shop", "--stream", "orders", *window)[0] == 0
        days = [request.params["since"][8:10] for request in api.requests]
        assert sorted(days) == ["02", "03", "04", "05"]
        rows = iceberg(shop, "shop", "orders").scan().to_arrow().to_pylist()
        assert sorted((row["id"], row["text"], str(row[START])[:10]) for row in rows) == [
            (2, "new", "2026-01-02"),
            (4, "corrected", "2026-01-04"),
            (5, "late", "2026-01-05"),
            (6, "new", "2026-01-06"),
        ]
        # The state has not moved.
        api.requests.clear()
        assert run("sync", "shop")[0] == 0
        assert min(request.params["since"] for request in api.requests) >= "2026-01-06"
        code, error = run(
            "backfill", "shop", "--stream", "orders", "--from", "2026-01-02", "--to", "2026-01-02"
        )
        assert code == 1
        assert "The end of the time range is not later than its begin. " in error


@pytest.mark.long
def test_window_of_a_function(tmp_path: Path) -> None:
    (tmp_path / "windowed_shop.py").write_text(
        """
import chronolake

TEXT = "new"

@chronolake.stream(key="id", cursor="at")
def orders(state, window=None):
    first, last = window and (window[0].day, window[1].day) or (state.get("day", 3), 6)
    for day in range(first, last):
        yield {"id": day, "at": f"2026-01-0{day}T12:00:00Z", "text": TEXT}
    state["day"] = last
"""
    )
    shop = project(tmp_path, "  shop:\n    source: {type: python, run: 'windowed_shop:orders'}\n")
    lake = Lake.open(shop.lake.path, config=shop.lake)

    def texts() -> list[tuple[int, str]]:
        rows = iceberg(shop, "shop", "orders").scan().to_arrow().to_pylist()
        return sorted((row["id"], row["text"]) for row in rows if row[ACTIVE])

    assert sync(lake, shop, "shop").status is Status.SUCCEEDED
    import windowed_shop  # type: ignore[import-not-found]  # noqa: PLC0415 - the test wrote it

    windowed_shop.TEXT = "other"
    begin, end = (datetime(2026, 1, day, tzinfo=UTC) for day in (2, 5))
    source = source_of_window(shop, "shop", "orders", begin, end)
    result = sync(lake, shop, "shop", only=["orders"], source=source)
    assert result.status is Status.SUCCEEDED, result.streams
    assert texts() == [(2, "other"), (3, "other"), (4, "other"), (5, "new")]
    # The function's state has not moved: it continues at the sixth.
    assert sync(lake, shop, "shop").status is Status.SUCCEEDED
    assert texts() == [(2, "other"), (3, "other"), (4, "other"), (5, "new")]


def test_window_of_changes_without_times_is_refused(tmp_path: Path) -> None:
    (tmp_path / "windowed_log.py").write_text(
        """
import chronolake

@chronolake.stream(key="id", capture="log")
def orders(window=None):
    yield {"id": 1}
"""
    )
    shop = project(tmp_path, "  shop:\n    source: {type: python, run: 'windowed_log:orders'}\n")
    begin, end = (datetime(2026, 1, day, tzinfo=UTC) for day in (2, 5))
    with pytest.raises(ConfigurationError, match="have no times of their own"):
        source_of_window(shop, "shop", "orders", begin, end)
