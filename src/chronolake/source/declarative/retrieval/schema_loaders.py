"""Schema loaders: the JSON schema of a stream's records.

A schema is part of the manifest, is stored in a file next to it, is built from an API response that
lists fields and types, or is returned by a custom class.
"""

from __future__ import annotations

import re
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

import orjson

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.field_paths import evaluate_path, get_only_value
from chronolake.source.declarative.models.base import CustomRecordFilter, CustomSchemaLoader
from chronolake.source.declarative.models.streams import (
    AsyncRetriever,
    ComplexFieldType,
    DynamicSchemaLoader,
    InlineSchemaLoader,
)
from chronolake.source.declarative.records.transformations import create_step
from chronolake.source.declarative.retrieval.async_jobs import AsyncJobs, downloads_of
from chronolake.source.declarative.retrieval.pages import Retrieval
from chronolake.source.declarative.stream_slice import StreamSlice, slice_for_class
from chronolake.source.declarative.templating.templates import as_text, as_truth
from chronolake.source.records.lookup import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from chronolake.source.declarative.api import Api
    from chronolake.source.declarative.models.streams import (
        DeclarativeStream,
        Retriever,
        SchemaLoader,
        SchemaTypeIdentifier,
        SimpleRetriever,
    )
    from chronolake.source.declarative.records.transformations import Record


_AIRBYTE: Final = "airbyte_type"
#: The JSON schema of each type name that manifests use.
_TYPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "string": {"type": ["null", "string"]},
    "boolean": {"type": ["null", "boolean"]},
    "date": {"type": ["null", "string"], "format": "date"},
    "timestamp_without_timezone": {
        "type": ["null", "string"],
        "format": "date-time",
        _AIRBYTE: "timestamp_without_timezone",
    },
    "timestamp_with_timezone": {"type": ["null", "string"], "format": "date-time"},
    "time_without_timezone": {
        "type": ["null", "string"],
        "format": "time",
        _AIRBYTE: "time_without_timezone",
    },
    "time_with_timezone": {
        "type": ["null", "string"],
        "format": "time",
        _AIRBYTE: "time_with_timezone",
    },
    "integer": {"type": ["null", "integer"]},
    "number": {"type": ["null", "number"]},
    "array": {"type": ["null", "array"]},
    "object": {"type": ["null", "object"]},
}
_EITHER: Final = 2


def build_schema(
    record: Record | None, loader: DynamicSchemaLoader, config: Mapping[str, Any]
) -> dict[str, Any]:
    """Build a schema from a record that lists fields and types.

    Args:
        record: the record, or None if the API returned none, which gives a schema without fields.
        loader: the paths of the fields in the record.
        config: the user's configuration.

    Raises:
        SourceError: the record has no list of fields there, or a field without a name or with an
            unknown type.
        ConfigurationError: a template cannot be evaluated.
    """
    identifier = loader.schema_type_identifier
    fields: Any = []
    if record:
        fields = _value_at(record, identifier.schema_pointer, identifier, config)
    if not isinstance(fields, list | dict):
        raise SourceError(
            "The API's response has no list of fields at the manifest's schema_pointer.",
            hint=f"Correct the schema_pointer: {list(identifier.schema_pointer)}.",
        )
    properties: dict[str, Any] = {}
    for field in fields:
        name = _value_at(field, identifier.key_pointer, identifier, config)
        if not isinstance(name, str):
            raise SourceError(
                "The API returned a field without a name.",
                hint=f"Correct the key_pointer: {list(identifier.key_pointer)}.",
            )
        properties[name] = _field_schema(field, name, identifier, config)
    return {
        "$schema": "https://json-schema.org/draft-07/schema#",
        "type": "object",
        "additionalProperties": True,
        "properties": _transform_fields(_filter_fields(properties, loader, config), loader, config),
    }


def _value_at(
    value: Any,
    pointer: tuple[str, ...],
    identifier: SchemaTypeIdentifier,
    config: Mapping[str, Any],
    default: Any = None,
) -> Any:
    found = get_only_value(value, evaluate_path(pointer, config, identifier.parameters))
    return default if found is MISSING else found


def _field_schema(
    field: Any, name: str, identifier: SchemaTypeIdentifier, config: Mapping[str, Any]
) -> dict[str, Any]:
    reported: Any = "string"
    if identifier.type_pointer:
        reported = _value_at(field, identifier.type_pointer, identifier, config, default="string")
    variables = {"config": config, "parameters": {}, "raw_schema": field}
    for mapping in identifier.types_mapping:
        if reported == mapping.current_type and (
            mapping.condition is None or as_truth(mapping.condition, variables)
        ):
            reported = mapping.target_type
            break
    if isinstance(reported, ComplexFieldType):
        return _complex_schema(reported, name)
    if isinstance(reported, list) and len(reported) == _EITHER:
        return {"oneOf": [_named_schema(mapping, name) for mapping in reported]}
    return _named_schema(reported, name)


def _complex_schema(field_type: ComplexFieldType, name: str) -> dict[str, Any]:
    found = _named_schema(field_type.field_type, name)
    if field_type.items:
        items = field_type.items
        found["items"] = (
            _complex_schema(items, name)
            if isinstance(items, ComplexFieldType)
            else _named_schema(items, name)
        )
    return found


def _named_schema(type_name: Any, name: str) -> dict[str, Any]:
    found = _TYPES.get(type_name) if isinstance(type_name, str) else None
    if found is None:
        raise SourceError(
            f"The API returned an unknown type for the field {name}.",
            hint="Add the type to the manifest's types_mapping.",
        )
    return deepcopy(dict(found))


def _filter_fields(
    properties: dict[str, Any], loader: DynamicSchemaLoader, config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields that the filter keeps.

    The filter sees each field as an object with one key.
    """
    if loader.schema_filter is None:
        return properties
    if isinstance(loader.schema_filter, CustomRecordFilter):
        fields = [{name: property_} for name, property_ in properties.items()]
        kept = loader.schema_filter.calls.call_for_list(
            "filter_records",
            fields,
            stream_state={},
            stream_slice=slice_for_class(StreamSlice()),
            next_page_token=None,
        )
        return {name: schema for field in kept for name, schema in field.items()}
    condition = loader.schema_filter.condition
    variables = {
        "config": config,
        "parameters": loader.schema_filter.parameters,
        "stream_slice": StreamSlice(),
        "next_page_token": None,
    }
    return {
        name: property_
        for name, property_ in properties.items()
        if as_truth(condition, {**variables, "record": {name: property_}})
    }


def _transform_fields(
    properties: dict[str, Any], loader: DynamicSchemaLoader, config: Mapping[str, Any]
) -> dict[str, Any]:
    for transformation in loader.schema_transformations:
        context = {"config": config, "stream_slice": StreamSlice()}
        properties = create_step(transformation, config)(context)(properties)
    return properties


#: The name under which schema requests are sent.
_NAME: Final = "dynamic_properties"
#: Paths of schema files may start with the name of the connector's Python package.
_PACKAGE: Final = re.compile(r"(\./)?source_[a-z0-9_]+/")


def load_schema(stream: DeclarativeStream, api: Api) -> dict[str, Any]:
    """Return a stream's schema, or an empty one if the stream has none.

    Schema files are located in the folder of the API's manifest. Dynamic schema loaders call the
    API.

    Raises:
        ConfigurationError: a schema file cannot be read, or is outside the manifest's folder.
        SourceError: the API does not return the schema.
    """
    loaders, file = stream.schema_loader, api.file
    if not loaders:
        beside = file.parent / "schemas" / f"{stream.name}.json"
        return _read_file(beside) if beside.is_file() else {}
    if len(loaders) == 1:
        return _load(loaders[0], stream, api)
    properties: dict[str, Any] = {}
    for loader in loaders:
        properties = {**_load(loader, stream, api).get("properties", {}), **properties}
    return {"type": ["null", "object"], "properties": properties}


def _load(loader: SchemaLoader, stream: DeclarativeStream, api: Api) -> dict[str, Any]:
    file = api.file
    if isinstance(loader, InlineSchemaLoader):
        return loader.schema_
    if isinstance(loader, DynamicSchemaLoader):
        return build_schema(next(_read_records(loader.retriever, api), None), loader, api.config)
    if isinstance(loader, CustomSchemaLoader):
        schema: dict[str, Any] = loader.calls.call_for_mapping("get_json_schema") or {}
        return schema
    if not loader.file_path:
        return _read_file(file.parent / "schemas" / f"{stream.name}.json")
    reported = as_text(loader.file_path, {"config": api.config, "parameters": loader.parameters})
    path = (file.parent / _PACKAGE.sub("", reported, count=1)).resolve()
    if not path.is_relative_to(file.parent.resolve()):
        raise ConfigurationError(
            f"{file}: the schema of the stream {stream.name} is outside the manifest's folder.",
            hint="Move the schema file into the manifest's folder.",
        )
    return _read_file(path)


def with_response_cache(retriever: SimpleRetriever) -> SimpleRetriever:
    """Return a retriever with a response cache, so that a run sends equal requests only once."""
    requester = retriever.requester.model_copy(update={"use_cache": True})
    return retriever.model_copy(update={"requester": requester})


def _read_records(retriever: Retriever, api: Api) -> Iterator[Record]:
    """Yield a retriever's records without partitions, because partitions do not affect schemas."""
    whole = StreamSlice()
    if not isinstance(retriever, AsyncRetriever):
        yield from Retrieval(with_response_cache(retriever), api, _NAME).records(whole)
        return
    downloads = Retrieval(downloads_of(retriever), api, _NAME)
    for batch in AsyncJobs(retriever, api, "schema").batches(whole):
        yield from downloads.select(batch, whole, lambda _: True).records


def _read_file(path: Path) -> dict[str, Any]:
    try:
        found = orjson.loads(path.read_bytes())
    except OSError as failure:
        raise ConfigurationError(
            f"The schema {path} cannot be read: {failure.strerror}.",
            hint="Put the connector's folder `schemas` next to its manifest.",
        ) from failure
    except ValueError as failure:
        raise ConfigurationError(f"The schema {path} is not valid JSON.") from failure
    return found if isinstance(found, dict) else {}
