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
    names = list(known)
    by_case = {one.casefold(): one for one in names}
    near = [by_case[name.casefold()]] if name.casefold() in by_case else None
    near = near or difflib.get_close_matches(name, names, n=1)
    return f"Did you mean {near[0]!r}?" if near else otherwise


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
