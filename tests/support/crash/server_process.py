"""A destination in its own process that can be killed, paused and restarted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import yaml

from support.engines import forks_of
from support.lakes import SPARK
from support.server.caller import Caller

_PROGRAM = "from chronolake.cli import main; main()"
_STARTED_WITHIN = 120.0
#: The variable that, set to `on`, lets `up` run every destination.
UP_VARIABLE = "TESTS_UP"


@dataclass
class Served:
    """A running destination.

    Attributes:
        process: its process, the leader of its own session; or `up`, which runs it in a fork.
        channel: a channel to it.
        caller: sends to it, and reads its lake.
        paused: the file whose removal resumes a process that is paused at a failpoint.
        in_up: whether the process is `up`.
    """

    process: subprocess.Popen[bytes]
    channel: grpc.Channel
    caller: Caller
    paused: Path
    log: Path
    in_up: bool

    def killed(self) -> bool:
        """Wait for the end of the destination; return whether SIGKILL ended it."""
        if not self.in_up:
            return self.process.wait(timeout=60) == -signal.SIGKILL
        deadline = time.monotonic() + _STARTED_WITHIN
        while not (ended := self.events("task_ended")):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, "the destination did not end"
            time.sleep(0.05)
        return bool(ended[0]["exit_code"] == -signal.SIGKILL)

    def kill(self) -> None:
        """Kill the destination."""
        forks = forks_of(self.process) if self.in_up else []
        self.process.kill()
        for pid in forks:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def wait_until_paused(self) -> None:
        deadline = time.monotonic() + _STARTED_WITHIN
        while not self.paused.with_suffix(".reached").exists():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, "the failpoint was not reached"
            time.sleep(0.05)

    def events(self, name: str) -> list[dict]:
        found = [json.loads(line) for line in self.log.read_text().splitlines() if line]
        return [event for event in found if event.get("event") == name]


def configure(
    lake: Path, *, master: str = "local[2]", catalog: str | None = None, fsync: bool = True
) -> None:
    """Write the lake's configuration, for every process that will serve it."""
    lake.mkdir(parents=True, exist_ok=True)
    content: dict[str, object] = {"spark": {"master": master, "conf": SPARK}, "fsync": fsync}
    if catalog:
        content["catalog"] = {"uri": catalog}
    (lake / "chronolake.yml").write_text(yaml.safe_dump({"lake": content}))


@contextmanager
def serve(
    lake: Path,
    folder: Path,
    *,
    failpoint: str | None = None,
    catalog: str | None = None,
    in_up: bool | None = None,
) -> Iterator[Served]:
    """Serve a lake until the block ends.

    Args:
        lake: the lake's folder.
        folder: where batch files are written.
        failpoint: a failpoint and its action.
        catalog: the catalog's address.
        in_up: whether `up` serves it, one for each lake; the variable decides by default.
    """
    in_up = uses_up() if in_up is None else in_up
    name = f"server-{time.monotonic_ns()}"
    log, errors, paused = (folder / f"{name}.{kind}" for kind in ("log", "errors", "paused"))
    environment = {**os.environ}
    if failpoint:
        paused.touch()
        environment |= {"CHRONOLAKE_FAILPOINT": failpoint, "CHRONOLAKE_FAILPOINT_FILE": str(paused)}
    # A socket's path has at most 107 bytes, which a folder of pytest's may exceed.
    sockets = tempfile.mkdtemp(prefix="chronolake-tests-")
    with log.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *_words(lake, folder, in_up=in_up)],
            stdout=out,
            stderr=err,
            env={**environment, "XDG_RUNTIME_DIR": sockets},
            start_new_session=True,
        )
    try:
        port = _port(process, log, errors)
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            caller = Caller(channel, lake, folder, "crash", catalog_uri=catalog)
            yield Served(process, channel, caller, paused, log, in_up)
    finally:
        paused.unlink(missing_ok=True)
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(sockets)


def uses_up() -> bool:
    """Return whether `up` runs destinations, and its engine runs pipelines."""
    return os.environ.get(UP_VARIABLE) == "on"


def _words(lake: Path, folder: Path, *, in_up: bool) -> list[str]:
    if in_up:
        return ["up", "--project", str(_project_of(lake, folder))]
    return ["serve", "--lake", str(lake), "--port", "0", "--host", "127.0.0.1", "--grace", "20"]


def _project_of(lake: Path, folder: Path) -> Path:
    """Write the file of a project that serves a lake; return its path."""
    content = yaml.safe_load((lake / "chronolake.yml").read_text())
    content["lake"]["path"] = str(lake)
    content["pipelines"] = {}
    destination = {"port": 0, "hosts": ["127.0.0.1"]}
    content["up"] = {"ui": "off", "health": "off", "grace": "20s", "destination": destination}
    file = folder / f"up-{time.monotonic_ns()}.yml"
    file.write_text(yaml.safe_dump(content))
    return file


def _port(process: subprocess.Popen[bytes], log: Path, errors: Path) -> int:
    deadline = time.monotonic() + _STARTED_WITHIN
    while time.monotonic() < deadline:
        for line in log.read_text().splitlines():
            event = json.loads(line)
            if event.get("event") == "listening":
                return int(event["port"])
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise AssertionError(f"no server:\n{log.read_text()}\n{errors.read_text()[-4000:]}")
