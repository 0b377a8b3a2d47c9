"""Shared storage: checks that files written by executors exist on the driver before a commit.

An executor of a cluster writes to its own file system. If the driver has another one, as on
machines or in containers that do not share the lake's folder, a write succeeds, but its files are
lost.
"""

from __future__ import annotations

import shutil
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from chronolake.errors import LakeError
from chronolake.location import is_local, local_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

    from chronolake.iceberg import IcebergTable

#: Probe tasks per core: enough for every executor to run some of them.
_TASKS_PER_CORE: Final = 4
_MOST_TASKS: Final = 1_000
_HINT: Final = (
    "Mount the folder at the same path on every machine, as the same user; or set lake.warehouse "
    "to s3://bucket/path, or lake.spark.master to local[*]."
)


def are_executors_elsewhere(spark: SparkSession) -> bool:
    """Return whether executors are separate processes, perhaps on other machines."""
    return not is_local(spark.sparkContext.master)


def expect_shared(spark: SparkSession, folder: str) -> None:
    """Raise if an executor does not share a local folder with the driver.

    Several tasks on every executor read a file that the driver wrote, and each writes one that the
    driver then checks. Executors that start later are covered by `expect_stored`.

    Args:
        spark: a session.
        folder: the folder; a bucket is shared by every executor and not checked.

    Raises:
        LakeError: an executor cannot read or write in the folder, or has another folder at this
            path.
    """
    path = local_path(folder)
    if path is None or not are_executors_elsewhere(spark):
        return
    token = uuid4().hex
    place = path / f"_probe-{token}"
    try:
        place.mkdir(parents=True)
        (place / "driver").write_text(token)
        context = spark.sparkContext
        tasks = min(_MOST_TASKS, _TASKS_PER_CORE * context.defaultParallelism)
        probe = partial(_probe, place=str(place), token=token)
        for host, name, problem in context.parallelize(range(tasks), tasks).map(probe).collect():
            is_seen = problem or (place / name).is_file()
            reason = problem if is_seen else "its files are not visible to the driver"
            if reason:
                raise LakeError(
                    f"An executor on {host} does not share the folder {folder} with the driver: "
                    f"{reason}. The files that it writes would be lost.",
                    hint=_HINT,
                )
    except OSError as failure:
        raise LakeError(
            f"The folder {folder} cannot be written: {failure.strerror}.",
            hint="Choose a writable folder.",
        ) from failure
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _probe(number: int, *, place: str, token: str) -> tuple[str, str, str]:
    """Read the driver's file and write another one, on an executor."""
    name = f"{number}-{uuid4().hex}"
    try:
        if (Path(place) / "driver").read_text() != token:
            return socket.gethostname(), name, "it has another folder with this name"
        (Path(place) / name).write_text(token)
    except OSError as failure:
        return socket.gethostname(), name, failure.strerror or type(failure).__name__
    return socket.gethostname(), name, ""


def expect_stored(table: IcebergTable, snapshot_id: int | None, *, since: int | None) -> None:
    """Raise if a file that snapshots added is not in the driver's file system.

    Only files in local folders are checked, and only if executors are separate processes.

    Args:
        table: a state of the table that has the snapshots.
        snapshot_id: the newest of the snapshots; None if no snapshot exists.
        since: the snapshot before the oldest of them; None to check all.

    Raises:
        LakeError: a file is missing or has another size; the snapshots must not be committed.
    """
    spark = table.catalog.spark
    if local_path(table.location) is None or not are_executors_elsewhere(spark):
        return
    for snapshot in table.snapshots_since(since, snapshot_id):
        for location, size in _added_files(table, snapshot):
            path = local_path(location)
            if path is not None and _size_of(path) != size:
                raise _missing_file_error(location, str(table.name))


def expect_written(paths: Iterable[Path], *, table: str) -> None:
    """Raise if a file that executors reported is not in the driver's file system.

    Args:
        paths: the files.
        table: the table of the files, for the error.

    Raises:
        LakeError: a file is missing.
    """
    for path in paths:
        if _size_of(path) is None:
            raise _missing_file_error(str(path), table)


def _missing_file_error(location: str, table: str) -> LakeError:
    return LakeError(
        "Executors wrote a file that is missing or incomplete on the driver: they do not share "
        "the lake's folder. Nothing was committed.",
        table=table,
        file=location,
        hint=_HINT,
    )


def _added_files(table: IcebergTable, snapshot: Any) -> Iterator[tuple[str, int]]:
    """Yield locations and sizes in bytes of the files that a snapshot added."""
    io = table.java.io()
    for files in (snapshot.addedDataFiles(io), snapshot.addedDeleteFiles(io)):
        remaining = files.iterator()
        while remaining.hasNext():
            file = remaining.next()
            yield str(file.location()), int(file.fileSizeInBytes())


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
