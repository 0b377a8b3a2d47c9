"""The same records through dlt's `scd2` strategy; run by the interpreter of `.venv-bench`.

    python dlt_scd2.py FOLDER FILES_PER_ROUND BEGIN_MICROS

`scd2` compares one whole state with the one before and knows no times of the records themselves.
So it gets the files of one round through all records at a time, a version of each record, as the
state of a day. It could not read a data lake whose files do not arrive in such rounds.

Prints, as JSON, the seconds of its runs, the versions that it has, and how many of them begin when
their record was modified.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
os.environ["RUNTIME__LOG_LEVEL"] = "ERROR"

import dlt
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from dlt.sources.helpers.transform import add_row_hash_to_table

_ENDINGS = ("_i", "_f", "_b")


def state(paths: list[Path]) -> pa.Table:
    """Read the state of all records: texts, and typed values where a field has them."""
    whole = pa.concat_tables(pq.read_table(path, partitioning=None) for path in paths)
    typed = {name for name in whole.column_names if name.endswith(_ENDINGS)}
    texts = {name[:-2] for name in typed}
    names = [name for name in whole.column_names if name not in texts | {"grax__idseq"}]
    return whole.select(names)


def main() -> int:
    folder, per_round, begin = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    files = sorted(folder.rglob("data-*.parquet"), key=lambda path: path.name)
    first_day = datetime.fromtimestamp(begin / 1e6, UTC)
    seconds = 0.0
    with tempfile.TemporaryDirectory() as work:
        database = Path(work) / "dlt.duckdb"
        pipeline = dlt.pipeline(
            "crm",
            pipelines_dir=work,
            destination=dlt.destinations.duckdb(str(database)),
            dataset_name="crm",
        )
        for number, place in enumerate(range(0, len(files), per_round)):
            began = time.perf_counter()
            day = first_day + timedelta(days=number)
            resource = dlt.resource(
                state(files[place : place + per_round]),
                name="account",
                write_disposition={
                    "disposition": "merge",
                    "strategy": "scd2",
                    "row_version_column_name": "row_hash",
                    "boundary_timestamp": day.isoformat(),
                },
            ).add_map(add_row_hash_to_table("row_hash"))
            pipeline.run(resource)
            seconds += time.perf_counter() - began
        with duckdb.connect(str(database)) as connection:
            ((versions, on_time),) = connection.execute(
                "SELECT count(*), count(*) FILTER (WHERE _dlt_valid_from = source__modified) "
                "FROM crm.account"
            ).fetchall()
    print(json.dumps({"seconds": seconds, "versions": versions, "on_time": on_time}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
