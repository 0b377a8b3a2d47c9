"""Rendering of templates, errors and values as HTML.

Everything is escaped. Values are shown in the same way on every page, and different values never
look alike.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from chronolake.errors import LakeError, TableNotFoundError
from chronolake.formatting import size
from chronolake.types import (
    DELETED,
    HASH,
    HISTORY_COLUMNS,
    ROW_ID,
    SYNCED,
    TMAX_TEXT,
    TMIN_TEXT,
    VERSION,
    Kind,
)
from chronolake.ui import links

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from starlette.requests import Request

    from chronolake.errors import ChronolakeError
    from chronolake.formatting import Cell
    from chronolake.types import Column


_MAX_LENGTH: Final = 240
_MAX_FULL_LENGTH: Final = 100_000
#: The maximum characters of HTML for the full texts on a page, in addition to the visible parts.
_MAX_FULL_CHARACTERS: Final = 500_000
#: The number of characters that are shown on each side of a difference.
_CONTEXT_LENGTH: Final = 60
_NOTHING: Final = Markup("")
_NULL: Final = Markup(
    '<span class="null no-value" role="img" aria-label="null: no value" title="no value">'
    "null</span>"
)
_EMPTY: Final = Markup(
    '<span class="null empty-text" role="img" aria-label="empty: a text without characters" '
    'title="a text without characters">empty text</span>'
)


class TextBudget:
    """The budget of one page for the full texts of long values.

    Each page creates its own.

    Attributes:
        is_short: whether a long text is not on the page in full.
    """

    def __init__(self) -> None:
        self.is_short = False
        self._left = _MAX_FULL_CHARACTERS

    def render(
        self, value: Cell, *, is_instant: bool = False, longest: int = _MAX_LENGTH
    ) -> Markup:
        """Return a value as HTML; a text that is cut can be opened.

        Texts are instants if `is_instant`. Up to `longest` characters of other texts are visible at
        first.
        """
        if is_instant and isinstance(value, str):
            return instant_tag(value, exact=True)
        return self._make_expandable(value, cell(value, longest), longest)

    def render_change(
        self, old: Cell, new: Cell, *, is_instant: bool = False
    ) -> tuple[Markup, Markup]:
        """Return an old and a new value; long texts are cut to the difference and can be opened."""
        short = diff_cells(old, new, is_instant=is_instant)
        if is_instant:
            return short
        return self._make_expandable(old, short[0], _MAX_LENGTH), self._make_expandable(
            new, short[1], _MAX_LENGTH
        )

    def _make_expandable(self, value: Cell, short: Markup, longest: int) -> Markup:
        if not isinstance(value, str) or len(value) <= longest:
            return short
        if min(len(value), _MAX_FULL_LENGTH) > self._left:
            self.is_short = True
            return short
        full = _render_piece(value, 0, min(len(value), _MAX_FULL_LENGTH))
        if len(value) > _MAX_FULL_LENGTH:
            self.is_short = True
            full += _truncation_mark(len(value))
        if len(full) > self._left:
            self.is_short = True
            return short
        self._left -= len(full)
        return Markup(
            '<details class="cut"><summary><span class="begin">{}</span>'
            '<span class="all">all of {:,} characters</span></summary>'
            '<div class="long" tabindex="0" role="group" aria-label="The complete value">{}</div>'
            "</details>"
        ).format(short, len(value), full)


def cell(value: Cell, longest: int = _MAX_LENGTH) -> Markup:
    """Return any value as HTML; long texts are cut."""
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return Markup('<span class="bool">{}</span>').format("true" if value else "false")
    if isinstance(value, int | float):
        return Markup('<span class="num">{}</span>').format(value)
    if not value:
        return _EMPTY
    if len(value) <= longest:
        return _render_piece(value, 0, len(value))
    return _render_piece(value, 0, longest) + _truncation_mark(len(value))


def full_cell(value: Cell) -> Markup:
    """Return a value in full, up to what a page can show."""
    return cell(value, 20_000)


def diff_cells(old: Cell, new: Cell, *, is_instant: bool = False) -> tuple[Markup, Markup]:
    """Return an old and a new value; long texts are cut to their difference.

    If `is_instant`, texts are instants.
    """
    both = (old, new)
    if is_instant:
        before, after = (
            instant_tag(value, exact=True) if isinstance(value, str) else cell(value)
            for value in both
        )
        return before, after
    if not (isinstance(old, str) and isinstance(new, str) and old and new):
        return cell(old), cell(new)
    if max(len(old), len(new)) <= _MAX_LENGTH:
        return cell(old), cell(new)
    same_before = _common_prefix_length(old, new)
    same_after = _common_prefix_length(old[same_before:][::-1], new[same_before:][::-1])
    return _excerpt(old, same_before, same_after), _excerpt(new, same_before, same_after)


def instant_columns(columns: Iterable[Column]) -> frozenset[str]:
    """Return the names of the columns whose values are instants."""
    return frozenset(column.name for column in columns if column.type.kind is Kind.UTC_DATETIME)


def instant_tag(
    text: str | None, *, missing: str = "-", seconds: bool = False, exact: bool = False
) -> Markup:
    """Return an ISO instant as `<time>`; JavaScript adds the local time.

    Args:
        text: the instant, or None.
        missing: the text for None.
        seconds: whether fractions of seconds are hidden.
        exact: whether the minimum and maximum times are shown as times, too.
    """
    if text is None:
        return Markup('<span class="null">{}</span>').format(missing)
    shown = None if exact else {TMAX_TEXT: "open end", TMIN_TEXT: "the beginning"}.get(text)
    words = shown or text.replace("T", " ", 1).removesuffix("Z")
    words = words.partition(".")[0] if seconds else words
    return Markup('<time datetime="{}">{}</time>').format(text, words)


def _common_prefix_length(first: str, second: str) -> int:
    """Return the length of the common prefix of two texts; both may have millions of characters."""
    same, most = 0, min(len(first), len(second))
    while same < most:
        middle = (same + most + 1) // 2
        if first[same:middle] == second[same:middle]:
            same = middle
        else:
            most = middle - 1
    return same


def _excerpt(text: str, same_before: int, same_after: int) -> Markup:
    """Return the part of a text that differs from another one, with some context."""
    start, stop = max(0, same_before - _CONTEXT_LENGTH), len(text) - same_after
    shown = _mark("…") if start else _NOTHING
    shown += _render_piece(text, start, same_before)
    difference = _render_piece(text, same_before, min(stop, same_before + _MAX_LENGTH))
    if difference:
        shown += Markup("<mark>{}</mark>").format(difference)
    if stop > same_before + _MAX_LENGTH:
        return shown + _truncation_mark(len(text))
    end = min(len(text), stop + _CONTEXT_LENGTH)
    shown += _render_piece(text, stop, end)
    return shown + _truncation_mark(len(text)) if end < len(text) else shown


def _render_piece(text: str, start: int, stop: int) -> Markup:
    """Return a part of a text; blanks at the text's ends, which would be invisible, are marked."""
    shown = text[start:stop]
    inner = shown.lstrip(" ") if start == 0 else shown
    before = len(shown) - len(inner)
    core = inner.rstrip(" ") if stop == len(text) else inner
    return _mark_blanks(before) + _escape_text(core) + _mark_blanks(len(inner) - len(core))


def _escape_text(text: str) -> Markup:
    """Escape a text, and unprintable characters so that they cannot hide or reverse text."""
    if text.isprintable():
        return escape(text)
    return _NOTHING.join(
        escape("".join(letters)) if is_printable else _escape_unprintable("".join(letters))
        for is_printable, letters in groupby(text, str.isprintable)
    )


def _escape_unprintable(text: str) -> Markup:
    escaped = text.encode("unicode_escape").decode()
    return Markup('<span class="escape">{}</span>').format(escaped)


def _mark_blanks(count: int) -> Markup:
    if not count:
        return _NOTHING
    label = f"{count:,} blank{'s' if count > 1 else ''}"
    return Markup('<span class="blank" role="img" aria-label="{}" title="{}">{}</span>').format(
        label, label, " " * count
    )


def _truncation_mark(count: int) -> Markup:
    return _mark(f"… ({count:,} characters)" if count > _MAX_LENGTH else "…")


def _mark(words: str) -> Markup:
    return Markup('<span class="null">{}</span>').format(words)


#: Columns that the source does not have.
SYSTEM_COLUMNS: Final = frozenset({*HISTORY_COLUMNS, SYNCED, DELETED, ROW_ID, VERSION, HASH})
ASSETS: Final = Path(__file__).parent / "assets"
_MINUTE: Final = 60
_AGES: Final = ((86_400 * 365, "y"), (86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


class NavigationEntry(NamedTuple):
    """An entry of the navigation.

    Attributes:
        section: the value of a page's `section` for which this entry is current.
        title: the label.
        path: the URL path.
    """

    section: str
    title: str
    path: str


#: The navigation, from top to bottom.
NAVIGATION: Final = (
    NavigationEntry("tables", "Tables", "/"),
    NavigationEntry("record", "Record timeline", "/record"),
    NavigationEntry("past", "Time travel", "/past"),
    NavigationEntry("runs", "Runs", "/runs"),
    NavigationEntry("usage", "Usage", "/usage"),
)


def render_page(
    request: Request,
    template: str,
    *,
    title: str,
    section: str,
    status: int = 200,
    **context: Any,
) -> HTMLResponse:
    """Render a full page.

    Args:
        request: the request, whose application has the lake.
        template: a file in `templates/` that extends `base.html`.
        title: the title of the browser window, and by default the heading.
        section: the current entry of the navigation.
        status: the HTTP status.
        context: additional variables of the template.
    """
    variables = {
        "request": request,
        "title": title,
        "section": section,
        "navigation": NAVIGATION,
        "lake": request.app.state.site.label,
        **context,
    }
    return HTMLResponse(environment().get_template(template).render(variables), status_code=status)


def render_part(
    request: Request, template: str, *, status: int = 200, **context: Any
) -> HTMLResponse:
    """Render a part of a page, for its JavaScript."""
    text = environment().get_template(template).render({"request": request, **context})
    return HTMLResponse(text, status_code=status)


def render_error(
    request: Request,
    failure: ChronolakeError,
    *,
    status: int | None = None,
    title: str = "Error",
) -> HTMLResponse:
    """Render an error with its hint, as a page or as a part of one.

    The HTTP status is derived from the error by default.
    """
    status = status or status_of(failure)
    if request.url.path.startswith("/part/"):
        return render_part(request, "part_error.html", status=status, failure=failure)
    return render_page(
        request, "error.html", title=title, section="", status=status, failure=failure
    )


def status_of(failure: ChronolakeError) -> int:
    """Return the HTTP status for an error."""
    if isinstance(failure, TableNotFoundError):
        return 404
    if isinstance(failure, LakeError):
        return 503
    return 400


@cache
def environment() -> Environment:
    """Return the template environment with all filters and globals."""
    templates = Environment(
        loader=PackageLoader("chronolake.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "number": number,
        "size": size,
        "cell": cell,
        "full": full_cell,
        "instant": instant_tag,
        "ago": ago_tag,
        "duration": duration,
        "only": select_columns,
        "without_breaks": links.without_breaks,
        "without": column_names_without,
    }
    templates.globals |= {
        "asset": asset,
        "diff_cells": diff_cells,
        "links": links,
        "plotly": plotly_path(),
        "new_text_budget": TextBudget,
    }
    return templates


def asset(name: str) -> str:
    """Return the URL of a file in `assets/`; it changes with the file, except for scripts.

    Scripts import each other by name. A module with two URLs would be loaded twice.
    """
    return f"/assets/{name}" if name.endswith(".js") else f"/assets/{name}?v={_stamp(name)}"


@cache
def _stamp(name: str) -> str:
    return hashlib.sha256((ASSETS / name).read_bytes()).hexdigest()[:12]


def plotly_path() -> str:
    """Return the URL of Plotly's bundle; it changes with the installed version."""
    from importlib.metadata import version  # noqa: PLC0415 - quick, and only here

    return f"/assets/plotly-{version('plotly')}.min.js"


def number(value: float) -> str:
    """Format a count with thousands separators."""
    return f"{value:,}"


def select_columns(row: Mapping[str, Cell], names: Sequence[str]) -> dict[str, Cell]:
    """Return some columns of a row."""
    return {name: row[name] for name in names}


def column_names_without(row: Mapping[str, Cell], names: Collection[str]) -> list[str]:
    """Return the names of a row's columns, without some."""
    return [name for name in row if name not in names]


def ago_tag(text: str | None, *, missing: str = "never") -> Markup:
    """Return an ISO instant as its age; JavaScript keeps it up to date."""
    if text is None:
        return Markup('<span class="null">{}</span>').format(missing)
    return Markup('<time datetime="{}" data-ago title="{}">{}</time>').format(
        text, text.replace("T", " ", 1).replace("Z", " UTC"), age(text)
    )


def duration(seconds: float | None) -> Markup:
    """Format a duration: `3.2 s`, `4 min 12 s`, `2 h 5 min`."""
    if seconds is None:
        return Markup('<span class="null">not known</span>')
    if seconds < _MINUTE:
        return Markup("{} s").format(f"{seconds:.1f}" if seconds < _MINUTE / 6 else round(seconds))
    total = max(round(seconds), _MINUTE)
    units = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))
    length, unit, part, name = next(row for row in units if total >= row[0])
    return Markup("{} {} {} {}").format(total // length, unit, total % length // part, name)


def age(text: str, *, now: datetime | None = None) -> str:
    """Format the age of an ISO instant: `3 min ago`."""
    passed = ((now or datetime.now(UTC)) - datetime.fromisoformat(text)).total_seconds()
    if passed < 1:
        return "just now"
    seconds, unit = next(pair for pair in _AGES if passed >= pair[0])
    return f"{int(passed // seconds)} {unit} ago"
