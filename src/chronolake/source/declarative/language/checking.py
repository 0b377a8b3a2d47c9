"""Which streams tell whether a connection works."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from chronolake.source.declarative.language.base import Component


class DynamicStreamCheckConfig(Component):
    """Of the streams that are made of one template the first, or all."""

    type: Literal["DynamicStreamCheckConfig"]
    dynamic_stream_name: str
    stream_count: Annotated[int, Field(ge=1)] | None = None


class _Look(Component):
    """A look at a connection, for which some values of the configuration are others."""

    config_overrides: dict[str, Any] = Field(default_factory=dict)


class CheckStream(_Look):
    """Streams by their names, and some of those that are made of templates."""

    type: Literal["CheckStream"]
    stream_names: tuple[str, ...] = ()
    dynamic_streams_check_configs: tuple[DynamicStreamCheckConfig, ...] = ()


class CheckDynamicStream(_Look):
    """The first streams, of whatever they are made."""

    type: Literal["CheckDynamicStream"]
    stream_count: int
    use_check_availability: bool = True


Check = Annotated[CheckStream | CheckDynamicStream, Field(discriminator="type")]
