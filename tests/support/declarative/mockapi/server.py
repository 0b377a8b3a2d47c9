"""The API of a manifest on a real port: it knows the manifest's words, not our reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from support.declarative.apis import Api, ReceivedRequest, Reply
from support.declarative.mockapi import record_generator, templates
from support.declarative.mockapi.bodies import encoded
from support.declarative.mockapi.request_matching import (
    ACCESS_TOKEN,
    SESSION_TOKEN,
    Expected,
    Recognized,
    Request,
    body_of,
    chosen,
)
from support.declarative.mockapi.stream_data import Offer, Paged, name_of, offers

#: The parameter that identifies a page in links.
_LINK = "page_of_the_test"

#: Parents may be read by several streams; each stream reads each page once.
_MOST_ASKED = 3


@dataclass
class Served:
    """A page that was served.

    Attributes:
        offer: the stream's offer that the page belongs to.
        paged: the sequence of pages that it belongs to.
        page: the page's number, from 0.
        records: the page's records.
        bounds: the requested times, if the request contains them.
    """

    offer: Offer
    paged: Paged
    page: int
    records: list[Any]
    bounds: tuple[Any, Any]
    asked: ReceivedRequest


@dataclass
class _Step:
    """A request that is made before records are read, and its response."""

    request: Request | None
    place: Expected | None
    answer: dict[str, Any]


@dataclass
class _Known:
    """What has been requested so far, of one stream."""

    offers: list[Offer]
    steps: list[_Step]
    paged: dict[tuple[Any, ...], Paged] = field(default_factory=dict)
    links: dict[str, tuple[Paged, int]] = field(default_factory=dict)


class MockApi(Api):
    """The API that a manifest describes: one stream of it at a time.

    Attributes:
        served: the served pages, in order.
        complaints: how requests differed from the manifest.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self._config = config
        self._known = _Known([], [])
        self.served: list[Served] = []
        self.complaints: list[str] = []

    def offer(self, stream: Mapping[str, Any]) -> Offer:
        """Serve a stream from now on, and its parents; return the offer of its own records."""
        found = list(offers(stream, self._config))
        steps = [
            step
            for offer in found
            for requester in _requesters(offer.stream["retriever"])
            for step in _steps(requester.get("authenticator"), self._config)
        ]
        steps += [step for offer in found if offer.is_report for step in self._report(offer)]
        self._known = _Known(found, steps)
        self.served.clear()
        self.complaints.clear()
        return found[0]

    @property
    def target(self) -> Offer:
        """The offer of the stream that is tested, not those of its parents."""
        return self._known.offers[0]

    def again(self) -> None:
        """Serve the same stream again, from its beginning."""
        self._known = _Known(self._known.offers, self._known.steps)
        for offer in self._known.offers:
            offer.again()
        self.served.clear()

    def _report(self, offer: Offer) -> list[_Step]:
        """Order a report, and ask whether it is ready."""
        retriever = offer.stream["retriever"]
        created: dict[str, Any] = {}
        for name in ("polling_requester", "download_requester"):
            for text in retriever[name].values():
                for path in templates.paths_in(text, "creation_response"):
                    record_generator.put(created, path, "report-1")
        polled: dict[str, Any] = {}
        completed = retriever["status_mapping"]["completed"][0]
        record_generator.put(polled, retriever["status_extractor"]["field_path"], completed)
        target = retriever["download_target_extractor"]["field_path"]
        record_generator.put(polled, target, ["https://files.example.test/report-1"])
        return [
            _Step(Request(retriever["creation_requester"], self._config), None, created),
            _Step(Request(retriever["polling_requester"], self._config), None, polled),
        ]

    # ------------------------------------------------------------------ requests

    def answer(self, asked: ReceivedRequest) -> Reply:
        with self._lock:
            self.requests.append(asked)
            return self._answer(asked)

    def _answer(self, asked: ReceivedRequest) -> Reply:
        sent = body_of(asked)
        url = f"https://{asked.headers['host']}{asked.path}"
        for step in self._known.steps:
            if step.place is not None and step.place.match(url.rstrip("/")) is not None:
                return Reply(step.answer)
        found: list[tuple[Recognized, Offer | _Step]] = [
            (recognized, target)
            for target in (*self._known.steps, *self._known.offers)
            if target.request and (recognized := target.request.recognized(asked, sent))
        ]
        if not found:
            self.complaints.append(f"{asked.method} {url} is nothing that the manifest describes")
            return Reply({"error": "nothing here"}, status=404)
        recognized, target = max(found, key=lambda pair: pair[0].score)
        assert target.request is not None
        self.complaints += recognized.missing
        if wrong := target.request.proves(asked):
            self.complaints.append(f"{asked.path}: {wrong}")
            return Reply({"error": "who are you?"}, status=401)
        if isinstance(target, _Step):
            return Reply(target.answer)
        return self._page(target, asked, recognized, sent)

    def _page(
        self,
        offer: Offer,
        asked: ReceivedRequest,
        recognized: Recognized,
        body: Mapping[tuple[str, ...], str],
    ) -> Reply:
        sent = {
            **asked.headers,
            **asked.params,
            **{".".join(path): value for path, value in body.items()},
        }
        self._check_options(offer, sent)
        bounds = offer.window(recognized.filled_values, sent)
        if asked.params.get(_LINK) in self._known.links:
            paged, number = self._known.links[asked.params[_LINK]]
        else:
            paged = self._paged(offer, asked, recognized, body, bounds)
            found = self._number(offer, paged, recognized, sent)
            if found is None:
                self.complaints.append(f"{offer.name}: there is no such page: {asked.query}")
                return Reply({"error": "no such page"}, status=404)
            number = found
        paged.asked[number] += 1
        if paged.asked[number] > _MOST_ASKED:
            self.complaints.append(f"{offer.name}: page {number} is asked for again and again")
            return Reply({"error": "enough"}, status=404)
        turning = offer.turning
        records = offer.records(paged.sizes[number], paged.window)
        link = str(len(self._known.links))
        following = f"https://{asked.headers['host']}{asked.path}?" + urlencode(
            [*((name, text) for name, text in asked.query if name != _LINK), (_LINK, link)]
        )
        is_last = number == len(paged.sizes) - 1
        sheet = turning.page(records, number, following, is_last=is_last)
        if sheet.token is not None:
            self._known.links[link] = (paged, number + 1)
            paged.tokens[sheet.token] = number + 1
        self.served.append(Served(offer, paged, number, sheet.records, bounds, asked))
        return Reply(encoded(sheet.body, offer.decoder), headers=sheet.headers)

    def _check_options(self, offer: Offer, sent: Mapping[str, Any]) -> None:
        is_following = name_of(offer.turning.token_option) in sent or _LINK in sent
        if offer.slices_links or not is_following:
            self.complaints += [
                f"{offer.name}: {name} is missing" for name in offer.sliced_by if not sent.get(name)
            ]
        option, size = offer.turning.size_option, offer.turning.size
        name = name_of(option)
        if name and size is not None and str(sent.get(name)) != str(size):
            self.complaints.append(f"{offer.name}: {name} is {sent.get(name)!r} instead of {size}")

    def _paged(
        self,
        offer: Offer,
        asked: ReceivedRequest,
        recognized: Recognized,
        body: Mapping[tuple[str, ...], str],
        bounds: tuple[Any, Any],
    ) -> Paged:
        """Return the pages that a request belongs to, by all of its values except the page."""
        names = {name_of(offer.turning.token_option), name_of(offer.turning.size_option), _LINK}
        names |= {
            name
            for name, param in offer.request.params.items()
            if any(path.startswith("next_page_token") for path, _ in param.holes)
        }
        reported = {
            path: value
            for path, value in recognized.filled_values.items()
            if not path.startswith("next_page_token")
        }
        query = [(name, text) for name, text in sorted(asked.query) if name not in names]
        injected = [
            (".".join(path), text)
            for path, text in sorted(body.items())
            if path not in offer.request.body and ".".join(path) not in names
        ]
        key = (
            id(offer),
            asked.path,
            *query,
            *injected,
            *sorted(reported.items()),
            *map(str, bounds),
        )
        if key not in self._known.paged:
            # A stream that only provides partitions is short, so that there are few of them.
            number = sum(1 for paged in self._known.paged if paged[0] == id(offer))
            window = offer.between(bounds)
            (sample,) = offer.records(1, window)
            sizes = offer.turning.sizes(number, sample, is_brief=offer.is_parent)
            self._known.paged[key] = Paged(sizes, window)
        return self._known.paged[key]

    @staticmethod
    def _number(
        offer: Offer, paged: Paged, recognized: Recognized, sent: Mapping[str, Any]
    ) -> int | None:
        """Return the number of the requested page, or None if there is no such page."""
        turning = offer.turning
        name = name_of(turning.token_option)
        reported = [
            token
            for path, (token, _) in recognized.filled_values.items()
            if path.startswith("next_page_token")
        ]
        token = sent.get(name) if name else next(iter(reported), None)
        if token in {None, "", "None"} and not name:
            return 0
        if token is None:
            return 0
        if turning.kind == "PageIncrement":
            number = int(token) - turning.first
            return number if 0 <= number < len(paged.sizes) else None
        if turning.kind == "OffsetIncrement":
            found = paged.page_from(int(token))
            return found if found is not None and found < len(paged.sizes) else None
        return paged.tokens.get(str(token))


def _requesters(retriever: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [
        requester for key, requester in retriever.items() if key.endswith("requester") and requester
    ]


def _steps(authenticator: Mapping[str, Any] | None, config: Mapping[str, Any]) -> list[_Step]:
    """Return the requests that get credentials."""
    selected = chosen(authenticator, config)
    if not selected:
        return []
    variables = templates.known(config, selected)
    if selected["type"] == "OAuthAuthenticator" and selected.get("token_refresh_endpoint"):
        place = templates.text_of(selected["token_refresh_endpoint"], variables).rstrip("/")
        answer = {
            selected.get("access_token_name") or "access_token": ACCESS_TOKEN,
            selected.get("expires_in_name") or "expires_in": 3600,
            selected.get("refresh_token_name") or "refresh_token": "next-refresh-token",
        }
        return [_Step(None, Expected.of(place), answer)]
    if selected["type"] == "SessionTokenAuthenticator":
        login = selected["login_requester"]
        reported: dict[str, Any] = {}
        record_generator.put(reported, selected["session_token_path"], SESSION_TOKEN)
        return [
            *_steps(login.get("authenticator"), config),
            _Step(Request(login, config), None, reported),
        ]
    return []
