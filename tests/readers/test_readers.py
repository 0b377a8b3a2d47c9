"""Which readers read our tables: the table of docs/readers.md is what is found here.

`PYTHONPATH=src:tests python tests/readers/test_readers.py` writes the table again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest

from chronolake import core
from chronolake.lake import Lake
from chronolake.types import TableName
from support.lake.customers import COLUMNS, write
from support.lakes import lake_config

ROOT: Final = Path(__file__).parents[2]
#: The Python of the environment with the readers.
PYTHON: Final = Path(os.environ.get("READERS_PYTHON", ROOT / ".venv-readers/bin/python"))
PROGRAM: Final = ROOT / "tests/support/readers/read_table.py"
PAGE: Final = ROOT / "docs/readers.md"
TABLE: Final = re.compile(r"(?<=<!-- readers -->\n).*?(?=<!-- end -->)", re.DOTALL)

#: Of format version 3, of 3 after a compaction of all deletes, and of 2.
NAMES: Final = tuple(TableName("sales", table) for table in ("with_deletes", "compacted", "older"))
LABELS: Final = {
    "pyiceberg": "PyIceberg",
    "polars": "Polars, default reader",
    "polars-native": 'Polars, `reader_override="native"`',
    "daft": "Daft",
    "chdb": "chDB (ClickHouse)",
    "duckdb": "DuckDB, extension `iceberg`",
}
EXPECTED: Final = [
    *([key, "c"] for key in range(2)),
    *([key, "a"] for key in range(2, 90)),
    *([key, "b"] for key in range(90, 150)),
]
_HEAD: Final = (
    "| reader | version | format version 3 | 3, after `maintain --compact-deletes` "
    "| format version 2 |\n|---|---|---|---|---|\n"
)


def fill(folder: Path) -> Lake:
    """Make the tables, with several data files and deleted rows in most of them."""
    lake = Lake.open(
        folder, config=lake_config(folder, tables={str(NAMES[-1]): {"format_version": 2}})
    )
    for name in NAMES:
        core.create(lake, name, COLUMNS)
        write(lake, range(100), "a", name)
        write(lake, range(90, 150), "b", name)
        write(lake, range(2), "c", name)
    core.maintain(lake, NAMES[1], compact_deletes=True)
    return lake


def read(reader: str, metadata: str) -> tuple[str, str]:
    """Return what a reader made of a table, and the reader's version."""
    # chDB reads only files below its working folder.
    done = subprocess.run(
        [PYTHON, PROGRAM, reader, metadata],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        return "ends the process", "?"
    answer = json.loads(done.stdout.splitlines()[-1])
    if "error" in answer:
        return "error", answer["version"]
    return "yes" if answer["rows"] == EXPECTED else "**wrong rows**", answer["version"]


def read_with_spark(lake: Lake, name: TableName) -> str:
    found = lake.spark.sql(f"SELECT id, name FROM chronolake.{name.sql} ORDER BY id").collect()
    return "yes" if [[*row] for row in found] == EXPECTED else "**wrong rows**"


def table_of(folder: Path) -> str:
    """Return the table of the page."""
    found: dict[str, list[str]] = {reader: [] for reader in (*LABELS, "spark")}
    versions = {"spark": version("pyspark")}
    lake = fill(folder)
    for name in NAMES:
        metadata = lake.catalog.load(name).metadata_file
        for reader in LABELS:
            result, versions[reader] = read(reader, metadata)
            found[reader].append(result)
        found["spark"].append(read_with_spark(lake, name))
    labels = {"spark": "Spark with Iceberg's runtime", **LABELS}
    return _HEAD + "".join(
        f"| {label} | {versions[reader]} | {' | '.join(found[reader])} |\n"
        for reader, label in labels.items()
    )


@pytest.mark.long
def test_the_table_of_the_page_is_what_readers_do(lake: Lake, tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip(f"the readers are not installed at {PYTHON}: `make test-readers` installs them")
    written = TABLE.search(PAGE.read_text())
    assert written is not None
    assert written[0] == table_of(tmp_path)


def update() -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = table_of(Path(folder))
    PAGE.write_text(TABLE.sub(lambda _: table, PAGE.read_text()))


if __name__ == "__main__":
    update()
