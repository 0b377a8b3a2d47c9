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
from chronolake.source.declarative.field_paths import evaluate_path, get_only_value
from chronolake.source.declarative.http.client import ReadDifferentlyError
from chronolake.source.declarative.http.error_handler import Action
from chronolake.source.declarative.http.request_builder import Injection, build_request
from chronolake.source.declarative.models.records import JsonDecoder
from chronolake.source.declarative.models.streams import PropertiesFromEndpoint, SimpleRetriever
from chronolake.source.declarative.records.selector import Page, Selection
from chronolake.source.declarative.records.transformations import create_step
from chronolake.source.declarative.retrieval.lazy_read import first_page_in
from chronolake.source.declarative.retrieval.pagination_reset import (
    LatestRecord,
    PageSizes,
    Restarts,
    check_reset,
    check_sizes,
    splitting_of,
)
from chronolake.source.declarative.retrieval.paginator import Pages, Repetition
from chronolake.source.declarative.stream_slice import StreamSlice
from chronolake.source.records.lookup import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from chronolake.source.declarative.api import Api
    from chronolake.source.declarative.cursors.datetime_cursor import TimeCursor
    from chronolake.source.declarative.http.response import Response
    from chronolake.source.declarative.models.records import Transformation
    from chronolake.source.declarative.models.streams import PropertyChunking, QueryProperties
    from chronolake.source.declarative.records.extractors import ExtractedRecords, Fetch
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
        properties = model.property_list
        self._model = model
        self._config = config
        self._fetch: Callable[[], Iterable[Record]] = tuple
        if isinstance(properties, PropertiesFromEndpoint):
            self._fetch = fetch_of(properties.retriever)
        self._selected_properties = _selected_properties(model, config, schema)
        self._fetched_names: list[str] | None = None
        self._lock = threading.Lock()

    def slices(self, stream_slice: StreamSlice) -> Iterator[StreamSlice]:
        """Yield a copy of a slice for each chunk of properties.

        Raises:
            SourceError: the API does not return the properties.
        """
        for names in self._chunks():
            yield StreamSlice(stream_slice.partition, stream_slice.cursor_slice, {_NAME: names})

    def merge(self, parts: Sequence[Sequence[Record]]) -> list[Record]:
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
        properties = self._model.property_list
        if not isinstance(properties, PropertiesFromEndpoint):
            return properties
        with self._lock:
            if self._fetched_names is None:
                path = evaluate_path(
                    properties.property_field_path, self._config, properties.parameters
                )
                values = (get_only_value(record, path) for record in self._fetch())
                self._fetched_names = [str(name) for name in values if name is not MISSING]
            return self._fetched_names

    def _chunks(self) -> Iterator[list[str]]:
        names, chunking = self._names(), self._model.property_chunking
        always = self._model.always_include_properties or ()
        if chunking is not None and not chunking.property_limit:
            yield [*names, *always]
            return
        if self._selected_properties is not None:
            names = [name for name in names if name in self._selected_properties]
        if chunking is None:
            yield [*always, *names]
            return
        for chunk in _chunk_names(names, chunking):
            yield [*always, *chunk]


def _chunk_names(names: Sequence[str], chunking: PropertyChunking) -> Iterator[list[str]]:
    chunk: list[str] = []
    size, limit = 0, chunking.property_limit or 0
    for name in names:
        length = len(name) + _SEPARATOR if chunking.property_limit_type == "characters" else 1
        if size + length > limit:
            yield chunk
            chunk, size = [], 0
        chunk.append(name)
        size += length
    yield chunk


def _selected_properties(
    model: QueryProperties, config: Mapping[str, Any], schema: Mapping[str, Any] | None
) -> set[str] | None:
    """Return the selected properties of the stream's schema, or None if all are requested."""
    declared = (schema or {}).get("properties")
    if model.property_selector is None or not isinstance(declared, dict) or not declared:
        return None
    properties: Record = {name: {} for name in declared}
    for transformation in model.property_selector.transformations:
        properties = create_step(transformation, config)(
            {"config": config, "stream_slice": StreamSlice()}
        )(properties)
    return set(properties)


def _merge(target: Record, source: Mapping[str, Any]) -> None:
    for name, value in source.items():
        existing = target.get(name)
        if isinstance(existing, dict) and isinstance(value, dict):
            _merge(existing, value)
        else:
            target[name] = value


#: Injects a slice's values into a request.
Inject = Callable[[Injection, StreamSlice], None]


def _inject_nothing(into: Injection, stream_slice: StreamSlice) -> None:
    """Inject nothing, because a retriever without a stream has no slices."""


def _keep_every_record(record: Record) -> bool:  # noqa: ARG001 - keeps every record
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
        latest: Callable[[], LatestRecord] | None = None,
        inject: Inject = _inject_nothing,
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
        self._is_filtered = cursor is not None and cursor.is_filtered_client_side
        self._pages = Pages(
            retriever.paginator, api.config, decoder, retriever.record_selector.extractor
        )
        self._repetition = partial(
            Repetition,
            name,
            api.session.network.mask,
            may_repeat=self._pages.stores_position or name in api.may_repeat_tokens,
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

    def records(self, stream_slice: StreamSlice) -> Iterator[Record]:
        """Yield the records of a slice; raise the same errors as `pages`."""
        for page in self.pages(stream_slice, _keep_every_record):
            yield from page.records

    def select(self, extracted: ExtractedRecords, stream_slice: StreamSlice, keep: Keep) -> Page:
        """Return the selected records of a slice that was not read page by page.

        Args:
            extracted: the extracted records.
            keep: whether a record is within the wanted range.

        Raises:
            SourceError: there are records that are not objects.
            ConfigurationError: a template cannot be evaluated.
        """
        return self._selection.select(extracted, stream_slice, keep=self._filter(keep))

    def pages(self, stream_slice: StreamSlice, keep: Keep, depth: int = 0) -> Iterator[Page]:
        """Yield the pages of a slice; each is requested when it is needed.

        Args:
            keep: whether a record is within the wanted range.
            depth: number of times that a longer slice was halved to get this one.

        Raises:
            SourceError: the API does not respond, or its response contains no records.
            ConfigurationError: the requests cannot be built from the manifest and the
                configuration.
        """
        try:
            yield from self._pages_of_slice(stream_slice, keep)
        except ReadDifferentlyError as refusal:
            if self._splitting is None or refusal.action is not Action.SPLIT_REQUEST_WINDOW:
                raise
            halves = self._splitting.halve(stream_slice, depth, refusal)
        else:
            return
        for half in halves:
            yield from self.pages(half, keep, depth + 1)

    def _pages_of_slice(self, stream_slice: StreamSlice, keep: Keep) -> Iterator[Page]:
        """Yield the pages of a slice without halving it."""
        restarts, sizes, repetition = (
            self._restarts(stream_slice),
            self._sizes(),
            self._repetition(),
        )
        embedded = first_page_in(stream_slice) if self._is_embedded else None
        token = self._pages.initial_token() if embedded is None else None
        requested = stream_slice
        while True:
            size = None if sizes is None else sizes.size
            try:
                if embedded is not None:
                    response: Response | None = embedded
                    page = self._page(embedded, stream_slice, token, keep)
                else:
                    response, page, requested = self._request_page(
                        stream_slice, requested, token, keep, size
                    )
            except ReadDifferentlyError as refusal:
                if refusal.action is Action.REDUCE_PAGE_SIZE and sizes is not None:
                    self._sender.wait(sizes.reduce(refusal))
                elif refusal.action is Action.RESET_PAGINATION:
                    requested, token = restarts.restart(requested), self._pages.initial_token()
                    repetition.restart()
                else:
                    raise
                continue
            embedded = None
            if sizes is not None:
                sizes.record_success()
            restarts.observe(page.records)
            is_over = response is None or (
                self._is_feed and page.last is not None and not keep(page.last)
            )
            next_token = (
                None
                if response is None or is_over or restarts.is_due
                else self._pages.next_token(
                    response,
                    page.extracted,
                    page.last,
                    token,
                    last_page_size=len(page.records),
                    stream_slice=requested,
                    size=size,
                )
            )
            repetition.raise_if_repeated(token, next_token, page, size or self._pages.size)
            yield self._filter_feed(page, keep)
            if not is_over and restarts.is_due:
                repetition.restart()
                requested, token = restarts.restart(requested), self._pages.initial_token()
            elif next_token is None:
                return
            else:
                token = next_token

    def _request_page(
        self,
        stream_slice: StreamSlice,
        requested: StreamSlice,
        token: Token | None,
        keep: Keep,
        size: int | None,
    ) -> tuple[Response | None, Page, StreamSlice]:
        """Return a page, its response (None: an ignored error) and the slice that was requested.

        If the page is requested in chunks of properties, response and slice are those of the last
        chunk.
        """
        if self._properties is None:
            response = self._send(requested, token, size)
            return response, self._page(response, stream_slice, token, keep), requested
        parts: list[Page] = []
        response = None
        for requested in self._properties.slices(requested):  # noqa: PLR1704, B020 - the next chunk
            response = self._send(requested, token, size)
            parts.append(self._page(response, stream_slice, token, keep))
        records = self._properties.merge([part.records for part in parts])
        digests = [part.digest for part in parts if part.digest is not None]
        digest = b"".join(digests) if len(digests) == len(parts) else None
        return response, Page(records, parts[-1].extracted, digest), requested

    def _send(
        self, requested: StreamSlice, token: Token | None, size: int | None
    ) -> Response | None:
        slicer = Injection(place="the slice")
        if token is None or not self._ignores_slicer:
            self._inject(slicer, requested)
        return self._sender.send(
            build_request(
                self._requester,
                self._api.config,
                stream_slice=requested,
                next_page_token=token,
                injected=[self._pages.injection(token, size), slicer],
                path=self._pages.path(token),
                is_mixed=self._pages.adds_config,
            )
        )

    def _page(
        self, response: Response | None, stream_slice: StreamSlice, token: Token | None, keep: Keep
    ) -> Page:
        if response is None:
            return Page([], 0)
        return self._selection.page(response, stream_slice, token, keep=self._filter(keep))

    def _filter(self, keep: Keep) -> Keep | None:
        """Return the filter that applies before pagination; a data feed is filtered afterwards."""
        return keep if self._is_filtered and not self._is_feed else None

    def _filter_feed(self, page: Page, keep: Keep) -> Page:
        if not self._is_feed:
            return page
        return replace(page, records=[record for record in page.records if keep(record)])

    def _restarts(self, stream_slice: StreamSlice) -> Restarts:
        if self._reset is None:
            return Restarts(stream_slice)
        limits = self._reset.limits
        latest = self._latest if self._reset.action == "SPLIT_USING_CURSOR" else None
        return Restarts(
            stream_slice,
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

    def _fetch_of(self, component: Mapping[str, Any]) -> Fetch:
        """Return a function that reads the complete list of a record whose list is truncated."""
        try:
            retriever = SimpleRetriever.model_validate(component)
        except ValidationError as failure:
            (problem, *_) = failure.errors(include_url=False, include_input=False)
            where = ".".join(["truncated_list_retriever", *map(str, problem["loc"])])
            raise ConfigurationError(
                f"{where}: {problem['msg']}.", hint="Use the keys of a stream's retriever."
            ) from failure
        if retriever.partition_router or retriever.pagination_reset:
            raise ConfigurationError(
                "A truncated_list_retriever must not have a partition_router or pagination_reset.",
                hint="Its only partition is the record: stream_slice['parent_record'].",
            )
        retrieval = Retrieval(retriever, self._api, "record_expander")
        return lambda record: retrieval.records(StreamSlice({"parent_record": record}))
