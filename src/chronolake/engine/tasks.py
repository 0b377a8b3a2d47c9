"""Long-running tasks of an engine, each in a fork of its own, which are restarted if they end."""

from __future__ import annotations

import ctypes
import os
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 60.0
#: A task that ran for this time has worked, and is restarted at once.
_WORKED_SECONDS: Final = 60.0
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        run: runs until SIGTERM.
        uses_java: whether it uses the engine's JVM, and ends before the JVM is replaced.
    """

    run: Callable[[], object]
    uses_java: bool = True


@dataclass
class _History:
    """What is known of a task.

    Attributes:
        started: when it was started last.
        due: when it may be started.
        failures: how often in a row it ended soon.
    """

    started: float = 0.0
    due: float = 0.0
    failures: int = 0


@dataclass
class Tasks:
    """The tasks of an engine, and when each is restarted.

    Attributes:
        wanted: returns the current tasks by name.
    """

    wanted: Callable[[], Mapping[str, Task]]
    _known: dict[str, _History] = field(default_factory=dict)

    def due(self, running: Collection[str], now: float) -> dict[str, Task]:
        """Return the tasks to start.

        Args:
            running: names of those that run.
            now: seconds of a clock that is never set.
        """
        tasks = self.wanted()
        self._known = {name: self._known.get(name, _History()) for name in tasks}
        return {
            name: task
            for name, task in tasks.items()
            if name not in running and self._known[name].due <= now
        }

    def unwanted(self, running: Collection[str]) -> set[str]:
        """Return the names of running tasks that the configuration no longer has."""
        return set(running) - self.wanted().keys()

    def note_started(self, name: str, now: float) -> None:
        """Record that a task was started."""
        self._known.setdefault(name, _History()).started = now

    def note_ended(self, name: str, now: float) -> float:
        """Record that a task has ended without being asked to.

        Returns:
            The seconds until it is restarted.
        """
        known = self._known.setdefault(name, _History())
        known.failures = 0 if now - known.started > _WORKED_SECONDS else known.failures + 1
        pause = min(_FIRST_PAUSE_SECONDS * 2.0 ** min(known.failures, 16), _LONGEST_PAUSE_SECONDS)
        known.due = now + pause
        return pause

    def state(self, running: Collection[str]) -> dict[str, dict[str, Any]]:
        """Return for each task whether it runs, and how often in a row it ended soon."""
        return {
            name: {"running": name in running, "failures": known.failures}
            for name, known in self._known.items()
        }


def end_with_engine(engine: int) -> None:
    """Let the kernel send SIGTERM to this fork when the engine ends.

    Args:
        engine: the engine's process id.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != engine:
        # It ended before.
        os.kill(os.getpid(), signal.SIGTERM)
