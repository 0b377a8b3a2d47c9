"""The commands tables, history and usage, which start no JVM, and diff."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that `--help` is fast
from __future__ import annotations

import itertools
import re
import warnings
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from chronolake.cli import output
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
    fail,
    open_existing,
    parse_pairs,
    parse_table_name,
    print_json,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


@app.command(epilog="Example: chronolake tables")
def tables(
    *,
    project: ProjectOption = None,
    lake: LakeOption = None,
    json: JsonOption = False,
    config: ConfigOption = None,
    settings: SettingOption = None,
) -> None:
    """List the lake's tables: mode, key, rows or versions, files, last publication."""
    from chronolake import inspect
    from chronolake.inspect import render

    found = inspect.tables(configuration(project, lake, config, settings))
    if json:
        print_json([table.as_json() for table in found])
    else:
        console().print(render.tables(found))


@app.command(
    epilog="Example: chronolake history sales.customers --key id=1",
)
def history(
    table: TableArgument,
    *,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            metavar="COLUMN=VALUE",
            help="A key column and its value. Repeat for each key column. Write times in ISO 8601 "
            "and bytes in base64.",
            show_default=False,
        ),
    ] = None,
    null: Annotated[
        list[str] | None,
        typer.Option(
            "--null",
            metavar="COLUMN",
            help="A key column whose value is null. Repeatable.",
            show_default=False,
        ),
    ] = None,
    project: ProjectOption = None,
    lake: LakeOption = None,
    json: JsonOption = False,
    config: ConfigOption = None,
    settings: SettingOption = None,
) -> None:
    """Show one record's timeline: its versions, what each changed, and how it ended."""
    from chronolake import inspect
    from chronolake.inspect import render

    if not key and not null:
        raise typer.BadParameter("name the record's key", param_hint="--key")
    wanted = _parse_key(key or (), null or ())
    timeline = inspect.history(
        configuration(project, lake, config, settings), parse_table_name(table), wanted
    )
    if json:
        print_json(timeline.as_json())
    else:
        console().print(render.timeline(timeline))
    if not timeline.versions:
        fail()


def _parse_key(given: Sequence[str], null: Sequence[str]) -> dict[str, str | None]:
    """Return the record's key: text by column, None for null.

    Raises:
        BadParameter: a column is given twice.
    """
    key: dict[str, str | None] = dict(parse_pairs(given, "--key"))
    for column in null:
        if column in key:
            raise typer.BadParameter(f"duplicate key {column}", param_hint="--null")
        key[column] = None
    return key


@app.command(epilog="Example: chronolake usage --month 2026-11")
def usage(
    *,
    month: Annotated[
        str | None,
        typer.Option(
            "--month",
            metavar="YYYY-MM",
            help="A calendar month in UTC. Default: the current month.",
            show_default=False,
        ),
    ] = None,
    project: ProjectOption = None,
    lake: LakeOption = None,
    json: JsonOption = False,
    config: ConfigOption = None,
    settings: SettingOption = None,
) -> None:
    """Show monthly active rows: the distinct rows (in history tables: versions) that were written.

    Deleting a row, closing a version, or sending an unchanged version again does not count.
    """
    from chronolake import inspect
    from chronolake.inspect import render

    if month is not None and not re.fullmatch(r"[0-9]{4}-(0[1-9]|1[0-2])", month):
        raise typer.BadParameter("write a month such as 2026-11", param_hint="--month")
    wanted = month or datetime.now(UTC).strftime("%Y-%m")
    found = inspect.usage(configuration(project, lake, config, settings), wanted)
    if json:
        print_json(
            {
                "month": wanted,
                "rows": sum(table_usage.rows for table_usage in found),
                "exact": all(table_usage.is_exact for table_usage in found),
                "tables": [table_usage.as_json() for table_usage in found],
            }
        )
    else:
        console().print(render.usage(wanted, found))


_DEFAULT_LIMIT: Final = 100


@app.command(
    epilog="Example: chronolake diff sales.orders --from 2024-05-01 --to 2024-06-01",
)
def diff(
    table: TableArgument,
    *,
    before: Annotated[
        str,
        typer.Option(
            "--from", metavar="TIME", help="The earlier time in ISO 8601; UTC if it has no offset."
        ),
    ],
    after: Annotated[
        str, typer.Option("--to", metavar="TIME", help="The later time, in the same format.")
    ],
    project: ProjectOption = None,
    lake: LakeOption = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=0,
            help="Show up to this number of records; 0 for all. Default: 100; with --json, all.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
    config: ConfigOption = None,
    settings: SettingOption = None,
) -> None:
    """Show the records that were inserted, changed or deleted between two times.

    With --json, one JSON object per record is printed, sorted by key.
    """
    from chronolake.errors import HistoryWarning
    from chronolake.table_diff import compare

    name = parse_table_name(table)
    with open_existing(configuration(project, lake, config, settings), name, json=json) as opened:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", HistoryWarning)
            found = compare(opened.table(name), before, after)
        for warning in caught:
            console(stderr=True).print(f"Note: {warning.message}", style="yellow")
        if json:
            for record in found.records(limit or None):
                print_json(record.as_json(), pretty=False)
            return
        limit = _DEFAULT_LIMIT if limit is None else limit
        records = list(found.records(limit + 1 if limit else None))
        screen = console()
        screen.print(output.format_differences(list(itertools.islice(records, limit or None))))
        if limit and len(records) > limit:
            screen.print(f"Only the first {limit:,} records; --limit 0 shows all.", style="dim")
