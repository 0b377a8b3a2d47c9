"""What an answer means, and how long to wait before asking again."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from chronolake.source.declarative.language.base import Component, Number, Statuses
from chronolake.source.declarative.language.custom import CustomBackoffStrategy, CustomErrorHandler


class ConstantBackoffStrategy(Component):
    """The same wait each time."""

    type: Literal["ConstantBackoffStrategy"]
    backoff_time_in_seconds: Number
    jitter_range_in_seconds: float | None = Field(default=None, ge=0)


class ExponentialBackoffStrategy(Component):
    """A wait that doubles each time."""

    type: Literal["ExponentialBackoffStrategy"]
    factor: Number | None = 5
    jitter_range_in_seconds: float | None = Field(default=None, ge=0)


class WaitTimeFromHeader(Component):
    """The seconds to wait stand in a header."""

    type: Literal["WaitTimeFromHeader"]
    header: str
    regex: str | None = None
    max_waiting_time_in_seconds: Number | None = None


class WaitUntilTimeFromHeader(Component):
    """The time to wait for stands in a header, in seconds since 1970."""

    type: Literal["WaitUntilTimeFromHeader"]
    header: str
    min_wait: Number | None = None
    regex: str | None = None
    max_waiting_time_in_seconds: Number | None = None


class WaitTimeFromResponse(Component):
    """A template reads the seconds to wait from the answer."""

    type: Literal["WaitTimeFromResponse"]
    wait_time_in_seconds: str
    max_waiting_time_in_seconds: Number | None = None


BackoffStrategy = Annotated[
    ConstantBackoffStrategy
    | ExponentialBackoffStrategy
    | WaitTimeFromHeader
    | WaitUntilTimeFromHeader
    | WaitTimeFromResponse
    | CustomBackoffStrategy,
    Field(discriminator="type"),
]

ActionName = Literal[
    "SUCCESS",
    "FAIL",
    "RETRY",
    "IGNORE",
    "RESET_PAGINATION",
    "RATE_LIMITED",
    "REFRESH_TOKEN_THEN_RETRY",
    "REDUCE_PAGE_SIZE",
    "SPLIT_REQUEST_WINDOW",
]


class HttpResponseFilter(Component):
    """Which answers are meant (any of the three conditions) and what is to be done with them."""

    type: Literal["HttpResponseFilter"]
    action: ActionName | None = None
    failure_type: Literal["system_error", "config_error", "transient_error"] | None = None
    http_codes: Statuses | None = None
    error_message_contains: str | None = None
    predicate: str | None = None
    error_message: str | None = None


class DefaultErrorHandler(Component):
    """Filters, then what every status means by itself."""

    type: Literal["DefaultErrorHandler"]
    response_filters: list[HttpResponseFilter] | None = None
    max_retries: int | str | None = 5
    backoff_strategies: list[BackoffStrategy] | None = None


class CompositeErrorHandler(Component):
    """Handlers that are asked in turn."""

    type: Literal["CompositeErrorHandler"]
    error_handlers: list[ErrorHandler] = Field(min_length=1)


ErrorHandler = Annotated[
    DefaultErrorHandler | CompositeErrorHandler | CustomErrorHandler, Field(discriminator="type")
]
CompositeErrorHandler.model_rebuild()
