"""Errors after Spark's process has ended name the cause, and what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

#: Opens a lake, kills its JVM, and prints the errors of calls into it and of another connection.
_PROGRAM = """
import json, socket, sys
from chronolake.lake import Lake
from chronolake.pipeline.stream_run import describe_failure
from chronolake.types import TableName
sys.path[:0] = ["tests"]
from support.lakes import lake_config

found = []
with Lake.open(sys.argv[1], config=lake_config(sys.argv[1])) as lake:
    process = lake.spark.sparkContext._gateway.proc
    process.kill()
    process.wait()
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        closed = server.getsockname()
    for call in (
        lambda: lake.catalog.find(TableName("shop", "orders")),
        lambda: lake.sql("SELECT 1").collect(),
        lambda: socket.create_connection(closed),
    ):
        try:
            call()
        except Exception as failure:
            found.append(describe_failure(failure)["error"])
print(json.dumps(found))
"""


@pytest.mark.long
def test_calls_into_a_jvm_that_has_ended_name_the_reason(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "lake")],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )

    assert done.returncode == 0, done.stderr
    of_catalog, of_query, of_other = json.loads(done.stdout.splitlines()[-1])
    assert of_catalog == of_query == "Spark's process has ended."
    assert of_other.startswith("ConnectionRefusedError")
