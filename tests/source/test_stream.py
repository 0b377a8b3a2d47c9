"""The log is read while it is decoded: in bounds, and only whole transactions."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from postgresql import cluster, server

from chronolake.source.postgres.connection import connect
from chronolake.source.postgres.messages import Kind
from chronolake.source.postgres.pgoutput import Decoder
from chronolake.source.postgres.replication_stream import open_stream
from chronolake.source.postgres.slot import Slot, confirmed_lsn, durable_lsn
from support.seeds import with_drawn_seeds

_SLOT = Slot("s", "p")
_PEEK = (
    "SELECT data FROM pg_logical_slot_peek_binary_changes('s', {upto}, NULL, "
    "'proto_version', '1', 'publication_names', 'p', 'messages', 'true')"
)
#: Without `streaming`, a server of version 18 also sends that a large subtransaction was rolled
#: back.
_PASSED_OVER = (Kind.RELATION, Kind.TYPE, ord("A"))


@pytest.fixture(scope="module", params=[18, 16])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the address of a server that holds little of a transaction in memory."""
    with server(
        request.param,
        wal_level="logical",
        logical_decoding_work_mem="64kB",
        wal_sender_timeout="1s",
    ) as url:
        yield url


@pytest.fixture
def database(address: str) -> Iterator[psycopg.Connection]:
    with connect(address) as connection:
        connection.execute("CREATE TABLE public.t (id bigserial, note text)")
        connection.execute("CREATE TABLE public.u (id bigserial, note text, more int)")
        connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
        connection.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        yield connection
        connection.execute("DROP PUBLICATION p")
        connection.execute("DROP TABLE public.t, public.u")
        connection.execute("SELECT pg_drop_replication_slot('s')")


def _read(address: str, folder: Path, upto: int, begins: int = 0) -> list[bytes]:
    with open_stream(address, _SLOT, begins=begins, upto=upto, folder=folder) as stream:
        messages = [message for batch in stream.batches(10_000) for message in batch]
    # The messages can be decoded.
    decoder = Decoder()
    decoder.decode(messages)
    assert decoder.is_between_transactions
    return [message for message in messages if message[0] not in _PASSED_OVER]


def _statement(chance: random.Random) -> str:
    rows = chance.choice([1, 10, 700])
    insert = (
        f"INSERT INTO public.t (note) SELECT repeat('x', i % 50) FROM generate_series(1, {rows}) i"
    )
    name = f"t_{chance.randrange(10**9)}"
    undone = f"SAVEPOINT b; {insert}; ROLLBACK TO SAVEPOINT b"
    return chance.choice(
        [
            insert,
            insert,
            undone,
            f"SAVEPOINT a; {insert}; {undone}; {insert}; RELEASE SAVEPOINT a",
            f"INSERT INTO public.u (more) SELECT i FROM generate_series(1, {rows}) i",
            "SELECT pg_logical_emit_message(true, 'app', 'x')",
            "SELECT pg_logical_emit_message(false, 'app', 'y')",
            f"CREATE TABLE public.{name} AS SELECT {rows} AS x; DROP TABLE public.{name}",
        ]
    )


@pytest.mark.parametrize("seed", with_drawn_seeds(1, test="log stream", number=8))
def test_messages_are_those_of_whole_transactions(
    address: str, database: psycopg.Connection, tmp_path: Path, seed: int
) -> None:
    """Only whole transactions are read, also if parts are sent early or rolled back."""
    chance = random.Random(seed)
    writers = [psycopg.connect(address) for _ in range(3)]
    for _ in range(150):
        writer = chance.choice(writers)
        what = chance.random()
        if what < 0.75:
            writer.execute(_statement(chance).encode())
        elif what < 0.93:
            writer.commit()
        else:
            writer.rollback()
    upto = durable_lsn(database)
    wanted = [row[0] for row in database.execute(_PEEK.format(upto="NULL"), binary=True)]
    wanted = [message for message in wanted if message[0] not in _PASSED_OVER]

    assert _read(address, tmp_path, upto) == wanted
    (parts,) = database.execute("SELECT stream_txns FROM pg_stat_replication_slots").fetchone() or (
        0,
    )
    assert parts > 0
    for writer in writers:
        writer.commit()
        writer.close()
    # Only transactions that were not yet committed follow; the others can be left out.
    rest = _read(address, tmp_path, durable_lsn(database), begins=upto)
    wanted = [row[0] for row in database.execute(_PEEK.format(upto="NULL"), binary=True)]
    wanted = [message for message in wanted if message[0] not in _PASSED_OVER]
    assert rest == wanted[len(wanted) - len(rest) :]
    # A message that does not belong to a transaction may be the first, too.
    assert rest[:1] == [] or rest[0][0] in {Kind.BEGIN, Kind.MESSAGE}


@pytest.mark.long
def test_nothing_waits_on_the_server(tmp_path: Path) -> None:
    """A transaction of 300,000 rows is read from a server that allows no temporary files."""
    with (
        cluster(wal_level="logical", temp_file_limit="1MB", work_mem="1MB") as place,
        connect(place.address) as database,
    ):
        database.execute("CREATE TABLE public.t (id int, note text)")
        database.execute("CREATE PUBLICATION p FOR ALL TABLES")
        database.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        database.execute("INSERT INTO public.t SELECT generate_series(1, 300000), repeat('x', 200)")
        upto = durable_lsn(database)
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
            database.execute(_PEEK.format(upto="NULL"))
        database.execute("SELECT pg_stat_reset_replication_slot('s')")

        decoder, rows = Decoder(), 0
        with open_stream(place.address, _SLOT, upto=upto, folder=tmp_path) as stream:
            for batch in stream.batches():
                assert sum(map(len, batch)) < 2 * 4 * 2**20
                rows += sum(change.number for change in decoder.decode(batch).changes)
        assert rows == 300_000
        assert list(tmp_path.iterdir()) == []
        assert database.execute(
            "SELECT spill_bytes, stream_txns FROM pg_stat_replication_slots"
        ).fetchone() == (0, 1)


@pytest.mark.sampled
def test_the_first_message_arrives_before_all_is_decoded(
    address: str, database: psycopg.Connection, tmp_path: Path
) -> None:
    for _ in range(200):
        database.execute(
            "INSERT INTO public.t (note) SELECT repeat('x', 200) FROM generate_series(1, 1000)"
        )
    with open_stream(address, _SLOT, upto=durable_lsn(database), folder=tmp_path) as stream:
        batches = stream.batches(1_000)
        next(batches)
        (waiting,) = database.execute(
            "SELECT pg_current_wal_lsn() - sent_lsn FROM pg_stat_replication"
        ).fetchone() or (0,)
        assert waiting > 10 * 2**20
        # The server doesn't give up while nobody reads.
        time.sleep(3)
        assert sum(len(batch) for batch in batches) > 100_000


def test_landed_changes_are_confirmed_while_the_log_is_read(
    address: str, database: psycopg.Connection, tmp_path: Path
) -> None:
    database.execute("INSERT INTO public.t (note) SELECT 'a' FROM generate_series(1, 100)")
    middle = durable_lsn(database)
    database.execute("INSERT INTO public.t (note) SELECT 'b' FROM generate_series(1, 100)")
    with open_stream(address, _SLOT, upto=durable_lsn(database), folder=tmp_path) as stream:
        next(stream.batches(100))
        assert stream.may_confirm
        stream.confirm(middle)
    assert confirmed_lsn(database, _SLOT) == middle


def test_a_client_that_counts_as_a_standby_confirms_nothing(
    address: str, database: psycopg.Connection, tmp_path: Path
) -> None:
    database.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
    database.execute("SELECT pg_reload_conf()")
    try:
        while database.execute("SHOW synchronous_standby_names").fetchone() != ("*",):
            time.sleep(0.02)
        with open_stream(address, _SLOT, upto=durable_lsn(database), folder=tmp_path) as stream:
            assert not stream.may_confirm
            assert list(stream.batches()) == []
    finally:
        database.execute("ALTER SYSTEM RESET synchronous_standby_names")
        database.execute("SELECT pg_reload_conf()")


_KILLED = """
import sys
from pathlib import Path
from chronolake.source.postgres.slot import Slot
from chronolake.source.postgres.replication_stream import open_stream
dsn, upto, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
with open_stream(dsn, Slot("s", "p"), upto=upto, folder=folder) as stream:
    next(stream.batches(1_000))
    print("reading", flush=True)
    sys.stdin.read()
"""


def test_a_reader_that_is_killed_leaves_the_slot_as_it_is(
    address: str, database: psycopg.Connection, tmp_path: Path
) -> None:
    database.execute("INSERT INTO public.t (note) SELECT 'x' FROM generate_series(1, 100000)")
    upto = durable_lsn(database)
    words = [sys.executable, "-c", _KILLED, address, str(upto), str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"reading\n"
        reader.send_signal(signal.SIGKILL)

    # The server may not have noticed yet.
    messages = _read(address, tmp_path, upto)
    assert sum(message[0] == Kind.INSERT for message in messages) == 100_000


def test_a_slot_that_is_read_by_another_is_waited_for(
    address: str, database: psycopg.Connection, tmp_path: Path
) -> None:
    database.execute("INSERT INTO public.t (note) VALUES ('x')")
    upto = durable_lsn(database)
    with open_stream(address, _SLOT, upto=upto, folder=tmp_path / "other") as other:
        found: list[list[bytes]] = []
        waiting = threading.Thread(target=lambda: found.append(_read(address, tmp_path, upto)))
        waiting.start()
        time.sleep(0.5)
        assert found == []
        assert len(list(other.batches())) == 1
    waiting.join()
    assert [message[0] for message in found[0]] == [Kind.BEGIN, Kind.INSERT, Kind.COMMIT]
