"""Decoder of pgoutput: batches of replication messages to changes of relations, as Arrow columns.

Source: `specs/postgres-facts.md` (2 and 4.2). Messages are grouped in transactions, in the order of
their commits: `B (R|Y|O)* (I|U|D|T|M)* C`. A relation is described before its first change, and
again after anything that may have changed it. A row is decoded by the last description before it.
Messages that an application emits (`M`) may occur anywhere and are skipped.

The rows of many messages are decoded at once, with numpy over one buffer. A row is an `int16`
number of columns, and for each column one byte: `n` (null), `u` (an unchanged large value, not
sent), or `t`, followed by an `int32` length and the text. Rows with the same number of columns are
decoded column by column, all rows in one step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from chronolake.source.postgres.encoding import UTF_8, TextCodec, Undecodable, find_invalid_utf8
from chronolake.source.postgres.messages import (
    Kind,
    LogicalMessage,
    Relation,
    Transaction,
    Truncate,
    decode_begin,
    decode_commit,
    decode_emitted,
    decode_relation,
    decode_truncate,
    protocol_error,
)
from chronolake.source.relational.changes import Bytes, Cells, Flags, Places

if TYPE_CHECKING:
    from collections.abc import Sequence


_NULL: Final = ord("n")
_UNCHANGED: Final = ord("u")
_TEXT: Final = ord("t")
#: Follows the last message, so that a number that begins in it can be read.
_PADDING: Final = b"\0" * 16
#: Texts that are longer on average are copied one by one: gathering costs nine bytes for each byte.
_LONG_TEXT: Final = 512
_GREATEST_ARRAY: Final = 2**31 - 1


@dataclass(frozen=True)
class Messages:
    """Messages, concatenated in one buffer.

    Attributes:
        buffer: their bytes, followed by padding.
        offsets: the offset of each message, and the end of the last one.
        codec: decodes the texts in them.
    """

    buffer: Bytes
    offsets: Places
    codec: TextCodec = UTF_8

    @classmethod
    def of(cls, messages: Sequence[bytes], codec: TextCodec = UTF_8) -> Messages:
        """Concatenate messages in one buffer."""
        offsets = np.zeros(len(messages) + 1, np.int64)
        lengths = np.fromiter(map(len, messages), np.int64, len(messages))
        np.cumsum(lengths, out=offsets[1:])
        buffer = np.frombuffer(b"".join([*messages, _PADDING]), np.uint8)
        return cls(buffer, offsets, codec)

    @property
    def kinds(self) -> Bytes:
        """Return the first byte of each message; messages are not empty."""
        return self.buffer[self.offsets[:-1]]

    def read_unsigned(self, places: Places, width: int) -> Places:
        """Return the big-endian numbers at some positions, of up to seven bytes."""
        numbers = self.buffer[places].astype(np.int64)
        for byte in range(1, width):
            numbers = (numbers << 8) | self.buffer[places + byte]
        return numbers


def decode_rows(
    messages: Messages, places: Places, ends: Places, columns: int
) -> tuple[list[Cells], Places]:
    """Decode one row from each of some messages.

    Args:
        messages: the buffer.
        places: where the rows begin.
        ends: where their messages end.
        columns: the number of columns of every row.

    Returns:
        The columns, and where the rows end.

    Raises:
        ReplicationProtocolError: a row has another number of columns, or exceeds its message.
    """
    places = _expect_within(places + 2, ends)
    numbers = messages.read_unsigned(places - 2, 2)
    if (numbers != columns).any():
        actual = int(numbers[numbers != columns][0])
        raise protocol_error(f"a row has {actual} columns, but its table has {columns}")
    rows = []
    for _ in range(columns):
        kinds = messages.buffer[_expect_within(places + 1, ends) - 1]
        is_text = kinds == _TEXT
        is_known = is_text | (kinds == _NULL) | (kinds == _UNCHANGED)
        if not is_known.all():
            raise protocol_error(f"a value has the unknown kind {chr(kinds[~is_known][0])!r}")
        starts = places + 1 + 4 * is_text
        _expect_within(starts, ends)
        # Only texts have a length; other bytes here have another meaning.
        lengths = np.where(is_text, messages.read_unsigned(places + 1, 4), 0)
        places = _expect_within(starts + lengths, ends)
        texts, is_invalid = _decode_texts(messages, starts, lengths, is_text)
        rows.append(Cells(texts, kinds == _UNCHANGED, is_invalid))
    return rows, places


def _expect_within(places: Places, ends: Places) -> Places:
    """Return the positions, or raise an error if one is outside of its message."""
    if (places > ends).any():
        raise protocol_error("a row ends before its last column")
    return places


def _decode_texts(
    messages: Messages, starts: Places, lengths: Places, is_text: Flags
) -> tuple[pa.Array, Flags | None]:
    """Return decoded texts, and flags of invalid ones, which are null, or None."""
    buffer = messages.buffer
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    total = int(offsets[-1])
    if total > _LONG_TEXT * len(lengths):
        pieces = zip(starts.tolist(), lengths.tolist(), strict=True)
        data = pa.py_buffer(
            b"".join(buffer[start : start + length].tobytes() for start, length in pieces)
        )
    else:
        places = np.arange(total) + np.repeat(starts - offsets[:-1], lengths)
        data = pa.py_buffer(buffer[places])
    data, offsets, is_invalid = messages.codec.to_utf8(data, offsets)
    if is_invalid is not None and is_invalid.any():
        return _strings(data, offsets, is_text & ~is_invalid), is_invalid
    array = _strings(data, offsets, is_text)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        is_invalid = find_invalid_utf8(data, offsets)
        return _strings(data, offsets, is_text & ~is_invalid), is_invalid
    return array, None


def _strings(data: pa.Buffer, offsets: Places, is_text: Flags) -> pa.Array:
    """Return an array of texts, with nulls where no text was sent."""
    is_large = int(offsets[-1]) > _GREATEST_ARRAY
    nulls = len(is_text) - int(is_text.sum())
    validity = pa.py_buffer(np.packbits(is_text, bitorder="little")) if nulls else None
    width = np.int64 if is_large else np.int32
    return pa.Array.from_buffers(
        pa.large_string() if is_large else pa.string(),
        len(is_text),
        [validity, pa.py_buffer(offsets.astype(width)), data],
        nulls,
    )


_ROWS: Final = (Kind.INSERT, Kind.UPDATE, Kind.DELETE)
_NEW: Final = ord("N")
_OLD_KEY: Final = ord("K")
_OLD_ROW: Final = ord("O")


@dataclass(frozen=True)
class Changes:
    """Changes of rows of one relation, in the order in which they were made.

    Attributes:
        relation: the relation's description at that time.
        kinds: `Kind.INSERT`, `UPDATE` or `DELETE` for each change.
        transactions: the indexes of their transactions in the batch.
        ordinals: their positions in their transactions; they increase, with gaps.
        new: the columns of the new rows; all null in deletes.
        old: the columns of the old rows; all null where the old row was not sent.
        has_old: flags of changes with an old row: its key, or all of it.
        has_full_old: flags of changes with the complete old row.
    """

    relation: Relation
    kinds: Bytes
    transactions: Places
    ordinals: Places
    new: tuple[Cells, ...]
    old: tuple[Cells, ...]
    has_old: Flags
    has_full_old: Flags

    @property
    def number(self) -> int:
        """Return the number of changes."""
        return len(self.kinds)

    def first_invalid(self, selected: Flags) -> tuple[int, str] | None:
        """Return the index of the first change with an invalid text, and the text's column.

        None means that the texts of all flagged changes are valid in the encoding in which they
        were sent, and that the columns' names are valid.
        """
        first = None
        columns = self.relation.columns
        undecodable = next(
            (column_.name for column_ in columns if isinstance(column_.name, Undecodable)), None
        )
        if undecodable is not None and selected.any():
            return int(np.argmax(selected)), undecodable
        for column, *cells in zip(columns, self.new, self.old, strict=True):
            for cell in cells:
                if cell.is_invalid is None:
                    continue
                places = np.flatnonzero(cell.is_invalid & selected)
                if len(places) and (first is None or places[0] < first[0]):
                    first = int(places[0]), column.name
        return first


@dataclass(frozen=True)
class EndedTransaction:
    """A transaction that has ended, and the LSN after it."""

    transaction: Transaction
    end_lsn: int


@dataclass(frozen=True)
class DecodedBatch:
    """The decoded contents of a batch of messages.

    Attributes:
        transactions: the transactions of which the batch contains at least a part.
        changes: the changes by relation; a relation occurs again after its description changed.
        truncates: the relations that were truncated.
        ended: the last transaction that ends in the batch, or None.
        emitted: messages that Chronolake has written to the log.
        described: the relations that were described, in the order of their descriptions. The
            description of a partition precedes its changes, which are those of the published table.
    """

    transactions: tuple[Transaction, ...]
    changes: tuple[Changes, ...]
    truncates: tuple[Truncate, ...]
    ended: EndedTransaction | None
    emitted: tuple[LogicalMessage, ...] = ()
    described: tuple[Relation, ...] = ()

    @cached_property
    def changed_oids(self) -> frozenset[int]:
        """Return the oids of the relations that were changed."""
        changed = {change.relation.oid for change in self.changes}
        return frozenset(changed.union(*(truncate.relations for truncate in self.truncates)))


@dataclass
class Decoder:
    """A decoder of consecutive batches of messages; it cannot be used after an error.

    Attributes:
        relations: their last descriptions, by oid.
        codec: decodes the texts.
    """

    relations: dict[int, Relation] = field(default_factory=dict)
    codec: TextCodec = UTF_8
    _open: Transaction | None = None
    _ordinal: int = 0

    @property
    def is_between_transactions(self) -> bool:
        """Return whether the last transaction has ended."""
        return self._open is None

    def decode(self, batch: Sequence[bytes]) -> DecodedBatch:
        """Decode the next messages.

        Raises:
            ReplicationProtocolError: a message is not valid pgoutput.
        """
        if not all(batch):
            raise protocol_error("a message is empty")
        packed = Messages.of(batch, self.codec)
        is_row = np.isin(packed.kinds, _ROWS)
        frame = self._decode_frame(batch, is_row)
        changes = [
            _decode_changes(packed, numbers, relation, frame)
            for relation, numbers in frame.by_relation(packed, np.flatnonzero(is_row))
        ]
        return DecodedBatch(
            tuple(frame.transactions),
            tuple(changes),
            tuple(frame.truncates),
            frame.ended,
            tuple(frame.emitted),
            tuple(frame.described),
        )

    def _decode_frame(self, batch: Sequence[bytes], is_row: Flags) -> _Frame:
        """Decode all messages except rows, one by one."""
        frame = _Frame(len(batch), dict(self.relations))
        if self._open is not None:
            frame.begin(0, self._open, self._ordinal)
        for number in np.flatnonzero(~is_row).tolist():
            self._decode_frame_message(frame, number, batch[number])
        if self._open is not None:
            self._ordinal = len(batch) - frame.begun
            frame.assign(len(batch))
        if (is_row & (frame.transaction_of < 0)).any():
            raise protocol_error("a row is outside of a transaction")
        return frame

    def _decode_frame_message(self, frame: _Frame, number: int, message: bytes) -> None:
        kind = message[0]
        if kind == Kind.BEGIN:
            if self._open is not None:
                raise protocol_error("a transaction begins within another")
            self._open = decode_begin(message)
            frame.begin(number, self._open, 0)
        elif kind == Kind.COMMIT:
            commit = decode_commit(message)
            if self._open is None or commit.commit_lsn != self._open.commit_lsn:
                raise protocol_error("a commit does not belong to the preceding transaction")
            frame.end(number, commit.end_lsn, self._open)
            self._open = None
        elif kind == Kind.RELATION:
            relation = decode_relation(message, self.codec)
            self.relations[relation.oid] = relation
            frame.describe(number, relation)
        elif kind == Kind.TRUNCATE:
            frame.truncate(number, self._decode_truncate(message))
        elif kind == Kind.MESSAGE:
            frame.emitted += decode_emitted(message)
        elif kind not in {Kind.TYPE, Kind.ORIGIN}:
            raise protocol_error(f"a message has the unknown kind {chr(kind)!r}")

    def _decode_truncate(self, message: bytes) -> tuple[int, ...]:
        if self._open is None:
            raise protocol_error("a truncate is outside of a transaction")
        relations = decode_truncate(message)
        unknown = next((oid for oid in relations if oid not in self.relations), None)
        if unknown is not None:
            raise protocol_error(
                f"a truncate refers to a relation {unknown} that was not described"
            )
        return relations


class _Frame:
    """The context of the rows in a batch: their transactions, and descriptions of relations."""

    def __init__(self, messages: int, known: dict[int, Relation]) -> None:
        self.transactions: list[Transaction] = []
        self.truncates: list[Truncate] = []
        self.ended: EndedTransaction | None = None
        self.emitted: list[LogicalMessage] = []
        self.described: list[Relation] = []
        #: For each message: the index of its transaction, or -1; its position in the transaction.
        self.transaction_of: Places = np.full(messages, -1, np.int64)
        self.ordinal_of: Places = np.zeros(messages, np.int64)
        #: The index where the current transaction began: negative if before the batch.
        self.begun = 0
        self._descriptions = {oid: [(-1, relation)] for oid, relation in known.items()}

    def begin(self, number: int, transaction: Transaction, ordinal: int) -> None:
        self.transactions.append(transaction)
        self.begun = number - ordinal

    def end(self, number: int, end_lsn: int, transaction: Transaction) -> None:
        self.ended = EndedTransaction(transaction, end_lsn)
        self.assign(number)

    def assign(self, upto: int) -> None:
        """Assign the messages from the start of the current transaction up to an index to it."""
        part = slice(max(self.begun, 0), upto)
        self.transaction_of[part] = len(self.transactions) - 1
        self.ordinal_of[part] = np.arange(part.start, part.stop) - self.begun

    def describe(self, number: int, relation: Relation) -> None:
        self.described.append(relation)
        known = self._descriptions.setdefault(relation.oid, [])
        if not known or known[-1][1] != relation:
            known.append((number, relation))

    def truncate(self, number: int, relations: tuple[int, ...]) -> None:
        transaction = len(self.transactions) - 1
        self.truncates.append(Truncate(relations, transaction, number - self.begun))

    def by_relation(self, packed: Messages, numbers: Places) -> list[tuple[Relation, Places]]:
        """Return the indexes of row messages, by the relation's description at that time."""
        ends = packed.offsets[numbers + 1]
        places = packed.offsets[numbers] + 1
        if (places + 4 > ends).any():
            raise protocol_error("a row does not contain the number of its relation")
        oids = packed.read_unsigned(places, 4)
        groups: list[tuple[Relation, Places]] = []
        for oid in np.unique(oids).tolist():
            descriptions = self._descriptions.get(oid, [])
            of_relation = numbers[oids == oid]
            begins = [number for number, _ in descriptions]
            versions = np.searchsorted(np.array(begins, np.int64), of_relation) - 1
            if (versions < 0).any():
                raise protocol_error(f"a row refers to a relation {oid} that was not described")
            groups += [
                (descriptions[index][1], of_relation[versions == index])
                for index in np.unique(versions).tolist()
            ]
        return groups


def _decode_changes(
    packed: Messages, numbers: Places, relation: Relation, frame: _Frame
) -> Changes:
    """Decode the row messages of one relation."""
    columns = len(relation.columns)
    ends = packed.offsets[numbers + 1]
    places = packed.offsets[numbers] + 5
    kinds = packed.buffer[packed.offsets[numbers]]
    if (places >= ends).any():
        raise protocol_error("a change has no row")
    tags = packed.buffer[places]
    is_insert, is_delete = kinds == Kind.INSERT, kinds == Kind.DELETE
    has_whole_old = tags == _OLD_ROW
    has_old = has_whole_old | (tags == _OLD_KEY)
    has_new = ~is_delete
    fits = np.where(is_insert, tags == _NEW, np.where(is_delete, has_old, has_old | (tags == _NEW)))
    if not fits.all():
        raise protocol_error(f"a change has a row of the unknown kind {chr(tags[~fits][0])!r}")
    old, after = _decode_flagged(packed, places, ends, columns, has_old)
    # An old row is followed by the new one, which has its own tag.
    tagged = has_old & has_new
    if (after[tagged] >= ends[tagged]).any() or (packed.buffer[after[tagged]] != _NEW).any():
        raise protocol_error("an update has no new row")
    begins = np.where(has_old, after, places)
    new, after = _decode_flagged(packed, begins, ends, columns, has_new)
    if (np.where(has_new, after, begins) != ends).any():
        raise protocol_error("bytes follow the last column of a row")
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


def _decode_flagged(
    packed: Messages, places: Places, ends: Places, columns: int, selected: Flags
) -> tuple[tuple[Cells, ...], Places]:
    """Decode the row after its tag in the flagged messages; the others get nulls."""
    if not selected.any():
        return (Cells.nulls(len(selected)),) * columns, places
    after = places.copy()
    column_cells, after[selected] = decode_rows(
        packed, places[selected] + 1, ends[selected], columns
    )
    if selected.all():
        return tuple(column_cells), after
    return tuple(cells.scatter(selected) for cells in column_cells), after
