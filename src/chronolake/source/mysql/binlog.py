"""Decoder of the binary log: batches of events to changes of tables, as Arrow columns.

Source: MySQL's source documentation, "Binary Log". A transaction begins with a GTID event, and ends
with a commit, or is a single statement. Its rows follow the descriptions of their tables. The rows
of many events are decoded at once (`row_images`).

The rows of an XA transaction are logged when it is prepared, and belong to the transaction that
commits it later, or never. The decoder then asks for them again, so nothing has to be kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import pyarrow as pa

from chronolake.errors import SourceError
from chronolake.source.mysql.events import (
    HEADER,
    TYPE_PLACE,
    EventType,
    TransactionBegin,
    decode_begin,
    decode_query,
    decompressed,
    payload_events,
)
from chronolake.source.mysql.fields import FieldReader, log_error
from chronolake.source.mysql.row_images import locate_rows
from chronolake.source.mysql.table_map import decode_table_map, decode_table_name
from chronolake.source.mysql.values import changed_json, texts_of
from chronolake.source.relational.changes import Bytes, Cells, Flags, Operation, Places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from chronolake.source.mysql.row_images import Values
    from chronolake.source.mysql.statements import Statement
    from chronolake.source.mysql.table_map import LogColumn, Relation
    from chronolake.source.mysql.values import ToUtf8

_E = EventType
_OPERATIONS: Final = {
    **dict.fromkeys((_E.WRITE_ROWS, _E.WRITE_ROWS_V1), Operation.INSERT),
    **dict.fromkeys((_E.WRITE_ROWS_COMPRESSED, _E.WRITE_ROWS_COMPRESSED_V1), Operation.INSERT),
    **dict.fromkeys((_E.UPDATE_ROWS, _E.UPDATE_ROWS_V1, _E.PARTIAL_UPDATE_ROWS), Operation.UPDATE),
    **dict.fromkeys((_E.UPDATE_ROWS_COMPRESSED, _E.UPDATE_ROWS_COMPRESSED_V1), Operation.UPDATE),
    **dict.fromkeys((_E.DELETE_ROWS, _E.DELETE_ROWS_V1), Operation.DELETE),
    **dict.fromkeys((_E.DELETE_ROWS_COMPRESSED, _E.DELETE_ROWS_COMPRESSED_V1), Operation.DELETE),
}
_COMPRESSED: Final = range(_E.WRITE_ROWS_COMPRESSED_V1, _E.DELETE_ROWS_COMPRESSED + 1)
#: Events of this version have a field of variable length.
_V2: Final = frozenset(
    {
        *(_E.WRITE_ROWS, _E.UPDATE_ROWS, _E.DELETE_ROWS, _E.PARTIAL_UPDATE_ROWS),
        *(_E.WRITE_ROWS_COMPRESSED, _E.UPDATE_ROWS_COMPRESSED, _E.DELETE_ROWS_COMPRESSED),
    }
)
_BEGINS: Final = frozenset({_E.GTID, _E.ANONYMOUS_GTID, _E.GTID_TAGGED, _E.MARIADB_GTID})
_FILE_BEGINS: Final = frozenset({_E.ROTATE, _E.FORMAT_DESCRIPTION})
_ROWS: Final = frozenset({*_OPERATIONS, _E.TABLE_MAP, _E.TRANSACTION_PAYLOAD})
_STATEMENTS: Final = frozenset({_E.QUERY, _E.QUERY_COMPRESSED, _E.EXECUTE_LOAD_QUERY})
_TABLE_ID: Final = slice(HEADER.size, HEADER.size + 6)
_TABLE_MAP: Final = HEADER.size + 6
#: Follows the last event, so that a number that begins in it can be read.
_PADDING: Final = b"\0" * 16


@dataclass(frozen=True)
class LogEvent:
    """An event of the log.

    Attributes:
        data: its bytes, without a checksum.
        begin: its place in the log (`offset.LogPlace.number`).
        end: the place after it.
    """

    data: bytes
    begin: int
    end: int


@dataclass(frozen=True)
class Transaction:
    """A committed transaction.

    Attributes:
        commit_lsn: its place in the log; transactions are ordered by it.
        commit_micros: its commit time in microseconds since 1970, which may be earlier than that of
            a preceding transaction.
        gtid: its identifier; None if the server does not use them.
    """

    commit_lsn: int
    commit_micros: int
    gtid: str | None


@dataclass(frozen=True)
class EndedTransaction:
    """A transaction that has ended, and the place in the log after it."""

    transaction: Transaction
    end: int


@dataclass(frozen=True)
class Changes:
    """Changes of rows of one table: see `RowChanges`.

    Attributes:
        lacks_values: whether the log contains changes of values, but not the values.
    """

    relation: Relation
    kinds: Bytes
    transactions: Places
    ordinals: Places
    new: tuple[Cells, ...]
    old: tuple[Cells, ...]
    has_old: Flags
    has_full_old: Flags
    lacks_values: bool = False

    @property
    def number(self) -> int:
        """Return the number of changes."""
        return len(self.kinds)


@dataclass(frozen=True)
class LoggedStatement:
    """A statement that may have changed tables without row events.

    Attributes:
        statement: the statement.
        transaction: the index of its transaction in the batch.
        ordinal: its position in the transaction.
    """

    statement: Statement
    transaction: int
    ordinal: int


@dataclass(frozen=True)
class Rollback:
    """Changes of a transaction that were undone, though the log contains them.

    The log keeps them if the transaction also changed tables that are not transactional.

    Attributes:
        transaction: the index of the transaction in the batch.
        begin: the ordinal of the first change that was undone.
        end: the ordinal after the last one.
    """

    transaction: int
    begin: int
    end: int


@dataclass(frozen=True)
class Unreadable:
    """Changes of a table that cannot be decoded.

    Attributes:
        schema: the database of the table.
        name: its name.
        transaction: the index of the transaction in the batch.
        error: why; None if the log only lacks the names of columns.
    """

    schema: str
    name: str
    transaction: int
    error: SourceError | None


@dataclass(frozen=True)
class DecodedBatch:
    """The decoded contents of a batch of events.

    Attributes:
        transactions: the transactions of which the batch contains at least a part.
        changes: the changes of the tables that are read.
        statements: statements that may have changed tables.
        ended: the last transaction that ends in the batch, or None.
        rollbacks: what was undone, in this batch or in earlier ones.
        unreadable: what cannot be decoded.
        is_incomplete: whether the server has lost changes.
    """

    transactions: tuple[Transaction, ...]
    changes: tuple[Changes, ...]
    statements: tuple[LoggedStatement, ...]
    ended: EndedTransaction | None
    rollbacks: tuple[Rollback, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    is_incomplete: bool = False


class PreparedTransactions(Protocol):
    """The XA transactions that were prepared and not ended yet."""

    def note(self, xid: str, begin: LogEvent) -> None:
        """Note where a prepared transaction begins."""
        ...

    def end(self, xid: str, *, is_committed: bool) -> Iterable[bytes]:
        """Forget a transaction that has ended, and return the events of one that is committed."""
        ...


@dataclass(frozen=True)
class _Unknown:
    """A table whose description cannot be understood."""

    schema: str
    name: str
    error: SourceError | None


@dataclass
class _Group:
    """Row events of one table with the same kind of rows."""

    relation: Relation
    operation: Operation
    present: tuple[tuple[int, ...], ...]
    is_partial: bool
    events: list[bytes] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    transactions: list[int] = field(default_factory=list)
    ordinals: list[int] = field(default_factory=list)


@dataclass
class Decoder:
    """A decoder of consecutive batches of events; it cannot be used after an error.

    Attributes:
        is_mariadb: whether the server is MariaDB.
        is_read: returns whether the changes of a table are read, by its database and name.
        to_utf8: converts values in the character set of a collation to texts.
        prepared: the prepared XA transactions.
    """

    is_mariadb: bool
    is_read: Callable[[str, str], bool]
    to_utf8: ToUtf8
    prepared: PreparedTransactions
    _relations: dict[bytes, Relation | _Unknown | None] = field(default_factory=dict)
    _tables: dict[bytes, Relation | _Unknown | None] = field(default_factory=dict)
    _begun: TransactionBegin | None = None
    _begin_event: LogEvent | None = None
    _open: Transaction | None = None
    _ordinal: int = 0
    _xid: str | None = None
    _is_block: bool = False
    _savepoints: dict[str, int] = field(default_factory=dict)

    @property
    def is_between_transactions(self) -> bool:
        """Return whether the last transaction has ended."""
        return self._begun is None

    def decode(self, batch: Sequence[LogEvent]) -> DecodedBatch:
        """Decode the next events.

        Raises:
            SourceError: they are not valid.
        """
        frame = _Frame([] if self._open is None else [self._open])
        for event in batch:
            self._decode(frame, event.data, event)
        changes = []
        for group in frame.groups.values():
            try:
                changes.append(self._changes(group))
            except SourceError as failure:
                table = group.relation.schema, group.relation.name
                frame.unreadable.append(Unreadable(*table, max(group.transactions), failure))
        return DecodedBatch(
            tuple(frame.transactions),
            tuple(changes),
            tuple(frame.statements),
            frame.ended,
            tuple(frame.rollbacks),
            tuple(frame.unreadable),
            frame.is_incomplete,
        )

    def _decode(self, frame: _Frame, data: bytes, event: LogEvent) -> None:
        match data[TYPE_PLACE]:
            case kind if kind in _OPERATIONS:
                self._add_rows(frame, data, kind)
            case _E.TABLE_MAP:
                self._describe(data)
            case kind if kind in _BEGINS:
                self._begin(data, event)
            case kind if kind in _STATEMENTS:
                self._execute(frame, data, event)
            case _E.XID:
                self._end(frame, event)
            case _E.XA_PREPARE:
                self._prepare(frame, data, event)
            case _E.TRANSACTION_PAYLOAD:
                for inner in payload_events(data):
                    self._decode(frame, inner, event)
            case kind:
                frame.is_incomplete |= kind == _E.INCIDENT
                if kind in _FILE_BEGINS:
                    self._tables.clear()

    # Transactions.

    def _begin(self, data: bytes, event: LogEvent) -> None:
        self._begun = decode_begin(data)
        self._begin_event = event
        self._ordinal = 0
        self._open, self._xid = None, self._begun.prepared_xid
        self._is_block = False
        self._savepoints = {}

    def _transaction(self, frame: _Frame) -> int:
        """Return the index of the open transaction in the batch."""
        if self._open is None:
            begun, event = self._begun, self._begin_event
            if begun is None or event is None:
                raise log_error("a change is outside of a transaction")
            self._open = Transaction(event.begin, begun.commit_micros, begun.gtid)
            frame.transactions.append(self._open)
        return len(frame.transactions) - 1

    def _end(self, frame: _Frame, event: LogEvent) -> None:
        if self._begun is None:
            return
        self._transaction(frame)
        if self._open is not None:
            frame.ended = EndedTransaction(self._open, event.end)
        self._open = self._begun = self._begin_event = self._xid = None

    def _prepare(self, frame: _Frame, data: bytes, event: LogEvent) -> None:
        if self._xid is not None and self._begin_event is not None:
            self.prepared.note(self._xid, self._begin_event)
            if data[HEADER.size]:
                # It is committed in the same step.
                self._replay(frame, self._xid, event)
        self._end(frame, event)

    def _replay(self, frame: _Frame, xid: str, event: LogEvent) -> None:
        """Decode the rows of a prepared transaction as those of the open one."""
        self._xid = None
        for data in self.prepared.end(xid, is_committed=True):
            if data[TYPE_PLACE] in _ROWS:
                self._decode(frame, data, event)

    def _execute(self, frame: _Frame, data: bytes, event: LogEvent) -> None:
        text, statement = decode_query(data, self.to_utf8)
        if text == "BEGIN":
            self._is_block = True
            return
        if statement is None:
            if text == "ROLLBACK":
                self._roll_back(frame, 0)
            self._end(frame, event)
            return
        if statement.verb == "XA":
            self._execute_xa(frame, text, event)
            return
        if statement.verb in {"SAVEPOINT", "ROLLBACK", "RELEASE"}:
            self._execute_savepoint(frame, statement)
            return
        number = self._transaction(frame)
        frame.statements.append(LoggedStatement(statement, number, self._ordinal))
        self._ordinal += 1
        if self._begun is not None and self._is_alone(statement):
            self._end(frame, event)

    def _is_alone(self, statement: Statement) -> bool:
        """Return whether a statement is a transaction of its own."""
        if self.is_mariadb:
            return self._begun is not None and self._begun.is_standalone
        # Only statements that define data are not followed by a commit. CREATE TABLE ... SELECT is.
        return not statement.changes_data and not self._is_block

    def _execute_savepoint(self, frame: _Frame, statement: Statement) -> None:
        name = statement.tokens[-1].text.lower()
        if statement.verb == "SAVEPOINT":
            self._savepoints[name] = self._ordinal
        elif statement.verb == "ROLLBACK":
            self._roll_back(frame, self._savepoints.get(name, 0))

    def _roll_back(self, frame: _Frame, begin: int) -> None:
        """Note that the changes of the open transaction since an ordinal were undone."""
        if begin < self._ordinal:
            number = self._transaction(frame)
            frame.rollbacks.append(Rollback(number, begin, self._ordinal))

    def _execute_xa(self, frame: _Frame, text: str, event: LogEvent) -> None:
        _, verb, xid = [*text.split(" ", 2), "", ""][:3]
        if verb == "START":
            self._xid = xid
        elif verb == "COMMIT":
            self._replay(frame, xid, event)
            self._end(frame, event)
        elif verb == "ROLLBACK":
            self.prepared.end(xid, is_committed=False)
            self._end(frame, event)

    # Rows.

    def _describe(self, data: bytes) -> None:
        content = data[_TABLE_MAP:]
        if content not in self._relations:
            self._relations[content] = self._described(data)
        self._tables[data[_TABLE_ID]] = self._relations[content]

    def _described(self, data: bytes) -> Relation | _Unknown | None:
        """Return the description of a table; None if the table is not read."""
        schema, name = decode_table_name(data[HEADER.size :])
        if not self.is_read(schema, name):
            return None
        try:
            found = decode_table_map(data[HEADER.size :], is_mariadb=self.is_mariadb)
        except SourceError as failure:
            return _Unknown(schema, name, failure)
        return found if found.has_names else _Unknown(schema, name, None)

    def _add_rows(self, frame: _Frame, data: bytes, kind: int) -> None:
        table = data[_TABLE_ID]
        if table not in self._tables:
            raise log_error("rows belong to a table that was not described")
        relation = self._tables[table]
        if relation is None or self._is_undecided:
            return
        if isinstance(relation, _Unknown):
            number = self._transaction(frame)
            frame.unreadable.append(
                Unreadable(relation.schema, relation.name, number, relation.error)
            )
            return
        reader = FieldReader(data, HEADER.size + 8)
        if kind in _V2:
            reader.take(reader.unsigned(2) - 2)
        begin = reader.place
        width = reader.number()
        size = (width + 7) // 8
        operation = _OPERATIONS[_E(kind)]
        bitmaps = reader.take(size * (1 + (operation is Operation.UPDATE)))
        if width != len(relation.columns):
            raise log_error(f"a row of {relation.schema}.{relation.name} lacks columns")
        place = reader.place
        if kind in _COMPRESSED:
            data = data[:begin] + data[begin:place] + decompressed(data[place:])
        key = id(relation), kind, bitmaps
        group = frame.groups.get(key)
        if group is None:
            present = tuple(
                _present(bitmaps[first : first + size], width)
                for first in range(0, len(bitmaps), size)
            )
            is_partial = kind == _E.PARTIAL_UPDATE_ROWS
            group = frame.groups[key] = _Group(relation, operation, present, is_partial)
        group.events.append(data)
        group.places.append(place)
        group.transactions.append(self._transaction(frame))
        group.ordinals.append(self._ordinal)
        # No more rows than bytes.
        self._ordinal += len(data)

    @property
    def _is_undecided(self) -> bool:
        """Return whether the open transaction may still be rolled back (XA)."""
        return self._xid is not None

    def _changes(self, group: _Group) -> Changes:
        buffer = np.frombuffer(b"".join([*group.events, _PADDING]), np.uint8)
        offsets = np.array([*accumulate(map(len, group.events), initial=0)], np.int64)
        columns = group.relation.columns
        rows = locate_rows(
            buffer,
            offsets[:-1] + np.array(group.places, np.int64),
            offsets[1:],
            columns,
            group.present,
            is_partial=group.is_partial,
        )
        count = len(rows.events)
        first_image, last_image = rows.images[0], rows.images[-1]
        missing = tuple(Cells.nulls(count) for _ in columns)
        has_new = group.operation is not Operation.DELETE
        has_old = group.operation is not Operation.INSERT
        # The number of a row in its event.
        first = np.searchsorted(rows.events, rows.events)
        ordinals = np.array(group.ordinals, np.int64)[rows.events] + np.arange(count) - first
        return Changes(
            group.relation,
            np.full(count, group.operation, np.uint8),
            np.array(group.transactions, np.int64)[rows.events],
            ordinals,
            self._cells(buffer, columns, last_image, first_image, count) if has_new else missing,
            self._cells(buffer, columns, first_image, {}, count) if has_old else missing,
            np.full(count, has_old, np.bool_),
            np.full(count, has_old and len(first_image) == len(columns), np.bool_),
            any(
                values.is_partial.any() and number not in first_image
                for number, values in last_image.items()
            ),
        )

    def _cells(
        self,
        buffer: Bytes,
        columns: Sequence[LogColumn],
        image: Mapping[int, Values],
        before: Mapping[int, Values],
        count: int,
    ) -> tuple[Cells, ...]:
        """Return the columns of rows, of which JSON values may be changes of those before."""
        cells = []
        for number, column in enumerate(columns):
            values, old = image.get(number), before.get(number)
            if values is None or (values.is_partial.any() and old is None):
                cells.append(Cells(pa.nulls(count, pa.string()), np.ones(count, np.bool_)))
                continue
            texts = (
                changed_json(buffer, old, values)
                if old is not None and values.is_partial.any()
                else texts_of(buffer, values, column, self.to_utf8)
            )
            cells.append(Cells(texts, np.zeros(count, np.bool_)))
        return tuple(cells)


@dataclass
class _Frame:
    """What a batch contains."""

    transactions: list[Transaction]
    groups: dict[tuple[int, int, bytes], _Group] = field(default_factory=dict)
    statements: list[LoggedStatement] = field(default_factory=list)
    ended: EndedTransaction | None = None
    rollbacks: list[Rollback] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    is_incomplete: bool = False


def _present(bitmap: bytes, width: int) -> tuple[int, ...]:
    return tuple(n for n in range(width) if bitmap[n // 8] >> (n % 8) & 1)
