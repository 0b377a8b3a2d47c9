"""Page: pipelines and the status of their runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from starlette.routing import Route

from chronolake.errors import ConfigurationError
from chronolake.pipeline.run_history import pipelines, summaries
from chronolake.pipeline.runs import Status
from chronolake.ui import links
from chronolake.ui.rendering import page, part

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from chronolake.ui.site import Site

#: The number of runs on one page.
PAGE: Final = 50
#: The style of each status's badge; the badge contains the status.
BADGES: Final = {
    Status.RUNNING: "accent",
    Status.SUCCEEDED: "good",
    Status.PARTIAL: "warn",
    Status.FAILED: "bad",
    Status.DEAD: "bad",
    Status.UNKNOWN: "unknown",
}
_LONGEST: Final = 500


@dataclass(frozen=True)
class Asked:
    """The parameters of a URL.

    Attributes:
        pipeline: only this pipeline's runs; all if empty.
        status: only runs with this status; all if None.
        after: only runs older than this one, or None.
    """

    pipeline: str
    status: Status | None
    after: str | None

    @classmethod
    def of(cls, request: Request) -> Asked:
        """Parse the parameters of a request; invalid ones are ignored."""
        query = request.query_params
        status = query.get("status", "")
        return cls(
            query.get("pipeline", "")[:_LONGEST],
            Status(status) if status in set(Status) else None,
            query.get("after", "")[:_LONGEST] or None,
        )

    def url(self, *, path: str = "/runs", **other: str | None) -> str:
        """Return the URL of these runs, with some parameters replaced."""
        said = {"pipeline": self.pipeline, "status": self.status, "after": self.after}
        return links.to(path, **(said | other))


def _context(request: Request) -> dict[str, Any]:
    site: Site = request.app.state.site
    site.expect_lake()
    asked = Asked.of(request)
    problem = None
    try:
        configured = site.sources()
    except ConfigurationError as failure:
        # Runs can be shown without the configuration.
        configured, problem = {}, failure
    found = summaries(
        site.config,
        pipeline=asked.pipeline or None,
        status=asked.status,
        limit=PAGE,
        after=asked.after,
    )
    known = pipelines(site.config, configured)
    return {
        "asked": asked,
        "badges": BADGES,
        "statuses": [status for status in Status if status is not Status.UNKNOWN],
        "pipelines": known,
        "found": found,
        "problem": problem,
        "is_configured": bool(configured),
        "is_live": any(
            run is not None and run.run.status is Status.RUNNING
            for run in [*found.runs, *(each.last for each in known)]
        ),
    }


def whole(request: Request) -> Response:
    """Render the page."""
    return page(request, "runs.html", title="Runs", section="runs", **_context(request))


def rows(request: Request) -> Response:
    """Render the lists alone."""
    return part(request, "runs_list.html", **_context(request))


ROUTES: Final = (Route("/runs", whole), Route("/part/runs", rows))
