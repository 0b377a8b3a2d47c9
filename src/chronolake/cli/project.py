"""The commands status, runs and state; `state set` and `state reset` use Spark."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that `--help` is fast
# Typer reads annotations at run time, so the types in them are imported at run time.

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path  # noqa: TC003 - Typer reads it at run time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from chronolake import exact_json
from chronolake.cli.app import (
    Group,
    JsonOption,
    LakeOption,
    ProjectOption,
    SettingOption,
    app,
    console,
    fail,
    grid_of,
    open_lake,
    print_json,
    print_json_lines,
    show_error,
)
from chronolake.cli.pipelines import (
    PipelineArgument,
    StreamsOption,
    hold_lease_of,
    project_of,
    raise_if_it_cannot_begin,
    store_of,
)
from chronolake.errors import ChronolakeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chronolake.config import Project
    from chronolake.pipeline.run_history import LastRuns, ObservedRun
    from chronolake.pipeline.state import StreamOffset
    from chronolake.pipeline.state_import import StateImport
    from chronolake.source.protocol import Lag

#: Length of an ISO instant up to its seconds.
_SECONDS: Final = len("2024-01-01T00:00:00")
#: Characters of a state that are shown.
_SHOWN: Final = 200
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class StateFormat(StrEnum):
    """Programs whose states can be imported."""

    AIRBYTE = "airbyte"
    DLT = "dlt"
    SINGER = "singer"


state = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    help="Show or change the offsets of a pipeline's tables.",
    epilog="Example: chronolake state show crm",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.add_typer(state, name="state")


@app.command(epilog="Example: chronolake status --json")
def status(
    *,
    project: ProjectOption = None,
    lake: LakeOption = None,
    json: JsonOption = False,
    settings: SettingOption = None,
) -> None:
    """Show every stream: its table, how changes are captured, its offset, and its last run."""
    from chronolake.pipeline.run_history import last_runs

    wanted = project_of(project, lake, settings)
    rows = []
    lags: dict[str, Lag] = {}
    is_complete = True
    for name in wanted.pipelines:
        found: list[dict[str, Any]] = []
        try:
            recent = last_runs(wanted.lake, name)
            compared = _reconciliations(wanted, name)
            try:
                found = _streams_status(wanted, name, recent)
                lags |= _lag_of(wanted, name)
            except ChronolakeError as failure:
                # The sources of other pipelines may be reachable.
                show_error(failure, json=json)
                is_complete = False
                found = found or _tables_status(wanted, name, recent, str(failure))
        except ChronolakeError as failure:
            show_error(failure, json=json)
            is_complete = False
        rows += [{**row, "compared": compared.get(row["stream"])} for row in found]
    if json:
        print_json([{**row, "lag": _lag_json(lags.get(row["pipeline"]))} for row in rows])
    else:
        _print_status(rows, lags)
    if not is_complete:
        fail()


def _streams_status(
    project: Project, pipeline: str, recent: Mapping[tuple[str, str], LastRuns]
) -> list[dict[str, Any]]:
    """Return the status of each stream that a pipeline's source has.

    Raises:
        ChronolakeError: the source or the lake cannot be read.
    """
    from chronolake.pipeline.state import table_offsets
    from chronolake.pipeline.streams import streams_of

    found = table_offsets(project.lake, streams_of(project, pipeline))
    return [
        _stream_status(position, recent.get((pipeline, position.stream.name))) for position in found
    ]


def _lag_of(project: Project, pipeline: str) -> dict[str, Lag]:
    """Return the lag of a pipeline by its name, if its source reports any."""
    from chronolake.pipeline.streams import source_of
    from chronolake.source.protocol import LaggingSource

    source = source_of(project, pipeline)
    return {pipeline: source.lag()} if isinstance(source, LaggingSource) else {}


def _tables_status(
    project: Project, pipeline: str, recent: Mapping[tuple[str, str], LastRuns], reason: str
) -> list[dict[str, Any]]:
    """Return the status of each table that a pipeline writes, from the lake alone.

    Args:
        pipeline: the pipeline, whose source cannot be read.
        recent: the recent runs of its streams.
        reason: why its source cannot be read.

    Raises:
        LakeError: the lake cannot be read.
    """
    from chronolake.config import ModeSetting, StreamConfig
    from chronolake.inspect.catalog import look_up_all
    from chronolake.landing import QUARANTINED_PROPERTY, Quarantine
    from chronolake.pipeline.freshness import StreamProperties, freshness

    if store_of(project) is None:
        return []
    config = project.pipelines[pipeline]
    tables = {table.name: table for table in look_up_all(project.lake)}
    stream_properties = [StreamProperties.of(table) for table in tables.values()]
    mine = [
        of_table
        for of_table in stream_properties
        if (of_table.stream or "").startswith(f"{pipeline}/")
    ]
    found = []
    for name, fresh in freshness(project.lake, mine).items():
        stream = (fresh.stream_properties.stream or "").removeprefix(f"{pipeline}/")
        setting = config.streams.get(stream, StreamConfig()).mode or config.mode
        quarantined = tables[name].iceberg.properties.get(QUARANTINED_PROPERTY)
        found.append(
            {
                "pipeline": pipeline,
                "stream": stream,
                "table": str(name),
                "mode": tables[name].mode,
                "wanted_mode": setting,
                "auto": setting is ModeSetting.AUTO,
                "sees": fresh.stream_properties.capture_method,
                "position": fresh.stream_properties.applied.watermark,
                "quarantined": [vars(file) for file in Quarantine.from_json(quarantined).files],
                "files_waiting": None if fresh.waiting is None else fresh.waiting.files,
                "bytes_waiting": None if fresh.waiting is None else fresh.waiting.bytes,
                "files_late": None if fresh.waiting is None else fresh.waiting.late,
                "limits": [] if fresh.waiting is None else list(fresh.waiting.limits),
                **_last_run(recent.get((pipeline, stream))),
                "source_error": reason,
            }
        )
    return found


def _print_status(rows: list[dict[str, Any]], lags: dict[str, Lag]) -> None:
    from chronolake.formatting import size

    grid = grid_of("table", "mode", "captures", "waiting", "last run", "fresh as of")
    for row in rows:
        grid.add_row(
            row["table"],
            _format_mode(row),
            row["sees"] or Text("-", style="dim"),
            f"{row['files_waiting']:,}" if row["files_waiting"] else Text("-", style="dim"),
            row["last_status"] or Text("none", style="dim"),
            _format_age(row["behind_seconds"]) or Text("-", style="dim"),
        )
    console().print(grid)
    for name in dict.fromkeys(row["pipeline"] for row in rows if row["source_error"]):
        reported = "  its source cannot be read: these are the tables and runs of the lake"
        console().print(Text.assemble((name, "bold"), (reported, "yellow")))
    for row in rows:
        _print_notes(row)
    limits = {row["pipeline"]: row["limits"] for row in rows if row["limits"]}
    for name, reasons in limits.items():
        for reason in reasons:
            console().print(Text.assemble((name, "bold"), (f"  {reason}", "yellow")))
    for name, lag in lags.items():
        text = (
            f"  {size(lag.behind_bytes)} of log to read; the source retains {size(lag.kept_bytes)}"
        )
        console().print(Text.assemble((name, "bold"), text))
        if lag.warning is not None:
            console().print(Text(f"  {lag.warning}", style="yellow"))


def _print_notes(row: dict[str, Any]) -> None:
    """Print what is to be known of a table in addition to its line."""
    from chronolake.formatting import format_count

    if row["error"]:
        failed = (row["error"], "red")
        hint = f"  {row['hint'] or ''}"
        console().print(Text.assemble((row["table"], "bold"), "  ", failed, hint))
    for file in row["quarantined"]:
        text = f"  left out {file['mark']}: {file['reason']}"
        console().print(Text.assemble((row["table"], "bold"), (text, "yellow")))
    if row["files_late"]:
        text = (
            f"  {format_count(row['files_late'], 'file')} appeared in hours that were already "
            f"read: run `chronolake resync {row['pipeline']} --stream {row['stream']}`"
        )
        console().print(Text.assemble((row["table"], "bold"), (text, "yellow")))
    if compared := row["compared"]:
        age = _format_age((datetime.now(UTC) - compared["at"]).total_seconds())
        text = f"  reconciled with its source {age}: {compared['deleted']:,} deleted"
        console().print(Text.assemble((row["table"], "bold"), text))


def _format_mode(row: dict[str, Any]) -> Text:
    chosen = (" (auto)" if row["auto"] else "", "dim")
    if row["mode"]:
        return Text.assemble(row["mode"], chosen)
    return Text.assemble((row["wanted_mode"], "dim"), chosen, (", not created yet", "dim"))


def _reconciliations(project: Project, pipeline: str) -> dict[str, dict[str, Any]]:
    """Return the last complete comparison of each stream that was compared with its source."""
    from chronolake.source.protocol import COMPARED

    store = store_of(project)
    checkpoints = store.checkpoints(pipeline) if store else {}
    offsets = {
        name: checkpoint[COMPARED]
        for name, checkpoint in checkpoints.items()
        if COMPARED in checkpoint
    }
    return {
        name: {**last, "at": _EPOCH + timedelta(microseconds=last["at"])}
        for name, last in offsets.items()
        # The first read of a stream is not compared with a table.
        if "deleted" in last
    }


def _format_age(seconds: float | None) -> str | None:
    """Format an age in seconds for people."""
    if seconds is None:
        return None
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _lag_json(lag: Lag | None) -> dict[str, Any] | None:
    return None if lag is None else vars(lag)


def _stream_status(position: StreamOffset, recent: LastRuns | None) -> dict[str, Any]:
    """Return the status of a stream.

    Args:
        position: the offset of its table.
        recent: its recent runs; None if it never ran.
    """
    from chronolake.pipeline.freshness import waiting_in

    stream = position.stream
    waiting = waiting_in(stream.folder, position.applied)
    return {
        "pipeline": stream.pipeline,
        "stream": stream.name,
        "table": str(stream.table),
        "mode": position.mode,
        "wanted_mode": stream.mode,
        "auto": stream.is_auto,
        "sees": position.capture_method or stream.descriptor.capture_method,
        "position": position.watermark,
        "quarantined": [vars(file) for file in position.quarantine.files],
        "files_waiting": waiting.files,
        "bytes_waiting": waiting.bytes,
        "files_late": waiting.late,
        "limits": list(waiting.limits),
        **_last_run(recent),
        "source_error": None,
    }


def _last_run(recent: LastRuns | None) -> dict[str, Any]:
    """Return how fresh a stream is, and how its last run ended."""
    from chronolake.pipeline.run_history import behind_seconds

    fresh = recent.fresh_as_of if recent else None
    return {
        "fresh_as_of": fresh,
        "behind_seconds": behind_seconds(fresh),
        "last_status": recent.last.status if recent else None,
        "error": recent.last.error if recent else None,
        "hint": recent.last.hint if recent else None,
    }


@app.command(epilog="Example: chronolake runs crm --limit 5")
def runs(
    pipeline: Annotated[
        str | None, typer.Argument(metavar="PIPELINE", help="Show only runs of this pipeline.")
    ] = None,
    *,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="Show up to this number of runs.")
    ] = 20,
    project: ProjectOption = None,
    lake: LakeOption = None,
    json: JsonOption = False,
    settings: SettingOption = None,
) -> None:
    """List the newest runs, and the outcomes of their streams."""
    from chronolake.pipeline.run_history import runs as newest
    from chronolake.pipeline.streams import pipeline_of

    wanted = project_of(project, lake, settings)
    found = newest(wanted.lake, pipeline=pipeline, limit=limit).runs
    if pipeline is not None and not found:
        # Runs of removed pipelines are still listed.
        pipeline_of(wanted, pipeline)
    if json:
        print_json_lines([_run_json(run) for run in found])
        return
    grid = grid_of(
        *("began (UTC)", "pipeline", "stream", "status", "rows", "written", "seconds"),
        title="stream",
    )
    for run in found:
        named = run.run.began[:_SECONDS].replace("T", " "), run.run.pipeline
        for place, stream in enumerate(run.streams):
            record = stream.record
            grid.add_row(
                *(named if place == 0 else ("", "")),
                record.stream,
                record.status,
                *(f"{number:,}" for number in (record.rows, record.written)),
                f"{record.seconds:.1f}",
            )
    console().print(grid)
    for run in found:
        if run.run.error is not None:
            words = (f"{run.run.began}  {run.run.pipeline}  ", (run.run.error, "red"))
            console().print(Text.assemble(*words, f"  {run.run.hint or ''}"))


def _run_json(run: ObservedRun) -> dict[str, Any]:
    from chronolake.cli.progress import stream_json

    streams = []
    for stream in run.streams:
        before, after = stream.states
        left = {"files_left": stream.record.files_left, "bytes_left": stream.record.bytes_left}
        streams.append(
            {
                **stream_json(stream.record),
                "stage": stream.record.stage,
                **left,
                "before": before,
                "after": after,
                "changes": [vars(change) for change in stream.changes],
            }
        )
    return {**vars(run.run), "seconds": run.seconds, "streams": streams}


@state.command("show", epilog="Example: chronolake state show crm")
def state_show(
    pipeline: PipelineArgument,
    *,
    stream: StreamsOption = None,
    project: ProjectOption = None,
    lake: LakeOption = None,
    settings: SettingOption = None,
) -> None:
    """Print the offset of each stream as JSON.

    `applied` is the last file that was applied to its table. `landed` is the stream's offset in a
    source whose changes land in Chronolake's own raw lake, in the source's own format.
    """
    from chronolake.pipeline.state import table_offsets
    from chronolake.pipeline.streams import select_streams, streams_of

    wanted = project_of(project, lake, settings)
    streams = select_streams(streams_of(wanted, pipeline), pipeline, stream or [])
    found = table_offsets(wanted.lake, streams)
    store = store_of(wanted)
    landed = store.checkpoints(pipeline) if store else {}
    print_json(
        {
            offset.stream.name: {
                "applied": offset.watermark,
                "landed": landed.get(offset.stream.name),
            }
            for offset in found
        }
    )


@state.command("set", epilog="Example: chronolake state set crm Account batch=05/data-16.parquet")
def state_set(
    pipeline: PipelineArgument,
    stream: Annotated[
        str, typer.Argument(metavar="STREAM", help="The stream's name in the source.")
    ],
    position: Annotated[
        str, typer.Argument(metavar="FILE", help="The last file to treat as applied.")
    ],
    *,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", help="Confirm the change: the table lacks skipped files until a rebuild."
        ),
    ] = False,
    project: ProjectOption = None,
    lake: LakeOption = None,
    settings: SettingOption = None,
) -> None:
    """Set the offset of a stream's table; skipped files are missing until a rebuild."""
    if not yes:
        raise typer.BadParameter(
            "the files in between would not be applied. Confirm with --yes", param_hint="--yes"
        )
    _move_watermarks(project_of(project, lake, settings), pipeline, [stream], position)


@state.command(
    "import", epilog="Example: chronolake state import demo --from airbyte connection-state.json"
)
def state_import(
    pipeline: PipelineArgument,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="The state as JSON, or `-` for standard input."),
    ],
    *,
    tool: Annotated[
        StateFormat,
        typer.Option("--from", help="The program whose state it is.", show_default=False),
    ],
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a state that the pipeline already has.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be imported, and store nothing.")
    ] = False,
    project: ProjectOption = None,
    lake: LakeOption = None,
    json: JsonOption = False,
    settings: SettingOption = None,
) -> None:
    """Continue where another program has stopped: its state becomes that of a pipeline.

    The next sync reads only what has changed since, instead of everything. Records from before are
    not in the tables until they change, or until `chronolake resync`. A pipeline that already has a
    state is refused without --replace.
    """
    from chronolake.masking import mask
    from chronolake.pipeline.state_import import plan_import, read_state, store_import

    wanted = project_of(project, lake, settings)
    content = read_state(file)
    plan = plan_import(wanted, pipeline, tool.value, content, store_of(wanted), replaces=replace)
    if not dry_run:
        store_import(wanted, plan, replaces=replace)
    if json:
        print_json(
            {
                "pipeline": pipeline,
                "stored": not dry_run,
                "shared": mask(plan.shared),
                "streams": {name: mask(state) for name, state in plan.states.items()},
                "without_state": list(plan.without_state),
            }
        )
        return
    _print_import(plan, stored=not dry_run)


def _print_import(plan: StateImport, *, stored: bool) -> None:
    from chronolake.masking import mask

    grid = grid_of("stream", "continues after")
    for name, state in plan.states.items():
        shown = "the state of all streams" if state is None else exact_json.dumps(mask(state))
        text = shown if isinstance(shown, str) else shown.decode("utf-8", "replace")
        grid.add_row(name, text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ...")
    for name in plan.without_state:
        grid.add_row(name, Text("no state: it is read completely", style="dim"))
    console().print(grid)
    if stored:
        console().print(f"The state was stored. The next sync of {plan.pipeline} continues there.")
    else:
        console().print("Nothing was stored.")


@state.command("reset", epilog="Example: chronolake state reset crm --stream Account")
def state_reset(
    pipeline: PipelineArgument,
    *,
    stream: StreamsOption = None,
    project: ProjectOption = None,
    lake: LakeOption = None,
    settings: SettingOption = None,
) -> None:
    """Reset offsets: the next sync applies every file again, which does not change any row."""
    _move_watermarks(project_of(project, lake, settings), pipeline, stream or [], None)


def _move_watermarks(
    project: Project, pipeline: str, names: list[str], watermark: str | None
) -> None:
    from chronolake.pipeline.state import move_watermark
    from chronolake.pipeline.streams import select_streams, streams_of

    raise_if_it_cannot_begin(project, pipeline)
    streams = select_streams(streams_of(project, pipeline), pipeline, names)
    with open_lake(project.lake, json=False) as opened, hold_lease_of(opened, streams) as lease:
        for stream in streams:
            move_watermark(opened, stream, lease, watermark)
            console().print(f"The offset of {stream.table} is now {watermark or 'the beginning'}")
