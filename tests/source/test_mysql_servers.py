"""Servers: their settings, privileges, TLS, failover, and logs that are purged or compressed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pymysql
import pytest

from chronolake.errors import ChronolakeError
from chronolake.pipeline.streams import source_of
from chronolake.source.protocol import CheckedSource, CheckResult, Level
from support.source.mysql_servers import FLAVORS, MysqlShop, instance, server
from support.tls import Identity
from support.waiting import wait_until

_BOTH = [
    pytest.param("mysql"),
    pytest.param("mariadb", marks=pytest.mark.long),
]


def _shop(folder: Path, address: str) -> MysqlShop:
    found = MysqlShop(folder, address)
    found.prepare()
    return found


def _check(shop: MysqlShop) -> list[CheckResult]:
    source = source_of(shop.project, "shop")
    assert isinstance(source, CheckedSource)
    return source.check(create=False)


def _problems(shop: MysqlShop, *levels: Level) -> dict[str, str]:
    return {found.what: found.fix or "" for found in _check(shop) if found.level in levels}


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.parametrize("flavor", FLAVORS)
def test_what_check_says_fixes_each_problem(flavor: str, tmp_path: Path) -> None:
    options = {
        "binlog_format": "MIXED",
        "binlog_row_metadata": "MINIMAL",
        "binlog_row_image": "MINIMAL",
    }
    with server(flavor, **options) as address:
        root = _shop(tmp_path / "root", address)
        root.run(
            "CREATE TABLE items (id INT PRIMARY KEY, n INT)",
            "INSERT INTO items VALUES (1, 1)",
            "CREATE USER lake IDENTIFIED BY 'secret'",
        )
        lake = MysqlShop(tmp_path / "lake", address.replace("root@", "lake:secret@"))
        failed = _problems(lake, Level.FAILED)
        assert failed.keys() == {
            *("binlog_format", "binlog_row_metadata", "privilege REPLICATION SLAVE"),
            *("privilege REPLICATION CLIENT", "privilege SELECT"),
        }
        assert _problems(lake, Level.WARNING)["binlog_row_image"]
        for fix in [*failed.values(), _problems(lake, Level.WARNING)["binlog_row_image"]]:
            root.run(fix.partition(";")[0])
        assert not _problems(lake, Level.FAILED)
        assert "binlog_row_image" not in _problems(lake, Level.WARNING)
        lake.sync_or_fail()
        root.run("UPDATE items SET n = 2")
        lake.sync_or_fail()
        assert lake.states("items", ["id"], ["n"]) == {(1,): [(1,), (2,)]}


@pytest.mark.long
@pytest.mark.parametrize("flavor", _BOTH)
def test_a_server_without_a_log(flavor: str, tmp_path: Path) -> None:
    with server(flavor, skip_log_bin="1", log_bin=None) as address:
        shop = _shop(tmp_path, address)
        shop.run("CREATE TABLE items (id INT PRIMARY KEY)")
        assert "restart" in _problems(shop, Level.FAILED)["log_bin"]
        (stream,) = shop.sync().streams
        assert "writes no binary log" in (stream.error or "")


@pytest.mark.long
@pytest.mark.parametrize("flavor", _BOTH)
def test_encrypted_connections(flavor: str, tmp_path: Path) -> None:
    authority = Identity(tmp_path, "authority")
    identity = Identity(tmp_path, "server", authority)
    options = {
        "ssl_ca": str(authority.cert),
        "ssl_cert": str(identity.cert),
        "ssl_key": str(identity.key),
        "require_secure_transport": "ON",
    }
    tls = {"ssl": {"ca": str(authority.cert)}}
    with server(flavor, **options) as address:
        shop = MysqlShop(tmp_path, address, **tls)
        shop.prepare()
        shop.dsn = f"{address}/shop?ssl-mode=verify_identity&ssl-ca={authority.cert}"
        shop.configure()
        shop.run("CREATE TABLE items (id INT PRIMARY KEY)", "INSERT INTO items VALUES (1)")
        shop.sync_or_fail()
        shop.run("INSERT INTO items VALUES (2)")
        shop.sync_or_fail()
        assert shop.present("items", ["id"]) == [(1,), (2,)]
        other = Identity(tmp_path, "other")
        for options_of_dsn, part in (
            (f"?ssl-mode=verify_ca&ssl-ca={other.cert}", "certificate is not trusted"),
            ("?ssl-mode=disabled", "secure transport|Access denied"),
            (f"?ssl-mode=required&ssl-ca={tmp_path / 'missing.pem'}", "ssl-ca"),
        ):
            shop.dsn = f"{address}/shop{options_of_dsn}"
            shop.configure()
            with pytest.raises(ChronolakeError, match=part):
                source_of(shop.project, "shop").discover()


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.parametrize("flavor", FLAVORS)
def test_a_purged_log(flavor: str, tmp_path: Path) -> None:
    with server(flavor) as address:
        shop = _shop(tmp_path, address)
        shop.run(
            "CREATE TABLE items (id INT PRIMARY KEY, n INT)", "INSERT INTO items VALUES (1, 1)"
        )
        shop.sync_or_fail()
        shop.run("UPDATE items SET n = 2", "FLUSH BINARY LOGS", "INSERT INTO items VALUES (2, 2)")
        logs = [name for name, *_ in shop.rows("SHOW BINARY LOGS")]
        shop.run(f"PURGE BINARY LOGS TO '{logs[-1]}'")
        (stream,) = shop.sync().streams
        assert "removed a part of its binary log" in (stream.error or "")
        assert "chronolake resync" in (stream.hint or "")
        assert shop.present("items", ["id", "n"]) == [(1, 1)]
        shop.sync_or_fail(full_refresh=True)
        shop.run("DELETE FROM items WHERE id = 1")
        shop.sync_or_fail()
        assert shop.states("items", ["id"], ["n"]) == {(1,): [(1,), (2,), None], (2,): [(2,)]}


@pytest.mark.long
@pytest.mark.parametrize("flavor", _BOTH)
@pytest.mark.parametrize("gtids", ["OFF", pytest.param("ON", marks=pytest.mark.long)])
def test_a_log_whose_unread_part_is_kept(flavor: str, gtids: str, tmp_path: Path) -> None:
    options = {"gtid_mode": gtids, "enforce_gtid_consistency": gtids}
    with server(flavor, **(options if flavor == "mysql" else {})) as address:
        shop = _shop(tmp_path, address)
        shop.run(
            "CREATE TABLE items (id INT PRIMARY KEY, n INT)", "INSERT INTO items VALUES (1, 1)"
        )
        shop.sync_or_fail()
        shop.run("UPDATE items SET n = 2")
        shop.sync_or_fail()
        # The last transaction that was read is removed.
        shop.run("FLUSH BINARY LOGS")
        shop.sync_or_fail()
        logs = [name for name, *_ in shop.rows("SHOW BINARY LOGS")]
        shop.run(f"PURGE BINARY LOGS TO '{logs[-1]}'", "UPDATE items SET n = 3")
        shop.sync_or_fail()
        assert shop.states("items", ["id"], ["n"]) == {(1,): [(1,), (2,), (3,)]}


@pytest.mark.long
@pytest.mark.parametrize("flavor", _BOTH)
def test_compressed_transactions(flavor: str, tmp_path: Path) -> None:
    options = (
        {"log_bin_compress": "ON", "log_bin_compress_min_len": "10"}
        if flavor == "mariadb"
        else {"binlog_transaction_compression": "ON"}
    )
    with server(flavor, **options) as address:
        shop = _shop(tmp_path, address)
        shop.run("CREATE TABLE items (id INT PRIMARY KEY, t TEXT)")
        shop.sync_or_fail()
        connection = shop.connect(database="shop")
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("INSERT INTO items VALUES (1, REPEAT('a', 9000)), (2, 'b')")
            cursor.execute("UPDATE items SET t = CONCAT(t, REPEAT('é', 300))")
            cursor.execute("DELETE FROM items WHERE id = 2")
            cursor.execute("COMMIT")
        connection.close()
        shop.run("ALTER TABLE items ADD COLUMN n INT", "UPDATE items SET n = 1")
        shop.sync_or_fail()
        assert shop.present("items", ["id", "t", "n"]) == [(1, "a" * 9000 + "é" * 300, 1)]


def _replicate(primary: MysqlShop, replica: MysqlShop) -> None:
    host, port = primary.address.rpartition("@")[2].split(":")
    primary.administer(
        "CREATE USER copier IDENTIFIED BY 'secret'", "GRANT REPLICATION SLAVE ON *.* TO copier"
    )
    if primary.is_mariadb:
        replica.administer(
            f"CHANGE MASTER TO MASTER_HOST='{host}', MASTER_PORT={port}, MASTER_USER='copier', "
            "MASTER_PASSWORD='secret', MASTER_USE_GTID=slave_pos",
            "START SLAVE",
        )
    else:
        replica.administer(
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='{host}', SOURCE_PORT={port}, "
            "SOURCE_USER='copier', SOURCE_PASSWORD='secret', SOURCE_AUTO_POSITION=1, "
            "GET_SOURCE_PUBLIC_KEY=1",
            "START REPLICA",
        )


@pytest.mark.long
@pytest.mark.parametrize("flavor", _BOTH)
def test_failover_to_a_replica(flavor: str, tmp_path: Path) -> None:
    with server(flavor, server_id="2", log_slave_updates="ON") as second:
        replica = MysqlShop(tmp_path / "replica", second)
        with server(flavor) as first:
            shop = MysqlShop(tmp_path / "shop", first)
            _replicate(shop, replica)
            shop.prepare()
            shop.run(
                "CREATE TABLE items (id INT PRIMARY KEY, n INT)",
                "INSERT INTO items VALUES (1, 1), (2, 2)",
            )
            shop.sync_or_fail()
            shop.run("UPDATE items SET n = 10 WHERE id = 1")
            shop.sync_or_fail()
            shop.run("UPDATE items SET n = 20 WHERE id = 2", "INSERT INTO items VALUES (3, 3)")
            wait_until(lambda: _has_rows(replica, 3), "the replica lags behind")
        replica.administer("STOP SLAVE" if replica.is_mariadb else "STOP REPLICA")
        replica.run("UPDATE items SET n = 30 WHERE id = 3", "DELETE FROM items WHERE id = 1")
        shop.address, shop.dsn = second, f"{second}/shop"
        shop.configure()
        shop.sync_or_fail()
        assert shop.states("items", ["id"], ["n"]) == {
            (1,): [(1,), (10,), None],
            (2,): [(2,), (20,)],
            (3,): [(3,), (30,)],
        }
        # Each run ends with the first transaction of a server or a domain, or after a gap.
        gtids = ["server_id = 9", "gtid_domain_id = 7", "gtid_seq_no = 500"]
        for number, setting in enumerate(gtids if replica.is_mariadb else gtids[:1], 21):
            settings = [f"SET SESSION {setting}"] if replica.is_mariadb else []
            shop.run(*settings, f"UPDATE items SET n = {number} WHERE id = 2")
            shop.sync_or_fail()
        shop.sync_or_fail()
        states = shop.states("items", ["id"], ["n"])[(2,)]
        assert states == [(2,), (20,), *((n,) for n in range(21, number + 1))]
        assert shop.agrees()


def _has_rows(shop: MysqlShop, count: int) -> bool:
    try:
        return len(shop.rows("SELECT id FROM items")) == count
    except pymysql.Error:
        return False


@pytest.mark.long
@pytest.mark.parametrize("flavor", _BOTH)
def test_a_server_that_continues_from_an_older_backup(flavor: str, tmp_path: Path) -> None:
    options = {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"} if flavor == "mysql" else {}
    folder, backup = tmp_path / "data", tmp_path / "backup"
    folder.mkdir()
    with instance(flavor, folder, **options) as address:
        shop = _shop(tmp_path / "shop", address)
        shop.run("CREATE TABLE items (id INT PRIMARY KEY)", "INSERT INTO items VALUES (1)")
        shop.sync_or_fail()
    shutil.copytree(folder, backup, ignore=shutil.ignore_patterns("*socket*", "*.sock"))
    with instance(flavor, folder, **options) as address:
        _move(shop, address)
        shop.run("INSERT INTO items VALUES (2)")
        shop.sync_or_fail()
    with instance(flavor, backup, **options) as address:
        _move(shop, address)
        shop.run("INSERT INTO items VALUES (3)", "INSERT INTO items VALUES (4)")
        (stream,) = shop.sync().streams
        assert stream.error
        assert "chronolake resync" in (stream.hint or "")
        assert shop.present("items", ["id"]) == [(1,), (2,)]
        shop.sync_or_fail(full_refresh=True)
        assert shop.present("items", ["id"]) == [(1,), (3,), (4,)]
        shop.run("DELETE FROM items WHERE id = 3")
        shop.sync_or_fail()
        assert shop.present("items", ["id"]) == [(1,), (4,)]


def _move(shop: MysqlShop, address: str) -> None:
    shop.address, shop.dsn = address, f"{address}/shop"
    shop.configure()
