"""Connectors from the package index that need no account, as users run them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest
from postgresql import server

from support.connectors import Shop
from support.declarative.apis import Api, Reply
from support.tls import Identity

pytestmark = pytest.mark.long


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_the_airbyte_source_faker(shop: Shop) -> None:
    source = {
        "type": "airbyte",
        "package": "airbyte-source-faker==6.2.38",
        "config": {"count": 300, "seed": 1, "parallelism": 1},
    }
    shop.configure(source)
    shop.sync()
    assert len(shop.rows("users")) == 300
    assert len(shop.rows("products")) == 100
    ids = [row["id"] for row in shop.rows("purchases")]
    assert len(ids) == len(set(ids)) > 100
    shop.sync()
    users = shop.versions(table="users")
    assert sum(active for (active,) in users) == 300


def _python_of_pokeapi() -> str:
    """Return a Python that imports the package's libraries, which 3.11 does not."""
    installed = (Path.home() / ".pyenv" / "versions").glob("3.10.*/bin/python3.10")
    for program in [shutil.which("python3.10"), *map(str, installed)]:
        # A program of pyenv on the path fails if no version is chosen.
        if program and subprocess.run([program, "-c", ""], check=False).returncode == 0:
            return program
    pytest.skip("Python 3.10 is not installed")


def test_the_airbyte_source_pokeapi(shop: Shop) -> None:
    authority = Identity(shop.folder, "authority")
    identity = Identity(shop.folder, "pokeapi.co", authority)
    path = "/api/v2/pokemon/ditto"
    first, second = (
        Reply({"id": 132, "name": "ditto", "weight": weight, "moves": [], "is_default": True})
        for weight in (40, 41)
    )
    with Api({path: [first, first, second]}, identity=identity) as api:
        source = {
            "type": "airbyte",
            "package": "airbyte-source-pokeapi==0.2.15",
            "python": _python_of_pokeapi(),
            "config": {"pokemon_name": "ditto"},
            # Its own libraries only trust the authorities that they contain.
            "requirements": ["pip-system-certs==5.3"],
            # The package reads from a public server, which tests cannot reach.
            "environment": {"HTTPS_PROXY": api.url, "SSL_CERT_FILE": str(authority.cert)},
        }
        shop.configure(source)
        for _ in range(3):
            shop.sync()
    assert api.paths() == [path] * 3
    of_record = shop.versions("id", "name", "weight", table="pokemon")
    assert of_record == [(132, "ditto", 40, False), (132, "ditto", 41, True)]


def test_a_singer_tap_of_files(shop: Shop) -> None:
    (shop.folder / "one.jsonl").write_text('{"id": 1, "note": "a"}\n{"id": 2, "note": "b"}\n')
    source = {
        "type": "singer",
        "package": "tap-jsonl==0.3.1",
        "config": {"path": "*.jsonl", "stream_name": "orders", "primary_keys": ["id"]},
    }
    shop.configure(source)
    shop.sync()
    assert shop.versions("id", "note") == [(1, "a", True), (2, "b", True)]
    shop.sync()
    (shop.folder / "two.jsonl").write_text('{"id": 1, "note": "c"}\n{"id": 3, "note": "d"}\n')
    shop.sync()
    after = [(1, "a", False), (1, "c", True), (2, "b", True), (3, "d", True)]
    assert shop.versions("id", "note") == after


def test_a_singer_tap_of_a_database(shop: Shop) -> None:
    with server() as address, psycopg.connect(address, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE orders (id INT PRIMARY KEY, note TEXT, at TIMESTAMPTZ NOT NULL)"
        )
        connection.execute("CREATE TABLE items (id INT PRIMARY KEY, price NUMERIC(10, 2))")
        connection.execute("INSERT INTO items VALUES (1, 1.50), (2, 2.25)")
        connection.execute(
            "INSERT INTO orders VALUES (1, 'a', '2026-11-01'), (2, 'b', '2026-11-02')"
        )
        source = {
            "type": "singer",
            "package": "meltanolabs-tap-postgres==0.10.0",
            "config": {"sqlalchemy_url": _with_driver(address), "filter_schemas": ["public"]},
            "cursors": {"public-orders": "at"},
        }
        tables = {"rename": {"tables": {"public-orders": "orders", "public-items": "items"}}}
        shop.configure(source, **tables)
        shop.sync()
        assert shop.versions("id", "note") == [(1, "a", True), (2, "b", True)]
        connection.execute("UPDATE orders SET note = 'c', at = '2026-11-03' WHERE id = 1")
        connection.execute("DELETE FROM items WHERE id = 1")
        shop.sync()
    assert shop.versions("id", "note") == [(1, "a", False), (1, "c", True), (2, "b", True)]
    assert shop.versions("id", table="items") == [(1, False), (2, True)]


def _with_driver(address: str) -> str:
    return address.replace("postgresql://", "postgresql+psycopg2://", 1)
