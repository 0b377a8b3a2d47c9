"""HTML from templates: everything is escaped, and values look the same on every page."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from chronolake.errors import LakeError, TableNotFoundError
from chronolake.spelling import size
from chronolake.types import (
    DELETED,
    HASH,
    HISTORY_COLUMNS,
    ROW_ID,
    SYNCED,
    VERSION,
)
from chronolake.ui import links, values

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from starlette.requests import Request

    from chronolake.cells import Cell
    from chronolake.errors import ChronolakeError

#: Columns that are not the source's own.
SYSTEM_COLUMNS: Final = frozenset({*HISTORY_COLUMNS, SYNCED, DELETED, ROW_ID, VERSION, HASH})
ASSETS: Final = Path(__file__).parent / "assets"
_MINUTE: Final = 60
_AGES: Final = ((86_400 * 365, "y"), (86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


class Place(NamedTuple):
    """An entry of the navigation.

    Attributes:
        section: what a page's `section` is compared with.
        title: the words.
        path: where it leads.
    """

    section: str
    title: str
    path: str


#: The navigation, from top to bottom.
NAVIGATION: Final = (
    Place("tables", "Tables", "/"),
    Place("record", "Timeline", "/record"),
    Place("past", "As it stood", "/past"),
    Place("runs", "Runs", "/runs"),
    Place("usage", "Usage", "/usage"),
)


def page(
    request: Request,
    template: str,
    *,
    title: str,
    section: str,
    status: int = 200,
    **context: Any,
) -> HTMLResponse:
    """A whole page.

    Args:
        request: what it answers.
        template: a file of `templates/` that extends `base.html`.
        title: of the browser's window, and the page's heading by default.
        section: which entry of the navigation is the present one.
        status: the HTTP status.
        context: what else the template needs.
    """
    shown = {
        "request": request,
        "title": title,
        "section": section,
        "navigation": NAVIGATION,
        "lake": request.app.state.site.label,
        **context,
    }
    return HTMLResponse(environment().get_template(template).render(shown), status_code=status)


def part(request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    """A piece of a page, for its JavaScript."""
    text = environment().get_template(template).render({"request": request, **context})
    return HTMLResponse(text, status_code=status)


def failed(
    request: Request,
    failure: ChronolakeError,
    *,
    status: int | None = None,
    title: str = "It did not work",
) -> HTMLResponse:
    """What went wrong and what to do: as a page, or as a piece of one.

    Args:
        request: what could not be answered.
        failure: what went wrong.
        status: the HTTP status; by default the one that suits the error.
        title: the page's heading.
    """
    shown = status or status_of(failure)
    if request.url.path.startswith("/part/"):
        return part(request, "part_error.html", status=shown, failure=failure)
    return page(request, "error.html", title=title, section="", status=shown, failure=failure)


def status_of(failure: ChronolakeError) -> int:
    """The HTTP status that an error is told with."""
    if isinstance(failure, TableNotFoundError):
        return 404
    if isinstance(failure, LakeError):
        return 503
    return 400


@cache
def environment() -> Environment:
    """The templates, with all that they may use."""
    made = Environment(
        loader=PackageLoader("chronolake.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "number": number,
        "size": size,
        "cell": values.cell,
        "whole": values.whole,
        "instant": values.instant_tag,
        "ago": ago_tag,
        "lasting": lasting,
        "only": only,
        "without_breaks": links.without_breaks,
        "without": without,
    }
    made.globals |= {
        "asset": asset,
        "changed": values.changed,
        "links": links,
        "plotly": plotly_path(),
        "new_room": values.Room,
    }
    return made


def asset(name: str) -> str:
    """The URL of a file of `assets/`; it changes with the file, except for scripts.

    Modules name each other, and one that has two URLs is two modules.
    """
    return f"/assets/{name}" if name.endswith(".js") else f"/assets/{name}?v={_stamp(name)}"


@cache
def _stamp(name: str) -> str:
    return hashlib.sha256((ASSETS / name).read_bytes()).hexdigest()[:12]


def plotly_path() -> str:
    """The URL of Plotly's bundle; it changes with the installed version."""
    from importlib.metadata import version  # noqa: PLC0415 - quick, and only here

    return f"/assets/plotly-{version('plotly')}.min.js"


def number(value: float) -> str:
    """A count with thousands separators."""
    return f"{value:,}"


def only(row: Mapping[str, Cell], names: Sequence[str]) -> dict[str, Cell]:
    """Some columns of a row."""
    return {name: row[name] for name in names}


def without(row: Mapping[str, Cell], names: Collection[str]) -> list[str]:
    """A row's columns but some."""
    return [name for name in row if name not in names]


def ago_tag(text: str | None, *, missing: str = "never") -> Markup:
    """An ISO instant as how long ago it was; JavaScript keeps it up to date."""
    if text is None:
        return Markup('<span class="null">{}</span>').format(missing)
    return Markup('<time datetime="{}" data-ago title="{}">{}</time>').format(
        text, text.replace("T", " ", 1).replace("Z", " UTC"), age(text)
    )


def lasting(seconds: float | None) -> Markup:
    """A length of time: `3.2 s`, `4 min 12 s`, `2 h 5 min`."""
    if seconds is None:
        return Markup('<span class="null">not known</span>')
    if seconds < _MINUTE:
        return Markup("{} s").format(f"{seconds:.1f}" if seconds < _MINUTE / 6 else round(seconds))
    whole = max(round(seconds), _MINUTE)
    units = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))
    length, unit, part, name = next(one for one in units if whole >= one[0])
    return Markup("{} {} {} {}").format(whole // length, unit, whole % length // part, name)


def age(text: str, *, now: datetime | None = None) -> str:
    """How long ago an ISO instant was, in words: `3 min ago`."""
    passed = ((now or datetime.now(UTC)) - datetime.fromisoformat(text)).total_seconds()
    if passed < 1:
        return "just now"
    seconds, unit = next(pair for pair in _AGES if passed >= pair[0])
    return f"{int(passed // seconds)} {unit} ago"
