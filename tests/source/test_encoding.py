"""Text that is not valid in its database's encoding stops its own table, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from databases import Shop

from chronolake.pipeline.store import Status
from chronolake.source.postgres.connection import _STORED, connected, is_valid

#: By the database's encoding bytes that cannot be converted to UTF-8, and `café`, as SQL.
_TEXTS = {
    "SQL_ASCII": (r"convert_from('\x636166e9', 'SQL_ASCII')", "'café'"),
    "WIN1252": (r"convert_from('\x81', 'WIN1252')", r"convert_from('\x636166e9', 'WIN1252')"),
}


@pytest.fixture(params=["SQL_ASCII", pytest.param("WIN1252", marks=pytest.mark.long)])
def encoding(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shop(address: str, encoding: str, tmp_path: Path) -> Iterator[Shop]:
    """A database of an encoding that is not UTF-8, and the project that syncs it."""
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS stored")
        connection.execute(
            f"CREATE DATABASE stored ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'".encode()
        )
    there = Shop(tmp_path, address.replace("/lake", "/stored"))
    yield there
    there.run("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


def _failures(shop: Shop, *, anew: bool = False) -> dict[str, str]:
    result = shop.sync(anew=anew)
    assert result.status in {Status.SUCCEEDED, Status.PARTIAL}
    return {one.stream: f"{one.error} {one.hint}" for one in result.streams if one.error}


def test_a_row_of_no_text_stops_its_own_table_and_is_named(shop: Shop, encoding: str) -> None:
    bad, good = _TEXTS[encoding]
    shop.run(
        "CREATE TABLE good (id int PRIMARY KEY, note text)",
        'CREATE TABLE bad (id int PRIMARY KEY, price text, "the note" text)',
        f"INSERT INTO good VALUES (1, {good})",
        f"INSERT INTO bad VALUES (1, '5', {good}), (2, '5', {bad})",
    )
    shop.prepare()

    copied = _failures(shop)
    assert list(copied) == ["public.bad"]
    assert "(0,2)" in copied["public.bad"]
    assert "the note" in copied["public.bad"]

    shop.run("""UPDATE bad SET "the note" = 'x' WHERE id = 2""")
    shop.synced()
    shop.run(
        f"INSERT INTO good VALUES (2, {good})",
        "UPDATE bad SET price = '6' WHERE id = 1",
        f"INSERT INTO bad VALUES (3, '5', {bad})",
        "UPDATE bad SET price = '7' WHERE id = 1",
    )
    followed = _failures(shop)
    assert list(followed) == ["public.bad"]
    for words in ("the note", "LSN", "resync shop --stream public.bad"):
        assert words in followed["public.bad"]
    assert shop.present("good", ("id", "note")) == [(1, "café"), (2, "café")]
    assert shop.present("bad", ("id", "price")) == [(1, "6"), (2, "5")], "all before it has landed"

    assert list(_failures(shop)) == ["public.bad"], "it does not get over it by itself"
    assert "(0,5)" in _failures(shop, anew=True)["public.bad"], "the place where it is now"
    shop.run("DELETE FROM bad WHERE id = 3", f"INSERT INTO good VALUES (3, {good})")
    assert _failures(shop, anew=True) == {}
    shop.run("UPDATE bad SET price = '8' WHERE id = 2")
    shop.synced()
    assert shop.present("bad", ("id", "price")) == [(1, "7"), (2, "8")]
    assert shop.agrees()


@pytest.mark.parametrize("encoding", ["SQL_ASCII"])
def test_no_part_of_a_transaction_with_such_a_row_lands(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chronolake.source.postgres.stream.BATCH_BYTES", 1_000)
    bad = r"convert_from('\x636166e9'::bytea, 'SQL_ASCII')"
    shop.run("CREATE TABLE bad (id int PRIMARY KEY, note text)")
    shop.prepare()
    shop.synced()
    shop.run(
        "INSERT INTO bad VALUES (0, 'before')",
        "BEGIN; INSERT INTO bad SELECT i, 'x' FROM generate_series(1, 5000) i; "
        f"INSERT INTO bad VALUES (5001, {bad}); COMMIT",
    )
    failures = shop.sync()
    assert [one.error is not None for one in failures.streams] == [True]
    assert {row[0] for row in shop.present("bad", ("id",))} <= {0}
    shop.run("UPDATE bad SET note = 'mended' WHERE id = 5001")
    shop.synced(anew=True)
    assert len(shop.present("bad", ("id",))) == 5_002
    assert shop.agrees()


@pytest.mark.parametrize("encoding", ["SQL_ASCII"])
def test_a_key_of_no_text_is_named_where_fingerprints_are_made(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chronolake.source.postgres.difference.look._LEAST_PAGES", 0)
    shop.run(
        "CREATE TABLE good (id text PRIMARY KEY, note text)",
        "CREATE TABLE bad (id text PRIMARY KEY, note text)",
        "INSERT INTO good VALUES ('a', 'b')",
        r"INSERT INTO bad VALUES (convert_from('\x636166e9'::bytea, 'SQL_ASCII'), 'b')",
    )
    shop.configure(method="snapshot_diff")

    found = _failures(shop)

    assert list(found) == ["public.bad"]
    assert "(0,1)" in found["public.bad"]
    shop.run("UPDATE bad SET id = 'mended'")
    shop.synced()
    assert shop.present("bad", ("id",)) == [("mended",)]


def test_bytes_are_the_characters_that_the_server_says(address: str) -> None:
    with connected(address) as connection:
        for encoding, codec in _STORED.items():
            if codec == "utf-8":
                continue
            for byte in range(1, 256):
                text = bytes([byte])
                try:
                    (told,) = connection.execute(
                        "SELECT convert_from(%s, %s)", (text, encoding)
                    ).fetchone() or (None,)
                except psycopg.DataError:
                    told = None
                mine = text.decode(codec) if is_valid(text, codec) else None
                assert mine == told, (encoding, byte)
