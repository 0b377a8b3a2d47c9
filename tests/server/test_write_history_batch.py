"""WriteHistoryBatch over gRPC: required parts of requests and files, and the worked example."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import grpc
import pytest
import structlog

from support.server.caller import DELETED, HISTORY, SYNCED, Caller, column_texts
from support.server.sent_files import UNMODIFIED

COLUMNS = ["k*:LONG", "a:STRING", "b:STRING", *HISTORY]
TMAX = "9999-12-31T23:59:59.999Z"
MAX = datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)
SHOWN = ("k", "a", "b", "_fivetran_start", "_fivetran_end", "_fivetran_active")


def version(k: int, a: str | None, b: str | None, start: str, end: str = TMAX) -> dict:
    return {
        "k": str(k),
        "a": a,
        "b": b,
        "_fivetran_synced": "2024-06-01T00:00:00Z",
        "_fivetran_start": f"{start}T00:00:00Z",
        "_fivetran_end": end,
        "_fivetran_active": "true" if end == TMAX else "false",
    }


def just_before(day: str) -> str:
    return f"{datetime.fromisoformat(day) - timedelta(days=1):%Y-%m-%d}T23:59:59.999Z"


def at(day: str) -> datetime:
    return datetime.fromisoformat(day).replace(tzinfo=UTC)


def before(day: str) -> datetime:
    return at(day) - timedelta(milliseconds=1)


@pytest.fixture
def table(caller: Caller) -> Caller:
    """Return a caller whose table has the stored versions of the specification's worked example."""
    assert caller.create("t", COLUMNS).success
    stored = [
        version(7, "x0", "y0", "2024-01-01", just_before("2024-02-01")),
        version(7, "x1", "y1", "2024-02-01"),
        version(8, "p", "q", "2024-01-10"),
        version(9, "r", "s", "2024-01-15"),
    ]
    request = caller.request("t", COLUMNS, history=True, replace=[caller.file("f", stored)])
    assert caller.stub.WriteHistoryBatch(request).success
    return caller


def test_a_caller_may_omit_the_start_from_the_key(caller: Caller) -> None:
    columns = [column.replace("_start*", "_start") for column in COLUMNS]
    assert caller.create("t", columns).success
    assert column_texts(caller.describe("t").table.columns) == COLUMNS
    twice = [version(1, "x0", "y0", "2024-01-01"), version(1, "x1", "y1", "2024-02-01")]
    assert caller.write("t", columns, replace=twice).success
    changes = [version(1, "x2", UNMODIFIED, "2024-02-01")]
    assert caller.write("t", columns, update=changes).success
    assert caller.rows("t", "k", "a", "b") == [(1, "x0", "y0"), (1, "x2", "y1")]
    assert caller.alter("t", [*columns, "c:STRING"]).success
    assert column_texts(caller.describe("t").table.columns) == [*COLUMNS, "c:STRING"]
    assert caller.write("t", columns, delete=twice[:1]).success
    assert caller.rows("t", "k", "a", "b") == [(1, "x2", "y1")]


@pytest.mark.parametrize("start_is_in_the_key", [True, False])
def test_the_worked_example_gives_its_table_once_and_twice(
    table: Caller, *, start_is_in_the_key: bool
) -> None:
    columns = COLUMNS
    if not start_is_in_the_key:
        columns = [column.replace("_start*", "_start") for column in COLUMNS]
    starts = [(7, "2024-03-01"), (8, "2024-01-05")]
    request = table.request(
        "t",
        columns,
        history=True,
        earliest=[
            table.file("e", [{"k": str(k), "_fivetran_start": f"{day}T00:00:00Z"}])
            for k, day in starts
        ],
        replace=[table.file("r", [version(8, "P", "Q", "2024-01-05")])],
        update=[
            table.file(
                "u",
                [
                    version(7, "x2", UNMODIFIED, "2024-03-01", just_before("2024-04-01")),
                    version(7, UNMODIFIED, "y3", "2024-04-01"),
                ],
            )
        ],
        # In production, a delete file contains no more than this.
        delete=[table.file("d", [{"k": "9", "_fivetran_end": "2024-03-03T00:00:00Z"}])],
    )
    for _ in range(2):
        assert table.stub.WriteHistoryBatch(request).success
        assert table.rows("t", *SHOWN) == sorted(
            [
                (7, "x0", "y0", at("2024-01-01"), before("2024-02-01"), False),
                (7, "x1", "y1", at("2024-02-01"), before("2024-03-01"), False),
                (7, "x2", "y1", at("2024-03-01"), before("2024-04-01"), False),
                (7, "x2", "y3", at("2024-04-01"), MAX, True),
                (8, "P", "Q", at("2024-01-05"), MAX, True),
                (9, "r", "s", at("2024-01-15"), at("2024-03-03"), False),
            ],
            key=repr,
        )


@pytest.mark.parametrize("repeats", [False, True])
def test_versions_of_an_empty_table_are_taken_as_sent(caller: Caller, *, repeats: bool) -> None:
    """The last of two rows with the same start counts; several versions do not end each other."""
    assert caller.create("t", [*COLUMNS, "c:STRING"]).success
    rows = [
        version(1, "x0", "y0", "2024-01-01", just_before("2024-02-01")),
        version(1, "x1", None, "2024-02-01"),
        version(2, "p", "q", "2024-01-10") | {"_fivetran_end": "9999-12-31T23:59:59.999999Z"},
    ]
    if repeats:
        rows.insert(1, version(2, "first", "q", "2024-01-10"))
    starts = [{"k": str(k), "_fivetran_start": "2024-01-01T00:00:00Z"} for k in (1, 2, 3)]
    files = {"earliest": [caller.file("e", starts)], "replace": [caller.file("r", rows)]}
    request = caller.request("t", COLUMNS, history=True, earliest=files["earliest"])
    assert caller.stub.WriteHistoryBatch(request).success
    assert caller.rows("t", *SHOWN) == []
    request = caller.request("t", COLUMNS, history=True, **files)
    for _ in range(2):
        assert caller.stub.WriteHistoryBatch(request).success
        assert caller.rows("t", *SHOWN, "c") == [
            (1, "x0", "y0", at("2024-01-01"), before("2024-02-01"), False, None),
            (1, "x1", None, at("2024-02-01"), MAX, True, None),
            (2, "p", "q", at("2024-01-10"), MAX, True, None),
        ]


def test_the_example_of_the_document_gives_its_final_table(caller: Caller) -> None:
    """Source: `seeds/history-batch-files.txt`; T1 to T5 are days, T100 to T109 days of a year."""
    columns = ["ID*:LONG", "COL1:STRING", "COL2:LONG", *HISTORY]
    day = {f"T{number}": f"2024-01-0{number}" for number in range(1, 6)}
    synced = {f"T{number}": f"2024-03-{number - 99:02}" for number in range(100, 110)}

    def row(id_: int, col1: str, col2: str, start: str, end: str, at: str) -> dict:
        """Return a row of the document: its end is another version's start, less 1 ms, or TMAX."""
        return {
            "ID": str(id_),
            "COL1": col1,
            "COL2": col2,
            "_fivetran_synced": f"{synced[at]}T00:00:00Z",
            "_fivetran_start": f"{day[start]}T00:00:00Z",
            "_fivetran_end": TMAX if end == "TMAX" else just_before(day[end]),
            "_fivetran_active": str(end == "TMAX").lower(),
        }

    assert caller.create("t", columns).success
    stored = [
        row(1, "abc", "1", "T1", "T2", "T100"),
        row(1, "pqr", "2", "T2", "TMAX", "T101"),
        row(2, "mno", "3", "T2", "TMAX", "T103"),
    ]
    assert caller.write("t", columns, replace=stored).success
    starts = [
        {"ID": id_, "_fivetran_start": f"{day[start]}T00:00:00Z"}
        for id_, start in (("1", "T3"), ("2", "T4"))
    ]
    updates = [
        row(1, "xyz", UNMODIFIED, "T3", "T5", "T107"),
        row(1, "def", UNMODIFIED, "T5", "TMAX", "T109"),
        row(2, UNMODIFIED, "1000", "T4", "TMAX", "T108"),
    ]
    request = caller.request(
        "t",
        columns,
        history=True,
        earliest=[caller.file("earliest", starts)],
        update=[caller.file("update", updates)],
    )
    assert caller.stub.WriteHistoryBatch(request).success

    shown = ("ID", "COL1", "COL2", "_fivetran_start", "_fivetran_end", "_fivetran_active")
    expected = [
        (1, "abc", 1, "T1", "T2", "T100"),
        (1, "pqr", 2, "T2", "T3", "T101"),
        (2, "mno", 3, "T2", "T4", "T103"),
        (1, "def", 2, "T5", "TMAX", "T109"),
        (1, "xyz", 2, "T3", "T5", "T107"),
        (2, "mno", 1000, "T4", "TMAX", "T108"),
    ]
    assert caller.rows("t", *shown, "_fivetran_synced") == sorted(
        [
            (
                *(id_, col1, col2, at(day[start])),
                *((MAX, True) if end == "TMAX" else (before(day[end]), False)),
                at(synced[moment]),
            )
            for id_, col1, col2, start, end, moment in expected
        ],
        key=repr,
    )


def test_each_kind_of_file_needs_its_columns(table: Caller) -> None:
    whole = version(7, "a", "b", "2024-05-01")
    lacking = {
        "earliest": ("_fivetran_start", {"k": "7"}),
        "replace": ("b", {name: cell for name, cell in whole.items() if name != "b"}),
        "update": ("a", {name: cell for name, cell in whole.items() if name != "a"}),
        "delete": ("_fivetran_end", {"k": "7", "_fivetran_synced": "2024-06-01T00:00:00Z"}),
    }
    stored = table.snapshot("t")
    for kind, (column, row) in lacking.items():
        file = table.file(kind, [row])
        request = table.request("t", COLUMNS, history=True, **{kind: [file]})
        with pytest.raises(grpc.RpcError) as caught:
            table.stub.WriteHistoryBatch(request)
        assert column in caught.value.details(), kind
        assert file.path in caught.value.details(), kind
    assert table.snapshot("t") == stored


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("kind", "column", "cell"),
    [
        ("earliest", "_fivetran_start", None),
        ("replace", "_fivetran_start", None),
        ("replace", "_fivetran_end", None),
        ("update", "_fivetran_end", UNMODIFIED),
        ("update", "_fivetran_active", UNMODIFIED),
        ("update", "_fivetran_active", None),
        ("delete", "_fivetran_end", None),
    ],
)
def test_a_version_without_its_times_is_named(
    table: Caller, kind: str, column: str, cell: str | None
) -> None:
    rows = [version(7, "a", "b", day) for day in ("2024-05-01", "2024-06-01", "2024-07-01")]
    rows[1][column] = cell
    stored = table.snapshot("t")
    file = table.file(kind, rows)
    request = table.request("t", COLUMNS, history=True, **{kind: [file]})
    reported = table.stub.WriteHistoryBatch(request).task.message
    assert f"file '{file.path}', row 2, column '{column}'" in reported
    assert table.snapshot("t") == stored


@pytest.mark.sampled
@pytest.mark.parametrize(
    "end",
    [TMAX.replace("999Z", "999999999Z"), TMAX.replace(".999Z", "Z"), "+10000-01-01T00:00:00Z"],
)
def test_the_end_of_time_may_be_written_with_other_digits(table: Caller, end: str) -> None:
    rows = [version(7, "a", "b", "2024-05-01"), version(8, "a", UNMODIFIED, "2024-05-01")]
    for row in rows:
        row |= {"_fivetran_end": end, "_fivetran_active": "true"}
    request = table.request(
        "t",
        COLUMNS,
        history=True,
        replace=[table.file("r", rows[:1])],
        update=[table.file("u", rows[1:])],
    )
    for _ in range(2):
        assert table.stub.WriteHistoryBatch(request).success
        assert [row for row in table.rows("t", *SHOWN) if row[0] != 9 and row[-1]] == [
            (7, "a", "b", at("2024-05-01"), MAX, True),
            (8, "a", "q", at("2024-05-01"), MAX, True),
        ]
    # WriteBatch writes versions to a history table, too.
    assert table.write("t", COLUMNS, replace=rows[:1]).success
    assert [row[-2:] for row in table.rows("t", *SHOWN) if row[0] == 7 and row[-1]] == [(MAX, True)]


def test_a_delete_from_before_the_switch_to_history_closes_the_record(caller: Caller) -> None:
    """A delete from before the switch to history closes the record.

    The versions of a switched table start at its last sync, and deletes may be earlier.
    """
    soft, marker = ["k*:LONG", "a:STRING", SYNCED, DELETED], "_fivetran_deleted"
    rows = [
        {"k": str(k), "a": "x", "_fivetran_synced": "2024-05-01T10:00:05Z", marker: "false"}
        for k in (1, 2, 3)
    ]
    assert caller.create("t", soft).success
    assert caller.write("t", soft, replace=rows).success
    assert caller.migrate("t", "SOFT_DELETE_TO_HISTORY", soft_deleted_column=marker).success
    deletes = [
        {"k": str(k), "_fivetran_end": f"2024-05-01T10:00:0{second}Z"}
        for k, second in ((1, 3), (2, 7))
    ]
    columns = ["k*:LONG", "a:STRING", *HISTORY]
    request = caller.request("t", columns, history=True, delete=[caller.file("d", deletes)])
    start, deleted = (datetime(2024, 5, 1, 10, 0, second, tzinfo=UTC) for second in (5, 7))
    warned = []
    for _ in range(2):
        with structlog.testing.capture_logs() as logged:
            assert caller.stub.WriteHistoryBatch(request).success
        assert caller.rows("t", "k", "_fivetran_start", "_fivetran_end", "_fivetran_active") == [
            (1, start, start, False),
            (2, start, deleted, False),
            (3, start, MAX, True),
        ]
        warned += [line for line in logged if line["event"] == "deletes_precede_their_versions"]
    ((rows_warned, table),) = [(line["rows"], line["table"]) for line in warned]
    assert (rows_warned, table) == (1, f"{caller.schema}.t")


def test_an_upsert_and_a_delete_at_one_time_make_an_inactive_version(table: Caller) -> None:
    """`seeds/history-mode.txt`, "Identical _fivetran_start and _fivetran_end values"."""
    day = "2024-05-01T00:00:00Z"
    request = table.request(
        "t",
        COLUMNS,
        history=True,
        earliest=[table.file("e", [{"k": "20", "_fivetran_start": day}])],
        replace=[table.file("r", [version(20, "x", "y", "2024-05-01")])],
        delete=[table.file("d", [{"k": "20", "_fivetran_end": day}])],
    )
    for _ in range(2):
        assert table.stub.WriteHistoryBatch(request).success
        found = [row for row in table.rows("t", *SHOWN) if row[0] == 20]
        assert found == [(20, "x", "y", at("2024-05-01"), at("2024-05-01"), False)]


def test_versions_that_contradict_themselves_are_taken_and_counted(table: Caller) -> None:
    rows = [
        version(1, "fits", "b", "2024-05-01"),
        version(2, "active, but ends", "b", "2024-05-01", "2024-06-01T00:00:00Z"),
        version(3, "inactive, but does not end", "b", "2024-05-01"),
        version(4, "ends before it starts", "b", "2024-05-01", "2024-04-01T00:00:00Z"),
        version(5, "shorter than a millisecond", "b", "2024-05-01", "2024-04-30T23:59:59.9991Z"),
        version(6, "a millisecond before it starts", "b", "2024-05-01", "2024-04-30T23:59:59.999Z"),
    ]
    rows[1]["_fivetran_active"], rows[2]["_fivetran_active"] = "true", "false"
    request = table.request("t", COLUMNS, history=True, replace=[table.file("r", rows)])
    with structlog.testing.capture_logs() as logged:
        assert table.stub.WriteHistoryBatch(request).success
    (warned,) = [line for line in logged if line["event"] == "versions_contradict_themselves"]
    assert (warned["log_level"], warned["rows"]) == ("warning", 4)
    assert warned["table"] == f"{table.schema}.t"
    assert len([row for row in table.rows("t", "k") if row[0] < 7]) == len(rows)


def test_a_version_that_ends_before_it_starts_is_removed_like_any_other(table: Caller) -> None:
    def send(day: str, value: str, end: str = TMAX) -> None:
        earliest = [{"k": "5", "_fivetran_start": f"{day}T00:00:00Z"}]
        request = table.request(
            "t",
            COLUMNS,
            history=True,
            earliest=[table.file("e", earliest)],
            replace=[table.file("r", [version(5, value, "b", day, end)])],
        )
        assert table.stub.WriteHistoryBatch(request).success

    def found() -> list[object]:
        return [value for k, value in table.rows("t", "k", "a") if k == 5]

    for _ in range(2):
        send("2024-05-10", "ends too early", "2024-05-05T00:00:00Z")
        assert found() == ["ends too early"]
    send("2024-05-08", "late")
    assert found() == ["late"]


@pytest.mark.parametrize("kind", ["replace", "update"])
def test_rows_of_a_live_batch_are_versions_here_too(table: Caller, kind: str) -> None:
    stored = table.snapshot("t")
    rows = [version(7, "a", "b", "2024-01-01"), version(7, "a", "b", "2024-02-01")]
    rows[1]["_fivetran_end"] = None
    reported = table.write("t", COLUMNS, **{kind: rows}).task.message
    assert "row 2, column '_fivetran_end'" in reported
    assert table.snapshot("t") == stored


def test_an_update_of_a_live_batch_may_leave_a_version_its_times(table: Caller) -> None:
    rows = [version(7, "new", UNMODIFIED, "2024-01-01")]
    rows[0] |= {"_fivetran_end": UNMODIFIED, "_fivetran_active": UNMODIFIED}
    assert table.write("t", COLUMNS, update=rows).success
    assert table.rows("t", *SHOWN)[0] == (
        *(7, "new", "y0", at("2024-01-01")),
        *(before("2024-02-01"), False),
    )


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["k*:LONG", SYNCED, *HISTORY[1:3]], "_fivetran_active"),
        (["k*:LONG", "new:STRING", *HISTORY], "AlterTable"),
        (["k:LONG", "a*:STRING", *HISTORY], "primary key"),
        (["k:LONG", "a:STRING", *HISTORY], "no primary key"),
    ],
)
def test_a_request_that_does_not_fit_the_table_is_a_task(
    table: Caller, columns: list[str], words: str
) -> None:
    file = table.file("r", [version(7, "a", "b", "2024-05-01")])
    request = table.request("t", columns, history=True, replace=[file])
    answer = table.stub.WriteHistoryBatch(request)
    assert answer.WhichOneof("response") == "task"
    assert words in answer.task.message


def test_a_table_that_keeps_no_history_takes_no_history_batch(caller: Caller) -> None:
    assert caller.create("t", ["k*:LONG", "a:STRING", SYNCED]).success
    request = caller.request("t", ["k*:LONG", "a:STRING", SYNCED], history=True)
    answer = caller.stub.WriteHistoryBatch(request)
    assert answer.WhichOneof("response") == "task"
    assert "live" in answer.task.message


def test_a_history_request_without_files_changes_nothing(table: Caller) -> None:
    stored = table.snapshot("t")
    assert table.stub.WriteHistoryBatch(table.request("t", COLUMNS, history=True)).success
    assert table.snapshot("t") == stored


def test_columns_may_have_any_name_in_a_history_table(caller: Caller) -> None:
    """A history table's columns may have any name, even one that a statement uses itself."""
    names = ["t", "s", "b", "k0", "since", "newest", "count", "a.b", "a`b", 'Key. "`']
    columns = ["t*:STRING", *(f"{name}:STRING" for name in names[1:]), *HISTORY]

    def named(start: str, **cells: str) -> dict[str, str | None]:
        times = version(1, None, None, start)
        del times["k"], times["a"]
        return times | {name: f"in {name}" for name in names} | cells

    assert caller.create("x", columns).success
    first = caller.file("1", [named("2024-01-01")])
    kept = dict.fromkeys(names[2:], UNMODIFIED) | {"s": "changed"}
    second = caller.file("2", [named("2024-02-01", **kept)])
    assert caller.stub.WriteHistoryBatch(
        caller.request("x", columns, history=True, replace=[first])
    ).success
    assert caller.stub.WriteHistoryBatch(
        caller.request("x", columns, history=True, update=[second])
    ).success
    old = {name: f"in {name}" for name in names}
    rows = caller.rows("x", "_fivetran_start", "_fivetran_end", *names)
    assert sorted(rows) == [
        (at("2024-01-01"), before("2024-02-01"), *old.values()),
        (at("2024-02-01"), MAX, *(old | {"s": "changed"}).values()),
    ]
