"""Durability: files to which a commit refers are on disk before the commit.

The catalog's database syncs its own log. Iceberg writes the files of tables through Hadoop's local
file system, which syncs nothing. A class below it adds the syncs (`java/SyncedFileSystem.java`).
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import structlog
from py4j.java_gateway import is_instance_of

from chronolake.storage import error_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)

_LOCAL: Final = "org.apache.hadoop.fs.LocalFileSystem"
_CLASS: Final = "chronolake.SyncedFileSystem"
_SOURCE: Final = ("java", "SyncedFileSystem.java")


def sync_tables(spark: SparkSession, folder: Path, *, by_manifest_list: bool) -> None:
    """Sync every file below a folder before a commit of this process that refers to it.

    The folder, and the directory entries that lead to it, are durable on return.

    Args:
        spark: any session of the JVM.
        folder: an existing folder on a local file system, absolute.
        by_manifest_list: whether a REST catalog writes the metadata files.

    Raises:
        StorageError: the folder cannot be synced.
    """
    make_names_durable(folder)
    installed = _install(spark)
    if installed is None:
        log.warning(
            "tables_not_synced",
            folder=str(folder),
            reason="local files use a class other than Hadoop's (fs.file.impl), or the cache of "
            "file systems is off",
        )
        return
    for name in _names_of(folder):
        installed.watch(name, by_manifest_list)


def leave_unsynced(spark: SparkSession, folder: Path) -> None:
    """Stop syncing files below a folder."""
    installed = _find_installed(spark)
    if installed is not None:
        for name in _names_of(folder):
            installed.ignore(name)


def _names_of(folder: Path) -> set[str]:
    # Tables keep the name under which the lake was opened when they were created.
    return {str(folder), str(folder.resolve())}


def fsync_wait_millis(spark: SparkSession) -> int:
    """Return the milliseconds that commits of this process have waited for syncs of files."""
    installed = _find_installed(spark)
    return 0 if installed is None else int(installed.waitedMillis())


def sync_files_of_executors(spark: SparkSession, metadata: Any, io: Any) -> None:
    """Sync files that executors wrote in separate processes, before a commit refers to them.

    Args:
        spark: any session of the JVM.
        metadata: the Java `TableMetadata` of the commit.
        io: the table's Java `FileIO`.
    """
    installed = _find_installed(spark)
    if installed is not None:
        installed.addWrittenElsewhere(metadata, io)


def make_names_durable(folder: Path) -> None:
    """Sync a folder and its parents, which contain its directory entries.

    Raises:
        StorageError: a sync failed.
    """
    try:
        _sync_names(folder)
    except OSError as failure:
        raise error_of(failure, folder) from failure


def _sync_names(folder: Path) -> None:
    for place in (folder, *folder.parents):
        # A process that may not list a folder has not created a folder in it either.
        with suppress(PermissionError):
            descriptor = os.open(place, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            except OSError as failure:
                # Some network file systems sync the names with the files.
                if failure.errno not in {errno.EINVAL, errno.ENOTSUP}:
                    raise
            finally:
                os.close(descriptor)


def _local(spark: SparkSession) -> Any:
    """Return the JVM's local file system, or None if it is not Hadoop's."""
    jvm: Any = spark._jvm  # noqa: SLF001
    hadoop = spark._jsc.hadoopConfiguration()  # noqa: SLF001
    local = jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI("file:///"), hadoop)
    gateway = spark.sparkContext._gateway  # noqa: SLF001
    return local if is_instance_of(gateway, local, _LOCAL) else None


def _find_installed(spark: SparkSession) -> Any:
    """Return the instance of `SyncedFileSystem` that serves local files, or None."""
    local = _local(spark)
    raw = None if local is None else local.getRawFileSystem()
    return raw if raw is not None and str(raw.getClass().getName()) == _CLASS else None


def _install(spark: SparkSession) -> Any:
    """Return the installed instance, installing one if needed; None if that is not possible."""
    local = _local(spark)
    if local is None or (found := _find_installed(spark)) is not None:
        return None if local is None else found
    jvm: Any = spark._jvm  # noqa: SLF001
    # Spark contains a compiler, for the code that it generates.
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(files(__package__).joinpath(*_SOURCE).read_text())
    compiler.getClassLoader().loadClass(_CLASS).newInstance().under(local)
    return _find_installed(spark)
