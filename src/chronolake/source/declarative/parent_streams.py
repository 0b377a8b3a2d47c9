"""Selection of the stream to read, its parent streams, and their state in the stream's state."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from chronolake.durations import iso_duration
from chronolake.errors import ConfigurationError
from chronolake.source.declarative.cursors.datetime_cursor import time_cursor
from chronolake.source.declarative.cursors.incrementing import NO_CURSOR
from chronolake.source.declarative.models.streams import (
    CustomPartitionRouter,
    DatetimeBasedCursor,
    DeclarativeStream,
    GroupingPartitionRouter,
    SubstreamPartitionRouter,
    UnionPartitionRouter,
)
from chronolake.source.declarative.templating.templates import as_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from chronolake.source.declarative.models.streams import (
        AnyStream,
        ParentStreamConfig,
        StateDelegatingStream,
    )

log = structlog.get_logger(__name__)


def select_stream(stream: AnyStream, stored: Mapping[str, Any] | None) -> DeclarativeStream:
    """Return the stream to read: a delegating stream is replaced by the one for this state."""
    if isinstance(stream, DeclarativeStream):
        return stream
    return stream.incremental_stream if stored else stream.full_refresh_stream


def variants_of(stream: AnyStream) -> tuple[DeclarativeStream, ...]:
    """Return the streams that may be read: both of a delegating stream."""
    if isinstance(stream, DeclarativeStream):
        return (stream,)
    return stream.full_refresh_stream, stream.incremental_stream


def iterate_parents(stream: AnyStream) -> Iterator[AnyStream]:
    """Yield the streams that a stream reads for its partitions, and their parents."""
    return (parent.stream for parent in iterate_parent_configs(stream))


def iterate_parent_configs(stream: AnyStream) -> Iterator[ParentStreamConfig]:
    """Yield how a stream reads other streams for its partitions, and how these do."""
    for variant in variants_of(stream):
        routers = list(variant.retriever.partition_router)
        while routers:
            router = routers.pop()
            if isinstance(router, GroupingPartitionRouter):
                routers.append(router.underlying_partition_router)
            elif isinstance(router, UnionPartitionRouter):
                routers += router.partition_routers
            elif isinstance(router, SubstreamPartitionRouter | CustomPartitionRouter):
                for parent in router.parent_stream_configs:
                    yield parent
                    yield from iterate_parent_configs(parent.stream)


def is_outdated(
    stream: AnyStream, stored: Mapping[str, Any] | None, config: Mapping[str, Any]
) -> bool:
    """Return whether a state is older than the API's retention, so that everything is read again.

    Args:
        stream: the stream; only delegating streams have a retention period.
        stored: its state, or None.
        config: the user's configuration.

    Raises:
        ConfigurationError: the retention period is not a duration, or the stream's cursor is not a
            datetime cursor.
    """
    if isinstance(stream, DeclarativeStream) or not stream.api_retention_period or not stored:
        return False
    oldest = _retention_start(stream, config)
    if oldest is None:
        return False
    both = (stream.full_refresh_stream, stream.incremental_stream)
    try:
        times = (_state_time(variant, stored, config) for variant in both)
        at = next((at for at in times if at is not None), None)
    except ValueError:
        # The stream itself reports values that are not times.
        return False
    if at is not None and at >= oldest:
        return False
    log.warning("state_is_outdated", stream=stream.name)
    return True


def _retention_start(stream: StateDelegatingStream, config: Mapping[str, Any]) -> datetime | None:
    context = {"config": config, "parameters": stream.parameters}
    text = as_text(stream.api_retention_period or "", context)
    if not text:
        return None
    for variant in (stream.full_refresh_stream, stream.incremental_stream):
        if not isinstance(variant.incremental_sync, DatetimeBasedCursor | None):
            raise ConfigurationError(
                f"The stream {stream.name} has an api_retention_period, but its cursor "
                "is not a datetime cursor.",
                hint="Remove the api_retention_period: only a datetime cursor shows how old "
                "a state is.",
            )
    try:
        return datetime.now(UTC) - iso_duration(text)
    except (ValueError, OverflowError) as failure:
        raise ConfigurationError(
            f"The api_retention_period {text!r} of the stream {stream.name} is not "
            "a valid duration.",
            hint="Write an ISO 8601 duration, for example P30D.",
        ) from failure


def _state_time(
    stream: DeclarativeStream, stored: Mapping[str, Any], config: Mapping[str, Any]
) -> datetime | None:
    """Return a state's time according to a stream's cursor, or None if it has none."""
    model = stream.incremental_sync
    if not isinstance(model, DatetimeBasedCursor):
        return datetime.now(UTC) if NO_CURSOR.keys() <= stored.keys() else None
    cursor = time_cursor(model, config)
    reported = stored.get("state") if stream.retriever.partition_router else stored
    if not isinstance(reported, dict):
        return None
    if reported.get("state_type") == "date-range":
        first: Mapping[str, Any] = next(iter(reported.get("slices") or ()), {})
        value = first.get("most_recent_cursor_value") or first.get("end")
    else:
        value = reported.get(cursor.field)
    return cursor.parse(value) if value else None


def get_parent_state(
    stored: Mapping[str, Any], config: ParentStreamConfig
) -> Mapping[str, Any] | None:
    """Return a parent's state in a stream's state: its own, or the one of all partitions."""
    parents = stored.get("parent_state")
    if isinstance(parents, dict) and config.stream.name in parents:
        found: Mapping[str, Any] = parents[config.stream.name]
        return found
    if "state" in stored:
        return stored["state"] or None
    values = list(stored.values())
    if len(values) == 1 and isinstance(values[0], str | int | float) and values[0] is not True:
        model = select_stream(config.stream, stored).incremental_sync
        return {model.cursor_field: values[0]} if model is not None else None
    return None
