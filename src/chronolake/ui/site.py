"""The lake as all pages see it, with a cached overview of its tables.

Every table of the lake at a glance; a table that has not changed is not read again.

What all pages look at: the lake, and what was read of it already.
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
from chronolake.inspect.catalog import check, look_up, look_up_at, places
from chronolake.inspect.tables import health, summary
from chronolake.inspect.usage import usage_of
from chronolake.pipeline.freshness import Filled, freshness
from chronolake.pipeline.properties import SIGHT_PROPERTY
from chronolake.types import STREAM_PROPERTY, Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from chronolake.config import LakeConfig, MaintenanceConfig
    from chronolake.inspect import Timeline
    from chronolake.inspect.catalog import LookedUp
    from chronolake.inspect.tables import Health, TableSummary
    from chronolake.inspect.time_travel import Life
    from chronolake.inspect.usage import MonthlyUsage
    from chronolake.pipeline.freshness import Freshness
    from chronolake.types import TableName


_READERS: Final = 3
#: A UTC month, as URLs and properties spell it.
MONTH: Final = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")
#: How long a table counts as unchanged where only reading it tells whether it is, and how long one
#: that cannot be read counts as such.
_TRUSTED_SECONDS: Final = 10
#: So many deleted rows are worth a compaction, as maintenance decides.
_WORTH_IT: Final = 10_000


@dataclass(frozen=True)
class Seen:
    """A table at a glance.

    Attributes:
        name: the table.
        place: where the metadata is that this was read from.
        summary: what `chronolake tables` tells, or None: it could not be read, or not yet.
        health: how well kept its files are, or None: as `summary`.
        capture_method: what its stream sees of its source, or None: no pipeline fills it.
        stream: the `pipeline/stream` that fills it, or None.
        filled: what it says of that stream, for `pipeline.freshness`, or None: as `summary`.
        usage: its monthly active rows, the first month first.
        failure: why it could not be read, or None.
        read_at: when that was, on the clock of `time.monotonic`.
    """

    name: TableName
    place: str | None
    summary: TableSummary | None = None
    health: Health | None = None
    capture_method: str | None = None
    stream: str | None = None
    filled: Filled | None = None
    usage: tuple[MonthlyUsage, ...] = ()
    failure: ChronolakeError | None = None
    read_at: float = field(default_factory=time.monotonic, compare=False)

    def is_still_true(self, place: str | None) -> bool:
        """Whether nothing has changed since, if the table's metadata is at a place now."""
        # What kept it from being read may be over, although nothing was published.
        if place is None or self.failure is not None:
            return time.monotonic() - self.read_at < _TRUSTED_SECONDS
        return place == self.place

    @property
    def is_read(self) -> bool:
        """Whether it was read, with or without success."""
        return self.summary is not None or self.failure is not None

    @property
    def rows(self) -> int | None:
        """Its records: of a history table those that are active."""
        if self.summary is None:
            return None
        return self.summary.rows if self.summary.active is None else self.summary.active

    @property
    def versions(self) -> int | None:
        """Versions of a history table; None of others."""
        is_history = self.summary is not None and self.summary.mode is Mode.HISTORY
        return self.summary.rows if self.summary and is_history else None

    def ills(self, limits: MaintenanceConfig) -> list[str]:
        """What maintenance would mend, in a few words each; empty if the table is well kept."""
        if self.health is None or self.summary is None:
            return []
        found = []
        if self.health.small_files >= limits.small_files:
            found.append(f"{self.health.small_files:,} small files")
        ratio = self.health.delete_ratio
        removed = self.summary.rows * ratio / (1 - ratio) if ratio < 1 else _WORTH_IT
        # A few rows are not worth a compaction, whatever their share is.
        if ratio >= limits.deletion_vector_ratio and removed >= _WORTH_IT:
            found.append(f"{ratio:.0%} of the stored rows are deleted")
        return found


class Overview:
    """The tables of a lake, read by a few threads and kept until they change.

    Args:
        config: the lake.
    """

    def __init__(self, config: LakeConfig) -> None:
        self._config = config
        self._readers = ThreadPoolExecutor(_READERS, "overview")
        self._lock = Lock()
        self._known: dict[TableName, Seen] = {}
        self._reading: dict[TableName, Future[None]] = {}

    def tables(self, patience: float) -> list[Seen]:
        """Every table, sorted by name; those that were not read in time are not `is_read`.

        Args:
            patience: seconds to wait for tables that were never read, or have changed.

        Raises:
            LakeError: there is no lake, or its catalog does not answer.
        """
        now = places(self._config)
        with self._lock:
            for name in self._known.keys() - now.keys():
                del self._known[name]
            # In the order in which they are shown at first.
            for name, place in sorted(now.items()):
                known = self._known.get(name)
                is_known = known is not None and known.is_still_true(place)
                if name not in self._reading and not is_known:
                    self._reading[name] = self._readers.submit(self._read, name, place)
            waiting = list(self._reading.values())
        wait(waiting, timeout=patience)
        with self._lock:
            return [self._known.get(name, Seen(name, now[name])) for name in sorted(now)]

    def close(self) -> None:
        """Begin no more reading."""
        self._readers.shutdown(wait=False, cancel_futures=True)

    def _read(self, name: TableName, place: str | None) -> None:
        seen = _seen(self._config, name, place)
        with self._lock:
            self._known[name] = seen
            self._reading.pop(name, None)


def seen_of(config: LakeConfig, found: LookedUp, place: str | None = None) -> Seen:
    """A table at a glance.

    Args:
        config: the lake.
        found: the table's metadata.
        place: where it was read from, if that is known.
    """
    properties = found.table.properties
    return Seen(
        found.name,
        place,
        summary(found),
        health(found, config),
        capture_method=properties.get(SIGHT_PROPERTY),
        stream=properties.get(STREAM_PROPERTY),
        filled=Filled.of(found),
        usage=_usage(found),
    )


def _usage(found: LookedUp) -> tuple[MonthlyUsage, ...]:
    """Its usage by month; nothing, if its properties are not what Chronolake wrote."""
    try:
        reported = usage_of(found)
    except LakeError:
        return ()
    return tuple(one for one in reported if MONTH.fullmatch(one.month))


def _seen(config: LakeConfig, name: TableName, place: str | None) -> Seen:
    try:
        found = look_up(config, name) if place is None else look_up_at(config, name, place)
        return seen_of(config, found, place)
    except ChronolakeError as failure:
        return Seen(name, place, failure=failure)
    except Exception as failure:  # noqa: BLE001 - one broken table must not spoil the list
        reported = LakeError(
            f"The table cannot be read: {type(failure).__name__}.",
            hint="Check that its files are there and may be read.",
            table=str(name),
        )
        return Seen(name, place, failure=reported)


_KEPT: Final = 4
#: Each is drawn in the chart.
_MOST_VERSIONS: Final = 100_000
#: Of one timeline, and of all that are kept together.
_MOST_BYTES: Final = 64 * 1024 * 1024
_Found = TypeVar("_Found")


class Site:
    """A lake that is looked at for as long as the page is up.

    Args:
        config: the lake's configuration.
        project: the chronolake.yml whose pipelines fill it, or None.
    """

    def __init__(self, config: LakeConfig, project: Path | None = None) -> None:
        self.config = config
        self._project = project
        self.overview = Overview(config)
        self._lock = Lock()
        self._kept: OrderedDict[object, object] = OrderedDict()

    @property
    def label(self) -> str:
        """The lake in a few words that hold no secret."""
        return "/".join(self.config.path.parts[-2:])

    def expect_lake(self) -> None:
        """Refuse a lake that is not there, unless it is a project's that has never run.

        Raises:
            LakeError: there is no lake.
        """
        if self._project is not None and self._project.is_file() and not _holds(self.config.path):
            return
        check(self.config)

    def sources(self) -> dict[str, str]:
        """The types of the sources of the project's pipelines, by the pipelines' names.

        Raises:
            ConfigurationError: chronolake.yml cannot be read by now.
        """
        return {} if self._project is None else sources_of_project(self._project)

    def freshness(
        self, tables: Iterable[Seen], *, with_waiting: bool = False
    ) -> dict[TableName, Freshness]:
        """What the operational store knows of tables; nothing, where there is none that answers.

        Args:
            tables: the tables; those that could not be read are left out.
            with_waiting: whether files that wait to be applied are counted.
        """
        filled = [seen.filled for seen in tables if seen.filled is not None]
        try:
            return freshness(self.config, filled, with_waiting=with_waiting)
        except Exception:  # noqa: BLE001 - whatever is wrong with the store
            # Tables are shown without: what they hold does not depend on it.
            return {}

    def timeline(self, name: TableName, key: Mapping[str, str | None]) -> Timeline:
        """A record's timeline, as `chronolake history` has it.

        It is kept until its table changes: a long one is shown page by page.

        Raises:
            ChronolakeError: as `look.history` does.
        """
        return self._once(
            name,
            frozenset(key.items()),
            lambda: inspect.history(
                self.config, name, key, most=_MOST_VERSIONS, most_bytes=_MOST_BYTES
            ),
        )

    def life(self, name: TableName) -> Life:
        """When a table changed, and how much; kept until it changes again.

        Raises:
            ChronolakeError: as `look.past.life` does.
        """
        return self._once(name, "life", lambda: time_travel.life(self.config, name))

    def _once(self, name: TableName, what: object, read: Callable[[], _Found]) -> _Found:
        """What was read of a table, or is read now; the last few are kept until it changes."""
        place = places(self.config).get(name)
        asked = (name, place, what)
        with self._lock:
            if place is not None and asked in self._kept:
                self._kept.move_to_end(asked)
                return cast("_Found", self._kept[asked])
        found = read()
        with self._lock:
            self._kept[asked] = found
            while len(self._kept) > _KEPT or sum(map(_size, self._kept.values())) > _MOST_BYTES:
                self._kept.popitem(last=False)
        return found

    def close(self) -> None:
        """Begin nothing more."""
        self.overview.close()


def _size(kept: object) -> int:
    """How many bytes something holds; what is small holds none."""
    return kept.bytes if isinstance(kept, inspect.Timeline) else 0


def _holds(folder: Path) -> bool:
    """Whether there is anything in a folder."""
    return folder.is_dir() and any(folder.iterdir())
