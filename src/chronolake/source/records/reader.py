"""Change batches and snapshots from the messages of a source of single records.

Records are written to Arrow files until a batch of them is large enough, or the source has ended.
A batch lands together with the latest state that was reported before its end. That is safe: the
records after the state land, too, and are read again by the next run. A record that lands again
without a change is ignored (`ChangeBatch.may_repeat`).

A state that streams share is stored after the batches of these streams have landed. From then on,
or when it is complete, each of the streams has an offset, also without records: a stream without an
offset is new, and new streams need all of their records.

Streams without changes of their own (`CaptureMethod.SNAPSHOT_DIFF`) are compared with their table
when all of their records have been read. So are others in a full refresh, if a read without a state
returns all of their records. An incomplete read changes nothing. Its records are kept
if the source can continue a complete read at a state (`RecordStream.is_resumable`).
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field, replace
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from chronolake.arrow_tasks import to_spark
from chronolake.change_set import (
    DELETED_AT,
    MODIFIED,
    OMITTED,
    PROVIDES_DATA,
    RESERVED,
    SEQUENCE,
)
from chronolake.errors import ChronolakeError, ConfigurationError, SourceError
from chronolake.frames import select
from chronolake.landing import landed_micros
from chronolake.source.protocol import (
    COMPARED,
    CaptureMethod,
    ChangeBatch,
    DeclaredColumns,
    ReadProgress,
    Reconciliation,
    SharedOffset,
    Snapshot,
    StreamFailure,
)
from chronolake.source.records.deletions import are_marked
from chronolake.source.records.messages import (
    Complete,
    Declared,
    Deletions,
    Emptied,
    Failure,
    Progress,
    Records,
    Restarted,
)
from chronolake.source.records.pending_files import (
    WHOLE_RECORDS,
    WITH_OMISSIONS,
    PartWriter,
    PendingFiles,
    discard,
    filled_columns,
    filled_in,
    read_files,
)
from chronolake.source.records.schema import Shape
from chronolake.source.records.times import micros_of
from chronolake.types import ColumnType, Kind, now_micros, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from chronolake.lake import Lake
    from chronolake.landing import ObjectFolder
    from chronolake.source.protocol import Offset
    from chronolake.source.records.identity import Identity
    from chronolake.source.records.messages import Message
    from chronolake.source.records.pending_files import Part
    from chronolake.types import Column

    Batch = ChangeBatch | Snapshot | Reconciliation | SharedOffset | ReadProgress | StreamFailure

log = structlog.get_logger(__name__)

#: A batch lands when its files have this size, in bytes.
_BATCH_BYTES: Final = 128 * 2**20
#: A batch lands when its first record is this old, in seconds.
_BATCH_SECONDS: Final = 60.0
#: The progress of a run is reported after this number of records.
_REPORTED_ROWS: Final = 10_000

#: The folder of complete reads that were cut off, beside those of runs.
_RESUMABLE: Final = "_resumable"
_RANK: Final = f"{RESERVED}rank"
_EXISTS: Final = f"{RESERVED}exists"
_STATE: Final = "state"
_TYPES: Final = "types"
_LAST: Final = "last_micros"
#: In the offset of a stream that has landed in part, and that no state continues.
_NEW: Final = "is_new"
#: In the offset: a digest of the rules by which keys are stored.
_KEY_RULES: Final = "key_rules"
#: The same: the paths of the fields whose hash is the key; empty: the whole record.
_HASHED_KEY: Final = "hashed_key"


@dataclass(frozen=True)
class RecordStream:
    """The properties of a stream of single records.

    Attributes:
        name: the stream's name.
        capture_method: `EVERY_CHANGE` if each record is a change of its own, `OBSERVED_CHANGES` if
            a run returns what has changed since the state, `SNAPSHOT_DIFF` if it returns all
            records.
        identity: its key.
        declared: the declared types of its fields.
        fields: further declared fields, also such without a type.
        changed_at: the field with the time of a record's last change, or None.
        deleted_by: the field that is set in deleted records, or None.
        folder: where its record versions land.
        may_become_empty: whether a complete read without records deletes all.
        cursor: the field of incremental reads, for displays, or None.
        default_table: the table's name unless the configuration sets one; None: the stream's name.
        is_resumable: whether the states of a complete read continue it after it was cut off. They
            are not stored when it is complete: the next one begins at the start.
        reads_all_without_state: whether a run without a state returns all records of a stream that
            has changes of its own.
    """

    name: str
    capture_method: CaptureMethod
    identity: Identity
    folder: ObjectFolder
    declared: Mapping[str, ColumnType] = field(default_factory=dict)
    changed_at: str | None = None
    deleted_by: str | None = None
    may_become_empty: bool = False
    cursor: str | None = None
    default_table: str | None = None
    is_resumable: bool = False
    reads_all_without_state: bool = False
    fields: frozenset[str] = frozenset()

    @property
    def is_snapshot(self) -> bool:
        """Return whether every run returns all records."""
        return self.capture_method is CaptureMethod.SNAPSHOT_DIFF


def state_of(position: Offset | None) -> Any:
    """Return the source's state in an offset, or None."""
    return None if position is None else position.get(_STATE)


def is_new(position: Offset | None) -> bool:
    """Return whether all records of a stream are needed: no state continues its first read."""
    return position is None or bool(position.get(_NEW))


def raise_if_keys_changed(
    stream: RecordStream, position: Offset | None, *, pipeline: str, full_refresh: bool
) -> None:
    """Raise if a stream's keys are stored in another form now, and its old records would remain.

    Args:
        stream: the stream, with the rules of its columns.
        position: its stored offset, also in a full refresh.
        pipeline: the pipeline's name.
        full_refresh: whether all records are read again.

    Raises:
        ConfigurationError: the rules of its key have changed.
    """
    # An imported state has no records yet.
    has_landed = position is not None and _LAST in position
    before = position or {}
    has_same_rules = before.get(_KEY_RULES, "") == stream.identity.rules_digest
    # Other keys have other columns, which the table's columns show.
    paths = _hashed_key_of(stream)
    has_same_key = None in (known := before.get(_HASHED_KEY), paths) or known == paths
    is_compared = stream.is_snapshot or (full_refresh and stream.reads_all_without_state)
    is_same = not has_landed or (has_same_rules and has_same_key)
    if is_same or is_compared or (full_refresh and not landed_micros(stream.folder)):
        return
    keys = ", ".join(".".join(path) for path in stream.identity.paths) or "the whole record"
    again = f"`chronolake resync {pipeline} --stream {stream.name}`"
    changed = f"rules of the key ({keys})" if has_same_key else "key"
    now = "have changed" if has_same_key else f"has changed, and is {keys} now"
    raise ConfigurationError(
        f"The {changed} of the stream {stream.name} {now}. Its records would get new keys, and "
        "remain under the old ones, too.",
        hint=f"Run {again}: the old ones are deleted."
        if stream.reads_all_without_state
        else f"Drop the table and the folder {stream.folder.path}, and run {again}.",
    )


def _hashed_key_of(stream: RecordStream) -> list[list[str]] | None:
    """Return the paths of the fields whose hash is a stream's key, or None if it has columns."""
    identity = stream.identity
    return [list(path) for path in identity.paths] if identity.is_hashed else None


def stream_offset(state: Any) -> Offset:
    """Return the offset for a state of a stream from which reading continues."""
    return {_STATE: state}


def shared_offset(state: Any) -> SharedOffset:
    """Return the offset for a state that all streams share."""
    return SharedOffset({_STATE: state})


class CutRead:
    """The records of a complete read that was cut off, and the state that continues it.

    Attributes:
        state: the last state that the source has reported, or None.
        types: the types of the records' fields.
    """

    def __init__(self, files: PendingFiles, stored: Mapping[str, Any] | None) -> None:
        self._files = files
        self.state: Any = None if stored is None else stored[_STATE]
        self.types = {} if stored is None else _types_from(stored[_TYPES])

    @classmethod
    def open(
        cls, stream: RecordStream, stored: Offset | None, folder: Path, *, is_new: bool
    ) -> CutRead:
        """Return what an earlier run has kept; it is deleted if it does not belong to this read.

        Args:
            stream: the stream.
            stored: its offset: if it has changed, a complete read has landed since.
            folder: contains the records of runs.
            is_new: whether the read begins at the start.
        """
        place = folder.parent / _RESUMABLE / folder.name / stream.folder.name
        if is_new:
            shutil.rmtree(place, ignore_errors=True)
        of = repr((stream.identity.rules.digest, stream.identity.paths, stored, stream.declared))
        return cls(*PendingFiles.recover(place, sha256(of.encode()).hexdigest()))

    @property
    def folder(self) -> Path:
        """Return the folder of the records."""
        return self._files.folder

    @property
    def parts(self) -> list[Part]:
        """Return the files of the records."""
        return self._files.parts

    def keep(self, parts: Sequence[Part], types: Mapping[str, ColumnType]) -> None:
        """Keep more records, together with the state."""
        self._files.add(parts)
        self._files.note({_STATE: self.state, _TYPES: _types_as_json(types)})

    def discard(self) -> None:
        """Delete everything: the records have landed, or their read begins at the start."""
        self._files.discard()
        self.state = None


def _types_from(stored: Mapping[str, Any]) -> dict[str, ColumnType]:
    return {
        name: ColumnType(Kind(kind), precision, scale)
        for name, (kind, precision, scale) in stored.items()
    }


def _types_as_json(types: Mapping[str, ColumnType]) -> dict[str, Any]:
    return {name: [kind.kind, kind.precision, kind.scale] for name, kind in types.items()}


class _Pending:
    """The records of a stream that were read in this run and have not landed."""

    def __init__(
        self,
        stream: RecordStream,
        stored: Offset | None,
        folder: Path,
        kept: CutRead | None,
        *,
        full_refresh: bool,
    ) -> None:
        self.stream = stream
        self.kept = kept
        self.position: dict[str, Any] = dict(stored or {})
        types = _types_from(self.position.get(_TYPES, {}))
        typed = stream.identity.add_key_column(stream.declared)
        if kept is not None:
            types |= kept.types
        self.shape = Shape({**typed, **types}, frozenset(stream.declared), stream=stream.name)
        self._fields = stream.fields | stream.declared.keys()
        #: The columns that have values in records of this run.
        self._filled: set[str] = set()
        #: Whether records have landed without what the source declares.
        self._is_undecided = False
        #: Whether changes that were read without a state are all records, and missing ones deleted.
        self.is_reconciled = full_refresh and stream.reads_all_without_state
        self.is_snapshot = stream.is_snapshot or self.is_reconciled
        self._begun_at = now_micros()
        self.is_done = False
        self.is_failed = False
        #: Whether records were taken to land, and have not.
        self.is_landing = False
        self.rows = 0
        self._reported = 0
        self._state: Any = None
        self._has_state = False
        self._folder = folder
        self._writer: PartWriter | None = None
        self._bytes = 0
        self._began = 0.0
        landed = landed_micros(stream.folder)
        self._has_landed = bool(stored) or landed > 0
        self._is_resumed = bool(landed) and not stored
        self._last = max(self.position.get(_LAST, 0), landed)
        self._sequence = f"{max(now_micros(), self._last + 1):016x}"
        self._number = 0
        self._is_undated = False
        self._omits = False

    @property
    def is_due(self) -> bool:
        """Return whether the records should land before more are read."""
        return not self.is_snapshot and self._is_old_or_large

    @property
    def _is_old_or_large(self) -> bool:
        if self._writer is None:
            return False
        age = time.monotonic() - self._began
        return self._bytes >= _BATCH_BYTES or age >= _BATCH_SECONDS

    @property
    def has_records(self) -> bool:
        """Return whether there are records to land."""
        return self._writer is not None

    @property
    def has_landed_all(self) -> bool:
        """Return whether all records so far have landed, or were compared with the table."""
        is_lost = self.is_failed or self.is_landing
        return not is_lost and (self.is_done or not self.has_records)

    @property
    def has_news(self) -> bool:
        """Return whether there are records, a state or the end of a first read to land."""
        return self.has_records_or_state or (self.is_done and self.is_new)

    @property
    def is_undecided(self) -> bool:
        """Return whether all records have landed before it was known that there are no more."""
        return self.is_done and self._is_undecided

    @property
    def has_records_or_state(self) -> bool:
        """Return whether there are records or a state to land."""
        return self.has_records or self._has_state

    @property
    def is_new(self) -> bool:
        """Return whether no state that has landed continues the stream's first read."""
        return not self.position or is_new(self.position)

    def progress(self) -> Iterator[ReadProgress]:
        """Yield how many records were read, if these are many more than reported before."""
        if self.rows - self._reported >= _REPORTED_ROWS:
            self._reported = self.rows
            yield ReadProgress(self.stream.name, self.rows)

    def take_in(self, message: Message) -> None:
        """Take records, deletions, declared types, or the state that lands with the next batch.

        Raises:
            SourceError: a record lacks a part of its key.
        """
        match message:
            case Records(_, rows, omits) if len(rows):
                self._add(rows, omits=omits)
            case Deletions(_, keys) if keys:
                self._delete(keys)
            case Declared(_, types, fields):
                self.shape.declare(self.stream.identity.add_key_column(types))
                self._fields = self._fields | types.keys() if fields is None else fields
            case Progress(state=state):
                self._state, self._has_state = state, True
                if self.kept is not None:
                    self.kept.state = state
                    if self._is_old_or_large:
                        self.keep()

    def keep(self) -> None:
        """Keep the records of a complete read that was cut off, or delete them."""
        parts = self.take()
        if self.kept is not None and self.kept.state is not None:
            self.kept.keep(parts, self.shape.current_types())
        else:
            discard(parts)

    def _add(self, records: Sequence[dict[str, Any]] | pa.RecordBatch, *, omits: bool) -> None:
        identity = self.stream.identity
        if isinstance(records, pa.RecordBatch):
            self._fields |= {*records.schema.names}
            columns, arrays = self.shape.cells_of(
                identity.add_keys_to_batch(records), identity.columns
            )
            count = records.num_rows
        else:
            columns, arrays = self.shape.cells(identity.add_keys(records), identity.columns)
            count = len(records)
        by_name = {column.name: array for column, array in zip(columns, arrays, strict=True)}
        times = self._times(by_name, count)
        facts = {MODIFIED: times, SEQUENCE: self._sequences(count)}
        exists = self._exist(by_name, count)
        facts[DELETED_AT] = pc.if_else(exists, pa.scalar(None, pa.int64()), times)
        facts[PROVIDES_DATA] = exists
        if omits and not isinstance(records, pa.RecordBatch):
            self._omits = True
            names = [column.name for column in columns]
            omitted = [[name for name in names if name not in record] for record in records]
            facts[OMITTED] = pa.array(omitted, pa.list_(pa.string()))
        self._write(columns, arrays, facts)

    def _delete(self, keys: Sequence[dict[str, Any]]) -> None:
        identity = self.stream.identity
        columns, arrays = self.shape.cells(
            identity.add_keys([dict(key) for key in keys]), identity.columns
        )
        times = self._ticks(len(keys))
        facts = {
            MODIFIED: times,
            SEQUENCE: self._sequences(len(keys)),
            DELETED_AT: times,
            PROVIDES_DATA: pa.repeat(pa.scalar(False), len(keys)),
        }
        self._write(columns, arrays, facts)

    def _write(
        self, columns: Sequence[Column], arrays: Sequence[pa.Array], facts: Mapping[str, pa.Array]
    ) -> None:
        if self._writer is None:
            folder = self._folder if self.kept is None else self.kept.folder
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = PartWriter(folder, WITH_OMISSIONS)
            self._began = time.monotonic()
        filled = filled_columns(columns, arrays)
        self._filled |= filled
        columns, arrays = self.stream.identity.rules.protect_columns(columns, arrays)
        self._writer.add(columns, arrays, facts, filled=filled)
        self._bytes += sum(array.nbytes for array in arrays)
        self.rows += len(facts[MODIFIED])

    def _times(self, values: Mapping[str, pa.Array], count: int) -> pa.Array:
        """Return when records changed: their own time, or the time of the read."""
        field_ = self.stream.changed_at
        known = None if field_ is None or field_ not in values else micros_of(values[field_])
        if known is not None and not known.null_count:
            return known
        self._is_undated = True
        read = self._ticks(count)
        return read if known is None else pc.coalesce(known, read)

    def _ticks(self, count: int) -> pa.Array:
        """Return the present as the time of some records; changes of a log each get their own."""
        first = max(now_micros(), self._last + 1)
        if self.stream.capture_method is not CaptureMethod.EVERY_CHANGE:
            self._last = first
            return pa.repeat(pa.scalar(first, pa.int64()), count)
        self._last = first + count - 1
        return pa.array(range(first, first + count), pa.int64())

    def _sequences(self, count: int) -> pa.Array:
        first = self._number
        self._number += count
        return pa.array([f"{self._sequence}{number:08x}" for number in range(first, first + count)])

    def _exist(self, values: Mapping[str, pa.Array], count: int) -> pa.Array:
        """Return which records are not marked as deleted.

        Raises:
            SourceError: a mark cannot be understood.
        """
        field_ = self.stream.deleted_by
        if field_ is None or field_ not in values:
            return pa.repeat(pa.scalar(True), count)
        is_deleted = are_marked(values[field_])
        if is_deleted is None:
            raise SourceError(
                f"The stream {self.stream.name} marks deleted records in {field_}, but a text "
                "there is neither true nor false, a number or a time.",
                column=field_,
                hint="Set it to true or a time in deleted records, and leave it empty in others.",
            )
        return pc.invert(is_deleted)

    def take(self) -> list[Part]:
        """Return the files of the records so far, which land next."""
        parts = [] if self._writer is None else self._writer.close()
        self._writer, self._bytes = None, 0
        return parts

    def next_position(self) -> dict[str, Any]:
        """Return the offset after all records so far."""
        types = self.shape.current_types()
        own = {_STATE: self._state} if self._has_state and self.kept is None else {}
        position = {
            **_without(_without(self.position, _KEY_RULES), _HASHED_KEY),
            **own,
            **({} if (paths := _hashed_key_of(self.stream)) is None else {_HASHED_KEY: paths}),
            **({_KEY_RULES: rules} if (rules := self.stream.identity.rules_digest) else {}),
            _TYPES: _types_as_json(types),
            _LAST: max(self._last, self.position.get(_LAST, 0) + 1),
        }
        if self.is_new and not (own or self.is_done):
            return {**position, _NEW: True}
        return _without(position, _NEW)

    def continued_position(self) -> dict[str, Any]:
        """Return the offset after a state of all streams that continues this one was stored."""
        return _without(self.position or self.next_position(), _NEW)

    def note_landed(self, position: dict[str, Any]) -> None:
        """Set the offset that has landed."""
        self.position, self._has_state, self._has_landed = position, False, True
        self.is_landing = False
        self._is_undecided = not self.is_done
        self._is_undated = self._is_resumed = self._omits = False

    def batch(self, lake: Lake, parts: Sequence[Part], position: Offset) -> ChangeBatch:
        """Return records as a batch, without Spark if they are few."""
        columns = self.columns
        if not any(column.primary_key for column in columns):
            return ChangeBatch(self.stream.name, None, (), position)
        if not parts:
            return ChangeBatch(
                self.stream.name, None, columns, position, declared=self.declared(parts)
            )
        is_log = self.stream.capture_method is CaptureMethod.EVERY_CHANGE
        may_repeat = self._has_landed and not self._omits
        is_undated = (self._is_undated and not is_log) or self._is_resumed
        return ChangeBatch(
            self.stream.name,
            read_files(lake, parts, columns, WITH_OMISSIONS),
            columns,
            position,
            may_repeat=may_repeat,
            is_undated=is_undated and not self._omits,
            is_protected=True,
            declared=self.declared(parts),
        )

    def snapshot(self, lake: Lake, parts: Sequence[Part], position: Offset) -> Snapshot:
        """Return records as all records of the stream."""
        at = max(now_micros(), self._last + 1)
        self._last = at
        return Snapshot(
            self.stream.name,
            read_files(lake, parts, self.columns, (SEQUENCE, PROVIDES_DATA)),
            self.columns,
            at,
            f"{at:016x}",
            {**position, _LAST: at},
            is_distinct=False,
            order=SEQUENCE,
            exists=PROVIDES_DATA,
            may_be_empty=bool(parts) or self.stream.may_become_empty,
            is_protected=True,
            declared=self.declared(parts),
        )

    def reconciliation(self, lake: Lake, parts: Sequence[Part], position: Offset) -> Reconciliation:
        """Return records with the times of their changes as all records of the stream."""
        columns = self.columns
        keys = ", ".join(quote(column.name) for column in columns if column.primary_key)
        rows = to_spark(read_files(lake, parts, columns, WITH_OMISSIONS))
        order = f"OVER (PARTITION BY {keys} ORDER BY {MODIFIED} DESC, {SEQUENCE} DESC)"
        ranked = rows.selectExpr(
            "*", f"row_number() {order} AS {_RANK}", f"first({PROVIDES_DATA}) {order} AS {_EXISTS}"
        )
        is_dated = self.stream.changed_at is not None
        # Versions without times of their own are all of the time of the read.
        kept = f"{_EXISTS} AND {PROVIDES_DATA}" + ("" if is_dated else f" AND {_RANK} = 1")
        names = [*(column.name for column in columns), *WHOLE_RECORDS]
        return Reconciliation(
            self.stream.name,
            select(ranked.where(kept), map(quote, names)),
            columns,
            self.rows,
            max(self._begun_at, self.position.get(_LAST, 0) + 1),
            position,
            is_dated=is_dated,
            may_be_empty=self.stream.may_become_empty,
            is_protected=True,
            declared=self.declared(parts),
        )

    def declared(self, parts: Sequence[Part]) -> DeclaredColumns:
        """Return what the source declares, if it declares no more, and what files contain."""
        names = self._fields if self.is_done else frozenset()
        return DeclaredColumns(names, filled_in(parts) | self._filled)

    @property
    def columns(self) -> list[Column]:
        """Return the stored columns so far, including the key."""
        identity = self.stream.identity
        return identity.rules.columns(self.shape.columns(identity.columns))


def _without(position: Mapping[str, Any], part: str) -> dict[str, Any]:
    return {name: value for name, value in position.items() if name != part}


class RecordReader:
    """A run over streams of single records."""

    def __init__(
        self,
        lake: Lake,
        streams: Iterable[RecordStream],
        positions: Mapping[str, Offset | None],
        folder: Path,
        *,
        shared: Any = None,
        refused: Mapping[str, ChronolakeError] = MappingProxyType({}),
        full_refresh: bool = False,
    ) -> None:
        """Prepare the run.

        Args:
            lake: the lake whose Spark session reads large batches.
            streams: the streams that are read.
            positions: the offset of each stream; None if nothing of it has landed.
            folder: contains the records until they have landed.
            shared: the stored state that all streams share, or None.
            refused: why some streams cannot be read.
            full_refresh: whether all records are read, and reads that were cut off begin at the
                start.
        """
        self._lake = lake
        self._folder = folder
        self._streams = {}
        for stream in streams:
            stored, place = positions.get(stream.name), folder / stream.folder.name
            kept = None
            if stream.is_resumable:
                kept = CutRead.open(stream, stored, folder, is_new=full_refresh)
            self._streams[stream.name] = _Pending(
                stream, stored, place, kept, full_refresh=full_refresh
            )
        self._landed: Mapping[str, Offset] = {}
        self._refused = refused
        self._stored_state = shared
        #: The last state of each part that has not been stored.
        self._shared: dict[str | None, Progress] = {}

    def note_landed(self, positions: Mapping[str, Offset]) -> None:
        """Set which offsets have landed (`ChangeSource.acknowledge`)."""
        self._landed = positions

    def kept_states(self) -> dict[str, Any]:
        """Return where the complete reads of resumable streams continue; None: at the start."""
        return {
            name: pending.kept.state
            for name, pending in self._streams.items()
            if pending.kept is not None
        }

    def read(self, messages: Iterable[Message]) -> Iterator[Batch]:
        """Yield what messages report, as the source protocol has it.

        A stream that is not `Complete` when the messages end was read as far as its state.

        Args:
            messages: what the source reports. An error that they raise stops all streams that are
                not complete; what was read before it lands.
        """
        # What an earlier run left is read again.
        shutil.rmtree(self._folder, ignore_errors=True)
        failure: ChronolakeError | None = None
        try:
            for name, pending in self._streams.items():
                if name in self._refused:
                    pending.is_failed = True
                    yield StreamFailure(name, self._refused[name])
                    continue
                # Report that the streams have begun: the first record may take long.
                yield ReadProgress(name, 0)
            try:
                for message in messages:
                    yield from self._take(message)
            except ChronolakeError as raised:
                failure = raised
            yield from self._end(failure)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _take(self, message: Message) -> Iterator[Batch]:
        if isinstance(message, Progress) and message.stream is None:
            self._shared[message.part] = message
            return
        pending = self._streams.get(message.stream or "")
        if pending is None or pending.is_failed:
            return
        try:
            yield from self._take_of(pending, message)
        except ChronolakeError as raised:
            yield from self._fail(pending, raised)

    def _take_of(self, pending: _Pending, message: Message) -> Iterator[Batch]:
        match message:
            case Complete() if pending.is_done:
                pass
            case Records() | Deletions() if pending.is_done:
                raise SourceError(
                    f"The source reported a record of the stream {pending.stream.name} after the "
                    "end of the stream.",
                    hint="Report it to the connector's authors.",
                )
            case Complete():
                pending.is_done = True
                if pending.is_snapshot:
                    yield from self._land_all_of(pending, pending.take())
            case Failure(_, error):
                yield from self._fail(pending, error)
            case Restarted():
                yield from self._land(pending)
                pending.is_snapshot = True
            case Emptied():
                yield from self._land(pending)
                yield from self._land_all_of(pending, [], may_be_empty=True)
            case _:
                pending.take_in(message)
                yield from pending.progress()
                if pending.is_due:
                    yield from self._land_due(pending)

    def _land_due(self, pending: _Pending) -> Iterator[Batch]:
        yield from self._land_states_of(pending)
        yield from self._land(pending)

    def _land_states_of(self, pending: _Pending) -> Iterator[Batch]:
        """Land the shared states of a stream, and the records of all streams that share them."""
        for state in list(self._shared.values()):
            if state.covers(pending.stream.name):
                yield from self._land_shared(state)

    def _fail(self, pending: _Pending, error: ChronolakeError) -> Iterator[Batch]:
        """Land what was read of a stream, and report why the rest was not."""
        # A shared state was reported before the error, and all records before the state.
        yield from self._land_states_of(pending)
        if pending.is_snapshot:
            pending.keep()
        else:
            yield from self._land(pending)
        if not pending.is_failed:
            pending.is_failed = True
            yield StreamFailure(pending.stream.name, error)

    def _land(self, pending: _Pending) -> Iterator[Batch]:
        if pending.is_failed:
            return
        if not pending.has_news:
            if pending.is_undecided:
                yield from self._land_offset(pending, dict(pending.position))
            return
        position = pending.next_position()
        if pending.position and not pending.has_records_or_state:
            # Its columns were declared with its records.
            yield from self._land_offset(pending, position)
            return
        pending.is_landing = True
        parts = pending.take()
        yield pending.batch(self._lake, parts, position)
        self._note_landed(pending, parts, position)

    def _land_all_of(
        self, pending: _Pending, parts: Sequence[Part], *, may_be_empty: bool = False
    ) -> Iterator[Batch]:
        """Compare the stream's table with all of its records."""
        if pending.is_failed:
            return
        pending.is_landing = True
        if pending.kept is not None:
            parts = [*pending.kept.parts, *parts]
        position = pending.next_position()
        if not any(column.primary_key for column in pending.columns):
            # No record has ever been read.
            yield from self._land_offset(pending, position)
            return
        if pending.is_reconciled:
            yield pending.reconciliation(self._lake, parts, position)
            self._note_landed(pending, parts, position)
            return
        found = pending.snapshot(self._lake, parts, position)
        yield replace(found, may_be_empty=found.may_be_empty or may_be_empty)
        self._note_landed(pending, parts, dict(found.position))

    def _note_landed(
        self, pending: _Pending, parts: Sequence[Part], position: dict[str, Any]
    ) -> None:
        discard(parts)
        if pending.kept is not None:
            pending.kept.discard()
        landed = dict(self._landed.get(pending.stream.name) or {})
        if _without(landed, COMPARED) == _without(position, COMPARED):
            pending.note_landed(landed)
        else:
            # The pipeline has recorded why.
            pending.is_failed = True

    def _land_shared(self, shared: Progress) -> Iterator[Batch]:
        """Land the records of all streams that share a state, and then the state."""
        sharing = [
            pending for pending in self._streams.values() if shared.covers(pending.stream.name)
        ]
        for pending in sharing:
            if not pending.is_snapshot:
                yield from self._land(pending)
        if not all(pending.has_landed_all for pending in sharing):
            return
        stored = shared.state
        if shared.part is not None:
            stored = {**(self._stored_state or {}), shared.part: shared.state}
        yield shared_offset(stored)
        self._stored_state = stored
        del self._shared[shared.part]
        for pending in sharing:
            if pending.is_new and not pending.is_snapshot:
                yield from self._land_offset(pending, pending.continued_position())

    def _land_offset(self, pending: _Pending, position: dict[str, Any]) -> Iterator[Batch]:
        declared = pending.declared([])
        yield ChangeBatch(pending.stream.name, None, (), position, declared=declared)
        self._note_landed(pending, [], position)

    def _end(self, failure: ChronolakeError | None) -> Iterator[Batch]:
        for pending in self._streams.values():
            if not pending.is_snapshot:
                yield from self._land(pending)
                if pending.rows:
                    yield ReadProgress(pending.stream.name, pending.rows)
            if pending.rows:
                _warn_of_unused_rules(pending)
        for state in list(self._shared.values()):
            yield from self._land_shared(state)
        for pending in self._streams.values():
            if pending.is_done or pending.is_failed:
                continue
            if pending.is_snapshot:
                yield from self._fail(pending, failure or _incomplete_error(pending.stream))
            elif failure is not None:
                pending.is_failed = True
                yield StreamFailure(pending.stream.name, failure)


def _warn_of_unused_rules(pending: _Pending) -> None:
    """Log a rule of the stream whose column no record has had: it may be misspelled."""
    stream = pending.stream
    try:
        stream.identity.rules.expect_known(
            list(pending.shape.current_types()), place=f"streams.{stream.name}"
        )
    except ConfigurationError as found:
        log.warning(
            "column_rule_without_column",
            stream=stream.name,
            reason=found.statement,
            hint=found.hint,
        )


def _incomplete_error(stream: RecordStream) -> SourceError:
    return SourceError(
        f"The source ended before it had returned all records of {stream.name}.",
        hint="Nothing was changed in the table. Run the sync again.",
    )
