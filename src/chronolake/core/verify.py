"""Invariants of a table, checked by one Spark query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from chronolake.change_set import RESERVED
from chronolake.core.sql import col, sample
from chronolake.session import CATALOG, active
from chronolake.types import ACTIVE, END, START, TMAX_MICROS, Mode

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

    from chronolake.description import TableDescription
    from chronolake.lake import Lake
    from chronolake.types import TableName

_NEXT: Final = f"{RESERVED}next"
_SAME: Final = f"{RESERVED}same"
_CURRENT: Final = f"{RESERVED}current"


@dataclass(frozen=True)
class Invariant:
    """An invariant: its text, the number of rows that violate it, and the key of one of them."""

    text: str
    violations: int
    sample: str | None

    @property
    def holds(self) -> bool:
        """Return whether no row violates the invariant."""
        return self.violations == 0


@dataclass(frozen=True)
class VerifyReport:
    """The invariants of a table's mode, and the number of rows that were checked."""

    table: TableName
    mode: Mode
    rows: int
    invariants: tuple[Invariant, ...]

    @property
    def holds(self) -> bool:
        """Return whether all invariants hold."""
        return all(invariant.holds for invariant in self.invariants)


def verify(lake: Lake, name: TableName) -> VerifyReport:
    """Check a table's invariants.

    History tables, for each record: at most one version is active; the active version ends at Tmax,
    and no other does; starts are unique; versions do not overlap, and a closed version ends at
    least an epsilon (1 ms, or the table's own) before the next one starts; no version ends before
    it starts (except versions shorter than that); the times are not null. Other tables: keys are
    unique. A table without a key has no invariants.

    Raises:
        TableNotFoundError: the table does not exist.
    """
    description = lake.describe(name)
    if description is None:
        raise lake.missing(name)
    with active(lake.spark):
        return _check(lake.spark.table(f"{CATALOG}.{name.sql}"), description)


def _check(table: DataFrame, description: TableDescription) -> VerifyReport:
    if not description.record_key:
        return VerifyReport(description.name, description.mode, table.count(), ())
    if description.mode is Mode.HISTORY:
        rows, broken = _history(table, description)
    else:
        rows, broken = _unique(table, description)
    rows = rows.select(
        *map(col, description.record_key),
        *(
            F.coalesce(found, F.lit(False)).alias(f"{RESERVED}broken{n}")
            for n, found in enumerate(broken.values())
        ),
    )
    counts = [F.count(F.lit(1))]
    for number in range(len(broken)):
        counts += [
            F.expr(f"count_if({RESERVED}broken{number})"),
            F.expr(sample(description.record_key, f"{RESERVED}broken{number}")),
        ]
    found = rows.agg(*counts).first()
    values: list[Any] = list(found) if found else [0]
    invariants = tuple(
        Invariant(text, values[1 + 2 * number], values[2 + 2 * number])
        for number, text in enumerate(broken)
    )
    return VerifyReport(description.name, description.mode, values[0], invariants)


def _history(
    table: DataFrame, description: TableDescription
) -> tuple[DataFrame, dict[str, Expression]]:
    record = Window.partitionBy(*map(col, description.record_key))
    in_order = record.orderBy(START)
    # One shuffle serves both windows: the frame over the whole record needs no order.
    rows = table.withColumns(
        {
            _NEXT: F.lead(F.unix_micros(col(START))).over(in_order),
            _CURRENT: F.count_if(col(ACTIVE)).over(record),
        }
    )
    start, end, following = F.unix_micros(col(START)), F.unix_micros(col(END)), col(_NEXT)
    epsilon = description.epsilon
    timeless = col(START).isNull() | col(END).isNull() | col(ACTIVE).isNull()
    ends_at_tmax = end == TMAX_MICROS
    return rows, {
        "a record has at most one active version": col(ACTIVE) & (col(_CURRENT) > 1),
        "active versions end at Tmax, and only they do": col(ACTIVE) != ends_at_tmax,
        "a record's starts are unique": start == following,
        f"versions do not overlap, and end {_distance(epsilon)} before the next": (
            start != following
        )
        & (end > following - epsilon),
        "no version ends before it starts": end <= start - epsilon,
        "every version has its times": timeless,
    }


def _distance(epsilon: int) -> str:
    whole, rest = divmod(epsilon, 1_000)
    return f"{whole} ms" if not rest else f"{epsilon} microseconds"


def _unique(
    table: DataFrame, description: TableDescription
) -> tuple[DataFrame, dict[str, Expression]]:
    keys = table.groupBy(*map(col, description.primary_key)).agg(F.count(F.lit(1)).alias(_SAME))
    return keys, {"keys are unique": col(_SAME) > 1}
