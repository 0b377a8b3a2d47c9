"""Scan of one snapshot's rows in batches: only the requested rows are loaded into memory.

PyIceberg plans which files may contain matching rows, and maps their columns' names. The files are
read here, because PyIceberg gathers all rows of all files before it returns the first one, and
reads every row group of a file with deleted rows. Here a row keeps its place in its file, so that
the few rows of a page can be found by their keys first and read completely afterwards.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from chronolake.change_set import RESERVED
from chronolake.inspect.manifests import (
    DeletedRows,
    damaged_error,
    read_entries,
    table_errors,
    unsupported_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow.compute as pc
    from numpy.typing import NDArray
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask

    from chronolake.inspect.catalog import CatalogTable

#: Columns with a row's place: a number derived from its file's path, and its index in the file.
FILE: Final = f"{RESERVED}file"
ROW: Final = f"{RESERVED}row"
_BATCH_ROWS: Final = 65_536
_WITH_NANOSECONDS: Final = 3


@dataclass(frozen=True)
class Place:
    """The place of a row in a snapshot: its file's number and its index in the file."""

    file: int
    row: int


@dataclass(frozen=True)
class _FileMapping:
    """Columns and conditions, mapped to files of one physical schema."""

    physical: pa.Schema
    partition: dict[int, Any]
    schema: Schema
    condition: pc.Expression | None
    filter_columns: frozenset[int]


class StoredRows:
    """The rows of a snapshot of a table, without those that deletion vectors mark.

    Args:
        table: the table.
        snapshot_id: the snapshot; the current one by default. Rows always have the table's present
            columns: a column that was added later is null.
    """

    def __init__(self, table: CatalogTable, snapshot_id: int | None = None) -> None:
        from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415 - slow to import

        self._table = table
        self._snapshot_id = snapshot_id
        self._fields = {field.name: field for field in table.iceberg.schema().fields}
        self._types = {
            name: _narrow_type(schema_to_pyarrow(field.field_type, include_field_ids=False))
            for name, field in self._fields.items()
        }
        self._tasks: dict[int, FileScanTask] = {}
        self.deleted = DeletedRows(table)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of all columns, in table order."""
        return tuple(self._fields)

    def plan(self, condition: BooleanExpression) -> list[FileScanTask]:
        """Return the files that may contain rows that meet a condition, in a stable order.

        Raises:
            LakeError: the snapshot's metadata cannot be read.
        """
        if self._table.iceberg.current_snapshot() is None:
            return []
        scan = self._table.iceberg.scan(row_filter=condition, snapshot_id=self._snapshot_id)
        try:
            tasks = list(scan.plan_files())
        except Exception as failure:
            for _ in read_entries(self._table, self._snapshot_id):
                pass  # Reading the entries raises an error about the unreadable file.
            raise damaged_error(self._table.name, failure) from failure
        tasks.sort(key=lambda task: _file_number(task.file.file_path))
        self._tasks |= {_file_number(task.file.file_path): task for task in tasks}
        return tasks

    def batches(
        self,
        columns: Sequence[str],
        condition: BooleanExpression,
        *,
        tasks: Sequence[FileScanTask] | None = None,
        excluding: StoredRows | None = None,
        narrow: Callable[[], BooleanExpression | None] | None = None,
    ) -> Iterator[pa.Table]:
        """Return the rows that meet a condition, with their places (`FILE`, `ROW`).

        Args:
            columns: the columns to read.
            condition: a filter; files and row groups whose statistics exclude it are not read.
            tasks: the files to read, which `plan` returned for the condition; planned by default.
            excluding: another snapshot of the table, whose rows are left out.
            narrow: called before each row group; returns an additional condition that arose while
                reading, or None. Row groups that it excludes by their statistics are skipped; rows
                that do not meet it may be returned.

        Raises:
            LakeError: the table's files cannot be read, or not without Spark.
        """
        from pyiceberg.expressions import AlwaysTrue  # noqa: PLC0415 - slow to import

        excluded_tasks = None
        if excluding is not None:
            excluded_tasks = {task.file.file_path: task for task in excluding.plan(AlwaysTrue())}
        mapping: _FileMapping | None = None
        for task in self.plan(condition) if tasks is None else tasks:
            only: NDArray[np.int64] | None = None
            if excluded_tasks is not None and excluding is not None:
                excluded_task = excluded_tasks.get(task.file.file_path)
                if excluded_task is not None:
                    # Only rows that the other snapshot has deleted from the same file.
                    only = np.setdiff1d(excluding.deleted.of(excluded_task), self.deleted.of(task))
                    if not only.size:
                        continue
            with table_errors(self._table.name, task.file.file_path), self._open(task) as fragment:
                mapping = self._map_file(fragment, task, condition, mapping)
                for rows in self._read_file(task, fragment, mapping, columns, narrow):
                    remaining = _drop_deleted(rows, self.deleted.of(task), only)
                    if remaining.num_rows:
                        yield remaining

    def rows(self, places: Sequence[Place]) -> pa.Table:
        """Return whole rows at places that `batches` returned, in the order of the places.

        Raises:
            LakeError: the table's files cannot be read.
        """
        found: list[pa.Table] = []
        for number in sorted({place.file for place in places}):
            task = self._tasks[number]
            wanted = np.array(sorted({place.row for place in places if place.file == number}))
            with table_errors(self._table.name, task.file.file_path), self._open(task) as fragment:
                mapping = self._map_file(fragment, task, None, None)
                found += self._take_rows(task, fragment, mapping, wanted)
        names = [*self._fields, FILE, ROW]
        if not found:
            return pa.table([pa.array([], kind) for kind in self._types.values()], self.columns)
        rows = pa.concat_tables(found, promote_options="permissive").select(range(len(names)))
        by_place = {
            Place(file, row): index
            for index, (file, row) in enumerate(
                zip(rows[FILE].to_pylist(), rows[ROW].to_pylist(), strict=True)
            )
        }
        return rows.take([by_place[place] for place in places]).drop_columns([FILE, ROW])

    @contextmanager
    def _open(self, task: FileScanTask) -> Iterator[ds.ParquetFileFragment]:
        if not str(task.file.file_format).endswith("PARQUET"):
            raise unsupported_error(
                self._table.name, "The table has files that are not in Parquet format."
            )
        with self._table.iceberg.io.new_input(task.file.file_path).open() as stream:
            yield ds.ParquetFileFormat().make_fragment(stream)

    def _map_file(
        self,
        fragment: ds.ParquetFileFragment,
        task: FileScanTask,
        condition: BooleanExpression | None,
        before: _FileMapping | None,
    ) -> _FileMapping:
        """Return the mapping of a file's columns, or the previous one if columns are equal."""
        from pyiceberg.io.pyarrow import pyarrow_to_schema  # noqa: PLC0415 - slow to import

        physical, partition = fragment.physical_schema, self._partition_values(task)
        if (
            before is not None
            and physical.equals(before.physical, check_metadata=True)
            and partition == before.partition
        ):
            return before
        metadata = self._table.iceberg.metadata
        schema = pyarrow_to_schema(
            physical,
            metadata.name_mapping(),
            # Earlier format versions have no nanoseconds, but files of other engines may contain
            # them.
            downcast_ns_timestamp_to_us=metadata.format_version < _WITH_NANOSECONDS,
            format_version=metadata.format_version,
        )
        return _FileMapping(
            physical,
            partition,
            schema,
            self._translate(condition, schema, partition),
            self._columns_of(condition),
        )

    def _columns_of(self, condition: BooleanExpression | None) -> frozenset[int]:
        from pyiceberg.expressions.visitors import bind, extract_field_ids  # noqa: PLC0415

        if condition is None:
            return frozenset()
        bound = bind(self._table.iceberg.schema(), condition, case_sensitive=True)
        return frozenset(extract_field_ids(bound))

    def _translate(
        self, condition: BooleanExpression | None, schema: Schema, partition: dict[int, Any]
    ) -> pc.Expression | None:
        """Return a condition on the table's columns as one on a file's columns."""
        from pyiceberg.expressions import AlwaysTrue  # noqa: PLC0415 - slow to import
        from pyiceberg.expressions.visitors import (  # noqa: PLC0415 - slow to import
            bind,
            rewrite_not,
            translate_column_names,
        )
        from pyiceberg.io.pyarrow import expression_to_pyarrow  # noqa: PLC0415 - slow to import

        if condition is None or condition == AlwaysTrue():
            return None
        bound = bind(self._table.iceberg.schema(), rewrite_not(condition), case_sensitive=True)
        translated = translate_column_names(
            bound, schema, case_sensitive=True, projected_field_values=partition
        )
        return expression_to_pyarrow(bind(schema, translated, case_sensitive=True))

    def _partition_values(self, task: FileScanTask) -> dict[int, Any]:
        """Return identity partition values, which files may omit, by field id."""
        spec = self._table.iceberg.specs()[task.file.spec_id]
        return {
            field.source_id: task.file.partition[place]
            for place, field in enumerate(spec.fields)
            if str(field.transform) == "identity"
        }

    def _read_file(
        self,
        task: FileScanTask,
        fragment: ds.ParquetFileFragment,
        mapping: _FileMapping,
        columns: Sequence[str],
        narrow: Callable[[], BooleanExpression | None] | None,
    ) -> Iterator[pa.Table]:
        needed = {self._fields[name].field_id for name in columns} | mapping.filter_columns
        names = [field.name for field in mapping.schema.fields if field.field_id in needed]
        admitted = fragment
        if mapping.condition is not None:
            admitted = fragment.subset(filter=mapping.condition, schema=mapping.physical)
        firsts = _first_rows(fragment)
        for group in [row_group.id for row_group in admitted.row_groups]:
            subset = fragment.subset(row_group_ids=[group])
            narrowing = self._translate(
                narrow() if narrow else None, mapping.schema, mapping.partition
            )
            if narrowing is not None:
                subset = subset.subset(filter=narrowing, schema=mapping.physical)
                if not subset.row_groups:
                    continue
            row = firsts[group]
            for batch in _batches(subset, mapping.physical, names):
                rows = pa.Table.from_batches([batch]).append_column(
                    ROW, pa.array(np.arange(row, row + batch.num_rows))
                )
                row += batch.num_rows
                if mapping.condition is not None:
                    rows = rows.filter(mapping.condition)
                if rows.num_rows:
                    yield self._project(rows, mapping.schema, task, columns)

    def _take_rows(
        self,
        task: FileScanTask,
        fragment: ds.ParquetFileFragment,
        mapping: _FileMapping,
        positions: NDArray[np.int64],
    ) -> Iterator[pa.Table]:
        """Return whole rows of a file from the row groups that contain them."""
        firsts = [*_first_rows(fragment), fragment.metadata.num_rows]
        needed = {field.field_id for field in self._fields.values()}
        names = [field.name for field in mapping.schema.fields if field.field_id in needed]
        for group in sorted(set(np.searchsorted(firsts, positions, side="right") - 1)):
            here = positions[(positions >= firsts[group]) & (positions < firsts[group + 1])]
            subset = fragment.subset(row_group_ids=[int(group)])
            row = firsts[group]
            for batch in _batches(subset, mapping.physical, names):
                places = here[(here >= row) & (here < row + batch.num_rows)]
                if places.size:
                    rows = pa.Table.from_batches([batch]).take(places - row)
                    rows = rows.append_column(ROW, pa.array(places))
                    yield self._project(rows, mapping.schema, task, self.columns)
                row += batch.num_rows
                if row > here[-1]:
                    break

    def _project(
        self, rows: pa.Table, schema: Schema, task: FileScanTask, columns: Sequence[str]
    ) -> pa.Table:
        """Return rows of a file with the table's columns, and with their places."""
        names = {field.field_id: field.name for field in schema.fields}
        arrays = []
        for column in columns:
            field, kind = self._fields[column], self._types[column]
            name = names.get(field.field_id)
            if name is not None:
                values = rows[name]
                # Nanoseconds are truncated.
                is_safe = not pa.types.is_timestamp(kind)
                arrays.append(values if values.type == kind else values.cast(kind, safe=is_safe))
                continue
            constant = self._partition_values(task).get(field.field_id, field.initial_default)
            arrays.append(pa.chunked_array([_repeat(constant, kind, rows.num_rows)]))
        file = np.full(rows.num_rows, _file_number(task.file.file_path), np.int64)
        return pa.table([*arrays, pa.array(file), rows[ROW]], [*columns, FILE, ROW])


def _repeat(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)


def _first_rows(fragment: ds.ParquetFileFragment) -> list[int]:
    """Return the index of each row group's first row."""
    metadata = fragment.metadata
    counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    return [sum(counts[:group]) for group in range(len(counts))]


def _batches(
    fragment: ds.ParquetFileFragment, physical: pa.Schema, names: list[str]
) -> Iterator[pa.RecordBatch]:
    scanner = fragment.scanner(schema=physical, columns=names, batch_size=_BATCH_ROWS)
    yield from scanner.to_batches()


def _drop_deleted(
    rows: pa.Table, deleted: NDArray[np.int64], only: NDArray[np.int64] | None
) -> pa.Table:
    """Return the rows that are not deleted, optionally limited to some rows."""
    if not rows.num_rows or not (deleted.size or only is not None):
        return rows
    places = rows[ROW].to_numpy()
    kept = ~_is_in(places, deleted)
    if only is not None:
        kept &= _is_in(places, only)
    return rows if kept.all() else rows.filter(pa.array(kept))


def _is_in(places: NDArray[np.int64], some: NDArray[np.int64]) -> NDArray[np.bool_]:
    if not some.size:
        return np.zeros(len(places), np.bool_)
    near = np.minimum(np.searchsorted(some, places), len(some) - 1)
    return np.asarray(some[near] == places)


def _file_number(path: str) -> int:
    """Return a file's number, which is stable and unique to its path."""
    return int.from_bytes(blake2b(path.encode(), digest_size=7).digest())


def _narrow_type(kind: pa.DataType) -> pa.DataType:
    """Return string and binary types with 32-bit offsets, as files use them."""
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind
