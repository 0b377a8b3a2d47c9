"""The commands init and schema, which start no JVM."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that `--help` is fast

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import orjson
import typer
from rich.text import Text

from chronolake.cli.app import (
    JsonOption,
    app,
    console,
    grid_of,
    open_lake,
    print_json,
    quiet_logs,
)
from chronolake.errors import ConfigurationError
from chronolake.storage import error_of

if TYPE_CHECKING:
    from chronolake.scaffold import ProposedFile, ProposedPipeline

_STANDARD_OUTPUT: Final = Path("-")
_SCHEMA_FILE: Final = "chronolake.schema.json"
_TEMPLATE: Final = """\
# yaml-language-server: $schema=./chronolake.schema.json
#
# ${NAME} is replaced by the environment variable NAME. Keep secrets there, not in this file.

lake:
  path: lake                # the lake's folder, relative to the folder of this file
  # catalog:                # default: a SQLite file in the lake's folder
  #   uri: postgresql://lake:${LAKE_PASSWORD}@db.internal/lake
  # spark:
  #   master: local[*]
  #   conf: {spark.driver.memory: 4g}

pipelines:
  # crm:                    # the pipeline's name, and the schema of its tables
  #   source:
  #     type: data_lake_v2
  #     path: ./crm-lake    # the folder that contains parquet/v2
  #     org: X              # X of org=X
  #     objects: [Account]  # default: all objects
  #   mode: auto            # auto (history if the source supports it, otherwise
  #                         # soft-delete), live, soft-delete or history
  #   streams:              # settings of single streams
  #     Account: {table: accounts, mode: soft-delete}
  # shop:
  #   source:
  #     type: postgres
  #     dsn: postgresql://lake:${SHOP_PASSWORD}@db.internal/shop
"""


@app.command(
    epilog="Example: chronolake init shop --from postgresql://app:secret@localhost/shop",
)
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The project's folder.")] = Path(),
    *,
    origin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="SOURCE",
            help="Propose pipelines for a source: postgresql://user:password@host/database, "
            "mysql://user:password@host/database, sqlserver://user:password@host/database, "
            "jdbc:…, a package (airbyte-source-faker, tap-csv), a connector's program or folder "
            "(./connector), a manifest (manifest.yaml), "
            "a folder of files (dumps/, s3://bucket/dumps/, sftp://user@host/dumps/), or a "
            "function (mymodule:orders).",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="The pipeline's name. Default: by the source."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--source-config",
            metavar="FILE",
            help="The configuration of a connector, as JSON or YAML. Its secrets become references "
            "to environment variables.",
            show_default=False,
        ),
    ] = None,
    driver_jar: Annotated[
        Path | None,
        typer.Option(
            "--driver-jar",
            metavar="FILE",
            help="The jar of a database's JDBC driver. Those of SQLite and PostgreSQL are "
            "included.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write another file than DIR/chronolake.yml, or `-` for standard output.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the file, and write nothing.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Create a project: a commented chronolake.yml, and its JSON schema for editors.

    With --from, the file contains pipelines for a source, and what each of its streams captures:
    the key, the cursor, how changes are captured, and whether deletes are. The source is read, but
    not changed. Passwords are not written: the file references environment variables.
    """
    from chronolake.config import FILE_NAME

    file = folder / FILE_NAME if output in {None, _STANDARD_OUTPUT} else Path(str(output))
    is_written = not dry_run and output != _STANDARD_OUTPUT
    if is_written and file.exists() and not force:
        raise ConfigurationError(
            f"{file} already exists.",
            hint="Edit it, choose another folder or --output, print the new one with --dry-run, or "
            "overwrite it with --force.",
        )
    proposed = None
    if origin is not None:
        if driver_jar is not None and not driver_jar.is_file():
            raise ConfigurationError(
                f"There is no file {driver_jar}.", hint="Set --driver-jar to the driver's jar."
            )
        proposed = _propose(origin, name, config, file, driver_jar, json=json)
    elif name is not None or config is not None or driver_jar is not None:
        raise typer.BadParameter(
            "--name, --source-config and --driver-jar need --from", param_hint="--from"
        )
    text = _TEMPLATE if proposed is None else proposed.text
    if is_written:
        _write(file, text)
    if json:
        print_json(
            {
                "file": str(file) if is_written else None,
                "pipelines": [] if proposed is None else [*map(_pipeline_json, proposed.pipelines)],
                "variables": [] if proposed is None else _variables_json(proposed),
                "text": text,
            }
        )
    elif not is_written:
        typer.echo(text, nl=False)
    elif proposed is None:
        console().print(
            f"Created {file} and {_SCHEMA_FILE}. Add a pipeline to it, then run `chronolake check`."
        )
    else:
        _print_proposed(proposed, file)


@app.command(epilog="Example: chronolake schema > chronolake.schema.json")
def schema() -> None:
    """Print the JSON schema of chronolake.yml, for editors."""
    typer.echo(_schema().decode(), nl=False)


def _schema() -> bytes:
    from chronolake.config import FileConfig

    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(FileConfig.model_json_schema(), option=options)


def _propose(
    origin: str,
    name: str | None,
    config: Path | None,
    file: Path,
    driver_jar: Path | None,
    *,
    json: bool,
) -> ProposedFile:
    from chronolake.scaffold import Request, propose

    quiet_logs()

    def report(message: str) -> None:
        if not json:
            console(stderr=True).print(Text(message, style="dim"), soft_wrap=True)

    given = None if config is None else _read_config(config)
    opening = partial(open_lake, json=json)
    request = Request(origin, file.parent.resolve(), name, given, report, opening, driver_jar)
    return propose(request, file)


def _read_config(file: Path) -> dict[str, Any]:
    """Return the configuration of a connector.

    Raises:
        ConfigurationError: the file cannot be read, or is not an object.
    """
    import yaml

    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as failure:
        reason = getattr(failure, "strerror", None) or "it is not UTF-8 text"
        raise ConfigurationError(
            f"{file} cannot be read: {reason}.", hint="Check the path in --source-config."
        ) from failure
    except (yaml.YAMLError, ValueError):
        # Not chained: the parser's message quotes the line, which may contain a password.
        raise ConfigurationError(
            f"{file} is neither valid JSON nor valid YAML.", hint="Correct it."
        ) from None
    if not isinstance(found, dict):
        raise ConfigurationError(
            f"{file} does not contain an object.",
            hint="Write the keys of the connector's configuration with their values.",
        )
    return found


def _write(file: Path, text: str) -> None:
    """Write the file, and the schema beside it."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        (file.parent / _SCHEMA_FILE).write_bytes(_schema())
    except OSError as failure:
        raise error_of(failure, file.parent) from failure


def _pipeline_json(pipeline: ProposedPipeline) -> dict[str, Any]:
    from chronolake.scaffold.document import values_of

    streams = pipeline.streams
    return {
        "pipeline": pipeline.name,
        "type": values_of(pipeline.source)["type"],
        "streams": None if streams is None else [vars(stream) for stream in streams],
        "excluded": dict(pipeline.excluded),
        "notes": list(pipeline.notes),
        "steps": list(pipeline.steps),
    }


def _variables_json(proposed: ProposedFile) -> list[dict[str, Any]]:
    return [
        {"name": known.name, "purpose": known.purpose, "is_set": known.name in os.environ}
        for known in proposed.variables
    ]


def _print_proposed(proposed: ProposedFile, file: Path) -> None:
    from chronolake.scaffold import key_words

    screen = console()
    screen.print(f"Created {file} and {_SCHEMA_FILE}.", soft_wrap=True)
    grid = grid_of("pipeline", "stream", "key", "cursor", "captures", "deletes", title="stream")
    for pipeline in proposed.pipelines:
        for stream in pipeline.streams or ():
            key, cursor = key_words(stream), stream.cursor or ""
            grid.add_row(
                *(pipeline.name, stream.name, key, cursor, stream.capture_method, stream.deletes)
            )
    if any(pipeline.streams for pipeline in proposed.pipelines):
        screen.print(grid)
    for pipeline in proposed.pipelines:
        for left_out, reason in pipeline.excluded.items():
            text = Text.assemble((left_out, "bold"), (f"  excluded: {reason}", "yellow"))
            screen.print(text, soft_wrap=True)
        for note in pipeline.notes:
            screen.print(Text.assemble((pipeline.name, "bold"), f"  {note}"), soft_wrap=True)
    unset = [known for known in proposed.variables if known.name not in os.environ]
    for known in unset:
        screen.print(Text(f"Set the environment variable {known.name}: {known.purpose}."))
    for pipeline in proposed.pipelines:
        for step in pipeline.steps:
            screen.print(Text(step), soft_wrap=True)
    screen.print("Then run `chronolake check`." if unset else "Next: `chronolake check`.")
