"""Commands in an engine do what they do in a process of their own, and one cannot harm another."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from chronolake import env
from chronolake.cli.engine import _describe
from chronolake.engine import background, client, messages
from chronolake.engine.command import is_for_java
from support.datalakes import DataLake, iceberg, project
from support.engines import ENGINE, EngineProcess, write_accounts
from support.waiting import TIMEOUT, wait_until

_UNKNOWN: Final = env.PROJECT.replace("PROJECT", "UNKNOWN")
_SOURCE: Final = "  crm:\n    source: {type: data_lake_v2, path: source, org: X}\n"
#: A statement of some minutes, unless its jobs are cancelled.
_LONG_QUERY: Final = "SELECT count(DISTINCT hash(a.id, b.id)) FROM range(3000000) a, range(30000) b"

_SECONDS_QUERY: Final = "SELECT count(DISTINCT id % 1000) AS n FROM range(20000000)"


class Run(EngineProcess):
    """An engine of a project with a data lake."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.source = DataLake(folder / "source")
        self.project = project(folder, _SOURCE)

    def start(self) -> subprocess.Popen[bytes]:
        file = str(self.project.file)
        engine = self.launch("-c", ENGINE, file, log="engine.log", errors="engine.log")
        wait_until(lambda: engine.poll() is not None or self.status(), "the engine does not listen")
        return engine

    def status(self) -> dict[str, Any] | None:
        state = self.state()
        return state if state["running"] else None

    def java(self) -> int:
        state = self.status()
        assert state is not None
        return int(state["java_pid"])

    def write(self, *names: str) -> None:
        write_accounts(self.source, names)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Yield a project with an engine; its table has two records."""
    started = Run(tmp_path_factory.mktemp("engine"))
    started.write("a", "b")
    started.start()
    try:
        done = started.run("sync", "crm")
        assert done.returncode == 0, done.stderr
        yield started
    finally:
        started.stop()


def test_a_command_prints_the_same_with_and_without_an_engine(running: Run) -> None:
    words = ("query", "SELECT Id, Name FROM crm.Account ORDER BY Id", "--json")

    inside, outside = running.run(*words), running.run(*words, "--no-engine")

    assert inside.stdout == outside.stdout == '{"Id":"0","Name":"a"}\n{"Id":"1","Name":"b"}\n'
    assert (inside.returncode, inside.stderr) == (0, "") == (outside.returncode, outside.stderr)
    state = running.status()
    assert state is not None
    assert state["commands"] == 0


@pytest.mark.long
def test_exit_codes_and_errors_are_those_of_the_command(running: Run) -> None:
    for words in (("query", "SELECT nothing"), ("verify", "crm.missing"), ("sync", "nope")):
        inside, outside = running.run(*words), running.run(*words, "--no-engine")
        assert inside.returncode == outside.returncode != 0
        assert inside.stderr.replace("Starting Spark ...\n", "") == outside.stderr.replace(
            "Starting Spark ...\n", ""
        )


def test_a_command_has_its_caller_s_folder_and_variables(running: Run, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    words = ["verify", "crm.Account", "--json"]
    command = [sys.executable, "-m", "chronolake", *words, "--project", str(running.folder)]

    done = subprocess.run(
        command,
        env=running.environment,
        cwd=tmp_path / "elsewhere",
        capture_output=True,
        text=True,
        check=False,
    )
    unknown = running.run(*words, variables={_UNKNOWN: "1"})

    assert done.returncode == 0, done.stderr
    assert unknown.returncode == 1
    assert _UNKNOWN in unknown.stderr


@pytest.mark.long
def test_ctrl_c_ends_a_command_and_its_jobs_but_not_the_engine(running: Run) -> None:
    before = running.java()
    command = running.start_command("query", _LONG_QUERY)
    wait_until(lambda: (running.status() or {}).get("commands"), "the command does not run")
    time.sleep(1)

    command.send_signal(signal.SIGINT)
    output, errors = command.communicate(timeout=TIMEOUT)

    assert (command.returncode, output, errors.replace("Starting Spark ...\n", "")) == (130, "", "")
    # With two cores, the jobs would keep this one waiting for minutes.
    assert running.run("query", "SELECT count(*) FROM crm.Account").returncode == 0
    assert running.java() == before


@pytest.mark.long
def test_ctrl_c_at_any_time_is_reported_as_such(running: Run) -> None:
    times = Random(11)
    for delay in (times.uniform(0, 3) for _ in range(40)):
        command = running.start_command("query", _LONG_QUERY)
        wait_until(lambda: (running.status() or {}).get("commands"), "the command does not run")
        time.sleep(delay)
        command.send_signal(signal.SIGINT)
        _, errors = command.communicate(timeout=TIMEOUT)
        assert command.returncode == 130, errors
        assert "Traceback" not in errors


def test_a_command_ignores_signals_that_its_caller_lets_it_ignore(running: Run) -> None:
    command = subprocess.Popen(
        [
            "nohup",
            sys.executable,
            "-m",
            "chronolake",
            "query",
            _SECONDS_QUERY,
        ],
        env=running.environment,
        cwd=running.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: (running.status() or {}).get("commands"), "the command does not run")
    time.sleep(1)

    command.send_signal(signal.SIGHUP)
    output, errors = command.communicate(timeout=TIMEOUT)

    assert command.returncode == 0, errors
    assert "1,000" in output or "1000" in output


def test_a_command_ends_with_its_client(running: Run) -> None:
    command = running.start_command("query", _LONG_QUERY)
    wait_until(lambda: (running.status() or {}).get("commands"), "the command does not run")

    command.kill()
    command.communicate()

    wait_until(lambda: (running.status() or {}).get("commands") == 0, "the command still runs")


def test_a_command_does_not_begin_without_its_client(running: Run, tmp_path: Path) -> None:
    output = tmp_path / "output"
    address = next((running.folder / "chronolake").glob("*.sock"))
    request = {
        "command": ["query", "SELECT 1 AS a"],
        "folder": str(running.folder),
        "environment": running.environment,
        "umask": 0o077,
        "stamp": client.code_stamp(),
    }
    begin, starter = os.pipe()
    with output.open("wb") as file, client.connect(address) as connection:
        files = (begin, file.fileno(), file.fileno(), begin)
        messages.send(connection, request)
        assert messages.receive(connection)[0] == {"ready": True}
        messages.send(connection, {}, descriptors=files)
        assert "pid" in (messages.receive(connection)[0] or {})
        state = running.status()
        assert state is not None
        assert state["commands"] == 1
        os.close(begin)
        os.close(starter)
        assert messages.receive(connection)[0] == {"code": 1}

    assert output.read_bytes() == b""


@pytest.mark.long
def test_a_command_runs_without_an_engine_that_does_not_respond(running: Run) -> None:
    assert running.process is not None
    words = ("query", "SELECT 1 AS a", "--json")
    running.process.send_signal(signal.SIGSTOP)
    try:
        interrupted = running.start_command(*words)
        wait_until(lambda: _has_socket(interrupted.pid), "the client does not connect")
        interrupted.send_signal(signal.SIGINT)
        interrupted.communicate(timeout=TIMEOUT)
        done = running.run(*words)
    finally:
        running.process.send_signal(signal.SIGCONT)

    assert interrupted.returncode == 130
    assert (done.returncode, done.stdout) == (0, '{"a":1}\n')
    # The engine gets both commands now, and runs neither.
    wait_until(lambda: (running.status() or {}).get("commands") == 0, "a command runs")


def _has_socket(pid: int) -> bool:
    for file in Path(f"/proc/{pid}/fd").iterdir():
        # It may have been closed in the meantime.
        with suppress(FileNotFoundError):
            if "socket:" in str(file.readlink()):
                return True
    return False


@pytest.mark.long
def test_a_killed_command_harms_no_other(running: Run) -> None:
    running.write("c", "d", "e")

    killed = running.run("sync", "crm", variables={"CHRONOLAKE_FAILPOINT": "staged.appended=kill"})
    repeated = running.run("sync", "crm")

    assert killed.returncode == 128 + signal.SIGKILL
    assert repeated.returncode == 0, repeated.stderr
    rows = iceberg(running.project, "crm", "Account").scan().to_arrow().to_pylist()
    assert sorted(row["Name"] for row in rows if row["_fivetran_active"]) == ["c", "d", "e"]


@pytest.mark.long
def test_a_dead_jvm_is_replaced(running: Run) -> None:
    before = running.java()
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: running.java() not in {None, before}, "a new JVM does not start")

    assert running.run("query", "SELECT count(*) FROM crm.Account").returncode == 0


@pytest.mark.long
def test_a_jvm_in_which_spark_does_not_start_is_replaced(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write("a", "b")
    file = run.project.file
    right = file.read_text()
    file.write_text(right.replace("conf: {", "conf: {spark.memory.fraction: none, "))
    run.start()
    try:
        before = run.java()
        failed = run.run("sync", "crm")
        file.write_text(right)
        wait_until(lambda: run.java() not in {None, before}, "a new JVM does not start")
        repeated = run.run("sync", "crm")
    finally:
        run.stop()

    assert failed.returncode == 1
    assert "Spark could not be started" in failed.stdout + failed.stderr
    assert repeated.returncode == 0, repeated.stderr
    assert iceberg(run.project, "crm", "Account").scan().to_arrow().num_rows == 2


def test_an_engine_is_described_in_words() -> None:
    state = {"pid": 1, "java_pid": 2, "memory_bytes": 2**20, "commands": 1, "idle_seconds": 3.2}

    assert _describe(state) == (
        "The engine is process 1, runs 1 command. Its Java (process 2) occupies 1 MiB."
    )
    assert _describe({**state, "commands": 0, "java_pid": None}) == (
        "The engine is process 1, idle for 3 s. It has no Java now."
    )


def test_a_lake_has_one_engine(running: Run) -> None:
    other = copy(running)
    other.process = None

    assert other.start().wait(TIMEOUT) == 1
    assert running.status() is not None


@pytest.mark.long
def test_a_lake_has_one_engine_whatever_the_environment(running: Run) -> None:
    assert running.process is not None
    (sockets := running.folder / "elsewhere").mkdir()
    other = copy(running)
    other.environment = {**running.environment, "XDG_RUNTIME_DIR": str(sockets)}
    words = ("-c", ENGINE, str(running.project.file))

    second = other.launch(*words, log="engine.log", errors="engine.log")

    assert second.wait(TIMEOUT) == 1
    assert not list(sockets.rglob("*.sock"))
    assert other.state()["pid"] == running.process.pid


@pytest.mark.long
def test_an_engine_is_found_from_shells_with_other_runtime_folders(tmp_path: Path) -> None:
    run = Run(tmp_path)
    (sockets := tmp_path / "run").mkdir()
    del run.environment["XDG_RUNTIME_DIR"]
    run.environment["TMPDIR"] = str(tmp_path)
    engine = run.start()
    try:
        done = run.run("engine", "status", "--json", variables={"XDG_RUNTIME_DIR": str(sockets)})
    finally:
        run.stop()

    assert json.loads(done.stdout)["pid"] == engine.pid


@pytest.mark.long
def test_an_engine_of_other_code_ends(tmp_path: Path) -> None:
    run = Run(tmp_path)
    engine = run.start()
    try:
        connection = client.connect(next((tmp_path / "chronolake").glob("*.sock")))
        with connection:
            messages.send(connection, {"command": ["sync"], "stamp": "other code"})
            assert messages.receive(connection)[0] == {"refused": True}
        assert engine.wait(TIMEOUT) == 0
        assert not list((tmp_path / "chronolake").glob("*.sock"))
    finally:
        run.stop()


@pytest.mark.long
def test_a_running_command_outlives_a_killed_engine(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write("a", "b")
    engine = run.start()
    held = tmp_path / "held"
    held.touch()
    pause = {
        "CHRONOLAKE_FAILPOINT": "staged.appended=pause",
        "CHRONOLAKE_FAILPOINT_FILE": str(held),
    }
    try:
        command = run.start_command("sync", "crm", variables=pause)
        wait_until(held.with_suffix(".reached").exists, "the sync does not reach the failpoint")
        engine.kill()
        engine.wait()
        held.unlink()
        _, errors = command.communicate(timeout=TIMEOUT)
    finally:
        run.stop()

    assert command.returncode == 1
    assert "The engine ended" in errors
    assert iceberg(run.project, "crm", "Account").scan().to_arrow().num_rows == 2
    # Without an engine, commands start Spark themselves.
    assert run.run("sync", "crm").returncode == 0


@pytest.mark.sampled
@pytest.mark.parametrize("body", [b"", b"\0", b"\0\0\0\2{}", b"\xff\xff\xff\xff", b"\0\0\0\1["])
def test_what_is_no_message_is_ignored(running: Run, body: bytes) -> None:
    address = next((running.folder / "chronolake").glob("*.sock"))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(address))
        connection.sendall(body)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""

    assert running.status() is not None


def test_the_socket_belongs_to_its_user_alone(running: Run) -> None:
    folder = running.folder / "chronolake"
    assert folder.stat().st_mode & 0o777 == 0o700
    for address in folder.glob("*.sock"):
        assert address.stat().st_mode & 0o777 == 0o600


def test_a_folder_that_others_may_enter_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chronolake").mkdir(mode=0o755)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    with pytest.raises(PermissionError, match="of this user alone"):
        client.folder()


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["sync"], "project/chronolake.yml"),
        (["query", "SELECT 1", "--lake", "other"], "project/below/other"),
        (["query", "--lake=other"], "project/below/other"),
        (["sync", "--project", ".."], "project/chronolake.yml"),
        (["sync", "--project=../chronolake.yml"], "project/chronolake.yml"),
    ],
)
def test_a_command_finds_the_engine_of_its_lake_or_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], place: str
) -> None:
    (tmp_path / "project" / "below").mkdir(parents=True)
    (tmp_path / "project" / "chronolake.yml").touch()
    monkeypatch.chdir(tmp_path / "project" / "below")

    assert client.place_of(words, {}) == tmp_path / place


def test_only_commands_with_spark_use_an_engine() -> None:
    assert client.may_use_engine(["sync"], {})
    assert client.may_use_engine(["--debug", "query", "SELECT 1"], {})
    assert not client.may_use_engine(["tables"], {})
    assert not client.may_use_engine([], {})
    assert not client.may_use_engine(["sync", "--no-engine"], {})
    assert not client.may_use_engine(["sync"], {"CHRONOLAKE_ENGINE": "off"})


@pytest.mark.parametrize(
    ("environment", "file", "is_terminal"),
    [
        ({}, None, False),
        ({"CI": "true"}, None, True),
        ({"CI": "1"}, None, True),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None, True),
        ({"container": "podman"}, None, True),
        ({}, ".dockerenv", True),
        ({}, "run/.containerenv", True),
    ],
)
def test_no_engine_is_left_by_a_scheduler_a_ci_job_or_a_container(
    tmp_path: Path, environment: dict[str, str], file: str | None, is_terminal: bool
) -> None:
    if file is not None:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()

    assert not background.is_interactive(environment, tmp_path, is_terminal=is_terminal)


def test_an_engine_is_left_in_a_terminal(tmp_path: Path) -> None:
    assert background.is_interactive({"CI": "false"}, tmp_path, is_terminal=True)


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "https_proxy", "TZ", "PYTHONPATH"])
def test_a_jvm_serves_no_command_with_other_variables_that_it_reads(name: str) -> None:
    assert is_for_java({"TERM": "xterm", "CHRONOLAKE_FAILPOINT": "x"}, {})
    assert not is_for_java({name: "x"}, {})
    assert not is_for_java({name: "x"}, {name: "y"})
    assert is_for_java({name: "x"}, {name: "x"})
