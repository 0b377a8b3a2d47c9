"""Secrets in Spark's settings do not appear on any command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import json, sys
from pathlib import Path
from chronolake.lake import Lake
from pyspark import SparkContext

def commands():
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield place.read_bytes().replace(b"\\0", b" ").decode("utf-8", "replace")
        except OSError:
            pass

lake = Lake.open(sys.argv[1], config=sys.argv[2])
spark = lake.spark
said = list(commands())
print(json.dumps({
    "shown": any(word in one for one in said for word in
                 ("s3cret" + "-of", "acc3ss" + "-of", "spark.my.password")),
    "java": any("org.apache.spark.deploy.SparkSubmit" in one for one in said),
    "memory": spark.sparkContext._jvm.java.lang.Runtime.getRuntime().maxMemory() >> 20,
    "key": spark.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.secret.key"),
    "password": spark.sparkContext.getConf().get("spark.my.password"),
}))
"""


def test_no_secret_of_sparks_settings_is_on_a_command_line(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    settings = {
        "spark.hadoop.fs.s3a.secret.key": "s3cret-of-s3a",
        "spark.hadoop.fs.s3a.access.key": "acc3ss-of-s3a",
        "spark.my.password": "s3cret-of-mine",
        "spark.driver.memory": "700m",
    }
    file = tmp_path / "chronolake.yml"
    file.write_text(json.dumps({"lake": {"spark": {"conf": settings}}}))
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "lake"), str(file)],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    found = json.loads(done.stdout.splitlines()[-1])

    assert found["java"]
    assert not found["shown"]
    # Both are there: the settings that the JVM needs to start, and those that it receives later.
    assert 600 < found["memory"] <= 720
    assert found["key"] == "s3cret-of-s3a"
    assert found["password"] == "s3cret-of-mine"
