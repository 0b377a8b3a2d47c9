"""The commands engine status and engine stop, and the engine's own process."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that `--help` is fast
from __future__ import annotations

from pathlib import Path  # noqa: TC003 - Typer reads it at run time
from typing import TYPE_CHECKING, Any, Final

import typer

from chronolake.cli.app import (
    JsonOption,
    LakeOption,
    ProjectOption,
    app,
    configuration,
    console,
    fail,
    main,
    print_json,
)
from chronolake.engine import client
from chronolake.location import project_file

if TYPE_CHECKING:
    from chronolake.config import LakeConfig

engine = typer.Typer(
    help="Show or stop the process that keeps Spark running between commands.",
    epilog="Example: chronolake engine status",
    no_args_is_help=True,
)
app.add_typer(engine, name="engine")

_MEBIBYTE: Final = 2**20


@engine.command(epilog="Example: chronolake engine status. Exit code 1: no engine is running.")
def status(
    *, project: ProjectOption = None, lake: LakeOption = None, json: JsonOption = False
) -> None:
    """Show whether an engine of the lake is running, and what it does."""
    state = _control(project, lake, "status")
    if json:
        print_json({"running": state is not None, **(state or {})})
    elif state is None:
        console().print("No engine is running.")
    else:
        console().print(_describe(state))
    if state is None:
        fail()


@engine.command(epilog="Example: chronolake engine stop")
def stop(
    *, project: ProjectOption = None, lake: LakeOption = None, json: JsonOption = False
) -> None:
    """Stop the engine of the lake as soon as its running commands have ended."""
    state = _control(project, lake, "stop")
    if json:
        print_json({"stopped": state is not None, **(state or {})})
    elif state is None:
        console().print("No engine is running.")
    else:
        running = state["commands"]
        ended = "running command has" if running == 1 else f"{running} running commands have"
        after = f" when its {ended} ended" if running else ""
        console().print(f"The engine (process {state['pid']}) stops{after}.")


@engine.command(hidden=True)
def run(*, project: ProjectOption = None, lake: LakeOption = None) -> None:
    """Run an engine in this process until it was idle for `engine.idle`."""
    from chronolake.class_training import warm_up
    from chronolake.config import (
        FILE_NAME,
        EngineConfig,
        WatchedFile,
        engine_of_project,
        find_project,
    )
    from chronolake.engine.server import Engine

    file = None if lake is not None else find_project(project)
    settings = EngineConfig() if file is None else engine_of_project(file)
    if not settings.idle_seconds:
        return

    def read() -> LakeConfig:
        return configuration(file, lake, None, None)

    config = read()
    watched = WatchedFile(file or config.path / FILE_NAME, config, read)
    runs = Engine(
        config.path,
        None if file is None else project_file(file),
        watched.current,
        main,
        settings.idle_seconds,
        warm_up,
    )
    if not runs.run():
        fail()


def _control(project: Path | None, lake: Path | None, word: str) -> dict[str, Any] | None:
    """Send a control message to the engine of a lake; return its state, or None without one."""
    from chronolake.config import find_project

    file = find_project(project) if lake is None else None
    # It is found even if the file is invalid now.
    state = None if file is None else client.control(project_file(file), word)
    if state is not None:
        return state
    return client.control(configuration(project, lake, None, None).path, word)


def _describe(state: dict[str, Any]) -> str:
    running = state["commands"]
    runs = f"runs {running} command{'' if running == 1 else 's'}"
    what = runs if running else f"idle for {state['idle_seconds']:.0f} s"
    java = "It has no Java now."
    if state["java_pid"] is not None:
        memory = f"{state['memory_bytes'] / _MEBIBYTE:,.0f} MiB"
        java = f"Its Java (process {state['java_pid']}) occupies {memory}."
    return f"The engine is process {state['pid']}, {what}. {java}"
