"""Replication of one table from the binary log to its landed files.

Changes are spooled until their transaction has ended. Then they are returned as change batches, in
log order. All rows of a batch have the same columns: a new batch begins when columns are added,
dropped or renamed, or when the table is truncated.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronolake.source.mysql.columns import SourceColumn, form_of_logged
from chronolake.source.mysql.offset import (
    Evidence,
    LogOffset,
    LogPlace,
    numbered,
    parse_gtids,
    with_generation,
)
from chronolake.source.mysql.statements import Effect, Statement, TableEffect
from chronolake.source.relational.changes import Operation
from chronolake.source.relational.clock import Clock
from chronolake.source.relational.landed_steps import Step, Truncation, landed_steps
from chronolake.source.relational.row_versions import RowKey, Spool, convert_changes, sequence_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from chronolake.errors import SourceError
    from chronolake.lake import Lake
    from chronolake.source.mysql.binlog import (
        Changes,
        DecodedBatch,
        LoggedStatement,
        Transaction,
    )
    from chronolake.source.mysql.catalog import SourceTable
    from chronolake.source.mysql.connection import Server
    from chronolake.source.mysql.gtids import MariadbGtids, MysqlGtids
    from chronolake.source.mysql.table_map import LogColumn, Relation
    from chronolake.source.protocol import ChangeBatch, Snapshot
    from chronolake.source.relational.changes import Flags, Places

#: A table's changes are returned when this many bytes are spooled and their transaction has ended.
PIECE_BYTES: Final = 256 * 2**20
#: Commits of MariaDB only have seconds. A record that is deleted and added again is away for one
#: microsecond at least.
_STEP_MICROS: Final = 2


@dataclass(frozen=True)
class ReadEnd:
    """The end of what was read of a log.

    Attributes:
        place: where the next transaction begins.
        gtids: the transactions that were read in this run.
        evidence: the last one of them; None if nothing was read.
        prepared: the XA transactions that were prepared and not ended.
    """

    place: LogPlace
    gtids: Sequence[str]
    evidence: Evidence | None
    prepared: Mapping[str, LogPlace]


@dataclass(eq=False)
class TableReplication:
    """A table that is replicated from the log.

    Attributes:
        table: the table in the present catalog.
        position: its offset after what was returned last.
        folder: the folder of spooled changes.
        server: the server.
        defaults: returns the values of columns that an insert does not name.
        latest_micros: the server's time at the end of what is read.
        is_recognized: whether the log is known to be the one that was read before.
        is_lost: whether it is another log.
        error: why the changes cannot be read, if they cannot.
        must_repeat: whether what was spooled is not valid: something was undone, or altered, of
            which the log shows later (`repeated`).
        has_used_defaults: whether rows have values that the catalog has, and not the log.
    """

    table: SourceTable
    position: LogOffset
    folder: Path
    server: Server
    defaults: Callable[[SourceTable], Mapping[str, str | None]]
    latest_micros: int
    is_recognized: bool = False
    is_lost: bool = False
    error: SourceError | None = field(default=None, init=False)
    must_repeat: bool = field(default=False, init=False)
    has_used_defaults: bool = field(default=False, init=False)
    _columns: tuple[SourceColumn, ...] = ()
    _greatest: int = 0
    _has_unlogged: bool = False
    _clock: Clock = field(default_factory=lambda: Clock(0))
    _steps: list[Step[SourceColumn]] = field(default_factory=list)
    _spools: int = 0
    _generation: int = 0
    _gtids: MysqlGtids | MariadbGtids | None = None
    _is_altered: bool = False
    _has_cascaded: bool = False
    _touched: frozenset[int] = frozenset()
    _undone: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    _known_defaults: Mapping[str, str | None] | None = None

    def __post_init__(self) -> None:
        position = self.position
        self._columns, self._greatest = position.columns, position.greatest
        self._has_unlogged = position.has_unlogged
        self._clock = Clock(position.last_micros, _STEP_MICROS, self.latest_micros)
        self._generation = position.generation + (not self._is_same_server)
        self.is_recognized = self.is_recognized or position.evidence is None
        if position.gtids is not None:
            self._gtids = parse_gtids(position.gtids, is_mariadb=self.server.is_mariadb)

    @property
    def _is_same_server(self) -> bool:
        return self.position.server == self.server.identity

    @property
    def is_due(self) -> bool:
        """Return whether enough is spooled to be returned before more of the log is read."""
        waiting = sum(step.bytes for step in self._steps if isinstance(step, Spool))
        is_valid = self.is_recognized and not self.must_repeat and self.error is None
        return is_valid and not self.has_used_defaults and waiting >= PIECE_BYTES

    def repeated(self) -> TableReplication:
        """Return a replication that reads the log again from what was returned last."""
        return TableReplication(
            self.table,
            self.position,
            self.folder / "again",
            self.server,
            self.defaults,
            self.latest_micros,
            self.is_recognized,
            _undone=self._undone,
            _is_altered=self.has_used_defaults,
        )

    @property
    def has_unlogged(self) -> bool:
        """Return whether the table may have values that the log does not contain."""
        return self._has_unlogged or self._has_cascaded

    @property
    def can_complete_copy(self) -> bool:
        """Return whether a copy can be completed by the spooled changes.

        Rows that foreign keys have changed meanwhile are read again by the next run.
        """
        return not self._has_unlogged and not self.must_repeat

    def is_of(self, schema: str, name: str) -> bool:
        """Return whether a name in the log is that of this table."""
        return (schema, name) == (self.table.schema, self.table.name)

    def is_altered_by(self, statement: Statement) -> bool:
        """Return whether a statement may have changed the table."""
        return statement.effect_on(self.table.schema, self.table.name) is not None

    def needs(self, schema: str, name: str) -> bool:
        """Return whether the changes of a table have to be read."""
        return self.is_of(schema, name) or any(
            (cascade.schema, cascade.name) == (schema, name) for cascade in self.table.cascades
        )

    def add(self, decoded: DecodedBatch) -> None:
        """Add the table's changes in the next batch of the log, unless it is another log."""
        self._recognize(decoded.transactions)
        if self.is_lost:
            return
        new = np.array([not self._includes(each) for each in decoded.transactions], np.bool_)
        self._has_unlogged |= decoded.is_incomplete
        self._note_unreadable(decoded, new)
        # Every transaction counts, also one of other tables: each table gets the same times.
        times = self._clock.times(decoded.transactions, new)
        changes = [
            change
            for change in decoded.changes
            if self.is_of(change.relation.schema, change.relation.name)
        ]
        effects = [
            (effect, logged)
            for logged in decoded.statements
            if new[logged.transaction]
            and (effect := logged.statement.effect_on(self.table.schema, self.table.name))
        ]
        self._has_cascaded |= any(
            bool(new[change.transactions].any()) and self._cascades(change)
            for change in decoded.changes
        ) or any(
            bool(new[logged.transaction]) and self._may_rename_parent(logged)
            for logged in decoded.statements
        )
        if changes or effects:
            self._add_changes(decoded, new, times, changes, effects)
        self._note_rollbacks(decoded, new)

    def _add_changes(
        self,
        decoded: DecodedBatch,
        new: Flags,
        times: Places,
        changes: Sequence[Changes],
        effects: Sequence[tuple[TableEffect, LoggedStatement]],
    ) -> None:
        """Add the changes of the table, and what statements do to it, in their order."""
        wanted = [
            new[change.transactions] & ~self._is_undone(change, decoded.transactions)
            for change in changes
        ]
        touched = np.zeros(len(new), np.bool_)
        for change, flags in zip(changes, wanted, strict=True):
            touched[change.transactions[flags]] = True
        for _, logged in effects:
            touched[logged.transaction] = True
        self._touched |= {
            decoded.transactions[number].commit_lsn for number in np.flatnonzero(touched).tolist()
        }
        places = [
            with_generation(transaction.commit_lsn, self._generation)
            for transaction in decoded.transactions
        ]
        protected = [
            (self._stored(change), flags) for change, flags in zip(changes, wanted, strict=True)
        ]
        begin = (-1, -1)
        for effect, logged in effects:
            end = logged.transaction, logged.ordinal
            self._add_rows(protected, times, places, between=(begin, end))
            begin = end
            if effect.effect is Effect.TRUNCATED:
                sequence = sequence_of(places[logged.transaction], logged.ordinal * 2)
                at = int(times[logged.transaction])
                self._steps.append(Truncation(at, sequence, self._columns))
            elif effect.effect is Effect.COLUMNS:
                self._alter(effect)
            elif effect.effect is Effect.CHANGED:
                self._has_unlogged = True
            if effect.effect is not Effect.TRUNCATED:
                # Rows before it may have had other defaults than the present ones.
                self.must_repeat |= self.has_used_defaults
            self._is_altered = True
        self._add_rows(protected, times, places, between=(begin, (len(places), 0)))

    def _note_unreadable(self, decoded: DecodedBatch, new: Flags) -> None:
        for found in decoded.unreadable:
            if not new[found.transaction] or not self.needs(found.schema, found.name):
                continue
            if found.error is None or not self.is_of(found.schema, found.name):
                self._has_unlogged = True
            else:
                self.error = found.error

    def _note_rollbacks(self, decoded: DecodedBatch, new: Flags) -> None:
        """Note which changes were undone that have been spooled."""
        for found in decoded.rollbacks:
            commit_lsn = decoded.transactions[found.transaction].commit_lsn
            undone = self._undone.get(commit_lsn, [])
            if (
                self.table.is_transactional
                and new[found.transaction]
                and commit_lsn in self._touched
                and (found.begin, found.end) not in undone
            ):
                self._undone[commit_lsn] = [*undone, (found.begin, found.end)]
                self.must_repeat = True
        # Only the last transaction may continue in the next batch.
        self._touched &= {each.commit_lsn for each in decoded.transactions[-1:]}

    def _is_undone(self, change: Changes, transactions: Sequence[Transaction]) -> Flags:
        """Return flags of the changes that are known to be undone."""
        flags = np.zeros(change.number, np.bool_)
        if self._undone:
            for number, transaction in enumerate(transactions):
                for begin, end in self._undone.get(transaction.commit_lsn, ()):
                    flags |= (
                        (change.transactions == number)
                        & (change.ordinals >= begin)
                        & (change.ordinals < end)
                    )
        return flags

    def _cascades(self, change: Changes) -> bool:
        """Return whether changes of another table may have changed rows without being logged."""
        for cascade in self.table.cascades:
            if (cascade.schema, cascade.name) != (change.relation.schema, change.relation.name):
                continue
            if cascade.on_delete and (change.kinds == Operation.DELETE).any():
                return True
            is_update = change.kinds == Operation.UPDATE
            for column, new, old in zip(
                change.relation.columns, change.new, change.old, strict=True
            ):
                if column.name.lower() in cascade.columns:
                    is_same = pc.fill_null(pc.equal(new.texts, old.texts), fill_value=False)
                    is_kept = new.is_unchanged | np.asarray(is_same, np.bool_)
                    if (is_update & ~is_kept).any():
                        return True
        return False

    def _may_rename_parent(self, logged: LoggedStatement) -> bool:
        """Return whether a table with foreign keys of this one may have had another name before."""
        return any(
            effect is not None and effect.effect is Effect.CHANGED
            for cascade in self.table.cascades
            if (effect := logged.statement.effect_on(cascade.schema, cascade.name)) is not None
        )

    def _recognize(self, transactions: Sequence[Transaction]) -> None:
        evidence = self.position.evidence
        if self.is_recognized or self.is_lost or evidence is None:
            return
        for transaction in transactions:
            found = evidence.is_of(transaction, is_same_server=self._is_same_server)
            if found is not None:
                self.is_recognized, self.is_lost = found, not found
                return

    def _includes(self, transaction: Transaction) -> bool:
        """Return whether a transaction has landed."""
        if self._gtids is not None and transaction.gtid is not None:
            return transaction.gtid in self._gtids
        return transaction.commit_lsn < self.position.place.number

    def _stored(self, change: Changes) -> Changes:
        """Return changes with the columns that are stored, and as they are stored."""
        unread = self.table.generated - {column.name for column in self.table.columns}
        columns = change.relation.columns
        if unread:
            kept = [place for place, column in enumerate(columns) if column.name not in unread]
            relation = replace(change.relation, columns=tuple(columns[place] for place in kept))
            change = replace(
                change,
                relation=relation,
                new=tuple(change.new[place] for place in kept),
                old=tuple(change.old[place] for place in kept),
            )
        if self._may_compute(change):
            self._has_unlogged = True
        return self.table.texts.apply_to_changes(self._with_defaults(change), _source_column)

    def _may_compute(self, change: Changes) -> bool:
        """Return whether computed values have changed that the log does not contain."""
        return any(
            column.name in self.table.generated and cells.is_unchanged.any()
            for column, cells in zip(change.relation.columns, change.new, strict=True)
        )

    def _with_defaults(self, change: Changes) -> Changes:
        """Return inserts with the values of columns that they do not name.

        With `binlog_row_image=MINIMAL`, the log does not contain constant defaults.
        """
        is_insert = change.kinds == Operation.INSERT
        lacks = [bool((cells.is_unchanged & is_insert).any()) for cells in change.new]
        if not any(lacks) or self._is_altered:
            # Another default may have applied before the table was altered.
            return change
        if self._known_defaults is None:
            self._known_defaults = self.defaults(self.table)
        new = []
        for column, cells, is_missing in zip(
            change.relation.columns, change.new, lacks, strict=True
        ):
            if not is_missing or column.name not in self._known_defaults:
                new.append(cells)
                continue
            self.has_used_defaults = True
            default = pa.scalar(self._known_defaults[column.name], pa.string())
            is_filled = pa.array(cells.is_unchanged & is_insert)
            texts = pc.if_else(is_filled, default, cells.texts)
            new.append(replace(cells, texts=texts, is_unchanged=cells.is_unchanged & ~is_insert))
        return replace(change, new=tuple(new))

    def _alter(self, effect: TableEffect) -> None:
        """Add, drop and rename columns as one statement does, which may exchange their names."""
        dropped = {name.lower() for name in effect.dropped}
        new_names = {old.lower(): new for old, new in effect.renamed}
        before = {column.name.lower() for column in self._columns}
        # A column that was excluded, or computed and not read, has values that the lake lacks; and
        # the server may know a column by another name, without its accents.
        self._has_unlogged |= not {*new_names, *dropped} <= before
        kept = [
            replace(column, name=new_names.get(column.name.lower(), column.name))
            for column in self._columns
            if column.name.lower() not in dropped
        ]
        declared = {column.name.lower(): column for column in self.table.columns}
        # A column that the catalog does not have any more will be dropped or renamed.
        added = [declared[name] for name in map(str.lower, effect.added) if name in declared]
        names = {column.name.lower() for column in kept}
        self._columns, self._greatest = numbered(
            [
                *(column for column in kept if column.name not in self.table.excluded),
                *(column for column in added if column.name.lower() not in names),
            ],
            kept,
            self._greatest,
        )

    def _add_rows(
        self,
        changes: Sequence[tuple[Changes, Flags]],
        times: Places,
        places: list[int],
        *,
        between: tuple[tuple[int, int], tuple[int, int]],
    ) -> None:
        """Spool the rows between two positions, each a transaction and an ordinal in it."""
        for change, flags in changes:
            wanted = flags & _is_after(change, between[0]) & ~_is_after(change, between[1])
            if not wanted.any():
                continue
            spool = self._spool_for(change.relation)
            at = times[change.transactions]
            versions, is_complete = convert_changes(
                change, spool.key.names, times=at, commits=places, selected=wanted
            )
            self._has_unlogged |= not is_complete or change.lacks_values
            spool.add(versions)

    def _spool_for(self, relation: Relation) -> Spool[SourceColumn]:
        """Return the spool for rows with a relation's columns."""
        stored = [_source_column(column) for column in relation.columns]
        columns, greatest = numbered(stored, self._columns, self._greatest)
        last = self._steps[-1] if self._steps else None
        if isinstance(last, Spool) and last.columns == columns:
            return last
        self._columns, self._greatest = columns, greatest
        self._spools += 1
        file = self.folder / f"{self._spools}.parquet"
        spool = Spool(columns, self._row_key(columns), file)
        self._steps.append(spool)
        return spool

    def _row_key(self, columns: Sequence[SourceColumn]) -> RowKey[SourceColumn]:
        """Return the row key for a set of the table's columns."""
        key = tuple(column for column in columns if column.name in self.position.key)
        return RowKey(key, is_hashed=not self.table.key)

    def take_spools(self) -> list[Spool[SourceColumn]] | None:
        """Return the spooled changes for a copy that they change; they are not returned again.

        Returns:
            The spools, or None if the table was truncated or got other columns.
        """
        steps, self._steps = self._steps, []
        spools = [step for step in steps if isinstance(step, Spool)]
        for spool in spools:
            spool.close()
        names = {column.name for column in self.table.columns}
        has_all = all({column.name for column in spool.columns} == names for spool in spools)
        return spools if len(spools) == len(steps) and has_all else None

    def read(self, lake: Lake, end: ReadEnd) -> Iterator[ChangeBatch | Snapshot]:
        """Return the spooled changes in their order.

        Args:
            lake: the lake whose Spark session will read them; it starts if there are any.
            end: the end of what was read of the log.
        """
        position_after = self.offset_after(end)
        steps, self._steps = self._steps, []
        yield from landed_steps(
            lake,
            self.table.stream,
            steps,
            self._row_key,
            before=self.position,
            after=position_after,
        )
        self.position = position_after

    def offset_after(self, end: ReadEnd) -> LogOffset:
        """Return the stream's offset after all spooled changes have landed."""
        gtids, evidence = self._gtids, end.evidence or self.position.evidence
        if gtids is not None:
            if evidence is not None and evidence.gtid is not None and evidence.gtid in gtids:
                # Nothing that is new to this stream was read.
                evidence = self.position.evidence
            for gtid in end.gtids:
                if evidence is not None and gtid == evidence.gtid and gtid not in gtids:
                    evidence = replace(evidence, before=str(gtids))
                gtids = gtids.with_gtid(gtid)
        self._gtids = gtids
        return replace(
            self.position,
            place=end.place,
            gtids=None if gtids is None else str(gtids),
            server=self.server.identity,
            generation=self._generation,
            last_micros=self._clock.last_micros,
            columns=self._columns,
            greatest=self._greatest,
            has_unlogged=self.has_unlogged,
            evidence=evidence,
            prepared=end.prepared,
        )


def _source_column(column: LogColumn) -> SourceColumn:
    return SourceColumn(None, column.name, form_of_logged(column))


def _is_after(changes: Changes, position: tuple[int, int]) -> Flags:
    """Return flags of the changes that were made after a position."""
    transaction, ordinal = position
    is_within: Flags = (changes.transactions == transaction) & (changes.ordinals > ordinal)
    return (changes.transactions > transaction) | is_within
