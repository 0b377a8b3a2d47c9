"""A transaction that is larger than what the server may keep in temporary files is read."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.compute as pc
import pytest

from chronolake.types import ACTIVE
from support.processes import run_command_until_failpoint
from support.source.databases import Shop

_ROWS = 300_000


@pytest.fixture
def shop(shop: Shop) -> Iterator[Shop]:
    """Yield a shop whose server allows no temporary files."""
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY, state text)",
        "INSERT INTO orders VALUES (0, 'a')",
    )
    shop.prepare()
    shop.sync_or_fail()
    shop.run("ALTER SYSTEM SET temp_file_limit = '64kB'", "SELECT pg_reload_conf()")
    yield shop
    shop.run("ALTER SYSTEM RESET temp_file_limit", "SELECT pg_reload_conf()")


@pytest.mark.long
def test_it_is_read_in_parts_and_again_after_a_kill(shop: Shop) -> None:
    shop.run(
        f"INSERT INTO orders SELECT generate_series(1, {_ROWS}), repeat('a', 200)",
        "UPDATE orders SET state = 'b' WHERE id <= 10",
    )
    ((end,),) = shop.rows("SELECT pg_current_wal_lsn()::text")
    words = ("sync", "shop", "--project", str(shop.folder))
    assert run_command_until_failpoint(*words, failpoint="read.log-batch=kill:3")
    assert shop.table("orders").num_rows == 1

    shop.sync_or_fail()

    found = shop.table("orders")
    assert found.num_rows == 1 + _ROWS + 11
    active = found.filter(found[ACTIVE])
    assert sorted(active["id"].to_pylist()) == list(range(_ROWS + 1))
    assert pc.sum(pc.equal(active["state"], "b")).as_py() == 11
    # Nothing of it is left, here or on the server.
    assert list(shop.folder.rglob("*.messages")) == []
    assert shop.rows(
        f"SELECT '{end}'::pg_lsn - confirmed_flush_lsn < 10000, active FROM pg_replication_slots"
    ) == [(True, False)]
    assert shop.rows("SELECT spill_bytes, stream_txns > 0 FROM pg_stat_replication_slots") == [
        (0, True)
    ]
