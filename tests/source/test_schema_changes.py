"""Columns that a source adds, removes or changes are reported, refused, or not stored."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chronolake.lake import Lake
from chronolake.pipeline.store import Status, StreamRun
from chronolake.pipeline.sync import Event, EventKind, sync
from support import connectors
from support.connectors import tap_stream
from support.datalakes import DataLake, iceberg, project
from support.declarative.apis import Api
from support.python_functions import Functions
from support.source import apishop
from support.source.apishop import ApiShop
from support.source.databases import Shop

_T = 1_767_225_600_000_000


def _changes(run: StreamRun) -> list[str]:
    return [f"{change['change']} {change['column']}" for change in run.changed_columns]


def _run(shop: Shop) -> StreamRun:
    (stream,) = shop.sync().streams
    return stream


@pytest.fixture(params=["logical_replication", "snapshot_diff"])
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _prepare(shop: Shop, method: str, policy: str) -> None:
    shop.configure(method=method)
    shop.run(
        "CREATE TABLE items (id int PRIMARY KEY, a text, b int)",
        "INSERT INTO items VALUES (1, 'x', 1)",
    )
    shop.prepare()
    run = _run(shop)
    assert (run.error, _changes(run)) == (None, [])
    shop.configure(method=method, rules=f"schema_changes: {policy}")


@pytest.mark.long
@pytest.mark.sampled
def test_columns_of_postgresql_evolve(shop: Shop, method: str) -> None:
    _prepare(shop, method, "evolve")
    shop.run("ALTER TABLE items ADD c int, DROP b, ALTER id TYPE bigint")
    shop.run("INSERT INTO items VALUES (2, 'y', 5)")
    run = _run(shop)
    assert sorted(_changes(run)) == ["added c", "changed id", "removed b"]
    assert shop.present("items", ["id", "a", "c"]) == [(1, "x", None), (2, "y", 5)]
    shop.run("INSERT INTO items VALUES (3, 'z', 6)")
    assert _changes(_run(shop)) == [], "each change is reported once"


@pytest.mark.long
@pytest.mark.parametrize(
    ("statement", "change"),
    [
        ("ADD c int", "added c (INT)"),
        ("DROP b", "removed b"),
        ("ALTER b TYPE bigint", "changed b from INT to LONG"),
        ("RENAME b TO d", "added d (INT)"),
    ],
)
def test_a_frozen_schema_of_postgresql(
    shop: Shop, method: str, statement: str, change: str
) -> None:
    _prepare(shop, method, "freeze")
    shop.run("INSERT INTO items VALUES (2, 'y', 2)")
    run = _run(shop)
    assert run.error is None
    shop.run(f"ALTER TABLE items {statement}", "INSERT INTO items (id, a) VALUES (3, 'z')")
    files = sorted(shop.folder.rglob("data-*.parquet"))
    for _ in range(2):
        run = _run(shop)
        assert run.status is Status.FAILED
        assert change in (run.error or "")
        assert "schema_changes: evolve" in (run.hint or "")
    assert sorted(shop.folder.rglob("data-*.parquet")) == files, "nothing has landed"
    assert [row[0] for row in shop.present("items", ["id"])] == [1, 2]
    shop.configure(method=method)
    run = _run(shop)
    assert run.error is None
    assert [row[0] for row in shop.present("items", ["id"])] == [1, 2, 3]


@pytest.mark.long
def test_new_columns_of_postgresql_are_discarded(shop: Shop, method: str) -> None:
    _prepare(shop, method, "discard")
    shop.run("ALTER TABLE items ADD c int", "INSERT INTO items VALUES (2, 'y', 2, 7)")
    run = _run(shop)
    assert (run.error, _changes(run)) == (None, [])
    assert "c" not in shop.table("items").column_names
    assert shop.present("items", ["id", "b"]) == [(1, 1), (2, 2)]
    shop.run("UPDATE items SET c = 8, b = 9")
    assert _run(shop).error is None
    assert shop.present("items", ["id", "b"]) == [(1, 9), (2, 9)]
    assert shop.agrees()


@pytest.mark.long
def test_columns_over_jdbc(tmp_path: Path) -> None:
    file = tmp_path / "x.db"
    source = f"{{type: jdbc, url: 'jdbc:sqlite:{file}', tables: {{items: {{key: [id]}}}}}}"

    def run(policy: str, *statements: str) -> StreamRun:
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)
        more = f"schema_changes: {policy}"
        of = project(tmp_path, f"  p:\n    source: {source}\n    {more}\n")
        lake = Lake.open(of.lake.path, config=of.lake)
        (stream,) = sync(lake, of, "p", watch=events.append).streams
        return stream

    events: list[Event] = []
    found = run(
        "evolve", "CREATE TABLE items (id INTEGER, a TEXT)", "INSERT INTO items VALUES (1, 'x')"
    )
    assert found.error is None
    found = run("freeze", "ALTER TABLE items ADD b TEXT")
    assert "added b (STRING)" in (found.error or "")
    assert _changes(run("discard", "INSERT INTO items VALUES (2, 'y', 'z')")) == []
    assert not [event for event in events if event.kind is EventKind.COLUMNS_CHANGED]
    assert _changes(run("evolve")) == ["added b"]
    assert [event.kind for event in events].count(EventKind.COLUMNS_CHANGED) == 1
    assert _changes(run("evolve", "ALTER TABLE items DROP a")) == ["removed a"]
    assert _changes(run("evolve")) == []


@pytest.mark.long
def test_fields_of_an_api(tmp_path: Path) -> None:
    with Api() as api:
        shop = ApiShop(tmp_path, api)
        shop.configure("orders: {}")
        shop.put(1, "02-01", state="a", more=1)
        shop.sync_or_fail()
        shop.configure("orders: {schema_changes: freeze}")
        shop.put(2, "02-02", state="b")
        assert shop.sync()["orders"].error is None, "a field may be missing"
        shop.put(3, "02-03", state="c", other=True)
        assert "added other (BOOLEAN)" in (shop.sync()["orders"].error or "")
        assert shop.rows("orders", "id") == [(1,), (2,)]
        shop.configure("orders: {schema_changes: discard}")
        shop.sync_or_fail()
        assert shop.rows("orders", "id", "more") == [(1, 1), (2, None), (3, None)]
        shop.configure("orders: {}")
        shop.put(4, "02-04", other=False)
        assert _changes(shop.sync()["orders"]) == ["added other"]
        assert shop.rows("orders", "id", "other")[-1] == (4, False)


@pytest.mark.long
def test_fields_of_a_data_lake(tmp_path: Path) -> None:
    files = DataLake(tmp_path / "theirs")

    def row(number: int, **fields: Any) -> dict[str, Any]:
        system = {"source__modified": _T + number, "grax__idseq": str(number)}
        return {"Id": str(number), **system, **fields}

    def run(policy: str, *rows: dict[str, Any], **how: Any) -> StreamRun:
        if rows:
            files.write("items", list(rows))
        source = "{type: data_lake_v2, path: ./theirs, org: X}"
        more = f"schema_changes: {policy}"
        nonlocal of
        of = project(tmp_path, f"  p:\n    source: {source}\n    {more}\n")
        (stream,) = sync(Lake.open(of.lake.path, config=of.lake), of, "p", **how).streams
        return stream

    of = None
    assert _changes(run("evolve", row(1, a="x", n="1", n_i=1))) == []
    assert run("freeze", row(2, a="x")).error is None
    assert "added b (STRING)" in (run("freeze", row(3, a="x", b="y")).error or "")
    assert _changes(run("discard")) == []
    assert run("discard", full_refresh=True).error is None
    found = iceberg(of, "p", "items").scan().to_arrow()
    assert "b" not in found.column_names
    assert found.num_rows == 3
    assert _changes(run("evolve", row(4, b="y", n="x"))) == ["changed n", "added b"]


@pytest.mark.long
@pytest.mark.parametrize("policy", ["freeze", "discard"])
@pytest.mark.parametrize("fails", [False, True])
def test_the_first_load_of_records_accepts_all_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, *, fails: bool
) -> None:
    """A field may be missing in the first batches, also in a run that does not come to its end."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("chronolake.source.records.reader._BATCH_BYTES", 1)
    shop = Functions(tmp_path)
    shop.settings = f"schema_changes: {policy}\n"
    code = """
        @chronolake.stream(key="id", capture="polling")
        def orders(state):
            yield {"id": 1}
            state["n"] = 1
            FAILURE
            yield {"id": 2, "late": 5}
            state["n"] = 2
        """
    if fails:
        shop.write(code.replace("FAILURE", "raise ValueError"))
        (stream,) = shop.run().streams
        assert stream.error is not None
    shop.write(code.replace("FAILURE", ""))
    shop.sync()
    assert sorted((row["id"], row["late"]) for row in shop.rows()) == [(1, None), (2, 5)]
    shop.write(code.replace("late", "later").replace("FAILURE", ""))
    (stream,) = shop.run().streams
    assert ("added later" in (stream.error or "")) == (policy == "freeze")
    assert "later" not in shop.rows()[0]


class _Declaring:
    """The pipeline `shop` of a connector that declares the columns of `orders`."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.shop = connectors.Shop(folder)
        self._kind = kind

    def run(self, *declared: str, row: dict[str, Any], **settings: Any) -> StreamRun:
        """Sync one record of a source that declares `id`, `note` and these columns."""
        self._write(declared, row)
        source = self.shop.project.pipelines["shop"].source
        self.shop.configure(source.model_dump(mode="json", exclude_unset=True), **settings)
        (stream,) = self.shop.run().streams
        return stream

    def _write(self, declared: tuple[str, ...], row: dict[str, Any]) -> None:
        shop, kinds = self.shop, dict.fromkeys(declared, "integer")
        if self._kind == "fivetran":
            columns = {"id": "INT", "note": "STRING", **dict.fromkeys(declared, "INT")}
            table = {"table": "orders", "primary_key": ["id"], "columns": columns}
            update = f"op.upsert('orders', {row!r})\nop.checkpoint({{}})"
            shop.fivetran([table], update, **shop.fivetran_stand_in())
        elif self._kind == "singer":
            tap = tap_stream("orders", method="INCREMENTAL")
            tap["schema"]["properties"] |= {name: {"type": kind} for name, kind in kinds.items()}
            schema = f"emit(type='SCHEMA', stream='orders', schema={tap['schema']!r})"
            read = f"{schema}\nrecord('orders', **{row!r})\nemit(type='STATE', value={{'at': 1}})"
            shop.singer([tap], read)
        else:
            cursor = {"cursor": "id"} if self._kind == "incremental" else {}
            offered = connectors.stream("orders", **cursor, **kinds)
            read = f"record('orders', **{row!r})"
            if cursor:
                read += "\nstream_state('orders', {'at': 1})"
            shop.airbyte([offered], f"{read}\nstatus('orders', 'COMPLETE')")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["incremental", "full_refresh", "singer", "fivetran"])
def test_columns_that_a_connector_no_longer_declares(tmp_path: Path, kind: str) -> None:
    shop = _Declaring(tmp_path, kind)

    def run(*declared: str, **row: Any) -> list[str]:
        found = shop.run(*declared, row=row)
        assert found.error is None
        return _changes(found)

    assert run("extra", id=1, note="a", extra=1, own=1) == []
    assert run("extra", id=1, note="b") == [], "a record may lack a field"
    assert run(id=1, note="c", extra=2) == [], "it still has values"
    assert run(id=1, note="d") == ["removed extra"]
    assert run(id=1, note="e") == [], "each change is reported once"
    assert run("extra", id=1, note="f", extra=3) == ["added extra"]
    found = shop.run(row={"id": 1, "note": "g"}, schema_changes="freeze")
    assert "removed extra" in (found.error or "")
    row = {"id": 1, "note": "g", "own": 2}
    assert _changes(shop.run(row=row, schema_changes="evolve")) == ["removed extra"]
    noted = shop.shop.versions("note", "extra", "own")
    assert [found[0] for found in noted] == list("abcdefg")
    assert noted[5][:3] == ("f", 3, None)
    assert noted[6][:3] == ("g", None, 2)


@pytest.mark.long
def test_renamed_and_excluded_columns_that_are_no_longer_declared(tmp_path: Path) -> None:
    shop = _Declaring(tmp_path, "incremental")
    rules = {"schema_changes": "freeze", "rename": {"columns": {"extra": "more"}}}
    row = {"id": 1, "note": "a", "extra": 1, "other": 2}
    assert shop.run("extra", "other", row=row, **rules).error is None
    assert shop.run("extra", "other", row=row, **rules).error is None
    excluded = {**rules, "columns": {"exclude": ["extra", "other"]}}
    assert shop.run("extra", row={"id": 1, "note": "b"}, **excluded).error is None
    assert _changes(shop.run(row={"id": 1, "note": "c"}, **excluded)) == []
    failed = shop.run(row={"id": 1, "note": "d"}, **rules)
    assert "removed more, removed other" in (failed.error or "")


@pytest.mark.long
def test_masked_columns_have_values(tmp_path: Path) -> None:
    shop = _Declaring(tmp_path, "incremental")
    rules = {"columns": {"mask": ["extra", "other"]}, "schema_changes": "freeze"}
    row = {"id": 1, "note": "a", "extra": 1}
    assert shop.run("extra", row=row, **rules).error is None
    assert shop.run(row=row, **rules).error is None
    assert "added other" in (shop.run(row={**row, "other": 1}, **rules).error or "")
    assert "other" not in shop.shop.rows()[0]


@pytest.mark.long
def test_the_hashed_key_of_a_stream_without_records_is_not_added(tmp_path: Path) -> None:
    shop = connectors.Shop(tmp_path)
    offered = connectors.stream("orders", cursor="id")
    del offered["source_defined_primary_key"]
    for record in ("", "record('orders', id=1, note='a')\n"):
        shop.airbyte([offered], f"{record}stream_state('orders', {{'at': 1}})")
        (stream,) = shop.run().streams
        assert (stream.error, _changes(stream)) == (None, [])


class _Polled:
    """A pipeline of a Python function whose records land one by one."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setattr("chronolake.source.records.reader._BATCH_BYTES", 1)
        self.shop = Functions(folder)

    def run(self, *items: str, policy: str = "evolve", then: str = "") -> StreamRun:
        """Sync records, or Arrow tables, that the function yields; `then` is its last line."""
        self.shop.settings = f"schema_changes: {policy}\n"
        lines = [f"yield {item}" for item in items] + ([then] if then else [])
        body = "\n".join(f"    {line}" for line in lines)
        self.shop.write(
            "import pyarrow as pa\n\n"
            f"@chronolake.stream(key='id', capture='polling')\ndef orders():\n{body}\n"
        )
        (stream,) = self.shop.run().streams
        return stream


@pytest.fixture
def polled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Polled:
    return _Polled(tmp_path, monkeypatch)


@pytest.mark.long
def test_fields_of_a_first_load_that_failed_are_known(polled: _Polled) -> None:
    assert polled.run("{'id': 1, 'late': 5}", then="raise ValueError").error is not None
    assert polled.run("{'id': 3}").error is None
    assert polled.run("{'id': 4, 'late': 1}", policy="freeze").error is None


@pytest.mark.long
def test_a_discarded_field_is_not_stored_later(polled: _Polled) -> None:
    assert polled.run("{'id': 1}").error is None
    assert _changes(polled.run("{'id': 2, 'x': 1}", policy="discard")) == []
    polled.run("{'id': 3}", policy="freeze")
    assert "x" not in polled.shop.rows()[0]
    assert _changes(polled.run("{'id': 4, 'x': 2}")) == ["added x"]


@pytest.mark.long
def test_the_batches_of_a_run_may_have_different_columns(polled: _Polled) -> None:
    def tables(number: int) -> list[str]:
        return [f"pa.table({{'id': [{number}], '{name}': [{number}]}})" for name in "ab"]

    assert polled.run(*tables(1)).error is None
    for number in (2, 3):
        found = polled.run(*tables(number), policy="freeze")
        assert (found.error, _changes(found)) == (None, [])
    assert "removed a" in (polled.run(tables(4)[1], policy="freeze").error or "")
    assert _changes(polled.run(*reversed(tables(5)), policy="freeze")) == []


@pytest.mark.long
def test_a_change_that_has_not_landed_is_reported_when_it_has(
    polled: _Polled, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert polled.run("pa.table({'id': [1], 'a': [1]})").error is None

    def fail(*_: Any, **__: Any) -> None:
        raise OSError

    with monkeypatch.context() as patch:
        patch.setattr("chronolake.pipeline.landing.land", fail)
        failed = polled.run("pa.table({'id': [2], 'b': [1]})")
    assert (failed.error is None, _changes(failed)) == (False, [])
    found = polled.run("pa.table({'id': [2], 'b': [1]})")
    assert _changes(found) == ["added b", "removed a"]


@pytest.mark.long
def test_columns_of_arrow_tables_that_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    shop = Functions(tmp_path)

    def run(rows: str) -> list[str]:
        shop.write(f"""
            import pyarrow as pa

            @chronolake.stream(key="id", capture="polling")
            def orders():
                yield {rows}
            """)
        (stream,) = shop.run().streams
        assert stream.error is None
        return _changes(stream)

    assert run('pa.table({"id": [1], "a": ["x"], "b": [1]})') == []
    assert run('pa.table({"id": [2], "a": pa.nulls(1, pa.string()), "b": [1]})') == []
    assert run('pa.table({"id": [3], "b": [2]})') == ["removed a"]
    assert run('pa.table({"id": [4], "b": [2]})') == []
    assert run('{"id": 5}') == [], "a record may lack a field"
    assert sorted((row["id"], row["a"], row["b"]) for row in shop.rows()) == [
        (1, "x", 1), (2, None, 1), (3, None, 2), (4, None, 2), (5, None, None),
    ]  # fmt: skip


def _csv(rows: dict[str, list[Any]], file: Path) -> None:
    lines = [rows, *zip(*rows.values(), strict=True)]
    file.write_text("".join(",".join(map(str, line)) + "\n" for line in lines))


def _json(rows: dict[str, list[Any]], file: Path) -> None:
    found = [dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)]
    file.write_text("".join(json.dumps(row) + "\n" for row in found))


@pytest.mark.long
@pytest.mark.parametrize(
    ("ending", "write", "removed"),
    [
        ("csv", _csv, ["removed a"]),
        ("parquet", lambda rows, file: pq.write_table(pa.table(rows), file), ["removed a"]),
        # Each line has its own fields.
        ("jsonl", _json, []),
    ],
)
def test_columns_that_new_files_lack(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ending: str,
    write: Callable[..., None],
    removed: list[str],
) -> None:
    (tmp_path / "exports").mkdir()

    def run(number: int, policy: str = "evolve", **rows: list[Any]) -> StreamRun:
        write(rows, tmp_path / "exports" / f"orders-{number}.{ending}")
        source = f"{{type: files, path: 'exports/*.{ending}', stream: orders, key: [id]}}"
        more = f"    schema_changes: {policy}\n"
        of = project(tmp_path, f"  p:\n    source: {source}\n{more}")
        lake = Lake.open(of.lake.path, config=of.lake)
        (stream,) = sync(lake, of, "p").streams
        return stream

    old = ["removed old"] if removed else []
    # Of the first load, the columns of all files are accepted.
    write({"id": [1], "old": ["w"], "a": ["x"]}, tmp_path / "exports" / f"orders-0.{ending}")
    assert _changes(run(1, id=[2], a=["x"])) == []
    assert _changes(run(2, id=[3], a=["y"], b=["z"])) == ["added b", *old]
    frozen = run(3, "freeze", id=[4], b=["z"])
    assert (frozen.error is not None) == bool(removed)
    assert _changes(run(4, id=[5], b=["z"])) == removed
    assert _changes(run(5, id=[6], b=["z"])) == []
    # The files of one run may have different columns, also if they land one by one.
    monkeypatch.setattr("chronolake.source.files.records._MOST_FILES", 1)
    write({"id": [7], "b": ["z"], "c": ["z"]}, tmp_path / "exports" / f"orders-6.{ending}")
    assert _changes(run(7, id=[8], b=["z"])) == ["added c"]
    write({"id": [9], "b": ["z"]}, tmp_path / "exports" / f"orders-8.{ending}")
    assert run(9, "freeze", id=[10], b=["z"], c=["z"]).error is None


@pytest.mark.long
def test_columns_that_a_manifest_no_longer_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Api() as api:
        shop = ApiShop(tmp_path, api)

        def run(number: int, policy: str = "evolve", **values: Any) -> StreamRun:
            shop.configure(f"orders: {{schema_changes: {policy}}}")
            shop.put(number, f"02-{number:02}", **values)
            return shop.sync()["orders"]

        assert _changes(run(1, state="a", own=1)) == []
        assert _changes(run(2)) == [], "a record may lack a field"
        properties = dict(apishop._SCHEMA["properties"])
        monkeypatch.setitem(apishop._SCHEMA, "properties", properties)
        properties["state"] = {}
        assert _changes(run(2)) == [], "it is declared, without a type"
        del properties["state"]
        assert _changes(run(3, state="b")) == [], "it still has values"
        assert _changes(run(4)) == [], "the last record is read again"
        assert "removed state" in (run(5, "freeze").error or "")
        assert _changes(run(6)) == ["removed state"]
        assert _changes(run(7)) == []
        assert [row[1] for row in shop.rows("orders", "id", "state")] == [
            "a", None, "b", *[None] * 4,
        ]  # fmt: skip
