"""The image and the compose file: their steps and settings, without a container engine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import psycopg
import pytest
import yaml
from postgresql import psql, server

from support.image import Image, can_overlay, image_of_this_machine
from support.maven_mirror import fill, serve, write_ivy_settings
from support.store.server import ACCESS_KEY, SECRET_KEY, s3_server
from support.waiting import TIMEOUT, wait_until

ROOT: Final = Path(__file__).parents[2]
_SERVICE: Final = yaml.safe_load((ROOT / "deploy/compose/compose.yml").read_text())["services"]
_VARIABLES: Final = {
    "CATALOG_PASSWORD": "a-password",
    "STORE_KEY": ACCESS_KEY,
    "STORE_SECRET": SECRET_KEY,
    "CHRONOLAKE_UI_TOKEN": "a-token-of-the-web-ui",
}
_WRITABLE: Final = ("/var/lib/chronolake", "/tmp")  # noqa: S108 - volumes


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Image]:
    """Yield the image that the Dockerfile describes."""
    (tmp_path / "probe").mkdir()
    (tmp_path / "image").mkdir()
    if not can_overlay(tmp_path / "probe"):
        pytest.skip("this user cannot create overlays, or this machine is not Debian")
    fill(tmp_path / "mirror", "s3")
    with serve(tmp_path / "mirror") as url, image_of_this_machine(tmp_path / "image") as made:
        settings = write_ivy_settings(url, tmp_path)
        made.copy(settings, "/build/mirror")
        made.build(
            (ROOT / "Dockerfile").read_text(),
            ROOT,
            variables={
                "CHRONOLAKE_IVY_SETTINGS": "/build/mirror/ivy.xml",
                # A repeated test downloads nothing again.
                "PIP_NO_CACHE_DIR": "0",
                "DEBIAN_FRONTEND": "noninteractive",
            },
        )
        yield made


def _sample_database(address: str) -> str:
    """Run the compose file's script in a server, and return its host and port."""
    with psycopg.connect(address, autocommit=True) as connection:
        password = _VARIABLES["CATALOG_PASSWORD"]
        connection.execute(f"CREATE ROLE lake SUPERUSER LOGIN PASSWORD '{password}'".encode())
        connection.execute("ALTER DATABASE lake OWNER TO lake")
    script = ROOT / "deploy/compose/shop.sql"
    subprocess.run([psql(), "-q", "-v", "ON_ERROR_STOP=1", "-f", script, address], check=True)
    return address.rpartition("@")[2].partition("/")[0]


@pytest.mark.long
def test_the_composed_services_sync_and_end(image: Image, tmp_path: Path) -> None:
    assert image.command == ["tini", "--", "chronolake", "up"]
    assert image.folder == "/project"
    assert _SERVICE["chronolake"]["volumes"] == [
        "./chronolake.yml:/project/chronolake.yml:ro",
        *(f"{name}:{folder}" for name, folder in zip(("lake", "scratch"), _WRITABLE, strict=True)),
    ]
    store = tmp_path / "store"
    (store / "lake").mkdir(parents=True)
    assert "mkdir -p /data/lake" in _SERVICE["store"]["entrypoint"][2]
    with s3_server(store) as s3, server(wal_level="logical") as address:
        host = _sample_database(address)
        # Only addresses differ: here, all services have the same one.
        text = (ROOT / "deploy/compose/chronolake.yml").read_text()
        text = text.replace("@catalog/", f"@{host}/").replace("http://store:7070", s3.endpoint)
        text = text.replace("0.0.0.0:8788", "127.0.0.1:0").replace("0.0.0.0:8787", "127.0.0.1:0")
        (tmp_path / "chronolake.yml").write_text(text)
        image.copy(tmp_path / "chronolake.yml", "/project/")
        image.make_read_only(*_WRITABLE)
        _expect_synced(image, tmp_path)
    assert list(store.glob("lake/warehouse/tables/*/data/**/*.parquet"))


def _expect_synced(image: Image, folder: Path) -> None:
    prepare = image.start("check", "--create", variables=_VARIABLES, log=folder / "check.log")
    assert prepare.wait(TIMEOUT) == 0, (folder / "check.log").read_text()
    log = folder / "up.log"
    up = image.start(variables=_VARIABLES, log=log)
    try:
        wait_until(lambda: _port(log) or up.poll() is not None, "up does not start")
        assert up.poll() is None, log.read_text()
        wait_until(lambda: _is_healthy(log), "up does not become healthy")
        wait_until(lambda: '"stream_ended ' in log.read_text(), "no stream was synced")
        statement = "SELECT customer FROM shop.orders ORDER BY id"
        read = image.start("query", statement, "--json", variables=_VARIABLES, log=folder / "rows")
        assert read.wait(TIMEOUT) == 0, (folder / "rows").read_text()
        assert re.findall(r'"customer":"(\w+)"', (folder / "rows").read_text()) == ["Ann", "Bob"]
        # `docker stop` sends SIGTERM to the first process.
        up.send_signal(signal.SIGTERM)
        assert up.wait(60) == 0, log.read_text()
    finally:
        if up.poll() is None:
            os.kill(up.pid, signal.SIGKILL)
            up.wait()
    assert "Read-only file system" not in log.read_text()


def _port(log: Path) -> str | None:
    found = re.search(r"health_listening host=\S+ port=(\d+)", log.read_text())
    return None if found is None else found[1]


def _is_healthy(log: Path) -> bool:
    try:
        response = httpx.get(f"http://127.0.0.1:{_port(log)}/healthz", trust_env=False, timeout=15)
    except httpx.TransportError:
        return False
    return response.status_code == 200
