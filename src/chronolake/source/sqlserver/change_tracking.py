"""Change tracking: the rows that have changed since a version, in their present state.

Source: `seeds/history-mode.txt` ("SQL Server CT and CDC differences"): intermediate changes between
two runs are not captured. The version is read before the rows, so that a row may be newer than the
version, or already deleted. Such a row is read again in the next run, and then equals the table's.
Changes that the server's cleanup removed during the read would be missing: the version only counts
as read if the cleanup has not removed any.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

import structlog

from chronolake.change_set import RESERVED
from chronolake.errors import SourceError
from chronolake.frames import select
from chronolake.source.jdbc import latest_micros, snapshot_of
from chronolake.source.protocol import ChangeBatch, Snapshot
from chronolake.source.sqlserver import statements
from chronolake.source.sqlserver.statements import TableRead
from chronolake.types import quote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chronolake.source.protocol import Offset

_PRESENT: Final = f"{RESERVED}present"

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _Offset:
    """A stream's offset.

    Attributes:
        version: all changes up to this version of the database were read; -1: none were, and the
            table has to be read completely.
        last_micros: when it was last read, in microseconds since 1970.
    """

    version: int
    last_micros: int

    @classmethod
    def from_json(cls, stored: Offset) -> Self:
        """Return the stored offset. If another kind of source stored it, only its time is used."""
        return cls(int(stored.get("version", -1)), latest_micros(stored))

    def as_json(self) -> Offset:
        return {"version": self.version, "last_micros": self.last_micros}

    @property
    def sequence(self) -> str:
        return f"{self.version:020d}"


class TrackedTable(TableRead):
    """One table in one run, by change tracking."""

    def read(self, stored: Offset, *, full_refresh: bool) -> Iterator[ChangeBatch | Snapshot]:
        """Read the changed rows, or all rows in the first run and if changes are no longer known.

        Raises:
            SourceError: the table is not tracked.
        """
        before = _Offset.from_json(stored)
        now, oldest = self._read_offset(before)
        if before.version < 0 or full_refresh:
            yield self._read_snapshot(now)
            return
        if oldest <= before.version <= now.version:
            if before.version == now.version:
                return
            yield self._read_changes(before, now)
            later, oldest = self._read_offset(now)
            if oldest <= before.version:
                yield ChangeBatch(self.name, None, (), now.as_json())
                return
            now = later
        log.warning(
            "read_as_a_whole",
            pipeline=self.pipeline,
            stream=self.name,
            reason="change tracking no longer has all changes since the last run",
            version=before.version,
            oldest=oldest,
            newest=now.version,
        )
        yield self._read_snapshot(now)

    def _read_offset(self, before: _Offset) -> tuple[_Offset, int]:
        """Return the present offset, and the oldest version from which changes are known."""
        (state,) = self.fetch_rows(statements.tracking_state(self.name))
        if state["version"] is None:
            raise SourceError(
                "Change tracking is not enabled in the database.",
                hint="ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON "
                "(CHANGE_RETENTION = 7 DAYS, AUTO_CLEANUP = ON);",
            )
        if state["oldest"] is None:
            relation = statements.relation(self.name)
            raise SourceError(
                f"Change tracking is not enabled for {self.name}, or the user may not see "
                "its changes.",
                hint=f"ALTER TABLE {relation} ENABLE CHANGE_TRACKING; GRANT SELECT, VIEW "
                f"CHANGE TRACKING ON {relation} TO the pipeline's user.",
            )
        at_micros = max(state["at_micros"], before.last_micros + 1, self.landed_micros + 1)
        return _Offset(state["version"], at_micros), state["oldest"]

    def _read_snapshot(self, now: _Offset) -> Snapshot:
        return snapshot_of(
            self.name,
            self.all_rows(),
            self.key,
            at_micros=now.last_micros,
            sequence=now.sequence,
            position=now.as_json(),
        )

    def _read_changes(self, before: _Offset, now: _Offset) -> Snapshot:
        rows = self.query(statements.tracked_changes(self.name, self.key, after=before.version))
        # The keys of deleted rows are in separate columns; their data columns are null.
        keys = {column: f"{statements.KEY}{number}" for number, column in enumerate(self.key)}
        names = [name for name in rows.columns if name not in keys.values()]
        aliased = [f"{quote(keys.get(name, name))} AS {quote(name)}" for name in names]
        exists = f"{quote(self.key[0])} IS NOT NULL AS {_PRESENT}"
        snapshot = snapshot_of(
            self.name,
            select(rows, [*aliased, exists]),
            self.key,
            at_micros=now.last_micros,
            sequence=now.sequence,
            position=replace(before, last_micros=now.last_micros).as_json(),
        )
        columns = [column for column in snapshot.columns if column.name != _PRESENT]
        return replace(snapshot, columns=columns, present=_PRESENT)
