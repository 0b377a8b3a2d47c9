"""Page: a table as of a time, and the differences between two times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.responses import Response
from starlette.routing import Route

from chronolake.errors import BatchError, ValueRefusedError
from chronolake.formatting import instant
from chronolake.inspect.catalog import look_up, metadata_locations
from chronolake.inspect.time_travel import differences, rows_at
from chronolake.types import now_micros
from chronolake.ui import links
from chronolake.ui.rendering import SYSTEM_COLUMNS, instant_columns, render_page, render_part

if TYPE_CHECKING:
    from starlette.requests import Request

    from chronolake.types import TableName
    from chronolake.ui.site import Site

#: The number of rows, or of different records, on one page.
PAGE: Final = 50
#: The two times of a URL: as of, and compared with.
TIME_PARAMETERS: Final = ("at", "than")
_MAX_LENGTH: Final = 100


class TimeRefusedError(ValueRefusedError):
    """One of the two times is invalid, or is before the data that is kept.

    Attributes:
        which: the parameter of the time.
    """

    parameter: str

    @classmethod
    def of(cls, failure: ValueRefusedError, parameter: str) -> TimeRefusedError:
        """Return a copy of an error with the parameter that it concerns."""
        error = cls(failure.message, hint=failure.hint, table=failure.table)
        error.parameter = parameter
        return error


@dataclass(frozen=True)
class TimeTravelQuery:
    """The parameters of a URL.

    Attributes:
        at: an instant, or None for now.
        than: another instant to compare with, or None for no comparison.
        after: the cursor of the page, or None for the first one.
    """

    name: TableName
    at: str | None
    than: str | None
    after: str | None

    @classmethod
    def of(cls, request: Request, name: TableName) -> TimeTravelQuery:
        """Parse the parameters of a request.

        Raises:
            TimeRefusedError: a text is not a time.
        """
        after = request.query_params.get("after") or None
        return cls(name, _instant(request, "at"), _instant(request, "than"), after)

    @property
    def between(self) -> tuple[str, str]:
        """Return the two instants in order; None is now."""
        pair = (self.at or _now(), self.than or _now())
        first, second = sorted(pair, key=links.micros_of)
        return first, second

    def url(self, *, path: str = "/past", **other: str | None) -> str:
        """Return the URL of this page, with some parameters replaced."""
        parameters = {"at": self.at, "than": self.than, "after": self.after}
        return links.to(path, table=str(self.name), **(parameters | other))


def show_time_travel(request: Request) -> Response:
    """Render the page."""
    site: Site = request.app.state.site
    name = links.table_of(request)
    if name is None:
        return render_page(
            request,
            "choose.html",
            title="A table at a point in time",
            section="past",
            names=sorted(metadata_locations(site.config)),
            to="/past",
            lead="The rows of a table at any time, and the differences between two times.",
        )
    context: dict[str, Any] = {
        "title": f"{name} at a point in time",
        "section": "past",
        "name": name,
        "found": look_up(site.config, name),
        "failure": None,
    }
    try:
        query = TimeTravelQuery.of(request, name)
        context |= _context(site, query)
    except ValueRefusedError as failure:
        # The typed text is kept, so that it can be corrected.
        at, than = (
            request.query_params.get(parameter, "")[:_MAX_LENGTH] or None
            for parameter in TIME_PARAMETERS
        )
        context |= {
            "query": TimeTravelQuery(name, at, than, None),
            "failure": failure,
            "status": 400,
        }
    return render_page(request, "time_travel.html", **context)


def show_rows(request: Request) -> Response:
    """Render the rows as of a time, or the differences between two times."""
    site: Site = request.app.state.site
    try:
        query = TimeTravelQuery.of(request, links.required_table_of(request))
        context = _context(site, query)
    except TimeRefusedError as failure:
        return render_part(request, "part_error.html", status=400, failure=failure)
    return render_part(request, "time_travel_rows.html", name=query.name, **context)


def show_activity(request: Request) -> Response:
    """Return the density of changes over the table's life as JSON.

    Times are in milliseconds since 1970.
    """
    site: Site = request.app.state.site
    found = site.activity(links.required_table_of(request))
    activity = {
        "first": _milliseconds(found.first_micros),
        "last": _milliseconds(found.last_micros),
        "width": found.width_micros / 1_000,
        "starts": [bucket.start_micros / 1_000 for bucket in found.buckets],
        "began": [bucket.began for bucket in found.buckets],
        "ended": [bucket.ended for bucket in found.buckets],
    }
    return Response(orjson.dumps(activity), media_type="application/json")


def _context(site: Site, query: TimeTravelQuery) -> dict[str, Any]:
    try:
        return _read(site, query)
    except ValueRefusedError as failure:
        if query.after is not None:
            raise  # The cursor may be invalid.
        # Of two times, the earlier one is before the data that is kept.
        is_first = query.than is None or query.between[0] == query.at
        raise TimeRefusedError.of(failure, "at" if is_first else "than") from failure
    except BatchError:
        error = ValueRefusedError(
            "The table has no primary key, so its records cannot be compared.",
            hint="Remove the second time, and look at one time after the other.",
            table=str(query.name),
        )
        raise TimeRefusedError.of(error, "than") from None


def _read(site: Site, query: TimeTravelQuery) -> dict[str, Any]:
    if query.than is None:
        found = rows_at(site.config, query.name, query.at, after=query.after, limit=PAGE)
        names = [column.name for column in found.columns]
        system = [name for name in names if name in SYSTEM_COLUMNS and name not in found.key]
        own = [name for name in names if name not in {*system, *found.key}]
        return {
            "query": query,
            "rows_at": found,
            "columns": [*found.key, *own, *system],
            "system": frozenset(system),
            "instants": instant_columns(found.columns),
            "differences": None,
            "known_since": _known_since(found.at, found.known_since),
        }
    before, after = query.between
    page = differences(site.config, query.name, before, after, page=query.after, limit=PAGE)
    return {
        "query": query,
        "rows_at": None,
        "differences": page,
        "instants": instant_columns(page.columns),
        "known_since": _known_since(before, page.known_since),
    }


def _known_since(at: str, since: str | None) -> str | None:
    """Return the earliest known instant of the table, if a time is before it."""
    return since if since and links.micros_of(at) < links.micros_of(since) else None


def _instant(request: Request, name: str) -> str | None:
    text = request.query_params.get(name, "").strip()
    if not text:
        return None
    if text == "now":
        return _now()
    try:
        return instant(links.micros_of(text))
    except ValueRefusedError as failure:
        raise TimeRefusedError.of(failure, name) from failure


def _now() -> str:
    return instant(now_micros())


def _milliseconds(micros: int | None) -> float | None:
    return None if micros is None else micros / 1_000


ROUTES: Final = (
    Route("/past", show_time_travel),
    Route("/part/past", show_rows),
    Route("/part/life", show_activity),
)
