"""Which stream is read, and what a stream's state says of its parents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronolake.source.declarative.language.streams import DeclarativeStream

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from chronolake.source.declarative.language.streams import AnyStream, ParentStreamConfig


def chosen(stream: AnyStream, stored: Mapping[str, Any] | None) -> DeclarativeStream:
    """The stream that is read: of two that take turns, the one for this state."""
    if isinstance(stream, DeclarativeStream):
        return stream
    return stream.incremental_stream if stored else stream.full_refresh_stream


def parent_state_in(
    stored: Mapping[str, Any], config: ParentStreamConfig
) -> Mapping[str, Any] | None:
    """What a stream's state says of a parent: its own state, or what all partitions share."""
    parents = stored.get("parent_state")
    if isinstance(parents, dict) and config.stream.name in parents:
        found: Mapping[str, Any] = parents[config.stream.name]
        return found
    if "state" in stored:
        return stored["state"] or None
    values = list(stored.values())
    if len(values) == 1 and isinstance(values[0], str | int | float) and values[0] is not True:
        model = chosen(config.stream, stored).incremental_sync
        return {model.cursor_field: values[0]} if model is not None else None
    return None
