"""Change data capture (CDC): every change that the capture job has read from the server's log.

Source: `seeds/history-mode.txt` ("SQL Server CT and CDC differences"). A change has the commit time
of its transaction. A copy of a table has the time of one minute before its begin: captured changes
before that time are ordered before the copy, and changes that were not committed when it was read
are ordered after it, as far as the server's clock is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Self
from zoneinfo import ZoneInfo

from chronolake.change_set import (
    DELETED_AT,
    MODIFIED,
    OPERATED,
    PROVIDES_DATA,
    PURGED_AT,
    RESERVED,
    SEQUENCE,
)
from chronolake.errors import SourceError
from chronolake.frames import select
from chronolake.source.jdbc import cell_expression, columns_of, latest_micros, snapshot_of
from chronolake.source.protocol import ChangeBatch, Snapshot
from chronolake.source.sqlserver import statements
from chronolake.source.sqlserver.statements import COMMAND, OPERATION, SEQVAL, START, TableRead
from chronolake.types import literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame

    from chronolake.source.protocol import Offset

_MICROS: Final = f"{RESERVED}micros"
_NUMBER: Final = f"{RESERVED}number"
_COPY_MARGIN_MICROS: Final = 60_000_000
#: The digits of an LSN, of a command's number, of an LSN and of an operation.
_DIGITS: Final = (20, 8, 20, 1)

#: Values of `__$operation`. The old state of an updated row is only read if its key has changed.
_DELETE: Final = 1
_INSERT: Final = 2
_BEFORE_UPDATE: Final = 3
_OPERATIONS: Final = (
    f"CASE {OPERATION} WHEN {_DELETE} THEN 'delete' WHEN {_INSERT} THEN 'insert' ELSE 'update' END"
)


@dataclass(frozen=True)
class _Instance:
    """A capture instance: its name, its columns, and the oldest LSN that it retains."""

    name: str
    columns: tuple[str, ...]
    oldest: str


@dataclass(frozen=True)
class _Offset:
    """A stream's offset.

    Attributes:
        instance: the capture instance whose changes were read.
        lsn: all changes of transactions up to this LSN were read.
        last_micros: the commit time assigned to the last of them, in microseconds since 1970.
        copied_micros: when the table was last read completely, in microseconds since 1970.
    """

    instance: str
    lsn: str
    last_micros: int
    copied_micros: int

    @classmethod
    def from_json(cls, stored: Offset) -> Self | None:
        """Return the stored offset, or None if another kind of source stored it."""
        if "instance" not in stored:
            return None
        return cls(
            str(stored["instance"]),
            str(stored["lsn"]),
            int(stored["last_micros"]),
            int(stored["copied_micros"]),
        )

    def as_json(self) -> Offset:
        return {
            "instance": self.instance,
            "lsn": self.lsn,
            "last_micros": self.last_micros,
            "copied_micros": self.copied_micros,
        }


class CapturedTable(TableRead):
    """One table in one run, by change data capture."""

    def read(self, stored: Offset, *, full_refresh: bool) -> Iterator[ChangeBatch | Snapshot]:
        """Read captured changes after an offset, then all rows if requested or necessary.

        Raises:
            SourceError: no capture instance exists for the table, or captured changes were removed.
        """
        newest_lsn, at_micros = self._read_capture_state()
        instances = self._read_instances()
        newest = instances[-1]
        # An instance may begin at a later LSN than the capture job has reached.
        begin = max(newest_lsn, _lsn(_number(newest.oldest) - 1))
        before = _Offset.from_json(stored)
        if before is None:
            first = _Offset(newest.name, begin, 0, latest_micros(stored))
            yield self._read_snapshot(first, newest, at_micros)
            return
        gap = self._gap_error(before, instances, newest_lsn)
        if gap is not None:
            if not full_refresh:
                raise gap
            yield self._read_snapshot(replace(before, lsn=begin), newest, at_micros)
            return
        now = before
        if before.lsn < newest_lsn:
            batch, now = self._read_changes(
                before, _find_instance(instances, before.instance), newest_lsn
            )
            yield batch
        # A newer instance exists because the table has other columns now.
        is_to_switch = now.instance != newest.name and begin == newest_lsn
        if full_refresh or is_to_switch:
            instance = newest if is_to_switch else _find_instance(instances, now.instance)
            yield self._read_snapshot(now, instance, at_micros)

    def _read_instances(self) -> list[_Instance]:
        """Return the table's capture instances, the newest last."""
        rows = self.fetch_rows(statements.capture_instances(self.name))
        if not rows:
            schema, _, table = self.name.partition(".")
            raise SourceError(
                f"The table {self.name} has no capture instance.",
                hint=f"EXEC sys.sp_cdc_enable_table @source_schema = N'{schema}', @source_name = "
                f"N'{table}', @role_name = NULL;",
            )
        visible = [row for row in rows if row["oldest"] is not None and _number(row["oldest"])]
        if not visible:
            raise SourceError(
                f"The capture of {self.name} has not begun, or the user may not see it.",
                hint="Wait until the capture job has run (SQL Server Agent), or GRANT SELECT "
                "ON SCHEMA::cdc to the pipeline's user, and make it a member of the "
                "instance's role.",
            )
        visible.sort(key=lambda row: row["made_micros"])
        return [
            _Instance(row["name"], self._read_columns(row["name"]), row["oldest"])
            for row in visible
        ]

    def _read_columns(self, instance: str) -> tuple[str, ...]:
        rows = self.fetch_rows(statements.captured_columns(instance))
        names = [row["name"] for row in sorted(rows, key=lambda row: row["ordinal"])]
        if not names:
            raise SourceError(
                f"The user may not see the columns of the capture instance {instance}.",
                hint="GRANT SELECT ON SCHEMA::cdc to the pipeline's user.",
            )
        if missing := [column for column in self.key if column not in names]:
            raise SourceError(
                f"The capture instance {instance} of {self.name} does not have "
                f"{', '.join(missing)}.",
                hint=f"It has {', '.join(names)}: correct tables.{self.name}.key, or create an "
                "instance with the key columns.",
            )
        return tuple(names)

    def _read_capture_state(self) -> tuple[str, int]:
        """Return the LSN that the capture job has reached, and the server's time."""
        settings = self.fetch_rows(statements.cdc_enabled())
        if not settings or not settings[0]["enabled"]:
            raise SourceError(
                "Change data capture is not enabled in the database.",
                hint="EXEC sys.sp_cdc_enable_db;",
            )
        (state,) = self.fetch_rows(statements.newest_capture())
        self._expect_time_zone(state["at_micros"], state["offset_minutes"])
        if state["newest"] is None:
            raise SourceError(
                "The capture job has not read the log yet.",
                hint="Start SQL Server Agent, and wait until the job has run.",
            )
        return state["newest"], state["at_micros"]

    def _expect_time_zone(self, at_micros: int, minutes: int) -> None:
        """Raise an error if the configured time zone is not the server's clock's."""
        now = datetime.fromtimestamp(at_micros / 1_000_000, UTC)
        offset = now.astimezone(ZoneInfo(self.config.time_zone)).utcoffset() or timedelta()
        if offset != timedelta(minutes=minutes):
            raise SourceError(
                f"The offset of the server's clock from UTC is {minutes} minutes, which "
                f"does not match {self.config.time_zone}.",
                hint="Correct `time_zone` of the source.",
            )

    def _gap_error(
        self, before: _Offset, instances: Sequence[_Instance], newest: str
    ) -> SourceError | None:
        """Return an error if captured changes do not continue at the stream's offset."""
        known = next((instance for instance in instances if instance.name == before.instance), None)
        if known is None:
            reason = f"Its capture instance {before.instance} was dropped."
        elif before.lsn > newest and _number(before.lsn) + 1 != _number(known.oldest):
            reason = "The database was restored, or is a different one."
        elif _number(before.lsn) + 1 < _number(known.oldest):
            reason = (
                "The cleanup job removed changes before they were read (increase its "
                "retention period), or the capture instance was recreated."
            )
        else:
            return None
        return SourceError(
            f"Changes of {self.name} since the last run are lost.",
            hint=f"{reason} Run `chronolake resync {self.pipeline} --stream {self.name}` to read "
            "the current rows.",
        )

    def _read_snapshot(self, position: _Offset, instance: _Instance, at_micros: int) -> Snapshot:
        """Return all rows as a snapshot, with the columns of the capture instance."""
        rows = self.all_rows()
        # The table may have lost a column that its instance still has.
        existing = set(rows.columns)
        names = [name for name in instance.columns if name in existing]
        latest = max(position.last_micros, position.copied_micros, self.landed_micros)
        at = max(at_micros - _COPY_MARGIN_MICROS, latest + 1)
        return snapshot_of(
            self.name,
            select(rows, map(quote, names)),
            self.key,
            at_micros=at,
            # Of the same length as those of changes, and later than all of them up to the offset.
            sequence=position.lsn.removeprefix("0x").ljust(sum(_DIGITS), "F"),
            position=replace(position, instance=instance.name, copied_micros=at).as_json(),
        )

    def _read_changes(
        self, before: _Offset, instance: _Instance, upto: str
    ) -> tuple[ChangeBatch, _Offset]:
        """Return the changes captured between two LSNs, and the offset after them."""
        commits = self._read_commits(before, upto)
        last = commits.agg({_MICROS: "max"}).collect()[0][0]
        if last is None:
            position = replace(before, lsn=upto)
            return ChangeBatch(self.name, None, (), position.as_json()), position
        position = replace(before, lsn=upto, last_micros=last)
        query = statements.changes(instance.name, self.key, after=before.lsn, upto=upto)
        rows = self.query(query)
        fields = {field.name: field for field in rows.schema}
        captured = [fields[name] for name in instance.columns]
        is_tombstone = f"{OPERATION} IN ({_DELETE}, {_BEFORE_UPDATE})"
        cells = [
            cell_expression(field, unless="false" if field.name in self.key else is_tombstone)
            for field in captured
        ]
        # Command numbers exist since SQL Server 2016, and are null for rows from before an upgrade.
        command = f"lpad(hex(coalesce({COMMAND}, 0)), {_DIGITS[1]}, '0')"
        sequence = f"concat(substr({START}, 3), {command}, substr({SEQVAL}, 3), {OPERATION})"
        # A change without a known commit would have no time, and is rejected.
        versions = select(
            rows.join(commits, START, "left_outer"),
            [
                *cells,
                f"{_MICROS} AS {MODIFIED}",
                f"{sequence} AS {SEQUENCE}",
                f"IF({is_tombstone}, {_MICROS}, NULL) AS {DELETED_AT}",
                f"CAST(NULL AS BIGINT) AS {PURGED_AT}",
                f"NOT {is_tombstone} AS {PROVIDES_DATA}",
                f"{_OPERATIONS} AS {OPERATED}",
            ],
        )
        columns = columns_of(captured, self.key, self.name)
        return ChangeBatch(self.name, versions, columns, position.as_json()), position

    def _read_commits(self, before: _Offset, upto: str) -> DataFrame:
        """Return transactions with the time assigned to each, in microseconds since 1970.

        Clocks may be set back, and have a limited resolution: a transaction is at least one
        microsecond later than its predecessor in the log.
        """
        zone = literal(self.config.time_zone)
        transactions = self.query(statements.commits(after=before.lsn, upto=upto))
        utc = f"unix_micros(to_utc_timestamp(timestamp_micros(local_micros), {zone}))"
        numbered = transactions.selectExpr(
            START, f"{utc} AS {_MICROS}", f"row_number() OVER (ORDER BY {START}) AS {_NUMBER}"
        )
        latest = f"max({_MICROS} - {_NUMBER}) OVER (ORDER BY {_NUMBER})"
        return numbered.selectExpr(
            START, f"greatest({latest}, {before.last_micros}L) + {_NUMBER} AS {_MICROS}"
        )


def _find_instance(instances: Sequence[_Instance], name: str) -> _Instance:
    return next(instance for instance in instances if instance.name == name)


def _number(lsn: str) -> int:
    return int(lsn, 16)


def _lsn(number: int) -> str:
    return f"0x{number:0{_DIGITS[0]}X}"
