"""The program that creates the archive of Spark's classes: `python -m chronolake.class_training`.

It syncs a small data lake twice in a temporary folder, which loads the classes that most commands
need, and stores what the JVM had loaded when it ends. `chronolake.class_archive` starts it in the
background, and a container image or an administrator can run it beforehand.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import SparkContext

from chronolake import env
from chronolake.class_archive import archive_file, option, record_archive
from chronolake.config import FILE_NAME, load_project
from chronolake.errors import LakeError
from chronolake.lake import Lake
from chronolake.location import is_inside
from chronolake.pipeline.sync import sync
from chronolake.query import run_query
from chronolake.session import JAVA_OPTIONS, java_home

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chronolake.config import LakeConfig

_PIPELINE: Final = "training"
_PROJECT: Final = """\
lake: {path: lake, maintenance: {automatic: false}}
pipelines:
  training:
    source: {type: data_lake_v2, path: source, org: X}
    mode: history
    streams:
      Account: {table: accounts}
      Contact: {table: contacts, mode: live}
"""
_SCHEMA: Final = pa.schema(
    [
        ("Id", pa.string()),
        ("source__modified", pa.timestamp("ms", tz="UTC")),
        ("grax__idseq", pa.string()),
        ("grax__deleted", pa.timestamp("ms", tz="UTC")),
        ("Name", pa.string()),
    ]
)
_ROWS: Final = 20
_DAY_MS: Final = 86_400_000
_SECONDS: Final = 600
#: The variables that also count here; all others configure lakes of the user.
_KEPT: Final = (env.JARS, env.IVY_SETTINGS)


def _write(root: Path, number: int) -> None:
    """Write one file per object: new versions of most records, and a delete."""
    for name in ("Account", "Contact"):
        records = range(number, _ROWS + number)
        modified = (20_000 + number) * _DAY_MS
        columns = [
            [str(record) for record in records],
            [modified] * _ROWS,
            [str(number)] * _ROWS,
            [modified + _DAY_MS if number and not record else None for record in records],
            [f"{record} {number}" for record in records],
        ]
        folder = root / "parquet" / "v2" / "org=X" / f"object={name}" / "batch=00000"
        folder.mkdir(parents=True, exist_ok=True)
        arrays = [pa.array(*cells) for cells in zip(columns, _SCHEMA.types, strict=True)]
        table = pa.table(arrays, _SCHEMA)
        pq.write_table(table, folder / f"data-{number + 1:08x}.parquet")


def forget_settings() -> None:
    """Remove the variables that configure lakes, which override the file of the training."""
    for name in list(os.environ):
        if name.startswith(env.PREFIX) and name not in _KEPT:
            del os.environ[name]
    # The JVM of the training must not create an archive in its turn.
    os.environ[env.CLASS_ARCHIVE] = "off"


def warm_up(config: LakeConfig) -> None:
    """Run the training's statements with the Spark settings of a lake, so that they are compiled.

    Args:
        config: the lake's configuration; the lake itself is not used.
    """
    forget_settings()
    settings = {f"spark.conf.{name}": text for name, text in config.spark.conf.items()}
    with tempfile.TemporaryDirectory(prefix="chronolake-", ignore_cleanup_errors=True) as folder:
        _use_spark(Path(folder), {"spark.master": config.spark.master, **settings})


def _use_spark(folder: Path, settings: Mapping[str, str]) -> None:
    file = folder / FILE_NAME
    file.write_text(_PROJECT)
    project = load_project(file, overrides=settings)
    if project.lake.local_warehouse is None or not is_inside(
        str(project.lake.local_warehouse), str(folder)
    ):
        raise LakeError(f"The training's lake is not in {folder}.")
    with Lake.open(project.lake.path, config=project.lake) as lake:
        for number in range(2):
            _write(folder / "source", number)
            sync(lake, project, _PIPELINE)
        list(run_query(lake, "SELECT Name, count(*) FROM training.accounts GROUP BY Name").rows(5))


def _end_java() -> None:
    """Wait until the JVM has ended, which stores the archive.

    Raises:
        LakeError: it ended with an error.
    """
    process: Any = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - PySpark has no public API for it
    process.stdin.close()
    code = process.wait(_SECONDS)
    if code != 0:
        raise LakeError(f"Java ended with exit code {code}.")


def main() -> None:
    """Create the archive, unless it exists or another process creates it."""
    forget_settings()
    with suppress(OSError):
        os.nice(19)
    home = java_home()
    with (
        record_archive(home) as file,
        tempfile.TemporaryDirectory(prefix="chronolake-", ignore_cleanup_errors=True) as folder,
    ):
        if file is not None:
            options = f"{option('ArchiveClassesAtExit', file)} -XX:TieredStopAtLevel=1"
            _use_spark(
                Path(folder),
                {"spark.master": "local[2]", f"spark.conf.{JAVA_OPTIONS}": options},
            )
            _end_java()
    if not archive_file(home).exists():
        sys.exit(1)


if __name__ == "__main__":
    main()
