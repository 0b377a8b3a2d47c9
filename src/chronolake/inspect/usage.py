"""Monthly active rows, from the tables' properties (see `core/usage.py`)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chronolake.errors import LakeError
from chronolake.inspect.catalog import every
from chronolake.types import USAGE_PREFIX

if TYPE_CHECKING:
    from chronolake.config import LakeConfig
    from chronolake.inspect.catalog import LookedUp
    from chronolake.types import Mode, TableName


@dataclass(frozen=True)
class MonthlyUsage:
    """The active rows of one table in one month.

    Attributes:
        table: the table.
        mode: its mode; a history table's rows are versions.
        month: a UTC month, as `2026-11`.
        rows: distinct rows that were written.
        is_exact: whether `rows` is exact, and not an estimate.
    """

    table: TableName
    mode: Mode
    month: str
    rows: int
    is_exact: bool

    def as_json(self) -> dict[str, Any]:
        """Return the usage as JSON types."""
        return {
            "table": str(self.table),
            "mode": self.mode.value,
            "month": self.month,
            "rows": self.rows,
            "exact": self.is_exact,
        }


def usage(config: LakeConfig, month: str | None = None) -> list[MonthlyUsage]:
    """Return the usage of every table by table and month, optionally for one month only.

    Args:
        config: the lake.
        month: a month, as `2026-11`; None: all months in the tables' properties.

    Raises:
        LakeError: the lake does not exist, or cannot be read.
    """
    return [one for each in every(config) for one in usage_of(each) if month in {None, one.month}]


def usage_of(table: LookedUp) -> tuple[MonthlyUsage, ...]:
    """Return the usage of a table in all months in its properties, in order.

    Raises:
        LakeError: a usage property is not in Chronolake's format.
    """
    return tuple(
        _in_month(table, name, text)
        for name, text in sorted(table.table.properties.items())
        if name.startswith(USAGE_PREFIX)
    )


def _in_month(table: LookedUp, name: str, text: str) -> MonthlyUsage:
    month = name.removeprefix(USAGE_PREFIX)
    try:
        reported = json.loads(text)
        return MonthlyUsage(
            table.name, table.mode, month, int(reported["rows"]), bool(reported["exact"])
        )
    except (ValueError, KeyError, TypeError) as failure:
        raise LakeError(
            f"The table's property {name} is not what Chronolake wrote.",
            hint=f"Remove the property {name}: the usage of that month is not known then.",
            table=str(table.name),
        ) from failure
