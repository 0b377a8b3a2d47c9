"""Rendering of tables and timelines for terminals of 80 columns or more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from chronolake.formatting import LONGEST, cell, label, name_of, size
from chronolake.grid import Grid
from chronolake.inspect.history import Ending, Version
from chronolake.types import Mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chronolake.formatting import Cell
    from chronolake.inspect.history import Timeline
    from chronolake.inspect.tables import MonthlyUsage, TableSummary

_MAX_COLUMNS: Final = 24
_MINUTES: Final = len("2024-01-01T00:00")
_STYLES: Final = {Ending.ACTIVE: "green", Ending.REPLACED: "yellow", Ending.DELETED: "red"}


def tables(summaries: Sequence[TableSummary]) -> RenderableType:
    """Render a list of tables; sizes are in powers of 1024 bytes."""
    if not summaries:
        return Text("The lake has no tables yet.", style="dim")
    table = Grid("table")
    table.add_column("table", no_wrap=True)
    table.add_column("mode")
    table.add_column("key", overflow="fold")
    table.add_column("rows", justify="right", no_wrap=True)
    table.add_column("versions", justify="right", no_wrap=True)
    table.add_column("files", justify="right", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("published", no_wrap=True)
    for summary in summaries:
        table.add_row(
            Text(name_of(summary.name)),
            Text(summary.mode.value),
            label(", ".join(summary.key)),
            Text(f"{summary.rows if summary.active is None else summary.active:,}"),
            Text("" if summary.active is None else f"{summary.rows:,}"),
            Text(f"{summary.data_files:,}+{summary.delete_files:,}"),
            Text(size(summary.bytes)),
            Text((summary.published_at or "")[:_MINUTES].replace("T", " ")),
        )
    notes = Text(
        "rows of a history table: its active versions; files: data + delete files; times in UTC",
        style="dim",
    )
    return Group(table, notes)


def usage(month: str, months: Sequence[MonthlyUsage]) -> RenderableType:
    """Render the monthly active rows of tables."""
    if not months:
        return Text(f"No table was written in {month}.", style="dim")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_footer=True)
    table.add_column("table", "all", overflow="fold")
    table.add_column("mode")
    total = f"{'' if all(month_usage.is_exact for month_usage in months) else 'about '}"
    table.add_column(
        f"rows in {month}",
        f"{total}{sum(month_usage.rows for month_usage in months):,}",
        justify="right",
    )
    for month_usage in months:
        about = "" if month_usage.is_exact else "about "
        table.add_row(
            Text(name_of(month_usage.table)), month_usage.mode.value, f"{about}{month_usage.rows:,}"
        )
    notes = Text(
        "distinct rows written (history mode: versions); 'about': within 3 %",
        style="dim",
    )
    return Group(table, notes)


def timeline(timeline: Timeline) -> RenderableType:
    """Render a record's versions from the oldest to the newest, one block each."""
    count = len(timeline.versions)
    title = Text.assemble(
        (name_of(timeline.table), "bold"), "  ", _key(timeline), (f"  {timeline.mode.value}", "dim")
    )
    lineage = _lineage(timeline)
    if not count:
        return Group(title, *lineage, Text("No such record.", style="yellow"))
    if timeline.mode is not Mode.HISTORY:
        blocks = [_row(version) for version in timeline.versions]
        return Group(title, *lineage, Text(), *blocks)
    title.append(f", {count} version{'s' if count > 1 else ''}", style="dim")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_lines=True)
    table.add_column("from, until", no_wrap=True)
    table.add_column("ended", no_wrap=True)
    table.add_column("values and changes", ratio=1)
    for place, version in enumerate(timeline.versions):
        table.add_row(
            Text(f"{version.start}\n{version.end}"),
            Text(version.outcome, style=_STYLES[version.ending]),
            _values(version) if place == 0 else _changes(version),
        )
    if timeline.known_since is None:
        return Group(title, *lineage, table)
    note = Text(
        f"The table was switched to history mode at {timeline.known_since}: earlier changes are "
        "not known.",
        style="yellow",
    )
    return Group(title, *lineage, table, note)


def _lineage(timeline: Timeline) -> list[Text]:
    """Return lines about the records that a record was restored from, or restored as."""
    lineage = timeline.lineage
    if lineage is None:
        return []
    directions = (("restored from", lineage.restored_from), ("restored as", lineage.restored_as))
    lines = []
    for name, records in directions:
        if records:
            shown = [Text.assemble((f"{lineage.column}=", "dim"), cell(text)) for text in records]
            lines.append(Text.assemble((f"{name} ", "dim"), Text(", ").join(shown)))
    if not lineage.is_complete:
        lines.append(Text(lineage.incomplete, style="yellow"))
    return lines


def rows(names: Sequence[str], content: Iterable[Sequence[Cell]], *, width: int) -> RenderableType:
    """Render rows of a query as a table, or as one block for each row if the columns do not fit.

    Args:
        names: the columns' names.
        content: the rows, with cells in the order of `names`.
        width: the terminal's width in characters.
    """
    lines = [[cell(value) for value in row] for row in content]
    widest = [
        max([len(name), *(min(line[place].cell_len, LONGEST) for line in lines)])
        for place, name in enumerate(names)
    ]
    if (
        sum(widest) + 3 * len(names) > width
        and sum(min(length, 12) + 3 for length in widest) > width
    ):
        return Group(*(_block(names, line, number) for number, line in enumerate(lines, start=1)))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name in names:
        table.add_column(label(name), overflow="fold")
    for line in lines:
        table.add_row(*line)
    return table


def _block(names: Sequence[str], line: Sequence[Text], number: int) -> RenderableType:
    return Group(Text(f"row {number}", style="bold"), _grid(zip(names, line, strict=True)), Text())


def _key(timeline: Timeline) -> Text:
    parts = [
        Text.assemble((f"{name}=", "dim"), cell(value)) for name, value in timeline.key.items()
    ]
    return Text(", ").join(parts)


def _grid(pairs: Iterable[tuple[str, Text]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", overflow="fold")
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(label(name, longest=40), value)
    return grid


def _row(version: Version) -> RenderableType:
    """Render a row of a table without history, and that it is marked as deleted."""
    if version.ending is Ending.ACTIVE:
        return _values(version)
    return Group(Text(version.outcome, style=_STYLES[version.ending]), _values(version))


def _values(version: Version) -> RenderableType:
    """Render all values of a version, or the non-null ones of a wide version."""
    named = list(version.values.items())
    if len(named) > _MAX_COLUMNS:
        named = [pair for pair in named if pair[1] is not None][:_MAX_COLUMNS]
    grid = _grid((name, cell(value)) for name, value in named)
    if left := len(version.values) - len(named):
        return Group(grid, Text(f"and {left:,} more columns: use --json", style="dim"))
    return grid


def _changes(version: Version) -> RenderableType:
    if not version.changes:
        return Text("no changes", style="dim")
    changes = version.changes[:_MAX_COLUMNS]
    grid = _grid(
        (change.column, Text.assemble(cell(change.old), (" → ", "bold"), cell(change.new)))
        for change in changes
    )
    if left := len(version.changes) - len(changes):
        return Group(grid, Text(f"and {left:,} more changes: use --json", style="dim"))
    return grid
