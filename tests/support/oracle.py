"""The expected tables: the rules of the Partner SDK in plain Python, without Chronolake.

Written from sections 4.5, 4.6 and 4.7.3 of the specification, one statement after the other, for
clarity and not for speed. A row maps column names to Python values; times are microseconds since
1970. A cell that a file leaves unchanged holds `KEEP`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

START: Final = "_fivetran_start"
END: Final = "_fivetran_end"
ACTIVE: Final = "_fivetran_active"
MILLISECOND: Final = 1_000
#: 9999-12-31T23:59:59.999Z
TMAX: Final = 253_402_300_799_999_000


class _Keep:
    def __repr__(self) -> str:
        return "KEEP"


KEEP: Final = _Keep()

Row = dict[str, Any]
Rows = Iterable[Mapping[str, Any]]
Key = tuple[Any, ...]


class KeyedTable:
    """A live or soft-delete table: one row per key; null is a value like any other."""

    def __init__(self, key: Sequence[str], columns: Sequence[str]) -> None:
        self.key = tuple(key)
        self.columns = tuple(columns)
        self.by_key: dict[Key, Row] = {}
        self.ignored = 0

    def write(self, *, replace: Rows = (), update: Rows = (), delete: Rows = ()) -> None:
        for row in replace:
            # Columns that the request omits keep their value, or begin as null.
            before = self.by_key.get(self._key(row), dict.fromkeys(self.columns))
            self.by_key[self._key(row)] = {**before, **row}
        for row in update:
            found = self.by_key.get(self._key(row))
            if found is None:
                self.ignored += 1
            else:
                found.update({name: cell for name, cell in row.items() if cell is not KEEP})
        for row in delete:
            self.by_key.pop(self._key(row), None)

    def truncate(self, synced: str, before: int, *, soft: str | None = None) -> None:
        for key, row in list(self.by_key.items()):
            if row[synced] is None or row[synced] >= before:
                continue
            if soft is None:
                del self.by_key[key]
            else:
                row[soft] = True

    def rows(self) -> list[Row]:
        return list(self.by_key.values())

    def _key(self, row: Mapping[str, Any]) -> Key:
        return tuple(row[name] for name in self.key)


class HistoryTable:
    """A history table: the versions of every key, by their start."""

    def __init__(self, key: Sequence[str], columns: Sequence[str]) -> None:
        self.key = tuple(key)
        self.columns = tuple(columns)
        self.versions: dict[Key, dict[int, Row]] = {}
        self.ignored = 0
        self.closed_at_start = 0

    def write(
        self, *, earliest: Rows = (), replace: Rows = (), update: Rows = (), delete: Rows = ()
    ) -> None:
        since: dict[Key, int] = {}
        given: defaultdict[Key, dict[int, tuple[bool, Mapping[str, Any]]]] = defaultdict(dict)
        for row in earliest:
            self._note(since, row)
        for is_whole, rows in ((False, update), (True, replace)):
            for row in rows:
                self._note(since, row)
                given[self._key(row)][row[START]] = (is_whole, row)
        was_active = {
            key: [start for start, row in versions.items() if row[ACTIVE]]
            for key, versions in self.versions.items()
        }
        for key, begin in since.items():
            self._write_key(key, begin, given[key])
        deleted: defaultdict[Key, list[int]] = defaultdict(list)
        for row in delete:
            deleted[self._key(row)].append(row[END])
        for key, times in deleted.items():
            begin = since.get(key, TMAX)
            stored = [start for start in was_active.get(key, []) if start < begin]
            self._delete(key, sorted(times), stored)

    def truncate(self, synced: str, before: int) -> None:
        for key, versions in self.versions.items():
            self.versions[key] = {
                start: row
                for start, row in versions.items()
                if row[synced] is None or row[synced] >= before
            }

    def rows(self) -> list[Row]:
        return [row for versions in self.versions.values() for row in versions.values()]

    def _note(self, since: dict[Key, int], row: Mapping[str, Any]) -> None:
        key, start = self._key(row), row[START]
        since[key] = min(start, since.get(key, start))

    def _write_key(
        self, key: Key, begin: int, given: Mapping[int, tuple[bool, Mapping[str, Any]]]
    ) -> None:
        stored = self.versions.get(key, {})
        # Step 1: remove the versions that start at the earliest start or later.
        removed = {start: row for start, row in stored.items() if start >= begin}
        versions = {start: row for start, row in stored.items() if start < begin}
        # Step 2: end the versions before it that are active or reach it.
        for row in versions.values():
            if row[ACTIVE] or row[END] > begin - MILLISECOND:
                row[ACTIVE], row[END] = False, begin - MILLISECOND
        # Steps 3 and 4, in the order of the starts.
        for start in sorted(given):
            is_whole, row = given[start]
            if is_whole:
                versions[start] = {**dict.fromkeys(self.columns), **row}
                continue
            base = self._base(start, versions, removed, set(given))
            if base is None:
                self.ignored += 1
                continue
            changed = {name: cell for name, cell in row.items() if cell is not KEEP}
            versions[start] = {**base, **changed}
        self.versions[key] = versions

    @staticmethod
    def _base(
        start: int, versions: Mapping[int, Row], removed: Mapping[int, Row], given: set[int]
    ) -> Row | None:
        before = [other for other in versions if other < start]
        if before:
            return versions[max(before)]
        if start in removed:
            return removed[start]
        after = [other for other in removed if other > start and other not in given]
        return removed[min(after)] if after else None

    def _delete(self, key: Key, times: Sequence[int], was_active: Sequence[int]) -> None:
        """Apply step 5: every version that is valid at the delete's time ends then.

        If there is no such version, the delete applies to the version that was active before the
        request and starts later: it ends at its start. Of several deletes without a version between
        them, only the first one counts.
        """
        versions = self.versions.get(key, {})
        unmatched, closed, seen = [], set(), set()
        for at in times:
            for start, row in versions.items():
                if start <= at < row[END]:
                    row.update({END: at, ACTIVE: False})
                    closed.add(start)
        for at in times:
            begun = [start for start in versions if start <= at]
            is_valid = any(at < versions[start][END] + MILLISECOND for start in begun)
            if not is_valid and max(begun, default=None) not in seen:
                unmatched.append(at)
            seen.add(max(begun, default=None))
        for start in was_active:
            if start not in closed and any(at < start for at in unmatched):
                version = versions[start]
                version.update({END: min(version[END], start), ACTIVE: False})
                self.closed_at_start += 1

    def _key(self, row: Mapping[str, Any]) -> Key:
        return tuple(row[name] for name in self.key)


def is_close(rows: Rows, key: Sequence[str]) -> bool:
    """Return whether a version was deleted less than a millisecond before its key came back.

    Such a version ends at its delete, as in the file, and not a millisecond before the next one.
    """
    versions = sorted(
        (tuple(repr(row[name]) for name in key), row[START], row[END]) for row in rows
    )
    return any(
        version[0] == other[0] and version[2] > other[1] - MILLISECOND
        for version, other in pairwise(versions)
    )


def violated_invariants(rows: Rows, key: Sequence[str]) -> list[str]:
    """Return the invariants of a history table that these versions violate."""
    by_key: defaultdict[Key, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        by_key[tuple(row[name] for name in key)].append(row)
    broken = []
    for record_key, found in by_key.items():
        versions = sorted(found, key=lambda row: row[START])
        if sum(row[ACTIVE] for row in versions) > 1:
            broken.append(f"{record_key} has several active versions")
        broken += [f"{record_key}: {row}" for row in versions if row[ACTIVE] != (row[END] == TMAX)]
        for row, following in pairwise(versions):
            if row[START] == following[START]:
                broken.append(f"{record_key}: two versions start at {row[START]}")
            elif row[END] >= following[START]:
                broken.append(f"{record_key}: the version of {row[START]} overlaps the next")
    return broken
