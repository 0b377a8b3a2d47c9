"""MySQL and MariaDB as targets.

DDL commits implicitly there, so that a table is replaced or altered in steps. What a step will do
is stored first (`pending` in the state's row), and the next run sees from the tables whether it was
done: each step is one atomic statement. Rows are changed in one transaction with the state.

Chronolake's own tables are in the target's database, and begin with `chronolake_`.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pymysql
from pymysql.connections import MySQLResult
from pymysql.constants import CLIENT
from pymysql.protocol import LoadLocalPacketWrapper

from chronolake.errors import TargetBusyError, TargetChangedError, TargetError
from chronolake.failpoints import reach
from chronolake.source.mysql.connection import Address, numbers_of, quoted, version_of
from chronolake.target.additions import (
    MYSQL_ADDITIONS,
    REFERENCE,
    TRIGGER,
    Addition,
    list_additions,
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
from chronolake.target.limits import TargetColumn, mysql_limits
from chronolake.target.mysql_errors import (
    PRIMARY,
    column_of,
    constraint_of,
    limit_error,
    packet_error,
    translate_errors,
)
from chronolake.target.state import ChangeKind, ColumnChange, Published
from chronolake.types import ACTIVE, START, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from chronolake.config import MysqlTarget
    from chronolake.target.database import Written
    from chronolake.target.encoding import RowEncoder
    from chronolake.target.limits import TargetLimits

_CONNECT_SECONDS: Final = 10
#: A statement of a large load may take any time.
_SILENCE_SECONDS: Final = 24 * 3_600
_STATE: Final = "chronolake_state"
_CHANGES: Final = "chronolake_changes"
_PARTS: Final = "chronolake_parts"
_LOADS: Final = "chronolake_"
#: The name that the server must request in LOAD DATA: no file is read.
_STREAM: Final = "chronolake-rows"
_PACKET_BYTES: Final = 2**20
#: Bytes of an INSERT statement with many rows.
_STATEMENT_BYTES: Final = 2**20
#: The user variable by which the triggers recognize Chronolake.
_WRITER: Final = "@chronolake_writer"
_SETTINGS: Final = (
    f"""SET SESSION time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',
innodb_lock_wait_timeout = {LOCK_SECONDS}, lock_wait_timeout = {LOCK_SECONDS},
net_write_timeout = 3600, net_read_timeout = 3600""",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)
_OWN_TABLES: Final = (
    f"""CREATE TABLE IF NOT EXISTS {_STATE} (
  relation varchar(150) PRIMARY KEY, lake_table text, snapshot_id bigint, published_at datetime,
  state longtext, pending longtext
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin""",
    f"""CREATE TABLE IF NOT EXISTS {_CHANGES} (
  relation varchar(150), load_id varchar(64), operation varchar(10), changed_by varchar(100),
  changed_at datetime, PRIMARY KEY (relation, load_id, operation)
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin""",
    f"""CREATE TABLE IF NOT EXISTS {_PARTS} (
  load_id varchar(64), part int, counts longtext, PRIMARY KEY (load_id, part)
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin""",
)
_OPERATIONS: Final = ("INSERT", "UPDATE", "DELETE")
#: Settings of servers that accept only tables with a key, or add one themselves.
_KEY_SETTINGS: Final = (
    "'sql_require_primary_key', 'innodb_force_primary_key', 'sql_generate_invisible_primary_key'"
)
#: The invisible key of a table that has no other one: ours, and the one that MySQL adds.
_ROW: Final = "chronolake_row"
_ROW_KEYS: Final = frozenset({_ROW, "my_row_id"})
_DISPLAY_WIDTH: Final = re.compile(r"^((?:big)?int)\(\d+\)")
_ESCAPED: Final = {b"\\": b"\\", b"t": b"\t", b"n": b"\n", b"r": b"\r", b"0": b"\0"}


class _LoadResult(MySQLResult):  # type: ignore[misc]
    """The response to LOAD DATA LOCAL: rows are sent from memory, and never a file."""

    def _read_load_local_packet(self, first_packet: Any) -> None:
        connection = self.connection
        wanted = bytes(LoadLocalPacketWrapper(first_packet).filename)
        lines = connection.lines
        if lines is None or wanted != _STREAM.encode():
            connection._force_close()  # noqa: SLF001
            raise TargetError(
                "The target's server has requested a file that it was not offered.",
                hint="Do not use this server: it may have been tampered with.",
            )
        try:
            for line in lines:
                data = memoryview(line)
                for begin in range(0, len(data), _PACKET_BYTES):
                    connection.write_packet(bytes(data[begin : begin + _PACKET_BYTES]))
        except BaseException:
            # The server discards what it has got.
            connection._force_close()  # noqa: SLF001
            raise
        connection.write_packet(b"")
        self._read_ok_packet(connection._read_packet())  # noqa: SLF001


class _Connection(pymysql.Connection):  # type: ignore[misc]
    """A connection that can send rows with LOAD DATA LOCAL.

    Attributes:
        lines: the rows that the next LOAD DATA sends, or None.
    """

    lines: Iterator[pa.Buffer] | None = None

    def _read_query_result(self, unbuffered: bool = False) -> int:  # noqa: FBT001, FBT002, ARG002
        self._result = None
        result = _LoadResult(self)
        result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        return int(result.affected_rows)


class _TlsConnection(_Connection):
    """A connection that is not made without TLS; PyMySQL itself would go on without it."""

    def _request_authentication(self) -> None:
        if not self.server_capabilities & CLIENT.SSL:
            raise TargetError(
                "The target's server does not offer TLS, which `ssl-mode` requires.",
                hint="Configure TLS on the server, or change `ssl-mode` in `dsn` of the target.",
            )
        super()._request_authentication()


@contextmanager
def connect(dsn: str) -> Iterator[_Connection]:
    """Connect to a target while the block runs; each statement is its own transaction.

    Raises:
        TargetError: the server cannot be reached, or refuses the user.
    """
    address = Address.of(dsn)
    with translate_errors():
        connection = (_TlsConnection if address.requires_tls else _Connection)(
            **address.arguments,
            database=address.schema or None,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_SILENCE_SECONDS,
            write_timeout=_SILENCE_SECONDS,
            local_infile=True,
            client_flag=CLIENT.FOUND_ROWS,
            program_name="chronolake",
        )
    try:
        with translate_errors():
            for statement in _SETTINGS:
                execute(connection, statement)
            yield connection
    finally:
        # The server rolls back what is not committed.
        connection._force_close()  # noqa: SLF001


def execute(
    connection: pymysql.Connection[Any], statement: str, values: Sequence[Any] = ()
) -> list[tuple[Any, ...]]:
    """Run a statement, and return all rows of its result."""
    with connection.cursor() as cursor:
        cursor.execute(statement, tuple(values) or None)
        return list(cursor.fetchall())


def _run(connection: pymysql.Connection[Any], statement: str, values: Sequence[Any] = ()) -> int:
    """Run a statement, and return the number of rows that it has found."""
    with connection.cursor() as cursor:
        return int(cursor.execute(statement, tuple(values) or None))


@dataclass(frozen=True)
class MysqlDatabase:
    """The database of a target.

    Attributes:
        config: the target's settings.
    """

    config: MysqlTarget

    def survey(self, relations: Sequence[Relation]) -> Survey:
        """Return the limits, and what tables contain, without locks; nothing is created."""
        with connect(self.config.dsn) as connection:
            limits = limits_of(connection)
            if not execute(connection, "SHOW TABLES LIKE %s", [_STATE.replace("_", "\\_")]):
                return Survey(limits)
            rows = execute(connection, f"SELECT relation, state FROM {_STATE}")
            stored = {name: Published.from_text(text) for name, text in rows if text}
            states = {item: stored[str(item)] for item in relations if str(item) in stored}
            return Survey(
                limits,
                states,
                {
                    relation: find_additions(connection, relation, state)
                    for relation, state in states.items()
                },
            )

    @contextmanager
    def open(self, relation: Relation) -> Iterator[MysqlSession]:
        """Connect, and hold the lease of a table while the block runs."""
        with connect(self.config.dsn) as connection:
            execute(connection, f"SET {_WRITER} = 1")
            session = MysqlSession(connection, self.config, relation)
            session.acquire_lease()
            session.prepare()
            yield session


@dataclass(frozen=True)
class LoadDataSink:
    """Writes the rows of a task with LOAD DATA LOCAL, or with INSERT where it is disabled.

    Attributes:
        dsn: the address; it may contain a password.
        load: the temporary table.
        columns: its columns, each with whether its texts are hexadecimal.
        uses_insert: whether the server does not accept LOAD DATA LOCAL.
    """

    dsn: str = field(repr=False)
    load: str
    columns: tuple[tuple[str, bool], ...]
    uses_insert: bool

    def write(self, part: int, lines: Iterator[pa.Buffer], encoder: RowEncoder) -> None:
        """Write the lines of a part, unless another attempt of the task has written them."""
        with connect(self.dsn) as connection:
            connection.begin()
            try:
                # It waits for another attempt of this task, and conflicts if that has committed.
                execute(
                    connection,
                    f"INSERT INTO {_PARTS} (load_id, part) VALUES (%s, %s)",
                    [self.load, part],
                )
            except pymysql.IntegrityError:
                return
            if self.uses_insert:
                self._insert(connection, lines)
            else:
                self._load(connection, lines, encoder)
            execute(
                connection,
                f"UPDATE {_PARTS} SET counts = %s WHERE load_id = %s AND part = %s",
                [counts_text(encoder), self.load, part],
            )
            connection.commit()

    def _load(
        self, connection: _Connection, lines: Iterator[pa.Buffer], encoder: RowEncoder
    ) -> None:
        names, assignments = [], []
        for number, (name, is_hexadecimal) in enumerate(self.columns):
            if is_hexadecimal:
                names.append(f"@c{number}")
                assignments.append(f"{quoted(name)} = UNHEX(@c{number})")
            else:
                names.append(quoted(name))
        connection.lines = lines
        loaded = _run(
            connection,
            f"LOAD DATA LOCAL INFILE '{_STREAM}' INTO TABLE {quoted(self.load)} CHARACTER SET "
            "utf8mb4 FIELDS TERMINATED BY '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n' "
            f"({', '.join(names)})" + (f" SET {', '.join(assignments)}" if assignments else ""),
        )
        connection.lines = None
        # With LOCAL, values that do not fit are changed with a warning.
        warnings = execute(connection, "SHOW WARNINGS LIMIT 1")
        if warnings or loaded != sum(encoder.rows.values()):
            number, text = (warnings[0][1], str(warnings[0][2])) if warnings else (0, "")
            raise limit_error(number, text) or TargetError(
                f"A value does not fit its column in the target (warning {number}).",
                column=column_of(text),
                hint="docs/targets.md lists the types and their limits.",
            )

    def _insert(self, connection: _Connection, lines: Iterator[pa.Buffer]) -> None:
        names = ", ".join(quoted(name) for name, _ in self.columns)
        head = f"INSERT INTO {quoted(self.load)} ({names}) VALUES ".encode()
        ((packet,),) = execute(connection, "SELECT @@max_allowed_packet")
        rows = (
            [
                self._literal(connection, text, is_hexadecimal=is_hexadecimal)
                for text, (_, is_hexadecimal) in zip(row.split(b"\t"), self.columns, strict=True)
            ]
            for line in lines
            for row in bytes(memoryview(line)).split(b"\n")[:-1]
        )
        # Values are part of the text: names of columns may contain %, and values of many megabytes.
        for statement in insert_statements(head, rows, [name for name, _ in self.columns], packet):
            connection.query(statement)

    def _literal(self, connection: _Connection, text: bytes, *, is_hexadecimal: bool) -> bytes:
        value = unescape(text)
        if value is None:
            return b"NULL"
        if is_hexadecimal:
            return b"x'" + value.encode() + b"'"
        return _literal(connection, value).encode()


def insert_statements(
    head: bytes, rows: Iterable[Sequence[bytes]], columns: Sequence[str], packet: int
) -> Iterator[bytes]:
    """Yield INSERT statements for rows, each as large as is efficient.

    Args:
        head: the statement until its rows.
        rows: the rows' values as SQL.
        columns: the names of the values, for errors.
        packet: the number of bytes that the server accepts in a statement.

    Raises:
        TargetError: a row is larger than the server accepts.
    """
    found, size = list[bytes](), 0
    for values in rows:
        row = b"(" + b",".join(values) + b")"
        # The server's number includes the kind of the command.
        if len(head) + len(row) + 1 >= packet:
            longest = max(range(len(values)), key=lambda number: len(values[number]))
            raise packet_error(columns[longest], len(head) + len(row) + 2)
        if found and len(head) + size + len(row) + 2 >= min(_STATEMENT_BYTES, packet):
            yield head + b",".join(found)
            found, size = [], 0
        found.append(row)
        size += len(row) + 1
    if found:
        yield head + b",".join(found)


def _literal(connection: _Connection, text: str) -> str:
    return str(connection.cursor().mogrify("%s", (text,)))


def unescape(text: bytes) -> str | None:
    """Return the value of a field in the text format of LOAD DATA."""
    if text == b"\\N":
        return None
    return re.sub(rb"\\(.)", lambda match: _ESCAPED[match[1]], text).decode()


class MysqlSession:
    """A connection that holds the lease of one target table."""

    def __init__(self, connection: _Connection, config: MysqlTarget, relation: Relation) -> None:
        self.relation = relation
        self._connection = connection
        self._config = config
        self._target = quoted(relation.table)
        self.limits: TargetLimits = limits_of(connection)
        self.detects_changes = config.detect_changes
        self._prefix = f"{_LOADS}{relation.prefix}"

    def _execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return execute(self._connection, statement, values)

    def acquire_lease(self) -> None:
        """Take the lease of the table, which ends with the connection.

        Raises:
            TargetBusyError: another process holds it.
        """
        name = f"chronolake {sha256(str(self.relation).encode()).hexdigest()[:40]}"
        ((is_held,),) = self._execute("SELECT GET_LOCK(%s, %s)", [name, int(BUSY_SECONDS)])
        if not is_held:
            raise TargetBusyError(
                f"Another process is publishing {self.relation}.",
                hint="Wait until it has ended. If it was killed, the server may need a moment to "
                "notice.",
            )

    def prepare(self) -> None:
        """Create Chronolake's tables, complete an interrupted step, and remove what it left."""
        known = {name for (name,) in self._execute("SHOW TABLES LIKE 'chronolake\\_%%'")}
        if not {_STATE, _CHANGES, _PARTS} <= known:
            self._create_own_tables()
        self._complete_step()
        for name in known:
            if name.startswith(self._prefix):
                self.drop(name)

    def _create_own_tables(self) -> None:
        for statement in _OWN_TABLES:
            self._execute(statement)

    def _complete_step(self) -> None:
        """Store the state after a step that a previous run has made, or forget the step."""
        rows = self._execute(
            f"SELECT pending FROM {_STATE} WHERE relation = %s AND pending IS NOT NULL",
            [str(self.relation)],
        )
        for (text,) in rows:
            step = json.loads(text)
            published = Published.from_text(step["published"])
            if step["kind"] == "swap":
                self._complete_swap(published, step["old"], takes_over=step["takes_over"])
            elif self._columns() == _expected(published.columns):
                self._store(published)
            self._execute(
                f"UPDATE {_STATE} SET pending = NULL WHERE relation = %s", [str(self.relation)]
            )
            # A table that was never published has no state.
            self._execute(
                f"DELETE FROM {_STATE} WHERE relation = %s AND state IS NULL", [str(self.relation)]
            )

    def _begin_step(
        self, kind: str, published: Published, *, old: str | None = None, takes_over: bool = False
    ) -> None:
        step = {
            "kind": kind,
            "published": published.to_text(),
            "old": old,
            "takes_over": takes_over,
        }
        self._execute(
            f"INSERT INTO {_STATE} (relation, pending) VALUES (%s, %s) "
            "ON DUPLICATE KEY UPDATE pending = VALUES(pending)",
            [str(self.relation), json.dumps(step, ensure_ascii=False)],
        )

    def published(self) -> Published | None:
        """Return the state of the table, or None if it was never published."""
        rows = self._execute(
            f"SELECT state FROM {_STATE} WHERE relation = %s AND state IS NOT NULL",
            [str(self.relation)],
        )
        return Published.from_text(rows[0][0]) if rows else None

    def is_present(self) -> bool:
        """Return whether the database has a table with this name."""
        return self._load_of(self.relation.table) is not None

    def _load_of(self, table: str) -> str | None:
        """Return the load that created a table, from its comment; None without such a table."""
        rows = self._execute(
            "SELECT table_comment FROM information_schema.tables WHERE table_schema = DATABASE() "
            "AND table_name = %s",
            [table],
        )
        return str(rows[0][0]) if rows else None

    def _columns(self) -> dict[str, str]:
        rows = self._execute(
            "SELECT column_name, column_type FROM information_schema.columns "
            "WHERE table_schema = DATABASE() AND table_name = %s "
            "AND extra NOT LIKE '%%INVISIBLE%%'",
            [self.relation.table],
        )
        return {name: _DISPLAY_WIDTH.sub(r"\1", _text(kind)) for name, kind in rows}

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
        load = self._load_of(self.relation.table)
        if load is None:
            return "the table was dropped or renamed"
        if load != published.physical:
            return "another table has its name"
        if noted := self._noted(published.load_id):
            return noted
        if self._columns() != _expected(published.columns):
            return "its columns were altered"
        triggers = self._execute(
            "SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = "
            "DATABASE() AND event_object_table = %s",
            [self.relation.table],
        )
        expected = set(_triggers_of(published))
        is_expected = self.detects_changes and published.has_triggers
        if is_expected and not expected <= {name for (name,) in triggers}:
            return "its triggers were dropped"
        # TRUNCATE has no triggers.
        return None if self._has_rows() == published.has_rows else "all rows were removed or added"

    def _noted(self, load: str) -> str | None:
        rows = self._execute(
            f"SELECT operation, changed_by, changed_at FROM {_CHANGES} WHERE relation = %s "
            "AND load_id = %s ORDER BY changed_at LIMIT 1",
            [str(self.relation), load],
        )
        return f"{rows[0][0]} by the user {rows[0][1]} at {rows[0][2]} UTC" if rows else None

    def _has_rows(self) -> bool:
        return bool(self._execute(f"SELECT 1 FROM {self._target} LIMIT 1"))

    def create_load(self, columns: Sequence[TargetColumn], *, is_stage: bool) -> str:
        """Create a temporary table and return its name."""
        name = f"{self._prefix}{uuid4().hex[:12]}"
        definitions = [_definition(column) for column in columns]
        key = [] if is_stage else [column.name for column in columns if column.is_key]
        if is_stage:
            definitions.insert(0, f"{quoted(OPERATION)} char(1)")
        if self._needs_keys and key:
            definitions.append(f"PRIMARY KEY ({', '.join(map(quoted, key))})")
        elif self._needs_keys:
            definitions.append(
                f"{quoted(_ROW)} bigint unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY INVISIBLE"
            )
        self._execute(
            f"CREATE TABLE {quoted(name)} ({', '.join(definitions)}) ENGINE = InnoDB "
            f"ROW_FORMAT = DYNAMIC{self.limits.text_options} COMMENT = '{name}'"
        )
        return name

    @cached_property
    def _needs_keys(self) -> bool:
        """Return whether the server accepts only tables with a key, or adds one itself."""
        found = self._execute(f"SHOW VARIABLES WHERE Variable_name IN ({_KEY_SETTINGS})")
        return any(value == "ON" for _, value in found)

    def sink(self, load: str, columns: Sequence[TargetColumn], *, is_stage: bool) -> LoadDataSink:
        """Return what writes rows to a temporary table."""
        names = [(column.name, column.type.kind is Kind.BINARY) for column in columns]
        if is_stage:
            names.insert(0, (OPERATION, False))
        ((is_enabled,),) = self._execute("SELECT @@GLOBAL.local_infile")
        return LoadDataSink(self._config.dsn, load, tuple(names), uses_insert=not is_enabled)

    def written(self, load: str, parts: int) -> Written:
        """Return what tasks have written, after checking that no part is missing."""
        rows = self._execute(f"SELECT counts FROM {_PARTS} WHERE load_id = %s", [load])
        if len(rows) != parts:
            raise TargetError(
                f"{parts} parts were written, and the target has {len(rows)}.",
                hint="Publish again. If it happens again, check the server's log.",
            )
        return written_of(text for (text,) in rows)

    def drop(self, load: str) -> None:
        """Drop a temporary table."""
        self._execute(f"DROP TABLE IF EXISTS {quoted(load)}")
        self._execute(f"DELETE FROM {_PARTS} WHERE load_id = %s", [load.removesuffix("_old")])

    def _store(self, published: Published) -> None:
        self._execute(
            f"INSERT INTO {_STATE} (relation, lake_table, snapshot_id, published_at, state) "
            "VALUES (%s, %s, %s, UTC_TIMESTAMP(), %s) ON DUPLICATE KEY UPDATE lake_table = "
            "VALUES(lake_table), snapshot_id = VALUES(snapshot_id), published_at = "
            "VALUES(published_at), state = VALUES(state)",
            [
                str(self.relation),
                published.table,
                published.snapshot_id,
                published.to_text(),
            ],
        )

    def swap_in(
        self, load: str, base: Published | None, published: Published, *, takes_over: bool
    ) -> None:
        """Replace the target table by a temporary table, or its rows, and store the state."""
        self._index(load, published.columns)
        if self.published() != base:
            raise meanwhile_error(self.relation)
        if base is not None and not takes_over:
            self.raise_if_changed(base)
        is_present = self.is_present()
        additions = find_additions(self._connection, self.relation, base) if is_present else []
        if additions and base is not None and self._has_form_of(base, published):
            self._fill(load, base, published, takes_over=takes_over)
            return
        if takes_over:
            self._raise_if_referenced(additions)
        else:
            raise_if_lost(str(self.relation), published.table, additions)
        self._set_triggers(load, load)
        published = replace(published, physical=load, has_triggers=self.detects_changes)
        old = f"{load}_old" if is_present else None
        self._begin_step("swap", published, old=old, takes_over=takes_over)
        reach("target.before-swap")
        moved = [] if old is None else [f"{self._target} TO {quoted(old)}"]
        self._execute(f"RENAME TABLE {', '.join([*moved, f'{quoted(load)} TO {self._target}'])}")
        reach("target.after-swap")
        self._complete_step()
        if base is not None and self._load_of(self.relation.table) != load:
            # Others have changed the table in the last moment, and the swap was undone.
            self.raise_if_changed(base)
        if old is not None:
            self.drop(old)
        self._execute(f"DELETE FROM {_PARTS} WHERE load_id = %s", [load])
        reach("target.after-commit")

    def _raise_if_referenced(self, additions: Sequence[Addition]) -> None:
        """Raise if foreign keys reference the table: they would follow it to its other name."""
        references = [addition for addition in additions if addition.kind == REFERENCE]
        if references:
            raise TargetChangedError(
                f"{self.relation} cannot be replaced: {list_additions(references)}.",
                hint="Drop these foreign keys, publish, and create them again.",
            )

    def _has_form_of(self, base: Published, published: Published) -> bool:
        """Return whether the table is the published one, with the columns and key of a state."""
        key = self._execute(
            "SELECT column_name FROM information_schema.statistics WHERE table_schema = DATABASE() "
            "AND table_name = %s AND index_name = %s",
            [self.relation.table, PRIMARY],
        )
        return (
            self._load_of(self.relation.table) == base.physical
            and self._columns() == _expected(published.columns)
            and {name for (name,) in key} - _ROW_KEYS
            == {column.name for column in published.columns if column.is_key}
        )

    def _fill(self, load: str, base: Published, published: Published, *, takes_over: bool) -> None:
        """Give the table the rows of a temporary table, and keep what others have added to it.

        With a key, equal rows are not written: foreign keys of others may reference them.
        """
        if takes_over or base.has_triggers != self.detects_changes:
            self._set_triggers(self.relation.table, base.load_id)
        names = [column.name for column in published.columns]
        key = [column.name for column in published.columns if column.is_key]
        source = quoted(load)
        columns = ", ".join(map(quoted, names))
        statements = [
            f"DELETE FROM {self._target}",
            f"INSERT INTO {self._target} ({columns}) SELECT {columns} FROM {source}",
        ]
        if key:
            same = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in key)
            sets = [f"t.{quoted(name)} = s.{quoted(name)}" for name in names if name not in key]
            new = ", ".join(f"s.{quoted(name)}" for name in names)
            statements = [
                (
                    f"DELETE t FROM {self._target} t LEFT JOIN {source} s ON {same} "
                    f"WHERE s.{quoted(key[0])} IS NULL"
                ),
                *(
                    [f"UPDATE {self._target} t JOIN {source} s ON {same} SET {', '.join(sets)}"]
                    if sets
                    else []
                ),
                (
                    f"INSERT INTO {self._target} ({columns}) SELECT {new} FROM {source} s "
                    f"LEFT JOIN {self._target} t ON {same} WHERE t.{quoted(key[0])} IS NULL"
                ),
            ]
        reach("target.before-swap")
        self._begin(base)
        for statement in statements:
            self._execute(statement)
        counts = self._execute(
            f"SELECT (SELECT count(*) FROM {self._target}) = (SELECT count(*) FROM {source})"
        )
        if counts != [(1,)]:
            raise incomplete_error(self.relation, published.table)
        stored = self._stored(replace(published, load_id=base.load_id, physical=base.physical))
        if takes_over:
            self._execute(f"DELETE FROM {_CHANGES} WHERE relation = %s", [str(self.relation)])
        else:
            self.raise_if_changed(stored)
        self._store(stored)
        reach("target.before-commit")
        self._connection.commit()
        reach("target.after-commit")
        self.drop(load)

    def _begin(self, base: Published) -> None:
        """Begin a transaction, if the table's state is still `base`."""
        self._connection.begin()
        rows = self._execute(
            f"SELECT state FROM {_STATE} WHERE relation = %s FOR UPDATE", [str(self.relation)]
        )
        if [Published.from_text(text) for (text,) in rows if text] != [base]:
            raise meanwhile_error(self.relation)

    def _stored(self, published: Published) -> Published:
        return replace(published, has_rows=self._has_rows(), has_triggers=self.detects_changes)

    def _complete_swap(self, published: Published, old: str | None, *, takes_over: bool) -> None:
        """Store the state after a swap, unless it was not made or must be undone."""
        if self._load_of(self.relation.table) != published.load_id:
            return
        base = self.published()
        noted = None if base is None or takes_over else self._noted(base.load_id)
        if noted is not None and old is not None:
            # Somebody has changed the table in the moment before it was replaced.
            self._execute(
                f"RENAME TABLE {self._target} TO {quoted(published.load_id)}, {quoted(old)} TO "
                f"{self._target}"
            )
            return
        self._connection.begin()
        self._execute(
            f"DELETE FROM {_CHANGES} WHERE relation = %s AND load_id <> %s",
            [str(self.relation), published.load_id],
        )
        self._store(replace(published, has_rows=self._has_rows()))
        self._execute(
            f"UPDATE {_STATE} SET pending = NULL WHERE relation = %s", [str(self.relation)]
        )
        reach("target.before-commit")
        self._connection.commit()

    def _index(self, load: str, columns: Sequence[TargetColumn]) -> None:
        names = {column.name for column in columns}
        # A table of a server that needs keys has got its key already.
        key = [quoted(column.name) for column in columns if column.is_key and not self._needs_keys]
        actions = [f"ADD PRIMARY KEY ({', '.join(key)})"] if key else []
        if ACTIVE in names:
            actions += [f"ADD INDEX ({quoted(name)})" for name in (START, ACTIVE) if name in names]
        if actions:
            self._execute(f"ALTER TABLE {quoted(load)} {', '.join(actions)}")

    def _set_triggers(self, table: str, load: str) -> None:
        """Create the triggers that record changes by others, or drop them if they are not wanted.

        Args:
            table: the table.
            load: the load that has created it.
        """
        for operation in _OPERATIONS:
            trigger = quoted(f"{load}_{operation}")
            if table != load:
                self._execute(f"DROP TRIGGER IF EXISTS {trigger}")
            if not self.detects_changes:
                continue
            # Names have no place in a statement with parameters: they may contain %.
            self._execute(
                f"CREATE TRIGGER {trigger} AFTER {operation} ON {quoted(table)} FOR EACH ROW BEGIN "
                f"IF {_WRITER} IS NULL THEN INSERT IGNORE INTO {_CHANGES} VALUES "
                f"({_literal(self._connection, str(self.relation))}, '{load}', '{operation}', "
                "LEFT(SESSION_USER(), 100), UTC_TIMESTAMP()); END IF; END"
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
        if changes:
            base = self._alter(base, published, changes)
        if base.has_triggers != self.detects_changes:
            self._set_triggers(self.relation.table, base.load_id)
        reach("target.altered")
        self._begin(base)
        if load is not None:
            self._change_rows(load, written, published)
        stored = self._stored(published)
        # Statements see what others committed while this transaction waited for their locks.
        self.raise_if_changed(stored)
        self._store(stored)
        reach("target.before-commit")
        self._connection.commit()
        reach("target.after-commit")

    def _alter(
        self, base: Published, published: Published, changes: Sequence[ColumnChange]
    ) -> Published:
        """Change the columns in one statement, and store the state with the new columns."""
        altered = replace(base, columns=published.columns)
        self._begin_step("alter", altered)
        reach("target.step-stored")
        actions = ", ".join(_action(change) for change in changes)
        self._execute(f"ALTER TABLE {self._target} {actions}")
        self._complete_step()
        return altered

    def _change_rows(self, load: str, written: Written, published: Published) -> None:
        names = [column.name for column in published.columns]
        key = [column.name for column in published.columns if column.is_key]
        same = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in key)
        columns = ", ".join(map(quoted, names))
        sets = ", ".join(
            f"t.{quoted(name)} = s.{quoted(name)}" for name in names if name not in key
        )
        source, operation = quoted(load), quoted(OPERATION)
        statements = {
            DELETE: f"DELETE t FROM {self._target} t JOIN {source} s ON {same} "
            f"WHERE s.{operation} = 'D'",
            UPDATE: f"UPDATE {self._target} t JOIN {source} s ON {same} SET {sets} "
            f"WHERE s.{operation} = 'U'",
            INSERT: f"INSERT INTO {self._target} ({columns}) SELECT {columns} FROM {source} "
            f"WHERE {operation} = 'I'",
        }
        for kind, statement in statements.items():
            expected = written.rows[kind]
            if not expected:
                continue
            try:
                changed = _run(self._connection, statement)
            except pymysql.IntegrityError as failure:
                if constraint_of(failure) != PRIMARY:
                    raise
                changed = -1
            if changed != expected:
                raise TargetChangedError(
                    f"{self.relation} was changed by others: it does not have the rows that were "
                    "published.",
                    table=published.table,
                    hint=TAKE_OVER,
                )


def limits_of(connection: _Connection) -> TargetLimits:
    """Return the limits of a connection's server."""
    is_mariadb, version = version_of(connection)
    return mysql_limits(numbers_of(version or "8.4.0"), is_mariadb=is_mariadb)


def find_additions(
    connection: _Connection, relation: Relation, published: Published | None
) -> list[Addition]:
    """Return what others have added to a table; None: Chronolake has not created it."""
    found = [
        Addition(_text(kind), _text(name))
        for query in MYSQL_ADDITIONS
        for kind, name in execute(connection, query, [relation.table])
    ]
    own = {PRIMARY, START, ACTIVE, *(_triggers_of(published) if published else ())}
    return [item for item in found if item.name not in own or item.kind not in {"index", TRIGGER}]


def _triggers_of(published: Published) -> list[str]:
    return [f"{published.load_id}_{operation}" for operation in _OPERATIONS]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _expected(columns: Sequence[TargetColumn]) -> dict[str, str]:
    """Return the columns of a table as information_schema has them."""
    return {column.name: column.sql.partition(" ")[0] for column in columns}


def _definition(column: TargetColumn) -> str:
    text = f"{quoted(column.name)} {column.sql}"
    if column.is_key:
        # Otherwise the server sets a TIMESTAMP to the current time at each update.
        default = " DEFAULT '1970-01-01 00:00:01'" if column.sql.startswith("timestamp") else ""
        return f"{text} NOT NULL{default}"
    return f"{text} NULL DEFAULT NULL"


def _action(change: ColumnChange) -> str:
    match change.kind:
        case ChangeKind.ADD:
            return f"ADD COLUMN {_definition(change.column)}"
        case ChangeKind.DROP:
            return f"DROP COLUMN {quoted(change.column.name)}"
        case ChangeKind.RENAME:
            return f"CHANGE COLUMN {quoted(change.before or '')} {_definition(change.column)}"
        case ChangeKind.RETYPE:
            return f"MODIFY COLUMN {_definition(change.column)}"
