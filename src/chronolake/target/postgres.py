"""PostgreSQL as a target: one transaction changes a table and stores its snapshot.

Chronolake's own tables are in the schema `state_schema`: `state` (what each target table contains),
`changes` (what triggers have recorded of others), `parts` (what tasks have written), and temporary
tables. A session-level advisory lock is the lease of a table.
"""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import psycopg
from psycopg import sql

from chronolake.database import refusal
from chronolake.errors import TargetBusyError, TargetChangedError, TargetError
from chronolake.failpoints import reach
from chronolake.masking import is_broken_by_password
from chronolake.target.changes import DELETE, INSERT, OPERATION, UPDATE
from chronolake.target.database import (
    BUSY_SECONDS,
    LOCK_SECONDS,
    TAKE_OVER,
    Relation,
    counts_text,
    written_of,
)
from chronolake.target.limits import POSTGRES
from chronolake.target.state import ChangeKind, ColumnChange, Published
from chronolake.types import ACTIVE, START

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from chronolake.config import PostgresTarget
    from chronolake.target.database import Written
    from chronolake.target.encoding import RowEncoder
    from chronolake.target.limits import TargetColumn, TargetLimits

#: SQL states: a lock was not granted or a deadlock was found, and what is not a broken connection.
_LOCKED: Final = frozenset({"55P03", "40P01", "40001"})
_LIMITS: Final = "54"
_RESOURCES: Final = frozenset({"53000", "53100", "53200", "53400", "58030"})
_CANCELLED: Final = "57014"
#: Functions of the server that find an entry of an index, or a row, too long.
_INDEX_FUNCTIONS: Final = frozenset(
    {"_bt_check_third_page", "index_form_tuple", "index_form_tuple_context"}
)
_ROW_FUNCTIONS: Final = frozenset(
    {"RelationGetBufferForTuple", "heap_insert", "heap_multi_insert", "raw_heap_insert"}
)
_INDEX_HINT: Final = (
    "An entry of an index has up to about 2,700 bytes, after compression. Choose another key for "
    "the stream, shorten the values in the source, or exclude the table."
)
_OLDEST: Final = 120_000
_CONNECT_SECONDS: Final = 10
_POLL_SECONDS: Final = 0.2
#: The session setting by which the triggers recognize Chronolake.
_WRITER: Final = "chronolake.writer"
_TRIGGERS: Final = {
    "chronolake_rows": "AFTER INSERT OR UPDATE OR DELETE",
    "chronolake_truncate": "AFTER TRUNCATE",
}
#: The column in the context of an error of COPY.
_COLUMN: Final = re.compile(r"^COPY .*, line \d+, column ([^:]+):", re.MULTILINE)
_SETTINGS: Final = (
    "-c timezone=UTC -c datestyle=ISO -c search_path= -c statement_timeout=0 "
    "-c idle_in_transaction_session_timeout=0 -c client_min_messages=error"
)
_OWN_TABLES: Final = (
    "CREATE SCHEMA IF NOT EXISTS {schema}",
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

    def peek(self, relations: Sequence[Relation]) -> list[Published | None]:
        """Return the states of tables without locks; nothing is created."""
        own = _Own(self.config.state_schema)
        with connect(self.config.dsn) as connection:
            (found,) = _row(
                connection, "SELECT to_regclass(%s)::text", [own.name("state").as_string(None)]
            )
            if found is None:
                return [None for _ in relations]
            rows = connection.execute(
                sql.SQL("SELECT relation, state FROM {}").format(own.name("state"))
            ).fetchall()
        states = {name: Published.from_text(text) for name, text in rows}
        return [states.get(str(relation)) for relation in relations]

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
                hint="Escape special characters of the password: @ as %40, / as %2F.",
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


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turn the server's errors in a block into errors without values, with a hint."""
    try:
        yield
    except psycopg.Error as failure:
        raise error_of(failure) from None


def error_of(failure: psycopg.Error) -> TargetError:
    """Return the error for a response of the server, or for none; it contains no values."""
    state, diagnosis = failure.sqlstate or "", failure.diag
    if state in _LOCKED:
        return TargetBusyError(
            "Another transaction has locked the target table.",
            hint="Publish again when it has ended.",
        )
    if state[:2] == _LIMITS:
        return _limit_error(failure)
    if state in _RESOURCES:
        return TargetError(
            f"The target's server lacks resources: {type(failure).__name__} ({state}).",
            hint="Free or add disk space or memory on the server, and publish again.",
        )
    if state == _CANCELLED:
        return TargetError(
            "A statement in the target was cancelled.",
            hint="Publish again. Check who or what cancels statements of the target's user.",
        )
    if isinstance(failure, psycopg.errors.InsufficientPrivilege):
        return TargetError(
            f"The user of the target lacks a privilege: {diagnosis.message_primary}.",
            hint="Grant CREATE on the database, or create the schemas of the target tables and "
            "`state_schema` and make the user their owner. The user must own the target tables, "
            "and needs BYPASSRLS if they force row level security on their owner.",
        )
    if isinstance(failure, psycopg.errors.DependentObjectsStillExist):
        return TargetError(
            f"Other objects depend on the target table: {diagnosis.message_detail}.",
            hint="Drop them (such as views and foreign keys), publish, and create them again.",
        )
    if isinstance(failure, psycopg.IntegrityError):
        return _constraint_error(failure)
    if isinstance(failure, psycopg.OperationalError):
        reason = refusal(failure) or failure.sqlstate or type(failure).__name__
        return TargetError(
            f"The target's server does not respond, or refuses the connection: {reason}.",
            hint="Check `dsn` of the target, and that the server is running.",
        )
    column = _COLUMN.search(diagnosis.context or "")
    return TargetError(
        f"PostgreSQL refused to write: {type(failure).__name__} ({failure.sqlstate}).",
        column=column[1] if column else diagnosis.column_name,
        hint="The value does not fit the type in the target; docs/targets.md lists them."
        if column
        else "Check the server's log.",
    )


def _limit_error(failure: psycopg.Error) -> TargetError:
    """Return the error for a limit of PostgreSQL that depends on the values of a row."""
    diagnosis = failure.diag
    if diagnosis.source_function in _INDEX_FUNCTIONS:
        index = diagnosis.constraint_name
        return TargetError(
            "A row has values that are too long for an index of the target table"
            + (f", {index}." if index else "."),
            hint=_INDEX_HINT,
        )
    if diagnosis.source_function in _ROW_FUNCTIONS:
        return TargetError(
            f"A row does not fit in a page of PostgreSQL, which has {POSTGRES.row_bytes:,} bytes: "
            "only long texts and binary values are stored separately.",
            hint="Exclude columns in the pipeline, or remove the table from the target.",
        )
    return TargetError(
        f"A limit of PostgreSQL is exceeded: {type(failure).__name__} ({failure.sqlstate}).",
        hint="Exclude columns in the pipeline, or remove the table from the target. Columns that "
        "were dropped count, too, until the target table is dropped and published again.",
    )


def _constraint_error(failure: psycopg.IntegrityError) -> TargetError:
    """Return the error for a constraint that others have added to a target table."""
    diagnosis = failure.diag
    name = diagnosis.constraint_name or "without a name"
    return TargetError(
        f"A constraint or unique index that others have added refuses rows of the lake: {name} "
        f"({type(failure).__name__}"
        + (f", table {diagnosis.table_name})." if diagnosis.table_name else ")."),
        column=diagnosis.column_name,
        hint="Drop the constraint or index, or change the rows in the source. The target is as it "
        "was.",
    )


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
            for statement in _OWN_TABLES:
                self._connection.execute(
                    sql.SQL(statement).format(
                        schema=sql.Identifier(own.schema),
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
        columns: dict[str, str] = dict(
            self._connection.execute(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_catalog.pg_attribute "
                "WHERE attrelid = %s::oid AND attnum > 0 AND NOT attisdropped",
                [physical],
            ).fetchall()
        )
        if columns != {column.name: column.sql for column in published.columns}:
            return "its columns were altered"
        enabled = self._connection.execute(
            "SELECT tgname FROM pg_catalog.pg_trigger WHERE tgrelid = %s::oid AND tgenabled = 'A'",
            [physical],
        ).fetchall()
        if self._config.detect_changes and not _TRIGGERS.keys() <= {name for (name,) in enabled}:
            return "its triggers chronolake_rows and chronolake_truncate were dropped or disabled"
        return None if self._has_rows() == published.has_rows else "all rows were removed or added"

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
                raise TargetBusyError(
                    f"Another process has published {self.relation} meanwhile.",
                    hint="Publish again.",
                )
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
        """Replace the target table by a temporary table, and store the state."""
        own = self._own.name(load)
        with self._name_long_key(load, published):
            self._index(own, published.columns)
        self._connection.execute(
            sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self.relation.schema))
        )
        with self._transaction(base):
            physical = self._physical()
            if physical is not None:
                self._connection.execute(
                    sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(self._target)
                )
                if base is not None and not takes_over:
                    self.raise_if_changed(base)
            reach("target.before-swap")
            if physical is not None and base is not None and self._is_kept(base, published):
                columns = sql.SQL(", ").join(
                    sql.Identifier(column.name) for column in published.columns
                )
                self._connection.execute(sql.SQL("TRUNCATE {}").format(self._target))
                self._connection.execute(
                    sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {}").format(
                        self._target, columns, columns, own
                    )
                )
                self._connection.execute(sql.SQL("DROP TABLE {}").format(own))
            else:
                self._replace(load, physical)
            self._add_triggers()
            self._connection.execute(
                sql.SQL("DELETE FROM {} WHERE relation = %s").format(self._own.name("changes")),
                [str(self.relation)],
            )
            self._store(
                replace(published, physical=self._physical() or "", has_rows=self._has_rows())
            )
            reach("target.after-swap")
        self._connection.execute(
            sql.SQL("DELETE FROM {} WHERE load = %s").format(self._own.name("parts")), [load]
        )

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
                or failure.diag.source_function not in _INDEX_FUNCTIONS
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
                hint=_INDEX_HINT,
            ) from None

    def _is_kept(self, base: Published, published: Published) -> bool:
        """Return whether the table is filled in place, because views depend on it.

        Its columns must be the same then; otherwise dropping it fails with the names of the views.
        """
        before, after = (
            [(column.name, column.sql, column.is_key) for column in state.columns]
            for state in (base, published)
        )
        physical = self._physical()
        if before != after or physical != base.physical:
            return False
        (found,) = _row(
            self._connection,
            "SELECT EXISTS (SELECT FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_rewrite r ON "
            "r.oid = d.objid WHERE d.refobjid = %s::oid AND d.classid = 'pg_rewrite'::regclass)",
            [physical],
        )
        return bool(found)

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

    def _add_triggers(self) -> None:
        if not self._config.detect_changes:
            return
        for name, event in _TRIGGERS.items():
            for statement in (
                sql.SQL("DROP TRIGGER IF EXISTS {trigger} ON {table}"),
                sql.SQL(
                    "CREATE TRIGGER {trigger} {event} ON {table} FOR EACH STATEMENT "
                    "EXECUTE FUNCTION {note}({relation})"
                ),
                # Also for replication, and not disabled by accident with all other triggers.
                sql.SQL("ALTER TABLE {table} ENABLE ALWAYS TRIGGER {trigger}"),
            ):
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
            # Statements see what others committed while this transaction waited for their locks.
            self.raise_if_changed(
                replace(published, has_rows=self._has_rows(), physical=base.physical)
            )
            self._store(replace(published, physical=base.physical, has_rows=self._has_rows()))

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
