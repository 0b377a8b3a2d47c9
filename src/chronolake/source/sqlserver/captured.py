"""Change data capture: every change that the server's capture job has read from its log.

Source: `seeds/history-mode.txt` ("SQL Server CT and CDC differences"). A change has the time at
which its transaction was committed. The first copy of a table has the time at which it began; what
is captured later of changes before it is put before it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from chronolake.changes import (
    DELETED_AT,
    MODIFIED,
    OPERATED,
    PURGED_AT,
    RESERVED,
    SEQUENCE,
    TELLS,
)
from chronolake.errors import SourceError
from chronolake.source.jdbc.database import offered_by
from chronolake.source.jdbc.reader import JdbcReader, cell, columns_of
from chronolake.source.offered import Failure, OfferedStream, Piece, Sight, Snapshot
from chronolake.source.sqlserver import statements
from chronolake.source.sqlserver.statements import OPERATION, SEQVAL, START
from chronolake.types import literal, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from chronolake.config import Project, SqlServerSource
    from chronolake.lake import Lake
    from chronolake.source.jdbc.reader import Reader
    from chronolake.source.offered import Position

_MICROS: Final = f"{RESERVED}micros"
_NUMBER: Final = f"{RESERVED}number"

#: What `__$operation` says. Of an updated row the old state is asked for if its key has changed.
_DELETE: Final = 1
_INSERT: Final = 2
_BEFORE_UPDATE: Final = 3
_WORDS: Final = (
    f"CASE {OPERATION} WHEN {_DELETE} THEN 'delete' WHEN {_INSERT} THEN 'insert' ELSE 'update' END"
)


@dataclass(frozen=True)
class _Instance:
    """What captures a table: its name, the columns that it has, and the oldest LSN it keeps."""

    name: str
    columns: tuple[str, ...]
    oldest: str


@dataclass(frozen=True)
class _Place:
    """How far a stream is.

    Attributes:
        instance: the capture instance whose changes have been brought.
        lsn: all changes of transactions up to this one have been.
        last_micros: when the last of them was committed, as it counts, in microseconds since 1970.
        copied_micros: when the table was last read as a whole.
    """

    instance: str
    lsn: str
    last_micros: int
    copied_micros: int

    @classmethod
    def from_json(cls, told: Position) -> Self:
        return cls(
            str(told["instance"]),
            str(told["lsn"]),
            int(told["last_micros"]),
            int(told["copied_micros"]),
        )

    def as_json(self) -> Position:
        return {
            "instance": self.instance,
            "lsn": self.lsn,
            "last_micros": self.last_micros,
            "copied_micros": self.copied_micros,
        }


@dataclass(frozen=True)
class CapturedDatabase:
    """The tables of a database, by change data capture.

    Attributes:
        reader: what reads the database; the configuration's address if there is none.
    """

    project: Project
    pipeline: str
    config: SqlServerSource
    reader: Reader | None = None

    def offered(self) -> list[OfferedStream]:
        """The tables that the configuration names."""
        return offered_by(self.project, self.pipeline, self.config, Sight.EVERY_CHANGE)

    def bring(
        self, lake: Lake, positions: Mapping[str, Position | None], *, anew: bool
    ) -> Iterator[Piece | Snapshot | Failure]:
        """What was captured since the last run, and a copy of tables that were not copied yet."""
        reader = self.reader or JdbcReader(self.config)
        for name, told in positions.items():
            before = None if told is None else _Place.from_json(told)
            table = _CapturedTable(lake.spark, reader, self.config, self.pipeline, name)
            try:
                yield from table.bring(before, anew=anew)
            except SourceError as failure:
                yield Failure(name, failure)
            except (Py4JError, PySparkException) as failure:
                yield Failure(name, reader.said(f"The table {name}", failure))

    def landed(self, positions: Mapping[str, Position]) -> None:
        """The database forgets by itself, after its own retention."""


@dataclass(frozen=True)
class _CapturedTable:
    """One table in one run."""

    spark: SparkSession
    reader: Reader
    config: SqlServerSource
    pipeline: str
    name: str

    @property
    def key(self) -> Sequence[str]:
        return self.config.tables[self.name].key

    def bring(self, before: _Place | None, *, anew: bool) -> Iterator[Piece | Snapshot]:
        """What was captured after a place; then all of the table, if it is wanted or has to be.

        Raises:
            SourceError: nothing captures the table, or what was captured is not there any more.
        """
        instances = self._instances()
        newest_lsn, at_micros = self._captured()
        newest = instances[-1]
        if before is None:
            yield self._whole(_Place(newest.name, newest_lsn, 0, 0), newest, at_micros)
            return
        problem = self._gap(before, instances, newest_lsn)
        if problem is not None:
            if not anew:
                raise problem
            yield self._whole(replace(before, lsn=newest_lsn), newest, at_micros)
            return
        now = before
        if before.lsn < newest_lsn:
            instance = next(one for one in instances if one.name == before.instance)
            piece, now = self._changes(before, instance, newest_lsn)
            yield piece
        # A newer instance is there because the table has other columns by now.
        if anew or now.instance != newest.name:
            yield self._whole(now, newest, at_micros)

    def _instances(self) -> list[_Instance]:
        """What captures the table, the newest last."""
        told = self.reader.query(self.spark, statements.instances(self.name)).collect()
        # An instance that the user may not see has nothing.
        seen = [row for row in told if row["oldest"] is not None and _number(row["oldest"])]
        if not seen:
            schema, _, table = self.name.partition(".")
            raise SourceError(
                f"Nothing captures changes of {self.name}, or the user may not see it.",
                hint="EXEC sys.sp_cdc_enable_db; EXEC sys.sp_cdc_enable_table @source_schema = "
                f"N'{schema}', @source_name = N'{table}', @role_name = NULL;",
            )
        seen.sort(key=lambda row: row["made_micros"])
        return [_Instance(row["name"], self._columns(row["name"]), row["oldest"]) for row in seen]

    def _columns(self, instance: str) -> tuple[str, ...]:
        told = self.reader.query(self.spark, statements.columns(instance)).collect()
        names = [row["name"] for row in sorted(told, key=lambda row: row["ordinal"])]
        if missing := [column for column in self.key if column not in names]:
            raise SourceError(
                f"The capture instance {instance} of {self.name} does not have "
                f"{', '.join(missing)}.",
                hint=f"It has {', '.join(names)}: correct tables.{self.name}.key, or make an "
                "instance that has the key.",
            )
        return tuple(names)

    def _captured(self) -> tuple[str, int]:
        """How far the capture job is, and the server's time."""
        told = self.reader.query(self.spark, statements.captured()).collect()[0]
        if told["newest"] is None:
            raise SourceError(
                "The capture job has not read the log yet.",
                hint="Start SQL Server Agent, and wait until the job has run.",
            )
        return told["newest"], told["at_micros"]

    def _gap(
        self, before: _Place, instances: Sequence[_Instance], newest: str
    ) -> SourceError | None:
        """Why what was captured does not go on where the stream is, or None."""
        known = next((one for one in instances if one.name == before.instance), None)
        if before.lsn > newest:
            why = "The database was restored, or is another one."
        elif known is None:
            why = f"Its capture instance {before.instance} was dropped."
        elif _number(before.lsn) + 1 < _number(known.oldest):
            why = "The cleanup job has removed what was not read yet: let it keep more."
        else:
            return None
        return SourceError(
            f"What changed in {self.name} since the last run is not known.",
            hint=f"{why} `chronolake resync {self.pipeline} --stream {self.name}` brings what "
            "there is now.",
        )

    def _whole(self, place: _Place, instance: _Instance, at_micros: int) -> Snapshot:
        """All rows as they are, by the columns that changes will have."""
        split_by = self.config.tables[self.name].split_by
        relation = statements.relation(self.name)
        rows = self.reader.table(self.spark, relation, split_by=split_by)
        rows = rows.select(*(quoted(name) for name in instance.columns))
        at = max(at_micros, place.last_micros + 1, place.copied_micros + 1)
        return Snapshot(
            self.name,
            rows.selectExpr(*map(cell, rows.schema)),
            columns_of(rows.schema, self.key, self.name),
            at,
            # As long as those of changes, and later than all up to the place.
            f"{place.lsn.removeprefix('0x')}{'F' * 21}",
            replace(place, instance=instance.name, copied_micros=at).as_json(),
        )

    def _changes(self, before: _Place, instance: _Instance, upto: str) -> tuple[Piece, _Place]:
        """What was captured between two places, and where that leads."""
        commits = self._commits(before, upto)
        last = commits.agg({_MICROS: "max"}).collect()[0][0]
        if last is None:
            place = replace(before, lsn=upto)
            return Piece(self.name, None, (), place.as_json()), place
        place = replace(before, lsn=upto, last_micros=last)
        query = statements.changes(instance.name, self.key, after=before.lsn, upto=upto)
        rows = self.reader.query(self.spark, query)
        fields = {field.name: field for field in rows.schema}
        schema = type(rows.schema)([fields[name] for name in instance.columns])
        is_mark = f"{OPERATION} IN ({_DELETE}, {_BEFORE_UPDATE})"
        cells = [
            cell(field, unless="false" if field.name in self.key else is_mark) for field in schema
        ]
        sequence = f"concat(substr({START}, 3), substr({SEQVAL}, 3), {OPERATION})"
        # A change of which no commit is told would be without a time, and is refused.
        versions = rows.join(commits, START, "left_outer").selectExpr(
            *cells,
            f"{_MICROS} AS {MODIFIED}",
            f"{sequence} AS {SEQUENCE}",
            f"IF({is_mark}, {_MICROS}, NULL) AS {DELETED_AT}",
            f"CAST(NULL AS BIGINT) AS {PURGED_AT}",
            f"NOT {is_mark} AS {TELLS}",
            f"{_WORDS} AS {OPERATED}",
        )
        columns = columns_of(schema, self.key, self.name)
        return Piece(self.name, versions, columns, place.as_json()), place

    def _commits(self, before: _Place, upto: str) -> DataFrame:
        """Transactions with the time that counts for each, in microseconds since 1970.

        Clocks may jump back, and have only so many ticks: a transaction is at least a microsecond
        later than the one before it in the log.
        """
        zone = literal(self.config.time_zone)
        told = self.reader.query(self.spark, statements.commits(after=before.lsn, upto=upto))
        utc = f"unix_micros(to_utc_timestamp(timestamp_micros(local_micros), {zone}))"
        numbered = told.selectExpr(
            START, f"{utc} AS {_MICROS}", f"row_number() OVER (ORDER BY {START}) AS {_NUMBER}"
        )
        latest = f"max({_MICROS} - {_NUMBER}) OVER (ORDER BY {_NUMBER})"
        return numbered.selectExpr(
            START, f"greatest({latest}, {before.last_micros}L) + {_NUMBER} AS {_MICROS}"
        )


def _number(lsn: str) -> int:
    return int(lsn, 16)
