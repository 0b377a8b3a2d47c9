"""The program: its common options, its output, and its exit codes.

Exit codes: 0 success, 1 failure or a violated invariant, 2 wrong usage, 3 partial success (`sync`),
130 interrupted.
"""

# Typer reads annotations at run time, so the types in them are imported at run time.
# ruff: noqa: TC003

from __future__ import annotations

import difflib
import gc
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeAlias, cast

import orjson
import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from chronolake import env, exact_json
from chronolake.engine.client import BYPASS
from chronolake.errors import (
    ChronolakeError,
    ConfigurationError,
    LakeError,
    SchemaError,
    StorageError,
)
from chronolake.grid import Grid
from chronolake.storage import storage_error
from chronolake.types import TableName

if TYPE_CHECKING:
    import logging

    from chronolake.config import LakeConfig
    from chronolake.lake import Lake

_DEBUG: Final = "--debug"
#: New objects from which Python's garbage collector runs. With its default of 700, it runs while
#: packages are imported, which takes a tenth of a sync without changes.
_NEW_OBJECTS: Final = 100_000
_LAKE: Final = "--lake"
_INTERRUPTED: Final = 130
#: Whether the running command has `--json`: then programs read standard error, too.
_json_output: ContextVar[bool] = ContextVar("json", default=False)
#: The base class of all usage errors; Typer exports only one of its subclasses.
_UsageError: Final = cast("type[typer.BadParameter]", typer.BadParameter.__base__)

#: The commands as `--help` shows them: by purpose, in the order of first use.
PANELS: Final[dict[str, tuple[str, ...]]] = {
    "Set up a project": ("init", "check", "discover", "read", "schema"),
    "Run pipelines": (
        "sync",
        "publish",
        "status",
        "runs",
        "resync",
        "backfill",
        "rebuild",
        "import-history",
        "state",
    ),
    "Read tables": ("tables", "history", "query", "diff", "ui", "usage"),
    "Change and maintain tables": ("verify", "maintain", "mode", "view", "adopt"),
    "Run and test a destination": ("serve", "test-destination"),
    "Run in the background": ("up", "engine"),
    "About": ("version",),
}


class Group(TyperGroup):
    """Commands whose help is wrapped at the terminal's width, not where their docstrings are."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or None if it does not exist."""
        command = super().get_command(ctx, cmd_name)
        if command is not None and command.help:
            paragraphs = command.help.split("\n\n")
            command.help = "\n\n".join(" ".join(text.split()) for text in paragraphs)
        return command


class _Panels(Group):
    """The program's commands in the order and the panels of `PANELS`; former names are last."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - Click's signature
        order = [name for names in PANELS.values() for name in names]
        panels = {name: panel for panel, names in PANELS.items() for name in names}
        for name, command in self.commands.items():
            command.rich_help_panel = panels.get(name)  # type: ignore[attr-defined]
        return sorted(self.commands, key=[*order, *(self.commands.keys() - order)].index)


app = typer.Typer(
    name="chronolake",
    cls=_Panels,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

ProjectOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--project",
        envvar=env.PROJECT,
        metavar="DIR",
        help="The folder of chronolake.yml, or the file itself. Default: the working folder, "
        "or the nearest folder above it that contains one.",
        show_default=False,
    ),
]
LakeOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        _LAKE,
        envvar=env.LAKE,
        metavar="DIR",
        help="The lake's folder. Default: the lake that chronolake.yml names.",
        show_default=False,
    ),
]
ConfigOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The configuration file. Default: the project's chronolake.yml, or with --lake "
        "the file in the lake's folder or the working folder.",
        show_default=False,
    ),
]
SettingOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a setting of the configuration, such as spark.master=local. Repeatable.",
        show_default=False,
    ),
]
NoEngineOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        BYPASS, help="Start Spark in this process, even if an engine of the lake is running."
    ),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
DebugOption: TypeAlias = Annotated[
    bool, typer.Option(_DEBUG, help="Print the complete traceback of an error.")
]
_TABLE_HELP: Final = (
    "The table, as schema.table. Put a part that contains a dot in backticks, and the whole "
    "name in single quotes for the shell."
)
TableArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="TABLE", help=_TABLE_HELP, show_default=False)
]
OptionalTableArgument: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="TABLE", help=_TABLE_HELP, show_default=False)
]


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - Typer's signature
    if wanted:
        typer.echo(f"chronolake {installed_version('chronolake')}")
        raise typer.Exit


@app.callback()
def program(
    *,
    debug: DebugOption = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Replicate data into an Apache Iceberg lakehouse and keep every version of every record."""


@app.command(epilog="Example: chronolake version")
def version(*, json: JsonOption = False) -> None:
    """Print the versions of Chronolake and of the packages that it runs on."""
    packages = ("chronolake", "pyspark", "pyiceberg", "pyarrow")
    versions = {package: installed_version(package) for package in packages}
    versions["python"] = ".".join(str(part) for part in sys.version_info[:3])
    if json:
        print_json(versions)
        return
    for package, number in versions.items():
        console().print(Text(f"{package:<11} {number}"))


def configuration(
    project: Path | None,
    lake: Path | None,
    config: Path | None,
    settings: Sequence[str] | None,
    *,
    notes_strays: bool = True,
) -> LakeConfig:
    """Return the configuration of the lake from the common options.

    Args:
        project: `--project`.
        lake: `--lake`; it overrides the lake of a project's file.
        config: `--config`.
        settings: `--set`, each KEY=VALUE.
        notes_strays: whether a note is printed if tables are outside the lake.

    Raises:
        ConfigurationError: the file is invalid, or does not exist in `--project` or `--config`.
        BadParameter: a setting is not KEY=VALUE, or neither a lake nor a project was found.
    """
    # `--help` and `version` do not need them.
    from chronolake.config import find_project, lake_of_project, load  # noqa: PLC0415

    overrides = dict(parse_pairs(settings or (), "--set"))
    if lake is not None:
        return _prepared(load(lake, file=config, overrides=overrides), notes_strays=notes_strays)
    file = config or find_project(project)
    if file is None:
        raise typer.BadParameter(
            f"there is no chronolake.yml in {Path.cwd()} or a folder above it. Set the folder of a "
            "lake with --lake, or of a project with --project",
            param_hint=_LAKE,
        )
    return _prepared(lake_of_project(file, overrides=overrides), notes_strays=notes_strays)


def _prepared(config: LakeConfig, *, notes_strays: bool) -> LakeConfig:
    from chronolake import permissions  # noqa: PLC0415 - not for `--help` and `version`

    permissions.restrict(config)
    return _print_stray_note(config) if notes_strays else config


def _print_stray_note(config: LakeConfig) -> LakeConfig:
    """Print a note on standard error if tables are outside the lake; return its configuration."""
    if config.catalog.uri is None and not config.catalog_file.is_file():
        return config
    from chronolake.inspect.catalog import tables_outside  # noqa: PLC0415 - not for `--help` and `version`

    try:
        found = tables_outside(config)
    except ChronolakeError:
        # The command itself reports it.
        return config
    if found is None:
        return config
    note = (
        f"{found.count} of {found.tables} tables are stored outside {config.path}, for example "
        f"{found.name} in {found.folder}: this lake was copied or moved. They are read at that "
        "location, as of the time of the copy, and cannot be written through this lake."
    )
    if _json_output.get():
        sys.stderr.write(orjson.dumps({"note": note}, option=orjson.OPT_APPEND_NEWLINE).decode())
    else:
        console(stderr=True).print(f"Note: {note}", style="yellow", soft_wrap=True)
    return config


def open_existing(config: LakeConfig, *tables: TableName, json: bool) -> Lake:
    """Open a lake with Spark if it exists and has the tables of a command.

    Args:
        config: the lake's configuration.
        tables: the tables; they are looked up before Spark starts.
        json: whether a program reads standard error: then nothing is printed there.

    Raises:
        LakeError: the lake does not exist (it is not created), or its catalog cannot be read.
        TableNotFoundError: a table does not exist.
    """
    from chronolake import inspect  # noqa: PLC0415 - loaded when needed: `--help` is instant

    inspect.check(config)
    known = inspect.names(config)
    for table in tables:
        if table not in known:
            raise inspect.missing(config, table)
    lake = open_lake(config, json=json)
    lake.note_tables(tables or known)
    return lake


def open_lake(config: LakeConfig, *, json: bool, is_short_lived: bool = True) -> Lake:
    """Open a lake, and create it if it does not exist; Spark starts when it is first needed.

    Args:
        config: the lake's configuration.
        json: whether a program reads standard error: then nothing is printed there.
        is_short_lived: as for `Lake.prepare`.

    Raises:
        ConfigurationError, MissingRequirementError, StorageError: as for `Lake.prepare`.
    """
    quiet_logs()
    from chronolake.lake import Lake  # noqa: PLC0415 - PySpark is slow to import

    starting = partial(_starting_spark, schemes=config.schemes, json=json)
    return Lake.prepare(config, starting=starting, is_short_lived=is_short_lived)


@contextmanager
def _starting_spark(*, schemes: frozenset[str], json: bool) -> Iterator[None]:
    """Print that Spark starts, and discard the output of its start."""
    _download_jars(schemes, json=json)
    from chronolake import session  # noqa: PLC0415 - PySpark is slow to import

    if not (json or session.is_shared()):
        console(stderr=True).print("Starting Spark ...", style="dim")
    with quiet_java():
        yield


def _download_jars(schemes: frozenset[str], *, json: bool) -> None:
    """Download missing jars of Spark, with progress on standard error."""
    from chronolake import jars, session  # noqa: PLC0415 - PySpark is slow to import

    missing = jars.missing(schemes)
    if not missing:
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn  # noqa: PLC0415

    screen = console(stderr=True)
    java_home = session.java_home()
    if not json:
        screen.print(
            f"Downloading Spark's jars to {jars.folder()} ...", style="dim", soft_wrap=True
        )
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        console=screen,
        transient=True,
        disable=json or not screen.is_terminal,
    ) as bars:
        total = sum(jar.size for jar in missing)
        task = bars.add_task(f"{len(missing)} jars", total=total)
        jars.paths(java_home, lambda done: bars.update(task, completed=done), schemes=schemes)


@contextmanager
def quiet_java() -> Iterator[None]:
    """Start a JVM whose warnings are discarded, except with `--debug`.

    A process keeps the standard error that it was started with. So the JVM's is an unread file,
    while Python's is restored as soon as the JVM runs.
    """
    if _DEBUG in sys.argv:
        yield
        return
    ours = os.dup(2)
    with tempfile.TemporaryFile() as unread:
        sys.stderr.flush()
        os.dup2(unread.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(ours, 2)
            os.close(ours)


def quiet_logs() -> None:
    """Log only warnings and errors, to standard error."""
    import logging  # noqa: PLC0415 - only some commands log

    import structlog  # noqa: PLC0415 - only some commands log

    # PySpark logs the whole plan of a failed query; the error contains enough.
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).disabled = True
    # They log the traceback of every Ctrl-C.
    for name in ("root", "py4j.clientserver", "py4j.java_gateway"):
        logging.getLogger(name).addFilter(_is_no_interrupt)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    return not (record.exc_info and _is_interrupted(record.exc_info[1]))


def parse_pairs(texts: Sequence[str], option: str) -> list[tuple[str, str]]:
    """Split KEY=VALUE texts at the first equals sign.

    Raises:
        BadParameter: a text does not contain an equals sign, or a key is given twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise typer.BadParameter("write KEY=VALUE", param_hint=option)
        if key in found:
            raise typer.BadParameter(f"duplicate key {key}", param_hint=option)
        found[key] = value
    return list(found.items())


def parse_table_name(text: str) -> TableName:
    """Parse a table name in an argument.

    Raises:
        BadParameter: the text is not schema.table.
    """
    try:
        return TableName.parse(text)
    except SchemaError as failure:
        raise typer.BadParameter(f"{failure.message} {failure.hint}", param_hint="TABLE") from None


class _Screen(Console):
    """A console that does not end the process if the reader of its output has closed it."""

    def on_broken_pipe(self) -> None:
        """Raise the error that other writers of the output raise."""
        raise BrokenPipeError


def discard_stdout() -> None:
    """Discard what is printed from now on, also what was not flushed: its reader is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def console(*, stderr: bool = False) -> Console:
    """Return the console for people; without a terminal it is 100 columns wide."""
    # Names may look like Rich's markup or emoji codes.
    make = partial(_Screen, stderr=stderr, highlight=False, markup=False, emoji=False)
    screen = make()
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        screen = make(width=100)
    return screen


_NUMBERS: Final = frozenset({"rows", "written", "seconds", "waiting"})
_WHOLE: Final = frozenset({"table", "stream", "pipeline", "status", "last run"})


def grid_of(*names: str, title: str | None = None) -> Grid:
    """Return a table for the terminal, with these columns.

    Values that people search for or copy stay on one line, even in a narrow terminal.

    Args:
        names: the columns.
        title: the column whose cells name their rows; by default the first one.
    """
    grid = Grid(title or names[0])
    for name in names:
        grid.add_column(
            name,
            justify="right" if name in _NUMBERS else "left",
            no_wrap=name in _WHOLE,
            overflow="fold",
        )
    return grid


def print_json(value: Any, *, pretty: bool = True) -> None:
    """Write a value as JSON and a newline to standard output."""
    options = orjson.OPT_APPEND_NEWLINE | (orjson.OPT_INDENT_2 if pretty else 0)
    try:
        text = orjson.dumps(value, option=options).decode()
    except TypeError:
        # Only numbers with many digits need this; they are printed without line breaks.
        text = exact_json.dumps(value).decode("utf-8", "replace") + "\n"
    sys.stdout.write(text)


def print_json_lines(values: Sequence[Any]) -> None:
    """Write a JSON array to standard output, with one line for each of its values."""
    lines = ",\n".join(exact_json.dumps(value).decode("utf-8", "replace") for value in values)
    sys.stdout.write(f"[\n{lines}\n]\n" if values else "[]\n")


def confirm_loss(lost: str, question: str, *, json: bool, instead: str = "") -> None:
    """Ask the user to confirm a loss of data; a script needs `--yes`.

    Args:
        lost: what would be lost, as a sentence without its end.
        question: the question.
        json: whether the output is JSON, so that nobody is asked.
        instead: what else a script can do, after a semicolon.

    Raises:
        BadParameter: nobody can be asked.
        Abort: the user does not confirm.
    """
    if json or not sys.stdin.isatty():
        raise typer.BadParameter(f"{lost}. Confirm with --yes{instead}", param_hint="--yes")
    console(stderr=True).print(f"{lost}.")
    typer.confirm(question, abort=True, err=True)


def fail(code: int = 1) -> NoReturn:
    """End the command with an exit code, without a message."""
    raise typer.Exit(code)


def show_error(failure: ChronolakeError, *, json: bool) -> None:
    """Print on standard error what was wrong, where, and what to do."""
    if json:
        content = {
            "error": type(failure).__name__,
            "message": failure.message,
            **failure.place,
            "hint": failure.hint,
            "retryable": failure.retryable,
        }
        sys.stderr.write(orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE).decode())
        return
    screen = console(stderr=True)
    screen.print(Text("Error: ", style="bold red") + Text(failure.message, style="red"))
    if failure.place:
        where = ", ".join(f"{name} {value}" for name, value in failure.place.items())
        # Names are copied from here, so lines are not wrapped.
        screen.print(Text(f"Where: {where}"), soft_wrap=True)
    if failure.hint:
        # A storage error's hint contains a path, which is copied, too.
        is_path = isinstance(failure, StorageError)
        screen.print(Text(f"What to do: {failure.hint}"), soft_wrap=is_path)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit the process with the command's code.

    Args:
        arguments: the arguments after the program's name; None for the process's own.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = _DEBUG in words
    # An option of the program is also accepted after the command.
    words = [*([_DEBUG] if debug else []), *(word for word in words if word != _DEBUG)]
    json = "--json" in words
    _json_output.set(json)
    gc.set_threshold(_NEW_OBJECTS)
    umask = os.umask(0)
    os.umask(umask)
    try:
        code = app(args=words, prog_name="chronolake", standalone_mode=False)
    except _UsageError as failure:
        if failure.format_message():  # The message is empty if the help was shown instead.
            show_error(_usage_error(failure, [word for word in words if word != _DEBUG]), json=json)
        sys.exit(failure.exit_code)
    except typer.Abort:
        console(stderr=True).print("Aborted. Nothing was changed.")
        sys.exit(1)
    except Exception as failure:
        if _is_interrupted(failure):
            sys.exit(_INTERRUPTED)
        if isinstance(failure, BrokenPipeError):
            # The reader, such as `head`, has closed the pipe.
            discard_stdout()
            sys.exit(0)
        known = _known_error(failure)
        if debug or known is None:
            raise
        show_error(known, json=json)
        sys.exit(1)
    finally:
        # Commands restrict it, and a caller in the same process goes on with its own.
        os.umask(umask)
    sys.exit(code or 0)


def _is_interrupted(failure: BaseException | None) -> bool:
    """Return whether an error was raised while a command was ending because of Ctrl-C."""
    while failure is not None:
        if isinstance(failure, KeyboardInterrupt):
            return True
        failure = failure.__context__
    return False


def _usage_error(failure: typer.BadParameter, words: Sequence[str]) -> ConfigurationError:
    """Return a usage error in the form of all other errors."""
    command = failure.ctx.command_path if failure.ctx else f"chronolake {words[0]}"
    hint = f"`{command} --help` lists its arguments and options."
    if getattr(failure, "param_hint", None) == _LAKE and (similar := _similar_variable(env.LAKE)):
        hint = f"The environment variable {similar} is unknown. Did you mean {env.LAKE}? {hint}"
    return ConfigurationError(" ".join(failure.format_message().split()), hint=hint)


def _similar_variable(meant: str) -> str | None:
    """Return a variable whose unknown name is similar to that of a missing value."""
    prefix = len(env.PREFIX)
    variables = [name for name in os.environ if name.startswith(env.PREFIX)]
    unknown = [name[prefix:] for name in variables if name not in env.KNOWN]
    near = difflib.get_close_matches(meant[prefix:], unknown, n=1)
    return env.PREFIX + near[0] if near else None


def as_chronolake_error(failure: Exception, table: TableName) -> ChronolakeError:
    """Return a failure as a ChronolakeError that names the table."""
    error = _known_error(failure) or LakeError(f"{type(failure).__name__}: {failure}")
    error.table = error.table or str(table)
    return error


def _known_error(failure: Exception) -> ChronolakeError | None:
    """Return an error of storage, of ours or of Spark, in one line; None for any other."""
    if error := storage_error(failure):
        return error
    if isinstance(failure, ChronolakeError):
        return failure
    if "pyspark" not in sys.modules:
        # A command without Spark must not wait for its import to report a failure.
        return None
    from chronolake.iceberg import catalog_error, jvm_ended, spark_words  # noqa: PLC0415

    if known := catalog_error(failure) or jvm_ended(failure):
        return known
    words = spark_words(failure)
    if words is None:
        return None
    return LakeError(
        f"Spark failed: {words}",
        hint="Check that the lake's files exist and are readable. --debug prints the complete "
        "error of Spark.",
    )
