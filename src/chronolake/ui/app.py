"""The ASGI application: the routes of the pages, and the handling of errors.

A page is a module of `pages/` with `ROUTES`. Pages are plain functions, which Starlette runs in
threads, because they only read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from chronolake.errors import ChronolakeError, LakeError
from chronolake.ui import rendering
from chronolake.ui.concurrency import Turns
from chronolake.ui.pages import inside, past, record, run, runs, tables, usage
from chronolake.ui.security import Guard, Guarded

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from chronolake.ui.site import Site

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
