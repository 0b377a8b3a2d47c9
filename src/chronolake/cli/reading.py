"""The command for those who write manifests: records of a stream, and how they are got."""

# ruff: noqa: PLC0415 - what a command needs is imported by that command: `--help` is instant
# ruff: noqa: TC003 - Typer reads annotations at run time

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.text import Text

from chronolake.cli.app import (
    JsonOption,
    LakeOption,
    ProjectOption,
    SettingOption,
    app,
    console,
    fail,
    print_json,
    show_error,
)
from chronolake.cli.piping import PipelineArgument, project_of
from chronolake.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chronolake.source.declarative.trying import Sample

#: A longer value is cut in the terminal.
_WIDEST = 200


@app.command(epilog="Example: chronolake read shop orders --limit 5")
def read(
    pipeline: PipelineArgument,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream in the source.")],
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show at most so many.")] = 20,
    from_state: Annotated[
        Path | None,
        typer.Option("--state", metavar="FILE", help="Begin at a state, as a JSON file has it."),
    ] = None,
    project: ProjectOption = None,
    lake: LakeOption = None,
    json: JsonOption = False,
    settings: SettingOption = None,
) -> None:
    """Read records of an API's stream, and show them with the requests that were made.

    Nothing is kept but tokens that change with each use, and no pipeline's state moves. Exit code 1
    if not even one could be read.
    """
    from chronolake.config import DeclarativeSource
    from chronolake.pipeline.memory import StoredMemory
    from chronolake.pipeline.streams import pipeline_of
    from chronolake.source.declarative.manifests.manifest import find, load
    from chronolake.source.declarative.trying import sample

    wanted = project_of(project, lake, settings)
    source = pipeline_of(wanted, pipeline).source
    if not isinstance(source, DeclarativeSource):
        raise ConfigurationError(
            f"{wanted.file}: pipelines.{pipeline} has no manifest.",
            hint="`chronolake read` is for sources of the type declarative.",
        )
    manifest = load(
        find(source.manifest, beside=wanted.file.parent), allow_components=source.allow_components
    )
    state = None if from_state is None else _state_in(from_state)
    memory = StoredMemory(wanted.lake, pipeline)
    found = sample(manifest, source, stream, limit=limit, state=state, memory=memory)
    if json:
        print_json(_as_json(found))
    else:
        _show(found)
    if found.failure is not None:
        show_error(found.failure, json=json)
        if not found.records:
            fail()


def _state_in(file: Path) -> Mapping[str, Any]:
    try:
        state: Mapping[str, Any] = orjson.loads(file.read_bytes())
    except (OSError, ValueError) as failure:
        raise ConfigurationError(
            f"{file} holds no state that can be read.",
            hint="It is JSON: what `chronolake state show` calls `state`, or another reader wrote.",
        ) from failure
    return state


def _as_json(found: Sample) -> dict[str, Any]:
    return {
        "records": found.records,
        "requests": [vars(one) for one in found.exchanges],
        "state": found.state,
        "failure": None if found.failure is None else str(found.failure),
    }


def _show(found: Sample) -> None:
    for number, record in enumerate(found.records, 1):
        console().print(Text(f"record {number}", style="bold"))
        width = max(map(len, record), default=0)
        for name, value in record.items():
            text = value if isinstance(value, str) else orjson.dumps(value).decode()
            cut = f"{text[:_WIDEST]}…" if len(text) > _WIDEST else text
            console().print(Text(f"  {name.ljust(width)}  {cut}"), soft_wrap=True)
    if not found.records:
        console().print("no records")
    console().print(Text("requests", style="bold"))
    for one in found.exchanges:
        again = f", attempt {one.attempt}" if one.attempt > 1 else ""
        told = f"  {one.failure or one.status}  {one.seconds:.2f} s{again}  {one.method} {one.url}"
        # An address is copied from here: no line may be broken.
        console().print(Text(told), soft_wrap=True)
