"""The commands serve (gRPC destination) and ui (web UI)."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that `--help` is fast
from __future__ import annotations

import os
import sys
import threading
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from chronolake.cli.app import (
    ConfigOption,
    JsonOption,
    LakeOption,
    ProjectOption,
    SettingOption,
    app,
    configuration,
    console,
    fail,
    print_json,
)
from chronolake.extras import require

if TYPE_CHECKING:
    from collections.abc import Callable

    from chronolake.config import LakeConfig, Project
    from chronolake.lake import Lake
    from chronolake.ui import Address


class BatchFormat(StrEnum):
    """The format of batch files."""

    CSV = "csv"
    PARQUET = "parquet"


@app.command(epilog="Example: chronolake serve --port 50052")
def serve(
    *,
    project: ProjectOption = None,
    lake: LakeOption = None,
    port: Annotated[
        int, typer.Option(help="TCP port to listen on; 0 selects a free port.")
    ] = 50052,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address to listen on. Repeatable.",
            show_default="127.0.0.1 and ::1",
        ),
    ] = None,
    allow_plaintext: Annotated[
        bool,
        typer.Option("--allow-plaintext", help="Allow listening outside loopback without TLS."),
    ] = False,
    files_root: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Reject batch files outside this folder.", show_default="none"
        ),
    ] = None,
    batch_format: Annotated[
        BatchFormat, typer.Option(help="Format of the batch files to request.")
    ] = BatchFormat.CSV,
    tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="PEM", help="The server's certificate chain.", show_default=False),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(
            metavar="PEM", help="The private key of the server's certificate.", show_default=False
        ),
    ] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="PEM",
            help="Accept only clients with a certificate of these authorities.",
            show_default=False,
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(help="Serve Prometheus metrics on this port.", show_default="off"),
    ] = None,
    max_workers: Annotated[int, typer.Option(help="Maximum number of concurrent calls.")] = 8,
    grace: Annotated[
        float, typer.Option(help="Seconds that running calls have to finish when the server stops.")
    ] = 30.0,
    config: ConfigOption = None,
    settings: SettingOption = None,
) -> None:
    """Run the gRPC destination (Partner SDK v2) until SIGTERM; log JSON lines to stdout."""
    require("serve", "The command `serve`")
    from chronolake import server
    from chronolake.errors import ConfigurationError

    try:
        options = server.ServeOptions(
            port=port,
            hosts=tuple(host) if host else server.LOOPBACK,
            allow_plaintext=allow_plaintext,
            files_root=files_root,
            batch_format=batch_format.value,
            tls_cert=tls_cert,
            tls_key=tls_key,
            tls_client_ca=tls_client_ca,
            metrics_port=metrics_port,
            max_workers=max_workers,
            grace=grace,
        )
    except ConfigurationError as failure:
        raise typer.BadParameter(str(failure)) from failure
    wanted = configuration(project, lake, config, settings)
    fail(server.serve(wanted, options, beside=_publications(wanted, project, lake, config)))


def _publications(
    wanted: LakeConfig, project: Path | None, lake: Path | None, config: Path | None
) -> list[Callable[[Lake, threading.Event], None]]:
    """Return a function for each target of the project, which publishes tables that change."""
    from dataclasses import replace
    from functools import partial

    from chronolake.cli.pipelines import project_of_lake
    from chronolake.config import FILE_NAME, WatchedProject, find_project, has_targets

    file = config
    if file is None and lake is not None:
        file = lake / FILE_NAME if (lake / FILE_NAME).is_file() else None
    elif file is None:
        file = find_project(project)
    if file is None or not has_targets(file):
        return []

    def read() -> Project:
        # Settings of this command apply to its lake, too.
        return replace(project_of_lake(wanted, project, lake, file), lake=wanted)

    watched = WatchedProject(read(), read)

    def publish(name: str, opened: Lake, ends: threading.Event) -> None:
        from chronolake.target.runner import publish_on_schedule

        publish_on_schedule(opened, watched.current, name, ends)

    return [partial(publish, name) for name in watched.current().targets]


_PATIENCE_SECONDS: Final = 1.5


@app.command(epilog="Example: chronolake ui --port 8787")
def ui(
    *,
    project: ProjectOption = None,
    lake: LakeOption = None,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Address to listen on. Outside loopback, requests need the one-time token "
            "printed at start.",
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="TCP port to listen on; 0 selects a free port.")] = 8787,
    browser: Annotated[
        bool | None,
        typer.Option(
            "--open/--no-browser",
            help="Open the web UI in a browser.",
            show_default="in a terminal",
        ),
    ] = None,
    json: JsonOption = False,
    config: ConfigOption = None,
    settings: SettingOption = None,
) -> None:
    """Show the lake in a browser, read-only, until Ctrl-C: tables, timelines, runs."""
    require("ui", "The command `ui`")
    from chronolake import ui as served
    from chronolake.config import find_project
    from chronolake.errors import ConfigurationError

    # Pipelines are read from a project's file; with --lake, only from `--config`.
    file = config or (find_project(project) if lake is None else None)
    if lake is None and file is None:
        raise ConfigurationError(
            f"There is no chronolake.yml in {Path.cwd()} or a folder above it.",
            hint="Set the folder of a lake with --lake, or of a project with --project.",
        )
    wanted = configuration(project, lake, file, settings)
    is_terminal = sys.stdout.isatty() and not json
    options = served.UiOptions(host, port, browser=is_terminal if browser is None else browser)
    served.serve(wanted, options, lambda address: _print_address(address, json=json), project=file)
    _exit_soon()


def _exit_soon() -> None:
    """End the process soon: this command writes nothing, so readers need not be waited for."""
    watch = threading.Timer(_PATIENCE_SECONDS, os._exit, [0])
    watch.daemon = True
    watch.start()


def _print_address(address: Address, *, json: bool) -> None:
    if json:
        content = {"url": address.url, "host": address.host, "port": address.port}
        print_json(content | {"token": address.token}, pretty=False)
    else:
        console().print(Text(f"The web UI is at {address.url}"), soft_wrap=True)
        if address.token:
            console().print(
                "The link is printed only once. Anyone who has it can read the whole lake."
            )
        console().print("Press Ctrl-C to stop.", style="dim")
    sys.stdout.flush()
