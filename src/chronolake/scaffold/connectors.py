"""Proposals for programs and code: connectors, manifests, and functions of a project."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from chronolake import exact_json
from chronolake.config import AirbyteSource, SingerSource
from chronolake.errors import ConfigurationError, SourceError
from chronolake.masking import Secrets
from chronolake.scaffold.document import Entry, literal
from chronolake.scaffold.proposal import ProposedPipeline, name_from
from chronolake.scaffold.settings import SourceSettings
from chronolake.source.connectors.environments import pin
from chronolake.source.connectors.json_lines import messages_in
from chronolake.source.connectors.program import Program, arguments_of, json_files
from chronolake.source.python.declarations import declarations_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from chronolake.scaffold.origin import Request

_PACKAGE: Final = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<version>[=<>!~].*)?")
#: Seconds without output after which a program is not a connector.
_SILENT_SECONDS: Final = 120.0
_MANIFEST: Final = "manifest.yaml"


def is_package(text: str) -> bool:
    """Return whether a text is the name of a connector's package, with or without a version."""
    return _kind_of_package(text) is not None


def _kind_of_package(text: str) -> str | None:
    found = _PACKAGE.fullmatch(text)
    name = "" if found is None else found["name"].lower().replace("_", "-")
    if "airbyte-source-" in name:
        return "airbyte"
    return "singer" if re.search(r"(^|-)tap-", name) else None


def propose_package(request: Request) -> ProposedPipeline:
    """Return the pipeline for a package of a connector, with its newest version.

    Raises:
        MissingRequirementError: the package cannot be installed.
        SourceError: its program fails.
    """
    request.report(f"Installing {request.origin} into an environment of its own ...")
    package = pin(request.origin)
    kind = _kind_of_package(request.origin)
    name = re.split(r"airbyte-source-|(?:^|-)tap-", package.partition("==")[0])[-1]
    return _propose_program(request, request.name or name_from(name), {"package": package}, kind)


def propose_program(request: Request, path: Path) -> ProposedPipeline:
    """Return the pipeline for the program of a connector.

    Raises:
        ConfigurationError: it is neither a connector of Airbyte nor a Singer tap.
        MissingRequirementError: it cannot be started.
    """
    place = request.relative(path)
    words = [place if os.sep in place else f"./{place}"]
    if path.suffix == ".py" and not os.access(path, os.X_OK):
        words = ["python3", *words]
    is_plain = len(words) == 1 and not any(char.isspace() for char in words[0])
    command: str | list[str] = words[0] if is_plain else words
    name = request.name or name_from(path.stem)
    return _propose_program(request, name, {"command": command}, None)


def _propose_program(
    request: Request, name: str, program: dict[str, Any], kind: str | None
) -> ProposedPipeline:
    schema: Mapping[str, Any] | None = None
    if kind != "singer":
        schema = _airbyte_schema(request, name, program)
        kind = kind or (None if schema is None else "airbyte")
    if kind != "airbyte":
        schema = _singer_schema(request, name, program)
        kind = kind or (None if schema is None else "singer")
    if kind is None:
        raise ConfigurationError(
            f"The program {request.origin} is neither an Airbyte connector nor a Singer tap: it "
            "answers neither `spec` nor `discover` nor `--discover`.",
            hint="Run it in a terminal. If it needs a configuration to list its streams, add "
            "--source-config FILE.",
        )
    settings = SourceSettings(name)
    if request.config is not None:
        config = settings.from_given(request.config, schema)
    else:
        config = settings.from_schema(schema or {})
    comments = {
        "package": "The package is installed into an environment of its own.",
        "command": "The program, relative to the folder of this file.",
    }
    entries = [Entry("type", kind)]
    entries += [Entry(key, literal(value), comments[key]) for key, value in program.items()]
    if config:
        entries.append(Entry("config", config, "The connector's own configuration."))
    return ProposedPipeline(name, tuple(entries), variables=tuple(settings.variables.values()))


def _airbyte_schema(
    request: Request, name: str, program: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Return the specification of a connector's configuration; None for another program."""
    section = AirbyteSource.model_validate(
        {"type": "airbyte", "silent_seconds": _SILENT_SECONDS, **program}
    )
    runner = Program(section, request.folder, name, Secrets(request.config or {}))
    # Before the errors that mean that it is another kind of program.
    _ = runner.command
    try:
        for message in messages_in(runner.start("spec"), {"SPEC": {"spec": dict}}):
            if message["type"] == "SPEC":
                found: Mapping[str, Any] = message["spec"].get("connectionSpecification") or {}
                return found
        with json_files({"config": request.config or {}}) as paths:
            for message in messages_in(runner.start("discover", *arguments_of(paths, ["config"]))):
                if message["type"] == "CATALOG":
                    return {}
    except SourceError:
        return None
    return None


def _singer_schema(
    request: Request, name: str, program: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Return the specification of a tap's configuration; None if the program is not a tap."""
    section = SingerSource.model_validate(
        {"type": "singer", "silent_seconds": _SILENT_SECONDS, **program}
    )
    runner = Program(section, request.folder, name, Secrets(request.config or {}))
    _ = runner.command
    # Only taps of the Singer SDK describe themselves.
    about = _json_of(runner, "--about", "--format=json")
    if isinstance(about.get("settings"), dict):
        found: Mapping[str, Any] = about["settings"]
        return found
    with json_files({"config": request.config or {}}) as paths:
        catalog = _json_of(runner, *arguments_of(paths, ["config"]), "--discover")
    return {} if isinstance(catalog.get("streams"), list) else None


def _json_of(program: Program, *words: str) -> dict[str, Any]:
    """Return the JSON object that a program prints; an empty one if it prints something else."""
    try:
        text = b"\n".join(program.start(*words).lines())
        found = exact_json.loads(text)
    except (SourceError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def propose_fivetran(request: Request, folder: Path) -> ProposedPipeline:
    """Return the pipeline for a project of the Fivetran Connector SDK."""
    name = request.name or name_from(folder.name)
    settings = SourceSettings(name)
    entries = [
        Entry("type", "fivetran"),
        Entry("path", literal(request.relative(folder)), "The folder of connector.py."),
    ]
    if request.config is not None:
        entries.append(Entry("config", settings.from_given(request.config)))
    return ProposedPipeline(
        name,
        tuple(entries),
        variables=tuple(settings.variables.values()),
        notes=()
        if request.config is not None
        else ("The configuration is that of the project: configuration.json.",),
    )


def propose_manifest(request: Request, path: Path) -> ProposedPipeline:
    """Return the pipeline for the manifest of a low-code connector.

    Raises:
        ConfigurationError: the manifest is not valid.
    """
    from chronolake.source.declarative.manifests.manifest import (  # noqa: PLC0415 - an extra
        find,
        load,
    )

    file = find(str(path), beside=request.folder)
    manifest = load(file)
    own = file.parent.name if file.name == _MANIFEST else file.stem
    name = request.name or name_from(re.sub("^source-", "", own))
    settings = SourceSettings(name)
    if request.config is not None:
        config = settings.from_given(request.config, manifest.specification)
    else:
        config = settings.from_schema(manifest.specification)
    entries = [
        Entry("type", "declarative"),
        Entry("manifest", literal(request.relative(path)), "The manifest, or its folder."),
    ]
    if config:
        about = "The settings that the manifest's `spec` defines."
        entries.append(Entry("config", config, about))
    return ProposedPipeline(name, tuple(entries), variables=tuple(settings.variables.values()))


def propose_function(request: Request) -> ProposedPipeline:
    """Return the pipeline for a function, generator, class or other object of the project."""
    called = _find_function(request)
    name = request.name or name_from(request.origin.partition(":")[0].rpartition(".")[2])
    settings = SourceSettings(name)
    if request.config is not None:
        config = settings.from_given(request.config)
    else:
        config = settings.from_schema(_schema_of(called))
    entries = [Entry("type", "python"), Entry("run", literal(request.origin))]
    if config:
        entries.append(Entry("config", config, "Values of the function's parameters."))
    is_plain = inspect.isfunction(called) or inspect.isclass(called)
    if is_plain and declarations_of(called) is None:
        entries += [
            Entry("key", "id", "The field that identifies a record.", is_disabled=True),
            Entry(
                "cursor",
                "updated_at",
                "The field with the time of a record's last change, if a run yields only records "
                "that have changed.",
                is_disabled=True,
            ),
        ]
    return ProposedPipeline(name, tuple(entries), variables=tuple(settings.variables.values()))


def _find_function(request: Request) -> Any:
    """Return what the origin names, or None; then the source itself reports what is wrong."""
    module, _, name = request.origin.partition(":")
    place = str(request.folder)
    if place not in sys.path:
        sys.path.insert(0, place)
    importlib.invalidate_caches()
    try:
        return attrgetter(name)(importlib.import_module(module))
    except Exception:  # noqa: BLE001 - modules of users may raise anything
        return None


def _parameters(called: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(called).parameters
    except (TypeError, ValueError):
        return {}


def _schema_of(called: Any) -> dict[str, Any]:
    """Return the specification of a function's configuration: its parameters."""
    properties: dict[str, Any] = {}
    required = []
    for name, given in _parameters(called).items():
        if name == "state" or given.kind in {given.VAR_KEYWORD, given.VAR_POSITIONAL}:
            continue
        if given.default is given.empty:
            required.append(name)
            properties[name] = {"type": "string"}
        elif isinstance(given.default, str | int | float | bool):
            properties[name] = {"examples": [given.default]}
    return {"properties": properties, "required": required}
