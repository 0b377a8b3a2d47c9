"""Values of records as HTML: escaped, and shown so that no two of them look alike."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from markupsafe import Markup, escape

from chronolake.types import TMAX_TEXT, TMIN_TEXT, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chronolake.cells import Cell
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
    told = text.encode("unicode_escape").decode()
    return Markup('<span class="escape">{}</span>').format(told)


def _blanks(count: int) -> Markup:
    if not count:
        return _NOTHING
    told = f"{count:,} blank{'s' if count > 1 else ''}"
    return Markup('<span class="blank" role="img" aria-label="{}" title="{}">{}</span>').format(
        told, told, " " * count
    )


def _rest(count: int) -> Markup:
    return _mark(f"… ({count:,} characters)" if count > _LONGEST else "…")


def _mark(words: str) -> Markup:
    return Markup('<span class="null">{}</span>').format(words)
