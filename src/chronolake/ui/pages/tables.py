"""Page: the list of tables with mode, size, freshness and health."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from starlette.routing import Route

from chronolake.errors import LakeError
from chronolake.types import Mode
from chronolake.ui import links
from chronolake.ui.rendering import render_page, render_part

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from chronolake.pipeline.freshness import Freshness
    from chronolake.types import TableName
    from chronolake.ui.site import Site, TableOverview

#: The number of tables on one page.
PAGE: Final = 100
_TIMEOUT_SECONDS: Final = 0.25
#: The labels of capture methods.
CAPTURE_METHODS: Final = {
    "every-change": "every change",
    "observed-changes": "observed changes",
    "snapshot-diff": "snapshot diff",
}


@dataclass(frozen=True)
class Heading:
    """A column of the list.

    Attributes:
        name: the name in URLs.
        title: the label.
        of: returns the sort key; None is sorted last.
        is_number: whether it is right-aligned, and sorted in descending order first.
    """

    name: str
    title: str
    of: Callable[[TableOverview, Freshness | None], Any]
    is_number: bool = False


def _health_sort_key(
    seen: TableOverview, fresh: Freshness | None
) -> tuple[bool, float, float] | None:
    """Return the sort key of a table's health; a violated invariant ranks worst."""
    if seen.health is None:
        return None
    is_broken = fresh is not None and fresh.verified is not None and not fresh.verified.holds
    return is_broken, seen.health.small_files, seen.health.delete_ratio


HEADINGS: Final = (
    Heading("name", "Table", lambda seen, _: seen.name),
    Heading("mode", "Mode", lambda seen, _: seen.summary and seen.summary.mode.value),
    Heading("rows", "Rows", lambda seen, _: seen.rows, is_number=True),
    Heading("versions", "Versions", lambda seen, _: seen.versions, is_number=True),
    Heading("size", "Size", lambda seen, _: seen.summary and seen.summary.bytes, is_number=True),
    Heading("fresh", "Published", lambda seen, _: seen.summary and seen.summary.published_at),
    Heading("lag", "Source as of", lambda _, fresh: fresh and fresh.fresh_as_of),
    Heading("sight", "Capture", lambda seen, _: seen.capture_method),
    Heading("health", "Health", _health_sort_key),
)


@dataclass(frozen=True)
class TablesQuery:
    """The filter and the order in a URL."""

    search: str
    mode: str
    sort: str
    descending: bool
    number: int

    @classmethod
    def of(cls, request: Request) -> TablesQuery:
        """Parse the parameters of a request; invalid ones are ignored."""
        query = request.query_params
        sort = query.get("sort", "")
        mode = query.get("mode", "")
        return cls(
            search=query.get("search", "").strip()[:200],
            mode=mode if mode in {item.value for item in Mode} else "",
            sort=sort if sort in {heading.name for heading in HEADINGS} else "name",
            descending=query.get("order") == "down",
            number=links.number_of(request, "page", default=1),
        )

    def url(self, **other: str | int | None) -> str:
        """Return the URL of this list, with some parameters replaced."""
        parameters: dict[str, str | int | None] = {
            "search": self.search,
            "mode": self.mode,
            "sort": None if self.sort == "name" else self.sort,
            "order": "down" if self.descending else None,
            "page": None if self.number == 1 else self.number,
        }
        return links.to("/", **(parameters | other))

    def sorted_by(self, heading: Heading) -> str:
        """Return the URL of this list sorted by a column, in reverse order if it is current."""
        is_same = heading.name == self.sort
        is_descending = not self.descending if is_same else heading.is_number
        return self.url(
            sort=None if heading.name == "name" else heading.name,
            order="down" if is_descending else None,
            page=None,
        )


def _searchable_text(name: TableName) -> str:
    """Return the text that is searched: the name with and without its backticks."""
    return f"{name} {name.schema}.{name.table}".lower()


def filter_and_sort(
    tables: list[TableOverview], fresh: Mapping[TableName, Freshness], query: TablesQuery
) -> list[TableOverview]:
    """Return the matching tables in order; tables with an unknown sort key are last."""
    words = query.search.lower().split()
    found = [
        seen
        for seen in tables
        if all(word in _searchable_text(seen.name) for word in words)
        and (not query.mode or (seen.summary is not None and seen.summary.mode == query.mode))
    ]
    of = next(heading.of for heading in HEADINGS if heading.name == query.sort)
    place = {seen.name: of(seen, fresh.get(seen.name)) for seen in found}
    known = [seen for seen in found if place[seen.name] is not None]
    return [
        *sorted(known, key=lambda seen: (place[seen.name], seen.name), reverse=query.descending),
        *(seen for seen in found if place[seen.name] is None),
    ]


def _is_outside(site: Site, seen: TableOverview) -> bool:
    """Return whether a table's metadata is outside the lake, because that was copied or moved."""
    return seen.location is not None and not site.config.contains(seen.location)


def _context(request: Request) -> dict[str, Any]:
    site: Site = request.app.state.site
    query = TablesQuery.of(request)
    tables = site.overview.tables(_TIMEOUT_SECONDS)
    fresh = site.freshness(tables)
    found = filter_and_sort(tables, fresh, query)
    pages = max(1, -(-len(found) // PAGE))
    number = min(query.number, pages)
    return {
        "query": query,
        "headings": HEADINGS,
        "modes": [mode.value for mode in Mode],
        "capture_methods": CAPTURE_METHODS,
        "limits": site.config.maintenance,
        "fresh": fresh,
        "tables": found[(number - 1) * PAGE : number * PAGE],
        "first": (number - 1) * PAGE + 1,
        "found": len(found),
        "count": len(tables),
        "pages": pages,
        "number": number,
        "unread": sum(not seen.is_read for seen in tables),
        "broken": sum(seen.failure is not None for seen in tables),
        "outside": [seen.name for seen in tables if _is_outside(site, seen)],
    }


def show_tables(request: Request) -> Response:
    """Render the page."""
    try:
        context = _context(request)
    except LakeError as failure:
        return render_page(
            request,
            "tables_missing.html",
            title="Tables",
            section="tables",
            status=503,
            failure=failure,
        )
    return render_page(request, "tables.html", title="Tables", section="tables", **context)


def show_tables_list(request: Request) -> Response:
    """Render the list alone."""
    return render_part(request, "tables_list.html", **_context(request))


ROUTES: Final = (Route("/", show_tables), Route("/part/tables", show_tables_list))
