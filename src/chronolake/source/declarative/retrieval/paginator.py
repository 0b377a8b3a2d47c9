"""Pagination: which page is next, and detection of repeated pages.

Pages that repeat: without an error, a stream whose API does so would be read for ever.

Nothing here reads anything, and what is kept does not grow with the number of pages.

Which page comes after an answer, and how a request asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from jinja2 import nodes

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.components.responses import response_of, slice_seen
from chronolake.source.declarative.http.request_builder import Injection, merged
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
from chronolake.source.declarative.records.decoders import decoded
from chronolake.source.declarative.templating.templates import as_truth, evaluated, syntax_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from chronolake.source.declarative.http.response import Answer
    from chronolake.source.declarative.records.selector import Page
    from chronolake.source.declarative.stream_slice import StreamSlice


_SHOWN: Final = 200
_SECOND: Final = 2
#: APIs that name their tokens so keep a place at the server: the same token gives the next page.
_PLACE_AT_SERVER: Final = "scroll"


@dataclass
class Repetition:
    """Notices that the pages of one slice repeat.

    Attributes:
        stream: the stream's name, for the error.
        mask: hides the configuration's secrets in a text.
        may_repeat: whether one token may lead from page to page.
        may_begin_twice: whether the second page may be the first one again.
    """

    stream: str
    mask: Callable[[str], str]
    may_repeat: bool = False
    may_begin_twice: bool = False
    page: int = field(default=0, init=False)
    _digest: bytes | None = field(default=None, init=False)
    _saved: Any = field(default=None, init=False)
    _since: int = field(default=0, init=False)
    _power: int = field(default=1, init=False)

    def restart(self) -> None:
        """The pages begin again from the first one."""
        self.page, self._digest = 0, None
        self._saved, self._since, self._power = None, 0, 1

    def raise_if_repeated(
        self,
        token: Mapping[str, Any] | None,
        following: Mapping[str, Any] | None,
        page: Page,
        size: int | None,
    ) -> None:
        """Raise SourceError if a page is the one before it, or leads to a page that has been read.

        Args:
            token: of the page that has come; None: it was asked for without one.
            following: of the page that would come next; None: there is none.
            page: the page.
            size: how many records a full page has; None: any number.
        """
        self.page += 1
        is_same = page.digest is not None and page.digest == self._digest
        self._digest = page.digest
        if following is None:
            return
        is_full = page.extracted >= (size or 1)
        if self.may_begin_twice and self.page == _SECOND:
            is_same = False
        if is_same and (is_full or following == token):
            raise self._error(token, f"has the same records as page {self.page - 1}")
        if self.may_repeat:
            return
        if self._saved is not None and following == self._saved:
            which = "its own token" if following == token else "the token of an earlier page"
            raise self._error(following, f"gives {which} as that of the next page")
        # After Brent: one token is compared with, and is replaced after 1, 2, 4, 8 … pages. So a
        # cycle of any length is noticed before it has been read four times.
        if self._saved is None or self._since == self._power:
            self._saved, self._since, self._power = following, 0, 2 * self._power
        self._since += 1

    def _error(self, token: Mapping[str, Any] | None, what: str) -> SourceError:
        value = None if token is None else next(iter(token.values()), None)
        shown = "no token" if value is None else f"token {self.mask(repr(value))[:_SHOWN]}"
        return SourceError(
            f"The pages of the stream {self.stream} do not end: page {self.page} ({shown}) {what}.",
            hint="Look at the API's answers with `chronolake read`, and correct the manifest's "
            "paginator. If the API uses one token for all pages, list the stream in the source's "
            "`may_repeat_tokens`.",
        )


def keeps_place(*texts: object) -> bool:
    """Return whether a paginator's names say that the API keeps the place of a token."""
    return any(isinstance(text, str) and _PLACE_AT_SERVER in text.lower() for text in texts)


#: What templates know as next_page_token: a mapping that has the token by that name.
Token = Mapping[str, Any]

_NAME = "next_page_token"
_PLACE = "the paginator"


class Headers(Mapping[str, Any]):
    """An answer's headers for templates: `link` is the parsed one, by the links' `rel`."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def __getitem__(self, name: str) -> Any:
        return self._answer.links if name == "link" else self._answer.headers[name]

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys([*self._answer.headers, "link"])

    def __len__(self) -> int:
        return len(list(iter(self)))


class Pages:
    """How a stream is paged, made ready once. It keeps nothing of what it reads."""

    def __init__(
        self,
        paginator: Paginator | None,
        config: Mapping[str, Any],
        decoder: Decoder,
        extractor: Extractor | None = None,
    ) -> None:
        """Makes ready what the manifest says.

        Args:
            paginator: of the stream; without one there is one page.
            config: what the user has set.
            decoder: of the answers, which templates see decoded.
            extractor: what finds the records that an offset is counted by, if it is known.

        Raises:
            ConfigurationError: the parts do not go together, or the size of pages is no number.
        """
        self._paginator = paginator if isinstance(paginator, DefaultPaginator) else None
        self._config = config
        self._decoder = decoder
        self._size: int | None = None
        if self._paginator is not None:
            self._check(self._paginator, extractor)

    def initial(self) -> Token | None:
        """The token of the first request, if it has one."""
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
        """Whether there can be more than one page."""
        return self._paginator is not None

    @property
    def keeps_place(self) -> bool:
        """Whether one token leads from page to page, as the manifest names it."""
        paginator = self._paginator
        if paginator is None:
            return False
        option, strategy = paginator.page_token_option, paginator.pagination_strategy
        names = [option.field_name] if isinstance(option, RequestOption) else []
        value = strategy.cursor_value if isinstance(strategy, CursorPagination) else None
        return keeps_place(value, *names)

    @property
    def may_begin_twice(self) -> bool:
        """Whether the second page is the first one again at an API that begins with page 1."""
        strategy = None if self._paginator is None else self._paginator.pagination_strategy
        if isinstance(strategy, PageIncrement):
            return strategy.start_from_page == 0
        # Offsets of pages of one record are used as numbers of pages.
        return isinstance(strategy, OffsetIncrement) and self._size == 1

    @property
    def size(self) -> int | None:
        """How many records a page is asked to have, if that is known before an answer is."""
        return self._size

    def injection(self, token: Token | None, size: int | None = None) -> Injection:
        """What is put into the request for a page: the size of pages, and its token.

        Args:
            token: of the page.
            size: of the page, if it is not the one of all pages.
        """
        page_token, page_size = Injection(place="the page token"), Injection(place="the page size")
        if self._paginator is not None:
            option, value = self._paginator.page_token_option, (token or {}).get(_NAME)
            if isinstance(option, RequestOption) and value is not None:
                page_token.put(option, value, self._config)
            if self._paginator.page_size_option is not None:
                option_of_size = self._paginator.page_size_option
                page_size.put(option_of_size, size or self._size, self._config)
        both = merged([page_token, page_size])
        both.place = _PLACE
        return both

    def path(self, token: Token | None) -> str | None:
        """The path or the whole URL of the request for a page, if its token is one."""
        is_path = self._paginator and isinstance(self._paginator.page_token_option, RequestPath)
        value = (token or {}).get(_NAME)
        return str(value) if is_path and value else None

    @property
    def adds_config(self) -> bool:
        """Return whether tokens hold values of the configuration beside what an answer says."""
        strategy = self._paginator and self._paginator.pagination_strategy
        return isinstance(strategy, CursorPagination) and _names(strategy.cursor_value, "config")

    def following(
        self,
        answer: Answer,
        extracted: int,
        last_record: Mapping[str, Any] | None,
        last_token: Token | None,
        *,
        last_page_size: int,
        stream_slice: StreamSlice,
        size: int | None = None,
    ) -> Token | None:
        """The token of the page after an answer, or None if that was the last one.

        Args:
            answer: of the page.
            extracted: how many records the answer had: page numbers and offsets go by it.
            last_record: the last one that was kept, or None.
            last_token: of the request that was answered.
            last_page_size: how many records were kept: templates see this number.
            stream_slice: what templates know as such.
            size: of the page, if it is not the one of all pages.

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
            value = self._cursor(strategy, answer, variables)
        elif isinstance(strategy, CustomPaginationStrategy):
            more: dict[str, Any] = {} if size is None else {"page_size_override": size}
            if strategy.calls.takes("next_page_token", "stream_slice"):
                more["stream_slice"] = slice_seen(stream_slice)
            value = strategy.calls.call(
                "next_page_token",
                response=response_of(answer, extracted=extracted),
                last_page_size=last_page_size,
                last_record=last_record,
                last_page_token_value=last,
                **more,
            )
        elif extracted == 0 or extracted < (size or self._requested_size(strategy, answer) or 0):
            value = None
        elif isinstance(strategy, PageIncrement):
            value = (strategy.start_from_page if last is None else last) + 1
        else:
            value = (last or 0) + extracted
        return {_NAME: value} if value else None

    def _cursor(self, strategy: CursorPagination, answer: Answer, variables: dict[str, Any]) -> Any:
        texts = (strategy.stop_condition, strategy.cursor_value)
        variables |= {
            "config": self._config,
            "parameters": strategy.parameters,
            "headers": Headers(answer),
            # Decoded again, as records are changed in place, but only if somebody looks.
            "response": self._seen(answer)
            if any(_names(text, "response") for text in texts)
            else {},
        }
        if strategy.stop_condition and as_truth(strategy.stop_condition, variables):
            return None
        return evaluated(strategy.cursor_value, variables, default=strategy.cursor_value)

    def _seen(self, answer: Answer) -> Any:
        """The answer as templates see it: of a root array the first item."""
        return next(iter(decoded(self._decoder, answer)), {})

    def _requested_size(self, strategy: PaginationStrategy, answer: Answer) -> int | None:
        if _is_in_responses(strategy):
            return self._evaluated_size(strategy, {"response": self._seen(answer)})
        return self._size

    def _evaluated_size(
        self, strategy: PaginationStrategy, variables: Mapping[str, Any]
    ) -> int | None:
        if isinstance(strategy, CustomPaginationStrategy):
            reported = (
                strategy.calls.call("get_page_size") if strategy.calls.has("get_page_size") else 0
            )
            return reported if isinstance(reported, int) and reported else None
        size = strategy.page_size
        if isinstance(size, str) and size:
            context = {**variables, "config": self._config, "parameters": strategy.parameters}
            size = int(size) if size.isdigit() else evaluated(size, context, default=size)
            if not isinstance(size, int):
                raise ConfigurationError(
                    f"The page_size {strategy.page_size!r} is no whole number.",
                    hint="Write a number, or a template that gives one.",
                )
        return size if isinstance(size, int) and size else None

    def _check(self, paginator: DefaultPaginator, extractor: Extractor | None) -> None:
        strategy = paginator.pagination_strategy
        if not _is_seen_by_templates(self._decoder):
            raise ConfigurationError(
                f"Answers that a {self._decoder.type} reads cannot be paged.",
                hint="Use a JsonDecoder or an XmlDecoder, or NoPagination.",
            )
        if isinstance(strategy, OffsetIncrement) and _unites(extractor):
            raise ConfigurationError(
                "An OffsetIncrement cannot count the records of a CombinedExtractor that unites.",
                hint="Use its mode first_match, or another pagination strategy.",
            )
        if not _is_in_responses(strategy):
            self._size = self._evaluated_size(strategy, {})
        if paginator.page_size_option and self._size is None:
            raise ConfigurationError(
                "There is a page_size_option, but no page_size that is known before an answer is.",
                hint="Set the page_size of the pagination strategy.",
            )
        if isinstance(strategy, CursorPagination) and self._size is None:
            for text in (strategy.stop_condition, strategy.cursor_value):
                if _names(text, "page_size"):
                    raise ConfigurationError(
                        f"The template {text!r} reads page_size, which is not set.",
                        hint="Set the page_size of the CursorPagination.",
                    )
        # The token and the size are refused in the same place before anything is requested.
        self.injection({_NAME: "a token"})


def _is_in_responses(strategy: PaginationStrategy) -> bool:
    return isinstance(strategy, OffsetIncrement) and _names(strategy.page_size, "response")


def _is_seen_by_templates(decoder: Decoder) -> bool:
    within = decoder.decoder if isinstance(decoder, GzipDecoder) else decoder
    return isinstance(within, JsonDecoder) or isinstance(decoder, XmlDecoder | CustomDecoder)


def _unites(extractor: Extractor | None) -> bool:
    return isinstance(extractor, CombinedExtractor) and (
        extractor.mode == "union" or any(map(_unites, extractor.extractors))
    )


@cache
def _names(text: object, variable: str) -> bool:
    """Whether a template reads a variable."""
    tree = syntax_of(text) if isinstance(text, str) else None
    return tree is not None and any(name.name == variable for name in tree.find_all(nodes.Name))
