"""Differences between dated copies of a stream's records, as record versions.

The table as of the time of a copy is that copy. A copy's *events* are its differences from the copy
before it, at its time: versions of new and changed records, and deletions of missing ones. The
events of all copies of a batch are found in one pass, with window functions over the copies, the
table's rows as of the copy before, and those as of the copy after.

A late copy also changes the events of the copy after it: a record that equals the late copy must
have no version there any more, and one that differs from it needs one. A corrected copy replaces
its own events in addition. For these two kinds of times, the events are compared with what is in
the table, and what should not be there is retracted (`chronolake.change_set`).

Landing may be interrupted between two files. The table as of the copy after, from which its events
are derived, must never change: events that keep it are landed before those of earlier copies, and
retractions at its time after them.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from chronolake.cancellation import raise_if_cancelled
from chronolake.change_set import DELETED_AT, MODIFIED, PROVIDES_DATA, PURGED_AT, RESERVED, SEQUENCE
from chronolake.core.pipeline_table import layout_of, unmerged_versions
from chronolake.core.sql import cached_view
from chronolake.description import describe_loaded
from chronolake.frames import select, temp_view
from chronolake.landing import as_text
from chronolake.landing.reader import SOURCE_TIME
from chronolake.pipeline.properties import TRACK_HISTORY_PROPERTY
from chronolake.pipeline.snapshot_diff import Sides
from chronolake.source.protocol import COPY, CopiesLanded, CopyRejected
from chronolake.types import ACTIVE, END, START, quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from chronolake.description import TableDescription
    from chronolake.iceberg import IcebergTable
    from chronolake.source.protocol import CopyBatch
    from chronolake.types import Column

#: The kinds of an event.
_VERSION: Final = 0
_DELETION: Final = 1
#: Two rows of a copy have the same key.
_DUPLICATE: Final = 2
#: A row of a copy lacks its key.
_KEYLESS: Final = 3
#: What is in the table at the time is undone.
_RETRACTION: Final = 4

#: Messages of `files.formats` and `column_types` about a value with another type.
_BAD_VALUE: Final = re.compile(
    r"(A value of the column .+?(?: is not of the type [^.]+| does not fit .+?, which .+? sets))\."
)
_NUMBER: Final = f"{RESERVED}number"
_RECORD: Final = f"{RESERVED}record"
_KIND: Final = f"{RESERVED}kind"
_IS_NEW: Final = f"{RESERVED}is_new"
_STORED: Final = f"{RESERVED}stored"
_HAS_VERSION: Final = f"{RESERVED}has_version"
_HAS_DELETION: Final = f"{RESERVED}has_deletion"
_KEY: Final = f"{RESERVED}key_"


@dataclass(frozen=True)
class CopyDifferences:
    """The differences of a batch of copies.

    Attributes:
        columns: the data columns of the versions.
        steps: versions that are landed one after the other.
        is_distinct: whether no two of all versions are of one record.
        result: the number of rows of each copy, or the copy that is rejected.
    """

    columns: tuple[Column, ...]
    steps: tuple[DataFrame, ...]
    is_distinct: bool
    result: CopiesLanded | CopyRejected


@contextmanager
def diff_copies(
    spark: SparkSession, batch: CopyBatch, table: IcebergTable | None
) -> Iterator[CopyDifferences]:
    """Compare the copies of a batch, and yield their differences, which are kept meanwhile.

    Args:
        spark: the session.
        batch: the copies.
        table: the table with all landed files applied; None if nothing has landed.
    """
    comparison = _Comparison.of(spark, batch, table)
    with cached_view(comparison.events()) as view:
        try:
            result = comparison.check(view)
        except (Py4JError, PySparkException):
            # The failure may be the consequence of a run that ends.
            raise_if_cancelled()
            rejected = comparison.unreadable_copy()
            if rejected is None:
                raise
            result = rejected
        steps = comparison.steps(view) if isinstance(result, CopiesLanded) else ()
        is_distinct = len(batch.copies) == 1 and not comparison.compared_times
        yield CopyDifferences(comparison.columns, steps, is_distinct, result)


@dataclass(frozen=True)
class _Comparison:
    """The copies of a batch, and the table.

    Attributes:
        columns: the data columns with types that contain the values of both.
    """

    spark: SparkSession
    batch: CopyBatch
    table: IcebergTable | None
    sides: Sides
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, spark: SparkSession, batch: CopyBatch, table: IcebergTable | None) -> _Comparison:
        columns = list(batch.columns)
        sides = Sides(tuple(columns), tuple(columns), frozenset())
        if table is not None:
            description = describe_loaded(table)
            given = {column.name for column in columns}
            others = [column for column in _data_of(description) if column.name not in given]
            if batch.rows is not None:
                # They are null in all copies of the batch.
                others = [replace(column, primary_key=False) for column in others]
                cells = [
                    f"CAST(NULL AS {column.type.sql}) AS {quote(column.name)}" for column in others
                ]
                rows = select(batch.rows, [*map(quote, batch.rows.columns), *cells])
                batch = replace(batch, rows=rows)
            columns += others
            batch = replace(batch, columns=columns)
            sides = Sides.of(columns, description)
        typed = tuple(replace(column, type=sides.common[column.name]) for column in columns)
        return cls(spark, batch, table, sides, typed)

    @property
    def _last(self) -> int:
        return len(self.batch.copies)

    @property
    def _times(self) -> list[int]:
        """Return the times of the copies' numbers, from 1, with that of the copy after them."""
        after = [] if self.batch.after_micros is None else [self.batch.after_micros]
        return [*(copy.at_micros for copy in self.batch.copies), *after]

    @property
    def compared_times(self) -> dict[int, int]:
        """Return the times whose events are compared with the table, by number."""
        if self.table is None:
            return {}
        numbers = [n for n, copy in enumerate(self.batch.copies, 1) if copy.was_landed]
        if self.batch.after_micros is not None:
            numbers.append(self._last + 1)
        return {number: self._times[number - 1] for number in numbers}

    @property
    def _keys(self) -> list[str]:
        return [f"{_KEY}{n}" for n in range(sum(column.primary_key for column in self.columns))]

    def _key_cells(self) -> list[str]:
        numbers = [n for n, column in enumerate(self.columns) if column.primary_key]
        return [
            f"{_RECORD}.c{number} AS {name}"
            for number, name in zip(numbers, self._keys, strict=True)
        ]

    def _states(self) -> DataFrame:
        """Return the records of each copy, of the one before (0), and of the one after."""
        before = self.batch.before_micros
        if self.batch.rows is None:
            states = self._stored("false" if before is None else _as_of(before), f"1 AS {_NUMBER}")
        else:
            states = select(
                self.batch.rows, [f"{COPY} AS {_NUMBER}", f"{self.sides.new_values} AS {_RECORD}"]
            )
        if before is not None:
            states = states.unionAll(self._stored(_as_of(before), f"0 AS {_NUMBER}"))
        if self.batch.after_micros is not None:
            number = f"{self._last + 1} AS {_NUMBER}"
            states = states.unionAll(self._stored(_as_of(self.batch.after_micros), number))
        return states.selectExpr(_NUMBER, _RECORD, *self._key_cells())

    def _stored(self, condition: str, *cells: str) -> DataFrame:
        if self.table is None:
            names = [
                f"CAST(NULL AS {column.type.sql}) AS {quote(column.name)}"
                for column in self.columns
            ]
            stored = self.spark.range(0).selectExpr(*names)
            return select(stored, [*cells, f"{self.sides.new_values} AS {_RECORD}"])
        if self.table.property_of(TRACK_HISTORY_PROPERTY) is None:
            stored = self.spark.table(self.table.sql)
        else:
            # A merged version only has the values of the last copy.
            stored = unmerged_versions(self.spark, self.table)
        return select(stored.where(condition), [*cells, f"{self.sides.old_values} AS {_RECORD}"])

    def events(self) -> DataFrame:
        """Return the events of all copies, also of the one after them, with their number."""
        record = f"OVER (PARTITION BY {', '.join(self._keys)} ORDER BY {_NUMBER})"
        before, after = f"{RESERVED}before", f"{RESERVED}after"
        windows = self._states().selectExpr(
            "*",
            f"lag({_NUMBER}) {record} AS {before}",
            f"lag({_RECORD}) {record} AS {RESERVED}old",
            f"lead({_NUMBER}) {record} AS {after}",
        )
        last = len(self._times)
        is_new = f"({before} IS NULL OR {before} < {_NUMBER} - 1)"
        kinds = {
            _VERSION: f"{_NUMBER} > 0 AND ({is_new} OR "
            f"({before} < {_NUMBER} AND NOT {_RECORD} <=> {RESERVED}old))",
            _DELETION: f"{_NUMBER} < {last} AND ({after} IS NULL OR {after} > {_NUMBER} + 1)",
            _DUPLICATE: f"coalesce({before} = {_NUMBER}, false)",
            _KEYLESS: " OR ".join(f"{name} IS NULL" for name in self._keys),
        }
        found = [
            f"IF({condition}, named_struct('kind', {kind}, 'number', {_NUMBER} + "
            f"{int(kind == _DELETION)}), NULL)"
            for kind, condition in kinds.items()
        ]
        event = f"{RESERVED}event"
        is_any = " OR ".join(f"({condition})" for condition in kinds.values())
        chosen = windows.where(is_any).selectExpr(
            _RECORD,
            *self._keys,
            f"{is_new} AS {_IS_NEW}",
            f"explode(filter(array({', '.join(found)}), item -> item IS NOT NULL)) AS {event}",
        )
        return chosen.selectExpr(
            f"{event}.number AS {_NUMBER}",
            f"{event}.kind AS {_KIND}",
            f"IF({event}.kind = {_VERSION}, {_RECORD}, NULL) AS {_RECORD}",
            f"{_IS_NEW} AND {event}.kind = {_VERSION} AS {_IS_NEW}",
            *self._keys,
        )

    # Checks.

    def check(self, view: str) -> CopiesLanded | CopyRejected:
        """Return the number of rows of each copy, or the first one that is not acceptable."""
        key = [
            as_text(replace(column, name=name))
            for column, name in zip(
                [column for column in self.columns if column.primary_key], self._keys, strict=True
            )
        ]
        example = f"min(IF({_KIND} = {_DUPLICATE}, concat_ws(', ', {', '.join(key)}), NULL))"
        found = {
            row["number"]: row
            for row in self.spark.sql(
                f"SELECT {_NUMBER} AS number, count_if({_IS_NEW}) AS added, "
                f"count_if({_KIND} = {_DELETION}) AS deleted, "
                f"count_if({_KIND} = {_DUPLICATE}) AS duplicates, "
                f"count_if({_KIND} = {_KEYLESS}) AS keyless, {example} AS example "
                f"FROM {view} GROUP BY {_NUMBER}"
            ).collect()
        }
        rows = self._rows_before()
        counts = []
        for number in range(1, self._last + 1):
            row = found.get(number)
            added, deleted = (0, 0) if row is None else (row["added"], row["deleted"])
            reason = None if row is None else self._flaw(row)
            if reason is None:
                reason = self._shortage(rows, rows + added - deleted, deleted)
            if reason is not None:
                return CopyRejected(number, reason)
            rows += added - deleted
            counts.append(rows)
        return CopiesLanded(counts)

    def _rows_before(self) -> int:
        if self.batch.before_micros is None:
            return 0
        if self.batch.rows_before is not None:
            return self.batch.rows_before
        return int(self._stored(_as_of(self.batch.before_micros)).count())

    def _flaw(self, row: dict[str, int]) -> str | None:
        key = ", ".join(column.name for column in self.batch.columns if column.primary_key)
        if row["keyless"]:
            return f"{row['keyless']:,} of its rows have no {key}."
        if row["duplicates"]:
            return (
                f"{row['duplicates']:,} of its rows have the same {key} as another one, such as "
                f"{row['example']}. Set `key` to columns that identify a row."
            )
        return None

    def _shortage(self, before: int, rows: int, deleted: int) -> str | None:
        batch = self.batch
        if rows < batch.min_rows:
            return f"it has {rows:,} rows, and min_rows is {batch.min_rows:,}."
        if batch.most_deleted is not None and deleted > batch.most_deleted * before:
            return (
                f"it lacks {deleted:,} of the {before:,} rows of the copy before it, and "
                f"max_deleted is {batch.most_deleted * 100:.4g}%."
            )
        return None

    def unreadable_copy(self) -> CopyRejected | None:
        """Return the first copy whose rows cannot be read, or None if all can."""
        if self.batch.rows is None:
            return None
        for number in range(1, self._last + 1):
            rows = self.batch.rows.where(f"{COPY} = {number}")
            try:
                rows.write.format("noop").mode("overwrite").save()
            except (Py4JError, PySparkException) as failure:
                return CopyRejected(number, _reason_of(failure), may_be_temporary=True)
        return None

    # Versions to land.

    def steps(self, view: str) -> tuple[DataFrame, ...]:
        """Return the versions of all events, in the order in which they have to land."""
        events = self.spark.table(view)
        compared = self.compared_times
        if not compared:
            return (self._versions(events),)
        numbers = ", ".join(map(str, compared))
        corrected = self._corrections(events.where(f"{_NUMBER} IN ({numbers})"), compared)
        plain = events.where(f"{_NUMBER} NOT IN ({numbers})").select(*corrected.columns)
        versions = plain.unionAll(corrected)
        if self.batch.after_micros is None:
            return (self._versions(versions),)
        is_after, undoes = f"{_NUMBER} = {self._last + 1}", f"{_KIND} = {_RETRACTION}"
        return tuple(
            self._versions(versions.where(condition))
            for condition in (
                f"{is_after} AND NOT {undoes}",
                f"NOT {is_after}",
                f"{is_after} AND {undoes}",
            )
        )

    def _corrections(self, events: DataFrame, times: dict[int, int]) -> DataFrame:
        """Return the events that the table lacks, and retractions of those that it has wrongly."""
        place = [_NUMBER, *self._keys]
        both = events.join(self._stored_events(times), place, "full_outer")
        is_same = (
            f"CASE {_KIND} "
            f"WHEN {_VERSION} THEN {_HAS_VERSION} AND NOT {_HAS_DELETION} "
            f"AND ({_NUMBER} > {self._last} OR {_RECORD} <=> {_STORED}) "
            f"WHEN {_DELETION} THEN {_HAS_DELETION} AND NOT {_HAS_VERSION} ELSE false END"
        )
        is_undone = f"{_KIND} IS NULL OR ({_KIND} = {_DELETION} AND {_HAS_VERSION})"
        undone = f"IF({is_undone}, {_RETRACTION}, NULL)"
        kinds = f"filter(array({_KIND}, {undone}), item -> item IS NOT NULL)"
        return both.where(f"NOT coalesce({is_same}, false)").selectExpr(
            *place, _RECORD, f"explode({kinds}) AS {_KIND}"
        )

    def _stored_events(self, times: dict[int, int]) -> DataFrame:
        """Return the events in the table at some times."""
        numbers = f"array({', '.join(map(str, times))})"
        micros = f"array({', '.join(f'{at}L' for at in times.values())})"
        given = ", ".join(f"timestamp_micros({at}L)" for at in times.values())

        def at_times(column: str, *, begins: bool) -> DataFrame:
            place = f"CAST(array_position({micros}, unix_micros({column})) AS INT)"
            return self._stored(
                f"{column} IN ({given}) AND ({begins} OR NOT {ACTIVE})",
                f"element_at({numbers}, {place}) AS {_NUMBER}",
                f"{begins} AS begins",
                f"NOT {begins} AS ends",
            )

        rows = at_times(START, begins=True).unionAll(at_times(END, begins=False))
        with_keys = rows.selectExpr("*", *self._key_cells())
        names = ", ".join([_NUMBER, *self._keys])
        with temp_view(with_keys) as view:
            return self.spark.sql(
                f"SELECT {names}, any(begins) AS {_HAS_VERSION}, any(ends) AS {_HAS_DELETION}, "
                f"any_value({_RECORD}) FILTER (WHERE begins) AS {_STORED} "
                f"FROM {view} GROUP BY {names}"
            )

    def _versions(self, events: DataFrame) -> DataFrame:
        """Return events as record versions."""
        keys = iter(self._keys)
        cells = [
            f"{next(keys) if column.primary_key else f'{_RECORD}.c{number}'} AS "
            f"{quote(column.name)}"
            for number, column in enumerate(self.columns)
        ]
        times = ", ".join(f"{at}L" for at in self._times)
        at = f"element_at(array({times}), {_NUMBER})"
        # A retraction undoes what landed before it, and the deletion after it stays.
        order = f"IF({_KIND} = {_RETRACTION}, '0', '1')"
        return select(
            events,
            [
                *cells,
                f"{at} AS {MODIFIED}",
                f"concat('{self.batch.sequence}', {order}) AS {SEQUENCE}",
                f"IF({_KIND} = {_DELETION}, {at}, NULL) AS {DELETED_AT}",
                f"CAST(NULL AS BIGINT) AS {PURGED_AT}",
                f"{_KIND} = {_VERSION} AS {PROVIDES_DATA}",
            ],
        )


def _as_of(at_micros: int) -> str:
    """Return a SQL condition for the versions of a table that are valid at a time."""
    time = f"timestamp_micros({at_micros}L)"
    return f"{START} <= {time} AND {END} > {time}"


def _data_of(description: TableDescription) -> Sequence[Column]:
    """Return the columns of a table that contain data of the source."""
    names = layout_of(description).data
    return [description.by_name[name] for name in names if name != SOURCE_TIME.name]


def _reason_of(failure: Exception) -> str:
    """Return why a copy cannot be read, without its values."""
    found = _BAD_VALUE.search(str(failure))
    return (
        f"{found[1]}."
        if found is not None
        else "it cannot be read: a file is damaged, or not of the format."
    )
