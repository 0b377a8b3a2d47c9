"""Runs as others see them, while they run and afterwards: read from the store, without Spark.

A lake without a store, because nothing ever ran or because its catalog is a REST service, has no
runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson

from chronolake.pipeline.reading import read
from chronolake.pipeline.runs import Run, Stage, Status, StreamRun, Verified
from chronolake.pipeline.statediff import CUT, differences

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chronolake.config import LakeConfig
    from chronolake.pipeline.reading import StreamSums
    from chronolake.pipeline.statediff import Change


@dataclass(frozen=True)
class ObservedStream:
    """A stream in a run.

    Attributes:
        told: what is known of it. Of a run whose process died, a stream that ran is dead.
        fraction: which part of what is to be applied is in its table, from 0 to 1; None: not known.
        changes: what the run has changed in the stream's state in its source, and in how far its
            table is; empty: nothing, or it is not known.
    """

    told: StreamRun
    fraction: float | None
    changes: tuple[Change, ...]

    @property
    def states(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """How far the stream was before the run and is after it, as JSON's own types."""
        return _states(self.told)

    @property
    def changes_in_all(self) -> int:
        """How many changes there are; of a large state only the first ones are kept."""
        count = self.states[1].get("source", {}).get(CUT)
        return max(count if isinstance(count, int) else 0, len(self.changes))

    @property
    def is_state_known(self) -> bool:
        """Whether it was noted how far the stream is, in its source or in its table."""
        return bool(self.states[1]) or self.told.files_left is not None


@dataclass(frozen=True)
class ObservedRun:
    """A run of a pipeline.

    Attributes:
        run: what is known of it; dead, if its process is gone.
        seconds: how long it took, or takes so far; None: nobody knows when it ended.
        streams: its streams, by name.
        fraction: which part of it is done, from 0 to 1; None: not known.
    """

    run: Run
    seconds: float | None
    streams: tuple[ObservedStream, ...]
    fraction: float | None

    def sum(self, name: str) -> int | None:
        """The sum of a number of its streams, such as `written`; None: no stream tells it."""
        told = [getattr(one.told, name) for one in self.streams]
        known = [one for one in told if one is not None]
        return sum(known) if known else None


@dataclass(frozen=True)
class ObservedRuns:
    """Some runs, the newest first.

    Attributes:
        runs: the runs.
        next: the run after which the next older ones are (`runs(after=…)`); None: there are none.
    """

    runs: tuple[ObservedRun, ...]
    next: str | None


@dataclass(frozen=True)
class RunSummary:
    """A run at a glance.

    Attributes:
        run: what is known of it; dead, if its process is gone.
        seconds: how long it took, or takes so far; None: nobody knows when it ended.
        fraction: which part of it is done, from 0 to 1; None: not known.
        sums: what its streams come to together.
    """

    run: Run
    seconds: float | None
    fraction: float | None
    sums: StreamSums


@dataclass(frozen=True)
class RunSummaries:
    """Some runs at a glance, the newest first.

    Attributes:
        runs: the runs.
        next: the run after which the next older ones are; None: there are none.
    """

    runs: tuple[RunSummary, ...]
    next: str | None


@dataclass(frozen=True)
class ObservedPipeline:
    """A pipeline that is configured, or has run.

    Attributes:
        name: its name.
        source: the type of its source; None: it is not in the project's file.
        last: its last run, or None.
    """

    name: str
    source: str | None
    last: RunSummary | None


@dataclass(frozen=True)
class LastRuns:
    """What became of a stream lately.

    Attributes:
        last: what became of it when it last ran.
        fresh_as_of: when the last of its runs began that succeeded: its table has all that the
            source had then. None: none of those that are known did.
    """

    last: StreamRun
    fresh_as_of: str | None


def runs(
    config: LakeConfig,
    *,
    pipeline: str | None = None,
    status: Status | None = None,
    limit: int = 20,
    after: str | None = None,
) -> ObservedRuns:
    """The newest runs, the newest first.

    Args:
        config: the lake.
        pipeline: only this pipeline's.
        status: only those of which this became.
        limit: at most so many.
        after: only those that are older than this run, which is named by its identity.

    Raises:
        LakeError: the store does not answer.
    """
    with read(config) as store:
        if store is None:
            return ObservedRuns((), None)
        found = store.runs(pipeline, status, limit + 1, after)
        streams = store.streams_of([run.id for run in found[:limit]])
    seen = tuple(_observed(run, streams[run.id]) for run in found[:limit])
    return ObservedRuns(seen, seen[-1].run.id if len(found) > limit else None)


def summaries(
    config: LakeConfig,
    *,
    pipeline: str | None = None,
    status: Status | None = None,
    limit: int = 20,
    after: str | None = None,
) -> RunSummaries:
    """The newest runs at a glance; as `runs`, and quick for any number of streams.

    Raises:
        LakeError: the store does not answer.
    """
    with read(config) as store:
        if store is None:
            return RunSummaries((), None)
        found = store.runs(pipeline, status, limit + 1, after)
        sums = store.sums_of([run.id for run in found[:limit]])
    seen = tuple(_summary(run, sums[run.id]) for run in found[:limit])
    return RunSummaries(seen, seen[-1].run.id if len(found) > limit else None)


def run(config: LakeConfig, identity: str) -> ObservedRun | None:
    """One run; None: there is none of that identity.

    Raises:
        LakeError: the store does not answer.
    """
    with read(config) as store:
        if store is None:
            return None
        found = store.run(identity)
        return None if found is None else _observed(found, store.streams_of([identity])[identity])


def pipelines(
    config: LakeConfig, configured: Mapping[str, str] | None = None
) -> list[ObservedPipeline]:
    """The pipelines that are configured, in their order, then others that have run, by name.

    Args:
        config: the lake.
        configured: the types of the sources, by the pipelines' names
            (`config.sources_of_project`); None: nothing is known of them.

    Raises:
        LakeError: the store does not answer.
    """
    sources = configured or {}
    with read(config) as store:
        newest = {} if store is None else {run.pipeline: run for run in store.newest(1)}
        sums = {} if store is None else store.sums_of([run.id for run in newest.values()])
    seen = {name: _summary(run, sums[run.id]) for name, run in newest.items()}
    names = [*sources, *sorted(set(seen) - set(sources))]
    return [ObservedPipeline(name, sources.get(name), seen.get(name)) for name in names]


def last_runs(config: LakeConfig, pipeline: str | None = None) -> dict[tuple[str, str], LastRuns]:
    """What became of each stream lately, by its pipeline and its name.

    Args:
        config: the lake.
        pipeline: only this pipeline's streams.

    Raises:
        LakeError: the store does not answer.
    """
    with read(config) as store:
        if store is None:
            return {}
        found, fresh = store.last_of_streams(pipeline), store.fresh(pipeline)
    return {
        (each.pipeline, one.stream): LastRuns(
            replace(one, status=_status(each, one.status)), fresh.get((each.pipeline, one.stream))
        )
        for each, one in found
    }


def verified(config: LakeConfig) -> dict[str, Verified]:
    """What `chronolake verify` found last of each table, by `str` of the table's name.

    Raises:
        LakeError: the store does not answer.
    """
    with read(config) as store:
        return {} if store is None else store.verified()


def behind_seconds(fresh_as_of: str | None) -> float | None:
    """How long ago an instant is; None for None."""
    if fresh_as_of is None:
        return None
    return round((datetime.now(UTC) - datetime.fromisoformat(fresh_as_of)).total_seconds(), 1)


def _status(run: Run, stream: Status) -> Status:
    is_left = run.status is not Status.RUNNING and stream is Status.RUNNING
    return Status.DEAD if is_left else stream


def _seconds(run: Run) -> float | None:
    if run.ended is None and run.status is not Status.RUNNING:
        return None
    ended = datetime.now(UTC) if run.ended is None else datetime.fromisoformat(run.ended)
    return max(0.0, (ended - datetime.fromisoformat(run.began)).total_seconds())


def _summary(run: Run, sums: StreamSums) -> RunSummary:
    # A part that is not known yet has not begun to be applied.
    fraction = sums.parts / sums.streams if sums.parts else None
    return RunSummary(run, _seconds(run), fraction, sums)


def _observed(run: Run, streams: Sequence[StreamRun]) -> ObservedRun:
    seen = tuple(_observed_stream(run, one) for one in streams)
    parts = sum(one.fraction or 0.0 for one in seen)
    return ObservedRun(run, _seconds(run), seen, parts / len(seen) if parts else None)


def _observed_stream(run: Run, told: StreamRun) -> ObservedStream:
    told = replace(told, status=_status(run, told.status))
    changes = tuple(differences(*_states(told))) if told.stage is None else ()
    return ObservedStream(told, _fraction(told), changes)


def _fraction(told: StreamRun) -> float | None:
    if told.status is Status.SUCCEEDED:
        return 1.0
    if told.stage is Stage.WAITING:
        return 0.0
    if told.bytes_left is None or told.stage is Stage.LANDING:
        return None
    whole = told.bytes + told.bytes_left
    return told.bytes / whole if whole else 1.0


def _states(told: StreamRun) -> tuple[dict[str, Any], dict[str, Any]]:
    """How far a stream was and is: in its source, if it is pulled from there, and in its table.

    What is not known of both is in none.
    """
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    if told.state_after is not None:
        # A state that was there is never forgotten: without one, nobody has noted it.
        if (state := _object(told.state_after)) is None:
            return {}, {}
        after["source"] = state
        if told.state_before is not None:
            earlier = _object(told.state_before)
            # Compared with nothing, all of the state would count as new.
            before["source"] = state if earlier is None else earlier
    if told.files_left is not None:
        # Earlier versions did not note how far the table was.
        sides = ((before, told.position_before), (after, told.position))
        for side, position in sides:
            if position is not None:
                side["applied"] = position
    return before, after


def _object(text: str) -> dict[str, Any] | None:
    """A state as it is kept; None: the text is no state."""
    try:
        found = orjson.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
