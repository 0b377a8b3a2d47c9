"""Truncate affects rows strictly before a millisecond, hard or soft, and never more than that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.server.caller import DELETED, HISTORY, SYNCED, Caller, catalog

COLUMNS = ["id*:LONG", "v:STRING", SYNCED, DELETED]
CUTOFF = 1_705_329_300_000  # 2024-01-15T14:35:00Z: the seconds and milliseconds are zero
ROWS = {
    1: "2024-01-15T14:34:59.999Z",
    2: "2024-01-15T14:35:00Z",
    3: "2024-01-15T14:35:00.001Z",
    4: "2024-01-15T14:34:59.999999Z",
}


@pytest.fixture
def table(caller: Caller) -> Caller:
    assert caller.create("t", COLUMNS).success
    rows = [
        {"id": str(id_), "v": "x", "_fivetran_synced": synced, "_fivetran_deleted": "false"}
        for id_, synced in ROWS.items()
    ]
    assert caller.write("t", COLUMNS, replace=rows).success
    return caller


def test_a_hard_truncate_removes_exactly_what_was_synced_before(table: Caller) -> None:
    assert table.truncate("t", CUTOFF).success
    assert table.rows("t", "id") == [(2,), (3,)]
    # A late or repeated truncate: rows written since are newer than its time.
    assert table.truncate("t", CUTOFF).success
    assert table.rows("t", "id") == [(2,), (3,)]


def test_an_invalid_time_is_a_task_and_removes_no_row(table: Caller) -> None:
    before = table.snapshot("t")
    # Milliseconds in place of seconds, among others.
    for wrong in (-(2**62) * 1000, 2**62 * 1000, CUTOFF * 1000):
        answer = table.truncate("t", wrong)
        assert "not a valid time in the years 1 to 9999" in answer.task.message
    assert table.snapshot("t") == before


def test_the_first_and_the_last_time_are_times(table: Caller) -> None:
    assert table.truncate("t", -62_135_596_800_000).success
    assert len(table.rows("t", "id")) == len(ROWS)
    assert table.truncate("t", 253_402_300_799_999).success
    assert table.rows("t", "id") == []


def test_a_soft_truncate_marks_exactly_those_and_changes_nothing_else(table: Caller) -> None:
    before = table.rows("t", "id", "v", "_fivetran_synced")
    assert table.truncate("t", CUTOFF, soft="_fivetran_deleted").success
    assert table.rows("t", "id", "v", "_fivetran_synced") == before
    assert table.rows("t", "id", "_fivetran_deleted") == [
        (1, True),
        (2, False),
        (3, False),
        (4, True),
    ]


def test_a_soft_truncate_makes_no_version_active(caller: Caller) -> None:
    assert caller.create("h", ["k*:LONG", *HISTORY]).success
    answer = caller.truncate("h", CUTOFF, soft="_fivetran_active")
    assert "would make versions active that have ended" in answer.task.message


def test_no_time_means_no_row(table: Caller) -> None:
    before = table.snapshot("t")
    assert table.truncate("t", None).success
    assert table.truncate("t", None, soft="_fivetran_deleted").success
    assert table.snapshot("t") == before


def test_times_before_1970_and_at_zero_are_times_like_any_other(caller: Caller) -> None:
    assert caller.create("t", COLUMNS).success
    rows = [
        {"id": str(id_), "v": "x", "_fivetran_synced": synced, "_fivetran_deleted": "false"}
        for id_, synced in enumerate(
            ["1969-12-31T23:59:59.998Z", "1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00Z", None]
        )
    ]
    assert caller.write("t", COLUMNS, replace=rows).success
    assert caller.truncate("t", -1).success
    assert caller.rows("t", "id") == [(1,), (2,), (3,)]
    assert caller.truncate("t", 0).success
    # A row that was never synced was not synced before any time.
    assert caller.rows("t", "id") == [(2,), (3,)]


def test_truncating_a_missing_table_or_schema_succeeds_and_creates_none(caller: Caller) -> None:
    assert caller.create("other", ["id*:LONG", SYNCED]).success
    elsewhere = replace(caller, schema=f"{caller.schema}_missing")
    for destination in (caller, elsewhere):
        for soft in (None, "_fivetran_deleted"):
            assert destination.truncate("t", CUTOFF, soft=soft).success
        assert destination.describe("t").not_found
    assert (elsewhere.schema,) not in catalog(caller.lake).list_namespaces()


@pytest.mark.parametrize(
    ("synced", "soft"),
    [("", None), ("_fivetran_synced", ""), ("_fivetran_synced", "nothing"), ("nothing", None)],
)
def test_a_column_that_is_not_named_or_not_there_is_a_task(
    table: Caller, synced: str, soft: str | None
) -> None:
    before = table.snapshot("t")
    answer = table.truncate("t", CUTOFF, synced=synced, soft=soft)
    assert answer.WhichOneof("response") == "task"
    assert table.snapshot("t") == before


def test_a_truncate_considers_every_version_of_a_history_table(caller: Caller) -> None:
    columns = ["id*:LONG", "v:STRING", *HISTORY]
    assert caller.create("t", columns).success
    versions = [
        {
            "id": "1",
            "v": str(number),
            "_fivetran_synced": ROWS[number + 1],
            "_fivetran_start": f"2023-01-0{number + 1}T00:00:00Z",
            "_fivetran_end": end,
            "_fivetran_active": active,
        }
        for number, (end, active) in enumerate(
            [("2023-01-01T23:59:59.999Z", "false"), ("9999-12-31T23:59:59.999Z", "true")]
        )
    ]
    request = caller.request("t", columns, history=True, replace=[caller.file("upsert", versions)])
    assert caller.stub.WriteHistoryBatch(request).success
    assert caller.truncate("t", CUTOFF).success
    assert caller.rows("t", "v") == [("1",)]
