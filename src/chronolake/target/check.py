"""Checks of targets: which tables they cannot hold, and whether their databases can be used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chronolake import inspect
from chronolake.errors import ChronolakeError, TableNotFoundError
from chronolake.formatting import format_count
from chronolake.target.additions import list_additions
from chronolake.target.database import Survey
from chronolake.target.limits import BY_KIND, longest_row, raise_unless_mode, target_columns
from chronolake.target.selection import database_of, select_tables, target_of
from chronolake.types import START, Mode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chronolake.config import Project
    from chronolake.inspect.catalog import CatalogTable
    from chronolake.target.limits import TargetColumn, TargetLimits
    from chronolake.target.selection import TargetTable


@dataclass(frozen=True)
class TargetCheck:
    """The result of a check.

    Attributes:
        table: the table in the lake, or None for the target itself.
        message: what is right, or what may be wrong if there is a hint.
        hint: what to do about it, or None.
        error: what is wrong, or None.
    """

    table: str | None
    message: str = ""
    hint: str | None = None
    error: ChronolakeError | None = None


def check_target(project: Project, name: str) -> Iterator[TargetCheck]:
    """Yield the tables that a target cannot hold, and whether its database can be used.

    Nothing is written. Tables that do not exist yet are not an error: no run has created them.
    """
    config = target_of(project, name)
    try:
        selection = select_tables(name, config, inspect.names(project.lake))
    except ChronolakeError as failure:
        yield TargetCheck(None, error=failure)
        return
    for text, missing in selection.missing.items():
        yield TargetCheck(
            text,
            "The lake has no such table yet. It is published when a run has created it.",
            hint=missing.hint,
        )
    for table_name, refused in selection.failures.items():
        yield TargetCheck(str(table_name), error=refused)
    survey, unusable = Survey(BY_KIND[config.type]), None
    try:
        survey = database_of(name, config).survey([table.relation for table in selection.tables])
    except ChronolakeError as failure:
        unusable = failure
    for table in selection.tables:
        try:
            found = inspect.look_up(project.lake, table.name)
            yield from warnings_of(survey, table, expect_possible(survey.limits, found))
        except TableNotFoundError:
            continue
        except ChronolakeError as failure:
            yield TargetCheck(str(table.name), error=failure)
    if unusable is not None:
        yield TargetCheck(None, error=unusable)
        return
    words = format_count(len(selection.tables), "table")
    yield TargetCheck(None, f"its database responds; {len(survey.states)} of {words} are published")


def warnings_of(
    survey: Survey, table: TargetTable, columns: Sequence[TargetColumn]
) -> Iterator[TargetCheck]:
    """Yield what may go wrong with a table that the target can hold."""
    limits = survey.limits
    if (size := longest_row(limits, columns)) > limits.row_bytes:
        yield TargetCheck(
            str(table.name),
            f"Rows with values in all columns need about {size:,} bytes, and {limits.product} "
            f"supports about {limits.row_bytes:,}.",
            hint="Rows with NULL or short values may fit, though not the table in all versions of "
            "MySQL. Otherwise, exclude columns in the pipeline.",
        )
    changing = [
        addition
        for addition in survey.additions.get(table.relation, ())
        if addition.may_change_rows
    ]
    if changing:
        yield TargetCheck(
            str(table.name),
            f"Others have added to {table.relation}: {list_additions(changing)}. These may change "
            "the rows that are written.",
            hint="Drop them, unless they only read the rows. Then publish with --take-over once.",
        )


def expect_possible(limits: TargetLimits, table: CatalogTable) -> Sequence[TargetColumn]:
    """Return the columns that a table has in a target; raise if it cannot hold the table.

    Raises:
        TargetError: it cannot; the error contains the reason.
    """
    raise_unless_mode(limits, table.name, table.mode)
    if limits.kind not in {"postgres", "mysql"}:
        return ()
    identity = {*table.key, *([START] if table.key and table.mode is Mode.HISTORY else [])}
    numbered = [(column, number) for number, column in enumerate(table.columns)]
    return target_columns(limits, table.name, numbered, identity)
