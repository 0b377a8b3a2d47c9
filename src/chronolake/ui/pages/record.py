"""A record's timeline: its versions on a time axis and as a list, and what changed in each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.responses import Response
from starlette.routing import Route

from chronolake.errors import UnknownColumnError, ValueRefusedError
from chronolake.look.catalog import look_up, places
from chronolake.look.keys import completions
from chronolake.types import Mode
from chronolake.ui import links
from chronolake.ui.rendering import page, part
from chronolake.ui.timelines import drawn, page_of, version_page
from chronolake.ui.values import instants

if TYPE_CHECKING:
    from starlette.requests import Request

    from chronolake.look import Timeline
    from chronolake.look.catalog import LookedUp
    from chronolake.ui.site import Site

#: How many versions stand on one page of the list; of wide records as many as hold so many values.
PAGE: Final = 50
_FEWEST: Final = 10
_VALUES: Final = 2_000
_SUGGESTED: Final = 20


def whole(request: Request) -> Response:
    """The page: of choosing a table, of giving a key, or of a timeline."""
    site: Site = request.app.state.site
    name = links.table_of(request)
    if name is None:
        names = sorted(places(site.config))
        return page(
            request,
            "choose.html",
            title="A record's timeline",
            section="record",
            names=names,
            to="/record",
            lead="Every version of one record: when it was true, what changed, how it ended.",
        )
    found = look_up(site.config, name)
    title = f"Timeline of a record of {name}"
    context: dict[str, Any] = {"name": name, "found": found, "failure": None}
    try:
        key = links.key_of(request)
    except ValueRefusedError as failure:
        context |= {"columns": _asked_columns(found, {}), "key": {}, "failure": failure}
        return page(
            request, "record_ask.html", title=title, section="record", status=400, **context
        )
    context |= {"columns": _asked_columns(found, key), "key": key}
    if not key or not found.key or not key.keys() >= set(found.key):
        status = 400 if key and not found.key else 200
        return page(
            request, "record_ask.html", title=title, section="record", status=status, **context
        )
    try:
        listed = _versions(request, site, found, key)
    except (UnknownColumnError, ValueRefusedError) as failure:
        context["failure"] = failure
        return page(
            request, "record_ask.html", title=title, section="record", status=400, **context
        )
    return page(request, "record.html", title=title, section="record", **(context | listed))


def versions(request: Request) -> Response:
    """A page of the list of versions."""
    site: Site = request.app.state.site
    found = look_up(site.config, links.required_table_of(request))
    listed = _versions(request, site, found, links.key_of(request))
    return part(request, "record_versions.html", name=found.name, **listed)


def chart(request: Request) -> Response:
    """What the chart draws, as JSON."""
    site: Site = request.app.state.site
    found = look_up(site.config, links.required_table_of(request))
    timeline = _timeline(site, found, links.key_of(request))
    return Response(orjson.dumps(drawn(timeline.outline())), media_type="application/json")


def keys(request: Request) -> Response:
    """Values that a key column has and that begin with what was typed, as JSON."""
    site: Site = request.app.state.site
    found = completions(
        site.config,
        links.required_table_of(request),
        links.key_of(request),
        column=request.query_params.get("column", ""),
        limit=_SUGGESTED,
    )
    return Response(
        orjson.dumps([links.text_of(value) for value in found]), media_type="application/json"
    )


def _asked_columns(found: LookedUp, key: dict[str, str | None]) -> list[dict[str, Any]]:
    """The inputs of the form: the key's columns."""
    by_name = {column.name: column for column in found.columns}
    return [
        {
            "column": by_name[name],
            "text": key.get(name),
            "given": name in key,
            "was": _was(key.get(name)),
        }
        for name in found.key
    ]


def _was(text: str | None) -> str | None:
    """A value that an input would not keep, as JSON."""
    return None if text is None or links.without_breaks(text) == text else json.dumps(text)


def _timeline(site: Site, found: LookedUp, key: dict[str, str | None]) -> Timeline:
    if not found.key:
        raise UnknownColumnError(
            "The table has no key, so its records cannot be told apart.",
            hint="Look at the table as it stood, or ask in SQL with `chronolake query`.",
            table=str(found.name),
        )
    return site.timeline(found.name, key)


def _versions(
    request: Request, site: Site, found: LookedUp, key: dict[str, str | None]
) -> dict[str, Any]:
    timeline = _timeline(site, found, key)
    size = _page_size(timeline)
    newest_first = request.query_params.get("order") == "newest"
    number = links.number_of(request, "page", default=1)
    if "version" in request.query_params:
        wanted = links.number_of(request, "version", default=1)
        number = page_of(wanted, len(timeline.versions), size=size, newest_first=newest_first)
    return {
        "timeline": timeline,
        "instants": instants(found.columns),
        "is_history": timeline.mode is Mode.HISTORY,
        "listed": version_page(timeline, number, size=size, newest_first=newest_first),
        "given": dict(timeline.key),
    }


def _page_size(timeline: Timeline) -> int:
    columns = len(timeline.versions[0].values) if timeline.versions else 1
    return max(_FEWEST, min(PAGE, _VALUES // max(1, columns)))


ROUTES: Final = (
    Route("/record", whole),
    Route("/part/keys", keys),
    Route("/part/versions", versions),
    Route("/part/timeline", chart),
)
