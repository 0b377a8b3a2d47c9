"""The tables of a lake that a target gets, and their names there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from chronolake.config import MysqlTarget, PostgresTarget, is_pattern, matches
from chronolake.errors import ConfigurationError
from chronolake.extras import require
from chronolake.formatting import unknown_table_hint
from chronolake.target.database import Relation
from chronolake.target.limits import BY_KIND, raise_unless_name
from chronolake.types import SCRATCH_SCHEMA, TableName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chronolake.config import Project, TargetConfig
    from chronolake.target.database import TargetDatabase


@dataclass(frozen=True)
class TargetTable:
    """A table of the lake, and its table in a target."""

    name: TableName
    relation: Relation


def target_of(project: Project, name: str) -> TargetConfig:
    """Return the settings of a target.

    Raises:
        ConfigurationError: the project has no such target.
    """
    if name not in project.targets:
        known = ", ".join(project.targets) or "none"
        raise ConfigurationError(
            f"{project.file} has no target {name!r}.", hint=f"Known targets are: {known}."
        )
    return project.targets[name]


def database_of(name: str, config: TargetConfig) -> TargetDatabase:
    """Return the database of a target; it is not connected to.

    Raises:
        ConfigurationError: nothing can be published to targets of this type.
        MissingExtraError: the driver is not installed.
    """
    if isinstance(config, PostgresTarget):
        require("postgres", "A target of the type `postgres`")
        from chronolake.target.postgres import PostgresDatabase  # noqa: PLC0415 - an extra

        return PostgresDatabase(config)
    if isinstance(config, MysqlTarget):
        require("mysql", "A target of the type `mysql`")
        from chronolake.target.mysql import MysqlDatabase  # noqa: PLC0415 - an extra

        return MysqlDatabase(config)
    raise ConfigurationError(
        f"Nothing can be published to the target {name!r}: the type `kafka` is only checked.",
        hint="Use a target of the type `postgres` or `mysql`.",
    )


def select_tables(name: str, config: TargetConfig, known: Sequence[TableName]) -> list[TargetTable]:
    """Return the tables that a target gets, sorted by their names in the lake.

    Args:
        name: the target.
        config: its settings.
        known: the tables of the lake.

    Raises:
        ConfigurationError: a table does not exist, or two tables have one name in the target.
        TargetError: a name is not valid in the target.
    """
    tables = [table for table in known if table.schema != SCRATCH_SCHEMA]
    chosen: dict[TableName, None] = {}
    for text in config.tables:
        found = [table for table in tables if matches(str(table), text)]
        if not found and not is_pattern(text):
            raise ConfigurationError(
                f"targets.{name}.tables: the lake has no table {text}.",
                hint=unknown_table_hint(text, map(str, tables)),
            )
        chosen |= dict.fromkeys(found)
    selected = [TargetTable(table, relation_of(config, table)) for table in sorted(chosen)]
    limits = BY_KIND[config.type]
    by_relation: dict[str, TableName] = {}
    for table in selected:
        for part in (table.relation.schema, table.relation.table):
            raise_unless_name(limits, part, table.name)
        relation = str(table.relation)
        other = by_relation.setdefault(
            relation.casefold() if limits.folds_case else relation, table.name
        )
        if other != table.name:
            raise ConfigurationError(
                f"targets.{name}: {other} and {table.name} have the same name in the target, "
                f"{relation}.",
                hint=f"Set another name for one of them in targets.{name}.rename.",
            )
    return selected


def relation_of(config: TargetConfig, table: TableName) -> Relation:
    """Return the table of a target that a table of the lake is published to."""
    renamed = config.rename.get(str(table))
    if isinstance(config, PostgresTarget):
        schema = config.schema_ or table.schema
        if renamed is not None and "." in renamed:
            schema, _, renamed = renamed.partition(".")
        return Relation(schema, renamed or table.table)
    database = ""
    if isinstance(config, MysqlTarget):
        database = unquote(urlsplit(config.dsn).path.strip("/"))
        if not database:
            raise ConfigurationError(
                "`dsn` of a target of the type `mysql` does not contain a database.",
                hint="Write it as mysql://user:password@host:3306/database.",
            )
    return Relation(database or "topics", renamed or table.table)
