"""The fast decoder of pgoutput reads the same as a plain one; invalid bytes raise an error."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from struct import pack
from typing import Any, Final

import numpy as np
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from postgresql import server

from chronolake.errors import ReplicationProtocolError
from chronolake.source.postgres.messages import Kind
from chronolake.source.postgres.pgoutput import Changes, DecodedBatch, Decoder
from chronolake.source.postgres.slot import format_lsn
from chronolake.source.relational.row_versions import sequence_of, sequences_of
from support.seeds import with_drawn_seeds
from support.source.plain_pgoutput import INVALID, UNCHANGED, Change, Reader

_PEEK: Final = (
    "SELECT data FROM pg_logical_slot_peek_binary_changes('s', NULL, NULL, "
    "'proto_version', '1', 'publication_names', 'p', 'messages', 'true')"
)


@pytest.fixture(scope="module", params=[18, 16])
def database(request: pytest.FixtureRequest) -> Iterator[psycopg.Connection]:
    with (
        server(request.param, wal_level="logical") as address,
        psycopg.connect(address, autocommit=True) as connection,
    ):
        yield connection


def _messages(database: psycopg.Connection) -> list[bytes]:
    with database.cursor(binary=True) as cursor:
        return [row[0] for row in cursor.execute(_PEEK).fetchall()]


def _rows_of(changes: Changes, cells: str, place: int) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for column, values in zip(changes.relation.columns, getattr(changes, cells), strict=True):
        value = values.texts[place].as_py()
        row[column.name] = UNCHANGED if values.is_unchanged[place] else value
        if values.is_invalid is not None and values.is_invalid[place]:
            row[column.name] = INVALID
    return row


def _in_order(decoded: DecodedBatch) -> list[Change]:
    """Return the changes of a batch, in the order of the log."""
    found: list[tuple[int, int, Change]] = []
    names = {change.relation.oid: change.relation.name for change in decoded.changes}
    for changes in decoded.changes:
        for place in range(changes.number):
            number = int(changes.transactions[place])
            transaction = decoded.transactions[number]
            has_old, is_delete = changes.has_old[place], changes.kinds[place] == Kind.DELETE
            change = Change(
                changes.relation.name,
                chr(changes.kinds[place]),
                transaction.commit_lsn,
                transaction.commit_micros,
                old=_rows_of(changes, "old", place) if has_old else None,
                new=None if is_delete else _rows_of(changes, "new", place),
            )
            found.append((number, int(changes.ordinals[place]), change))
    for truncate in decoded.truncates:
        transaction = decoded.transactions[truncate.transaction]
        found += [
            (
                truncate.transaction,
                truncate.ordinal,
                Change(names.get(oid, str(oid)), "T", transaction.commit_lsn,
                       transaction.commit_micros),
            )
            for oid in truncate.relations
        ]  # fmt: skip
    return [change for _, _, change in sorted(found, key=lambda item: item[:2])]


def _decode(messages: Sequence[bytes], cuts: Sequence[int]) -> list[Change]:
    decoder = Decoder()
    found: list[Change] = []
    for begin, end in zip([0, *cuts], [*cuts, len(messages)], strict=True):
        decoded = decoder.decode(messages[begin:end])
        named = _in_order(decoded)
        for change in named:
            if change.kind == "T" and change.table.isdigit():
                change.table = decoder.relations[int(change.table)].name
        found += named
    assert decoder.is_between_transactions
    return found


def _run_random_statements(database: psycopg.Connection, chance: random.Random) -> None:
    """Run random statements on three tables with different replica identities."""
    database.execute("DROP PUBLICATION IF EXISTS p")
    for name in ("plain", "whole", "two"):
        database.execute(f'DROP TABLE IF EXISTS "{name}"')
    database.execute("CREATE TABLE plain (id int PRIMARY KEY, note text, big text)")
    database.execute("CREATE TABLE whole (id int PRIMARY KEY, note text, big text)")
    database.execute("ALTER TABLE whole REPLICA IDENTITY FULL")
    database.execute("CREATE TABLE two (a text, b int, n numeric, PRIMARY KEY (a, b))")
    database.execute("ALTER TABLE plain ALTER big SET STORAGE EXTERNAL")
    database.execute("ALTER TABLE whole ALTER big SET STORAGE EXTERNAL")
    database.execute("CREATE PUBLICATION p FOR TABLE plain, whole, two")
    database.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    database.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    for number in range(60):
        with suppress(psycopg.errors.UniqueViolation), database.transaction():
            for _ in range(chance.choice([1, 1, 2, 5])):
                _change(database, chance, number)
            if chance.random() < 0.15:
                raise psycopg.Rollback
        if number % 20 == 10:
            database.execute(f"ALTER TABLE plain ADD COLUMN c{number} int DEFAULT {number}")
        if number == 50:
            database.execute("DELETE FROM plain WHERE id % 2 = 0")
            database.execute("DELETE FROM whole WHERE id % 2 = 0")
        if number == 33:
            database.execute("ALTER TABLE whole RENAME COLUMN note TO remark")


def _change(database: psycopg.Connection, chance: random.Random, number: int) -> None:
    table = chance.choice(["plain", "whole"])
    key, big = chance.randrange(20), "x" * chance.choice([1, 3_000, 20_000])
    text = chance.choice([None, "", "é\U0001f600", "a\tb\n'", f"n{number}"])
    note = "remark" if table == "whole" and number > 33 else "note"
    match chance.randrange(8):
        case 0 | 1:
            database.execute(
                f"INSERT INTO {table} (id, {note}, big) VALUES (%s, %s, %s) "
                "ON CONFLICT (id) DO UPDATE SET big = excluded.big",
                (key, text, big),
            )
        case 2 | 3:
            # A large value that did not change is not sent.
            database.execute(f"UPDATE {table} SET {note} = %s WHERE id <= %s", (text, key))
        case 4:
            database.execute(f"UPDATE {table} SET id = id + 100 WHERE id = %s", (key,))
        case 5:
            database.execute(f"DELETE FROM {table} WHERE id = %s", (key,))
        case 6:
            database.execute(
                "INSERT INTO two SELECT %s, i, i / 7.0 FROM generate_series(%s::int, %s::int) i",
                (f"k{number}", number * 10, number * 10 + chance.choice([1, 30])),
            )
            database.execute("SELECT pg_logical_emit_message(true, 'any', 'thing')")
            database.execute("SELECT pg_logical_emit_message(false, 'any', 'thing')")
        case 7:
            database.execute("UPDATE two SET b = b + 1000, n = 'NaN' WHERE b %% 7 = %s", (key % 7,))
            if number == 40:
                database.execute("TRUNCATE two, plain")


@pytest.mark.sampled
@pytest.mark.parametrize("seed", with_drawn_seeds(1, 2, test="pgoutput", number=20))
def test_it_reads_what_a_plain_decoder_reads(database: psycopg.Connection, seed: int) -> None:
    chance = random.Random(seed)
    _run_random_statements(database, chance)
    messages = _messages(database)

    wanted = list(Reader().read(messages))

    assert {change.kind for change in wanted} >= {"I", "U", "D"}
    assert any(UNCHANGED in (change.new or {}).values() for change in wanted)
    assert any(change.old for change in wanted)
    assert _decode(messages, []) == wanted
    for number in (1, 5, 40):
        cuts = sorted(chance.sample(range(len(messages) + 1), number))
        assert _decode(messages, cuts) == wanted, cuts
    assert _decode(messages, range(1, len(messages))) == wanted, "one by one"


def test_read_progress_is_reported(database: psycopg.Connection) -> None:
    _run_random_statements(database, random.Random(5))
    messages = _messages(database)
    commits = [number for number, message in enumerate(messages) if message[0] == Kind.COMMIT]

    decoder = Decoder()
    first = decoder.decode(messages[: commits[2] + 1])
    assert first.ended is not None
    inside = decoder.decode(messages[commits[2] + 1 : commits[2] + 3])
    assert inside.ended is None
    assert not decoder.is_between_transactions

    # From this position on, the server skips what was read.
    lsn = format_lsn(first.ended.end_lsn)
    database.execute("SELECT pg_replication_slot_advance('s', %s)", (lsn,))
    left = [message for message in _messages(database) if message[0] != Kind.RELATION]
    assert left == [
        message for message in messages[commits[2] + 1 :] if message[0] != Kind.RELATION
    ]


# ------------------------------------------------------------------ invalid bytes


def _tuple(*cells: str | None) -> bytes:
    parts = [pack(">h", len(cells))]
    for cell in cells:
        text = (cell or "").encode()
        parts.append(b"n" if cell is None else b"t" + pack(">i", len(text)) + text)
    return b"".join(parts)


def _log() -> list[bytes]:
    """Return the log of one transaction, as a server sends it."""
    columns = b"".join(b"\1" + name + b"\0" + pack(">Ii", 25, -1) for name in (b"id", b"note"))
    return [
        b"B" + pack(">qqI", 100, 5, 7),
        b"R" + pack(">I", 16_400) + b"public\0t\0d" + pack(">h", 2) + columns,
        *(b"I" + pack(">I", 16_400) + b"N" + _tuple(str(n), f"note {n}") for n in range(5)),
        b"U" + pack(">I", 16_400) + b"N" + _tuple("1", None),
        b"U" + pack(">I", 16_400) + b"K" + _tuple("1", None) + b"N" + _tuple("9", "moved"),
        b"D" + pack(">I", 16_400) + b"K" + _tuple("2", None),
        b"T" + pack(">iBI", 1, 0, 16_400),
        b"C" + pack(">Bqqq", 0, 100, 150, 5),
    ]


def test_the_log_of_these_tests_is_right() -> None:
    assert _decode(_log(), []) == list(Reader().read(_log()))


@pytest.mark.long
@settings(max_examples=2_000)
@given(data=st.data())
def test_other_bytes_are_an_error_and_never_a_hang(data: st.DataObject) -> None:
    log = [bytearray(message) for message in _log()]
    for _ in range(data.draw(st.integers(1, 4))):
        number = data.draw(st.integers(0, len(log) - 1))
        message = log[number]
        place = data.draw(st.integers(0, len(message)))
        match data.draw(st.sampled_from(["change", "cut", "drop", "repeat", "insert"])):
            case "change" if place < len(message):
                message[place] = data.draw(st.integers(0, 255))
            case "cut":
                del message[place:]
            case "drop" if len(log) > 1:
                del log[number]
            case "insert":
                message[place:place] = data.draw(st.binary(max_size=6))
            case _:
                log.insert(number, bytearray(message))
    messages = [bytes(message) for message in log]
    try:
        decoded = Decoder().decode(messages)
    except ReplicationProtocolError:
        return
    # Accepted bytes are decoded as by the plain decoder.
    assert sum(change.number for change in decoded.changes) == sum(
        message[0] in b"IUD" for message in messages
    )
    wanted = [change for change in Reader().read(messages) if change.kind != "T"]
    assert [change for change in _in_order(decoded) if change.kind != "T"] == wanted


@pytest.mark.parametrize(
    ("number", "message", "words"),
    [
        (2, b"", "a message is empty"),
        (2, b"I", "does not contain the number of its relation"),
        (2, b"I" + pack(">I", 16_400), "has no row"),
        (2, b"I" + pack(">I", 5) + b"N" + _tuple("1", "2"), "a relation 5 that was not described"),
        (2, b"I" + pack(">I", 16_400) + b"K" + _tuple("1", "2"), "a row of the unknown kind 'K'"),
        (2, b"I" + pack(">I", 16_400) + b"N" + _tuple("1"), "has 1 columns, but its table has 2"),
        (2, b"I" + pack(">I", 16_400) + b"N" + pack(">h", 2) + b"bn", "the unknown kind 'b'"),
        (2, b"I" + pack(">I", 16_400) + b"N" + pack(">hBi", 2, 116, -1), "ends before its last"),
        (2, b"I" + pack(">I", 16_400) + b"N" + _tuple("1", "2") + b"x", "bytes follow"),
        (8, b"U" + pack(">I", 16_400) + b"K" + _tuple("1", None), "an update has no new row"),
        (2, b"?", "the unknown kind '?'"),
        (2, b"B" + pack(">qqI", 100, 5, 7), "begins within another"),
        (0, b"O" + pack(">q", 1) + b"x\0", "outside of a transaction"),
        (11, b"C" + pack(">Bqqq", 0, 99, 150, 5), "does not belong to the preceding transaction"),
        (0, b"B" + pack(">qq", 100, 5), "it ends too early"),
        (1, b"R" + pack(">I", 16_400) + b"public", "a text has no end"),
        (1, b"R" + pack(">I", 16_400) + b"\0t\0x" + pack(">h", 0), "not a replica identity"),
        (10, b"T" + pack(">iB", 2**30, 0), "1073741824 relations"),
        (10, b"T" + pack(">iBI", 1, 0, 5), "a truncate refers to a relation 5"),
    ],
)
def test_invalid_messages_raise_descriptive_errors(number: int, message: bytes, words: str) -> None:
    log = _log()
    log[number] = message

    with pytest.raises(ReplicationProtocolError, match=words.replace("?", r"\?")):
        Decoder().decode(log)


def test_texts_of_many_bytes_are_copied_one_by_one() -> None:
    log = _log()
    large = "é" * 500_000
    log[3] = b"I" + pack(">I", 16_400) + b"N" + _tuple("7", large)

    assert _decode(log, []) == list(Reader().read(log))


def test_empty_batch_decodes_to_nothing() -> None:
    assert Decoder().decode([]) == DecodedBatch((), (), (), None)


@given(
    st.lists(
        st.tuples(
            st.integers(min_value=0, max_value=2**63 - 1),
            st.integers(min_value=0, max_value=2**48 - 1),
        )
    )
)
def test_sequences_of_many_rows_are_those_of_each(places: list[tuple[int, int]]) -> None:
    lsns = np.array([lsn for lsn, _ in places], np.int64)
    ordinals = np.array([place for _, place in places], np.int64)
    found = sequences_of(lsns, ordinals)
    found.validate(full=True)
    assert found.to_pylist() == [sequence_of(*place) for place in places]
    # The texts have one length, so they sort in the order of the places.
    assert sorted(found.to_pylist()) == [sequence_of(*place) for place in sorted(places)]
