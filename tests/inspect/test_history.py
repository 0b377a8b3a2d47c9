"""`chronolake history`: a record's timeline."""

from __future__ import annotations

import pytest
from rich.console import Console

from chronolake.config import LakeConfig
from chronolake.errors import TableNotFoundError, UnknownColumnError, ValueRefusedError
from chronolake.inspect import Change, Ending, history, render
from chronolake.types import Mode, TableName
from support.inspect.layout import HISTORY, TMAX, Make

ORDERS = TableName("shop", "orders")


def test_a_timeline_shows_what_changed_and_how_each_version_ended(
    config: LakeConfig, make: Make
) -> None:
    make(
        ORDERS,
        ["id*:LONG", "status:STRING", "amount:DECIMAL(8;2)", "_fivetran_synced:UTC_DATETIME",
         *HISTORY],
        # Out of order, and among other records.
        [
            (1, "gone", "2.00", "2024-02-01T00:00:00Z", "2024-01-03T00:00:00Z",
             "2024-01-04T00:00:00Z", False),
            (1, "new", "1.00", "2024-02-01T00:00:00Z", "2024-01-01T00:00:00Z",
             "2024-01-02T23:59:59.999Z", False),
            (2, "other", "9.00", "2024-02-01T00:00:00Z", "2024-01-01T00:00:00Z", TMAX, True),
        ],
        [(1, "back", None, "2024-02-02T00:00:00Z", "2024-01-09T00:00:00Z", TMAX, True)],
    )  # fmt: skip

    timeline = history(config, ORDERS, {"id": "1"})

    assert timeline.mode is Mode.HISTORY
    assert [(v.start, v.end, v.ending) for v in timeline.versions] == [
        ("2024-01-01T00:00:00Z", "2024-01-02T23:59:59.999Z", Ending.REPLACED),
        ("2024-01-03T00:00:00Z", "2024-01-04T00:00:00Z", Ending.DELETED),
        ("2024-01-09T00:00:00Z", TMAX, Ending.ACTIVE),
    ]
    assert [version.changes for version in timeline.versions] == [
        (),
        (Change("status", "new", "gone"), Change("amount", "1.00", "2.00")),
        (Change("status", "gone", "back"), Change("amount", "2.00", None)),
    ]
    assert timeline.versions[0].values == {"id": 1, "status": "new", "amount": "1.00"}
    assert timeline.versions[0].synced == "2024-02-01T00:00:00Z"


def test_a_table_without_history_gives_the_current_row(config: LakeConfig, make: Make) -> None:
    make(ORDERS, ["id*:INT", "name:STRING"], [(1, "Ada"), (2, "Ben")])

    timeline = history(config, ORDERS, {"id": "2"})

    assert [version.values for version in timeline.versions] == [{"id": 2, "name": "Ben"}]
    assert timeline.versions[0].start is None


def test_a_soft_delete_table_distinguishes_deleted_and_archived_rows(
    config: LakeConfig, make: Make
) -> None:
    """Source: `seeds/data-lake-v2.txt`, `grax__deletesource`."""
    make(
        ORDERS,
        ["id*:INT", "grax__deletesource:STRING", "_fivetran_deleted:BOOLEAN"],
        [
            (1, "grax", True),
            (2, "source", True),
            (3, None, True),
            (4, "grax", False),
            (5, "", None),
        ],
    )
    found = [history(config, ORDERS, {"id": str(key)}) for key in range(1, 6)]
    outcomes = [version.outcome for one in found for version in one.versions]
    assert outcomes == ["archived", "deleted", "deleted", "active", "active"]
    (archived,) = found[0].as_json()["versions"]
    assert (archived["ending"], archived["archived"]) == ("deleted", True)
    console = Console(width=100)
    with console.capture() as printed:
        console.print(render.timeline(found[0]))
    assert "archived" in printed.get()


@pytest.mark.parametrize(
    ("kind", "stored", "text", "shown"),
    [
        ("BOOLEAN", True, "true", True),
        ("SHORT", -32768, "-32768", -32768),
        ("INT", 2**31 - 1, "2147483647", 2**31 - 1),
        ("LONG", -(2**63), "-9223372036854775808", -(2**63)),
        ("DECIMAL(38;10)", "1234567890123456789012345678.1234567891",
         "1234567890123456789012345678.1234567891", "1234567890123456789012345678.1234567891"),
        ("DECIMAL(38;37)", "0.0000000000000000000000000000000000001",
         "0.0000000000000000000000000000000000001", "0.0000000000000000000000000000000000001"),
        ("DECIMAL(8;2)", "1.50", "1.5", "1.50"),
        ("FLOAT", 0.1, "0.1", 0.1),
        ("DOUBLE", 1e300, "1e300", 1e300),
        ("DOUBLE", float("nan"), "NaN", "NaN"),
        ("DOUBLE", float("-inf"), "-inf", "-Infinity"),
        ("NAIVE_DATE", "0001-01-01", "0001-01-01", "0001-01-01"),
        ("NAIVE_DATE", "9999-12-31", "9999-12-31", "9999-12-31"),
        ("NAIVE_DATETIME", "0001-01-01T00:00:00.000001", "0001-01-01T00:00:00.000001",
         "0001-01-01T00:00:00.000001"),
        ("UTC_DATETIME", TMAX, TMAX, TMAX),
        ("UTC_DATETIME", "2024-01-01T00:00:00Z", "2024-01-01T01:00:00+01:00",
         "2024-01-01T00:00:00Z"),
        ("BINARY", b"\x00\xff", "AP8=", "AP8="),
        ("STRING", "a 'quoted\" \n🦆", "a 'quoted\" \n🦆", "a 'quoted\" \n🦆"),
        ("STRING", "", "", ""),
        ("JSON", '{"a": 1}', '{"a": 1}', '{"a": 1}'),
        ("NAIVE_TIME", "10:15:30", "10:15:30", "10:15:30"),
        ("NAIVE_TIME", "09:05:00", "9:05", "09:05:00"),
        ("NAIVE_TIME", "09:05:00", " 09:05:00.000 ", "09:05:00"),
        ("NAIVE_TIME", "09:05:00.5", "9:05:00.500000", "09:05:00.5"),
        ("NAIVE_TIME", "24:00:00", "24:00:00", "24:00:00"),
        ("NAIVE_TIME", "9h05", "9h05", "9h05"),
    ],
)  # fmt: skip
def test_a_record_is_found_by_a_key_of_any_type(
    config: LakeConfig, make: Make, kind: str, stored: object, text: str, shown: object
) -> None:
    make(ORDERS, [f"k*:{kind}", "n:INT"], [(stored, 1)])

    timeline = history(config, ORDERS, {"k": text})

    assert [version.values for version in timeline.versions] == [{"k": shown, "n": 1}]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("INT", "one"),
        ("INT", "2147483648"),
        ("DECIMAL(8;2)", "1.555"),
        ("UTC_DATETIME", "yesterday"),
        ("NAIVE_DATE", "2024-02-30"),
        ("BINARY", "not base64!"),
        ("BOOLEAN", "maybe"),
    ],
)
def test_a_text_that_is_not_a_key_value_is_refused_without_printing_it(
    config: LakeConfig, make: Make, kind: str, text: str
) -> None:
    make(ORDERS, [f"k*:{kind}"])

    with pytest.raises(ValueRefusedError) as refused:
        history(config, ORDERS, {"k": text})

    assert refused.value.column == "k"
    assert text not in str(refused.value)


def test_a_composite_key_wants_all_of_its_columns(config: LakeConfig, make: Make) -> None:
    make(ORDERS, ["a*:INT", "b*:STRING", "c:INT"], [(1, "x", 5), (1, "y", 6), (None, "y", 7)])

    assert history(config, ORDERS, {"a": "1", "b": "y"}).versions[0].values["c"] == 6
    assert history(config, ORDERS, {"a": None, "b": "y"}).versions[0].values["c"] == 7
    with pytest.raises(UnknownColumnError, match="b is missing"):
        history(config, ORDERS, {"a": "1"})
    with pytest.raises(UnknownColumnError, match="not part of the table's key") as refused:
        history(config, ORDERS, {"a": "1", "b": "y", "c": "6"})
    assert "a, b" in (refused.value.hint or "")
    with pytest.raises(UnknownColumnError, match="no such column"):
        history(config, ORDERS, {"A": "1"})


def test_a_column_that_a_table_without_a_key_has_not_names_the_nearest(
    config: LakeConfig, make: Make
) -> None:
    make(ORDERS, ["number:INT", "status:STRING"], [(1, "new")], declared=False)

    for asked, hint in (
        ("Status", "Did you mean 'status'?"),
        ("id", "Its columns are number, status."),
    ):
        with pytest.raises(UnknownColumnError) as refused:
            history(config, ORDERS, {asked: "1"})
        assert refused.value.hint == hint


def test_a_record_that_is_not_there_has_no_versions(config: LakeConfig, make: Make) -> None:
    make(ORDERS, ["id*:INT", *HISTORY])
    assert history(config, ORDERS, {"id": "1"}).versions == ()

    with pytest.raises(TableNotFoundError):
        history(config, TableName("shop", "Orders"), {"id": "1"})


@pytest.mark.parametrize(
    "name",
    [
        TableName("shop", "a table"),
        TableName("sch.e.ma", "ta.ble"),
        TableName("sch", "o\"d'd `🦆`"),
        TableName("SELECT", "x" * 200),
    ],
)
def test_odd_names_are_only_names(config: LakeConfig, make: Make, name: TableName) -> None:
    key = "odd. \"col' `n🦆"
    make(name, [f"{key}*:STRING", "b c:INT"], [("v", 1), ("w", 2)])

    timeline = history(config, name, {key: "w"})

    assert [version.values for version in timeline.versions] == [{key: "w", "b c": 2}]


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE"])
@pytest.mark.parametrize("text", ["Infinity", "-Infinity", "NaN", "0.1"])
def test_a_number_is_found_as_it_is_spelled(
    config: LakeConfig, make: Make, kind: str, text: str
) -> None:
    numbers = [float(number) for number in ("inf", "-inf", "nan", "0.1", "1")]
    make(
        ORDERS, [f"id*:{kind}", "v:INT"], [(number, place) for place, number in enumerate(numbers)]
    )

    (version,) = history(config, ORDERS, {"id": text}).versions

    assert str(version.values["id"]) == text


def test_more_versions_than_are_wanted_are_refused(config: LakeConfig, make: Make) -> None:
    rows = [(1, f"2026-01-0{day}T00:00:00Z", TMAX, False) for day in range(1, 4)]
    make(ORDERS, ["id*:INT", *HISTORY], rows[:2], rows[2:])

    assert len(history(config, ORDERS, {"id": "1"}, most=3).versions) == 3
    with pytest.raises(ValueRefusedError, match="more than 2 versions") as refused:
        history(config, ORDERS, {"id": "1"}, most=2)
    assert "chronolake query" in (refused.value.hint or "")
