"""A record's timeline as its page shows it: pages of versions, and what its chart draws."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from chronolake.look import Ending
from chronolake.types import TMAX_TEXT, TMIN_TEXT

if TYPE_CHECKING:
    from chronolake.look import Timeline, Version

#: How many columns have a lane of their own in the chart: those that changed most.
LANES: Final = 12
_STATES: Final = {Ending.ACTIVE: "a", Ending.REPLACED: "r", Ending.DELETED: "d"}


@dataclass(frozen=True)
class Shown:
    """A version in the list.

    Attributes:
        number: from 1, by start.
        version: the version.
        gone_since: when the record was deleted before it, if it was: then it is a revival.
        is_instant: whether it ended when it began.
    """

    number: int
    version: Version
    gone_since: str | None

    @property
    def is_instant(self) -> bool:
        """Whether it ended when it began, or before: it was never true for any time."""
        start, end = self.version.start, self.version.end
        return start is not None and end is not None and _milliseconds(end) <= _milliseconds(start)


@dataclass(frozen=True)
class VersionPage:
    """A page of a timeline's versions.

    Attributes:
        versions: those on it.
        number: of the page, from 1.
        pages: how many there are.
        newest_first: the order.
    """

    versions: tuple[Shown, ...]
    number: int
    pages: int
    newest_first: bool


def version_page(
    timeline: Timeline, number: int, *, size: int, newest_first: bool = False
) -> VersionPage:
    """A page of a timeline; the nearest one if there is none of that number."""
    count = len(timeline.versions)
    pages = max(1, -(-count // size))
    number = min(max(1, number), pages)
    first = (number - 1) * size
    last = min(first + size, count)
    if newest_first:
        first, last = count - last, count - first
    # What was before tells whether a version is a revival.
    known = timeline.versions[max(0, first - 1) : last]
    befores = known if first else [None, *known]
    both = zip(befores, known[1:] if first else known, strict=False)
    shown = [_shown(place, *pair) for place, pair in enumerate(both, start=first + 1)]
    return VersionPage(tuple(shown[::-1] if newest_first else shown), number, pages, newest_first)


def page_of(version: int, count: int, *, size: int, newest_first: bool = False) -> int:
    """On which page a version is, by its number."""
    place = count - version if newest_first else version - 1
    return max(0, min(place, count - 1)) // size + 1


def _shown(number: int, before: Version | None, version: Version) -> Shown:
    gone = before.end if before is not None and before.ending is Ending.DELETED else None
    return Shown(number, version, gone)


def drawn(timeline: Timeline) -> dict[str, Any]:
    """What the chart needs: times in milliseconds since 1970, None for both ends of time.

    One character a version says how it ended; `lanes` name the columns that changed, each with the
    places of the versions that changed it.
    """
    versions = timeline.versions
    changed = Counter(change.column for version in versions for change in version.changes)
    lanes: dict[str, list[int]] = {name: [] for name, _ in changed.most_common(LANES)}
    for place, version in enumerate(versions):
        for change in version.changes:
            if change.column in lanes:
                lanes[change.column].append(place)
    return {
        "starts": [_finite(version.start) for version in versions],
        # Others end what is still true at another time than we do, as far away.
        "ends": [
            None if version.ending is Ending.ACTIVE else _finite(version.end)
            for version in versions
        ],
        "states": "".join(_STATES[version.ending] for version in versions),
        "lanes": [{"column": name, "places": places} for name, places in lanes.items()],
        "more": len(changed) - len(lanes),
    }


def _finite(text: str | None) -> float | None:
    return None if text in {None, TMIN_TEXT, TMAX_TEXT} else _milliseconds(text or "")


def _milliseconds(text: str) -> float:
    # Python's own datetime has no years before 1 or after 9999, which UTC may need.
    return int(np.datetime64(text.removesuffix("Z"), "us").astype(np.int64)) / 1_000
