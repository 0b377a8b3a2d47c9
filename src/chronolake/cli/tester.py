"""The command `test-destination`; `drive` is its former name."""

# Typer reads annotations at run time, so the types in them are imported at run time.
# ruff: noqa: TC003, PLC0415 - each command imports what it needs, so that `--help` is fast

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from chronolake.cli.app import JsonOption, app, fail


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
        list[Path],
        typer.Argument(
            metavar="SCENARIO.json|DIR...",
            help="Scenarios in the format of the Partner SDK's tester; a folder stands for its "
            ".json files.",
            show_default=False,
        ),
    ],
    *,
    target: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The destination.", show_default=False)
    ],
    configuration: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What a customer filled in: one JSON object of texts.",
            show_default="empty",
        ),
    ] = None,
    schema_name: Annotated[str, typer.Option(help="The schema to make tables in.")] = "tester",
    schema_per_file: Annotated[
        bool, typer.Option("--schema-per-file", help="Give each scenario a schema of its own.")
    ] = False,
    tester_version: Annotated[
        TestedVersion, typer.Option(help="Whose rule about _fivetran_deleted to follow.")
    ] = TestedVersion.V2_26,
    mode: Annotated[
        WriteMode, typer.Option(help="Send a file's rows at once, or before every truncate.")
    ] = WriteMode.MERGED,
    format: Annotated[  # noqa: A002 - it is the flag's name
        FileFormat | None,
        typer.Option(help="What batch files hold.", show_default="what Capabilities answers"),
    ] = None,
    compression: Annotated[Compression, typer.Option(help="Of batch files.")] = Compression.ZSTD,
    encryption: Annotated[Encryption, typer.Option(help="Of batch files.")] = Encryption.AES,
    plain_text: Annotated[
        bool, typer.Option("--plain-text", help="Neither compress nor encrypt.")
    ] = False,
    split: Annotated[int, typer.Option(min=1, help="Files per kind and table.")] = 1,
    delete_columns: Annotated[
        DeleteColumns, typer.Option(help="minimal: delete files hold the key and the end only.")
    ] = DeleteColumns.ALL,
    replay: Annotated[bool, typer.Option("--replay", help="Send every write twice.")] = False,
    strict_migrations: Annotated[
        bool, typer.Option("--strict-migrations", help="Count unsupported migrations as failures.")
    ] = False,
    accept_type: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TYPE=TYPE",
            help="Let the first be described as the second, such as JSON=STRING; repeatable.",
            show_default=False,
        ),
    ] = None,
    shuffle_seed: Annotated[
        int | None,
        typer.Option(help="Decides about the order of columns.", show_default="a new one"),
    ] = None,
    work_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where batch files go; the destination must be able to read it.",
            show_default="a temporary folder",
        ),
    ] = None,
    keep_files: Annotated[
        bool, typer.Option("--keep-files", help="Leave the batch files there.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds for one call.")] = 300.0,
    connect_timeout: Annotated[
        float,
        typer.Option(min=0.001, help="Seconds to wait for a destination that is still starting."),
    ] = 120.0,
    tls: Annotated[bool, typer.Option("--tls", help="Speak TLS.")] = False,
    ca_cert: Annotated[
        Path | None,
        typer.Option(
            metavar="PEM", help="Trust these authorities; implies --tls.", show_default=False
        ),
    ] = None,
    dump_model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the expected tables as JSON.", show_default=False),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Test any Partner SDK v2 destination: run scenarios against it and check its responses.

    The exit code is 0 if every check passes, 1 if one fails, 2 if a scenario or an option is
    invalid.
    """
    from chronolake.errors import ConfigurationError
    from chronolake.tester import DriveOptions, definition, files, run
    from chronolake.tester import options as words

    try:
        options = DriveOptions(
            target=target,
            configuration=words.read_configuration(configuration) if configuration else {},
            schema=schema_name,
            schema_per_file=schema_per_file,
            tester_version=definition.VendorVersion(tester_version.value),
            mode=words.FlushMode(mode.value),
            format=files.FileFormat(format.value) if format else None,
            compression=files.Compression("none" if plain_text else compression.value),
            encrypted=encryption is Encryption.AES and not plain_text,
            split=split,
            minimal_deletes=delete_columns is DeleteColumns.MINIMAL,
            replay=replay,
            strict_migrations=strict_migrations,
            accepted_types=dict(words.accepted_type(text) for text in accept_type or ()),
            shuffle_seed=shuffle_seed,
            work_dir=work_dir,
            keep_files=keep_files,
            timeout=timeout,
            connect_timeout=connect_timeout,
            tls=tls,
            ca_certificate=ca_cert,
            dump_model=dump_model,
            json_lines=json,
        )
    except ConfigurationError as failure:
        raise typer.BadParameter(str(failure)) from failure
    fail(run(scenarios, options))
