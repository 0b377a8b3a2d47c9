"""The commands query, verify, maintain and view, which use Spark."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that `--help` is fast

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from chronolake.cli import output
from chronolake.cli.app import (
    ConfigOption,
    JsonOption,
    LakeOption,
    NoEngineOption,
    OptionalTableArgument,
    ProjectOption,
    SettingOption,
    TableArgument,
    app,
    as_chronolake_error,
    configuration,
    console,
    fail,
    open_existing,
    parse_table_name,
    print_json,
    show_error,
)
from chronolake.errors import ChronolakeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chronolake.core import VerifyReport
    from chronolake.types import TableName


@app.command(
    epilog='Example: chronolake query "SELECT count(*) FROM sales.customers"',
)
def query(
    question: Annotated[
        str,
        typer.Argument(
            metavar="SQL",
            help="A SELECT, SHOW or DESCRIBE statement in Spark SQL. Write tables as schema.table.",
            show_default=False,
        ),
    ],
    *,
    project: ProjectOption = None,
    lake: LakeOption = None,
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="Show up to this number of rows; 0 for all.")
    ] = 100,
    json: JsonOption = False,
    config: ConfigOption = None,
    settings: SettingOption = None,
    _no_engine: NoEngineOption = False,
) -> None:
    """Run a query in Spark SQL; with --json, print one JSON object per row."""
    from chronolake.inspect import render
    from chronolake.query import run_query

    with open_existing(configuration(project, lake, config, settings), json=json) as opened:
        answer = run_query(opened, question)
        if json:
            nested = answer.nested
            for row in answer.rows(limit or None):
                cells = zip(answer.columns, row, strict=True)
                # These cells are JSON already, with digits that a float would lose.
                values = {
                    name: orjson.Fragment(cell)
                    if name in nested and isinstance(cell, str)
                    else cell
                    for name, cell in cells
                }
                print_json(values, pretty=False)
            return
        # One more row than the limit is read to know whether there are more.
        found = list(answer.rows(limit + 1 if limit else None))
        screen = console()
        shown = itertools.islice(found, limit or None)
        screen.print(render.rows(answer.columns, shown, width=screen.width))
        if limit and len(found) > limit:
            screen.print(f"Only the first {limit:,} rows; --limit 0 shows all.", style="dim")


@app.command(epilog="Example: chronolake verify sales.customers")
def verify(
    table: OptionalTableArgument = None,
    *,
    project: ProjectOption = None,
    lake: LakeOption = None,
    all_tables: Annotated[
        bool, typer.Option("--all", help="Verify every table of the lake.")
    ] = False,
    against_lake: Annotated[
        bool,
        typer.Option(
            "--against-lake",
            help="Also compare a pipeline's table with its raw lake. For this, the table is built "
            "a second time, hidden from readers.",
        ),
    ] = False,
    json: JsonOption = False,
    config: ConfigOption = None,
    settings: SettingOption = None,
    _no_engine: NoEngineOption = False,
) -> None:
    """Verify a table's invariants with one Spark query; exit code 1 if one is violated.

    A table that cannot be read does not stop the others; failures are listed at the end.
    """
    from chronolake.cli.pipelines import compare_with_lake, project_of_lake, stream_of_table
    from chronolake.core import verify as checked
    from chronolake.pipeline.applied_files import quarantine_of
    from chronolake.pipeline.run_history import note_verified

    if (table is None) is not all_tables:
        raise typer.BadParameter("name a table, or use --all", param_hint="TABLE")
    if against_lake and table is None:
        raise typer.BadParameter("name the table to compare", param_hint="--against-lake")
    named = [] if table is None else [parse_table_name(table)]
    stored = configuration(project, lake, config, settings)
    stream = None
    if against_lake:
        filling = project_of_lake(stored, project, lake, config)
        stream = stream_of_table(filling, named[0], json=json)
    with open_existing(stored, *named, json=json) as opened:
        failures: list[ChronolakeError] = []
        reports: list[VerifyReport] = []
        for name in named or opened.tables():
            with _collect_failure(failures, name):
                reports.append(checked(opened, name))
        if stream is not None:
            reports = [compare_with_lake(opened, report, stream) for report in reports]
        note_verified(opened.config, reports, against_lake=against_lake)
        left_out = [quarantine_of(opened, report.table) for report in reports]
    if json:
        print_json(list(map(output.verify_report_json, reports, left_out)))
    else:
        for report, quarantine in zip(reports, left_out, strict=True):
            console().print(output.format_verify_report(report, quarantine))
    for failed in failures:
        show_error(failed, json=json)
    if failures or not all(report.holds for report in reports):
        fail()


@contextmanager
def _collect_failure(failures: list[ChronolakeError], table: TableName) -> Iterator[None]:
    """Append a failure of the block to `failures`, so that the other tables are still processed."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except BrokenPipeError:
        raise
    except (ChronolakeError, Py4JError, PySparkException, OSError) as failure:
        failures.append(as_chronolake_error(failure, table))


@app.command(epilog="Example: chronolake maintain sales.customers")
def maintain(
    table: OptionalTableArgument = None,
    *,
    project: ProjectOption = None,
    lake: LakeOption = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only print which thresholds the tables reach. A run without --if-needed also "
            "compacts tables that reach none.",
        ),
    ] = False,
    only_if_needed: Annotated[
        bool,
        typer.Option(
            "--if-needed", help="Maintain only tables that reach a threshold, as `serve` does."
        ),
    ] = False,
    compact_deletes: Annotated[
        bool,
        typer.Option(
            "--compact-deletes",
            help="Rewrite every data file that has removed rows, so that readers without support "
            "for deletion vectors can read the tables.",
        ),
    ] = False,
    json: JsonOption = False,
    config: ConfigOption = None,
    settings: SettingOption = None,
    _no_engine: NoEngineOption = False,
) -> None:
    """Compact and sort files, expire old snapshots and remove orphan files of one or all tables.

    A table that fails does not stop the others; failures are listed at the end, with exit code 1.
    """
    from chronolake import core

    failures: list[ChronolakeError] = []
    named = [] if table is None else [parse_table_name(table)]
    with open_existing(configuration(project, lake, config, settings), *named, json=json) as opened:
        screen = console()
        for name in named or opened.tables():
            if dry_run:
                plan = core.plan_table(opened, name)
                if json:
                    print_json(output.plan_json(plan), pretty=False)
                else:
                    screen.print(output.format_plan(plan))
                continue
            with _collect_failure(failures, name):
                result = core.maintain(
                    opened, name, only_if_needed=only_if_needed, compact_deletes=compact_deletes
                )
                if json:
                    print_json(output.maintenance_result_json(result), pretty=False)
                else:
                    screen.print(output.format_maintenance_result(result))
    for failed in failures:
        show_error(failed, json=json)
    if failures:
        fail()


@app.command(epilog="Example: chronolake view sales.customers")
def view(
    table: TableArgument,
    *,
    project: ProjectOption = None,
    lake: LakeOption = None,
    drop: Annotated[bool, typer.Option("--drop", help="Drop the view.")] = False,
    json: JsonOption = False,
    config: ConfigOption = None,
    settings: SettingOption = None,
) -> None:
    """Create the view TABLE_current with the active versions of a history table.

    Create it again after a change of the table's columns. It is dropped when the table is dropped
    or renamed, or leaves history mode.
    """
    from chronolake.core import views

    name = parse_table_name(table)
    view_name = views.current_view_of(name)
    found = True
    # The view may outlive its table, and can still be dropped then.
    expected = [] if drop else [name]
    with open_existing(
        configuration(project, lake, config, settings), *expected, json=json
    ) as opened:
        if drop:
            found = views.drop_current_view(opened, name)
        else:
            views.create_current_view(opened, name)
    if json:
        print_json({"view": str(view_name), "table": str(name), "exists": not drop})
    elif drop:
        console().print(
            f"Dropped the view {view_name}" if found else f"The view {view_name} does not exist"
        )
    else:
        console().print(f"Created the view {view_name} with the active versions of {name}")
