"""Schedules of pipelines: intervals and cron expressions, with backoff after failures."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from cronsim import CronSim, CronSimError

from chronolake.durations import seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Upper bound of the backoff in seconds, unless the configured interval is longer.
LONGEST_SECONDS: Final = 600.0
#: Backoff after the first failure of a pipeline with a cron expression, which has no interval.
_CRON_BACKOFF_SECONDS: Final = 30.0
_CRON_FIELDS: Final = 5
_MAX_DOUBLINGS: Final = 64


class Moment(NamedTuple):
    """A point in time.

    Attributes:
        seconds: on a clock that is never set, for intervals.
        at: in UTC, for cron expressions.
    """

    seconds: float
    at: datetime

    @classmethod
    def now(cls) -> Self:
        """Return the current time."""
        return cls(time.monotonic(), datetime.now(UTC))


@dataclass(frozen=True)
class Timing:
    """When a pipeline runs: at an interval, or at the times of a cron expression.

    Attributes:
        seconds: the interval between the beginnings of successful runs; for a cron expression, half
            of the backoff after the first failure.
        cron: the cron expression, in UTC, or None.
    """

    seconds: float
    cron: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `30s`, `5m`, `1h`, an ISO 8601 duration, or a cron expression with five fields.

        Raises:
            ValueError: the text is not one of these.
        """
        if len(text.split()) != _CRON_FIELDS:
            return cls(seconds_of(text))
        try:
            # An expression such as 0 0 31 2 * never comes.
            next(CronSim(text, datetime.now(UTC)))
        except CronSimError as failure:
            raise ValueError(f"not a valid cron expression: {failure}") from None
        except StopIteration:
            raise ValueError("the cron expression has no time in the next 50 years") from None
        return cls(_CRON_BACKOFF_SECONDS, text)

    def pause(self, failures: int) -> float:
        """Return the minimum seconds between the beginnings of two runs.

        Args:
            failures: the number of failed runs in a row.
        """
        least = 0.0 if self.cron is not None and not failures else self.seconds
        doubled = least * 2.0 ** min(failures, _MAX_DOUBLINGS)
        return max(least, min(doubled, LONGEST_SECONDS))


@dataclass
class Schedule:
    """The schedule of pipelines, with backoff.

    A pipeline with an interval is due when it is first asked for; one with a cron expression at its
    first time after the creation of the schedule. Times that pass during a run are not made up for
    one by one: the pipeline is due once.

    Attributes:
        timing: returns when a pipeline runs.
        created: when the schedule was created.
    """

    timing: Callable[[str], Timing]
    created: Moment = field(default_factory=Moment.now)
    _begun: dict[str, Moment] = field(default_factory=dict)
    _failures: dict[str, int] = field(default_factory=dict)

    def due(self, names: Iterable[str], now: Moment) -> list[str]:
        """Return the pipelines that are due."""
        return [name for name in names if self.pause(name, now) <= 0]

    def note(self, name: str, *, began: Moment, has_failed: bool) -> float | None:
        """Record how a run of a pipeline ended.

        Args:
            name: the pipeline.
            began: when the run began.
            has_failed: whether all of it failed.

        Returns:
            The seconds from its beginning to the next run if it backs off, otherwise None.
        """
        self._failures[name] = self._failures.get(name, 0) + 1 if has_failed else 0
        self._begun[name] = began
        pause = self.timing(name).pause(self._failures[name])
        return (
            self.pause(name, began) if has_failed and pause > self.timing(name).pause(0) else None
        )

    def failures(self, name: str) -> int:
        """Return the number of consecutive failed runs of a pipeline."""
        return self._failures.get(name, 0)

    def pause(self, name: str, now: Moment) -> float:
        """Return the seconds until a pipeline is due; at most 0 if it is."""
        timing = self.timing(name)
        begun = self._begun.get(name)
        least = 0.0 if begun is None else timing.pause(self.failures(name))
        if timing.cron is None:
            return 0.0 if begun is None else begun.seconds + least - now.seconds
        # The next time is later than this, and may be exactly at the end of the pause.
        after = (begun or self.created).at + timedelta(seconds=max(0.0, least - 1))
        return (next(CronSim(timing.cron, after)) - now.at).total_seconds()
