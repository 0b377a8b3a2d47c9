"""A Spark standalone cluster whose workers share nothing with the driver but the network.

Each worker runs in a mount namespace of its own, where `/tmp` is empty: it sees neither the
driver's project nor the other worker's files. Its Python is an environment in its own `/tmp`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from chronolake import jars
from chronolake.session import java_home
from support.servers import free_port

_WITHIN: Final = 120
_MOUNTS: Final = ("unshare", "--mount", "--propagation", "private")
#: Seconds after which a master gives up a worker without a heartbeat.
_LOST_SECONDS: Final = 10
#: Creates an environment in an empty /tmp, and starts a worker that finds it on its path. The
#: checkout stays visible wherever it is.
_WORKER: Final = """\
exec 8< "$SHARED"
mount -t tmpfs none /tmp && mount -t tmpfs none "$JARS" || exit 9
mkdir -p "$SHARED" && mount --no-canonicalize --bind /proc/self/fd/8 "$SHARED" || exit 9
exec 8<&-
cd /tmp && "$PYTHON" -m venv --without-pip own || exit 9
echo "$PACKAGES" > "$(echo own/lib/python3*/site-packages)/packages.pth"
PATH="/tmp/own/bin:$PATH" exec "$@"
"""
_HOME: Final = "/tmp"  # noqa: S108 - of a worker's own
_WORK: Final = f"{_HOME}/work"
#: The program that executors run as Python: each finds its own on its path.
PYTHON: Final = "python"


def can_isolate() -> bool:
    """Return whether this user may create mount namespaces."""
    done = subprocess.run([*_MOUNTS, "true"], capture_output=True, check=False)
    return done.returncode == 0


def spark_home() -> Path:
    """Return the folder of the installed PySpark, which contains the cluster's programs."""
    spark = find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    return Path(spark.origin).parent


def logged(log: Path, pattern: str) -> re.Match[str]:
    """Wait until a log contains a pattern."""
    deadline = time.monotonic() + _WITHIN
    while time.monotonic() < deadline:
        if log.exists() and (found := re.search(pattern, log.read_text())):
            return found
        time.sleep(0.1)
    raise AssertionError(f"{pattern}:\n{log.read_text()}")


class Cluster:
    """A master and its workers.

    Attributes:
        folder: contains their logs.
        master: Spark's master URL.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        spark_class = shutil.which("spark-class", path=Path(sys.executable).parent)
        assert spark_class is not None
        self._class = spark_class
        port = free_port()
        self.master = f"spark://127.0.0.1:{port}"
        words = ("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1")
        self._master = self._daemon("master", words, "--port", str(port), "--webui-port", "0")
        logged(folder / "master.log", "I have been elected leader")
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._hosts: dict[str, str] = {}

    def add_worker(self, name: str, *, variables: Mapping[str, str] | None = None) -> None:
        """Start a worker; `registered` waits for it."""
        # Executors of one host would read each other's shuffle files from their disk.
        host = self._hosts.setdefault(name, f"127.0.0.{len(self._hosts) + 2}")
        words = ("org.apache.spark.deploy.worker.Worker", self.master, "--host", host)
        more = ("--webui-port", "0", "--cores", "2", "--memory", "2g", "--work-dir", _WORK)
        self._workers[name] = self._daemon(
            name,
            (*words, *more),
            around=(*_MOUNTS, "sh", "-c", _WORKER, "sh"),
            variables=variables,
        )

    def registered(self) -> None:
        """Wait until all workers have registered with the master."""
        for name in self._workers:
            logged(self.folder / f"{name}.log", "Successfully registered with master")

    def executors(self, name: str) -> list[int]:
        """Return the process IDs of a worker's executors."""
        return [
            pid
            for pid in _descendants(self._workers[name].pid)
            if b"CoarseGrainedExecutorBackend" in _command_line(pid)
        ]

    def kill_worker(self, name: str) -> None:
        """Kill a worker with all of its processes, as when its machine ends."""
        _end(self._workers.pop(name))

    def close(self) -> None:
        for worker in self._workers.values():
            _end(worker)
        _end(self._master)

    def _daemon(
        self,
        name: str,
        words: Sequence[str],
        *more: str,
        around: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        # Without any variable of the environment that runs the tests.
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": _HOME,
            "SPARK_HOME": str(spark_home()),
            "JAVA_HOME": java_home(),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"-Dspark.worker.timeout={_LOST_SECONDS}",
            "PYTHON": sys.executable,
            "PACKAGES": "\n".join(_packages()),
            "JARS": str(jars.folder()),
            "SHARED": str(Path(__file__).parents[2]),
            **(variables or {}),
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [*around, self._class, *words, *more],
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )


def _packages() -> list[str]:
    """Return the folders of the installed packages, and of this one."""
    return [str(Path(jars.__file__).parents[1]), str(spark_home().parent)]


def _end(process: subprocess.Popen[bytes]) -> None:
    # A worker's executors are in its session, but not always in its group.
    children = _descendants(process.pid)
    os.killpg(process.pid, signal.SIGKILL)
    for pid in children:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def _descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *_descendants(child)]
    return found


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


@contextmanager
def cluster(folder: Path, *workers: str) -> Iterator[Cluster]:
    """Run a cluster with workers of these names."""
    made = Cluster(folder)
    try:
        for name in workers:
            made.add_worker(name)
        made.registered()
        yield made
    finally:
        made.close()


def conf(**more: Any) -> dict[str, str]:
    """Return Spark's settings for jobs on the cluster."""
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "1g",
        # Two applications may run at a time, each with an executor on each worker.
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.sql.shuffle.partitions": "2",
        "spark.pyspark.python": PYTHON,
        **more,
    }
