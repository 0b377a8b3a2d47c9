"""Engines in processes of their own."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx

from support.datalakes import DataLake, project
from support.waiting import TIMEOUT, wait_until

#: When accounts were modified, in microseconds since 1970.
AT: Final = 1_767_225_600_000_000
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


class EngineProcess:
    """The engine of a project, in a process of its own, and commands that use it.

    Attributes:
        folder: the project's folder, which is also that of the engine's socket.
        environment: the variables of its processes.
        process: the engine that was started last.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "XDG_RUNTIME_DIR": str(folder),
            "CHRONOLAKE_CLASS_ARCHIVE": "off",
        }
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self, *words: str, log: str, errors: str) -> subprocess.Popen[bytes]:
        """Start Python with arguments as the engine; its output goes to files of the folder."""
        with (self.folder / log).open("ab") as out, (self.folder / errors).open("ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, *words],
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
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

    def start_command(
        self, *words: str, variables: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        # A shell that runs the tests in the background lets them ignore Ctrl-C.
        return subprocess.Popen(
            ["env", "--default-signal=INT", sys.executable, "-m", "chronolake", *words],
            env={**self.environment, **(variables or {})},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, *words: str, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = self.start_command(*words, variables=variables)
        output, errors = command.communicate(timeout=TIMEOUT)
        return subprocess.CompletedProcess(words, command.returncode, output, errors)

    def state(self) -> dict[str, Any]:
        done = self.run("engine", "status", "--json")
        state: dict[str, Any] = json.loads(done.stdout)
        return state


class Up(EngineProcess):
    """A project that `chronolake up` runs."""

    def start(self) -> subprocess.Popen[bytes]:
        return self.launch("-m", "chronolake", "up", log="up.log", errors="up.err")

    def tasks(self) -> set[str]:
        return {name for name, task in self.state().get("tasks", {}).items() if task["running"]}

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "up.log").read_text().splitlines()]

    def get(self, path: str) -> httpx.Response:
        """Return the response of the last HTTP server that was started."""
        started = [line for line in self.log() if line["event"] == "health_listening"]
        url = f"http://127.0.0.1:{started[-1]['port']}{path}"
        return httpx.get(url, trust_env=False, timeout=30)


def write_accounts(source: DataLake, names: Sequence[str]) -> None:
    """Write a file with the accounts of a data lake, as they all were modified at one time."""
    rows = [
        {"Id": str(number), "source__modified": AT, "grax__idseq": "1", "Name": name}
        for number, name in enumerate(names)
    ]
    source.write("Account", rows)


def forks_of(engine: subprocess.Popen[bytes]) -> list[int]:
    """Return the process IDs of an engine's forks: its tasks and commands."""
    children = Path(f"/proc/{engine.pid}/task/{engine.pid}/children").read_text()
    return [int(pid) for pid in children.split() if _program(pid) == _program("self")]


def _program(pid: str) -> str:
    try:
        return str(Path(f"/proc/{pid}/exe").readlink())
    except FileNotFoundError:
        return ""
