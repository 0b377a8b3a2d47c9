"""Real servers of MariaDB and MySQL, and pipelines of their databases."""

from __future__ import annotations

import fcntl
import getpass
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import mariadb
import pymysql
import pytest

from support.servers import free_port, running
from support.source.databases import Shop

#: The servers that tests run with; MySQL is not part of Debian's stable release.
FLAVORS: Final = ["mariadb", "mysql"]
#: The same, for tests of which one server is enough before a release.
ONE_FLAVOR: Final[list[Any]] = ["mariadb", pytest.param("mysql", marks=pytest.mark.long)]
_MYSQL_ROOT: Final = Path(sys.prefix) / "mysql-server"
_START_SECONDS: Final = 60
_PIPELINE: Final = """  shop:
    mode: {mode}
    source: {{type: mysql, dsn: '{dsn}'{more}}}
    streams: {streams}
    rename: {rename}
    {rules}
"""


@contextmanager
def server(flavor: str, **options: str | None) -> Iterator[str]:
    """Run a server while the block runs, and yield its address without a database.

    Args:
        flavor: `mariadb` or `mysql`.
        options: options of the server, with underscores; None: without one that others have.
    """
    with (
        tempfile.TemporaryDirectory(prefix="mysql-") as folder,
        instance(flavor, Path(folder), **options) as address,
    ):
        yield address


@contextmanager
def instance(flavor: str, folder: Path, **options: str | None) -> Iterator[str]:
    """Run a server with its data in a folder; a later one continues with the data."""
    port = free_port()
    given = {
        "server_id": "1",
        "log_bin": "binlog",
        "binlog_format": "ROW",
        "binlog_row_metadata": "FULL",
        **options,
    }
    if flavor == "mysql":
        given = {"gtid_mode": "ON", "enforce_gtid_consistency": "ON", "mysqlx": "OFF", **given}
    command = [
        *_program(flavor, folder),
        f"--datadir={folder / 'data'}",
        f"--socket={folder / 'socket'}",
        f"--tmpdir={folder}",
        f"--port={port}",
        "--bind-address=127.0.0.1",
        f"--user={getpass.getuser()}",
        *(
            f"--{name.replace('_', '-')}={value}"
            for name, value in given.items()
            if value is not None
        ),
    ]
    with (
        (folder / "log").open("a") as output,
        running(
            command,
            lambda: _connect(port),
            environment={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            output=output,
            seconds=_START_SECONDS,
        ),
    ):
        yield f"mysql://root@127.0.0.1:{port}"


def _connect(port: int) -> None:
    try:
        pymysql.connect(host="127.0.0.1", port=port, user="root").close()
    except pymysql.OperationalError as failure:
        raise ConnectionRefusedError from failure


def _program(flavor: str, folder: Path) -> list[str]:
    if flavor == "mysql":
        root = _mysql_root()
        libraries = root / "usr/lib/x86_64-linux-gnu"
        program = [
            str(libraries / "ld-linux-x86-64.so.2"),
            "--library-path",
            str(libraries),
            str(root / "usr/sbin/mysqld"),
            "--no-defaults",
            f"--user={getpass.getuser()}",
            f"--basedir={root / 'usr'}",
            f"--lc-messages-dir={root / 'usr/share/mysql'}",
            f"--character-sets-dir={root / 'usr/share/mysql/charsets'}",
            "--secure-file-priv=NULL",
        ]
        if not (folder / "data").exists():
            _run([*program, "--initialize-insecure", f"--datadir={folder / 'data'}"])
        return program
    if not mariadb.is_installed():
        pytest.skip("MariaDB's server is not installed")
    return mariadb.program(folder)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _mysql_root() -> Path:
    """Return a folder with MySQL's server and its libraries, of Debian's unstable release."""
    if not (_MYSQL_ROOT / "complete").exists():
        if shutil.which("mmdebstrap") is None:
            pytest.skip("mmdebstrap is not installed, which unpacks MySQL's server")
        _MYSQL_ROOT.parent.mkdir(exist_ok=True)
        with (_MYSQL_ROOT.parent / "mysql-server.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (_MYSQL_ROOT / "complete").exists():
                _unpack_mysql()
    return _MYSQL_ROOT


def _unpack_mysql() -> None:
    shutil.rmtree(_MYSQL_ROOT, ignore_errors=True)
    sites = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=True,
    )
    site = next(line for line in sites.stdout.split() if not line.endswith("security"))
    _run(
        [
            *("mmdebstrap", "--quiet", "--variant=extract"),
            # A frozen copy of the archive is older than its own limit.
            '--aptopt=Acquire::Check-Valid-Until "false"',
            *("--include=mysql-server-core", "sid", str(_MYSQL_ROOT), site),
        ]
    )
    (_MYSQL_ROOT / "complete").touch()


class MysqlShop(Shop):
    """The pipeline `shop` of a database of a MySQL or MariaDB server."""

    template = _PIPELINE

    def __init__(self, folder: Path, address: str, **arguments: Any) -> None:
        """Create a pipeline.

        Args:
            folder: the project's folder.
            address: the address of a server.
            arguments: arguments of `pymysql.connect`.
        """
        self.address = address
        self.arguments = arguments
        super().__init__(folder, f"{address}/shop")

    @property
    def is_mariadb(self) -> bool:
        connection = self.connect()
        try:
            return "mariadb" in str(connection.get_server_info()).lower()
        finally:
            connection.close()

    def connect(self, **arguments: Any) -> pymysql.Connection:
        """Return a connection to the database, which commits each statement."""
        host, _, port = self.address.rpartition("@")[2].partition(":")
        return pymysql.connect(
            host=host,
            port=int(port),
            user="root",
            autocommit=True,
            charset="utf8mb4",
            **self.arguments,
            **arguments,
        )

    def run(self, *statements: str) -> None:
        """Run statements in one session, each in its own transaction."""
        self._run(statements, database="shop")

    def administer(self, *statements: str) -> None:
        """Run statements without a database."""
        self._run(statements)

    def _run(self, statements: Sequence[str], **arguments: Any) -> None:
        connection = self.connect(**arguments)
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
        finally:
            connection.close()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        connection = self.connect(database="shop")
        try:
            with connection.cursor() as cursor:
                cursor.execute(query)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def prepare(self) -> None:
        """Create the database."""
        connection = self.connect()
        with connection.cursor() as cursor:
            cursor.execute("DROP DATABASE IF EXISTS shop")
            cursor.execute("CREATE DATABASE shop")
        connection.close()
