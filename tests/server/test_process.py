"""The process `chronolake serve`: its output, the files that it leaves, and its end."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.server.caller import SYNCED, Caller
from support.server.sent_files import SentFile, write_batch_file

COLUMNS = ["id*:LONG", "v:STRING", SYNCED]
# 127.0.0.1, ::1, and the first as an IPv6 address, as in /proc/net.
LOOPBACK = {
    "0100007F",
    "00000000000000000000000001000000",
    "0000000000000000FFFF00000100007F",
}
MIDNIGHT = 1_704_067_200_000  # 2024-01-01T00:00:00Z, in milliseconds
SECRET = "the-cell-value-that-nobody-may-see"


class Serving:
    """A started `chronolake serve` on its own lake."""

    def __init__(self, folder: Path, *flags: str, **environment: str) -> None:
        self.folder = folder
        self.lake = folder / "lake"
        self.files = folder / "files"
        self.temporary = folder / "tmp"
        for path in (self.files, self.temporary):
            path.mkdir(parents=True)
        self._output = (folder / "stdout").open("wb")
        self._errors = (folder / "stderr").open("wb")
        command = [sys.executable, "-c", "from chronolake.cli import main; main()", "serve"]
        (folder / "chronolake.yml").write_text(
            "lake:\n  spark:\n    master: local[2]\n    conf:\n"
            "      spark.driver.memory: 1g\n"
            '      spark.sql.shuffle.partitions: "2"\n'
            f"      spark.local.dir: {self.temporary}\n"
            "      spark.driver.extraJavaOptions: >-\n"
            f"        -XX:TieredStopAtLevel=1 -Djava.io.tmpdir={self.temporary}\n"
        )
        self.process = subprocess.Popen(
            [
                *command,
                *("--lake", str(self.lake), "--config", str(folder / "chronolake.yml")),
                *("--port", "0", "--files-root", str(self.files), *flags),
            ],
            stdout=self._output,
            stderr=self._errors,
            env={**os.environ, "TMPDIR": str(self.temporary), **environment},
        )

    def lines(self) -> list[dict]:
        return [json.loads(line) for line in self.output().splitlines()]

    def output(self) -> str:
        return (self.folder / "stdout").read_text()

    def errors(self) -> str:
        return (self.folder / "stderr").read_text()

    def listening(self) -> dict:
        return self.until(
            lambda: next(
                (line for line in self.lines() if line["message"].startswith("listening ")), None
            )
        )

    def until(self, found: Callable[[], object], seconds: float = 240) -> dict:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if result := found():
                return result
            assert self.process.poll() is None, self.output() + self.errors()
            time.sleep(0.05)
        raise AssertionError(self.output() + self.errors())

    def caller(self) -> Caller:
        channel = grpc.insecure_channel(f"127.0.0.1:{self.listening()['port']}")
        return Caller(channel, self.lake, self.files)

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def stop_by_another_thread(self) -> None:
        """Let a thread that is not the main one take SIGTERM (Linux)."""
        main = self.process.pid
        other = max(int(task.name) for task in Path(f"/proc/{main}/task").iterdir())
        assert other != main
        assert ctypes.CDLL(None).tgkill(main, other, signal.SIGTERM) == 0

    def ended(self, seconds: float = 240) -> int:
        return self.process.wait(seconds)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._output.close()
        self._errors.close()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    started: list[Serving] = []

    def start(*flags: str, **environment: str) -> Serving:
        started.append(Serving(tmp_path / f"serving{len(started)}", *flags, **environment))
        return started[-1]

    yield start
    for connection in started:
        connection.close()


def row(id_: int, v: str) -> dict[str, str]:
    return {"id": str(id_), "v": v, "_fivetran_synced": "2024-01-01T00:00:00Z"}


def files_with(folder: Path, needles: list[bytes]) -> list[Path]:
    """Return the files below a folder that contain one of the needles.

    Files may be deleted in the meantime.
    """
    found = []
    for path in folder.rglob("*"):
        try:
            content = path.read_bytes() if path.is_file() else b""
        except OSError:
            continue
        if any(needle in content for needle in needles):
            found.append(path)
    return found


def listened_on(process: int) -> list[str]:
    """Return the addresses, in hexadecimal, that a process and its children listen on (Linux)."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    inodes = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed in the meantime
            inodes.add(str(descriptor.readlink()))
    lines = [
        line.split()
        for kind in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]
    ]
    own = [line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in inodes]
    return own + [address for child in children for address in listened_on(int(child))]


def test_a_run_prints_json_lines_leaks_no_secret_and_ends_well(
    serving: Callable[..., Serving],
) -> None:
    served = serving("--metrics-port", "0", TZ="America/St_Johns")
    caller = served.caller()
    assert served.listening()["metrics_port"] > 0
    assert caller.create("t", COLUMNS).success
    rows = [row(number, SECRET) for number in range(1_000)]
    sent = caller.file("f", rows)
    needles = [SECRET.encode(), sent.key, sent.key.hex().encode(), base64.b64encode(sent.key)]
    seen: list[Path] = []
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            seen.extend(files_with(served.temporary, needles))
            time.sleep(0.1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert caller.stub.WriteBatch(caller.request("t", COLUMNS, replace=[sent])).success
        bad = caller.file("bad", [{**row(1, "x"), "id": SECRET}])
        answer = caller.stub.WriteBatch(caller.request("t", COLUMNS, replace=[bad]))
        assert answer.WhichOneof("response") == "task"
        assert SECRET not in answer.task.message
        wrong = SentFile(sent.path, bytes(range(32)))
        with pytest.raises(grpc.RpcError) as caught:
            caller.stub.WriteBatch(caller.request("t", COLUMNS, replace=[wrong]))
        assert SECRET not in caught.value.details()
        assert caller.write("t", COLUMNS, update=[row(9_999, SECRET)]).success
        # The process's own time zone has no effect.
        assert caller.truncate("t", MIDNIGHT).success
        assert len(caller.rows("t", "id")) == 1_000
        assert caller.truncate("t", MIDNIGHT + 1).success
        assert caller.rows("t", "id") == []
        outside = write_batch_file(served.folder, 'out"side\n', "id\n")
        answer = caller.stub.WriteBatch(caller.request("t", COLUMNS, replace=[outside]))
        assert answer.WhichOneof("response") == "task"
    finally:
        over.set()
        watcher.join()
    served.stop()
    assert served.ended() == 0
    caller.channel.close()
    assert seen == []
    for text in (served.output(), served.errors()):
        assert not any(needle.decode(errors="replace") in text for needle in needles)
    lines = served.lines()
    assert {line["level"] for line in lines} <= {"INFO", "WARNING", "SEVERE"}
    assert all(line["message-origin"] == "sdk_destination" for line in lines)
    assert all(isinstance(line["message"], str) for line in lines)
    assert any(line["message"].startswith("batch_written ") for line in lines)
    ignored = [line for line in lines if line["event"] == "updates_ignored"]
    assert [(line["level"], line["rows"], line["table"]) for line in ignored] == [
        ("WARNING", 1, "tester.t")
    ]
    assert lines[-1]["event"] == "stopped"


def refuses(served: Serving) -> bool:
    """Return whether a process accepts no more calls."""
    with grpc.insecure_channel(f"127.0.0.1:{served.listening()['port']}") as late:
        try:
            Caller(late, served.lake, served.files).describe("t")
        except grpc.RpcError as failure:
            # gRPC itself cancels a call that arrives while it closes the port.
            return failure.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    return False


@pytest.mark.long
def test_a_running_batch_is_finished_before_the_process_ends(
    serving: Callable[..., Serving], tmp_path: Path
) -> None:
    held = tmp_path / "held"
    held.touch()
    served = serving(
        CHRONOLAKE_FAILPOINT="publish.before-commit=pause", CHRONOLAKE_FAILPOINT_FILE=str(held)
    )
    caller = served.caller()
    assert caller.create("t", COLUMNS).success
    watching = health_pb2_grpc.HealthStub(caller.channel).Watch(
        health_pb2.HealthCheckRequest(service="")
    )
    assert next(watching).status == health_pb2.HealthCheckResponse.SERVING
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(caller.write, "t", COLUMNS, replace=[row(1, "x")])
        served.until(held.with_suffix(".reached").exists)
        served.stop(signal.SIGINT)
        assert next(watching).status == health_pb2.HealthCheckResponse.NOT_SERVING
        # The server reports NOT_SERVING first, and then closes the port.
        served.until(lambda: refuses(served))
        assert not running.done()
        held.unlink()
        assert running.result().success
    assert served.ended() == 0
    watching.cancel()
    caller.channel.close()
    assert caller.rows("t", "id", "v") == [(1, "x")]


@pytest.mark.long
def test_nothing_is_listened_on_but_loopback_neither_by_java(
    serving: Callable[..., Serving],
) -> None:
    served = serving("--grace", "0")
    assert served.listening()["port"] > 0
    addresses = {address.partition(":")[0] for address in listened_on(served.process.pid)}
    assert addresses <= LOOPBACK
    assert len(addresses) > 1
    # Whichever thread takes the signal.
    served.stop_by_another_thread()
    assert served.ended() == 0


@pytest.mark.long
def test_a_batch_that_takes_too_long_is_given_up_and_leaves_nothing(
    serving: Callable[..., Serving],
) -> None:
    served = serving("--grace", "0")
    caller = served.caller()
    assert caller.create("t", COLUMNS).success
    assert caller.write("t", COLUMNS, replace=[row(1, "before")]).success
    before = caller.snapshot("t")
    lines = "".join(f"{number},x,2024-01-01T00:00:00Z\n" for number in range(1_500_000))
    sent = write_batch_file(served.files, "big", "id,v,_fivetran_synced\n" + lines)
    with ThreadPoolExecutor(1) as thread:
        request = caller.request("t", COLUMNS, replace=[sent])
        running = thread.submit(caller.stub.WriteBatch, request)
        time.sleep(1.5)
        assert not running.done()
        served.stop()
        failure = running.exception()
    assert isinstance(failure, grpc.RpcError)
    assert failure.code() is grpc.StatusCode.UNAVAILABLE
    assert served.ended() == 0
    caller.channel.close()
    (line,) = (line for line in served.lines() if line["event"] == "batch_cancelled")
    assert line["table"] == "tester.t"
    assert failure.details() == (
        "The server is stopping and cancelled the call; the table is unchanged. "
        f"(table 'tester.t', batch '{line['batch']}') Send the request again."
    )
    assert caller.snapshot("t")[0] == before[0]
    assert caller.rows("t", "v") == [("before",)]


@pytest.mark.long
def test_a_server_ends_with_its_java_and_logs_it(
    serving: Callable[..., Serving], tmp_path: Path
) -> None:
    held = tmp_path / "held"
    held.touch()
    served = serving(
        CHRONOLAKE_FAILPOINT="publish.before-commit=pause", CHRONOLAKE_FAILPOINT_FILE=str(held)
    )
    caller = served.caller()
    assert caller.create("t", COLUMNS).success
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(caller.write, "t", COLUMNS, replace=[row(1, "x")])
        served.until(held.with_suffix(".reached").exists)
        (java,) = java_of(served.process.pid)
        os.kill(java, signal.SIGKILL)
        served.until(lambda: any(line["event"] == "java_ended" for line in served.lines()))
        held.unlink()
        failure = running.exception()
    assert isinstance(failure, grpc.RpcError)
    assert failure.code() is grpc.StatusCode.UNAVAILABLE
    assert "Java process has ended" in failure.details()
    assert served.ended() == 1
    caller.channel.close()
    assert caller.rows("t", "id") == []


def java_of(process: int) -> list[int]:
    """Return the JVMs among the children of a process."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in children if Path(f"/proc/{child}/comm").read_text() == "java\n"]


def test_a_server_that_cannot_start_logs_why_and_exits_with_1(
    serving: Callable[..., Serving], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    served = serving("--lake", str(tmp_path / "file" / "lake"))
    assert served.ended() == 1
    (line,) = served.lines()
    assert (line["level"], line["event"], line["error"]) == (
        "SEVERE",
        "not_started",
        "StorageError",
    )
    assert str(tmp_path / "file" / "lake") in line["reason"]


def test_a_wrong_option_is_reported_before_the_lake_is_opened(
    serving: Callable[..., Serving], tmp_path: Path
) -> None:
    served = serving("--files-root", str(tmp_path / "missing"))
    assert served.ended() == 1
    (line,) = served.lines()
    assert line["error"] == "ConfigurationError"
    assert "--files-root" in line["reason"]
    assert not served.lake.exists()


@pytest.mark.parametrize("port", ["0", "50052"])
def test_an_unknown_host_is_reported_before_the_lake_is_opened(
    serving: Callable[..., Serving], port: str
) -> None:
    served = serving("--port", port, "--host", "nowhere.invalid", "--allow-plaintext")
    assert served.ended() == 1
    (line,) = served.lines()
    assert line["error"] == "ConfigurationError"
    assert "'nowhere.invalid' is not a valid address" in line["reason"]
    assert not served.lake.exists()


def test_a_port_in_use_is_reported_before_the_lake_is_opened(
    serving: Callable[..., Serving],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        served = serving("--port", str(port))
        assert served.ended() == 1
    (line,) = served.lines()
    assert line["error"] == "ConfigurationError"
    assert f"cannot listen on 127.0.0.1:{port}" in line["reason"]
    assert not served.lake.exists()
