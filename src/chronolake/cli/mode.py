"""The command mode, which switches a table's mode."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that `--help` is fast

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from chronolake.cli import output, pipeline_mode
from chronolake.cli.app import (
    ConfigOption,
    JsonOption,
    LakeOption,
    NoEngineOption,
    ProjectOption,
    SettingOption,
    TableArgument,
    app,
    configuration,
    confirm_loss,
    console,
    open_existing,
    parse_table_name,
    print_json,
)
from chronolake.errors import TableExistsError, TableNotFoundError
from chronolake.types import DELETED, STREAM_PROPERTY, Mode, stored_name

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from chronolake.config import Project
    from chronolake.core import SwitchPlan
    from chronolake.inspect.catalog import CatalogTable


@app.command(epilog="Example: chronolake mode sales.customers history")
def mode(
    table: TableArgument,
    wanted: Annotated[
        Mode,
        typer.Argument(metavar="history|soft-delete|live", help="The table's new mode."),
    ],
    *,
    project: ProjectOption = None,
    lake: LakeOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would change and what would be lost.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Switch even if versions or records are lost.")
    ] = False,
    marker: Annotated[
        list[str] | None,
        typer.Option(
            "--marker",
            metavar="COLUMN",
            help="A column that marks deleted rows. Repeatable: a row is deleted if any of them is "
            "true. Default: _fivetran_deleted and lake.tables.TABLE.deleted_columns.",
            show_default=False,
        ),
    ] = None,
    keep_history_as: Annotated[
        str | None,
        typer.Option(
            "--keep-history-as",
            metavar="TABLE",
            help="Copy the history table to this table (schema.table) before the switch.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
    config: ConfigOption = None,
    settings: SettingOption = None,
    _no_engine: NoEngineOption = False,
) -> None:
    """Switch a table to another mode atomically, and keep its data.

    To history: all records are active from the table's last sync on; rows that are marked as
    deleted become versions that ended at the earliest time. From history: only the newest versions
    (to soft-delete) or the active versions (to live) are kept, which needs --yes.

    The mode of a pipeline's table is set in chronolake.yml. The command switches the table at once:
    it is rebuilt from its landing files, and nothing is lost. If the pipeline is being synced, the
    process that syncs it pauses, switches the table, and goes on; the command waits for that.
    Ctrl-C withdraws the request.
    """
    from chronolake import inspect
    from chronolake.core import migration

    def find() -> Project:
        from chronolake.cli.pipelines import project_of_lake

        return project_of_lake(stored, project, lake, config)

    name = parse_table_name(table)
    copy = None if keep_history_as is None else parse_table_name(keep_history_as)
    stored = configuration(project, lake, config, settings)
    try:
        known = inspect.look_up(stored, name)
    except TableNotFoundError as missing:
        raise pipeline_mode.not_created_yet(name, wanted, find) or missing from None
    if (filled_by := known.iceberg.properties.get(STREAM_PROPERTY)) is not None:
        if copy is not None:
            raise typer.BadParameter(
                f"{name} is written by a pipeline: its history stays in the landing files",
                param_hint="--keep-history-as",
            )
        pipeline_mode.switch(
            stored, known, filled_by, wanted, find=find, dry_run=dry_run, json=json
        )
        return
    given = tuple(dict.fromkeys(map(stored_name, marker or ())))
    _expect_markers(known, wanted, given)
    markers = given or tuple(dict.fromkeys([DELETED, *stored.deleted_columns_of(name)]))
    with open_existing(stored, json=json) as opened:
        plan = migration.plan_switch(opened, name, wanted, markers=markers)
        if copy is not None and plan.before is not Mode.HISTORY:
            raise typer.BadParameter(
                f"{name} is in {plan.before} mode and keeps no history",
                param_hint="--keep-history-as",
            )
        if copy is not None and opened.describe(copy) is not None:
            raise TableExistsError(
                "The table for the copy of the history already exists.",
                table=str(copy),
                hint="Choose another name, or drop the table if an earlier attempt created it.",
            )
        if plan.before is plan.after or dry_run:
            _print_plan(plan, json=json, done=False)
            return
        if plan.forgets and not yes:
            _confirm(plan, json=json)
        with _progress(f"Switching {name} to {wanted} mode", json=json):
            copied = None
            if copy is not None:
                # Changes between the copy and the switch would be in neither.
                copied = opened.catalog.load(name)
                migration.copy_table(opened, name, copy)
            migration.switch_mode(opened, name, wanted, markers=markers, planned_on=copied)
    _print_plan(plan, json=json, done=True)


def _expect_markers(table: CatalogTable, wanted: Mode, markers: tuple[str, ...]) -> None:
    """Raise if `--marker` names a column that the table lacks, or has no effect.

    Raises:
        UnknownColumnError: a column does not exist: deletions that it marks would be lost.
        BadParameter: rows of the table are not marked as deleted.
    """
    from chronolake.core.migration import missing_mark

    if table.mode is Mode.HISTORY:
        if markers and wanted is Mode.LIVE:
            raise typer.BadParameter(
                f"{table.name} is in history mode: its active versions remain, whatever marks "
                "deleted rows",
                param_hint="--marker",
            )
        return
    columns = [column.name for column in table.columns]
    for name in markers:
        if name not in columns and wanted is not Mode.SOFT_DELETE:
            raise missing_mark(table.name, name, columns)


def _print_plan(plan: SwitchPlan, *, json: bool, done: bool) -> None:
    if json:
        print_json(output.switch_plan_json(plan, done=done))
    else:
        console().print(output.format_switch_plan(plan, done=done))


def _confirm(plan: SwitchPlan, *, json: bool) -> None:
    of = output.counted_rows(plan.rows_before, plan.before)
    lost = f"{plan.table} would lose {plan.forgets} ({plan.rows_lost:,} of {of})"
    copied = "; --keep-history-as TABLE keeps a copy" if plan.before is Mode.HISTORY else ""
    confirm_loss(lost, "Switch?", json=json, instead=copied)


def _progress(text: str, *, json: bool) -> AbstractContextManager[object]:
    screen = console(stderr=True)
    return nullcontext() if json or not screen.is_terminal else screen.status(Text(text))
