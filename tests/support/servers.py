"""Servers of other projects, each in a process of its own."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO


def free_port() -> int:
    """Return a port of this machine that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def connect(port: int) -> None:
    """Connect to a server of this machine; raise an OSError if none listens at the port."""
    socket.create_connection(("127.0.0.1", port), timeout=1).close()


@contextmanager
def running(
    command: Sequence[str],
    connect: Callable[[], object],
    *,
    environment: Mapping[str, str],
    output: IO[str] | int,
    seconds: float,
) -> Iterator[None]:
    """Run a server while the block runs.

    Args:
        command: its program and arguments.
        connect: raises an OSError until it responds.
        environment: its variables.
        output: where it prints.
        seconds: the time in which it has to start.
    """
    process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        until = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < until:
            with suppress(OSError):
                connect()
                break
            time.sleep(0.01)
        else:
            raise AssertionError(f"The server did not start (exit code {process.poll()}).")
        yield
    finally:
        process.terminate()
        process.wait()
