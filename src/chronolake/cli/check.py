"""The commands check, discover and read, which inspect sources without Spark.

`check` reports what a source is missing, `discover` lists its streams, and `read` shows records of
a declarative source and the requests for them, for authors of manifests.
"""

# ruff: noqa: PLC0415 - each command imports what it needs, so that `--help` is fast
# ruff: noqa: TC003 - Typer reads annotations at run time
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer
from rich.text import Text

from chronolake import exact_json
from chronolake.cli.app import (
    JsonOption,
    LakeOption,
    ProjectOption,
    SettingOption,
    app,
    console,
    fail,
    grid_of,
    print_json,
    show_error,
)
from chronolake.cli.pipelines import PipelineArgument, project_of
from chronolake.errors import ChronolakeError, ConfigurationError, StorageError
from chronolake.extras import require
from chronolake.formatting import format_count
from chronolake.storage import raise_unless_writable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from chronolake.config import Project
    from chronolake.pipeline.streams import Stream
    from chronolake.source.declarative.check import Sample
    from chronolake.source.protocol import Source
    from chronolake.types import TableName


_STYLES: Final = {"ok": "green", "warning": "yellow", "failed": "bold red"}
#: Types of sources whose streams are in a catalog, with columns that it may lack.
_CATALOGS: Final = frozenset({"airbyte", "singer"})
_EXPERIMENTAL_HINT: Final = "Compare its tables with the source before you rely on them."
_Result = TypeVar("_Result")
_WIDTH: Final = max(map(len, _STYLES)) + 1


@app.command(epilog="Example: chronolake check --create")
def check(
    *,
    create: Annotated[
        bool,
        typer.Option(
            "--create", help="Create missing source objects (publications, replication slots)."
        ),
    ] = False,
    project: ProjectOption = None,
    lake: LakeOption = None,
    json: JsonOption = False,
    settings: SettingOption = None,
) -> None:
    """Check chronolake.yml, the lake's disks, the requirements of sources, tables and targets.

    For missing source objects, the statement that creates them is printed. Nothing is written
    except the lake's folder, tables of the operational store, tokens that change with each use and,
    with --create, the source objects. Exit code 1 if a check fails.
    """
    wanted = project_of(project, lake, settings)
    storage: StorageError | None = None
    try:
        results = [_run_check("lake", lambda: _check_lake(wanted))]
    except StorageError as failure:
        storage = failure
        results = [_result("lake", "failed", failure.statement, failure.hint, ok=False)]
    writers: dict[TableName, str] = {}
    for name in wanted.pipelines:
        results += _check_pipeline(wanted, name, writers, create=create)
    for name in wanted.targets:
        results += _check_target(wanted, name)
    if json:
        print_json(results)
    else:
        for result in results:
            level = Text(result["level"].ljust(_WIDTH), style=_STYLES[result["level"]])
            line = Text.assemble(level, (result["what"], "bold"), f"  {result['message']}")
            console().print(line, soft_wrap=True)
            if result["hint"]:
                # Statements are copied from here, so lines are not wrapped.
                console().print(Text(f"{' ' * _WIDTH}{result['hint']}"), soft_wrap=True)
    if storage is not None and not json:
        show_error(storage, json=json)
    if not all(result["ok"] for result in results):
        fail()


def _check_lake(project: Project) -> str:
    """Check that a lake can be used, and return a message that it can.

    Raises:
        StorageError: a disk is full, or a folder or bucket cannot be written.
        LakeError: the operational store or the REST catalog is not reachable.
    """
    from chronolake import rest_catalog
    from chronolake.config import CatalogKind
    from chronolake.landing import location_of
    from chronolake.object_store import BucketPath
    from chronolake.pipeline.store import Store

    lake = project.lake
    places = [
        location_of(text, lake.object_storage)
        for text in (str(lake.path), lake.warehouse_location, lake.raw_location)
    ]
    for place in dict.fromkeys(places):
        if isinstance(place, BucketPath):
            place.raise_unless_writable()
        # Whether it exists is known only if its parent folder is searchable.
        elif str(place) != lake.raw_location or place.is_dir():
            raise_unless_writable(place)
    Store.open(lake)
    if lake.catalog.kind is CatalogKind.REST:
        rest_catalog.list_tables(lake)
        return "its folders are writable, and its catalog responds"
    return "its folders are writable, and its database responds"


def _check_pipeline(
    project: Project, name: str, writers: dict[TableName, str], *, create: bool
) -> Iterator[dict[str, Any]]:
    from chronolake.pipeline.store import Store
    from chronolake.pipeline.streams import source_of
    from chronolake.source.protocol import CheckedSource, ExperimentalSource, Level

    try:
        source = source_of(project, name)
        if isinstance(source, ExperimentalSource) and source.experimental is not None:
            message = f"experimental: {source.experimental}"
            yield _result(f"pipelines.{name}", "warning", message, _EXPERIMENTAL_HINT, ok=True)
        if isinstance(source, CheckedSource):
            positions = _or_none(lambda: Store.open(project.lake).checkpoints(name))
            for result in source.check(create=create, positions=positions):
                what = f"pipelines.{name}: {result.what}"
                yield _result(
                    what,
                    result.level,
                    result.message,
                    result.fix,
                    ok=result.level is not Level.FAILED,
                )
    except ChronolakeError as failure:
        yield _result(f"pipelines.{name}", "failed", failure.message, failure.hint, ok=False)
        return
    yield from _check_streams(project, name, source, writers)


def _check_target(project: Project, name: str) -> Iterator[dict[str, Any]]:
    """Yield the tables that a target cannot hold, and whether its database can be used."""
    from chronolake.target.check import check_target

    for result in check_target(project, name):
        what = f"targets.{name}" + (f": {result.table}" if result.table else "")
        failure = result.error
        if failure is None:
            level = "warning" if result.hint else "ok"
            yield _result(what, level, result.message, result.hint, ok=True)
        else:
            yield _result(what, "failed", failure.message, failure.hint, ok=False)


def _or_none(check: Callable[[], _Result]) -> _Result | None:
    """Return a function's result; None if it fails, because another check reports the failure."""
    try:
        return check()
    except ChronolakeError:
        return None


def _check_streams(
    project: Project, name: str, source: Source, writers: dict[TableName, str]
) -> Iterator[dict[str, Any]]:
    """Yield the errors of a pipeline's streams, and the state of the valid ones."""
    from chronolake.pipeline.streams import list_streams

    what = f"pipelines.{name}"
    try:
        found = list_streams(project, name, source)
    except ChronolakeError as failure:
        yield _result(what, "failed", failure.message, failure.hint, ok=False)
        return
    for error in found.errors:
        yield _result(what, "failed", error.message, error.hint, ok=False)
    yield from _check_columns(project, name, source, found.streams)
    if found.streams or not found.errors:
        yield _run_check(what, lambda: _check_tables(project, name, found.streams, writers))


def _check_columns(
    project: Project, name: str, source: Source, streams: list[Stream]
) -> Iterator[dict[str, Any]]:
    """Yield the errors of columns that are known from the catalog of a database or connector."""
    from chronolake.pipeline.state import expect_described, expect_known
    from chronolake.pipeline.streams import pipeline_of
    from chronolake.source.protocol import DescribedSource, DescribedStream

    kind = pipeline_of(project, name).source.type
    if kind not in {"postgres", *_CATALOGS} or not isinstance(source, DescribedSource):
        return
    by_name = {stream.name: stream for stream in streams}
    for described in source.describe_streams(list(by_name)):
        what = f"pipelines.{name}: {described.stream}"
        if kind in _CATALOGS:
            try:
                if isinstance(described, DescribedStream):
                    expect_known(by_name[described.stream], described)
            except ConfigurationError as failure:
                message = f"{failure.message} The catalog may be incomplete."
                yield _result(what, "warning", message, failure.hint, ok=True)
            continue
        try:
            if not isinstance(described, DescribedStream):
                raise described.error
            expect_described(project.lake, by_name[described.stream], described)
        except ChronolakeError as failure:
            yield _result(what, "failed", failure.message, failure.hint, ok=False)


def _run_check(what: str, check: Callable[[], str]) -> dict[str, Any]:
    try:
        message = check()
    except StorageError:
        raise
    except ChronolakeError as failure:
        return _result(what, "failed", failure.message, failure.hint, ok=False)
    return _result(what, "ok", message, None, ok=True)


def _result(what: str, level: str, message: str, hint: str | None, *, ok: bool) -> dict[str, Any]:
    return {"what": what, "ok": ok, "level": level, "message": message, "hint": hint}


def _check_tables(
    project: Project, name: str, streams: list[Stream], writers: dict[TableName, str]
) -> str:
    """Return the state of a pipeline; add its tables to `writers`.

    Raises:
        ChronolakeError: a check fails.
    """
    from chronolake.pipeline.state import expect_free, table_offsets

    for stream in streams:
        other = writers.setdefault(stream.table, name)
        if other != name:
            raise ConfigurationError(
                f"The pipelines {other} and {name} both fill the table.",
                table=str(stream.table),
                hint="Set another `schema:` for one of them, or another `table:` for its stream.",
            )
    for position in table_offsets(project.lake, streams):
        expect_free(position)
    names = ", ".join(
        f"{stream.name} ({stream.mode}, auto)" if stream.is_auto else stream.name
        for stream in streams
    )
    words = f"{format_count(len(streams), 'stream')}: {names}" if names else "no streams"
    empty = [
        stream.name
        for stream in streams
        if not stream.descriptor.is_ours and stream.folder.last() is None
    ]
    return f"{words}; the source lake has no files of {', '.join(empty)} yet" if empty else words


@app.command(epilog="Example: chronolake discover crm --schema")
def discover(
    pipeline: PipelineArgument,
    *,
    schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            help="Show the columns that the source declares. The source is queried if needed.",
        ),
    ] = False,
    project: ProjectOption = None,
    lake: LakeOption = None,
    json: JsonOption = False,
    settings: SettingOption = None,
) -> None:
    """List a pipeline's streams: tables, keys, cursors, modes, and how changes are captured.

    Exit code 1 if requested columns are unknown, or if a stream is configured that does not exist.
    """
    from chronolake.pipeline.streams import list_streams, source_of
    from chronolake.source.protocol import ExperimentalSource
    from chronolake.stream_modes import allowed_modes

    wanted = project_of(project, lake, settings)
    source = source_of(wanted, pipeline)
    experimental = source.experimental if isinstance(source, ExperimentalSource) else None
    rows: list[dict[str, Any]] = []
    found = list_streams(wanted, pipeline, source, any_mode=True)
    for stream in found.streams:
        files = stream.folder.files()
        rows.append(
            {
                "stream": stream.name,
                "table": str(stream.table),
                "mode": stream.mode,
                "auto": stream.is_auto,
                "modes": allowed_modes(stream.descriptor.capabilities),
                "key": list(stream.key),
                "cursor": stream.descriptor.cursor,
                "sees": stream.descriptor.capture_method,
                "experimental": experimental is not None,
                "files": len(files),
                "bytes": sum(file.size for file in files),
            }
        )
    if schema:
        _add_columns(rows, source, pipeline, {stream.name: stream for stream in found.streams})
    if json:
        print_json(rows)
    elif schema:
        _print_columns(rows)
    else:
        _print_streams(rows)
    if experimental is not None and not json:
        console().print(Text(f"experimental: {experimental}", style="yellow"), soft_wrap=True)
    for error in found.errors:
        show_error(error, json=json)
    if found.errors or any("error" in row for row in rows):
        fail()


def _add_columns(
    rows: list[dict[str, Any]], source: Source, pipeline: str, streams: Mapping[str, Stream]
) -> None:
    """Add `columns` to each stream's row, or an `error` if they are unknown.

    Raises:
        ConfigurationError: the source's columns are unknown until it is read.
    """
    from chronolake.source.protocol import DescribedSource, DescribedStream

    if not isinstance(source, DescribedSource):
        raise ConfigurationError(
            f"The source of {pipeline} does not declare its columns.",
            hint="Run `chronolake sync` first: then the tables have the columns.",
        )
    by_name = {row["stream"]: row for row in rows}
    for found in source.describe_streams(list(by_name)):
        row = by_name[found.stream]
        if isinstance(found, DescribedStream):
            stream = streams[found.stream]
            columns = stream.types.columns(stream.rules.columns(found.columns))
            names = stream.names.lake_names(column.name for column in columns)
            row["columns"] = [
                {"name": names.get(column.name, column.name), "type": str(column.type)}
                for column in columns
            ]
        else:
            row["columns"], row["error"] = [], str(found.error)


def _print_streams(rows: list[dict[str, Any]]) -> None:
    grid = grid_of("stream", "table", "key", "cursor", "mode", "possible modes", "captures")
    for row in rows:
        grid.add_row(
            row["stream"],
            row["table"],
            ", ".join(row["key"]),
            row["cursor"] or "",
            Text(row["mode"], style="" if row["mode"] in row["modes"] else "bold red"),
            ", ".join(row["modes"]),
            row["sees"],
        )
    console().print(grid)


def _print_columns(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        console().print(Text(row["stream"], style="bold"))
        if "error" in row:
            console().print(Text(f"  {row['error']}", style="bold red"), soft_wrap=True)
            continue
        grid = grid_of("column", "type", "role")
        for column in row["columns"]:
            roles = {"key": column["name"] in row["key"], "cursor": column["name"] == row["cursor"]}
            words = ", ".join(role for role, is_so in roles.items() if is_so)
            grid.add_row(column["name"], column["type"], words)
        console().print(grid)


#: Maximum length of a value in the terminal.
_MAX_WIDTH = 200


@app.command(epilog="Example: chronolake read shop orders --limit 5")
def read(
    pipeline: PipelineArgument,
    stream: Annotated[
        str, typer.Argument(metavar="STREAM", help="The stream's name in the source.")
    ],
    *,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="Show up to this number of records.")
    ] = 20,
    from_state: Annotated[
        Path | None,
        typer.Option("--state", metavar="FILE", help="Start from the state in this JSON file."),
    ] = None,
    project: ProjectOption = None,
    lake: LakeOption = None,
    json: JsonOption = False,
    settings: SettingOption = None,
) -> None:
    """Read some records of an API's stream, and show them with the HTTP requests.

    Nothing is stored except tokens that change with each use, and no pipeline's state changes. Exit
    code 1 if no record could be read.
    """
    from chronolake.config import DeclarativeSource
    from chronolake.pipeline.streams import pipeline_of
    from chronolake.pipeline.token_store import StoredTokens

    require("api", "The command `read`")
    from chronolake.source.declarative.check import sample
    from chronolake.source.declarative.manifests.manifest import find, load

    wanted = project_of(project, lake, settings)
    source = pipeline_of(wanted, pipeline).source
    if not isinstance(source, DeclarativeSource):
        raise ConfigurationError(
            f"{wanted.file}: pipelines.{pipeline} has no manifest.",
            hint="`chronolake read` only supports sources of the type declarative.",
        )
    manifest = load(
        find(source.manifest, beside=wanted.file.parent), allow_components=source.allow_components
    )
    state = None if from_state is None else _read_state(from_state)
    tokens = StoredTokens(wanted.lake, pipeline)
    found = sample(manifest, source, stream, limit=limit, state=state, memory=tokens)
    if json:
        print_json(_as_json(found))
    else:
        _print_sample(found)
    if found.failure is not None:
        show_error(found.failure, json=json)
        if not found.records:
            fail()


def _read_state(file: Path) -> Mapping[str, Any]:
    try:
        state: Mapping[str, Any] = exact_json.loads(file.read_bytes())
    except (OSError, ValueError) as failure:
        raise ConfigurationError(
            f"{file} does not contain a valid state.",
            hint="The file must contain JSON: the value of `state` from `chronolake state show`, "
            "or a state that another connector wrote.",
        ) from failure
    return state


def _as_json(sample: Sample) -> dict[str, Any]:
    return {
        "records": sample.records,
        "requests": [vars(exchange) for exchange in sample.exchanges],
        "state": sample.state,
        "failure": None if sample.failure is None else str(sample.failure),
    }


def _text_of(value: Any) -> str:
    return exact_json.dumps(value).decode("utf-8", "replace")


def _print_sample(sample: Sample) -> None:
    for number, record in enumerate(sample.records, 1):
        console().print(Text(f"record {number}", style="bold"))
        width = max(map(len, record), default=0)
        for name, value in record.items():
            text = value if isinstance(value, str) else _text_of(value)
            cut = f"{text[:_MAX_WIDTH]}…" if len(text) > _MAX_WIDTH else text
            console().print(Text(f"  {name.ljust(width)}  {cut}"), soft_wrap=True)
    if not sample.records:
        console().print("no records")
    console().print(Text("requests", style="bold"))
    for exchange in sample.exchanges:
        again = f", attempt {exchange.attempt}" if exchange.attempt > 1 else ""
        outcome = f"  {exchange.failure or exchange.status}  {exchange.seconds:.2f} s{again}"
        # URLs are copied from here, so lines are not wrapped.
        console().print(Text(f"{outcome}  {exchange.method} {exchange.url}"), soft_wrap=True)
