"""Files on SFTP servers are read like files in folders."""

from __future__ import annotations

import gzip
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import structlog
import yaml

from chronolake.errors import ConfigurationError
from chronolake.lake import Lake
from chronolake.pipeline.store import StreamRun
from chronolake.pipeline.sync import sync
from chronolake.types import ACTIVE
from support.commands import run_words
from support.datalakes import iceberg, project
from support.source.sftp import PASSWORD, SftpServer, sftp_server

#: They install a package.
pytestmark = pytest.mark.long


@pytest.fixture(scope="module", params=["openssh", "asyncssh"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SftpServer]:
    with sftp_server(request.param, tmp_path_factory.mktemp("server") / "keys") as found:
        yield found


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    """Yield the events that are logged during the test."""
    with structlog.testing.capture_logs() as events:
        yield events


class Remote:
    """The pipeline `shop` of a folder on a server."""

    def __init__(self, folder: Path, server: SftpServer, **settings: Any) -> None:
        self.exports = folder / "exports"
        self.exports.mkdir()
        self.folder = folder / "project"
        self.folder.mkdir()
        path = f"{server.address}{self.exports}/{settings.pop('path')}"
        source = {"type": "files", "path": path, "sftp": server.settings, **settings}
        text = json.dumps({name: value for name, value in source.items() if value is not None})
        self.project = project(self.folder, f"  shop:\n    source: {text}\n")
        self.lake = Lake.open(self.project.lake.path, config=self.project.lake)

    def sync(self) -> list[StreamRun]:
        return list(sync(self.lake, self.project, "shop").streams)

    def sync_or_fail(self) -> None:
        assert [stream.error for stream in self.sync()] == [None]

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        found = iceberg(self.project, "shop", "orders").scan().to_arrow().to_pylist()
        return sorted(tuple(row[column] for column in columns) for row in found)


def _content(ending: str, *numbers: int) -> bytes:
    rows = [{"id": number, "name": f"n{number}"} for number in numbers]
    if ending == "parquet":
        content = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows), content)
        return content.getvalue()
    lines = [json.dumps(row) for row in rows]
    if ending.startswith("csv"):
        lines = ["id,name", *(f"{row['id']},{row['name']}" for row in rows)]
    text = "\n".join(lines).encode()
    return gzip.compress(text) if ending.endswith(".gz") else text


@pytest.mark.parametrize("ending", ["csv.gz", "jsonl", "parquet"])
def test_each_file_is_read_once(
    tmp_path: Path, server: SftpServer, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    types = None if ending == "parquet" else {"id": "LONG"}
    shop = Remote(tmp_path, server, path=f"{{stream}}/a b+%20*.{ending}", key=["id"], types=types)
    (shop.exports / "orders").mkdir()
    (shop.exports / "orders" / f"a b+%201#?.{ending}").write_bytes(_content(ending, 1, 2))
    (shop.exports / "orders" / "other.txt").write_bytes(b"nothing")
    shop.sync_or_fail()
    assert shop.rows("id", "name") == [(1, "n1"), (2, "n2")]
    lake = Lake.prepare(shop.project.lake)
    sync(lake, shop.project, "shop")
    assert not lake.has_started
    (shop.exports / "orders" / f"a b+%202.{ending}").write_bytes(_content(ending, 3))
    shop.sync_or_fail()
    assert shop.rows("id") == [(1,), (2,), (3,)]
    assert list(temporary.iterdir()) == []


def test_events_have_the_names_of_their_files(tmp_path: Path, server: SftpServer) -> None:
    shop = Remote(tmp_path, server, path="*.jsonl", stream="orders")
    (shop.exports / "a.jsonl").write_bytes(_content("jsonl", 1, 1))
    shop.sync_or_fail()
    expected = [("a.jsonl", 0, 1), ("a.jsonl", 1, 1)]
    assert shop.rows("source_file", "source_row", "id") == expected


def test_dated_copies(tmp_path: Path, server: SftpServer) -> None:
    shop = Remote(tmp_path, server, type="copies", path="orders_{date}.parquet", key=["id"])
    (shop.exports / "orders_2026-01-01.parquet").write_bytes(_content("parquet", 1, 2))
    (shop.exports / "orders_2026-01-03.parquet").write_bytes(_content("parquet", 2))
    shop.sync_or_fail()
    assert shop.rows("id", ACTIVE) == [(1, False), (2, True)]
    (shop.exports / "orders_2026-01-02.parquet").write_bytes(_content("parquet", 2, 3)[:-9])
    (failed,) = shop.sync()
    assert "orders_2026-01-02.parquet" in f"{failed.error}"
    (shop.exports / "orders_2026-01-02.parquet").write_bytes(_content("parquet", 2, 3))
    shop.sync_or_fail()
    assert shop.rows("id", ACTIVE) == [(1, False), (2, True), (3, False)]


def _fails(shop: Remote, logged: list[Any], server: SftpServer) -> str:
    (failed,) = shop.sync()
    text = f"{failed.error} {failed.hint} {logged!r}"
    assert PASSWORD not in text
    assert (server.folder / "user").read_text() not in text
    return text


def test_only_known_servers_and_users(
    tmp_path: Path, server: SftpServer, logged: list[Any]
) -> None:
    known = tmp_path / "known_hosts"
    host, other = server.host_key, (server.folder / "user.pub").read_text().strip()
    key = server.settings["private_key"]
    wrong = tmp_path / "wrong"
    wrong.write_text((server.folder / "host").read_text())
    cases: dict[str, dict[str, str]] = {
        "not a known one": {"private_key": key, "host_key": other},
        "key of the SFTP server": {"private_key": key, "known_hosts": str(known)},
        "does not accept the user": {"private_key": str(wrong), "host_key": host},
        "does not accept": {"password": f"not {PASSWORD}", "host_key": host},
        "source.sftp.private_key names cannot be read: No such file": {
            "private_key": str(tmp_path / "missing"),
            "host_key": host,
        },
        "source.sftp.known_hosts names does not exist": {
            "private_key": key,
            "known_hosts": str(tmp_path / "missing"),
        },
        "cannot be read. (file": {"private_key": "PRIVATE KEY", "host_key": host},
    }
    known.write_text(f"[127.0.0.1]:{server.port} {other}\n")
    for number, (expected, settings) in enumerate(cases.items()):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        shop = Remote(folder, server, path="*.csv", stream="orders", sftp=settings)
        assert expected in _fails(shop, logged, server)
    known.write_text(f"[127.0.0.1]:{server.port} {host}\n")
    settings = {"private_key": Path(key).read_text(), "known_hosts": str(known)}
    (tmp_path / "last").mkdir()
    shop = Remote(tmp_path / "last", server, path="*.csv", stream="orders", sftp=settings)
    (shop.exports / "a.csv").write_bytes(_content("csv", 1))
    shop.sync_or_fail()


def test_passwords(tmp_path: Path, logged: list[Any]) -> None:
    with sftp_server("asyncssh", tmp_path / "keys") as server:
        settings = {"password": PASSWORD, "host_key": server.host_key}
        shop = Remote(tmp_path, server, path="*.csv", stream="orders", sftp=settings)
        (shop.exports / "a.csv").write_bytes(_content("csv", 1))
        shop.sync_or_fail()
        assert shop.rows("id") == [("1",)]
    assert "cannot be read" in _fails(shop, logged, server)


def test_a_folder_of_a_server_is_proposed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    exports = tmp_path / "exports"
    exports.mkdir()
    for day in ("2026-01-30", "2026-01-31"):
        (exports / f"orders_{day}.parquet").write_bytes(_content("parquet", 1, 2))
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("EXPORTS_PASSWORD", PASSWORD)
    monkeypatch.chdir(tmp_path)
    with sftp_server("asyncssh", tmp_path / "keys") as server:
        known = f"[127.0.0.1]:{server.port} {server.host_key}\n"
        (home / ".ssh" / "known_hosts").write_text(known)
        scheme, _, place = server.address.partition("://")
        user, _, host = place.partition("@")
        origin = f"{scheme}://{user}:{quote(PASSWORD)}@{host}{exports}"
        code, _, error = run_words(capsys, "init", "--from", origin)
        assert code == 0, error
        text = Path("chronolake.yml").read_text()
        assert PASSWORD not in text
        assert quote(PASSWORD) not in text
        (found,) = yaml.safe_load(text)["pipelines"].values()
        assert found["source"] == {
            "type": "copies",
            "path": f"{server.address}{exports}/orders_{{date:%Y-%m-%d}}.parquet",
            "key": ["id"],
            "sftp": {"password": "${EXPORTS_PASSWORD}"},
        }
        code, reported, error = run_words(capsys, "check", "--json")
        assert code == 0, f"{reported}{error}"
        (home / ".ssh" / "known_hosts").write_text("")
        code, _, error = run_words(capsys, "init", "--from", origin, "--force")
        assert code == 1
        assert "not a known one" in error


def test_urls_have_no_passwords(tmp_path: Path) -> None:
    source = "{type: files, path: 'sftp://me:secret@host/x/*.csv', stream: orders}"
    with pytest.raises(ConfigurationError, match=r"sftp\.password") as caught:
        project(tmp_path, f"  shop:\n    source: {source}\n")
    assert "secret" not in f"{caught.value}"
