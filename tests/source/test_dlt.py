"""Resources and sources of the real dlt package: their hints, states and records."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from chronolake.errors import ConfigurationError
from chronolake.source.connectors.environments import environment
from chronolake.types import ACTIVE, START
from support.commands import run_words
from support.python_functions import MODULE, Functions

pytestmark = [
    pytest.mark.long,
    # dlt and its packages use what newer versions of others deprecate.
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture(scope="module")
def dlt() -> None:
    """Install dlt into an environment of its own, and find it after our own packages."""
    (packages,) = (environment(["dlt==1.31.0"]) / "lib").glob("python*/site-packages")
    # They stay there: dlt imports more of itself when the process ends.
    sys.path.append(str(packages))


@pytest.fixture
def shop(tmp_path: Path, dlt: None) -> Iterator[Functions]:
    path = list(sys.path)
    yield Functions(tmp_path)
    sys.path[:] = path
    sys.modules.pop(MODULE, None)


_ORDERS = """
    import dlt

    LOG = {log}

    @dlt.resource(primary_key="id", write_disposition="merge")
    def orders(at=dlt.sources.incremental("at")):
        counts = dlt.current.resource_state()
        counts["runs"] = counts.get("runs", 0) + 1
        counts["since"] = at.start_value
        for row in LOG:
            yield {{**row, "run": counts["runs"]}}
            {then}
"""


def _row(key: int, note: str, day: int) -> dict[str, Any]:
    return {"id": key, "note": note, "at": f"2026-11-{day:02}T10:00:00Z"}


def test_an_incremental_resource_continues_at_its_state(shop: Functions) -> None:
    log = [_row(1, "a", 1), _row(2, "b", 2)]
    shop.write(_ORDERS.format(log=log, then="pass"))
    shop.sync()
    assert shop.versions("id", "note", "run") == [(1, "a", 1, True), (2, "b", 1, True)]
    # The cursor skips the first record, and the last one, which it has seen.
    log = [_row(1, "skipped", 1), _row(2, "b", 2), _row(1, "c", 3)]
    shop.write(_ORDERS.format(log=log, then="pass"))
    shop.sync()
    after = [(1, "a", 1, False), (1, "c", 2, True), (2, "b", 1, True)]
    assert shop.versions("id", "note", "run") == after
    assert [row[START].day for row in shop.rows() if row["note"] == "c"] == [3]
    shop.sync()
    assert shop.versions("id", "note", "run") == after
    shop.sync(full_refresh=True)
    assert (1, "skipped", 1, False) in shop.versions("id", "note", "run")


def test_a_resource_that_fails_keeps_its_old_state(shop: Functions) -> None:
    shop.write(_ORDERS.format(log=[_row(1, "a", 1)], then="pass"))
    shop.sync()
    log = [_row(2, "b", 3), _row(3, "c", 2)]
    shop.write(_ORDERS.format(log=log, then="raise OSError('no answer')"))
    (stream,) = shop.run().streams
    assert stream.error is not None
    assert "OSError: no answer" in stream.error
    assert f"{MODULE}.py, line 15" in stream.error
    assert shop.versions("id", "note") == [(1, "a", True), (2, "b", True)]
    # The record that was read is not the state, so that those before it are not lost.
    shop.write(_ORDERS.format(log=log, then="pass"))
    shop.sync()
    assert shop.versions("id", "note", "run") == [
        (1, "a", 1, True),
        (2, "b", 2, True),
        (3, "c", 2, True),
    ]


def test_replaced_records_that_are_missing_were_deleted(shop: Functions) -> None:
    code = """
        import dlt

        @dlt.resource(primary_key=["shop", "id"], write_disposition="replace")
        def orders():
            yield {rows}
    """
    shop.write(code.format(rows=[{"shop": 1, "id": 1}, {"shop": 1, "id": 2}]))
    shop.sync()
    shop.write(code.format(rows=[{"shop": 1, "id": 2}, {"shop": 2, "id": 2}]))
    shop.sync()
    rows = sorted((row["shop"], row["id"], row[ACTIVE]) for row in shop.rows())
    assert rows == [(1, 1, False), (1, 2, True), (2, 2, True)]


def test_the_state_of_a_replaced_resource_is_reset(shop: Functions) -> None:
    code = """
        import dlt

        @dlt.resource(primary_key="id", write_disposition="replace")
        def orders(at=dlt.sources.incremental("at")):
            yield LOG

        LOG = {log}
    """
    log = [_row(1, "a", 1), _row(2, "b", 2)]
    for _ in range(2):
        shop.write(code.format(log=log))
        shop.sync()
        assert shop.versions("id", "note") == [(1, "a", True), (2, "b", True)]


def test_appended_records_without_a_key_stay(shop: Functions) -> None:
    code = """
        import dlt

        orders = dlt.resource({rows}, name="orders")
    """
    shop.write(code.format(rows=[{"id": 1}, {"id": 2}]))
    shop.sync()
    shop.write(code.format(rows=[{"id": 2}, {"id": 3}]))
    shop.sync()
    assert shop.versions("id") == [(1, True), (2, True), (3, True)]


def test_a_hard_delete_hint_deletes(shop: Functions) -> None:
    code = """
        import dlt

        @dlt.resource(
            primary_key="id",
            write_disposition={{"disposition": "merge", "strategy": "upsert"}},
            columns={{"gone": {{"hard_delete": True}}, "at": {{"dedup_sort": "desc"}}}},
        )
        def orders():
            yield {rows}
    """
    one, two = {**_row(1, "a", 1), "gone": False}, {**_row(2, "b", 1), "gone": False}
    shop.write(code.format(rows=[one, two]))
    shop.sync()
    # The order among records of one key is that of `at`.
    late, early = {**_row(2, "d", 3), "gone": False}, {**_row(2, "c", 2), "gone": False}
    shop.write(code.format(rows=[{**_row(1, "a", 2), "gone": True}, late, early]))
    shop.sync()
    assert shop.versions("id", "note") == [
        (1, "a", False),
        (2, "b", False),
        (2, "c", False),
        (2, "d", True),
    ]


def test_columns_have_the_types_of_hints_and_values(shop: Functions) -> None:
    code = """
        import decimal
        import dlt
        import pendulum

        @dlt.resource(
            primary_key="id",
            columns={
                "price": {"data_type": "decimal", "precision": 12, "scale": 2},
                "rate": {"data_type": "double"},
                "at": {"data_type": "timestamp"},
                "later": {"data_type": "text"},
            },
        )
        def orders():
            yield {
                "id": 1,
                "price": decimal.Decimal("1.50"),
                "rate": 2,
                "at": "2026-11-01T10:00:00Z",
                "made": pendulum.datetime(2026, 11, 1, 10, tz="Europe/Paris"),
                "items": [{"sku": "a", "at": pendulum.date(2026, 11, 1)}],
                "buyer": {"name": "Ann"},
            }
    """
    shop.write(code)
    shop.sync()
    (row,) = shop.rows()
    assert str(row["price"]) == "1.50"
    assert row["rate"] == 2.0
    assert row["at"].isoformat() == "2026-11-01T10:00:00+00:00"
    assert row["made"].isoformat() == "2026-11-01T09:00:00+00:00"
    assert json.loads(row["items"]) == [{"sku": "a", "at": "2026-11-01"}]
    assert json.loads(row["buyer"]) == {"name": "Ann"}
    assert row["later"] is None


_SOURCE = """
    import dlt
    import pyarrow as pa

    @dlt.source
    def shop(token: str):
        @dlt.resource(primary_key="id", write_disposition="merge")
        def orders(at=dlt.sources.incremental("at")):
            {fail}
            yield LOG

        @dlt.transformer(data_from=orders, primary_key="order", write_disposition="merge")
        def totals(page):
            for order in page:
                yield {{"order": order["id"], "token": len(token)}}

        @dlt.resource(write_disposition="replace", primary_key="id", table_name="goods")
        def items():
            yield pa.table({{"id": [1, 2], "name": ["x", "y"]}})

        return orders, totals, items

    LOG = {log}
"""


def test_a_source_of_several_resources_has_one_state(shop: Functions) -> None:
    more = ", config: {token: hidden-word}"
    shop.write(_SOURCE.format(log=[_row(1, "a", 1)], fail=""), run=f"{MODULE}:shop", more=more)
    shop.sync()
    assert shop.versions("id", "note") == [(1, "a", True)]
    assert shop.versions("order", "token", stream="totals", key="order") == [(1, 11, True)]
    assert shop.versions("id", "name", stream="goods") == [(1, "x", True), (2, "y", True)]
    log = [_row(1, "skipped", 1), _row(2, "b", 2)]
    fail = "raise OSError(token)"
    shop.write(_SOURCE.format(log=log, fail=fail), run=f"{MODULE}:shop", more=more)
    result = shop.run()
    assert all(
        stream.error is not None and "hidden-word" not in stream.error for stream in result.streams
    )
    shop.write(_SOURCE.format(log=log, fail=""), run=f"{MODULE}:shop", more=more)
    shop.sync()
    assert shop.versions("id", "note") == [(1, "a", True), (2, "b", True)]
    assert shop.versions("order", stream="totals", key="order") == [(1, True), (2, True)]


def test_a_stream_that_is_new_gets_all_records(shop: Functions) -> None:
    code = _SOURCE.format(log=[_row(1, "a", 1)], fail="")
    more = ", config: {token: x}"
    shop.write(code.replace("return orders, totals", "return orders"), f"{MODULE}:shop", more)
    shop.sync()
    shop.write(code, f"{MODULE}:shop", more)
    shop.sync()
    assert shop.versions("order", stream="totals", key="order") == [(1, True)]


def test_the_rest_api_source_of_dlt(shop: Functions) -> None:
    rows = [_row(1, "a", 1), _row(2, "b", 2)]
    asked: list[str] = []

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = json.dumps({"data": rows}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Do not print."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        code = f"""
            from dlt.sources.rest_api import rest_api_source

            api = rest_api_source({{
                "client": {{"base_url": "http://127.0.0.1:{server.server_port}"}},
                "resources": [{{
                    "name": "orders",
                    "primary_key": "id",
                    "write_disposition": "merge",
                    "endpoint": {{
                        "path": "orders",
                        "data_selector": "data",
                        "paginator": "single_page",
                        "params": {{"since": "{{incremental.start_value}}"}},
                        "incremental": {{"cursor_path": "at", "initial_value": "2026-01-01"}},
                    }},
                }}],
            }})
        """
        shop.write(code, run=f"{MODULE}:api")
        shop.sync()
        assert shop.versions("id", "note") == [(1, "a", True), (2, "b", True)]
        rows.append(_row(1, "c", 3))
        shop.write(code, run=f"{MODULE}:api")
        shop.sync()
        server.shutdown()
    assert shop.versions("id", "note") == [(1, "a", False), (1, "c", True), (2, "b", True)]
    assert ["2026-01-01" in path for path in asked] == [True, False]
    assert "2026-11-02T10" in asked[1]


@pytest.mark.parametrize(
    ("code", "run", "more", "message"),
    [
        ("dlt.resource([1], name='orders', table_name=lambda row: 'x')", "orders", "", "depend on"),
        (
            "dlt.resource([1], name='orders', merge_key='day', write_disposition='merge')",
            "orders",
            "",
            "replaces all records of the same day",
        ),
        (
            "dlt.resource([1], name='orders', columns={'gone': {'hard_delete': True}})",
            "orders",
            "",
            "has no key",
        ),
        ("dlt.resource([1], name='orders')", "orders", ", config: {a: 1}", "has its arguments"),
        ("dlt.resource([1], name='orders')", "orders", ", key: id", "has its own hints"),
        ("dlt.source(lambda token: [], name='x')", "orders", "", "cannot be called"),
        ("dlt.source(lambda: [], name='x')", "orders", "", "no selected resources"),
    ],
)
def test_hints_that_cannot_be_followed_are_errors(
    shop: Functions, code: str, run: str, more: str, message: str
) -> None:
    shop.write(f"import dlt\norders = {code}\n", run=f"{MODULE}:{run}", more=more)
    with pytest.raises(ConfigurationError, match=message) as caught:
        shop.run()
    assert caught.value.hint


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("yield dlt.mark.with_table_name({'id': 1}, 'others')", "the table 'others'"),
        ("yield dlt.mark.with_hints({'id': 1}, dlt.mark.make_hints(primary_key='id'))", "its key"),
        ("yield 5", "type int"),
    ],
)
def test_records_that_a_stream_cannot_have_are_errors(
    shop: Functions, body: str, message: str
) -> None:
    shop.write(
        f"""
        import dlt

        @dlt.resource
        def orders():
            {body}
        """
    )
    (stream,) = shop.run().streams
    assert stream.error is not None
    assert message in stream.error


def test_a_function_that_returns_a_resource_does_not_lose_its_state(shop: Functions) -> None:
    shop.write(
        """
        import dlt

        @chronolake.stream(key="id")
        def orders():
            return dlt.resource([{"id": 1}], name="orders")
        """
    )
    (stream,) = shop.run().streams
    assert stream.error is not None
    assert "state would be lost" in stream.error


def test_a_sync_continues_after_a_pipeline_of_dlt(
    shop: Functions, capsys: pytest.CaptureFixture[str]
) -> None:
    import dlt as package  # noqa: PLC0415 - of the environment

    sys.path.insert(0, str(shop.folder))
    log = [_row(1, "a", 1), _row(2, "b", 2)]
    code = """
        import dlt

        @dlt.resource(primary_key="id", write_disposition="merge")
        def orders(at=dlt.sources.incremental("at")):
            yield LOG

        @dlt.resource(primary_key="id", write_disposition="replace")
        def items():
            yield {{"id": 1}}

        @dlt.source
        def whole():
            return orders, items

        LOG = {log}
    """
    for run, is_shared in ((f"{MODULE}:orders", False), (f"{MODULE}:whole", True)):
        shop.write(code.format(log=log), run)
        module = importlib.import_module(MODULE)
        pipeline = package.pipeline(
            f"earlier_{is_shared}".lower(), pipelines_dir=str(shop.folder / "dlt")
        )
        pipeline.extract(module.whole() if is_shared else module.orders)
        state = shop.folder / "dlt" / pipeline.pipeline_name / "state.json"
        words = ("state", "import", "shop", str(state), "--from", "dlt", "--replace")
        assert run_words(capsys, *words, "--project", str(shop.folder))[0] == 0
        shop.write(code.format(log=[*log, _row(3, "c", 3)]), run)
        shop.sync()
        assert {row["id"] for row in shop.rows()} == {3}
    code_, _, error = run_words(capsys, *words[:-1], "--project", str(shop.folder))
    assert code_ == 1
    assert "already has a state" in error
    state.write_text('{"sources": {"other": {"resources": {"users": {}}}}}')
    code_, _, error = run_words(capsys, *words, "--project", str(shop.folder))
    assert code_ == 1
    assert "It has states for other" in " ".join(error.split())
    state.write_text('{"sources": {"whole": {"resources": {"users": {}}}}}')
    code_, _, error = run_words(capsys, *words, "--project", str(shop.folder))
    assert "names the stream 'users', which the source does not have" in " ".join(error.split())
    state.write_text('{"bookmarks": {}}')
    code_, _, error = run_words(capsys, *words, "--project", str(shop.folder))
    assert "It has no `sources`" in error
