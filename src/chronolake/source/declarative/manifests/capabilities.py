"""What can be known of a stream's changes, by its manifest."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from chronolake.limits import StreamCapabilities
from chronolake.source.declarative.models.cursors import (
    DatetimeBasedCursor,
    IncrementingCountCursor,
)
from chronolake.source.declarative.models.streams import DeclarativeStream
from chronolake.source.declarative.templating.templates import as_text, evaluated
from chronolake.source.protocol import CaptureMethod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chronolake.source.declarative.manifests.manifest import Manifest
    from chronolake.source.declarative.models.cursors import IncrementalSync
    from chronolake.source.declarative.models.streams import AnyStream

_CONCURRENCY: Final = 4
_MOST_CONCURRENCY: Final = 64
_MILLISECOND: Final = 1_000
#: Formats whose times are finer than milliseconds.
_FINE: Final = re.compile(r"%f|%epoch_microseconds|%s_as_float")


def cursor_of(stream: AnyStream) -> IncrementalSync | None:
    """The cursor of a stream that has been read before, or None."""
    read = stream if isinstance(stream, DeclarativeStream) else stream.incremental_stream
    return read.incremental_sync


def cursor_field_of(stream: AnyStream, config: Mapping[str, Any]) -> str | None:
    """The field of records by which a stream is read incrementally; None: it is not."""
    model = cursor_of(stream)
    if not isinstance(model, DatetimeBasedCursor | IncrementingCountCursor):
        return None
    return as_text(model.cursor_field, {"config": config, "parameters": model.parameters})


def traits_of(stream: AnyStream) -> StreamCapabilities:
    """What decides about a stream's modes: only a cursor over time tells when records changed."""
    cursor = cursor_of(stream)
    return StreamCapabilities(
        stream.name,
        reports_changes=isinstance(cursor, DatetimeBasedCursor),
        is_reimported=cursor is None,
    )


def capture_method_of(stream: AnyStream) -> CaptureMethod:
    """What a stream sees of changes."""
    return (
        CaptureMethod.SNAPSHOT_DIFF if cursor_of(stream) is None else CaptureMethod.OBSERVED_CHANGES
    )


def epsilon_of(stream: AnyStream) -> int:
    """Microseconds between versions: as fine as the cursor's times."""
    cursor = cursor_of(stream)
    if not isinstance(cursor, DatetimeBasedCursor):
        return _MILLISECOND
    formats = (cursor.datetime_format, *cursor.cursor_datetime_formats)
    return 1 if any(_FINE.search(format_) for format_ in formats) else _MILLISECOND


def concurrency_of(manifest: Manifest, config: Mapping[str, Any]) -> int:
    """How many requests the manifest allows at once."""
    level = manifest.content.get("concurrency_level")
    reported = level if isinstance(level, dict) else {}
    wanted = _count(reported.get("default_concurrency"), config) or _CONCURRENCY
    most = _count(reported.get("max_concurrency"), config) or _MOST_CONCURRENCY
    return min(wanted, most, _MOST_CONCURRENCY)


def reports_of(manifest: Manifest, config: Mapping[str, Any]) -> int:
    """How many reports are made at a time; one where the manifest says nothing of use."""
    return _count(manifest.content.get("max_concurrent_async_job_count"), config) or 1


def _count(told: Any, config: Mapping[str, Any]) -> int | None:
    """A number of at least one, told as it is or by a template; None: it is no such number."""
    if isinstance(told, str):
        told = evaluated(told, {"config": config, "parameters": {}})
    return told if isinstance(told, int) and told > 0 else None
