"""Taps of the Singer specification.

Source: the Singer specification, version 0.3, and `ACTIVATE_VERSION` as targets implement it. A tap
writes one JSON message on each line: the schema of a stream, its records, and states that cover all
records before them. A tap that begins a new version of a stream sends all of its records: the table
has no others afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from chronolake import exact_json
from chronolake.errors import ConfigurationError, SourceError
from chronolake.formatting import did_you_mean
from chronolake.source.connectors.foreign_state import singer_state, unknown_stream_error
from chronolake.source.connectors.json_lines import (
    RecordGroups,
    messages_in,
    undeclared_stream_error,
)
from chronolake.source.connectors.program import Program, arguments_of, json_files
from chronolake.source.protocol import ALL_STREAMS, CaptureMethod
from chronolake.source.records.identity import Identity
from chronolake.source.records.messages import Complete, Declared, Progress, Restarted
from chronolake.source.records.reader import RecordStream, shared_offset, stream_offset
from chronolake.source.records.schema import declared_columns, declared_fields
from chronolake.source.records.source import RecordSource
from chronolake.types import ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from chronolake.config import Project, SingerSource
    from chronolake.source.connectors.json_lines import Content
    from chronolake.source.connectors.process import ConnectorProcess
    from chronolake.source.protocol import Offset
    from chronolake.source.records.messages import Message

#: The field of records that a tap reports as deleted.
_DELETED_AT: Final = "_sdc_deleted_at"
_FULL, _LOG, _INCREMENTAL = "FULL_TABLE", "LOG_BASED", "INCREMENTAL"
_VERSION: Final = "version"
_TIMES: Final = {Kind.UTC_DATETIME, Kind.NAIVE_DATETIME, Kind.STRING}
_ADVICE: Final = "Set another key for the stream: source.keys in chronolake.yml."


#: What messages contain (`messages_in`).
_CONTENT: Final[Content] = {
    "RECORD": {"stream": str, "record": dict},
    "SCHEMA": {"stream": str, "schema": dict},
    "STATE": {"value": dict},
    "ACTIVATE_VERSION": {"stream": str, "version": object},
    "BATCH": {"stream": str},
}


@dataclass(frozen=True)
class _OfferedStream:
    """A stream that a tap offers.

    Attributes:
        name: the name that its messages have.
        reported: the stream as the tap's catalog has it.
        key: the fields that identify a record.
        method: how it is read: FULL_TABLE, INCREMENTAL or LOG_BASED.
        cursor: the field of incremental reads, or None.
    """

    name: str
    reported: Mapping[str, Any]
    key: tuple[str, ...]
    method: str
    cursor: str | None

    def catalog_entry(self, *, is_selected: bool) -> dict[str, Any]:
        """Return the stream as the catalog of a run has it."""
        metadata = [
            {**entry, "metadata": {**entry.get("metadata", {}), "selected": is_selected}}
            for entry in self.reported.get("metadata") or ()
            if entry.get("breadcrumb")
        ]
        own = {
            **_stream_metadata(self.reported),
            "selected": is_selected,
            "replication-method": self.method,
            **({} if self.cursor is None else {"replication-key": self.cursor}),
        }
        return {
            **self.reported,
            # Taps before metadata read these.
            "selected": is_selected,
            "replication_method": self.method,
            **({} if self.cursor is None else {"replication_key": self.cursor}),
            "metadata": [{"breadcrumb": [], "metadata": own}, *metadata],
        }


def _stream_metadata(reported: Mapping[str, Any]) -> Mapping[str, Any]:
    for entry in reported.get("metadata") or ():
        if not entry.get("breadcrumb"):
            found: Mapping[str, Any] = entry.get("metadata") or {}
            return found
    return {}


class SingerTap(RecordSource):
    """The streams of a Singer tap."""

    def __init__(self, project: Project, pipeline: str, config: SingerSource) -> None:
        super().__init__(project, pipeline)
        self._config = config
        secrets = self.secrets_of([config.config, config.environment])
        self._program = Program(config, project.file.parent, pipeline, secrets)

    @cached_property
    def _catalog(self) -> list[_OfferedStream]:
        """Return all streams of the tap."""
        with json_files({"config": self._config.config}) as paths:
            process = self._program.start(*arguments_of(paths, ["config"]), "--discover")
            text = b"\n".join(process.lines())
        try:
            reported = exact_json.loads(text)["streams"]
        except (ValueError, KeyError, TypeError):
            raise SourceError(
                f"The tap of {self.pipeline} did not report its streams.",
                hint="Run the tap with --discover: it must print a catalog, and nothing else.",
            ) from None
        found = [self._offered_of(stream) for stream in reported]
        names = [stream.name for stream in found]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SourceError(
                f"The tap of {self.pipeline} offers several streams with the name {twice[0]!r}.",
                hint="Configure the tap so that it offers only one of them.",
            )
        for name in [*(self._config.only or ()), *self._config.keys, *self._config.cursors]:
            if name not in names:
                raise ConfigurationError(
                    f"{self.project.file}: pipelines.{self.pipeline}.source: the tap has no stream "
                    f"{name!r}.",
                    hint=did_you_mean(name, names, f"It has: {', '.join(names) or 'none'}."),
                )
        return found

    def _name_of(self, reported: Any) -> Any:
        """Return the stream of a message, which names it by its name or its `tap_stream_id`.

        Raises:
            SourceError: the catalog has no such stream.
        """
        if not isinstance(reported, str):
            return None
        if reported not in self._names:
            raise undeclared_stream_error(reported)
        return self._names[reported]

    @cached_property
    def _names(self) -> dict[Any, str]:
        by_id = {stream.reported.get("tap_stream_id"): stream.name for stream in self._catalog}
        return by_id | {stream.name: stream.name for stream in self._catalog}

    @property
    def _selected(self) -> list[_OfferedStream]:
        """Return the configured streams."""
        wanted = self._config.only
        return [
            stream
            for stream in self._catalog
            if (wanted is None or stream.name in wanted) and self.is_selected(stream.name)
        ]

    def _offered_of(self, reported: Mapping[str, Any]) -> _OfferedStream:
        name = reported.get("stream") or reported["tap_stream_id"]
        metadata = _stream_metadata(reported)
        key = (
            self._config.keys.get(name)
            or reported.get("key_properties")
            or metadata.get("table-key-properties")
            or metadata.get("view-key-properties")
            or ()
        )
        valid = metadata.get("valid-replication-keys") or ()
        cursor = (
            self._config.cursors.get(name)
            or metadata.get("replication-key")
            or reported.get("replication_key")
            or next(iter(valid), None)
        )
        method = (
            metadata.get("forced-replication-method")
            or metadata.get("replication-method")
            or reported.get("replication_method")
            or (_FULL if cursor is None else _INCREMENTAL)
        )
        if name in self._config.cursors:
            method = _INCREMENTAL
        return _OfferedStream(
            name, reported, tuple(key), method, None if method == _FULL else cursor
        )

    def streams(self) -> list[RecordStream]:
        """Return the configured streams, which the tap reports."""
        return [self._stream(offered) for offered in self._selected]

    def _stream(self, offered: _OfferedStream) -> RecordStream:
        schema = offered.reported.get("schema") or {}
        declared = declared_columns(schema)
        captures = {
            _FULL: CaptureMethod.SNAPSHOT_DIFF,
            _LOG: CaptureMethod.EVERY_CHANGE,
        }
        capture = captures.get(offered.method, CaptureMethod.OBSERVED_CHANGES)
        changed_at = None
        if capture is CaptureMethod.OBSERVED_CHANGES and offered.cursor is not None:
            kind = declared.get(offered.cursor, ColumnType(Kind.STRING)).kind
            changed_at = offered.cursor if kind in _TIMES else None
        return RecordStream(
            offered.name,
            capture,
            Identity(tuple((field,) for field in offered.key), advice=_ADVICE),
            self.folder_of(offered.name),
            declared,
            fields=declared_fields(schema),
            changed_at=changed_at,
            deleted_by=_DELETED_AT,
            may_become_empty=self.may_become_empty(offered.name),
            cursor=offered.cursor,
            reads_all_without_state=capture is not CaptureMethod.SNAPSHOT_DIFF,
        )

    def import_state(self, content: Any) -> dict[str, Offset]:
        """Return the offsets that continue a state of a tap (`StateImportingSource`).

        Raises:
            ConfigurationError: the content is not such a state, or names an unknown stream.
        """
        state = singer_state(content)
        # Old taps have the bookmarks of streams at the top.
        bookmarks = state.get("bookmarks", state)
        by_id = {stream.reported.get("tap_stream_id"): stream.name for stream in self._catalog}
        by_id |= {stream.name: stream.name for stream in self._catalog}
        for name in bookmarks:
            if name not in by_id:
                raise unknown_stream_error(name, [stream.name for stream in self._catalog])
        chosen = {stream.name for stream in self._selected}
        found: dict[str, Offset] = {ALL_STREAMS: shared_offset(state).position}
        for given, bookmark in bookmarks.items():
            version = bookmark.get(_VERSION) if isinstance(bookmark, dict) else None
            if by_id[given] in chosen:
                own = None if version is None else {_VERSION: version}
                found[by_id[given]] = stream_offset(own)
        return found

    def messages(
        self, states: Mapping[str, Any], shared: Any, *, new: Collection[str]
    ) -> Iterator[Message]:
        """Run the tap, and yield the records and states of the selected streams."""
        catalog = [
            stream.catalog_entry(is_selected=stream.name in states) for stream in self._catalog
        ]
        contents: dict[str, Any] = {
            "config": self._config.config,
            "catalog": {"streams": catalog},
        }
        # A new stream has no bookmark in the state.
        if shared is not None:
            contents["state"] = shared
        versions = {
            name: None if name in new or state is None else state.get(_VERSION)
            for name, state in states.items()
        }
        is_whole = {stream.name for stream in self._selected} <= states.keys()
        with json_files(contents) as paths:
            names = ("config", "catalog", "state")
            process = self._program.start(*arguments_of(paths, names))
            yield from self._messages_of(process, versions, new, is_whole=is_whole)

    def _messages_of(
        self,
        process: ConnectorProcess,
        versions: dict[str, Any],
        new: Collection[str],
        *,
        is_whole: bool,
    ) -> Iterator[Message]:
        groups = RecordGroups()
        snapshots = {stream.name for stream in self._selected if stream.method == _FULL}
        for message in messages_in(process, _CONTENT):
            kind, stream = message["type"], self._name_of(message.get("stream"))
            if kind == "STATE":
                yield from groups.pass_on()
                if is_whole:
                    yield Progress(message.get("value"))
            elif stream not in versions:
                continue
            elif kind in {"RECORD", "ACTIVATE_VERSION"}:
                version = message.get(_VERSION)
                if version is not None and version != versions[stream] and stream not in snapshots:
                    yield from groups.pass_on()
                    yield from _restart(stream, version, is_new=stream in new)
                    versions[stream] = version
                if kind == "RECORD":
                    yield from groups.add(stream, message["record"])
            elif kind == "SCHEMA":
                yield from groups.pass_on()
                self._expect_key(stream, message.get("key_properties"))
                schema = message.get("schema") or {}
                yield Declared(stream, declared_columns(schema), declared_fields(schema))
            elif kind == "BATCH":
                raise SourceError(
                    f"The tap writes records of {stream} into files (BATCH), which are not read.",
                    hint="Remove batch_config from source.config.",
                )
        yield from groups.pass_on()
        yield from (Complete(name) for name in versions)

    def _expect_key(self, stream: str, reported: Any) -> None:
        """Raise if a stream's records have another key than its catalog."""
        offered = next(found for found in self._catalog if found.name == stream)
        if reported and stream not in self._config.keys and set(reported) != set(offered.key):
            raise SourceError(
                f"The tap reports the key {', '.join(reported)} for {stream}, but its catalog has "
                f"{', '.join(offered.key) or 'none'}.",
                hint=f"Set source.keys: {{{stream}: [{', '.join(reported)}]}} in chronolake.yml.",
            )


def _restart(stream: str, version: Any, *, is_new: bool) -> Iterator[Message]:
    """Yield what a new version of a stream means: all of its records follow."""
    if not is_new:
        yield Restarted(stream)
    yield Progress({_VERSION: version}, stream)
