"""Checks of a PostgreSQL source, with the statements that fix problems.

Source: `specs/postgres-facts.md` (2.4, 2.6, 6.1, 6.4, 6.5).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from psycopg import sql
from psycopg.errors import InsufficientPrivilege, QueryCanceled

from chronolake.errors import SourceError
from chronolake.source.postgres import catalog
from chronolake.source.postgres.catalog import identity_problems
from chronolake.source.postgres.connection import connect, translate_errors
from chronolake.source.postgres.encoding import name_cursor
from chronolake.source.postgres.slot import (
    END_OF_LOG,
    HAS_FAILOVER,
    Slot,
    bytes_before,
    confirmed_lsn,
    durable_lsn,
    has_publication_gap,
    missing_publication_error,
    recovery_steps,
    slot_exists,
)
from chronolake.source.postgres.snapshot import oldest_transaction
from chronolake.source.protocol import CheckResult, Level

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import psycopg

    from chronolake.source.postgres.catalog import IdentityProblem, SourceTable

#: From this version on, the log of a standby can be decoded.
_DECODES_ON_STANDBY: Final = 160_000
_PUBLISHED: Final = "insert, update, delete, truncate"
#: Timeout in seconds for statements that wait for open transactions.
_PATIENCE_SECONDS: Final = 60
#: Settings that only exist on servers of a managed service: where its settings are changed, and the
#: setting for logical decoding.
_SERVICES: Final = {
    "rds.logical_replication": (
        "Amazon RDS and Aurora keep settings in a parameter group",
        "rds.logical_replication = 1",
    ),
    "cloudsql.logical_decoding": (
        "Google Cloud SQL keeps settings as flags of the instance",
        "cloudsql.logical_decoding = on",
    ),
    "alloydb.logical_decoding": (
        "Google AlloyDB keeps settings as flags of the instance",
        "alloydb.logical_decoding = on",
    ),
    "azure.extensions": (
        "Azure Database for PostgreSQL keeps settings as server parameters",
        "wal_level = logical",
    ),
}
#: Error messages of different server versions for a role that may not read the log.
_NO_REPLICATION: Final = ("start WAL sender", "start walsender")
_ADVANCE: Final = "pg_catalog.pg_replication_slot_advance(name, pg_lsn)"
#: In addition to the pipeline's own slot, a copy needs one while it runs.
_SLOTS: Final = 2
#: One reads the log, and another one holds a copy's snapshot.
_SENDERS: Final = 2


@dataclass
class Checkup:
    """Checks of a database as a source.

    Attributes:
        dsn: the server's address.
        connection: a connection to the database with the pipeline's role.
        slot: the configured slot and publication.
        tables: the selected tables.
        has_created_slot: whether `create` has created the slot.
    """

    dsn: str
    connection: psycopg.Connection
    slot: Slot
    tables: Sequence[SourceTable]
    has_created_slot: bool = False

    def check(self) -> Iterator[CheckResult]:
        """Return the results of all checks, including successful ones.

        Raises:
            SourceError: the server does not respond.
        """
        yield from self._server()
        yield from self._role()
        yield from self._publication()
        yield from self._slot()
        for table in self.tables:
            problem = self._problems.get(table.oid)
            found = check_table(self.connection, table)
            if problem is None:
                yield from found
            else:
                yield CheckResult(table.stream, Level.FAILED, problem.words, problem.mend)
                yield from (one for one in found if one.level is not Level.OK)

    def create(self) -> list[str]:
        """Create a missing publication and slot, and return the statements that were run.

        Tables are skipped if publishing them would make their updates and deletes fail.

        Raises:
            SourceError: the server refuses.
        """
        # A standby has its primary's publications.
        statements = [] if self._is_standby else self._publishing()
        # Create the publication first: the slot would lack changes made before it.
        has_slot = slot_exists(self.connection, self.slot)
        if not has_slot:
            statements.append(self._create_slot())
        run = [statement.as_string(self.connection) for statement in statements]
        for statement in statements:
            self._run(statement)
        self.has_created_slot = not has_slot
        if self._wants_failover and not self._is_failover():
            run.append(self._set_failover())
        return run

    def _publishing(self) -> list[sql.Composable]:
        """Return the statements that create or correct the publication."""
        flags = self._flags()
        if flags is None:
            return [self._create_publication()]
        there = catalog.published_tables(self.connection, self.slot.publication)
        is_cut = any(table.lacks_generated(there.get(table.oid)) for table in self.tables)
        is_right = all(flags) and not (is_cut and self._can_generate)
        statements: list[sql.Composable] = [] if is_right else [self._set_options()]
        missing = self._unpublished()
        if missing:
            statements.append(self._add_tables(missing))
        return statements

    def _run(self, statement: sql.Composable) -> None:
        """Run a statement, and fail if open transactions block it for too long.

        Raises:
            SourceError: the statement was blocked, or the server refuses it.
        """
        try:
            with translate_errors(), self.connection.transaction():
                self.connection.execute(f"SET LOCAL statement_timeout = '{_PATIENCE_SECONDS}s'")
                self.connection.execute(statement.as_bytes(self.connection))
        except SourceError as failure:
            if not isinstance(failure.__cause__, QueryCanceled):
                raise
            oldest = oldest_transaction(self.dsn)
            raise SourceError(
                f"Open transactions blocked a statement for {_PATIENCE_SECONDS} s: "
                f"{statement.as_string(self.connection)}; {oldest.reason}.",
                hint=f"{oldest.hint}. Then run `chronolake check --create` again.",
            ) from failure

    # ------------------------------------------------------------------ the server

    def _ask(self, query: str, *values: object) -> tuple[object, ...]:
        return _ask(self.connection, query, *values)

    def _server(self) -> Iterator[CheckResult]:
        level, is_standby, free = self._ask(
            "SELECT current_setting('wal_level'), pg_is_in_recovery(), "
            "current_setting('max_replication_slots')::int - "
            "(SELECT count(*) FROM pg_replication_slots)"
        )
        yield CheckResult(
            "server",
            Level.FAILED if is_standby and not self._decodes_on_standby else Level.OK,
            version_of(self.connection) + (", a standby" if is_standby else ""),
            (
                "Read the primary server: the log of a standby can only be read from "
                "PostgreSQL 16 on."
            )
            if is_standby and not self._decodes_on_standby
            else None,
        )
        if is_standby:
            yield from self._standby()
        yield CheckResult(
            "wal_level",
            Level.OK if level == "logical" else Level.FAILED,
            f"is {level}",
            None
            if level == "logical"
            else self._how_to_set("wal_level", "logical", "then restart the server"),
        )
        needed = _SLOTS - slot_exists(self.connection, self.slot)
        is_enough = isinstance(free, int) and free >= needed
        yield CheckResult(
            "replication slots",
            Level.OK if is_enough else Level.FAILED,
            f"{free} are free",
            None
            if is_enough
            else self._how_to_set("max_replication_slots", "20", "then restart the server"),
        )
        (senders,) = self._ask(
            "SELECT current_setting('max_wal_senders')::int - "
            "(SELECT count(*) FROM pg_stat_replication)"
        )
        if isinstance(senders, int) and senders < _SENDERS:
            yield CheckResult(
                "max_wal_senders",
                Level.FAILED,
                f"{senders} WAL senders are free; a run needs {_SENDERS}",
                self._how_to_set("max_wal_senders", "20", "then restart the server"),
            )
        (limit,) = self._ask("SELECT current_setting('max_slot_wal_keep_size')")
        is_limited = limit != "-1"
        yield CheckResult(
            "max_slot_wal_keep_size",
            Level.OK if is_limited else Level.WARNING,
            f"a slot retains up to {limit} of log"
            if is_limited
            else (
                "is not limited: if the pipeline stops running, its slot fills the server's disk"
            ),
            None
            if is_limited
            else self._how_to_set("max_slot_wal_keep_size", "50GB", "SELECT pg_reload_conf();"),
        )

    @property
    def _decodes_on_standby(self) -> bool:
        return self.connection.info.server_version >= _DECODES_ON_STANDBY

    @cached_property
    def _is_standby(self) -> bool:
        return self._ask("SELECT pg_is_in_recovery()") == (True,)

    def _standby(self) -> Iterator[CheckResult]:
        """Return warnings about settings that let a primary remove what a standby's slot needs."""
        feedback, slot = self._ask(
            "SELECT current_setting('hot_standby_feedback'), current_setting('primary_slot_name')"
        )
        wanted = {
            "hot_standby_feedback": (feedback == "on", "on"),
            "primary_slot_name": (bool(slot), "a physical slot of the primary"),
        }
        for name, (is_set, value) in wanted.items():
            if not is_set:
                yield CheckResult(
                    name,
                    Level.WARNING,
                    "is not set: the primary may remove what the standby's slot needs, "
                    "which invalidates the slot",
                    self._how_to_set(name, value, "SELECT pg_reload_conf();"),
                )

    def _on_primary(self, statement: sql.Composable) -> str:
        """Return a statement with the server to run it on: a standby cannot write."""
        where = "On the primary: " if self._is_standby else ""
        return f"{where}{statement.as_string(self.connection)};"

    def _how_to_set(self, name: str, value: str, then: str) -> str:
        """Return how to change a setting of the server, also on managed services."""
        for known, (service, switch) in _SERVICES.items():
            (found,) = self._ask("SELECT current_setting(%s, true)", known)
            if found is not None:
                setting = switch if name == "wal_level" else f"{name} = {value}"
                return (
                    f"{service}: set {setting} there, and restart the server if the service "
                    "requires it"
                )
        return f"ALTER SYSTEM SET {name} = '{value}'; {then}"

    def _role(self) -> Iterator[CheckResult]:
        """Check the role by trying what a run does, as managed services grant it differently."""
        role, login, group, can_call = self._ask(
            "SELECT current_user::text, session_user::text, (SELECT rolname::text FROM pg_roles "
            "WHERE rolname = 'rds_replication'), "
            f"has_function_privilege('{_ADVANCE}', 'execute')"
        )
        refusal = self._refusal()
        if refusal is None:
            yield CheckResult("role", Level.OK, f"{role} may read the log")
            yield from self._messages(str(role))
            return
        is_denied = isinstance(refusal.__cause__, InsufficientPrivilege)
        if is_denied and not can_call:
            who = sql.Identifier(str(role)).as_string(self.connection)
            words = f"{role} may not advance a replication slot"
            fix = f"GRANT EXECUTE ON FUNCTION {_ADVANCE} TO {who};"
            yield CheckResult("role", Level.FAILED, words, fix)
            return
        # Statements run as the role that a setting names, and replication as the login role.
        who = sql.Identifier(str(role if is_denied else login)).as_string(self.connection)
        grant = (
            f"GRANT {sql.Identifier(str(group)).as_string(self.connection)} TO {who};"
            if group
            else f"ALTER ROLE {who} REPLICATION;"
        )
        if not is_denied and not any(words in refusal.message for words in _NO_REPLICATION):
            words = f"the server rejects replication connections of {login}: {refusal.message}"
            fix = (
                "Check max_wal_senders and pg_hba.conf, and that the role may read the "
                f"log ({grant}): an initial copy needs a replication connection."
            )
            yield CheckResult("role", Level.FAILED, words, fix)
            return
        words = f"{role if is_denied else login} may not read the log"
        yield CheckResult("role", Level.FAILED, words, grant)

    def _messages(self, role: str) -> Iterator[CheckResult]:
        """Return a warning if no evidence of the log's identity can be written or read (`slot`)."""
        (function,) = self._ask(
            "SELECT min(oid::regprocedure::text) FROM pg_proc WHERE proname = "
            "'pg_logical_emit_message' AND provariadic = 0 AND proargtypes[2] = 'text'::regtype "
            "AND NOT has_function_privilege(oid, 'execute')"
        )
        if function is None:
            return
        if bytes_before(self.dsn, durable_lsn(self.connection)) is None:
            who = sql.Identifier(role).as_string(self.connection)
            yield CheckResult(
                "role",
                Level.WARNING,
                f"{role} can neither write messages to the log nor read its bytes: a "
                "restore of the server from a snapshot may go unnoticed",
                f"GRANT EXECUTE ON FUNCTION {function} TO {who};",
            )

    def _refusal(self) -> SourceError | None:
        """Return why the log cannot be read, or None. Nothing is read or created."""
        refusal = None
        try:
            with connect(self.dsn, replication="database") as connection, translate_errors():
                connection.execute("IDENTIFY_SYSTEM")
        except SourceError as failure:
            refusal = failure
        try:
            with translate_errors():
                # The server checks privileges before it checks that the slot exists.
                self.connection.execute(
                    "SELECT pg_replication_slot_advance('chronolake no such slot', '0/1')"
                )
        except SourceError as failure:
            # The message of a refused connection is in the server's language, and without a code.
            if isinstance(failure.__cause__, InsufficientPrivilege):
                return failure
        return refusal

    # ------------------------------------------------------------------ publication and slot

    def _flags(self) -> tuple[object, ...] | None:
        found = self._ask(
            "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot "
            "FROM pg_publication WHERE pubname = %s",
            self.slot.publication,
        )
        return found or None

    def _unpublished(self) -> list[SourceTable]:
        there = catalog.published_tables(self.connection, self.slot.publication)
        return [table for table in self._publishable if table.oid not in there]

    @cached_property
    def _problems(self) -> dict[int, IdentityProblem]:
        return identity_problems(self.connection, self.tables)

    @property
    def _publishable(self) -> list[SourceTable]:
        """Return the tables that the log can identify rows of, and that can be published safely."""
        return [
            table
            for table in self.tables
            if table.log_key and table.oid not in self._problems and table.naming_problem is None
        ]

    def _publication(self) -> Iterator[CheckResult]:
        what = f"publication {self.slot.publication}"
        flags = self._flags()
        if flags is None:
            fix = self._on_primary(self._create_publication())
            if slot_exists(self.connection, self.slot):
                fix += (
                    " Changes made without it are not in the slot's log: "
                    f"{recovery_steps(self.slot)}"
                )
            yield CheckResult(what, Level.FAILED, "does not exist", fix)
            return
        if not all(flags):
            yield CheckResult(
                what,
                Level.FAILED,
                "does not publish all operations, or does not publish partitions via "
                "their root table",
                self._on_primary(self._set_options()),
            )
        missing = self._unpublished()
        if missing:
            names = ", ".join(table.stream for table in missing)
            fix = self._on_primary(self._add_tables(missing))
            yield CheckResult(what, Level.FAILED, f"does not contain {names}", fix)
        there = catalog.published_tables(self.connection, self.slot.publication)
        ungenerated = [
            table for table in self.tables if table.lacks_generated(there.get(table.oid))
        ]
        if ungenerated:
            names = ", ".join(table.stream for table in ungenerated)
            can = self._can_generate
            yield CheckResult(
                what,
                Level.FAILED,
                f"does not contain the generated columns of {names}",
                self._on_primary(self._set_options())
                if can
                else (
                    "PostgreSQL 18 or later can publish them. With an older version, use "
                    "`method: snapshot_diff`, or remove generated_columns."
                ),
            )
        cut = [
            table.stream
            for table in self.tables
            if table not in ungenerated and table.is_partly_published(there.get(table.oid))
        ]
        if cut:
            yield CheckResult(
                what,
                Level.FAILED,
                f"contains only some columns or rows of {', '.join(cut)}",
                "Publish them without a column list and without WHERE.",
            )
        if all(flags) and not (missing or cut or ungenerated):
            yield CheckResult(what, Level.OK, "exists")

    @property
    def _can_generate(self) -> bool:
        """Return whether the server can publish generated columns."""
        return self.connection.info.server_version >= catalog.PUBLISHES_GENERATED

    def _options(self) -> sql.Composable:
        wants = any(table.options.generated for table in self.tables)
        can = self._can_generate
        generated = ", publish_generated_columns = stored" if wants and can else ""
        return sql.SQL("publish = {}, publish_via_partition_root = true{}").format(
            sql.Literal(_PUBLISHED), sql.SQL(generated)
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
        more = ", failover => true" if self._wants_failover else ""
        return sql.SQL("SELECT pg_create_logical_replication_slot({}, 'pgoutput'{})").format(
            sql.Literal(self.slot.name), sql.SQL(more)
        )

    @property
    def _wants_failover(self) -> bool:
        is_known = self.connection.info.server_version >= HAS_FAILOVER
        return self.slot.is_failover and is_known and not self._is_standby

    def _is_failover(self) -> bool:
        return self._ask(
            "SELECT failover FROM pg_replication_slots WHERE slot_name = %s", self.slot.name
        ) == (True,)

    def _set_failover(self) -> str:
        """Make standbys keep a copy of the slot (a failover slot); return the command."""
        command = sql.SQL("ALTER_REPLICATION_SLOT {} (FAILOVER true)").format(
            sql.Identifier(self.slot.name)
        )
        with connect(self.dsn, replication="database") as connection, translate_errors():
            connection.execute(command.as_bytes(connection))
        return command.as_string(self.connection)

    def _failover(self, what: str) -> Iterator[CheckResult]:
        if not self.slot.is_failover:
            return
        if not self._wants_failover:
            yield CheckResult(
                what,
                Level.FAILED,
                "cannot be a failover slot: this requires a primary server with "
                "PostgreSQL 17 or later",
                "Remove `failover: true` from chronolake.yml.",
            )
        elif not self._is_failover():
            fix = "Run `chronolake check --create`."
            yield CheckResult(what, Level.FAILED, "is not a failover slot", fix)
        elif self._ask("SELECT current_setting('synchronized_standby_slots') = ''") == (True,):
            yield CheckResult(
                "synchronized_standby_slots",
                Level.WARNING,
                "is not set: after a failover, the standby may lack changes that were already read",
                self._how_to_set(
                    "synchronized_standby_slots",
                    "the standbys' physical slots",
                    "SELECT pg_reload_conf();",
                ),
            )

    def _slot(self) -> Iterator[CheckResult]:
        what = f"slot {self.slot.name}"
        if not slot_exists(self.connection, self.slot):
            statement = self._create_slot().as_string(self.connection)
            yield CheckResult(what, Level.FAILED, "does not exist", f"{statement};")
            return
        try:
            confirmed_lsn(self.connection, self.slot)
            gap = (
                False if self._flags() is None else has_publication_gap(self.connection, self.slot)
            )
            if gap:
                raise missing_publication_error(self.slot)
        except SourceError as failure:
            yield CheckResult(what, Level.FAILED, failure.message, failure.hint)
            return
        if gap is None:
            yield CheckResult(
                what,
                Level.WARNING,
                f"the publication {self.slot.publication} was created or altered after "
                "it, and its log is too long to check whether changes are missing",
                "The next run fails if changes are missing.",
            )
        yield from self._reader(what)
        yield from self._failover(what)
        retained, safe = self._ask(
            f"SELECT pg_size_pretty(pg_wal_lsn_diff({END_OF_LOG}, restart_lsn)), "
            "safe_wal_size <= 0 FROM pg_replication_slots WHERE slot_name = %s",
            self.slot.name,
        )
        yield CheckResult(
            what,
            Level.WARNING if safe else Level.OK,
            f"retains {retained} of log" + (", and may be lost at any time" if safe else ""),
            "Sync now, or raise max_slot_wal_keep_size." if safe else None,
        )

    def _reader(self, what: str) -> Iterator[CheckResult]:
        reader = self._ask(
            "SELECT active_pid, coalesce(application_name, ''), coalesce(usename, '') "
            "FROM pg_replication_slots LEFT JOIN pg_stat_activity ON pid = active_pid "
            "WHERE slot_name = %s AND active",
            self.slot.name,
        )
        if reader:
            pid, application, user = reader
            yield CheckResult(
                what,
                Level.WARNING,
                f"is being read by process {pid} (user {user}, application "
                f"{application!r}): only one process can read it at a time",
                "If this is not a run of this pipeline, give the pipeline its own slot: "
                "`slot: …` below `source` in chronolake.yml.",
            )


# ------------------------------------------------------------------ tables


def version_of(connection: psycopg.Connection) -> str:
    """Return the server's product name and major version."""
    return f"PostgreSQL {connection.info.server_version // 10_000}"


def check_table(connection: psycopg.Connection, table: SourceTable) -> Iterator[CheckResult]:
    """Return problems that prevent reading a table completely, and what is right.

    Raises:
        SourceError: the server does not respond.
    """
    if (unnamed := table.naming_problem) is not None:
        yield CheckResult(table.stream, Level.FAILED, unnamed.message, unnamed.hint)
        return
    name = _name(connection, table)
    if not table.log_key:
        yield CheckResult(
            table.stream,
            Level.WARNING,
            (
                "it has no primary key (deferrable keys, and keys with generated columns, do "
                "not count): every run reads the whole table, and its rows are identified by "
            )
            + (", ".join(table.distinct_by) or "all of their values"),
            f"ALTER TABLE {name} ADD PRIMARY KEY (…);"
            + (
                f" or, to read it from the log: ALTER TABLE {name} REPLICA IDENTITY FULL;"
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
        words = f"{role} may not read it or one of its partitions"
        yield CheckResult(table.stream, Level.FAILED, words, " ".join(grants))
    elif is_hidden:
        fix = f"ALTER ROLE {who} BYPASSRLS;"
        yield CheckResult(
            table.stream, Level.FAILED, f"a row security policy hides rows from {role}", fix
        )
    elif table.log_key:
        yield CheckResult(table.stream, Level.OK, f"its key is {', '.join(table.log_key)}")


def _name(connection: psycopg.Connection, table: SourceTable) -> str:
    return sql.Identifier(table.schema, table.name).as_string(connection)


def _ask(connection: psycopg.Connection, query: str, *values: object) -> tuple[object, ...]:
    with translate_errors(), name_cursor(connection) as cursor:
        row = cursor.execute(query.encode(), values).fetchone()
    return tuple(row or ())


def _names(tables: Sequence[SourceTable]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(table.schema, table.name) for table in tables)
