"""The commands sync, resync, backfill and rebuild, which run pipelines."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that `--help` is fast
from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from json import dumps, loads
from pathlib import Path  # noqa: TC003 - Typer reads it at run time
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

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
    fail,
    open_lake,
    parse_pairs,
    parse_table_name,
    print_json,
    show_error,
)
from chronolake.cli.resync import MissingSetting, ResyncOptions, resync_table
from chronolake.errors import ChronolakeError, ConfigurationError, SourceError
from chronolake.storage import storage_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from chronolake.cli.progress import Progress
    from chronolake.config import LakeConfig, Project, WatchedProject
    from chronolake.core import VerifyReport
    from chronolake.lake import Lake
    from chronolake.pipeline.lease import Lease
    from chronolake.pipeline.mode_switch import IdleModes
    from chronolake.pipeline.runs import Status
    from chronolake.pipeline.store import Store
    from chronolake.pipeline.streams import Stream
    from chronolake.schedule import Timing
    from chronolake.source.protocol import Source
    from chronolake.types import TableName


#: Maximum seconds until a change of chronolake.yml is noticed between runs.
_RELOAD_SECONDS: Final = 2.0
#: Exit code of a run in which some streams failed and others did not.
PARTIAL: Final = 3

PipelineArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE", help="The pipeline's name in chronolake.yml.", show_default=False
    ),
]
StreamsOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--stream", metavar="STREAM", help="Process only this stream. Repeatable."),
]


def project_of(project: Path | None, lake: Path | None, settings: Sequence[str] | None) -> Project:
    """Return the project of the common options.

    Raises:
        ConfigurationError: chronolake.yml is missing or invalid.
    """
    from chronolake import permissions
    from chronolake.config import project_at

    found = project_at(project, lake=lake, overrides=dict(parse_pairs(settings or (), "--set")))
    permissions.restrict(found.lake)
    return found


def project_of_lake(
    config: LakeConfig, project: Path | None, lake: Path | None, file: Path | None
) -> Project:
    """Return the project whose pipelines write a lake.

    Args:
        config: the lake.
        project: `--project`.
        lake: `--lake`; its chronolake.yml takes precedence over that of the working folder.
        file: `--config`.

    Raises:
        ConfigurationError: chronolake.yml is missing or invalid.
    """
    from chronolake.config import FILE_NAME

    if file is None and lake is not None and (lake / FILE_NAME).is_file():
        file = lake
    return project_of(file or project, config.path, None)


@app.command(
    epilog="Example: chronolake sync crm --stream Account --every 5m. Exit codes: 0 all "
    "streams succeeded, 3 some failed, 1 all failed or no run could start.",
)
def sync(
    pipeline: Annotated[
        str | None,
        typer.Argument(
            metavar="PIPELINE",
            help="The pipeline's name in chronolake.yml. Default: all pipelines.",
        ),
    ] = None,
    *,
    stream: StreamsOption = None,
    every: Annotated[
        str | None,
        typer.Option(
            "--every",
            metavar="TIME",
            help="Repeat the sync at this interval (30s, 5m, 1h), or at the times of a cron "
            "expression in UTC ('*/5 * * * *').",
        ),
    ] = None,
    project: ProjectOption = None,
    lake: LakeOption = None,
    json: JsonOption = False,
    settings: SettingOption = None,
    _no_engine: NoEngineOption = False,
) -> None:
    """Sync a pipeline's tables with its source; with --json, print one event per line."""
    from chronolake.cli.progress import Progress
    from chronolake.config import WatchedProject
    from chronolake.pipeline.streams import pipeline_of
    from chronolake.schedule import Moment, Schedule, Timing

    timing = None if every is None else _parse_timing(every)
    wanted = project_of(project, lake, settings)
    if pipeline is None and not wanted.pipelines:
        raise ConfigurationError(
            f"{wanted.file} has no pipelines.", hint="Add a pipeline below `pipelines`."
        )
    watched = WatchedProject(
        wanted, lambda: project_of(project, lake, settings), partial(show_error, json=json)
    )
    if pipeline is not None:
        pipeline_of(wanted, pipeline)
    if timing is None:
        _exit_unless_any_can_begin(wanted, [pipeline] if pipeline else None, stream, json=json)
    once = Timing(0.0)
    modes: dict[str, IdleModes] = {}
    schedule = Schedule(lambda _: timing or once)
    with open_lake(wanted.lake, json=json, is_short_lived=timing is None) as opened:
        while True:
            began = Moment.now()
            # Pipelines may be added or removed while it runs.
            names = [pipeline] if pipeline is not None else list(watched.current().pipelines)
            ended = []
            if due := schedule.due(names, began):
                with Progress(opened, json=json) as progress:
                    ended = [
                        run_one(
                            opened,
                            watched,
                            name,
                            stream or (),
                            progress,
                            is_scheduled=timing is not None,
                        )
                        for name in due
                    ]
            if timing is None:
                break
            # Not before: it loads PySpark.
            from chronolake.pipeline.mode_switch import IdleModes
            from chronolake.pipeline.scheduled import note_run

            for name, status in zip(due, ended, strict=True):
                note_run(schedule, name, status, began)
            for name in names:
                idle = modes.setdefault(name, IdleModes(watched.current(), name))
                idle.switch(opened, watched.current())
            now = Moment.now()
            time.sleep(max(0.0, min([_RELOAD_SECONDS, *(schedule.pause(n, now) for n in names)])))
    exit_with_status(ended)


def _exit_unless_any_can_begin(
    project: Project, names: Sequence[str] | None, only: Sequence[str] | None, *, json: bool
) -> None:
    """End the command before Spark starts, if no pipeline could begin to run.

    Args:
        names: the pipelines; None for all of the project.
        only: `--stream`.
        json: whether errors are printed as JSON.
    """
    failures: dict[str, ChronolakeError] = {}
    for name in names or project.pipelines:
        try:
            raise_if_it_cannot_begin(project, name)
            raise_unless_listed(project, name, only or ())
        except ChronolakeError as failure:
            failures[name] = failure
        else:
            return
    for name, refused in failures.items():
        _note_refused(project, name, refused)
        show_error(refused, json=json)
    fail()


def _note_refused(project: Project, pipeline: str, failure: ChronolakeError) -> None:
    """Record a run that could not begin because of its source, if the lake exists."""
    from chronolake.pipeline.lease import note_refused

    if isinstance(failure, SourceError | ConfigurationError):
        store = store_of(project)
        if store is not None:
            note_refused(store, pipeline, failure)


def raise_if_it_cannot_begin(project: Project, pipeline: str) -> None:
    """Raise before Spark starts, if a run of the pipeline would be rejected anyway.

    Raises:
        ConfigurationError: the pipeline does not exist.
        MissingExtraError: the packages that read the source are not installed.
        PipelineBusyError: another process has been running the pipeline for ten seconds.
        LakeError: the operational store is not reachable.
    """
    from chronolake.pipeline.lease import wait_until_free
    from chronolake.pipeline.streams import raise_if_not_installed

    raise_if_not_installed(project, pipeline)
    store = store_of(project)
    if store is not None:
        wait_until_free(store, pipeline)


def raise_unless_listed(project: Project, pipeline: str, only: Sequence[str]) -> None:
    """Raise before Spark starts, if the streams of the source cannot be listed.

    A database that is read over JDBC lists its configured tables: only Spark can connect to it.

    Args:
        pipeline: the pipeline's name.
        only: the streams to run; all of them if it is empty.

    Raises:
        ConfigurationError: the source's configuration is invalid, or a stream does not exist.
        SourceError: the source cannot be read: a folder is missing, or a server is not reachable.
    """
    from chronolake.pipeline.streams import select_streams, streams_of

    select_streams(streams_of(project, pipeline), pipeline, only)


def store_of(project: Project) -> Store | None:
    """Return the operational store, or None if the lake does not exist yet; it is not created."""
    from chronolake.pipeline.store import Store

    if project.lake.catalog.uri is None and not project.lake.catalog_file.is_file():
        return None
    return Store.open(project.lake)


def run_one(
    lake: Lake,
    project: WatchedProject,
    name: str,
    only: Sequence[str],
    progress: Progress,
    *,
    full_refresh: bool = False,
    is_scheduled: bool = False,
    source: Source | None = None,
) -> Status | None:
    """Run one pipeline; return None if it could not begin, so that others can still run."""
    from chronolake.pipeline.sync import sync as run

    try:
        now = project.current()
        result = run(
            lake,
            now,
            name,
            only=only,
            watch=progress.show,
            reread=project.current,
            full_refresh=full_refresh,
            is_scheduled=is_scheduled,
            source=source,
        )
    except ChronolakeError as failure:
        show_error(storage_error(failure) or failure, json=progress.json)
        return None
    if result.storage_failure is not None:
        # Printed last, after the outcomes of the streams, because it needs an action.
        show_error(result.storage_failure, json=progress.json)
    return result.status


def exit_with_status(ended: Sequence[Status | None]) -> None:
    """End the command with the exit code of its runs, unless all of them succeeded."""
    from chronolake.pipeline.runs import Status

    if all(status is Status.SUCCEEDED for status in ended):
        return
    fail(PARTIAL if any(status in {Status.SUCCEEDED, Status.PARTIAL} for status in ended) else 1)


def _parse_timing(text: str) -> Timing:
    """Return the value of `--every`.

    Raises:
        BadParameter: the text is neither a valid duration nor a cron expression.
    """
    from chronolake.schedule import Timing

    try:
        return Timing.parse(text)
    except ValueError as failure:
        raise typer.BadParameter(str(failure), param_hint="--every") from None


@app.command(epilog="Example: chronolake rebuild crm.Account")
def rebuild(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="A table that a pipeline fills, as schema.table.")
    ],
    *,
    project: ProjectOption = None,
    lake: LakeOption = None,
    json: JsonOption = False,
    settings: SettingOption = None,
    _no_engine: NoEngineOption = False,
) -> None:
    """Rebuild a table from all files in its raw lake, and replace it atomically.

    Readers see the old table until then. The new table has the same offset.
    """
    from chronolake.pipeline.rebuild import rebuild as run

    name = parse_table_name(table)
    wanted = project_of(project, lake, settings)
    stream = stream_of_table(wanted, name, json=json)
    raise_if_it_cannot_begin(wanted, stream.pipeline)
    with open_lake(wanted.lake, json=json) as opened, hold_lease_of(opened, [stream]) as lease:
        rows = run(opened, stream, lease).written
    if json:
        print_json({"table": str(name), "rows": rows})
    else:
        console().print(f"Rebuilt {name}: {rows:,} rows")


@app.command(
    epilog="Examples: chronolake resync crm --stream Account, chronolake resync shop --stream "
    "orders --key id=5, chronolake resync sales.customers --from exports/customers.parquet "
    "--dry-run",
)
def resync(
    pipeline: Annotated[
        str,
        typer.Argument(
            metavar="PIPELINE|TABLE",
            help="The pipeline's name in chronolake.yml; with --from, a history table without a "
            "pipeline, as schema.table.",
            show_default=False,
        ),
    ],
    *,
    stream: StreamsOption = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            metavar="COLUMN=VALUE",
            help="Read only the record with this key (id=5, or order=5,line=2 for several "
            "columns). Repeat for each record. Requires one --stream.",
        ),
    ] = None,
    slice_: Annotated[
        str | None,
        typer.Option(
            "--slice",
            metavar="COLUMN=VALUE",
            help="Read only the records with this value (region=EU, or region=EU,year=2026 for "
            "several columns). Requires one --stream.",
        ),
    ] = None,
    given: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="QUERY|FILES|TABLE",
            help="The present rows of TABLE: a query in Spark SQL, files (Parquet, Avro, CSV or "
            "JSON lines; a file, a folder, or a path with *), or another table.",
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            metavar="COLUMN",
            help="The column of --from with the time of each row's last change. Default: "
            "_fivetran_start, if there is one.",
        ),
    ] = None,
    missing: Annotated[
        MissingSetting,
        typer.Option(
            "--missing",
            help="Active records that --from does not have: inactive from just before the re-sync "
            "on, deleted at its start, or still active.",
        ),
    ] = MissingSetting.DEACTIVATE,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="With --from: the time of the re-sync (ISO 8601, UTC without an offset). "
            "Default: now.",
        ),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="The format of files: parquet, avro, csv or jsonl. Default: by the ending.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="With --from: only print what would change."),
    ] = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="With --from: run even if versions or records are lost."),
    ] = False,
    project: ProjectOption = None,
    lake: LakeOption = None,
    json: JsonOption = False,
    settings: SettingOption = None,
    _no_engine: NoEngineOption = False,
) -> None:
    """Read all data of the source again; the history of the tables is kept.

    A Data Lake v2 keeps every version: each table is rebuilt from all current files. For other
    sources, all rows are read: those that differ from the table get a new version, and missing ones
    are deleted, also those that an API or a connector does not return any more, such as records
    before its start date. Projects of the Fivetran SDK and Python functions with a log may not
    return everything: missing ones are not deleted. With --key or --slice, the same is done for
    some records only, if the source can look them up. Exit codes are those of `sync`.

    With --from, a history table that no pipeline fills gets present rows from a query, from files
    or from another table. Versions that start after their record's row are deleted. If versions or
    records are lost, this needs --yes.
    """
    if given is not None:
        if stream or key or slice_ is not None:
            raise typer.BadParameter(
                "--stream, --key and --slice select parts of a pipeline", param_hint="--from"
            )
        resync_table(
            parse_table_name(pipeline),
            given,
            configuration(project, lake, None, settings),
            ResyncOptions(start, missing, at, format_, dry_run=dry_run, yes=yes, json=json),
        )
        return
    unused = (start, at, format_, dry_run or None, yes or None)
    if any(option is not None for option in unused) or missing is not MissingSetting.DEACTIVATE:
        raise typer.BadParameter(
            "--start, --missing, --at, --format, --dry-run and --yes need --from",
            param_hint="--from",
        )
    reread = partial(project_of, project, lake, settings)
    wanted = reread()
    if not key and slice_ is None:
        _run_once(wanted, reread, pipeline, stream or (), json=json, full_refresh=True)
        return
    if key and slice_ is not None:
        raise typer.BadParameter("give either --key or --slice", param_hint="--slice")
    name = _only_one(stream)
    from chronolake.pipeline.partial_reads import source_of_records

    where = [_parse_record(text, "--key") for text in key or ()]
    if slice_ is not None:
        where.append(_parse_record(slice_, "--slice"))
    source = source_of_records(wanted, pipeline, name, where, is_slice=slice_ is not None)
    _run_once(wanted, reread, pipeline, [name], json=json, source=source)


@app.command(
    epilog="Example: chronolake backfill shop --stream orders --from 2026-01-01 --to 2026-02-01",
)
def backfill(
    pipeline: PipelineArgument,
    *,
    stream: StreamsOption = None,
    begin: Annotated[
        str,
        typer.Option(
            "--from", metavar="TIME", help="The earliest time (ISO 8601, UTC without an offset)."
        ),
    ],
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="TIME", help="The latest time, exclusive. Default: now."),
    ] = None,
    project: ProjectOption = None,
    lake: LakeOption = None,
    json: JsonOption = False,
    settings: SettingOption = None,
    _no_engine: NoEngineOption = False,
) -> None:
    """Read what changed in a stream within a time range again.

    Records that differ from the table get a version at the time of their change. Nothing is
    deleted, and the next sync continues where the last one stopped. The range may begin before the
    configured start of the stream. APIs with a cursor over time and Python functions with a
    parameter `window` can be read like this. Requires one --stream. Exit codes are those of `sync`.
    """
    reread = partial(project_of, project, lake, settings)
    wanted = reread()
    name = _only_one(stream)
    from chronolake.instants import datetime_of, micros_of
    from chronolake.pipeline.partial_reads import source_of_window
    from chronolake.types import now_micros

    times = (micros_of(begin), now_micros() if end is None else micros_of(end))
    source = source_of_window(wanted, pipeline, name, *map(datetime_of, times))
    _run_once(wanted, reread, pipeline, [name], json=json, source=source)


def _only_one(streams: Sequence[str] | None) -> str:
    if not streams or len(streams) > 1:
        raise typer.BadParameter("name exactly one stream", param_hint="--stream")
    return streams[0]


def _parse_record(text: str, option: str) -> dict[str, str]:
    """Return the values of columns: `id=5`, `order=5,line=2`, or an object in JSON.

    Raises:
        BadParameter: the text has none of these forms, or a value is null.
    """
    if not text.startswith("{"):
        return dict(parse_pairs(text.split(","), option))
    try:
        found = loads(text)
    except ValueError:
        raise typer.BadParameter(f"{text} is not valid JSON", param_hint=option) from None
    for name, value in found.items():
        if value is None:
            raise typer.BadParameter(
                f"{name} is null: only records with a value can be selected", param_hint=option
            )
    return {
        name: value if isinstance(value, str) else dumps(value) for name, value in found.items()
    }


def _run_once(
    project: Project,
    reread: Callable[[], Project],
    pipeline: str,
    streams: Sequence[str],
    *,
    json: bool,
    full_refresh: bool = False,
    source: Source | None = None,
) -> None:
    """Run a pipeline once, and end the command with the run's exit code."""
    from chronolake.cli.progress import Progress
    from chronolake.config import WatchedProject

    _exit_unless_any_can_begin(project, [pipeline], streams, json=json)
    watched = WatchedProject(project, reread, partial(show_error, json=json))
    with open_lake(project.lake, json=json) as opened, Progress(opened, json=json) as progress:
        ended = run_one(
            opened, watched, pipeline, streams, progress, full_refresh=full_refresh, source=source
        )
    exit_with_status([ended])


def hold_lease_of(lake: Lake, streams: Sequence[Stream]) -> AbstractContextManager[Lease]:
    """Hold the lease of the pipeline of some streams; its token exceeds those of their tables."""
    from chronolake.pipeline.lease import PATIENCE_SECONDS, greatest_token, hold_lease
    from chronolake.pipeline.store import Store

    above = greatest_token(lake.catalog.find(stream.table) for stream in streams)
    return hold_lease(
        Store.open(lake.config), streams[0].pipeline, above=above, wait_seconds=PATIENCE_SECONDS
    )


def compare_with_lake(lake: Lake, report: VerifyReport, stream: Stream) -> VerifyReport:
    """Return a table's report with the result of the comparison with its raw lake.

    Raises:
        PipelineBusyError: the pipeline runs.
        SourceError: the lake cannot be read.
    """
    from chronolake.pipeline.rebuild import differences

    with hold_lease_of(lake, [stream]) as lease:
        found = differences(lake, stream, lease)
    return replace(report, invariants=(*report.invariants, found.invariant))


def find_stream(
    project: Project, table: TableName, *, failed: Callable[[ChronolakeError], object]
) -> Stream | None:
    """Return the stream that writes a table; None if no pipeline of the project does.

    Args:
        failed: gets the error of each pipeline whose streams are not known: another pipeline's
            source may be unreachable.
    """
    from chronolake.pipeline.streams import streams_of

    for name in project.pipelines:
        try:
            streams = streams_of(project, name)
        except ChronolakeError as failure:
            failed(failure)
            continue
        for stream in streams:
            if stream.table == table:
                return stream
    return None


def stream_of_table(project: Project, table: TableName, *, json: bool) -> Stream:
    """Return the stream that writes a table.

    Args:
        json: whether failures of other pipelines' sources are printed as JSON.

    Raises:
        ConfigurationError: no pipeline of the project writes it.
    """
    stream = find_stream(project, table, failed=partial(show_error, json=json))
    if stream is not None:
        return stream
    raise ConfigurationError(
        f"No pipeline of {project.file} fills the table.",
        table=str(table),
        hint="`chronolake status` lists the tables of all pipelines.",
    )
