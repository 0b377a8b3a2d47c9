"""Page: a run with the progress, errors and row counts of its streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.routing import Route

from chronolake.errors import SourceError
from chronolake.inspect.catalog import places
from chronolake.pipeline.run_history import run
from chronolake.pipeline.runs import Status
from chronolake.ui import links
from chronolake.ui.pages.runs import BADGES
from chronolake.ui.rendering import failed, page, part

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from chronolake.pipeline.run_history import ObservedRun
    from chronolake.ui.site import Site

_LONGEST: Final = 500
#: The number of streams on one page; failed and running streams are shown first.
PAGE: Final = 500
_FIRST: Final = (Status.FAILED, Status.DEAD, Status.RUNNING)


def _found(request: Request) -> ObservedRun | None:
    site: Site = request.app.state.site
    site.expect_lake()
    return run(site.config, request.query_params.get("id", "")[:_LONGEST])


def _missing(request: Request) -> Response:
    reported = SourceError(
        "There is no such run.",
        hint="The newest thousand of each pipeline are remembered; begin with the list of runs.",
    )
    return failed(request, reported, status=404, title="No such run")


def _context(request: Request, found: ObservedRun) -> dict[str, Any]:
    site: Site = request.app.state.site
    order = {status: place for place, status in enumerate(_FIRST)}
    streams = sorted(
        found.streams, key=lambda one: (order.get(one.told.status, len(order)), one.told.stream)
    )
    first = links.number_of(request, "first", default=0, least=0) // PAGE * PAGE
    if first >= len(streams):
        first = 0
    return {
        "seen": found,
        "run": found.run,
        "streams": streams[first : first + PAGE],
        "first": first,
        "size": PAGE,
        "tables": {str(name): name for name in places(site.config)},
        "badges": BADGES,
        "is_live": found.run.status is Status.RUNNING,
        "is_pulled": any(stream.told.landed_files is not None for stream in found.streams),
    }


def json_text(value: object) -> str:
    """Serialize a value as JSON text."""
    return orjson.dumps(value).decode()


def whole(request: Request) -> Response:
    """Render the page."""
    found = _found(request)
    if found is None:
        return _missing(request)
    title = f"A run of {found.run.pipeline}"
    shown = _context(request, found)
    return page(request, "run.html", title=title, section="runs", json=json_text, **shown)


def rows(request: Request) -> Response:
    """Render the parts that change during the run."""
    found = _found(request)
    if found is None:
        return _missing(request)
    return part(request, "run_now.html", json=json_text, **_context(request, found))


ROUTES: Final = (Route("/run", whole), Route("/part/run", rows))
