"""The lock of a lake, which its only engine holds: a file in the lake's folder.

The engine's socket is found by the caller's environment, which may differ between two processes of
a user. The lock is the lake's own, whatever their environment. Its file describes the engine.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_FILE: Final = "engine.lock"
_MODE: Final = 0o600
_SHARED_MODE: Final = 0o666


@dataclass(frozen=True)
class Holder:
    """The engine that held the lock last.

    Attributes:
        pid: its process ID.
        host: its machine.
        sockets: the folder of its socket.
    """

    pid: int
    host: str
    sockets: Path

    @property
    def may_run(self) -> bool:
        """Return whether its process runs, or is one of another machine."""
        return self.host != socket.gethostname() or Path(f"/proc/{self.pid}").exists()

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@contextmanager
def hold(lake: Path, sockets: Path, *, shared: bool) -> Iterator[bool]:
    """Hold the lock of a lake in the block, and in forks that begin there as long as they run.

    Args:
        lake: the lake's folder.
        sockets: the folder of the engine's socket.
        shared: whether the umask determines who may use the lock; otherwise only the user.

    Yields:
        Whether this process has it; False if another engine, or a fork of one, does.

    Raises:
        OSError: the lake's folder cannot be written.
    """
    mode = _SHARED_MODE if shared else _MODE
    descriptor = os.open(lake / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        found = {"pid": os.getpid(), "host": socket.gethostname(), "sockets": str(sockets)}
        # The file stays: if it was removed, a process that has it open could lock what is gone.
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(found).encode("ascii"))
        yield True
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def holder_of(lake: Path) -> Holder | None:
    """Return the engine that holds the lock of a lake, or held it when it was killed."""
    try:
        found = json.loads((lake / _FILE).read_bytes())
        return Holder(found["pid"], found["host"], Path(found["sockets"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None
