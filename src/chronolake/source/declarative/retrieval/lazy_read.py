"""Lazy read: child records that are embedded in parent records and need no requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import httpx

from chronolake import exact_json
from chronolake.errors import ConfigurationError
from chronolake.source.declarative.http.error_handler import Action
from chronolake.source.declarative.http.response import Response
from chronolake.source.declarative.models.records import JsonDecoder
from chronolake.source.declarative.models.streams import (
    DatetimeBasedCursor,
    SimpleRetriever,
    SubstreamPartitionRouter,
)
from chronolake.source.declarative.retrieval.pagination_reset import actions_of
from chronolake.source.records.lookup import MISSING, look_up

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chronolake.source.declarative.models.streams import DeclarativeStream
    from chronolake.source.declarative.stream_slice import StreamSlice

#: The key of a slice's extra fields that holds the first page of its records.
FIRST_PAGE: Final = "child_response"
_ACTIONS: Final = frozenset({Action.REDUCE_PAGE_SIZE, Action.SPLIT_REQUEST_WINDOW})


def first_page(record: Mapping[str, Any], pointer: Sequence[str]) -> Response:
    """Return the embedded part of a parent record in the form of a response."""
    records = look_up(record, pointer)
    body = exact_json.dumps([] if records is MISSING else records)
    return Response(httpx.codes.OK, httpx.Headers(), body, "", "GET")


def first_page_in(stream_slice: StreamSlice) -> Response | None:
    """Return the first page of a slice, if it is embedded in the parent record."""
    page = stream_slice.extra_fields.get(FIRST_PAGE)
    return page if isinstance(page, Response) else None


def is_embedded(stream: DeclarativeStream, state: Mapping[str, Any] | None) -> bool:
    """Return whether the first pages of a stream are embedded in its parents.

    They are used only in a stream's first run, without a state; later changes are requested.

    Raises:
        ConfigurationError: the stream's settings do not allow that.
    """
    retriever = stream.retriever
    routers = retriever.partition_router
    if not isinstance(retriever, SimpleRetriever) or len(routers) != 1:
        return False
    (router,) = routers
    if not isinstance(router, SubstreamPartitionRouter):
        return False
    if not any(parent.lazy_read_pointer for parent in router.parent_stream_configs):
        return False
    reason = _conflict(stream, retriever, is_first=not state)
    if reason is not None:
        raise ConfigurationError(
            f"A lazy_read_pointer cannot be combined with {reason}.",
            hint="Remove the pointer, so that the stream sends its own requests.",
        )
    return not state


def _conflict(
    stream: DeclarativeStream, retriever: SimpleRetriever, *, is_first: bool
) -> str | None:
    model = stream.incremental_sync
    actions = actions_of(retriever.requester.error_handler) & _ACTIONS
    if actions or retriever.page_size_reduction or retriever.request_window_splitting:
        return "smaller pages or split slices"
    if not is_first:
        return None
    if isinstance(model, DatetimeBasedCursor):
        if model.step or model.cursor_granularity:
            return "several slices for each parent"
    elif model is not None:
        return f"an {model.type}"
    if retriever.decoder is not None and not isinstance(retriever.decoder, JsonDecoder):
        return f"a {retriever.decoder.type}"
    return None
