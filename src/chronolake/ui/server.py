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
from chronolake.ui.pages import record, runs, table_metadata, tables, time_travel, usage
from chronolake.ui.rendering import render_error
from chronolake.ui.security import TOKEN, Guard, GuardMiddleware, is_loopback, new_token

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from chronolake.config import LakeConfig
    from chronolake.ui.site import Site


_MAX_CONCURRENT: Final = 3
#: The maximum number of waiting requests, and the maximum seconds that each waits.
_MAX_WAITING: Final = 24
_MAX_WAIT_SECONDS: Final = 20
_RETRY_SECONDS: Final = 5
#: A page without one of these parameters shows a choice of tables and reads nothing.
_TABLE_PARAMETERS: Final = frozenset({"table", "name"})


class ConcurrencyLimit:
    """The concurrency limit of one application."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_MAX_CONCURRENT)
        self._waiting = 0

    def limit_handler(
        self, render: Callable[[Request], Response]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return a page handler that waits for a slot, or answers 503 if it gets none in time.

        Args:
            render: renders the page in a thread. It is not called if the client has disconnected.
        """

        async def handle(request: Request) -> Response:
            if not _TABLE_PARAMETERS & request.query_params.keys():
                return await run_in_threadpool(render, request)
            if self._waiting >= _MAX_WAITING:
                return _respond_busy(request)
            self._waiting += 1
            try:
                is_acquired = await self._acquire(request)
            finally:
                self._waiting -= 1
            if not is_acquired:
                return _respond_busy(request)
            try:
                return await run_in_threadpool(render, request)
            finally:
                self._free.release()

        return handle

    async def _acquire(self, request: Request) -> bool:
        """Wait for a slot; return whether one is acquired and the client is still connected."""
        turn = asyncio.ensure_future(self._free.acquire())
        disconnect = asyncio.ensure_future(_wait_for_disconnect(request))
        try:
            await asyncio.wait(
                {turn, disconnect}, timeout=_MAX_WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        except asyncio.CancelledError:
            self._release(turn)
            raise
        finally:
            is_disconnected = disconnect.done()
            disconnect.cancel()
        if turn.done() and not is_disconnected:
            return True
        self._release(turn)
        return False

    def _release(self, turn: asyncio.Future[Literal[True]]) -> None:
        if turn.done():
            self._free.release()
        else:
            turn.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    """Return when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _respond_busy(request: Request) -> Response:
    error = LakeError(
        "Too many pages are loading at the same time.",
        hint="Wait a few seconds and try again. If this happens often, open fewer pages at the "
        "same time, and check whether the lake's storage is slow.",
    )
    response = render_error(request, error, title="The web UI is busy")
    response.headers["retry-after"] = str(_RETRY_SECONDS)
    return response


#: The modules of the pages.
PAGES: Final = (tables, table_metadata, record, time_travel, runs, usage)

#: Pages that read rows, or a table's complete lists of files.
_LIMITED_PAGES: Final = (table_metadata, record, time_travel)

_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_CACHE_FOREVER: Final = "public, max-age=31536000, immutable"


def application(site: Site, guard: Guard) -> ASGIApp:
    """Return the application for a lake, behind a guard."""
    # Over a network, Plotly's megabytes are worth compressing.
    middleware = [] if guard.only_loopback else [Middleware(GZipMiddleware, minimum_size=2_000)]
    limit = ConcurrencyLimit()
    app = Starlette(
        middleware=middleware,
        routes=[
            Route("/assets/{name}", _serve_asset),
            *(
                _limit_route(route, limit) if page in _LIMITED_PAGES else route
                for page in PAGES
                for route in page.ROUTES
            ),
        ],
        exception_handlers={
            ChronolakeError: _handle_error,
            HTTPException: _handle_not_found,
            OSError: _handle_os_error,
            Exception: _handle_unexpected,
        },
    )
    app.state.site = site
    return GuardMiddleware(app, guard, _render_refused)


def _limit_route(route: Route, limit: ConcurrencyLimit) -> Route:
    return Route(route.path, limit.limit_handler(route.endpoint))


def _serve_asset(request: Request) -> Response:
    name = request.path_params["name"]
    if f"/assets/{name}" == rendering.plotly_path():
        file = _plotly_file()
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
        headers={"cache-control": _CACHE_FOREVER if is_named else "no-cache"},
    )


def _plotly_file() -> Path:
    """Return the path of Plotly's JavaScript without importing the package, which is slow."""
    from importlib.util import find_spec  # noqa: PLC0415

    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise HTTPException(404)
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"


def _render_refused() -> str:
    return rendering.environment().get_template("refused.html").render()


def _handle_error(request: Request, failure: Exception) -> Response:
    return rendering.render_error(request, cast("ChronolakeError", failure))


def _handle_not_found(request: Request, failure: Exception) -> Response:
    error = ChronolakeError(
        "This page does not exist.", hint="Open the list of tables, or go back."
    )
    status = cast("HTTPException", failure).status_code
    return rendering.render_error(request, error, status=status, title="Page not found")


def _handle_os_error(request: Request, failure: Exception) -> Response:
    error = LakeError(
        f"A file of the lake cannot be read: {type(failure).__name__}.",
        hint="If maintenance has just run, reload the page. Otherwise check that the lake's "
        "storage is available and its files can be read.",
    )
    return rendering.render_error(request, error)


def _handle_unexpected(request: Request, _: Exception) -> Response:
    # uvicorn logs the error to standard error. A traceback in the page might contain values.
    error = ChronolakeError(
        "The page could not be rendered because of an unexpected error.",
        hint="Reload the page to try again. The terminal of `chronolake ui` shows the error.",
    )
    return rendering.render_error(request, error, status=500)


_MIN_TOKEN_LENGTH: Final = 16
_LAST_PORT: Final = 65_535
#: In bytes, a request's line and headers. A link may contain a record's long key.
_MAX_HEAD_BYTES: Final = 64 * 1024
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
    on_listening: Callable[[Address], None],
    *,
    project: Path | None = None,
) -> None:
    """Serve a lake's web UI until SIGINT or SIGTERM.

    Args:
        config: the lake, which does not need to exist yet.
        options: host, port and browser.
        on_listening: called as soon as the server accepts requests.
        project: the chronolake.yml whose pipelines fill the lake, or None.

    Raises:
        ConfigurationError: the address is not available, or the token is too short.
    """
    import uvicorn  # noqa: PLC0415 - not needed for `--help`

    from chronolake.ui.site import Site  # noqa: PLC0415 - the same

    listening = _bind(options)
    # A name's address is known after binding, because a resolver may return any address.
    bound = str(listening.getsockname()[0])
    try:
        token = _configured_token(bound)
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
            h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
    )
    # uvicorn raises a signal again after it has stopped; all work is done at that point.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    # The socket queues connections before the server accepts them, so the address can be reported
    # now.
    on_listening(address)
    if options.browser:
        threading.Thread(target=webbrowser.open, args=[address.url], daemon=True).start()
    threading.Thread(target=_preload, daemon=True).start()
    try:
        server.run(sockets=[listening])
    finally:
        site.close()


def _preload() -> None:
    """Import what the first page needs, in the background."""
    import pyiceberg.catalog.rest  # noqa: PLC0415
    import pyiceberg.table  # noqa: F401, PLC0415


def _configured_token(host: str) -> str | None:
    given = os.environ.get(UI_TOKEN)
    if given is not None and len(given) < _MIN_TOKEN_LENGTH:
        raise ConfigurationError(
            f"{UI_TOKEN} is too short.",
            hint=f"Use at least {_MIN_TOKEN_LENGTH} characters, or unset it to generate a token.",
        )
    return given or (None if is_loopback(host) else new_token())


def _bind(options: UiOptions) -> socket.socket:
    """Return a socket that listens on the configured address."""
    if not 0 <= options.port <= _LAST_PORT:
        raise ConfigurationError(
            f"{options.port} is not a valid TCP port.", hint="Use a number from 0 to 65535."
        )
    try:
        found = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as failure:
        raise ConfigurationError(
            f"{options.host} is not a valid address.",
            hint="Set --host to an address of this machine.",
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
            f"The server cannot listen on port {options.port} of {options.host}: "
            f"{failure.strerror}.",
            hint="Choose another port with --port; 0 selects a free one.",
        ) from failure
    return bound
