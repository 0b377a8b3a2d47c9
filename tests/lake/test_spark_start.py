"""A failed start of Spark leaves nothing to the next one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

#: Fails to create a Spark context, and creates another one in the same process.
_PROGRAM = """
import json, sys
from pathlib import Path
from pyspark import SparkContext
from chronolake.errors import LakeError
from chronolake.lake import Lake
sys.path[:0] = ["tests"]
from support.lakes import SPARK, lake_config

folder = Path(sys.argv[1])
wrong = lake_config(folder / "one", **{"spark.conf": {**SPARK, "spark.memory.fraction": "none"}})
try:
    Lake.open(folder / "one", config=wrong)
except LakeError as failure:
    print(json.dumps([failure.message, failure.hint, SparkContext._gateway is None]))
with Lake.open(folder / "other", config=lake_config(folder / "other")) as lake:
    print(json.dumps(lake.spark.range(1000).repartition(7).selectExpr("sum(id)").first()[0]))
"""


@pytest.mark.long
def test_a_jvm_in_which_no_context_could_be_created_is_not_used_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )

    assert done.returncode == 0, done.stderr
    failed, total = map(json.loads, done.stdout.splitlines()[-2:])
    assert failed[0].startswith("Spark could not be started: ")
    assert "spark.conf" in failed[1]
    assert failed[2]
    assert total == 499_500
