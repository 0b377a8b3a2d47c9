"""States of other programs as the state of a pipeline: the next run continues where they stopped.

The source converts a state into its own offsets (`StateImportingSource`). All of them are stored in
one transaction, under the pipeline's lease.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chronolake import exact_json, inspect
from chronolake.errors import ConfigurationError, LakeError
from chronolake.inspect.catalog import look_up
from chronolake.pipeline.lease import PATIENCE_SECONDS, greatest_token_read, hold_lease
from chronolake.pipeline.store import Store
from chronolake.pipeline.streams import pipeline_of, source_of, streams_of
from chronolake.source.protocol import ALL_STREAMS, StateImportingSource
from chronolake.storage import error_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chronolake.config import LakeConfig, Project
    from chronolake.pipeline.streams import Stream
    from chronolake.source.protocol import Offset

#: The type of the sources that continue a program's states.
_TYPES: Final = {"airbyte": "airbyte", "dlt": "python", "singer": "singer"}
_STATE: Final = "state"
_STANDARD_INPUT: Final = Path("-")


@dataclass(frozen=True)
class StateImport:
    """The offsets for a pipeline from another program's state.

    Attributes:
        pipeline: the pipeline's name.
        offsets: the offsets by stream, and the one that streams share (`ALL_STREAMS`).
        without_state: the streams that have no state, and are read completely.
        token: the greatest token of the leases under which the tables were written.
    """

    pipeline: str
    offsets: Mapping[str, Offset]
    without_state: tuple[str, ...]
    token: int

    @property
    def states(self) -> dict[str, Any]:
        """Return the states of streams, in the source's form; None for the one that they share."""
        own = {name: offset for name, offset in self.offsets.items() if name != ALL_STREAMS}
        return {name: offset.get(_STATE) for name, offset in own.items()}

    @property
    def shared(self) -> Any:
        """Return the state that streams share, or None."""
        return self.offsets.get(ALL_STREAMS, {}).get(_STATE)


def read_state(file: Path) -> Any:
    """Return the content of a state file; `-` is standard input.

    Raises:
        ConfigurationError: the file does not exist, or is neither JSON nor lines of JSON.
        StorageError: it cannot be read.
    """
    try:
        text = sys.stdin.buffer.read() if file == _STANDARD_INPUT else file.read_bytes()
    except FileNotFoundError:
        raise ConfigurationError(
            f"The file {file} does not exist.", hint="Check the path of the state."
        ) from None
    except OSError as failure:
        raise error_of(failure, file) from failure
    try:
        return exact_json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return [exact_json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        # Not chained: the parser's message may contain a part of a token.
        raise ConfigurationError(
            f"The state in {file} is neither JSON nor JSON lines.",
            hint="Export it again, and check that the file is complete.",
        ) from None


def plan_import(
    project: Project,
    pipeline: str,
    tool: str,
    content: Any,
    store: Store | None,
    *,
    replaces: bool,
) -> StateImport:
    """Return the offsets for a pipeline from another program's state. Nothing is stored.

    Args:
        project: the configuration.
        pipeline: the pipeline's name.
        tool: the program.
        content: the content of its state file.
        store: the lake's operational store; None if there is no lake.
        replaces: whether the pipeline may have a state.

    Raises:
        ConfigurationError: the pipeline's source is of another type, or has a state; the content is
            not a state of the program, or names a stream that the source does not have.
        SourceError: the source's streams cannot be listed.
    """
    kind = pipeline_of(project, pipeline).source.type
    if kind != _TYPES[tool]:
        raise ConfigurationError(
            f"The source of {pipeline} is of the type {kind}, which cannot continue a state of "
            f"{tool}.",
            hint=f"Sources of the type {_TYPES[tool]} can.",
        )
    known = {} if store is None else store.checkpoints(pipeline)
    _expect_new(pipeline, known, replaces=replaces)
    source = source_of(project, pipeline)
    if not isinstance(source, StateImportingSource):
        raise ConfigurationError(
            f"The source of {pipeline} cannot continue a state of {tool}.",
            hint="Run `chronolake sync`: it reads everything once.",
        )
    streams = streams_of(project, pipeline, source)
    found = source.import_state(content)
    names = [stream.name for stream in streams]
    offsets = {name: found[name] for name in [*names, ALL_STREAMS] if name in found}
    if not offsets:
        raise ConfigurationError(
            f"The state does not contain a stream that {pipeline} reads incrementally.",
            hint="`chronolake discover` lists the streams with their cursors.",
        )
    if ALL_STREAMS in known and ALL_STREAMS not in offsets:
        # It would take precedence over the states of streams.
        offsets[ALL_STREAMS] = {_STATE: None}
    without_state = tuple(name for name in names if name not in offsets)
    return StateImport(pipeline, offsets, without_state, _greatest_token(project.lake, streams))


def _expect_new(pipeline: str, known: Mapping[str, Any], *, replaces: bool) -> None:
    if known and not replaces:
        raise ConfigurationError(
            f"The pipeline {pipeline} already has a state.",
            hint=f"`chronolake state show {pipeline}` prints it. Replace it with --replace.",
        )


def _greatest_token(config: LakeConfig, streams: list[Stream]) -> int:
    """Return the greatest token that the tables of streams were written with, without Spark."""
    try:
        existing = set(inspect.names(config))
    except LakeError:
        # The lake does not exist yet.
        return 0
    return greatest_token_read(
        look_up(config, stream.table) for stream in streams if stream.table in existing
    )


def store_import(project: Project, plan: StateImport, *, replaces: bool) -> None:
    """Store the offsets of a plan, all or none.

    Raises:
        ConfigurationError: the pipeline has a state meanwhile.
        PipelineBusyError: another process runs the pipeline.
        LakeError: the operational store is not reachable.
    """
    store = Store.open(project.lake)
    with hold_lease(store, plan.pipeline, above=plan.token, wait_seconds=PATIENCE_SECONDS) as lease:
        known = store.checkpoints(plan.pipeline)
        _expect_new(plan.pipeline, known, replaces=replaces)
        # What is known of a stream's columns stays.
        positions = {name: {**known.get(name, {}), **new} for name, new in plan.offsets.items()}
        store.put_checkpoints(plan.pipeline, positions, token=lease.token)
