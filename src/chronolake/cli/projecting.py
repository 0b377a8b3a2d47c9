"""The commands around a project: what it is, and what became of it. None of them needs Spark."""

# ruff: noqa: PLC0415 - what a command needs is imported by that command: `--help` is instant
# Typer reads annotations at run time, so the types in them are imported for good.

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import orjson
import typer
from rich import box
from rich.table import Table
from rich.text import Text

from chronolake.cli.app import JsonOption, SettingOption, app, console, fail, print_json, show_error
from chronolake.cli.piping import (
    PipelineArgument,
    ProjectLakeOption,
    ProjectOption,
    StreamsOption,
    opened,
    project_of,
)
from chronolake.errors import ChronolakeError, ConfigurationError

if TYPE_CHECKING:
    from chronolake.config import Project
    from chronolake.pipeline.state import Position
    from chronolake.pipeline.store import StreamRun

_SCHEMA_FILE: Final = "chronolake.schema.json"
_TEMPLATE: Final = """\
# yaml-language-server: $schema=./chronolake.schema.json
#
# ${NAME} stands for the environment variable NAME: keep secrets there and not here.

lake:
  path: lake                # the lake's folder; a relative one is taken from this file's
  # catalog:                # default: a SQLite file in the lake's folder
  #   uri: postgresql://lake:${LAKE_PASSWORD}@db.internal/lake
  # spark:
  #   master: local[*]
  #   conf: {spark.driver.memory: 4g}

pipelines:
  # crm:                    # your name for it, and for the schema of its tables
  #   source:
  #     type: data_lake_v2
  #     path: ./crm-lake    # the folder that holds parquet/v2
  #     org: X              # X in org=X
  #     objects: [Account]  # every object when left out
  #   mode: history         # live, soft-delete or history
  #   streams:              # what is different for single streams
  #     Account: {table: accounts, mode: soft-delete}
"""

state = typer.Typer(
    no_args_is_help=True,
    help="Show or move how far a pipeline's tables are.",
    epilog="Example: chronolake state show crm",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.add_typer(state, name="state")


@app.command(epilog="Example: chronolake init ./shop")
def init(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="The project's folder.")] = Path(),
) -> None:
    """Make a project: a chronolake.yml with comments, and its schema for editors."""
    from chronolake.config import FILE_NAME

    file = folder / FILE_NAME
    if file.exists():
        raise ConfigurationError(
            f"{file} exists already.", hint="Edit it, or choose another folder."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(_TEMPLATE, encoding="utf-8")
        (folder / _SCHEMA_FILE).write_bytes(_schema())
    except OSError as failure:
        raise ConfigurationError(
            f"{folder} cannot be written: {failure.strerror}.", hint="Choose another folder."
        ) from failure
    console().print(
        f"Made {file} and {_SCHEMA_FILE}. Describe a source in it, then `chronolake check`."
    )


@app.command(epilog="Example: chronolake schema > chronolake.schema.json")
def schema() -> None:
    """Print the JSON schema of chronolake.yml, for editors."""
    typer.echo(_schema().decode(), nl=False)


def _schema() -> bytes:
    from chronolake.config import FileConfig

    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(FileConfig.model_json_schema(), option=options)


@app.command(epilog="Example: chronolake check")
def check(
    *,
    project: ProjectOption = Path(),
    lake: ProjectLakeOption = None,
    json: JsonOption = False,
    settings: SettingOption = None,
) -> None:
    """Check chronolake.yml, that sources and lake can be reached, and that tables are free.

    Nothing is written but the lake's folder and the tables of the operational store. Exit code 1 if
    something is wrong.
    """
    from chronolake.pipeline.store import Store

    wanted = project_of(project, lake, settings)
    found: list[dict[str, Any]] = [_checked("lake", lambda: _reached(Store.open(wanted.lake)))]
    found += [
        _checked(f"pipelines.{name}", lambda name=name: _pipeline_words(wanted, name))
        for name in wanted.pipelines
    ]
    if json:
        print_json(found)
    else:
        for one in found:
            word = (
                Text("ok     ", style="green") if one["ok"] else Text("failed ", style="bold red")
            )
            console().print(Text.assemble(word, (one["what"], "bold"), f"  {one['message']}"))
            if one["hint"]:
                console().print(f"       {one['hint']}")
    if not all(one["ok"] for one in found):
        fail()


def _checked(what: str, look: Any) -> dict[str, Any]:
    try:
        message = look()
    except ChronolakeError as failure:
        return {"what": what, "ok": False, "message": failure.message, "hint": failure.hint}
    return {"what": what, "ok": True, "message": message, "hint": None}


def _reached(_: object) -> str:
    return "its database answers"


def _pipeline_words(project: Project, name: str) -> str:
    from chronolake.pipeline.state import expect_free, positions
    from chronolake.pipeline.streams import streams_of

    streams = streams_of(project, name)
    for position in positions(project.lake, streams):
        expect_free(position)
    return f"{len(streams)} streams: {', '.join(stream.name for stream in streams) or 'none'}"


@app.command(epilog="Example: chronolake discover crm --json")
def discover(
    pipeline: PipelineArgument,
    *,
    project: ProjectOption = Path(),
    lake: ProjectLakeOption = None,
    json: JsonOption = False,
    settings: SettingOption = None,
) -> None:
    """List a pipeline's streams: what there is, what they can see, and how they are kept."""
    from chronolake.limits import allowed_modes
    from chronolake.look.show import size
    from chronolake.pipeline.streams import streams_of

    wanted = project_of(project, lake, settings)
    rows: list[dict[str, Any]] = []
    for stream in streams_of(wanted, pipeline):
        files = stream.folder.files()
        rows.append(
            {
                "stream": stream.name,
                "table": str(stream.table),
                "mode": stream.mode,
                "modes": allowed_modes(stream.offered.traits),
                "key": ["Id"],
                "sees": stream.offered.sight,
                "files": len(files),
                "bytes": sum(file.size for file in files),
            }
        )
    if json:
        print_json(rows)
        return
    grid = _grid("stream", "table", "mode", "can be", "sees", "files", "size")
    for row in rows:
        grid.add_row(
            row["stream"],
            row["table"],
            row["mode"],
            ", ".join(row["modes"]),
            row["sees"],
            f"{row['files']:,}",
            size(row["bytes"]),
        )
    console().print(grid)


@app.command(epilog="Example: chronolake status --json")
def status(
    *,
    project: ProjectOption = Path(),
    lake: ProjectLakeOption = None,
    json: JsonOption = False,
    settings: SettingOption = None,
) -> None:
    """Show every stream: its table, what it can see, how far it is, and its last run."""
    from chronolake.pipeline.state import positions
    from chronolake.pipeline.streams import streams_of

    wanted = project_of(project, lake, settings)
    rows = []
    is_whole = True
    for name in wanted.pipelines:
        try:
            last = _last_runs(wanted, name)
            found = positions(wanted.lake, streams_of(wanted, name))
            rows += [_status_of(position, last.get(position.stream.name)) for position in found]
        except ChronolakeError as failure:
            # Another pipeline's source may be there.
            show_error(failure, json=json)
            is_whole = False
    if json:
        print_json(rows)
        if not is_whole:
            fail()
        return
    grid = _grid("table", "mode", "sees", "applied up to", "waiting", "last run")
    for row in rows:
        grid.add_row(
            row["table"],
            row["mode"] or Text(f"{row['wanted_mode']}, not there yet", style="dim"),
            row["sees"],
            (row["position"] or "").rpartition("/")[2],
            f"{row['files_waiting']:,}" if row["files_waiting"] else Text("-", style="dim"),
            row["last_status"] or Text("none", style="dim"),
        )
    console().print(grid)
    for row in rows:
        if row["error"]:
            console().print(Text.assemble((row["table"], "bold"), "  ", (row["error"], "red")))
    if not is_whole:
        fail()


def _last_runs(project: Project, pipeline: str) -> dict[str, StreamRun]:
    """What became of each stream when it last ran."""
    from chronolake.pipeline.store import Store

    if project.lake.catalog.uri is None and not project.lake.catalog_file.is_file():
        return {}
    store = Store.open(project.lake)
    found: dict[str, StreamRun] = {}
    for run in store.runs(pipeline=pipeline, limit=20):
        for stream in store.streams_of(run.id):
            found.setdefault(stream.stream, stream)
    return found


def _status_of(position: Position, last: StreamRun | None) -> dict[str, Any]:
    stream = position.stream
    waiting = stream.folder.files(after=position.watermark)
    return {
        "pipeline": stream.pipeline,
        "stream": stream.name,
        "table": str(stream.table),
        "mode": position.mode,
        "wanted_mode": stream.mode,
        "sees": position.sight or stream.offered.sight,
        "position": position.watermark,
        "files_waiting": len(waiting),
        "bytes_waiting": sum(file.size for file in waiting),
        "last_status": last.status if last else None,
        "error": last.error if last else None,
    }


@app.command(epilog="Example: chronolake runs crm --limit 5")
def runs(
    pipeline: Annotated[
        str | None, typer.Argument(metavar="[PIPELINE]", help="Only this pipeline's.")
    ] = None,
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show at most so many.")] = 20,
    project: ProjectOption = Path(),
    lake: ProjectLakeOption = None,
    json: JsonOption = False,
    settings: SettingOption = None,
) -> None:
    """List the newest runs, and what became of their streams."""
    from chronolake.cli.progress import stream_json
    from chronolake.pipeline.store import Store

    wanted = project_of(project, lake, settings)
    store = Store.open(wanted.lake)
    found = store.runs(pipeline=pipeline, limit=limit)
    if json:
        print_json(
            [
                {**vars(run), "streams": [stream_json(one) for one in store.streams_of(run.id)]}
                for run in found
            ]
        )
        return
    grid = _grid("began", "pipeline", "stream", "status", "files", "rows", "written", "seconds")
    for run in found:
        for one in store.streams_of(run.id):
            grid.add_row(
                run.began,
                run.pipeline,
                one.stream,
                one.status,
                *(f"{number:,}" for number in (one.files, one.rows, one.written)),
                f"{one.seconds:.1f}",
            )
    console().print(grid)


def _grid(*names: str) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        grid.add_column(name, justify="right" if name in {"files", "rows", "written"} else "left")
    return grid


@state.command("show", epilog="Example: chronolake state show crm")
def state_show(
    pipeline: PipelineArgument,
    *,
    project: ProjectOption = Path(),
    lake: ProjectLakeOption = None,
    settings: SettingOption = None,
) -> None:
    """Print how far each stream's table is, as JSON: the last file that was applied."""
    from chronolake.pipeline.state import positions
    from chronolake.pipeline.streams import streams_of

    wanted = project_of(project, lake, settings)
    found = positions(wanted.lake, streams_of(wanted, pipeline))
    print_json({position.stream.name: position.watermark for position in found})


@state.command("set", epilog="Example: chronolake state set crm Account batch=05/data-16.parquet")
def state_set(
    pipeline: PipelineArgument,
    stream: Annotated[str, typer.Argument(metavar="STREAM")],
    position: Annotated[
        str, typer.Argument(metavar="FILE", help="The last file that counts as applied.")
    ],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Move although files may be skipped.")] = False,
    project: ProjectOption = Path(),
    lake: ProjectLakeOption = None,
    settings: SettingOption = None,
) -> None:
    """Move a stream's table to another file: what is skipped is missing until a rebuild."""
    if not yes:
        raise typer.BadParameter(
            "what lies between would not be applied. Agree with --yes", param_hint="--yes"
        )
    _move(project_of(project, lake, settings), pipeline, [stream], position)


@state.command("reset", epilog="Example: chronolake state reset crm --stream Account")
def state_reset(
    pipeline: PipelineArgument,
    *,
    stream: StreamsOption = None,
    project: ProjectOption = Path(),
    lake: ProjectLakeOption = None,
    settings: SettingOption = None,
) -> None:
    """Forget how far tables are: the next sync applies every file again, which changes nothing."""
    _move(project_of(project, lake, settings), pipeline, stream or [], None)


def _move(project: Project, pipeline: str, names: list[str], watermark: str | None) -> None:
    from chronolake.pipeline.lease import leased
    from chronolake.pipeline.state import move
    from chronolake.pipeline.store import Store
    from chronolake.pipeline.streams import chosen, streams_of

    streams = chosen(streams_of(project, pipeline), pipeline, names)
    with opened(project) as there, leased(Store.open(project.lake), pipeline) as lease:
        for stream in streams:
            move(there, stream, lease, watermark)
            console().print(f"{stream.table} is at {watermark or 'the beginning'}")
