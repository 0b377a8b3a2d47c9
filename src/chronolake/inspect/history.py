"""The timeline of a record: its versions in order, the changes, and how each version ended.

Versions are stored as Arrow tables, and converted to Python values a few at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np
import pyarrow as pa

from chronolake.errors import UnknownColumnError, ValueRefusedError
from chronolake.formatting import Cell, cells, did_you_mean, instant, parse_key_value
from chronolake.inspect.as_of import epsilon_of, known_since
from chronolake.inspect.catalog import CatalogTable, look_up
from chronolake.inspect.lineage import Lineage, lineage_of
from chronolake.inspect.scan import FILE, ROW, StoredRows
from chronolake.parsing import clocks_of
from chronolake.types import (
    ACTIVE,
    DELETE_SOURCE,
    DELETED,
    END,
    HASH,
    HISTORY_COLUMNS,
    START,
    SYNCED,
    VERSION,
    Kind,
    Mode,
    TableName,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray
    from pyiceberg.expressions import BooleanExpression

    from chronolake.config import LakeConfig


#: The value of `DELETE_SOURCE` for records that were archived.
_ARCHIVE: Final = "grax"
_HIDDEN_COLUMNS: Final = {*HISTORY_COLUMNS, SYNCED, VERSION, HASH}
#: Up to this many values are converted at once when all versions are iterated.
_MAX_CELLS: Final = 50_000


class Ending(StrEnum):
    """The way in which a version ended."""

    ACTIVE = "active"
    REPLACED = "replaced"
    DELETED = "deleted"


@dataclass(frozen=True)
class Change:
    """One column that differs from the previous version."""

    column: str
    old: Cell
    new: Cell


@dataclass(frozen=True)
class Version:
    """One version of a record, or its only row in a table without history.

    Attributes:
        start: ISO instant; None in a table without history.
        end: ISO instant; None in a table without history.
        ending: still active, replaced by the next version, or deleted.
        synced: start of the sync that sent the version, or None.
        values: all columns except the history columns and `_fivetran_synced`, in table order.
        changes: differences from the previous version; empty for the first one.
        is_archived: whether the deletion was an archival, as a data lake reports it; false for
            versions that were not deleted.
    """

    start: str | None
    end: str | None
    ending: Ending
    synced: Cell
    values: dict[str, Cell]
    changes: tuple[Change, ...]
    is_archived: bool = False

    @property
    def outcome(self) -> str:
        """Return how the version ended, for people: `archived` is a kind of deletion."""
        return "archived" if self.is_archived else self.ending.value


class StoredVersions(Sequence[Version]):
    """The versions of one record of a table in history mode, ordered by start.

    Args:
        rows: the versions, with the table's columns, in any order; at least one.
        epsilon: microseconds between a version's end and the start of the next.
    """

    def __init__(self, rows: pa.Table, epsilon: int) -> None:
        self._rows = rows.sort_by([(START, "ascending"), (END, "ascending")]).combine_chunks()
        self._columns = [name for name in rows.column_names if name not in _HIDDEN_COLUMNS]
        self._starts = _micros(self._rows[START])
        self._ends = _micros(self._rows[END])
        self._endings = self._find_endings(epsilon)
        self._archived = self._find_archived()
        #: For each column, flags of the versions whose value differs from the previous version.
        self._differs = {name: _flag_changes(self._rows[name]) for name in self._columns}

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def __iter__(self) -> Iterator[Version]:
        at_once = max(1, _MAX_CELLS // max(1, len(self._columns)))
        for first in range(0, len(self), at_once):
            yield from self._convert(first, min(first + at_once, len(self)))

    @overload
    def __getitem__(self, place: int) -> Version: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Version]: ...
    def __getitem__(self, place: int | slice) -> Version | Sequence[Version]:
        if isinstance(place, slice):
            wanted = range(*place.indices(len(self)))
            if wanted and wanted.step == 1:
                return self._convert(wanted.start, wanted.stop)
            return [self[number] for number in wanted]
        first = place + len(self) if place < 0 else place
        if not 0 <= first < len(self):
            raise IndexError(place)
        return self._convert(first, first + 1)[0]

    def outline(self) -> tuple[Version, ...]:
        """Return the versions without their values; their changes contain only the column."""
        changes: list[list[Change]] = [[] for _ in range(len(self))]
        for name, differs in self._differs.items():
            change = Change(name, None, None)
            for place in np.flatnonzero(differs):
                changes[place].append(change)
        return tuple(
            Version(*self._validity(place), None, {}, tuple(some), self._archived[place])
            for place, some in enumerate(changes)
        )

    def _convert(self, first: int, last: int) -> list[Version]:
        """Return the versions from one index to another."""
        begin = max(0, first - 1)  # The previous version is needed for the changes.
        rows = self._rows.slice(begin, last - begin)
        values = {name: cells(rows[name]) for name in self._columns}
        synced = cells(rows[SYNCED]) if SYNCED in rows.column_names else [None] * rows.num_rows
        versions = []
        for place in range(first, last):
            here = place - begin
            versions.append(
                Version(
                    *self._validity(place),
                    synced[here],
                    {name: column[here] for name, column in values.items()},
                    tuple(
                        Change(name, values[name][here - 1], values[name][here])
                        for name in self._columns
                        if self._differs[name][place]
                    ),
                    self._archived[place],
                )
            )
        return versions

    def _validity(self, place: int) -> tuple[str | None, str | None, Ending]:
        return (
            _instant(self._starts[place]),
            _instant(self._ends[place]),
            self._endings[place],
        )

    def _find_endings(self, epsilon: int) -> list[Ending]:
        active = self._rows[ACTIVE].to_pylist()
        following = [*self._starts[1:], None]
        return [
            _ending(*known, epsilon) for known in zip(active, self._ends, following, strict=True)
        ]

    def _find_archived(self) -> list[bool]:
        if DELETE_SOURCE not in self._columns:
            return [False] * len(self)
        sources = cells(self._rows[DELETE_SOURCE])
        return [
            _is_archived(ending, source)
            for ending, source in zip(self._endings, sources, strict=True)
        ]


def current_rows(rows: pa.Table) -> tuple[Version, ...]:
    """Return the rows of a record of a table without history."""
    columns = {name: cells(rows[name]) for name in rows.column_names}
    absent = [None] * rows.num_rows
    synced, sources = columns.get(SYNCED, absent), columns.get(DELETE_SOURCE, absent)
    marks = rows[DELETED].to_pylist() if DELETED in columns else absent
    endings = [Ending.DELETED if mark else Ending.ACTIVE for mark in marks]
    values = {name: column for name, column in columns.items() if name not in _HIDDEN_COLUMNS}
    return tuple(
        Version(
            None,
            None,
            endings[place],
            synced[place],
            {name: column[place] for name, column in values.items()},
            (),
            is_archived=_is_archived(endings[place], sources[place]),
        )
        for place in range(rows.num_rows)
    )


def _is_archived(ending: Ending, source: Cell) -> bool:
    return ending is Ending.DELETED and source == _ARCHIVE


def _micros(values: pa.ChunkedArray) -> list[int | None]:
    micros: list[int | None] = values.cast(pa.int64()).to_pylist()
    return micros


def _flag_changes(values: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return flags of the values that differ from the previous one in their displayed form."""
    displayed = cells(values)
    differs = np.zeros(len(displayed), np.bool_)
    for place, (old, new) in enumerate(pairwise(displayed), start=1):
        differs[place] = old != new or type(old) is not type(new)
    return differs


def _instant(micros: int | None) -> str | None:
    return None if micros is None else instant(micros)


def _ending(
    active: bool | None,  # noqa: FBT001
    end: int | None,
    following: int | None,
    epsilon: int,
) -> Ending:
    if active:
        return Ending.ACTIVE
    if following is not None and end is not None and following - end <= epsilon:
        return Ending.REPLACED
    return Ending.DELETED


#: The kinds whose texts may be surrounded by blanks.
NUMBERS: Final = {Kind.SHORT, Kind.INT, Kind.LONG, Kind.DECIMAL, Kind.FLOAT, Kind.DOUBLE}


@dataclass(frozen=True)
class Timeline:
    """All versions of one record, ordered by start.

    Attributes:
        mode: its mode.
        key: the record's key, as it was requested.
        versions: the versions, whose values are converted on access; the only row in a table
            without history.
        known_since: ISO instant of the switch to history mode: earlier changes are not known. None
            if the table always kept history, or keeps none.
        bytes: the memory that its versions occupy.
        lineage: the records that it was restored from, and those restored from it; None if the
            table does not have such links.
    """

    table: TableName
    mode: Mode
    key: dict[str, str | None]
    versions: Sequence[Version]
    known_since: str | None = None
    bytes: int = 0
    lineage: Lineage | None = None

    def outline(self) -> Timeline:
        """Return the timeline without values: the versions' times, and the columns that changed."""
        if not isinstance(self.versions, StoredVersions):
            return self
        return replace(self, versions=self.versions.outline())

    def as_json(self) -> dict[str, Any]:
        """Return the timeline as JSON types."""
        return {
            "table": str(self.table),
            "mode": self.mode.value,
            "key": self.key,
            "known_since": self.known_since,
            **self._lineage_as_json(),
            "versions": [
                {
                    "start": version.start,
                    "end": version.end,
                    "ending": version.ending.value,
                    "archived": version.is_archived,
                    "synced": version.synced,
                    "values": version.values,
                    "changes": [
                        {"column": change.column, "old": change.old, "new": change.new}
                        for change in version.changes
                    ],
                }
                for version in self.versions
            ],
        }

    def _lineage_as_json(self) -> dict[str, Any]:
        if self.lineage is None:
            return {}
        return {
            "restored_from": list(self.lineage.restored_from),
            "restored_as": list(self.lineage.restored_as),
            "lineage_complete": self.lineage.is_complete,
        }


def history(
    config: LakeConfig,
    name: TableName,
    key: Mapping[str, str | None],
    *,
    most: int | None = None,
    most_bytes: int | None = None,
) -> Timeline:
    """Return the timeline of the record with a key.

    Only files and row groups whose statistics admit the key are read.

    Args:
        config: the lake.
        name: the table; for one without history, the timeline contains the record's current row.
        key: the value of every key column, as text: times in ISO 8601, binary values in base64;
            None for null.
        most: the maximum number of versions; None: no limit.
        most_bytes: the maximum size of the versions in Arrow's memory; None: no limit.

    Returns:
        The timeline, without versions if the table has no such record.

    Raises:
        LakeError: the lake does not exist, or cannot be read.
        TableNotFoundError: the table does not exist.
        UnknownColumnError: a column of `key` is not a key column, or one is missing.
        ValueRefusedError: a text is not a valid value of its column's type, or the record exceeds a
            limit.
    """
    found = look_up(config, name)
    condition = _condition(found, key)
    rows = _read_rows(found, condition, most, most_bytes)
    versions: Sequence[Version] = ()
    if rows.num_rows and found.mode is Mode.HISTORY:
        versions = StoredVersions(rows, epsilon_of(found))
    elif rows.num_rows:
        versions = current_rows(rows)
    return Timeline(
        name,
        found.mode,
        dict(key),
        versions,
        known_since(found),
        rows.get_total_buffer_size(),
        lineage_of(found, key),
    )


def _read_rows(
    table: CatalogTable, condition: BooleanExpression, most: int | None, most_bytes: int | None
) -> pa.Table:
    """Return a record's rows, or raise an error as soon as a limit is exceeded."""
    stored, kept, count, size = StoredRows(table), [], 0, 0
    for batch in stored.batches(stored.columns, condition):
        rows = batch.drop_columns([FILE, ROW])
        kept.append(rows)
        count += rows.num_rows
        size += rows.nbytes
        problem = None
        if most is not None and count > most:
            problem = f"The record has more than {most:,} versions, which is the limit."
        elif most_bytes is not None and size > most_bytes:
            problem = f"The record's versions exceed the limit of {most_bytes >> 20:,} MiB."
        if problem is not None:
            raise ValueRefusedError(
                problem,
                hint="Select the versions of a period in SQL with `chronolake query`, or print all "
                "versions with `chronolake history --json`.",
                table=str(table.name),
            )
    return pa.concat_tables(kept) if kept else pa.table({})


def _condition(catalog_table: CatalogTable, key: Mapping[str, str | None]) -> BooleanExpression:
    from pyiceberg.expressions import AlwaysTrue, And  # noqa: PLC0415 - slow to import

    table = str(catalog_table.name)
    by_name = {column.name: column for column in catalog_table.columns}
    # A table of another engine has no declared key: any columns may be requested.
    wanted = catalog_table.key or tuple(key)
    for column in key:
        if column not in by_name:
            raise UnknownColumnError(
                "The table has no such column.",
                hint=f"Its key is {_join(catalog_table.key)}."
                if catalog_table.key
                else did_you_mean(column, by_name, f"Its columns are {_join(list(by_name))}."),
                table=table,
                column=column,
            )
        if column not in wanted:
            raise UnknownColumnError(
                "The column is not part of the table's key.",
                hint=f"The key is {_join(wanted)}; for other filters, use `chronolake query`.",
                table=table,
                column=column,
            )
    if missing := [column for column in wanted if column not in key] or (["id"] if not key else []):
        raise UnknownColumnError(
            f"The key is not complete: {_join(missing)} is missing.",
            hint="Set --key COLUMN=VALUE for each key column, or --null COLUMN if it is null.",
            table=table,
        )
    condition: BooleanExpression = AlwaysTrue()
    for column, text in key.items():
        condition = And(condition, equal_to(catalog_table, column, text))
    return condition


def equal_to(table: CatalogTable, column: str, text: str | None) -> BooleanExpression:
    """Return a filter for rows in which a column equals the value of a text; None means null.

    Raises:
        ValueRefusedError: the text is not a valid value of the column's type.
    """
    from pyiceberg.expressions import EqualTo, In, IsNaN, IsNull  # noqa: PLC0415 - slow to import
    from pyiceberg.expressions.literals import (  # noqa: PLC0415 - slow to import
        FloatLiteral,
        LongLiteral,
        literal,
    )

    if text is None:
        return IsNull(column)
    by_name = {item.name: item for item in table.columns}
    if by_name[column].type.kind is Kind.NAIVE_TIME:
        return In(column, clocks_of(text))
    if by_name[column].type.kind in NUMBERS:
        text = text.strip()  # Copied text may have blanks.
    value = parse_key_value(by_name[column], text, table=str(table.name))
    if isinstance(value, float) and math.isnan(value):
        return IsNaN(column)
    if isinstance(value, int) and not isinstance(value, bool):
        # Integers, times in microseconds and days since 1970 are all of this kind.
        return EqualTo(column, LongLiteral(value))
    if isinstance(value, float) and by_name[column].type.kind is Kind.FLOAT:
        # As an 8-byte float, infinity would exceed the column's range.
        return EqualTo(column, FloatLiteral(value))
    return EqualTo(column, literal(value))


def _join(columns: Sequence[str]) -> str:
    return ", ".join(columns)
