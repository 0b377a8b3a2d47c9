"""The conditions under which maintenance rewrites a table's files."""

from __future__ import annotations

import pytest

from chronolake.config.sections import MaintenanceConfig
from chronolake.core.maintain import TableFiles, plan_maintenance
from chronolake.types import TableName


@pytest.mark.parametrize(
    ("records", "removed", "small_files", "is_needed"),
    [
        (41, 40, 5, False),  # a tiny table, most of whose rows the last batch replaced
        (1_000_000, 150_000, 5, False),
        (1_000_000, 250_000, 5, True),
        (41, 40, 64, True),
        (0, 0, 0, False),
    ],
)
def test_a_table_is_compacted_when_that_is_worth_it(
    records: int, removed: int, small_files: int, *, is_needed: bool
) -> None:
    files = TableFiles(
        data_files=small_files + 1,
        small_files=small_files,
        data_bytes=1,
        records=records,
        removed=removed,
        expirable=0,
    )
    plan = plan_maintenance(TableName("shop", "orders"), files, MaintenanceConfig())
    assert plan.is_needed is is_needed
    assert (plan.reason == "in order") is not is_needed
