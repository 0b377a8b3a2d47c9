"""Properties of a stream according to its manifest: cursor, key, capture method, concurrency."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from chronolake.source.declarative.models.pagination import DefaultPaginator
from chronolake.source.declarative.models.records import (
    CsvDecoder,
    GzipDecoder,
    XmlDecoder,
    ZipfileDecoder,
)
from chronolake.source.declarative.models.streams import (
    DatetimeBasedCursor,
    DeclarativeStream,
    IncrementingCountCursor,
    SimpleRetriever,
)
from chronolake.source.declarative.templating.templates import as_text, evaluate
from chronolake.source.protocol import CaptureMethod
from chronolake.source.records.identity import Identity
from chronolake.stream_modes import StreamCapabilities

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chronolake.source.declarative.manifests.manifest import Manifest
    from chronolake.source.declarative.models.streams import AnyStream, IncrementalSync

_CONCURRENCY: Final = 4
_MOST_CONCURRENCY: Final = 64
_MILLISECOND: Final = 1_000
_ADVICE: Final = (
    "Filter such records in the manifest (`record_filter`), or correct the stream's primary_key."
)
#: Formats with a higher resolution than milliseconds.
_FINE: Final = re.compile(r"%f|%epoch_microseconds|%s_as_float")


def cursor_of(stream: AnyStream) -> IncrementalSync | None:
    """Return the cursor of a stream; for a state-delegating stream, of its incremental stream."""
    read = stream if isinstance(stream, DeclarativeStream) else stream.incremental_stream
    return read.incremental_sync


def cursor_field_of(stream: AnyStream, config: Mapping[str, Any]) -> str | None:
    """Return the cursor field of a stream, or None if the stream has no cursor."""
    model = cursor_of(stream)
    if not isinstance(model, DatetimeBasedCursor | IncrementingCountCursor):
        return None
    return as_text(model.cursor_field, {"config": config, "parameters": model.parameters})


def capabilities_of(stream: AnyStream) -> StreamCapabilities:
    """Return the stream's capabilities.

    A cursor over time reports when records changed. Without a cursor, each run reads the whole
    stream, and changes have the time of the read that shows them. A counter only shows new records.
    """
    cursor = cursor_of(stream)
    return StreamCapabilities(
        stream.name, reports_changes=cursor is None or isinstance(cursor, DatetimeBasedCursor)
    )


def capture_method_of(stream: AnyStream) -> CaptureMethod:
    """Return the capture method: observed changes if there is a cursor, else a snapshot diff."""
    return (
        CaptureMethod.SNAPSHOT_DIFF if cursor_of(stream) is None else CaptureMethod.OBSERVED_CHANGES
    )


def may_miss_records(stream: DeclarativeStream) -> bool:
    """Return whether a complete read may miss a record that exists.

    It may if it consists of several requests, because a record can move between their results.
    """
    retriever = stream.retriever
    if not isinstance(retriever, SimpleRetriever) or retriever.partition_router:
        return True
    return isinstance(retriever.paginator, DefaultPaginator)


def primary_key_of(stream: DeclarativeStream, cursor: str | None = None) -> Identity:
    """Return the manifest's primary key: one field, several fields, or paths.

    Args:
        cursor: the field with the record's time, if it is part of the key, or None.
    """
    key = stream.primary_key or ()
    parts = (key,) if isinstance(key, str) else key
    paths = tuple((part,) if isinstance(part, str) else tuple(part) for part in parts)
    return Identity(paths, cursor, _ADVICE)


def has_only_texts(stream: DeclarativeStream) -> bool:
    """Return whether all values of a stream's responses are text, as in CSV and XML."""
    retriever = stream.retriever
    decoder = getattr(retriever, "download_decoder", None) or getattr(retriever, "decoder", None)
    while isinstance(decoder, GzipDecoder | ZipfileDecoder):
        decoder = decoder.decoder
    return isinstance(decoder, CsvDecoder | XmlDecoder)


def epsilon_of(stream: AnyStream) -> int:
    """Return the microseconds between two versions: the resolution of the cursor's times."""
    cursor = cursor_of(stream)
    if not isinstance(cursor, DatetimeBasedCursor):
        return _MILLISECOND
    formats = (cursor.datetime_format, *cursor.cursor_datetime_formats)
    return 1 if any(_FINE.search(format_) for format_ in formats) else _MILLISECOND


def max_concurrency(manifest: Manifest, config: Mapping[str, Any]) -> int:
    """Return the maximum number of concurrent requests."""
    level = manifest.content.get("concurrency_level")
    reported = level if isinstance(level, dict) else {}
    wanted = _positive_number(reported.get("default_concurrency"), config) or _CONCURRENCY
    most = _positive_number(reported.get("max_concurrency"), config) or _MOST_CONCURRENCY
    return min(wanted, most, _MOST_CONCURRENCY)


def max_async_jobs(manifest: Manifest, config: Mapping[str, Any]) -> int:
    """Return the maximum number of concurrent export jobs; 1 if the manifest has no valid one."""
    return _positive_number(manifest.content.get("max_concurrent_async_job_count"), config) or 1


def _positive_number(value: Any, config: Mapping[str, Any]) -> int | None:
    """Return a number, given directly or by a template, or None if it is not a positive integer."""
    if isinstance(value, str):
        value = evaluate(value, {"config": config, "parameters": {}})
    return value if isinstance(value, int) and value > 0 else None
