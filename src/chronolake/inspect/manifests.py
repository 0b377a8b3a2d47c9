"""A snapshot's manifests: data files, delete files and deletion vectors, and the deleted rows."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from chronolake.errors import ChronolakeError, LakeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.table import FileScanTask

    from chronolake.inspect.catalog import CatalogTable
    from chronolake.types import TableName


_NONE: Final = np.empty(0, np.int64)
#: The field id of a position delete file's paths, by the specification.
_PATH_ID: Final = 2147483546


class DeletedRows:
    """The deleted rows of a snapshot's data files. Each delete file is read once."""

    def __init__(self, table: CatalogTable) -> None:
        self._table = table
        self._by_file: dict[str, NDArray[np.int64]] = {}
        self._read: set[str] = set()

    def of(self, task: FileScanTask) -> NDArray[np.int64]:
        """Return the deleted rows of a data file, sorted.

        Raises:
            LakeError: a delete file cannot be read, or its kind is not supported here.
        """
        for file in task.delete_files:
            # One file contains the vectors of many data files, and PyIceberg does not report which.
            if file.file_path not in self._read:
                for path, rows in self._read_delete_file(
                    file.file_path, str(file.file_format)
                ).items():
                    before = self._by_file.get(path, _NONE)
                    self._by_file[path] = np.union1d(before, rows)
                self._read.add(file.file_path)
        return self._by_file.get(task.file.file_path, _NONE)

    def _read_delete_file(self, path: str, kind: str) -> dict[str, NDArray[np.int64]]:
        from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file  # noqa: PLC0415
        from pyiceberg.table.puffin import PuffinFile  # noqa: PLC0415 - slow to import

        name, io = self._table.name, self._table.iceberg.io
        with table_errors(name, path), io.new_input(path).open() as stream:
            payload = stream.read()
            if kind.endswith("PUFFIN"):
                return {
                    vector.referenced_data_file: vector.to_vector().to_numpy()
                    for vector in deletion_vectors_from_puffin_file(PuffinFile(payload))
                }
            if kind.endswith("PARQUET"):
                fragment = ds.ParquetFileFormat().make_fragment(pa.BufferReader(payload))
                rows = fragment.to_table(columns=["file_path", "pos"])
                return {
                    file: rows.filter(ds.field("file_path") == file)["pos"].to_numpy()
                    for file in rows["file_path"].unique().to_pylist()
                }
        message = "Another engine deleted rows in a format that only Spark can read."
        raise unsupported_error(self._table.name, message)


def count_rows(
    table: CatalogTable, is_counted: Callable[[ManifestFile, DataFile], bool | None]
) -> int | None:
    """Return the number of rows of a table's files, without the deleted ones.

    Only manifests are read. Vectors are counted as the manifests list them: PyIceberg's plan
    assigns all vectors of a partition to each of its files.

    Args:
        table: the table.
        is_counted: returns whether a file of a manifest is counted; None if that is not known.

    Returns:
        None if only a scan can count: the layout is that of another engine.
    """
    from pyiceberg.manifest import DataFileContent, FileFormat  # noqa: PLC0415 - slow to import

    count, paths = 0, set[str]()
    deletes: list[DataFile] = []
    for manifest, entry in read_entries(table):
        file = entry.data_file
        counted = is_counted(manifest, file)
        if counted is None or file.content is DataFileContent.EQUALITY_DELETES:
            return None
        if counted and file.content is DataFileContent.DATA:
            count += file.record_count
            paths.add(file.file_path)
        elif counted:
            deletes.append(file)
    for file in deletes:
        path = _deleted_from(file)
        if path is None and file.file_format is not FileFormat.PUFFIN:
            return None
        # A position delete file may outlive its data file.
        if path is None or path in paths:
            count -= file.record_count
    return count


def _deleted_from(file: DataFile) -> str | None:
    """Return the data file of a position delete file; None for one of several data files."""
    lower, upper = (
        (bounds or {}).get(_PATH_ID) for bounds in (file.lower_bounds, file.upper_bounds)
    )
    return lower.decode() if lower is not None and lower == upper else None


def unsupported_error(table: TableName, message: str) -> LakeError:
    """Return the error for rows that cannot be read without Spark."""
    return LakeError(message, hint="Use `chronolake query`.", table=str(table))


@contextmanager
def table_errors(table: TableName, file: str | None = None) -> Iterator[None]:
    """Convert errors about a table's files to `LakeError`.

    Args:
        file: the file that is read, if it is a single one.

    Raises:
        LakeError: a file is missing or damaged.
    """
    try:
        yield
    except ChronolakeError:
        raise
    except Exception as failure:  # damaged files raise any error
        raise damaged_error(table, failure, file) from failure


def damaged_error(table: TableName, failure: Exception, file: str | None = None) -> LakeError:
    """Return the error for a missing or damaged file of a table."""
    return LakeError(
        f"{'The table has files that' if file is None else 'A file of the table'} cannot be read: "
        f"{type(failure).__name__}.",
        hint="Try again, because maintenance may have removed files in the meantime. If that does "
        "not help, restore the file from a backup; `chronolake verify` finds other damaged files.",
        table=str(table),
        file=file,
    )


def read_entries(
    catalog_table: CatalogTable, snapshot_id: int | None = None
) -> Iterator[tuple[ManifestFile, ManifestEntry]]:
    """Return the live entries of a snapshot, each with its manifest.

    Args:
        catalog_table: the table.
        snapshot_id: the snapshot; the current one by default.

    Raises:
        LakeError: a manifest or the manifest list cannot be read; the error contains the file.
    """
    table, io = catalog_table.iceberg, catalog_table.iceberg.io
    if snapshot_id is None:
        snapshot = table.current_snapshot()
    else:
        snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        return
    with table_errors(catalog_table.name, snapshot.manifest_list):
        manifests = snapshot.manifests(io)
    for manifest in manifests:
        with table_errors(catalog_table.name, manifest.manifest_path):
            manifest_entries = manifest.fetch_manifest_entry(io)
        for entry in manifest_entries:
            yield manifest, entry
