"""Records of a table that differ between two times, with their changed columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chronolake.frames import select
from chronolake.query import QueryResult
from chronolake.types import quote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chronolake.formatting import Cell
    from chronolake.lake_table import Instant, LakeTable

_INSERTED: Final = "inserted"
_DELETED: Final = "deleted"


@dataclass(frozen=True)
class Difference:
    """A record that differs.

    Attributes:
        key: values of the key columns.
        change: `inserted`, `changed` or `deleted`.
        old: values of the other columns at the first time; None if the record did not exist.
        new: values of the other columns at the second time; None if the record did not exist.
    """

    key: dict[str, Cell]
    change: str
    old: dict[str, Cell] | None
    new: dict[str, Cell] | None

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that differ; all of them for an inserted or deleted record."""
        if self.old is None or self.new is None:
            return tuple(self.old or self.new or ())
        return tuple(name for name, value in self.old.items() if self.new[name] != value)

    def as_json(self) -> dict[str, Any]:
        """Return the difference as JSON types; a changed record has only changed columns."""

        def changed_values(values: dict[str, Cell] | None) -> dict[str, Cell] | None:
            return None if values is None else {name: values[name] for name in self.columns}

        return {
            "key": self.key,
            "change": self.change,
            "old": changed_values(self.old),
            "new": changed_values(self.new),
        }


@dataclass(frozen=True)
class Comparison:
    """The records that differ, as a result that has not been read."""

    key: tuple[str, ...]
    columns: tuple[str, ...]
    answer: QueryResult

    def records(self, limit: int | None = None) -> Iterator[Difference]:
        """Yield the records sorted by key, with one partition in memory at a time.

        Args:
            limit: maximum number of records; None for all.

        Raises:
            QueryError: Spark fails while it computes the records.
        """
        keys, width = len(self.key), len(self.columns)
        for row in self.answer.rows(limit):
            change = str(row[0])
            old, new = row[1 + keys : 1 + keys + width], row[1 + keys + width :]
            yield Difference(
                key=dict(zip(self.key, row[1 : 1 + keys], strict=True)),
                change=change,
                old=None if change == _INSERTED else dict(zip(self.columns, old, strict=True)),
                new=None if change == _DELETED else dict(zip(self.columns, new, strict=True)),
            )


def compare(table: LakeTable, before: Instant, after: Instant) -> Comparison:
    """Compare a history table at two times.

    Args:
        table: a history table.
        before: an instant, as for `LakeTable.as_of`.
        after: a later instant.

    Raises:
        BatchError: the table is not in history mode.
        ValueRefusedError: a text is not a valid time, or the first instant is after the second.
    """
    found = table.diff(before, after)
    key = table.describe().record_key
    columns = tuple(name for name in found.schema["old"].dataType.names if name not in key)

    def parts(of: str, names: tuple[str, ...]) -> list[str]:
        return [f"{of}.{quote(name)}" for name in names]

    cells = [*parts("key", key), *parts("old", columns), *parts("new", columns)]
    flat = select(found.orderBy(*parts("key", key)), ["change", *cells])
    return Comparison(key, columns, QueryResult(("change", *key, *columns, *columns), flat))
