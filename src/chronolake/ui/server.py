"""The server of the web UI: its ASGI application, which listens until it is stopped.

A page is a module of `pages/` with `ROUTES`. Pages are plain functions, which Starlette runs in
threads, because they only read.

Pages that read rows or files hold memory while they are rendered. Their number is limited: without
a limit, many requests would use all memory, and would occupy all threads, so that cheap pages would
wait, too.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from chronolake.env import UI_TOKEN
from chronolake.errors import ChronolakeError, ConfigurationError, LakeError
from chronolake.ui import rendering
from chronolake.ui.pages import inside, past, record, run, runs, tables, usage
from chronolake.ui.rendering import failed
from chronolake.ui.security import TOKEN, Guard, Guarded, is_loopback, new_token

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from chronolake.config import LakeConfig
    from chronolake.ui.site import Site


_AT_ONCE: Final = 3
#: The maximum number of waiting requests, and the maximum seconds that each waits.
_WAITING: Final = 24
_LONGEST_SECONDS: Final = 20
_RETRY_SECONDS: Final = 5
#: A page without one of these parameters shows a choice of tables and reads nothing.
_NAMING: Final = frozenset({"table", "name"})


class Turns:
    """The concurrency limit of one application."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0

    def taken_by(
        self, made: Callable[[Request], Response]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return a page handler that waits for a slot, or answers 503 if it gets none in time.

        Args:
            made: renders the page in a thread. It is not called if the client has disconnected.
        """

        async def answer(request: Request) -> Response:
            if not _NAMING & request.query_params.keys():
                return await run_in_threadpool(made, request)
            if self._waiting >= _WAITING:
                return _busy(request)
            self._waiting += 1
            try:
                is_mine = await self._comes(request)
            finally:
                self._waiting -= 1
            if not is_mine:
                return _busy(request)
            try:
                return await run_in_threadpool(made, request)
            finally:
                self._free.release()

        return answer

    async def _comes(self, request: Request) -> bool:
        """Wait for a slot; return whether one is acquired and the client is still connected."""
        turn = asyncio.ensure_future(self._free.acquire())
        gone = asyncio.ensure_future(_goes(request))
        try:
            await asyncio.wait(
                {turn, gone}, timeout=_LONGEST_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        except asyncio.CancelledError:
            self._give_back(turn)
            raise
        finally:
            is_gone = gone.done()
            gone.cancel()
        if turn.done() and not is_gone:
            return True
        self._give_back(turn)
        return False

    def _give_back(self, turn: asyncio.Future[Literal[True]]) -> None:
        if turn.done():
            self._free.release()
        else:
            turn.cancel()


async def _goes(request: Request) -> None:
    """Return when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _busy(request: Request) -> Response:
    reported = LakeError(
        "Too many pages are being read at once.",
        hint="Wait a few seconds and try again. If it stays so, the lake's storage is slow, or "
        "others read much: ask for fewer pages at a time.",
    )
    answer = failed(request, reported, title="The page is busy")
    answer.headers["retry-after"] = str(_RETRY_SECONDS)
    return answer


#: The modules of the pages.
PAGES: Final = (tables, inside, record, past, runs, run, usage)

#: Pages that read rows, or a table's complete lists of files.
_READING: Final = (inside, record, past)

_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FOR_EVER: Final = "public, max-age=31536000, immutable"


def application(site: Site, guard: Guard) -> ASGIApp:
    """Return the application for a lake, behind a guard."""
    # Over a network, Plotly's megabytes are worth compressing.
    packed = [] if guard.only_loopback else [Middleware(GZipMiddleware, minimum_size=2_000)]
    turns = Turns()
    made = Starlette(
        middleware=packed,
        routes=[
            Route("/assets/{name}", _asset),
            *(
                _limited(route, turns) if page in _READING else route
                for page in PAGES
                for route in page.ROUTES
            ),
        ],
        exception_handlers={
            ChronolakeError: _told,
            HTTPException: _missing,
            OSError: _unreadable,
            Exception: _unexpected,
        },
    )
    made.state.site = site
    return Guarded(made, guard, _refused)


def _limited(route: Route, turns: Turns) -> Route:
    return Route(route.path, turns.taken_by(route.endpoint))


def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if f"/assets/{name}" == rendering.plotly_path():
        file = _plotly()
    else:
        known = {file.name: file for file in rendering.ASSETS.iterdir() if file.suffix in _TYPES}
        if name not in known:
            raise HTTPException(404)
        file = known[name]
    # Files without a version in their URL may have changed.
    is_named = "v" in request.query_params or "plotly" in name
    return FileResponse(
        file,
        media_type=_TYPES[file.suffix],
        headers={"cache-control": _FOR_EVER if is_named else "no-cache"},
    )


def _plotly() -> Path:
    """Return the path of Plotly's JavaScript without importing the package, which is slow."""
    from importlib.util import find_spec  # noqa: PLC0415

    found = find_spec("plotly")
    if found is None or found.origin is None:
        raise HTTPException(404)
    return Path(found.origin).parent / "package_data" / "plotly.min.js"


def _refused() -> str:
    return rendering.environment().get_template("refused.html").render()


def _told(request: Request, failure: Exception) -> Response:
    return rendering.failed(request, cast("ChronolakeError", failure))


def _missing(request: Request, failure: Exception) -> Response:
    reported = ChronolakeError(
        "There is no such page.", hint="Begin with the list of tables, or go back."
    )
    status = cast("HTTPException", failure).status_code
    return rendering.failed(request, reported, status=status, title="No such page")


def _unreadable(request: Request, failure: Exception) -> Response:
    reported = LakeError(
        f"A file of the lake cannot be read: {type(failure).__name__}.",
        hint="If maintenance has just run, reload the page; otherwise check that the lake's "
        "storage answers and that its files may be read.",
    )
    return rendering.failed(request, reported)


def _unexpected(request: Request, _: Exception) -> Response:
    # uvicorn logs the error to standard error. A traceback in the page might contain values.
    reported = ChronolakeError(
        "Something unexpected went wrong while the page was made.",
        hint="The terminal in which `chronolake ui` runs shows what it was; reload the page to "
        "try again.",
    )
    return rendering.failed(request, reported, status=500)


_SHORTEST_TOKEN: Final = 16
_LAST_PORT: Final = 65_535
#: In bytes, a request's line and headers. A link may contain a record's long key.
_LONGEST_HEAD: Final = 64 * 1024
#: Seconds for open requests to finish after a signal.
_GRACE_SECONDS: Final = 1


@dataclass(frozen=True)
class UiOptions:
    """Options of the server.

    Attributes:
        host: the address to listen on.
        port: TCP port; 0 selects a free one.
        browser: whether a browser is opened.
    """

    host: str = "127.0.0.1"
    port: int = 8787
    browser: bool = False


@dataclass(frozen=True)
class Address:
    """The address of the web UI.

    Attributes:
        host: the address to listen on.
        port: the TCP port.
        token: the token that a link needs, or None.
    """

    host: str
    port: int
    token: str | None

    @property
    def url(self) -> str:
        """Return the URL of the web UI, including the token if it is needed."""
        # Browsers cannot open the wildcard address, so the machine's name is used instead.
        named = socket.gethostname() if self.host in {"0.0.0.0", "::"} else self.host  # noqa: S104
        host = f"[{named}]" if ":" in named else named
        query = f"?{TOKEN}={self.token}" if self.token else ""
        return f"http://{host}:{self.port}/{query}"


def serve(
    config: LakeConfig,
    options: UiOptions,
    tell: Callable[[Address], None],
    *,
    project: Path | None = None,
) -> None:
    """Serve a lake's web UI until SIGINT or SIGTERM.

    Args:
        config: the lake, which does not need to exist yet.
        options: host, port and browser.
        tell: called as soon as the server accepts requests.
        project: the chronolake.yml whose pipelines fill the lake, or None.

    Raises:
        ConfigurationError: the address is not available, or the token is too short.
    """
    import uvicorn  # noqa: PLC0415 - not needed for `--help`

    # move.py
    from chronolake.ui.site import Site  # noqa: PLC0415 - the same

    listening = _bound(options)
    # A name's address is known after binding, because a resolver may return any address.
    bound = str(listening.getsockname()[0])
    try:
        token = _token(bound)
    except ConfigurationError:
        listening.close()
        raise
    address = Address(options.host, int(listening.getsockname()[1]), token)
    guard = Guard(token, is_loopback(bound), f"chronolake-ui-{address.port}")
    site = Site(config, project)
    server = uvicorn.Server(
        uvicorn.Config(
            application(site, guard),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            http="h11",
            h11_max_incomplete_event_size=_LONGEST_HEAD,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
    )
    # uvicorn raises a signal again after it has stopped; all work is done at that point.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    # The socket queues connections before the server accepts them, so the address can be reported
    # now.
    tell(address)
    if options.browser:
        threading.Thread(target=webbrowser.open, args=[address.url], daemon=True).start()
    threading.Thread(target=_prepared, daemon=True).start()
    try:
        server.run(sockets=[listening])
    finally:
        site.close()


def _prepared() -> None:
    """Import what the first page needs, in the background."""
    import pyiceberg.catalog.rest  # noqa: PLC0415
    import pyiceberg.table  # noqa: F401, PLC0415


def _token(host: str) -> str | None:
    given = os.environ.get(UI_TOKEN)
    if given is not None and len(given) < _SHORTEST_TOKEN:
        raise ConfigurationError(
            f"{UI_TOKEN} is too short for a token.",
            hint=f"Give it at least {_SHORTEST_TOKEN} characters, or leave it out: a token is "
            "made then.",
        )
    return given or (None if is_loopback(host) else new_token())


def _bound(options: UiOptions) -> socket.socket:
    """Return a socket that listens on the configured address."""
    if not 0 <= options.port <= _LAST_PORT:
        raise ConfigurationError(f"{options.port} is no TCP port.", hint="Give 0 to 65535.")
    try:
        found = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as failure:
        raise ConfigurationError(
            f"{options.host} is no address.", hint="Give --host an address of this machine."
        ) from failure
    family, kind, protocol, _, place = found[0]
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(place)
        bound.listen(128)
    except OSError as failure:
        bound.close()
        raise ConfigurationError(
            f"Port {options.port} of {options.host} cannot be listened on: {failure.strerror}.",
            hint="Choose another port with --port; 0 takes any free one.",
        ) from failure
    return bound
