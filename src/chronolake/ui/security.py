"""Access control of the web UI.

On a loopback address no token is needed, but a request must name a loopback host. Otherwise any web
site could point its own name to 127.0.0.1 and read the lake (DNS rebinding). On other addresses
each request needs the token, which is passed once in a link and then stored in a cookie. The UI is
read-only: only GET and HEAD are allowed.
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

#: The query parameter with the token.
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
    """Return whether an address or name always means this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        name = host.lower().rstrip(".")
        return name == "localhost" or name.endswith(".localhost")


def new_token() -> str:
    """Return a random token."""
    return secrets.token_urlsafe(24)


@dataclass(frozen=True)
class Guard:
    """The requirements for every request.

    Attributes:
        token: the token that a request needs, or None.
        only_loopback: whether a request must name a loopback host.
        cookie: the name of the cookie that stores the proof. Cookies do not depend on the port.
    """

    token: str | None = field(repr=False)
    only_loopback: bool
    cookie: str = "chronolake-ui"

    @property
    def proof(self) -> str:
        """Return the cookie's value, which proves knowledge of the token without revealing it."""
        return hmac.new((self.token or "").encode(), b"chronolake ui", hashlib.sha256).hexdigest()


class GuardMiddleware:
    """An ASGI application behind a guard.

    `render_refused` returns the HTML of the page for requests without the token.
    """

    def __init__(self, app: ASGIApp, guard: Guard, render_refused: Callable[[], str]) -> None:
        self._app = app
        self._guard = guard
        self._render_refused = render_refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it to the application."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        response = self._reject(scope)
        await (response or self._app)(scope, receive, send_with_headers)

    def _reject(self, scope: Scope) -> Response | None:
        """Return the response to a request that is not allowed, or None if it is."""
        headers = Headers(scope=scope)
        if self._guard.only_loopback and not is_loopback(_host_of(headers.get("host", ""))):
            return PlainTextResponse(
                "The web UI is only available on this machine, as localhost or 127.0.0.1.\n"
                "What to do: use that address, or start `chronolake ui` with --host.\n",
                status_code=421,
            )
        if scope["method"] not in _METHODS:
            return PlainTextResponse(
                "The web UI is read-only: only GET and HEAD are allowed.\n",
                status_code=405,
                headers={"allow": "GET, HEAD"},
            )
        if self._guard.token is None or _is_public(scope["path"]):
            return None
        return self._check_token(scope, headers)

    def _check_token(self, scope: Scope, headers: Headers) -> Response | None:
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in query if name == TOKEN]
        if tokens:
            if not _is_same(tokens[-1], self._guard.token or ""):
                return HTMLResponse(self._render_refused(), status_code=401)
            remaining = urlencode([pair for pair in query if pair[0] != TOKEN])
            target = _path_of(scope)
            response = RedirectResponse(
                f"{target}?{remaining}" if remaining else target, status_code=303
            )
            response.set_cookie(
                self._guard.cookie,
                self._guard.proof,
                max_age=_YEAR_SECONDS,
                httponly=True,
                samesite="strict",
                secure=scope["scheme"] == "https",
            )
            return response
        if _is_same(
            cookie_parser(headers.get("cookie", "")).get(self._guard.cookie, ""), self._proof
        ):
            return None
        if headers.get("sec-fetch-site") == "cross-site":
            # A link on another site: browsers omit the cookie until this page reloads itself.
            return HTMLResponse(_RELOAD_PAGE, status_code=401, headers={"refresh": "0"})
        return HTMLResponse(self._render_refused(), status_code=401)

    @property
    def _proof(self) -> str:
        return self._guard.proof


_RELOAD_PAGE: Final = (
    '<!doctype html><html lang="en"><title>Chronolake</title><p><a href="">Open the page</a></p>'
)


def _is_public(path: str) -> bool:
    """Return whether a path needs no token: the assets of the page for refused requests."""
    return path in {"/assets/page.css", "/assets/theme.js", "/assets/icon.svg"}


def _host_of(header: str) -> str:
    """Return the host of a Host header, without its port."""
    found = _HOST.fullmatch(header)
    return "" if found is None else found["six"] or found["name"]


def _path_of(scope: Scope) -> str:
    """Return the path of this request, never another site: `//host/` would be one."""
    path: str = scope["raw_path"].decode("latin-1") if scope.get("raw_path") else scope["path"]
    return "/" + path.lstrip("/\\")


def _is_same(given: str, expected: str) -> bool:
    """Return whether two secrets are equal, in constant time."""
    return hmac.compare_digest(given.encode(), expected.encode())
