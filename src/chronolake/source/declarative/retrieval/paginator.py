"""Pagination of an API: the next page's token, its request options, and repeated pages.

If an API returned the same pages again and again, a stream would be read forever without an error.
This module is pure, and its memory does not grow with the number of pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from jinja2 import nodes

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.http.decoders import decode
from chronolake.source.declarative.http.request_builder import Injection, merge
from chronolake.source.declarative.http.requests_conversion import to_requests_response
from chronolake.source.declarative.models.base import CustomDecoder, CustomPaginationStrategy
from chronolake.source.declarative.models.pagination import (
    CursorPagination,
    DefaultPaginator,
    OffsetIncrement,
    PageIncrement,
    PaginationStrategy,
    Paginator,
)
from chronolake.source.declarative.models.records import (
    CombinedExtractor,
    Decoder,
    Extractor,
    GzipDecoder,
    JsonDecoder,
    XmlDecoder,
)
from chronolake.source.declarative.models.requests import RequestOption, RequestPath
from chronolake.source.declarative.stream_slice import slice_for_class
from chronolake.source.declarative.templating.templates import as_truth, evaluate, parse_syntax

if TYPE_CHECKING:
    from collections.abc import Callable

    from chronolake.source.declarative.http.response import Response
    from chronolake.source.declarative.records.selector import Page
    from chronolake.source.declarative.stream_slice import StreamSlice


_MAX_SHOWN: Final = 200
_SECOND: Final = 2
#: Repetitions of a page that is shorter than a full one. Two such pages may be equal by chance, but
#: an API may also ignore the tokens and have a smaller page size than the manifest requests.
_SHORT_REPETITIONS: Final = 10
#: APIs whose tokens have this word in their name store the position: the same token returns the
#: next page.
_STORED_POSITION: Final = "scroll"


@dataclass
class Repetition:
    """Detection of repeated pages in one slice.

    Attributes:
        stream: the stream's name, for the error.
        mask: replaces the configuration's secrets in a text.
        may_repeat: whether the same token may be used for several pages.
        may_begin_twice: whether the second page may be the first one again.
    """

    stream: str
    mask: Callable[[str], str]
    may_repeat: bool = False
    may_begin_twice: bool = False
    page: int = field(default=0, init=False)
    _digest: bytes | None = field(default=None, init=False)
    _repetitions: int = field(default=0, init=False)
    _saved: Any = field(default=None, init=False)
    _since: int = field(default=0, init=False)
    _power: int = field(default=1, init=False)

    def restart(self) -> None:
        """Reset the detection, because pagination restarts from the first page."""
        self.page, self._digest, self._repetitions = 0, None, 0
        self._saved, self._since, self._power = None, 0, 1

    def raise_if_repeated(
        self,
        token: Mapping[str, Any] | None,
        next_token: Mapping[str, Any] | None,
        page: Page,
        size: int | None,
    ) -> None:
        """Raise SourceError if a page equals the previous one, or leads to a page already read.

        Args:
            token: the token of this page, or None.
            next_token: the token of the next page, or None after the last page.
            size: number of records in a full page, or None if it is unknown.
        """
        self.page += 1
        is_same = page.digest is not None and page.digest == self._digest
        self._digest = page.digest
        self._repetitions = self._repetitions + 1 if is_same and page.extracted else 0
        if next_token is None:
            return
        is_full = page.extracted >= (size or 1) or self._repetitions == _SHORT_REPETITIONS
        if self.may_begin_twice and self.page == _SECOND:
            is_same = False
        if is_same and (is_full or next_token == token):
            raise self._error(token, f"has the same records as page {self.page - 1}")
        if self.may_repeat:
            return
        if self._saved is not None and next_token == self._saved:
            source = "its own token" if next_token == token else "the token of an earlier page"
            raise self._error(next_token, f"returns {source} as the next page's token")
        # Brent's algorithm: one token is stored for comparison, and replaced after 1, 2, 4, 8 …
        # pages. A cycle of any length is detected before it has been read four times.
        if self._saved is None or self._since == self._power:
            self._saved, self._since, self._power = next_token, 0, 2 * self._power
        self._since += 1

    def _error(self, token: Mapping[str, Any] | None, problem: str) -> SourceError:
        value = None if token is None else next(iter(token.values()), None)
        description = (
            "no token" if value is None else f"token {self.mask(repr(value))[:_MAX_SHOWN]}"
        )
        return SourceError(
            f"The pages of the stream {self.stream} do not end: page {self.page} ({description}) "
            f"{problem}.",
            hint="Check the API's responses with `chronolake read`, and correct the manifest's "
            "paginator. If the API uses one token for all pages, list the stream in the source's "
            "`may_repeat_tokens`.",
        )


def stores_position(*texts: object) -> bool:
    """Return whether a paginator's names suggest that the API stores the position of a token."""
    return any(isinstance(text, str) and _STORED_POSITION in text.lower() for text in texts)


#: The templates' variable next_page_token: a mapping with the token under that name.
Token = Mapping[str, Any]

_NAME = "next_page_token"
_PLACE = "the paginator"


class Headers(Mapping[str, Any]):
    """A response's headers for templates; `link` contains the parsed links by their `rel`."""

    def __init__(self, response: Response) -> None:
        self._response = response

    def __getitem__(self, name: str) -> Any:
        return self._response.links if name == "link" else self._response.headers[name]

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys([*self._response.headers, "link"])

    def __len__(self) -> int:
        return len(list(iter(self)))


class Pages:
    """A prepared paginator; it has no state."""

    def __init__(
        self,
        paginator: Paginator | None,
        config: Mapping[str, Any],
        decoder: Decoder,
        extractor: Extractor | None = None,
    ) -> None:
        """Prepare the paginator and check its settings.

        Args:
            paginator: the stream's; without one there is one page.
            config: the user's configuration.
            decoder: decodes responses, also for templates.
            extractor: finds the records that an offset counts, if it is known.

        Raises:
            ConfigurationError: the settings contradict each other, or the page size is not a
                number.
        """
        self._paginator = paginator if isinstance(paginator, DefaultPaginator) else None
        self._config = config
        self._decoder = decoder
        self._size: int | None = None
        if self._paginator is not None:
            self._check(self._paginator, extractor)

    def initial_token(self) -> Token | None:
        """Return the token of the first request, or None."""
        match self._paginator and self._paginator.pagination_strategy:
            case PageIncrement(inject_on_first_request=True, start_from_page=page):
                return {_NAME: page}
            case OffsetIncrement(inject_on_first_request=True):
                return {_NAME: 0}
            case CustomPaginationStrategy(calls=calls):
                token = calls.value("initial_token")
                return None if token is None else {_NAME: token}
        return None

    @property
    def is_paged(self) -> bool:
        """Return whether there can be more than one page."""
        return self._paginator is not None

    @property
    def stores_position(self) -> bool:
        """Return whether one token is used for several pages, according to the manifest's names."""
        paginator = self._paginator
        if paginator is None:
            return False
        option, strategy = paginator.page_token_option, paginator.pagination_strategy
        field_names = [option.field_name] if isinstance(option, RequestOption) else []
        value = strategy.cursor_value if isinstance(strategy, CursorPagination) else None
        return stores_position(value, *field_names)

    @property
    def may_begin_twice(self) -> bool:
        """Return whether an API that counts from page 1 would return the first page twice."""
        strategy = None if self._paginator is None else self._paginator.pagination_strategy
        if isinstance(strategy, PageIncrement):
            return strategy.start_from_page == 0
        # With one record per page, offsets are often used as page numbers.
        return isinstance(strategy, OffsetIncrement) and self._size == 1

    @property
    def size(self) -> int | None:
        """Return the page size, if it is known before the first response."""
        return self._size

    def injection(self, token: Token | None, size: int | None = None) -> Injection:
        """Return the request options of a page: its size and its token.

        Args:
            token: the page's token.
            size: the page's size, if it differs from the configured one.
        """
        page_token, page_size = Injection(place="the page token"), Injection(place="the page size")
        if self._paginator is not None:
            option, value = self._paginator.page_token_option, (token or {}).get(_NAME)
            if isinstance(option, RequestOption) and value is not None:
                page_token.put(option, value, self._config)
            if self._paginator.page_size_option is not None:
                option_of_size = self._paginator.page_size_option
                page_size.put(option_of_size, size or self._size, self._config)
        combined = merge([page_token, page_size])
        combined.place = _PLACE
        return combined

    def path(self, token: Token | None) -> str | None:
        """Return the path or URL of the request for a page, if its token is one."""
        is_path = self._paginator and isinstance(self._paginator.page_token_option, RequestPath)
        value = (token or {}).get(_NAME)
        return str(value) if is_path and value else None

    @property
    def adds_config(self) -> bool:
        """Return whether tokens combine values of the configuration with values of a response."""
        strategy = self._paginator and self._paginator.pagination_strategy
        return isinstance(strategy, CursorPagination) and _refers_to(
            strategy.cursor_value, "config"
        )

    def next_token(
        self,
        response: Response,
        extracted: int,
        last_record: Mapping[str, Any] | None,
        last_token: Token | None,
        *,
        last_page_size: int,
        stream_slice: StreamSlice,
        size: int | None = None,
    ) -> Token | None:
        """Return the token of the next page, or None after the last one.

        Args:
            response: the page's response.
            extracted: number of records in the response; page numbers and offsets depend on it.
            last_record: the last record that was kept, or None.
            last_token: the token of the page's request.
            last_page_size: number of records that were kept, for templates.
            stream_slice: for templates.
            size: the page's size, if it differs from the configured one.

        Raises:
            ConfigurationError: a template cannot be evaluated.
        """
        if self._paginator is None:
            return None
        strategy = self._paginator.pagination_strategy
        last = (last_token or {}).get(_NAME)
        if isinstance(strategy, CursorPagination):
            variables = {
                "last_record": last_record,
                "last_page_size": last_page_size,
                "stream_slice": stream_slice,
                "page_size": size or self._size,
            }
            value = self._cursor(strategy, response, variables)
        elif isinstance(strategy, CustomPaginationStrategy):
            arguments: dict[str, Any] = {} if size is None else {"page_size_override": size}
            if strategy.calls.takes("next_page_token", "stream_slice"):
                arguments["stream_slice"] = slice_for_class(stream_slice)
            value = strategy.calls.call(
                "next_page_token",
                response=to_requests_response(response, extracted=extracted),
                last_page_size=last_page_size,
                last_record=last_record,
                last_page_token_value=last,
                **arguments,
            )
        elif extracted == 0 or extracted < (size or self._requested_size(strategy, response) or 0):
            value = None
        elif isinstance(strategy, PageIncrement):
            value = (strategy.start_from_page if last is None else last) + 1
        else:
            value = (last or 0) + extracted
        return {_NAME: value} if value else None

    def _cursor(
        self, strategy: CursorPagination, response: Response, variables: dict[str, Any]
    ) -> Any:
        texts = (strategy.stop_condition, strategy.cursor_value)
        variables |= {
            "config": self._config,
            "parameters": strategy.parameters,
            "headers": Headers(response),
            # Decoded a second time, because records are changed in place, but only if a template
            # needs it.
            "response": self._decode_for_templates(response)
            if any(_refers_to(text, "response") for text in texts)
            else {},
        }
        if strategy.stop_condition and as_truth(strategy.stop_condition, variables):
            return None
        return evaluate(strategy.cursor_value, variables, default=strategy.cursor_value)

    def _decode_for_templates(self, response: Response) -> Any:
        """Return a response for templates: the first item, if it is an array."""
        return next(iter(decode(self._decoder, response)), {})

    def _requested_size(self, strategy: PaginationStrategy, response: Response) -> int | None:
        if _is_size_in_response(strategy):
            return self._evaluate_size(strategy, {"response": self._decode_for_templates(response)})
        return self._size

    def _evaluate_size(
        self, strategy: PaginationStrategy, variables: Mapping[str, Any]
    ) -> int | None:
        if isinstance(strategy, CustomPaginationStrategy):
            size_of_class = (
                strategy.calls.call("get_page_size") if strategy.calls.has("get_page_size") else 0
            )
            return size_of_class if isinstance(size_of_class, int) and size_of_class else None
        size = strategy.page_size
        if isinstance(size, str) and size:
            context = {**variables, "config": self._config, "parameters": strategy.parameters}
            size = int(size) if size.isdigit() else evaluate(size, context, default=size)
            if not isinstance(size, int):
                raise ConfigurationError(
                    f"The page_size {strategy.page_size!r} is not a whole number.",
                    hint="Set a number, or a template that renders to one.",
                )
        return size if isinstance(size, int) and size else None

    def _check(self, paginator: DefaultPaginator, extractor: Extractor | None) -> None:
        strategy = paginator.pagination_strategy
        if not _can_be_paged(self._decoder):
            raise ConfigurationError(
                f"Responses for a {self._decoder.type} cannot be paginated.",
                hint="Use a JsonDecoder or an XmlDecoder, or NoPagination.",
            )
        if isinstance(strategy, OffsetIncrement) and _is_union(extractor):
            raise ConfigurationError(
                "An OffsetIncrement cannot count the records of a CombinedExtractor in union mode.",
                hint="Use its mode first_match, or another pagination strategy.",
            )
        if not _is_size_in_response(strategy):
            self._size = self._evaluate_size(strategy, {})
        if paginator.page_size_option and self._size is None:
            raise ConfigurationError(
                "There is a page_size_option, but no page_size that is known before a response.",
                hint="Set the page_size of the pagination strategy.",
            )
        if isinstance(strategy, CursorPagination) and self._size is None:
            for text in (strategy.stop_condition, strategy.cursor_value):
                if _refers_to(text, "page_size"):
                    raise ConfigurationError(
                        f"The template {text!r} uses page_size, which is not set.",
                        hint="Set the page_size of the CursorPagination.",
                    )
        # This reports conflicts between token and size before anything is requested.
        self.injection({_NAME: "a token"})


def _is_size_in_response(strategy: PaginationStrategy) -> bool:
    return isinstance(strategy, OffsetIncrement) and _refers_to(strategy.page_size, "response")


def _can_be_paged(decoder: Decoder) -> bool:
    inner = decoder.decoder if isinstance(decoder, GzipDecoder) else decoder
    return isinstance(inner, JsonDecoder) or isinstance(decoder, XmlDecoder | CustomDecoder)


def _is_union(extractor: Extractor | None) -> bool:
    return isinstance(extractor, CombinedExtractor) and (
        extractor.mode == "union" or any(map(_is_union, extractor.extractors))
    )


@cache
def _refers_to(text: object, variable: str) -> bool:
    """Return whether a template refers to a variable."""
    tree = parse_syntax(text) if isinstance(text, str) else None
    return tree is not None and any(name.name == variable for name in tree.find_all(nodes.Name))
