"""A proposed chronolake.yml: which proposal fits `--from`, its review, and its text."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from chronolake.config import project_of_text
from chronolake.errors import ChronolakeError, ConfigurationError
from chronolake.extras import require
from chronolake.formatting import format_count
from chronolake.location import SCHEMES
from chronolake.masking import mask_text
from chronolake.scaffold.document import (
    Entry,
    comment_lines,
    lines_of,
    literal,
    table_lines,
    values_of,
)
from chronolake.scaffold.review import add_streams, check_of, expect_usable, source_of
from chronolake.source.records.identity import HASHED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from chronolake.config import Project
    from chronolake.scaffold.origin import Request
    from chronolake.scaffold.proposal import ProposedPipeline, ProposedStream, Variable

_SCHEMES: Final = ("postgres", "postgresql")
_MYSQL_SCHEMES: Final = ("mysql", "mariadb")
_EXAMPLES: Final = (
    "Set an address (postgresql://user@host/database, mysql://…, sqlserver://…, jdbc:…), a package "
    "(airbyte-source-faker, tap-csv), "
    "a program or folder of a connector (./connector), a manifest (manifest.yaml), a folder of "
    "files (dumps/, s3://bucket/dumps/, sftp://user@host/dumps/), or a function (mymodule:orders)."
)
_CAPTURES: Final = (
    ("every-change", "each change of a record, from a log."),
    ("observed-changes", "the state of records that have changed, at each sync."),
    ("snapshot-diff", "the differences between two complete reads."),
)
#: A value of a variable that is not set, to list streams that need no connection.
_UNSET: Final = "unset"
#: Sources that list their streams without a connection.
_LISTED: Final = frozenset({"declarative", "python"})
_SCHEMA: Final = "# yaml-language-server: $schema=./chronolake.schema.json"


@dataclass(frozen=True)
class ProposedFile:
    """A proposed chronolake.yml.

    Attributes:
        pipelines: its pipelines.
        text: its content.
    """

    pipelines: tuple[ProposedPipeline, ...]
    text: str

    @property
    def variables(self) -> list[Variable]:
        """Return the environment variables that it needs."""
        found = {known.name: known for pipeline in self.pipelines for known in pipeline.variables}
        return list(found.values())


def propose(request: Request, file: Path) -> ProposedFile:
    """Return a chronolake.yml for a source. Nothing is written, and the source is not changed.

    Args:
        request: the source.
        file: where the file will be.

    Raises:
        ConfigurationError: the source is not recognized, or its configuration is not complete.
        ChronolakeError: the source cannot be read.
    """
    proposals = _proposals(request, file)
    text = _text(request, proposals)
    variables = _values(proposals)
    project = project_of_text(text, file, variables=variables)
    reviewed = [_review(request, proposal, project, file) for proposal in proposals]
    text = _text(request, reviewed)
    # What was written is what was reviewed.
    project_of_text(text, file, variables=_values(reviewed))
    return ProposedFile(tuple(reviewed), text)


def _proposals(request: Request, file: Path) -> list[ProposedPipeline]:
    if request.scheme in _SCHEMES:
        require("postgres", "A source of the type postgres")
        from chronolake.scaffold.database import propose_postgres  # noqa: PLC0415 - an extra

        return [propose_postgres(request)]
    if request.scheme in _MYSQL_SCHEMES:
        require("mysql", "A source of the type mysql")
        from chronolake.scaffold.mysql import propose_mysql  # noqa: PLC0415 - an extra

        return [propose_mysql(request)]
    if request.origin.startswith("jdbc:") or request.scheme == "sqlserver":
        from chronolake.scaffold.jdbc import propose_jdbc  # noqa: PLC0415 - it loads the sources

        return [propose_jdbc(request, _empty_project(request, file).lake.spark)]
    if request.scheme in {*SCHEMES, "sftp"}:
        from chronolake.scaffold.remote_files import (  # noqa: PLC0415 - it loads the sources
            propose_remote_files,
        )

        return propose_remote_files(request, _empty_project(request, file).lake.object_storage)
    if request.scheme is not None:
        raise ConfigurationError(
            f"No pipeline can be proposed for {mask_text(request.origin)}.", hint=_EXAMPLES
        )
    return _local_proposals(request)


def _empty_project(request: Request, file: Path) -> Project:
    """Return the project without pipelines, with the settings of the environment."""
    text = "\n".join(_lake_lines(request))
    return project_of_text(f"{text}\n", file, variables=os.environ)


def _local_proposals(request: Request) -> list[ProposedPipeline]:
    from chronolake.scaffold import connectors  # noqa: PLC0415 - it loads the sources

    if request.path.exists():
        return _path_proposals(request, request.path)
    if connectors.is_package(request.origin):
        return [connectors.propose_package(request)]
    if request.is_function:
        return [connectors.propose_function(request)]
    raise ConfigurationError(f"{request.origin} does not exist.", hint=_EXAMPLES)


def _path_proposals(request: Request, path: Path) -> list[ProposedPipeline]:
    from chronolake.scaffold import connectors  # noqa: PLC0415 - it loads the sources
    from chronolake.scaffold.files import propose_files  # noqa: PLC0415 - it loads PyArrow
    from chronolake.scaffold.sample import ending_of  # noqa: PLC0415 - it loads PyArrow

    is_program = path.suffix == ".py" or os.access(path, os.X_OK)
    if (path / "connector.py").is_file():
        return [connectors.propose_fivetran(request, path)]
    if (path / "manifest.yaml").is_file() or path.suffix in {".yaml", ".yml"}:
        return [_declarative(request, path)]
    if path.is_dir() or ending_of(path.name)[0] is not None:
        return propose_files(request, path)
    if is_program:
        return [connectors.propose_program(request, path)]
    raise ConfigurationError(
        f"The file {request.origin} is neither a program, nor a manifest, nor a data file.",
        hint=_EXAMPLES,
    )


def _declarative(request: Request, path: Path) -> ProposedPipeline:
    require("api", "A source of the type declarative")
    from chronolake.scaffold.connectors import propose_manifest  # noqa: PLC0415 - an extra

    return propose_manifest(request, path)


def _review(
    request: Request, proposed: ProposedPipeline, project: Project, file: Path
) -> ProposedPipeline:
    kind = values_of(proposed.source)["type"]
    missing = [known.name for known in proposed.variables if known.value is None]
    if missing:
        note = f"The source is not checked yet: {', '.join(missing)} must be set."
        proposed = replace(proposed, notes=(*proposed.notes, note))
        if kind not in _LISTED:
            return proposed
        try:
            return add_streams(proposed, project, source_of(project, proposed.name), [])
        except ChronolakeError:
            return proposed
    request.report("Listing its streams ...")
    source = source_of(project, proposed.name)
    results = check_of(source)
    if kind == "mysql":
        from chronolake.scaffold.mysql import with_steps  # noqa: PLC0415 - an extra

        return add_streams(with_steps(proposed, results), project, source, results)
    if kind != "postgres":
        expect_usable(results)
        return add_streams(proposed, project, source, results)
    return _review_database(request, proposed, project, file)


def _review_database(
    request: Request, proposed: ProposedPipeline, project: Project, file: Path
) -> ProposedPipeline:
    """Return the pipeline for a database: from its log, or without it if it cannot be read."""
    from chronolake.scaffold.database import (  # noqa: PLC0415 - an extra
        is_about_server,
        steps_for_log,
        without_log,
    )

    source = source_of(project, proposed.name)
    results = check_of(source)
    names = [stream.capabilities.name for stream in source.discover()]
    problems = [result for result in results if is_about_server(result, names)]
    if problems:
        proposed = without_log(proposed, problems)
        text = _text(request, [proposed])
        project = project_of_text(text, file, variables=_values([proposed]))
        source = source_of(project, proposed.name)
        results = check_of(source)
        expect_usable([result for result in results if is_about_server(result, names)])
    proposed = replace(proposed, steps=(*proposed.steps, *steps_for_log(results)))
    return add_streams(proposed, project, source, results)


def _values(proposals: Sequence[ProposedPipeline]) -> Mapping[str, str]:
    """Return the values of all environment variables, also of those that are not set."""
    known = {
        variable.name: _UNSET if variable.value is None else variable.value
        for proposal in proposals
        for variable in proposal.variables
    }
    return {**os.environ, **known}


def _text(request: Request, proposals: Sequence[ProposedPipeline]) -> str:
    lines = [
        _SCHEMA,
        "#",
        *comment_lines(
            f"Proposed by `chronolake init --from {mask_text(request.origin)}`. ${{NAME}} is "
            "replaced by the environment variable NAME: keep secrets there, and not in this file.",
            0,
        ),
        *_steps(proposals),
        "",
        *_lake_lines(request),
        "",
        "pipelines:",
    ]
    for number, proposal in enumerate(proposals):
        if number:
            lines.append("")
        lines += _pipeline_lines(proposal, is_first=not number)
    return "\n".join(lines) + "\n"


def _lake_lines(request: Request) -> list[str]:
    lines = ["lake:", "  # The lake's folder, relative to the folder of this file.", "  path: lake"]
    if request.driver_jar is None:
        return lines
    jar = literal(str(request.driver_jar.expanduser().absolute()))
    driver = Entry("spark.jars", jar, "The JDBC driver of the database.")
    return [*lines, *lines_of([Entry("spark", (Entry("conf", (driver,)),))], 1)]


def key_words(stream: ProposedStream) -> str:
    """Return a stream's key for people."""
    return "the whole record" if stream.key == (HASHED,) else ", ".join(stream.key)


def _steps(proposals: Sequence[ProposedPipeline]) -> Iterator[str]:
    variables = {known.name: known for proposal in proposals for known in proposal.variables}
    if variables:
        yield "#"
        yield "# Variables to set:"
        rows = [{"name": known.name, "value": known.purpose} for known in variables.values()]
        yield from list(table_lines(rows, 0))[1:]
    if steps := [step for proposal in proposals for step in proposal.steps]:
        yield "#"
        for step in steps:
            yield from comment_lines(step, 0)


def _pipeline_lines(proposal: ProposedPipeline, *, is_first: bool) -> Iterator[str]:
    if is_first:
        yield from comment_lines("The pipeline's name, which is also the schema of its tables.", 1)
    yield from lines_of([Entry(proposal.name, (Entry("source", proposal.source),))], 1)
    yield from lines_of(proposal.settings, 2)
    for note in proposal.notes:
        yield from comment_lines(note, 2)
    if proposal.streams is None:
        yield from comment_lines(
            "Set the variables, and run `chronolake discover` to list the streams and what they "
            "capture.",
            2,
        )
    else:
        yield from _stream_lines(proposal)
    about = (
        "auto: history if the source supports it, otherwise soft-delete. Others: live, soft-delete "
        "and history."
    )
    yield from lines_of([Entry("mode", "auto", about if is_first else "")], 2)
    if is_first:
        about = "When `chronolake up` syncs the pipeline."
        yield from lines_of([Entry("every", "5m", about, is_disabled=True)], 2)
    if is_first and proposal.streams:
        name = proposal.streams[0].name
        settings = {name: {"table": "another_name"}}
        yield from lines_of(
            [Entry("streams", settings, "Settings of single streams.", is_disabled=True)], 2
        )


def _stream_lines(proposal: ProposedPipeline) -> Iterator[str]:
    streams = proposal.streams or ()
    if not streams:
        yield from comment_lines("The source has no streams yet.", 2)
        return
    yield from comment_lines(f"What was found: {format_count(len(streams), 'stream')}.", 2)
    rows: list[dict[str, Any]] = [
        {
            "stream": stream.name,
            "table": stream.table,
            "key": key_words(stream),
            "cursor": stream.cursor or "-",
            "captures": stream.capture_method,
            "deletes": stream.deletes,
            "mode": stream.mode,
        }
        for stream in streams
    ]
    yield from table_lines(rows, 2)
    methods = {stream.capture_method for stream in streams}
    for method, about in _CAPTURES:
        if method in methods:
            yield from comment_lines(f"{method}: {about}", 2)
