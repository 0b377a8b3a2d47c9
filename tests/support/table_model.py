"""A model of a table over its life, in plain Python, without Chronolake.

Written from `seeds/history-mode.txt` and the sections 4.8 and 4.9 of the specification. Batches are
modeled by the oracle; here are modes, migrations and re-syncs. Rows map column names to values;
times are microseconds since 1970. The key is `id`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from support.oracle import ACTIVE, END, MILLISECOND, START, TMAX, HistoryTable, KeyedTable, Row

SYNCED: Final = "_fivetran_synced"
DELETED: Final = "_fivetran_deleted"
TMIN: Final = -62_135_596_800_000_000
_TIMES: Final = (START, END, ACTIVE)


class RefusedError(Exception):
    """The table must refuse the operation, and stay unchanged."""


class Life:
    """A table: its columns in order, its rows, its mode."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = list(columns)
        self.rows: list[Row] = []

    @property
    def mode(self) -> str:
        if START in self.columns:
            return "history"
        return "soft-delete" if DELETED in self.columns else "live"

    def write(self, **files: Any) -> None:
        if self.mode == "history":
            history = HistoryTable(["id"], self.columns)
            for row in self.rows:
                history.versions.setdefault((row["id"],), {})[row[START]] = dict(row)
            history.write(**files)
            self.rows = history.rows()
            return
        keyed = KeyedTable(["id"], self.columns)
        keyed.by_key = {(row["id"],): dict(row) for row in self.rows}
        keyed.write(**files)
        self.rows = keyed.rows()

    # ------------------------------------------------------------------ modes

    def switch(self, mode: str) -> None:
        if mode == self.mode:
            return
        if mode == "history":
            self._to_history()
            return
        if self.mode == "history":
            self._from_history(with_deleted=mode == "soft-delete")
        elif mode == "live":
            self.rows = [row for row in self.rows if row.pop(DELETED) is not True]
            self.columns.remove(DELETED)
            return
        else:
            for row in self.rows:
                row[DELETED] = False
        if mode == "soft-delete":
            self.columns.append(DELETED)

    def _to_history(self) -> None:
        newest = max((row[SYNCED] for row in self.rows), default=0)
        for row in self.rows:
            gone = row.pop(DELETED, None) is True
            row[START] = TMIN if gone else newest
            row[END] = TMIN if gone else TMAX
            row[ACTIVE] = not gone
        self.columns = [name for name in self.columns if name != DELETED] + list(_TIMES)

    def _from_history(self, *, with_deleted: bool) -> None:
        newest = {row["id"]: row for row in sorted(self.rows, key=lambda row: row[START])}
        kept = list(newest.values()) if with_deleted else [r for r in self.rows if r[ACTIVE]]
        self.rows = []
        for row in kept:
            mark = {DELETED: not row[ACTIVE]} if with_deleted else {}
            cells = {name: cell for name, cell in row.items() if name not in _TIMES}
            self.rows.append(cells | mark)
        self.columns = [name for name in self.columns if name not in _TIMES]

    # ------------------------------------------------------------------ columns

    def set_value(self, column: str, value: Any) -> None:
        if column not in self.columns:
            self.columns.append(column)
        for row in self.rows:
            row[column] = value

    def copy_column(self, column: str, new_name: str) -> None:
        self.columns.append(new_name)
        for row in self.rows:
            row[new_name] = row[column]

    def rename_column(self, column: str, new_name: str) -> None:
        self.columns = [new_name if name == column else name for name in self.columns]
        for row in self.rows:
            row[new_name] = row.pop(column)

    def change_from(self, column: str, value: Any, at: int) -> None:
        """Add a column (with a value) or drop it (with None) at a time, in history mode."""
        if any(row[ACTIVE] and row[START] > at for row in self.rows):
            raise RefusedError
        dropped = value is None
        if column not in self.columns:
            self.columns.append(column)
            for row in self.rows:
                row[column] = None
        for row in list(self.rows):
            if row[ACTIVE] and row[START] < at and not (dropped and row[column] is None):
                self.rows.append({**row, START: at})
                row[END], row[ACTIVE] = at - MILLISECOND, False
        for row in self.rows:
            if row[START] == at:
                row[column] = value

    # ------------------------------------------------------------------ re-syncs

    def resync(self, brought: Sequence[Mapping[str, Any]], at: int, gone: str) -> None:
        """Apply the source's present rows.

        A row without a start is a new version if its values differ.
        """
        for row in brought:
            found = [version for version in self.rows if version["id"] == row["id"]]
            active = next((version for version in found if version[ACTIVE]), None)
            if START in row:
                start = row[START]
            elif active is not None and all(active[name] == row[name] for name in row):
                start = active[START]
            else:
                start = at if active is None else max(at, active[START])
            same = next((version for version in found if version[START] == start), None)
            keeps = same if START in row or same is active else None
            for version in found:
                if version[START] >= start:
                    self.rows.remove(version)
                elif version[ACTIVE] or version[END] > start - MILLISECOND:
                    version[END], version[ACTIVE] = start - MILLISECOND, False
            base = dict(keeps or dict.fromkeys(self.columns))
            now = {START: start, END: TMAX, ACTIVE: True, SYNCED: at}
            self.rows.append({**base, **row, **now})
        if gone == "stay":
            return
        for row in self.rows:
            if row[ACTIVE] and row[SYNCED] < at:
                ended = at - MILLISECOND if gone == "deactivate" else at
                row[END], row[ACTIVE] = max(row[START], ended), False

    # ------------------------------------------------------------------ time

    def as_of(self, at: int) -> list[Row]:
        return [row for row in self.rows if row[START] <= at < row[END] + MILLISECOND]
