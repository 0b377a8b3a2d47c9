"""A batch on its way into a table: its change set, kept in memory, and what one pass over it told.

The pass is the only time that the batch's files are decoded, and the only thing about the batch
that reaches the driver: one row of counts and bounds, whatever the batch's size.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark import StorageLevel

from chronolake.changes import BITS_PER_WORD, OP, UNMODIFIED, Op
from chronolake.errors import BatchError, UnknownColumnError
from chronolake.table.sql import listed, view
from chronolake.types import ACTIVE, END, START, Kind, Mode, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame

    from chronolake.description import TableDescription
    from chronolake.table.staging import Stopwatch
    from chronolake.types import Column

#: Kinds of key columns whose least and greatest value narrow the scan of the table.
_ORDERED: Final = {Kind.SHORT, Kind.INT, Kind.LONG, Kind.STRING, Kind.NAIVE_DATE}


@dataclass(frozen=True)
class Incoming:
    """A batch's rows and what is known about them.

    Attributes:
        rows: the change set of `chronolake.changes`, cached.
        names: its data columns, in the order of the unmodified bits.
        replaced, updated, deleted, earliest: number of rows by kind of file.
        keys: number of distinct keys.
        repeated: whether some key occurs in more than one row.
        unmodified: names of the columns that some update row leaves as they are.
        bounds: least and greatest value of the key columns for which that is useful.
        since: history only: the least time in microseconds that the batch touches, or None.
    """

    rows: DataFrame
    names: tuple[str, ...]
    replaced: int
    updated: int
    deleted: int
    earliest: int
    keys: int
    repeated: bool
    unmodified: frozenset[str]
    bounds: dict[str, tuple[Any, Any]]
    since: int | None

    @property
    def rows_count(self) -> int:
        """Number of rows in all files."""
        return self.replaced + self.updated + self.deleted + self.earliest

    @property
    def is_empty(self) -> bool:
        """Whether the batch has no row at all."""
        return self.keys == 0

    def within_bounds(self, prefix: str = "") -> list[str]:
        """SQL conditions on the key columns that every row of the batch's keys meets."""
        conditions = []
        for name, (least, greatest) in self.bounds.items():
            column = f"{prefix}{quoted(name)}"
            conditions += [f"{column} >= {_literal(least)}", f"{column} <= {_literal(greatest)}"]
        return conditions


@contextmanager
def incoming(
    changes: DataFrame,
    description: TableDescription,
    key: Sequence[str],
    columns: Sequence[Column],
    watch: Stopwatch,
) -> Iterator[Incoming]:
    """Decode a batch once, and keep it for as long as the block runs.

    Args:
        changes: the change set.
        description: the table it is for.
        key: the columns that identify a record.
        columns: the change set's data columns.
        watch: gets the time of the pass as the stage `read`.

    Raises:
        UnknownColumnError: a column that the table does not have.
        BatchError: no key column, a key column that the batch lacks, or a history row without
            its times.
        Exception: whatever reading the batch's files raises.
    """
    names = tuple(column.name for column in columns)
    _check_columns(description, key, names)
    rows = changes.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with watch.stage("read"):
            measured = _measure(rows, description, key, names)
        yield measured
    finally:
        rows.unpersist()


def _check_columns(description: TableDescription, key: Sequence[str], names: Sequence[str]) -> None:
    table = str(description.name)
    if not key:
        raise BatchError(
            "The table has no primary key, so its rows cannot be told apart.",
            table=table,
            hint="Give it a key with AlterTable.",
        )
    for name in names:
        if name not in description.by_name:
            raise UnknownColumnError(
                "The batch has a column that the table does not have.",
                table=table,
                column=name,
                hint="Add it with AlterTable before the batch.",
            )
    for name in key:
        if name not in names:
            raise BatchError(
                "The batch lacks a key column.",
                table=table,
                column=name,
                hint="Send every key column with every batch.",
            )


def _measure(
    rows: DataFrame, description: TableDescription, key: Sequence[str], names: tuple[str, ...]
) -> Incoming:
    is_history = description.mode is Mode.HISTORY and START not in key
    words = range((len(names) + BITS_PER_WORD - 1) // BITS_PER_WORD)
    ordered = [name for name in key if description.by_name[name].type.kind in _ORDERED]
    with view(rows) as batch:
        found = rows.sparkSession.sql(
            _measuring(batch, key, ordered, len(words), is_history=is_history)
        ).first()
    if found is None:  # an aggregate without keys always has a row
        raise AssertionError
    if is_history and found["timeless"]:
        raise BatchError(
            f"{found['timeless']} rows of the batch have no {START}, {END} or {ACTIVE}.",
            table=str(description.name),
            hint="Every version needs its times; a delete needs its end.",
        )
    bits = [found[f"w{word}"] or 0 for word in words]
    return Incoming(
        rows=rows,
        names=names,
        replaced=found[f"n{int(Op.REPLACE)}"] or 0,
        updated=found[f"n{int(Op.UPDATE)}"] or 0,
        deleted=found[f"n{int(Op.DELETE)}"] or 0,
        earliest=found[f"n{int(Op.EARLIEST)}"] or 0,
        keys=found["keys"],
        repeated=(found["most"] or 0) > 1,
        unmodified=frozenset(
            name
            for number, name in enumerate(names)
            if bits[number // BITS_PER_WORD] >> (number % BITS_PER_WORD) & 1
        ),
        bounds={
            name: (found[f"least{number}"], found[f"greatest{number}"])
            for number, name in enumerate(ordered)
            if found["keys"] and not found[f"nulls{number}"]
        },
        since=found["since"] if is_history else None,
    )


def _measuring(
    batch: str, key: Sequence[str], ordered: Sequence[str], words: int, *, is_history: bool
) -> str:
    """The one statement that looks at all rows of a batch: first by key, then over all keys."""
    per_key = [f"count_if({OP} = {int(kind)}) AS n{int(kind)}" for kind in Op]
    totals = [f"sum(n{int(kind)}) AS n{int(kind)}" for kind in Op]
    totals += ["count(1) AS keys", "max(n1 + n2 + n3) AS most"]
    for word in range(words):
        per_key.append(f"bit_or(coalesce(get({UNMODIFIED}, {word}), 0L)) AS w{word}")
        totals.append(f"bit_or(w{word}) AS w{word}")
    for number, name in enumerate(ordered):
        per_key.append(f"{quoted(name)} AS k{number}")
        totals += [
            f"min(k{number}) AS least{number}",
            f"max(k{number}) AS greatest{number}",
            f"count_if(k{number} IS NULL) AS nulls{number}",
        ]
    if is_history:
        time = micros_of_change()
        no_times = f"{OP} IN (1, 2) AND ({END} IS NULL OR {ACTIVE} IS NULL)"
        per_key += [
            f"min({time}) AS since",
            f"count_if({time} IS NULL OR ({no_times})) AS timeless",
        ]
        totals += ["min(since) AS since", "sum(timeless) AS timeless"]
    return (
        f"SELECT {', '.join(totals)} FROM "
        f"(SELECT {', '.join(per_key)} FROM {batch} GROUP BY {listed(key)})"
    )


def micros_of_change() -> str:
    """When a row of a history batch has its effect: a delete at its end, others at their start."""
    return f"unix_micros(CASE WHEN {OP} = {int(Op.DELETE)} THEN {END} ELSE {START} END)"


def _literal(value: Any) -> str:
    if isinstance(value, str):
        # A raw hexadecimal literal needs no escaping, whatever the text holds.
        return f"CAST(X'{value.encode().hex()}' AS STRING)"
    if isinstance(value, date) and not isinstance(value, datetime):
        return f"DATE'{value.isoformat()}'"
    return f"CAST('{int(value)}' AS BIGINT)"
