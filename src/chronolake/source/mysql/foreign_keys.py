"""Foreign keys that change rows of other tables, which the binary log does not contain.

If a row is deleted or gets another key, InnoDB deletes or updates the rows that refer to it
(`ON DELETE CASCADE`, for example). Only MySQL 9.6 and later log that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chronolake.source.mysql.connection import Server, execute

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pymysql

_QUERY: Final = """
SELECT k.TABLE_SCHEMA, k.TABLE_NAME, k.REFERENCED_TABLE_SCHEMA, k.REFERENCED_TABLE_NAME,
       k.REFERENCED_COLUMN_NAME, r.DELETE_RULE, r.UPDATE_RULE
FROM information_schema.KEY_COLUMN_USAGE k JOIN information_schema.REFERENTIAL_CONSTRAINTS r
ON r.CONSTRAINT_SCHEMA = k.CONSTRAINT_SCHEMA AND r.CONSTRAINT_NAME = k.CONSTRAINT_NAME
AND r.TABLE_NAME = k.TABLE_NAME
WHERE r.DELETE_RULE NOT IN ('RESTRICT', 'NO ACTION')
   OR r.UPDATE_RULE NOT IN ('RESTRICT', 'NO ACTION')
"""
_PASSIVE: Final = frozenset({"RESTRICT", "NO ACTION"})
_LOGGED_SINCE: Final = (9, 6)


@dataclass(frozen=True)
class Cascade:
    """Changes of a table that change rows of another one.

    Attributes:
        schema: the database of the table.
        name: its name.
        on_delete: whether deletions do.
        columns: the columns of which new values do, in lower case.
    """

    schema: str
    name: str
    on_delete: bool
    columns: frozenset[str]


def cascades_in(
    connection: pymysql.Connection[Any],
) -> Mapping[tuple[str, str], Sequence[Cascade]]:
    """Return what changes rows without being logged, by the database and name of each table.

    Args:
        connection: a connection to the server. Foreign keys of tables that its user cannot see are
            not known.

    Raises:
        SourceError: the catalog cannot be read.
    """
    server = Server.of(connection)
    if not server.is_mariadb and server.numbers >= _LOGGED_SINCE:
        return {}
    direct: dict[tuple[str, str], dict[Cascade, None]] = {}
    for schema, name, *parent, column, delete_rule, update_rule in execute(connection, _QUERY):
        columns = frozenset() if update_rule in _PASSIVE else frozenset({str(column).casefold()})
        cascade = Cascade(parent[0], parent[1], delete_rule not in _PASSIVE, columns)
        direct.setdefault((schema, name), {})[cascade] = None
    return {table: tuple(_all_of(table, direct)) for table in direct}


def _all_of(
    table: tuple[str, str], direct: Mapping[tuple[str, str], Mapping[Cascade, None]]
) -> dict[Cascade, None]:
    """Return the cascades of a table, and those of the tables that it refers to."""
    found: dict[Cascade, None] = {}
    waiting, seen = [table], {table}
    while waiting:
        for cascade in direct.get(waiting.pop(), {}):
            found[cascade] = None
            parent = cascade.schema, cascade.name
            if parent not in seen:
                seen.add(parent)
                waiting.append(parent)
    return found
