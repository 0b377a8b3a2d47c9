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
        yield from self._check_server()
        yield from self._check_role()
        yield from self._check_publication()
        yield from self._check_slot()
        for table in self.tables:
            problem = self._problems.get(table.oid)
            results = check_table(self.connection, table)
            if problem is None:
                yield from results
            else:
                yield CheckResult(table.stream, Level.FAILED, problem.message, problem.fix)
                yield from (result for result in results if result.level is not Level.OK)

    def create(self) -> list[str]:
        """Create a missing publication and slot, and return the statements that were run.

        Tables are skipped if publishing them would make their updates and deletes fail.

        Raises:
            SourceError: the server refuses.
        """
        # A standby has its primary's publications.
        statements = [] if self._is_standby else self._publication_changes()
        # Create the publication first: the slot would lack changes made before it.
        has_slot = slot_exists(self.connection, self.slot)
        if not has_slot:
            statements.append(self._create_slot_sql())
        executed = [statement.as_string(self.connection) for statement in statements]
        for statement in statements:
            self._run(statement)
        self.has_created_slot = not has_slot
        if self._wants_failover and not self._is_failover():
            executed.append(self._enable_failover())
        return executed

    def _publication_changes(self) -> list[sql.Composable]:
        """Return the statements that create or correct the publication."""
        flags = self._publication_flags()
        if flags is None:
            return [self._create_publication_sql()]
        published = catalog.published_tables(self.connection, self.slot.publication)
        is_cut = any(table.lacks_generated(published.get(table.oid)) for table in self.tables)
        is_complete = all(flags) and not (is_cut and self._can_publish_generated)
        statements: list[sql.Composable] = [] if is_complete else [self._alter_publication_sql()]
        missing = self._unpublished_tables()
        if missing:
            statements.append(self._add_tables_sql(missing))
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

    def _fetch_row(self, query: str, *values: object) -> tuple[object, ...]:
        return _fetch_row(self.connection, query, *values)

    def _check_server(self) -> Iterator[CheckResult]:
        level, is_standby, free = self._fetch_row(
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
            yield from self._check_standby()
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
        (senders,) = self._fetch_row(
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
        (limit,) = self._fetch_row("SELECT current_setting('max_slot_wal_keep_size')")
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
        return self._fetch_row("SELECT pg_is_in_recovery()") == (True,)

    def _check_standby(self) -> Iterator[CheckResult]:
        """Return warnings about settings that let a primary remove what a standby's slot needs."""
        feedback, slot = self._fetch_row(
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
        for setting_name, (service, decoding_setting) in _SERVICES.items():
            (current,) = self._fetch_row("SELECT current_setting(%s, true)", setting_name)
            if current is not None:
                setting = decoding_setting if name == "wal_level" else f"{name} = {value}"
                return (
                    f"{service}: set {setting} there, and restart the server if the service "
                    "requires it"
                )
        return f"ALTER SYSTEM SET {name} = '{value}'; {then}"

    def _check_role(self) -> Iterator[CheckResult]:
        """Check the role by trying what a run does, as managed services grant it differently."""
        role, login, group, can_call = self._fetch_row(
            "SELECT current_user::text, session_user::text, (SELECT rolname::text FROM pg_roles "
            "WHERE rolname = 'rds_replication'), "
            f"has_function_privilege('{_ADVANCE}', 'execute')"
        )
        refusal = self._replication_refusal()
        if refusal is None:
            yield CheckResult("role", Level.OK, f"{role} may read the log")
            yield from self._check_evidence(str(role))
            return
        is_denied = isinstance(refusal.__cause__, InsufficientPrivilege)
        if is_denied and not can_call:
            role_sql = sql.Identifier(str(role)).as_string(self.connection)
            message = f"{role} may not advance a replication slot"
            fix = f"GRANT EXECUTE ON FUNCTION {_ADVANCE} TO {role_sql};"
            yield CheckResult("role", Level.FAILED, message, fix)
            return
        # Statements run as the role that a setting names, and replication as the login role.
        role_sql = sql.Identifier(str(role if is_denied else login)).as_string(self.connection)
        grant = (
            f"GRANT {sql.Identifier(str(group)).as_string(self.connection)} TO {role_sql};"
            if group
            else f"ALTER ROLE {role_sql} REPLICATION;"
        )
        if not is_denied and not any(message in refusal.message for message in _NO_REPLICATION):
            message = f"the server rejects replication connections of {login}: {refusal.message}"
            fix = (
                "Check max_wal_senders and pg_hba.conf, and that the role may read the "
                f"log ({grant}): an initial copy needs a replication connection."
            )
            yield CheckResult("role", Level.FAILED, message, fix)
            return
        message = f"{role if is_denied else login} may not read the log"
        yield CheckResult("role", Level.FAILED, message, grant)

    def _check_evidence(self, role: str) -> Iterator[CheckResult]:
        """Return a warning if no evidence of the log's identity can be written or read (`slot`)."""
        (function,) = self._fetch_row(
            "SELECT min(oid::regprocedure::text) FROM pg_proc WHERE proname = "
            "'pg_logical_emit_message' AND provariadic = 0 AND proargtypes[2] = 'text'::regtype "
            "AND NOT has_function_privilege(oid, 'execute')"
        )
        if function is None:
            return
        if bytes_before(self.dsn, durable_lsn(self.connection)) is None:
            role_sql = sql.Identifier(role).as_string(self.connection)
            yield CheckResult(
                "role",
                Level.WARNING,
                f"{role} can neither write messages to the log nor read its bytes: a "
                "restore of the server from a snapshot may go unnoticed",
                f"GRANT EXECUTE ON FUNCTION {function} TO {role_sql};",
            )

    def _replication_refusal(self) -> SourceError | None:
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

    def _publication_flags(self) -> tuple[object, ...] | None:
        flags = self._fetch_row(
            "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot "
            "FROM pg_publication WHERE pubname = convert_from(%s, 'UTF8')",
            self.slot.publication.encode(),
        )
        return flags or None

    def _unpublished_tables(self) -> list[SourceTable]:
        published = catalog.published_tables(self.connection, self.slot.publication)
        return [table for table in self._publishable if table.oid not in published]

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

    def _check_publication(self) -> Iterator[CheckResult]:
        subject = f"publication {self.slot.publication}"
        flags = self._publication_flags()
        if flags is None:
            fix = self._on_primary(self._create_publication_sql())
            if slot_exists(self.connection, self.slot):
                fix += (
                    " Changes made without it are not in the slot's log: "
                    f"{recovery_steps(self.slot)}"
                )
            yield CheckResult(subject, Level.FAILED, "does not exist", fix)
            return
        if not all(flags):
            yield CheckResult(
                subject,
                Level.FAILED,
                "does not publish all operations, or does not publish partitions via "
                "their root table",
                self._on_primary(self._alter_publication_sql()),
            )
        missing = self._unpublished_tables()
        if missing:
            names = ", ".join(table.stream for table in missing)
            fix = self._on_primary(self._add_tables_sql(missing))
            yield CheckResult(subject, Level.FAILED, f"does not contain {names}", fix)
        published = catalog.published_tables(self.connection, self.slot.publication)
        ungenerated = [
            table for table in self.tables if table.lacks_generated(published.get(table.oid))
        ]
        if ungenerated:
            names = ", ".join(table.stream for table in ungenerated)
            can_publish = self._can_publish_generated
            yield CheckResult(
                subject,
                Level.FAILED,
                f"does not contain the generated columns of {names}",
                self._on_primary(self._alter_publication_sql())
                if can_publish
                else (
                    "PostgreSQL 18 or later can publish them. With an older version, use "
                    "`method: snapshot_diff`, or remove generated_columns."
                ),
            )
        partial = {
            table.stream: columns
            for table in self.tables
            if table not in ungenerated
            and (columns := table.unpublished_columns(published.get(table.oid)))
        }
        for stream, columns in partial.items():
            names = ", ".join(columns)
            yield CheckResult(
                subject,
                Level.FAILED,
                f"does not contain the columns {names} of {stream}",
                f"Exclude them in chronolake.yml: columns: {{exclude: [{names}]}}. Or publish the "
                "table without a column list.",
            )
        for table in self.tables:
            row_filter = published[table.oid].row_filter if table.oid in published else None
            if row_filter is not None:
                yield CheckResult(
                    subject, Level.OK, f"contains the rows of {table.stream} WHERE {row_filter}"
                )
        if all(flags) and not (missing or partial or ungenerated):
            yield CheckResult(subject, Level.OK, "exists")

    @property
    def _can_publish_generated(self) -> bool:
        """Return whether the server can publish generated columns."""
        return self.connection.info.server_version >= catalog.PUBLISHES_GENERATED

    def _publication_options(self) -> sql.Composable:
        wants_generated = any(table.options.generated for table in self.tables)
        can_publish = self._can_publish_generated
        option = ", publish_generated_columns = stored" if wants_generated and can_publish else ""
        return sql.SQL("publish = {}, publish_via_partition_root = true{}").format(
            sql.Literal(_PUBLISHED), sql.SQL(option)
        )

    def _alter_publication_sql(self) -> sql.Composed:
        return sql.SQL("ALTER PUBLICATION {} SET ({})").format(
            sql.Identifier(self.slot.publication), self._publication_options()
        )

    def _create_publication_sql(self) -> sql.Composed:
        tables = self._publishable
        for_tables = (
            sql.SQL(" FOR TABLE {}").format(_quoted_names(tables)) if tables else sql.SQL("")
        )
        return sql.SQL("CREATE PUBLICATION {}{} WITH ({})").format(
            sql.Identifier(self.slot.publication), for_tables, self._publication_options()
        )

    def _add_tables_sql(self, tables: Sequence[SourceTable]) -> sql.Composed:
        return sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(
            sql.Identifier(self.slot.publication), _quoted_names(tables)
        )

    def _create_slot_sql(self) -> sql.Composed:
        failover_option = ", failover => true" if self._wants_failover else ""
        return sql.SQL("SELECT pg_create_logical_replication_slot({}, 'pgoutput'{})").format(
            sql.Literal(self.slot.name), sql.SQL(failover_option)
        )

    @property
    def _wants_failover(self) -> bool:
        is_supported = self.connection.info.server_version >= HAS_FAILOVER
        return self.slot.is_failover and is_supported and not self._is_standby

    def _is_failover(self) -> bool:
        return self._fetch_row(
            "SELECT failover FROM pg_replication_slots WHERE slot_name = %s", self.slot.name
        ) == (True,)

    def _enable_failover(self) -> str:
        """Make standbys keep a copy of the slot (a failover slot); return the command."""
        command = sql.SQL("ALTER_REPLICATION_SLOT {} (FAILOVER true)").format(
            sql.Identifier(self.slot.name)
        )
        with connect(self.dsn, replication="database") as connection, translate_errors():
            connection.execute(command.as_bytes(connection))
        return command.as_string(self.connection)

    def _check_failover(self, subject: str) -> Iterator[CheckResult]:
        if not self.slot.is_failover:
            return
        if not self._wants_failover:
            yield CheckResult(
                subject,
                Level.FAILED,
                "cannot be a failover slot: this requires a primary server with "
                "PostgreSQL 17 or later",
                "Remove `failover: true` from chronolake.yml.",
            )
        elif not self._is_failover():
            fix = "Run `chronolake check --create`."
            yield CheckResult(subject, Level.FAILED, "is not a failover slot", fix)
        elif self._fetch_row("SELECT current_setting('synchronized_standby_slots') = ''") == (
            True,
        ):
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

    def _check_slot(self) -> Iterator[CheckResult]:
        subject = f"slot {self.slot.name}"
        if not slot_exists(self.connection, self.slot):
            statement = self._create_slot_sql().as_string(self.connection)
            yield CheckResult(subject, Level.FAILED, "does not exist", f"{statement};")
            return
        try:
            confirmed_lsn(self.connection, self.slot)
            gap = (
                False
                if self._publication_flags() is None
                else has_publication_gap(self.connection, self.slot)
            )
            if gap:
                raise missing_publication_error(self.slot)
        except SourceError as failure:
            yield CheckResult(subject, Level.FAILED, failure.message, failure.hint)
            return
        if gap is None:
            yield CheckResult(
                subject,
                Level.WARNING,
                f"the publication {self.slot.publication} was created or altered after "
                "it, and its log is too long to check whether changes are missing",
                "The next run fails if changes are missing.",
            )
        yield from self._check_reader(subject)
        yield from self._check_failover(subject)
        retained, may_be_lost = self._fetch_row(
            f"SELECT pg_size_pretty(pg_wal_lsn_diff({END_OF_LOG}, restart_lsn)), "
            "safe_wal_size <= 0 FROM pg_replication_slots WHERE slot_name = %s",
            self.slot.name,
        )
        yield CheckResult(
            subject,
            Level.WARNING if may_be_lost else Level.OK,
            f"retains {retained} of log" + (", and may be lost at any time" if may_be_lost else ""),
            "Sync now, or raise max_slot_wal_keep_size." if may_be_lost else None,
        )

    def _check_reader(self, subject: str) -> Iterator[CheckResult]:
        reader = self._fetch_row(
            "SELECT active_pid, coalesce(application_name, ''), coalesce(usename, '') "
            "FROM pg_replication_slots LEFT JOIN pg_stat_activity ON pid = active_pid "
            "WHERE slot_name = %s AND active",
            self.slot.name,
        )
        if reader:
            pid, application, user = reader
            yield CheckResult(
                subject,
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
    if (naming_problem := table.naming_problem) is not None:
        yield CheckResult(table.stream, Level.FAILED, naming_problem.message, naming_problem.hint)
        return
    name = _quoted_name(connection, table)
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
    role, schemas, parts, is_hidden = _fetch_row(
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
    role_sql = sql.Identifier(str(role)).as_string(connection)
    if schemas or parts:
        grants = [f"GRANT USAGE ON SCHEMA {schemas} TO {role_sql};"] if schemas else []
        grants += [f"GRANT SELECT ON {parts} TO {role_sql};"] if parts else []
        message = f"{role} may not read it or one of its partitions"
        yield CheckResult(table.stream, Level.FAILED, message, " ".join(grants))
    elif is_hidden:
        fix = f"ALTER ROLE {role_sql} BYPASSRLS;"
        yield CheckResult(
            table.stream, Level.FAILED, f"a row security policy hides rows from {role}", fix
        )
    elif table.log_key:
        yield CheckResult(table.stream, Level.OK, f"its key is {', '.join(table.log_key)}")


def _quoted_name(connection: psycopg.Connection, table: SourceTable) -> str:
    return sql.Identifier(table.schema, table.name).as_string(connection)


def _fetch_row(connection: psycopg.Connection, query: str, *values: object) -> tuple[object, ...]:
    with translate_errors(), name_cursor(connection) as cursor:
        row = cursor.execute(query.encode(), values).fetchone()
    return tuple(row or ())


def _quoted_names(tables: Sequence[SourceTable]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(table.schema, table.name) for table in tables)
