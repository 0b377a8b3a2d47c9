"""A data lake into a history table: the first load, and runs over a few new files.

Claims: the first load of 2,000 files (10,000,000 versions of 1,000,000 records, 20 fields) takes at
most 2 times what Spark needs to read the same files and write their rows once as a plain Iceberg
table; a run over 10 new files costs the same, within 1.3 times, after 100 applied files and after
2,000.

Two alternatives are printed for comparison: a query with window functions as people write it by
hand, which rebuilds the whole history table from all files each time; and dlt's `scd2` strategy
into DuckDB, in a process of its own, if `make bench-tools` has made its environment. A column shows
which of them has the right history.

    python bench/lake_ingest.py [--quick] [--files N] [--records N] [--repeat N]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from chronolake import core
from chronolake.config import Project, load_project
from chronolake.core.create import PROPERTIES
from chronolake.lake import Lake
from chronolake.pipeline.runs import Status
from chronolake.pipeline.sync import sync
from chronolake.session import CATALOG
from chronolake.types import TableName
from harness import lakes
from harness.clock import Times, say, show
from harness.versions import (
    BEGIN_MICROS,
    BOOLEANS,
    FLOATS,
    INTEGERS,
    NAME,
    ORG,
    TEXTS,
    VersionLake,
)

OURS: Final = "ours"
PLAIN: Final = "read and written once"
BY_HAND: Final = "window functions by hand"
DLT: Final = "dlt scd2 into DuckDB"
EARLY: Final = "10 new files after few"
LATE: Final = "10 new files after all"
NEW_FILES: Final = 10
DLT_PYTHON: Final = Path(__file__).parent.parent / ".venv-bench" / "bin" / "python"
_OPTIONS: Final = ", ".join(f"'{key}' = '{value}'" for key, value in PROPERTIES.items())


def project_in(folder: Path, source: VersionLake) -> Project:
    """Write a project whose one pipeline reads the data lake."""
    folder.mkdir(exist_ok=True)
    file = folder / "chronolake.yml"
    file.write_text(
        f"pipelines: {{crm: {{source: {{type: data_lake_v2, path: {source.root}, org: {ORG}}}}}}}\n"
    )
    return load_project(file, lake=folder)


def synced(lake: Lake, project: Project, times: Times, name: str) -> None:
    with times.of(name):
        result = sync(lake, project, "crm")
    if result.status is not Status.SUCCEEDED:
        raise RuntimeError(str(result.streams))


def plain(lake: Lake, paths: list[Path], times: Times) -> None:
    """Copy all columns and rows of the files, without checks: the least that any way costs."""
    name = TableName("bench", "plain")
    with times.of(PLAIN):
        frame = lake.spark.read.option("recursiveFileLookup", "true").parquet(*map(str, paths))
        frame.createOrReplaceTempView("plain_files")
        lake.spark.sql(
            f"CREATE TABLE {CATALOG}.{name.sql} USING iceberg TBLPROPERTIES ({_OPTIONS}) "
            "AS SELECT * FROM plain_files"
        )
    lake.catalog.drop(name, purge=True)


def by_hand(lake: Lake, paths: list[Path], times: Times) -> None:
    """Build the history table as a data engineer does: no deletes, purges or types that change."""
    name = TableName("bench", "by_hand")
    typed = [(INTEGERS, "_i"), (FLOATS, "_f"), (BOOLEANS, "_b")]
    fields = [*TEXTS, *(f"{field}{end} AS {field}" for fields, end in typed for field in fields)]
    with times.of(BY_HAND):
        frame = lake.spark.read.option("recursiveFileLookup", "true").parquet(*map(str, paths))
        frame.createOrReplaceTempView("hand_files")
        lake.spark.sql(
            f"CREATE TABLE {CATALOG}.{name.sql} USING iceberg PARTITIONED BY (active) "
            f"TBLPROPERTIES ({_OPTIONS}) AS "
            "WITH ranked AS (SELECT *, row_number() OVER (PARTITION BY Id, source__modified "
            "ORDER BY length(grax__idseq) DESC, grax__idseq DESC) AS place FROM hand_files) "
            f"SELECT Id, {', '.join(fields)}, source__modified AS valid_from, "
            "lead(source__modified) OVER record AS valid_to, "
            "lead(source__modified) OVER record IS NULL AS active FROM ranked WHERE place = 1 "
            "WINDOW record AS (PARTITION BY Id ORDER BY source__modified)"
        )
    lake.catalog.drop(name, purge=True)


def through_dlt(source: VersionLake, files: int, times: Times) -> str:
    """Load the whole state of each day, as dlt expects; describe how correct its history is."""
    program = Path(__file__).parent / "harness" / "dlt_scd2.py"
    words = [source.folder, files // 10, BEGIN_MICROS]
    done = subprocess.run(
        [str(DLT_PYTHON), str(program), *map(str, words)],
        capture_output=True,
        text=True,
        check=True,
    )
    reported = json.loads(done.stdout.splitlines()[-1])
    times.seconds[DLT].append(reported["seconds"])
    return (
        f"no: {reported['versions']:,} versions, {reported['on_time']:,} of which begin when their "
        "record was modified"
    )


def main() -> int:
    parser = lakes.options(__doc__, repeat=1)
    parser.add_argument("--files", type=int, help="files of the first load")
    parser.add_argument("--records", type=int, help="records in the lake")
    flags: argparse.Namespace = parser.parse_args()
    files = flags.files or (40 if flags.quick else 2_000)
    records = flags.records or (2_000 if flags.quick else 1_000_000)
    few = max(2, files // 20)
    with lakes.opened(flags) as (lake, sent):
        source = VersionLake(sent / "source", records, records * 10 // files)
        project = project_in(lake.config.path, source)
        stream = TableName("crm", NAME)
        say(f"Writing {files:,} files of {source.rows_per_file:,} versions")
        paths = source.write(0, files)
        later = [path.rename(path.with_suffix(".later")) for path in paths[few:]]
        times = Times()
        say(f"After {few} files")
        synced(lake, project, Times(), "warm-up")
        number = files
        for _ in range(1 + flags.repeat * 3):
            source.write(number, NEW_FILES)
            synced(lake, project, times, EARLY)
            number += NEW_FILES
        # The first run of its kind compiles, which is not counted.
        times.seconds[EARLY].pop(0)
        lake.catalog.drop(stream, purge=True)
        for path in source.folder.rglob("*.parquet"):
            if path not in paths:
                path.unlink()
        for path in later:
            path.rename(path.with_suffix(".parquet"))
        for _ in range(flags.repeat):
            say("The first load, and the same rows in other ways")
            if lake.describe(stream) is not None:
                lake.catalog.drop(stream, purge=True)
            plain(lake, paths, times)
            by_hand(lake, paths, times)
            synced(lake, project, times, OURS)
        reported = through_dlt(source, files, times) if DLT_PYTHON.exists() else None
        say("After all files")
        number = files
        for _ in range(1 + flags.repeat * 3):
            source.write(number, NEW_FILES)
            synced(lake, project, times, LATE)
            number += NEW_FILES
        times.seconds[LATE].pop(0)
        report = core.verify(lake, stream)
        _show(times, files, source, ours=(report.holds, report.rows), dlt=reported)
    return 0


def _show(
    times: Times, files: int, source: VersionLake, *, ours: tuple[bool, int], dlt: str | None
) -> None:
    is_right, rows = ours
    right = {
        OURS: f"yes: {rows:,} versions, verified" if is_right else "NO",
        PLAIN: "no history at all",
        BY_HAND: "as long as nothing is deleted, purged, or closer than 1 ms",
    }
    if dlt is None:
        say(f"{DLT} is not measured: `make bench-tools` installs it")
    else:
        right[DLT] = dlt
    show(
        f"First load: {files:,} files, {files * source.rows_per_file:,} versions of "
        f"{source.records:,} records, 20 fields",
        ("way", "s", "ours / it", "right history"),
        [
            (name, times.median(name), times.median(OURS) / times.median(name), right[name])
            for name in right
        ],
    )
    show(
        f"Runs over {NEW_FILES} new files ({NEW_FILES * source.rows_per_file:,} versions)",
        ("way", "s", "range", "against the first"),
        [
            (name, times.median(name), times.spread(name), times.median(name) / times.median(EARLY))
            for name in (EARLY, LATE)
        ],
    )
    first = times.median(OURS) / times.median(PLAIN)
    steady = times.median(LATE) / times.median(EARLY)
    say(
        f"\nFirst load at most 2.00 of {PLAIN}: {'holds' if first <= 2 else 'MISSED'} ({first:.2f})"
    )
    say(f"Runs at most 1.30 of early ones: {'hold' if steady <= 1.3 else 'MISSED'} ({steady:.2f})")


if __name__ == "__main__":
    sys.exit(main())
