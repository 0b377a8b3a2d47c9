"""Models of paginators and of the reactions to pages that are too large."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from chronolake.source.declarative.models.base import Component, CustomPaginationStrategy
from chronolake.source.declarative.models.requests import RequestOption, RequestPath
from chronolake.source.declarative.templating.templates import is_template


class PageIncrement(Component):
    """A pagination strategy that numbers pages."""

    type: Literal["PageIncrement"]
    page_size: int | str | None = None
    start_from_page: int = 0
    inject_on_first_request: bool = False


class OffsetIncrement(Component):
    """A pagination strategy that requests pages by an offset, counted in records."""

    type: Literal["OffsetIncrement"]
    page_size: int | str | None = None
    inject_on_first_request: bool = False


class CursorPagination(Component):
    """A pagination strategy that reads the next page's token from the current page."""

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
    """A paginator that reads pages until the strategy returns no token for the next page."""

    type: Literal["DefaultPaginator"]
    pagination_strategy: PaginationStrategy
    page_size_option: RequestOption | None = None
    page_token_option: PageTokenOption | None = None

    @model_validator(mode="after")
    def _check_distinct_targets(self) -> Self:
        token, size = self.page_token_option, self.page_size_option
        if size is None or not isinstance(token, RequestOption):
            return self
        pairs = zip(_path(token), _path(size), strict=False)
        if token.inject_into == size.inject_into and all(
            token_part == size_part for token_part, size_part in pairs
        ):
            raise ValueError(
                f"the page token and the page size have the same target ({token.inject_into} "
                f"{'.'.join(_path(token))})"
            )
        return self


def _path(option: RequestOption) -> list[str]:
    """Return the path that an option writes to.

    A part with a template counts as a different place for each option until it is rendered.
    """
    path = option.field_path or [option.field_name or ""]
    return [f"{part} of {id(option)}" if is_template(part) else part for part in path]


class NoPagination(Component):
    """A paginator for streams with one page."""

    type: Literal["NoPagination"]


Paginator = Annotated[DefaultPaginator | NoPagination, Field(discriminator="type")]


class PaginationResetLimits(Component):
    """The number of records after which the pagination of a slice is restarted."""

    type: Literal["PaginationResetLimits"]
    number_of_records: int | None = None


class PaginationReset(Component):
    """How the pagination of a slice is restarted: from its start, or from its latest record."""

    type: Literal["PaginationReset"]
    action: Literal["RESET", "SPLIT_USING_CURSOR"]
    limits: PaginationResetLimits | None = None


class PageSizeReduction(Component):
    """Retries with smaller pages after the API rejected a page as too large."""

    type: Literal["PageSizeReduction"]
    reduction_factor: float = Field(default=2.0, gt=1)
    minimum_page_size: int = Field(default=1, ge=1)
    max_attempts: int = Field(default=5, ge=1)
    backoff_seconds: float = Field(default=0.5, ge=0)
    retries_at_minimum_page_size: int = Field(default=0, ge=0)
    failure_message: str | None = None
    reset_policy: Literal["NEVER", "AFTER_SUCCESSFUL_PAGE"] = "NEVER"


class RequestWindowSplitting(Component):
    """Splits a slice in halves after the API rejected it as too long."""

    type: Literal["RequestWindowSplitting"]
    failure_message: str | None = None
    min_split_window: str | None = None
