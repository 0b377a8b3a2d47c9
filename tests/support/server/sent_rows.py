"""Conversion of the oracle's rows to requests for a destination, and of its tables to rows."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pyarrow.compute as pc

from support.oracle import ACTIVE, END, KEEP, START, HistoryTable, KeyedTable, Row
from support.server.caller import Caller, column_texts
from support.server.sent_files import UNMODIFIED, SentFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(text: str) -> int:
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)


def cell(value: Any, kind: str) -> str | None:
    """Return a value as it is written in a file."""
    if value is None:
        return None
    if value is KEEP:
        return UNMODIFIED
    if kind == "BOOLEAN":
        return "true" if value else "false"
    if kind == "UTC_DATETIME":
        text = (_EPOCH + timedelta(microseconds=value)).isoformat()
        return text.removesuffix("+00:00").rstrip("0" if "." in text else "") + "Z"
    return str(value)


@dataclass(frozen=True)
class Batch:
    """The rows of one request, by kind of file.

    Attributes:
        files: the number of files for the rows of a kind.
        shuffle: the seed for the order of columns in files and request.
        without: columns that the request and its files omit.
        short_deletes: whether delete files have only the key and the end.
    """

    earliest: Sequence[Row] = ()
    replace: Sequence[Row] = ()
    update: Sequence[Row] = ()
    delete: Sequence[Row] = ()
    files: int = 1
    shuffle: int = 0
    without: frozenset[str] = field(default_factory=frozenset)
    short_deletes: bool = False

    @property
    def rows(self) -> dict[str, list[Row]]:
        kinds = {
            "earliest": self.earliest,
            "replace": self.replace,
            "update": self.update,
            "delete": self.delete,
        }
        return {
            kind: [
                {name: value for name, value in row.items() if name not in self.without}
                for row in rows
            ]
            for kind, rows in kinds.items()
            if rows
        }


@dataclass(frozen=True)
class SentTable:
    """A table at a destination; `columns` have the format of the caller's."""

    caller: Caller
    name: str
    columns: Sequence[str]

    @property
    def kinds(self) -> dict[str, str]:
        """Return types by column name."""
        parts = (text.rpartition(":") for text in self.columns)
        return {name.removesuffix("*"): kind for name, _, kind in parts}

    @property
    def key(self) -> list[str]:
        """Return the key of a record, without the start."""
        names = (text.rpartition(":")[0] for text in self.columns)
        return [
            name.removesuffix("*") for name in names if name.endswith("*") and START not in name
        ]

    @property
    def is_history(self) -> bool:
        return START in self.kinds

    def oracle(self) -> Any:
        model = HistoryTable if self.is_history else KeyedTable
        return model(self.key, list(self.kinds))

    def create(self) -> SentTable:
        response = self.caller.create(self.name, self.columns)
        assert response.success, response
        assert column_texts(self.caller.describe(self.name).table.columns) == list(self.columns)
        return self

    def request(self, batch: Batch) -> Any:
        """Return a request with new files."""
        dice = random.Random(batch.shuffle)
        columns = [
            text
            for text in self.columns
            if text.rpartition(":")[0].removesuffix("*") not in batch.without
        ]
        dice.shuffle(columns)
        kinds = batch.rows
        files = {kind: self._files(kind, rows, batch, dice) for kind, rows in kinds.items() if rows}
        return self.caller.request(self.name, columns, history=self.is_history, **files)

    def _files(
        self, kind: str, rows: Sequence[Row], batch: Batch, dice: random.Random
    ) -> list[SentFile]:
        header = [name for name in self.kinds if name not in batch.without]
        if kind == "earliest":
            header = [*self.key, START]
        elif kind == "delete" and batch.short_deletes:
            header = [*self.key, END] if self.is_history else self.key
        size = -(-len(rows) // batch.files)
        made = []
        for begin in range(0, len(rows), size):
            dice.shuffle(header)
            part = [self._cells(row) for row in rows[begin : begin + size]]
            made.append(self.caller.file(kind, part, columns=header))
        return made

    def _cells(self, row: Mapping[str, Any]) -> dict[str, str | None]:
        return {name: cell(value, self.kinds[name]) for name, value in row.items()}

    def send(self, request: Any) -> None:
        stub = self.caller.stub
        call = stub.WriteHistoryBatch if self.is_history else stub.WriteBatch
        try:
            response = call(request)
        except grpc.RpcError as failure:
            raise AssertionError(f"{failure.code()}: {failure.details()}") from None
        assert response.WhichOneof("response") == "success", response
        assert response.success

    def rows(self) -> list[Row]:
        """Return the rows as PyIceberg reads them; times are microseconds."""
        found = self.caller.iceberg(self.name).scan().to_arrow()
        return plain_rows(found)

    def differences(self, model: HistoryTable | KeyedTable) -> str:
        """Return how the table differs from the expected rows; an empty text if it does not."""
        return differences(self.rows(), model.rows(), self.key)


def plain_rows(table: pa.Table) -> list[Row]:
    columns = {}
    for name in table.column_names:
        values = table[name]
        if pa.types.is_timestamp(values.type):
            values = pc.cast(pc.cast(values, pa.timestamp("us", values.type.tz)), pa.int64())
        columns[name] = values.to_pylist()
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def differences(found: Iterable[Row], expected: Iterable[Row], key: Sequence[str]) -> str:
    """Return the keys whose rows differ, with the rows, in a form that a person can compare."""
    by_key: dict[Any, tuple[list[str], list[str]]] = {}
    for side, rows in enumerate((found, expected)):
        for row in rows:
            pair = by_key.setdefault(tuple(row[name] for name in key), ([], []))
            pair[side].append(spoken(row))
    wrong = {
        record_key: (sorted(pair[0]), sorted(pair[1]))
        for record_key, pair in by_key.items()
        if sorted(pair[0]) != sorted(pair[1])
    }
    lines = [f"{len(wrong)} of {len(by_key)} keys differ"] if wrong else []
    for record_key, (have, want) in list(wrong.items())[:3]:
        lines += [f"key {record_key}", *(f"  has  {row}" for row in have)]
        lines += [f"  must {row}" for row in want]
    return "\n".join(lines)


def spoken(row: Mapping[str, Any]) -> str:
    """Return a row as text, history columns first."""
    first = [name for name in (START, END, ACTIVE) if name in row]
    names = [*first, *sorted(set(row) - set(first))]
    return ", ".join(
        f"{name}={cell(row[name], 'UTC_DATETIME')}"
        if isinstance(row[name], int) and name in {START, END, "_fivetran_synced"}
        else f"{name}={row[name]!r}"
        for name in names
    )
