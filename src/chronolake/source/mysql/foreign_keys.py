"""Foreign keys that change rows of other tables, which the binary log does not contain.

If a row is deleted or gets another key, InnoDB deletes or updates the rows that refer to it
(`ON DELETE CASCADE`, for example). Only MySQL 9.6 and later log that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chronolake.source.mysql.connection import execute, numbers_of, version_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pymysql

_QUERY: Final = """
SELECT k.TABLE_SCHEMA, k.TABLE_NAME, k.REFERENCED_TABLE_SCHEMA, k.REFERENCED_TABLE_NAME,
       k.REFERENCED_COLUMN_NAME, r.DELETE_RULE, r.UPDATE_RULE
FROM information_schema.KEY_COLUMN_USAGE k JOIN information_schema.REFERENTIAL_CONSTRAINTS r
ON r.CONSTRAINT_SCHEMA = k.CONSTRAINT_SCHEMA AND r.CONSTRAINT_NAME = k.CONSTRAINT_NAME
AND r.TABLE_NAME = k.TABLE_NAME
WHERE k.TABLE_SCHEMA IN ({0}) AND r.CONSTRAINT_SCHEMA IN ({0})
AND (r.DELETE_RULE NOT IN ('RESTRICT', 'NO ACTION')
  OR r.UPDATE_RULE NOT IN ('RESTRICT', 'NO ACTION'))
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
    connection: pymysql.Connection[Any], schemas: Iterable[str]
) -> Mapping[tuple[str, str], Sequence[Cascade]]:
    """Return what changes rows without being logged, by the database and name of each table.

    Args:
        connection: a connection to the server. Foreign keys of tables that its user cannot see are
            not known.
        schemas: the databases of the tables; tables that theirs refer to may be in others.

    Raises:
        SourceError: the catalog cannot be read.
    """
    is_mariadb, version = version_of(connection)
    if not is_mariadb and version is not None and numbers_of(version) >= _LOGGED_SINCE:
        return {}
    direct: dict[tuple[str, str], dict[Cascade, None]] = {}
    waiting, read = set(schemas), set[str]()
    while waiting:
        query = _QUERY.format(", ".join(["%s"] * len(waiting)))
        found = execute(connection, query, (*waiting, *waiting))
        read |= waiting
        for schema, name, *parent, column, delete_rule, update_rule in found:
            is_on_update = update_rule not in _PASSIVE
            columns = frozenset({str(column).lower()} if is_on_update else ())
            cascade = Cascade(parent[0], parent[1], delete_rule not in _PASSIVE, columns)
            direct.setdefault((schema, name), {})[cascade] = None
            waiting.add(parent[0])
        waiting -= read
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
