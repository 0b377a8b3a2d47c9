"""The command that compares a table with itself at another time."""

# ruff: noqa: PLC0415 - what a command needs is imported by that command: `--help` is instant

from __future__ import annotations

import itertools
import warnings
from typing import Annotated, Final

import typer

from chronolake.cli import shown
from chronolake.cli.app import (
    ConfigOption,
    JsonOption,
    LakeOption,
    ProjectOption,
    SettingOption,
    TableArgument,
    app,
    configuration,
    console,
    existing,
    print_json,
    table_name,
)

_SHOWN: Final = 100


@app.command(
    epilog="Example: chronolake diff sales.orders --from 2024-05-01 --to 2024-06-01",
)
def diff(
    table: TableArgument,
    *,
    before: Annotated[
        str,
        typer.Option("--from", metavar="TIME", help="ISO 8601, in UTC unless it says otherwise."),
    ],
    after: Annotated[str, typer.Option("--to", metavar="TIME", help="A later time.")],
    project: ProjectOption = None,
    lake: LakeOption = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=0,
            help="Show at most so many records; 0 for all. [default: 100; with --json all]",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
    config: ConfigOption = None,
    settings: SettingOption = None,
) -> None:
    """Show the records that were inserted, changed or deleted between two times.

    With --json one JSON object a record, streamed, sorted by key.
    """
    from chronolake.compare import compared
    from chronolake.errors import HistoryWarning

    name = table_name(table)
    with existing(configuration(project, lake, config, settings), name, json=json) as opened:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", HistoryWarning)
            found = compared(opened.table(name), before, after)
        for warning in told:
            console(stderr=True).print(f"Note: {warning.message}", style="yellow")
        if json:
            for record in found.records(limit or None):
                print_json(record.as_json(), pretty=False)
            return
        limit = _SHOWN if limit is None else limit
        records = list(found.records(limit + 1 if limit else None))
        screen = console()
        screen.print(shown.differences(list(itertools.islice(records, limit or None))))
        if limit and len(records) > limit:
            screen.print(f"The first {limit:,} records; --limit 0 shows all.", style="dim")
