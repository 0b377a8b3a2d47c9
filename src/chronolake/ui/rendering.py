"""HTML from templates, with values escaped.

Values of records as HTML: escaped, and shown so that no two of them look alike.

HTML from templates: everything is escaped, and values look the same on every page.
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
from chronolake.humanize import size
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


_LONGEST: Final = 240
_LONGEST_WHOLE: Final = 100_000
#: How much HTML of long texts a page may have, besides what it shows at once.
_ROOM: Final = 500_000
#: How many characters are shown on each side of a difference.
_AROUND: Final = 60
_NOTHING: Final = Markup("")
_NULL: Final = Markup(
    '<span class="null no-value" role="img" aria-label="null: no value" title="no value">'
    "null</span>"
)
_EMPTY: Final = Markup(
    '<span class="null empty-text" role="img" aria-label="empty: a text without characters" '
    'title="a text without characters">empty text</span>'
)


class Room:
    """What a page opens of its long texts: their whole, as long as there is room for it.

    Each page makes one of its own.

    Attributes:
        is_short: whether something long can only be read elsewhere.
    """

    def __init__(self) -> None:
        self.is_short = False
        self._left = _ROOM

    def shown(self, value: Cell, *, is_instant: bool = False, longest: int = _LONGEST) -> Markup:
        """A value; a text that is cut can be opened.

        Args:
            value: the value.
            is_instant: whether texts are instants.
            longest: how many characters are shown at once.
        """
        if is_instant and isinstance(value, str):
            return instant_tag(value, exact=True)
        return self._opened(value, cell(value, longest), longest)

    def sides(self, old: Cell, new: Cell, *, is_instant: bool = False) -> tuple[Markup, Markup]:
        """An old and a new value; long texts are cut to where they differ, and can be opened."""
        short = changed(old, new, is_instant=is_instant)
        if is_instant:
            return short
        return self._opened(old, short[0], _LONGEST), self._opened(new, short[1], _LONGEST)

    def _opened(self, value: Cell, short: Markup, longest: int) -> Markup:
        if not isinstance(value, str) or len(value) <= longest:
            return short
        if min(len(value), _LONGEST_WHOLE) > self._left:
            self.is_short = True
            return short
        whole = _piece(value, 0, min(len(value), _LONGEST_WHOLE))
        if len(value) > _LONGEST_WHOLE:
            self.is_short = True
            whole += _rest(len(value))
        if len(whole) > self._left:
            self.is_short = True
            return short
        self._left -= len(whole)
        return Markup(
            '<details class="cut"><summary><span class="begin">{}</span>'
            '<span class="all">all of {:,} characters</span></summary>'
            '<div class="long" tabindex="0" role="group" aria-label="The whole value">{}</div>'
            "</details>"
        ).format(short, len(value), whole)


def cell(value: Cell, longest: int = _LONGEST) -> Markup:
    """A value as text whatever it holds; long ones are cut short."""
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return Markup('<span class="bool">{}</span>').format("true" if value else "false")
    if isinstance(value, int | float):
        return Markup('<span class="num">{}</span>').format(value)
    if not value:
        return _EMPTY
    if len(value) <= longest:
        return _piece(value, 0, len(value))
    return _piece(value, 0, longest) + _rest(len(value))


def whole(value: Cell) -> Markup:
    """A value as far as a page can reasonably show it at once."""
    return cell(value, 20_000)


def changed(old: Cell, new: Cell, *, is_instant: bool = False) -> tuple[Markup, Markup]:
    """An old and a new value; long texts are cut to where they differ.

    Args:
        old: the value before.
        new: the value after.
        is_instant: whether texts are instants.
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
    if max(len(old), len(new)) <= _LONGEST:
        return cell(old), cell(new)
    same_before = _common(old, new)
    same_after = _common(old[same_before:][::-1], new[same_before:][::-1])
    return _excerpt(old, same_before, same_after), _excerpt(new, same_before, same_after)


def instants(columns: Iterable[Column]) -> frozenset[str]:
    """The names of the columns whose values are instants."""
    return frozenset(column.name for column in columns if column.type.kind is Kind.UTC_DATETIME)


def instant_tag(
    text: str | None, *, missing: str = "-", seconds: bool = False, exact: bool = False
) -> Markup:
    """An ISO instant as `<time>`; JavaScript adds the local time.

    Args:
        text: the instant, or None.
        missing: what is shown for None.
        seconds: whether fractions of seconds are left out of what is shown.
        exact: whether the two ends of time are shown as times, too.
    """
    if text is None:
        return Markup('<span class="null">{}</span>').format(missing)
    shown = None if exact else {TMAX_TEXT: "open end", TMIN_TEXT: "ever since"}.get(text)
    words = shown or text.replace("T", " ", 1).removesuffix("Z")
    words = words.partition(".")[0] if seconds else words
    return Markup('<time datetime="{}">{}</time>').format(text, words)


def _common(one: str, other: str) -> int:
    """How many characters two texts begin with in common; both may have millions."""
    same, most = 0, min(len(one), len(other))
    while same < most:
        middle = (same + most + 1) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            most = middle - 1
    return same


def _excerpt(text: str, same_before: int, same_after: int) -> Markup:
    """Where a text differs from another one, with a little of what is around it."""
    start, stop = max(0, same_before - _AROUND), len(text) - same_after
    shown = _mark("…") if start else _NOTHING
    shown += _piece(text, start, same_before)
    differing = _piece(text, same_before, min(stop, same_before + _LONGEST))
    if differing:
        shown += Markup("<mark>{}</mark>").format(differing)
    if stop > same_before + _LONGEST:
        return shown + _rest(len(text))
    end = min(len(text), stop + _AROUND)
    shown += _piece(text, stop, end)
    return shown + _rest(len(text)) if end < len(text) else shown


def _piece(text: str, start: int, stop: int) -> Markup:
    """A part of a text; blanks at the text's own ends, which nobody would see, are marked."""
    shown = text[start:stop]
    inner = shown.lstrip(" ") if start == 0 else shown
    before = len(shown) - len(inner)
    core = inner.rstrip(" ") if stop == len(text) else inner
    return _blanks(before) + _letters(core) + _blanks(len(inner) - len(core))


def _letters(text: str) -> Markup:
    """Spelled out, what is unprintable can neither hide nor turn the text around."""
    if text.isprintable():
        return escape(text)
    return _NOTHING.join(
        escape("".join(letters)) if is_printable else _escaped("".join(letters))
        for is_printable, letters in groupby(text, str.isprintable)
    )


def _escaped(text: str) -> Markup:
    reported = text.encode("unicode_escape").decode()
    return Markup('<span class="escape">{}</span>').format(reported)


def _blanks(count: int) -> Markup:
    if not count:
        return _NOTHING
    reported = f"{count:,} blank{'s' if count > 1 else ''}"
    return Markup('<span class="blank" role="img" aria-label="{}" title="{}">{}</span>').format(
        reported, reported, " " * count
    )


def _rest(count: int) -> Markup:
    return _mark(f"… ({count:,} characters)" if count > _LONGEST else "…")


def _mark(words: str) -> Markup:
    return Markup('<span class="null">{}</span>').format(words)


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
        "cell": cell,
        "whole": whole,
        "instant": instant_tag,
        "ago": ago_tag,
        "lasting": lasting,
        "only": only,
        "without_breaks": links.without_breaks,
        "without": without,
    }
    made.globals |= {
        "asset": asset,
        "changed": changed,
        "links": links,
        "plotly": plotly_path(),
        "new_room": Room,
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
