"""The import path of the process from which Spark forks its Python workers."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark

from chronolake.spark_worker_daemon import installed_archives

INSTALLED = Path(pyspark.__file__).parent


def test_archives_of_the_installed_pyspark_go() -> None:
    archives = {
        str(INSTALLED / "python" / "lib" / "pyspark.zip"),
        str(INSTALLED / "jars" / "spark-core.jar"),
    }
    assert installed_archives([*archives, *sys.path]) == archives


def test_archives_of_another_pyspark_stay(tmp_path: Path) -> None:
    other = tmp_path / "python" / "lib" / "pyspark.zip"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"PK\x05\x06" + bytes(18))
    assert installed_archives([str(other), *sys.path]) == set()


def test_all_stays_where_no_pyspark_is_installed(tmp_path: Path) -> None:
    assert installed_archives([str(tmp_path), str(tmp_path / "pyspark.zip")]) == set()
