"""What all sources of single records have in common: streams, offsets, and a shared state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from chronolake.errors import ChronolakeError, SourceError
from chronolake.landing import ColumnRules
from chronolake.masking import Secrets
from chronolake.source.protocol import (
    ALL_STREAMS,
    DescribedStream,
    StreamDescriptor,
    StreamFailure,
    raw_folder,
    spool_folder,
)
from chronolake.source.records.reader import RecordReader, is_new, raise_if_keys_changed, state_of
from chronolake.stream_modes import StreamCapabilities
from chronolake.types import Column

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from chronolake.config import Project
    from chronolake.lake import Lake
    from chronolake.landing import ObjectFolder
    from chronolake.source.protocol import Offset
    from chronolake.source.records.messages import Message
    from chronolake.source.records.reader import Batch, RecordStream

_EPSILON_MICROS: Final = 1


class RecordSource(ABC):
    """A source that reports single records; a `ChangeSource`."""

    def __init__(self, project: Project, pipeline: str) -> None:
        self.project = project
        self.pipeline = pipeline
        self._reader: RecordReader | None = None
        self._shared: Any = None

    @abstractmethod
    def streams(self) -> Sequence[RecordStream]:
        """Return the streams that the configuration selects.

        Raises:
            ConfigurationError: the configuration is invalid.
            SourceError: the source cannot be read.
        """

    @abstractmethod
    def messages(
        self, states: Mapping[str, Any], shared: Any, *, new: Collection[str]
    ) -> Iterator[Message]:
        """Read streams, and yield what the source reports.

        Args:
            states: the streams to read, with the state of each, or None.
            shared: the state that all streams share, or None.
            new: those of the streams that are read for the first time, or again: all of their
                records are needed.

        Raises:
            ChronolakeError: the source cannot be read any further.
        """

    def discover(self) -> list[StreamDescriptor]:
        """Return the configured streams."""
        return [
            StreamDescriptor(
                StreamCapabilities(stream.name, reports_changes=True),
                stream.capture_method,
                _EPSILON_MICROS,
                stream.folder,
                is_ours=True,
                key=stream.identity.columns,
                cursor=stream.cursor,
                default_table=stream.default_table,
                has_all_columns=False,
            )
            for stream in self._streams_with_rules()
        ]

    def describe_streams(self, names: Collection[str]) -> Iterator[DescribedStream | StreamFailure]:
        """Yield the columns that streams declare; their records may have more."""
        for stream in self._streams_with_rules():
            if stream.name not in names:
                continue
            if not stream.declared:
                failure = SourceError(
                    f"The stream {stream.name} does not declare its columns.",
                    hint="Run `chronolake sync` first: then its table has the columns.",
                )
                yield StreamFailure(stream.name, failure)
                continue
            key = stream.identity.columns
            types = stream.identity.add_key_column(stream.declared)
            columns = [Column(name, kind, name in key) for name, kind in types.items()]
            yield DescribedStream(stream.name, columns)

    def _streams_with_rules(self) -> list[RecordStream]:
        """Return the streams with the rules of their columns.

        Raises:
            ConfigurationError: a rule is not possible for a column.
        """
        config = self.project.pipelines[self.pipeline]
        found = []
        for stream in self.streams():
            rules = ColumnRules.of(config, stream.name)
            place = f"pipelines.{self.pipeline}.streams.{stream.name}"
            rules.expect_stored({path[0] for path in stream.identity.paths}, place=place)
            if stream.cursor is not None:
                reason = "its values are stored in the state"
                rules.expect_plain([stream.cursor], place=place, reason=reason)
            found.append(replace(stream, identity=replace(stream.identity, rules=rules)))
        return found

    def read(
        self, lake: Lake, positions: Mapping[str, Offset | None], *, full_refresh: bool
    ) -> Iterator[Batch]:
        """Read the changes of the selected streams, or all of their records."""
        known = {name: None if full_refresh else stored for name, stored in positions.items()}
        self._reader = self._new_reader(lake, known, full_refresh=full_refresh, stored=positions)
        states = {name: state_of(stored) for name, stored in known.items()}
        states |= self._reader.kept_states()
        shared = None if full_refresh else self._shared
        new = {name for name, stored in known.items() if is_new(stored)}
        yield from self._reader.read(self.messages(states, shared, new=new))

    def read_messages(
        self, lake: Lake, positions: Mapping[str, Offset | None], messages: Iterator[Message]
    ) -> Iterator[Batch]:
        """Return the batches of what the source reports about some streams."""
        self._reader = self._new_reader(lake, positions, full_refresh=False, stored=positions)
        yield from self._reader.read(messages)

    def _new_reader(
        self,
        lake: Lake,
        positions: Mapping[str, Offset | None],
        *,
        full_refresh: bool,
        stored: Mapping[str, Offset | None],
    ) -> RecordReader:
        streams = [stream for stream in self._streams_with_rules() if stream.name in positions]
        refused: dict[str, ChronolakeError] = {}
        for stream in streams:
            try:
                raise_if_keys_changed(
                    stream, stored[stream.name], pipeline=self.pipeline, full_refresh=full_refresh
                )
            except ChronolakeError as failure:
                refused[stream.name] = failure
        place = spool_folder(self.project, self.pipeline)
        return RecordReader(
            lake,
            streams,
            positions,
            place,
            shared=self._shared,
            refused=refused,
            full_refresh=full_refresh,
        )

    def acknowledge(self, positions: Mapping[str, Offset]) -> None:
        """Note which offsets have landed."""
        self._shared = state_of(positions.get(ALL_STREAMS))
        if self._reader is not None:
            self._reader.note_landed(positions)

    def secrets_of(self, config: object) -> Secrets:
        """Return what errors and logs of the source must not contain.

        Args:
            config: the configuration of its program.
        """
        return Secrets(config, hides_messages=self.project.pipelines[self.pipeline].hides_messages)

    def is_selected(self, stream: str) -> bool:
        """Return whether `tables` of the pipeline selects a stream."""
        return self.project.pipelines[self.pipeline].tables.select(stream)

    def folder_of(self, stream: str) -> ObjectFolder:
        """Return the folder where a stream's changes land."""
        return raw_folder(self.project, self.pipeline, stream)

    def may_become_empty(self, stream: str) -> bool:
        """Return whether a complete read of a stream without records deletes all."""
        settings = self.project.pipelines[self.pipeline].streams.get(stream)
        return settings is not None and settings.may_become_empty
