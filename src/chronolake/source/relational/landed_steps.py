"""Spooled changes and truncates of a table, as the batches that a run returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias

from chronolake.source.protocol import ChangeBatch, Snapshot
from chronolake.source.relational.columns import ColumnT
from chronolake.types import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from chronolake.lake import Lake
    from chronolake.source.protocol import Offset
    from chronolake.source.relational.row_versions import RowKey, Spool


@dataclass(frozen=True)
class Truncation(Generic[ColumnT]):
    """A truncate, with its time and its order in the log."""

    at_micros: int
    sequence: str
    columns: tuple[ColumnT, ...]


Step: TypeAlias = "Spool[ColumnT] | Truncation[ColumnT]"


class TableOffset(Protocol[ColumnT]):
    """A stream's offset in a log, with the table's columns there."""

    @property
    def columns(self) -> tuple[ColumnT, ...]:
        """Return the table's columns."""
        ...

    def as_json(self) -> Offset:
        """Return the offset in the form that a checkpoint stores."""
        ...

    def numbers(self, columns: Sequence[ColumnT]) -> Mapping[str, int]:
        """Return the numbers that identify columns in the lake, by column name."""
        ...


def landed_steps(
    lake: Lake,
    stream: str,
    steps: Sequence[Step[ColumnT]],
    row_key: Callable[[tuple[ColumnT, ...]], RowKey[ColumnT]],
    *,
    before: TableOffset[ColumnT],
    after: TableOffset[ColumnT],
) -> Iterator[ChangeBatch | Snapshot]:
    """Return spooled changes in their order. Their files are removed.

    The offset after all of them comes with the last batch: earlier batches may have to be read
    again. If the table has other columns there than the last rows have, the last batch has no rows.

    Args:
        lake: the lake whose Spark session will read them; it starts if there are any.
        stream: the stream's name.
        steps: the changes and truncates, in their order.
        row_key: returns the row key for a set of the table's columns.
        before: the offset before them.
        after: the offset after them.
    """
    has_new_columns = after.columns != (steps[-1].columns if steps else before.columns)
    for number, step in enumerate(steps):
        is_last = number == len(steps) - 1 and not has_new_columns
        position = (after if is_last else before).as_json()
        numbers = before.numbers(step.columns)
        if isinstance(step, Truncation):
            columns = row_key(step.columns).declare(step.columns, out_of_range=set())
            schema = ", ".join(f"{quote(column.name)} {column.type.sql}" for column in columns)
            rows = lake.spark.createDataFrame([], schema)
            at, sequence = step.at_micros, step.sequence
            yield Snapshot(
                stream, rows, columns, at, sequence, position, numbers, is_protected=True
            )
            continue
        step.close()
        lake.note_work(step.file.stat().st_size)
        yield ChangeBatch(
            stream,
            step.versions(lake),
            tuple(step.landed_columns),
            position,
            numbers,
            has_followers=step.has_followers,
            is_protected=True,
        )
        step.file.unlink(missing_ok=True)
    if has_new_columns:
        declared = row_key(after.columns).declare(after.columns, out_of_range=set())
        numbers = after.numbers(after.columns)
        yield ChangeBatch(stream, None, declared, after.as_json(), numbers)
    elif not steps:
        yield ChangeBatch(stream, None, (), after.as_json())
