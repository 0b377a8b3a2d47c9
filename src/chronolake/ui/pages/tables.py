"""Page: the list of tables with mode, size, freshness and health."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from starlette.routing import Route

from chronolake.errors import LakeError
from chronolake.types import Mode
from chronolake.ui import links
from chronolake.ui.rendering import page, part

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from chronolake.pipeline.freshness import Freshness
    from chronolake.types import TableName
    from chronolake.ui.site import Seen, Site

#: The number of tables on one page.
PAGE: Final = 100
_PATIENCE_SECONDS: Final = 0.25
#: The labels of capture methods.
SIGHTS: Final = {
    "every-change": "every change",
    "observed-changes": "observed changes",
    "snapshot-diff": "snapshot difference",
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
    of: Callable[[Seen, Freshness | None], Any]
    is_number: bool = False


def _illness(seen: Seen, fresh: Freshness | None) -> tuple[bool, float, float] | None:
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
    Heading("sight", "Stream sees", lambda seen, _: seen.capture_method),
    Heading("health", "Health", _illness),
)


@dataclass(frozen=True)
class Asked:
    """The filter and the order in a URL."""

    search: str
    mode: str
    sort: str
    descending: bool
    number: int

    @classmethod
    def of(cls, request: Request) -> Asked:
        """Parse the parameters of a request; invalid ones are ignored."""
        query = request.query_params
        sort = query.get("sort", "")
        mode = query.get("mode", "")
        return cls(
            search=query.get("search", "").strip()[:200],
            mode=mode if mode in {each.value for each in Mode} else "",
            sort=sort if sort in {heading.name for heading in HEADINGS} else "name",
            descending=query.get("order") == "down",
            number=links.number_of(request, "page", default=1),
        )

    def url(self, **other: str | int | None) -> str:
        """Return the URL of this list, with some parameters replaced."""
        said: dict[str, str | int | None] = {
            "search": self.search,
            "mode": self.mode,
            "sort": None if self.sort == "name" else self.sort,
            "order": "down" if self.descending else None,
            "page": None if self.number == 1 else self.number,
        }
        return links.to("/", **(said | other))

    def sorted_by(self, heading: Heading) -> str:
        """Return the URL of this list sorted by a column, in reverse order if it is current."""
        is_same = heading.name == self.sort
        down = not self.descending if is_same else heading.is_number
        return self.url(
            sort=None if heading.name == "name" else heading.name,
            order="down" if down else None,
            page=None,
        )


def _searched(name: TableName) -> str:
    """Return the text that is searched: the name with and without its backticks."""
    return f"{name} {name.schema}.{name.table}".lower()


def chosen(tables: list[Seen], fresh: Mapping[TableName, Freshness], asked: Asked) -> list[Seen]:
    """Return the matching tables in order; tables with an unknown sort key are last."""
    words = asked.search.lower().split()
    found = [
        seen
        for seen in tables
        if all(word in _searched(seen.name) for word in words)
        and (not asked.mode or (seen.summary is not None and seen.summary.mode == asked.mode))
    ]
    of = next(heading.of for heading in HEADINGS if heading.name == asked.sort)
    place = {seen.name: of(seen, fresh.get(seen.name)) for seen in found}
    known = [seen for seen in found if place[seen.name] is not None]
    return [
        *sorted(known, key=lambda seen: (place[seen.name], seen.name), reverse=asked.descending),
        *(seen for seen in found if place[seen.name] is None),
    ]


def _is_outside(site: Site, seen: Seen) -> bool:
    """Return whether a table's metadata is outside the lake, because that was copied or moved."""
    return seen.place is not None and not site.config.contains(seen.place)


def _context(request: Request) -> dict[str, Any]:
    site: Site = request.app.state.site
    asked = Asked.of(request)
    tables = site.overview.tables(_PATIENCE_SECONDS)
    fresh = site.freshness(tables)
    found = chosen(tables, fresh, asked)
    pages = max(1, -(-len(found) // PAGE))
    number = min(asked.number, pages)
    return {
        "asked": asked,
        "headings": HEADINGS,
        "modes": [mode.value for mode in Mode],
        "sights": SIGHTS,
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


def whole(request: Request) -> Response:
    """Render the page."""
    try:
        context = _context(request)
    except LakeError as failure:
        return page(
            request,
            "tables_missing.html",
            title="Tables",
            section="tables",
            status=503,
            failure=failure,
        )
    return page(request, "tables.html", title="Tables", section="tables", **context)


def rows(request: Request) -> Response:
    """Render the list alone."""
    return part(request, "tables_list.html", **_context(request))


ROUTES: Final = (Route("/", whole), Route("/part/tables", rows))
