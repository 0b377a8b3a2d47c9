"""Arrow files of a stream's records, from when they are read until they are landed.

All records of a file have the same columns. A journal lists finished files together with the state
that they lead to. After a crash, the next run lands these files and does not read their records
again.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa

from chronolake import exact_json
from chronolake.arrow_tasks import rows_at
from chronolake.change_set import (
    DELETED_AT,
    MODIFIED,
    OMITTED,
    PROVIDES_DATA,
    PURGED_AT,
    SEQUENCE,
)
from chronolake.source.records.arrow_columns import widen
from chronolake.types import Column, ColumnType, Kind, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from chronolake.arrow_tasks import ArrowRows
    from chronolake.executor_files import FileOpener
    from chronolake.lake import Lake


_JOURNAL: Final = "journal.json"
_FACTS: Final = {
    MODIFIED: (pa.int64(), "bigint"),
    SEQUENCE: (pa.string(), "string"),
    DELETED_AT: (pa.int64(), "bigint"),
    PURGED_AT: (pa.int64(), "bigint"),
    PROVIDES_DATA: (pa.bool_(), "boolean"),
    OMITTED: (pa.list_(pa.string()), "array<string>"),
}
#: The columns of files whose records all exist and provide all columns.
WHOLE_RECORDS: Final = (MODIFIED, SEQUENCE, DELETED_AT, PURGED_AT)
#: The columns of files that may also contain deletions.
WITH_DELETIONS: Final = (*WHOLE_RECORDS, PROVIDES_DATA)
#: The columns of files that may also contain records without some columns.
WITH_OMISSIONS: Final = (*WITH_DELETIONS, OMITTED)


_PLACES: Final = pa.schema([("file", pa.string()), ("types", pa.string())])


@dataclass(frozen=True)
class Part:
    """A file of records.

    Attributes:
        file: path of the file.
        columns: the records' data columns.
        rows: number of records.
        bytes: size of the file.
        earliest: earliest modification time of the records, in microseconds since 1970; None: a
            record has no such time.
        is_undated: whether a record lacks a modification time that it should have.
        facts: the technical columns (`chronolake.change_set`) after the data columns; the same for
            all files that are read together.
        filled: the columns in which the source's records have values, also if these are not stored.
    """

    file: Path
    columns: tuple[Column, ...]
    rows: int
    bytes: int
    earliest: int | None = None
    is_undated: bool = False
    facts: tuple[str, ...] = WHOLE_RECORDS
    filled: frozenset[str] = frozenset()

    @property
    def is_whole(self) -> bool:
        """Return whether the file exists in its full size."""
        return self.file.is_file() and self.file.stat().st_size == self.bytes


class PartWriter:
    """A writer of records, page by page; not thread-safe."""

    def __init__(self, folder: Path, facts: tuple[str, ...] = WHOLE_RECORDS) -> None:
        """Prepare to write files.

        Args:
            folder: contains the files.
            facts: see `Part`.
        """
        self._folder = folder
        self._facts = facts
        self._parts: list[Part] = []
        self._columns: tuple[Column, ...] = ()
        self._writer: pa.RecordBatchFileWriter | None = None
        self._file = Path()
        self._rows = 0
        self._times: list[int | None] = []
        self._is_undated = False
        self._filled: set[str] = set()

    def add(
        self,
        columns: Sequence[Column],
        arrays: Sequence[pa.Array],
        facts: Mapping[str, pa.Array],
        *,
        filled: Iterable[str],
        earliest: int | None = None,
        is_undated: bool = False,
    ) -> None:
        """Write the records of a page.

        Args:
            columns: the records' data columns.
            arrays: the columns' values.
            facts: technical columns, at least `MODIFIED` and `SEQUENCE`; others are null.
            filled: see `Part`.
            earliest: see `Part`.
            is_undated: see `Part`.
        """
        rows = len(facts[MODIFIED])
        known = [
            facts[name] if name in facts else pa.nulls(rows, _FACTS[name][0])
            for name in self._facts
        ]
        names = [*(column.name for column in columns), *self._facts]
        batch = pa.record_batch([*arrays, *known], names=names)
        if self._writer is None or tuple(columns) != self._columns:
            self._end()
            self._columns = tuple(columns)
            self._file = self._folder / f"{uuid4().hex}.arrow"
            self._writer = pa.ipc.new_file(self._file, batch.schema)
        self._writer.write_batch(batch)
        self._rows += rows
        self._times.append(earliest)
        self._is_undated = self._is_undated or is_undated
        self._filled.update(filled)

    def _end(self) -> None:
        if self._writer is not None:
            self._writer.close()
            size = self._file.stat().st_size
            known = [time for time in self._times if time is not None]
            earliest = min(known) if len(known) == len(self._times) else None
            self._parts.append(
                Part(
                    self._file,
                    self._columns,
                    self._rows,
                    size,
                    earliest,
                    self._is_undated,
                    self._facts,
                    frozenset(self._filled),
                )
            )
            self._writer, self._rows, self._times, self._is_undated = None, 0, [], False
            self._filled.clear()

    def close(self) -> list[Part]:
        """Close the current file and return all files."""
        self._end()
        return self._parts

    def discard(self) -> None:
        """Delete all files of the slice."""
        discard(self.close())


def filled_columns(columns: Iterable[Column], arrays: Iterable[pa.Array]) -> set[str]:
    """Return the names of the columns that have values."""
    return {
        column.name
        for column, array in zip(columns, arrays, strict=True)
        if array.null_count < len(array)
    }


def filled_in(parts: Iterable[Part]) -> frozenset[str]:
    """Return the columns that have values in files (`Part.filled`)."""
    return frozenset(name for part in parts for name in part.filled)


def discard(parts: Iterable[Part]) -> None:
    """Delete files."""
    for part in parts:
        part.file.unlink(missing_ok=True)


@dataclass
class PendingFiles:
    """The records of a stream's finished slices that wait to be landed.

    Attributes:
        folder: contains the files; it survives a crash of the run.
        parts: the files.
        rules: the digest of the rules of their columns.
        bytes: their total size.
    """

    folder: Path
    parts: list[Part] = field(default_factory=list)
    bytes: int = 0
    rules: str = ""

    @classmethod
    def recover(cls, folder: Path, rules: str = "") -> tuple[PendingFiles, dict[str, Any] | None]:
        """Return the finished slices that a crashed run left, and the state that they lead to.

        Args:
            folder: contains the files.
            rules: the digest of the column rules. Files of other rules are deleted.
        """
        folder.mkdir(parents=True, exist_ok=True)
        try:
            journal = exact_json.loads((folder / _JOURNAL).read_bytes())
        except (FileNotFoundError, ValueError):
            # After a power failure, a file may exist without its content.
            journal = {"parts": [], "state": None}
        waiting = cls(folder, rules=rules)
        waiting.add([_part_from(folder, reported) for reported in journal["parts"]])
        known = {part.file for part in waiting.parts}
        for file in folder.glob("*.arrow"):
            # A slice that was not finished is read again.
            if file not in known:
                file.unlink()
        is_usable = journal.get("rules", "") == rules
        if not (is_usable and all(part.is_whole for part in waiting.parts)):
            # The files have landed and only the journal remained, or they were never complete; or
            # other rules apply now, and their slices are read again.
            waiting.acknowledge()
            return waiting, None
        return waiting, journal["state"]

    def add(self, parts: Sequence[Part]) -> None:
        """Add the files of one more slice."""
        self.parts += parts
        self.bytes += sum(part.bytes for part in parts)

    def note(self, state: Mapping[str, Any]) -> None:
        """Write the journal, so that files and state survive a crash of this run."""
        reported: dict[str, Any] = {
            "parts": [_part_as_json(part) for part in self.parts],
            "state": state,
        }
        if self.rules:
            reported["rules"] = self.rules
        file = self.folder / f"{_JOURNAL}.new"
        file.write_bytes(exact_json.dumps(reported))
        file.replace(self.folder / _JOURNAL)

    def acknowledge(self) -> None:
        """Delete the files and the journal after files and state have landed."""
        (self.folder / _JOURNAL).unlink(missing_ok=True)
        discard(self.parts)
        self.parts, self.bytes = [], 0

    def discard(self) -> None:
        """Delete everything that waits."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.parts, self.bytes = [], 0


def read_files(
    lake: Lake, parts: Sequence[Part], columns: Sequence[Column], facts: Sequence[str] = ()
) -> ArrowRows:
    """Return the records of files that may have different columns, in the form that `land` reads.

    Args:
        lake: the lake whose Spark session reads them, unless they are few.
        parts: the files.
        columns: the result's columns; each is at least as wide as in every file.
        facts: the technical columns of the result, which the files have (`Part.facts`).
    """
    known = [f"{quote(column.name)} {column.type.sql}" for column in columns]
    size = sum(part.bytes for part in parts)
    lake.note_work(size)
    places = {
        "file": [str(part.file) for part in parts],
        "types": [exact_json.dumps(_types_as_json(part.columns)).decode() for part in parts],
    }
    return rows_at(
        pa.table(places, schema=_PLACES),
        partial(
            _read_batches,
            open_file=lake.executor_files.opener,
            columns=tuple(columns),
            facts=tuple(facts),
        ),
        ", ".join([*known, *(f"{name} {_FACTS[name][1]}" for name in facts)]),
        size=size,
        is_local=lake.has_files_of_tasks,
        publish=lake.executor_files.publish,
        spark=lambda: lake.spark,
    )


def _read_batches(
    batches: Iterable[pa.RecordBatch],
    *,
    open_file: FileOpener,
    columns: tuple[Column, ...],
    facts: tuple[str, ...],
) -> Iterator[pa.RecordBatch]:
    """Yield the records of files, with columns that are as wide as those of all files."""
    for batch in batches:
        for place in batch.to_pylist():
            types = _types_from(exact_json.loads(place["types"].encode()))
            with open_file(place["file"]) as content, pa.ipc.open_file(content) as file:
                for number in range(file.num_record_batches):
                    yield _with_columns(file.get_batch(number), types, columns, facts)


def _with_columns(
    batch: pa.RecordBatch,
    types: Mapping[str, ColumnType],
    columns: Iterable[Column],
    facts: Iterable[str],
) -> pa.RecordBatch:
    cells = {
        column.name: widen(batch[column.name], types[column.name], column.type)
        if column.name in types
        else pa.nulls(batch.num_rows, column.type.arrow)
        for column in columns
    }
    return pa.RecordBatch.from_pydict(cells | {name: batch[name] for name in facts})


def group_by_columns(parts: Iterable[Part]) -> list[tuple[tuple[Column, ...], list[Part]]]:
    """Return the files, grouped by their columns."""
    found: dict[tuple[Column, ...], list[Part]] = {}
    for part in parts:
        found.setdefault(part.columns, []).append(part)
    return list(found.items())


def _types_as_json(columns: Iterable[Column]) -> list[list[Any]]:
    return [
        [column.name, column.type.kind, column.type.precision, column.type.scale]
        for column in columns
    ]


def _types_from(stored: Iterable[Sequence[Any]]) -> dict[str, ColumnType]:
    return {
        name: ColumnType(Kind(kind), precision, scale) for name, kind, precision, scale in stored
    }


def _part_as_json(part: Part) -> dict[str, Any]:
    return {
        "file": part.file.name,
        "rows": part.rows,
        "bytes": part.bytes,
        "earliest": part.earliest,
        "is_undated": part.is_undated,
        "facts": part.facts,
        "filled": sorted(part.filled),
        "columns": [
            [
                column.name,
                column.type.kind,
                column.type.precision,
                column.type.scale,
                column.primary_key,
            ]
            for column in part.columns
        ],
    }


def _part_from(folder: Path, stored: Mapping[str, Any]) -> Part:
    columns = tuple(
        Column(name, ColumnType(Kind(kind), precision, scale), key)
        for name, kind, precision, scale, key in stored["columns"]
    )
    return Part(
        folder / Path(stored["file"]).name,
        columns,
        stored["rows"],
        stored["bytes"],
        # Earlier versions did not store these values.
        stored.get("earliest"),
        stored.get("is_undated", False),
        tuple(stored.get("facts", WHOLE_RECORDS)),
        frozenset(stored.get("filled", (column.name for column in columns))),
    )
