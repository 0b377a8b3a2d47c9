"""AlterTable makes all changes of a request or none, and loses no row."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from support.server.caller import DELETED, HISTORY, SYNCED, Caller, column_texts
from support.server.sent_files import UNMODIFIED

T1 = "2024-01-01T00:00:00Z"


def row(**cells: str | None) -> dict[str, str | None]:
    return {**cells, "_fivetran_synced": T1}


def columns_of(caller: Caller, name: str = "t") -> list[str]:
    return column_texts(caller.describe(name).table.columns)


def test_columns_are_added_dropped_or_kept_according_to_the_flag(caller: Caller) -> None:
    assert caller.create("t", ["id*:LONG", "a:STRING", SYNCED]).success
    assert caller.write("t", ["id*:LONG", "a:STRING", SYNCED], replace=[row(id="1", a="x")]).success
    # Added at the end in the request's order and null in old rows, wherever the request lists them.
    assert caller.alter("t", ["b:STRING", "id*:LONG", "c:INT", "a:STRING", SYNCED]).success
    grown = ["id*:LONG", "a:STRING", SYNCED, "b:STRING", "c:INT"]
    assert columns_of(caller) == grown
    assert caller.rows("t", "id", "a", "b", "c") == [(1, "x", None, None)]
    assert caller.write("t", grown, replace=[row(id="1", a="x", b="kept", c="5")]).success
    # Left out and not to be dropped: the column stays with its data, also if new rows lack it.
    fewer = ["id*:LONG", "a:STRING", SYNCED]
    assert caller.alter("t", fewer).success
    assert columns_of(caller) == grown
    assert caller.write("t", fewer, replace=[row(id="1", a="y"), row(id="2", a="z")]).success
    assert caller.rows("t", "id", "a", "b", "c") == [(1, "y", "kept", 5), (2, "z", None, None)]
    # Left out and to be dropped.
    assert caller.alter("t", ["id*:LONG", "b:STRING", SYNCED], drop=True).success
    assert columns_of(caller) == ["id*:LONG", SYNCED, "b:STRING"]
    assert caller.rows("t", "id", "b") == [(1, "kept"), (2, None)]


def test_an_equal_request_changes_nothing(caller: Caller) -> None:
    columns = ["id*:LONG", "d:DECIMAL(10,2)", "j:JSON", SYNCED]
    assert caller.create("t", columns).success
    before = caller.snapshot("t")
    for drop in (False, True):
        assert caller.alter("t", list(reversed(columns)), drop=drop).success
    assert caller.snapshot("t") == before


def test_a_key_column_left_out_leaves_the_key_and_stays(caller: Caller) -> None:
    first = ["pk1*:LONG", "pk2*:STRING", "old_pk*:LONG", SYNCED]
    assert caller.create("t", first).success
    stored = [row(pk1="1", pk2="a", old_pk="7"), row(pk1="2", pk2="a", old_pk="7")]
    assert caller.write("t", first, replace=stored).success
    second = ["pk1*:LONG", "pk2*:STRING", "new_pk*:LONG", SYNCED]
    assert caller.alter("t", second).success
    assert columns_of(caller) == [
        "pk1*:LONG",
        "pk2*:STRING",
        "old_pk:LONG",
        SYNCED,
        "new_pk*:LONG",
    ]
    assert caller.write("t", second, replace=[row(pk1="3", pk2="b", new_pk="1")]).success
    assert caller.rows("t", "pk1", "old_pk", "new_pk") == [(1, 7, None), (2, 7, None), (3, None, 1)]


def test_a_key_may_lose_and_gain_columns_of_a_full_table(caller: Caller) -> None:
    columns = ["id*:LONG", "s*:STRING", "v:STRING", SYNCED]
    assert caller.create("t", columns).success
    stored = [row(id="1", s="a", v="x"), row(id="2", s="b", v="y")]
    assert caller.write("t", columns, replace=stored).success
    narrow = ["id*:LONG", "s:STRING", "v:STRING", SYNCED]
    assert caller.alter("t", narrow).success
    assert caller.write("t", narrow, replace=[row(id="1", s="c", v="z")]).success
    assert caller.rows("t", "id", "s", "v") == [(1, "c", "z"), (2, "b", "y")]
    assert caller.alter("t", columns).success
    assert caller.write("t", columns, update=[row(id="2", s="b", v="w")]).success
    assert caller.rows("t", "id", "s", "v") == [(1, "c", "z"), (2, "b", "w")]


def test_a_table_gets_the_column_of_soft_deletes(caller: Caller) -> None:
    """Source: `seeds/destination-connector.txt`, "System columns"."""
    columns = ["id*:LONG", "a:STRING", SYNCED]
    assert caller.create("t", columns).success
    assert caller.write("t", columns, replace=[row(id="1", a="x"), row(id="2", a="y")]).success
    marked = [*columns, DELETED]
    assert caller.alter("t", marked).success
    gone = row(id="1", a=UNMODIFIED, _fivetran_deleted="true")
    assert caller.write("t", marked, update=[gone]).success
    assert columns_of(caller) == marked
    assert caller.rows("t", "id", "a", "_fivetran_deleted") == [(1, "x", True), (2, "y", None)]


def test_a_column_of_a_key_may_be_called_count(caller: Caller) -> None:
    columns = ["count*:LONG", "v:STRING", SYNCED]
    assert caller.create("t", columns).success
    assert caller.write("t", columns, replace=[row(count="1", v="x")]).success
    for wanted in (["count*:LONG", "v*:STRING", SYNCED], columns):
        assert caller.alter("t", wanted).success
        assert columns_of(caller) == wanted


def test_a_key_that_would_not_be_unique_is_a_task_and_changes_nothing(caller: Caller) -> None:
    columns = ["id*:LONG", "name*:STRING", SYNCED]
    assert caller.create("t", columns).success
    assert caller.write(
        "t", columns, replace=[row(id="1", name="secret-a"), row(id="1", name="secret-b")]
    ).success
    before = caller.snapshot("t")
    answer = caller.alter("t", ["id*:LONG", "name2*:STRING", SYNCED])
    assert answer.WhichOneof("response") == "task"
    assert "secret" not in answer.task.message
    assert caller.snapshot("t") == before
    assert columns_of(caller) == columns


def test_a_key_after_none_has_to_be_unique_as_well(caller: Caller) -> None:
    columns = ["id*:LONG", "s:STRING", SYNCED]
    assert caller.create("t", columns).success
    stored = [row(id="1", s="same"), row(id="2", s="same")]
    assert caller.write("t", columns, replace=stored).success
    assert caller.alter("t", ["id:LONG", "s:STRING", SYNCED]).success
    before = caller.snapshot("t")
    answer = caller.alter("t", ["id:LONG", "s*:STRING", SYNCED])
    assert answer.WhichOneof("response") == "task"
    assert caller.snapshot("t") == before
    assert caller.alter("t", columns).success


def test_a_key_under_which_versions_would_overlap_is_a_task(caller: Caller) -> None:
    columns = ["id*:LONG", "s:STRING", *HISTORY]
    assert caller.create("t", columns).success
    times = {"_fivetran_end": "9999-12-31T23:59:59.999Z", "_fivetran_active": "true"}
    stored = [
        row(id="1", s="same", _fivetran_start="2024-01-01T00:00:00Z", **times),
        row(id="2", s="same", _fivetran_start="2024-02-01T00:00:00Z", **times),
    ]
    request = caller.request("t", columns, history=True, replace=[caller.file("r", stored)])
    assert caller.stub.WriteHistoryBatch(request).success
    other = ["id:LONG", "s*:STRING", *HISTORY]
    for before in (columns, ["id:LONG", "s:STRING", *HISTORY]):
        assert caller.alter("t", before).success
        answer = caller.alter("t", other)
        assert answer.WhichOneof("response") == "task"
        assert "overlap" in answer.task.message
        assert columns_of(caller) == before
    assert caller.rows("t", "id", "s") == [(1, "same"), (2, "same")]


def test_a_key_column_is_dropped_with_its_data_only_if_requested(caller: Caller) -> None:
    columns = ["id:LONG", "s:STRING", "amount*:INT", SYNCED]
    assert caller.create("t", columns).success
    assert caller.write("t", columns, replace=[row(id="1", s="a", amount="5")]).success
    wanted = ["id*:LONG", "s*:STRING", SYNCED]
    assert caller.alter("t", wanted).success
    assert columns_of(caller) == ["id*:LONG", "s*:STRING", "amount:INT", SYNCED]
    assert caller.rows("t", "amount") == [(5,)]
    assert caller.alter("t", wanted, drop=True).success
    assert columns_of(caller) == wanted


def test_decimals_grow_and_shrink_while_no_integer_digit_is_lost(caller: Caller) -> None:
    def columns(size: str) -> list[str]:
        return ["id*:LONG", f"d:DECIMAL({size})", SYNCED]

    assert caller.create("t", columns("17,4")).success
    value = "1234567890123.4567"
    assert caller.write("t", columns("17,4"), replace=[row(id="1", d=value)]).success
    for size, expected in {
        "29,4": value,
        "31,6": f"{value}00",
        "17,4": value,
        "16,3": "1234567890123.457",
    }.items():
        assert caller.alter("t", columns(size)).success, size
        assert caller.rows("t", "d") == [(Decimal(expected),)]
        assert columns_of(caller) == columns(size)
    before = caller.snapshot("t")
    answer = caller.alter("t", columns("15,3"))
    assert answer.WhichOneof("response") == "task"
    assert "1234567890123" not in answer.task.message
    assert caller.snapshot("t") == before
    assert caller.alter("t", columns("38,15")).success
    assert caller.rows("t", "d") == [(Decimal("1234567890123.457000000000000"),)]


def test_types_change_with_their_data(caller: Caller) -> None:
    before = {
        "a": ("INT", "5"),
        "b": ("FLOAT", "1.5"),
        "c": ("INT", "-7"),
        "d": ("NAIVE_DATE", "2024-02-29"),
        "e": ("XML", "<a/>"),
        "f": ("STRING", "<b/>"),
        "g": ("BINARY", "aGk="),
        "h": ("DOUBLE", "2.5"),
        "i": ("SHORT", "3"),
        "j": ("STRING", '{"a":1}'),
    }
    after = {
        "a": ("LONG", 5),
        "b": ("DOUBLE", 1.5),
        "c": ("STRING", "-7"),
        "d": ("STRING", "2024-02-29"),
        "e": ("STRING", "<a/>"),
        "f": ("XML", "<b/>"),
        "g": ("BINARY", b"hi"),
        "h": ("FLOAT", 2.5),
        "i": ("DECIMAL(10,2)", Decimal("3.00")),
        "j": ("JSON", '{"a":1}'),
    }

    def columns(types: dict) -> list[str]:
        return ["id*:INT", *(f"{name}:{kind}" for name, (kind, _) in types.items()), SYNCED]

    assert caller.create("t", columns(before)).success
    cells = {name: text for name, (_, text) in before.items()}
    assert caller.write("t", columns(before), replace=[row(id="1", **cells)]).success
    assert caller.alter("t", columns(after)).success
    assert columns_of(caller) == columns(after)
    assert caller.rows("t", *after) == [tuple(value for _, value in after.values())]
    # The key's type changes too, and the key still finds its rows.
    wide = ["id*:LONG", *columns(after)[1:]]
    assert caller.alter("t", wide).success
    texts = {**cells, "b": "1.5", "g": "aGk=", "a": "6"}
    assert caller.write("t", wide, replace=[row(id="1", **texts)]).success
    assert caller.rows("t", "id", "a") == [(1, 6)]


def test_values_that_do_not_fit_the_new_type_are_a_task_and_change_nothing(caller: Caller) -> None:
    columns = ["id*:LONG", "s:STRING", "n:LONG", SYNCED]
    assert caller.create("t", columns).success
    stored = [row(id="1", s="12", n="1"), row(id="2", s="hush", n="3000000000")]
    assert caller.write("t", columns, replace=stored).success
    before = caller.snapshot("t")
    for wanted in (
        ["id*:LONG", "s:INT", "n:LONG", "more:STRING", SYNCED],
        ["id*:LONG", "s:STRING", "n:INT", SYNCED],
    ):
        answer = caller.alter("t", wanted)
        assert answer.WhichOneof("response") == "task", wanted
        assert "hush" not in answer.task.message
        assert "3000000000" not in answer.task.message
        assert caller.snapshot("t") == before


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("before", "text", "after"),
    [
        ("LONG", "5", "BOOLEAN"),
        ("UTC_DATETIME", "2024-01-01T05:06:07Z", "NAIVE_DATE"),
        ("UTC_DATETIME", "2024-01-01T05:06:07.5Z", "LONG"),
        ("UTC_DATETIME", "2024-01-01T05:06:07Z", "LONG"),
        ("LONG", "1704067200", "UTC_DATETIME"),
        ("NAIVE_TIME", "10:15:30", "UTC_DATETIME"),
        ("DOUBLE", "1.5", "LONG"),
        ("LONG", "9007199254740993", "DOUBLE"),
        ("LONG", "9223372036854775807", "FLOAT"),
        ("INT", "16777217", "FLOAT"),
        # A text that is not a valid cell of a batch file cannot be converted, either.
        ("STRING", "10:15:30", "UTC_DATETIME"),
        ("STRING", "2024-2-9 junk", "NAIVE_DATE"),
        ("STRING", "2024", "NAIVE_DATE"),
        ("STRING", "2024-02-09T10:11:12", "NAIVE_DATE"),
        ("STRING", "2024-02-09", "NAIVE_DATETIME"),
        ("STRING", "2024-01-01T00:00:00+05:00", "NAIVE_DATETIME"),
        ("STRING", "2024-01-01T00:00:00 America/New_York", "UTC_DATETIME"),
        ("STRING", "yes", "BOOLEAN"),
        ("STRING", "12d", "DOUBLE"),
        ("STRING", "24:00:00", "NAIVE_TIME"),
    ],
)
def test_a_value_that_would_not_round_trip_does_not_fit(
    caller: Caller, before: str, text: str, after: str
) -> None:
    columns = ["id*:LONG", f"v:{before}", SYNCED]
    assert caller.create("t", columns).success
    assert caller.write("t", columns, replace=[row(id="1", v=text)]).success
    stored = caller.snapshot("t")
    answer = caller.alter("t", ["id*:LONG", f"v:{after}", SYNCED])
    assert answer.WhichOneof("response") == "task"
    assert caller.snapshot("t") == stored


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("", "INT", None),
        (" 12 ", "INT", 12),
        ("TRUE", "BOOLEAN", True),
        ("1e2", "DOUBLE", 100.0),
        ("3.4028237E+38", "FLOAT", 3.4028234663852886e38),
        ("1.005", "DECIMAL(10,2)", Decimal("1.01")),
        ("0000-01-01", "NAIVE_DATE", date(1, 1, 1)),
        ("2024-01-01T00:00:00+05:00", "UTC_DATETIME", datetime(2023, 12, 31, 19, tzinfo=UTC)),
        ("2024-02-09 10:11:12", "NAIVE_DATETIME", datetime(2024, 2, 9, 10, 11, 12)),
        ("10:15", "NAIVE_TIME", "10:15:00"),
        ("23:59:59.123456789", "NAIVE_TIME", "23:59:59.123456"),
    ],
)
def test_a_text_becomes_what_a_batch_file_would_make_of_it(
    caller: Caller, text: str, kind: str, value: object
) -> None:
    columns = ["id*:LONG", "v:STRING", SYNCED]
    assert caller.create("t", columns).success
    assert caller.write("t", columns, replace=[row(id="1", v=text), row(id="2", v=None)]).success
    wanted = ["id*:LONG", f"v:{kind}", SYNCED]
    assert caller.alter("t", wanted).success
    assert caller.rows("t", "id", "v") == [(1, value), (2, None)]
    assert caller.write("t", wanted, replace=[row(id="1", v=text)]).success
    assert caller.rows("t", "id", "v") == [(1, value), (2, None)]


KINDS = [
    "BOOLEAN", "SHORT", "INT", "LONG", "DECIMAL(20,3)", "FLOAT", "DOUBLE", "NAIVE_DATE",
    "NAIVE_DATETIME", "UTC_DATETIME", "BINARY", "XML", "STRING", "JSON", "NAIVE_TIME",
]  # fmt: skip


@pytest.mark.long
def test_every_type_becomes_every_other_where_there_are_no_values(caller: Caller) -> None:
    for before in KINDS:
        columns = ["id*:LONG", *(f"v{n}:{before}" for n in range(len(KINDS))), SYNCED]
        wanted = ["id*:LONG", *(f"v{n}:{kind}" for n, kind in enumerate(KINDS)), SYNCED]
        assert caller.create(before, columns).success
        assert caller.alter(before, wanted).success, before
        assert columns_of(caller, before) == wanted


@pytest.mark.parametrize("name", ["desc", "a`b", "a.b", "🦆"])
def test_odd_names_can_be_altered(caller: Caller, name: str) -> None:
    assert caller.create(name, ["id*:LONG", f"{name}:INT", SYNCED]).success
    wanted = ["id*:LONG", f"{name}:STRING", SYNCED, f"{name} 2:INT"]
    assert caller.alter(name, wanted).success
    assert columns_of(caller, name) == wanted


def test_times_survive_becoming_texts_in_utc(caller: Caller) -> None:
    columns = ["id*:LONG", "u:UTC_DATETIME", "n:NAIVE_DATE", SYNCED]
    assert caller.create("t", columns).success
    stored = row(id="1", u="9999-12-31T23:59:59.999Z", n="0001-01-01")
    assert caller.write("t", columns, replace=[stored]).success
    assert caller.rows("t", "u", "n") == [
        (datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC), date(1, 1, 1))
    ]
    assert caller.alter("t", ["id*:LONG", "u:STRING", "n:STRING", SYNCED]).success
    ((instant, day),) = caller.rows("t", "u", "n")
    assert instant.startswith("9999-12-31")
    assert day == "0001-01-01"


def test_a_missing_table_is_a_task(caller: Caller) -> None:
    answer = caller.alter("nothing", ["id*:LONG", SYNCED])
    assert answer.WhichOneof("response") == "task"
    assert "does not exist" in answer.task.message
