"""Replication of one table from the log to its landed files.

Changes are spooled until their transaction has ended. Then they are returned as change batches, in
log order. All rows of a batch have the same columns: a new batch begins when columns are added,
dropped or renamed, or when the table is truncated.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from chronolake.source.postgres.columns import SourceColumn, assign_numbers
from chronolake.source.postgres.text_dependencies import KnownTypes, LabelCheck
from chronolake.source.relational.clock import Clock
from chronolake.source.relational.columns import numbers_of
from chronolake.source.relational.landed_steps import Step, Truncation, landed_steps
from chronolake.source.relational.row_versions import RowKey, Spool, convert_changes, sequence_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from chronolake.lake import Lake
    from chronolake.source.postgres.catalog import SourceTable
    from chronolake.source.postgres.messages import Relation, RelationColumn, Transaction
    from chronolake.source.postgres.offset import LogOffset
    from chronolake.source.postgres.pgoutput import Changes, DecodedBatch
    from chronolake.source.postgres.slot import ReadEnd
    from chronolake.source.protocol import ChangeBatch, Snapshot
    from chronolake.source.relational.changes import Flags, Places

#: A table's changes are returned when this many bytes are spooled and their transaction has ended.
PIECE_BYTES: Final = 256 * 2**20


@dataclass(frozen=True)
class Invalid:
    """A change in the log with a text that is not valid in its database's encoding.

    Attributes:
        column: the name of the text's column.
        transaction: the change's transaction.
    """

    column: str
    transaction: Transaction


@dataclass
class TableReplication:
    """A table that is replicated from the log.

    Attributes:
        table: the table in the present catalog.
        position: its offset after what was returned last.
        folder: the folder of spooled changes.
        domains: the oid and modifier of each domain's base type, by the domain's oid.
        table_before: the table in the catalog before the log was read; None: it did not exist yet.
        catalog_lsn: the end of the log when that catalog was read.
        invalid: a change that cannot be decoded, or None. The log is only followed up to its
            transaction.
        is_recognized: whether the log is known to be the one that was read before.
        is_lost: whether it is another log.
    """

    table: SourceTable
    position: LogOffset
    folder: Path
    domains: Mapping[int, tuple[int, int]]
    table_before: SourceTable | None
    catalog_lsn: int
    invalid: Invalid | None = None
    is_recognized: bool = False
    is_lost: bool = False
    _has_unlogged: bool = False
    _columns: tuple[SourceColumn, ...] = ()
    _greatest: int = 0
    _clock: Clock = field(default_factory=lambda: Clock(0))
    _steps: list[Step[SourceColumn]] = field(default_factory=list)
    _added_commit: int = -1
    _is_discarded: bool = False
    _spools: int = 0
    _labels: LabelCheck = field(init=False)
    _partitions: dict[int, Relation] = field(default_factory=dict)
    _described: tuple[Relation, ...] = ()

    def __post_init__(self) -> None:
        self._columns = self.position.columns
        self._greatest = self.position.greatest
        self._has_unlogged = self.position.has_unlogged
        self._clock = Clock(self.position.last_micros)
        self.is_recognized = self.is_recognized or self.position.evidence is None
        known = self.position.types or KnownTypes({})
        of_columns = {column.number: column.type_oid for column in self.table.columns}
        self._labels = LabelCheck.of(known, self.table.dependencies, of_columns)

    @property
    def is_due(self) -> bool:
        """Return whether enough is spooled to be returned before more of the log is read."""
        waiting = sum(step.bytes for step in self._steps if isinstance(step, Spool))
        return self.is_recognized and waiting >= PIECE_BYTES

    def add(self, decoded: DecodedBatch) -> None:
        """Add the table's changes in the next batch of the log, unless it is another log."""
        self._recognize(decoded)
        self._note_partitions(decoded)
        is_read = not self.is_lost and self.invalid is None
        if is_read and self.table.oid in decoded.changed_oids:
            self._add(decoded)

    def _note_partitions(self, decoded: DecodedBatch) -> None:
        """Note the descriptions of the table's partitions that apply to changes in a batch."""
        described = [
            relation for relation in decoded.described if relation.oid in self.table.partitions
        ]
        self._described = (*self._partitions.values(), *described)
        self._partitions.update((relation.oid, relation) for relation in described)

    def _hides_keys(self, key: RowKey[SourceColumn]) -> bool:
        """Return whether a partition may have got rows with another key without their old rows.

        The rows themselves are described by the published table's replica identity.
        """
        return any(
            not {*key.names} <= {column.name for column in relation.columns if column.is_identity}
            for relation in self._described
        )

    def _recognize(self, decoded: DecodedBatch) -> None:
        evidence = self.position.evidence
        if self.is_recognized or self.is_lost or evidence is None:
            return
        self.is_recognized = evidence.is_in(decoded)
        self.is_lost = not self.is_recognized and evidence.should_be_before(decoded)

    def _add(self, decoded: DecodedBatch) -> None:
        changes = [
            self.table.texts.apply_to_changes(change, self._source_column)
            for change in decoded.changes
            if change.relation.oid == self.table.oid
        ]
        truncates = [
            truncate for truncate in decoded.truncates if self.table.oid in truncate.relations
        ]
        new = np.array(
            [transaction.commit_lsn >= self.position.lsn for transaction in decoded.transactions],
            np.bool_,
        )
        self.invalid = _first_invalid(changes, new, decoded.transactions)
        if self.invalid is not None:
            end = decoded.transactions.index(self.invalid.transaction)
            new[end:] = False
            if self.invalid.transaction.commit_lsn == self._added_commit:
                # A part of the transaction is spooled, and must not land alone.
                self._discard()
                return
        touched = np.zeros(len(new), np.bool_)
        for change in changes:
            touched[change.transactions] = True
        for truncate in truncates:
            touched[truncate.transaction] = True
        times = self._clock.times(decoded.transactions, touched & new)
        commits = [transaction.commit_lsn for transaction in decoded.transactions]
        begin = (-1, -1)
        for truncate in truncates:
            position = truncate.transaction, truncate.ordinal
            if not new[truncate.transaction]:
                continue
            self._add_rows(changes, new, times, commits, between=(begin, position))
            at = int(times[truncate.transaction])
            sequence = sequence_of(commits[truncate.transaction], truncate.ordinal * 2)
            self._steps.append(Truncation(at, sequence, self._columns))
            self._added_commit = commits[truncate.transaction]
            begin = position
        self._add_rows(changes, new, times, commits, between=(begin, (len(commits), 0)))

    def _add_rows(
        self,
        changes: list[Changes],
        new: Flags,
        times: Places,
        commits: list[int],
        *,
        between: tuple[tuple[int, int], tuple[int, int]],
    ) -> None:
        """Spool the rows between two positions, each a transaction and an ordinal in it."""
        for change in changes:
            wanted = (
                new[change.transactions]
                & _is_after(change, between[0])
                & ~_is_after(change, between[1])
            )
            if not wanted.any():
                continue
            spool = self._spool_for(change.relation)
            at = times[change.transactions]
            versions, is_complete = convert_changes(
                change, spool.key.names, times=at, commits=commits, selected=wanted
            )
            self._has_unlogged = (
                self._has_unlogged
                or not is_complete
                or self._hides_keys(spool.key)
                or any(
                    self._labels.has_doubtful_texts(column.number, versions[column.name])
                    for column in spool.columns
                )
            )
            spool.add(versions)
            last = commits[int(change.transactions[wanted][-1])]
            self._added_commit = max(self._added_commit, last)

    def _spool_for(self, relation: Relation) -> Spool[SourceColumn]:
        """Return the spool for rows with a relation's columns."""
        columns = self._resolve_columns(relation)
        last = self._steps[-1] if self._steps else None
        if isinstance(last, Spool) and last.columns == columns:
            return last
        if columns != self._columns:
            self._apply_alteration(columns)
        self._spools += 1
        file = self.folder / f"{self._spools}.parquet"
        spool = Spool(columns, self._row_key(columns), file)
        self._steps.append(spool)
        return spool

    def _resolve_columns(self, relation: Relation) -> tuple[SourceColumn, ...]:
        """Return a relation's columns with their numbers, which the log does not contain."""
        described = []
        for column in relation.columns:
            if column.name in self.table.generated:
                continue
            base = self.domains.get(column.type_oid, (column.type_oid, column.type_modifier))
            described.append(SourceColumn(None, column.name, *base))
        columns = assign_numbers(
            described, self._columns, self.table.columns, greatest=self._greatest
        )
        if not self.table.forms:
            return columns
        # Key values keep their text representation.
        key = {*self.table.key_numbers, *self.table.log_key}
        return tuple(
            replace(column, form=self.table.forms.get(column.type_oid))
            if (column.name if column.number is None else column.number) not in key
            else column
            for column in columns
        )

    def _source_column(self, column: RelationColumn) -> SourceColumn:
        """Return a column of a relation as it is in the source, without its number."""
        base = self.domains.get(column.type_oid, (column.type_oid, column.type_modifier))
        key = self.table.key or self.table.distinct_by
        form = None if column.name in key else self.table.forms.get(base[0])
        return SourceColumn(None, column.name, *base, form)

    def _apply_alteration(self, columns: tuple[SourceColumn, ...]) -> None:
        before = {column.number: column for column in self._columns}
        for column in columns:
            old = before.get(column.number)
            if column.number is None:
                is_provided = False
            elif old is not None:
                is_provided = old.has_same_texts(column)
            else:
                # A column that is not new was computed before.
                is_filled = column.number in self.table.filled
                is_provided = column.number > self._greatest and not is_filled
            self._has_unlogged = self._has_unlogged or not is_provided
        self._columns = columns
        self._greatest = max(self._greatest, *numbers_of(columns).values(), 0)

    def _row_key(self, columns: tuple[SourceColumn, ...]) -> RowKey[SourceColumn]:
        """Return the row key for a set of the table's columns."""
        by_number = {column.number: column.name for column in columns}
        unnumbered = {column.name for column in columns if column.number is None}
        key = [column for column in self.table.columns if column.name in self.table.log_key]
        columns_found = []
        for column in key:
            if column.number in by_number:
                columns_found.append(replace(column, name=by_number[column.number]))
            elif column.name in unnumbered:
                columns_found.append(column)
        # A hash of only some key columns would identify another record: the table's key needs all
        # of them.
        return RowKey(
            tuple(columns_found), is_hashed=not self.table.key and len(columns_found) == len(key)
        )

    def read(self, lake: Lake, end: ReadEnd) -> Iterator[ChangeBatch | Snapshot]:
        """Return the spooled changes in their order.

        Args:
            lake: the lake whose Spark session will read them; it starts if there are any.
            end: the end of what was read of the log.
        """
        if self.invalid is not None:
            # What was spooled before this change was discarded, or is all that precedes it.
            before = min(end.lsn, self.invalid.transaction.commit_lsn)
            lsn = 0 if self._is_discarded else before
            end = replace(end, lsn=lsn, upto=lsn)
        position_after = self._offset_after(end)
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

    def _offset_after(self, end: ReadEnd) -> LogOffset:
        """Return the stream's offset after all spooled changes have landed."""
        is_out_of_range = end.lsn >= self.position.lsn
        position_after = replace(
            self.position,
            lsn=end.lsn if is_out_of_range else self.position.lsn,
            evidence=end.evidence if is_out_of_range else self.position.evidence,
            last_micros=self._clock.last_micros,
            columns=self._columns,
            has_unlogged=self._has_unlogged,
            greatest=self._greatest,
        )
        is_catalog_current = (
            end.upto >= self.catalog_lsn and position_after.reread_reason(self.table) is None
        )
        if self.table_before is None or not is_catalog_current:
            return position_after
        # Later alterations are found in the next run.
        position_after = replace(position_after, types=self.table_before.dependencies.known_types)
        if self.table_before.columns != self.table.columns:
            return position_after
        return replace(position_after, columns=self.table.columns, greatest=self.table.greatest)

    def _discard(self) -> None:
        """Discard spooled changes. They will be read again from the stream's offset."""
        for step in self._steps:
            if isinstance(step, Spool):
                step.close()
                step.file.unlink(missing_ok=True)
        self._steps = []
        self._is_discarded = True
        self.__post_init__()


def _first_invalid(
    changes: Iterable[Changes], new: Flags, transactions: Sequence[Transaction]
) -> Invalid | None:
    """Return the first change of new transactions that cannot be decoded, or None."""
    invalid = [
        (int(change.transactions[first[0]]), first[1])
        for change in changes
        if (first := change.first_invalid(new[change.transactions])) is not None
    ]
    if not invalid:
        return None
    transaction, column = min(invalid)
    return Invalid(column, transactions[transaction])


def _is_after(changes: Changes, position: tuple[int, int]) -> Flags:
    """Return flags of the changes that were made after a position."""
    transaction, ordinal = position
    is_within: Flags = (changes.transactions == transaction) & (changes.ordinals > ordinal)
    return (changes.transactions > transaction) | is_within
