"""The copy of a table at one place of the log, by Spark's tasks, without locks.

Each task reads ranges of the key with statements of their own, so rows are as of different times.
The log since before the first statement is then applied to them: it contains the values of changed
columns, and applying a change again that a row already has leaves it as it is. What results is the
table at the place where the log was read to.

The rows are staged in files until then. A range that was read before a crash is not read again.
"""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import IO, TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from chronolake.arrow_tasks import FEW_BYTES, ArrowRows, rows_at, to_arrow, to_spark
from chronolake.change_set import OMITTED, PROVIDES_DATA, RESERVED, SEQUENCE
from chronolake.errors import SourceError
from chronolake.failpoints import reach
from chronolake.frames import map_in_arrow, select, temp_view
from chronolake.object_store import BucketPath
from chronolake.source.mysql.connection import connect, execute, quoted
from chronolake.source.mysql.key_ranges import key_ranges
from chronolake.source.mysql.result_rows import read_rows, with_logged_floats
from chronolake.source.relational.row_versions import RowKey
from chronolake.types import literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pymysql
    from pyspark.sql import DataFrame

    from chronolake.config import StorageConfig
    from chronolake.lake import Lake
    from chronolake.source.mysql.catalog import SourceTable
    from chronolake.source.mysql.columns import SourceColumn
    from chronolake.source.relational.protected_texts import ProtectedTexts
    from chronolake.source.relational.row_versions import Spool
    from chronolake.types import Column

_MANIFEST: Final = "manifest.json"
_LAST: Final = f"{RESERVED}last"
_NEWER: Final = f"{RESERVED}newer"
_HAS_TOMBSTONE: Final = f"{RESERVED}has_tombstone"
_HAS_VERSION: Final = f"{RESERVED}has_version"
_IS_STAGED: Final = f"{RESERVED}is_staged"
_LACKS: Final = f"{RESERVED}lacks"


@dataclass(frozen=True)
class StagingFolder:
    """The folder where the rows of a copy are staged; tasks see it.

    Attributes:
        root: a folder of the driver that tasks share, or a folder of a bucket.
        storage: how a bucket is reached.
    """

    root: Path | BucketPath
    storage: StorageConfig

    def for_part(self) -> StagingFolder:
        """Return the folder for some rows of the table, which do not belong to a copy."""
        return replace(self, root=self.root / "part")

    def file(self, number: int) -> str:
        """Return the location of the rows of a range."""
        return str(self.root / f"{number:06}.parquet")

    def read_manifest(self) -> dict[str, Any] | None:
        """Return what a copy that was interrupted has noted, or None."""
        file = self.root / _MANIFEST
        exists = file.is_file() if isinstance(file, Path) else file.find() is not None
        if not exists:
            return None
        found: dict[str, Any] = json.loads(file.read_bytes())
        return found

    def begin(self, manifest: Mapping[str, Any]) -> None:
        """Remove what is staged, and note what begins now."""
        self.remove()
        self.write_manifest(manifest)

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Replace what is noted about the copy."""
        with _new_file(str(self.root / _MANIFEST), self.storage) as content:
            content.write(json.dumps(manifest).encode())

    def staged(self) -> set[str]:
        """Return the locations of the ranges that have been read."""
        if isinstance(self.root, BucketPath):
            return {str(item.path) for item in self.root.objects()}
        return {str(path) for path in self.root.glob("*.parquet")}

    def remove(self) -> None:
        """Remove what is staged."""
        if isinstance(self.root, BucketPath):
            for item in list(self.root.objects()):
                item.path.delete()
        else:
            shutil.rmtree(self.root, ignore_errors=True)


@contextmanager
def _new_file(location: str, storage: StorageConfig) -> Iterator[IO[bytes]]:
    """Write a file of any size in a block; it appears whole at its end, or not at all."""
    if "://" in location:
        with TemporaryFile() as spooled:
            yield spooled
            spooled.seek(0)
            BucketPath(location, storage).upload(spooled)
        return
    path = Path(location)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two tasks may read the same range.
    with NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
        yield file
    Path(file.name).replace(path)


@dataclass(frozen=True)
class RangeReader:
    """Reads ranges of a table into files; it is sent to executors.

    Attributes:
        dsn: the server's address.
        query: the query without a condition.
        names: the columns that are read.
        floats: those of them with floating-point numbers.
        protected: the rules of the columns.
        storage: how a bucket is reached.
    """

    dsn: str = field(repr=False)
    query: str
    names: tuple[str, ...]
    floats: tuple[str, ...]
    protected: ProtectedTexts[SourceColumn]
    storage: StorageConfig

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the ranges with some conditions, and yield how many rows each has."""
        with connect(self.dsn) as connection:
            for batch in batches:
                for condition, file in zip(
                    *(batch.column(number).to_pylist() for number in range(2)), strict=True
                ):
                    count = self._stage(connection, condition, file)
                    yield pa.RecordBatch.from_pydict({"rows": pa.array([count], pa.int64())})

    def _stage(self, connection: pymysql.Connection[Any], condition: str, file: str) -> int:
        schema = pa.schema([(name, pa.string()) for name in self.names])
        count = 0
        query = f"{self.query} WHERE {condition}"
        with (
            _new_file(file, self.storage) as content,
            pq.ParquetWriter(content, schema, compression="lz4") as writer,
        ):
            for rows in read_rows(connection, query, self.names):
                texts = with_logged_floats(rows, self.floats)
                writer.write_batch(self.protected.apply_to(texts))
                count += rows.num_rows
        return count


def stage_rows(lake: Lake, dsn: str, table: SourceTable, folder: StagingFolder) -> list[str]:
    """Read all rows of a table into files, except those that are staged already.

    Args:
        lake: the lake whose Spark session does the work, unless the table is small.
        dsn: the server's address.
        table: the table; it has a key.
        folder: where the rows are staged; its manifest is written.

    Returns:
        The files.

    Raises:
        SourceError: the table cannot be read.
    """
    manifest = folder.read_manifest() or {}
    if "ranges" not in manifest:
        with connect(dsn) as connection:
            ranges = list(key_ranges(connection, table))
        manifest = {**manifest, "ranges": ranges}
        folder.write_manifest(manifest)
    reach("copy.planned")
    files = [folder.file(number) for number in range(len(manifest["ranges"]))]
    done = folder.staged()
    missing = [
        (condition, file)
        for condition, file in zip(manifest["ranges"], files, strict=True)
        if file not in done
    ]
    names = tuple(column.name for column in table.columns)
    read = _columns_read(table)
    cells = ", ".join(column.copied for column in read)
    query = f"SELECT {cells} FROM {quoted(table.schema, table.name)}"
    floats = tuple(column.name for column in read if column.is_float)
    reader = RangeReader(dsn, query, names, floats, table.texts, folder.storage)
    places = pa.table(
        {
            "condition": pa.array([condition for condition, _ in missing], pa.string()),
            "file": pa.array([file for _, file in missing], pa.string()),
        }
    )
    if len(missing) <= 1 and _size_of(dsn, table) <= FEW_BYTES:
        for _ in reader(places.to_batches()):
            pass
    elif missing:
        spark = lake.spark
        tasks = spark.createDataFrame(places).coalesce(1).repartition(len(missing))
        map_in_arrow(tasks, reader, "rows bigint").agg({"rows": "sum"}).collect()
    reach("copy.staged")
    return files


def _columns_read(table: SourceTable) -> list[SourceColumn]:
    """Return the columns of a table as they are in the source."""
    with_rules = {column.name: column for column in table.texts.source_columns}
    return [with_rules.get(column.name, column) for column in table.columns]


def _size_of(dsn: str, table: SourceTable) -> int:
    with connect(dsn) as connection:
        rows = execute(
            connection,
            "SELECT DATA_LENGTH FROM information_schema.TABLES "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            (table.schema, table.name),
        )
    return int(rows[0][0] or 0) if rows else 0


def staged_rows(lake: Lake, table: SourceTable, files: Sequence[str]) -> ArrowRows:
    """Return staged rows, with their columns as texts."""
    opener = lake.executor_files.opener
    size = 0
    for file in files:
        with opener(file) as content:
            size += content.size()
    lake.note_work(size)
    schema = ", ".join(f"{quote(column.name)} string" for column in table.columns)
    return rows_at(
        pa.table({"file": list(files)}),
        partial(_read_files, open_file=opener),
        schema,
        size=size,
        is_local=lake.has_files_of_tasks,
        publish=str,
        spark=lambda: lake.spark,
    )


def _read_files(places: Iterable[pa.RecordBatch], *, open_file: Any) -> Iterator[pa.RecordBatch]:
    for batch in places:
        for file in batch.column(0).to_pylist():
            with open_file(file) as content, pq.ParquetFile(content) as rows:
                yield from rows.iter_batches(use_threads=False)


def copied_rows(
    lake: Lake,
    table: SourceTable,
    files: Sequence[str],
    changes: Sequence[Spool[SourceColumn]],
    declared: Sequence[Column],
) -> tuple[ArrowRows, dict[str, str]]:
    """Return the rows of a copy, with typed values and with their key.

    Args:
        lake: the lake whose Spark session does the work.
        table: the table.
        files: the rows as they were read.
        changes: the changes since before the first row was read.
        declared: the columns as they are declared to the lake.

    Returns:
        The rows, and for some columns another column that has values as texts which the declared
        type cannot hold (`Snapshot.texts`).
    """
    rows = staged_rows(lake, table, files)
    if changes:
        rows = to_arrow(_with_changes(lake, table, rows, changes))
    checked = [column.name for column in table.columns if column.out_of_range_pattern is not None]
    texts = {name: f"{RESERVED}text{number}" for number, name in enumerate(checked)}
    return RowKey.of(table).convert(rows, table.columns, declared, out_of_range=texts), texts


def _with_changes(
    lake: Lake,
    table: SourceTable,
    staged: ArrowRows,
    spools: Sequence[Spool[SourceColumn]],
) -> DataFrame:
    """Return the rows of a copy with the changes that were made while it was read.

    Args:
        lake: the lake whose Spark session does the work.
        table: the table.
        staged: the rows as they were read.
        spools: the changes since before the first row was read; they have the table's columns.

    Raises:
        SourceError: the log lacks values of a record that got another key, or was added.
    """
    key = table.log_key
    names = [column.name for column in table.columns]
    others = [name for name in names if name not in key]
    changes = to_spark(spools[0].texts(lake))
    for spool in spools[1:]:
        changes = changes.unionByName(to_spark(spool.texts(lake)))
    touched = _last_changes(changes, key, others)
    rows = to_spark(staged)
    with temp_view(rows) as all_rows, temp_view(touched) as last:
        spark = lake.spark
        same = " AND ".join(f"a.{quote(name)} = b.{quote(name)}" for name in key)
        untouched = spark.sql(f"SELECT a.* FROM {all_rows} a LEFT ANTI JOIN {last} b ON {same}")
        cells = [
            f"CASE WHEN b.{_NEWER}{number} IS NOT NULL THEN b.{_NEWER}{number}.value "
            f"WHEN NOT b.{_HAS_TOMBSTONE} THEN a.{quote(name)} END AS {quote(name)}"
            for number, name in enumerate(others)
        ]
        has_no_base = f"(b.{_HAS_TOMBSTONE} OR NOT coalesce(a.{_IS_STAGED}, false))"
        lacks = " OR ".join(
            f"(b.{_NEWER}{number} IS NULL AND {has_no_base})" for number in range(len(others))
        )
        changed = spark.sql(
            f"SELECT {', '.join([f'b.{quote(name)}' for name in key])}"
            f"{''.join(f', {cell}' for cell in cells)}, {lacks or 'false'} AS {_LACKS} "
            f"FROM (SELECT *, true AS {_IS_STAGED} FROM {all_rows}) a "
            f"RIGHT JOIN {last} b ON {same} WHERE b.{_HAS_VERSION}"
        )
    if changed.where(_LACKS).limit(1).count():
        raise SourceError(
            f"Rows of {table.stream} changed while the table was read, and the server's log does "
            "not contain all of their values.",
            hint="Run the command again: it reads the table again. With binlog_row_image = FULL, "
            "this cannot happen.",
        )
    return select(untouched, map(quote, names)).unionAll(select(changed, map(quote, names)))


def _last_changes(changes: DataFrame, key: Sequence[str], others: Sequence[str]) -> DataFrame:
    """Return the last change of each column of each record, after its last deletion."""
    with temp_view(changes) as view:
        keys = ", ".join(map(quote, key))
        cells = "".join(
            f", max(IF({PROVIDES_DATA} AND {SEQUENCE} > {_LAST} "
            f"AND NOT coalesce(array_contains({OMITTED}, {literal(name)}), false), "
            f"struct({SEQUENCE} AS sequence, {quote(name)} AS value), NULL)) AS {_NEWER}{number}"
            for number, name in enumerate(others)
        )
        ended = f"max(IF({PROVIDES_DATA}, '', {SEQUENCE})) OVER (PARTITION BY {keys})"
        return changes.sparkSession.sql(
            f"SELECT {keys}, max({_LAST}) > '' AS {_HAS_TOMBSTONE}, "
            f"max(IF({PROVIDES_DATA}, {SEQUENCE}, '')) > max({_LAST}) AS {_HAS_VERSION}{cells} "
            f"FROM (SELECT *, {ended} AS {_LAST} FROM {view}) GROUP BY {keys}"
        )
