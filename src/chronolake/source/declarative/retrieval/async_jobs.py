"""Async jobs: creation, polling and download of one export job for each slice of a stream.

A job that fails is created again. An API runs a limited number of jobs at a time, across all
streams. A job occupies one of these places from its first creation until it is ready or given up.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

import httpx
import structlog

from chronolake.errors import ChronolakeError, ConfigurationError, SourceError
from chronolake.source.declarative.http.origins import own_origins
from chronolake.source.declarative.http.request_builder import build_request, encode
from chronolake.source.declarative.models.records import (
    CombinedExtractor,
    DpathExtractor,
    JsonDecoder,
)
from chronolake.source.declarative.models.streams import SimpleRetriever
from chronolake.source.declarative.records.extractors import (
    create_batch_extraction,
    create_extraction,
    raise_if_missing,
)
from chronolake.source.declarative.records.selector import Page
from chronolake.source.declarative.retrieval.paginator import Pages, Repetition
from chronolake.source.declarative.stream_slice import StreamSlice
from chronolake.source.declarative.templating.templates import as_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from chronolake.source.declarative.api import Api
    from chronolake.source.declarative.http.client import Sender
    from chronolake.source.declarative.http.origins import Origin
    from chronolake.source.declarative.http.request_builder import Request
    from chronolake.source.declarative.http.response import Response
    from chronolake.source.declarative.models.requests import HttpRequester
    from chronolake.source.declarative.models.streams import AsyncJobStatusMap, AsyncRetriever
    from chronolake.source.declarative.records.extractors import ExtractedRecords

log = structlog.get_logger(__name__)

#: Seconds between two polls of a job, and before it is created again.
_INTERVAL: Final = 5.0
#: The most times that a job is created.
_MAX_CREATIONS: Final = 3
_MINUTES: Final = 60
_JSON: Final = JsonDecoder(type="JsonDecoder")
_EVERYTHING: Final = DpathExtractor(type="DpathExtractor", field_path=[])


class _Status(Enum):
    """The status of a job."""

    RUNNING = auto()
    COMPLETED = auto()
    FAILED = auto()
    TIMED_OUT = auto()
    SKIPPED = auto()


@dataclass(frozen=True)
class _Ready:
    """A job whose result can be downloaded.

    Attributes:
        slice: the slice with the variables for templates of later requests.
        response: the polling response that reported completion.
        polled: the same response as a template variable.
    """

    slice: StreamSlice
    response: Response
    polled: Mapping[str, Any]


@dataclass(frozen=True)
class _JobRequest:
    """A sender of one requester's requests."""

    requester: HttpRequester
    sender: Sender
    config: Mapping[str, Any]
    trusted_origins: frozenset[Origin] = frozenset()

    @property
    def origins(self) -> frozenset[Origin]:
        own = {"config": self.config, "parameters": self.requester.parameters}
        return own_origins(self.requester, own, "")

    def request(self, stream_slice: StreamSlice) -> Request:
        return build_request(
            self.requester,
            self.config,
            stream_slice=stream_slice,
            next_page_token=None,
            trusted_origins=self.trusted_origins,
        )

    def send(self, stream_slice: StreamSlice, what: str) -> Response:
        return _require_response(self.sender.send(self.request(stream_slice)), what)


def downloads_of(retriever: AsyncRetriever) -> SimpleRetriever:
    """Return a retriever that reads a finished job's result, as if the stream had only that."""
    return SimpleRetriever(
        type="SimpleRetriever",
        requester=retriever.download_requester,
        record_selector=retriever.record_selector,
        decoder=retriever.download_decoder,
    )


class AsyncJobs:
    """The async jobs of a stream; thread-safe."""

    def __init__(self, retriever: AsyncRetriever, api: Api, name: str) -> None:
        """Prepare the requests and extractors.

        Args:
            retriever: describes how jobs are created, polled and downloaded.
            api: the API that runs the jobs.
            name: the stream's name.

        Raises:
            ConfigurationError: the requests cannot be built from the manifest and the
                configuration.
        """
        self._api = api
        self._name = name
        self._network = api.session.network
        # Responses contain a result's URL; what may be sent there depends on where the job was
        # created.
        self._trusted_origins: frozenset[Origin] = frozenset()
        self._creation = self._request_for(retriever.creation_requester)
        self._trusted_origins = self._creation.origins
        self._poll = self._request_for(retriever.polling_requester)
        self._download = self._request_for(retriever.download_requester)
        self._locate = self._optional_request(retriever.download_target_requester)
        self._abort = self._optional_request(retriever.abort_requester)
        self._delete = self._optional_request(retriever.delete_requester)
        decoder = retriever.decoder or _JSON
        self._status = create_extraction(retriever.status_extractor, decoder, api.config)
        target = retriever.download_target_extractor
        self._targets = None if target is None else create_extraction(target, decoder, api.config)
        extractor, decoder = retriever.download_extractor, retriever.download_decoder or _JSON
        self._batches = create_batch_extraction(extractor or _EVERYTHING, decoder, api.config)
        combined = extractor if isinstance(extractor, CombinedExtractor) else None
        self._pages = Pages(retriever.download_paginator, api.config, decoder, combined)
        self._status_names = _status_names(retriever.status_mapping)
        self._timeout = _MINUTES * (self._number(retriever, "polling_job_timeout") or 60)
        retry_wait = self._number(retriever, "failed_retry_wait_time_in_seconds")
        self._retry_wait = max(retry_wait or 0, _INTERVAL)

    def _request_for(self, requester: HttpRequester) -> _JobRequest:
        # Each response about a job may differ from the previous one.
        sender = self._api.session.sender(requester, cached=False)
        return _JobRequest(requester, sender, self._api.config, self._trusted_origins)

    def _optional_request(self, requester: HttpRequester | None) -> _JobRequest | None:
        return None if requester is None else self._request_for(requester)

    def _number(self, retriever: AsyncRetriever, name: str) -> int | None:
        value = getattr(retriever, name)
        if not value:
            return None
        try:
            number = int(as_text(str(value), {"config": self._api.config, "parameters": {}}))
        except ValueError:
            number = 0
        if number < 1:
            raise ConfigurationError(
                f"{name} is not a whole number above zero.", hint="Set a number, e.g. 60."
            )
        return number

    # ------------------------------------------------------------------ a job's records

    def batches(self, stream_slice: StreamSlice) -> Iterator[ExtractedRecords]:
        """Yield the records of a slice's job in batches; create the job when they are first needed.

        Raises:
            SourceError: the job fails, or its result cannot be downloaded.
            ConfigurationError: the requests cannot be built from the manifest and the
                configuration.
        """
        ready = self._run_job(stream_slice)
        if ready is None:
            return
        for target in self._find_targets(ready):
            yield from self._read_result(
                _with_fields(ready.slice, polling_response=ready.polled, download_target=target)
            )
        self._send_ignoring_errors(self._delete, ready.slice, "delete")

    def _find_targets(self, ready: _Ready) -> list[Any]:
        """Return a job's download targets, or one empty target if the manifest defines none."""
        if self._targets is None:
            return [""]
        response = ready.response
        if self._locate is not None:
            polled_slice = StreamSlice({}, {}, {"polling_response": ready.polled})
            response = self._locate.send(polled_slice, "the location of the result")
        targets = self._targets(response)
        if not response.may_lack_records:
            raise_if_missing(targets)
        return targets.records

    def _read_result(self, stream_slice: StreamSlice) -> Iterator[ExtractedRecords]:
        token = self._pages.initial_token()
        repetition = Repetition(
            self._name, self._network.mask, may_repeat=self._pages.stores_position
        )
        while True:
            request = build_request(
                self._download.requester,
                self._api.config,
                stream_slice=stream_slice,
                next_page_token=token,
                injected=[self._pages.injection(token)],
                path=self._pages.path(token),
                is_mixed=self._pages.adds_config,
                trusted_origins=self._trusted_origins,
            )
            response = self._download.sender.send(request, in_file=True)
            if response is None:
                return
            requested_token, extracted, kept_count = token, 0, 0
            last: Any = None
            try:
                for batch in self._batches(response):
                    extracted += batch.count
                    kept_count += len(batch.records)
                    last = batch.records[-1] if batch.records else last
                    yield replace(batch, missing=None) if response.may_lack_records else batch
                token = self._pages.next_token(
                    response,
                    extracted,
                    last,
                    token,
                    last_page_size=kept_count,
                    stream_slice=stream_slice,
                )
            finally:
                response.close()
            repetition.raise_if_repeated(requested_token, token, Page([], extracted), None)
            if token is None:
                return

    # ------------------------------------------------------------------ creation and polling

    def _run_job(self, stream_slice: StreamSlice) -> _Ready | None:
        """Return a job once it is ready, or None if the API reports that it has no records."""
        with self._job_slot():
            problem: SourceError | None = None
            pause = _INTERVAL
            for attempt in range(_MAX_CREATIONS):
                if attempt:
                    self._network.wait(pause)
                try:
                    job_slice = self._create_job(stream_slice)
                except SourceError as failure:
                    log.warning("report_not_ordered", reason=str(failure))
                    problem, pause = failure, _INTERVAL
                    continue
                status, response = self._poll_until_done(job_slice)
                if status is _Status.SKIPPED:
                    return None
                if response is not None and status is _Status.COMPLETED:
                    return _Ready(
                        job_slice,
                        response,
                        _template_variable(self._poll.request(job_slice), response),
                    )
                log.warning("report_not_made", status=status.name.lower())
                problem = None
                pause = self._retry_wait if status is _Status.FAILED else _INTERVAL
        description = "it failed or timed out" if problem is None else problem.message
        raise SourceError(
            f"The export job failed after {_MAX_CREATIONS} attempts: {description}",
            hint="Try again later, or read a shorter time range at once.",
        ) from problem

    @contextmanager
    def _job_slot(self) -> Iterator[None]:
        """Wait until the API may run one more job; occupy a place within the block."""
        while not self._api.reports.acquire(timeout=1):
            self._network.raise_if_cancelled()
        try:
            yield
        finally:
            self._api.reports.release()

    def _create_job(self, stream_slice: StreamSlice) -> StreamSlice:
        """Create a job, and return the slice with the response for templates of later requests."""
        request = self._creation.request(stream_slice)
        response = _require_response(self._creation.sender.send(request), "the created job")
        return _with_fields(stream_slice, creation_response=_template_variable(request, response))

    def _poll_until_done(self, job_slice: StreamSlice) -> tuple[_Status, Response | None]:
        """Poll a job until it ends; return its status and last response. Abort it on an error."""
        started = self._network.now()
        status, response = _Status.RUNNING, None
        try:
            while status is _Status.RUNNING:
                if response is not None:
                    self._network.wait(_INTERVAL)
                if self._network.now() - started > self._timeout:
                    status = _Status.TIMED_OUT
                    break
                response = self._poll.send(job_slice, "the status of the job")
                status = self._status_in(response)
        except ChronolakeError:
            self._send_ignoring_errors(self._abort, job_slice, "abort")
            raise
        if status is _Status.TIMED_OUT:
            self._send_ignoring_errors(self._abort, job_slice, "abort")
        return status, response

    def _status_in(self, response: Response) -> _Status:
        reported = next(iter(self._status(response).records), None)
        if str(reported) not in self._status_names:
            shown = self._network.mask(repr(reported))[:100]
            raise SourceError(
                f"The API reports the job status {shown}, which the manifest does not define.",
                hint="Add it to the status_mapping, and check the status_extractor.",
            )
        return self._status_names[str(reported)]

    def _send_ignoring_errors(
        self, job_request: _JobRequest | None, stream_slice: StreamSlice, what: str
    ) -> None:
        """Send a request whose result does not matter; log a failure."""
        if job_request is None:
            return
        try:
            job_request.sender.send(job_request.request(stream_slice))
        except SourceError as failure:
            log.warning("report_left_there", wanted=what, reason=str(failure))


def _status_names(statuses: AsyncJobStatusMap) -> dict[str, _Status]:
    names = {
        _Status.RUNNING: statuses.running,
        _Status.COMPLETED: statuses.completed,
        _Status.FAILED: statuses.failed,
        _Status.TIMED_OUT: statuses.timeout,
        _Status.SKIPPED: statuses.skipped or (),
    }
    return {word: status for status, words in names.items() for word in words}


def _require_response(response: Response | None, what: str) -> Response:
    if response is None:
        raise SourceError(
            f"The API did not return {what}, and the error handler ignores the error.",
            hint="Change the requester's error handler so that it does not ignore this error.",
        )
    return response


def _with_fields(stream_slice: StreamSlice, **more: Any) -> StreamSlice:
    return StreamSlice(
        stream_slice.partition, stream_slice.cursor_slice, {**stream_slice.extra_fields, **more}
    )


def _template_variable(request: Request, response: Response) -> dict[str, Any]:
    """Return a response as a template variable: its object, its headers and its request.

    The request contains no credentials.
    """
    try:
        fields = response.json()
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise SourceError(
            "The API's response about an export job is not a JSON object.",
            hint="Check the API's responses to creation_requester and polling_requester.",
        )
    sent = encode(request)
    request_fields = {
        "method": sent.method,
        "url": sent.url,
        "headers": httpx.Headers(dict(sent.headers)),
        "body": sent.body,
    }
    return {"headers": response.headers, "request": request_fields} | fields
