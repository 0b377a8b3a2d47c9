"""Text that is not valid in its database's encoding stops its own table, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from chronolake.errors import SourceError
from chronolake.pipeline.store import Status
from chronolake.pipeline.streams import source_of
from chronolake.source.postgres.connection import connect
from chronolake.source.postgres.encoding import (
    MULTI_BYTE,
    PYTHON_CODECS,
    TextCodec,
    Undecodable,
    convert_characters,
    is_valid,
)
from chronolake.source.protocol import Level
from support.source.databases import Shop

#: SQL for bytes that cannot be converted to UTF-8, by database encoding.
_BAD = {
    "SQL_ASCII": r"convert_from('\x636166e9', 'SQL_ASCII')",
    "WIN1252": r"convert_from('\x81', 'WIN1252')",
    # Unassigned rows of the character sets.
    "EUC_JP": r"convert_from('\x63a9a1', 'EUC_JP')",
    "EUC_CN": r"convert_from('\x63aaa1', 'EUC_CN')",
    "EUC_KR": r"convert_from('\x63c9a1', 'EUC_KR')",
    "EUC_TW": r"convert_from('\x63a9a1', 'EUC_TW')",
    "EUC_JIS_2004": r"convert_from('\x638fa2a1', 'EUC_JIS_2004')",
}
#: A text that the encoding can represent.
_GOOD = {"SQL_ASCII": "café", "WIN1252": "café"}


def _long_text(encoding: str) -> object:
    return pytest.param(encoding, marks=pytest.mark.long)


@pytest.fixture(params=["SQL_ASCII", *map(_long_text, sorted({*_BAD} - {"SQL_ASCII"}))])
def encoding(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shop(address: str, encoding: str, tmp_path: Path) -> Iterator[Shop]:
    """Yield a database whose encoding is not UTF-8, and the project that syncs it."""
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS stored")
        connection.execute(
            f"CREATE DATABASE stored ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'".encode()
        )
    there = Shop(tmp_path, address.replace("/lake", "/stored"))
    yield there
    # The driver cannot read results in an encoding that Python does not support.
    there.run(
        "DO $$ BEGIN PERFORM pg_drop_replication_slot(slot_name) FROM pg_replication_slots; END $$"
    )


def _failures(shop: Shop, *, full_refresh: bool = False) -> dict[str, str]:
    result = shop.sync(full_refresh=full_refresh)
    assert result.status in {Status.SUCCEEDED, Status.PARTIAL}
    return {
        stream.stream: f"{stream.error} {stream.hint}" for stream in result.streams if stream.error
    }


@pytest.mark.long
def test_row_with_invalid_text_fails_only_its_table(shop: Shop, encoding: str) -> None:
    bad, text = _BAD[encoding], _GOOD.get(encoding, "日本")
    good = f"'{text}'"
    if encoding != "SQL_ASCII":
        stored = f"convert('\\x{text.encode().hex()}', 'UTF8', '{encoding}')"
        good = f"convert_from({stored}, '{encoding}')"
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
    shop.sync_or_fail()
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
    assert shop.present("good", ("id", "note")) == [(1, text), (2, text)]
    assert shop.present("bad", ("id", "price")) == [(1, "6"), (2, "5")], "all before it has landed"

    assert list(_failures(shop)) == ["public.bad"], "it does not get over it by itself"
    assert "(0,5)" in _failures(shop, full_refresh=True)["public.bad"], "the place where it is now"
    shop.run("DELETE FROM bad WHERE id = 3", f"INSERT INTO good VALUES (3, {good})")
    assert _failures(shop, full_refresh=True) == {}
    shop.run("UPDATE bad SET price = '8' WHERE id = 2")
    shop.sync_or_fail()
    assert shop.present("bad", ("id", "price")) == [(1, "7"), (2, "8")]
    assert shop.agrees()


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["SQL_ASCII"])
def test_no_part_of_a_transaction_with_invalid_text_lands(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chronolake.source.postgres.replication_stream.BATCH_BYTES", 1_000)
    bad = r"convert_from('\x636166e9'::bytea, 'SQL_ASCII')"
    shop.run("CREATE TABLE bad (id int PRIMARY KEY, note text)")
    shop.prepare()
    shop.sync_or_fail()
    shop.run(
        "INSERT INTO bad VALUES (0, 'before')",
        "BEGIN; INSERT INTO bad SELECT i, 'x' FROM generate_series(1, 5000) i; "
        f"INSERT INTO bad VALUES (5001, {bad}); COMMIT",
    )
    failures = shop.sync()
    assert [stream.error is not None for stream in failures.streams] == [True]
    assert {row[0] for row in shop.present("bad", ("id",))} <= {0}
    shop.run("UPDATE bad SET note = 'mended' WHERE id = 5001")
    shop.sync_or_fail(full_refresh=True)
    assert len(shop.present("bad", ("id",))) == 5_002
    assert shop.agrees()


@pytest.mark.parametrize("encoding", ["SQL_ASCII"])
def test_invalid_text_in_a_key_is_located_by_fingerprints(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chronolake.source.postgres.snapshot_diff.diff._LEAST_PAGES", 0)
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
    shop.sync_or_fail()
    assert shop.present("bad", ("id",)) == [("mended",)]


@pytest.mark.long
def test_names_that_are_not_valid_stop_their_own_tables(shop: Shop, encoding: str) -> None:
    stored = bytes.fromhex(_BAD[encoding].partition(r"'\x")[2].partition("'")[0])
    bad = bytes(byte for byte in stored if byte >= 0x80)
    shown = bad.decode("ascii", "backslashreplace")

    def run(*statements: bytes) -> None:
        _run_bytes(shop, *(statement.replace(b"\xe9", bad) for statement in statements))

    run(
        b"CREATE TYPE mood AS ENUM ('ok', 'caf\xe9')",
        b"CREATE TABLE good (id int PRIMARY KEY, mood mood, moods mood[])",
        b'CREATE TABLE "caf\xe9" (id int PRIMARY KEY)',
        b'CREATE TABLE named (id int PRIMARY KEY, "\xe9" text)',
        b"CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        b'CREATE TABLE "p\xe9" PARTITION OF parted DEFAULT',
        b'CREATE TYPE pair AS ("\xe9" int, b mood)',
        b"CREATE TABLE typed (id int PRIMARY KEY, pair pair)",
        b"CREATE TABLE later (id int PRIMARY KEY, note text)",
        b'CREATE SCHEMA "\xe9"',
        b'CREATE TABLE "\xe9".elsewhere (id int PRIMARY KEY)',
        b"INSERT INTO good VALUES (1, 'ok', '{ok}')",
        b"INSERT INTO typed VALUES (1, (1, 'ok'))",
        b"INSERT INTO parted VALUES (1)",
        b"INSERT INTO later VALUES (1, 'a')",
    )
    source = source_of(shop.project, "shop")
    found = {
        result.what: result.fix
        for result in source.check(create=True)
        if result.level is Level.FAILED
    }
    unnamed = {f"public.caf{shown}", "public.named"}
    assert found.keys() == unnamed
    failures = _failures(shop)
    assert failures.keys() == {*unnamed, "public.parted"}
    for name in (f"caf{shown}", f"column {shown}", f"p{shown}"):
        assert any(name in failure for failure in failures.values())
    assert shop.present("typed", ("id", "pair")) == [(1, "(1,ok)")]

    run(
        b'ALTER TABLE later RENAME note TO "\xe9"',
        b"UPDATE later SET id = 2",
        b'ALTER TABLE later RENAME "\xe9" TO note',
        b"INSERT INTO good VALUES (2, 'ok', NULL)",
    )
    failures = _failures(shop)
    assert failures.keys() == {*unnamed, "public.parted", "public.later"}
    assert shop.present("good", ("id", "mood")) == [(1, "ok"), (2, "ok")]
    assert shop.present("later", ("id",)) == [(1,)], "all before it has landed"

    for number, failure in enumerate(failures.values()):
        if "DO $$" in failure:
            statement = failure[failure.index("DO $$") :].replace("new_name", f"mended{number}")
            shop.run(statement)
    source_of(shop.project, "shop").check(create=True)
    assert _failures(shop, full_refresh=True) == {}
    assert shop.present("later", ("id", "note")) == [(2, "a")]
    assert shop.present("parted", ("id",)) == [(1,)]


def _run_bytes(shop: Shop, *statements: bytes) -> None:
    """Run statements that are not UTF-8."""
    with psycopg.connect(shop.dsn, autocommit=True, client_encoding="SQL_ASCII") as connection:
        for statement in statements:
            connection.execute(statement)


def test_inconvertible_database_is_reported(address: str, tmp_path: Path) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS mule")
        connection.execute(
            "CREATE DATABASE mule ENCODING 'MULE_INTERNAL' TEMPLATE template0 LOCALE 'C'"
        )
    with (
        pytest.raises(SourceError, match="MULE_INTERNAL") as found,
        connect(address.replace("/lake", "/mule")),
    ):
        pass
    assert "UTF8" in (found.value.hint or "")


@pytest.mark.parametrize("encoding", sorted(MULTI_BYTE))
def test_multi_byte_characters_are_converted_as_the_server_converts_them(
    address: str, encoding: str
) -> None:
    chance = np.random.default_rng(7)
    pairs = [bytes([a, b]) for a in range(0xA1, 0xFF) for b in range(0xA1, 0xFF)]
    shifted = [b"\x8e" + pair[:1] for pair in pairs[::94]] + [b"\x8f" + pair for pair in pairs]
    wide = [b"\x8e" + bytes([plane]) + pair for plane in (0xA2, 0xA3) for pair in pairs]
    several = pairs + (wide if encoding == "EUC_TW" else shifted if encoding != "EUC_CN" else [])
    with connect(address) as connection:

        def said(characters: list[bytes]) -> dict[bytes, bytes | None]:
            reported = {}
            for character in characters:
                try:
                    row = connection.execute(
                        "SELECT convert(%s, %s, 'UTF8')", (character, encoding)
                    ).fetchone()
                except psycopg.DataError:
                    row = (None,)
                assert row is not None
                reported[character] = row[0]
            return reported

        some = [several[place] for place in chance.integers(0, len(several), 400)]
        texts = [b"", b"a", b"\xa4", b"\x8f\xa4"]
        for _ in range(300):
            size = int(chance.integers(0, 6))
            texts.append(
                b"".join([*(some[place] for place in chance.integers(0, 400, size)), b"z"])
            )
        codec = TextCodec(encoding, said)
        offsets = np.cumsum([0, *map(len, texts)])
        data, ends, is_invalid = codec.to_utf8(pa.py_buffer(b"".join(texts)), offsets)
        whole = said(texts)
        assert is_invalid is not None
        for number, text in enumerate(texts):
            mine = data[ends[number] : ends[number + 1]].to_pybytes()
            assert (None if is_invalid[number] else mine) == whole[text], text
            assert isinstance(codec.text(text), Undecodable) is (whole[text] is None), text


def test_characters_are_converted_together_even_if_some_are_missing(address: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS stored")
        connection.execute("CREATE DATABASE stored ENCODING 'EUC_KR' TEMPLATE template0 LOCALE 'C'")
    known, missing = "가나다", [b"\xc9\xa1", b"\xc9\xa2"]
    characters = [character.encode("euc_kr") for character in known]
    with connect(address.replace("/lake", "/stored")) as connection:
        found = convert_characters(connection, [*characters[:2], *missing, characters[2]])
    assert found == {
        **dict(zip(characters, (character.encode() for character in known), strict=True)),
        **dict.fromkeys(missing),
    }


def test_bytes_are_converted_as_the_server_converts_them(address: str) -> None:
    with connect(address) as connection:
        for encoding, codec in PYTHON_CODECS.items():
            if codec == "utf-8":
                continue
            for byte in range(1, 256):
                text = bytes([byte])
                try:
                    (reported,) = connection.execute(
                        "SELECT convert_from(%s, %s)", (text, encoding)
                    ).fetchone() or (None,)
                except psycopg.DataError:
                    reported = None
                mine = text.decode(codec) if is_valid(text, codec) else None
                assert mine == reported, (encoding, byte)
