"""Recognition of a requester's requests, by the manifest's templates."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

import orjson

from support.declarative.apis import ReceivedRequest
from support.declarative.mockapi import record_generator, templates

ACCESS_TOKEN = "access-token-of-the-test"
SESSION_TOKEN = "session-token-of-the-test"


@dataclass
class Expected:
    """A text of a request, with holes for the values that only the reader knows."""

    pattern: re.Pattern[str]
    holes: list[tuple[str, str]]
    text: str

    @classmethod
    def of(cls, text: str) -> Expected:
        return cls(*templates.pattern_of(text), text)

    @property
    def is_fixed(self) -> bool:
        return not self.holes

    def match(self, text: str) -> dict[str, tuple[str, str]] | None:
        """Return the values in the holes, with their formats; None if the text does not match."""
        found = self.pattern.fullmatch(text)
        if found is None:
            return None
        return {
            path: (group, form)
            for (path, form), group in zip(self.holes, found.groups(), strict=True)
            if path
        }


@dataclass
class Recognized:
    """A request that matches a requester.

    Attributes:
        score: how much of it consists of the requester's own words.
        filled_values: the values that the reader filled into the holes, by their paths, with the
            formats.
        missing: what the manifest requires and the request lacks.
    """

    score: int
    filled_values: dict[str, tuple[str, str]]
    missing: list[str] = field(default_factory=list)


class Request:
    """The requests of one requester."""

    def __init__(self, requester: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        variables = templates.known(config, requester)
        self.method = str(requester.get("http_method") or "GET")
        base = templates.text_of(requester.get("url_base") or requester.get("url"), variables)
        path = templates.text_of(requester.get("path") or "", variables).strip().lstrip("/")
        url = f"{base.rstrip('/')}/{path}" if path else base.strip()
        place, _, query = url.partition("?")
        self.place = Expected.of(_normal(place))
        self.params = {name: Expected.of(text) for name, text in parse_qsl(query)}
        self.params |= _named(requester.get("request_parameters"), variables)
        self.headers = _named(requester.get("request_headers"), variables)
        reported = requester.get("request_body_json") or requester.get("request_body_data")
        self.body = {
            path: Expected.of(templates.text_of(text, variables))
            for path, text in _leaves(reported)
        }
        self.proof = _proof(requester.get("authenticator"), config)

    def recognized(
        self, asked: ReceivedRequest, sent: Mapping[tuple[str, ...], str]
    ) -> Recognized | None:
        """Return the values of a request if it is one of these; `sent` are its body's texts."""
        place = _normal(f"https://{asked.headers['host']}{unquote(asked.path)}")
        reported = self.place.match(place) if asked.method == self.method else None
        if reported is None:
            return None
        found = Recognized(10 - len(self.place.holes), reported)
        headers = asked.headers
        for name, expected in self.params.items():
            self._compare(found, f"parameter {name}", expected, asked.params.get(name))
        for name, expected in self.headers.items():
            self._compare(found, f"header {name}", expected, headers.get(name.lower()))
        for path, expected in self.body.items():
            self._compare(found, f"body {path}", expected, sent.get(path))
        return found

    @staticmethod
    def _compare(found: Recognized, what: str, expected: Expected, text: str | None) -> None:
        reported = None if text is None else expected.match(text)
        if reported is not None:
            found.filled_values |= reported
            found.score += 1 if expected.is_fixed else 0
        elif expected.is_fixed and expected.text not in _NOTHING and not _same(expected.text, text):
            found.score -= 1
            found.missing.append(f"{what}: {expected.text!r} is wanted, {text!r} was sent")

    def proves(self, asked: ReceivedRequest) -> str | None:
        """Return what is wrong with a request's credentials, or None."""
        if self.proof is None:
            return None
        place, name, texts = self.proof
        given = asked.params if place == "request_parameter" else asked.headers
        sent = given.get(name if place == "request_parameter" else name.lower())
        return None if place.startswith("body") or sent in texts else f"{name} is {sent!r}"


_NOTHING = frozenset({"", "None", "{}", "[]"})


def _same(wanted: str, sent: str | None) -> bool:
    """Return whether two texts mean the same value, however they are formatted."""
    if sent is None:
        return False
    if wanted.strip().startswith(("{", "[")):
        return True  # Its result is compared where a manifest configures it key by key.
    return templates.value_of(wanted, {}) == templates.value_of(sent, {})


def _normal(url: str) -> str:
    host, _, path = url.partition("://")[2].partition("/")
    if not host:
        return url  # All of it is a hole.
    host = host if templates.has_holes(host) else host.lower()
    return f"{host}/{re.sub('/+', '/', path)}"


def _named(texts: Any, variables: Mapping[str, Any]) -> dict[str, Expected]:
    if not isinstance(texts, dict):
        return {}
    return {
        templates.text_of(name, variables): Expected.of(templates.text_of(text, variables))
        for name, text in texts.items()
        if name != "$parameters"
    }


def _leaves(body: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the texts of a body that is configured key by key."""
    if isinstance(body, dict):
        for name, value in body.items():
            if "{" not in name and name != "$parameters":
                yield from _leaves(value, (*path, name))
    elif path:
        yield path, templates.as_text(body)


def body_of(asked: ReceivedRequest) -> dict[tuple[str, ...], str]:
    """Return the texts of a request's body, by their places."""
    if not asked.body:
        return {}
    try:
        return dict(_leaves(orjson.loads(asked.body)))
    except orjson.JSONDecodeError:
        return {(name,): text for name, text in asked.form.items()}


def _proof(
    authenticator: Mapping[str, Any] | None, config: Mapping[str, Any]
) -> tuple[str, str, set[str]] | None:
    """Return where requests have credentials, the name of the place, and the allowed values."""
    selected = chosen(authenticator, config)
    if not selected:
        return None
    variables = {**templates.known(config, selected), "session_token": SESSION_TOKEN}

    def text(name: str) -> str:
        return templates.text_of(selected.get(name) or "", variables)

    match selected["type"]:
        case "BearerAuthenticator":
            return "header", "Authorization", {f"Bearer {text('api_token')}"}
        case "OAuthAuthenticator":
            kept = (selected.get("refresh_token_updater") or {}).get("access_token_config_path")
            given = {
                ACCESS_TOKEN,
                text("access_token_value"),
                record_generator.at(config, kept or ["-"]),
            }
            return "header", "Authorization", {f"Bearer {token}" for token in given}
        case "BasicHttpAuthenticator":
            pair = f"{text('username')}:{text('password')}".encode()
            return "header", "Authorization", {f"Basic {b64encode(pair).decode()}"}
        case "ApiKeyAuthenticator":
            if "header" in selected:
                return "header", text("header"), {text("api_token")}
            option = selected["inject_into"]
            name = templates.text_of(option["field_name"], variables)
            return option["inject_into"], name, {text("api_token")}
        case "SessionTokenAuthenticator":
            way = selected["request_authentication"]
            if way["type"] == "Bearer":
                return "header", "Authorization", {f"Bearer {SESSION_TOKEN}"}
            option = way["inject_into"]
            return option["inject_into"], option["field_name"], {SESSION_TOKEN}
    return None


def chosen(
    authenticator: Mapping[str, Any] | None, config: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Return an authenticator; of a selective one, the one that the configuration selects."""
    if not authenticator or authenticator.get("type") != "SelectiveAuthenticator":
        return authenticator
    reported: Any = config
    for key in authenticator["authenticator_selection_path"]:
        reported = reported[key]
    found: Mapping[str, Any] = authenticator["authenticators"][reported]
    return found
