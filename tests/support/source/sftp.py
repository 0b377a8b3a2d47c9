"""SFTP servers on this machine: OpenSSH's, and one in Python that accepts passwords."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from chronolake.source.connectors.environments import environment

PACKAGE: Final = "asyncssh==2.24.1"
PASSWORD: Final = "correct horse battery staple"
_SSHD: Final = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
_PROGRAM: Final = """
import asyncio, sys
import asyncssh

class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return True

    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return password == sys.argv[2]

async def main():
    await asyncssh.listen(
        "127.0.0.1", int(sys.argv[3]), server_factory=Server, server_host_keys=[sys.argv[1]],
        authorized_client_keys=sys.argv[4], sftp_factory=True,
    )
    await asyncio.Event().wait()

asyncio.run(main())
"""
_CONFIG: Final = """
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
Subsystem sftp internal-sftp
"""


def install_client() -> None:
    """Make the client importable, which is in an environment of its own."""
    place = environment([PACKAGE])
    folder = str(next(place.glob("lib/python3*/site-packages")))
    if folder not in sys.path:
        # Last, so that all other packages are those of the tests.
        sys.path.append(folder)


@dataclass
class SftpServer:
    """A server that runs.

    Attributes:
        folder: its keys: `host` and `user`, with `.pub`.
        port: its port on this machine.
    """

    folder: Path
    port: int = field(default=0)

    @property
    def address(self) -> str:
        """Return the beginning of URLs."""
        return f"sftp://{getpass.getuser()}@127.0.0.1:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        """Return settings of a client that knows the server and its user's key."""
        return {"private_key": str(self.folder / "user"), "host_key": self.host_key}

    @property
    def host_key(self) -> str:
        return (self.folder / "host.pub").read_text().strip()


@contextmanager
def sftp_server(kind: str, folder: Path) -> Iterator[SftpServer]:
    """Run a server.

    Args:
        kind: `openssh` or `asyncssh`.
        folder: for its keys.
    """
    install_client()
    asyncssh = import_module("asyncssh")
    folder.mkdir()
    for name in ("host", "user"):
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(folder / name)
        (folder / name).chmod(0o600)
        key.write_public_key(folder / f"{name}.pub")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if kind == "openssh":
        if _SSHD is None or os.geteuid() != 0:
            pytest.skip(
                "OpenSSH's server is missing, or needs root: apt-get install openssh-server"
            )
        Path("/run/sshd").mkdir(exist_ok=True)
        (folder / "config").write_text(_CONFIG.format(port=port, folder=folder))
        command = [_SSHD, "-D", "-e", "-f", str(folder / "config")]
    else:
        python = str(environment([PACKAGE]) / "bin" / "python")
        words = [folder / "host", PASSWORD, port, folder / "user.pub"]
        command = [python, "-c", _PROGRAM, *map(str, words)]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            _await(port, process)
            yield SftpServer(folder, port)
        finally:
            process.kill()


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < limit:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError("The server does not respond.")
