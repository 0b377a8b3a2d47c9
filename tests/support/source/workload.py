"""Random work in a database, and the audit that triggers on the server write: the oracle."""

from __future__ import annotations

import random
import time
from datetime import datetime
from typing import Any, Final

import orjson
import psycopg
from psycopg.rows import dict_row

#: A table with a single key, one with two columns of which the order differs, and one that has a
#: unique index only; for the last one, the log contains whole old rows.
TABLES: Final = {
    "items": ("id",),
    "stock": ("place", "id"),
    "notes": ("id",),
}
SETUP: Final = """
CREATE TABLE items (id int PRIMARY KEY, name text, price numeric(8,2), body text);
ALTER TABLE items ALTER body SET STORAGE EXTERNAL;
CREATE TABLE stock (id int, place text, number bigint, body text, PRIMARY KEY (place, id));
CREATE TABLE notes (id int NOT NULL UNIQUE, body text, seen timestamptz);
ALTER TABLE notes ALTER body SET STORAGE EXTERNAL;
ALTER TABLE notes REPLICA IDENTITY FULL;
CREATE SCHEMA oracle;
CREATE TABLE oracle.audit (
    seq bigserial PRIMARY KEY, xid xid8, tab text, op text, key jsonb, row jsonb, truncated boolean
);
CREATE FUNCTION oracle.note() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    key text[] := TG_ARGV;
    old_key jsonb; new_key jsonb;
BEGIN
    IF TG_OP <> 'INSERT' THEN
        SELECT jsonb_agg(to_jsonb(OLD) -> k ORDER BY n) INTO old_key
        FROM unnest(key) WITH ORDINALITY AS u(k, n);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        SELECT jsonb_agg(to_jsonb(NEW) -> k ORDER BY n) INTO new_key
        FROM unnest(key) WITH ORDINALITY AS u(k, n);
    END IF;
    IF TG_OP = 'DELETE' OR (TG_OP = 'UPDATE' AND old_key <> new_key) THEN
        INSERT INTO oracle.audit (xid, tab, op, key)
        VALUES (pg_current_xact_id(), TG_TABLE_NAME, 'D', old_key);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO oracle.audit (xid, tab, op, key, row)
        VALUES (pg_current_xact_id(), TG_TABLE_NAME, 'P', new_key, to_jsonb(NEW));
    END IF;
    RETURN NULL;
END $$;
"""
_TRIGGER: Final = (
    "CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {table} "
    "FOR EACH ROW EXECUTE FUNCTION oracle.note({key})"
)

#: The advisory lock of all working transactions.
_WORKING: Final = 1

State = dict[str, Any] | None


def set_up(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SETUP.encode())
        for table, key in TABLES.items():
            words = ", ".join(f"'{name}'" for name in key)
            connection.execute(_TRIGGER.format(table=table, key=words).encode())


def work(dsn: str, chance: random.Random, transactions: int, *, pause_seconds: float = 0.0) -> None:
    """Run some transactions with some statements each; a part of them is rolled back.

    With a pause, some transactions are open for that long. Several may work at once: a transaction
    that causes a deadlock with another one is rolled back.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        extras = _added_columns(connection)
        for _ in range(transactions):
            connection.execute(b"BEGIN")
            connection.execute(f"SELECT pg_advisory_xact_lock_shared({_WORKING})".encode())
            try:
                _transact(connection, chance, extras)
            except psycopg.errors.DeadlockDetected:
                connection.execute(b"ROLLBACK")
                continue
            if pause_seconds and chance.random() < 0.1:
                time.sleep(pause_seconds)
            connection.execute(b"ROLLBACK" if chance.random() < 0.1 else b"COMMIT")


def _transact(
    connection: psycopg.Connection, chance: random.Random, extras: dict[str, list[str]]
) -> None:
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        savepoint = chance.random() < 0.2
        if savepoint:
            connection.execute(b"SAVEPOINT s")
        connection.execute(_statement(chance, extras).encode())
        if savepoint and chance.random() < 0.5:
            connection.execute(b"ROLLBACK TO SAVEPOINT s")


def read_all(dsn: str) -> tuple[datetime, dict[str, list[dict[str, Any]]]]:
    """Return what a reader sees of all tables at one time, and that time, by the server's clock."""
    with psycopg.connect(dsn, row_factory=dict_row, autocommit=True) as connection:
        # The lock is granted when all work has ended, and no work begins until it is released: all
        # commits that are seen are before this time, and all others after it.
        connection.execute(f"SELECT pg_advisory_lock({_WORKING}), pg_sleep(0.002)".encode())
        connection.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ")
        (at,) = connection.execute(b"SELECT clock_timestamp() AS at").fetchall()
        rows = {
            table: connection.execute(f"SELECT * FROM {table}".encode()).fetchall()
            for table in TABLES
        }
    return at["at"], rows


class Alterations:
    """Columns that are added to tables, and dropped, renamed and widened there.

    The audit uses the current names of columns. Therefore a column gets no name that the lake
    cannot attribute to it: a name that exists neither in one run nor in the next one, while another
    column of the table was dropped (docs/postgresql.md, "Columns").
    """

    def __init__(self) -> None:
        #: Columns with names that they did not have at the last run.
        self._new: set[str] = set()
        #: Tables of which a column was dropped, and those where a name existed only between two
        #: runs.
        self._dropped: set[str] = set()
        self._passing: set[str] = set()

    def note_read(self) -> None:
        """Note that a run has read all tables, and that they have not been altered since."""
        for names in (self._new, self._dropped, self._passing):
            names.clear()

    def alter(self, dsn: str, chance: random.Random) -> None:
        """Add a column to a table, or drop, rename or widen one that was added before."""
        table = chance.choice(list(TABLES))
        name = f"extra_{chance.randrange(10**9)}"
        with psycopg.connect(dsn) as connection:
            types = dict(_types(connection, table))
            if not types or chance.random() < 0.4:
                kind = chance.choice(["int", "bigint", "text"])
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}".encode())
                self._new.add(name)
                return
            old = chance.choice(list(types))
            kind = chance.choice(["DROP", "RENAME", "WIDEN"])
            if kind == "RENAME" and not (old in self._new and table in self._dropped):
                self._rename(connection, table, old, name)
            elif kind == "DROP" and table not in self._passing:
                self._drop(connection, table, old)
            else:
                wider = {"integer": "bigint"}.get(types[old], types[old])
                connection.execute(f"ALTER TABLE {table} ALTER {old} TYPE {wider}".encode())

    def _rename(self, connection: psycopg.Connection, table: str, old: str, name: str) -> None:
        if old in self._new:
            self._passing.add(table)
        self._new.add(name)
        connection.execute(f"ALTER TABLE {table} RENAME {old} TO {name}".encode())
        moved = f"row - '{old}' || jsonb_build_object('{name}', row -> '{old}')"
        _rewrite_audit(connection, table, old, moved)

    def _drop(self, connection: psycopg.Connection, table: str, old: str) -> None:
        self._dropped.add(table)
        connection.execute(f"ALTER TABLE {table} DROP COLUMN {old}".encode())
        _rewrite_audit(connection, table, old, f"row - '{old}'")


def _rewrite_audit(connection: psycopg.Connection, table: str, column: str, row: str) -> None:
    """Rewrite the audited rows that have a column."""
    connection.execute(
        f"UPDATE oracle.audit SET row = {row} WHERE tab = '{table}' AND row ? '{column}'".encode()
    )


def _types(connection: psycopg.Connection, table: str) -> list[tuple[str, str]]:
    """Return the columns that were added to a table, and their types."""
    return connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        f"WHERE attrelid = 'public.{table}'::regclass AND attname ^@ 'extra_' "
        "AND NOT attisdropped ORDER BY attnum".encode()
    ).fetchall()


def _added_columns(connection: psycopg.Connection) -> dict[str, list[str]]:
    return {table: [name for name, _ in _types(connection, table)] for table in TABLES}


def _statement(chance: random.Random, extras: dict[str, list[str]]) -> str:
    body = chance.choice(["NULL", "''", "'short'", "repeat(md5(random()::text), 400)"])
    table, key = chance.choice(list(TABLES.items()))
    number = chance.randrange(8)
    where = f"id = {number}"
    if "place" in key:
        where += f" AND place = '{chance.choice('ab')}'"
    kind = chance.random()
    if kind < 0.35:
        place = chance.choice("ab")
        values = {
            "items": f"({number}, 'n{chance.random():.3f}', {chance.randrange(999)}, {body})",
            "stock": f"({number}, '{place}', {chance.randrange(10**12)}, {body})",
            "notes": f"({number}, {body}, clock_timestamp())",
        }[table]
        names = ", ".join(key)
        change = "body = excluded.body" if chance.random() < 0.5 else f"id = {table}.id"
        return f"INSERT INTO {table} VALUES {values} ON CONFLICT ({names}) DO UPDATE SET {change}"
    if kind < 0.5:
        return f"DELETE FROM {table} WHERE {where}"
    if kind < 0.6 and table == "notes":
        # A large value is logged with the key only where the log contains the whole old row.
        other = number + 8
        is_free = f"NOT EXISTS (SELECT FROM notes WHERE id = {other})"
        return f"UPDATE notes SET id = {other} WHERE {where} AND {is_free}"
    columns = {
        "items": ["name = name || 'x'", "price = price + 1", f"body = {body}"],
        "stock": ["number = number + 1", f"body = {body}"],
        "notes": ["seen = clock_timestamp()", f"body = {body}"],
    }[table]
    # A number is valid as a text as well.
    columns += [
        f"{name} = {chance.choice(['NULL', chance.randrange(999)])}" for name in extras[table]
    ]
    scope = "true" if chance.random() < 0.1 else where
    return f"UPDATE {table} SET {chance.choice(columns)} WHERE {scope}"


def states(dsn: str, table: str) -> dict[tuple[Any, ...], list[State]]:
    """Return the states of each record by key: the last of each transaction, None if deleted.

    A record that a transaction wrote and then deleted existed for an instant.
    """
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "SELECT key::text, xid::text, op, row::text FROM oracle.audit WHERE tab = %s "
            "ORDER BY seq",
            (table,),
        ).fetchall()
    by_key: dict[tuple[Any, ...], dict[str, list[State]]] = {}
    for key, xid, op, row in rows:
        steps = by_key.setdefault(tuple(orjson.loads(key)), {}).setdefault(xid, [])
        steps.append(orjson.loads(row) if op == "P" else None)
    found: dict[tuple[Any, ...], list[State]] = {}
    for identity, transactions in by_key.items():
        reported = found.setdefault(identity, [])
        for steps in transactions.values():
            puts = [step for step in steps if step is not None]
            if puts:
                reported.append(puts[-1])
            if steps[-1] is None and (not reported or reported[-1] is not None):
                reported.append(None)
    return found


def plain_columns(dsn: str, table: str) -> list[str]:
    """Return the columns whose values are the same in JSON and in Python."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = format('public.%%I', %s::text)"
            "::regclass AND attnum > 0 AND atttypid IN (20, 23, 25) ORDER BY attnum",
            (table,),
        ).fetchall()
    return [row[0] for row in rows]
