"""How a stream is read page by page."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from chronolake.source.declarative.language.base import Component
from chronolake.source.declarative.language.custom import CustomPaginationStrategy
from chronolake.source.declarative.language.options import RequestOption, RequestPath


class PageIncrement(Component):
    """Pages are numbered."""

    type: Literal["PageIncrement"]
    page_size: int | str | None = None
    start_from_page: int = 0
    inject_on_first_request: bool = False


class OffsetIncrement(Component):
    """A page begins after so many records."""

    type: Literal["OffsetIncrement"]
    page_size: int | str | None = None
    inject_on_first_request: bool = False


class CursorPagination(Component):
    """A page tells where the next one begins."""

    type: Literal["CursorPagination"]
    cursor_value: str
    page_size: int | str | None = None
    stop_condition: str | None = None


PaginationStrategy = Annotated[
    PageIncrement | OffsetIncrement | CursorPagination | CustomPaginationStrategy,
    Field(discriminator="type"),
]
PageTokenOption = Annotated[RequestOption | RequestPath, Field(discriminator="type")]


class DefaultPaginator(Component):
    """Pages are read until the strategy has no token for a next one."""

    type: Literal["DefaultPaginator"]
    pagination_strategy: PaginationStrategy
    page_size_option: RequestOption | None = None
    page_token_option: PageTokenOption | None = None


class NoPagination(Component):
    """There is one page."""

    type: Literal["NoPagination"]


Paginator = Annotated[DefaultPaginator | NoPagination, Field(discriminator="type")]


class PaginationResetLimits(Component):
    """After how many records a slice's pages begin anew."""

    type: Literal["PaginationResetLimits"]
    number_of_records: int | None = None


class PaginationReset(Component):
    """How a slice's pages begin anew: from its begin, or from the latest record on."""

    type: Literal["PaginationReset"]
    action: Literal["RESET", "SPLIT_USING_CURSOR"]
    limits: PaginationResetLimits | None = None


class PageSizeReduction(Component):
    """How a page is asked for again that was too large for the API."""

    type: Literal["PageSizeReduction"]
    reduction_factor: float = Field(default=2.0, gt=1)
    minimum_page_size: int = Field(default=1, ge=1)
    max_attempts: int = Field(default=5, ge=1)
    backoff_seconds: float = Field(default=0.5, ge=0)
    retries_at_minimum_page_size: int = Field(default=0, ge=0)
    failure_message: str | None = None
    reset_policy: Literal["NEVER", "AFTER_SUCCESSFUL_PAGE"] = "NEVER"


class RequestWindowSplitting(Component):
    """A slice that was too long for the API is read in halves."""

    type: Literal["RequestWindowSplitting"]
    failure_message: str | None = None
    min_split_window: str | None = None
