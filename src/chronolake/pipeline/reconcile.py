"""Reconciliation of a complete read of a stream with its table: missed versions and deletions.

Versions that were captured when the source changed stay unchanged. Deletions and returned records
get the time at which the complete read began, because the actual time is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from pyspark.sql.functions import expr

from chronolake.change_set import DELETED_AT, MODIFIED, PROVIDES_DATA, PURGED_AT, RESERVED, SEQUENCE
from chronolake.core.scd2_sql import time_in
from chronolake.description import describe_loaded
from chronolake.errors import SourceError
from chronolake.frames import select
from chronolake.landing import as_type
from chronolake.pipeline.snapshot_diff import Sides
from chronolake.types import PRESENT, VERSION, literal, quote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

    from chronolake.description import TableDescription
    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.source.protocol import Reconciliation
    from chronolake.types import Column

_THEIRS: Final = f"{RESERVED}their_"
_OURS: Final = f"{RESERVED}our_"
_NEW_VALUES: Final = f"{RESERVED}new_values"
_OLD_VALUES: Final = f"{RESERVED}old_values"
_SINCE: Final = f"{RESERVED}since"
#: Columns of a version that has not ended.
_NEVER: Final = tuple(f"CAST(NULL AS BIGINT) AS {name}" for name in (DELETED_AT, PURGED_AT))


def expect_empty(lake: Lake, table: IcebergTable, stream: str) -> None:
    """Raise if a table has records, so that they would all be deleted.

    Args:
        lake: the lake whose Spark session is used.
        stream: the stream that writes it.

    Raises:
        SourceError: the table has records.
    """
    present = PRESENT[describe_loaded(table).mode]
    if not lake.spark.table(table.sql).where(present).isEmpty():
        raise _emptied_error(stream, table)


def _emptied_error(stream: str, table: IcebergTable) -> SourceError:
    return SourceError(
        f"A complete read of the stream {stream} returned no records, but its table has some. "
        "Nothing was deleted.",
        table=str(table.name),
        hint="Check the permissions of the credentials. If the source really is empty, set "
        f"streams.{stream}.may_become_empty.",
    )


@dataclass(frozen=True)
class TableComparison:
    """A complete read and the current table; it is computed only when the results are landed.

    Attributes:
        lake: the lake whose Spark session is used.
        reconciliation: the complete read.
        table: the table, with all landed files applied.
    """

    lake: Lake
    reconciliation: Reconciliation
    table: IcebergTable

    def expect_some(self) -> None:
        """Raise if all records would be deleted, unless the configuration allows that.

        Raises:
            SourceError: the complete read is empty, and the table has records.
        """
        if not (
            self.reconciliation.rows
            or self.reconciliation.may_be_empty
            or self._comparable.isEmpty()
        ):
            raise _emptied_error(self.reconciliation.stream, self.table)

    def missed_versions(self) -> DataFrame:
        """Return versions that the table lacks, or has with other values."""
        # The time of the change is one of the compared values, if records have it.
        same = [*self._same_key, f"{_NEW_VALUES} <=> {_OLD_VALUES}"]
        at = MODIFIED if self.reconciliation.is_dated else self._at(MODIFIED)
        found = self._without(self._present, same)
        return select(found, [*self._cells, at, SEQUENCE, *_NEVER])

    def returned_records(self) -> DataFrame:
        """Return records that exist but are deleted in the table, as of the read's begin."""
        found = self._without(self._present, self._same_key)
        return select(found, [*self._cells, self._at(MODIFIED), SEQUENCE, *_NEVER])

    def tombstones(self) -> tuple[DataFrame, list[Column]]:
        """Return tombstones of the table's records that were not read, and their columns."""
        read = self._read_versions.selectExpr(*_numbered_names(_THEIRS, self._key))
        names = zip(_numbered_names(_OURS, self._key), self._key, strict=True)
        tombstones = self._comparable.join(read, _all(self._same_key), "left_anti").selectExpr(
            *(f"{ours} AS {quote(column.name)}" for ours, column in names),
            self._at(MODIFIED),
            f"{literal(f'{self.reconciliation.at_micros:016x}')} AS {SEQUENCE}",
            self._at(DELETED_AT),
            f"CAST(NULL AS BIGINT) AS {PURGED_AT}",
            f"false AS {PROVIDES_DATA}",
        )
        return tombstones, [
            replace(column, type=self._sides.common[column.name]) for column in self._key
        ]

    def _at(self, name: str) -> str:
        return f"{self.reconciliation.at_micros}L AS {name}"

    @cached_property
    def _sides(self) -> Sides:
        return Sides.of(self.reconciliation.columns, self._description)

    @cached_property
    def _description(self) -> TableDescription:
        return describe_loaded(self.table)

    @cached_property
    def _key(self) -> list[Column]:
        return [column for column in self.reconciliation.columns if column.primary_key]

    @property
    def _cells(self) -> list[str]:
        return [quote(column.name) for column in self.reconciliation.columns]

    @property
    def _same_key(self) -> list[str]:
        both = zip(
            _numbered_names(_THEIRS, self._key), _numbered_names(_OURS, self._key), strict=True
        )
        return [f"{theirs} = {ours}" for theirs, ours in both]

    @property
    def _read_versions(self) -> DataFrame:
        """Return the versions that were read, with keys cast for comparison with the table."""
        keys = zip(_numbered_names(_THEIRS, self._key), self._key, strict=True)
        return select(
            self.reconciliation.versions,
            [
                *self._cells,
                MODIFIED,
                SEQUENCE,
                f"{self._sides.new_values} AS {_NEW_VALUES}",
                *(
                    f"{as_type(column, self._sides.common[column.name])} AS {name}"
                    for name, column in keys
                ),
            ],
        )

    @property
    def _present(self) -> DataFrame:
        """Return the table's current records."""
        sides = self._sides
        keys = zip(_numbered_names(_OURS, self._key), self._key, strict=True)
        stored = {name: sides.by_name[column.name] for name, column in keys}
        return (
            self.lake.spark.table(self.table.sql)
            .where(PRESENT[self._description.mode])
            .selectExpr(
                f"{sides.old_values} AS {_OLD_VALUES}",
                f"{time_in(VERSION, 0)} AS {_SINCE}",
                *(
                    f"{as_type(column, sides.common[column.name])} AS {n}"
                    for n, column in stored.items()
                ),
            )
        )

    @property
    def _comparable(self) -> DataFrame:
        """Return the table's current records that the complete read should have found."""
        reconciliation = self.reconciliation
        until = [f"{_SINCE} < {reconciliation.at_micros}L"]
        if reconciliation.until_micros is not None:
            until.append(f"{_SINCE} <= {reconciliation.until_micros}L")
        if reconciliation.since_micros is not None:
            until.append(f"{_SINCE} >= {reconciliation.since_micros}L")
        return self._present.where(" AND ".join(until))

    def _without(self, known: DataFrame, same: Sequence[str]) -> DataFrame:
        """Return the versions of the complete read without the known ones."""
        return self._read_versions.join(known, _all(same), "left_anti")


def _numbered_names(prefix: str, key: Sequence[Column]) -> list[str]:
    return [f"{prefix}{number}" for number in range(len(key))]


def _all(conditions: Sequence[str]) -> SparkColumn:
    return expr(" AND ".join(conditions))
