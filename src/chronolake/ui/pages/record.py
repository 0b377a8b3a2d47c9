"""Page: the timeline of a record, as a chart and as a list of versions with their changes."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
from starlette.responses import Response
from starlette.routing import Route

from chronolake.errors import UnknownColumnError, ValueRefusedError
from chronolake.inspect import Ending
from chronolake.inspect.catalog import look_up, metadata_locations
from chronolake.inspect.keyset import complete_key
from chronolake.types import TMAX_TEXT, TMIN_TEXT, Mode
from chronolake.ui import links
from chronolake.ui.rendering import instant_columns, render_page, render_part

if TYPE_CHECKING:
    from starlette.requests import Request

    from chronolake.inspect import Timeline, Version
    from chronolake.inspect.catalog import CatalogTable
    from chronolake.ui.site import Site


#: The maximum number of columns with their own lane in the chart: those with the most changes.
MAX_LANES: Final = 12
#: A character for each `Version.outcome`.
_STATES: Final = {"active": "a", "replaced": "r", "deleted": "d", "archived": "x"}


@dataclass(frozen=True)
class ListedVersion:
    """A version in the list.

    Attributes:
        number: from 1, in order of the start.
        deleted_since: the time of the deletion before this version, or None. With it, the version
            is a revival.
        absence: `deleted` or `archived`: how the version before this one ended.
    """

    number: int
    version: Version
    deleted_since: str | None
    absence: str = Ending.DELETED.value

    @property
    def is_instant(self) -> bool:
        """Return whether the version ended at its start or earlier, so that it was never valid."""
        start, end = self.version.start, self.version.end
        return start is not None and end is not None and _milliseconds(end) <= _milliseconds(start)


@dataclass(frozen=True)
class VersionPage:
    """A page of a timeline's versions.

    Attributes:
        versions: the versions on it.
        number: the page number, from 1.
        pages: the number of pages.
        newest_first: the order.
    """

    versions: tuple[ListedVersion, ...]
    number: int
    pages: int
    newest_first: bool


def version_page(
    timeline: Timeline, number: int, *, size: int, newest_first: bool = False
) -> VersionPage:
    """Return a page of a timeline; the nearest one if the number is out of range."""
    count = len(timeline.versions)
    pages = max(1, -(-count // size))
    number = min(max(1, number), pages)
    first = (number - 1) * size
    last = min(first + size, count)
    if newest_first:
        first, last = count - last, count - first
    # The previous version shows whether a version is a revival.
    known = timeline.versions[max(0, first - 1) : last]
    befores = known if first else [None, *known]
    both = zip(befores, known[1:] if first else known, strict=False)
    listed = [_list_version(place, *pair) for place, pair in enumerate(both, start=first + 1)]
    return VersionPage(tuple(listed[::-1] if newest_first else listed), number, pages, newest_first)


def page_of(version: int, count: int, *, size: int, newest_first: bool = False) -> int:
    """Return the number of the page that contains a version."""
    place = count - version if newest_first else version - 1
    return max(0, min(place, count - 1)) // size + 1


def _list_version(number: int, before: Version | None, version: Version) -> ListedVersion:
    if before is None or before.ending is not Ending.DELETED:
        return ListedVersion(number, version, None)
    return ListedVersion(number, version, before.end, before.outcome)


def chart_data(timeline: Timeline) -> dict[str, Any]:
    """Return the chart's data: times in milliseconds since 1970, None for both ends of time.

    `states` has one character per version for how it ended. `lanes` contains the columns that
    changed, each with the positions of the versions that changed it.
    """
    versions = timeline.versions
    changed = Counter(change.column for version in versions for change in version.changes)
    lanes: dict[str, list[int]] = {name: [] for name, _ in changed.most_common(MAX_LANES)}
    for place, version in enumerate(versions):
        for change in version.changes:
            if change.column in lanes:
                lanes[change.column].append(place)
    return {
        "starts": [_finite_milliseconds(version.start) for version in versions],
        # Other writers end active versions at another time, as far in the future as ours.
        "ends": [
            None if version.ending is Ending.ACTIVE else _finite_milliseconds(version.end)
            for version in versions
        ],
        "states": "".join(_STATES[version.outcome] for version in versions),
        "lanes": [{"column": name, "places": numbers} for name, numbers in lanes.items()],
        "more": len(changed) - len(lanes),
    }


def _finite_milliseconds(text: str | None) -> float | None:
    return None if text in {None, TMIN_TEXT, TMAX_TEXT} else _milliseconds(text or "")


def _milliseconds(text: str) -> float:
    # Python's datetime has no years before 1 or after 9999, which occur after conversion to UTC.
    return int(np.datetime64(text.removesuffix("Z"), "us").astype(np.int64)) / 1_000


#: The maximum number of versions on one page; fewer for wide records, to limit the values.
PAGE: Final = 50
_MIN_PER_PAGE: Final = 10
_MAX_VALUES: Final = 2_000
_MAX_SUGGESTIONS: Final = 20


def show_record(request: Request) -> Response:
    """Render the page: a choice of tables, the form for a key, or a timeline."""
    site: Site = request.app.state.site
    name = links.table_of(request)
    if name is None:
        names = sorted(metadata_locations(site.config))
        return render_page(
            request,
            "choose.html",
            title="A record's timeline",
            section="record",
            names=names,
            to="/record",
            lead="Every version of one record: when it was valid, what changed, how it ended.",
        )
    found = look_up(site.config, name)
    title = f"Timeline of a record of {name}"
    context: dict[str, Any] = {"name": name, "found": found, "failure": None}
    try:
        key = links.key_of(request)
    except ValueRefusedError as failure:
        context |= {"columns": _form_columns(found, {}), "key": {}, "failure": failure}
        return render_page(
            request, "record_key.html", title=title, section="record", status=400, **context
        )
    context |= {"columns": _form_columns(found, key), "key": key}
    if not key or not found.key or not key.keys() >= set(found.key):
        status = 400 if key and not found.key else 200
        return render_page(
            request, "record_key.html", title=title, section="record", status=status, **context
        )
    try:
        listed = _versions(request, site, found, key)
    except (UnknownColumnError, ValueRefusedError) as failure:
        context["failure"] = failure
        return render_page(
            request, "record_key.html", title=title, section="record", status=400, **context
        )
    return render_page(request, "record.html", title=title, section="record", **(context | listed))


def show_versions(request: Request) -> Response:
    """Render a page of the list of versions."""
    site: Site = request.app.state.site
    found = look_up(site.config, links.required_table_of(request))
    listed = _versions(request, site, found, links.key_of(request))
    return render_part(request, "record_versions.html", name=found.name, **listed)


def show_chart(request: Request) -> Response:
    """Return the chart's data as JSON."""
    site: Site = request.app.state.site
    found = look_up(site.config, links.required_table_of(request))
    timeline = _timeline(site, found, links.key_of(request))
    return Response(orjson.dumps(chart_data(timeline.outline())), media_type="application/json")


def suggest_keys(request: Request) -> Response:
    """Return values of a key column that start with the typed text, as JSON."""
    site: Site = request.app.state.site
    found = complete_key(
        site.config,
        links.required_table_of(request),
        links.key_of(request),
        column=request.query_params.get("column", ""),
        limit=_MAX_SUGGESTIONS,
    )
    return Response(
        orjson.dumps([links.text_of(value) for value in found]), media_type="application/json"
    )


def _form_columns(table: CatalogTable, key: dict[str, str | None]) -> list[dict[str, Any]]:
    """Return the inputs of the form: the key's columns."""
    by_name = {column.name: column for column in table.columns}
    return [
        {
            "column": by_name[name],
            "text": key.get(name),
            "given": name in key,
            "original": _original_json(key.get(name)),
        }
        for name in table.key
    ]


def _original_json(text: str | None) -> str | None:
    """Return a value that an input would change as JSON, else None."""
    return None if text is None or links.without_breaks(text) == text else json.dumps(text)


def _timeline(site: Site, table: CatalogTable, key: dict[str, str | None]) -> Timeline:
    if not table.key:
        raise UnknownColumnError(
            "The table has no key, so its records cannot be identified.",
            hint="Look at the table at a point in time, or use SQL with `chronolake query`.",
            table=str(table.name),
        )
    return site.timeline(table.name, key)


def _versions(
    request: Request, site: Site, table: CatalogTable, key: dict[str, str | None]
) -> dict[str, Any]:
    timeline = _timeline(site, table, key)
    size = _page_size(timeline)
    newest_first = request.query_params.get("order") == "newest"
    number = links.number_of(request, "page", default=1)
    if "version" in request.query_params:
        wanted = links.number_of(request, "version", default=1)
        number = page_of(wanted, len(timeline.versions), size=size, newest_first=newest_first)
    return {
        "timeline": timeline,
        "instants": instant_columns(table.columns),
        "is_history": timeline.mode is Mode.HISTORY,
        "listed": version_page(timeline, number, size=size, newest_first=newest_first),
        "given": dict(timeline.key),
    }


def _page_size(timeline: Timeline) -> int:
    columns = len(timeline.versions[0].values) if timeline.versions else 1
    return max(_MIN_PER_PAGE, min(PAGE, _MAX_VALUES // max(1, columns)))


ROUTES: Final = (
    Route("/record", show_record),
    Route("/part/keys", suggest_keys),
    Route("/part/versions", show_versions),
    Route("/part/timeline", show_chart),
)
