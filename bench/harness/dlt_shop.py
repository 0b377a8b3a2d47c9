"""PostgreSQL tables through dlt's `scd2` strategy; run by the interpreter of `.venv-bench`.

python dlt_shop.py FOLDER TABLE... < ADDRESS
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
os.environ["RUNTIME__LOG_LEVEL"] = "ERROR"

import dlt
import psycopg2
from psycopg2.extras import RealDictCursor


def rows(address: str, table: str) -> Iterator[dict[str, Any]]:
    """Yield all rows of a table."""
    with psycopg2.connect(address, cursor_factory=RealDictCursor) as connection:
        cursor = connection.cursor()
        cursor.execute(f"SELECT * FROM {table}")
        yield from map(dict, cursor)


def main() -> None:
    folder, address = Path(sys.argv[1]), sys.stdin.read()
    pipeline = dlt.pipeline(
        "shop",
        pipelines_dir=str(folder),
        destination=dlt.destinations.duckdb(str(folder / "lake.duckdb")),
        dataset_name="shop",
    )
    scd2 = {"disposition": "merge", "strategy": "scd2"}
    pipeline.run(
        [
            dlt.resource(rows(address, table), name=table, write_disposition=scd2)
            for table in sys.argv[2:]
        ]
    )


if __name__ == "__main__":
    main()
