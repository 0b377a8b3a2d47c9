"""A source with a state: a log of changes, renamed columns, and full refreshes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from chronolake.change_set import DELETED_AT, MODIFIED, OMITTED, PROVIDES_DATA, PURGED_AT, SEQUENCE
from chronolake.config import Project
from chronolake.lake import Lake
from chronolake.source.protocol import ChangeBatch, Offset, Snapshot, StreamDescriptor
from chronolake.types import Column, ColumnType, Kind
from support.lake.descriptors import pulled_stream
from support.pipeline_model import LandedRow

STREAM: Final = "entries"
_T: Final = 1_767_225_600_000_000
_ARROW: Final = {
    Kind.STRING: pa.string(),
    Kind.LONG: pa.int64(),
    Kind.INT: pa.int32(),
    Kind.DOUBLE: pa.float64(),
}

Key = tuple[str, int]
Numbers = dict[str, int]
Entry = tuple[LandedRow, tuple[Column, ...], Numbers]


@dataclass
class Register:
    """Records with a key of two columns, which may be renamed like all others.

    Attributes:
        project: the project whose pipeline `shop` reads this source.
        columns: the current names of the columns, the key first.
        records: the current records.
        log: the changes of records, with the columns at that time and their numbers.
        numbers: the columns' numbers, which stay the same when columns are renamed.
    """

    project: Project
    columns: tuple[Column, ...] = (
        Column("shelf", ColumnType(Kind.STRING), primary_key=True),
        Column("no", ColumnType(Kind.INT), primary_key=True),
        Column("title", ColumnType(Kind.STRING)),
        Column("pages", ColumnType(Kind.LONG)),
    )
    records: dict[Key, dict[str, Any]] = field(default_factory=dict)
    log: list[Entry] = field(default_factory=list)
    numbers: Numbers = field(default_factory=lambda: {"shelf": 1, "no": 2, "title": 3, "pages": 4})
    ticks: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def now(self) -> int:
        """Return a time later than all before, in microseconds."""
        return _T + next(self.ticks) * 1_000_000

    def put(self, key: Key, fields: Mapping[str, Any], *, omitted: str | None = None) -> None:
        """Write a record; the log may leave out a column that did not change."""
        self.records[key] = dict(fields)
        reported = {name: value for name, value in fields.items() if name != omitted}
        self._note(key, reported, omitted=frozenset({omitted} if omitted else ()))

    def delete(self, key: Key) -> None:
        del self.records[key]
        self._note(key, None)

    def rename(self, names: Mapping[str, str]) -> None:
        """Rename columns, in existing records, too."""
        self.columns = tuple(
            Column(names.get(column.name, column.name), column.type, column.primary_key)
            for column in self.columns
        )
        for key, fields in self.records.items():
            self.records[key] = {names.get(name, name): fields[name] for name in fields}
        self.numbers = {names.get(name, name): number for name, number in self.numbers.items()}

    def drop(self, name: str) -> None:
        """Drop a column."""
        self.columns = tuple(column for column in self.columns if column.name != name)
        del self.numbers[name]

    def _note(
        self, key: Key, fields: dict[str, Any] | None, omitted: frozenset[str] = frozenset()
    ) -> None:
        at, place = self.now(), len(self.log)
        row = LandedRow(
            key,
            at,
            f"{place + 1:x}",
            (1, place),
            deleted=at if fields is None else None,
            provides_data=fields is not None,
            omitted=omitted,
            fields=fields or {},
        )
        self.log.append((row, self.columns, self.numbers))

    # -------------------------------------------------------------- as a source

    def discover(self) -> list[StreamDescriptor]:
        return [pulled_stream(self.project, STREAM)]

    def read(
        self, lake: Lake, positions: Mapping[str, Offset | None], *, full_refresh: bool
    ) -> Iterator[ChangeBatch | Snapshot]:
        assert positions.keys() == {STREAM}
        done = int((positions[STREAM] or {"done": 0})["done"])
        while done < len(self.log):
            _, columns, numbers = self.log[done]
            rows = [
                row
                for row, *_ in itertools.takewhile(
                    lambda entry: entry[1:] == (columns, numbers),  # noqa: B023
                    itertools.islice(self.log, done, None),
                )
            ]
            done += len(rows)
            versions = lake.spark.createDataFrame(_versions(rows, columns))
            yield ChangeBatch(STREAM, versions, columns, {"done": done}, numbers)
        if full_refresh:
            yield Snapshot(
                STREAM,
                lake.spark.createDataFrame(self._table()),
                self.columns,
                self.now(),
                f"{len(self.log):x}",
                {"done": done},
                self.numbers,
            )

    def acknowledge(self, positions: Mapping[str, Offset]) -> None:
        assert 0 <= positions[STREAM]["done"] <= len(self.log)

    def _table(self) -> pa.Table:
        rows = [_cells(key, fields, self.columns) for key, fields in self.records.items()]
        return pa.Table.from_pylist(rows, _schema(self.columns))


def _schema(columns: tuple[Column, ...]) -> pa.Schema:
    return pa.schema([(column.name, _ARROW[column.type.kind]) for column in columns])


def _cells(key: Key, fields: Mapping[str, Any], columns: tuple[Column, ...]) -> dict[str, Any]:
    names = [column.name for column in columns if column.primary_key]
    return {**fields, **dict(zip(names, key, strict=True))}


def _versions(rows: list[LandedRow], columns: tuple[Column, ...]) -> pa.Table:
    table = pa.Table.from_pylist(
        [_cells(row.key, row.fields, columns) for row in rows], _schema(columns)
    )
    besides = {
        MODIFIED: pa.array([row.modified for row in rows], pa.int64()),
        SEQUENCE: pa.array([row.sequence for row in rows], pa.string()),
        DELETED_AT: pa.array([row.deleted for row in rows], pa.int64()),
        PURGED_AT: pa.nulls(len(rows), pa.int64()),
        PROVIDES_DATA: pa.array([row.provides_data for row in rows], pa.bool_()),
        OMITTED: pa.array([list(row.omitted) or None for row in rows], pa.list_(pa.string())),
    }
    for name, values in besides.items():
        table = table.append_column(name, values)
    return table
