"""The command import-history: an existing table of versions becomes a history table."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that `--help` is fast
# Typer reads annotations at run time, so the types in them are imported at run time.

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chronolake.cli.app import (
    JsonOption,
    LakeOption,
    NoEngineOption,
    ProjectOption,
    SettingOption,
    app,
    configuration,
    console,
    open_lake,
    parse_table_name,
    show_error,
)
from chronolake.cli.pipelines import exit_with_status, project_of, run_one
from chronolake.errors import ConfigurationError
from chronolake.location import scheme_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chronolake.config import Project


@app.command(
    name="import-history",
    epilog="Example: chronolake import-history crm.customers snapshots/customers --key id "
    "--start dbt_valid_from --end dbt_valid_to",
)
def import_history(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="The new history table, as schema.table.")
    ],
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="[PATH]",
            help="The existing table: a Parquet, Avro, CSV or JSON file, a folder, a path with "
            "*, the folder of an Iceberg or Delta table (with --format), or the metadata file of "
            "an Iceberg table.",
            show_default=False,
        ),
    ] = None,
    *,
    key: Annotated[
        list[str],
        typer.Option(
            "--key", metavar="COLUMN", help="A column that identifies a record. Repeatable."
        ),
    ],
    start: Annotated[
        str,
        typer.Option("--start", metavar="COLUMN", help="The time from which a version is valid."),
    ],
    end: Annotated[
        str,
        typer.Option("--end", metavar="COLUMN", help="The time up to which a version is valid."),
    ],
    deleted: Annotated[
        str | None,
        typer.Option(
            "--deleted",
            metavar="COLUMN",
            help="A column that is true in versions that stand for deleted records.",
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="COLUMN", help="A column to leave out. Repeatable."),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="parquet, avro, csv, jsonl, iceberg or delta. Default: by the ending.",
        ),
    ] = None,
    source_table: Annotated[
        str | None,
        typer.Option(
            "--source-table",
            metavar="NAME",
            help="Instead of PATH: an Iceberg table in a catalog, such as snapshots.customers.",
        ),
    ] = None,
    catalog: Annotated[
        str | None,
        typer.Option(
            "--catalog",
            metavar="URI",
            help="The catalog of --source-table. Default: the lake's catalog.",
        ),
    ] = None,
    time_zone: Annotated[
        str,
        typer.Option("--time-zone", metavar="ZONE", help="Time zone of times without an offset."),
    ] = "UTC",
    project: ProjectOption = None,
    lake: LakeOption = None,
    json: JsonOption = False,
    settings: SettingOption = None,
    _no_engine: NoEngineOption = False,
) -> None:
    """Import a table of versions with their start and end, such as a dbt snapshot.

    The history table has exactly these versions; a gap between two of them is a deletion. The
    command may be repeated: versions that were added or have ended since are imported. To rebuild
    the table later, add a pipeline with a source of the type `history` to chronolake.yml.
    """
    from chronolake.cli.progress import Progress
    from chronolake.config import PipelineConfig, WatchedProject
    from chronolake.pipeline.runs import Status

    name = parse_table_name(table)
    wanted = _project(project, lake, settings)
    if name.schema in wanted.pipelines:
        raise ConfigurationError(
            f"{wanted.file} has a pipeline {name.schema}, which fills this schema.",
            hint="Choose a table in another schema.",
        )
    source: dict[str, Any] = {
        "type": "history",
        "path": path if path is None or "://" in path else str(Path(path).absolute()),
        "table": source_table,
        "catalog": catalog,
        "stream": name.table,
        "key": key,
        "start": start,
        "end": end,
        "deleted": deleted,
        "exclude": exclude or [],
        "format": format_,
        "time_zone": time_zone,
    }
    pipeline = _validate({"source": source}, PipelineConfig)
    extended = replace(wanted, pipelines={**wanted.pipelines, name.schema: pipeline})
    same = WatchedProject(extended, lambda: extended, partial(show_error, json=json))
    scheme = scheme_of(path or "")
    schemes = wanted.lake.source_schemes | ({scheme} if scheme is not None else set())
    reading = wanted.lake.model_copy(update={"source_schemes": schemes})
    with open_lake(reading, json=json) as opened, Progress(opened, json=json) as progress:
        status = run_one(opened, same, name.schema, (), progress)
    if not json and status is Status.SUCCEEDED:
        console().print(f"The history of {path or source_table} is in {name}.")
    exit_with_status([status])


def _project(project: Path | None, lake: Path | None, settings: Sequence[str] | None) -> Project:
    """Return the project of the common options; with --lake, a lake without a project is enough.

    Raises:
        ConfigurationError: chronolake.yml is missing or invalid.
    """
    from chronolake.config import FILE_NAME, Project, find_project

    if lake is None or project is not None or find_project() is not None:
        return project_of(project, lake, settings)
    config = configuration(None, lake, None, settings)
    return Project(config.path / FILE_NAME, config, {})


def _validate(values: dict[str, Any], section: Any) -> Any:
    """Return a section of chronolake.yml with values from the command line.

    Raises:
        ConfigurationError: a value is not valid.
    """
    from pydantic import ValidationError

    try:
        return section.model_validate(values)
    except ValidationError as failure:
        first = failure.errors()[0]
        option = str(first["loc"][-1]).replace("_", "-")
        message = str(first["msg"]).removeprefix("Value error, ")
        raise ConfigurationError(
            f"--{option}: {message}.", hint="See `chronolake import-history --help`."
        ) from None
