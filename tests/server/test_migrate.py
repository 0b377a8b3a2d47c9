"""Every operation of Migrate is done in one step or not at all, and is safe to send twice.

The cases M-01 to M-36 of `specs/partner-sdk.md`, 7.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from chronolake.protos import destination_sdk_pb2 as sdk
from support.server.caller import DELETED, HISTORY, START, SYNCED, Caller, column_texts

T1, T2, T3 = (f"2024-01-0{day}T00:00:00Z" for day in (1, 2, 3))
T2_ENDS, T3_ENDS = "2024-01-01T23:59:59.999Z", "2024-01-02T23:59:59.999Z"
TMIN, TMAX = "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999Z"
LIVE = ["id*:LONG", "name:STRING", SYNCED]
SOFT = ["id*:LONG", "name:STRING", SYNCED, DELETED]
VERSIONED = ["id*:LONG", "email:STRING", *HISTORY]

Cells = Mapping[str, str | None]


def at(text: str | None) -> Any:
    return None if text is None else datetime.fromisoformat(text).astimezone(UTC)


def live(key: int, **cells: str | None) -> Cells:
    return {"id": str(key), "name": f"n{key}", "_fivetran_synced": T1, **cells}


def soft(key: int, deleted: str | None, synced: str = T1) -> Cells:
    return live(key, _fivetran_deleted=deleted, _fivetran_synced=synced)


def version(key: int, start: str, end: str = TMAX, email: str | None = None) -> Cells:
    return {
        "id": str(key),
        "email": email,
        "_fivetran_synced": T1,
        "_fivetran_start": start,
        "_fivetran_end": end,
        "_fivetran_active": "true" if end == TMAX else "false",
    }


def fill(caller: Caller, columns: list[str], rows: list[Cells], name: str = "t") -> None:
    assert caller.create(name, columns).success
    if not rows:
        return
    if START in columns:
        sent = [text.replace(START, START.replace("*", "")) for text in columns]
        request = caller.request(name, sent, history=True, replace=[caller.file("upsert", rows)])
        assert caller.stub.WriteHistoryBatch(request).success
    else:
        assert caller.write(name, columns, replace=rows).success


def columns_of(caller: Caller, name: str = "t") -> list[str]:
    return column_texts(caller.describe(name).table.columns)


def versions(caller: Caller, *columns: str, name: str = "t") -> list[tuple[Any, ...]]:
    """Return key, further columns, start, end and activity, by key and start; times as texts."""
    times = ("_fivetran_start", "_fivetran_end", "_fivetran_active")
    found = caller.iceberg(name).scan().to_arrow().select(["id", *columns, *times])
    for time in times[:2]:
        place = found.schema.get_field_index(time)
        found = found.set_column(place, time, found.column(place).cast("int64"))
    rows = [tuple(row.values()) for row in found.to_pylist()]
    return sorted(rows, key=lambda row: (row[0], row[-3]))


def span(start: str, end: str = TMAX) -> tuple[int, int, bool]:
    return micros(start), micros(end), end == TMAX


def micros(text: str) -> int:
    return (at(text) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def refused(caller: Caller, name: str, operation: str, **parts: Any) -> str:
    """Return the task of an operation that must not change anything."""
    before = caller.snapshot(name)
    answer = caller.migrate(name, operation, **parts)
    assert answer.WhichOneof("response") == "task", answer
    assert caller.snapshot(name) == before
    return answer.task.message


# ------------------------------------------------------------------ columns


def test_adding_a_column_again_sets_its_default_in_every_row_again(
    caller: Caller,
) -> None:
    fill(caller, LIVE, [live(1), live(2), live(3)])
    for text in ("first", "second"):
        parts = {"column": "note", "column_type": "STRING", "default_value": text}
        assert caller.migrate("t", "add_column_with_default_value", **parts).success
        assert columns_of(caller) == [*LIVE, "note:STRING"]
        assert caller.rows("t", "id", "note") == [(1, text), (2, text), (3, text)]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("UTC_DATETIME", "2024-05-02T10:00:00.123Z", datetime(2024, 5, 2, 10, 0, 0, 123000, UTC)),
        ("NAIVE_DATETIME", "2024-05-02T10:00:00.123", datetime(2024, 5, 2, 10, 0, 0, 123000)),
        ("NAIVE_DATE", "2024-02-29", date(2024, 2, 29)),
        ("NAIVE_TIME", "10:11:12", "10:11:12"),
        ("BOOLEAN", "false", False),
        ("SHORT", "-7", -7),
        ("INT", "25", 25),
        ("LONG", "9223372036854775807", 2**63 - 1),
        ("DECIMAL", "1.50", Decimal("1.50")),
        ("FLOAT", "0.1", pytest.approx(0.1)),
        ("DOUBLE", "202.57", 202.57),
        ("BINARY", "AAEC", b"\x00\x01\x02"),
        ("JSON", '{"a": "it\'s"}', '{"a": "it\'s"}'),
        ("STRING", "", ""),
        ("STRING", "NULL", "NULL"),
        ("STRING", "it's `$1\\ \n\U0001f600", "it's `$1\\ \n\U0001f600"),
        ("INT", "", None),
    ],
)
def test_a_default_is_read_by_its_columns_type(
    caller: Caller, kind: str, text: str, value: object
) -> None:
    fill(caller, LIVE, [live(1)])
    parts = {"column": "c", "column_type": kind, "default_value": text}
    assert caller.migrate("t", "add_column_with_default_value", **parts).success
    assert caller.rows("t", "c") == [(value,)]
    sized = f"c:{kind}{'(38,10)' if kind == 'DECIMAL' else ''}"
    assert columns_of(caller) == [*LIVE, sized]


def test_an_invalid_default_is_a_task(caller: Caller) -> None:
    fill(caller, LIVE, [live(1)])
    parts = {"column": "c", "column_type": "INT", "default_value": "secret"}
    reported = refused(caller, "t", "add_column_with_default_value", **parts)
    assert "'c'" in reported
    assert "secret" not in reported


def test_a_columns_value_is_set_in_every_row(caller: Caller) -> None:
    columns = [*LIVE, "amount:DOUBLE", "seen:UTC_DATETIME"]
    fill(caller, columns, [live(1, amount="1", seen=T1), live(2, amount=None, seen=None)])
    assert caller.migrate("t", "update_column_value", column="amount", value="202.57").success
    assert caller.migrate("t", "update_column_value", column="seen", value=T3).success
    assert caller.rows("t", "id", "amount", "seen") == [(1, 202.57, at(T3)), (2, 202.57, at(T3))]
    assert columns_of(caller) == columns


def test_only_the_exact_text_null_means_null(caller: Caller) -> None:
    fill(caller, LIVE, [live(1), live(2)])
    for text, value in (("null", "null"), ("", ""), ("NULL", None)):
        assert caller.migrate("t", "update_column_value", column="name", value=text).success
        assert caller.rows("t", "name") == [(value,), (value,)]


def test_a_column_is_renamed_with_its_values_and_its_part_in_the_key(caller: Caller) -> None:
    fill(caller, LIVE, [live(1), live(2)])
    for _ in range(2):
        parts = {"from_column": "name", "to_column": "full.name"}
        assert caller.migrate("t", "rename_column", **parts).success
        parts = {"from_column": "id", "to_column": "nr"}
        assert caller.migrate("t", "rename_column", **parts).success
    columns = ["nr*:LONG", "full.name:STRING", SYNCED]
    assert columns_of(caller) == columns
    assert caller.rows("t", "nr", "full.name") == [(1, "n1"), (2, "n2")]
    changed = {"nr": "2", "full.name": "new", "_fivetran_synced": T2}
    assert caller.write("t", columns, replace=[changed]).success
    assert caller.rows("t", "nr", "full.name") == [(1, "n1"), (2, "new")]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("missing", "other"),
        ("name", "id"),
        ("name", "_fivetran_deleted"),
        ("_fivetran_synced", "synced"),
        ("", "x"),
        ("name", ""),
    ],
)
def test_a_column_that_cannot_be_renamed_is_a_task(
    caller: Caller, source: str, target: str
) -> None:
    fill(caller, LIVE, [live(1)])
    refused(caller, "t", "rename_column", from_column=source, to_column=target)


def test_a_column_is_copied_with_type_and_values_but_not_into_the_key(caller: Caller) -> None:
    columns = ["id*:DECIMAL(20,4)", "name:STRING", SYNCED]
    fill(caller, columns, [live(1), live(2)])
    for _ in range(2):
        parts = {"from_column": "id", "to_column": "copy"}
        assert caller.migrate("t", "copy_column", **parts).success
        assert columns_of(caller) == [*columns, "copy:DECIMAL(20,4)"]
        assert caller.rows("t", "name", "copy") == [("n1", Decimal(1)), ("n2", Decimal(2))]
    reported = refused(caller, "t", "copy_column", from_column="name", to_column="copy")
    assert "DECIMAL(20,4)" in reported
    refused(caller, "t", "copy_column", from_column="missing", to_column="x")


@pytest.mark.parametrize("column", ["id", "_fivetran_start", "_fivetran_active", "missing", ""])
def test_a_column_that_cannot_be_filled_is_a_task(caller: Caller, column: str) -> None:
    fill(caller, VERSIONED, [version(1, T1)])
    refused(caller, "t", "update_column_value", column=column, value="1")


# ------------------------------------------------------------------ tables


def test_a_table_is_renamed_with_its_data_and_key(caller: Caller) -> None:
    fill(caller, LIVE, [live(1), live(2)])
    parts = {"from_table": "t", "to_table": "new"}
    # The second time, there is nothing to rename, and the table already has the name.
    for _ in range(2):
        assert caller.migrate("t", "rename_table", **parts).success
        assert caller.describe("t").not_found
        assert columns_of(caller, "new") == LIVE
        assert caller.rows("new", "id", "name") == [(1, "n1"), (2, "n2")]
    # A new table with the old name shares nothing with it.
    fill(caller, LIVE, [live(7)])
    assert caller.migrate("new", "drop_table").success
    assert caller.rows("t", "id") == [(7,)]


def test_a_table_is_not_renamed_over_another_or_from_nothing(caller: Caller) -> None:
    fill(caller, LIVE, [live(1)])
    fill(caller, LIVE, [live(2)], name="other")
    refused(caller, "t", "rename_table", from_table="t", to_table="other")
    assert caller.rows("other", "id") == [(2,)]
    refused(caller, "t", "rename_table", from_table="none", to_table="nothing")
    assert caller.describe("nothing").not_found


def test_a_table_is_copied_and_its_copy_lives_its_own_life(caller: Caller) -> None:
    fill(caller, VERSIONED, [version(1, T1, T2_ENDS, "old"), version(1, T2), version(2, T1)])
    before = caller.snapshot("t")
    for _ in range(2):
        assert caller.migrate("t", "copy_table", from_table="t", to_table="copy").success
        assert columns_of(caller, "copy") == columns_of(caller)
        assert versions(caller, "email", name="copy") == versions(caller, "email")
    assert caller.snapshot("t") == before
    assert caller.iceberg("copy").location() != caller.iceberg("t").location()
    assert caller.migrate("copy", "drop_table").success
    assert len(versions(caller)) == 3


def test_a_copy_over_a_table_with_other_columns_is_a_task(caller: Caller) -> None:
    fill(caller, LIVE, [live(1)])
    fill(caller, SOFT, [soft(2, "false")], name="other")
    before = caller.snapshot("other")
    refused(caller, "t", "copy_table", from_table="t", to_table="other")
    refused(caller, "t", "copy_table", from_table="missing", to_table="x")
    assert caller.snapshot("other") == before


def test_a_table_is_dropped_and_dropping_a_missing_one_succeeds(caller: Caller) -> None:
    fill(caller, LIVE, [live(1)])
    for said_true in (True, False):
        # The presence of the member counts, not its value.
        assert caller.migrate("t", "drop_table", drop_table=said_true).success
        assert caller.describe("t").not_found


# ------------------------------------------------------------------ columns of history tables


def test_a_column_appears_at_a_time_in_a_new_version_of_each_active_record(caller: Caller) -> None:
    fill(caller, VERSIONED, [version(1, T1, T2_ENDS), version(1, T2), version(2, T1)])
    parts = {"column": "plan", "column_type": "STRING", "operation_timestamp": T3}
    for _ in range(2):
        assert caller.migrate(
            "t", "add_column_in_history_mode", default_value="basic", **parts
        ).success
        assert columns_of(caller) == [*VERSIONED, "plan:STRING"]
        assert versions(caller, "plan") == [
            (1, None, *span(T1, T2_ENDS)),
            (1, None, *span(T2, T3_ENDS)),
            (1, "basic", *span(T3)),
            (2, None, *span(T1, T3_ENDS)),
            (2, "basic", *span(T3)),
        ]
    # A second column at the same time makes no further version.
    parts = {"column": "seats", "column_type": "INT", "operation_timestamp": T3}
    assert caller.migrate("t", "add_column_in_history_mode", default_value="5", **parts).success
    assert versions(caller, "plan", "seats")[2:] == [
        (1, "basic", 5, *span(T3)),
        (2, None, None, *span(T1, T3_ENDS)),
        (2, "basic", 5, *span(T3)),
    ]


def test_a_version_that_starts_at_the_time_gets_the_value_in_place(caller: Caller) -> None:
    fill(caller, VERSIONED, [version(1, T1, T2_ENDS), version(1, T2, T3_ENDS), version(2, T2)])
    parts = {"column": "plan", "column_type": "STRING", "operation_timestamp": T2}
    assert caller.migrate("t", "add_column_in_history_mode", default_value="x", **parts).success
    # Versions that began then have the column, whether they are closed or not.
    assert versions(caller, "plan") == [
        (1, None, *span(T1, T2_ENDS)),
        (1, "x", *span(T2, T3_ENDS)),
        (2, "x", *span(T2)),
    ]


def test_a_time_before_an_active_version_is_a_task(caller: Caller) -> None:
    fill(caller, VERSIONED, [version(1, T1, email="a"), version(2, T3, email="b")])
    parts = {"column": "plan", "column_type": "STRING", "operation_timestamp": T2}
    refused(caller, "t", "add_column_in_history_mode", default_value="x", **parts)
    refused(caller, "t", "drop_column_in_history_mode", column="email", operation_timestamp=T2)
    assert columns_of(caller) == VERSIONED


def test_an_empty_history_table_only_gets_the_column(caller: Caller) -> None:
    fill(caller, VERSIONED, [])
    parts = {"column": "plan", "column_type": "STRING", "operation_timestamp": T2}
    assert caller.migrate("t", "add_column_in_history_mode", default_value="x", **parts).success
    assert columns_of(caller) == [*VERSIONED, "plan:STRING"]
    parts = {"column": "email", "operation_timestamp": T2}
    assert caller.migrate("t", "drop_column_in_history_mode", **parts).success
    assert caller.rows("t") == []


def test_a_column_is_dropped_at_a_time_in_records_that_have_a_value(caller: Caller) -> None:
    columns = ["id*:LONG", "email:STRING", "phone:STRING", *HISTORY]
    with_phone = {"phone": "1"}
    stored = [
        version(1, T1, T2_ENDS, "old") | with_phone,
        version(1, T2, email="a") | with_phone,
        version(2, T1) | with_phone,
        version(3, T1) | {"phone": None},
    ]
    fill(caller, columns, stored)
    for _ in range(2):
        parts = {"column": "email", "operation_timestamp": T3}
        assert caller.migrate("t", "drop_column_in_history_mode", **parts).success
        assert versions(caller, "email") == [
            (1, "old", *span(T1, T2_ENDS)),
            (1, "a", *span(T2, T3_ENDS)),
            (1, None, *span(T3)),
            (2, None, *span(T1)),
            (3, None, *span(T1)),
        ]
    assert columns_of(caller) == columns
    parts = {"column": "phone", "operation_timestamp": T3}
    assert caller.migrate("t", "drop_column_in_history_mode", **parts).success
    assert versions(caller, "email", "phone") == [
        (1, "old", "1", *span(T1, T2_ENDS)),
        (1, "a", "1", *span(T2, T3_ENDS)),
        (1, None, None, *span(T3)),
        (2, None, "1", *span(T1, T3_ENDS)),
        (2, None, None, *span(T3)),
        (3, None, None, *span(T1)),
    ]
    # A missing column has nothing to lose.
    before = caller.snapshot("t")
    parts = {"column": "missing", "operation_timestamp": T3}
    assert caller.migrate("t", "drop_column_in_history_mode", **parts).success
    assert caller.snapshot("t") == before


@pytest.mark.parametrize("time", ["not-a-timestamp", "", "2024-13-01T00:00:00Z"])
def test_an_invalid_time_is_a_task(caller: Caller, time: str) -> None:
    fill(caller, VERSIONED, [version(1, T1)])
    refused(caller, "t", "drop_column_in_history_mode", column="email", operation_timestamp=time)


def test_versions_are_for_history_tables_only(caller: Caller) -> None:
    fill(caller, LIVE, [live(1)])
    refused(caller, "t", "drop_column_in_history_mode", column="name", operation_timestamp=T2)


# ------------------------------------------------------------------ modes


def test_a_soft_delete_table_becomes_a_history_table_and_back(caller: Caller) -> None:
    stored = [soft(1, "false", T2), soft(2, "true"), soft(3, None)]
    fill(caller, SOFT, stored)
    for _ in range(2):
        parts = {"soft_deleted_column": "_fivetran_deleted"}
        assert caller.migrate("t", "SOFT_DELETE_TO_HISTORY", **parts).success
        assert columns_of(caller) == ["id*:LONG", "name:STRING", *HISTORY]
        assert versions(caller, "name") == [
            (1, "n1", *span(T2)),
            (2, "n2", *span(TMIN, TMIN)),
            (3, "n3", *span(T2)),
        ]
    spec = caller.iceberg("t").spec()
    assert [field.name for field in spec.fields] == ["_fivetran_active"]
    for _ in range(2):
        assert caller.migrate("t", "HISTORY_TO_SOFT_DELETE").success
        assert columns_of(caller) == ["id*:LONG", "name:STRING", SYNCED, DELETED]
        assert caller.rows("t", "id", "name", "_fivetran_deleted") == [
            (1, "n1", False),
            (2, "n2", True),
            (3, "n3", False),
        ]
        assert caller.rows("t", "id", "_fivetran_synced") == [
            (1, at(T2)),
            (2, at(T1)),
            (3, at(T1)),
        ]
    assert not caller.iceberg("t").spec().fields


@pytest.mark.long
def test_a_table_that_changed_its_mode_takes_batches_in_the_new_one(caller: Caller) -> None:
    fill(caller, SOFT, [soft(1, "false"), soft(2, "false"), soft(3, "false")])
    history = ["id*:LONG", "name:STRING", *HISTORY]
    for synced in (T2, T3):
        # Switched to and fro twice: nothing from an earlier mode may be in the way.
        assert caller.migrate(
            "t", "SOFT_DELETE_TO_HISTORY", soft_deleted_column="_fivetran_deleted"
        ).success
        changed = live(1, name=synced) | {
            "_fivetran_start": synced,
            "_fivetran_end": TMAX,
            "_fivetran_active": "true",
        }
        request = caller.request(
            "t",
            [text.replace("start*", "start") for text in history],
            history=True,
            earliest=[caller.file("earliest", [{"id": "1", "_fivetran_start": synced}])],
            replace=[caller.file("upsert", [changed])],
        )
        assert caller.stub.WriteHistoryBatch(request).success
        ends = T2_ENDS if synced == T2 else None
        found = versions(caller, "name")
        assert found[1] == (1, synced, *span(synced))
        if ends:
            assert found[0] == (1, "n1", *span(T1, ends))
        assert len(found) == 4
        assert caller.migrate("t", "HISTORY_TO_SOFT_DELETE").success
        newer = live(1, name=synced, _fivetran_synced=synced)
        gone = soft(2, "true", synced)
        assert caller.write("t", SOFT, update=[gone]).success
        assert caller.write("t", SOFT, delete=[newer]).success
        assert caller.rows("t", "id", "_fivetran_deleted") == [(2, True), (3, False)]
        assert caller.write("t", SOFT, replace=[soft(1, "false"), soft(2, "false")]).success


def test_the_newest_version_stays_whether_active_or_not(caller: Caller) -> None:
    stored = [version(1, T1, T2_ENDS, "old"), version(1, T2, email="new"), version(2, T1, T2_ENDS)]
    fill(caller, VERSIONED, stored)
    # Deleted records stay as well, whatever the value of this option, which is for live tables.
    assert caller.migrate("t", "HISTORY_TO_SOFT_DELETE", keep_deleted_rows=False).success
    assert columns_of(caller) == ["id*:LONG", "email:STRING", SYNCED, DELETED]
    assert caller.rows("t", "id", "email", "_fivetran_deleted") == [
        (1, "new", False),
        (2, None, True),
    ]


def test_a_marker_of_another_name_stays_and_decides(caller: Caller) -> None:
    columns = [*SOFT, "is_removed:BOOLEAN"]
    rows = [soft(1, "true") | {"is_removed": "false"}, soft(2, "false") | {"is_removed": "true"}]
    fill(caller, columns, rows)
    parts = {"soft_deleted_column": "is_removed"}
    assert caller.migrate("t", "SOFT_DELETE_TO_HISTORY", **parts).success
    assert "is_removed:BOOLEAN" in columns_of(caller)
    assert DELETED not in columns_of(caller)
    assert versions(caller) == [(1, *span(T1)), (2, *span(TMIN, TMIN))]
    assert caller.migrate("t", "HISTORY_TO_SOFT_DELETE", **parts).success
    assert caller.rows("t", "id", "is_removed", "_fivetran_deleted") == [
        (1, False, False),
        (2, True, False),
    ]


@pytest.mark.parametrize("parts", [{"soft_deleted_column": "missing"}, {}])
def test_without_a_marker_every_row_is_active(caller: Caller, parts: dict[str, str]) -> None:
    fill(caller, SOFT, [soft(1, "false"), soft(2, "true")])
    assert caller.migrate("t", "SOFT_DELETE_TO_HISTORY", **parts).success
    assert versions(caller) == [(1, *span(T1)), (2, *span(T1))]
    assert DELETED not in columns_of(caller)


def test_a_copy_becomes_a_history_table_and_its_source_does_not_change(caller: Caller) -> None:
    fill(caller, SOFT, [soft(1, "false"), soft(2, "true"), soft(3, None, T2)])
    before = caller.snapshot("t")
    parts = {"from_table": "t", "to_table": "h", "soft_deleted_column": "_fivetran_deleted"}
    for _ in range(2):
        assert caller.migrate("t", "copy_table_to_history_mode", **parts).success
        assert columns_of(caller, "h") == ["id*:LONG", "name:STRING", *HISTORY]
        assert versions(caller, name="h") == [
            (1, *span(T2)),
            (2, *span(TMIN, TMIN)),
            (3, *span(T2)),
        ]
    assert caller.snapshot("t") == before
    parts = {"from_table": "t", "to_table": "all", "soft_deleted_column": ""}
    assert caller.migrate("t", "copy_table_to_history_mode", **parts).success
    assert all(active for *_, active in versions(caller, name="all"))


@pytest.mark.parametrize("operation", ["SOFT_DELETE_TO_HISTORY", "HISTORY_TO_SOFT_DELETE"])
def test_an_empty_table_changes_its_columns_and_key_only(caller: Caller, operation: str) -> None:
    to_history = operation == "SOFT_DELETE_TO_HISTORY"
    fill(caller, SOFT if to_history else ["id*:LONG", "name:STRING", *HISTORY], [])
    assert caller.migrate("t", operation).success
    after = ["id*:LONG", "name:STRING", *HISTORY] if to_history else SOFT
    assert columns_of(caller) == after
    assert caller.rows("t") == []


def test_a_table_without_a_key_has_no_history(caller: Caller) -> None:
    fill(caller, ["id:LONG", SYNCED, DELETED], [])
    refused(caller, "t", "SOFT_DELETE_TO_HISTORY")


def test_the_time_of_the_operation_is_the_start_where_no_row_was_synced(caller: Caller) -> None:
    fill(caller, SOFT, [soft(1, "false") | {"_fivetran_synced": None}])
    began = datetime.now(UTC)
    assert caller.migrate("t", "SOFT_DELETE_TO_HISTORY").success
    ((_, start, end, active),) = versions(caller)
    begin = (began - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6
    assert begin - 1_000 <= start <= begin + 60e6
    assert (end, active) == (micros(TMAX), True)


@pytest.mark.parametrize(
    "operation",
    ["SOFT_DELETE_TO_LIVE", "HISTORY_TO_LIVE", "LIVE_TO_SOFT_DELETE", "LIVE_TO_HISTORY"],
)
def test_the_withdrawn_modes_are_unsupported(caller: Caller, operation: str) -> None:
    fill(caller, SOFT, [soft(1, "true")])
    before = caller.snapshot("t")
    assert caller.migrate("t", operation).unsupported
    assert caller.snapshot("t") == before


def test_an_unknown_operation_is_unsupported(caller: Caller) -> None:
    fill(caller, SOFT, [soft(1, "true")])
    before = caller.snapshot("t")
    place = {"schema": caller.schema, "table": "t"}
    for details in (
        sdk.MigrationDetails(**place),
        sdk.MigrationDetails(**place, copy=sdk.CopyOperation()),
        sdk.MigrationDetails(
            **place,
            table_sync_mode_migration=sdk.TableSyncModeMigrationOperation(type=99),  # type: ignore[arg-type]
        ),
    ):
        assert caller.stub.Migrate(sdk.MigrateRequest(details=details)).unsupported
    assert caller.snapshot("t") == before


@pytest.mark.parametrize("part", ["schema", "table"])
def test_an_operation_on_nothing_is_a_task(caller: Caller, part: str) -> None:
    place = {"schema": caller.schema, "table": "t", part: ""}
    details = sdk.MigrationDetails(**place, drop=sdk.DropOperation(drop_table=True))
    answer = caller.stub.Migrate(sdk.MigrateRequest(details=details))
    assert answer.WhichOneof("response") == "task"


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("operation", "parts"),
    [
        ("rename_table", {"from_table": "t", "to_table": ""}),
        ("rename_table", {"from_table": "", "to_table": "new"}),
        ("copy_table", {"from_table": "t", "to_table": ""}),
        ("copy_table", {"from_table": "", "to_table": "new"}),
        ("copy_table_to_history_mode", {"from_table": "t", "to_table": ""}),
        ("rename_column", {"from_column": "", "to_column": "new"}),
        ("rename_column", {"from_column": "email", "to_column": ""}),
        ("copy_column", {"from_column": "", "to_column": "new"}),
        ("copy_column", {"from_column": "email", "to_column": ""}),
        ("update_column_value", {"column": "", "value": "x"}),
        ("add_column_with_default_value", {"column": "", "default_value": "x"}),
        ("add_column_in_history_mode", {"column": "", "operation_timestamp": T3}),
        ("drop_column_in_history_mode", {"column": "", "operation_timestamp": T3}),
    ],
)
def test_a_name_that_is_empty_is_a_task(
    caller: Caller, operation: str, parts: dict[str, str]
) -> None:
    fill(caller, VERSIONED, [version(1, T1, email="a")])
    refused(caller, "t", operation, **parts)


def test_every_success_is_described(caller: Caller) -> None:
    """M-36: every success is described, for operations whose tests do not check the description."""
    fill(caller, SOFT, [soft(1, "true")])
    assert caller.migrate("t", "update_column_value", column="name", value="NULL").success
    assert columns_of(caller) == SOFT
    assert caller.rows("t", "name") == [(None,)]
    parts = {"from_table": "t", "to_table": "h", "soft_deleted_column": ""}
    assert caller.migrate("t", "copy_table_to_history_mode", **parts).success
    assert columns_of(caller, "h") == ["id*:LONG", "name:STRING", *HISTORY]


def test_an_empty_table_is_copied_to_history(caller: Caller) -> None:
    fill(caller, SOFT, [])
    parts = {"from_table": "t", "to_table": "h", "soft_deleted_column": "_fivetran_deleted"}
    assert caller.migrate("t", "copy_table_to_history_mode", **parts).success
    assert columns_of(caller, "h") == ["id*:LONG", "name:STRING", *HISTORY]
    assert caller.rows("h") == []


@pytest.mark.parametrize("operation", ["copy_column", "rename_column"])
def test_an_operation_on_a_missing_table_is_a_task(caller: Caller, operation: str) -> None:
    answer = caller.migrate("missing", operation, from_column="a", to_column="b")
    assert answer.WhichOneof("response") == "task"
    assert "missing" in answer.task.message


def test_a_schemas_prefix_counts_for_both_names(caller: Caller) -> None:
    caller.configuration = {"schema_prefix": "p_"}
    fill(caller, LIVE, [live(1)])
    assert caller.migrate("t", "rename_table", from_table="t", to_table="u").success
    assert columns_of(caller, "u") == LIVE


# ------------------------------------------------------------------ what must not happen


def test_a_name_is_never_taken_for_a_setting(caller: Caller) -> None:
    columns = ["id*:LONG", "${env:HOME}:STRING", "${spark.master}:STRING", SYNCED]
    rows = [{"id": "1", "${env:HOME}": "a", "${spark.master}": "b", "_fivetran_synced": T1}]
    fill(caller, columns, rows, name="${env:HOME}")
    parts = {"from_column": "${env:HOME}", "to_column": "copy ${env:PATH}"}
    assert caller.migrate("${env:HOME}", "copy_column", **parts).success
    assert caller.migrate("${env:HOME}", "SOFT_DELETE_TO_HISTORY").success
    named = ("id", "${env:HOME}", "${spark.master}", "copy ${env:PATH}")
    assert caller.rows("${env:HOME}", *named) == [(1, "a", "b", "a")]


def test_a_copy_that_lives_is_not_written_over_by_a_late_repeat(caller: Caller) -> None:
    fill(caller, LIVE, [live(1)])
    parts = {"from_table": "t", "to_table": "copy"}
    assert caller.migrate("t", "copy_table", **parts).success
    assert caller.write("copy", LIVE, replace=[live(2)]).success
    before = caller.snapshot("copy")
    refused(caller, "t", "copy_table", **parts)
    # The same is true of a table that only looks like a copy.
    fill(caller, LIVE, [live(3)], name="twin")
    refused(caller, "t", "copy_table", from_table="t", to_table="twin")
    assert caller.snapshot("copy") == before
    assert caller.rows("twin", "id") == [(3,)]


def test_a_dropped_table_leaves_no_file(caller: Caller) -> None:
    fill(caller, SOFT, [soft(1, "false")])
    folder = Path(caller.iceberg("t").location().removeprefix("file:"))
    assert caller.migrate("t", "SOFT_DELETE_TO_HISTORY").success
    assert any(folder.rglob("*.parquet"))
    assert caller.migrate("t", "drop_table").success
    assert not folder.exists()


def test_a_version_with_an_unknown_active_flag_keeps_its_end(caller: Caller) -> None:
    without = [text for text in VERSIONED if not text.startswith("_fivetran_active")]
    unknown = version(1, T1, T2_ENDS)
    del unknown["_fivetran_active"]
    fill(caller, VERSIONED, [])
    assert caller.write("t", without, replace=[unknown]).success
    rows = [version(2, T3, T3), version(3, T1)]
    assert caller.write("t", VERSIONED, replace=rows).success
    parts = {"column": "plan", "column_type": "STRING", "operation_timestamp": T3}
    assert caller.migrate("t", "add_column_in_history_mode", default_value="x", **parts).success
    found = {(row[0], row[2]): row[3] for row in versions(caller, "plan")}
    assert found[1, micros(T1)] == micros(T2_ENDS)
    assert found[3, micros(T1)] == micros(T3_ENDS)


@pytest.mark.parametrize("marker", ["_fivetran_active", "_fivetran_synced", "id", "email"])
def test_a_column_that_cannot_mark_deleted_rows_is_a_task(caller: Caller, marker: str) -> None:
    fill(caller, VERSIONED, [version(1, T1, T2_ENDS)])
    refused(caller, "t", "HISTORY_TO_SOFT_DELETE", soft_deleted_column=marker)


def test_a_history_table_without_a_key_has_no_newest_versions(caller: Caller) -> None:
    fill(caller, ["id:LONG", *(text.replace("*", "") for text in HISTORY)], [])
    refused(caller, "t", "HISTORY_TO_SOFT_DELETE")
