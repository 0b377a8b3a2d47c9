"""The commands that work with Spark."""

# ruff: noqa: PLC0415 - what a command needs is imported by that command: `--help` is instant

from __future__ import annotations

import itertools
from typing import Annotated

import typer

from chronolake.cli.app import (
    ConfigOption,
    JsonOption,
    LakeOption,
    SettingOption,
    app,
    configuration,
    console,
    existing,
    print_json,
)


@app.command(
    epilog='Example: chronolake query "SELECT count(*) FROM sales.customers" --lake ./lake',
)
def query(
    question: Annotated[
        str,
        typer.Argument(
            metavar="SQL",
            help="A SELECT, SHOW or DESCRIBE in Spark SQL. Tables are schema.table.",
            show_default=False,
        ),
    ],
    *,
    lake: LakeOption,
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="Show at most so many rows; 0 for all.")
    ] = 100,
    json: JsonOption = False,
    config: ConfigOption = None,
    settings: SettingOption = None,
) -> None:
    """Answer a question in Spark SQL; with --json one JSON object a row, streamed."""
    from chronolake.look import show
    from chronolake.query import ask

    with existing(configuration(lake, config, settings)) as opened:
        answer = ask(opened, question)
        if json:
            for row in answer.rows(limit or None):
                print_json(dict(zip(answer.columns, row, strict=True)), pretty=False)
            return
        # One row more than is shown tells whether there are more.
        found = list(answer.rows(limit + 1 if limit else None))
        screen = console()
        shown = itertools.islice(found, limit or None)
        screen.print(show.rows(answer.columns, shown, width=screen.width))
        if limit and len(found) > limit:
            screen.print(f"The first {limit:,} rows; --limit 0 shows all.", style="dim")
