"""Models of the cursors of incremental streams.

Source: `seeds/incremental-syncs.txt`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from chronolake.source.declarative.models.base import Component, Truth
from chronolake.source.declarative.models.requests import RequestOption


class MinMaxDatetime(Component):
    """A time that is limited by a minimum and a maximum."""

    type: Literal["MinMaxDatetime"]
    datetime: str
    datetime_format: str = ""
    min_datetime: str | None = None
    max_datetime: str | None = None


class Clamping(Component):
    """The calendar periods (for example months) that the bounds of slices are aligned to."""

    target: str
    target_details: dict[str, Any] = Field(default_factory=dict)


class DatetimeBasedCursor(Component):
    """A cursor over time, which reads slices of one step each."""

    type: Literal["DatetimeBasedCursor"]
    cursor_field: str
    datetime_format: str
    cursor_datetime_formats: tuple[str, ...] = ()
    start_datetime: MinMaxDatetime | str
    end_datetime: MinMaxDatetime | str | None = None
    step: str | None = None
    cursor_granularity: str | None = None
    lookback_window: str | None = None
    start_time_option: RequestOption | None = None
    end_time_option: RequestOption | None = None
    partition_field_start: str | None = None
    partition_field_end: str | None = None
    clamping: Clamping | None = None
    global_substream_cursor: bool = False
    is_data_feed: bool = False
    is_client_side_incremental: Truth = False
    is_compare_strictly: bool = False


class IncrementingCountCursor(Component):
    """A cursor over a number that only grows."""

    type: Literal["IncrementingCountCursor"]
    cursor_field: str
    start_value: int | str | None = None
    start_value_option: RequestOption | None = None


IncrementalSync = Annotated[
    DatetimeBasedCursor | IncrementingCountCursor, Field(discriminator="type")
]
