"""Settings of the lakes that tests open in their own process: all share its one, small JVM."""

from __future__ import annotations

from pathlib import Path

from chronolake.config import LakeConfig, load

SPARK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


def lake_config(folder: Path, **overrides: object) -> LakeConfig:
    return load(folder, overrides={"spark.master": "local[2]", "spark.conf": SPARK, **overrides})
