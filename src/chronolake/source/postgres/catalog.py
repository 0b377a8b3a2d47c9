"""Tables of a PostgreSQL database, their publications and their replica identities.

Source: `specs/postgres-facts.md` (2.4, 2.6, 6.5). A partitioned table counts as one table; its
partitions are only read where the rows are.

The replica identity decides which values of old rows the log contains. It is a property of the
relation that stores the rows: each partition has its own, independent of the partitioned table's. A
published table refuses updates and deletes if its replica identity is nothing, or, from PostgreSQL
18 on, if it contains generated columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from chronolake.errors import SourceError
from chronolake.source.postgres.columns import SourceColumn
from chronolake.source.postgres.connection import translate_errors
from chronolake.source.postgres.encoding import Undecodable, name_cursor
from chronolake.source.postgres.messages import ReplicaIdentity
from chronolake.source.postgres.text_dependencies import Dependencies, dependencies_of
from chronolake.source.postgres.value_forms import PLAIN, ColumnOptions, ValueForm, forms_of
from chronolake.source.relational.protected_texts import ProtectedTexts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import psycopg


#: Domains are based on other types, perhaps on other domains.
_BASE: Final = """
WITH RECURSIVE base(oid, type, modifier) AS (
    SELECT oid, oid, -1 FROM pg_catalog.pg_type WHERE typtype <> 'd'
    UNION ALL
    SELECT t.oid, base.type, greatest(t.typtypmod, base.modifier)
    FROM pg_catalog.pg_type t JOIN base ON t.typbasetype = base.oid WHERE t.typtype = 'd'
)"""


def with_partitions(table: str) -> str:
    """Return a query, as SQL, for the oids of a table and of its partitions.

    The server's own functions for this would wait for a transaction that changes the table, and all
    other tables would wait with it.

    Args:
        table: the table's oid, as SQL.
    """
    return f"""
    WITH RECURSIVE tree(oid) AS (
        SELECT {table}
        UNION ALL
        SELECT i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid
        JOIN pg_catalog.pg_class child ON child.oid = i.inhrelid
        WHERE child.relispartition AND NOT i.inhdetachpending
    ) SELECT oid FROM tree"""


_TABLES: Final = f"""{_BASE}, key AS (
    SELECT i.indrelid, array_agg(k.number ORDER BY k.place) AS numbers
    FROM pg_catalog.pg_index i
    JOIN pg_catalog.pg_class c ON c.oid = i.indrelid
    CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k(number, place)
    WHERE CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
      AND i.indimmediate AND i.indisvalid AND k.place <= i.indnkeyatts
    GROUP BY i.indrelid, i.indexrelid
), distinct_by AS (
    SELECT DISTINCT ON (i.indrelid) i.indrelid, i.indkey::int2[] AS numbers
    FROM pg_catalog.pg_index i
    WHERE i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL
      AND i.indexprs IS NULL AND i.indnatts = i.indnkeyatts
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = i.indrelid
                      AND a.attnum = ANY (i.indkey) AND NOT a.attnotnull)
    ORDER BY i.indrelid, i.indnkeyatts, i.indexrelid
)
SELECT c.oid::bigint, n.nspname, c.relname, c.relreplident::text,
       coalesce(key.numbers, '{{}}'), coalesce(distinct_by.numbers, '{{}}'),
       array_agg(a.attnum ORDER BY a.attnum),
       array_agg(a.attname::text ORDER BY a.attnum),
       array_agg(base.type::bigint ORDER BY a.attnum),
       array_agg(CASE WHEN a.atttypmod >= 0 THEN a.atttypmod ELSE base.modifier END
                 ORDER BY a.attnum),
       array_agg(a.attgenerated::text ORDER BY a.attnum),
       parts.storage, coalesce(parts.logs_all, false), c.relnatts, coalesce(filled.names, '{{}}'),
       coalesce(parts.oids, '{{}}')
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
JOIN base ON base.oid = a.atttypid
LEFT JOIN key ON key.indrelid = c.oid
LEFT JOIN distinct_by ON distinct_by.indrelid = c.oid
CROSS JOIN LATERAL (
    SELECT array_agg(s.relfilenode::bigint ORDER BY s.oid) || (
               -- A partition that was detached and attached again has another row in the catalog.
               SELECT array_agg(i.xmin::text::bigint ORDER BY i.inhrelid)
               FROM pg_catalog.pg_inherits i
               WHERE i.inhrelid <> c.oid AND i.inhrelid IN ({with_partitions("c.oid")})
           ) AS storage,
           bool_and(s.relreplident = 'f') AS logs_all,
           array_agg(s.oid::bigint) AS oids
    FROM pg_catalog.pg_class s
    WHERE s.relkind = 'r' AND s.oid IN ({with_partitions("c.oid")})
) parts
CROSS JOIN LATERAL (
    SELECT array_agg(DISTINCT m.attname::text) AS names FROM pg_catalog.pg_attribute m
    WHERE m.atthasmissing AND m.attrelid IN ({with_partitions("c.oid")})
) filled
WHERE n.nspname = ANY (ARRAY(SELECT pg_catalog.convert_from(one, 'UTF8')
                             FROM unnest(%s::bytea[]) AS given(one)))
  AND c.relkind IN ('r', 'p') AND NOT c.relispartition
  AND (c.relpersistence = 'p' OR (%s AND c.relpersistence = 'u' AND NOT pg_is_in_recovery()))
  AND a.attnum > 0 AND NOT a.attisdropped
  AND (%s::oid IS NULL OR c.oid = %s::oid)
GROUP BY c.oid, n.nspname, c.relname, c.relreplident, c.relnatts, key.numbers, distinct_by.numbers,
         parts.storage, parts.logs_all, filled.names, parts.oids
ORDER BY n.nspname, c.relname
"""
#: The relations that store a table's rows, and the number of pages of each.
_PARTS: Final = """
SELECT t.relid::oid::bigint, t.relid::regclass::text, pg_catalog.pg_relation_size(t.relid) / 8192
FROM pg_catalog.pg_partition_tree(%(oid)s::oid::regclass) t WHERE t.isleaf
UNION ALL
SELECT c.oid::bigint, c.oid::regclass::text, pg_catalog.pg_relation_size(c.oid) / 8192
FROM pg_catalog.pg_class c WHERE c.oid = %(oid)s::oid AND c.relkind = 'r'
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_partition_tree(c.oid::regclass))
"""
#: `pg_partition_tree` returns the current partitions, the catalog those of the snapshot.
_HAS_NEW_PARTS: Final = """
SELECT EXISTS (
  SELECT FROM pg_catalog.pg_partition_tree(%(oid)s::oid::regclass) t WHERE t.level > 0
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits i
                  WHERE i.inhrelid = t.relid AND i.inhparent = t.parentrelid))
"""
_DOMAINS: Final = f"""{_BASE}
SELECT oid::bigint, type::bigint, modifier FROM base WHERE oid <> type
"""
#: The contents of a publication: named tables, all tables of schemas, or the whole database. A
#: table that is included in more than one way is published completely.
_PUBLISHED: Final = """
WITH published AS (
    SELECT *, xmin::text AS version FROM pg_catalog.pg_publication
    WHERE pubname = pg_catalog.convert_from(%s, 'UTF8')
),
listed(relation, since, attributes, row_filter, version) AS (
    SELECT r.prrelid, r.oid, {attributes}, {row_filter}, r.xmin::text
    FROM pg_catalog.pg_publication_rel r JOIN published p ON p.oid = r.prpubid
    UNION ALL
    SELECT c.oid, NULL, NULL, NULL, NULL
    FROM published p JOIN pg_catalog.pg_class c ON p.puballtables
    {by_schema}
)
SELECT c.oid::bigint, coalesce(max(listed.since), p.oid)::bigint,
       pg_catalog.hashtextextended(
           concat_ws(',', p.version, string_agg(listed.version, ',' ORDER BY listed.version)), 0),
       (SELECT coalesce(array_agg(a.attname::text), '{{}}') FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND
        (bool_or(listed.attributes IS NULL) AND (a.attgenerated = '' OR {are_generated})
         OR a.attnum = ANY (min(listed.attributes)))),
       CASE WHEN bool_and(listed.row_filter IS NOT NULL) THEN min(listed.row_filter) END
FROM published p CROSS JOIN listed JOIN pg_catalog.pg_class c ON c.oid = listed.relation
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
GROUP BY c.oid, p.oid, p.version
"""
#: A table that was moved to another schema and back has a new entry in `pg_depend`.
_BY_SCHEMA: Final = """
    UNION ALL
    SELECT c.oid, NULL, NULL, NULL, concat_ws(' ', n.oid, n.xmin,
        (SELECT string_agg(d.xmin::text, ' ' ORDER BY d.refobjid) FROM pg_catalog.pg_depend d
         WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = c.oid AND d.objsubid = 0
           AND d.refclassid = 'pg_catalog.pg_namespace'::regclass))
    FROM published p JOIN pg_catalog.pg_publication_namespace n ON n.pnpubid = p.oid
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.pnnspid
"""
_ARE_GENERATED: Final = (
    "(a.attgenerated = 's' AND EXISTS (SELECT FROM published g WHERE g.pubgencols = 's'))"
)
_PUBLISHES_PARTS: Final = 150_000
#: From this version on, stored generated columns can be published.
PUBLISHES_GENERATED: Final = 180_000
_PUBLIC: Final = "public"


@dataclass(frozen=True)
class SourceTable:
    """A table of a database.

    Attributes:
        oid: its identity, which survives renames.
        schema: its schema.
        name: its name.
        identity: its replica identity: which values of old rows the log contains.
        key: the columns that identify rows, in the order of their index; empty if there is no such
            index.
        distinct_by: the columns of a unique index that are never null, whether or not the log
            contains them for old rows; empty if there is no such index.
        columns: the columns that are read, in their order.
        generated: the names of generated columns that are not read.
        computed: the names of generated columns that are read.
        storage: identifies the storage of the rows; it changes with a rewrite, a truncate, and when
            partitions are attached or detached, even if they are attached again.
        logs_old_rows: whether the log contains complete old rows of the table and of all its
            partitions.
        greatest: the greatest number that a column of it ever had, including dropped ones.
        filled: the numbers of columns that were added with a default: older rows have a value that
            the log has never contained.
        partitions: the oids of the partitions that store its rows; empty if it is not partitioned.
        dependencies: what the text representation of its values depends on.
        forms: for values of some types, the representation used instead of their text, by type oid.
        options: the configured column options.
        texts: the rules of its columns.
    """

    oid: int
    schema: str
    name: str
    identity: ReplicaIdentity
    key: tuple[str, ...]
    distinct_by: tuple[str, ...]
    columns: tuple[SourceColumn, ...]
    generated: frozenset[str]
    computed: frozenset[str]
    storage: tuple[int, ...]
    logs_old_rows: bool
    greatest: int
    filled: frozenset[int]
    partitions: frozenset[int]
    dependencies: Dependencies
    forms: Mapping[int, ValueForm]
    options: ColumnOptions
    texts: ProtectedTexts[SourceColumn] = field(default_factory=ProtectedTexts)

    @property
    def log_key(self) -> tuple[str, ...]:
        """Return the columns that identify rows in the log; empty if none do."""
        return self.key or (self.distinct_by if self.logs_old_rows else ())

    def lacks_generated(self, published: PublishedTable | None) -> bool:
        """Return whether exactly the selected generated columns are missing in the publication."""
        missing = set(self.unpublished_columns(published))
        return bool(missing) and missing <= self.computed

    def unpublished_columns(self, published: PublishedTable | None) -> list[str]:
        """Return the names of columns that are not published; none if the table is not."""
        if published is None:
            return []
        return [column.name for column in self.columns if column.name not in published.columns]

    @property
    def naming_problem(self) -> SourceError | None:
        """Return an error if the table's name or a column's name cannot be decoded, or None."""
        complaint = "is not valid in its database's encoding, or has no equal in UTF-8"
        if isinstance(self.name, Undecodable):
            return SourceError(
                f"The name of the table {self.stream} {complaint}.",
                hint=_rename_hint(f"'ALTER TABLE %s RENAME TO %I', {self.oid}::regclass"),
            )
        for column in self.columns:
            if isinstance(column.name, Undecodable):
                return SourceError(
                    f"The name of the column {column.name} of {self.stream} {complaint}.",
                    hint=_rename_hint(
                        f"'ALTER TABLE %s RENAME COLUMN %I TO %I', {self.oid}::regclass, (SELECT "
                        f"attname FROM pg_attribute WHERE attrelid = {self.oid} AND attnum = "
                        f"{column.number})"
                    ),
                )
        return None

    @property
    def key_numbers(self) -> tuple[int, ...]:
        """Return the numbers of the columns that identify rows in the log, in increasing order."""
        return tuple(
            sorted(
                column.number
                for column in self.columns
                if column.name in self.log_key and column.number is not None
            )
        )

    @property
    def stream(self) -> str:
        """Return the name of its stream."""
        return f"{self.schema}.{self.name}"


def _rename_hint(statement: str) -> str:
    """Return a statement that renames an object by number, as its name cannot be written."""
    return f"Rename it: DO $$ BEGIN EXECUTE format({statement}, 'new_name'); END $$;"


def default_table(stream: str) -> str:
    """Return the default name of a stream's table in the lake."""
    schema, _, name = stream.partition(".")
    return name if schema == _PUBLIC else f"{schema}_{name}"


@dataclass(frozen=True)
class Part:
    """A relation that stores rows of a table: the table itself, or a partition.

    Attributes:
        oid: its identity, which survives renames.
        relation: its name as SQL.
        pages: how many pages of 8 KiB it had when the catalog was read.
    """

    oid: int
    relation: str
    pages: int


@dataclass(frozen=True)
class PublishedTable:
    """The part of a table that a publication contains.

    Attributes:
        since: a number that changes if the table is removed from the publication and added again.
        version: a number that changes with each statement that alters the table's publication.
        columns: the names of its published columns.
        row_filter: the condition of the rows that are published, as SQL; None: all are.
    """

    since: int
    version: int
    columns: frozenset[str]
    row_filter: str | None


def tables_in(
    connection: psycopg.Connection,
    schemas: Sequence[str],
    *,
    options: ColumnOptions = PLAIN,
    oid: int | None = None,
    also_unlogged: bool = False,
) -> list[SourceTable]:
    """Return the tables of some schemas, ordered by schema and name.

    Args:
        connection: a connection to the database.
        options: the configured column options.
        oid: if set, only this table is returned.
        also_unlogged: whether to include unlogged tables, which do not appear in the log; a standby
            has none.

    Raises:
        SourceError: the catalog cannot be read.
    """
    with translate_errors(), name_cursor(connection) as cursor:
        values = ([schema.encode() for schema in schemas], also_unlogged, oid, oid)
        rows = cursor.execute(_TABLES.encode(), values).fetchall()
    oids = [row[0] for row in rows]
    dependencies = dependencies_of(connection, oids, options)
    forms = forms_of(connection, oids, options)
    tables = []
    for number, schema, name, identity, key, distinct_by, *rest in rows:
        *columns_provided, storage, logs_old_rows, greatest, filled, parts = rest
        attributes = list(zip(*columns_provided, strict=True))
        selected = [
            column for column in attributes if not column[4] or column[4] in options.generated
        ]
        rules = options.rules(f"{schema}.{name}")
        by_number = {column[0]: column[1] for column in selected}
        stored_names = {
            place: column for place, column in by_number.items() if not rules.is_removed(column)
        }
        in_key = {*key, *(() if key else distinct_by)}
        # Key values keep their text representation.
        source_columns = tuple(
            SourceColumn(
                column[0],
                column[1],
                column[2],
                column[3],
                None if column[0] in in_key else forms.get(column[2]),
            )
            for column in selected
        )
        texts = ProtectedTexts(
            rules, tuple(column for column in source_columns if rules.rule_of(column.name))
        )
        columns = tuple(filter(None, map(texts.stored_column, source_columns)))
        tables.append(
            SourceTable(
                number,
                schema,
                name,
                ReplicaIdentity(identity),
                # Without a generated column, the remaining ones may not identify rows.
                _complete_names(key, by_number),
                _complete_names(distinct_by, stored_names),
                columns,
                frozenset(column[1] for column in attributes if column[0] not in by_number),
                frozenset(column[1] for column in selected if column[4]),
                tuple(storage or ()),
                logs_old_rows,
                greatest,
                frozenset(column for column, name in by_number.items() if name in filled),
                frozenset(parts) - {number},
                dependencies[number].with_rules(rules.digest),
                forms,
                options,
                texts,
            )
        )
    return tables


def _complete_names(numbers: Sequence[int], names: Mapping[int, str]) -> tuple[str, ...]:
    """Return the names of columns, or an empty tuple if one of them is missing."""
    present = tuple(names[number] for number in numbers if number in names)
    return present if len(present) == len(numbers) else ()


def published_tables(connection: psycopg.Connection, publication: str) -> dict[int, PublishedTable]:
    """Return the contents of a publication by table oid; partitioned tables as a whole.

    Raises:
        SourceError: the catalog cannot be read.
    """
    # Earlier versions publish complete tables. `pg_publication_tables` would lock all of them.
    has_parts = connection.info.server_version >= _PUBLISHES_PARTS
    query = _PUBLISHED.format(
        attributes="r.prattrs::int2[]" if has_parts else "NULL::int2[]",
        row_filter="pg_catalog.pg_get_expr(r.prqual, r.prrelid)" if has_parts else "NULL::text",
        by_schema=_BY_SCHEMA if has_parts else "",
        are_generated=_ARE_GENERATED
        if connection.info.server_version >= PUBLISHES_GENERATED
        else "false",
    )
    with translate_errors(), name_cursor(connection) as cursor:
        rows = cursor.execute(query.encode(), (publication.encode(),)).fetchall()
    return {
        oid: PublishedTable(since, version, frozenset(names), row_filter)
        for oid, since, version, names, row_filter in rows
    }


def publishes_all(connection: psycopg.Connection, publication: str) -> bool | None:
    """Return whether a publication includes all operations, and publishes partitions via the root.

    None means that the publication does not exist.

    Raises:
        SourceError: the catalog cannot be read.
    """
    query = (
        "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate AND pubviaroot "
        "FROM pg_catalog.pg_publication WHERE pubname = %s"
    )
    with translate_errors():
        row = connection.execute(query.encode(), (publication,)).fetchone()
    return None if row is None else bool(row[0])


def server_of(connection: psycopg.Connection) -> int:
    """Return an identifier of the server and database; a database restored elsewhere has another.

    Raises:
        SourceError: the server does not return one.
    """
    query = (
        "SELECT hashtextextended(concat_ws(',', s.system_identifier, "
        "(SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())), 0) "
        "FROM pg_control_system() s"
    )
    with translate_errors():
        row = connection.execute(query.encode()).fetchone()
    return int(row[0]) if row else 0


def process_of(connection: psycopg.Connection) -> tuple[object, ...]:
    """Return a value that identifies a running server, independent of the address used to reach it.

    Copies and standbys of a server share its system identifier, but were not started at the same
    microsecond.

    Raises:
        SourceError: the server does not return it.
    """
    query = "SELECT (SELECT system_identifier FROM pg_control_system()), pg_postmaster_start_time()"
    with translate_errors():
        return tuple(connection.execute(query).fetchone() or ())


def current_table(connection: psycopg.Connection, table: SourceTable) -> SourceTable:
    """Return a table as the connection's transaction sees it.

    Raises:
        SourceError: the table does not exist there, or the catalog cannot be read.
    """
    for current in tables_in(
        connection, [table.schema], options=table.options, oid=table.oid, also_unlogged=True
    ):
        return current
    raise SourceError(
        f"The table {table.stream} was dropped or renamed.",
        hint="Run it again.",
    )


def domains_of(connection: psycopg.Connection) -> dict[int, tuple[int, int]]:
    """Return each domain's base type: its oid and type modifier, by the domain's oid.

    Raises:
        SourceError: the catalog cannot be read.
    """
    with translate_errors():
        rows = connection.execute(_DOMAINS).fetchall()
    return {oid: (base, modifier) for oid, base, modifier in rows}


def parts_of(connection: psycopg.Connection, table: SourceTable) -> list[Part]:
    """Return the relations that currently store a table's rows.

    Raises:
        SourceError: the catalog cannot be read.
    """
    with translate_errors(), name_cursor(connection) as cursor:
        parts = [Part(*row) for row in cursor.execute(_PARTS, {"oid": table.oid}).fetchall()]
    undecodable = next((part for part in parts if isinstance(part.relation, Undecodable)), None)
    if undecodable is not None:
        raise SourceError(
            f"The name of a partition of {table.stream}, {undecodable.relation}, is not valid in "
            "its database's encoding.",
            hint=_rename_hint(f"'ALTER TABLE %s RENAME TO %I', {undecodable.oid}::regclass"),
        )
    return parts


def has_new_parts(connection: psycopg.Connection, table: SourceTable) -> bool:
    """Return whether a table has partitions that did not exist in the connection's snapshot.

    A row that was moved to such a partition may occur twice.

    Raises:
        SourceError: the catalog cannot be read.
    """
    with translate_errors():
        row = connection.execute(_HAS_NEW_PARTS, {"oid": table.oid}).fetchone()
    return row is None or bool(row[0])


#: For each part of a table: its name as SQL, its replica identity, the columns of the corresponding
#: index, whether some of these are generated, and whether any column of the part is.
_IDENTITIES: Final = f"""
SELECT root.oid::bigint, part.oid::regclass::text, part.relreplident::text,
       coalesce(identity.names, '{{}}'), coalesce(identity.is_generated, false),
       EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = part.oid
               AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> ''
               AND a.attgenerated::text <> ALL (%s))
FROM unnest(%s::oid[]) AS root(oid)
JOIN pg_catalog.pg_class part ON part.relkind = 'r' AND part.oid IN ({with_partitions("root.oid")})
LEFT JOIN LATERAL (
    SELECT array_agg(a.attname::text) AS names,
           bool_or(a.attgenerated <> '' AND a.attgenerated::text <> ALL (%s)) AS is_generated
    FROM pg_catalog.pg_index i
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid
     AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
    WHERE i.indrelid = part.oid AND CASE part.relreplident
        WHEN 'i' THEN i.indisreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate END
) identity ON true
ORDER BY part.oid
"""
#: From this version on, a published replica identity must not contain generated columns.
_REFUSES_GENERATED: Final = 180_000


@dataclass(frozen=True)
class IdentityProblem:
    """A reason why a table must not be published, or read from the log, as it is.

    Attributes:
        message: the problem.
        fix: how to fix it.
    """

    message: str
    fix: str


def identity_problems(
    connection: psycopg.Connection, tables: Iterable[SourceTable]
) -> dict[int, IdentityProblem]:
    """Return problems with the replica identities of tables that are to be read from the log.

    Args:
        connection: a connection to their database.
        tables: the tables; those without identifying columns in the log are skipped.

    Returns:
        The first problem of each table that has one, by the table's oid.

    Raises:
        SourceError: the catalog cannot be read.
    """
    with_log_key = {table.oid: table for table in tables if table.log_key}
    refuses_generated = connection.info.server_version >= _REFUSES_GENERATED
    with translate_errors(), name_cursor(connection) as cursor:
        # Generated columns that are read are also published.
        published = sorted(
            {kind for table in with_log_key.values() for kind in table.options.generated}
        )
        values = (published, list(with_log_key), published)
        rows = cursor.execute(_IDENTITIES, values).fetchall()
    problems: dict[int, IdentityProblem] = {}
    for oid, part, setting, names, is_in_key, has_generated in rows:
        table, identity = with_log_key[oid], ReplicaIdentity(setting)
        is_full = identity is ReplicaIdentity.FULL
        is_unpublished = refuses_generated and (has_generated if is_full else is_in_key)
        message = None
        if identity is ReplicaIdentity.NOTHING or not (is_full or names):
            message = (
                "identifies no rows: updates and deletes would fail once the table is published"
            )
        elif is_unpublished:
            message = (
                "contains generated columns, which are not published: updates and "
                "deletes would fail once the table is published"
            )
        elif not is_full and set(names) != set(table.key):
            message = (
                f"is {', '.join(names)}, but the table's key is "
                f"{', '.join(table.log_key)}: the log would not identify the changed "
                "rows"
            )
        if message is not None:
            problems.setdefault(oid, _problem(table, part, message, is_unpublished=is_unpublished))
    return problems


def _problem(
    table: SourceTable, part: str, message: str, *, is_unpublished: bool
) -> IdentityProblem:
    if is_unpublished and not table.key:
        fix = (
            "Give the table a primary key without generated columns, or read it with "
            "`method: snapshot_diff`."
        )
    elif table.identity is ReplicaIdentity.INDEX:
        fix = (
            f"ALTER TABLE {part} REPLICA IDENTITY USING INDEX …; with the index of the key columns"
        )
    else:
        fix = f"ALTER TABLE {part} REPLICA IDENTITY DEFAULT;"
    return IdentityProblem(f"the replica identity of {part} {message}", fix)
