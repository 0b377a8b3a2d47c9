"""What components have without saying so: kinds that their places give, and `$parameters`.

The rules are those of low-code connectors (`specs/airbyte-declarative.md`): a component gets the
parameters of all around it, its own over theirs, and each of them is a key of its own where it has
none of that name.
"""

from __future__ import annotations

from typing import Any, Final

from chronolake.source.declarative.manifests.located import Listed, Mapped

PARAMETERS: Final = "$parameters"

#: What a component is that stands at a place and does not say so.
KINDS: Final = {
    "CompositeErrorHandler.error_handlers": "DefaultErrorHandler",
    "CursorPagination.decoder": "JsonDecoder",
    "DatetimeBasedCursor.end_datetime": "MinMaxDatetime",
    "DatetimeBasedCursor.end_time_option": "RequestOption",
    "DatetimeBasedCursor.start_datetime": "MinMaxDatetime",
    "DatetimeBasedCursor.start_time_option": "RequestOption",
    "DeclarativeSource.check": "CheckStream",
    "DeclarativeSource.spec": "Spec",
    "DeclarativeSource.streams": "DeclarativeStream",
    "DeclarativeStream.retriever": "SimpleRetriever",
    "DeclarativeStream.schema_loader": "JsonFileSchemaLoader",
    "DynamicDeclarativeStream.stream_template": "DeclarativeStream",
    "DynamicDeclarativeStream.components_resolver": "ConfigComponentResolver",
    "HttpComponentsResolver.retriever": "SimpleRetriever",
    "HttpComponentsResolver.components_mapping": "ComponentMappingDefinition",
    "ConfigComponentsResolver.stream_config": "StreamConfig",
    "ConfigComponentsResolver.components_mapping": "ComponentMappingDefinition",
    "DefaultErrorHandler.response_filters": "HttpResponseFilter",
    "DefaultPaginator.decoder": "JsonDecoder",
    "DefaultPaginator.page_size_option": "RequestOption",
    "DpathExtractor.decoder": "JsonDecoder",
    "DpathExtractor.record_expander": "RecordExpander",
    "HttpRequester.error_handler": "DefaultErrorHandler",
    "ListPartitionRouter.request_option": "RequestOption",
    "ParentStreamConfig.request_option": "RequestOption",
    "ParentStreamConfig.stream": "DeclarativeStream",
    "RecordExpander.parent_fields": "ParentFieldPath",
    "RecordSelector.extractor": "DpathExtractor",
    "RecordSelector.record_filter": "RecordFilter",
    "SimpleRetriever.paginator": "NoPagination",
    "SimpleRetriever.record_selector": "RecordSelector",
    "SimpleRetriever.requester": "HttpRequester",
    "SubstreamPartitionRouter.parent_stream_configs": "ParentStreamConfig",
    "AddFields.fields": "AddedFieldDefinition",
    "CustomPartitionRouter.parent_stream_configs": "ParentStreamConfig",
    "DynamicSchemaLoader.retriever": "SimpleRetriever",
    "SchemaTypeIdentifier.types_map": "TypesMap",
}
#: The same for components that name a Python class.
_CUSTOM_KINDS: Final = {
    "CompositeErrorHandler.backoff_strategies": "CustomBackoffStrategy",
    "DeclarativeStream.retriever": "CustomRetriever",
    "DeclarativeStream.transformations": "CustomTransformation",
    "DefaultErrorHandler.backoff_strategies": "CustomBackoffStrategy",
    "DefaultPaginator.pagination_strategy": "CustomPaginationStrategy",
    "HttpRequester.authenticator": "CustomAuthenticator",
    "HttpRequester.error_handler": "CustomErrorHandler",
    "RecordSelector.extractor": "CustomRecordExtractor",
    "SimpleRetriever.partition_router": "CustomPartitionRouter",
}


def inherited(
    component: Mapped,
    place: str = "",
    given: dict[str, Any] | None = None,
    *,
    is_outer_first: bool = False,
) -> Mapped:
    """A copy of a component and all in it, with kinds and parameters in their places.

    Args:
        component: with its references resolved.
        place: its parent's kind and the key that it stands under, as `SimpleRetriever.paginator`.
        given: the parameters of all around it.
        is_outer_first: the parameters of all around a component go over its own.
    """
    found = Mapped(component.items(), dict(component.lines), component.incomplete)
    if "type" not in found:
        kinds = _CUSTOM_KINDS if "class_name" in found else KINDS
        if place in kinds:
            found["type"] = kinds[place]
    around, own = given or {}, _own(found)
    parameters = {**own, **around} if is_outer_first else {**around, **own}
    kind = found.get("type")
    if kind == "object" or isinstance(kind, list | dict):
        # A JSON schema has types of its own.
        return found
    if kind is None:
        for name, value in found.items():
            if isinstance(value, Mapped) and value.get("type"):
                found[name] = inherited(value, place, parameters, is_outer_first=is_outer_first)
        return found
    for name, value in parameters.items():
        found[name] = found.get(name) or value
    for name, value in found.items():
        # A parameter is not handed to what it stands for itself.
        handed = {key: one for key, one in parameters.items() if key != name}
        found[name] = _within(value, f"{kind}.{name}", handed, is_outer_first=is_outer_first)
    if parameters and PARAMETERS not in found:
        found[PARAMETERS] = parameters
    return found


def _own(component: Mapped) -> dict[str, Any]:
    """The parameters of a component, taken out of it; what are none stay, to be told."""
    told = component.get(PARAMETERS) or {}
    if not isinstance(told, dict):
        return {}
    component.pop(PARAMETERS, None)
    return told


def _within(value: Any, place: str, given: dict[str, Any], *, is_outer_first: bool) -> Any:
    """The same of what stands at a place: a component, several of them, or a plain value."""
    if isinstance(value, Mapped):
        return inherited(value, place, given, is_outer_first=is_outer_first)
    if not isinstance(value, Listed):
        return value
    items = (
        inherited(one, place, given, is_outer_first=is_outer_first)
        if isinstance(one, Mapped)
        else one
        for one in value
    )
    return Listed(items, value.lines)
