"""Functions of a project as a source: what they yield is in tables, exactly and once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import chronolake
from chronolake.arrow_tasks import FEW_BYTES
from chronolake.errors import ConfigurationError
from chronolake.inspect import Lineage, history
from chronolake.lake import Lake
from chronolake.pipeline.streams import source_of
from chronolake.pipeline.sync import sync
from chronolake.types import ACTIVE, DELETED, START, TableName
from support.datalakes import iceberg
from support.document_reader import DocumentReader
from support.python_functions import MODULE, Functions


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Functions]:
    path = list(sys.path)
    yield Functions(tmp_path)
    sys.path[:] = path
    sys.modules.pop(MODULE, None)


def test_all_records_of_a_function_are_compared_with_the_table(shop: Functions) -> None:
    code = """
        @chronolake.stream(key="id")
        def orders():
            {body}
    """
    shop.write(code.format(body='return [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}]'))
    shop.sync()
    assert shop.versions("id", "note") == [(1, "a", True), (2, "b", True)]
    shop.write(code.format(body='yield {"id": 1, "note": "c"}; yield {"id": 3, "note": None}'))
    shop.sync()
    after = [(1, "a", False), (1, "c", True), (2, "b", False), (3, None, True)]
    assert shop.versions("id", "note") == after
    shop.sync()
    assert shop.versions("id", "note") == after


def test_a_function_that_fails_midway_deletes_nothing(shop: Functions) -> None:
    code = """
        @chronolake.stream(key="id")
        def orders(token):
            yield {{"id": 1, "note": "{note}"}}
            {then}
            yield {{"id": 2, "note": "{note}"}}
    """
    more = ", config: {token: hidden-word}"
    shop.write(code.format(note="a", then="pass"), more=more)
    shop.sync()
    shop.write(code.format(note="b", then="raise OSError(f'no answer to {token}')"), more=more)
    (stream,) = shop.run().streams
    assert stream.error is not None
    assert "OSError" in stream.error
    assert "hidden-word" not in stream.error
    assert f"{MODULE}.py, line 7" in stream.error
    assert shop.versions("id", "note") == [(1, "a", True), (2, "a", True)]


def test_no_records_delete_all_only_if_that_is_allowed(shop: Functions) -> None:
    code = """
        @chronolake.stream(key="id")
        def orders():
            return {rows}
    """
    shop.write(code.format(rows='[{"id": 1}]'))
    shop.sync()
    shop.write(code.format(rows="[]"))
    (stream,) = shop.run().streams
    assert stream.error is not None
    assert "may_become_empty" in (stream.hint or "")
    assert shop.versions("id") == [(1, True)]
    shop.settings = "streams: {orders: {may_become_empty: true}}\n"
    shop.write(code.format(rows="[]"))
    shop.sync()
    assert shop.versions("id") == [(1, False)]


_POLLED = """
    LOG = {log}

    @chronolake.stream(key="id", cursor="at", deletes="gone")
    def orders(state):
        since = state.get("since", "")
        found = [row for row in LOG if row["at"] >= since]
        state["since"] = max((row["at"] for row in found), default=since)
        yield from found
        {then}
"""


def _log(*rows: tuple[int, str, int, bool]) -> str:
    return repr(
        [
            {"id": key, "note": note, "at": f"2026-11-0{day}T10:00:00Z", "gone": gone}
            for key, note, day, gone in rows
        ]
    )


@pytest.mark.long
def test_changed_records_have_their_own_times_and_may_be_marked_as_deleted(
    shop: Functions,
) -> None:
    first = [(1, "a", 1, False), (2, "b", 2, False)]
    shop.write(_POLLED.format(log=_log(*first), then="pass"))
    shop.sync()
    more = [*first, (1, "c", 3, False), (2, "b", 4, True)]
    shop.write(_POLLED.format(log=_log(*more), then="pass"))
    shop.sync()
    after = [(1, "a", False), (1, "c", True), (2, "b", False)]
    assert shop.versions("id", "note") == after
    assert [row[START].day for row in shop.rows() if row["note"] == "c"] == [3]
    shop.sync()
    assert shop.versions("id", "note") == after


@pytest.mark.long
def test_archived_and_restored_records_land_as_the_document_of_data_lakes_defines(
    shop: Functions,
) -> None:
    """A reader that knows only the document of Data Lake v2 finds what is in the table."""
    code = """
        LOG = {log}

        @chronolake.stream(key="id", cursor="at", deletes="gone")
        def orders():
            yield from LOG
    """
    at = "2026-11-0{}T10:00:00Z"
    more = {"gone": False, "grax__deletesource": None, "grax__restoredfrom": None}
    first = [
        {"id": 1, "note": "a", "at": at.format(1), **more},
        {"id": 2, "note": "b", "at": at.format(1), **more},
        {"id": 3, "note": "c", "at": at.format(1), **more},
    ]
    shop.write(code.format(log=first))
    shop.sync()
    archived = {"gone": True, "grax__deletesource": "grax"}
    second = [
        {"id": 1, "note": "a", "at": at.format(2), **more, **archived},
        {"id": 2, "note": "b", "at": at.format(2), **more, "gone": True},
        {"id": 4, "note": "a", "at": at.format(3), **more, "grax__restoredfrom": "1"},
        {"id": 3, "note": "d", "at": at.format(3), **more},
    ]
    shop.write(code.format(log=[*first, *second]))
    shop.sync()

    (folder,) = (shop.project.lake.path / "raw").glob("parquet/v2/org=shop/object=orders")
    reader = DocumentReader(folder)

    stored = sorted(shop.rows(), key=lambda row: (row["id"], row[START]))
    fields = ("note", "grax__restoredfrom")
    assert [(row["Id"], *(row[name] for name in fields)) for row in reader.history()] == [
        (str(row["id"]), *(row[name] for name in fields)) for row in stored
    ]
    assert [row["_end"] is None for row in reader.history()] == [row[ACTIVE] for row in stored]
    assert {row["Id"] for row in reader.current()} == {"3", "4"}
    landed = [
        row
        for path in sorted(folder.glob("batch=*/data-*.parquet"))
        for row in pq.read_table(path, partitioning=None).to_pylist()
    ]
    assert {row["Id"]: row["grax__deletesource"] for row in landed if row.get("grax__deleted")} == {
        "1": "grax",
        "2": "source",
    }
    lineage = history(shop.lake.config, TableName("shop", "orders"), {"id": "1"}).lineage
    assert lineage == Lineage("id", restored_as=("4",))


@pytest.mark.long
@pytest.mark.parametrize(
    ("unset", "mark"), [(0, 1), ("false", "true"), ("", "2026-11-02T00:00:00Z"), (None, 5)]
)
def test_only_values_that_are_set_mark_deleted_records(
    shop: Functions, unset: object, mark: object
) -> None:
    code = """
        @chronolake.stream(key="id", deletes="gone", capture="polling")
        def orders():
            yield {{"id": 1, "gone": {unset!r}}}
            yield {{"id": 2, "gone": {mark!r}}}
    """
    shop.write(code.format(unset=unset, mark=unset))
    shop.sync()
    shop.write(code.format(unset=unset, mark=mark))
    shop.sync()
    assert shop.versions("id") == [(1, True), (2, False)]
    shop.write(code.format(unset=unset, mark="maybe"))
    (stream,) = shop.run().streams
    assert "neither true nor false" in (stream.error or "")


@pytest.mark.long
def test_a_state_counts_only_if_the_function_ends(shop: Functions) -> None:
    shop.write(_POLLED.format(log=_log((1, "a", 1, False)), then="raise OSError('cut')"))
    (stream,) = shop.run().streams
    assert stream.error is not None
    assert shop.versions("id", "note") == [(1, "a", True)], "what was yielded has landed"
    shop.write(_POLLED.format(log=_log((1, "a", 1, False), (2, "b", 1, False)), then="pass"))
    shop.sync()
    assert shop.versions("id", "note") == [(1, "a", True), (2, "b", True)]


@pytest.mark.long
def test_a_checkpoint_keeps_the_state_of_a_function_that_fails_later(shop: Functions) -> None:
    code = """
        @chronolake.stream(key="id", capture="polling")
        def orders(state):
            for page in range(state.get("page", 0), {last}):
                yield {{"id": page, "note": "{note}"}}
                state["page"] = page + 1
                yield chronolake.CHECKPOINT
            {then}
    """
    shop.write(code.format(last=2, note="a", then="raise OSError('cut')"))
    assert shop.run().streams[0].error is not None
    shop.write(code.format(last=3, note="b", then="pass"))
    shop.sync()
    assert shop.versions("id", "note") == [(0, "a", True), (1, "a", True), (2, "b", True)]


def test_each_record_of_a_log_is_a_change(shop: Functions) -> None:
    shop.write(
        """
        @chronolake.stream(key="id", deletes="gone", capture="log")
        def orders(state):
            for number in range(state.get("number", 0), 1):
                yield [{"id": 1, "note": note, "gone": False} for note in ("a", "b", "a")]
                yield {"id": 1, "note": None, "gone": True}
                yield {"id": 1, "note": "d", "gone": False}
            state["number"] = 1
        """
    )
    shop.sync()
    shop.sync()
    notes = [("a", False), ("b", False), ("a", False), ("d", True)]
    assert shop.versions("note") == notes


def test_nested_values_may_be_changed_after_they_were_yielded(shop: Functions) -> None:
    code = """
        @chronolake.stream(key="id")
        def orders():
            row = {"id": 0, "tags": [], "more": {"inner": [{"n": 0}]}}
            for number in range(3):
                row["id"] = number
                row["tags"].append(number)
                row["more"]["inner"][0]["n"] = number
                yield row
    """
    shop.write(code)
    shop.sync()
    assert shop.versions("tags", "more") == [
        ("[0]", '{"inner":[{"n":0}]}', True),
        ("[0,1]", '{"inner":[{"n":1}]}', True),
        ("[0,1,2]", '{"inner":[{"n":2}]}', True),
    ]


@pytest.mark.long
def test_a_function_yields_several_streams_with_one_state(shop: Functions) -> None:
    code = """
        @chronolake.streams(orders={{"key": "id", "capture": "polling"}}, items={{"key": "id"}})
        def both(state):
            assert state.get("run", 0) == {run}, state
            yield "items", [{{"id": 1, "run": {run}}}]
            yield "orders", {{"id": {run}, "note": "a"}}
            state["run"] = {run} + 1
    """
    run = f"{MODULE}:both"
    shop.write(code.format(run=0), run)
    shop.sync()
    shop.write(code.format(run=1), run)
    # Only some streams do not move the state of all.
    shop.sync(only=("items",))
    shop.sync()
    shop.write(code.format(run=2), run)
    shop.sync()
    assert shop.versions("id") == [(0, True), (1, True), (2, True)]
    assert shop.versions("run", stream="items") == [(0, False), (1, False), (2, True)]
    shop.write(code.format(run=0), run)
    shop.sync(full_refresh=True)
    shop.write(code.format(run=1), run)
    shop.sync()


@pytest.mark.long
def test_the_state_of_all_streams_waits_for_a_stream_that_fails(shop: Functions) -> None:
    code = """
        @chronolake.streams(orders={{"key": "id", "capture": "polling"}},
                            items={{"key": "id", "capture": "polling"}})
        def both(state):
            assert state.get("run", 0) == 0, state
            yield "items", [{{"{key}": 1}}]
            yield "orders", {{"id": 1}}
            state["run"] = 1
    """
    run = f"{MODULE}:both"
    shop.write(code.format(key="other"), run)
    result = shop.run()
    assert {stream.stream: stream.error is None for stream in result.streams} == {
        "orders": True,
        "items": False,
    }
    shop.write(code.format(key="id"), run)
    shop.sync()
    assert shop.versions("id") == shop.versions("id", stream="items") == [(1, True)]


@pytest.mark.long
def test_a_command_renames_and_discards_columns_of_few_records(shop: Functions) -> None:
    code = """
        @chronolake.stream(key="id")
        def orders():
            yield {{"id": 1, "note": "{note}" {more}}}
    """
    shop.settings = "columns: {rename: {note: remark}}\nschema_changes: discard\n"
    shop.write(code.format(note="a", more=""))
    words = ("sync", "shop", "--no-engine", "--project", str(shop.folder))
    subprocess.run([sys.executable, "-m", "chronolake", *words], check=True)
    shop.write(code.format(note="b", more=', "extra": 1'))
    subprocess.run([sys.executable, "-m", "chronolake", *words], check=True)
    assert shop.versions("id", "remark") == [(1, "a", False), (1, "b", True)]


_TWICE = """
    @chronolake.stream(key="id")
    def orders():
        for note in {notes}:
            yield {{"id": 1, "note": note}}
        yield {{"id": 2, "note": "x"}}
"""


def test_equal_records_without_a_key_are_one(shop: Functions) -> None:
    shop.write("""
        def orders():
            for number in (1, 1, 2):
                yield {"what": "click", "user": number}
        """)
    shop.sync()
    shop.sync()
    assert shop.versions("user", key="user") == [(1, True), (2, True)]


@pytest.mark.sampled
@pytest.mark.parametrize("few_bytes", [FEW_BYTES, 0])
def test_the_last_of_a_record_in_a_complete_read_is_valid(
    shop: Functions, monkeypatch: pytest.MonkeyPatch, few_bytes: int
) -> None:
    monkeypatch.setattr("chronolake.arrow_tasks.FEW_BYTES", few_bytes)
    for notes in ["ab", "bab", "ba"]:
        shop.write(_TWICE.format(notes=list(notes)))
        shop.sync()
        shop.sync()
    assert shop.versions("id", "note") == [(1, "b", False), (1, "a", True), (2, "x", True)]


def test_a_complete_read_with_repeated_records_starts_no_spark(shop: Functions) -> None:
    shop.write(_TWICE.format(notes=["a", "b"]))
    shop.sync()
    lake = Lake.prepare(shop.project.lake)
    result = sync(lake, shop.project, "shop")
    assert [stream.error for stream in result.streams] == [None]
    assert not lake.has_started
    assert shop.versions("id", "note") == [(1, "b", True), (2, "x", True)]


@pytest.mark.long
def test_a_stream_without_records_does_not_begin_the_others_again(shop: Functions) -> None:
    code = """
        @chronolake.streams(orders={"key": "id", "capture": "polling"},
                            refunds={"key": "id", "capture": "polling"})
        def both(state):
            yield "orders", {"id": state.get("run", 0)}
            state["run"] = state.get("run", 0) + 1
    """
    shop.write(code, f"{MODULE}:both")
    for _ in range(3):
        shop.sync()
    assert shop.versions("id") == [(0, True), (1, True), (2, True)]


@pytest.mark.long
def test_a_new_stream_that_was_cut_off_is_read_from_the_start_again(shop: Functions) -> None:
    code = """
        @chronolake.streams(orders={{"key": "id", "capture": "polling"}} {more})
        def both(state):
            for number in range(state.get("run", 0), 2):
                yield "orders", {{"id": number}}
                if {has_items}:
                    yield "items", {{"id": number}}
                    if {is_cut}:
                        raise OSError("cut")
            state["run"] = 2
    """
    run, more = f"{MODULE}:both", ', items={"key": "id", "capture": "polling"}'
    # A function of one stream, as of two, has one state here.
    more_before = ', others={"key": "id"}'
    shop.write(code.format(more=more_before, has_items=False, is_cut=False), run)
    shop.sync()
    both = more_before + more
    shop.write(code.format(more=both, has_items=True, is_cut=True), run)
    assert {stream.stream for stream in shop.run().streams if stream.error} == {
        "orders",
        "items",
        "others",
    }
    assert shop.versions("id", stream="items") == [(0, True)]
    shop.write(code.format(more=both, has_items=True, is_cut=False), run)
    shop.sync()
    assert shop.versions("id", stream="items") == [(0, True), (1, True)]


@pytest.mark.long
def test_a_function_that_fails_holds_back_no_other_state_and_keeps_its_own(
    shop: Functions,
) -> None:
    code = """
        LOG = {{"key": "id", "capture": "log"}}

        @chronolake.streams(a=LOG, b=LOG)
        def one(state):
            assert state.get("n", 0) == {run}, state
            yield "a", {{"id": 1, "n": state.get("n", 0)}}
            state["n"] = state.get("n", 0) + 1

        @chronolake.streams(c=LOG, d=LOG)
        def two(state):
            assert state.get("n", 0) == {run}, state
            yield "c", {{"id": 1, "n": state.get("n", 0)}}
            state["n"] = state.get("n", 0) + 1
            yield chronolake.CHECKPOINT
            yield "d", {{"id": 1, "n": 9}}
            state["n"] = 9
            raise ValueError("down")
    """
    run = f"[{MODULE}:one, {MODULE}:two]"
    for number in range(3):
        shop.write(code.format(run=number), run)
        failed = {stream.stream for stream in shop.run().streams if stream.error is not None}
        assert failed == {"c", "d"}
    expected = [(0, False), (1, False), (2, True)]
    assert shop.versions("n", stream="a") == shop.versions("n", stream="c") == expected
    # Reading the streams of a function again begins without its state, and keeps the others.
    shop.write(code.format(run=0), run)
    shop.run(only=("a", "b"), full_refresh=True)
    assert len(shop.versions("n", stream="a")) == 4
    shop.write(code.format(run=3), run)
    assert shop.run(only=("c", "d")).streams[0].error is not None
    assert len(shop.versions("n", stream="c")) == 4


def test_values_have_the_types_of_python_and_arrow(shop: Functions) -> None:
    shop.write(
        """
        import datetime as dt
        import decimal
        import enum
        import uuid
        from dataclasses import dataclass

        import pyarrow as pa
        from pydantic import BaseModel

        UTC = dt.timezone.utc

        class Color(enum.Enum):
            RED = "red"

        class Inner(BaseModel):
            at: dt.datetime

        class Item(BaseModel):
            id: int
            price: decimal.Decimal
            inner: Inner

        @dataclass
        class Part:
            id: int
            price: decimal.Decimal
            inner: dict

        @chronolake.stream(key="id")
        def values():
            yield {
                "id": 1, "flag": True, "day": dt.date(2026, 1, 2), "text": "é",
                "at": dt.datetime(2026, 1, 2, 3, tzinfo=dt.timezone(dt.timedelta(hours=1))),
                "local": dt.datetime(2026, 1, 2, 3, 4, 5, 6), "clock": dt.time(1, 2),
                "raw": b"\\x00\\xff", "price": decimal.Decimal("12.50"), "code": uuid.UUID(int=7),
                "color": Color.RED, "tags": ("a", {"b": decimal.Decimal("1.5")}), "number": 0.1,
                "big": 2**70,
            }

        @chronolake.stream(key="id")
        def objects():
            at = dt.datetime(2026, 1, 2, tzinfo=UTC)
            yield Item(id=1, price="1.5", inner=Inner(at=at))
            yield Part(id=2, price=decimal.Decimal("22.25"), inner={"at": at})

        @chronolake.stream(key="id")
        def tables():
            yield pa.table({
                "id": pa.array([1, 2], pa.int32()),
                "at": pa.array([0, None], pa.timestamp("ns", "UTC")),
                "list": [[1, 2], None],
                "price": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(10, 2)),
                "word": pa.array(["a", "b"]).dictionary_encode(),
            })
            yield pa.record_batch({"id": pa.array([3], pa.int64()), "more": ["x"]})
        """,
        f"[{MODULE}:values, {MODULE}:objects, {MODULE}:tables]",
    )
    shop.sync()
    (row,) = shop.rows("values")
    kinds = {name: str(kind) for name, kind in _types(shop, "values").items()}
    assert kinds["at"] == "timestamp[us, tz=UTC]"
    assert kinds["local"] == "timestamp[us]"
    assert kinds["price"] == "decimal128(4, 2)"
    assert kinds["raw"].endswith("binary")
    assert row["at"].isoformat() == "2026-01-02T02:00:00+00:00"
    assert row["local"].isoformat() == "2026-01-02T03:04:05.000006"
    assert (row["flag"], row["text"], row["number"]) == (True, "é", 0.1)
    assert (row["clock"], row["color"], row["raw"]) == ("01:02:00", "red", b"\x00\xff")
    assert row["code"] == "00000000-0000-0000-0000-000000000007"
    assert (row["tags"], row["big"]) == ('["a",{"b":1.5}]', str(2**70))
    objects = {row["id"]: row for row in shop.rows("objects")}
    assert {key: str(row["price"]) for key, row in objects.items()} == {1: "1.50", 2: "22.25"}
    assert "2026-01-02T00:00:00" in objects[1]["inner"]
    assert "2026-01-02T00:00:00" in objects[2]["inner"]
    tables = {row["id"]: row for row in shop.rows("tables")}
    assert sorted(tables) == [1, 2, 3]
    assert (tables[1]["list"], str(tables[1]["price"]), tables[2]["word"]) == ("[1,2]", "1.50", "b")
    assert (tables[3]["more"], tables[3]["word"], tables[1]["at"].year) == ("x", None, 1970)


def _types(shop: Functions, stream: str) -> dict[str, Any]:
    schema = iceberg(shop.project, "shop", stream).scan().to_arrow().schema
    return {field.name: field.type for field in schema}


def test_a_class_and_a_plain_function_with_settings(shop: Functions) -> None:
    shop.write(
        """
        class Orders:
            def __init__(self, count):
                self.count = count

            def __iter__(self):
                return ({"id": number} for number in range(self.count))
        """,
        f"{MODULE}:Orders",
        ", key: id, config: {count: 3}",
    )
    shop.sync()
    assert shop.versions("id", stream="Orders") == [(0, True), (1, True), (2, True)]


@pytest.mark.long
def test_records_without_a_key_are_identified_by_their_content(shop: Functions) -> None:
    shop.settings = "mode: soft-delete\n"
    shop.write("def orders():\n    return [{'a': 1}, {'a': 2}, {'a': 1}]\n")
    shop.sync()
    shop.write("def orders():\n    return [{'a': 2}, {'a': 3}]\n")
    shop.sync()
    assert sorted((row["a"], row[DELETED]) for row in shop.rows()) == [
        (1, True),
        (2, False),
        (3, False),
    ]


@pytest.mark.parametrize(
    ("code", "run", "more", "words"),
    [
        ("x = 1", f"{MODULE}:orders", "", ["has no orders"]),
        ("orders = 1", f"{MODULE}:orders", "", ["not a function", "int"]),
        ("x = 1", "missing_module:orders", "", ["The Python module missing_module does not exist"]),
        ("import missing_inner", f"{MODULE}:orders", "", ["missing_inner", "not installed"]),
        ("1 / 0", f"{MODULE}:orders", "", ["cannot be imported", "ZeroDivisionError"]),
        ("x = 1", "orders", "", ["not the path of a function"]),
        (
            "@chronolake.stream(key='id', capture='pol')\ndef orders(): ...",
            f"{MODULE}:orders",
            "",
            ["capture cannot be 'pol'"],
        ),
        (
            "@chronolake.stream(key='id')\ndef orders(): ...",
            f"{MODULE}:orders",
            ", key: id",
            ["declares its streams", "source.key"],
        ),
        (
            "import chronolake as c\none = c.stream(name='a')(lambda: [])\ntwo = one\n",
            f"[{MODULE}:one, {MODULE}:two]",
            "",
            ["both have a stream 'a'"],
        ),
    ],
)
def test_what_cannot_be_run_is_refused(
    shop: Functions, code: str, run: str, more: str, words: list[str]
) -> None:
    shop.write(code, run, more)
    with pytest.raises(ConfigurationError) as raised:
        source_of(shop.project, "shop").discover()
    assert all(word in str(raised.value) for word in words), raised.value


@pytest.mark.parametrize(
    ("code", "more", "words"),
    [
        ("def orders(): return 5", "", ["returned int"]),
        ("def orders(): yield 'text'", "", ["of the type str"]),
        ("def orders(token): yield {}", "", ["needs values for token"]),
        ("def orders(token): yield {}", ", config: {toke: x}", ["no parameter 'toke'", "token"]),
        ("def orders(): yield {'a': 1}", ", key: id", ["no id"]),
        ("def orders(state):\n    state['a'] = object()\n    return []", "", ["is not JSON"]),
        ("def orders(): yield {'a': object()}", "", ["type object cannot be stored"]),
    ],
)
def test_what_cannot_be_stored_is_reported(
    shop: Functions, code: str, more: str, words: list[str]
) -> None:
    shop.write(code, more=more)
    (stream,) = shop.run().streams
    assert stream.error is not None
    found = f"{stream.error} {stream.hint}"
    assert all(word in found for word in words), found


def test_complete_reads_cannot_mark_deleted_records() -> None:
    with pytest.raises(ConfigurationError, match="cannot mark deleted ones"):
        chronolake.stream(key="id", deletes="gone")
