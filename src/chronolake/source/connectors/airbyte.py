"""Connectors that speak the Airbyte protocol on their standard output.

Source: the Airbyte protocol, version 0.2. A connector has the commands `spec`, `check`, `discover`
and `read`, and writes one JSON message on each line. A line that is not a message is logged; a line
that begins like one and is cut off is an error, because a record may be lost.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from chronolake import exact_json
from chronolake.errors import ChronolakeError, ConfigurationError, SourceError
from chronolake.formatting import did_you_mean
from chronolake.masking import Secrets
from chronolake.source.connectors.foreign_state import airbyte_state, unknown_stream_error
from chronolake.source.connectors.json_lines import (
    REPORT,
    RecordGroups,
    messages_in,
    undeclared_stream_error,
)
from chronolake.source.connectors.program import Program, arguments_of, json_files
from chronolake.source.protocol import ALL_STREAMS, CaptureMethod, CheckResult, Level
from chronolake.source.records.identity import Identity
from chronolake.source.records.lookup import MISSING, look_up
from chronolake.source.records.messages import Complete, Failure, Progress
from chronolake.source.records.reader import RecordStream, shared_offset, stream_offset
from chronolake.source.records.schema import declared_columns, declared_fields
from chronolake.source.records.source import RecordSource
from chronolake.types import Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from chronolake.config import AirbyteSource, Project
    from chronolake.source.connectors.json_lines import Content
    from chronolake.source.connectors.process import ConnectorProcess
    from chronolake.source.protocol import Offset, TokenStore
    from chronolake.source.records.messages import Message

_CONFIG: Final = "config"
#: The name of the stored configuration that a connector has updated.
_UPDATED: Final = "airbyte-config"
#: Fields that connectors add to records which they read from a log.
_DELETED_AT: Final = "_ab_cdc_deleted_at"
_UPDATED_AT: Final = "_ab_cdc_updated_at"
#: The fields of a message for the log.
_LOGGED: Final = ("message", "level")
#: Types of cursors that may be the time of a record's change.
_TIMES: Final = {Kind.UTC_DATETIME, Kind.NAIVE_DATETIME, Kind.STRING}
_ADVICE: Final = "Set another key for the stream: source.keys in chronolake.yml."


#: What messages contain (`messages_in`).
_CONTENT: Final[Content] = {
    "CATALOG": {"catalog.streams": list},
    "CONNECTION_STATUS": {"connectionStatus": dict},
    "RECORD": {"record.stream": str, "record.data": dict},
    "STATE": {"state": dict},
    "TRACE": {"trace": dict},
}


@dataclass(frozen=True)
class _OfferedStream:
    """A stream that the connector offers.

    Attributes:
        name: the name in Chronolake: the connector's, preceded by its namespace if there is one.
        reported: the stream as the connector describes it.
        key: the paths of the fields that identify a record.
        cursor: the path of the field for incremental reads; None: all records are read.
    """

    name: str
    reported: Mapping[str, Any]
    key: tuple[tuple[str, ...], ...]
    cursor: tuple[str, ...] | None

    @property
    def is_resumable(self) -> bool:
        """Return whether a state continues a complete read that was cut off."""
        return self.cursor is None and bool(self.reported.get("is_resumable"))

    @property
    def has_state(self) -> bool:
        """Return whether the stream has a state of its own."""
        return self.cursor is not None or self.is_resumable

    @property
    def descriptor(self) -> tuple[str, str]:
        """Return the connector's namespace and name of the stream."""
        return self.reported.get("namespace") or "", self.reported["name"]

    def catalog_entry(self) -> dict[str, Any]:
        """Return the stream as the catalog for `read` has it."""
        is_incremental = self.cursor is not None
        return {
            "stream": self.reported,
            "sync_mode": "incremental" if is_incremental else "full_refresh",
            "destination_sync_mode": "append_dedup" if is_incremental else "overwrite",
            "cursor_field": list(self.cursor or ()),
            "primary_key": [list(path) for path in self.key],
            "generation_id": 0,
            "minimum_generation_id": 0,
            "sync_id": 0,
        }


class AirbyteConnector(RecordSource):
    """The streams of an Airbyte connector."""

    def __init__(self, project: Project, pipeline: str, config: AirbyteSource) -> None:
        super().__init__(project, pipeline)
        self._config = config
        secrets = self.secrets_of([config.config, config.environment])
        self._program = Program(config, project.file.parent, pipeline, secrets)
        self._tokens: TokenStore | None = None

    def use_token_store(self, store: TokenStore) -> None:
        """Set the store for configurations that the connector updates."""
        self._tokens = store

    @property
    def _settings(self) -> dict[str, Any]:
        """Return the connector's configuration, as it has updated it."""
        stored = None if self._tokens is None else self._tokens.load_token(_UPDATED)
        if stored is not None and stored["given"] == self._config_digest:
            return dict(stored[_CONFIG])
        return self._config.config

    @property
    def _config_digest(self) -> str:
        return hashlib.sha256(exact_json.dumps(self._config.config, sort_keys=True)).hexdigest()

    def _keep_settings(self, updated: Mapping[str, Any]) -> None:
        if self._tokens is not None:
            kept = {"given": self._config_digest, _CONFIG: dict(updated)}
            self._tokens.renew(_UPDATED, lambda _: kept)

    def _descriptor_of(self, record: Mapping[str, Any]) -> tuple[str, str]:
        """Return the descriptor of a record's stream; records may lack the stream's namespace.

        Raises:
            SourceError: the connector does not offer such a stream, or offers several.
        """
        name = record["stream"]
        found = (record.get("namespace") or "", name)
        offered = [stream.descriptor for stream in self._catalog]
        if found in offered:
            return found
        same = [descriptor for descriptor in offered if descriptor[1] == name]
        if found[0] or len(same) != 1:
            raise undeclared_stream_error(name)
        return same[0]

    @property
    def _selected(self) -> list[_OfferedStream]:
        """Return the configured streams."""
        wanted = self._config.only
        return [
            stream
            for stream in self._catalog
            if (wanted is None or stream.name in wanted) and self.is_selected(stream.name)
        ]

    @cached_property
    def _catalog(self) -> list[_OfferedStream]:
        """Return all streams of the connector."""
        catalog: Any = None
        for message in self._run("discover"):
            if message.get("type") == "CATALOG":
                catalog = message["catalog"]
        if catalog is None:
            raise SourceError(
                f"The connector of {self.pipeline} did not report its streams.",
                hint="Run `chronolake check`; the log contains its messages.",
            )
        for reported in catalog["streams"]:
            if not isinstance(look_up(reported, ["name"]), str):
                raise SourceError(
                    f"The connector of {self.pipeline} reported a stream without a name.",
                    hint=REPORT,
                )
        found = [self._offered_of(reported) for reported in catalog["streams"]]
        names = [stream.name for stream in found]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SourceError(
                f"The connector of {self.pipeline} offers several streams with the name "
                f"{twice[0]!r}.",
                hint="Configure the connector so that it offers only one of them.",
            )
        for name in [*(self._config.only or ()), *self._config.keys, *self._config.cursors]:
            if name not in names:
                raise ConfigurationError(
                    f"{self.project.file}: pipelines.{self.pipeline}.source: the connector has no "
                    f"stream {name!r}.",
                    hint=did_you_mean(name, names, f"It has: {', '.join(names) or 'none'}."),
                )
        return found

    def _offered_of(self, reported: Mapping[str, Any]) -> _OfferedStream:
        namespace = reported.get("namespace")
        name = f"{namespace}.{reported['name']}" if namespace else reported["name"]
        chosen = self._config.keys.get(name)
        own = reported.get("source_defined_primary_key") or ()
        key = tuple((part,) for part in chosen) if chosen else tuple(tuple(part) for part in own)
        cursor = None
        if "incremental" in (reported.get("supported_sync_modes") or ()):
            field = self._config.cursors.get(name)
            default = reported.get("default_cursor_field") or ()
            if field is not None:
                cursor = (field,)
            elif default or reported.get("source_defined_cursor"):
                cursor = tuple(default)
        return _OfferedStream(name, reported, key, cursor)

    def streams(self) -> list[RecordStream]:
        """Return the configured streams, which the connector reports."""
        return [self._stream(offered) for offered in self._selected]

    def _stream(self, offered: _OfferedStream) -> RecordStream:
        schema = offered.reported.get("json_schema") or {}
        declared = declared_columns(schema)
        capture = CaptureMethod.OBSERVED_CHANGES
        changed_at = None
        if offered.cursor is None:
            capture = CaptureMethod.SNAPSHOT_DIFF
        elif _DELETED_AT in declared:
            capture, changed_at = CaptureMethod.EVERY_CHANGE, _UPDATED_AT
        elif len(offered.cursor) == 1:
            kind = declared.get(offered.cursor[0])
            is_time = kind is None or kind.kind in {
                Kind.UTC_DATETIME,
                Kind.NAIVE_DATETIME,
                Kind.STRING,
            }
            changed_at = offered.cursor[0] if is_time else None
        return RecordStream(
            offered.name,
            capture,
            Identity(offered.key, advice=_ADVICE),
            self.folder_of(offered.name),
            declared,
            fields=declared_fields(schema),
            changed_at=changed_at,
            deleted_by=_DELETED_AT if _DELETED_AT in declared else None,
            may_become_empty=self.may_become_empty(offered.name),
            cursor=".".join(offered.cursor) if offered.cursor else None,
            default_table=offered.reported["name"],
            is_resumable=offered.is_resumable,
            reads_all_without_state=capture is not CaptureMethod.SNAPSHOT_DIFF,
        )

    def check(
        self,
        *,
        create: bool,  # noqa: ARG002 - there is nothing to create
        positions: Mapping[str, Offset] | None = None,  # noqa: ARG002 - any state can be read
    ) -> list[CheckResult]:
        """Let the connector check its configuration and its connection.

        Raises:
            MissingRequirementError: the connector cannot be installed or started.
            SourceError: it ended with an error.
        """
        what = f"connector of {self.pipeline}"
        for message in self._run("check"):
            if message.get("type") == "CONNECTION_STATUS":
                status = message["connectionStatus"]
                if status.get("status") == "SUCCEEDED":
                    return [CheckResult(what, Level.OK, "can connect")]
                # It is about the configuration, and is not stored.
                secrets = Secrets(self._config.config)
                said = secrets.mask(str(status.get("message") or "no reason"))
                fix = "Correct source.config in chronolake.yml."
                return [CheckResult(what, Level.FAILED, f"cannot connect: {said}", fix=fix)]
        return [CheckResult(what, Level.FAILED, "did not report whether it can connect")]

    def import_state(self, content: Any) -> dict[str, Offset]:
        """Return the offsets that continue a state of Airbyte (`StateImportingSource`).

        Raises:
            ConfigurationError: the content is not such a state, or names an unknown stream.
        """
        found = airbyte_state(content)
        states = found.streams or self._states_by_name(found.shared)
        if states is not None:
            return {
                stream.name: stream_offset(state)
                for stream, state in self._select_incremental(states)
                if state is not None
            }
        inner = ((found.shared or {}).get("global") or {}).get("stream_states") or ()
        named = {_descriptor_in(stream) or ("", ""): None for stream in inner}
        # Streams with an offset are not new.
        known: dict[str, Offset] = {
            stream.name: stream_offset(None) for stream, _ in self._select_incremental(named)
        }
        return {**known, ALL_STREAMS: shared_offset(found.shared).position}

    def _states_by_name(
        self, shared: Mapping[str, Any] | None
    ) -> dict[tuple[str, str], Any] | None:
        """Return a legacy state as states of streams, if it has one for each name of a stream."""
        data = (shared or {}).get("data")
        by_name = {stream.reported["name"]: stream.descriptor for stream in self._catalog}
        if not isinstance(data, dict) or not data.keys() <= by_name.keys():
            return None
        return {by_name[name]: state or None for name, state in data.items()}

    def _select_incremental(
        self, states: Mapping[tuple[str, str], Any]
    ) -> Iterator[tuple[_OfferedStream, Any]]:
        """Yield the configured streams that are read incrementally, with their states.

        Raises:
            ConfigurationError: the connector does not have a stream.
        """
        known = {stream.descriptor: stream for stream in self._catalog}
        wanted = {stream.name for stream in self._selected}
        for descriptor, state in states.items():
            if descriptor not in known:
                name = ".".join(filter(None, descriptor))
                raise unknown_stream_error(name, [stream.name for stream in self._catalog])
            stream = known[descriptor]
            if stream.name in wanted and stream.cursor is not None:
                yield stream, state

    def _run(self, command: str) -> Iterator[dict[str, Any]]:
        """Run a command that needs only the configuration, and yield its messages."""
        with json_files({_CONFIG: self._settings}) as paths:
            process = self._program.start(command, *arguments_of(paths, [_CONFIG]))
            yield from self._parse(process)

    def _parse(self, process: ConnectorProcess) -> Iterator[dict[str, Any]]:
        """Yield a connector's messages, except those for logs and of updated configurations.

        Raises:
            SourceError: it ended with an error, or reported one, or wrote half a message.
        """
        reported: SourceError | None = None
        try:
            for message in messages_in(process, _CONTENT):
                match message["type"]:
                    case "LOG":
                        text, level = (look_up(message, ["log", key]) for key in _LOGGED)
                        shown = exact_json.dumps(message).decode() if text is MISSING else text
                        process.print(str(shown), level=str(level).lower())
                    case "CONTROL":
                        updated = look_up(message, ["control", "connectorConfig", _CONFIG])
                        if isinstance(updated, dict):
                            self._keep_settings(updated)
                    case "TRACE" if (error := self._error_in(message)) is not None:
                        if _descriptor_in(message["trace"].get("error")) is None:
                            reported = error
                        yield message
                    case _:
                        yield message
        except SourceError as failure:
            # The message of the connector is clearer than how it ended.
            raise reported or failure from None
        if reported is not None:
            # An exit code of 0 does not mean that it could read everything.
            raise reported

    def _error_in(self, message: Mapping[str, Any]) -> SourceError | None:
        trace = message.get("trace") or {}
        if trace.get("type") != "ERROR":
            return None
        error = trace.get("error")
        error = error if isinstance(error, dict) else {}
        text = error.get("message") or error.get("internal_message") or "an error without a message"
        said = self._program.secrets.mask(str(text))
        is_ours = error.get("failure_type") == "config_error"
        return SourceError(
            f"The connector reports: {said}",
            hint="Correct source.config in chronolake.yml."
            if is_ours
            else "Run the sync again; it continues after the last state. The log contains its "
            "messages.",
        )

    def messages(
        self,
        states: Mapping[str, Any],
        shared: Any,
        *,
        new: Collection[str],  # noqa: ARG002
    ) -> Iterator[Message]:
        """Run `read`, and yield the records and states of the selected streams."""
        chosen = [stream for stream in self._selected if stream.name in states]
        contents: dict[str, Any] = {
            _CONFIG: self._settings,
            "catalog": {"streams": [stream.catalog_entry() for stream in chosen]},
        }
        if (state := _state_for(chosen, states, shared)) is not None:
            contents["state"] = state
        is_whole = len(chosen) == len(self._selected)
        with json_files(contents) as paths:
            names = (_CONFIG, "catalog", "state")
            process = self._program.start("read", *arguments_of(paths, names))
            yield from self._messages_of(process, chosen, is_whole=is_whole)

    def _messages_of(
        self, process: ConnectorProcess, chosen: list[_OfferedStream], *, is_whole: bool
    ) -> Iterator[Message]:
        by_descriptor = {stream.descriptor: stream for stream in chosen}
        groups = RecordGroups()
        since_state: Counter[str] = Counter()
        begun: set[tuple[str, str] | None] = set()
        ended: set[str] = set()
        for message in self._parse(process):
            if message["type"] == "RECORD":
                record = message["record"]
                known = by_descriptor.get((record.get("namespace") or "", record["stream"]))
                if known is None:
                    known = by_descriptor.get(self._descriptor_of(record))
                if known is not None:
                    since_state[known.name] += 1
                    yield from groups.add(known.name, record["data"])
                continue
            yield from groups.pass_on()
            if message["type"] == "STATE":
                state = message["state"]
                known = by_descriptor.get(_descriptor_of_state(state, process.name))
                _expect_counted(state, known, since_state)
                yield from _progress(state, known, is_whole=is_whole)
            elif message["type"] == "TRACE":
                begun.add(_descriptor_in(look_up(message, ["trace", "stream_status"])))
                for outcome in self._outcomes(message, by_descriptor):
                    ended.add(outcome.stream)
                    yield outcome
        yield from groups.pass_on()
        yield from (_end_of(stream, begun) for stream in chosen if stream.name not in ended)

    def _outcomes(
        self, message: Mapping[str, Any], known: Mapping[tuple[str, str], _OfferedStream]
    ) -> Iterator[Complete | Failure]:
        """Yield the end of a stream, if a trace reports one."""
        error = self._error_in(message)
        place = message["trace"].get("stream_status" if error is None else "error") or {}
        stream = known.get(_descriptor_in(place) or ("", ""))
        if stream is None:
            return
        if error is not None:
            yield Failure(stream.name, error)
        elif place.get("status") == "COMPLETE":
            yield Complete(stream.name)
        elif place.get("status") == "INCOMPLETE":
            yield Failure(stream.name, _incomplete_error(stream.name))


def _end_of(
    stream: _OfferedStream, begun: Collection[tuple[str, str] | None]
) -> Complete | Failure:
    """Return the end of a stream that the connector has not reported before its own end.

    A connector that reports the begin of a stream reports its end, too, if it has read all of it.
    """
    if stream.descriptor in begun:
        return Failure(stream.name, _incomplete_error(stream.name))
    return Complete(stream.name)


def _descriptor_of_state(state: Mapping[str, Any], connector: str) -> tuple[str, str]:
    """Return the stream of a state; an empty name for a state of all streams.

    Raises:
        SourceError: the name of the stream is missing.
    """
    found = _descriptor_in(state.get("stream"))
    if state.get("type") == "STREAM" and found is None:
        raise SourceError(
            f"The connector {connector} wrote a state of a stream without its name "
            "(`stream_descriptor.name`).",
            hint=REPORT,
        )
    return found or ("", "")


def _expect_counted(
    state: Mapping[str, Any], stream: _OfferedStream | None, since_state: Counter[str]
) -> None:
    """Raise if a stream's state counts more records than it has reported since the state before."""
    if stream is None:
        return
    reported = since_state.pop(stream.name, 0)
    claimed = (state.get("sourceStats") or {}).get("recordCount") or 0
    if claimed > reported:
        raise SourceError(
            f"The connector's state of {stream.name} counts {claimed:,.0f} records, but the "
            f"connector has reported {reported:,} since the state before.",
            hint=REPORT,
        )


def _progress(
    state: Mapping[str, Any], stream: _OfferedStream | None, *, is_whole: bool
) -> Iterator[Progress]:
    """Yield the state in a message; all records before it were passed on."""
    if state.get("type") == "STREAM":
        # A complete read that cannot be continued has no use for a state.
        if stream is not None and stream.has_state:
            yield Progress(state["stream"].get("stream_state"), stream.name)
    elif is_whole:
        # The state of all streams moves only with all of them.
        name = "global" if state.get("type") == "GLOBAL" else "data"
        yield Progress({name: state.get(name)})


def _incomplete_error(stream: str) -> ChronolakeError:
    return SourceError(
        f"The connector could not read all of {stream}.",
        hint="Run the sync again; it continues after the last state. The log contains its "
        "messages.",
    )


def _descriptor_in(holder: Any) -> tuple[str, str] | None:
    name = look_up(holder, ["stream_descriptor", "name"])
    if not isinstance(name, str):
        return None
    return holder["stream_descriptor"].get("namespace") or "", name


def _state_for(chosen: list[_OfferedStream], states: Mapping[str, Any], shared: Any) -> Any:
    """Return the content of the state file, or None if everything is read from the start."""
    if isinstance(shared, dict) and "global" in shared:
        return [{"type": "GLOBAL", "global": shared["global"]}]
    if isinstance(shared, dict) and shared.get("data") is not None:
        return shared["data"]
    found = []
    for stream in chosen:
        if stream.has_state and states[stream.name] is not None:
            namespace, name = stream.descriptor
            descriptor = {"name": name, **({"namespace": namespace} if namespace else {})}
            inner = {"stream_descriptor": descriptor, "stream_state": states[stream.name]}
            found.append({"type": "STREAM", "stream": inner})
    return found or None
