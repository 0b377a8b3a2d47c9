"""Whether the log tells which rows change, and whether they may still change once it does.

What the log says of old rows, the *replica identity*, is a property of what holds the rows: each
partition has one of its own, whatever its table's is. A table that is published refuses updates and
deletes where that identity is nothing, or, from PostgreSQL 18 on, has generated columns in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chronolake.source.postgres.catalog import with_partitions
from chronolake.source.postgres.connection import understood
from chronolake.source.postgres.encoding import reading_names
from chronolake.source.postgres.messages import ReplicaIdentity

if TYPE_CHECKING:
    from collections.abc import Iterable

    import psycopg

    from chronolake.source.postgres.catalog import SourceTable

#: Of each part of a table: its name as SQL, its replica identity, the columns of the index that
#: this means, whether some of these are generated, and whether any of the part's columns is.
_IDENTITIES: Final = f"""
SELECT root.oid::bigint, part.oid::regclass::text, part.relreplident::text,
       coalesce(told.names, '{{}}'), coalesce(told.is_generated, false),
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
) told ON true
ORDER BY part.oid
"""
#: From this version on, a published identity must not have generated columns in it.
_REFUSES_GENERATED: Final = 180_000


@dataclass(frozen=True)
class IdentityProblem:
    """Why a table must not be published, or read in the log, as it is.

    Attributes:
        words: what is wrong.
        mend: what to do about it.
    """

    words: str
    mend: str


def identity_problems(
    connection: psycopg.Connection, tables: Iterable[SourceTable]
) -> dict[int, IdentityProblem]:
    """What is wrong with the replica identities of tables that the log would be read for.

    Args:
        connection: to their database.
        tables: the tables; those that the log does not tell enough of are not looked at.

    Returns:
        The first problem of each table that has one, by the table's oid.

    Raises:
        SourceError: the catalog cannot be read.
    """
    wanted = {table.oid: table for table in tables if table.followed_by}
    refuses_generated = connection.info.server_version >= _REFUSES_GENERATED
    with understood(), reading_names(connection) as cursor:
        # Generated columns that are brought are published.
        published = sorted({kind for one in wanted.values() for kind in one.options.generated})
        values = (published, list(wanted), published)
        rows = cursor.execute(_IDENTITIES, values).fetchall()
    found: dict[int, IdentityProblem] = {}
    for oid, part, told, names, is_in_key, has_generated in rows:
        table, identity = wanted[oid], ReplicaIdentity(told)
        is_whole = identity is ReplicaIdentity.FULL
        is_unpublished = refuses_generated and (has_generated if is_whole else is_in_key)
        words = None
        if identity is ReplicaIdentity.NOTHING or not (is_whole or names):
            words = "is nothing: published, its rows could not be updated any more"
        elif is_unpublished:
            words = (
                "has generated columns in it, which are not published: its rows could not be "
                "updated any more"
            )
        elif not is_whole and set(names) != set(table.key):
            words = (
                f"is {', '.join(names)}, and the table's key is {', '.join(table.followed_by)}: "
                "the log would not say which of its rows change"
            )
        if words is not None:
            found.setdefault(oid, _problem(table, part, words, is_unpublished=is_unpublished))
    return found


def _problem(table: SourceTable, part: str, words: str, *, is_unpublished: bool) -> IdentityProblem:
    if is_unpublished and not table.key:
        mend = "Give it a primary key without them, or read it with `method: snapshot_diff`."
    elif table.identity is ReplicaIdentity.INDEX:
        mend = f"ALTER TABLE {part} REPLICA IDENTITY USING INDEX …; with the index of these columns"
    else:
        mend = f"ALTER TABLE {part} REPLICA IDENTITY DEFAULT;"
    return IdentityProblem(f"the replica identity of {part} {words}", mend)
