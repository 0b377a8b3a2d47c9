"""An application opens a lake in its own Spark session; missing settings are all reported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

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
_OTHER: Final = """
builder = builder.config("spark.jars", sys.argv[2])
spark = builder.config("spark.sql.extensions", sys.argv[3]).getOrCreate()
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
    # What statements of the lake mean does not depend on these.
    .config("spark.sql.timestampType", "TIMESTAMP_NTZ")
    .config("spark.sql.parser.escapedStringLiterals", "true")
    .config("spark.sql.files.ignoreCorruptFiles", "true")
    .config("spark.sql.catalog.chronolake.type", "hadoop")
    .config("spark.wap.branch", "audit")
    .config("spark.sql.catalog.other", "org.apache.iceberg.spark.SparkCatalog")
    .config("spark.sql.catalog.other.type", "hadoop")
    .config("spark.sql.catalog.other.warehouse", str(folder / "other"))
    .getOrCreate()
)
lake = Lake.open(folder, spark=spark)
name = TableName("sales", "customers")
columns = (
    Column("id", ColumnType(Kind.LONG), primary_key=True),
    Column("name", ColumnType(Kind.STRING)),
    Column("_fivetran_synced", ColumnType(Kind.UTC_DATETIME)),
)
core.create(lake, name, columns)
rows = lake.spark.sql(
    f"SELECT {int(Op.REPLACE)} AS {OP}, id AS {SEQ}, CAST(null AS array<bigint>) AS {UNMODIFIED}, "
    r"id, 'a\\n' || id AS name, TIMESTAMP '2026-01-01 00:00:00Z' AS _fivetran_synced FROM range(10)"
)
core.write_batch(lake, name, rows, columns=columns, batch="1")
print(lake.table(name).df.count(), lake.spark.sparkContext is spark.sparkContext)
# The application's session is as it was.
(row,) = spark.sql("SELECT current_catalog() AS name").collect()
print(spark.conf.get("spark.sql.session.timeZone"), row.name)
print(lake.sql("SELECT count(*) AS n FROM sales.customers").collect()[0].n)
conf = lake.spark.conf
print(conf.get("spark.sql.files.ignoreCorruptFiles"), conf.get("spark.wap.branch", "none"))
# Its other catalogs can be read beside the lake's.
spark.sql("CREATE TABLE other.db.names (id BIGINT) USING iceberg")
spark.sql("INSERT INTO other.db.names VALUES (7)")
joined = "SELECT name FROM sales.customers JOIN other.db.names USING (id)"
print(lake.sql(joined).collect()[0].name)
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


@pytest.mark.long
def test_every_missing_setting_is_reported_at_once(tmp_path: Path) -> None:
    plain, in_bucket, stopped = _run(_LACKING, str(tmp_path)).split("--\n")

    iceberg, sqlite, postgresql, _ = (jar.coordinates for jar in jars.required())
    (client,) = (jar.coordinates for jar in jars.clients(["s3"]))
    assert "The Spark session lacks what this lake needs:" in plain
    extension = f"spark.sql.extensions={EXTENSIONS}"
    assert plain.endswith(f"{extension}\nspark.jars.packages={iceberg},{sqlite}\n")
    packages = f"spark.jars.packages={iceberg},{postgresql},{client}"
    assert in_bucket.endswith(f"{extension}\n{packages}\n")
    assert stopped.startswith("The Spark session is stopped.")


@pytest.mark.long
def test_a_runtime_for_another_version_of_spark_is_reported(tmp_path: Path) -> None:
    (file,) = (path for path in jars.paths(java_home()) if "iceberg-spark-runtime" in path.name)
    copy = tmp_path / "iceberg-spark-runtime-3.5_2.12-1.12.0.jar"
    shutil.copyfile(file, copy)

    printed = _run(_OTHER, str(tmp_path), str(copy), EXTENSIONS)

    iceberg, sqlite, *_ = (jar.coordinates for jar in jars.required())
    assert "- Iceberg's runtime is for Spark 3.5, and not for 4." in printed
    assert printed.endswith(f"spark.jars.packages={iceberg},{sqlite}\n")


@pytest.mark.long
def test_a_lake_is_written_in_an_application_s_session(tmp_path: Path) -> None:
    files = ",".join(map(str, jars.paths(java_home())))

    printed = _run(_USING, str(tmp_path), files, EXTENSIONS)

    assert printed.splitlines() == [
        "10 True",
        "America/New_York spark_catalog",
        "10",
        "false none",
        "a",
        "7",
    ]
