"""Runs of publications: all tables of some targets once, or a target's tables as they change."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from chronolake import inspect
from chronolake.errors import ChronolakeError
from chronolake.inspect.catalog import metadata_locations
from chronolake.schedule import LONGEST_SECONDS, Moment, Schedule, Timing
from chronolake.target.publication import PublishResult, publish_table
from chronolake.target.selection import database_of, select_tables, target_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from threading import Event as Flag

    from chronolake.config import Project, TargetConfig
    from chronolake.lake import Lake
    from chronolake.target.selection import Selection, TargetTable
    from chronolake.types import TableName

_log = structlog.get_logger(__name__)

#: Seconds until a change of a table, or of chronolake.yml, is noticed.
_POLL_SECONDS: Final = 1.0
#: Seconds after the first failure of a table in a row.
_BACKOFF_SECONDS: Final = 5.0


@dataclass(frozen=True)
class PublishFailure:
    """A table that could not be published.

    Attributes:
        target: the target's name.
        table: the table in the lake; None if the target itself has failed.
        error: why.
    """

    target: str
    table: str | None
    error: ChronolakeError


def publish(
    lake: Lake,
    project: Project,
    targets: Sequence[str],
    *,
    only: Sequence[TableName] = (),
    takes_over: bool = False,
    is_dry_run: bool = False,
    begin: Callable[[str, TargetTable], None] = lambda *_: None,
) -> Iterator[PublishResult | PublishFailure]:
    """Publish tables, one after another; a failure does not affect the other tables.

    Args:
        lake: the project's lake.
        project: the project.
        targets: names of targets; all of the project if it is empty.
        only: the tables; all of each target if it is empty.
        takes_over: as for `publish_table`.
        is_dry_run: as for `publish_table`.
        begin: called with the target and the table that are published next.
    """
    for name in targets or project.targets:
        try:
            config = target_of(project, name)
            database = database_of(name, config)
            selection = select_tables(name, config, inspect.names(lake.config))
        except ChronolakeError as failure:
            yield PublishFailure(name, None, failure)
            continue
        names = set(map(str, only))
        refused = {**selection.missing, **{str(n): e for n, e in selection.failures.items()}}
        for text, reason in refused.items():
            if not only or text in names:
                yield PublishFailure(name, text, reason)
        for table in selection.tables:
            if only and table.name not in only:
                continue
            begin(name, table)
            try:
                yield publish_table(
                    lake, name, database, table, takes_over=takes_over, is_dry_run=is_dry_run
                )
            except ChronolakeError as failure:
                yield PublishFailure(name, str(table.name), failure)


@dataclass
class _Watched:
    """What is known of a table that is published when it changes.

    Attributes:
        location: the metadata that was published last; None: not known.
        due: when it may be published again, on the monotonic clock.
        failures: how often in a row it failed.
    """

    location: str | None = None
    due: float = 0.0
    failures: int = 0


@dataclass
class ChangeWatch:
    """Publishes the tables of a target that have changed since they were published.

    Attributes:
        lake: the lake.
        target: the target's name.
        tables: what is known of each table.
        refused: the tables that cannot be published because of their names, with the reasons.
    """

    lake: Lake
    target: str
    tables: dict[TableName, _Watched] = field(default_factory=dict)
    refused: dict[TableName, str] = field(default_factory=dict)

    def publish_changed(self, config: TargetConfig, *, now: float, all_tables: bool = False) -> int:
        """Publish the tables whose metadata has changed; return how many were tried.

        Args:
            config: the target's settings.
            now: the time on the monotonic clock.
            all_tables: whether tables that failed are tried before their pause has ended.
        """
        # The locations are read before the tables: a later change is published again.
        locations = metadata_locations(self.lake.config)
        database = database_of(self.target, config)
        tried = 0
        selection = select_tables(self.target, config, list(locations))
        self._log_refused(selection)
        for table in selection.tables:
            known = self.tables.setdefault(table.name, _Watched())
            location = locations[table.name]
            is_same = location is not None and location == known.location
            if is_same or (known.due > now and not all_tables):
                continue
            tried += 1
            try:
                publish_table(self.lake, self.target, database, table)
            except ChronolakeError as failure:
                known.failures += 1
                pause = min(_BACKOFF_SECONDS * 2.0 ** min(known.failures, 16), LONGEST_SECONDS)
                known.due = now + pause
                _log_failure(self.target, str(table.name), failure)
            else:
                # A REST catalog does not list locations: its tables are looked at less often.
                pause = 0.0 if location is not None else _BACKOFF_SECONDS
                known.location, known.failures, known.due = location, 0, now + pause
        return tried

    def _log_refused(self, selection: Selection) -> None:
        """Log the tables that cannot be published because of their names, once."""
        # Tables that do not exist yet are published when a run has created them.
        for name, failure in selection.failures.items():
            if self.refused.get(name) != failure.statement:
                _log_failure(self.target, str(name), failure)
        self.refused = {name: item.statement for name, item in selection.failures.items()}


def publish_on_schedule(
    lake: Lake, project: Callable[[], Project], target: str, is_stopped: Flag
) -> None:
    """Publish a target's tables at its interval, or when they change, until it is stopped.

    Args:
        lake: the project's lake.
        project: returns the current project.
        target: the target's name.
        is_stopped: is set to end the loop. It also ends if the target was removed or the lake's
            configuration has changed.
    """
    watch = ChangeWatch(lake, target)
    schedule = Schedule(lambda name: _timing_of(project(), name), Moment.now())
    while not is_stopped.is_set():
        now = project()
        if target not in now.targets or now.lake != lake.config:
            return
        config = now.targets[target]
        if config.every is not None:
            pause = schedule.pause(target, Moment.now())
            if pause > 0:
                is_stopped.wait(min(pause, _POLL_SECONDS))
                continue
        began = Moment.now()
        has_failed = False
        try:
            watch.publish_changed(config, now=time.monotonic(), all_tables=config.every is not None)
        except ChronolakeError as failure:
            has_failed = True
            _log_failure(target, None, failure)
        if config.every is not None:
            schedule.note(target, began=began, has_failed=has_failed)
        else:
            is_stopped.wait(_BACKOFF_SECONDS if has_failed else _POLL_SECONDS)


def _timing_of(project: Project, target: str) -> Timing:
    config = project.targets.get(target)
    every = None if config is None else config.every
    return Timing(LONGEST_SECONDS) if every is None else Timing.parse(every)


def _log_failure(target: str, table: str | None, failure: ChronolakeError) -> None:
    _log.error(
        "table_not_published",
        target=target,
        table=table,
        error=type(failure).__name__,
        reason=failure.statement,
        hint=failure.hint,
    )
