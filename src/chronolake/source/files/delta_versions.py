"""The versions of a Delta table as dated copies, with delta-rs.

A version is a list of Parquet files with the values of partition columns, which Spark reads. The
table's log has the time of each commit. Versions are listed from the newest one, up to the
first one whose files were removed (VACUUM).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa

from chronolake.errors import SourceError
from chronolake.extras import require
from chronolake.location import scheme_of
from chronolake.object_store import BucketPath
from chronolake.source.files.file_list import SourceFile, list_files
from chronolake.types import EPSILON_MICROS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from chronolake.landing import Location

#: Features of tables that do not change what their files contain, or that are checked.
_FEATURES: Final = {
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
_MAPPING: Final = "delta.columnMapping.mode"
#: Operations that change no row.
_UNCHANGED: Final = {"OPTIMIZE", "VACUUM START", "VACUUM END"}


@dataclass(frozen=True)
class DeltaVersion:
    """The files of one version.

    Attributes:
        schema: the table's schema, as Spark's JSON.
        partition_columns: the columns that the files do not contain.
        paths: the files.
        values: the values of the partition columns in each file, as texts.
    """

    schema: str
    partition_columns: Sequence[str]
    paths: Sequence[Location]
    values: pa.Table


def list_versions(folder: Location) -> list[tuple[int, SourceFile]]:
    """Return the versions of a table that can be read, with their times.

    Versions that change no row (OPTIMIZE, VACUUM) are left out. Of versions that follow each other
    within two milliseconds, the last one is used. The identity of each is its number.

    Args:
        folder: the table's folder.

    Raises:
        MissingExtraError: delta-rs is not installed.
        SourceError: the folder does not belong to a Delta table, or not to a supported one.
        ObjectStoreError: the store refuses, or does not respond.
    """
    newest = _load(folder, None)
    existing = {file.name for file in list_files(folder)}
    readable: list[tuple[int, str, SourceFile]] = []
    for entry in newest.history():
        number, at_micros = entry["version"], entry["timestamp"] * 1_000
        if readable and readable[-1][0] - at_micros < 2 * EPSILON_MICROS:
            continue
        size = _size_of(folder, number, existing)
        if size is None:
            break
        file = SourceFile(folder, f"version {number}", size, f"{number}", at_micros)
        readable.append((at_micros, entry.get("operation", ""), file))
    readable.reverse()
    return [
        (at_micros, file)
        for place, (at_micros, operation, file) in enumerate(readable)
        if not place or operation not in _UNCHANGED
    ]


def newest_version(folder: Location) -> SourceFile:
    """Return the newest version of a table; its identity is its number.

    Raises:
        MissingExtraError: delta-rs is not installed.
        SourceError: the folder does not belong to a Delta table, or not to a supported one.
    """
    table = _load(folder, None)
    (last,) = table.history(1)
    number = table.version()
    return SourceFile(folder, f"version {number}", 0, f"{number}", last["timestamp"] * 1_000)


def read_version(file: SourceFile) -> DeltaVersion:
    """Return the files of a version that was listed.

    Raises:
        SourceError: it cannot be read, or has deletion vectors.
    """
    folder = file.path
    table = _load(folder, int(file.identity))
    if _has_deletion_vectors(table):
        raise SourceError(
            f"The {file.name} of the Delta table has deletion vectors, which are not supported.",
            file=str(folder),
            hint="Write the files again: REORG TABLE … APPLY (PURGE). Later versions can be read.",
        )
    actions = pa.table(table.get_add_actions())
    columns = table.metadata().partition_columns
    found = actions["partition"].to_pylist() if columns else []
    values = pa.table({name: _texts_of(file[name] for file in found) for name in columns})
    paths = [_location(folder, _name_of(path)) for path in actions["path"].to_pylist()]
    return DeltaVersion(table.schema().to_json(), columns, paths, values)


def _has_deletion_vectors(table: Any) -> bool:
    from deltalake.exceptions import DeltaError  # noqa: PLC0415 - of an extra

    try:
        vectors = pa.RecordBatchReader.from_stream(table.deletion_vectors())
        return any(batch.num_rows for batch in vectors)
    except (DeltaError, OSError, pa.ArrowException):
        # It has some that cannot be read.
        return True


def _location(folder: Location, name: str) -> Location:
    if not _is_absolute(name):
        return folder / name
    return BucketPath(name, folder.storage) if isinstance(folder, BucketPath) else Path(name)


def _is_absolute(name: str) -> bool:
    """Return whether a file is in another table, of which this one is a clone."""
    return os.path.isabs(name) or scheme_of(name) is not None  # noqa: PTH117


def _size_of(folder: Location, number: int, existing: Collection[str]) -> int | None:
    """Return the size of a version's files; None if one does not exist any more."""
    try:
        actions = pa.table(_load(folder, number).get_add_actions())
    except SourceError:
        # The log before it was removed.
        return None
    names = map(_name_of, actions["path"].to_pylist())
    if not all(name in existing or _is_absolute(name) for name in names):
        return None
    sizes: list[int] = actions["size_bytes"].to_pylist()
    return sum(sizes)


def _texts_of(values: Iterable[Any]) -> pa.Array:
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def _name_of(path: str) -> str:
    """Return the path of a file below its table, as the file system has it."""
    return unquote(path)


def _options(folder: Location) -> dict[str, str]:
    """Return how delta-rs reaches a folder."""
    if not isinstance(folder, BucketPath):
        return {}
    is_plain = (folder.storage.endpoint or "").startswith("http://")
    known = {**folder.storage.for_obstore(folder.url), "allow_http": f"{is_plain}".lower()}
    if scheme_of(folder.url) != "s3":
        return known
    names = {"endpoint": "endpoint_url"}
    unused = {"copy_if_not_exists"}
    return {
        f"AWS_{names.get(name, name)}".upper(): value
        for name, value in known.items()
        if name not in unused
    }


def _load(folder: Location, number: int | None) -> Any:
    """Return a version of a table; by default the newest one.

    Raises:
        MissingExtraError: delta-rs is not installed.
        SourceError: it cannot be read, or is not supported.
    """
    require("delta", "A source with a Delta table")
    import deltalake  # noqa: PLC0415 - of an extra
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    try:
        table = deltalake.DeltaTable(str(folder), version=number, storage_options=_options(folder))
    except (DeltaError, OSError, ValueError) as failure:
        raise SourceError(
            "The log of the Delta table cannot be read.",
            file=str(folder),
            hint="Set `path` to the folder of the table, which contains `_delta_log`, and check "
            "its permissions.",
        ) from failure
    features = set(table.protocol().reader_features or ()) - _FEATURES
    if table.metadata().configuration.get(_MAPPING, "none") != "none":
        features.add("columnMapping")
    if features:
        raise SourceError(
            f"The Delta table has features that are not supported: {', '.join(sorted(features))}.",
            file=str(folder),
            hint="Copy the table into one without them.",
        )
    return table
