"""Values on one line of a terminal, which none of them can break or steer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

if TYPE_CHECKING:
    from chronolake.cells import Cell
    from chronolake.types import TableName

#: Characters of a value that are shown.
LONGEST: Final = 120
_LONGEST_NAME: Final = 1_000


def cell(value: Cell) -> Text:
    """A cell on one line, as `label`; texts that would look like no value stand in quotes."""
    if value is None:
        return Text("null", style="dim italic")
    if isinstance(value, bool):
        return Text("true" if value else "false")
    if value in {"", "null"}:
        return Text(f'"{value}"')
    return label(str(value))


def name_of(table: TableName) -> str:
    """A table's name as commands take it, on one line; whole, because it is copied from here."""
    return label(str(table), longest=_LONGEST_NAME).plain


def label(text: str, *, longest: int = LONGEST) -> Text:
    """A text on one line: unprintable characters spelled out, long texts cut short."""
    # Spelled out, a value can neither break the layout nor steer the terminal.
    shown = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text[:longest]
    )
    if len(text) > longest:
        shown += f"… ({len(text):,} characters)"
    return Text(shown)
