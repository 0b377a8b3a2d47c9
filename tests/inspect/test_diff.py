"""Diffs between two times within a delete and a revival: they equal the true difference."""

from __future__ import annotations

import random

from chronolake.config import LakeConfig
from chronolake.formatting import instant
from chronolake.inspect.time_travel import differences, rows_at
from chronolake.types import TableName
from support.inspect.layout import HISTORY, Make
from support.inspect.versions import ACTIVE, BEGIN, END, START, TMAX, ModelTable, Row

NAME = TableName("shop", "orders")
EPSILON = 1_000


def _lives(chance: random.Random) -> list[Row]:
    """Make versions of some records, with less than epsilon between an end and the next start."""
    rows: list[Row] = []
    for key in range(30):
        start = BEGIN + chance.randrange(400)
        for number in range(count := chance.randrange(2, 5)):
            is_last = number == count - 1
            end = TMAX if is_last else start + chance.choice([0, 1, 300, 1_500])
            value = chance.choice(["same", "other"])
            rows.append({"id": key, "v": value, START: start, END: end, ACTIVE: is_last})
            start = max(start + 1, end + chance.choice([1, 400, 999, 1_000]))
    return rows


def test_two_times_differ_in_what_is_true_at_both(config: LakeConfig, make: Make) -> None:
    chance = random.Random("revivals")
    model = ModelTable(("id",), EPSILON, _lives(chance))
    make(
        NAME,
        ["id*:LONG", "v:STRING", *HISTORY],
        [
            (row["id"], row["v"], instant(row[START]), instant(row[END]), row[ACTIVE])
            for row in model.rows
        ],
    )

    unclear = 0
    for _ in range(25):
        first, second = sorted(BEGIN + chance.randrange(4_000) for _ in range(2))
        unclear += not (model.is_clear(first) and model.is_clear(second))
        page = differences(config, NAME, instant(first), instant(second), limit=100)
        assert [
            (record.change, record.old and record.old["v"], record.new and record.new["v"])
            for record in page.records
        ] == [
            (change, old and old["v"], new and new["v"])
            for change, old, new in model.diff(first, second)
        ]
        there = [row["id"] for row in rows_at(config, NAME, instant(second), limit=100).rows]
        assert there == [row["id"] for row in model.as_of(second)]
    assert unclear > 10
