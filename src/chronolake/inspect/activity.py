"""A table's activity: how many versions began and ended in each interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from chronolake.inspect.as_of import epsilon_of, known_since, publications
from chronolake.inspect.catalog import CatalogTable, look_up
from chronolake.inspect.scan import StoredRows
from chronolake.types import (
    END,
    START,
    TMAX_MICROS,
    TMIN_MICROS,
    Mode,
    TableName,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from chronolake.config import LakeConfig

    Moments = NDArray[np.int64]

_SECOND: Final = 1_000_000
_DAY: Final = 86_400 * _SECOND
#: Human-readable widths, in microseconds.
_WIDTHS: Final[tuple[int, ...]] = (
    *(step * 10**power for power in range(6) for step in (1, 2, 5)),
    *(seconds * _SECOND for seconds in (1, 2, 5, 10, 15, 30)),
    *(minutes * 60 * _SECOND for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * 3_600 * _SECOND for hours in (1, 2, 3, 6, 12)),
    *(days * _DAY for days in (1, 2, 7, 14, 28, 91, 182, 364)),
    *(step * 10**power * 364 * _DAY for power in range(5) for step in (2, 5, 10)),
)


@dataclass(frozen=True)
class Bucket:
    """An interval of a table's activity: from its start until the next bucket's.

    Attributes:
        start_micros: its first instant, in microseconds since 1970.
        began: versions that began; added rows in a table without history.
        ended: versions that ended, because they were deleted or replaced; removed rows in a table
            without history.
    """

    start_micros: int
    began: int
    ended: int


@dataclass(frozen=True)
class Activity:
    """A table's activity over time.

    Attributes:
        mode: the table's mode.
        first_micros: the start of the first version, or the publish time of the oldest retained
            snapshot, in microseconds since 1970; None: nothing is known, for example because the
            table is empty.
        last_micros: the last instant at which a version began or ended, or the publish time of the
            newest snapshot; None as for `first_micros`.
        width_micros: the width of each bucket.
        buckets: consecutive buckets without gaps; the first contains `first_micros`, the last
            `last_micros`.
        known_since: ISO instant of the switch to history mode: earlier changes are not known. None
            if the table always kept history, or keeps none.
    """

    mode: Mode
    first_micros: int | None
    last_micros: int | None
    width_micros: int
    buckets: tuple[Bucket, ...]
    known_since: str | None


def read_activity(config: LakeConfig, name: TableName, *, buckets: int = 120) -> Activity:
    """Return how many versions of a table began and ended over time.

    A version ends at the first instant at which it is no longer true, which is epsilon after its
    end: a replaced version ends exactly when the next one begins. Versions that began or ended at
    Tmin (records that were deleted before a table was switched to history mode) are not counted.
    The activity of tables without history is computed from their retained snapshots.

    Args:
        config: the lake.
        name: the table.
        buckets: the maximum number of buckets, at least one; fewer are used to make their width
            readable.

    Raises:
        LakeError: the lake does not exist, or cannot be read.
        TableNotFoundError: the table does not exist.
    """
    found, buckets = look_up(config, name), max(1, buckets)
    if found.mode is not Mode.HISTORY:
        return _activity_of_snapshots(found, buckets)
    stored, epsilon = StoredRows(found), epsilon_of(found)
    earliest: list[int] = []
    latest: list[int] = []
    for began, ended in _read_moments(stored, epsilon):
        for moments in (began, ended):
            if moments.size:
                earliest.append(int(moments.min()))
                latest.append(int(moments.max()))
    switched = known_since(found)
    if not earliest:
        return Activity(found.mode, None, None, _WIDTHS[0], (), switched)
    histogram = _Histogram(min(earliest), max(latest), buckets)
    for began, ended in _read_moments(stored, epsilon):
        histogram.add(began, ended)
    return histogram.as_activity(found.mode, switched)


def _read_moments(stored: StoredRows, epsilon: int) -> Iterator[tuple[Moments, Moments]]:
    """Return the instants at which versions began and ended, batch by batch."""
    from pyiceberg.expressions import AlwaysTrue  # noqa: PLC0415 - slow to import

    for rows in stored.batches([START, END], AlwaysTrue()):
        starts, ends = _micros(rows[START]), _micros(rows[END])
        began = starts[starts > TMIN_MICROS]
        # With another engine's clock, any end on the last day means that the version never ends.
        ended = ends[(ends > TMIN_MICROS) & (ends < TMAX_MICROS)]
        yield began, ended + epsilon


def _micros(values: pa.ChunkedArray) -> Moments:
    return np.asarray(values.drop_null().cast("int64"), np.int64)


class _Histogram:
    """Counts of versions that began and ended between two instants."""

    def __init__(self, first: int, last: int, max_buckets: int) -> None:
        self.first, self.last = first, last
        self.begin, self.width = choose_buckets(first, last, max_buckets)
        count = (last - self.begin) // self.width + 1
        self.began, self.ended = np.zeros(count, np.int64), np.zeros(count, np.int64)

    def add(self, began: Moments, ended: Moments) -> None:
        self.began += self._by_bucket(began)
        self.ended += self._by_bucket(ended)

    def _by_bucket(self, moments: Moments) -> Moments:
        places = (moments - self.begin) // self.width
        return np.bincount(places, minlength=len(self.began))

    def as_activity(self, mode: Mode, known_since: str | None) -> Activity:
        counts = zip(self.began.tolist(), self.ended.tolist(), strict=True)
        buckets = (
            Bucket(self.begin + number * self.width, began, ended)
            for number, (began, ended) in enumerate(counts)
        )
        return Activity(mode, self.first, self.last, self.width, tuple(buckets), known_since)


def choose_buckets(first: int, last: int, max_buckets: int) -> tuple[int, int]:
    """Return the start of the first bucket and the width of the buckets for two instants.

    Widths are human-readable, and buckets begin at whole multiples of the width since 1970. The
    exception is an interval that no readable width covers.
    """
    for width in _WIDTHS:
        if last // width - first // width < max_buckets:
            return first // width * width, width
    return first, (last - first) // max_buckets + 1


def _activity_of_snapshots(table: CatalogTable, max_buckets: int) -> Activity:
    """Count the rows that each snapshot added and removed, at the time of its publication."""
    published = publications(table)
    if not published:
        return Activity(table.mode, None, None, _WIDTHS[0], (), None)
    histogram = _Histogram(published[0].at_micros, published[-1].at_micros, max_buckets)
    at_by_id = {publication.snapshot_id: publication.at_micros for publication in published}
    metadata = table.iceberg.metadata
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    snapshot, at = table.iceberg.current_snapshot(), published[-1].at_micros
    while snapshot is not None:
        # Snapshots that were staged before a publish became visible with it.
        at = at_by_id.get(snapshot.snapshot_id, at)
        summary = snapshot.summary
        reported = dict(summary.additional_properties) if summary is not None else {}
        if summary is not None and summary.operation.value != "replace":
            place = (max(at, histogram.first) - histogram.begin) // histogram.width
            added, removed = rows_changed(reported)
            histogram.began[place] += added
            histogram.ended[place] += removed
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else by_id.get(parent)
    return histogram.as_activity(table.mode, None)


def rows_changed(summary: dict[str, str]) -> tuple[int, int]:
    """Return how many rows a snapshot added and removed, from its summary.

    A new deletion vector repeats the rows of the previous one, and a removed file contains rows
    that were already deleted. Neither is counted twice.
    """
    number = {key: int(value) for key, value in summary.items() if value.isdecimal()}
    added = number.get("added-records", 0)
    marked = number.get("added-position-deletes", 0) - number.get("removed-position-deletes", 0)
    return added, max(0, number.get("deleted-records", 0) + marked)
