"""RowChanges as record versions, their row keys, and their spool files.

The values of these versions are still texts. An insert or an update becomes a version, a delete
becomes a tombstone. An update that changes the key becomes both: a tombstone for the old key and a
version for the new one. Large values that an update did not touch are omitted, unless the log
contains the whole old row. A record that gets another key follows the tombstone of its old key.

A record is identified by its table's key, or by the column `_fivetran_id` if the table has none.
`_fivetran_id` is a hash of the columns of a unique index that are never null, or of all columns if
there is no such index. Identical rows get an additional number, so that none is lost. In the log,
only rows with such an index can be identified: the number of other rows depends on how many
identical rows there are.

Memory stays bounded: a transaction may be larger than memory, and lands as a whole. Its versions
are spooled to files in the lake's folder, which tasks can read (`chronolake.executor_files`), and
which are removed when it has landed.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from chronolake.arrow_tasks import ArrowRows, rows_at, to_spark
from chronolake.change_set import (
    DELETED_AT,
    FOLLOWS,
    MODIFIED,
    OMITTED,
    OPERATED,
    PROVIDES_DATA,
    PURGED_AT,
    RESERVED,
    SEQUENCE,
)
from chronolake.frames import group, select
from chronolake.source.relational.changes import Operation
from chronolake.source.relational.columns import ColumnT, TypeConversion, can_hold
from chronolake.types import ROW_ID, Column, ColumnType, Kind, literal, quote

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame

    from chronolake.executor_files import FileOpener
    from chronolake.lake import Lake
    from chronolake.source.relational.changes import Bytes, Flags, Places, RowChanges
    from chronolake.source.relational.columns import TextColumn


#: The columns of record versions in addition to their data, while the data are texts.
SYSTEM: Final = pa.schema(
    [
        (MODIFIED, pa.int64()),
        (SEQUENCE, pa.string()),
        (DELETED_AT, pa.int64()),
        (PROVIDES_DATA, pa.bool_()),
        (OMITTED, pa.list_(pa.string())),
        (OPERATED, pa.string()),
        (FOLLOWS, pa.string()),
    ]
)
_OPERATIONS: Final = {
    Operation.INSERT: "insert",
    Operation.UPDATE: "update",
    Operation.DELETE: "delete",
}
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_LSN_DIGITS: Final = 16
_PLACE_DIGITS: Final = 12


def sequence_of(commit_lsn: int, place: int = 0) -> str:
    """Return the sequence of a version: its commit LSN, then its position, in hexadecimal."""
    return f"{commit_lsn:0{_LSN_DIGITS}x}{place:0{_PLACE_DIGITS}x}"


def sequences_of(commit_lsns: Places, places: Places) -> pa.Array:
    """Return `sequence_of` for arrays of LSNs and positions."""
    digits = np.hstack([_digits(commit_lsns, _LSN_DIGITS), _digits(places, _PLACE_DIGITS)])
    offsets = np.arange(len(digits) + 1, dtype=np.int32) * digits.shape[1]
    return pa.StringArray.from_buffers(len(digits), pa.py_buffer(offsets), pa.py_buffer(digits))


def _digits(numbers: Places, count: int) -> Bytes:
    """Return the hexadecimal digits of numbers, one row for each number."""
    shifts = np.arange(count - 1, -1, -1, dtype=np.int64) * 4
    digits: Bytes = _HEX[(numbers[:, np.newaxis] >> shifts) & 0xF]
    return digits


def convert_changes(
    changes: RowChanges,
    key: Sequence[str],
    *,
    times: Places,
    commits: Sequence[int],
    selected: Flags,
) -> tuple[pa.Table, bool]:
    """Return the record versions of changes.

    Args:
        key: the names of the columns that identify a record.
        times: the commit time of each change's transaction, in microseconds since 1970.
        commits: the commit LSNs of the batch's transactions.
        selected: which changes to convert.

    Returns:
        A table, unordered, with the relation's columns as texts and those of `SYSTEM`. It has a row
        for each change, and an additional tombstone for each change of a key. And whether the table
        is complete: the key of a deleted record, or the one that an update replaced, may not have
        been sent, nor a large value of a row that an update has moved into the filter of its
        publication, which is sent as an insert.
    """
    names = [column.name for column in changes.relation.columns]
    is_key = np.array([name in key for name in names], np.bool_)
    is_delete = changes.kinds == Operation.DELETE
    new = _fill_unchanged(changes, is_key)
    is_insert = changes.kinds == Operation.INSERT
    lacks_value = is_insert & np.any([unknown for _, unknown in new], axis=0)
    if lacks_value.any():
        # An earlier record of the same key does not have the value.
        new = [(texts, unknown & ~is_insert) for texts, unknown in new]
    has_new_key = changes.has_old & ~is_delete & _changes_key(changes, new, is_key)
    is_version = selected & ~is_delete
    # If a partition had another replica identity, the old row does not contain the key.
    lacks_key = selected & is_delete & _lacks_key(changes, is_key)
    is_ended = selected & (is_delete | has_new_key) & ~lacks_key
    lsns = np.array(commits, np.int64)[changes.transactions]
    # The record of the old key ends before that of the new key begins.
    ordinals = changes.ordinals * 2

    def system(rows: Flags, *, is_tombstone: bool) -> list[pa.Array]:
        at = pa.array(times[rows])
        count = int(rows.sum())
        sequences = sequences_of(lsns[rows], ordinals[rows] + (not is_tombstone))
        operations = _operations(changes.kinds[rows])
        omitted = pa.nulls(count, pa.list_(pa.string()))
        follows = pa.nulls(count, pa.string())
        if not is_tombstone:
            omitted = _omitted_columns(names, [unknown[rows] for _, unknown in new], count)
            is_first = pa.array(
                has_new_key[rows] & omitted.is_valid().to_numpy(zero_copy_only=False)
            )
            tombstone_sequences = sequences_of(lsns[rows], ordinals[rows])
            follows = pc.if_else(is_first, tombstone_sequences, follows)
        deleted = at if is_tombstone else pa.nulls(count, pa.int64())
        provides_data = pa.array(np.full(count, not is_tombstone))
        return [at, sequences, deleted, provides_data, omitted, operations, follows]

    schema = pa.schema([*((name, pa.string()) for name in names), *SYSTEM])
    new_values = [texts.filter(pa.array(is_version)) for texts, _ in new]
    tombstones = [
        cells.texts.filter(pa.array(is_ended))
        if of_key
        else pa.nulls(int(is_ended.sum()), pa.string())
        for cells, of_key in zip(changes.old, is_key, strict=True)
    ]
    rows = pa.concat_tables(
        pa.Table.from_arrays([_as_string(column) for column in columns], schema=schema)
        for columns in (
            [*new_values, *system(is_version, is_tombstone=False)],
            [*tombstones, *system(is_ended, is_tombstone=True)],
        )
    )
    is_incomplete = lacks_key | selected & (lacks_value | _may_hide_key(changes, is_key))
    return rows, not is_incomplete.any()


def _fill_unchanged(changes: RowChanges, is_key: Flags) -> list[tuple[pa.Array, Flags]]:
    """Return the new rows' values, filled from old rows, and flags where values are unknown."""
    filled = []
    for new, old, of_key in zip(changes.new, changes.old, is_key, strict=True):
        # If only the old key was sent, the other columns are null.
        is_known = new.is_unchanged & (changes.has_old if of_key else changes.has_full_old)
        texts = new.texts
        if is_known.any():
            texts = pc.if_else(pa.array(is_known), old.texts, texts)
        filled.append((texts, new.is_unchanged & ~is_known))
    return filled


def _changes_key(changes: RowChanges, new: list[tuple[pa.Array, Flags]], is_key: Flags) -> Flags:
    """Return flags of rows whose old key differs from the new one."""
    differ = np.zeros(changes.number, np.bool_)
    for (texts, _), old, of_key in zip(new, changes.old, is_key, strict=True):
        if of_key:
            unequal = pc.fill_null(pc.not_equal(texts, old.texts), False)
            differ |= unequal.to_numpy(zero_copy_only=False)
    return differ


def _lacks_key(changes: RowChanges, is_key: Flags) -> Flags:
    """Return flags of rows whose old row lacks a key column; key columns are never null."""
    lack = np.zeros(changes.number, np.bool_)
    for old, of_key in zip(changes.old, is_key, strict=True):
        if of_key:
            lack |= old.texts.is_null().to_numpy(zero_copy_only=False)
    return lack


def _may_hide_key(changes: RowChanges, is_key: Flags) -> Flags:
    """Return flags of updates that may have changed the key without an old row that contains it.

    This happens while the table's replica identity is another index, or nothing.
    """
    is_identity = np.array([column.is_identity for column in changes.relation.columns], np.bool_)
    if is_identity[is_key].all():
        return np.zeros(changes.number, np.bool_)
    may_hide: Flags = (changes.kinds == Operation.UPDATE) & ~changes.has_full_old
    return may_hide


def _omitted_columns(names: Sequence[str], unknown: Sequence[Flags], count: int) -> pa.Array:
    """Return for each row the names of its omitted columns, or null."""
    if not any(flags.any() for flags in unknown):
        return pa.nulls(count, pa.list_(pa.string()))
    flags = np.stack(unknown, axis=1)
    numbers = flags.sum(axis=1)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(numbers, out=offsets[1:])
    values = pa.array(names, pa.string()).take(pa.array(np.nonzero(flags)[1]))
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(numbers == 0))


def _operations(kinds: Bytes) -> pa.Array:
    """Return the log's name of each change: insert, update or delete."""
    known = np.array(sorted(_OPERATIONS), np.uint8)
    words = pa.array([_OPERATIONS[kind] for kind in sorted(_OPERATIONS)], pa.string())
    return words.take(pa.array(np.searchsorted(known, kinds)))


def _as_string(column: pa.Array) -> pa.Array:
    """Return a column as `string`, whatever string type it has in a batch."""
    return column.cast(pa.string()) if column.type == pa.large_string() else column


#: The key of tables that have none.
ROW_KEY: Final = Column(ROW_ID, ColumnType(Kind.STRING), primary_key=True)
_SAME: Final = f"{RESERVED}same"


ColumnT_co = TypeVar("ColumnT_co", bound="TextColumn", covariant=True)


class KeyedTable(Protocol[ColumnT_co]):
    """A table in the catalog of its database."""

    @property
    def columns(self) -> Sequence[ColumnT_co]:
        """Return its columns."""
        ...

    @property
    def key(self) -> Collection[str]:
        """Return the columns of its primary key; empty without one."""
        ...

    @property
    def distinct_by(self) -> Collection[str]:
        """Return the columns of a unique index that are never null; empty without one."""
        ...


@dataclass(frozen=True)
class RowKey(Generic[ColumnT]):
    """The columns that identify a record in the lake.

    Attributes:
        columns: the columns that identify rows, in the order of their numbers, which are all known;
            empty if all columns of a row together identify it.
        is_hashed: whether the lake's key is `_fivetran_id` instead of these columns.
    """

    columns: tuple[ColumnT, ...]
    is_hashed: bool

    @classmethod
    def of(cls, table: KeyedTable[ColumnT]) -> Self:
        """Return the row key of a table from the catalog."""
        names = table.key or table.distinct_by
        own_columns = tuple(column for column in table.columns if column.name in names)
        return cls(own_columns, is_hashed=not table.key)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns that identify rows."""
        return tuple(column.name for column in self.columns)

    def declare(self, columns: Sequence[TextColumn], *, out_of_range: set[str]) -> list[Column]:
        """Return a table's columns as declared to the lake, including its key.

        Args:
            columns: the source's columns.
            out_of_range: the names of columns with values that their types cannot hold; these are
                declared as strings.
        """
        text = ColumnType(Kind.STRING)
        key = () if self.is_hashed else self.names
        columns_ = [
            Column(
                column.name,
                text if column.name in out_of_range else column.type,
                primary_key=column.name in key,
            )
            for column in columns
        ]
        return [ROW_KEY, *columns_] if self.is_hashed else columns_

    def convert(
        self,
        rows: ArrowRows,
        columns: Sequence[TextColumn],
        target_columns: Sequence[Column],
        *,
        others: str = "",
        out_of_range: Mapping[str, str] | None = None,
    ) -> ArrowRows:
        """Return rows with typed values and with their key.

        Args:
            rows: rows whose columns are texts. If no columns identify them, these must be all rows
                of the table, with only its columns.
            columns: the source's columns.
            target_columns: the same columns as returned by `declare`.
            others: columns that stay unchanged, as a Spark schema.
            out_of_range: see `TypeConversion`.

        Returns:
            The rows. `_fivetran_id` has 64 hexadecimal digits. It stays the same as long as the
            values of its columns stay the same, even if columns are renamed, or added without
            values.
        """
        data_columns = tuple(column for column in target_columns if column is not ROW_KEY)
        if not self.is_hashed:
            typing = TypeConversion(tuple(columns), data_columns, others, out_of_range or {})
            return rows.then(typing, typing.schema)
        row_id = f"{quote(ROW_ID)} {ROW_KEY.type.sql}"
        kept_columns = ", ".join(filter(None, [row_id, others]))
        typing = TypeConversion(tuple(columns), data_columns, kept_columns, out_of_range or {})
        texts = to_spark(rows)
        keyed = (
            texts.selectExpr(_hash(self.columns), "*")
            if self.columns
            else _number_duplicates(texts, columns)
        )
        return ArrowRows(lambda: keyed, typing, typing.schema)


def _number_duplicates(texts: DataFrame, columns: Sequence[TextColumn]) -> DataFrame:
    """Return rows keyed by the hash of all their values and a number among identical rows."""
    names = [column.name for column in columns]
    counted = group(texts, names, [f"count(1) AS {_SAME}"])
    cells = [quote(name) for name in names]
    exploded = select(counted, [*cells, f"explode(sequence(1L, {_SAME})) AS {_SAME}"])
    return select(exploded, [_hash(columns, _SAME), *cells])


def _hash(columns: Sequence[TextColumn], number: str = "1") -> str:
    """Return a SQL expression for the `_fivetran_id` of columns and a number."""
    # Columns are identified by number and nulls are ignored, so that renamed or new columns do not
    # change the hash.
    cells = (f"{literal(str(column.number))}, {quote(column.name)}" for column in columns)
    values = f"to_json(named_struct({', '.join(cells)}), map('ignoreNullFields', 'true'))"
    return f"sha2(concat_ws(':', {number}, {values}), 256) AS {quote(ROW_ID)}"


_BUFFER_BYTES: Final = 16 * 2**20
_SQL: Final = {
    pa.int64(): "bigint",
    pa.string(): "string",
    pa.bool_(): "boolean",
    pa.list_(pa.string()): "array<string>",
}
#: The columns of versions in addition to their data, as a Spark schema.
_SYSTEM_COLUMNS: Final = ", ".join(
    f"{column.name} {_SQL[column.type]}"
    for column in SYSTEM.append(pa.field(PURGED_AT, pa.int64()))
)


@dataclass
class Spool(Generic[ColumnT]):
    """A spool file for record versions of one table with one set of columns.

    Attributes:
        columns: the table's columns, whose values are texts here.
        key: the row key.
        file: the file's path.
        bytes: how many bytes were added.
        has_followers: whether records got another key and kept values that were not sent.
    """

    columns: tuple[ColumnT, ...]
    key: RowKey[ColumnT]
    file: Path
    bytes: int = 0
    has_followers: bool = False
    _out_of_range: set[str] = field(default_factory=set)
    _waiting: list[pa.Table] = field(default_factory=list)
    _waiting_bytes: int = 0
    _writer: pq.ParquetWriter | None = None

    def add(self, versions: pa.Table) -> None:
        """Append versions that `convert_changes` returned."""
        for column in self.columns:
            if column.name not in self._out_of_range and not can_hold(
                column, versions[column.name]
            ):
                self._out_of_range.add(column.name)
        self.has_followers |= versions[FOLLOWS].null_count < versions.num_rows
        self._waiting.append(versions)
        self._waiting_bytes += versions.nbytes
        self.bytes += versions.nbytes
        if self._waiting_bytes >= _BUFFER_BYTES:
            self._write()

    def _write(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting).combine_chunks()
        if self._writer is None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self.file, rows.schema, compression="lz4")
        self._writer.write_table(rows)
        self._waiting, self._waiting_bytes = [], 0

    def close(self) -> None:
        """Write buffered versions and close the file. Nothing can be added afterwards."""
        self._write()
        if self._writer is not None:
            self._writer.close()

    @property
    def landed_columns(self) -> list[Column]:
        """Return the columns as they land, with types that hold all spooled values."""
        return self.key.declare(self.columns, out_of_range=self._out_of_range)

    def versions(self, lake: Lake) -> ArrowRows:
        """Return the versions in the form that `landing` accepts, after `close`.

        Args:
            lake: the lake whose Spark session reads them, unless they are few.
        """
        return self.key.convert(
            self.texts(lake), self.columns, self.landed_columns, others=_SYSTEM_COLUMNS
        )

    def texts(self, lake: Lake) -> ArrowRows:
        """Return the versions with their values as texts, and the columns of `SYSTEM`."""
        groups = pq.read_metadata(self.file).num_row_groups
        places = pa.table({"file": [str(self.file)] * groups, "row_group": range(groups)})
        texts = [f"{quote(column.name)} string" for column in self.columns]
        return rows_at(
            places,
            partial(_read_spool, open_file=lake.executor_files.opener),
            ", ".join([*texts, _SYSTEM_COLUMNS]),
            size=self.bytes,
            is_local=lake.has_files_of_tasks,
            publish=lake.executor_files.publish,
            spark=lambda: lake.spark,
        )


def _read_spool(
    places: Iterable[pa.RecordBatch], *, open_file: FileOpener
) -> Iterator[pa.RecordBatch]:
    """Read row groups."""
    with ExitStack() as opened:
        files: dict[str, pq.ParquetFile] = {}
        for batch in places:
            for place in batch.to_pylist():
                path, group = place["file"], place["row_group"]
                if path not in files:
                    content = opened.enter_context(open_file(path))
                    files[path] = opened.enter_context(pq.ParquetFile(content))
                for rows in files[path].iter_batches(row_groups=[group], use_threads=False):
                    never = pa.nulls(rows.num_rows, pa.int64())
                    yield rows.append_column(PURGED_AT, never)
