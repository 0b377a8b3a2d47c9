"""WriteBatch replaces, then updates, then deletes, with the meaning of the guide."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import grpc
import pytest

from support.server.caller import DELETED, SYNCED, Caller
from support.server.sent_files import UNMODIFIED, SentFile, csv_text, write_batch_file

COLUMNS = ["id*:LONG", "a:STRING", "b:STRING", "c:INT", SYNCED, DELETED]
T1, T2 = "2024-01-01T00:00:00Z", "2024-01-02T00:00:00.123Z"
AT1 = datetime(2024, 1, 1, tzinfo=UTC)
AT2 = datetime(2024, 1, 2, 0, 0, 0, 123000, tzinfo=UTC)


def full(id_: int, a: str | None, b: str | None = "b", c: str | None = "1") -> dict:
    return {
        "id": str(id_),
        "a": a,
        "b": b,
        "c": c,
        "_fivetran_synced": T1,
        "_fivetran_deleted": "false",
    }


def partial(id_: int, **changed: str | None) -> dict:
    kept = dict.fromkeys(("a", "b", "c"), UNMODIFIED)
    return {
        "id": str(id_),
        **kept,
        "_fivetran_synced": T2,
        "_fivetran_deleted": "false",
        **changed,
    }


def key_only(id_: int) -> dict:
    nothing = dict.fromkeys(("a", "b", "c", "_fivetran_deleted"))
    return {"id": str(id_), **nothing, "_fivetran_synced": T2}


@pytest.fixture
def table(caller: Caller) -> Caller:
    assert caller.create("t", COLUMNS).success
    return caller


def test_replaced_rows_are_inserted_with_the_file_s_synced_time(table: Caller) -> None:
    assert table.write("t", COLUMNS, replace=[full(1, "x"), full(2, "y"), full(3, None)]).success
    assert table.rows("t") == [
        (1, "x", "b", 1, AT1, False),
        (2, "y", "b", 1, AT1, False),
        (3, None, "b", 1, AT1, False),
    ]
    assert table.write("t", COLUMNS, replace=[full(1, "z", None, None)]).success
    assert table.rows("t", "id", "a", "b", "c")[0] == (1, "z", None, None)


def test_an_update_changes_what_it_has_and_keeps_the_rest(table: Caller) -> None:
    rows = [full(1, "x"), full(2, "y"), full(3, "z")]
    assert table.write("t", COLUMNS, replace=rows).success
    changes = [
        partial(1, a="new", c=None),
        partial(2, _fivetran_deleted="true"),
        partial(999, a="nowhere"),
        partial(2000, _fivetran_deleted="true"),
    ]
    assert table.write("t", COLUMNS, update=changes, delete=[key_only(1000)]).success
    assert table.rows("t") == [
        (1, "new", "b", None, AT2, False),
        (2, "y", "b", 1, AT2, True),
        (3, "z", "b", 1, AT1, False),
    ]
    assert table.write("t", COLUMNS, update=[partial(2)]).success
    assert table.rows("t")[1] == (2, "y", "b", 1, AT2, False)


def test_an_update_may_change_columns_whatever_they_are_called(caller: Caller) -> None:
    names = ("k0", "c0", "f0", "is_stored")
    columns = ["f1*:LONG", "k1*:STRING", *(f"{name}:STRING" for name in names), SYNCED]
    assert caller.create("t", columns).success

    def row(number: int, **cells: str | None) -> dict:
        return {"f1": str(number), "k1": "é'\"", **cells, "_fivetran_synced": T1}

    old, kept = dict.fromkeys(names, "old"), dict.fromkeys(names, UNMODIFIED)
    assert caller.write("t", columns, replace=[row(1, **old), row(2, **old), row(3, **old)]).success
    changes = [row(1, **{**kept, "k0": "new"}), row(2, **{**kept, "is_stored": None})]
    nowhere = row(9, **{**kept, "c0": "new"})
    batch = {"delete": [row(3, **dict.fromkeys(names))], "replace": [row(4, **old)]}
    assert caller.write("t", columns, update=[*changes, nowhere], **batch).success
    assert caller.rows("t", "f1", *names) == [
        (1, "new", "old", "old", "old"),
        (2, "old", "old", "old", None),
        (4, "old", "old", "old", "old"),
    ]


def test_an_update_row_without_its_key_is_refused(table: Caller) -> None:
    stored = {**full(1, "one"), "id": None}
    assert table.write("t", COLUMNS, replace=[stored, full(2, "two")]).success
    before = table.snapshot("t")
    changes = [partial(2, a="new"), {**partial(0, a="new"), "id": UNMODIFIED}]
    answer = table.write("t", COLUMNS, update=changes)
    assert answer.WhichOneof("response") == "task"
    assert "row 2" in answer.task.message
    assert "column 'id'" in answer.task.message
    assert table.snapshot("t") == before


def test_an_update_of_a_table_of_nothing_but_keys_changes_nothing(caller: Caller) -> None:
    columns = ["id*:LONG"]
    assert caller.create("t", columns).success
    assert caller.write("t", columns, replace=[{"id": "1"}]).success
    assert caller.write("t", columns, update=[{"id": "1"}, {"id": "2"}]).success
    assert caller.rows("t") == [(1,)]


def test_an_update_may_leave_a_column_of_any_type_unmodified(caller: Caller) -> None:
    kinds = {
        "BOOLEAN": "true",
        "SHORT": "-32768",
        "INT": "2147483647",
        "LONG": "-9223372036854775808",
        "DECIMAL(38,10)": "1234567890123456789012345678.0123456789",
        "FLOAT": "3.4028235E+38",
        "DOUBLE": "-2.2250738585072014E-308",
        "NAIVE_DATE": "2007-12-03",
        "NAIVE_DATETIME": "2007-12-03T10:15:30",
        "UTC_DATETIME": "2007-12-03T10:15:30.123456789Z",
        "BINARY": "AAEC/w==",
        "XML": "<tag>This is\nxml</tag>",
        "STRING": 'say "hi", \\ and\nmore',
        "JSON": '{"a": 123}',
        "NAIVE_TIME": "10:15:30",
    }
    names = {f"c{number}": kind for number, kind in enumerate(kinds)}
    columns = ["id*:LONG", *(f"{name}:{kind}" for name, kind in names.items()), SYNCED]
    assert caller.create("t", columns).success
    first = {"id": "1", **dict(zip(names, kinds.values(), strict=True)), "_fivetran_synced": T1}
    kept = {"id": "1", **dict.fromkeys(names, UNMODIFIED), "_fivetran_synced": T2}
    assert caller.write("t", columns, replace=[first]).success
    assert caller.write("t", columns, update=[kept]).success
    ((*cells, synced),) = caller.rows("t")
    assert synced == AT2
    assert cells[1:] == [
        True,
        -32768,
        2147483647,
        -9223372036854775808,
        Decimal("1234567890123456789012345678.0123456789"),
        pytest.approx(3.4028234663852886e38),
        -2.2250738585072014e-308,
        date(2007, 12, 3),
        datetime(2007, 12, 3, 10, 15, 30),
        datetime(2007, 12, 3, 10, 15, 30, 123456, tzinfo=UTC),
        b"\x00\x01\x02\xff",
        "<tag>This is\nxml</tag>",
        'say "hi", \\ and\nmore',
        '{"a": 123}',
        "10:15:30",
    ]


def test_one_request_replaces_then_updates_then_deletes(table: Caller) -> None:
    assert table.write(
        "t",
        COLUMNS,
        replace=[full(number, "x") for number in range(1, 6)],
        update=[partial(1, a="u"), partial(4, a="u"), partial(5, a="u")],
        delete=[key_only(3), key_only(4), key_only(5)],
    ).success
    assert table.rows("t", "id", "a", "b") == [(1, "u", "b"), (2, "x", "b")]


def test_the_last_of_two_rows_with_one_key_wins(table: Caller) -> None:
    rows = [full(1, "first"), full(2, "y"), full(1, "last")]
    assert table.write("t", COLUMNS, replace=rows).success
    assert table.rows("t", "id", "a") == [(1, "last"), (2, "y")]


def test_two_updates_of_one_key_add_up_in_order(table: Caller) -> None:
    assert table.write("t", COLUMNS, replace=[full(1, "x"), full(2, "x")]).success
    first_file = table.file(
        "u1", [partial(1, a="a1"), partial(1, b="b1"), partial(2, a="a1", c="7")]
    )
    second_file = table.file("u2", [partial(2, a="a2"), partial(2, b=None)])
    assert table.stub.WriteBatch(
        table.request("t", COLUMNS, update=[first_file, second_file])
    ).success
    assert table.rows("t", "id", "a", "b", "c") == [(1, "a1", "b1", 1), (2, "a2", None, 7)]


def test_only_a_full_match_of_a_composite_key_counts(caller: Caller) -> None:
    columns = ["k1*:LONG", "k2*:STRING", "v:STRING", SYNCED]
    assert caller.create("t", columns).success

    def row(k1: int, k2: str, v: str | None) -> dict:
        return {"k1": str(k1), "k2": k2, "v": v, "_fivetran_synced": T1}

    stored = [row(1, "a", "1a"), row(1, "b", "1b"), row(2, "a", "2a")]
    assert caller.write("t", columns, replace=stored).success
    assert caller.write(
        "t",
        columns,
        update=[row(1, "b", "new"), row(2, "b", "no")],
        # The other cells of a deleted row are ignored.
        delete=[row(2, "a", UNMODIFIED), row(3, "a", None)],
    ).success
    assert caller.rows("t", "k1", "k2", "v") == [(1, "a", "1a"), (1, "b", "new")]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("kinds", "first", "again"),
    [
        (["BOOLEAN", "LONG"], ["true", "1"], ["true", "1"]),
        (["DECIMAL(10,4)", "FLOAT", "DOUBLE"], ["1.5", "2.5", "1E3"], ["1.5000", "2.50", "1000"]),
        (["NAIVE_DATE"], ["2024-02-29"], ["2024-02-29"]),
        (["NAIVE_DATETIME"], ["2024-02-29T10:00:00"], ["2024-02-29T10:00:00.000"]),
        (["UTC_DATETIME"], ["2024-02-29T10:00:12Z"], ["2024-02-29T10:00:12.000Z"]),
        (["STRING"], [" É "], [" É "]),
        (["BINARY"], ["AAA="], ["AAA="]),
        (["NAIVE_TIME"], ["10:15:30"], ["10:15:30.000"]),
        (["NAIVE_TIME"], ["10:15:30.5"], ["10:15:30.500"]),
    ],
)
def test_keys_match_by_value_not_by_spelling(
    caller: Caller, kinds: list[str], first: list[str], again: list[str]
) -> None:
    names = [f"k{number}" for number in range(len(kinds))]
    columns = [*(f"{name}*:{kind}" for name, kind in zip(names, kinds, strict=True)), "v:LONG"]
    columns.append(SYNCED)
    assert caller.create("t", columns).success

    def row(key: list[str], v: str | None) -> dict:
        return {**dict(zip(names, key, strict=True)), "v": v, "_fivetran_synced": T1}

    assert caller.write("t", columns, replace=[row(first, "1")]).success
    assert caller.write("t", columns, update=[row(again, "2")]).success
    assert caller.rows("t", "v") == [(2,)]
    assert caller.write("t", columns, delete=[row(again, None)]).success
    assert caller.rows("t", "v") == []


def test_a_null_in_a_key_names_one_record(caller: Caller) -> None:
    columns = ["k1*:LONG", "k2*:STRING", "v:LONG", SYNCED]
    assert caller.create("t", columns).success
    for value in ("1", "2"):
        row = {"k1": "1", "k2": None, "v": value, "_fivetran_synced": T1}
        assert caller.write("t", columns, replace=[row]).success
    assert caller.rows("t", "k2", "v") == [(None, 2)]


def test_columns_are_found_by_name_in_request_table_and_files(table: Caller) -> None:
    first = table.file("f1", [full(1, "x")], columns=["c", "_fivetran_deleted", "a", "b"])
    headers = (
        ["c", "_fivetran_deleted", "a", "_fivetran_synced", "b", "id"],
        ["b", "id", "_fivetran_synced", "a", "c", "_fivetran_deleted"],
    )
    files = [
        table.file(f"f{number}", [full(number, f"a{number}", "b", "5")], columns=header)
        for number, header in enumerate(headers)
    ]
    shuffled = [COLUMNS[index] for index in (3, 5, 0, 2, 4, 1)]
    assert table.stub.WriteBatch(table.request("t", shuffled, replace=files)).success
    assert table.rows("t", "id", "a", "b", "c") == [(0, "a0", "b", 5), (1, "a1", "b", 5)]
    with pytest.raises(grpc.RpcError) as caught:
        table.stub.WriteBatch(table.request("t", COLUMNS, replace=[first]))
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert Path(first.path).name in caught.value.details()


def test_a_request_without_files_or_rows_changes_nothing(table: Caller) -> None:
    before = table.snapshot("t")
    assert table.write("t", COLUMNS).success
    assert table.snapshot("t") == before
    header = [text.partition(":")[0].rstrip("*") for text in COLUMNS]
    empty = write_batch_file(table.folder, "empty", csv_text(header, []))
    everywhere = table.request("t", COLUMNS, replace=[empty], update=[empty], delete=[empty])
    assert table.stub.WriteBatch(everywhere).success
    assert table.rows("t") == []


def test_a_corrupt_file_stops_the_whole_batch_and_a_good_one_makes_up_for_it(
    table: Caller,
) -> None:
    assert table.write("t", COLUMNS, replace=[full(1, "old")]).success
    before = table.snapshot("t")
    files = [table.file(f"f{number}", [full(number, "new")]) for number in (1, 2, 3)]
    path = Path(files[1].path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-16])
    request = table.request("t", COLUMNS, replace=files)
    with pytest.raises(grpc.RpcError) as caught:
        table.stub.WriteBatch(request)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert path.name in caught.value.details()
    assert table.snapshot("t") == before
    path.write_bytes(whole)
    for _ in range(2):
        assert table.stub.WriteBatch(request).success
        assert table.rows("t", "id", "a") == [(1, "new"), (2, "new"), (3, "new")]


def test_tables_written_at_once_are_all_right(caller: Caller) -> None:
    names = [f"t{number}" for number in range(5)]
    for name in names:
        assert caller.create(name, COLUMNS).success

    def write(name: str) -> bool:
        rows = [full(number, name) for number in range(20)]
        return caller.write(name, COLUMNS, replace=rows, delete=[key_only(0)]).success

    with ThreadPoolExecutor(5) as threads:
        assert all(threads.map(write, names))
    for name in names:
        assert caller.rows(name, "a") == [(name,)] * 19


def test_batches_sent_at_once_to_one_table_all_count(table: Caller) -> None:
    def write(number: int) -> bool:
        return table.write("t", COLUMNS, replace=[full(number, "x")]).success

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(write, range(4)))
    assert [id_ for (id_,) in table.rows("t", "id")] == [0, 1, 2, 3]


def test_row_counts_are_exact_in_a_large_file_and_in_many(table: Caller) -> None:
    many = [full(number, f'row "{number}",\n') for number in range(50_000)]
    assert table.write("t", COLUMNS, replace=many).success
    assert table.iceberg("t").scan().count() == 50_000
    files = [
        table.file(f"f{number}", [full(number, "own"), full(77, f"from {number}")])
        for number in range(20)
    ]
    assert table.stub.WriteBatch(table.request("t", COLUMNS, replace=files)).success
    assert table.iceberg("t").scan().count() == 50_000
    last = table.iceberg("t").scan(row_filter="id = 77").to_arrow()
    assert last["a"].to_pylist() == ["from 19"]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["id:LONG", "a:STRING", SYNCED], "no primary key"),
        (["id:LONG", "a*:STRING", SYNCED], "primary key (a) is not the table's (id)"),
        (["id*:LONG", "new:STRING", SYNCED], "AlterTable"),
        (["id*:LONG", "a:STRING", "a:STRING", SYNCED], "twice"),
        (["id*:LONG", "a:UNSPECIFIED", SYNCED], "'a'"),
    ],
)
def test_a_request_that_does_not_fit_the_table_is_a_task(
    table: Caller, columns: list[str], words: str
) -> None:
    before = table.snapshot("t")
    answer = table.write("t", columns, replace=[full(1, "x")])
    assert answer.WhichOneof("response") == "task"
    assert words in answer.task.message
    assert table.snapshot("t") == before


def test_a_missing_table_is_a_task(caller: Caller) -> None:
    answer = caller.write("nothing", COLUMNS, replace=[full(1, "x")])
    assert answer.WhichOneof("response") == "task"
    assert "does not exist" in answer.task.message


def test_a_value_that_does_not_fit_is_a_task_that_names_the_place_and_not_the_value(
    table: Caller,
) -> None:
    before = table.snapshot("t")
    answer = table.write("t", COLUMNS, replace=[full(1, "x"), full(2, "x", c="9876543210")])
    assert answer.WhichOneof("response") == "task"
    assert "row 2" in answer.task.message
    assert "column 'c'" in answer.task.message
    assert "9876543210" not in answer.task.message
    assert table.snapshot("t") == before


def test_keys_are_found_by_the_exact_path(table: Caller) -> None:
    file = table.file("f", [full(1, "x")])
    request = table.request("t", COLUMNS, replace=[file])
    del request.keys[file.path]
    request.keys[Path(file.path).name] = file.key
    with pytest.raises(grpc.RpcError) as caught:
        table.stub.WriteBatch(request)
    assert file.path in caught.value.details()
    assert table.rows("t") == []


@pytest.mark.parametrize(
    ("compression", "encrypted"), [("off", False), ("gzip", True), ("zstd", False)]
)
def test_every_compression_and_no_encryption_are_read(
    table: Caller, *, compression: str, encrypted: bool
) -> None:
    form = {"compression": compression, "encrypted": encrypted}
    file = table.file('odd name "ä" ', [full(1, "x")], **form)
    request = table.request("t", COLUMNS, replace=[file], **form)
    if not encrypted:
        # A key that is not needed is ignored.
        request.keys[file.path] = b"short"
    assert table.stub.WriteBatch(request).success
    assert table.rows("t", "id", "a") == [(1, "x")]


def test_a_wrong_key_or_compression_is_an_error_and_changes_nothing(table: Caller) -> None:
    file = table.file("f", [full(1, "x")])
    wrong = SentFile(file.path, bytes(32))
    for request in (
        table.request("t", COLUMNS, replace=[wrong]),
        table.request("t", COLUMNS, replace=[file], compression="gzip"),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            table.stub.WriteBatch(request)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert file.path in caught.value.details()
        assert wrong.key.hex() not in caught.value.details()
    assert table.rows("t") == []


def test_a_missing_file_is_an_error_that_names_it(table: Caller) -> None:
    file = SentFile(str(table.folder / "nowhere.csv"), bytes(32))
    with pytest.raises(grpc.RpcError) as caught:
        table.stub.WriteBatch(table.request("t", COLUMNS, replace=[file]))
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "nowhere.csv" in caught.value.details()
