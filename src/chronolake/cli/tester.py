"""The command `test-destination`; `drive` is its former name."""

# Typer reads annotations at run time, so the types in them are imported at run time.
# ruff: noqa: TC003, PLC0415 - each command imports what it needs, so that `--help` is fast

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from chronolake.cli.app import JsonOption, app, fail
from chronolake.extras import require


class TestedVersion(StrEnum):
    """The versions of the vendor's tester that can be emulated."""

    V2_25 = "2.25"
    V2_26 = "2.26"


class WriteMode(StrEnum):
    """When rows are sent."""

    MERGED = "merged"
    SEQUENTIAL = "sequential"


class FileFormat(StrEnum):
    """The format of batch files."""

    CSV = "csv"
    PARQUET = "parquet"


class Compression(StrEnum):
    """The compression of batch files."""

    ZSTD = "zstd"
    GZIP = "gzip"
    NONE = "none"


class Encryption(StrEnum):
    """The encryption of batch files."""

    AES = "aes"
    NONE = "none"


class DeleteColumns(StrEnum):
    """The columns of delete files."""

    ALL = "all"
    MINIMAL = "minimal"


_EXAMPLE: Final = "Example: chronolake {} examples/ --target localhost:50052"


@app.command("drive", epilog=_EXAMPLE.format("drive"), hidden=True)
@app.command("test-destination", epilog=_EXAMPLE.format("test-destination"))
def run_tester(
    scenarios: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="SCENARIO.json|DIR",
            help="Scenarios in the format of the Partner SDK's tester. A folder means all its "
            ".json files.",
            show_default=False,
        ),
    ] = None,
    *,
    target: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Address of the destination to test.", show_default=False
        ),
    ],
    configuration: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The connection's configuration: a JSON object of strings.",
            show_default="empty",
        ),
    ] = None,
    connector: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|all",
            help="Run the scenarios that look like what a connector sends: postgresql, mongodb, "
            "github, hubspot, google_sheets, s3, google_drive or platform. Repeatable.",
            show_default=False,
        ),
    ] = None,
    log_rows: Annotated[
        int,
        typer.Option(min=0, help="Rows of each of two large batches of the platform connector."),
    ] = 10_000,
    schema_name: Annotated[
        str, typer.Option(help="Schema in which tables are created.")
    ] = "tester",
    schema_per_file: Annotated[
        bool, typer.Option("--schema-per-file", help="Use a separate schema for each scenario.")
    ] = False,
    tester_version: Annotated[
        TestedVersion,
        typer.Option(help="Which tester version's `_fivetran_deleted` rule to apply."),
    ] = TestedVersion.V2_26,
    mode: Annotated[
        WriteMode,
        typer.Option(
            help="merged: send all rows of a scenario, then its truncates; sequential: send the "
            "collected rows before each truncate."
        ),
    ] = WriteMode.MERGED,
    format: Annotated[  # noqa: A002 - it is the flag's name
        FileFormat | None,
        typer.Option(help="Format of batch files.", show_default="the response to Capabilities"),
    ] = None,
    compression: Annotated[
        Compression, typer.Option(help="Compression of batch files.")
    ] = Compression.ZSTD,
    encryption: Annotated[
        Encryption, typer.Option(help="Encryption of batch files.")
    ] = Encryption.AES,
    plain_text: Annotated[
        bool, typer.Option("--plain-text", help="Neither compress nor encrypt batch files.")
    ] = False,
    split: Annotated[
        int, typer.Option(min=1, help="Number of files for each kind of rows and table.")
    ] = 1,
    delete_columns: Annotated[
        DeleteColumns,
        typer.Option(
            help="minimal: delete files contain only the key and, with history, `_fivetran_end`."
        ),
    ] = DeleteColumns.ALL,
    replay: Annotated[bool, typer.Option("--replay", help="Send every write twice.")] = False,
    strict_migrations: Annotated[
        bool, typer.Option("--strict-migrations", help="Count unsupported migrations as failures.")
    ] = False,
    accept_type: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TYPE=TYPE",
            help="Accept that DescribeTable returns the second type for a column of the first, "
            "such as JSON=STRING. Repeatable.",
            show_default=False,
        ),
    ] = None,
    shuffle_seed: Annotated[
        int | None,
        typer.Option(help="Seed of the random order of columns.", show_default="random"),
    ] = None,
    work_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for batch files. The destination must be able to read it.",
            show_default="a temporary folder",
        ),
    ] = None,
    keep_files: Annotated[
        bool, typer.Option("--keep-files", help="Keep the batch files after the run.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0.001, help="Timeout of one call in seconds.")
    ] = 300.0,
    connect_timeout: Annotated[
        float,
        typer.Option(min=0.001, help="Seconds to wait for the destination to become reachable."),
    ] = 120.0,
    tls: Annotated[bool, typer.Option("--tls", help="Connect with TLS.")] = False,
    ca_cert: Annotated[
        Path | None,
        typer.Option(
            metavar="PEM",
            help="Certificate authorities to trust. Implies --tls.",
            show_default=False,
        ),
    ] = None,
    dump_model: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the expected tables to this file as JSON.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Test any Partner SDK v2 destination: run scenarios against it and check its responses.

    The exit code is 0 if every check passes, 1 if one fails, 2 if a scenario or an option is
    invalid.
    """
    require("serve", "The command `test-destination`")
    from chronolake.errors import ConfigurationError
    from chronolake.tester import RunOptions, definition, files, run
    from chronolake.tester import options as tester_options

    try:
        options = RunOptions(
            target=target,
            configuration=tester_options.read_configuration(configuration) if configuration else {},
            schema=schema_name,
            schema_per_file=schema_per_file,
            tester_version=definition.VendorVersion(tester_version.value),
            mode=tester_options.FlushMode(mode.value),
            format=files.FileFormat(format.value) if format else None,
            compression=files.Compression("none" if plain_text else compression.value),
            encrypted=encryption is Encryption.AES and not plain_text,
            split=split,
            minimal_deletes=delete_columns is DeleteColumns.MINIMAL,
            replay=replay,
            strict_migrations=strict_migrations,
            accepted_types=dict(
                tester_options.parse_accepted_type(text) for text in accept_type or ()
            ),
            shuffle_seed=shuffle_seed,
            work_dir=work_dir,
            keep_files=keep_files,
            timeout=timeout,
            connect_timeout=connect_timeout,
            tls=tls,
            ca_certificate=ca_cert,
            dump_model=dump_model,
            json_lines=json,
            connectors=tuple(connector or ()),
            log_rows=log_rows,
        )
    except ConfigurationError as failure:
        raise typer.BadParameter(str(failure)) from failure
    fail(run(scenarios or (), options))
