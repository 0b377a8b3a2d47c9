"""Pagination reset, smaller pages, and splitting of slices that are too long for the API.

Sources: the components' descriptions, and the behavior of airbyte-cdk 7.39.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from jinja2 import nodes

from chronolake.durations import iso_duration
from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.http.error_handler import Action
from chronolake.source.declarative.models.base import CustomErrorHandler
from chronolake.source.declarative.models.pagination import (
    CursorPagination,
    DefaultPaginator,
    PageIncrement,
)
from chronolake.source.declarative.models.requests import CompositeErrorHandler, RequestPath
from chronolake.source.declarative.stream_slice import StreamSlice
from chronolake.source.declarative.templating.templates import parse_syntax

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from chronolake.source.declarative.cursors.datetime_cursor import TimeCursor
    from chronolake.source.declarative.models.pagination import PageSizeReduction, PaginationReset
    from chronolake.source.declarative.models.requests import ErrorHandler
    from chronolake.source.declarative.models.streams import SimpleRetriever
    from chronolake.source.declarative.records.transformations import Record


_MIRRORED: Final = {"gt": "lt", "gteq": "lteq"}


def actions_of(handler: ErrorHandler | None) -> frozenset[str]:
    """Return all actions that an error handler may return, as far as the manifest defines them."""
    if handler is None or isinstance(handler, CustomErrorHandler):
        return frozenset()
    if isinstance(handler, CompositeErrorHandler):
        return frozenset().union(*map(actions_of, handler.error_handlers))
    return frozenset(filter_.action for filter_ in handler.response_filters or () if filter_.action)


@dataclass
class Restarts:
    """The restarts of one slice's pagination.

    Attributes:
        stream_slice: the slice.
        limit: number of records after which pagination restarts; None: only when the API requires
            it.
        latest_of: tracks the latest record, where the next pagination starts; None: at the slice's
            start.
    """

    stream_slice: StreamSlice
    limit: int | None = None
    latest_of: LatestRecord | None = None
    _records: int = 0
    _without_progress: int = 0

    def observe(self, records: Sequence[Record]) -> None:
        """Count the records of a page."""
        self._records += len(records)
        if self.latest_of is not None:
            for record in records:
                self.latest_of.observe(record, self.stream_slice)

    @property
    def is_due(self) -> bool:
        """Return whether the limit of records in one pagination is reached."""
        return self.limit is not None and self._records >= self.limit

    def restart(self, requested: StreamSlice) -> StreamSlice:
        """Return the slice to request from its first page.

        Args:
            requested: the slice that has been requested so far.

        Raises:
            SourceError: pagination would restart repeatedly without progress.
        """
        self._records = 0
        remainder = (
            requested if self.latest_of is None else self.latest_of.remainder_of(self.stream_slice)
        )
        if dict(remainder) != dict(requested):
            self._without_progress = 0
            return remainder
        self._without_progress += 1
        if self._without_progress >= (2 if self.latest_of is None else 1):
            raise SourceError(
                "Pagination restarted too often without progress.",
                hint="Make the cursor's `step` smaller, or check the API's responses with "
                "`chronolake read`.",
            )
        return remainder


@dataclass
class LatestRecord:
    """The latest record of a slice, from which the slice can be continued.

    Attributes:
        position: returns a record's position in the order of records; None: it has no cursor value.
        bound: returns a record's cursor value in the format of slices.
        name: the key of the slice's lower bound.
        is_beyond: whether a bound is beyond a slice's end; the slice is then not continued there.
    """

    position: Callable[[Record], int | None]
    bound: Callable[[Record], Any]
    name: str
    is_beyond: Callable[[Any, StreamSlice], bool] = lambda _bound, _slice: False
    _at: int | None = None
    _bound: Any = None

    def observe(self, record: Record, stream_slice: StreamSlice) -> None:
        """Compare a record of the slice with the latest one so far."""
        position_of_record = self.position(record)
        if position_of_record is not None and (self._at is None or position_of_record > self._at):
            bound = self.bound(record)
            if not self.is_beyond(bound, stream_slice):
                self._at, self._bound = position_of_record, bound

    def remainder_of(self, stream_slice: StreamSlice) -> StreamSlice:
        """Return the rest of a slice, from the latest record on."""
        if self._at is None:
            return stream_slice
        bounds = {**stream_slice.cursor_slice, self.name: self._bound}
        return StreamSlice(stream_slice.partition, bounds, stream_slice.extra_fields)


@dataclass
class PageSizes:
    """The page size of one slice's requests.

    Attributes:
        model: the rules for reducing it.
        configured: the paginator's page size.
        size: the present page size; None: the paginator's.
    """

    model: PageSizeReduction
    configured: int
    size: int | None = None
    _attempts: int = field(default=0, init=False)
    _repeated: int = field(default=0, init=False)

    def reduce(self, refusal: SourceError) -> float:
        """Reduce the page size after a refused page; return the seconds to wait before the retry.

        Raises:
            SourceError: the retries at the smallest size, or all attempts, are used up.
        """
        model = self.model
        current = self.configured if self.size is None else self.size
        reduced = max(model.minimum_page_size, int(current // model.reduction_factor))
        if reduced >= current:
            self._repeated += 1
            if self._repeated > model.retries_at_minimum_page_size:
                raise self._too_small_error(refusal, current)
            return model.backoff_seconds * self._repeated
        self._attempts += 1
        if self._attempts > model.max_attempts:
            raise self._too_small_error(refusal, current)
        self.size = reduced
        return model.backoff_seconds * self._attempts

    def record_success(self) -> None:
        """Record that a page was received."""
        self._attempts = self._repeated = 0
        if self.model.reset_policy == "AFTER_SUCCESSFUL_PAGE":
            self.size = None

    def _too_small_error(self, refusal: SourceError, size: int) -> SourceError:
        return SourceError(
            f"The API rejects pages of every size, down to {size} records. {refusal.message}",
            hint=self.model.failure_message or "Make the cursor's `step` smaller.",
        )


def check_reset(retriever: SimpleRetriever) -> PaginationReset | None:
    """Return the rules by which a retriever's pagination restarts.

    Raises:
        ConfigurationError: the settings contradict each other.
    """
    reset = retriever.pagination_reset
    if reset is not None and reset.limits and retriever.record_selector.record_filter:
        raise ConfigurationError(
            "A pagination_reset with limits cannot be combined with a record_filter.",
            hint="Remove one of them: the limit would not count the records that are filtered.",
        )
    return reset


def check_sizes(retriever: SimpleRetriever, size: int | None) -> PageSizeReduction | None:
    """Return the rules by which a retriever's pages become smaller.

    Args:
        size: its page size.

    Raises:
        ConfigurationError: the settings contradict each other.
    """
    reduction = retriever.page_size_reduction
    if reduction is None:
        if Action.REDUCE_PAGE_SIZE in actions_of(retriever.requester.error_handler):
            raise ConfigurationError(
                "An error handler returns REDUCE_PAGE_SIZE, but the retriever has no "
                "page_size_reduction.",
                hint="Set page_size_reduction in the retriever.",
            )
        return None
    for reason in _reduction_conflicts(retriever, size, reduction):
        raise ConfigurationError(
            f"A page_size_reduction cannot be combined with {reason}.",
            hint="It needs a CursorPagination or an OffsetIncrement with a page_size and a "
            "page_size_option.",
        )
    return reduction


def _reduction_conflicts(
    retriever: SimpleRetriever, size: int | None, reduction: PageSizeReduction
) -> Iterator[str]:
    paginator = retriever.paginator
    if retriever.properties is not None:
        yield "properties that are requested in chunks"
    if not isinstance(paginator, DefaultPaginator) or paginator.page_size_option is None:
        yield "a paginator that does not send a page size"
        return
    if isinstance(paginator.page_token_option, RequestPath):
        yield "page URLs that the API returns, because they contain the page size"
    strategy = paginator.pagination_strategy
    if isinstance(strategy, PageIncrement):
        yield "a PageIncrement, because page numbers depend on the page size"
    if size is None or size <= reduction.minimum_page_size:
        yield f"a page_size of {size} and a minimum_page_size of {reduction.minimum_page_size}"
    if isinstance(strategy, CursorPagination) and strategy.stop_condition:
        minimum = reduction.minimum_page_size
        if any(
            _ends_early(comparison, minimum)
            for comparison in _deciding_comparisons(strategy.stop_condition)
        ):
            yield (
                "a stop_condition that treats a smaller page as the last one; it has to compare "
                "last_page_size with page_size"
            )


def _deciding_comparisons(template: str) -> Iterator[nodes.Compare]:
    """Yield the comparisons that can make a condition true on their own."""
    tree = parse_syntax(template)
    pending: list[nodes.Node] = list(tree.body) if tree is not None and len(tree.body) == 1 else []
    while pending:
        node = pending.pop()
        if isinstance(node, nodes.Compare):
            yield node
        elif isinstance(node, nodes.If) and not (node.elif_ or node.else_):
            pending.append(node.test)
        elif isinstance(node, nodes.And | nodes.Or) or (
            isinstance(node, nodes.Output) and len(node.nodes) == 1
        ):
            pending.extend(node.iter_child_nodes())


def _ends_early(comparison: nodes.Compare, minimum: int) -> bool:
    """Return whether a full page of a smaller size makes a comparison true."""
    if len(comparison.ops) != 1:
        return False
    (operand,) = comparison.ops
    count, sign, bound = comparison.expr, operand.op, operand.expr
    if sign in _MIRRORED:
        count, sign, bound = bound, _MIRRORED[sign], count
    if sign not in _MIRRORED.values() or getattr(count, "name", None) != "last_page_size":
        return False
    if isinstance(bound, nodes.Const) and isinstance(bound.value, int):
        return bound.value + (sign == "lteq") > minimum
    names = [bound, *bound.find_all(nodes.Name)]
    return not any(getattr(name, "name", None) == "page_size" for name in names)


#: The most times that a slice is halved.
_MAX_DEPTH: Final = 10
#: The resolution of each format directive, the finest first.
_RESOLUTIONS: Final = (
    (("%epoch_microseconds", "%s_as_float", "%f"), timedelta(microseconds=1)),
    (("%_ms", "%ms"), timedelta(milliseconds=1)),
    (("%S", "%s"), timedelta(seconds=1)),
    (("%M",), timedelta(minutes=1)),
    (("%H", "%I"), timedelta(hours=1)),
    (("%d",), timedelta(days=1)),
)


@dataclass(frozen=True)
class Splitting:
    """The rules by which a stream's slices are halved.

    Attributes:
        cursor: the stream's cursor.
        shortest: slices up to this length are not halved; None: only slices of a single moment are
            not.
        advice: what to do if the API also refuses the smallest slices.
    """

    cursor: TimeCursor
    shortest: timedelta | None
    advice: str | None

    def halve(
        self, stream_slice: StreamSlice, depth: int, refusal: SourceError
    ) -> list[StreamSlice]:
        """Return the two halves of a slice.

        Args:
            depth: number of times that a longer slice was halved to get this one.
            refusal: the error that requires it.

        Raises:
            SourceError: the slice cannot be halved.
        """
        begin, end = self.cursor.names
        first, last = (self.cursor.parse(stream_slice.cursor_slice[name]) for name in (begin, end))
        middle = None if depth >= _MAX_DEPTH else self._middle(first, last)
        if middle is None:
            raise SourceError(
                f"The API rejects a slice that cannot be split. {refusal.message}",
                hint=self.advice or refusal.hint,
            ) from refusal
        return [
            StreamSlice(
                stream_slice.partition,
                {
                    **stream_slice.cursor_slice,
                    begin: self.cursor.format_time(lower),
                    end: self.cursor.format_time(upper),
                },
                stream_slice.extra_fields,
            )
            for lower, upper in ((first, middle[0]), (middle[1], last))
        ]

    def _middle(self, first: datetime, last: datetime) -> tuple[datetime, datetime] | None:
        """Return the end of the first half and the start of the second one, or None."""
        grain = self.cursor.slice_rules.granularity
        if first >= last or (self.shortest is not None and last - first <= self.shortest):
            return None
        if not isinstance(grain, timedelta):
            return None
        half = ((last - first) // grain + 1) // 2
        upper = first + half * grain - grain
        return (upper, upper + grain) if half else None


def splitting_of(retriever: SimpleRetriever, cursor: TimeCursor | None) -> Splitting | None:
    """Return the rules by which a retriever's slices are halved, or None if they are not.

    Raises:
        ConfigurationError: the settings contradict each other.
    """
    model = retriever.request_window_splitting
    if model is None:
        if Action.SPLIT_REQUEST_WINDOW in actions_of(retriever.requester.error_handler):
            raise ConfigurationError(
                "An error handler returns SPLIT_REQUEST_WINDOW, but the retriever has no "
                "request_window_splitting.",
                hint="Set request_window_splitting in the retriever.",
            )
        return None
    for reason in _splitting_conflicts(retriever, cursor):
        raise ConfigurationError(
            f"A request_window_splitting cannot be combined with {reason}.",
            hint="It needs a DatetimeBasedCursor with `step` and `cursor_granularity`.",
        )
    if cursor is None:
        return None
    return Splitting(cursor, _min_window(model.min_split_window), model.failure_message)


def _splitting_conflicts(retriever: SimpleRetriever, cursor: TimeCursor | None) -> Iterator[str]:
    if cursor is None or not cursor.slice_rules.granularity:
        yield "a stream without a cursor_granularity"
        return
    if cursor.is_filtered_client_side:
        yield "is_client_side_incremental, because requests do not contain the slice"
    if retriever.properties is not None:
        yield "properties that are requested in chunks"
    grain = cursor.slice_rules.granularity
    finest = next(
        (resolution for parts, resolution in _RESOLUTIONS if any(map(cursor.format.count, parts))),
        None,
    )
    if finest is not None and isinstance(grain, timedelta) and grain < finest:
        yield "a cursor_granularity that the datetime_format cannot represent"


def _min_window(text: str | None) -> timedelta | None:
    if not text:
        return None
    try:
        duration = iso_duration(text)
    except ValueError:
        duration = timedelta(0)
    if not isinstance(duration, timedelta) or duration <= timedelta(0):
        raise ConfigurationError(
            f"The min_split_window {text!r} is not a fixed duration.",
            hint="Use days, hours, minutes or seconds in ISO 8601, e.g. P1D.",
        )
    return duration
