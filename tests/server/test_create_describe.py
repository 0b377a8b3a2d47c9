"""What CreateTable creates is what DescribeTable returns."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from chronolake.protos import destination_sdk_pb2
from support.server.caller import DELETED, HISTORY, SYNCED, Caller, catalog, column_texts, table
from support.server.sent_files import UNMODIFIED

ALL_TYPES = [
    "id*:LONG",
    "c_boolean:BOOLEAN",
    "c_short:SHORT",
    "c_int:INT",
    "c_long:LONG",
    "c_decimal:DECIMAL(17,4)",
    "c_float:FLOAT",
    "c_double:DOUBLE",
    "c_date:NAIVE_DATE",
    "c_datetime:NAIVE_DATETIME",
    "c_utc:UTC_DATETIME",
    "c_binary:BINARY",
    "c_xml:XML",
    "c_string:STRING",
    "c_json:JSON",
    "c_time:NAIVE_TIME",
    SYNCED,
]
ODD_NAMES = [
    "desc",
    "select",
    "order",
    "a b",
    "a`b",
    'a"b',
    "a.b",
    "it's",
    'Key. "`🦆',
    "`",
    "t",
    "s",
    "b",
    "count",
    "ünï",
    "🦆",
    "x" * 200,
    "Case",
    "case",
]


def test_a_table_of_every_type_is_described_as_it_was_created(caller: Caller) -> None:
    assert caller.create("every", ALL_TYPES).success
    described = caller.describe("every")
    assert described.WhichOneof("response") == "table"
    assert described.table.name == "every"
    assert column_texts(described.table.columns) == ALL_TYPES
    assert len(caller.iceberg("every").schema().fields) == len(ALL_TYPES)


def test_creating_a_table_that_exists_fails_and_changes_nothing(caller: Caller) -> None:
    columns = ["id*:LONG", "a:STRING", SYNCED]
    assert caller.create("t", columns).success
    assert caller.write("t", columns, replace=[row(id="1", a="x")]).success
    before = caller.snapshot("t")
    answer = caller.create("t", ["id*:STRING", SYNCED])
    assert answer.WhichOneof("response") == "task"
    assert "exists" in answer.task.message
    assert caller.snapshot("t") == before
    assert column_texts(caller.describe("t").table.columns) == columns


def row(**cells: str | None) -> dict[str, str | None]:
    return {**cells, "_fivetran_synced": "2024-01-01T00:00:00Z"}


def test_an_unknown_table_or_schema_is_not_found_and_not_made(caller: Caller) -> None:
    assert caller.describe("nothing").not_found
    assert caller.create("something", ["id*:LONG", SYNCED]).success
    assert caller.describe("nothing").not_found
    other = replace(caller, schema="no such schema")
    assert other.describe("nothing").not_found
    assert ("no such schema",) not in catalog(caller.lake).list_namespaces()


def test_tables_created_at_once_in_a_new_schema_are_all_there(caller: Caller) -> None:
    names = [f"t{number}" for number in range(10)]
    with ThreadPoolExecutor(10) as threads:
        answers = list(threads.map(lambda name: caller.create(name, ["id*:LONG", SYNCED]), names))
    assert all(answer.success for answer in answers)
    assert all(caller.describe(name).table.columns for name in names)


def test_tables_created_at_once_in_different_new_schemas_are_all_there(caller: Caller) -> None:
    callers = [replace(caller, schema=f"{caller.schema}_{number}") for number in range(5)]
    with ThreadPoolExecutor(5) as threads:
        answers = list(
            threads.map(lambda caller: caller.create("t", ["id*:LONG", SYNCED]), callers)
        )
    assert all(answer.success for answer in answers)


def test_a_decimal_without_parameters_has_38_digits_10_after_the_point(caller: Caller) -> None:
    assert caller.create("t", ["id*:LONG", "d:DECIMAL", "e:DECIMAL(38,37)", SYNCED]).success
    assert column_texts(caller.describe("t").table.columns)[1:3] == [
        "d:DECIMAL(38,10)",
        "e:DECIMAL(38,37)",
    ]


@pytest.mark.parametrize("kind", ["DECIMAL(39,5)", "DECIMAL(10,15)", "DECIMAL(0,0)"])
def test_an_impossible_decimal_is_a_task_that_names_its_place(caller: Caller, kind: str) -> None:
    answer = caller.create("t", ["id*:LONG", f"d:{kind}", SYNCED])
    assert answer.WhichOneof("response") == "task"
    assert f"table '{caller.schema}.t', column 'd'" in answer.task.message
    assert caller.describe("t").not_found


def test_a_composite_key_is_described_in_full_whatever_its_order(caller: Caller) -> None:
    columns = ["b*:STRING", "v:STRING", "a*:LONG", SYNCED]
    assert caller.create("t", columns).success
    assert column_texts(caller.describe("t").table.columns) == columns


def test_a_history_table_s_start_is_part_of_its_key(caller: Caller) -> None:
    columns = ["id*:LONG", "v:STRING", *HISTORY]
    assert caller.create("t", columns).success
    assert column_texts(caller.describe("t").table.columns) == columns


def test_odd_names_of_columns_tables_and_schemas_are_returned_unchanged(caller: Caller) -> None:
    columns = ["id*:LONG", *(f"{name}:STRING" for name in ODD_NAMES), SYNCED]
    odd = replace(caller, schema=f'{caller.schema} a`b"c.d 🦆')
    names = [name for name in ODD_NAMES if len(name) > 1 and name not in ("order", "a b")]
    for name in names:
        assert odd.create(name, columns[:2] if name != "a.b" else columns).success, name
    for name in names:
        assert odd.describe(name).table.name == name
    assert column_texts(odd.describe("a.b").table.columns) == columns
    cells = {name: f"in {name}" for name in ODD_NAMES}
    assert odd.write("a.b", columns, replace=[row(id="1", **cells)]).success
    assert odd.rows("a.b", *ODD_NAMES) == [tuple(cells.values())]
    changed = dict.fromkeys(ODD_NAMES, UNMODIFIED) | {"a b": "changed"}
    assert odd.write("a.b", columns, update=[row(id="1", **changed)]).success
    assert odd.rows("a.b", *ODD_NAMES) == [tuple((cells | {"a b": "changed"}).values())]
    assert odd.alter("a.b", [*columns, '`more` "?":INT']).success
    assert odd.truncate("a.b", 4_102_444_800_000).success
    assert odd.rows("a.b") == []


def test_columns_that_iceberg_has_itself_keep_their_names_for_the_sender(caller: Caller) -> None:
    """A column named like a metadata column of Iceberg keeps its name for the sender.

    Connectors of files send `_file`; an Iceberg table with such a column is unreadable.
    """
    names = ["_file", "_file_", "_pos", "_deleted", "_spec_id", "_partition", "_row_id"]
    columns = ["_file*:STRING", *(f"{name}:STRING" for name in names[1:]), SYNCED]
    assert caller.create("t", columns).success
    assert column_texts(caller.describe("t").table.columns) == columns
    cells = {name: f"in {name}" for name in names}
    assert caller.write("t", columns, replace=[row(**cells)]).success
    update = cells | {"_pos": "changed", "_file_": UNMODIFIED}
    assert caller.write("t", columns, update=[row(**update)]).success
    stored = [f"{name}_" for name in names]
    expected = cells | {"_pos": "changed"}
    assert caller.rows("t", *stored) == [tuple(expected[name] for name in names)]
    retyped = [*columns, "_last_updated_sequence_number:LONG"]
    assert caller.alter("t", retyped).success
    assert column_texts(caller.describe("t").table.columns) == retyped
    assert caller.write("t", columns, delete=[row(**cells)]).success
    assert caller.rows("t", *stored) == []


def test_names_that_differ_by_case_only_are_different_tables(caller: Caller) -> None:
    for name in ("Users", "users"):
        assert caller.create(name, ["id*:LONG", SYNCED]).success
    assert caller.write("Users", ["id*:LONG", SYNCED], replace=[row(id="1")]).success
    assert caller.rows("users") == []
    assert caller.iceberg("Users").location() != caller.iceberg("users").location()


def test_a_table_with_a_stand_in_key_is_written_and_deleted_from_by_it(caller: Caller) -> None:
    columns = ["v:STRING", SYNCED, "_fivetran_id*:STRING", DELETED]
    assert caller.create("t", columns).success
    rows = [row(v=value, _fivetran_id=f"k{value}", _fivetran_deleted="false") for value in "ab"]
    assert caller.write("t", columns, replace=rows).success
    gone = [row(v=None, _fivetran_id="ka", _fivetran_deleted=None)]
    assert caller.write("t", columns, delete=gone).success
    assert caller.rows("t", "v", "_fivetran_id") == [("b", "kb")]


def test_a_text_s_length_hint_limits_nothing(caller: Caller) -> None:
    message = table("t", ["id*:LONG", "v:STRING", SYNCED])
    message.columns[1].params.string_byte_length = 8
    request = destination_sdk_pb2.CreateTableRequest(schema_name=caller.schema, table=message)
    assert caller.stub.CreateTable(request).success
    assert not caller.describe("t").table.columns[1].HasField("params")
    columns = ["id*:LONG", "v:STRING", SYNCED]
    assert caller.write("t", columns, replace=[row(id="1", v="y" * 100)]).success
    assert caller.rows("t", "v") == [("y" * 100,)]


def test_a_name_with_nul_is_a_task(caller: Caller) -> None:
    answer = caller.create("a\0b", ["id*:LONG"])
    assert answer.WhichOneof("response") == "task"
    assert "NUL" in answer.task.message


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["id*:LONG", "u:UNSPECIFIED"], "'u'"),
        (["id*:LONG", "id:LONG"], "same name"),
        (["id*:LONG", "__chronolake_op:LONG"], "reserved"),
        (["id*:LONG", ":LONG"], "no name"),
        (["id*:LONG", "a\0b:LONG"], "NUL"),
        ([], "at least one column"),
    ],
)
def test_columns_that_make_no_table_are_a_task(
    caller: Caller, columns: list[str], words: str
) -> None:
    answer = caller.create("t", columns)
    assert answer.WhichOneof("response") == "task"
    assert words in answer.task.message
    assert caller.describe("t").not_found


def test_an_empty_schema_or_table_name_is_a_task(caller: Caller) -> None:
    nameless = replace(caller, schema="")
    for answer in (
        nameless.create("t", ["id*:LONG"]),
        caller.create("", ["id*:LONG"]),
        nameless.describe("t"),
        caller.describe(""),
        nameless.alter("t", ["id*:LONG"]),
        caller.alter("", ["id*:LONG"]),
        nameless.truncate("t", 0),
        caller.truncate("", 0),
        nameless.write("t", ["id*:LONG"]),
        caller.write("", ["id*:LONG"]),
    ):
        assert answer.WhichOneof("response") == "task"
        assert "name is empty" in answer.task.message


@pytest.mark.parametrize("schema", ["__chronolake_scratch", "__Chronolake_x"])
def test_a_reserved_schema_is_a_task(caller: Caller, schema: str) -> None:
    reserved = replace(caller, schema=schema)
    for answer in (
        reserved.create("chronolake-stage-t", ["id*:LONG"]),
        reserved.describe("t"),
        reserved.alter("t", ["id*:LONG"]),
        reserved.truncate("t", 0),
        reserved.write("t", ["id*:LONG"]),
        reserved.migrate("t", "drop_table"),
    ):
        assert answer.WhichOneof("response") == "task"
        assert "are reserved" in answer.task.message
        assert "Choose another schema" in answer.task.message
