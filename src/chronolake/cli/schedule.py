"""When pipelines that run again and again are due: later and later, while one fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

#: A pipeline that fails runs at least this often, unless it should run less often anyway.
LONGEST_SECONDS: Final = 600.0


@dataclass
class Schedule:
    """When each pipeline is due; times are of any clock that only goes forward, in seconds.

    Attributes:
        every: how far apart runs begin that do not fail.
    """

    every: float
    _due: dict[str, float] = field(default_factory=dict)
    _failures: dict[str, int] = field(default_factory=dict)

    def due(self, names: Iterable[str], at: float) -> list[str]:
        """Return the pipelines that should run now."""
        return [name for name in names if self._due.get(name, at) <= at]

    def note(self, name: str, *, began: float, has_failed: bool) -> float | None:
        """Note how a run of a pipeline ended.

        Args:
            name: the pipeline.
            began: when it began.
            has_failed: whether nothing of it succeeded.

        Returns:
            After how many seconds it runs again, if that is later than usual; otherwise None.
        """
        failures = self._failures.get(name, 0) + 1 if has_failed else 0
        self._failures[name] = failures
        pause = max(self.every, min(self.every * 2.0 ** min(failures, 64), LONGEST_SECONDS))
        self._due[name] = began + pause
        return pause if pause > self.every else None

    def failures(self, name: str) -> int:
        """Return how many runs of a pipeline in a row have failed."""
        return self._failures.get(name, 0)

    def pause(self, names: Iterable[str], at: float) -> float:
        """Return the seconds until the next pipeline is due; as usual, if there are none."""
        due = min((self._due.get(name, at) for name in names), default=at + self.every)
        return max(0.0, due - at)
