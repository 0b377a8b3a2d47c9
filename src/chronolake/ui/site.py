"""What all pages look at: the lake, and what was read of it already."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeVar, cast

from chronolake import look
from chronolake.config import sources_of_project
from chronolake.look import past
from chronolake.look.catalog import check, places
from chronolake.pipeline.freshness import freshness
from chronolake.ui.overview import Overview

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from chronolake.config import LakeConfig
    from chronolake.look import Timeline
    from chronolake.look.past import Life
    from chronolake.pipeline.freshness import Freshness
    from chronolake.types import TableName
    from chronolake.ui.overview import Seen

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
            lambda: look.history(
                self.config, name, key, most=_MOST_VERSIONS, most_bytes=_MOST_BYTES
            ),
        )

    def life(self, name: TableName) -> Life:
        """When a table changed, and how much; kept until it changes again.

        Raises:
            ChronolakeError: as `look.past.life` does.
        """
        return self._once(name, "life", lambda: past.life(self.config, name))

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
    return kept.bytes if isinstance(kept, look.Timeline) else 0


def _holds(folder: Path) -> bool:
    """Whether there is anything in a folder."""
    return folder.is_dir() and any(folder.iterdir())
