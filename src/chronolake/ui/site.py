"""Access of all pages to the lake, with a cached overview of its tables.

A table is read again only if it has changed.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeVar, cast

from chronolake import inspect
from chronolake.config import sources_of_project
from chronolake.errors import ChronolakeError, LakeError
from chronolake.inspect import time_travel
from chronolake.inspect.catalog import check, look_up, look_up_at, metadata_locations
from chronolake.inspect.tables import health, summary, usage_of
from chronolake.pipeline.freshness import StreamProperties, freshness
from chronolake.pipeline.properties import CAPTURE_METHOD_PROPERTY
from chronolake.types import STREAM_PROPERTY, Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from chronolake.config import LakeConfig, MaintenanceConfig
    from chronolake.inspect import Timeline
    from chronolake.inspect.catalog import CatalogTable
    from chronolake.inspect.tables import Health, MonthlyUsage, TableSummary
    from chronolake.inspect.time_travel import Activity
    from chronolake.pipeline.freshness import Freshness
    from chronolake.types import TableName


_READER_THREADS: Final = 3
#: A UTC month in URLs and properties.
MONTH: Final = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")
#: Seconds for which a table is considered unchanged if only reading it would show a change, and for
#: which a failed read is not repeated.
_CACHE_SECONDS: Final = 10
#: The minimum number of deleted rows for a compaction, as in maintenance.
_MIN_DELETED_ROWS: Final = 10_000


@dataclass(frozen=True)
class TableOverview:
    """The summary of a table.

    Attributes:
        place: the location of the metadata that was read.
        summary: the summary of `chronolake tables`, or None if the table was not read yet or cannot
            be read.
        health: the state of its files, or None as for `summary`.
        capture_method: the capture method of its stream, or None if no pipeline fills the table.
        stream: the `pipeline/stream` that fills it, or None.
        stream_properties: the table's properties about its stream, or None as for `summary`.
        usage: its monthly active rows in chronological order.
        failure: the error of reading it, or None.
        read_at: the time of reading, on the clock of `time.monotonic`.
    """

    name: TableName
    location: str | None
    summary: TableSummary | None = None
    health: Health | None = None
    capture_method: str | None = None
    stream: str | None = None
    stream_properties: StreamProperties | None = None
    usage: tuple[MonthlyUsage, ...] = ()
    failure: ChronolakeError | None = None
    read_at: float = field(default_factory=time.monotonic, compare=False)

    def is_current(self, location: str | None) -> bool:
        """Return whether the summary is up to date if the table's metadata is at `location`."""
        # The cause of a failure may be gone without a new snapshot.
        if location is None or self.failure is not None:
            return time.monotonic() - self.read_at < _CACHE_SECONDS
        return location == self.location

    @property
    def is_read(self) -> bool:
        """Return whether the table was read, with or without success."""
        return self.summary is not None or self.failure is not None

    @property
    def rows(self) -> int | None:
        """Return the number of records; for a history table, the number of active records."""
        if self.summary is None:
            return None
        return self.summary.rows if self.summary.active is None else self.summary.active

    @property
    def versions(self) -> int | None:
        """Return the number of versions of a history table; None for other tables."""
        is_history = self.summary is not None and self.summary.mode is Mode.HISTORY
        return self.summary.rows if self.summary and is_history else None

    def maintenance_reasons(self, limits: MaintenanceConfig) -> list[str]:
        """Return what maintenance would fix, in short phrases; empty if nothing."""
        if self.health is None or self.summary is None:
            return []
        reasons = []
        if self.health.small_files >= limits.small_files:
            reasons.append(f"{self.health.small_files:,} small files")
        ratio = self.health.delete_ratio
        removed = self.summary.rows * ratio / (1 - ratio) if ratio < 1 else _MIN_DELETED_ROWS
        # A few rows do not justify a compaction, whatever their share is.
        if ratio >= limits.deletion_vector_ratio and removed >= _MIN_DELETED_ROWS:
            reasons.append(f"{ratio:.0%} of the stored rows are deleted")
        return reasons


class Overview:
    """The tables of a lake, read by a few threads and cached until they change."""

    def __init__(self, config: LakeConfig) -> None:
        self._config = config
        self._readers = ThreadPoolExecutor(_READER_THREADS, "overview")
        self._lock = Lock()
        self._overviews: dict[TableName, TableOverview] = {}
        self._pending: dict[TableName, Future[None]] = {}

    def tables(self, timeout: float) -> list[TableOverview]:
        """Return all tables, sorted by name; tables that were not read in time are not `is_read`.

        Args:
            timeout: seconds to wait for tables that were never read or have changed.

        Raises:
            LakeError: the lake does not exist, or its catalog does not respond.
        """
        locations = metadata_locations(self._config)
        with self._lock:
            for name in self._overviews.keys() - locations.keys():
                del self._overviews[name]
            # Read in the order of the initial display.
            for name, location in sorted(locations.items()):
                known = self._overviews.get(name)
                is_known = known is not None and known.is_current(location)
                if name not in self._pending and not is_known:
                    self._pending[name] = self._readers.submit(self._read, name, location)
            futures = list(self._pending.values())
        wait(futures, timeout=timeout)
        with self._lock:
            return [
                self._overviews.get(name, TableOverview(name, locations[name]))
                for name in sorted(locations)
            ]

    def close(self) -> None:
        """Start no further reads."""
        self._readers.shutdown(wait=False, cancel_futures=True)

    def _read(self, name: TableName, location: str | None) -> None:
        seen = _read_overview(self._config, name, location)
        with self._lock:
            self._overviews[name] = seen
            self._pending.pop(name, None)


def table_overview(
    config: LakeConfig, table: CatalogTable, location: str | None = None
) -> TableOverview:
    """Return the summary of a table, whose metadata was read from `location` if that is known."""
    properties = table.iceberg.properties
    return TableOverview(
        table.name,
        location,
        summary(table),
        health(table, config),
        capture_method=properties.get(CAPTURE_METHOD_PROPERTY),
        stream=properties.get(STREAM_PROPERTY),
        stream_properties=StreamProperties.of(table),
        usage=_monthly_usage(table),
    )


def _monthly_usage(table: CatalogTable) -> tuple[MonthlyUsage, ...]:
    """Return the usage by month, or nothing if the properties were not written by Chronolake."""
    try:
        usages = usage_of(table)
    except LakeError:
        return ()
    return tuple(usage for usage in usages if MONTH.fullmatch(usage.month))


def _read_overview(config: LakeConfig, name: TableName, location: str | None) -> TableOverview:
    try:
        found = look_up(config, name) if location is None else look_up_at(config, name, location)
        return table_overview(config, found, location)
    except ChronolakeError as failure:
        return TableOverview(name, location, failure=failure)
    except Exception as failure:  # noqa: BLE001 - one broken table must not spoil the list
        error = LakeError(
            f"The table cannot be read: {type(failure).__name__}.",
            hint="Check that the table's files exist and can be read.",
            table=str(name),
        )
        return TableOverview(name, location, failure=error)


_MAX_CACHED: Final = 4
#: The chart draws each version.
_MAX_VERSIONS: Final = 100_000
#: The limit for one timeline, and for all cached timelines.
_MAX_BYTES: Final = 64 * 1024 * 1024
_Result = TypeVar("_Result")


class Site:
    """A lake that the web UI shows while the server runs.

    Args:
        config: the lake's configuration.
        project: the chronolake.yml whose pipelines fill it, or None.
    """

    def __init__(self, config: LakeConfig, project: Path | None = None) -> None:
        self.config = config
        self._project = project
        self.overview = Overview(config)
        self._lock = Lock()
        self._cache: OrderedDict[object, object] = OrderedDict()

    @property
    def label(self) -> str:
        """Return a short name of the lake without secrets."""
        return "/".join(self.config.path.parts[-2:])

    def raise_if_missing(self) -> None:
        """Raise LakeError if the lake does not exist, unless its project has never run.

        Raises:
            LakeError: the lake does not exist.
        """
        if (
            self._project is not None
            and self._project.is_file()
            and not _has_entries(self.config.path)
        ):
            return
        check(self.config)

    def sources(self) -> dict[str, str]:
        """Return the source type of each of the project's pipelines, by pipeline name.

        Raises:
            ConfigurationError: chronolake.yml can no longer be read.
        """
        return {} if self._project is None else sources_of_project(self._project)

    def freshness(
        self, tables: Iterable[TableOverview], *, with_waiting: bool = False
    ) -> dict[TableName, Freshness]:
        """Return the freshness of tables from the operational store; empty if it does not respond.

        Args:
            tables: the tables; tables that could not be read are omitted.
            with_waiting: whether files that wait to be applied are counted.
        """
        stream_properties = [
            seen.stream_properties for seen in tables if seen.stream_properties is not None
        ]
        try:
            return freshness(self.config, stream_properties, with_waiting=with_waiting)
        except Exception:  # noqa: BLE001 - whatever is wrong with the store
            # Tables are shown without it, because their content does not depend on it.
            return {}

    def timeline(self, name: TableName, key: Mapping[str, str | None]) -> Timeline:
        """Return a record's timeline, as `chronolake history` does.

        It is cached until its table changes, because a long timeline is shown page by page.

        Raises:
            ChronolakeError: as for `inspect.history`.
        """
        return self._read_cached(
            name,
            frozenset(key.items()),
            lambda: inspect.history(
                self.config, name, key, most=_MAX_VERSIONS, most_bytes=_MAX_BYTES
            ),
        )

    def activity(self, name: TableName) -> Activity:
        """Return when and how much a table changed; cached until it changes again.

        Raises:
            ChronolakeError: as for `time_travel.read_activity`.
        """
        return self._read_cached(
            name, "activity", lambda: time_travel.read_activity(self.config, name)
        )

    def _read_cached(self, name: TableName, kind: object, read: Callable[[], _Result]) -> _Result:
        """Return a cached result for a table, or compute it.

        The last few results are cached until the table changes.
        """
        location = metadata_locations(self.config).get(name)
        cache_key = (name, location, kind)
        with self._lock:
            if location is not None and cache_key in self._cache:
                self._cache.move_to_end(cache_key)
                return cast("_Result", self._cache[cache_key])
        found = read()
        with self._lock:
            self._cache[cache_key] = found
            while (
                len(self._cache) > _MAX_CACHED or sum(map(_size, self._cache.values())) > _MAX_BYTES
            ):
                self._cache.popitem(last=False)
        return found

    def close(self) -> None:
        """Start no further work."""
        self.overview.close()


def _size(cached: object) -> int:
    """Return the bytes of a cached object; small objects count as 0."""
    return cached.bytes if isinstance(cached, inspect.Timeline) else 0


def _has_entries(folder: Path) -> bool:
    """Return whether a folder contains anything."""
    return folder.is_dir() and any(folder.iterdir())
