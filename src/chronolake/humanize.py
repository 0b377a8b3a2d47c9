"""Words for people: the known name that an unknown one is nearest to, things counted, and bytes."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_STEP: Final = 1024


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """A hint for a name that nobody knows.

    Args:
        name: the name.
        known: the names that are known.
        otherwise: what is said where none of them is near.
    """
    near = _nearest(name, known)
    return otherwise if near is None else f"Did you mean {near!r}?"


def table_to_find(name: str, known: Iterable[str]) -> str:
    """A hint for a table that is not there.

    Args:
        name: the table's name as it is printed.
        known: the names of the lake's tables.
    """
    near = _nearest(name, known)
    # Without quotes around it, as commands take it.
    reported = "" if near is None else f"Did you mean {near}? "
    return f"{reported}`chronolake tables` lists the tables; names are case-sensitive."


def _nearest(name: str, known: Iterable[str]) -> str | None:
    names = list(known)
    by_case = {one.casefold(): one for one in names}
    if name.casefold() in by_case:
        return by_case[name.casefold()]
    return next(iter(difflib.get_close_matches(name, names, n=1)), None)


def counted(number: int, thing: str) -> str:
    """So many of a thing: "1 stream", "2 streams", "1,000 records"."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def size(count: int) -> str:
    """Bytes in words: 1.5 MiB."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < _STEP:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= _STEP
    return f"{amount:,.1f} TiB"
