"""The oracle satisfies the invariants, so a table that equals it satisfies them too."""

from __future__ import annotations

import copy

from hypothesis import HealthCheck, Phase, given, settings

from support import batches
from support.batches import COLUMNS, SYNCED, Sent
from support.oracle import HistoryTable, KeyedTable, violated_invariants

_quick = settings(
    max_examples=200,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@_quick
@given(batches.histories(most=40, requests=4))
def test_a_repeated_history_batch_changes_nothing(story: list[Sent]) -> None:
    table = HistoryTable(["k", "r"], [text.split(":")[0].rstrip("*") for text in COLUMNS])
    for step in story:
        table.write(**step.rows)
        once = copy.deepcopy(table.versions)
        table.write(**step.rows)
        assert table.versions == once
        if step.truncate is not None:
            table.truncate(SYNCED, step.truncate)
        assert not violated_invariants(table.rows(), table.key)


@_quick
@given(batches.keyed_stories(most=40, requests=3))
def test_a_repeated_batch_changes_nothing(story: list[Sent]) -> None:
    table = KeyedTable(["k", "r"], [text.split(":")[0].rstrip("*") for text in COLUMNS])
    for step in story:
        table.write(**step.rows)
        once = copy.deepcopy(table.by_key)
        table.write(**step.rows)
        assert table.by_key == once
