"""The command `serve`."""

# Typer reads annotations at run time, so the types in them are imported for good.
# ruff: noqa: TC003, PLC0415 - and what the command needs is imported by it: `--help` is instant

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from chronolake.cli.app import (
    ConfigOption,
    LakeOption,
    ProjectOption,
    SettingOption,
    app,
    configuration,
    fail,
)


class BatchFormat(StrEnum):
    """What batch files are written in."""

    CSV = "csv"
    PARQUET = "parquet"


@app.command(epilog="Example: chronolake serve --port 50052")
def serve(
    *,
    project: ProjectOption = None,
    lake: LakeOption = None,
    port: Annotated[int, typer.Option(help="TCP port; 0 takes any free one.")] = 50052,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="Listen here; repeatable.",
            show_default="127.0.0.1 and ::1",
        ),
    ] = None,
    allow_plaintext: Annotated[
        bool,
        typer.Option("--allow-plaintext", help="Listen beyond loopback although there is no TLS."),
    ] = False,
    files_root: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Refuse batch files outside this folder.", show_default="none"
        ),
    ] = None,
    batch_format: Annotated[
        BatchFormat, typer.Option(help="The batch files to ask for.")
    ] = BatchFormat.CSV,
    tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="PEM", help="The server's certificate chain.", show_default=False),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="PEM", help="Its private key.", show_default=False)
    ] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="PEM",
            help="Take only clients with a certificate of these authorities.",
            show_default=False,
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(help="Serve Prometheus metrics on this port.", show_default="off"),
    ] = None,
    max_workers: Annotated[int, typer.Option(help="Calls worked on at once.")] = 8,
    grace: Annotated[
        float, typer.Option(help="Seconds that running batches have when told to stop.")
    ] = 30.0,
    config: ConfigOption = None,
    settings: SettingOption = None,
) -> None:
    """Run the gRPC destination (Partner SDK v2) until SIGTERM; the log is JSON lines on stdout."""
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
    fail(server.serve(configuration(project, lake, config, settings), options))
