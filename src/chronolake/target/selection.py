"""The tables of a lake that a target gets, and their names there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from chronolake.config import MysqlTarget, PostgresTarget, is_pattern, matches
from chronolake.errors import ConfigurationError, TargetError
from chronolake.extras import require
from chronolake.formatting import unknown_table_hint
from chronolake.masking import URL_ESCAPES, is_broken_by_password
from chronolake.target.database import Relation
from chronolake.target.limits import BY_KIND, raise_unless_name
from chronolake.types import SCRATCH_SCHEMA, TableName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chronolake.config import Project, TargetConfig
    from chronolake.errors import ChronolakeError
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


@dataclass(frozen=True)
class Selection:
    """The tables that a target gets.

    Attributes:
        tables: the tables, sorted by their names in the lake.
        failures: why others cannot be published, by their names in the lake.
        missing: the entries of `tables` in chronolake.yml that are tables which do not exist, with
            the error for each. Usually no run has created them yet.
    """

    tables: Sequence[TargetTable]
    failures: Mapping[TableName, ChronolakeError]
    missing: Mapping[str, ChronolakeError]


def select_tables(name: str, config: TargetConfig, known: Sequence[TableName]) -> Selection:
    """Return the tables that a target gets; a table with an error does not affect the others.

    Args:
        name: the target.
        config: its settings.
        known: the tables of the lake.

    Raises:
        ConfigurationError: the target's address does not contain a database.
    """
    tables = [table for table in known if table.schema != SCRATCH_SCHEMA]
    chosen: dict[TableName, None] = {}
    missing: dict[str, ChronolakeError] = {}
    for text in config.tables:
        found = [table for table in tables if matches(str(table), text)]
        if not found and not is_pattern(text):
            missing[text] = ConfigurationError(
                f"targets.{name}.tables: the lake has no table {text}.",
                hint=unknown_table_hint(text, map(str, tables)),
            )
        chosen |= dict.fromkeys(found)
    selected = [TargetTable(table, relation_of(config, table)) for table in sorted(chosen)]
    failures = _find_failures(name, config, selected)
    return Selection([table for table in selected if table.name not in failures], failures, missing)


def _find_failures(
    name: str, config: TargetConfig, selected: Sequence[TargetTable]
) -> dict[TableName, ChronolakeError]:
    """Return why tables cannot be published, from their names in the target."""
    limits = BY_KIND[config.type]
    failures: dict[TableName, ChronolakeError] = {}
    by_relation: dict[str, list[TargetTable]] = {}
    for table in selected:
        try:
            for part in (table.relation.schema, table.relation.table):
                raise_unless_name(limits, part, table.name)
        except TargetError as failure:
            failures[table.name] = failure
        if _is_own(config, table.relation):
            failures[table.name] = ConfigurationError(
                f"targets.{name}: {table.relation} is a name of Chronolake's own tables there.",
                table=str(table.name),
                hint=f"Set another name in targets.{name}.rename.",
            )
        relation = str(table.relation)
        folded = relation.casefold() if limits.folds_case else relation
        by_relation.setdefault(folded, []).append(table)
    for tables in by_relation.values():
        if len(tables) == 1:
            continue
        names = " and ".join(str(table.name) for table in tables)
        for table in tables:
            failures[table.name] = ConfigurationError(
                f"targets.{name}: {names} have the same name in the target, {table.relation}.",
                table=str(table.name),
                hint=f"Set another name for one of them in targets.{name}.rename.",
            )
    return failures


def _is_own(config: TargetConfig, relation: Relation) -> bool:
    """Return whether a name is reserved for Chronolake's own tables, which are never replaced."""
    if isinstance(config, PostgresTarget):
        return relation.schema == config.state_schema
    return isinstance(config, MysqlTarget) and relation.table.lower().startswith("chronolake_")


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
        if is_broken_by_password(config.dsn):
            raise ConfigurationError(
                "`dsn` of the target is not a valid address.",
                hint=f"In a password, write {URL_ESCAPES}.",
            )
        database = unquote(urlsplit(config.dsn).path.strip("/"))
        if not database:
            raise ConfigurationError(
                "`dsn` of a target of the type `mysql` does not contain a database.",
                hint="Write it as mysql://user:password@host:3306/database.",
            )
    return Relation(database or "topics", renamed or table.table)
