"""The JSON schema of a stream's records: in the manifest, in a file beside it, or from the API."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import orjson

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.language.custom import CustomSchemaLoader
from chronolake.source.declarative.language.reports import AsyncRetriever
from chronolake.source.declarative.language.streams import DynamicSchemaLoader, InlineSchemaLoader
from chronolake.source.declarative.manifests.fieldtypes import schema_in
from chronolake.source.declarative.paging.pages import Retrieval
from chronolake.source.declarative.paging.reports import Reports, downloads_of
from chronolake.source.declarative.streamslice import StreamSlice
from chronolake.source.declarative.templating.templates import as_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from chronolake.source.declarative.api import Api
    from chronolake.source.declarative.language.streams import (
        DeclarativeStream,
        Retriever,
        SchemaLoader,
        SimpleRetriever,
    )
    from chronolake.source.declarative.records.transformations import Record

#: What is read where the API tells a schema.
_NAME: Final = "dynamic_properties"
#: A file's place names the connector's Python package first.
_PACKAGE: Final = re.compile(r"(\./)?source_[a-z0-9_]+/")


def schema_of(stream: DeclarativeStream, api: Api) -> dict[str, Any]:
    """A stream's schema; empty if there is none.

    Args:
        stream: the stream.
        api: its manifest's folder has the schema files; and it is asked where it tells the schema.

    Raises:
        ConfigurationError: a schema file cannot be read, or is elsewhere.
        SourceError: the API does not tell the schema.
    """
    loaders, file = stream.schema_loader, api.file
    if not loaders:
        beside = file.parent / "schemas" / f"{stream.name}.json"
        return _read(beside) if beside.is_file() else {}
    if len(loaders) == 1:
        return _loaded(loaders[0], stream, api)
    properties: dict[str, Any] = {}
    for loader in loaders:
        properties = {**_loaded(loader, stream, api).get("properties", {}), **properties}
    return {"type": ["null", "object"], "properties": properties}


def _loaded(loader: SchemaLoader, stream: DeclarativeStream, api: Api) -> dict[str, Any]:
    file = api.file
    if isinstance(loader, InlineSchemaLoader):
        return loader.schema_
    if isinstance(loader, DynamicSchemaLoader):
        return schema_in(next(_records(loader.retriever, api), None), loader, api.config)
    if isinstance(loader, CustomSchemaLoader):
        schema: dict[str, Any] = loader.calls.mapping("get_json_schema") or {}
        return schema
    if not loader.file_path:
        return _read(file.parent / "schemas" / f"{stream.name}.json")
    told = as_text(loader.file_path, {"config": api.config, "parameters": loader.parameters})
    path = (file.parent / _PACKAGE.sub("", told, count=1)).resolve()
    if not path.is_relative_to(file.parent.resolve()):
        raise ConfigurationError(
            f"{file}: the stream {stream.name} has a schema outside of the manifest's folder.",
            hint="Put its schema file below the manifest's folder.",
        )
    return _read(path)


def asked_once(retriever: SimpleRetriever) -> SimpleRetriever:
    """A retriever whose answers are kept: who asks the same again in a run gets them."""
    requester = retriever.requester.model_copy(update={"use_cache": True})
    return retriever.model_copy(update={"requester": requester})


def _records(retriever: Retriever, api: Api) -> Iterator[Record]:
    """What a retriever brings without a slice: partitions tell no schemas."""
    whole = StreamSlice()
    if not isinstance(retriever, AsyncRetriever):
        yield from Retrieval(asked_once(retriever), api, _NAME).records(whole)
        return
    downloads = Retrieval(downloads_of(retriever), api, _NAME)
    for batch in Reports(retriever, api, "schema").batches(whole):
        yield from downloads.selected(batch, whole, lambda _: True).records


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
