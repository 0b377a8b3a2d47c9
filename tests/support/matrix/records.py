"""Records of a source in plain Python, and the tables that they must become."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from chronolake.types import ACTIVE, DELETED, END, START

#: Two versions of a record without a gap between them are at most this far apart, in µs.
_ADJACENT: Final = 1_000

Row = Mapping[str, Any]


class Records:
    """Named records, and what a history table knows about them.

    Attributes:
        names: the name of each record that exists, by key.
        history: the names that each record ever had, by key; None while it was deleted.
    """

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.history: defaultdict[int, list[str | None]] = defaultdict(list)

    def put(self, names: Mapping[int, str]) -> None:
        """Insert or update records."""
        for key, name in names.items():
            if self.names.get(key) != name:
                self.history[key].append(name)
        self.names |= names

    def delete(self, keys: Iterable[int]) -> None:
        """Delete records."""
        for key in keys:
            del self.names[key]
            self.history[key].append(None)

    def copy(self) -> Records:
        """Return the records as they are now."""
        copied = Records()
        copied.names |= self.names
        copied.history |= {key: list(names) for key, names in self.history.items()}
        return copied

    def differences(self, rows: Sequence[Row], key: str, name: str) -> str:
        """Return how a table differs from what it must be in its mode; empty if it does not.

        Args:
            rows: the rows of the table.
            key: the column of keys.
            name: the column of names.
        """
        found: Any
        if rows and START in rows[0]:
            found, wanted = _histories(rows, key, name), dict(self.history)
        elif rows and DELETED in rows[0]:
            found = sorted((int(row[key]), not row[DELETED]) for row in rows)
            wanted = sorted((number, number in self.names) for number in self.history)
        else:
            found, wanted = len(rows), len(self.names)
        if found != wanted:
            return f"has {found}, must have {wanted}"
        current = {
            int(row[key]): row[name]
            for row in rows
            if row.get(ACTIVE, True) and not row.get(DELETED)
        }
        return "" if current == self.names else f"has {current}, must have {self.names}"


def _histories(rows: Sequence[Row], key: str, name: str) -> dict[int, list[str | None]]:
    found: defaultdict[int, list[str | None]] = defaultdict(list)
    ends: dict[int, Any] = {}
    for row in sorted(rows, key=lambda row: row[START]):
        number = int(row[key])
        assert row[START] <= row[END]
        if number in ends and (row[START] - ends[number]).total_seconds() * 1e6 > _ADJACENT:
            found[number].append(None)
        found[number].append(row[name])
        ends[number] = row[END]
    active = [int(row[key]) for row in rows if row[ACTIVE]]
    assert len(active) == len(set(active))
    for number, names in found.items():
        if number not in active:
            names.append(None)
    return dict(found)
