"""The JSON schema of a stream's records: in the manifest, or in a file beside it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import orjson

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.language.streams import InlineSchemaLoader
from chronolake.source.declarative.templates import as_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from chronolake.source.declarative.language.streams import DeclarativeStream, SchemaLoader

#: A file's place names the connector's Python package first.
_PACKAGE: Final = re.compile(r"(\./)?source_[a-z0-9_]+/")


def schema_of(stream: DeclarativeStream, file: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """A stream's schema; empty if there is none.

    Args:
        stream: the stream.
        file: the manifest: schema files are in its folder, or below it.
        config: what the user has set.

    Raises:
        ConfigurationError: a schema file cannot be read, or is elsewhere.
    """
    loaders = stream.schema_loader
    if not loaders:
        beside = file.parent / "schemas" / f"{stream.name}.json"
        return _read(beside) if beside.is_file() else {}
    if len(loaders) == 1:
        return _loaded(loaders[0], stream, file, config)
    properties: dict[str, Any] = {}
    for loader in loaders:
        properties = {**_loaded(loader, stream, file, config).get("properties", {}), **properties}
    return {"type": ["null", "object"], "properties": properties}


def _loaded(
    loader: SchemaLoader, stream: DeclarativeStream, file: Path, config: Mapping[str, Any]
) -> dict[str, Any]:
    if isinstance(loader, InlineSchemaLoader):
        return loader.schema_
    if not loader.file_path:
        return _read(file.parent / "schemas" / f"{stream.name}.json")
    told = as_text(loader.file_path, {"config": config, "parameters": loader.parameters})
    path = (file.parent / _PACKAGE.sub("", told, count=1)).resolve()
    if not path.is_relative_to(file.parent.resolve()):
        raise ConfigurationError(
            f"{file}: the stream {stream.name} has a schema outside of the manifest's folder.",
            hint="Put its schema file below the manifest's folder.",
        )
    return _read(path)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = orjson.loads(path.read_bytes())
    except OSError as failure:
        raise ConfigurationError(
            f"The schema {path} cannot be read: {failure.strerror}.",
            hint="Put the connector's folder `schemas` beside its manifest.",
        ) from failure
    except ValueError as failure:
        raise ConfigurationError(f"The schema {path} is no JSON.") from failure
    return found if isinstance(found, dict) else {}
