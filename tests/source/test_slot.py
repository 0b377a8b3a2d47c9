"""Slots are read in bounds, release what has landed, and never skip anything silently."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from postgresql import server

from chronolake.errors import SourceError
from chronolake.source.postgres.connection import connect
from chronolake.source.postgres.pgoutput import Decoder
from chronolake.source.postgres.replication_stream import LogStream, open_stream
from chronolake.source.postgres.slot import (
    Slot,
    advance,
    durable_lsn,
    format_lsn,
    parse_lsn,
)

_SLOT = Slot("s", 'Odd "p", name')


@pytest.fixture(scope="module", params=[18, 16])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    with server(request.param, wal_level="logical") as url:
        yield url


@pytest.fixture
def database(address: str) -> Iterator[psycopg.Connection]:
    with connect(address) as connection:
        connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        connection.execute('DROP PUBLICATION IF EXISTS "Odd ""p"", name"')
        connection.execute("DROP TABLE IF EXISTS public.t")
        connection.execute("CREATE TABLE public.t (id int PRIMARY KEY, note text)")
        connection.execute('CREATE PUBLICATION "Odd ""p"", name" FOR TABLE public.t')
        connection.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        yield connection


@pytest.fixture
def reader(address: str, tmp_path: Path) -> Reader:
    return Reader(address, tmp_path)


@dataclass(frozen=True)
class Reader:
    """Reads the slot."""

    address: str
    folder: Path

    def stream(self, upto: int, slot: Slot = _SLOT) -> AbstractContextManager[LogStream]:
        return open_stream(self.address, slot, upto=upto, folder=self.folder)

    def ids(self, upto: int) -> list[str]:
        decoder, found = Decoder(), []
        with self.stream(upto) as stream:
            for batch in stream.batches():
                for changes in decoder.decode(batch).changes:
                    found += changes.new[0].texts.to_pylist()
        assert decoder.is_between_transactions
        return found


@pytest.mark.sampled
def test_slot_retains_changes_until_it_is_advanced(
    database: psycopg.Connection, reader: Reader
) -> None:
    database.execute("INSERT INTO public.t SELECT generate_series(1, 3)")
    first = durable_lsn(database)
    database.execute("INSERT INTO public.t VALUES (4)")
    second = durable_lsn(database)

    assert parse_lsn(format_lsn(first)) == first < second
    assert reader.ids(first) == ["1", "2", "3"]
    assert reader.ids(second) == ["1", "2", "3", "4"]
    advance(database, _SLOT, upto=first)
    assert reader.ids(second) == ["4"]
    advance(database, _SLOT, upto=second)
    # Advancing backwards, or again to the same position, does nothing.
    advance(database, _SLOT, upto=first)
    advance(database, _SLOT, upto=second)
    assert reader.ids(durable_lsn(database)) == []


def test_a_large_transaction_is_read_in_batches(
    database: psycopg.Connection, reader: Reader
) -> None:
    database.execute(
        "INSERT INTO public.t SELECT i, repeat('x', 100) FROM generate_series(1, 100000) i"
    )
    limit = 2**20
    decoder, rows, sizes = Decoder(), 0, []
    with reader.stream(durable_lsn(database)) as stream:
        for batch in stream.batches(limit):
            sizes.append(sum(map(len, batch)))
            rows += sum(changes.number for changes in decoder.decode(batch).changes)

    assert rows == 100_000
    assert len(sizes) > 10
    assert max(sizes) < 1.5 * limit


def test_a_reader_that_stops_leaves_the_slot_as_it_is(
    database: psycopg.Connection, reader: Reader
) -> None:
    database.execute("INSERT INTO public.t SELECT generate_series(1, 5000)")
    upto = durable_lsn(database)

    with reader.stream(upto) as stream:
        for _ in stream.batches(1_000):
            break
    with pytest.raises(ZeroDivisionError), reader.stream(upto) as stream:
        _ = [len(batch) // 0 for batch in stream.batches(1_000)]

    assert len(reader.ids(upto)) == 5_000


def test_a_missing_publication_is_an_error_and_not_a_gap(
    database: psycopg.Connection, reader: Reader
) -> None:
    database.execute("INSERT INTO public.t VALUES (1)")
    database.execute('DROP PUBLICATION "Odd ""p"", name"')
    database.execute("INSERT INTO public.t VALUES (2)")
    database.execute('CREATE PUBLICATION "Odd ""p"", name" FOR TABLE public.t')
    database.execute("INSERT INTO public.t VALUES (3)")

    with pytest.raises(SourceError, match=r'publication Odd "p", name did not exist') as failed:
        reader.ids(durable_lsn(database))
    assert failed.value.hint


def test_values_read_the_same_whatever_the_role_has_set(
    address: str, database: psycopg.Connection
) -> None:
    database.execute("ALTER ROLE me SET datestyle = 'German'")
    database.execute("ALTER ROLE me SET bytea_output = 'escape'")
    try:
        with connect(address) as other:
            row = other.execute(
                r"SELECT '2024-12-31'::date::text, '\x00ff'::bytea::text, "
                "'2024-07-01 12:00+02'::timestamptz::text, '1 day 2 hours'::interval::text"
            ).fetchone()
    finally:
        database.execute("ALTER ROLE me RESET ALL")
    assert row == ("2024-12-31", r"\x00ff", "2024-07-01 10:00:00+00", "1 day 02:00:00")


@pytest.mark.parametrize(
    "setting",
    [
        "statement_timeout",
        "lock_timeout",
        "idle_in_transaction_session_timeout",
        "idle_session_timeout",
        "transaction_timeout",
    ],
)
def test_no_timeout_of_the_role_ends_a_session(
    address: str, database: psycopg.Connection, setting: str
) -> None:
    if not database.execute("SELECT 1 FROM pg_settings WHERE name = %s", (setting,)).fetchone():
        pytest.skip("this version does not have it")
    database.execute(f"ALTER ROLE me SET {setting} = '1min'".encode())
    try:
        with connect(address) as other:
            assert other.execute(f"SHOW {setting}".encode()).fetchone() == ("0",)
    finally:
        database.execute("ALTER ROLE me RESET ALL")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda url: url.replace("/lake", "/none"), 'database "none" does not exist'),
        (lambda url: url.replace("p%40ss", "wrong"), "password authentication failed"),
        (lambda url: url.replace("127.0.0.1", "no.such.host.invalid"), "cannot be reached"),
        (lambda url: f"{url}?nothing=1", "server's address is not valid"),
    ],
)
def test_connection_errors_contain_no_secrets(address: str, change: object, words: str) -> None:
    assert callable(change)
    with pytest.raises(SourceError, match=words) as failed, connect(change(address)):
        pass
    for secret in ("p@ss", "p%40ss", "word:of", "wrong%2F"):
        assert secret not in f"{failed.value} {failed.value.hint}"


def test_a_slot_that_cannot_be_read_is_an_error(
    database: psycopg.Connection, reader: Reader
) -> None:
    upto = durable_lsn(database)
    none = 'replication slot "none" does not exist'
    with pytest.raises(SourceError, match=none), reader.stream(upto, Slot("none", "p")):
        pass
    with pytest.raises(SourceError, match='replication slot "none" does not exist'):
        advance(database, Slot("none", "p"), upto=upto + 10**6)
