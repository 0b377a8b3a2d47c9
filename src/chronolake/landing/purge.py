"""Purges: erasing the values of purged records in our own raw lake, for privacy law (GDPR).

Files are rewritten in a staging folder and replace the old ones one by one, each in one step: the
same name, the same rows in the same order, but purged records keep only their key and times. After
a crash, the purge can be repeated.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from chronolake.errors import SourceError
from chronolake.failpoints import reach
from chronolake.landing import field_types as lake_fields
from chronolake.landing.file_schema import DECLARATION, IS_MARK, OPERATION, UNMODIFIED, from_json
from chronolake.landing.file_sequence import StagedFiles, lock_object, make_durable, staging
from chronolake.landing.layout import location_like, open_file
from chronolake.landing.reader import read_files
from chronolake.landing.writer import write_staged
from chronolake.object_store import BucketPath
from chronolake.types import OF_VERSIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from chronolake.landing.file_sequence import Staged
    from chronolake.landing.layout import DataFile, Location, ObjectFolder

#: Columns of a frame of purges.
AT: Final = "at"
# Columns that a purged record keeps, in addition to its key.
_KEPT: Final = frozenset({*lake_fields.OF_THE_LAKE, *OF_VERSIONS, OPERATION, UNMODIFIED, IS_MARK})
_READ: Final = (
    f"{lake_fields.ID} string, {lake_fields.MODIFIED} timestamp, {lake_fields.PURGED} timestamp"
)
_RESULT: Final = "old string, new string, read binary"


def purges_in(spark: SparkSession, files: Sequence[DataFile]) -> DataFrame:
    """Return the purges in files of our own.

    Returns:
        `Id` (string), and `at` (bigint): the time until which the record was purged, in
        microseconds since 1970.
    """
    at = f"unix_micros(greatest({lake_fields.PURGED}, {lake_fields.MODIFIED}))"
    rows = read_files(spark, files, _READ).where(f"{lake_fields.PURGED} IS NOT NULL")
    return rows.selectExpr(lake_fields.ID, f"{at} AS {AT}")


def erase(
    purges: DataFrame,
    files: Sequence[DataFile],
    folder: ObjectFolder,
    *,
    guard: Callable[[], None],
) -> int:
    """Erase the values of purged records in files of our own raw lake.

    The rewritten files are durable on return.

    Args:
        purges: as returned by `purges_in`.
        files: files of the folder; files without purged values are not changed.
        folder: the object.
        guard: called while no other process can change files, before they are read and before they
            are replaced; raises if this process must no longer write.

    Returns:
        Number of files that were rewritten.

    Raises:
        SourceError: a file was not written by Chronolake.
        PipelineBusyError: another process is publishing files, and does not finish.
        Exception: any error of `guard`; no file has changed.
    """
    spark = purges.sparkSession
    last = purges.groupBy(lake_fields.ID).agg({AT: "max"}).toDF("purged", AT)
    rows = read_files(spark, files, _READ).where(f"{lake_fields.PURGED} IS NULL")
    rows = rows.selectExpr(
        lake_fields.ID, lake_fields.MODIFIED, "_metadata.file_name", "_metadata.row_index"
    )
    is_purged = f"{lake_fields.ID} = purged AND unix_micros({lake_fields.MODIFIED}) <= {AT}"
    paths = pa.table(
        {"name": [file.path.name for file in files], "path": [str(file.path) for file in files]}
    )
    found = (
        rows.join(last)
        .where(is_purged)
        .groupBy("file_name")
        .agg({"row_index": "collect_list"})
        .toDF("name", "rows")
        .join(spark.createDataFrame(paths), "name")
        .select("path", "rows")
    )
    # Locked: a rewritten file must replace exactly the file that was read.
    with staging(folder) as staged:
        lock = lock_object(folder) if isinstance(staged, StagedFiles) else nullcontext()
        with lock:
            guard()
            rewrite = partial(_rewrite_files, root=folder.root, staged=staged)
            reported = found.mapInArrow(rewrite, _RESULT).collect()
            if not reported:
                return 0
            guard()
            for row in reported:
                _replace(folder.root, staged, row)
                reach("land.file-replaced")
            if isinstance(staged, StagedFiles):
                for parent in {Path(row["old"]).parent for row in reported}:
                    make_durable(parent)
    return len(reported)


def _replace(root: Location, staged: Staged, row: Row) -> None:
    """Replace a file that has not changed since it was read."""
    if isinstance(staged, StagedFiles):
        (staged.place / row["new"]).replace(row["old"])
    else:
        path = location_like(row["old"], root)
        assert isinstance(path, BucketPath)  # noqa: S101 - as the staged files
        path.replace(staged.read(row["new"]), identity=orjson.loads(row["read"]))


# In an executor.


def _rewrite_files(
    batches: Iterable[pa.RecordBatch], *, root: Location, staged: Staged
) -> Iterator[pa.RecordBatch]:
    """Rewrite files without the values of some of their rows; yield their old and new names."""
    for batch in batches:
        for path, rows in zip(batch.column("path"), batch.column("rows"), strict=True):
            location = location_like(path.as_py(), root)
            read = location.find() if isinstance(location, BucketPath) else None
            new = _rewrite(location, rows.values, staged)
            columns = {
                "old": [path.as_py()],
                "new": [new],
                "read": [orjson.dumps(read and read.identity)],
            }
            yield pa.RecordBatch.from_pydict(columns)


def _rewrite(path: Location, rows: pa.Array, staged: Staged) -> str:
    with open_file(path) as content, pq.ParquetFile(content) as file:
        reported = (file.metadata.metadata or {}).get(DECLARATION)
        if reported is None:
            raise SourceError(
                "The file was not written by Chronolake, so its values cannot be erased.",
                file=str(path),
                hint="Use a separate folder for the pipeline's raw lake.",
            )
        table = file.read()
    keys = {
        name
        for placed in from_json(reported, file=str(path))
        if placed.column.primary_key
        for name in (placed.text, placed.typed)
    }
    stays = pc.invert(pc.is_in(pa.array(range(table.num_rows), pa.int64()), value_set=rows))
    for place, name in enumerate(table.column_names):
        if name not in _KEPT and name not in keys:
            table = table.set_column(place, name, pc.if_else(stays, table[name], None))
    return write_staged(table, staged, reported)
