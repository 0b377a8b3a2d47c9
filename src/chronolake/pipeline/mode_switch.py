"""Switches of tables to their configured mode, while a sync runs and between two syncs.

Source: `seeds/history-mode.txt` ("Switching modes"). A thread of each run looks once a second
whether chronolake.yml has changed, or a command requests a switch (`switch_requests`). It holds the
run where the run asks the source for more, and rebuilds the table from the files that have landed.
What a source is reading at that time, such as the ranges of a first copy, is read to its end and
lands afterwards.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Final, Self

import structlog

from chronolake.cancellation import cancel_if, raise_if_cancelled
from chronolake.errors import (
    CallCancelledError,
    ChronolakeError,
    ConfigurationError,
    LakeError,
    LeaseLostError,
    PipelineBusyError,
)
from chronolake.failpoints import reach
from chronolake.iceberg import IcebergTable
from chronolake.pipeline.apply import rebuild_if_outdated
from chronolake.pipeline.lease import greatest_token, hold_lease, holder
from chronolake.pipeline.store import Store
from chronolake.pipeline.stream_run import describe_failure
from chronolake.pipeline.streams import streams_of, with_current_configuration
from chronolake.pipeline.switch_requests import (
    RequestReader,
    RequestState,
    set_state,
)
from chronolake.pipeline.table_writer import TableWriter, matches_configuration
from chronolake.types import STREAM_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from chronolake.config import Project
    from chronolake.lake import Lake
    from chronolake.pipeline.lease import Lease
    from chronolake.pipeline.runs import ModeChange
    from chronolake.pipeline.stream_run import RunSettings, StreamSync
    from chronolake.pipeline.streams import Stream
    from chronolake.pipeline.switch_requests import SwitchRequest

log = structlog.get_logger(__name__)

#: Seconds until a request, or a change of chronolake.yml, is noticed.
NOTICE_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.1
#: Time for a cancelled switch to end.
_END_SECONDS: Final = 10.0
_POOL: Final = "mode-switch"


class ModeWatch(AbstractContextManager["ModeWatch"]):
    """The thread of a run that switches tables as soon as that is requested.

    It ends with the block. A switch that has begun is finished before, unless the run fails or is
    interrupted: then it is cancelled, and the table is unchanged.
    """

    def __init__(
        self,
        lake: Lake,
        lease: Lease,
        store: Store,
        settings: RunSettings,
        *,
        syncs: Mapping[str, StreamSync],
        offered: Sequence[Stream],
    ) -> None:
        """Prepare to watch.

        Args:
            lake: the lake.
            lease: the lease of the pipeline.
            store: the operational store.
            settings: the settings of the run.
            syncs: the streams of the run.
            offered: all streams of the pipeline. Those that are not in the run are switched only if
                a command requests that.
        """
        self._lake = lake
        self._lease = lease
        self._store = store
        self._settings = settings
        self._syncs = syncs
        self._streams = {stream.name: stream for stream in offered}
        self._requests = RequestReader(lake.config.store_database)
        #: The configuration by which all tables have been compared.
        self._compared: Project | None = None
        #: Streams whose tables have to be switched.
        self._due: set[str] = set()
        self._is_free = threading.Event()
        self._is_free.set()
        self._ended = threading.Event()
        self._cancelled = threading.Event()
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._run,), name=_POOL, daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if error is None:
            self._thread.join()
            return
        self._cancelled.set()
        if not self._is_free.is_set():
            with suppress(Exception):  # The run's error is more important.
                self._lake.cancel_jobs()
        # The lease keeps a thread that takes longer from publishing anything after another run.
        self._thread.join(_END_SECONDS)

    def wait_while_switching(self) -> None:
        """Wait at a boundary of the run until no table is being switched.

        Raises:
            CallCancelledError: the run was cancelled.
        """
        while not self._is_free.wait(_POLL_SECONDS):
            raise_if_cancelled()

    def _run(self) -> None:
        with cancel_if(self._cancelled.is_set):
            while not self._ended.wait(NOTICE_SECONDS):
                try:
                    self._look()
                except (LeaseLostError, CallCancelledError):
                    return
                except Exception as failure:  # noqa: BLE001 - the run goes on, and this is repeated
                    reason = describe_failure(failure)["error"]
                    log.warning("modes_not_checked", pipeline=self._lease.pipeline, reason=reason)

    def _look(self) -> None:
        """Switch the tables that no longer match their configuration, and answer requests."""
        project = self._settings.project()
        requests = {
            request.stream: request
            for request in self._requests.open_requests(self._lease.pipeline)
            if request.stream in self._streams
        }
        if project is not self._compared:
            self._due = set(self._outdated())
            self._compared = project
        for name in [*requests, *sorted(self._due - requests.keys())]:
            self._serve(name, requests.get(name))

    def _outdated(self) -> list[str]:
        """Return the streams whose tables do not match the current configuration."""
        names = list(self._syncs)
        tables = self._lake.catalog.peek_each([self._syncs[name].stream.table for name in names])
        found = []
        for name, table in zip(names, tables, strict=True):
            # A stream with an invalid configuration fails when its files are applied.
            with suppress(ConfigurationError):
                wanted = self._syncs[name].configured()
                if isinstance(table, IcebergTable) and self._syncs[name].outdated(wanted, table):
                    found.append(name)
        return found

    def _configured(self, name: str) -> Stream:
        if name in self._syncs:
            return self._syncs[name].configured()
        return with_current_configuration(self._streams[name], self._settings.project())

    def _switch(self, name: str, wanted: Stream, request: SwitchRequest | None) -> bool:
        """Switch a table; return False if files are being applied to it."""

        def begin() -> None:
            if request is not None:
                set_state(self._store, request, RequestState.SWITCHING)
            self._is_free.clear()
            reach("switch.begun")
            # Spark shares its cores between the jobs of this thread and those of a long copy.
            self._lake.spark.sparkContext.setLocalProperty("spark.scheduler.pool", _POOL)

        try:
            if name in self._syncs:
                return self._syncs[name].switch(wanted, begin)
            begin()
            switch_table(self._lake, wanted, self._lease)
            return True
        finally:
            self._is_free.set()

    def _serve(self, name: str, request: SwitchRequest | None) -> None:
        """Switch a table, and store the result of the request for it, if there is one."""
        try:
            wanted = self._configured(name)
            if request is not None and request.mode is not wanted.mode:
                self._answer(request, RequestState.REFUSED, _other_mode_error(wanted))
                request = None
                if name not in self._due:
                    return
            is_switched = self._switch(name, wanted, request)
        except (LeaseLostError, CallCancelledError):
            raise
        except Exception as failure:  # noqa: BLE001 - as the outcome of the request; the run goes on
            # Not tried again before the next change: the stream fails when files are applied.
            self._due.discard(name)
            described = describe_failure(failure, hides_values=bool(self._streams[name].rules))
            log.warning(
                "mode_not_switched",
                pipeline=self._lease.pipeline,
                stream=name,
                table=str(self._streams[name].table),
                reason=described["error"],
                hint=described["hint"],
            )
            if request is not None:
                error = LakeError(described["error"] or "", hint=described["hint"])
                self._answer(request, RequestState.REFUSED, error)
            return
        if is_switched:
            self._due.discard(name)
            reach("switch.done")
            if request is not None:
                self._answer(request, RequestState.DONE)
                reach("switch.answered")

    def _answer(
        self, request: SwitchRequest, state: RequestState, error: ChronolakeError | None = None
    ) -> None:
        reason = None if error is None else error.statement
        hint = None if error is None else error.hint
        set_state(self._store, request, state, error=reason, hint=hint)


def _other_mode_error(stream: Stream) -> ConfigurationError:
    who = holder().rpartition(":")[0]
    return ConfigurationError(
        f"The pipeline {stream.pipeline} is run by {who}, and in its chronolake.yml the mode of "
        f"the stream {stream.name} is {stream.mode}.",
        hint="Change that chronolake.yml, too; the process reads it again within a second.",
    )


def switch_table(lake: Lake, stream: Stream, lease: Lease) -> ModeChange | None:
    """Switch a table to its configured mode while its pipeline is not synced.

    Args:
        lake: the lake.
        stream: the stream that writes the table.
        lease: the lease of its pipeline.

    Returns:
        The change of its mode, or None if it has the mode already.

    Raises:
        ChronolakeError: as `rebuild_if_outdated`.
    """
    writer = TableWriter(lake, stream, lease)
    return rebuild_if_outdated(writer, writer.find())


class IdleModes:
    """The modes of a pipeline between its syncs: a changed setting does not wait for the next one.

    Attributes:
        pipeline: the pipeline's name.
    """

    def __init__(self, project: Project, pipeline: str) -> None:
        self.pipeline = pipeline
        self._known = project.pipelines.get(pipeline)

    def switch(self, lake: Lake, project: Project) -> None:
        """Switch the tables that no longer match the pipeline's configuration, if that has changed.

        A failure is logged: the next sync reports it, too. If another process runs the pipeline,
        that process switches the tables.
        """
        now = project.pipelines.get(self.pipeline)
        if now is None or now == self._known:
            return
        self._known = now
        try:
            self._switch(lake, project)
        except PipelineBusyError:
            return
        except ChronolakeError as failure:
            log.warning(
                "modes_not_checked",
                pipeline=self.pipeline,
                reason=failure.statement,
                hint=failure.hint,
            )

    def _switch(self, lake: Lake, project: Project) -> None:
        streams = streams_of(project, self.pipeline)
        found = zip(
            streams, lake.catalog.peek_each([stream.table for stream in streams]), strict=True
        )
        tables = {
            stream.name: (stream, table)
            for stream, table in found
            if isinstance(table, IcebergTable)
            and table.property_of(STREAM_PROPERTY) == stream.identity
            and not matches_configuration(table, stream)
        }
        if not tables:
            return
        above = greatest_token(table for _, table in tables.values())
        store = Store.open(lake.config)
        with hold_lease(store, self.pipeline, above=above, gives_way=True) as lease:
            for stream, _ in tables.values():
                switch_table(lake, stream, lease)
