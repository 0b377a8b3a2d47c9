"""Schemas that the API tells: the fields that a record lists, and what their types are."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

from chronolake.errors import SourceError
from chronolake.source.declarative.components.responses import slice_seen
from chronolake.source.declarative.language.custom import CustomRecordFilter
from chronolake.source.declarative.language.schemas import ComplexFieldType
from chronolake.source.declarative.records.fieldpaths import MISSING, only_value, path_of
from chronolake.source.declarative.records.transformations import step_of
from chronolake.source.declarative.streamslice import StreamSlice
from chronolake.source.declarative.templating.templates import as_truth

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chronolake.source.declarative.language.schemas import SchemaTypeIdentifier
    from chronolake.source.declarative.language.streams import DynamicSchemaLoader
    from chronolake.source.declarative.records.transformations import Record

_AIRBYTE: Final = "airbyte_type"
#: What manifests call types, and what they are in a schema.
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


def schema_in(
    record: Record | None, loader: DynamicSchemaLoader, config: Mapping[str, Any]
) -> dict[str, Any]:
    """The schema that a record tells.

    Args:
        record: the record; None: there was none, and there are no fields.
        loader: where in it the fields are.
        config: what the user has set.

    Raises:
        SourceError: the record tells no fields there, or one with no name or an unknown type.
        ConfigurationError: a template cannot be evaluated.
    """
    identifier = loader.schema_type_identifier
    fields: Any = []
    if record:
        fields = _at(record, identifier.schema_pointer, identifier, config)
    if not isinstance(fields, list | dict):
        raise SourceError(
            "The API's answer has no list of fields where the manifest looks for it.",
            hint=f"Look at the schema_pointer: {list(identifier.schema_pointer)}.",
        )
    properties: dict[str, Any] = {}
    for field in fields:
        name = _at(field, identifier.key_pointer, identifier, config)
        if not isinstance(name, str):
            raise SourceError(
                "The API tells a field without a name.",
                hint=f"Look at the key_pointer: {list(identifier.key_pointer)}.",
            )
        properties[name] = _type_of(field, name, identifier, config)
    return {
        "$schema": "https://json-schema.org/draft-07/schema#",
        "type": "object",
        "additionalProperties": True,
        "properties": _changed(_kept(properties, loader, config), loader, config),
    }


def _at(
    value: Any,
    pointer: tuple[str, ...],
    identifier: SchemaTypeIdentifier,
    config: Mapping[str, Any],
    default: Any = None,
) -> Any:
    found = only_value(value, path_of(pointer, config, identifier.parameters))
    return default if found is MISSING else found


def _type_of(
    field: Any, name: str, identifier: SchemaTypeIdentifier, config: Mapping[str, Any]
) -> dict[str, Any]:
    told: Any = "string"
    if identifier.type_pointer:
        told = _at(field, identifier.type_pointer, identifier, config, default="string")
    variables = {"config": config, "parameters": {}, "raw_schema": field}
    for one in identifier.types_mapping:
        if told == one.current_type and (
            one.condition is None or as_truth(one.condition, variables)
        ):
            told = one.target_type
            break
    if isinstance(told, ComplexFieldType):
        return _complex(told, name)
    if isinstance(told, list) and len(told) == _EITHER:
        return {"oneOf": [_named(one, name) for one in told]}
    return _named(told, name)


def _complex(told: ComplexFieldType, name: str) -> dict[str, Any]:
    found = _named(told.field_type, name)
    if told.items:
        items = told.items
        found["items"] = (
            _complex(items, name) if isinstance(items, ComplexFieldType) else _named(items, name)
        )
    return found


def _named(told: Any, name: str) -> dict[str, Any]:
    found = _TYPES.get(told) if isinstance(told, str) else None
    if found is None:
        raise SourceError(
            f"The API tells a type of the field {name} that nobody knows.",
            hint="Add it to the manifest's types_mapping.",
        )
    return deepcopy(dict(found))


def _kept(
    properties: dict[str, Any], loader: DynamicSchemaLoader, config: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields for which the filter holds; it sees each as an object with that one key."""
    if loader.schema_filter is None:
        return properties
    if isinstance(loader.schema_filter, CustomRecordFilter):
        fields = [{name: one} for name, one in properties.items()]
        kept = loader.schema_filter.calls.listed(
            "filter_records",
            fields,
            stream_state={},
            stream_slice=slice_seen(StreamSlice()),
            next_page_token=None,
        )
        return {name: one for field in kept for name, one in field.items()}
    condition = loader.schema_filter.condition
    variables = {
        "config": config,
        "parameters": loader.schema_filter.parameters,
        "stream_slice": StreamSlice(),
        "next_page_token": None,
    }
    return {
        name: one
        for name, one in properties.items()
        if as_truth(condition, {**variables, "record": {name: one}})
    }


def _changed(
    properties: dict[str, Any], loader: DynamicSchemaLoader, config: Mapping[str, Any]
) -> dict[str, Any]:
    for one in loader.schema_transformations:
        context = {"config": config, "stream_slice": StreamSlice()}
        properties = step_of(one, config)(context)(properties)
    return properties
