"""How a stream is read page by page."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from chronolake.source.declarative.language.base import Component
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
    PageIncrement | OffsetIncrement | CursorPagination, Field(discriminator="type")
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
