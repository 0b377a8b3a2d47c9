"""Checks: what a destination describes, against what the model says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chronolake.types import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chronolake.drive.definition import ColumnSpec, TableDefinition
    from chronolake.drive.model import ModelTable


@dataclass(frozen=True, slots=True)
class Failure:
    """A check that did not hold.

    Attributes:
        what: what was checked.
        expected: what should have been.
        actual: what was.
    """

    what: str
    expected: str
    actual: str

    def __str__(self) -> str:
        return f"{self.what}: expected {self.expected}, got {self.actual}"


@dataclass(slots=True)
class Checked:
    """The outcome of the checks of one call.

    Attributes:
        checked: what was checked, in a few words each.
        failures: what did not hold.
        notices: what is worth saying and no failure.
    """

    checked: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def expect(self, what: str, expected: object, actual: object) -> bool:
        """Check that two things are equal; True if they are."""
        self.checked.append(what)
        if expected == actual:
            return True
        self.failures.append(Failure(what, str(expected), str(actual)))
        return False


def check_description(
    described: TableDefinition,
    table: ModelTable,
    *,
    accepted: Mapping[Kind, Kind],
) -> Checked:
    """Compare a described table with the modelled one, column by column.

    Args:
        described: what the destination says.
        table: what it should say, retained columns included.
        accepted: for a declared kind another one that may be described in its place.

    Returns:
        The checks: the set of columns, and for each its type, its decimal parameters and its place
        in the key.
    """
    result = Checked()
    there = {column.name: column for column in described.columns}
    wanted = {column.name: column for column in table.definition.columns}
    result.checked.append(f"{len(wanted)} columns")
    missing = [name for name in wanted if name not in there]
    if missing:
        result.failures.append(Failure("columns", ", ".join(missing), "none of that name"))
    more = [name for name in described.names if name not in wanted]
    if more:
        result.failures.append(Failure("columns", "no more", f"also {', '.join(more)}"))
    if len(there) < len(described.columns):
        result.failures.append(Failure("columns", "each name once", "a name that stands twice"))
    retained = [name for name in wanted if name not in table.sent]
    if retained:
        result.checked.append(f"{len(retained)} retained columns")
    for name, column in wanted.items():
        actual = there.get(name)
        if actual is not None:
            _check_type(result, column, actual, accepted)
            if actual.key != column.key:
                words = {True: "in the primary key", False: "not in the primary key"}
                result.failures.append(
                    Failure(f"column {name!r}", words[column.key], words[actual.key])
                )
    result.checked.append("types, decimals and primary key")
    return result


def _check_type(
    result: Checked, column: ColumnSpec, actual: ColumnSpec, accepted: Mapping[Kind, Kind]
) -> None:
    what = f"type of {column.name!r}"
    if actual.kind is not column.kind:
        if accepted.get(column.kind) is actual.kind:
            result.notices.append(f"{what} is {actual.kind} in place of {column.kind}.")
        else:
            result.failures.append(Failure(what, column.spelled, actual.spelled))
    elif column.kind is Kind.DECIMAL:
        if actual.precision is None:
            result.notices.append(
                f"{what} is described without precision and scale: they will never be widened."
            )
        elif column.precision is not None and column.spelled != actual.spelled:
            result.failures.append(Failure(what, column.spelled, actual.spelled))
