"""A sync from MySQL is killed at every step and run again: nothing is lost, nothing is repeated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chronolake.failpoints import FAILPOINTS
from support.processes import run_command, run_command_until_failpoint
from support.source.mysql_servers import MysqlShop, server

_COPY = tuple(name for name in FAILPOINTS if name.startswith("copy."))
_LANDING = (
    *("land.staged", "land.file-published", "land.step-done", "land.done", "land.checkpointed"),
    *("sync.surveyed", "publish.before-commit", "publish.after-commit"),
)
_LOG = ("read.log-batch",)


@pytest.fixture(scope="module", params=["mysql", pytest.param("mariadb", marks=pytest.mark.long)])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the address of a server."""
    with server(request.param) as found:
        yield found


@pytest.fixture
def shop(address: str, tmp_path: Path) -> MysqlShop:
    """Return a database with a table, and the project that syncs it."""
    found = MysqlShop(tmp_path, address)
    found.prepare()
    found.run(
        "CREATE TABLE items (id INT PRIMARY KEY, n INT, t TEXT)",
        "INSERT INTO items VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c')",
        "CREATE TABLE plain (n INT)",
        "INSERT INTO plain VALUES (1), (1), (2)",
    )
    return found


def _sync(shop: MysqlShop) -> None:
    code, output = run_command("sync", "shop", "--project", str(shop.folder))
    assert code == 0, output


@pytest.mark.long
@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", [*_COPY, *_LANDING])
def test_a_copy_may_be_killed_at_every_step(shop: MysqlShop, point: str, nth: int) -> None:
    words = ("sync", "shop", "--project", str(shop.folder))
    run_command_until_failpoint(*words, failpoint=f"{point}=kill:{nth}")
    shop.run(
        "UPDATE items SET n = 10 WHERE id = 1",
        "DELETE FROM items WHERE id = 2",
        "INSERT INTO items VALUES (4, 4, 'd')",
        "DELETE FROM plain WHERE n = 2",
    )
    _sync(shop)
    assert shop.present("items", ["id", "n", "t"]) == [(1, 10, "a"), (3, 3, "c"), (4, 4, "d")]
    assert shop.present("plain", ["n"]) == [(1,), (1,)]
    shop.run("UPDATE items SET t = 'x' WHERE id = 4")
    _sync(shop)
    states = shop.states("items", ["id"], ["n", "t"])
    assert states[(4,)] == [(4, "d"), (4, "x")]
    assert states[(3,)] == [(3, "c")]
    assert shop.agrees()
    assert not list(shop.folder.rglob("_copies/**/*.parquet"))


@pytest.mark.long
@pytest.mark.parametrize("nth", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "point", [*_LOG, *(pytest.param(name, marks=pytest.mark.long) for name in _LANDING)]
)
def test_reading_the_log_may_be_killed_at_every_step(shop: MysqlShop, point: str, nth: int) -> None:
    _sync(shop)
    shop.run(
        "UPDATE items SET n = 10 WHERE id = 1",
        "DELETE FROM items WHERE id = 2",
        "TRUNCATE TABLE plain",
        "ALTER TABLE items ADD COLUMN m INT",
        "UPDATE items SET m = 1 WHERE id = 3",
        "INSERT INTO items VALUES (2, 22, 'again', 5)",
    )
    words = ("sync", "shop", "--project", str(shop.folder))
    run_command_until_failpoint(*words, failpoint=f"{point}=kill:{nth}")
    shop.run("UPDATE items SET n = 11 WHERE id = 1")
    _sync(shop)
    _sync(shop)
    assert shop.states("items", ["id"], ["n", "t", "m"]) == {
        (1,): [(1, "a", None), (10, "a", None), (11, "a", None)],
        (2,): [(2, "b", None), None, (22, "again", 5)],
        (3,): [(3, "c", None), (3, "c", 1)],
    }
    assert shop.present("plain", ["n"]) == []
    assert shop.agrees()
