"""CSV files: the dialect byte for byte, the markers, and errors with their row and column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import structlog

from chronolake.batch_files import csv_file
from chronolake.change_set import OP, SEQ, Op
from chronolake.change_set import UNMODIFIED as WORDS
from chronolake.errors import MalformedFileError, OversizeError, ValueRefusedError
from chronolake.types import ColumnType, Kind
from support import batch_writer
from support.batch_columns import Decode, values
from support.batch_writer import NULL, UNMODIFIED

TRICKY = [
    "comma, inside",
    'a "quoted" word',
    '"',
    '""',
    "line\nfeed",
    "carriage\r\nreturn",
    "\r",
    "tab\there",
    "ends with a backslash\\",
    '\\"',
    "\\n",
    "emoji 😀 and 漢字",
    " spaces around ",
    "'",
    "null",
    "",
    "a\x00b",
    "\ufeff",
    "-1",
]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last_end", [True, False])
@pytest.mark.parametrize("block_size", [1, 5, 64, 1 << 20])
def test_cells_round_trip_byte_for_byte(
    decode: Decode, end: str, *, last_end: bool, block_size: int
) -> None:
    rows = [(str(number), text) for number, text in enumerate(TRICKY)]
    content = batch_writer.csv_bytes(["id", "text"], rows, end=end, last_end=last_end)
    table = decode(content, {"text": Kind.STRING, "id": Kind.LONG}, block_size=block_size)
    assert values(table, "text") == TRICKY
    assert values(table, "id") == list(range(len(TRICKY)))
    assert values(table, SEQ) == list(range(len(TRICKY)))
    assert set(values(table, OP)) == {int(Op.REPLACE)}


def test_a_single_column_of_empty_cells_has_rows(decode: Decode) -> None:
    assert values(decode('v\na\n\n""\n', {"v": Kind.STRING}), "v") == ["a", "", ""]


def test_the_header_decides_the_order(decode: Decode) -> None:
    kinds = {"a": Kind.INT, "größe, cm": Kind.INT, 'say "hi"': Kind.INT}
    first = decode('a,"größe, cm","say ""hi"""\n1,2,3\n', kinds)
    second = decode('"say ""hi""",a,unknown,"größe, cm"\r\n3,1,x,2\r\n', kinds)
    assert first.to_pylist() == second.to_pylist()
    assert first.column_names[3:] == list(kinds)


def test_names_differ_by_case(decode: Decode) -> None:
    table = decode("Id,ID,id\n1,2,3\n", {"id": Kind.INT, "Id": Kind.INT, "ID": Kind.INT})
    assert [values(table, name) for name in ("id", "Id", "ID")] == [[3], [1], [2]]


@pytest.mark.parametrize("block_size", [1, 1 << 20])
def test_null_is_the_marker_quoted_or_not(decode: Decode, block_size: int) -> None:
    content = f'v,n,b\nnull,1,AA==\n,,\n{NULL},{NULL},{NULL}\n"{NULL}","{NULL}","{NULL}"\n'
    kinds = {"v": Kind.STRING, "n": Kind.LONG, "b": Kind.BINARY}
    table = decode(content, kinds, block_size=block_size)
    assert values(table, "v") == ["null", "", None, None]
    assert values(table, "n") == [1, None, None, None]
    assert values(table, "b") == [b"\x00", b"", None, None]


def test_a_marker_within_a_longer_text_is_text(decode: Decode) -> None:
    table = decode(f"v\nx{NULL}\n{NULL}y\n", {"v": Kind.STRING})
    assert values(table, "v") == [f"x{NULL}", f"{NULL}y"]


def test_an_empty_null_marker_makes_empty_cells_null(decode: Decode) -> None:
    table = decode('v,n\n,1\n"",2\nx,\n', {"v": Kind.STRING, "n": Kind.INT}, null="")
    assert values(table, "v") == [None, None, "x"]
    assert values(table, "n") == [1, 2, None]


ALL_KINDS: dict[str, tuple[Kind | ColumnType, str, Any]] = {
    "boolean": (Kind.BOOLEAN, "true", True),
    "short": (Kind.SHORT, "1", 1),
    "int": (Kind.INT, "2", 2),
    "long": (Kind.LONG, "3", 3),
    "decimal": (ColumnType(Kind.DECIMAL, 38, 37), "4", 4),
    "float": (Kind.FLOAT, "5", 5.0),
    "double": (Kind.DOUBLE, "6", 6.0),
    "date": (Kind.NAIVE_DATE, "1970-01-08", 7),
    "naive": (Kind.NAIVE_DATETIME, "1970-01-01T00:00:08", 8_000_000),
    "utc": (Kind.UTC_DATETIME, "1970-01-01T00:00:09Z", 9_000_000),
    "binary": (Kind.BINARY, "AA==", b"\x00"),
    "xml": (Kind.XML, "<a/>", "<a/>"),
    "string": (Kind.STRING, "s", "s"),
    "json": (Kind.JSON, "{}", "{}"),
    "time": (Kind.NAIVE_TIME, "10:00", "10:00:00"),
}


def flags(table: Any, names: list[str]) -> list[set[str] | None]:
    """Return the unmodified columns of each row, from the bit words."""
    return [
        None
        if words is None
        else {name for i, name in enumerate(names) if words[i // 64] >> (i % 64) & 1}
        for words in values(table, WORDS)
    ]


@pytest.mark.parametrize("with_null", [True, False])
@pytest.mark.parametrize("with_empty", [True, False])
def test_unmodified_cells_of_every_type_are_distinguished_from_null(
    decode: Decode, *, with_null: bool, with_empty: bool
) -> None:
    names = list(ALL_KINDS)
    rows = [[text for _, text, _ in ALL_KINDS.values()]]
    rows += [
        [f'"{UNMODIFIED}"' if name == other else ALL_KINDS[other][1] for other in names]
        for name in names
    ]
    rows.append([f'"{UNMODIFIED}"'] * len(names))
    if with_null:
        rows.append([NULL] * len(names))
    if with_empty:
        rows.append([""] * len(names))
    content = "\n".join(",".join(row) for row in [names, *rows])
    kinds = {name: kind for name, (kind, _, _) in ALL_KINDS.items()}
    table = decode(content, kinds, op=Op.UPDATE)
    found = flags(table, names)
    assert found[0] is None
    assert found[1 : len(names) + 1] == [{name} for name in names]
    assert found[len(names) + 1] == set(names)
    assert found[len(names) + 2 :] == [None] * (with_null + with_empty)
    for name, (_, _, value) in ALL_KINDS.items():
        column = values(table, name)
        assert column[0] == value
        assert column[names.index(name) + 1] is None
        assert column[len(names) + 1] is None


def test_unmodified_words_cover_wide_tables(decode: Decode) -> None:
    names = [f"c{number}" for number in range(200)]
    some = {"c0", "c63", "c64", "c127", "c199"}
    row = ",".join(UNMODIFIED if name in some else "1" for name in names)
    content = f"{','.join(names)}\n{','.join('1' for _ in names)}\n{row}\n"
    table = decode(content, dict.fromkeys(names, Kind.INT), op=Op.UPDATE)
    assert flags(table, names) == [None, some]
    assert len(values(table, WORDS)[1]) == 4


@pytest.mark.parametrize("kind", [Kind.STRING, Kind.INT])
@pytest.mark.parametrize("with_null", [True, False])
def test_markers_may_hold_quotes(decode: Decode, kind: Kind, *, with_null: bool) -> None:
    content = 'k,v\n1,"un""mod"\n2,7\n' + ('3,"n""ull"\n' if with_null else "")
    kinds = {"k": Kind.INT, "v": kind}
    table = decode(content, kinds, op=Op.UPDATE, null='n"ull', unmodified='un"mod')
    assert flags(table, ["k", "v"]) == [{"v"}, None, *([None] * with_null)]
    seven = "7" if kind is Kind.STRING else 7
    assert values(table, "v") == [None, seven, *([None] * with_null)]


@pytest.mark.parametrize("op", [Op.EARLIEST, Op.DELETE])
@pytest.mark.parametrize("cell", ["text", f'"{UNMODIFIED}"', "1e99", ""])
def test_rows_that_only_identify_a_record_may_have_any_other_cells(
    decode: Decode, op: Op, cell: str
) -> None:
    kinds = {"k": Kind.INT, "v": Kind.INT}
    table = decode(f"k,v\n1,{cell}\n", kinds, op=op, required=["k"])
    assert values(table, "k") == [1]
    assert values(table, "v") == [None]


@pytest.mark.parametrize("op", [Op.EARLIEST, Op.REPLACE, Op.DELETE])
@pytest.mark.parametrize("kind", [Kind.STRING, Kind.INT, Kind.BINARY])
def test_the_unmodified_marker_outside_update_files_is_refused(
    decode: Decode, op: Op, kind: Kind
) -> None:
    with pytest.raises(ValueRefusedError, match="unmodified marker") as caught:
        decode(f'k,v\n1,\n2,"{UNMODIFIED}"\n', {"k": Kind.INT, "v": kind}, op=op)
    assert (caught.value.row, caught.value.column) == (2, "v")


@pytest.mark.parametrize("kind", [Kind.STRING, Kind.INT])
def test_the_unmodified_marker_in_a_key_is_refused(decode: Decode, kind: Kind) -> None:
    rows = [f"{number},{UNMODIFIED}" for number in range(1, 40)]
    content = "\n".join(["k,v", *rows, f"{UNMODIFIED},x", f"41,{UNMODIFIED}"])
    kinds = {"k": kind, "v": Kind.STRING}
    assert decode(content, kinds, op=Op.UPDATE).num_rows == 41
    with pytest.raises(ValueRefusedError, match="unmodified marker, in a key") as caught:
        decode(content, kinds, op=Op.UPDATE, primary_key=["k"], block_size=64)
    assert (caught.value.row, caught.value.column) == (40, "k")


@pytest.mark.parametrize("kind", [Kind.INT, Kind.UTC_DATETIME, Kind.BOOLEAN, Kind.DECIMAL])
def test_an_empty_cell_in_a_key_of_another_type_than_text_is_refused(
    decode: Decode, kind: Kind
) -> None:
    rows = [f"{number},{NULL}" for number in range(1, 40)]
    content = "\n".join(["v,k", *rows, "40,", f'41,"{NULL}"'])
    kinds = {"k": ColumnType(kind, 5, 2) if kind is Kind.DECIMAL else kind, "v": Kind.STRING}
    assert values(decode(content, kinds), "k") == [None] * 41
    with pytest.raises(ValueRefusedError, match="it is empty") as caught:
        decode(content, kinds, primary_key=["k"], block_size=64)
    assert (caught.value.row, caught.value.column) == (40, "k")


@pytest.mark.parametrize("kind", [Kind.STRING, Kind.JSON, Kind.BINARY])
def test_an_empty_text_may_be_a_key(decode: Decode, kind: Kind) -> None:
    table = decode("k,v\n,1\n", {"k": kind, "v": Kind.INT}, primary_key=["k"])
    assert values(table, "k") == [b"" if kind is Kind.BINARY else ""]


@pytest.mark.parametrize("kind", [Kind.UTC_DATETIME, Kind.NAIVE_DATETIME])
def test_a_file_that_is_cut_within_a_time_gives_no_other_time(decode: Decode, kind: Kind) -> None:
    """Without compression and encryption, only the cell itself shows that the file was cut."""
    whole = "id,at\n1,2024-06-15T13:45:07Z\n2,2024-06-15T13:45:07"
    assert values(decode(whole, {"id": Kind.INT, "at": kind}), "at")[1] == 1_718_459_107_000_000
    begin = whole.rindex("2024")
    for end in range(begin + 1, len(whole)):
        with pytest.raises(ValueRefusedError) as caught:
            decode(whole[:end], {"id": Kind.INT, "at": kind})
        assert (caught.value.row, caught.value.column) == (2, "at")


def test_the_unmodified_marker_in_an_unused_column_is_ignored(decode: Decode) -> None:
    table = decode(f"k,v\n1,{UNMODIFIED}\n", {"k": Kind.INT})
    assert values(table, "k") == [1]


@pytest.mark.parametrize("content", ["a,b\n", "a,b", "a,b\r\n", '"a","b"'])
def test_a_header_alone_has_no_rows(decode: Decode, content: str) -> None:
    with structlog.testing.capture_logs() as logs:
        assert decode(content, {"a": Kind.INT, "b": Kind.INT}).num_rows == 0
    assert logs == []


@pytest.mark.parametrize("compression", ["off", "zstd", "gzip"])
def test_a_file_without_a_byte_has_no_rows_and_a_warning(
    decode: Decode, key: bytes, compression: str
) -> None:
    with structlog.testing.capture_logs() as logs:
        table = decode("", {"a": Kind.INT}, compression=compression, key=key, required=["a"])
    assert table.num_rows == 0
    assert [(log["event"], log["log_level"]) for log in logs] == [
        ("batch_file_without_header", "warning")
    ]


def test_adjusted_values_are_logged_by_count_only(decode: Decode) -> None:
    with structlog.testing.capture_logs() as logs:
        decode("v\n[B@7d4991ad\n[B@1\nAA==\n", {"v": Kind.BINARY})
    (log,) = logs
    assert log["log_level"] == "warning"
    assert (log["column"], log["not_base64_kept_as_text"]) == ("v", 2)
    assert (log["table"], log["batch"]) == ("sample.table", "batch-1")
    assert "B@" not in str(log)


def test_absent_columns_are_null_unless_required(decode: Decode) -> None:
    kinds = {"a": Kind.INT, "b": ColumnType(Kind.DECIMAL, 9, 2), "c": Kind.UTC_DATETIME}
    table = decode("a\n1\n", kinds, op=Op.DELETE, required=["a"])
    assert table.slice(0, 1).to_pylist()[0]["b"] is None
    assert [table[name].type for name in kinds] == [
        kind.arrow if isinstance(kind, ColumnType) else ColumnType(kind).arrow
        for kind in kinds.values()
    ]
    with pytest.raises(MalformedFileError) as caught:
        decode("a\n1\n", kinds, op=Op.DELETE, required=["a", "c"])
    assert caught.value.column == "c"


def test_a_file_of_other_columns_only_still_has_rows(decode: Decode) -> None:
    assert values(decode("x,y\n1,2\n3,4\n", {"a": Kind.INT}), "a") == [None, None]


def test_a_name_twice_is_refused(decode: Decode) -> None:
    with pytest.raises(MalformedFileError, match="same name") as caught:
        decode("a,b,a\n1,2,3\n", {"a": Kind.INT})
    assert caught.value.column == "a"


@pytest.mark.parametrize(
    ("content", "row"),
    [
        ("a,b\n1,2\n3\n", 2),
        ("a,b\n1,2\n3,4,5\n6,7\n", 2),
        ("a,b\n1,2\n\n3,4\n", 2),
        ('a,b\n1,2\n3,"4\n', 2),
        ('a,b\n1,2\n3,x"4"\n', 2),
        ('a,b\n"1\n","2\n"\n3,"4"x\n', 2),
        ("a,b\n1,2\r3,4\n", 1),
    ],
)
@pytest.mark.parametrize("block_size", [1, 1 << 20])
def test_a_malformed_row_is_named(decode: Decode, content: str, row: int, block_size: int) -> None:
    with pytest.raises(MalformedFileError) as caught:
        decode(content, {"a": Kind.STRING, "b": Kind.STRING}, block_size=block_size)
    assert caught.value.row == row
    assert caught.value.file is not None
    assert caught.value.hint is not None


@pytest.mark.parametrize(
    ("kind", "cell", "hint"),
    [
        (Kind.SHORT, b"40000", "wider type"),
        (Kind.FLOAT, b"1e300", "wider type"),
        (Kind.DECIMAL, b"1" * 60, "wider type"),
        (Kind.BOOLEAN, b"1", "Write it like true"),
        (Kind.NAIVE_DATE, b"2023-02-30", "Write it like 2024-02-29"),
        (Kind.UTC_DATETIME, b"today", "Write it like 2024-02-29T10:15:30.123Z"),
        (Kind.NAIVE_TIME, b"25:00:00", "Write it like 10:15:30"),
        (Kind.DECIMAL, b"12,50", "Write it like 12.50"),
        (Kind.STRING, b"\xff", "UTF-8"),
    ],
)
def test_an_error_has_a_hint(decode: Decode, kind: Kind, cell: bytes, hint: str) -> None:
    with pytest.raises(ValueRefusedError) as caught:
        decode(b'k,v\n1,"' + cell + b'"\n', {"k": Kind.INT, "v": kind})
    assert hint in str(caught.value.hint)


def test_quotes_do_not_make_an_empty_line_valid(decode: Decode) -> None:
    with pytest.raises(MalformedFileError, match="a line is empty") as caught:
        decode("a,b\n1,2\n\n3,4\n", {"a": Kind.STRING, "b": Kind.STRING})
    assert "Do not write empty lines" in str(caught.value.hint)


def test_a_parquet_file_is_not_csv(decode: Decode) -> None:
    with pytest.raises(MalformedFileError, match="not a header"):
        decode(b"PAR1\x15\x04,a\n1,2\n", {"a": Kind.INT})


@pytest.mark.parametrize(
    ("op", "hint"), [(Op.DELETE, "Write k; names"), (Op.REPLACE, "Write every column of")]
)
def test_a_missing_column_is_an_error_where_it_is_required(
    decode: Decode, op: Op, hint: str
) -> None:
    with pytest.raises(MalformedFileError) as caught:
        decode("v\n1\n", {"k": Kind.INT, "v": Kind.INT}, op=op, required=["k"])
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("content", [b"\xff\xfe,a\n1,2\n", b'a,"b\n1,2\n', b'a"b,c\n1,2\n'])
def test_an_invalid_header_is_refused(decode: Decode, content: bytes) -> None:
    with pytest.raises(MalformedFileError):
        decode(content, {"a": Kind.INT})


@pytest.mark.parametrize("bad", [1, 2, 999, 1000, 5000])
def test_the_row_of_a_bad_cell_is_counted_through_blocks(decode: Decode, bad: int) -> None:
    rows = [f'{number},"line\nbreak","{number}"' for number in range(1, 5001)]
    rows[bad - 1] = rows[bad - 1].replace(f'"{bad}"', "secret")
    content = "\n".join(["id,text,n", *rows])
    kinds = {"id": Kind.LONG, "text": Kind.STRING, "n": Kind.LONG}
    with pytest.raises(ValueRefusedError) as caught:
        decode(content, kinds, block_size=4096)
    assert (caught.value.row, caught.value.column) == (bad, "n")
    assert "secret" not in str(caught.value)


def test_forms_that_change_within_a_file_are_all_read(decode: Decode) -> None:
    times = [
        "2024-01-01T00:00:00Z",
        "2024-01-01T00:00:00.123456789Z",
        "2024-01-01T00:00:00",
        "",
        "2024-01-01T02:00:00+02:00",
        "0000-01-01T00:00:00Z",
    ]
    names = [f"t{number}" for number in range(12)]
    rows = [",".join([text] * len(names)) for text in times for _ in range(50)]
    content = "\n".join([",".join(names), *rows])
    table = decode(content, dict.fromkeys(names, Kind.UTC_DATETIME), block_size=700)
    base = int(np.datetime64("2024-01-01", "us").astype(np.int64))
    expected = [base, base + 123456, base, None, base, -62_135_596_800_000_000]
    for name in names:
        assert values(table, name) == [time for time in expected for _ in range(50)]


def test_a_cell_of_27_mib_is_read(decode: Decode, key: bytes) -> None:
    text = 'long, "quoted"\n' * (27 * 1024 * 1024 // 15)
    content = batch_writer.csv_bytes(["id", "text"], [("1", "a"), ("2", text), ("3", "b")])
    table = decode(content, {"id": Kind.INT, "text": Kind.STRING}, compression="zstd", key=key)
    assert values(table, "text")[1] == text
    assert values(table, "id") == [1, 2, 3]


def test_a_row_beyond_the_limit_is_refused_with_the_limit(decode: Decode) -> None:
    content = b"id,text\n1,a\n2," + b"x" * (csv_file.RECORD_LIMIT + (1 << 23)) + b"\n"
    with pytest.raises(OversizeError, match="64 MiB") as caught:
        decode(content, {"id": Kind.INT, "text": Kind.STRING})
    assert caught.value.row == 2


def test_a_table_of_a_thousand_columns_is_read(decode: Decode) -> None:
    names = [f"c{number}" for number in range(1000)]
    rows = [[str(row * number) for number in range(1000)] for row in range(200)]
    table = decode(batch_writer.csv_bytes(names, rows), dict.fromkeys(names, Kind.LONG))
    assert values(table, "c999") == [row * 999 for row in range(200)]
