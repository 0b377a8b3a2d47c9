"""Functions, generators and classes of a project, as a source."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from chronolake.errors import ChronolakeError, ConfigurationError
from chronolake.source.protocol import ALL_STREAMS, CaptureMethod, CheckResult, Level
from chronolake.source.python.targets import ImportingTarget, load_target
from chronolake.source.records.identity import Identity
from chronolake.source.records.messages import Complete, Failure, Progress
from chronolake.source.records.reader import RecordStream, shared_offset, state_of, stream_offset
from chronolake.source.records.source import RecordSource

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from datetime import datetime

    from chronolake.config import Project, PythonSource
    from chronolake.lake import Lake
    from chronolake.source.protocol import Offset
    from chronolake.source.python.declarations import StreamDeclaration
    from chronolake.source.python.targets import Target
    from chronolake.source.records.messages import Message
    from chronolake.source.records.reader import Batch

_ADVICE: Final = "Correct the key of the stream, or leave such records out."


class PythonFunctions(RecordSource):
    """The streams that functions of a project yield."""

    def __init__(self, project: Project, pipeline: str, config: PythonSource) -> None:
        super().__init__(project, pipeline)
        self._config = config

    @cached_property
    def targets(self) -> list[Target]:
        """Return the configured functions; their modules are imported.

        Raises:
            ConfigurationError: one of them does not exist, or two have a stream of the same name.
        """
        run = self._config.run
        beside = self.project.file.parent
        paths = [run] if isinstance(run, str) else run
        found = [load_target(path, beside, self._config) for path in paths]
        names: dict[str, str] = {}
        for target in found:
            for name in target.streams:
                if (other := names.setdefault(name, target.path)) != target.path:
                    raise ConfigurationError(
                        f"{other} and {target.path} both have a stream {name!r}.",
                        hint='Give one of them another name: `@chronolake.stream(name="…")`.',
                    )
        return found

    def streams(self) -> list[RecordStream]:
        """Return the streams that the functions declare."""
        return [
            RecordStream(
                name,
                declared.capture,
                _identity_of(declared),
                self.folder_of(name),
                declared.types,
                changed_at=declared.cursor,
                deleted_by=declared.deletes,
                may_become_empty=self.may_become_empty(name),
                cursor=declared.cursor,
                default_table=declared.table,
                # A log may not go back to its begin.
                reads_all_without_state=declared.capture is CaptureMethod.OBSERVED_CHANGES,
            )
            for target in self.targets
            for name, declared in self._streams_of(target).items()
        ]

    def _streams_of(self, target: Target) -> dict[str, StreamDeclaration]:
        """Return the streams of a function that `tables` of the pipeline selects."""
        return {
            name: declared for name, declared in target.streams.items() if self.is_selected(name)
        }

    def check(
        self,
        *,
        create: bool,  # noqa: ARG002 - there is nothing to create
        positions: Mapping[str, Offset] | None = None,  # noqa: ARG002 - any state can be read
    ) -> list[CheckResult]:
        """Check that the functions can be imported, and that their records have keys."""
        results = []
        for target in self.targets:
            results.append(CheckResult(target.path, Level.OK, "is found"))
            results += [
                CheckResult(
                    f"{target.path}: {name}",
                    Level.WARNING,
                    "has no key: a changed record is a new one",
                    fix=f"@chronolake.stream(key=…) above {target.path}",
                )
                for name, declared in self._streams_of(target).items()
                if not declared.key
            ]
        return results

    def import_state(self, content: Any) -> dict[str, Offset]:
        """Return the offsets that continue the state of a pipeline of dlt (`StateImportingSource`).

        Raises:
            ConfigurationError: the content is not such a state, is that of other sources, or names
                an unknown resource.
        """
        sources = content.get("sources") if isinstance(content, dict) else None
        if not isinstance(sources, dict) or not all(
            isinstance(state, dict) for state in sources.values()
        ):
            raise ConfigurationError(
                "The file does not contain a valid state. It has no `sources`.",
                hint="Use state.json in the folder of dlt's pipeline: ~/.dlt/pipelines/NAME.",
            )
        found: dict[str, Offset] = {}
        shared: dict[str, Any] = {}
        for target in self.targets:
            state = target.import_state(sources) if isinstance(target, ImportingTarget) else None
            if state is None:
                continue
            if target.is_shared:
                shared[target.path] = state
            for name, declared in self._streams_of(target).items():
                if declared.capture is not CaptureMethod.SNAPSHOT_DIFF:
                    found[name] = stream_offset(None if target.is_shared else state)
        if not found:
            raise ConfigurationError(
                f"The state does not contain a source of dlt that {self.pipeline} reads. It has "
                f"states for {', '.join(sources) or 'no source'}.",
                hint="Set source.run to the source or resource that dlt's pipeline has loaded.",
            )
        return {**found, **({ALL_STREAMS: shared_offset(shared).position} if shared else {})}

    def messages(
        self, states: Mapping[str, Any], shared: Any, *, new: Collection[str]
    ) -> Iterator[Message]:
        """Call the functions whose streams are selected, one after the other."""
        stored: dict[str, Any] = dict(shared or {})
        secrets = self.secrets_of(self._config.config)
        for target in self.targets:
            names = [name for name in target.streams if name in states]
            if not names:
                continue
            state = stored.get(target.path) if target.is_shared else states[names[0]]
            # The state of several streams moves only with all that are replicated.
            is_whole = self._streams_of(target).keys() <= states.keys()
            try:
                found = target.read(
                    self._config.config,
                    state,
                    streams=names,
                    new=[name for name in names if name in new],
                    secrets=secrets,
                )
                for message in found:
                    if isinstance(message, Progress) and message.stream is None:
                        if is_whole:
                            yield replace(message, sharing=names, part=target.path)
                    else:
                        yield message
            except ChronolakeError as failure:
                for name in names:
                    yield Failure(name, failure)

    def expect_window(self, stream: str) -> None:
        """Raise unless the function takes a time range and reports changes.

        Raises:
            ConfigurationError: it does not.
        """
        target = self._target_of(stream)
        if not target.takes_window:
            raise ConfigurationError(
                f"{target.path} has no parameter `window`, so it cannot be read by a time range.",
                hint="Add the parameter `window=None`: it is a pair of datetimes, from and to.",
            )
        if target.streams[stream].capture is CaptureMethod.SNAPSHOT_DIFF:
            raise ConfigurationError(
                f"The stream {stream} consists of complete reads, so it has no time ranges.",
                hint=f"`chronolake resync {self.pipeline} --stream {stream}` reads all of it.",
            )
        declared = target.streams[stream]
        if declared.capture is CaptureMethod.EVERY_CHANGE and declared.cursor is None:
            raise ConfigurationError(
                f"The changes of the stream {stream} have no times of their own, so earlier ones "
                "would look like the latest.",
                hint="Set the stream's cursor to the field with the time of a change.",
            )

    def read_window(
        self, lake: Lake, stream: str, position: Offset, begin: datetime, end: datetime
    ) -> Iterator[Batch]:
        """Read the records of a time range; the stream's state stays."""
        yield from self.read_messages(
            lake, {stream: position}, self._messages_of(stream, state_of(position), (begin, end))
        )

    def _messages_of(
        self, stream: str, state: Any, window: tuple[datetime, datetime]
    ) -> Iterator[Message]:
        target = self._target_of(stream)
        secrets = self.secrets_of(self._config.config)
        found = target.read(
            self._config.config, state, streams=[stream], new=[], secrets=secrets, window=window
        )
        for message in found:
            if not isinstance(message, Progress | Complete) and message.stream == stream:
                yield message

    def _target_of(self, stream: str) -> Target:
        return next(target for target in self.targets if stream in target.streams)


def _identity_of(declared: StreamDeclaration) -> Identity:
    return Identity(tuple((name,) for name in declared.key), advice=_ADVICE)
