"""The streams of a proposed pipeline, as its source reports them, and what they capture."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from chronolake.config import PythonSource
from chronolake.errors import ChronolakeError, SourceError
from chronolake.pipeline.state import expect_described
from chronolake.pipeline.streams import build_source, list_streams
from chronolake.pipeline.token_store import StoredTokens
from chronolake.scaffold.document import Entry
from chronolake.scaffold.proposal import ProposedPipeline, ProposedStream
from chronolake.source.protocol import (
    CaptureMethod,
    CheckedSource,
    DescribedSource,
    DescribedStream,
    Level,
    TokenHoldingSource,
)
from chronolake.source.records.source import RecordSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from chronolake.config import Project
    from chronolake.pipeline.streams import Stream
    from chronolake.source.protocol import CheckResult, Source

_DELETES: Final = {
    CaptureMethod.EVERY_CHANGE: "captured",
    CaptureMethod.SNAPSHOT_DIFF: "captured: missing records",
    CaptureMethod.OBSERVED_CHANGES: "not captured",
}


@dataclass(frozen=True)
class _RotatedTokens:
    """Tokens that change while a source is tried: only these are stored, so that none is lost.

    Attributes:
        stored: the lake's tokens. The lake is created if a token has changed.
        exists: whether there is a lake already.
    """

    stored: StoredTokens
    exists: bool

    def load_token(self, name: str) -> Mapping[str, Any] | None:
        """Return a stored token, or None."""
        return self.stored.load_token(name) if self.exists else None

    def renew(
        self, name: str, change: Callable[[Mapping[str, Any] | None], Mapping[str, Any]]
    ) -> None:
        """Store a token that has changed."""
        self.stored.renew(name, change)


def source_of(project: Project, pipeline: str) -> Source:
    """Return the source of a pipeline, which changes nothing in the lake unless a token changes."""
    source = build_source(project, pipeline)
    if isinstance(source, TokenHoldingSource):
        lake = project.lake
        exists = lake.catalog.uri is not None or lake.catalog_file.is_file()
        source.use_token_store(_RotatedTokens(StoredTokens(lake, pipeline), exists))
    return source


def check_of(source: Source) -> list[CheckResult]:
    """Return the results of a source's own check, which creates nothing.

    Raises:
        ChronolakeError: the source cannot be reached.
    """
    if not isinstance(source, CheckedSource):
        return []
    return list(source.check(create=False, positions={}))


def expect_usable(results: list[CheckResult]) -> None:
    """Raise if a source's check has failed.

    Raises:
        SourceError: it has.
    """
    for result in results:
        if result.level is Level.FAILED:
            raise SourceError(f"{result.what}: {result.message}.", hint=result.fix)


def add_streams(
    proposed: ProposedPipeline, project: Project, source: Source, results: list[CheckResult]
) -> ProposedPipeline:
    """Return a proposed pipeline with its streams. Those that cannot be replicated are excluded.

    Args:
        proposed: the pipeline.
        project: the project that it is a part of.
        source: its source.
        results: the results of the source's check.

    Raises:
        ChronolakeError: the source cannot be read, or no stream can be replicated.
    """
    listing = list_streams(project, proposed.name, source, any_mode=True)
    names = {stream.name for stream in listing.streams}
    excluded = {
        result.what: " ".join(filter(None, [f"{result.message}.", result.fix]))
        for result in results
        if result.level is Level.FAILED and result.what in names
    }
    excluded |= _undescribed(
        project, source, [s for s in listing.streams if s.name not in excluded]
    )
    streams = [stream for stream in listing.streams if stream.name not in excluded]
    if excluded and not streams:
        name, reason = next(iter(excluded.items()))
        raise SourceError(f"No stream of the source can be replicated. {name}: {reason}")
    renamed = _renamed(streams)
    if listing.errors and not renamed:
        raise listing.errors[0]
    settings = list(proposed.settings)
    if excluded:
        reasons = "\n".join(f"{name}: {reason}" for name, reason in excluded.items())
        about = f"These streams cannot be replicated yet.\n{reasons}"
        settings.append(Entry("tables", (Entry("exclude", [*map(_pattern, excluded)]),), about))
    if renamed:
        about = "These streams would have the same tables as others."
        settings.append(Entry("rename", (Entry("tables", renamed),), about))
    deletes = _deletions(source)
    found = tuple(
        _describe(stream, renamed.get(stream.name), deletes.get(stream.name)) for stream in streams
    )
    return replace(proposed, settings=tuple(settings), streams=found, excluded=excluded)


def _pattern(name: str) -> str:
    """Return a pattern that matches only a name."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)


def _undescribed(project: Project, source: Source, streams: list[Stream]) -> dict[str, str]:
    """Return the streams of a database whose columns cannot be stored, with the reasons."""
    if not isinstance(source, DescribedSource):
        return {}
    if project.pipelines[streams[0].pipeline].source.type != "postgres" if streams else True:
        return {}
    by_name = {stream.name: stream for stream in streams}
    found = {}
    for described in source.describe_streams(list(by_name)):
        try:
            if not isinstance(described, DescribedStream):
                raise described.error
            expect_described(project.lake, by_name[described.stream], described)
        except ChronolakeError as failure:
            found[described.stream] = failure.statement
    return found


def _renamed(streams: list[Stream]) -> dict[str, str]:
    """Return other names for tables of streams that would have the same one as another stream."""
    taken: set[str] = set()
    renamed = {}
    for stream in streams:
        table = stream.table.table
        if table in taken:
            table = stream.name.replace(".", "_")
            renamed[stream.name] = table
        taken.add(table)
    return renamed


def _deletions(source: Source) -> dict[str, str]:
    """Return how streams of a project's functions report deletions."""
    if not isinstance(source, RecordSource):
        return {}
    config = source.project.pipelines[source.pipeline].source
    if not isinstance(config, PythonSource):
        return {}
    found = {}
    for stream in source.streams():
        if stream.deleted_by is not None:
            found[stream.name] = f"captured: {stream.deleted_by}"
        elif stream.capture_method is CaptureMethod.EVERY_CHANGE:
            found[stream.name] = "not captured"
    return found


def _describe(stream: Stream, table: str | None, deletes: str | None) -> ProposedStream:
    descriptor = stream.descriptor
    return ProposedStream(
        stream.name,
        str(stream.table) if table is None else f"{stream.table.schema}.{table}",
        stream.key,
        descriptor.cursor,
        str(descriptor.capture_method),
        deletes or _DELETES[descriptor.capture_method],
        str(stream.mode),
    )
