"""Engines in processes of their own, and waiting for what they do."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx

from support.datalakes import project

TIMEOUT: Final = 300.0
#: An engine of a project without an idle time, and without a warm-up that competes with commands.
ENGINE: Final = """\
import sys
from pathlib import Path
from chronolake.cli import main
from chronolake.config import lake_of_project
from chronolake.engine.server import Engine

file = Path(sys.argv[1])
ran = Engine(lake_of_project(file).path, file, lambda: lake_of_project(file), main, None).run()
sys.exit(0 if ran else 1)
"""


def wait_until(is_met: Callable[[], object], what: str) -> None:
    """Wait until a condition is met.

    Raises:
        AssertionError: it was not met in time, with `what` as the message.
    """
    until = time.monotonic() + TIMEOUT
    while not is_met():
        assert time.monotonic() < until, what
        time.sleep(0.05)


@cache
def shared_engine() -> Path:
    """Start an engine that ends with this process; return its socket.

    It runs commands of any lake that has the Spark settings of tests.
    """
    # A socket's path has at most 107 bytes, which a folder of pytest's may exceed.
    folder = Path(tempfile.mkdtemp(prefix="chronolake-tests-"))
    file = project(folder, "  none: {source: {type: data_lake_v2, path: none, org: X}}\n").file
    with (folder / "engine.log").open("wb") as log:
        engine = subprocess.Popen(
            [sys.executable, "-c", ENGINE, str(file)],
            env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def stop() -> None:
        engine.terminate()
        engine.wait()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    sockets = folder / "chronolake"
    wait_until(
        lambda: engine.poll() is not None or list(sockets.glob("*.sock")),
        "the shared engine does not listen",
    )
    assert engine.poll() is None, (folder / "engine.log").read_text()
    return next(sockets.glob("*.sock"))


class Up:
    """A project that `chronolake up` runs, in a process of its own.

    Attributes:
        folder: the project's folder, which is also that of the engine's socket.
        environment: the variables of its processes.
        process: the process that was started last.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "XDG_RUNTIME_DIR": str(folder),
            "CHRONOLAKE_CLASS_ARCHIVE": "off",
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "up.log").open("ab") as log, (self.folder / "up.err").open("ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "chronolake", "up"],
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=err,
            )
        return self.process

    def end(self, number: signal.Signals) -> int:
        """Send a signal to the process, and return its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "chronolake", *words],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )

    def state(self) -> dict[str, Any]:
        done = self.run("engine", "status", "--json")
        state: dict[str, Any] = json.loads(done.stdout)
        return state

    def tasks(self) -> set[str]:
        return {name for name, task in self.state().get("tasks", {}).items() if task["running"]}

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "up.log").read_text().splitlines()]

    def get(self, path: str) -> httpx.Response:
        """Return the response of the last HTTP server that was started."""
        started = [line for line in self.log() if line["event"] == "health_listening"]
        url = f"http://127.0.0.1:{started[-1]['port']}{path}"
        return httpx.get(url, trust_env=False, timeout=30)


def forks_of(engine: subprocess.Popen[bytes]) -> list[int]:
    """Return the process IDs of an engine's forks: its tasks and commands."""
    children = Path(f"/proc/{engine.pid}/task/{engine.pid}/children").read_text()
    return [int(pid) for pid in children.split() if _program(pid) == _program("self")]


def _program(pid: str) -> str:
    try:
        return str(Path(f"/proc/{pid}/exe").readlink())
    except FileNotFoundError:
        return ""
