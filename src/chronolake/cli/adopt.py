"""The command adopt, which gives a copied, restored or moved lake its own locations."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that `--help` is fast

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from chronolake.cli.app import (
    ConfigOption,
    JsonOption,
    LakeOption,
    ProjectOption,
    SettingOption,
    app,
    configuration,
    console,
    print_json,
)

if TYPE_CHECKING:
    from chronolake.relocation import Adoption, RelocatedTable


@app.command(epilog="Example: chronolake adopt --lake /restored/lake --dry-run")
def adopt(
    *,
    project: ProjectOption = None,
    lake: LakeOption = None,
    earlier: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="LOCATION",
            help="An earlier location of the tables, if the lake's own record is not enough. "
            "Repeatable.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Read and check everything, and change nothing."),
    ] = False,
    json: JsonOption = False,
    config: ConfigOption = None,
    settings: SettingOption = None,
) -> None:
    """Make a copied, restored or moved lake writable at its present location.

    All metadata is written again with the new locations, and becomes current in one step. The
    original must no longer be in use. After a crash, run the command again.
    """
    from chronolake import inspect, relocation
    from chronolake.pipeline.lease import raise_if_any_busy

    stored = configuration(project, lake, config, settings, notes_strays=False)
    inspect.check(stored)
    raise_if_any_busy(stored)
    screen = console()
    count = 0

    def show(table: RelocatedTable, tables: int) -> None:
        nonlocal count
        count += 1
        if json:
            print_json(_table_json(table), pretty=False)
        else:
            screen.print(
                Text.assemble(
                    (f"{count}/{tables}  ", "dim"),
                    (str(table.name), "bold"),
                    f"  {table.rewritten:,} files of metadata, {table.data_files:,} data files",
                )
            )

    done = relocation.adopt(stored, earlier=earlier or (), is_dry=dry_run, on_table=show)
    if json:
        print_json(_summary_json(done, is_dry=dry_run), pretty=False)
    else:
        screen.print(_summary(done, is_dry=dry_run))


def _table_json(table: RelocatedTable) -> dict[str, Any]:
    return {
        "table": str(table.name),
        "metadata_file": table.after,
        "rewritten": table.rewritten,
        "data_files": table.data_files,
    }


def _summary_json(done: Adoption, *, is_dry: bool) -> dict[str, Any]:
    return {
        "adopted": len(done.tables),
        "moved": dict(done.moved),
        "done": not is_dry,
    }


def _summary(done: Adoption, *, is_dry: bool) -> Text:
    if not done.moved and not done.tables:
        return Text("The lake is at its recorded location: nothing to do")
    moves = ", ".join(f"from {old} to {new}" for old, new in done.moved.items())
    verb = "Would adopt" if is_dry else "Adopted"
    count = len(done.tables)
    return Text(f"{verb} {count:,} table{'' if count == 1 else 's'}, {moves}")
