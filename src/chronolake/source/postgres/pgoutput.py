"""pgoutput: batches of replication messages into changes of relations.

Source: `specs/postgres-facts.md` (2 and 4.2). Messages come in transactions, in the order of their
commits: `B (R|Y|O)* (I|U|D|T|M)* C`. A relation is described before its first change, and again
after whatever may have changed it; a row is read by the description before it. Messages that an
application emits (`M`) may stand anywhere and are passed over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from chronolake.source.postgres import messages as described
from chronolake.source.postgres.encoding import UTF_8, TextCodec, Undecodable
from chronolake.source.postgres.messages import Emitted, Kind, Relation, Transaction, Truncate
from chronolake.source.postgres.tuples import Cells, Messages, cells_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chronolake.source.postgres.tuples import Bytes, Flags, Places

_ROWS: Final = (Kind.INSERT, Kind.UPDATE, Kind.DELETE)
_NEW: Final = ord("N")
_OLD_KEY: Final = ord("K")
_OLD_ROW: Final = ord("O")


@dataclass(frozen=True)
class Changes:
    """Changes of rows of one relation, in the order in which they were made.

    Attributes:
        relation: the relation as it was then.
        kinds: `Kind.INSERT`, `UPDATE` or `DELETE` of each.
        transactions: numbers of their transactions among those of the batch.
        ordinals: their places in their transactions; they increase, with gaps.
        new: the columns of the new rows; all null in deletes.
        old: the columns of the old rows; all null where none is told.
        has_old: where an old row is told: its key, or all of it.
        has_whole_old: where all of it is told.
    """

    relation: Relation
    kinds: Bytes
    transactions: Places
    ordinals: Places
    new: tuple[Cells, ...]
    old: tuple[Cells, ...]
    has_old: Flags
    has_whole_old: Flags

    @property
    def number(self) -> int:
        """How many changes there are."""
        return len(self.kinds)

    def first_invalid(self, wanted: Flags) -> tuple[int, str] | None:
        """Return the number of the first of some changes with an invalid text, and its column.

        None: the texts of all are valid in the encoding that they were sent in, and so are the
        columns' names.
        """
        found = None
        columns = self.relation.columns
        nameless = next((one.name for one in columns if isinstance(one.name, Undecodable)), None)
        if nameless is not None and wanted.any():
            return int(np.argmax(wanted)), nameless
        for column, *cells in zip(columns, self.new, self.old, strict=True):
            for one in cells:
                if one.is_invalid is None:
                    continue
                places = np.flatnonzero(one.is_invalid & wanted)
                if len(places) and (found is None or places[0] < found[0]):
                    found = int(places[0]), column.name
        return found


@dataclass(frozen=True)
class Ended:
    """A transaction that has ended, and the position after it."""

    transaction: Transaction
    end_lsn: int


@dataclass(frozen=True)
class Decoded:
    """What a batch of messages says.

    Attributes:
        transactions: those that the batch has a part of.
        changes: by relation; a relation is there again when its description has changed.
        truncates: relations that were emptied.
        ended: the last transaction that ends in the batch, or None.
        emitted: messages that we have written to the log.
    """

    transactions: tuple[Transaction, ...]
    changes: tuple[Changes, ...]
    truncates: tuple[Truncate, ...]
    ended: Ended | None
    emitted: tuple[Emitted, ...] = ()

    @cached_property
    def touched(self) -> frozenset[int]:
        """The relations that were changed, by their oids."""
        changed = {one.relation.oid for one in self.changes}
        return frozenset(changed.union(*(one.relations for one in self.truncates)))


@dataclass
class Decoder:
    """Decodes the messages of one reading of a slot, batch after batch; not after an error.

    Attributes:
        relations: as they were described last, by oid.
        codec: what decodes the texts.
    """

    relations: dict[int, Relation] = field(default_factory=dict)
    codec: TextCodec = UTF_8
    _open: Transaction | None = None
    _ordinal: int = 0

    @property
    def is_between_transactions(self) -> bool:
        """Whether the last transaction has ended."""
        return self._open is None

    def decode(self, batch: Sequence[bytes]) -> Decoded:
        """Decode the next messages.

        Raises:
            ReplicationProtocolError: they are not as pgoutput sends them.
        """
        if not all(batch):
            raise described.misunderstood("a message is empty")
        packed = Messages.of(batch, self.codec)
        is_row = np.isin(packed.kinds, _ROWS)
        frame = self._frame(batch, is_row)
        changes = [
            _changes_of(packed, numbers, relation, frame)
            for relation, numbers in frame.by_relation(packed, np.flatnonzero(is_row))
        ]
        return Decoded(
            tuple(frame.transactions),
            tuple(changes),
            tuple(frame.truncates),
            frame.ended,
            tuple(frame.emitted),
        )

    def _frame(self, batch: Sequence[bytes], is_row: Flags) -> _Frame:
        """Read all messages but rows, one by one."""
        frame = _Frame(len(batch), dict(self.relations))
        if self._open is not None:
            frame.begin(0, self._open, self._ordinal)
        for number in np.flatnonzero(~is_row).tolist():
            self._describe(frame, number, batch[number])
        if self._open is not None:
            self._ordinal = len(batch) - frame.begun
            frame.note(len(batch))
        if (is_row & (frame.transaction_of < 0)).any():
            raise described.misunderstood("a row stands outside of a transaction")
        return frame

    def _describe(self, frame: _Frame, number: int, message: bytes) -> None:
        kind = message[0]
        if kind == Kind.BEGIN:
            if self._open is not None:
                raise described.misunderstood("a transaction begins within another")
            self._open = described.begin(message)
            frame.begin(number, self._open, 0)
        elif kind == Kind.COMMIT:
            commit = described.commit(message)
            if self._open is None or commit.commit_lsn != self._open.commit_lsn:
                raise described.misunderstood("a commit is not that of the transaction before it")
            frame.end(number, commit.end_lsn, self._open)
            self._open = None
        elif kind == Kind.RELATION:
            relation = described.relation(message, self.codec)
            self.relations[relation.oid] = relation
            frame.describe(number, relation)
        elif kind == Kind.TRUNCATE:
            frame.truncate(number, self._truncated(message))
        elif kind == Kind.MESSAGE:
            frame.emitted += described.emitted(message)
        elif kind not in {Kind.TYPE, Kind.ORIGIN}:
            raise described.misunderstood(f"a message is of the kind {chr(kind)!r}")

    def _truncated(self, message: bytes) -> tuple[int, ...]:
        if self._open is None:
            raise described.misunderstood("a truncate stands outside of a transaction")
        relations = described.truncated(message)
        unknown = next((oid for oid in relations if oid not in self.relations), None)
        if unknown is not None:
            raise described.misunderstood(
                f"a truncate is of a table {unknown} that was not described"
            )
        return relations


class _Frame:
    """What stands around the rows of a batch: their transactions, and descriptions of relations."""

    def __init__(self, messages: int, known: dict[int, Relation]) -> None:
        self.transactions: list[Transaction] = []
        self.truncates: list[Truncate] = []
        self.ended: Ended | None = None
        self.emitted: list[Emitted] = []
        #: By message: the number of its transaction, or -1; its place in it.
        self.transaction_of: Places = np.full(messages, -1, np.int64)
        self.ordinal_of: Places = np.zeros(messages, np.int64)
        #: Where the present transaction began: before the batch, if negative.
        self.begun = 0
        self._descriptions = {oid: [(-1, relation)] for oid, relation in known.items()}

    def begin(self, number: int, transaction: Transaction, ordinal: int) -> None:
        self.transactions.append(transaction)
        self.begun = number - ordinal

    def end(self, number: int, end_lsn: int, transaction: Transaction) -> None:
        self.ended = Ended(transaction, end_lsn)
        self.note(number)

    def note(self, upto: int) -> None:
        """The messages before one, since it began, are of the present transaction."""
        part = slice(max(self.begun, 0), upto)
        self.transaction_of[part] = len(self.transactions) - 1
        self.ordinal_of[part] = np.arange(part.start, part.stop) - self.begun

    def describe(self, number: int, relation: Relation) -> None:
        known = self._descriptions.setdefault(relation.oid, [])
        if not known or known[-1][1] != relation:
            known.append((number, relation))

    def truncate(self, number: int, relations: tuple[int, ...]) -> None:
        transaction = len(self.transactions) - 1
        self.truncates.append(Truncate(relations, transaction, number - self.begun))

    def by_relation(self, packed: Messages, numbers: Places) -> list[tuple[Relation, Places]]:
        """The numbers of messages that have a row, by the relation as it was then."""
        ends = packed.offsets[numbers + 1]
        places = packed.offsets[numbers] + 1
        if (places + 4 > ends).any():
            raise described.misunderstood("a row does not say of which table it is")
        oids = packed.unsigned(places, 4)
        found: list[tuple[Relation, Places]] = []
        for oid in np.unique(oids).tolist():
            descriptions = self._descriptions.get(oid, [])
            of_relation = numbers[oids == oid]
            begins = [number for number, _ in descriptions]
            which = np.searchsorted(np.array(begins, np.int64), of_relation) - 1
            if (which < 0).any():
                raise described.misunderstood(f"a row is of a table {oid} that was not described")
            found += [
                (descriptions[one][1], of_relation[which == one])
                for one in np.unique(which).tolist()
            ]
        return found


def _changes_of(packed: Messages, numbers: Places, relation: Relation, frame: _Frame) -> Changes:
    """Read the rows of messages of one relation."""
    columns = len(relation.columns)
    ends = packed.offsets[numbers + 1]
    places = packed.offsets[numbers] + 5
    kinds = packed.buffer[packed.offsets[numbers]]
    if (places >= ends).any():
        raise described.misunderstood("a message of a change has no row")
    tags = packed.buffer[places]
    is_insert, is_delete = kinds == Kind.INSERT, kinds == Kind.DELETE
    has_whole_old = tags == _OLD_ROW
    has_old = has_whole_old | (tags == _OLD_KEY)
    has_new = ~is_delete
    fits = np.where(is_insert, tags == _NEW, np.where(is_delete, has_old, has_old | (tags == _NEW)))
    if not fits.all():
        raise described.misunderstood(f"a change has a row of the kind {chr(tags[~fits][0])!r}")
    old, after = _some(packed, places, ends, columns, has_old)
    # After an old row, the new one has its tag.
    tagged = has_old & has_new
    if (after[tagged] >= ends[tagged]).any() or (packed.buffer[after[tagged]] != _NEW).any():
        raise described.misunderstood("an update has no new row")
    begins = np.where(has_old, after, places)
    new, after = _some(packed, begins, ends, columns, has_new)
    if (np.where(has_new, after, begins) != ends).any():
        raise described.misunderstood("something follows the last column of a row")
    return Changes(
        relation,
        kinds,
        frame.transaction_of[numbers],
        frame.ordinal_of[numbers],
        new,
        old,
        has_old,
        has_whole_old,
    )


def _some(
    packed: Messages, places: Places, ends: Places, columns: int, wanted: Flags
) -> tuple[tuple[Cells, ...], Places]:
    """Read a row, after its tag, where one is wanted; all null elsewhere."""
    if not wanted.any():
        return (Cells.none(len(wanted)),) * columns, places
    after = places.copy()
    found, after[wanted] = cells_of(packed, places[wanted] + 1, ends[wanted], columns)
    if wanted.all():
        return tuple(found), after
    return tuple(cells.spread(wanted) for cells in found), after
