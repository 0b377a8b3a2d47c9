"""Conversion of responses, errors and requests to and from the types of `requests`.

Custom classes expect these types.
"""

from __future__ import annotations

import io
from http import HTTPStatus
from typing import Any, Final

import httpx
import requests
from requests.structures import CaseInsensitiveDict
from requests.utils import get_encoding_from_headers

from chronolake.source.declarative.http.request_builder import EncodedRequest
from chronolake.source.declarative.http.response import Response

#: The attribute that airbyte-cdk's pagination strategies read for the record count of a response.
_COUNT: Final = "_airbyte_extracted_record_count"
_FAILURES: Final = (
    (httpx.ConnectTimeout, requests.ConnectTimeout),
    (httpx.TimeoutException, requests.ReadTimeout),
    (httpx.TooManyRedirects, requests.TooManyRedirects),
    (httpx.DecodingError, requests.exceptions.ContentDecodingError),
    (httpx.RemoteProtocolError, requests.exceptions.ChunkedEncodingError),
)


def to_requests_response(answer: Response, *, extracted: int | None = None) -> requests.Response:
    """Convert a response to the type of `requests`.

    `extracted` is the number of records in the response, if known.
    """
    response = requests.Response()
    response.status_code = answer.status
    response.url = answer.url
    response.headers = CaseInsensitiveDict(answer.headers.items())
    response.encoding = get_encoding_from_headers(response.headers)
    response.request = _create_prepared_request(answer.method, answer.url)
    try:
        response.reason = HTTPStatus(answer.status).phrase
    except ValueError:
        response.reason = None
    if answer.file is None:
        response._content = answer.body  # noqa: SLF001 - requests has no other way in
        response._content_consumed = True  # noqa: SLF001 - the same
        response.raw = io.BytesIO(answer.body)
    else:
        response.raw = answer.open()
    if extracted is not None:
        setattr(response, _COUNT, extracted)
    return response


def from_requests_response(response: requests.Response) -> Response:
    """Convert a response back, or one that a class received itself."""
    return Response(
        status=response.status_code,
        headers=httpx.Headers(dict(response.headers)),
        body=response.content or b"",
        url=response.url or "",
        method=(response.request.method if response.request is not None else None) or "GET",
    )


def to_requests_outcome(outcome: Response | httpx.RequestError) -> requests.Response | Exception:
    """Convert a response, or the error of a failed request, to the types of `requests`."""
    if isinstance(outcome, Response):
        return to_requests_response(outcome)
    for theirs, ours in _FAILURES:
        if isinstance(outcome, theirs):
            return ours(type(outcome).__name__)
    return requests.ConnectionError(type(outcome).__name__)


def _create_prepared_request(method: str, url: str) -> requests.PreparedRequest:
    prepared = requests.PreparedRequest()
    prepared.method, prepared.url = method, url
    prepared.headers = CaseInsensitiveDict()
    return prepared


def to_prepared_request(encoded: EncodedRequest) -> requests.PreparedRequest:
    """Return a request that has not been sent, so that a class can change it."""
    prepared = _create_prepared_request(encoded.method, encoded.url)
    prepared.headers = CaseInsensitiveDict(encoded.headers)
    prepared.body = encoded.body
    return prepared


def from_prepared_request(prepared: Any) -> EncodedRequest:
    """Convert a request that a class may have changed."""
    body = prepared.body
    return EncodedRequest(
        method=str(prepared.method),
        url=str(prepared.url),
        headers={
            str(name): value.decode("latin-1") if isinstance(value, bytes) else str(value)
            for name, value in prepared.headers.items()
            # The client sets the length.
            if value is not None and str(name).lower() != "content-length"
        },
        body=body.encode() if isinstance(body, str) else body,
    )
