"""If executors do not see the lake's folder, a write fails with an error and commits nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final

import pytest

from chronolake.session import java_home

_WITHIN: Final = 120
_MOUNTS: Final = ("unshare", "--mount", "--propagation", "private")
#: Writes a batch for each line that it reads, and prints the result.
_PROGRAM: Final = """
import sys
from pathlib import Path
from chronolake import core
from chronolake.change_set import OP, SEQ, UNMODIFIED, Op
from chronolake.config import load
from chronolake.errors import ChronolakeError
from chronolake.lake import Lake
from chronolake.types import Column, ColumnType, Kind, TableName

folder, master = Path(sys.argv[1]), sys.argv[2]
conf = {
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m", "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
}
name = TableName("sales", "customers")
columns = (
    Column("id", ColumnType(Kind.LONG), primary_key=True),
    Column("_fivetran_synced", ColumnType(Kind.UTC_DATETIME)),
)
config = load(folder, overrides={"spark.master": master, "spark.conf": conf})
lake = Lake.open(folder, config=config)
if lake.catalog.find(name) is None:
    core.create(lake, name, columns)
print("opened", flush=True)
for line in map(str.strip, sys.stdin):
    try:
        if line == "maintain":
            core.maintain(lake, name)
        else:
            rows = lake.spark.sql(
                f"SELECT {int(Op.REPLACE)} AS {OP}, id AS {SEQ}, CAST(null AS array<bigint>) AS "
                f"{UNMODIFIED}, id, now() AS _fivetran_synced FROM range({line}, {line} + 10)"
            )
            core.write_batch(lake, name, rows, columns=columns, batch=line)
        print("done", lake.table(name).df.count(), flush=True)
    except ChronolakeError as failure:
        print("refused", failure, flush=True)
"""


def _daemon(folder: Path, name: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
    spark = find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    environment = {
        **os.environ,
        "SPARK_HOME": str(Path(spark.origin).parent),
        "JAVA_HOME": java_home(),
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            words, stdout=log, stderr=log, env=environment, start_new_session=True
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    # A worker's executors are its children.
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _logged(log: Path, pattern: str) -> re.Match[str]:
    deadline = time.monotonic() + _WITHIN
    while time.monotonic() < deadline:
        if log.exists() and (found := re.search(pattern, log.read_text())):
            return found
        time.sleep(0.1)
    raise AssertionError(f"{pattern}:\n{log.read_text()}")


class Cluster:
    """A standalone master, and one worker at a time."""

    def __init__(self, folder: Path, spark_class: str) -> None:
        self._folder = folder
        self._class = spark_class
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.master = f"spark://127.0.0.1:{port}"
        words = (spark_class, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1")
        more = ("--port", str(port), "--webui-port", "0")
        self._daemons = [_daemon(folder, "master", (*words, *more))]
        _logged(folder / "master.log", "I have been elected leader")

    def with_worker(self, name: str, *, hiding: Path | None = None) -> None:
        """Replace the worker; `hiding` is a folder that the new one sees empty."""
        for worker in self._daemons[1:]:
            _end(worker)
        words = [
            *(self._class, "org.apache.spark.deploy.worker.Worker", self.master),
            *("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "512m"),
            *("--work-dir", str(self._folder / name)),
        ]
        if hiding is not None:
            hidden = 'mount -t tmpfs none "$0" && exec "$@"'
            words = [*_MOUNTS, "sh", "-c", hidden, str(hiding), *words]
        self._daemons = [self._daemons[0], _daemon(self._folder, name, words)]
        _logged(self._folder / f"{name}.log", "Successfully registered with master")

    def close(self) -> None:
        for daemon in reversed(self._daemons):
            _end(daemon)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if subprocess.run([*_MOUNTS, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mount namespaces cannot be made here")
    spark_class = shutil.which("spark-class", path=Path(sys.executable).parent)
    assert spark_class is not None
    made = Cluster(tmp_path, spark_class)
    yield made
    made.close()


@contextmanager
def _driver(folder: Path, master: str, errors: Path) -> Iterator[subprocess.Popen[str]]:
    with errors.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(folder), master],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert _line(process.stdout) == "opened", errors.read_text()
        yield process
    finally:
        process.kill()
        process.communicate()


def _line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline().strip()


def _sent(process: subprocess.Popen[str], line: str) -> str:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    # The log is printed there, too.
    while (answer := _line(process.stdout)) and not answer.startswith(("done ", "refused ")):
        pass
    return answer


@pytest.mark.long
def test_nothing_is_committed_that_the_driver_does_not_have(
    cluster: Cluster, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    folder = shared / "lake"
    folder.mkdir(parents=True)
    cluster.with_worker("seeing")
    with _driver(folder, cluster.master, tmp_path / "first.err") as driver:
        assert _sent(driver, "0") == "done 10"
        assert _sent(driver, "100") == "done 20"
        # All executors had the folder when they were checked; an executor that starts later has
        # not.
        cluster.with_worker("blind", hiding=shared)
        reported = _sent(driver, "200")
        assert reported.startswith("refused Executors wrote a file that is missing or incomplete")
    with _driver(folder, cluster.master, tmp_path / "second.err") as driver:
        reported = _sent(driver, "300")
        assert reported.startswith("refused An executor on")
        assert f"does not share the folder {folder} with the driver: No such file" in reported
        assert "s3://bucket/path" in reported
        cluster.with_worker("seeing again")
        # Nothing was lost, and a batch that is sent again is written.
        assert _sent(driver, "200") == "done 30"
        assert _sent(driver, "maintain") == "done 30"
