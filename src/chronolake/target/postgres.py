"""PostgreSQL as a target: one transaction changes a table and stores its snapshot.

Chronolake's own tables are in the schema `state_schema`: `state` (what each target table contains),
`changes` (what triggers have recorded of others), `parts` (what tasks have written), and temporary
tables. A session-level advisory lock is the lease of a table.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import psycopg
from psycopg import sql

from chronolake.errors import TargetBusyError, TargetChangedError, TargetError
from chronolake.failpoints import reach
from chronolake.masking import URL_ESCAPES, is_broken_by_password
from chronolake.target.additions import (
    POSTGRES_ADDITIONS,
    REFERENCE,
    Addition,
    raise_if_lost,
)
from chronolake.target.changes import DELETE, INSERT, OPERATION, UPDATE
from chronolake.target.database import (
    BUSY_SECONDS,
    LOCK_SECONDS,
    TAKE_OVER,
    Relation,
    Survey,
    counts_text,
    incomplete_error,
    meanwhile_error,
    written_of,
)
from chronolake.target.limits import POSTGRES
from chronolake.target.postgres_errors import INDEX_FUNCTIONS, INDEX_HINT, translate_errors
from chronolake.target.state import ChangeKind, ColumnChange, Published
from chronolake.types import ACTIVE, START

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from chronolake.config import PostgresTarget
    from chronolake.target.database import Written
    from chronolake.target.encoding import RowEncoder
    from chronolake.target.limits import TargetColumn, TargetLimits

_OLDEST: Final = 120_000
_CONNECT_SECONDS: Final = 10
_POLL_SECONDS: Final = 0.2
#: The session setting by which the triggers recognize Chronolake.
_WRITER: Final = "chronolake.writer"
_TRIGGERS: Final = {
    "chronolake_rows": "AFTER INSERT OR UPDATE OR DELETE",
    "chronolake_truncate": "AFTER TRUNCATE",
}
_SETTINGS: Final = (
    "-c timezone=UTC -c datestyle=ISO -c search_path= -c statement_timeout=0 -c row_security=off "
    "-c idle_in_transaction_session_timeout=0 -c client_min_messages=error"
)
_OWN_TABLES: Final = (
    """CREATE TABLE IF NOT EXISTS {state} (
  relation text PRIMARY KEY, lake_table text NOT NULL, snapshot_id bigint,
  published_at timestamptz NOT NULL, state text NOT NULL
)""",
    """CREATE TABLE IF NOT EXISTS {changes} (
  relation text NOT NULL, operation text NOT NULL, changed_by text NOT NULL,
  changed_at timestamptz NOT NULL
)""",
    """CREATE TABLE IF NOT EXISTS {parts} (
  load text, part int, counts text, PRIMARY KEY (load, part)
)""",
    # It runs with the rights of its owner, because other writers cannot write `changes`.
    """CREATE OR REPLACE FUNCTION {note}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog AS {body}""",
)


@dataclass(frozen=True)
class PostgresDatabase:
    """The database of a target.

    Attributes:
        config: the target's settings.
    """

    config: PostgresTarget

    def survey(self, relations: Sequence[Relation]) -> Survey:
        """Return the limits, and what tables contain, without locks; nothing is created."""
        own = _Own(self.config.state_schema)
        with connect(self.config.dsn) as connection:
            (found,) = _row(
                connection, "SELECT to_regclass(%s)::text", [own.name("state").as_string(None)]
            )
            if found is None:
                return Survey(POSTGRES)
            rows = connection.execute(
                sql.SQL("SELECT relation, state FROM {}").format(own.name("state"))
            ).fetchall()
            stored = {name: Published.from_text(text) for name, text in rows}
            states = {item: stored[str(item)] for item in relations if str(item) in stored}
            return Survey(
                POSTGRES,
                states,
                {
                    relation: find_additions(connection, relation, state.physical, state)
                    for relation, state in states.items()
                },
            )

    @contextmanager
    def open(self, relation: Relation) -> Iterator[PostgresSession]:
        """Connect, and hold the lease of a table while the block runs."""
        with connect(self.config.dsn) as connection:
            session = PostgresSession(connection, self.config, relation)
            session.acquire_lease()
            session.prepare()
            yield session


class _Own:
    """Names of Chronolake's own tables."""

    def __init__(self, schema: str) -> None:
        self.schema = schema

    def name(self, table: str) -> sql.Identifier:
        """Return the name of a table, as SQL."""
        return sql.Identifier(self.schema, table)


@contextmanager
def connect(dsn: str) -> Iterator[psycopg.Connection]:
    """Connect to a target while the block runs; each statement is its own transaction.

    Raises:
        TargetError: the database cannot be reached, refuses the user, or is too old.
    """
    with translate_errors():
        if "://" in dsn and is_broken_by_password(dsn):
            raise TargetError(
                "`dsn` of the target is not a valid address.",
                hint=f"In a password, write {URL_ESCAPES}.",
            )
        parameters = psycopg.conninfo.conninfo_to_dict(dsn)
        parameters.setdefault("connect_timeout", _CONNECT_SECONDS)
        options = f"{parameters.pop('options', '') or ''} {_SETTINGS}".strip()
        connection = psycopg.connect(
            psycopg.conninfo.make_conninfo("", **parameters),
            autocommit=True,
            options=options,
            application_name="chronolake",
            client_encoding="UTF8",
        )
    with connection:
        version = connection.info.server_version
        if version < _OLDEST:
            raise TargetError(
                f"The target runs PostgreSQL {version // 10_000}, which is too old.",
                hint=f"PostgreSQL {_OLDEST // 10_000} or later is required.",
            )
        with translate_errors():
            yield connection


def _row(connection: psycopg.Connection, query: Any, values: Sequence[Any] = ()) -> tuple[Any, ...]:
    found = connection.execute(query, values or None).fetchone()
    assert found is not None  # noqa: S101 - the queries are aggregates
    return found


@dataclass(frozen=True)
class CopySink:
    """Writes the rows of a task with COPY.

    Attributes:
        dsn: the address; it may contain a password.
        state_schema: the schema of Chronolake's tables.
        load: the temporary table.
        columns: its columns.
    """

    dsn: str = field(repr=False)
    state_schema: str
    load: str
    columns: tuple[str, ...]

    def write(self, part: int, lines: Iterator[pa.Buffer], encoder: RowEncoder) -> None:
        """Write the lines of a part, unless another attempt of the task has written them."""
        own = _Own(self.state_schema)
        copy = sql.SQL("COPY {} ({}) FROM STDIN").format(
            own.name(self.load), sql.SQL(", ").join(map(sql.Identifier, self.columns))
        )
        with connect(self.dsn) as connection, connection.transaction():
            # It waits for another attempt of this task, and conflicts if that has committed.
            claimed = connection.execute(
                sql.SQL(
                    "INSERT INTO {} (load, part) VALUES (%s, %s) ON CONFLICT DO NOTHING"
                ).format(own.name("parts")),
                (self.load, part),
            ).rowcount
            if not claimed:
                return
            with connection.cursor() as cursor, cursor.copy(copy) as target:
                for line in lines:
                    target.write(memoryview(line))
            connection.execute(
                sql.SQL("UPDATE {} SET counts = %s WHERE load = %s AND part = %s").format(
                    own.name("parts")
                ),
                (counts_text(encoder), self.load, part),
            )


class PostgresSession:
    """A connection that holds the lease of one target table."""

    def __init__(
        self, connection: psycopg.Connection, config: PostgresTarget, relation: Relation
    ) -> None:
        self.relation = relation
        self.limits: TargetLimits = POSTGRES
        self.detects_changes = config.detect_changes
        self._connection = connection
        self._config = config
        self._own = _Own(config.state_schema)
        self._target = sql.Identifier(relation.schema, relation.table)

    def acquire_lease(self) -> None:
        """Take the lease of the table, which ends with the connection.

        Raises:
            TargetBusyError: another process holds it.
        """
        digest = sha256(f"chronolake {self._config.state_schema} {self.relation}".encode())
        number = int.from_bytes(digest.digest()[:8], "big", signed=True)
        until = time.monotonic() + BUSY_SECONDS
        while not _row(self._connection, "SELECT pg_try_advisory_lock(%s)", [number])[0]:
            if time.monotonic() > until:
                raise TargetBusyError(
                    f"Another process is publishing {self.relation}.",
                    hint="Wait until it has ended. If it was killed, the server may need a moment "
                    "to notice.",
                )
            time.sleep(_POLL_SECONDS)

    def prepare(self) -> None:
        """Create Chronolake's tables, and remove temporary tables of runs that were killed."""
        own = self._own
        if _row(
            self._connection, "SELECT to_regclass(%s)", [own.name("parts").as_string(None)]
        ) == (None,):
            self._create_own_tables()
        rows = self._connection.execute(
            "SELECT relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
            "ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relkind = 'r' "
            "AND starts_with(c.relname, %s)",
            (own.schema, self.relation.prefix),
        ).fetchall()
        for (name,) in rows:
            self.drop(name)

    def _create_own_tables(self) -> None:
        own = self._own
        with self._connection.transaction():
            # Two processes may begin at the same time.
            self._connection.execute("SELECT pg_advisory_xact_lock(6243861537)")
            self._create_schema(own.schema)
            for statement in _OWN_TABLES:
                self._connection.execute(
                    sql.SQL(statement).format(
                        state=own.name("state"),
                        changes=own.name("changes"),
                        parts=own.name("parts"),
                        note=own.name("note_change"),
                        body=sql.Literal(self._trigger_body()),
                    )
                )

    def _trigger_body(self) -> str:
        changes = self._own.name("changes").as_string(None)
        return f"""BEGIN
  IF coalesce(current_setting('{_WRITER}', true), '') <> 'on' AND NOT EXISTS (
    SELECT FROM {changes} WHERE relation = TG_ARGV[0] AND operation = TG_OP
  ) THEN
    INSERT INTO {changes} VALUES (TG_ARGV[0], TG_OP, session_user, now());
  END IF;
  RETURN NULL;
END"""

    def published(self) -> Published | None:
        """Return the state of the table, or None if it was never published."""
        found = self._connection.execute(
            sql.SQL("SELECT state FROM {} WHERE relation = %s").format(self._own.name("state")),
            [str(self.relation)],
        ).fetchone()
        return None if found is None else Published.from_text(found[0])

    def is_present(self) -> bool:
        """Return whether the database has a table with this name."""
        return self._physical() is not None

    def _physical(self) -> str | None:
        (oid,) = _row(
            self._connection, "SELECT to_regclass(%s)::oid::text", [self._target.as_string(None)]
        )
        return None if oid is None else str(oid)

    def raise_if_changed(self, published: Published) -> None:
        """Raise if somebody else has changed the table since it was published."""
        reason = self._foreign_change(published)
        if reason is not None:
            raise TargetChangedError(
                f"{self.relation} was changed by others: {reason}.",
                table=published.table,
                hint=TAKE_OVER,
            )

    def _foreign_change(self, published: Published) -> str | None:
        physical = self._physical()
        if physical is None:
            return "the table was dropped or renamed"
        if physical != published.physical:
            return "another table has its name"
        noted = self._connection.execute(
            sql.SQL(
                "SELECT operation, changed_by, changed_at FROM {} WHERE relation = %s "
                "ORDER BY changed_at LIMIT 1"
            ).format(self._own.name("changes")),
            [str(self.relation)],
        ).fetchone()
        if noted is not None:
            return f"{noted[0]} by the user {noted[1]} at {noted[2]:%Y-%m-%d %H:%M:%S} UTC"
        if self._columns(physical) != {column.name: column.sql for column in published.columns}:
            return "its columns were altered"
        enabled = self._connection.execute(
            "SELECT tgname FROM pg_catalog.pg_trigger WHERE tgrelid = %s::oid AND tgenabled = 'A'",
            [physical],
        ).fetchall()
        is_expected = self.detects_changes and published.has_triggers
        if is_expected and not _TRIGGERS.keys() <= {name for (name,) in enabled}:
            return "its triggers chronolake_rows and chronolake_truncate were dropped or disabled"
        return None if self._has_rows() == published.has_rows else "all rows were removed or added"

    def _columns(self, physical: str) -> dict[str, str]:
        return dict(
            self._connection.execute(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_catalog.pg_attribute "
                "WHERE attrelid = %s::oid AND attnum > 0 AND NOT attisdropped",
                [physical],
            ).fetchall()
        )

    def _has_rows(self) -> bool:
        (found,) = _row(
            self._connection, sql.SQL("SELECT EXISTS (SELECT FROM {})").format(self._target)
        )
        return bool(found)

    def create_load(self, columns: Sequence[TargetColumn], *, is_stage: bool) -> str:
        """Create a temporary table and return its name."""
        name = f"{self.relation.prefix}{uuid4().hex[:12]}"
        operation = [sql.SQL("{} char(1)").format(sql.Identifier(OPERATION))] if is_stage else []
        definitions = [*operation, *map(_definition, columns)]
        self._connection.execute(
            sql.SQL("CREATE {} TABLE {} ({})").format(
                # Only a table that remains must survive a crash of the server.
                sql.SQL("UNLOGGED" if is_stage else ""),
                self._own.name(name),
                sql.SQL(", ").join(definitions),
            )
        )
        return name

    def sink(self, load: str, columns: Sequence[TargetColumn], *, is_stage: bool) -> CopySink:
        """Return what writes rows to a temporary table."""
        names = [column.name for column in columns]
        if is_stage:
            names.insert(0, OPERATION)
        return CopySink(self._config.dsn, self._config.state_schema, load, tuple(names))

    def written(self, load: str, parts: int) -> Written:
        """Return what tasks have written, after checking that no part is missing."""
        rows = self._connection.execute(
            sql.SQL("SELECT counts FROM {} WHERE load = %s").format(self._own.name("parts")), [load]
        ).fetchall()
        if len(rows) != parts:
            raise TargetError(
                f"{parts} parts were written, and the target has {len(rows)}.",
                hint="Publish again. If it happens again, check the server's log.",
            )
        return written_of(text for (text,) in rows)

    def drop(self, load: str) -> None:
        """Drop a temporary table."""
        with self._connection.transaction():
            # A task of a run that was killed may still write to it: the next run drops it.
            self._connection.execute(f"SET LOCAL lock_timeout = '{int(BUSY_SECONDS)}s'")
            self._connection.execute(
                sql.SQL("DROP TABLE IF EXISTS {}").format(self._own.name(load))
            )
            self._connection.execute(
                sql.SQL("DELETE FROM {} WHERE load = %s").format(self._own.name("parts")), [load]
            )

    @contextmanager
    def _transaction(self, base: Published | None) -> Iterator[None]:
        """Change the table in a transaction that begins only if its state is still `base`."""
        with self._connection.transaction():
            self._connection.execute(f"SET LOCAL {_WRITER} = 'on'")
            self._connection.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
            found = self._connection.execute(
                sql.SQL("SELECT state FROM {} WHERE relation = %s FOR UPDATE").format(
                    self._own.name("state")
                ),
                [str(self.relation)],
            ).fetchone()
            if (None if found is None else Published.from_text(found[0])) != base:
                raise meanwhile_error(self.relation)
            yield
            reach("target.before-commit")
        reach("target.after-commit")

    def _store(self, published: Published) -> None:
        values = {
            "relation": str(self.relation),
            "table": published.table,
            "snapshot": published.snapshot_id,
            "state": published.to_text(),
        }
        self._connection.execute(
            sql.SQL(
                "INSERT INTO {} (relation, lake_table, snapshot_id, published_at, state) VALUES "
                "(%(relation)s, %(table)s, %(snapshot)s, now(), %(state)s) ON CONFLICT (relation) "
                "DO UPDATE SET lake_table = excluded.lake_table, snapshot_id = "
                "excluded.snapshot_id, published_at = excluded.published_at, state = excluded.state"
            ).format(self._own.name("state")),
            values,
        )

    def swap_in(
        self, load: str, base: Published | None, published: Published, *, takes_over: bool
    ) -> None:
        """Replace the target table by a temporary table, or its rows, and store the state."""
        own = self._own.name(load)
        with self._name_long_key(load, published):
            self._index(own, published.columns)
        self._create_schema(self.relation.schema)
        with self._transaction(base):
            physical = self._physical()
            if physical is not None:
                self._lock(physical)
                if base is not None and not takes_over:
                    self.raise_if_changed(base)
            reach("target.before-swap")
            additions = [] if physical is None else self._additions(physical, base or published)
            if physical is not None and additions and self._has_form_of(published, physical):
                self._fill(load, published, additions)
            else:
                if not takes_over:
                    raise_if_lost(str(self.relation), published.table, additions)
                self._replace(load, physical)
            self._set_triggers()
            self._connection.execute(
                sql.SQL("DELETE FROM {} WHERE relation = %s").format(self._own.name("changes")),
                [str(self.relation)],
            )
            self._store(self._stored(published, self._physical() or ""))
            reach("target.after-swap")
        self._connection.execute(
            sql.SQL("DELETE FROM {} WHERE load = %s").format(self._own.name("parts")), [load]
        )

    def _create_schema(self, schema: str) -> None:
        """Create a schema, which needs no privilege if it exists."""
        (exists,) = _row(
            self._connection,
            "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s)",
            [schema],
        )
        if not exists:
            self._connection.execute(
                sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema))
            )

    def _lock(self, physical: str) -> None:
        (kind,) = _row(
            self._connection, "SELECT relkind FROM pg_class WHERE oid = %s::oid", [physical]
        )
        if kind != "r":
            raise TargetChangedError(
                f"{self.relation} is not an ordinary table, but a view or another object.",
                hint="Drop or rename it, or set another name in `rename` of the target.",
            )
        self._connection.execute(
            sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(self._target)
        )

    def _stored(self, published: Published, physical: str) -> Published:
        return replace(
            published,
            physical=physical,
            has_rows=self._has_rows(),
            has_triggers=self.detects_changes,
        )

    def _additions(self, physical: str, published: Published) -> list[Addition]:
        """Return what others have added to the table."""
        return find_additions(self._connection, self.relation, physical, published)

    def _index(self, table: sql.Identifier, columns: Sequence[TargetColumn]) -> None:
        key = [sql.Identifier(column.name) for column in columns if column.is_key]
        if key:
            self._connection.execute(
                sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({})").format(
                    table, sql.SQL(", ").join(key)
                )
            )
        names = {column.name for column in columns}
        for name in (START, ACTIVE):
            if name in names and ACTIVE in names:
                self._connection.execute(
                    sql.SQL("CREATE INDEX ON {} ({})").format(table, sql.Identifier(name))
                )
        self._connection.execute(sql.SQL("ANALYZE {}").format(table))

    @contextmanager
    def _name_long_key(self, load: str | None, published: Published) -> Iterator[None]:
        """Raise an error that names the column if a key of the rows in `load` is too long."""
        try:
            yield
        except psycopg.errors.ProgramLimitExceeded as failure:
            index = failure.diag.constraint_name or self.relation.prefix
            if (
                load is None
                or failure.diag.source_function not in INDEX_FUNCTIONS
                or not index.startswith(self.relation.prefix)
            ):
                raise
            longest = {
                column.name: _row(
                    self._connection,
                    sql.SQL("SELECT coalesce(max(octet_length({})), 0) FROM {}").format(
                        sql.Identifier(column.name), self._own.name(load)
                    ),
                )[0]
                for column in published.columns
                if column.is_key and column.sql in {"text", "bytea"}
            }
            column, length = max(longest.items(), key=lambda item: item[1])
            raise TargetError(
                f"A key has a value of {length:,} bytes, which is too long for an index of "
                "PostgreSQL.",
                table=published.table,
                column=column,
                hint=INDEX_HINT,
            ) from None

    def _has_form_of(self, published: Published, physical: str) -> bool:
        """Return whether the table has the columns and the key of a state."""
        if self._columns(physical) != {column.name: column.sql for column in published.columns}:
            return False
        key = self._connection.execute(
            "SELECT a.attname FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a ON "
            "a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey) WHERE i.indrelid = %s::oid AND "
            "i.indisprimary AND i.indisvalid",
            [physical],
        ).fetchall()
        return {name for (name,) in key} == {
            column.name for column in published.columns if column.is_key
        }

    def _fill(self, load: str, published: Published, additions: Sequence[Addition]) -> None:
        """Give the table the rows of a temporary table, and keep what others have added to it.

        With a key, equal rows are not written: foreign keys of others may reference them.
        """
        names = [column.name for column in published.columns]
        key = [column for column in published.columns if column.is_key]
        others = [column for column in published.columns if not column.is_key]
        parts = {
            "table": self._target,
            "load": self._own.name(load),
            "columns": sql.SQL(", ").join(map(sql.Identifier, names)),
            "same": sql.SQL(" AND ").join(
                sql.SQL("t.{0} = s.{0}").format(sql.Identifier(column.name)) for column in key
            ),
            "set": sql.SQL(", ").join(
                sql.SQL("{0} = s.{0}").format(sql.Identifier(column.name)) for column in others
            ),
            "old": sql.SQL(", ").join(_comparable("t", column) for column in others),
            "new": sql.SQL(", ").join(_comparable("s", column) for column in others),
        }
        if key:
            statements = [
                "DELETE FROM {table} t WHERE NOT EXISTS (SELECT FROM {load} s WHERE {same})",
                (
                    "UPDATE {table} t SET {set} FROM {load} s WHERE {same} "
                    "AND ROW({old}) IS DISTINCT FROM ROW({new})"
                ),
                (
                    "INSERT INTO {table} ({columns}) SELECT {columns} FROM {load} s "
                    "WHERE NOT EXISTS (SELECT FROM {table} t WHERE {same})"
                ),
            ]
            if not others:
                del statements[1]
        else:
            # TRUNCATE is refused if foreign keys reference the table, even from no row.
            is_referenced = any(addition.kind == REFERENCE for addition in additions)
            statements = [
                "DELETE FROM {table}" if is_referenced else "TRUNCATE {table}",
                "INSERT INTO {table} ({columns}) SELECT {columns} FROM {load}",
            ]
        for statement in statements:
            self._connection.execute(sql.SQL(statement).format(**parts))
        (is_complete,) = _row(
            self._connection,
            sql.SQL("SELECT (SELECT count(*) FROM {table}) = (SELECT count(*) FROM {load})").format(
                **parts
            ),
        )
        if not is_complete:
            raise incomplete_error(self.relation, published.table)
        self._connection.execute(sql.SQL("DROP TABLE {load}").format(**parts))

    def _replace(self, load: str, physical: str | None) -> None:
        """Give the temporary table the name, schema and privileges of the target table."""
        grants: list[tuple[Any, ...]] = []
        if physical is not None:
            grants = self._connection.execute(
                "SELECT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)"
                ") END, privilege_type, is_grantable FROM pg_catalog.pg_class, aclexplode(relacl) "
                "WHERE oid = %s::oid AND grantee <> relowner",
                [physical],
            ).fetchall()
            self._connection.execute(sql.SQL("DROP TABLE {}").format(self._target))
        moved = sql.Identifier(self.relation.schema, load)
        for statement in (
            sql.SQL("ALTER TABLE {} SET SCHEMA {}").format(
                self._own.name(load), sql.Identifier(self.relation.schema)
            ),
            sql.SQL("ALTER TABLE {} RENAME TO {}").format(
                moved, sql.Identifier(self.relation.table)
            ),
            *(
                sql.SQL("GRANT {} ON {} TO {} {}").format(
                    sql.SQL(privilege),
                    self._target,
                    sql.SQL(grantee),
                    sql.SQL("WITH GRANT OPTION" if is_grantable else ""),
                )
                for grantee, privilege, is_grantable in grants
            ),
        ):
            self._connection.execute(statement)

    def _set_triggers(self) -> None:
        """Create the triggers that record changes by others, or drop them if not wanted."""
        for name, event in _TRIGGERS.items():
            statements = [sql.SQL("DROP TRIGGER IF EXISTS {trigger} ON {table}")]
            if self.detects_changes:
                statements += [
                    sql.SQL(
                        "CREATE TRIGGER {trigger} {event} ON {table} FOR EACH STATEMENT "
                        "EXECUTE FUNCTION {note}({relation})"
                    ),
                    # Also for replication, and not disabled by accident with all other triggers.
                    sql.SQL("ALTER TABLE {table} ENABLE ALWAYS TRIGGER {trigger}"),
                ]
            for statement in statements:
                self._connection.execute(
                    statement.format(
                        trigger=sql.Identifier(name),
                        event=sql.SQL(event),
                        table=self._target,
                        note=self._own.name("note_change"),
                        relation=sql.Literal(str(self.relation)),
                    )
                )

    def apply(
        self,
        load: str | None,
        written: Written,
        base: Published,
        published: Published,
        changes: Sequence[ColumnChange],
    ) -> None:
        """Change rows and columns of the target table, and store the state."""
        if load is not None:
            self._connection.execute(sql.SQL("ANALYZE {}").format(self._own.name(load)))
        with self._name_long_key(load, published), self._transaction(base):
            for change in changes:
                self._connection.execute(_alter(self._target, change))
            reach("target.altered")
            if load is not None:
                self._change_rows(load, written, published)
            if base.has_triggers != self.detects_changes:
                self._set_triggers()
            stored = self._stored(published, base.physical)
            # Statements see what others committed while this transaction waited for their locks.
            self.raise_if_changed(stored)
            self._store(stored)

    def _change_rows(self, load: str, written: Written, published: Published) -> None:
        names = [column.name for column in published.columns]
        key = [column.name for column in published.columns if column.is_key]
        parts = {
            "table": self._target,
            "load": self._own.name(load),
            "operation": sql.Identifier(OPERATION),
            "same": sql.SQL(" AND ").join(
                sql.SQL("t.{0} = s.{0}").format(sql.Identifier(name)) for name in key
            ),
            "columns": sql.SQL(", ").join(map(sql.Identifier, names)),
            "set": sql.SQL(", ").join(
                sql.SQL("{0} = s.{0}").format(sql.Identifier(name))
                for name in names
                if name not in key
            ),
        }
        statements = {
            DELETE: "DELETE FROM {table} t USING {load} s WHERE s.{operation} = 'D' AND {same}",
            UPDATE: "UPDATE {table} t SET {set} FROM {load} s WHERE s.{operation} = 'U' AND {same}",
            INSERT: "INSERT INTO {table} ({columns}) SELECT {columns} FROM {load} s "
            "WHERE s.{operation} = 'I'",
        }
        for operation, statement in statements.items():
            expected = written.rows[operation]
            if not expected:
                continue
            try:
                changed = self._connection.execute(sql.SQL(statement).format(**parts)).rowcount
            except psycopg.errors.UniqueViolation as failure:
                if not (failure.diag.constraint_name or "").startswith(self.relation.prefix):
                    raise
                changed = -1
            if changed != expected:
                raise TargetChangedError(
                    f"{self.relation} was changed by others: it does not have the rows that were "
                    "published.",
                    table=published.table,
                    hint=TAKE_OVER,
                )


def find_additions(
    connection: psycopg.Connection, relation: Relation, physical: str, published: Published
) -> list[Addition]:
    """Return what others have added to a table."""
    rows = connection.execute(
        POSTGRES_ADDITIONS,
        {
            "oid": physical,
            "prefix": relation.prefix,
            "triggers": list(_TRIGGERS),
            "key": [column.name for column in published.columns if column.is_key],
        },
    ).fetchall()
    return [Addition(kind, name) for kind, name in rows]


def _comparable(side: str, column: TargetColumn) -> sql.Composed:
    """Return a column as SQL that can be compared: the type json cannot."""
    name = sql.SQL("{}.{}").format(sql.SQL(side), sql.Identifier(column.name))
    return sql.SQL("{}::text").format(name) if column.sql == "json" else name


def _definition(column: TargetColumn) -> sql.Composed:
    return sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.sql))


def _alter(table: sql.Identifier, change: ColumnChange) -> sql.Composed:
    name = sql.Identifier(change.column.name)
    kind = sql.SQL(change.column.sql)
    match change.kind:
        case ChangeKind.ADD:
            action = sql.SQL("ADD COLUMN {} {}").format(name, kind)
        case ChangeKind.DROP:
            action = sql.SQL("DROP COLUMN {}").format(name)
        case ChangeKind.RENAME:
            action = sql.SQL("RENAME COLUMN {} TO {}").format(
                sql.Identifier(change.before or ""), name
            )
        case ChangeKind.RETYPE:
            action = sql.SQL("ALTER COLUMN {} TYPE {}").format(name, kind)
    return sql.SQL("ALTER TABLE {} {}").format(table, action)
