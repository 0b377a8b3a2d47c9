"""Async jobs: creation, polling and download of one report for each slice of a stream.

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
from chronolake.source.declarative.http.request_builder import encoded, request_of
from chronolake.source.declarative.models.records import (
    CombinedExtractor,
    DpathExtractor,
    JsonDecoder,
)
from chronolake.source.declarative.models.streams import SimpleRetriever
from chronolake.source.declarative.records.extractors import (
    batches_of,
    extraction_of,
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
    from chronolake.source.declarative.http.response import Answer
    from chronolake.source.declarative.models.requests import HttpRequester
    from chronolake.source.declarative.models.streams import AsyncJobStatusMap, AsyncRetriever
    from chronolake.source.declarative.records.extractors import Extracted

log = structlog.get_logger(__name__)

#: Seconds between two polls of a job, and before it is created again.
_INTERVAL: Final = 5.0
#: The most times that a job is created.
_ORDERS: Final = 3
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
        answer: the polling response that reported completion.
        polled: the same response as a template variable.
    """

    slice: StreamSlice
    answer: Answer
    polled: Mapping[str, Any]


@dataclass(frozen=True)
class _Asking:
    """A sender of one requester's requests."""

    requester: HttpRequester
    sender: Sender
    config: Mapping[str, Any]
    trusted: frozenset[Origin] = frozenset()

    @property
    def origins(self) -> frozenset[Origin]:
        own = {"config": self.config, "parameters": self.requester.parameters}
        return own_origins(self.requester, own, "")

    def request(self, one: StreamSlice) -> Request:
        return request_of(
            self.requester,
            self.config,
            stream_slice=one,
            next_page_token=None,
            trusted=self.trusted,
        )

    def answer(self, one: StreamSlice, what: str) -> Answer:
        return _needed(self.sender.send(self.request(one)), what)


def downloads_of(retriever: AsyncRetriever) -> SimpleRetriever:
    """Return a retriever that reads a finished job's result, as if the stream had only that."""
    return SimpleRetriever(
        type="SimpleRetriever",
        requester=retriever.download_requester,
        record_selector=retriever.record_selector,
        decoder=retriever.download_decoder,
    )


class Reports:
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
        self._network = api.access.network
        # Responses contain a result's URL; what may be sent there depends on where the job was
        # created.
        self._trusted: frozenset[Origin] = frozenset()
        self._order = self._asking(retriever.creation_requester)
        self._trusted = self._order.origins
        self._poll = self._asking(retriever.polling_requester)
        self._download = self._asking(retriever.download_requester)
        self._locate = self._asking_if(retriever.download_target_requester)
        self._abort = self._asking_if(retriever.abort_requester)
        self._delete = self._asking_if(retriever.delete_requester)
        decoder = retriever.decoder or _JSON
        self._status = extraction_of(retriever.status_extractor, decoder, api.config)
        target = retriever.download_target_extractor
        self._targets = None if target is None else extraction_of(target, decoder, api.config)
        found, decoder = retriever.download_extractor, retriever.download_decoder or _JSON
        self._batches = batches_of(found or _EVERYTHING, decoder, api.config)
        united = found if isinstance(found, CombinedExtractor) else None
        self._pages = Pages(retriever.download_paginator, api.config, decoder, united)
        self._meanings = _meanings(retriever.status_mapping)
        self._timeout = _MINUTES * (self._number(retriever, "polling_job_timeout") or 60)
        rest = self._number(retriever, "failed_retry_wait_time_in_seconds")
        self._rest = max(rest or 0, _INTERVAL)

    def _asking(self, requester: HttpRequester) -> _Asking:
        # Each response about a job may differ from the previous one.
        sender = self._api.access.sender(requester, cached=False)
        return _Asking(requester, sender, self._api.config, self._trusted)

    def _asking_if(self, requester: HttpRequester | None) -> _Asking | None:
        return None if requester is None else self._asking(requester)

    def _number(self, retriever: AsyncRetriever, name: str) -> int | None:
        wanted = getattr(retriever, name)
        if not wanted:
            return None
        try:
            number = int(as_text(str(wanted), {"config": self._api.config, "parameters": {}}))
        except ValueError:
            number = 0
        if number < 1:
            raise ConfigurationError(
                f"{name} gives no whole number above zero.", hint="Write one, e.g. 60."
            )
        return number

    # ------------------------------------------------------------------ a report's records

    def batches(self, one: StreamSlice) -> Iterator[Extracted]:
        """Yield the records of a slice's job in batches; create the job when they are first needed.

        Raises:
            SourceError: the job fails, or its result cannot be downloaded.
            ConfigurationError: the requests cannot be built from the manifest and the
                configuration.
        """
        ready = self._made(one)
        if ready is None:
            return
        for target in self._found_targets(ready):
            yield from self._downloaded(
                _with(ready.slice, polling_response=ready.polled, download_target=target)
            )
        self._tell(self._delete, ready.slice, "delete")

    def _found_targets(self, ready: _Ready) -> list[Any]:
        """Return a job's download targets, or one empty target if the manifest defines none."""
        if self._targets is None:
            return [""]
        answer = ready.answer
        if self._locate is not None:
            seen = StreamSlice({}, {}, {"polling_response": ready.polled})
            answer = self._locate.answer(seen, "where a report is")
        found = self._targets(answer)
        if not answer.may_lack_records:
            raise_if_missing(found)
        return found.records

    def _downloaded(self, one: StreamSlice) -> Iterator[Extracted]:
        token = self._pages.initial()
        repetition = Repetition(self._name, self._network.mask, may_repeat=self._pages.keeps_place)
        while True:
            request = request_of(
                self._download.requester,
                self._api.config,
                stream_slice=one,
                next_page_token=token,
                injected=[self._pages.injection(token)],
                path=self._pages.path(token),
                is_mixed=self._pages.adds_config,
                trusted=self._trusted,
            )
            answer = self._download.sender.send(request, in_file=True)
            if answer is None:
                return
            asked, extracted, kept = token, 0, 0
            last: Any = None
            try:
                for batch in self._batches(answer):
                    extracted += batch.count
                    kept += len(batch.records)
                    last = batch.records[-1] if batch.records else last
                    yield replace(batch, missing=None) if answer.may_lack_records else batch
                token = self._pages.following(
                    answer, extracted, last, token, last_page_size=kept, stream_slice=one
                )
            finally:
                answer.close()
            repetition.raise_if_repeated(asked, token, Page([], extracted), None)
            if token is None:
                return

    # ------------------------------------------------------------------ creation and polling

    def _made(self, one: StreamSlice) -> _Ready | None:
        """Return a job once it is ready, or None if the API reports that it has no records."""
        with self._place():
            problem: SourceError | None = None
            pause = _INTERVAL
            for number in range(_ORDERS):
                if number:
                    self._network.wait(pause)
                try:
                    ordered = self._ordered(one)
                except SourceError as failure:
                    log.warning("report_not_ordered", reason=str(failure))
                    problem, pause = failure, _INTERVAL
                    continue
                status, answer = self._outcome(ordered)
                if status is _Status.SKIPPED:
                    return None
                if answer is not None and status is _Status.COMPLETED:
                    return _Ready(ordered, answer, _seen(self._poll.request(ordered), answer))
                log.warning("report_not_made", status=status.name.lower())
                problem = None
                pause = self._rest if status is _Status.FAILED else _INTERVAL
        reported = "it failed, or took too long" if problem is None else problem.message
        raise SourceError(
            f"A report was ordered {_ORDERS} times, and was not made: {reported}",
            hint="Read again later, or for less time at once.",
        ) from problem

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Wait until the API may run one more job; occupy a place within the block."""
        while not self._api.reports.acquire(timeout=1):
            self._network.go_on()
        try:
            yield
        finally:
            self._api.reports.release()

    def _ordered(self, one: StreamSlice) -> StreamSlice:
        """Create a job, and return the slice with the response for templates of later requests."""
        request = self._order.request(one)
        answer = _needed(self._order.sender.send(request), "a report's order")
        return _with(one, creation_response=_seen(request, answer))

    def _outcome(self, ordered: StreamSlice) -> tuple[_Status, Answer | None]:
        """Poll a job until it ends; return its status and last response. Abort it on an error."""
        began = self._network.now()
        status, answer = _Status.RUNNING, None
        try:
            while status is _Status.RUNNING:
                if answer is not None:
                    self._network.wait(_INTERVAL)
                if self._network.now() - began > self._timeout:
                    status = _Status.TIMED_OUT
                    break
                answer = self._poll.answer(ordered, "how far a report is")
                status = self._status_in(answer)
        except ChronolakeError:
            self._tell(self._abort, ordered, "abort")
            raise
        if status is _Status.TIMED_OUT:
            self._tell(self._abort, ordered, "abort")
        return status, answer

    def _status_in(self, answer: Answer) -> _Status:
        reported = next(iter(self._status(answer).records), None)
        if str(reported) not in self._meanings:
            raise SourceError(
                f"The API says {self._network.mask(repr(reported))[:100]} of a report, which the "
                "manifest does not know.",
                hint="Name it in the status_mapping, and look at the status_extractor.",
            )
        return self._meanings[str(reported)]

    def _tell(self, asking: _Asking | None, one: StreamSlice, what: str) -> None:
        """Send a request whose result does not matter; log a failure."""
        if asking is None:
            return
        try:
            asking.sender.send(asking.request(one))
        except SourceError as failure:
            log.warning("report_left_there", wanted=what, reason=str(failure))


def _meanings(statuses: AsyncJobStatusMap) -> dict[str, _Status]:
    named = {
        _Status.RUNNING: statuses.running,
        _Status.COMPLETED: statuses.completed,
        _Status.FAILED: statuses.failed,
        _Status.TIMED_OUT: statuses.timeout,
        _Status.SKIPPED: statuses.skipped or (),
    }
    return {word: status for status, words in named.items() for word in words}


def _needed(answer: Answer | None, what: str) -> Answer:
    if answer is None:
        raise SourceError(
            f"The API does not say {what}, and its error is ignored.",
            hint="Let the requester's error handler not ignore it.",
        )
    return answer


def _with(one: StreamSlice, **more: Any) -> StreamSlice:
    return StreamSlice(one.partition, one.cursor_slice, {**one.extra_fields, **more})


def _seen(request: Request, answer: Answer) -> dict[str, Any]:
    """Return a response as a template variable: its object, its headers and its request.

    The request contains no credentials.
    """
    try:
        reported = answer.json()
    except ValueError:
        reported = None
    if not isinstance(reported, dict):
        raise SourceError(
            "The API's answer about a report is no JSON object.",
            hint="Look at what the API answers to creation_requester and polling_requester.",
        )
    sent = encoded(request)
    asked = {
        "method": sent.method,
        "url": sent.url,
        "headers": httpx.Headers(dict(sent.headers)),
        "body": sent.body,
    }
    return {"headers": answer.headers, "request": asked} | reported
