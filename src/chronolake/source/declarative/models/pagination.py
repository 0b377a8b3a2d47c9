"""How a stream is read page by page."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from chronolake.source.declarative.models.base import Component, CustomPaginationStrategy
from chronolake.source.declarative.models.requests import RequestOption, RequestPath
from chronolake.source.declarative.templating.templates import is_template


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

    @model_validator(mode="after")
    def _puts_two_values_in_two_places(self) -> Self:
        token, size = self.page_token_option, self.page_size_option
        if size is None or not isinstance(token, RequestOption):
            return self
        pairs = zip(_path(token), _path(size), strict=False)
        if token.inject_into == size.inject_into and all(one == other for one, other in pairs):
            raise ValueError(
                f"the page token and the page size are put in one place ({token.inject_into} "
                f"{'.'.join(_path(token))})"
            )
        return self


def _path(option: RequestOption) -> list[str]:
    """Where an option leads; what a template names is a place of its own until it is known."""
    reported = option.field_path or [option.field_name or ""]
    return [f"{part} of {id(option)}" if is_template(part) else part for part in reported]


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
