"""The commands that only look: they start no JVM."""

# ruff: noqa: PLC0415 - what a command needs is imported by that command: `--help` is instant

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

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
    pairs,
    print_json,
    table_name,
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
    from chronolake import look
    from chronolake.look import show

    found = look.tables(configuration(project, lake, config, settings))
    if json:
        print_json([table.as_json() for table in found])
    else:
        console().print(show.tables(found))


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
            help="The record's key; once for each key column. Times in ISO 8601, bytes in base64.",
            show_default=False,
        ),
    ] = None,
    null: Annotated[
        list[str] | None,
        typer.Option(
            "--null",
            metavar="COLUMN",
            help="A key column whose value is null.",
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
    from chronolake import look
    from chronolake.look import show

    if not key and not null:
        raise typer.BadParameter("give the record's key", param_hint="--key")
    wanted = _key_of(key or (), null or ())
    timeline = look.history(
        configuration(project, lake, config, settings), table_name(table), wanted
    )
    if json:
        print_json(timeline.as_json())
    else:
        console().print(show.timeline(timeline))
    if not timeline.versions:
        fail()


def _key_of(given: Sequence[str], null: Sequence[str]) -> dict[str, str | None]:
    """The record's key: text by column, None for null.

    Raises:
        BadParameter: a column is named twice.
    """
    key: dict[str, str | None] = dict(pairs(given, "--key"))
    for column in null:
        if column in key:
            raise typer.BadParameter(f"{column} is given twice", param_hint="--null")
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
            help="A calendar month in UTC; the present one by default.",
            show_default=False,
        ),
    ] = None,
    project: ProjectOption = None,
    lake: LakeOption = None,
    json: JsonOption = False,
    config: ConfigOption = None,
    settings: SettingOption = None,
) -> None:
    """Show monthly active rows: distinct rows (of history tables: versions) that were written.

    Removing a row, closing a version, or a version sent again unchanged counts nothing.
    """
    from chronolake import look
    from chronolake.look import show

    if month is not None and not re.fullmatch(r"[0-9]{4}-(0[1-9]|1[0-2])", month):
        raise typer.BadParameter("write it like 2026-11", param_hint="--month")
    wanted = month or datetime.now(UTC).strftime("%Y-%m")
    found = look.usage(configuration(project, lake, config, settings), wanted)
    if json:
        print_json(
            {
                "month": wanted,
                "rows": sum(each.rows for each in found),
                "exact": all(each.is_exact for each in found),
                "tables": [each.as_json() for each in found],
            }
        )
    else:
        console().print(show.usage(wanted, found))
