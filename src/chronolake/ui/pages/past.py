"""Page: a table as of a time, and the differences between two times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.responses import Response
from starlette.routing import Route

from chronolake.errors import BatchError, ValueRefusedError
from chronolake.formatting import instant
from chronolake.inspect.catalog import look_up, places
from chronolake.inspect.time_travel import differences, rows_at
from chronolake.types import now_micros
from chronolake.ui import links
from chronolake.ui.rendering import SYSTEM_COLUMNS, instants, page, part

if TYPE_CHECKING:
    from starlette.requests import Request

    from chronolake.types import TableName
    from chronolake.ui.site import Site

#: The number of rows, or of different records, on one page.
PAGE: Final = 50
#: The two times of a URL: as of, and compared with.
WHICH: Final = ("at", "than")
_LONGEST: Final = 100


class TimeRefusedError(ValueRefusedError):
    """One of the two times is invalid, or is before the data that is kept.

    Attributes:
        which: the parameter of the time.
    """

    which: str

    @classmethod
    def of(cls, failure: ValueRefusedError, which: str) -> TimeRefusedError:
        """Return a copy of an error with the parameter that it concerns."""
        made = cls(failure.message, hint=failure.hint, table=failure.table)
        made.which = which
        return made


@dataclass(frozen=True)
class Asked:
    """The parameters of a URL.

    Attributes:
        name: the table.
        at: an instant, or None for now.
        than: another instant to compare with, or None for no comparison.
        after: the cursor of the page, or None for the first one.
    """

    name: TableName
    at: str | None
    than: str | None
    after: str | None

    @classmethod
    def of(cls, request: Request, name: TableName) -> Asked:
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
        said = {"at": self.at, "than": self.than, "after": self.after}
        return links.to(path, table=str(self.name), **(said | other))


def whole(request: Request) -> Response:
    """Render the page."""
    site: Site = request.app.state.site
    name = links.table_of(request)
    if name is None:
        return page(
            request,
            "choose.html",
            title="A table as it stood",
            section="past",
            names=sorted(places(site.config)),
            to="/past",
            lead="Any table as it was at any time, and what differs between two times.",
        )
    shown: dict[str, Any] = {
        "title": f"{name} as it stood",
        "section": "past",
        "name": name,
        "found": look_up(site.config, name),
        "failure": None,
    }
    try:
        asked = Asked.of(request, name)
        shown |= _context(site, asked)
    except ValueRefusedError as failure:
        # The typed text is kept, so that it can be corrected.
        at, than = (request.query_params.get(which, "")[:_LONGEST] or None for which in WHICH)
        shown |= {"asked": Asked(name, at, than, None), "failure": failure, "status": 400}
    return page(request, "past.html", **shown)


def rows(request: Request) -> Response:
    """Render the rows as of a time, or the differences between two times."""
    site: Site = request.app.state.site
    try:
        asked = Asked.of(request, links.required_table_of(request))
        shown = _context(site, asked)
    except TimeRefusedError as failure:
        return part(request, "part_error.html", status=400, failure=failure)
    return part(request, "past_rows.html", name=asked.name, **shown)


def life(request: Request) -> Response:
    """Return the density of changes over the table's life as JSON.

    Times are in milliseconds since 1970.
    """
    site: Site = request.app.state.site
    found = site.life(links.required_table_of(request))
    reported = {
        "first": _milliseconds(found.first_micros),
        "last": _milliseconds(found.last_micros),
        "width": found.width_micros / 1_000,
        "starts": [bucket.start_micros / 1_000 for bucket in found.buckets],
        "began": [bucket.began for bucket in found.buckets],
        "ended": [bucket.ended for bucket in found.buckets],
    }
    return Response(orjson.dumps(reported), media_type="application/json")


def _context(site: Site, asked: Asked) -> dict[str, Any]:
    try:
        return _found(site, asked)
    except ValueRefusedError as failure:
        if asked.after is not None:
            raise  # The cursor may be invalid.
        # Of two times, the earlier one is before the data that is kept.
        is_first = asked.than is None or asked.between[0] == asked.at
        raise TimeRefusedError.of(failure, "at" if is_first else "than") from failure
    except BatchError:
        reported = ValueRefusedError(
            "The table has no primary key, so its records cannot be compared.",
            hint="Look at one time after the other: leave out the second time.",
            table=str(asked.name),
        )
        raise TimeRefusedError.of(reported, "than") from None


def _found(site: Site, asked: Asked) -> dict[str, Any]:
    if asked.than is None:
        found = rows_at(site.config, asked.name, asked.at, after=asked.after, limit=PAGE)
        names = [column.name for column in found.columns]
        system = [name for name in names if name in SYSTEM_COLUMNS and name not in found.key]
        own = [name for name in names if name not in {*system, *found.key}]
        return {
            "asked": asked,
            "stood": found,
            "columns": [*found.key, *own, *system],
            "system": frozenset(system),
            "instants": instants(found.columns),
            "differing": None,
            "known_since": _known_since(found.at, found.known_since),
        }
    before, after = asked.between
    found_differences = differences(
        site.config, asked.name, before, after, page=asked.after, limit=PAGE
    )
    return {
        "asked": asked,
        "stood": None,
        "differing": found_differences,
        "instants": instants(found_differences.columns),
        "known_since": _known_since(before, found_differences.known_since),
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


ROUTES: Final = (Route("/past", whole), Route("/part/past", rows), Route("/part/life", life))
