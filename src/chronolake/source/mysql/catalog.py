"""Tables of a MySQL or MariaDB database, as its catalog describes them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from chronolake.errors import SourceError
from chronolake.source.mysql.columns import SourceColumn, base_of, form_of_declared
from chronolake.source.mysql.connection import execute, quoted
from chronolake.source.mysql.foreign_keys import cascades_in
from chronolake.source.mysql.result_rows import read_rows, with_logged_floats
from chronolake.source.relational.protected_texts import ProtectedTexts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pymysql

    from chronolake.landing import ColumnRules
    from chronolake.source.mysql.foreign_keys import Cascade

#: Databases of the server itself.
SYSTEM: Final = frozenset({"mysql", "sys", "information_schema", "performance_schema"})
_COLUMNS: Final = """
SELECT c.TABLE_SCHEMA, c.TABLE_NAME, t.TABLE_NAME, c.COLUMN_NAME, c.COLUMN_TYPE,
       c.IS_NULLABLE = 'YES', COALESCE(c.GENERATION_EXPRESSION, '') <> '', t.ENGINE,
       t.TABLE_TYPE = 'SYSTEM VERSIONED'
FROM information_schema.COLUMNS c JOIN information_schema.TABLES t
ON t.TABLE_SCHEMA = c.TABLE_SCHEMA AND t.TABLE_NAME = c.TABLE_NAME
WHERE t.TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') AND c.TABLE_SCHEMA IN ({})
ORDER BY c.TABLE_SCHEMA, c.TABLE_NAME, c.ORDINAL_POSITION
"""
#: A prefix of a text does not identify a row, and the log lacks the values of expressions.
_KEYS: Final = """
SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, COLUMN_NAME,
       SUB_PART IS NULL AND COLUMN_NAME IS NOT NULL
FROM information_schema.STATISTICS WHERE NON_UNIQUE = 0 AND TABLE_SCHEMA IN ({})
ORDER BY TABLE_SCHEMA, TABLE_NAME, INDEX_NAME = 'PRIMARY' DESC, INDEX_NAME, SEQ_IN_INDEX
"""
_PRIMARY: Final = "PRIMARY"
_TRANSACTIONAL: Final = frozenset({"INNODB", "ROCKSDB", "TOKUDB", "NDBCLUSTER", ""})
#: Types of MariaDB whose values the log has in another form than the type's texts.
_UNLOGGED: Final = frozenset({"uuid", "inet4", "inet6"})
#: Engines whose rows change without events of their own table, or are somewhere else.
_UNLOGGED_ENGINES: Final = frozenset(
    {"MRG_MYISAM", "FEDERATED", "CONNECT", "SPIDER", "BLACKHOLE", "S3"}
)


@dataclass(frozen=True)
class SourceTable:
    """A table of a database.

    Attributes:
        schema: its database.
        name: its name.
        columns: the columns that are stored, in their order.
        key: the columns of its primary key, in the order of the index; empty without one.
        distinct_by: the columns of a unique index that are never null; empty without one.
        excluded: the columns that are not read.
        generated: the columns that are computed.
        engine: its storage engine.
        texts: the rules of its columns.
        unlogged: why its rows cannot be read from the log; empty if they can.
        cascades: what changes its rows without being logged.
    """

    schema: str
    name: str
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    distinct_by: tuple[str, ...]
    excluded: frozenset[str]
    generated: frozenset[str]
    engine: str
    texts: ProtectedTexts[SourceColumn]
    unlogged: str = ""
    cascades: tuple[Cascade, ...] = ()

    def without_generated(self) -> SourceTable:
        """Return the table without its computed columns, unless they belong to its key."""
        return replace(
            self,
            columns=tuple(
                column
                for column in self.columns
                if column.name not in self.generated or column.name in self._identity
            ),
        )

    @property
    def stream(self) -> str:
        """Return the name of its stream."""
        return f"{self.schema}.{self.name}"

    @property
    def log_key(self) -> tuple[str, ...]:
        """Return the columns that identify rows in the log; empty if none do."""
        return () if self.unlogged else self._identity

    @property
    def _identity(self) -> tuple[str, ...]:
        return self.key or self.distinct_by

    @property
    def is_transactional(self) -> bool:
        """Return whether its changes are undone when a transaction is rolled back."""
        return self.engine.upper() in _TRANSACTIONAL


def tables_in(
    connection: pymysql.Connection[Any],
    schemas: Sequence[str],
    rules: Callable[[str], ColumnRules],
) -> list[SourceTable]:
    """Return the tables of some databases.

    Args:
        connection: a connection to the server.
        schemas: the databases.
        rules: returns the column rules of a stream.

    Raises:
        SourceError: the catalog cannot be read.
    """
    if not schemas:
        return []
    marks = ", ".join(["%s"] * len(schemas))
    described: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
    for schema, table, joined, *row in execute(connection, _COLUMNS.format(marks), tuple(schemas)):
        # MariaDB compares names without regard to case, also where they are those of two tables.
        if table == joined:
            described.setdefault((schema, table), []).append(tuple(row))
    cascades = cascades_in(connection, schemas)
    keys: dict[tuple[str, str], dict[str, list[tuple[str, bool]]]] = {}
    for schema, table, index, column, is_whole in execute(
        connection, _KEYS.format(marks), tuple(schemas)
    ):
        indexes = keys.setdefault((schema, table), {})
        indexes.setdefault(index, []).append((column, bool(is_whole)))
    return [
        replace(
            _table(schema, name, columns, keys.get((schema, name), {}), rules(f"{schema}.{name}")),
            cascades=tuple(cascades.get((schema, name), ())),
        )
        for (schema, name), columns in described.items()
    ]


def _table(
    schema: str,
    name: str,
    described: Sequence[tuple[Any, ...]],
    indexes: dict[str, list[tuple[str, bool]]],
    rules: ColumnRules,
) -> SourceTable:
    nullable = {column for column, _, is_nullable, *_ in described if is_nullable}
    whole = {
        index: tuple(column for column, _ in parts)
        for index, parts in indexes.items()
        if all(is_whole and column not in nullable for column, is_whole in parts)
    }
    key = whole.pop(_PRIMARY, ())
    found = [
        SourceColumn(number, column, form_of_declared(declared))
        for number, (column, declared, *_) in enumerate(described, 1)
    ]
    with_rules = tuple(column for column in found if rules.rule_of(column.name) is not None)
    texts = ProtectedTexts(rules, with_rules)
    stored = [texts.stored_column(column) for column in found]
    return SourceTable(
        schema,
        name,
        tuple(column for column in stored if column is not None),
        key,
        next(iter(sorted(whole.values(), key=len)), ()),
        frozenset(column.name for column in found if rules.is_excluded(column.name)),
        frozenset(column for column, _, _, is_generated, *_ in described if is_generated),
        str(described[0][4] or ""),
        texts,
        _unlogged_reason(described),
    )


def _unlogged_reason(described: Sequence[tuple[Any, ...]]) -> str:
    """Return why the rows of a table cannot be read from the log, or an empty text."""
    *_, engine, is_versioned = described[0]
    if is_versioned:
        return "is system-versioned"
    if str(engine).upper() in _UNLOGGED_ENGINES:
        return f"has the engine {engine}"
    for column, declared, *_ in described:
        base = base_of(declared.lower())
        if base in _UNLOGGED:
            return f"has the column {column} of the type {base}"
        if "COMPRESSED" in declared.upper():
            return f"has the compressed column {column}"
    return ""


def default_values(
    connection: pymysql.Connection[Any], table: SourceTable
) -> dict[str, str | None]:
    """Return the texts that columns have in a row whose insert does not name them.

    Columns whose default is an expression are left out: the log always contains their values.

    Args:
        connection: a connection to the server.
        table: the table.

    Raises:
        SourceError: the server does not respond.
    """
    place = f"FROM (SELECT 1) AS one LEFT JOIN {quoted(table.schema, table.name)} ON FALSE"
    found: dict[str, str | None] = {}
    for column in table.columns:
        name = quoted(column.name)
        cell = column.copied.replace(name, f"DEFAULT({name})")
        try:
            (rows,) = read_rows(connection, f"SELECT {cell} {place}", [column.name])
        except SourceError:
            continue
        if column.is_float:
            rows = with_logged_floats(rows, [column.name])
        (found[column.name],) = rows.column(0).to_pylist()
    return found


def databases(connection: pymysql.Connection[Any]) -> Iterable[str]:
    """Return the databases of a server that contain tables of users."""
    rows = execute(connection, "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA")
    return [name for (name,) in rows if name.lower() not in SYSTEM]
