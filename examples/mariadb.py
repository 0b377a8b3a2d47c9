"""A real MariaDB server for tests and the demo, from the system's package."""

from __future__ import annotations

import getpass
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pymysql

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
#: What Chronolake needs.
LOG = {"log_bin": "binlog", "binlog_format": "ROW", "binlog_row_metadata": "FULL"}


def is_installed() -> bool:
    """Return whether the server can be started."""
    return shutil.which("mariadbd", path=_PATH) is not None


def program(folder: Path) -> list[str]:
    """Return the server's program; its data are created in `folder/data` if they are missing."""
    user = f"--user={getpass.getuser()}"
    if not (folder / "data").exists():
        subprocess.run(
            [
                *("mariadb-install-db", "--no-defaults", "--skip-test-db", user),
                *(f"--datadir={folder / 'data'}", f"--tmpdir={folder}"),
                "--auth-root-authentication-method=normal",
            ],
            check=True,
            capture_output=True,
        )
    return ["/usr/sbin/mariadbd", "--no-defaults", user]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def _run() -> None:
    """Run a server with a database `shop` until the process gets SIGTERM; print its settings."""
    if not is_installed():
        sys.exit("MariaDB is not installed. On Debian: apt-get install mariadb-server-core")
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="mariadb-") as name:
        folder = Path(name)
        process = subprocess.Popen(
            [
                *program(folder),
                *(f"--datadir={folder / 'data'}", f"--socket={folder / 'socket'}"),
                *(f"--port={port}", "--bind-address=127.0.0.1", "--server-id=1"),
                *(f"--{name.replace('_', '-')}={value}" for name, value in LOG.items()),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        while process.poll() is None:
            try:
                with pymysql.connect(host="127.0.0.1", port=port, user="root") as connection:
                    connection.cursor().execute("CREATE DATABASE shop")
                break
            except pymysql.OperationalError:
                time.sleep(0.05)
        print(f"MYSQL_PORT={port}")
        print(f"export SHOP_DSN=mysql://root@127.0.0.1:{port}/shop", flush=True)
        process.wait()


if __name__ == "__main__":
    _run()
