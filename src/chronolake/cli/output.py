"""Output of the commands that change, verify or compare tables, as JSON and for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from chronolake.formatting import cell, format_count, instant, label, name_of, size
from chronolake.types import Mode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chronolake.core import (
        MaintenancePlan,
        MaintenanceResult,
        ResyncPlan,
        SwitchPlan,
        VerifyReport,
    )
    from chronolake.landing import Quarantine
    from chronolake.table_diff import Difference
    from chronolake.table_resync import Origin


def counted_rows(number: int, mode: Mode) -> str:
    """Format a number of rows, which are versions in a history table."""
    return format_count(number, "version" if mode is Mode.HISTORY else "row")


def verify_report_json(report: VerifyReport, quarantine: Quarantine) -> dict[str, Any]:
    """Return a table's invariants and the files that it was built without, as JSON types."""
    return {
        "table": str(report.table),
        "mode": report.mode.value,
        "rows": report.rows,
        "holds": report.holds,
        "promises": [
            {
                "promise": invariant.text,
                "holds": invariant.holds,
                "broken": invariant.violations,
                "sample": invariant.sample,
            }
            for invariant in report.invariants
        ],
        "quarantined": [vars(file) for file in quarantine.files],
    }


def format_verify_report(report: VerifyReport, quarantine: Quarantine) -> RenderableType:
    """Format a table's invariants and the files that it was built without, one per line."""
    title = Text.assemble(
        (name_of(report.table), "bold"),
        (f"  {report.mode.value}, {counted_rows(report.rows, report.mode)}", "dim"),
    )
    grid = Table.grid(padding=(0, 2))
    if not report.invariants:
        grid.add_row(Text("  no key, and so no invariants", style="dim"))
    for invariant in report.invariants:
        if invariant.holds:
            grid.add_row(Text("  ok", style="green"), Text(invariant.text))
            continue
        grid.add_row(
            Text("  violated", style="bold red"),
            Text.assemble(
                invariant.text, f": {invariant.violations:,} rows, such as ", cell(invariant.sample)
            ),
        )
    for file in quarantine.files:
        grid.add_row(Text("  left out", style="yellow"), Text(f"{file.mark}: {file.reason}"))
    return Group(title, grid)


def plan_json(plan: MaintenancePlan) -> dict[str, Any]:
    """Return a table's need of maintenance, as JSON types."""
    return {
        "table": str(plan.table),
        "needed": plan.is_needed,
        "compact": plan.compact,
        "expire": plan.expire,
        "reason": plan.reason,
        "data_files": plan.files.data_files,
        "small_files": plan.files.small_files,
        "hidden_small_files": plan.files.hidden_small_files,
        "bytes": plan.files.data_bytes,
        "removed_rows": plan.files.removed,
        "expirable_snapshots": plan.files.expirable,
    }


def format_plan(needed: MaintenancePlan) -> RenderableType:
    """Format a table's need of maintenance on one line."""
    return Text.assemble(
        (name_of(needed.table), "bold"),
        "  ",
        (needed.reason, "yellow" if needed.is_needed else "green"),
        (f"  {needed.files.data_files:,} files, {size(needed.files.data_bytes)}", "dim"),
    )


def maintenance_result_json(result: MaintenanceResult) -> dict[str, Any]:
    """Return the result of maintenance, as JSON types."""
    return {
        **plan_json(result.plan),
        "rewritten": result.rewritten,
        "written": result.written,
        "expired": result.expired,
        "orphans": result.orphans,
        "postponed": result.postponed,
        "format_version": result.format_version,
        "seconds": round(result.seconds, 3),
    }


def format_maintenance_result(result: MaintenanceResult) -> RenderableType:
    """Format the result of maintenance on one line."""
    words = [
        f"{result.rewritten:,} data files compacted into {result.written:,}"
        if result.rewritten
        else "",
        f"{result.expired:,} snapshots expired" if result.expired else "",
        f"{result.orphans:,} orphans removed" if result.orphans else "",
        "compaction postponed, because batches were written meanwhile" if result.postponed else "",
        f"stays in format version {result.format_version}, although {result.configured_version} is "
        "configured"
        if result.configured_version not in {None, result.format_version}
        else "",
    ]
    done = ", ".join(word for word in words if word) or "nothing to do"
    return Text.assemble(
        (name_of(result.plan.table), "bold"), f"  {done}", (f"  {result.seconds:.1f} s", "dim")
    )


def switch_plan_json(plan: SwitchPlan, *, done: bool) -> dict[str, Any]:
    """Return the planned or completed changes of a mode switch, as JSON types."""
    return {
        "table": str(plan.table),
        "from": plan.before.value,
        "to": plan.after.value,
        "done": done,
        "added_columns": list(plan.added),
        "dropped_columns": list(plan.dropped),
        "rows_before": plan.rows_before,
        "rows_after": plan.rows_after,
        "loses": plan.forgets,
    }


def format_switch_plan(plan: SwitchPlan, *, done: bool) -> RenderableType:
    """Format the planned or completed changes of a mode switch."""
    name = (name_of(plan.table), "bold")
    if plan.before is plan.after:
        return Text.assemble(name, f"  is in {plan.after} mode; nothing to do")
    words = "switched" if done else "would switch"
    title = Text.assemble(name, f"  {words} from {plan.before} to {plan.after} mode")
    grid = Table.grid(padding=(0, 2))
    before = counted_rows(plan.rows_before, plan.before)
    grid.add_row("  contents", f"{before} → {counted_rows(plan.rows_after, plan.after)}")
    if plan.added:
        grid.add_row("  new columns", ", ".join(plan.added))
    if plan.dropped:
        grid.add_row("  dropped columns", ", ".join(plan.dropped))
    if plan.forgets:
        grid.add_row("  lost", Text(plan.forgets, style="yellow"))
    return Group(title, grid)


def resync_plan_json(plan: ResyncPlan, origin: Origin, *, done: bool) -> dict[str, Any]:
    """Return the planned or completed changes of a re-sync, as JSON types."""
    return {
        "table": str(plan.table),
        "from": origin.value,
        "at": instant(plan.at_micros),
        "missing": plan.gone.value,
        "done": done,
        "records": plan.records,
        "unchanged": plan.unchanged,
        "added": plan.added,
        "closed": plan.closed,
        "shortened": plan.shortened,
        "replaced": plan.replaced,
        "removed": plan.removed,
        "ended": plan.ended,
        "loses": plan.loses,
    }


def format_resync_plan(plan: ResyncPlan, *, done: bool) -> RenderableType:
    """Format the planned or completed changes of a re-sync."""
    words = "re-synced" if done else "would be re-synced"
    title = Text.assemble(
        (name_of(plan.table), "bold"),
        f"  {words} as of {instant(plan.at_micros)} with {format_count(plan.records, 'record')}",
    )
    grid = Table.grid(padding=(0, 2))
    for label_, number, style in (
        ("unchanged", plan.unchanged, ""),
        ("new versions", plan.added, "green"),
        ("ended by new versions", plan.closed, ""),
        ("versions that now end earlier", plan.shortened, "yellow"),
        ("replaced versions", plan.replaced, "yellow"),
        ("deleted versions, which start later", plan.removed, "red"),
        ("missing records that end", plan.ended, "yellow"),
    ):
        if number:
            grid.add_row(f"  {label_}", Text(f"{number:,}", style=style))
    return Group(title, grid)


_CHANGES = {"inserted": "green", "changed": "yellow", "deleted": "red"}


def format_differences(records: Sequence[Difference]) -> RenderableType:
    """Format the records that differ between two times, column by column."""
    if not records:
        return Text("No record differs.", style="dim")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_lines=True)
    table.add_column("record", overflow="fold")
    table.add_column("change", no_wrap=True)
    table.add_column("values", ratio=1)
    for record in records:
        named = [
            Text.assemble((f"{name}=", "dim"), cell(value)) for name, value in record.key.items()
        ]
        table.add_row(
            Text(", ").join(named),
            Text(record.change, style=_CHANGES[record.change]),
            _values(record),
        )
    return table


def _values(record: Difference) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", overflow="fold")
    grid.add_column(overflow="fold")
    for name in record.columns:
        sides = [cell(values[name]) for values in (record.old, record.new) if values is not None]
        grid.add_row(label(name, longest=40), Text(" → ", style="bold").join(sides))
    return grid
