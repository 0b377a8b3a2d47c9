"""The times of transactions strictly increase in the order of the log."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronolake.source.postgres.columns import SourceColumn, assign_numbers
from chronolake.source.postgres.messages import Transaction
from chronolake.source.postgres.offset import LogOffset
from chronolake.source.relational.clock import Clock

_COMMITS = st.lists(st.tuples(st.integers(0, 30), st.booleans(), st.booleans()), max_size=30)


@given(_COMMITS, st.integers(0, 20))
def test_times_are_those_of_a_plain_loop(commits: list[tuple[int, bool, bool]], last: int) -> None:
    """Transaction times equal those of a plain loop.

    A commit has its time, whether it touches the stream, and whether a batch ends within it.
    """
    expected, before = {}, last
    for number, (at, touches, _) in enumerate(commits):
        if touches:
            expected[number] = before = max(at, before + 1)

    clock = Clock(last)
    found: dict[int, int] = {}
    batch: list[int] = []
    for number, (_, _, is_cut) in enumerate(commits):
        batch.append(number)
        if is_cut or number == len(commits) - 1:
            transactions = [Transaction(1_000 + xid, commits[xid][0], xid) for xid in batch]
            touched = np.array([commits[xid][1] for xid in batch], np.bool_)
            times = clock.times(transactions, touched)
            for xid, at in zip(batch, times.tolist(), strict=True):
                if commits[xid][1]:
                    assert found.setdefault(xid, at) == at, "a transaction has one time"
            # The transaction continues in the next batch.
            batch = [number] if is_cut else []

    assert found == expected
    assert clock.last_micros == before


def test_offset_round_trips_through_json() -> None:
    columns = (SourceColumn(1, "Ü", 25, -1), SourceColumn(None, "x", 25, -1))
    position = LogOffset(
        2**60, 5, columns, 7, (1, 4), (8, 9), 10, -11, has_unlogged=True, greatest=12
    )
    assert LogOffset.from_json(position.as_json()) == position


@pytest.mark.parametrize(
    ("described", "before", "now", "numbers"),
    [
        ("id a b", "id:1 a:2 b:3", "id:1 a:2 b:3", [1, 2, 3]),
        # Renamed, before and after.
        ("id a b", "id:1 a:2 b:3", "id:1 x:2 b:3", [1, 2, 3]),
        ("id x b", "id:1 a:2 b:3", "id:1 x:2 b:3", [1, 2, 3]),
        # Renamed twice: the name in between is in neither.
        ("id y b", "id:1 a:2 b:3", "id:1 x:2 b:3", [1, 2, 3]),
        ("id a y", "id:1 a:2 b:3", "id:1 a:2 x:3", [1, 2, 3]),
        # The last column: perhaps it was dropped, and another one added.
        ("id a y", "id:1 a:2 b:3", "id:1 a:2 x:4", [1, 2, None]),
        # Added since the log was last read, and renamed.
        ("id a b", "id:1", "id:1 x:2 y:3 z:4", [1, 2, 3]),
        ("id a b", "id:1", "id:1 x:2 y:4", [1, None, None]),
        # Two columns have exchanged their names.
        ("id a b", "id:1 a:2 b:3", "id:1 b:2 a:3", [1, 2, 3]),
        ("id b a", "id:1 a:2 b:3", "id:1 b:2 a:3", [1, 2, 3]),
        ("id b a", "id:1 a:2 b:3", "id:1 x:2 y:3", [None, None, None]),
        # Added, and dropped.
        ("id a b c", "id:1 a:2 b:3", "id:1 a:2 b:3 c:4", [1, 2, 3, 4]),
        ("id b", "id:1 a:2 b:3", "id:1 b:3", [1, 3]),
    ],
)
def test_columns_are_recognized_by_position(
    described: str, before: str, now: str, numbers: list[int | None]
) -> None:
    found = assign_numbers(_columns(described), _columns(before), _columns(now))
    assert [column.number for column in found] == numbers
    assert [column.name for column in found] == described.split()


_CHANGES = st.lists(st.tuples(st.sampled_from("aadrr"), st.integers(0, 9)), max_size=12)


@given(_CHANGES, st.integers(0, 12), st.integers(0, 12))
def test_columns_are_never_confused(
    changes: list[tuple[str, int]], first: int, second: int
) -> None:
    """No column is mistaken for another, whatever is altered between two reads of the log."""
    table = {1: "id"}
    states = [dict(table)]
    last = 1
    for place, (change, number) in enumerate(changes):
        live = sorted(table)
        column = live[number % len(live)]
        if change == "a":
            last += 1
            table[last] = f"c{place}"
        elif change == "r":
            table[column] = f"c{place}"
        elif column != 1:
            del table[column]
        states.append(dict(table))
    before, reported = sorted((min(first, len(changes)), min(second, len(changes))))

    def columns(state: dict[int, str], *, numbers: bool = True) -> list[SourceColumn]:
        entries = sorted(state.items())
        return [SourceColumn(number if numbers else None, name, 25, -1) for number, name in entries]

    described = columns(states[reported], numbers=False)
    ever = set[int]().union(*states[: before + 1])
    found = assign_numbers(
        described, columns(states[before]), columns(states[-1]), greatest=max(ever)
    )
    gone_before = ever - states[before].keys()
    gone = set(range(1, last + 1)) - table.keys()
    for column, number in zip(found, sorted(states[reported]), strict=True):
        assert column.number in {number, None}
        # Nothing was dropped since the log was last read, so nothing is uncertain.
        assert column.number == number or gone != gone_before


def test_dropped_column_number_is_never_reused() -> None:
    described, before, now = _columns("id a y"), _columns("id:1 a:2"), _columns("id:1 a:2 x:4")
    assert [column.number for column in assign_numbers(described, before, now)] == [1, 2, None]
    assert [column.number for column in assign_numbers(described, before, now, greatest=3)] == [
        1,
        2,
        4,
    ]


def _columns(text: str) -> list[SourceColumn]:
    parts = (word.partition(":") for word in text.split())
    return [
        SourceColumn(int(number) if number else None, name, 25, -1) for name, _, number in parts
    ]
