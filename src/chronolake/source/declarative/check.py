"""Checks of a manifest: errors, its streams' capabilities, connections and sample records."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chronolake.config import OnPartitionLimit
from chronolake.errors import ChronolakeError, ConfigurationError
from chronolake.formatting import did_you_mean, format_count
from chronolake.source.declarative.components.instances import import_classes
from chronolake.source.declarative.connect import open_api
from chronolake.source.declarative.cursors.datetime_cursor import time_cursor
from chronolake.source.declarative.manifests.capabilities import capabilities_of, cursor_of
from chronolake.source.declarative.manifests.config_validation import (
    missing_keys,
    raise_if_incomplete,
)
from chronolake.source.declarative.manifests.manifest import checked_streams
from chronolake.source.declarative.models.base import CustomPaginationStrategy
from chronolake.source.declarative.models.pagination import DefaultPaginator
from chronolake.source.declarative.models.records import JsonDecoder
from chronolake.source.declarative.models.streams import DatetimeBasedCursor, SimpleRetriever
from chronolake.source.declarative.parent_streams import (
    is_outdated,
    iterate_parents,
    select_stream,
    variants_of,
)
from chronolake.source.declarative.retrieval.paginator import Pages
from chronolake.source.declarative.stream_reader import StreamReader
from chronolake.source.protocol import CheckResult, Level
from chronolake.stream_modes import check_mode
from chronolake.types import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from chronolake.config import DeclarativeSource
    from chronolake.source.declarative.api import Api
    from chronolake.source.declarative.http.transport import Exchange
    from chronolake.source.declarative.manifests.manifest import Manifest
    from chronolake.source.declarative.models.streams import AnyStream, DeclarativeStream
    from chronolake.source.declarative.records.transformations import Record
    from chronolake.source.protocol import TokenStore


@dataclass
class Result:
    """The result of reading a stream into memory, to test a manifest.

    Attributes:
        state: the state after them, in the form that other readers use.
        failure: the first error, or None.
    """

    records: list[Record] = field(default_factory=list)
    state: dict[str, Any] | None = None
    failure: ChronolakeError | None = None


def read(
    stream: AnyStream,
    api: Api,
    stored: Mapping[str, Any] | None,
    *,
    on_limit: OnPartitionLimit = OnPartitionLimit.DROP_OLDEST,
    limit: int | None = None,
) -> Result:
    """Read a stream, one slice after the other; a slice that fails does not stop the others.

    Args:
        api: the API to read from.
        stored: the stream's state, or None.
        on_limit: what to do if there are too many partitions.
        limit: the number of records to read; None: all.

    Raises:
        ConfigurationError: the stream cannot be read.
    """
    stored = None if is_outdated(stream, stored, api.config) else stored
    reader = StreamReader(select_stream(stream, stored), api, stored, on_limit=on_limit)
    result = Result()
    try:
        for work in reader.work():
            slice_read = reader.slices.read(work)
            try:
                for records in slice_read.pages():
                    result.records += records
                    if limit is not None and len(result.records) >= limit:
                        result.records = result.records[:limit]
                        return result
            except ChronolakeError as failure:
                reader.mark_failed()
                result.failure = result.failure or failure
                continue
            reader.mark_read(work, slice_read.latest)
    except ChronolakeError as failure:
        reader.mark_failed()
        result.failure = result.failure or failure
    reader.complete()
    result.state = reader.state.export()
    return result


@dataclass(frozen=True)
class Sample:
    """Sample records of a stream, and the requests that returned them.

    Attributes:
        records: the first records.
        exchanges: the requests that were sent, in their order.
        state: the state after the records; None if the stream was not read completely.
        failure: the error that ended the read early, or None.
    """

    records: list[Record]
    exchanges: list[Exchange]
    state: dict[str, Any] | None
    failure: ChronolakeError | None


def sample(
    manifest: Manifest,
    source: DeclarativeSource,
    name: str,
    *,
    limit: int,
    state: Mapping[str, Any] | None = None,
    memory: TokenStore | None = None,
) -> Sample:
    """Read some records of a stream; nothing is stored except tokens that change.

    Args:
        source: the configuration of its source.
        name: the stream.
        limit: the most records to read.
        state: the state to continue from, or None to begin at the start.
        memory: stores tokens that change with each use.

    Raises:
        ConfigurationError: the stream does not exist, or its requests cannot be built from the
            manifest and the configuration.
        SourceError: the API does not return its streams or the stream's schema.
    """
    raise_if_incomplete(source.config, manifest, "source.config")
    exchanges: list[Exchange] = []
    with open_api(
        manifest, source, stream_names=[name], memory=memory, log=exchanges.append
    ) as api:
        result = read(api.manifest.stream(name), api, state, limit=limit)
    return Sample(result.records, exchanges, result.state, result.failure)


def complete_manifest(
    manifest: Manifest,
    source: DeclarativeSource,
    *,
    memory: TokenStore | None = None,
) -> Manifest:
    """Return a manifest with all wanted streams, including those that only the API knows.

    Args:
        source: the configuration of its source.
        memory: stores tokens that change with each use.

    Raises:
        ConfigurationError: the configuration does not match the manifest's spec, or its streams
            cannot be built.
        SourceError: the API does not return its streams.
    """
    if manifest.lists(source.only):
        return manifest
    with open_api(manifest, source, stream_names=source.only, memory=memory) as api:
        return api.manifest


def check_source(
    manifest: Manifest,
    source: DeclarativeSource,
    *,
    memory: TokenStore | None = None,
    learn: Callable[[Manifest | ChronolakeError], None] | None = None,
) -> Iterator[CheckResult]:
    """Check a manifest and a configuration; yield all errors and the result for each stream.

    Args:
        source: the configuration of its source.
        memory: stores tokens that change with each use.
        learn: receives the manifest with all streams, or the error that prevents it, so that the
            API need not be queried again; not called if the check overrides the configuration.
    """
    overrides = manifest.check.config_overrides if manifest.check else None
    learn = learn if learn and not overrides else lambda _: None
    missing = missing_keys(source.config, manifest)
    if missing:
        yield from _check_streams(manifest, source.only)
        yield CheckResult(
            "config",
            Level.FAILED,
            f"The configuration lacks {', '.join(missing)}, which the manifest requires.",
            "Set it below `source.config`. Read secrets from the environment: ${TOKEN}.",
        )
        return
    exchanges: list[Exchange] = []
    with ExitStack() as stack:
        try:
            api = stack.enter_context(
                open_api(
                    manifest,
                    source,
                    stream_names=source.only,
                    memory=memory,
                    overrides=overrides,
                    log=exchanges.append,
                )
            )
        except ChronolakeError as failure:
            learn(failure)
            yield from _check_streams(manifest, source.only)
            yield CheckResult("config and streams", Level.FAILED, failure.message, failure.hint)
            return
        learn(api.manifest)
        yield from _check_streams(api.manifest, source.only)
        yield from _check_stream_names(api.manifest, source)
        tried = checked_streams(api.manifest, source.only)
        yield from _check_settings(api, source.only, tried)
        for name in tried:
            yield _check_connection(api, name, exchanges)


def _check_streams(
    manifest: Manifest, stream_names: Collection[str] | None
) -> Iterator[CheckResult]:
    """Yield a manifest's errors, and the capabilities of its streams."""
    for problem in manifest.problems:
        if problem.stream is None or stream_names is None or problem.stream in stream_names:
            # An invalid stream is skipped unless the configuration names it.
            is_left_out = problem.stream is not None and stream_names is None
            where = "" if problem.line is None else f", line {problem.line}"
            of_stream = "" if problem.stream is None else f"the stream {problem.stream}: "
            yield CheckResult(
                "manifest",
                Level.WARNING if is_left_out or problem.is_warning else Level.FAILED,
                f"{manifest.file}{where}: {of_stream}{problem.path}: {problem.message}",
                problem.hint,
            )
    reported = {
        name for problem in manifest.problems for name in (problem.stream, *problem.streams)
    }
    for name in manifest.streams if stream_names is None else stream_names:
        if name not in manifest.streams:
            if name not in reported and manifest.is_whole:
                hint = did_you_mean(name, manifest.streams, "Correct `source.only`.")
                yield CheckResult(
                    f"stream {name}", Level.FAILED, "the manifest has no such stream", hint
                )
            continue
        try:
            import_classes(manifest.streams[name])
        except ConfigurationError as refusal:
            yield CheckResult(f"stream {name}", Level.FAILED, refusal.message, refusal.hint)
        else:
            yield CheckResult(f"stream {name}", Level.OK, _describe_stream(manifest.streams[name]))


def _check_stream_names(manifest: Manifest, source: DeclarativeSource) -> Iterator[CheckResult]:
    """Yield an error for each stream that the configuration names but the manifest lacks."""
    if not manifest.is_whole:
        return
    parents = {
        parent.name for stream in manifest.streams.values() for parent in iterate_parents(stream)
    }
    known = parents | set(manifest.streams)
    for key in ("may_lack_records", "may_repeat_tokens"):
        for name in getattr(source, key):
            if name not in known:
                hint = did_you_mean(name, sorted(known), f"Correct `source.{key}`.")
                yield CheckResult(key, Level.FAILED, f"there is no stream {name}", hint)


def _check_settings(
    api: Api, stream_names: Collection[str] | None, tried: Collection[str]
) -> Iterator[CheckResult]:
    """Yield the cursors and paginators that are invalid with the configuration.

    Args:
        stream_names: the streams of the source; None for all.
        tried: streams from which records are requested, which shows the same errors.
    """
    reported = {problem.stream for problem in api.manifest.problems if not problem.is_warning}
    reported.update(tried)
    failures: dict[tuple[str, str | None], list[str]] = {}
    for name, stream in api.manifest.streams.items():
        if name in reported or not (stream_names is None or name in stream_names):
            continue
        try:
            for each in (stream, *iterate_parents(stream)):
                for variant in variants_of(each):
                    _raise_if_unusable(variant, api.config)
        except ConfigurationError as failure:
            failures.setdefault((failure.message, failure.hint), []).append(name)
    for (message, hint), names in failures.items():
        what = f"stream {names[0]}" if len(names) == 1 else f"streams {', '.join(names)}"
        yield CheckResult(what, Level.FAILED, message, hint)


def _raise_if_unusable(stream: DeclarativeStream, config: Mapping[str, Any]) -> None:
    """Raise ConfigurationError if a stream's cursor or paginator is invalid."""
    if isinstance(stream.incremental_sync, DatetimeBasedCursor):
        time_cursor(stream.incremental_sync, config)
    retriever = stream.retriever
    if isinstance(retriever, SimpleRetriever) and isinstance(retriever.paginator, DefaultPaginator):
        if isinstance(retriever.paginator.pagination_strategy, CustomPaginationStrategy):
            return
        decoder = retriever.decoder or JsonDecoder(type="JsonDecoder")
        Pages(retriever.paginator, config, decoder, retriever.record_selector.extractor)


def _check_connection(api: Api, name: str, exchanges: list[Exchange]) -> CheckResult:
    """Return whether a stream can be read, by reading its first slice."""
    what = f"connection, by {name}"
    exchanges.clear()
    try:
        reader = StreamReader(select_stream(api.manifest.stream(name), None), api)
        work = next(reader.work(), None)
        if work is None:
            reported = "no request was sent, because its parent streams have no records"
            return CheckResult(what, Level.WARNING, reported)
        has_records = any(reader.slices.read(work).pages())
    except ChronolakeError as failure:
        return CheckResult(what, Level.FAILED, failure.message, failure.hint)
    got = "records found" if has_records else "no records found"
    return CheckResult(what, Level.OK, f"{format_count(len(exchanges), 'request')}, {got}")


def _describe_stream(stream: AnyStream) -> str:
    cursor = cursor_of(stream)
    capabilities = capabilities_of(stream)
    how = (
        "read completely in each run" if cursor is None else f"incremental by {cursor.cursor_field}"
    )
    try:
        check_mode(capabilities, Mode.HISTORY)
    except ChronolakeError as refusal:
        reason = refusal.message.partition(": ")[2].rstrip(".")
        return f"{how}; history mode is not possible: {reason}"
    return f"{how}; history mode is possible"
