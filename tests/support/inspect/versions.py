"""Versions of records and queries on them, in plain Python, without any Chronolake.

A row maps column names to Python values; times are microseconds since 1970.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

START: Final = "_fivetran_start"
END: Final = "_fivetran_end"
ACTIVE: Final = "_fivetran_active"
SYNCED: Final = "_fivetran_synced"
TMAX: Final = 253_402_300_799_999_000
TMIN: Final = -62_135_596_800_000_000
BEGIN: Final = 1_704_067_200_000_000  # 2024-01-01T00:00:00Z
HOUR: Final = 3_600_000_000

Row = dict[str, Any]


@dataclass
class ModelTable:
    """A table's versions."""

    key: tuple[str, ...]
    epsilon: int
    rows: list[Row] = field(default_factory=list)

    def as_of(self, at: int) -> list[Row]:
        """Return the versions that are valid at a time, by key and start."""
        rows = [row for row in self.rows if row[START] <= at < row[END] + self.epsilon]
        return sorted(rows, key=self.order)

    def diff(self, before: int, after: int) -> list[tuple[str, Row | None, Row | None]]:
        """Return the differences between two times, by key."""
        first = {self.order(row)[:-1]: row for row in self.as_of(before)}
        second = {self.order(row)[:-1]: row for row in self.as_of(after)}
        found: list[tuple[str, Row | None, Row | None]] = []
        for key in sorted(first.keys() | second.keys()):
            old, new = first.get(key), second.get(key)
            if old is None:
                found.append(("inserted", None, new))
            elif new is None:
                found.append(("deleted", old, None))
            elif any(
                to_comparable(old[name]) != to_comparable(new[name])
                for name in old
                if name not in {START, END, ACTIVE, SYNCED}
            ):
                found.append(("changed", old, new))
        return found

    def order(self, row: Row) -> tuple[Any, ...]:
        """Return key and start as a sort key of Python: null first, NaN last."""
        return (*(to_comparable(row[name]) for name in self.key), row.get(START, 0))

    def is_clear(self, at: int) -> bool:
        """Return whether no record has two versions at a time, which is possible near a delete."""
        keys = [self.order(row)[:-1] for row in self.as_of(at)]
        return len(keys) == len(set(keys))

    def times(self, chance: random.Random, count: int) -> list[int]:
        """Draw times at or near the bounds of versions."""
        marks = [row[name] for row in self.rows for name in (START, END)]
        near = [
            chance.choice(marks) + chance.choice([-1_000, -1, 0, 1, 999, 1_000, self.epsilon])
            for _ in range(count)
        ]
        return [min(max(at, TMIN), TMAX) for at in near]


def to_comparable(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (0,)
    if isinstance(value, float) and math.isnan(value):
        return (2,)
    return (1, value + 0 if isinstance(value, float) else value)


def draw_table(
    chance: random.Random,
    keys: Sequence[Row],
    value: Callable[[random.Random], Row],
    *,
    epsilon: int,
    deletes_are_near: bool = False,
) -> ModelTable:
    """Draw versions: replaced, deleted, revived, deleted at once, deleted before history."""
    table = ModelTable(tuple(keys[0]), epsilon)
    for key in keys:
        starts = sorted({BEGIN + chance.randrange(40) * HOUR // 4 for _ in range(5)})
        if chance.random() < 0.1:
            table.rows.append(_row(key, value(chance), TMIN, TMIN, active=False))
        for number, start in enumerate(starts):
            is_last = number + 1 == len(starts)
            latest = TMAX if is_last else starts[number + 1] - epsilon
            kind = chance.random()
            if kind < 0.15:
                end = start
            elif kind < 0.35:
                gone = start + chance.randrange(1, HOUR // 4)
                end = min(gone, latest)
            elif deletes_are_near and kind < 0.45 and not is_last:
                end = starts[number + 1] - chance.choice([1, epsilon // 2, epsilon - 1])
            else:
                end = latest
            table.rows.append(_row(key, value(chance), start, end, active=end == TMAX))
    chance.shuffle(table.rows)
    return table


def _row(key: Row, values: Row, start: int, end: int, *, active: bool) -> Row:
    times = {SYNCED: max(start, BEGIN), START: start, END: end, ACTIVE: active}
    return {**key, **values, **times}
