"""An application opens a lake in its own Spark session; missing settings are all reported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from chronolake import jars
from chronolake.session import java_home
from chronolake.spark_requirements import EXTENSIONS

_START: Final = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from chronolake.config import LakeConfig, load
from chronolake.errors import ChronolakeError
from chronolake.lake import Lake

folder = Path(sys.argv[1])
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.memory", "1g")

def refused(spark, **overrides):
    try:
        Lake.open(folder, config=load(folder, overrides=overrides), spark=spark)
    except ChronolakeError as failure:
        return str(failure)
    raise AssertionError("it was opened")
"""
_LACKING: Final = """
spark = builder.getOrCreate()
print(refused(spark))
print("--")
print(refused(spark, **{"warehouse": "s3://bucket/lake", "catalog.uri": "postgresql://a@b/c"}))
print("--")
spark.stop()
print(refused(spark))
"""
_USING: Final = """
from chronolake import core
from chronolake.change_set import OP, SEQ, UNMODIFIED, Op
from chronolake.types import Column, ColumnType, Kind, TableName

spark = (
    builder.config("spark.jars", sys.argv[2])
    .config("spark.sql.extensions", sys.argv[3])
    .config("spark.sql.session.timeZone", "America/New_York")
    .getOrCreate()
)
lake = Lake.open(folder, spark=spark)
name = TableName("sales", "customers")
columns = (
    Column("id", ColumnType(Kind.LONG), primary_key=True),
    Column("_fivetran_synced", ColumnType(Kind.UTC_DATETIME)),
)
core.create(lake, name, columns)
rows = lake.spark.sql(
    f"SELECT {int(Op.REPLACE)} AS {OP}, id AS {SEQ}, CAST(null AS array<bigint>) AS {UNMODIFIED}, "
    "id, TIMESTAMP '2026-01-01 00:00:00Z' AS _fivetran_synced FROM range(10)"
)
core.write_batch(lake, name, rows, columns=columns, batch="1")
print(lake.table(name).df.count(), lake.spark.sparkContext is spark.sparkContext)
# The application's session is as it was.
(row,) = spark.sql("SELECT current_catalog() AS name").collect()
print(spark.conf.get("spark.sql.session.timeZone"), row.name)
print(lake.sql("SELECT count(*) AS n FROM sales.customers").collect()[0].n)
"""


def _run(program: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", _START + program, *words],
        env={**os.environ, "JAVA_HOME": java_home()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_missing_setting_is_reported_at_once(tmp_path: Path) -> None:
    plain, in_bucket, stopped = _run(_LACKING, str(tmp_path)).split("--\n")

    iceberg, sqlite, postgresql = (jar.coordinates for jar in jars.required())
    (client,) = (jar.coordinates for jar in jars.clients(["s3"]))
    assert "The Spark session lacks what this lake needs:" in plain
    extension = f"spark.sql.extensions={EXTENSIONS}"
    assert plain.endswith(f"{extension}\nspark.jars.packages={iceberg},{sqlite}\n")
    packages = f"spark.jars.packages={iceberg},{postgresql},{client}"
    assert in_bucket.endswith(f"{extension}\n{packages}\n")
    assert stopped.startswith("The Spark session is stopped.")


def test_a_lake_is_written_in_an_application_s_session(tmp_path: Path) -> None:
    files = ",".join(map(str, jars.paths(java_home())))

    printed = _run(_USING, str(tmp_path), files, EXTENSIONS)

    assert printed.splitlines() == ["10 True", "America/New_York spark_catalog", "10"]
