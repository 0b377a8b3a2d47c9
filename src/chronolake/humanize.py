"""Text for people: suggestions for unknown names, counts of things, and sizes in bytes."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_STEP: Final = 1024


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a hint for an unknown name.

    Args:
        name: the unknown name.
        known: the valid names.
        otherwise: the hint if no valid name is similar.
    """
    near = _nearest(name, known)
    return otherwise if near is None else f"Did you mean {near!r}?"


def table_to_find(name: str, known: Iterable[str]) -> str:
    """Return a hint for a table that does not exist.

    Args:
        name: the table's name as it is printed.
        known: the names of the lake's tables.
    """
    near = _nearest(name, known)
    # Without quotes, as commands accept it.
    reported = "" if near is None else f"Did you mean {near}? "
    return f"{reported}`chronolake tables` lists the tables; names are case-sensitive."


def _nearest(name: str, known: Iterable[str]) -> str | None:
    names = list(known)
    by_case = {one.casefold(): one for one in names}
    if name.casefold() in by_case:
        return by_case[name.casefold()]
    return next(iter(difflib.get_close_matches(name, names, n=1)), None)


def counted(number: int, thing: str) -> str:
    """Format a count: "1 stream", "2 streams", "1,000 records"."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def size(count: int) -> str:
    """Format a number of bytes: 1.5 MiB."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < _STEP:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= _STEP
    return f"{amount:,.1f} TiB"
