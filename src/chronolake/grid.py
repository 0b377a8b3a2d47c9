"""Tables for terminals of any width."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich import box
from rich.cells import cell_len
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Column

#: Characters between two columns, and those at both ends of a line.
_BETWEEN, _ENDS = 3, 2
_INDENT: Final = 2


class Grid(Table):
    """A table whose cells are never cut off.

    Where the columns do not fit the terminal, they are wrapped between words. Where that does not
    suffice, each row is printed as its title and, below it, its other cells with their headers.
    """

    def __init__(self, title_column: str) -> None:
        """Create an empty table.

        Args:
            title_column: the column whose cells name their rows.
        """
        super().__init__(box=box.SIMPLE_HEAD, pad_edge=False)
        self._title_column = title_column

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the table for a width."""
        left = options.max_width - _ENDS - _BETWEEN * (len(self.columns) - 1)
        longest = {id(column): _longest(column) for column in self.columns}
        shortest = {
            id(column): longest[id(column)] if column.no_wrap else _longest_word(column)
            for column in self.columns
        }
        if sum(longest.values()) <= left:
            yield from super().__rich_console__(console, options)
        elif sum(shortest.values()) <= left:
            # Rich takes the width from the widest columns, even if it has to break their words.
            lacking = {key: longest[key] - shortest[key] for key in longest}
            spare = left - sum(shortest.values())
            for column in sorted(self.columns, key=lambda column: lacking[id(column)]):
                more = min(lacking[id(column)], spare)
                column.width = shortest[id(column)] + more
                spare -= more
            yield from super().__rich_console__(console, options)
        else:
            yield from self._blocks()

    def _blocks(self) -> Iterator[Text | Padding]:
        cells = {str(column.header): list(column.cells) for column in self.columns}
        for number in range(self.row_count):
            row = {header: _text(column[number]) for header, column in cells.items()}
            title = row.pop(self._title_column)
            title.no_wrap, title.overflow = False, "fold"
            yield title
            pairs = [
                Text.assemble((f"{header}: ", "dim"), cell) for header, cell in row.items() if cell
            ]
            yield Padding(Text(" · ", style="dim").join(pairs), (0, 0, 0, _INDENT))


def _text(cell: object) -> Text:
    return cell.copy() if isinstance(cell, Text) else Text(str(cell))


def _texts(column: Column) -> Iterator[str]:
    yield str(column.header)
    yield from map(str, column.cells)


def _longest(column: Column) -> int:
    return max(map(cell_len, _texts(column)))


def _longest_word(column: Column) -> int:
    return max(cell_len(word) for text in _texts(column) for word in text.split() or [""])
