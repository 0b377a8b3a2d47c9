"""The commands that run pipelines."""

# ruff: noqa: PLC0415 - what a command needs is imported by that command: `--help` is instant
# Typer reads annotations at run time, so the types in them are imported for good.

from __future__ import annotations

import re
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from chronolake import variables
from chronolake.cli.app import (
    JsonOption,
    SettingOption,
    app,
    console,
    fail,
    pairs,
    print_json,
    quiet_java,
    quiet_logs,
    show_error,
    table_name,
)
from chronolake.errors import ChronolakeError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from chronolake.cli.progress import Progress
    from chronolake.config import Project, WatchedProject
    from chronolake.lake import Lake
    from chronolake.pipeline.lease import Lease
    from chronolake.pipeline.runs import Status
    from chronolake.pipeline.streams import Stream
    from chronolake.table import VerifyReport
    from chronolake.types import TableName

#: Exit code of a run in which some streams failed and others did not.
PARTIAL: Final = 3
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}

ProjectOption: TypeAlias = Annotated[
    Path,
    typer.Option(
        "--project",
        envvar=variables.PROJECT,
        metavar="DIR",
        help="The folder of chronolake.yml, or the file itself.",
    ),
]
ProjectLakeOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--lake",
        envvar=variables.LAKE,
        metavar="DIR",
        help="The lake's folder, if it is not the one that chronolake.yml names.",
        show_default=False,
    ),
]
PipelineArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="PIPELINE", help="A name below `pipelines`.", show_default=False)
]
StreamsOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--stream", metavar="STREAM", help="Only this stream. Repeatable."),
]


def project_of(folder: Path, lake: Path | None, settings: Sequence[str] | None) -> Project:
    """The project that the common options name.

    Raises:
        ConfigurationError: there is none, or something in it is wrong.
    """
    from chronolake.config import FILE_NAME, load_project

    file = folder if folder.is_file() else folder / FILE_NAME
    if not file.is_file():
        raise ConfigurationError(
            f"There is no {FILE_NAME} in {folder.resolve()}.",
            hint="`chronolake init` makes one; --project names another folder.",
        )
    return load_project(file, lake=lake, overrides=dict(pairs(settings or (), "--set")))


def opened(project: Project) -> Lake:
    """The project's lake with Spark; made if it is not there."""
    from chronolake.lake import Lake

    quiet_logs()
    with quiet_java():
        return Lake.open(project.lake.path, config=project.lake)


@app.command(
    epilog="Example: chronolake sync crm --stream Account --every 5m. "
    "Exit codes: 0 all streams succeeded, 3 some failed, 1 all failed or nothing could begin.",
)
def sync(
    pipeline: Annotated[
        str | None,
        typer.Argument(
            metavar="[PIPELINE]", help="A name below `pipelines`; every one when left out."
        ),
    ] = None,
    *,
    stream: StreamsOption = None,
    every: Annotated[
        str | None,
        typer.Option(
            "--every", metavar="TIME", help="Run again and again, this far apart: 30s, 5m, 1h."
        ),
    ] = None,
    project: ProjectOption = Path(),
    lake: ProjectLakeOption = None,
    json: JsonOption = False,
    settings: SettingOption = None,
) -> None:
    """Bring a pipeline's tables to what its source has; with --json one event a line."""
    from chronolake.cli.progress import Progress
    from chronolake.config import WatchedProject

    pause = None if every is None else seconds_of(every)
    wanted = project_of(project, lake, settings)
    if pipeline is None and not wanted.pipelines:
        raise ConfigurationError(
            f"{wanted.file} has no pipelines.", hint="Name a source below `pipelines`."
        )
    watched = WatchedProject(
        wanted, lambda: project_of(project, lake, settings), partial(show_error, json=json)
    )
    with opened(wanted) as there:
        while True:
            began = time.monotonic()
            with Progress(there.spark, json=json) as progress:
                # Pipelines may come and go while it runs.
                names = [pipeline] if pipeline is not None else list(watched.now().pipelines)
                ended = [_sync(there, watched, name, stream or (), progress) for name in names]
            if pause is None:
                break
            time.sleep(max(0.0, pause - (time.monotonic() - began)))
    _leave(ended)


def _sync(
    lake: Lake,
    project: WatchedProject,
    name: str,
    only: Sequence[str],
    progress: Progress,
    *,
    anew: bool = False,
) -> Status | None:
    """Run one pipeline; None if it could not begin: others may, and perhaps this one next time."""
    from chronolake.pipeline.sync import sync as run

    try:
        now = project.now()
        result = run(lake, now, name, only=only, watch=progress.show, reread=project.now, anew=anew)
    except ChronolakeError as failure:
        show_error(failure, json=progress.json)
        return None
    return result.status


def _leave(ended: Sequence[Status | None]) -> None:
    from chronolake.pipeline.runs import Status

    if all(status is Status.SUCCEEDED for status in ended):
        return
    fail(PARTIAL if any(status in {Status.SUCCEEDED, Status.PARTIAL} for status in ended) else 1)


def seconds_of(text: str) -> float:
    """A length of time such as `30s`, `5m` or `1h`, in seconds.

    Raises:
        BadParameter: the text is none.
    """
    matched = re.fullmatch(r"(\d+)([smhd])", text)
    if matched is None or int(matched[1]) == 0:
        raise typer.BadParameter("write a time such as 30s, 5m or 1h", param_hint="--every")
    return float(int(matched[1]) * _UNITS[matched[2]])


@app.command(epilog="Example: chronolake rebuild crm.Account")
def rebuild(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="A table that a pipeline fills, schema.table.")
    ],
    *,
    project: ProjectOption = Path(),
    lake: ProjectLakeOption = None,
    json: JsonOption = False,
    settings: SettingOption = None,
) -> None:
    """Make a table anew of all files in its raw lake, and swap it in, in one step.

    Readers see the old table until then; it comes as far as the old one was.
    """
    from chronolake.pipeline.rebuild import rebuild as run

    name = table_name(table)
    wanted = project_of(project, lake, settings)
    stream = _stream_of(wanted, name, json=json)
    with opened(wanted) as there, leased_for(there, [stream]) as lease:
        rows = run(there, stream, lease).written
    if json:
        print_json({"table": str(name), "rows": rows})
    else:
        console().print(f"{name} is made anew: {rows:,} rows")


@app.command(epilog="Example: chronolake resync crm --stream Account")
def resync(
    pipeline: PipelineArgument,
    *,
    stream: StreamsOption = None,
    project: ProjectOption = Path(),
    lake: ProjectLakeOption = None,
    json: JsonOption = False,
    settings: SettingOption = None,
) -> None:
    """Read all that the source has once more; what the tables know of the past stays.

    A Data Lake v2 keeps every version: each table is made anew of all files that there are now. Of
    a database all rows are read: those that differ from the table get a version, those that are
    gone are deleted. Exit codes as of `sync`.
    """
    from chronolake.cli.progress import Progress
    from chronolake.config import WatchedProject

    wanted = project_of(project, lake, settings)
    same = WatchedProject(wanted, lambda: wanted, partial(show_error, json=json))
    with opened(wanted) as there, Progress(there.spark, json=json) as progress:
        ended = _sync(there, same, pipeline, stream or (), progress, anew=True)
    _leave([ended])


def leased_for(lake: Lake, streams: Sequence[Stream]) -> AbstractContextManager[Lease]:
    """The lease of the pipeline of some streams, above all that their tables know."""
    from chronolake.pipeline.lease import greatest_token, leased
    from chronolake.pipeline.store import Store

    above = greatest_token(lake.catalog.find(stream.table) for stream in streams)
    return leased(Store.open(lake.config), streams[0].pipeline, above=above)


def compared(lake: Lake, report: VerifyReport, place: Path, *, json: bool) -> VerifyReport:
    """A table's promises, and whether it holds what its raw lake holds.

    Args:
        lake: the lake.
        report: what is known of the table.
        place: the chronolake.yml, or a folder; the working folder's is taken if that has none.
        json: whether what other pipelines lack is told as JSON.

    Raises:
        ConfigurationError: there is no chronolake.yml, or no pipeline in it fills the table.
        PipelineBusyError: the pipeline runs.
        SourceError: the lake cannot be read.
    """
    from chronolake.config import FILE_NAME
    from chronolake.pipeline.rebuild import differences
    from chronolake.table import Promise

    is_there = place.is_file() or (place / FILE_NAME).is_file()
    wanted = project_of(place if is_there else Path(), lake.config.path, None)
    stream = _stream_of(wanted, report.table, json=json)
    with leased_for(lake, [stream]) as lease:
        found = differences(lake, stream, lease)
    told = f"{found.missing:,} rows are missing, {found.extra:,} should not be there"
    if found.hashes:
        told += f"; the hashes of {found.hashes:,} are not those of their values"
    if found.columns:
        told += f"; columns are missing or have other types: {', '.join(found.columns)}"
    promise = Promise(
        "the table holds what its raw lake holds", found.count, told if found.count else None
    )
    return replace(report, promises=(*report.promises, promise))


def _stream_of(project: Project, table: TableName, *, json: bool) -> Stream:
    """The stream that fills a table."""
    from chronolake.pipeline.streams import streams_of

    for name in project.pipelines:
        try:
            streams = streams_of(project, name)
        except ChronolakeError as failure:
            # Another pipeline's source may be away.
            show_error(failure, json=json)
            continue
        for stream in streams:
            if stream.table == table:
                return stream
    raise ConfigurationError(
        f"No pipeline of {project.file} fills the table.",
        table=str(table),
        hint="`chronolake status` lists the tables of all pipelines.",
    )
