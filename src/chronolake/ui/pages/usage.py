"""Page: monthly active rows by table, as a chart and a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from starlette.routing import Route

from chronolake.ui import links
from chronolake.ui.rendering import render_page, render_part
from chronolake.ui.site import MONTH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from chronolake.inspect.tables import MonthlyUsage
    from chronolake.ui.site import Overview, TableOverview

#: The number of months, and the number of tables on one page.
MONTHS: Final = 12
PAGE: Final = 100
#: The number of tables with their own colour in the chart; all others share one.
OWN_SERIES: Final = 6
_TIMEOUT_SECONDS: Final = 0.4


@dataclass(frozen=True)
class UsageRow:
    """A table's rows in several months.

    Attributes:
        seen: the table.
        months: its usage in each month, or None if it was not written.
    """

    seen: TableOverview
    months: tuple[MonthlyUsage | None, ...]

    @property
    def sum(self) -> int:
        """Return the sum over all months. It is the sort key, and not a number of distinct rows."""
        return sum(month.rows for month in self.months if month is not None)


@dataclass(frozen=True)
class Total:
    """The rows of all tables in a month."""

    month: str
    rows: int
    is_exact: bool


def _context(request: Request) -> dict[str, Any]:
    overview: Overview = request.app.state.site.overview
    tables = overview.tables(_TIMEOUT_SECONDS)
    known = {usage.month for seen in tables for usage in seen.usage}
    until = request.query_params.get("until", "")
    until = until if MONTH.fullmatch(until) else max(known, default="")
    months = _months(until, min(known, default=until))
    by_table = [UsageRow(seen, _usage_in(seen, months)) for seen in tables]
    found = sorted(
        (row for row in by_table if any(row.months)), key=lambda row: (-row.sum, row.seen.name)
    )
    pages = max(1, -(-len(found) // PAGE))
    number = min(links.number_of(request, "page", default=1), pages)
    return {
        "months": months,
        "rows": found[(number - 1) * PAGE : number * PAGE],
        "first": (number - 1) * PAGE + 1,
        "found": len(found),
        "pages": pages,
        "number": number,
        "totals": [_total_of(found, place, month) for place, month in enumerate(months)],
        "series": _chart_series(found, months),
        "until": until,
        "earlier": _previous_month(months[0])
        if months and known and months[0] > min(known)
        else None,
        "later": None if until >= max(known, default="") else max(known),
        "unread": sum(not seen.is_read for seen in tables),
    }


def _months(until: str, since: str) -> list[str]:
    """Return up to 12 months in chronological order, ending with `until`; at least that month."""
    found: list[str] = []
    month = until
    while month and len(found) < MONTHS and (month >= since or not found):
        found.insert(0, month)
        month = _previous_month(month)
    return found


def _previous_month(month: str) -> str:
    year, number = int(month[:4]), int(month[5:])
    return f"{year - 1:04}-12" if number == 1 else f"{year:04}-{number - 1:02}"


def _usage_in(seen: TableOverview, months: Sequence[str]) -> tuple[MonthlyUsage | None, ...]:
    by_month = {usage.month: usage for usage in seen.usage}
    return tuple(by_month.get(month) for month in months)


def _total_of(rows: Sequence[UsageRow], place: int, month: str) -> Total:
    of_month = [usage for row in rows if (usage := row.months[place]) is not None]
    is_exact = all(usage.is_exact for usage in of_month)
    return Total(month, sum(usage.rows for usage in of_month), is_exact)


def _chart_series(rows: Sequence[UsageRow], months: Sequence[str]) -> list[dict[str, Any]]:
    """Return the chart's series: the tables with the most rows, and all others combined."""

    def sums(selected: Sequence[UsageRow]) -> list[int]:
        return [_total_of(selected, place, month).rows for place, month in enumerate(months)]

    most = OWN_SERIES if len(rows) > OWN_SERIES + 1 else OWN_SERIES + 1
    series = [{"name": str(row.seen.name), "rows": sums([row])} for row in rows[:most]]
    if len(rows) > most:
        others = {"name": f"{len(rows) - most:,} other tables", "rows": sums(rows[most:])}
        series.append(others)
    return series


def show_usage(request: Request) -> Response:
    """Render the page."""
    return render_page(request, "usage.html", title="Usage", section="usage", **_context(request))


def show_usage_list(request: Request) -> Response:
    """Render the chart's series and the list alone."""
    return render_part(request, "usage_list.html", **_context(request))


ROUTES: Final = (Route("/usage", show_usage), Route("/part/usage", show_usage_list))
