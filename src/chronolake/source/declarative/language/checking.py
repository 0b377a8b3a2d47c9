"""Which streams tell whether a connection works."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from chronolake.source.declarative.language.base import Component


class DynamicStreamCheckConfig(Component):
    """Of the streams that are made of one template the first, or all."""

    type: Literal["DynamicStreamCheckConfig"]
    dynamic_stream_name: str
    stream_count: Annotated[int, Field(ge=1)] | None = None


class CheckStream(Component):
    """Streams by their names, and some of those that are made of templates."""

    type: Literal["CheckStream"]
    stream_names: tuple[str, ...] = ()
    dynamic_streams_check_configs: tuple[DynamicStreamCheckConfig, ...] = ()


class CheckDynamicStream(Component):
    """The first streams, of whatever they are made."""

    type: Literal["CheckDynamicStream"]
    stream_count: int
    use_check_availability: bool = True


Check = Annotated[CheckStream | CheckDynamicStream, Field(discriminator="type")]
