"""Checks of targets: which tables they cannot hold, and whether their databases can be used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chronolake import inspect
from chronolake.errors import ChronolakeError, TableNotFoundError
from chronolake.formatting import format_count
from chronolake.target.limits import BY_KIND, raise_unless_mode, target_columns
from chronolake.target.selection import database_of, select_tables, target_of
from chronolake.types import START, Mode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chronolake.config import Project
    from chronolake.inspect.catalog import CatalogTable
    from chronolake.target.limits import TargetLimits


@dataclass(frozen=True)
class TargetCheck:
    """The result of a check.

    Attributes:
        table: the table in the lake, or None for the target itself.
        message: what is right.
        error: what is wrong, or None.
    """

    table: str | None
    message: str = ""
    error: ChronolakeError | None = None


def check_target(project: Project, name: str) -> Iterator[TargetCheck]:
    """Yield the tables that a target cannot hold, and whether its database can be used.

    Nothing is written. Tables that do not exist yet are not an error: no run has created them.
    """
    config = target_of(project, name)
    try:
        known = inspect.names(project.lake)
        tables = select_tables(name, config, known)
    except ChronolakeError as failure:
        yield TargetCheck(None, error=failure)
        return
    limits = BY_KIND[config.type]
    for table in tables:
        try:
            expect_possible(limits, inspect.look_up(project.lake, table.name))
        except TableNotFoundError:
            continue
        except ChronolakeError as failure:
            yield TargetCheck(str(table.name), error=failure)
    try:
        states = database_of(name, config).peek([table.relation for table in tables])
    except ChronolakeError as failure:
        yield TargetCheck(None, error=failure)
        return
    count = sum(state is not None for state in states)
    words = format_count(len(tables), "table")
    yield TargetCheck(None, f"its database responds; {count} of {words} are published")


def expect_possible(limits: TargetLimits, table: CatalogTable) -> None:
    """Raise if a target cannot hold a table.

    Raises:
        TargetError: it cannot; the error contains the reason.
    """
    raise_unless_mode(limits, table.name, table.mode)
    if limits.kind not in {"postgres", "mysql"}:
        return
    identity = {*table.key, *([START] if table.key and table.mode is Mode.HISTORY else [])}
    numbered = [(column, number) for number, column in enumerate(table.columns)]
    target_columns(limits, table.name, numbered, identity)
