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
from chronolake.source.jdbc import latest_micros, snapshot_of
from chronolake.source.protocol import ChangeBatch, Snapshot
from chronolake.source.sqlserver import statements
from chronolake.source.sqlserver.statements import TableOfRun
from chronolake.types import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chronolake.source.protocol import Offset

_PRESENT: Final = f"{RESERVED}present"

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _Place:
    """A stream's offset.

    Attributes:
        version: all changes up to this version of the database were read; -1: none were, and the
            table has to be read completely.
        last_micros: when it was last read, in microseconds since 1970.
    """

    version: int
    last_micros: int

    @classmethod
    def from_json(cls, told: Offset) -> Self:
        """Return the stored offset. If another kind of source stored it, only its time is used."""
        return cls(int(told.get("version", -1)), latest_micros(told))

    def as_json(self) -> Offset:
        return {"version": self.version, "last_micros": self.last_micros}

    @property
    def sequence(self) -> str:
        return f"{self.version:020d}"


class TrackedTable(TableOfRun):
    """One table in one run, by change tracking."""

    def read(self, told: Offset, *, full_refresh: bool) -> Iterator[ChangeBatch | Snapshot]:
        """Read the changed rows, or all rows in the first run and if changes are no longer known.

        Raises:
            SourceError: the table is not tracked.
        """
        before = _Place.from_json(told)
        now, oldest = self._now(before)
        if before.version < 0 or full_refresh:
            yield self._whole(now)
            return
        if oldest <= before.version <= now.version:
            if before.version == now.version:
                return
            yield self._changed(before, now)
            later, oldest = self._now(now)
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
        yield self._whole(now)

    def _now(self, before: _Place) -> tuple[_Place, int]:
        """Return the present offset, and the oldest version from which changes are known."""
        (reported,) = self.asked(statements.tracking(self.name))
        if reported["version"] is None:
            raise SourceError(
                "Change tracking is not enabled in the database.",
                hint="ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON "
                "(CHANGE_RETENTION = 7 DAYS, AUTO_CLEANUP = ON);",
            )
        if reported["oldest"] is None:
            relation = statements.relation(self.name)
            raise SourceError(
                f"Change tracking is not enabled for {self.name}, or the user may not see "
                "its changes.",
                hint=f"ALTER TABLE {relation} ENABLE CHANGE_TRACKING; GRANT SELECT, VIEW "
                f"CHANGE TRACKING ON {relation} TO the pipeline's user.",
            )
        at_micros = max(reported["at_micros"], before.last_micros + 1, self.landed_micros + 1)
        return _Place(reported["version"], at_micros), reported["oldest"]

    def _whole(self, now: _Place) -> Snapshot:
        return snapshot_of(
            self.name,
            self.all_rows(),
            self.key,
            at_micros=now.last_micros,
            sequence=now.sequence,
            position=now.as_json(),
        )

    def _changed(self, before: _Place, now: _Place) -> Snapshot:
        rows = self.query(statements.tracked(self.name, self.key, after=before.version))
        # The keys of deleted rows are in separate columns; their data columns are null.
        keys = {column: f"{statements.KEY}{number}" for number, column in enumerate(self.key)}
        names = [name for name in rows.columns if name not in keys.values()]
        known = [f"{quoted(keys.get(name, name))} AS {quoted(name)}" for name in names]
        there = f"{quoted(self.key[0])} IS NOT NULL AS {_PRESENT}"
        looked_at = snapshot_of(
            self.name,
            rows.selectExpr(*known, there),
            self.key,
            at_micros=now.last_micros,
            sequence=now.sequence,
            position=replace(before, last_micros=now.last_micros).as_json(),
        )
        columns = [column for column in looked_at.columns if column.name != _PRESENT]
        return replace(looked_at, columns=columns, present=_PRESENT)
