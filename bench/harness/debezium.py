"""Debezium's engine, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

VERSION: Final = "3.6.1.Final"
_ROOT: Final = Path.home() / ".cache/chronolake-bench/debezium"
_MODULES: Final = ("api", "embedded", "connector-mysql")
#: A Spark session of a process cannot be replaced by one with Iceberg.
_DOWNLOAD: Final = """
import sys
from pyspark.sql import SparkSession
SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config(
    "spark.jars.ivy", sys.argv[1]).config("spark.jars.packages", sys.argv[2]).getOrCreate().stop()
"""
_PROGRAM: Final = Path(__file__).with_name("DebeziumStream.java")


def jars() -> list[Path]:
    """Return the engine's jars with their dependencies; download them if they are missing."""
    folder = _ROOT / VERSION / "jars"
    if not folder.is_dir():
        names = ",".join(f"io.debezium:debezium-{name}:{VERSION}" for name in _MODULES)
        command = [sys.executable, "-c", _DOWNLOAD, str(folder.parent), names]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return sorted(folder.glob("*.jar"))


def seconds(
    port: int,
    folder: Path,
    *,
    mode: str,
    table: str,
    records: int,
    meanwhile: Callable[[], object] | None = None,
) -> tuple[float, float]:
    """Read records; return the seconds with the start of Java, and since the first record.

    Args:
        port: the server's port.
        folder: where the offset is stored, with which a later call continues.
        mode: Debezium's `snapshot.mode`.
        table: the table.
        records: how many records to read.
        meanwhile: called again and again until they have arrived.
    """
    java = Path(os.environ["JAVA_HOME"]) / "bin/java"
    classpath = os.pathsep.join(map(str, jars()))
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                *(str(java), "-cp", classpath, "-Xmx2g", str(_PROGRAM)),
                *(str(port), str(folder), mode, table, str(records)),
            ],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        while meanwhile is not None and process.poll() is None:
            meanwhile()
        output, _ = process.communicate()
    for line in output.splitlines():
        if line.startswith("SECONDS"):
            _, whole, streamed = line.split()
            return float(whole), float(streamed)
    raise RuntimeError(f"Debezium's engine failed: {output}{(folder / 'log').read_text()}")
