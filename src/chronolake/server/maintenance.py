"""Automatic maintenance by a server: one table at a time, and with lower priority than batches."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import structlog
from py4j.protocol import Py4JError

from chronolake import core
from chronolake.errors import TableNotFoundError
from chronolake.server.calls import describe_failure
from chronolake.server.write_batch import cancellable
from chronolake.session import is_java_running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chronolake.lake import Lake
    from chronolake.types import TableName

_log = structlog.get_logger(__name__)

_TAG: Final = "upkeep"
_STOP_SECONDS: Final = 10.0
_CANCEL_SECONDS: Final = 0.5
_PAUSE_SECONDS: Final = 0.05


class BackgroundMaintenance:
    """A thread that maintains tables that batches have changed, if they need it.

    The need is read from a table's metadata, with the thresholds of the lake's configuration.
    Batches have priority: a table that is being written is maintained after the batch, and a batch
    that arrives during maintenance ends it. Only a table that is far beyond the thresholds, because
    its batches leave no gap, is maintained at the same time as them; a batch that conflicts with it
    is staged again.

    Another thread cancels the maintenance. Spark cancels only the jobs that run at that time, and
    maintenance has pauses between its jobs, so the cancellation is repeated until it has ended.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._state = threading.Condition()
        # A dict, so that tables wait in order of arrival, without duplicates.
        self._waiting: dict[TableName, None] = {}
        self._closed = False
        self._writes: Counter[TableName] = Counter()
        # The table under maintenance, if a batch may end that.
        self._yielding: TableName | None = None
        self._was_overtaken = False
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)
        self._thread.start()
        threading.Thread(target=self._cancel_overtaken, name="upkeep-yield", daemon=True).start()

    def notify_changed(self, name: TableName) -> None:
        """Register a table that has changed."""
        with self._state:
            self._waiting[name] = None
            self._state.notify_all()

    @contextmanager
    def writing(self, name: TableName) -> Iterator[None]:
        """Register a batch for a table: its maintenance ends, and is repeated after the batch."""
        with self._state:
            self._writes[name] += 1
            self._state.notify_all()
        try:
            yield
        finally:
            with self._state:
                self._writes[name] -= 1
                if not self._writes[name]:
                    del self._writes[name]
                self.notify_changed(name)

    def close(self) -> None:
        """Stop; unfinished maintenance is cancelled, and the data of tables does not change."""
        with self._state:
            self._closed = True
            self._state.notify_all()
        for _ in range(int(_STOP_SECONDS / _CANCEL_SECONDS)):
            self._lake.spark.sparkContext.cancelJobsWithTag(_TAG)
            self._thread.join(_CANCEL_SECONDS)
            if not self._thread.is_alive():
                return

    def _take_next(self) -> TableName | None:
        with self._state:
            self._state.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            name = next(iter(self._waiting))
            del self._waiting[name]
            self._was_overtaken = False
            return name

    def _run(self) -> None:
        while name := self._take_next():
            try:
                self._maintain(name)
            except TableNotFoundError:
                continue
            except Exception as failure:  # noqa: BLE001 - must not affect the next table
                if not self._closed and not self._was_overtaken:
                    _log.warning("not_maintained", table=str(name), **describe_failure(failure))

    def _maintain(self, name: TableName) -> None:
        plan = core.plan_table(self._lake, name)
        if not plan.is_needed:
            return
        with self._state:
            if not plan.is_urgent:
                if self._writes[name] or self._lake.is_written(name):
                    return
                self._yielding = name
        try:
            with cancellable(self._lake, _TAG):
                core.maintain(self._lake, name, only_if_needed=True)
        finally:
            with self._state:
                self._yielding = None

    def _is_overtaken(self) -> bool:
        return self._yielding is not None and self._writes[self._yielding] > 0

    def _cancel_overtaken(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._closed or self._is_overtaken())
                if self._closed or not is_java_running():
                    return
                self._was_overtaken = True
            # The JVM may end at this time, and then there is nothing to cancel.
            with suppress(Py4JError):
                self._lake.spark.sparkContext.cancelJobsWithTag(_TAG)
            time.sleep(_PAUSE_SECONDS)
