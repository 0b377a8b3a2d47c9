"""Who may ask: a guard in front of every page.

On a loopback address nobody is asked for anything, but a request must name a loopback host:
otherwise any web site could make its own name stand for 127.0.0.1 and read along (DNS rebinding).
On any other address each request needs the token, which a link brings once and a cookie keeps.
There is nothing to write anywhere: only GET and HEAD are answered.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: The name under which a link brings the token.
TOKEN: Final = "token"  # noqa: S105 - a name
_METHODS: Final = frozenset({"GET", "HEAD"})
_HOST: Final = re.compile(r"(\[(?P<six>[^\[\]]+)\]|(?P<name>[^\[\]:]+))(:[0-9]*)?")
_YEAR_SECONDS: Final = 365 * 86_400

HEADERS: Final = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def is_loopback(host: str) -> bool:
    """Whether an address or a name can only mean this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        name = host.lower().rstrip(".")
        return name == "localhost" or name.endswith(".localhost")


def new_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_urlsafe(24)


@dataclass(frozen=True)
class Guard:
    """What is asked of every request.

    Attributes:
        token: what a request has to bring, or None: nothing.
        only_loopback: whether a request must name a loopback host.
        cookie: the name of the cookie that keeps the token; cookies know no ports.
    """

    token: str | None = field(repr=False)
    only_loopback: bool
    cookie: str = "chronolake-ui"

    @property
    def proof(self) -> str:
        """What the cookie holds: it shows that the token was known, and does not tell it."""
        return hmac.new((self.token or "").encode(), b"chronolake ui", hashlib.sha256).hexdigest()


class Guarded:
    """An application behind a guard.

    Args:
        app: the application.
        guard: what is asked.
        refused: the page of a request without the token: its HTML.
    """

    def __init__(self, app: ASGIApp, guard: Guard, refused: Callable[[], str]) -> None:
        self._app = app
        self._guard = guard
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let the application do it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._answer(scope)
        await (answer or self._app)(scope, receive, guarded)

    def _answer(self, scope: Scope) -> Response | None:
        """What is answered in the application's place, or None: it may answer."""
        headers = Headers(scope=scope)
        if self._guard.only_loopback and not is_loopback(_host_of(headers.get("host", ""))):
            return PlainTextResponse(
                "This page answers on this machine only, as localhost or 127.0.0.1.\n"
                "What to do: use that address, or start `chronolake ui` with --host.\n",
                status_code=421,
            )
        if scope["method"] not in _METHODS:
            return PlainTextResponse(
                "Nothing can be changed here: only GET and HEAD are answered.\n",
                status_code=405,
                headers={"allow": "GET, HEAD"},
            )
        if self._guard.token is None or _is_public(scope["path"]):
            return None
        return self._without_proof(scope, headers)

    def _without_proof(self, scope: Scope, headers: Headers) -> Response | None:
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        brought = [value for name, value in query if name == TOKEN]
        if brought:
            if not _same(brought[-1], self._guard.token or ""):
                return HTMLResponse(self._refused(), status_code=401)
            kept = urlencode([pair for pair in query if pair[0] != TOKEN])
            target = _path_of(scope)
            answer = RedirectResponse(f"{target}?{kept}" if kept else target, status_code=303)
            answer.set_cookie(
                self._guard.cookie,
                self._guard.proof,
                max_age=_YEAR_SECONDS,
                httponly=True,
                samesite="strict",
                secure=scope["scheme"] == "https",
            )
            return answer
        if _same(cookie_parser(headers.get("cookie", "")).get(self._guard.cookie, ""), self._proof):
            return None
        if headers.get("sec-fetch-site") == "cross-site":
            # A link on another site: browsers keep the cookie back until this page asks itself.
            return HTMLResponse(_AGAIN, status_code=401, headers={"refresh": "0"})
        return HTMLResponse(self._refused(), status_code=401)

    @property
    def _proof(self) -> str:
        return self._guard.proof


_AGAIN: Final = (
    '<!doctype html><html lang="en"><title>Chronolake</title><p><a href="">Open the page</a></p>'
)


def _is_public(path: str) -> bool:
    """Whether anybody may have it: what the page of refusal looks like."""
    return path in {"/assets/page.css", "/assets/theme.js", "/assets/icon.svg"}


def _host_of(header: str) -> str:
    """The host of a Host header, without its port."""
    found = _HOST.fullmatch(header)
    return "" if found is None else found["six"] or found["name"]


def _path_of(scope: Scope) -> str:
    """The path of this request, and never another site: `//host/` would be one."""
    path: str = scope["raw_path"].decode("latin-1") if scope.get("raw_path") else scope["path"]
    return "/" + path.lstrip("/\\")


def _same(given: str, wanted: str) -> bool:
    """Whether two secrets are the same, in a time that does not tell where they differ."""
    return hmac.compare_digest(given.encode(), wanted.encode())
