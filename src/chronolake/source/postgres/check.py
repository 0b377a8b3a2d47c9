"""What a database lacks to be a source, and what mends it.

Source: `specs/postgres-facts.md` (2.4, 2.6, 6.1, 6.4, 6.5).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from psycopg import sql
from psycopg.errors import QueryCanceled

from chronolake.errors import SourceError
from chronolake.source.offered import Finding, Level
from chronolake.source.postgres import catalog
from chronolake.source.postgres.connection import understood
from chronolake.source.postgres.identity import identity_problems
from chronolake.source.postgres.slot import Slot, confirmed, exists
from chronolake.source.postgres.snapshot import oldest_transaction

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import psycopg

    from chronolake.source.postgres.catalog import SourceTable
    from chronolake.source.postgres.identity import IdentityProblem

_PUBLISHED: Final = "insert, update, delete, truncate"
#: Statements wait for open transactions no longer than this.
_PATIENCE_SECONDS: Final = 60
#: Besides the pipeline's own slot, a copy needs one for as long as it takes.
_SLOTS: Final = 2


@dataclass(frozen=True)
class Checkup:
    """A look at a database that is to be a source.

    Attributes:
        dsn: the server's address.
        connection: to the database, as the pipeline's role.
        slot: the slot and the publication that are wanted.
        tables: the tables that are wanted.
    """

    dsn: str
    connection: psycopg.Connection
    slot: Slot
    tables: Sequence[SourceTable]

    def findings(self) -> Iterator[Finding]:
        """All there is to say, what is right included.

        Raises:
            SourceError: the server does not answer.
        """
        yield from self._server()
        yield from self._role()
        yield from self._publication()
        yield from self._slot()
        for table in self.tables:
            problem = self._problems.get(table.oid)
            found = table_findings(self.connection, table)
            if problem is None:
                yield from found
            else:
                yield Finding(table.stream, Level.FAILED, problem.words, problem.mend)
                yield from (one for one in found if one.level is not Level.OK)

    def create(self) -> list[str]:
        """Make publication and slot where they are missing; gives the statements that were run.

        Tables that the server could not publish without harm to those who write them are left out.

        Raises:
            SourceError: the server refuses.
        """
        flags = self._flags()
        statements = [self._create_publication()] if flags is None else []
        if flags is not None and not all(flags):
            statements.append(self._set_options())
        missing = self._unpublished()
        if missing and flags is not None:
            statements.append(self._add_tables(missing))
        # The publication comes first: what changed before it would be left out of the slot.
        if not exists(self.connection, self.slot):
            statements.append(self._create_slot())
        run = [statement.as_string(self.connection) for statement in statements]
        for statement in statements:
            self._run(statement)
        return run

    def _run(self, statement: sql.Composable) -> None:
        """Run a statement, unless open transactions keep it waiting for too long.

        Raises:
            SourceError: they do, or the server refuses.
        """
        try:
            with understood(), self.connection.transaction():
                self.connection.execute(f"SET LOCAL statement_timeout = '{_PATIENCE_SECONDS}s'")
                self.connection.execute(statement.as_bytes(self.connection))
        except SourceError as failure:
            if not isinstance(failure.__cause__, QueryCanceled):
                raise
            oldest = oldest_transaction(self.dsn)
            raise SourceError(
                f"Open transactions kept a statement waiting for {_PATIENCE_SECONDS} s: "
                f"{statement.as_string(self.connection)}; {oldest.reason}.",
                hint=f"{oldest.hint}. Then run it again.",
            ) from failure

    # ------------------------------------------------------------------ the server

    def _ask(self, query: str, *values: object) -> tuple[object, ...]:
        return _ask(self.connection, query, *values)

    def _server(self) -> Iterator[Finding]:
        level, is_standby, free = self._ask(
            "SELECT current_setting('wal_level'), pg_is_in_recovery(), "
            "current_setting('max_replication_slots')::int - "
            "(SELECT count(*) FROM pg_replication_slots)"
        )
        yield Finding(
            "server",
            Level.FAILED if is_standby else Level.OK,
            version_of(self.connection) + (", a standby" if is_standby else ""),
            "Take the primary server: a standby has no publications of its own."
            if is_standby
            else None,
        )
        yield Finding(
            "wal_level",
            Level.OK if level == "logical" else Level.FAILED,
            f"is {level}",
            None
            if level == "logical"
            else "ALTER SYSTEM SET wal_level = 'logical'; then restart the server",
        )
        needed = _SLOTS - exists(self.connection, self.slot)
        is_enough = isinstance(free, int) and free >= needed
        yield Finding(
            "replication slots",
            Level.OK if is_enough else Level.FAILED,
            f"{free} are free",
            None
            if is_enough
            else "ALTER SYSTEM SET max_replication_slots = 20; then restart the server",
        )
        (limit,) = self._ask("SELECT current_setting('max_slot_wal_keep_size')")
        is_limited = limit != "-1"
        yield Finding(
            "max_slot_wal_keep_size",
            Level.OK if is_limited else Level.WARNING,
            f"a slot keeps at most {limit} of log"
            if is_limited
            else "without a limit, a pipeline that stands still fills the server's disk",
            None
            if is_limited
            else "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf();",
        )

    def _role(self) -> Iterator[Finding]:
        role, may = self._ask(
            "SELECT rolname::text, rolreplication OR rolsuper FROM pg_roles "
            "WHERE rolname = current_user"
        )
        statement = sql.SQL("ALTER ROLE {} REPLICATION;").format(sql.Identifier(str(role)))
        yield Finding(
            "role",
            Level.OK if may else Level.FAILED,
            f"{role} may {'' if may else 'not '}read the log",
            None if may else statement.as_string(self.connection),
        )

    # ------------------------------------------------------------------ publication and slot

    def _flags(self) -> tuple[object, ...] | None:
        found = self._ask(
            "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot "
            "FROM pg_publication WHERE pubname = %s",
            self.slot.publication,
        )
        return found or None

    def _unpublished(self) -> list[SourceTable]:
        there = catalog.published(self.connection, self.slot.publication)
        return [table for table in self._publishable if table.oid not in there]

    @cached_property
    def _problems(self) -> dict[int, IdentityProblem]:
        return identity_problems(self.connection, self.tables)

    @property
    def _publishable(self) -> list[SourceTable]:
        """The tables that the log can tell of, and whose rows can be updated when it does."""
        return [one for one in self.tables if one.followed_by and one.oid not in self._problems]

    def _publication(self) -> Iterator[Finding]:
        what = f"publication {self.slot.publication}"
        flags = self._flags()
        if flags is None:
            statement = self._create_publication().as_string(self.connection)
            yield Finding(what, Level.FAILED, "is not there", f"{statement};")
            return
        if not all(flags):
            yield Finding(
                what,
                Level.FAILED,
                "does not publish every kind of change, or partitions by themselves",
                f"{self._set_options().as_string(self.connection)};",
            )
        missing = self._unpublished()
        if missing:
            names = ", ".join(table.stream for table in missing)
            statement = self._add_tables(missing).as_string(self.connection)
            yield Finding(what, Level.FAILED, f"has not {names}", f"{statement};")
        there = catalog.published(self.connection, self.slot.publication)
        cut = [table.stream for table in self.tables if table.is_cut_by(there.get(table.oid))]
        if cut:
            yield Finding(
                what,
                Level.FAILED,
                f"has only some columns or rows of {', '.join(cut)}",
                "Publish them without a list of columns and without WHERE.",
            )
        if all(flags) and not missing and not cut:
            yield Finding(what, Level.OK, "is there")

    def _options(self) -> sql.Composable:
        return sql.SQL("publish = {}, publish_via_partition_root = true").format(
            sql.Literal(_PUBLISHED)
        )

    def _set_options(self) -> sql.Composed:
        return sql.SQL("ALTER PUBLICATION {} SET ({})").format(
            sql.Identifier(self.slot.publication), self._options()
        )

    def _create_publication(self) -> sql.Composed:
        listed = self._publishable
        of = sql.SQL(" FOR TABLE {}").format(_names(listed)) if listed else sql.SQL("")
        return sql.SQL("CREATE PUBLICATION {}{} WITH ({})").format(
            sql.Identifier(self.slot.publication), of, self._options()
        )

    def _add_tables(self, tables: Sequence[SourceTable]) -> sql.Composed:
        return sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(
            sql.Identifier(self.slot.publication), _names(tables)
        )

    def _create_slot(self) -> sql.Composed:
        return sql.SQL("SELECT pg_create_logical_replication_slot({}, 'pgoutput')").format(
            sql.Literal(self.slot.name)
        )

    def _slot(self) -> Iterator[Finding]:
        what = f"slot {self.slot.name}"
        (is_standby,) = self._ask("SELECT pg_is_in_recovery()")
        if is_standby:
            return
        if not exists(self.connection, self.slot):
            statement = self._create_slot().as_string(self.connection)
            yield Finding(what, Level.FAILED, "is not there", f"{statement};")
            return
        try:
            confirmed(self.connection, self.slot)
        except SourceError as failure:
            yield Finding(what, Level.FAILED, failure.message, failure.hint)
            return
        retained, safe = self._ask(
            "SELECT pg_size_pretty(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)), "
            "safe_wal_size <= 0 FROM pg_replication_slots WHERE slot_name = %s",
            self.slot.name,
        )
        yield Finding(
            what,
            Level.WARNING if safe else Level.OK,
            f"holds {retained} of log" + (", and may be lost at any time" if safe else ""),
            "Sync now, or raise max_slot_wal_keep_size." if safe else None,
        )


# ------------------------------------------------------------------ tables


def version_of(connection: psycopg.Connection) -> str:
    """What the server is."""
    return f"PostgreSQL {connection.info.server_version // 10_000}"


def table_findings(connection: psycopg.Connection, table: SourceTable) -> Iterator[Finding]:
    """What keeps a table from being read as a whole, and what is right.

    Raises:
        SourceError: the server does not answer.
    """
    name = _name(connection, table)
    if not table.followed_by:
        yield Finding(
            table.stream,
            Level.WARNING,
            "it has no primary key (one that is deferrable, or has generated columns, does not "
            "count): every run reads it as a whole, and its rows are told apart by "
            + (", ".join(table.distinct_by) or "all that they say"),
            f"ALTER TABLE {name} ADD PRIMARY KEY (…);"
            + (
                f" or, for its log to be read: ALTER TABLE {name} REPLICA IDENTITY FULL;"
                if table.distinct_by
                else ""
            ),
        )
    role, schemas, parts, is_hidden = _ask(
        connection,
        # Partitions are read one by one.
        "SELECT current_user::text, string_agg(DISTINCT quote_ident(nspname), ', ') "
        "FILTER (WHERE NOT has_schema_privilege(n.oid, 'usage')), "
        "string_agg(c.oid::regclass::text, ', ' ORDER BY c.oid) "
        "FILTER (WHERE NOT has_table_privilege(c.oid, 'select')), "
        "bool_or(row_security_active(c.oid)) "
        "FROM unnest(ARRAY[%s]::oid[]) AS root(oid) "
        f"JOIN pg_class c ON c.oid IN ({catalog.with_partitions('root.oid')}) "
        "JOIN pg_namespace n ON n.oid = relnamespace",
        table.oid,
    )
    who = sql.Identifier(str(role)).as_string(connection)
    if schemas or parts:
        grants = [f"GRANT USAGE ON SCHEMA {schemas} TO {who};"] if schemas else []
        grants += [f"GRANT SELECT ON {parts} TO {who};"] if parts else []
        words = f"{role} may not read it, or a partition of it"
        yield Finding(table.stream, Level.FAILED, words, " ".join(grants))
    elif is_hidden:
        fix = f"ALTER ROLE {who} BYPASSRLS;"
        yield Finding(table.stream, Level.FAILED, f"a policy hides rows of it from {role}", fix)
    elif table.followed_by:
        yield Finding(table.stream, Level.OK, f"its key is {', '.join(table.followed_by)}")


def _name(connection: psycopg.Connection, table: SourceTable) -> str:
    return sql.Identifier(table.schema, table.name).as_string(connection)


def _ask(connection: psycopg.Connection, query: str, *values: object) -> tuple[object, ...]:
    with understood():
        row = connection.execute(query.encode(), values).fetchone()
    return tuple(row or ())


def _names(tables: Sequence[SourceTable]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(table.schema, table.name) for table in tables)
