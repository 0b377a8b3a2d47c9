"""Simple retriever: the pages of a slice, and property chunking.

Property chunking requests the properties of records in chunks, and merges the partial records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.field_paths import MISSING, only_value, path_of
from chronolake.source.declarative.http.client import ReadDifferentlyError
from chronolake.source.declarative.http.error_handler import Action
from chronolake.source.declarative.http.request_builder import Injection, request_of
from chronolake.source.declarative.models.records import JsonDecoder
from chronolake.source.declarative.models.streams import PropertiesFromEndpoint, SimpleRetriever
from chronolake.source.declarative.records.selector import Page, Selection
from chronolake.source.declarative.records.transformations import step_of
from chronolake.source.declarative.retrieval.lazy_read import first_page_in
from chronolake.source.declarative.retrieval.pagination_reset import (
    Latest,
    PageSizes,
    Restarts,
    check_reset,
    check_sizes,
    splitting_of,
)
from chronolake.source.declarative.retrieval.paginator import Pages, Repetition
from chronolake.source.declarative.stream_slice import StreamSlice

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from chronolake.source.declarative.api import Api
    from chronolake.source.declarative.cursors.datetime_cursor import TimeCursor
    from chronolake.source.declarative.http.response import Answer
    from chronolake.source.declarative.models.records import Transformation
    from chronolake.source.declarative.models.streams import PropertyChunking, QueryProperties
    from chronolake.source.declarative.records.extractors import Extracted, Fetch
    from chronolake.source.declarative.records.selector import Keep
    from chronolake.source.declarative.records.transformations import Record
    from chronolake.source.declarative.retrieval.paginator import Token


#: The key of a slice's extra fields that holds the properties to request.
_NAME = "query_properties"
#: Length of an encoded separator between two names in a request.
_SEPARATOR = 3


class Properties:
    """The properties that a stream requests; thread-safe."""

    def __init__(
        self,
        model: QueryProperties,
        config: Mapping[str, Any],
        schema: Mapping[str, Any] | None,
        fetch_of: Callable[[SimpleRetriever], Callable[[], Iterable[Record]]],
    ) -> None:
        """Prepare the reading of the properties.

        Args:
            model: the manifest's component.
            config: the user's configuration.
            schema: the stream's schema, for a property selector.
            fetch_of: returns a function that reads all records of a retriever.

        Raises:
            ConfigurationError: the endpoint's retriever is invalid.
        """
        wanted = model.property_list
        self._model = model
        self._config = config
        self._fetch: Callable[[], Iterable[Record]] = tuple
        if isinstance(wanted, PropertiesFromEndpoint):
            self._fetch = fetch_of(wanted.retriever)
        self._selected = _selected(model, config, schema)
        self._told: list[str] | None = None
        self._lock = threading.Lock()

    def slices(self, one: StreamSlice) -> Iterator[StreamSlice]:
        """Yield a copy of a slice for each chunk of properties.

        Raises:
            SourceError: the API does not return the properties.
        """
        for names in self._chunks():
            yield StreamSlice(one.partition, one.cursor_slice, {_NAME: names})

    def united(self, parts: Sequence[Sequence[Record]]) -> list[Record]:
        """Return the records of several requests; records with the same key are merged."""
        records: list[Record] = []
        by_key: dict[tuple[str, ...], Record] = {}
        for record in (record for part in parts for record in part):
            key = self._key(record)
            if key is None:
                records.append(record)
            else:
                _merge(by_key.setdefault(key, {}), record)
        return [*records, *by_key.values()]

    def _key(self, record: Record) -> tuple[str, ...] | None:
        chunking = self._model.property_chunking
        if chunking is None:
            return None
        strategy = chunking.record_merge_strategy
        values = [record.get(name) for name in (strategy.key if strategy else ("id",))]
        return tuple(map(str, values)) if all(values) else None

    def _names(self) -> Sequence[str]:
        wanted = self._model.property_list
        if not isinstance(wanted, PropertiesFromEndpoint):
            return wanted
        with self._lock:
            if self._told is None:
                path = path_of(wanted.property_field_path, self._config, wanted.parameters)
                found = (only_value(record, path) for record in self._fetch())
                self._told = [str(name) for name in found if name is not MISSING]
            return self._told

    def _chunks(self) -> Iterator[list[str]]:
        names, chunking = self._names(), self._model.property_chunking
        always = self._model.always_include_properties or ()
        if chunking is not None and not chunking.property_limit:
            yield [*names, *always]
            return
        if self._selected is not None:
            names = [name for name in names if name in self._selected]
        if chunking is None:
            yield [*always, *names]
            return
        for chunk in _cut(names, chunking):
            yield [*always, *chunk]


def _cut(names: Sequence[str], chunking: PropertyChunking) -> Iterator[list[str]]:
    chunk: list[str] = []
    size, most = 0, chunking.property_limit or 0
    for name in names:
        more = len(name) + _SEPARATOR if chunking.property_limit_type == "characters" else 1
        if size + more > most:
            yield chunk
            chunk, size = [], 0
        chunk.append(name)
        size += more
    yield chunk


def _selected(
    model: QueryProperties, config: Mapping[str, Any], schema: Mapping[str, Any] | None
) -> set[str] | None:
    """Return the selected properties of the stream's schema, or None if all are requested."""
    declared = (schema or {}).get("properties")
    if model.property_selector is None or not isinstance(declared, dict) or not declared:
        return None
    found: Record = {name: {} for name in declared}
    for transformation in model.property_selector.transformations:
        found = step_of(transformation, config)({"config": config, "stream_slice": StreamSlice()})(
            found
        )
    return set(found)


def _merge(target: Record, source: Mapping[str, Any]) -> None:
    for name, value in source.items():
        held = target.get(name)
        if isinstance(held, dict) and isinstance(value, dict):
            _merge(held, value)
        else:
            target[name] = value


#: Injects a slice's values into a request.
Inject = Callable[[Injection, StreamSlice], None]


def _nothing(into: Injection, one: StreamSlice) -> None:
    """Inject nothing, because a retriever without a stream has no slices."""


def _everything(record: Record) -> bool:  # noqa: ARG001 - keeps every record
    return True


class Retrieval:
    """A prepared retriever; thread-safe."""

    def __init__(
        self,
        retriever: SimpleRetriever,
        api: Api,
        name: str,
        *,
        transformations: Iterable[Transformation] = (),
        schema: Mapping[str, Any] | None = None,
        cursor: TimeCursor | None = None,
        latest: Callable[[], Latest] | None = None,
        inject: Inject = _nothing,
        is_embedded: bool = False,
    ) -> None:
        """Prepare the requests and the record selector.

        Args:
            retriever: the manifest's component.
            api: the API to read from.
            name: the stream's name.
            transformations: the stream's.
            schema: the stream's.
            cursor: the stream's datetime cursor, if it has one.
            latest: returns an object that determines from which record a slice can be continued.
            inject: injects a slice's values into a request.
            is_embedded: whether the first page of a slice is embedded in it.

        Raises:
            ConfigurationError: the manifest's settings contradict each other.
        """
        decoder = retriever.decoder or JsonDecoder(type="JsonDecoder")
        self._api = api
        self._requester = retriever.requester
        self._sender = api.sender(retriever.requester, name)
        self._inject = inject
        self._ignores_slicer = retriever.ignore_stream_slicer_parameters_on_paginated_requests
        self._is_embedded = is_embedded
        self._is_feed = cursor is not None and cursor.is_data_feed
        self._is_filtered = cursor is not None and cursor.is_filtered_here
        self._pages = Pages(
            retriever.paginator, api.config, decoder, retriever.record_selector.extractor
        )
        self._repetition = partial(
            Repetition,
            name,
            api.access.network.mask,
            may_repeat=self._pages.keeps_place or name in api.may_repeat_tokens,
            may_begin_twice=self._pages.may_begin_twice,
        )
        self._selection = Selection(
            retriever.record_selector,
            decoder=decoder,
            transformations=transformations,
            config=api.config,
            schema=schema,
            is_client_side=self._is_filtered,
            fetch_of=self._fetch_of,
            may_lack_records=name in api.may_lack_records,
            is_paged=self._pages.is_paged,
        )
        self._reset = check_reset(retriever)
        self._latest = latest
        self._reduction = check_sizes(retriever, self._pages.size)
        self._splitting = splitting_of(retriever, cursor)
        self._properties = (
            None
            if retriever.properties is None
            else Properties(retriever.properties, api.config, schema, self._properties_of)
        )

    def records(self, one: StreamSlice) -> Iterator[Record]:
        """Yield the records of a slice; raise the same errors as `pages`."""
        for page in self.pages(one, _everything):
            yield from page.records

    def selected(self, found: Extracted, one: StreamSlice, keep: Keep) -> Page:
        """Return the selected records of a slice that was not read page by page.

        Args:
            found: the extracted records.
            one: the slice.
            keep: whether a record is within the wanted range.

        Raises:
            SourceError: there are records that are not objects.
            ConfigurationError: a template cannot be evaluated.
        """
        return self._selection.selected(found, one, keep=self._filter(keep))

    def pages(self, one: StreamSlice, keep: Keep, depth: int = 0) -> Iterator[Page]:
        """Yield the pages of a slice; each is requested when it is needed.

        Args:
            one: the slice.
            keep: whether a record is within the wanted range.
            depth: number of times that a longer slice was halved to get this one.

        Raises:
            SourceError: the API does not respond, or its response contains no records.
            ConfigurationError: the requests cannot be built from the manifest and the
                configuration.
        """
        try:
            yield from self._whole(one, keep)
        except ReadDifferentlyError as refusal:
            if self._splitting is None or refusal.action is not Action.SPLIT_REQUEST_WINDOW:
                raise
            halves = self._splitting.halves(one, depth, refusal)
        else:
            return
        for half in halves:
            yield from self.pages(half, keep, depth + 1)

    def _whole(self, one: StreamSlice, keep: Keep) -> Iterator[Page]:
        """Yield the pages of a slice without halving it."""
        restarts, sizes, repetition = self._restarts(one), self._sizes(), self._repetition()
        given = first_page_in(one) if self._is_embedded else None
        token = self._pages.initial() if given is None else None
        asked = one
        while True:
            size = None if sizes is None else sizes.size
            try:
                if given is not None:
                    answer: Answer | None = given
                    page = self._page(given, one, token, keep)
                else:
                    answer, page, asked = self._asked(one, asked, token, keep, size)
            except ReadDifferentlyError as refusal:
                if refusal.action is Action.REDUCE_PAGE_SIZE and sizes is not None:
                    self._sender.wait(sizes.smaller(refusal))
                elif refusal.action is Action.RESET_PAGINATION:
                    asked, token = restarts.again(asked), self._pages.initial()
                    repetition.restart()
                else:
                    raise
                continue
            given = None
            if sizes is not None:
                sizes.succeeded()
            restarts.saw(page.records)
            is_over = answer is None or (
                self._is_feed and page.last is not None and not keep(page.last)
            )
            following = (
                None
                if answer is None or is_over or restarts.is_due
                else self._pages.following(
                    answer,
                    page.extracted,
                    page.last,
                    token,
                    last_page_size=len(page.records),
                    stream_slice=asked,
                    size=size,
                )
            )
            repetition.raise_if_repeated(token, following, page, size or self._pages.size)
            yield self._wanted(page, keep)
            if not is_over and restarts.is_due:
                repetition.restart()
                asked, token = restarts.again(asked), self._pages.initial()
            elif following is None:
                return
            else:
                token = following

    def _asked(
        self,
        one: StreamSlice,
        asked: StreamSlice,
        token: Token | None,
        keep: Keep,
        size: int | None,
    ) -> tuple[Answer | None, Page, StreamSlice]:
        """Return a page, its response (None: an ignored error) and the slice that was requested.

        If the page is requested in chunks of properties, response and slice are those of the last
        chunk.
        """
        if self._properties is None:
            answer = self._sent(asked, token, size)
            return answer, self._page(answer, one, token, keep), asked
        parts: list[Page] = []
        answer = None
        for asked in self._properties.slices(asked):  # noqa: PLR1704, B020 - the next chunk
            answer = self._sent(asked, token, size)
            parts.append(self._page(answer, one, token, keep))
        records = self._properties.united([part.records for part in parts])
        digests = [part.digest for part in parts if part.digest is not None]
        digest = b"".join(digests) if len(digests) == len(parts) else None
        return answer, Page(records, parts[-1].extracted, digest), asked

    def _sent(self, asked: StreamSlice, token: Token | None, size: int | None) -> Answer | None:
        slicer = Injection(place="the slice")
        if token is None or not self._ignores_slicer:
            self._inject(slicer, asked)
        return self._sender.send(
            request_of(
                self._requester,
                self._api.config,
                stream_slice=asked,
                next_page_token=token,
                injected=[self._pages.injection(token, size), slicer],
                path=self._pages.path(token),
                is_mixed=self._pages.adds_config,
            )
        )

    def _page(
        self, answer: Answer | None, one: StreamSlice, token: Token | None, keep: Keep
    ) -> Page:
        if answer is None:
            return Page([], 0)
        return self._selection.page(answer, one, token, keep=self._filter(keep))

    def _filter(self, keep: Keep) -> Keep | None:
        """Return the filter that applies before pagination; a data feed is filtered afterwards."""
        return keep if self._is_filtered and not self._is_feed else None

    def _wanted(self, page: Page, keep: Keep) -> Page:
        if not self._is_feed:
            return page
        return replace(page, records=[record for record in page.records if keep(record)])

    def _restarts(self, one: StreamSlice) -> Restarts:
        if self._reset is None:
            return Restarts(one)
        limits = self._reset.limits
        latest = self._latest if self._reset.action == "SPLIT_USING_CURSOR" else None
        return Restarts(
            one,
            None if limits is None else limits.number_of_records,
            None if latest is None else latest(),
        )

    def _sizes(self) -> PageSizes | None:
        if self._reduction is None or self._pages.size is None:
            return None
        return PageSizes(self._reduction, self._pages.size)

    # ------------------------------------------------------------------ nested retrievers

    def _properties_of(self, retriever: SimpleRetriever) -> Callable[[], Iterator[Record]]:
        """Return a function that reads the names of properties."""
        retrieval = Retrieval(retriever, self._api, "properties")
        return lambda: retrieval.records(StreamSlice())

    def _fetch_of(self, described: Mapping[str, Any]) -> Fetch:
        """Return a function that reads the complete list of a record whose list is truncated."""
        try:
            retriever = SimpleRetriever.model_validate(described)
        except ValidationError as failure:
            (first, *_) = failure.errors(include_url=False, include_input=False)
            where = ".".join(["truncated_list_retriever", *map(str, first["loc"])])
            raise ConfigurationError(
                f"{where}: {first['msg']}.", hint="It is written as a stream's retriever is."
            ) from failure
        if retriever.partition_router or retriever.pagination_reset:
            raise ConfigurationError(
                "A truncated_list_retriever has no partition_router and no pagination_reset.",
                hint="The record is its partition: stream_slice['parent_record'].",
            )
        retrieval = Retrieval(retriever, self._api, "record_expander")
        return lambda record: retrieval.records(StreamSlice({"parent_record": record}))
