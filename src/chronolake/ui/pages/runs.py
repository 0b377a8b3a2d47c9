"""Pages: pipelines and the status of their runs, and one run with its streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from starlette.routing import Route

from chronolake import exact_json
from chronolake.errors import ConfigurationError, SourceError
from chronolake.inspect.catalog import metadata_locations
from chronolake.pipeline.run_history import pipelines, run, summaries
from chronolake.pipeline.runs import Status
from chronolake.ui import links
from chronolake.ui.rendering import render_error, render_page, render_part

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from chronolake.pipeline.run_history import ObservedRun
    from chronolake.ui.site import Site

#: The number of runs on one page.
RUNS_PER_PAGE: Final = 50
#: The number of streams on one page; failed and running streams are shown first.
STREAMS_PER_PAGE: Final = 500
#: The style of each status's badge; the badge contains the status.
BADGES: Final = {
    Status.RUNNING: "accent",
    Status.SUCCEEDED: "good",
    Status.PARTIAL: "warn",
    Status.FAILED: "bad",
    Status.DEAD: "bad",
    Status.UNKNOWN: "unknown",
}
_MAX_LENGTH: Final = 500
_SHOWN_FIRST: Final = (Status.FAILED, Status.DEAD, Status.RUNNING)


@dataclass(frozen=True)
class RunsQuery:
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
    def of(cls, request: Request) -> RunsQuery:
        """Parse the parameters of a request; invalid ones are ignored."""
        parameters = request.query_params
        status = parameters.get("status", "")
        return cls(
            parameters.get("pipeline", "")[:_MAX_LENGTH],
            Status(status) if status in set(Status) else None,
            parameters.get("after", "")[:_MAX_LENGTH] or None,
        )

    def url(self, *, path: str = "/runs", **other: str | None) -> str:
        """Return the URL of these runs, with some parameters replaced."""
        parameters = {"pipeline": self.pipeline, "status": self.status, "after": self.after}
        return links.to(path, **(parameters | other))


def _runs_context(request: Request) -> dict[str, Any]:
    site: Site = request.app.state.site
    site.raise_if_missing()
    query = RunsQuery.of(request)
    problem = None
    try:
        configured = site.sources()
    except ConfigurationError as failure:
        # Runs can be shown without the configuration.
        configured, problem = {}, failure
    found = summaries(
        site.config,
        pipeline=query.pipeline or None,
        status=query.status,
        limit=RUNS_PER_PAGE,
        after=query.after,
    )
    known = pipelines(site.config, configured)
    return {
        "query": query,
        "badges": BADGES,
        "statuses": [status for status in Status if status is not Status.UNKNOWN],
        "pipelines": known,
        "found": found,
        "problem": problem,
        "is_configured": bool(configured),
        "is_live": any(
            run is not None and run.run.status is Status.RUNNING
            for run in [*found.runs, *(pipeline.last for pipeline in known)]
        ),
    }


def show_runs(request: Request) -> Response:
    """Render the page of all runs."""
    return render_page(request, "runs.html", title="Runs", section="runs", **_runs_context(request))


def show_runs_list(request: Request) -> Response:
    """Render the lists of pipelines and runs alone."""
    return render_part(request, "runs_list.html", **_runs_context(request))


def _read_run(request: Request) -> ObservedRun | None:
    site: Site = request.app.state.site
    site.raise_if_missing()
    return run(site.config, request.query_params.get("id", "")[:_MAX_LENGTH])


def _respond_missing(request: Request) -> Response:
    error = SourceError(
        "There is no such run.",
        hint="Choose a run from the list of runs. Only the newest 1,000 runs of each pipeline are "
        "kept.",
    )
    return render_error(request, error, status=404, title="Run not found")


def _run_context(request: Request, observed: ObservedRun) -> dict[str, Any]:
    site: Site = request.app.state.site
    order = {status: place for place, status in enumerate(_SHOWN_FIRST)}
    streams = sorted(
        observed.streams,
        key=lambda stream: (order.get(stream.record.status, len(order)), stream.record.stream),
    )
    first = links.number_of(request, "first", default=0, minimum=0)
    first = first // STREAMS_PER_PAGE * STREAMS_PER_PAGE
    if first >= len(streams):
        first = 0
    return {
        "seen": observed,
        "run": observed.run,
        "streams": streams[first : first + STREAMS_PER_PAGE],
        "first": first,
        "size": STREAMS_PER_PAGE,
        "tables": {str(name): name for name in metadata_locations(site.config)},
        "badges": BADGES,
        "is_live": observed.run.status is Status.RUNNING,
        "has_landed_files": any(
            stream.record.landed_files is not None for stream in observed.streams
        ),
    }


def json_text(value: object) -> str:
    """Serialize a value as JSON text."""
    return exact_json.dumps(value).decode("utf-8", "replace")


def show_run(request: Request) -> Response:
    """Render the page of one run."""
    found = _read_run(request)
    if found is None:
        return _respond_missing(request)
    title = f"A run of {found.run.pipeline}"
    context = _run_context(request, found)
    return render_page(request, "run.html", title=title, section="runs", json=json_text, **context)


def show_run_details(request: Request) -> Response:
    """Render the parts of one run's page that change during the run."""
    found = _read_run(request)
    if found is None:
        return _respond_missing(request)
    return render_part(request, "run_details.html", json=json_text, **_run_context(request, found))


ROUTES: Final = (
    Route("/runs", show_runs),
    Route("/part/runs", show_runs_list),
    Route("/run", show_run),
    Route("/part/run", show_run_details),
)
