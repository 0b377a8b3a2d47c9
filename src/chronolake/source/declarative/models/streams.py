"""Models of streams, cursors, retrievers, partition routers, schema loaders and dynamic streams.

- A stream has a retriever, which sends requests and extracts records from the responses.
- An incremental stream has a cursor. Source: `seeds/incremental-syncs.txt`.
- Properties are the fields that requests ask for by name, optionally in chunks.
- Async retrievers read export jobs, which the API prepares before they are downloaded.
- Dynamic schema loaders read field names and types from a response.
- Dynamic streams are generated from a template, conditional streams depend on a condition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from chronolake.source.declarative.models.base import (
    SEVERAL,
    Component,
    CustomComponent,
    CustomErrorHandler,
    CustomRecordExtractor,
    CustomSchemaLoader,
    CustomStateMigration,
    Truth,
    Unsupported,
)
from chronolake.source.declarative.models.pagination import (
    PageSizeReduction,
    PaginationReset,
    Paginator,
    RequestWindowSplitting,
)
from chronolake.source.declarative.models.records import (
    AnyRecordFilter,
    CombinedExtractor,
    Decoder,
    DpathExtractor,
    Extractor,
    RecordSelector,
    Transformation,
)
from chronolake.source.declarative.models.requests import (
    CompositeErrorHandler,
    ErrorHandler,
    HttpRequester,
    RequestOption,
)


class MinMaxDatetime(Component):
    """A time that is limited by a minimum and a maximum."""

    type: Literal["MinMaxDatetime"]
    datetime: str
    datetime_format: str = ""
    min_datetime: str | None = None
    max_datetime: str | None = None


class Clamping(Component):
    """The calendar periods (for example months) that the bounds of slices are aligned to."""

    target: str
    target_details: dict[str, Any] = Field(default_factory=dict)


class DatetimeBasedCursor(Component):
    """A cursor over time, which reads slices of one step each."""

    type: Literal["DatetimeBasedCursor"]
    cursor_field: str
    datetime_format: str
    cursor_datetime_formats: tuple[str, ...] = ()
    start_datetime: MinMaxDatetime | str
    end_datetime: MinMaxDatetime | str | None = None
    step: str | None = None
    cursor_granularity: str | None = None
    lookback_window: str | None = None
    start_time_option: RequestOption | None = None
    end_time_option: RequestOption | None = None
    partition_field_start: str | None = None
    partition_field_end: str | None = None
    clamping: Clamping | None = None
    global_substream_cursor: bool = False
    is_data_feed: bool = False
    is_client_side_incremental: Truth = False
    is_compare_strictly: bool = False


class IncrementingCountCursor(Component):
    """A cursor over a number that only grows."""

    type: Literal["IncrementingCountCursor"]
    cursor_field: str
    start_value: int | str | None = None
    start_value_option: RequestOption | None = None


IncrementalSync = Annotated[
    DatetimeBasedCursor | IncrementingCountCursor, Field(discriminator="type")
]


class PropertiesFromEndpoint(Component):
    """A list of properties that is read from the API: each record of a retriever names one."""

    type: Literal["PropertiesFromEndpoint"]
    property_field_path: list[str] = Field(min_length=1)
    retriever: SimpleRetriever


class GroupByKeyMergeStrategy(Component):
    """A merge strategy that combines records with equal values in the key fields."""

    type: Literal["GroupByKeyMergeStrategy"]
    key: Annotated[tuple[str, ...], SEVERAL]


class PropertyChunking(Component):
    """The limit of properties, or of characters in their names, for one request."""

    type: Literal["PropertyChunking"]
    property_limit_type: Literal["characters", "property_count"]
    property_limit: int | None = None
    record_merge_strategy: GroupByKeyMergeStrategy | None = None


class JsonSchemaPropertySelector(Component):
    """A selector of the properties in the stream's schema, after its names are transformed."""

    type: Literal["JsonSchemaPropertySelector"]
    transformations: Annotated[tuple[Transformation, ...], SEVERAL] = ()


class QueryProperties(Component):
    """The properties (fields) that requests ask for."""

    type: Literal["QueryProperties"]
    property_list: PropertiesFromEndpoint | tuple[str, ...]
    always_include_properties: tuple[str, ...] | None = None
    property_chunking: PropertyChunking | None = None
    property_selector: JsonSchemaPropertySelector | None = None


#: Actions that only the requester of a stream's pages supports.
_PAGE_ACTIONS = frozenset({"REDUCE_PAGE_SIZE", "SPLIT_REQUEST_WINDOW"})


class AsyncJobStatusMap(Component):
    """The names that an API uses for the statuses of an export job."""

    type: Literal["AsyncJobStatusMap"] = "AsyncJobStatusMap"
    running: list[str]
    completed: list[str]
    failed: list[str]
    timeout: list[str]
    skipped: list[str] | None = None

    @model_validator(mode="after")
    def _check_distinct_names(self) -> Self:
        names = [
            *self.running,
            *self.completed,
            *self.failed,
            *self.timeout,
            *(self.skipped or ()),
        ]
        for status, times in Counter(names).items():
            if times > 1:
                raise ValueError(f"the status {status!r} is listed {times} times")
        return self


class ResponseToFileExtractor(Component):
    """An extractor of CSV downloads, optionally compressed, in which some words mean null."""

    type: Literal["ResponseToFileExtractor"]
    preserve_na_values: bool = False


DownloadExtractor = Annotated[
    DpathExtractor | CombinedExtractor | ResponseToFileExtractor | CustomRecordExtractor,
    Field(discriminator="type"),
]


class AsyncRetriever(Component):
    """A retriever of export jobs: it creates a job, polls its status and downloads the result."""

    type: Literal["AsyncRetriever"]
    record_selector: RecordSelector
    status_mapping: AsyncJobStatusMap
    status_extractor: Extractor
    download_target_extractor: Extractor | None = None
    download_extractor: DownloadExtractor | None = None
    creation_requester: HttpRequester
    polling_requester: HttpRequester
    polling_job_timeout: int | str | None = None
    failed_retry_wait_time_in_seconds: int | str | None = None
    download_target_requester: HttpRequester | None = None
    download_requester: HttpRequester
    download_paginator: Paginator | None = None
    abort_requester: HttpRequester | None = None
    delete_requester: HttpRequester | None = None
    partition_router: Annotated[tuple[PartitionRouter, ...], SEVERAL] = ()
    decoder: Decoder | None = None
    download_decoder: Decoder | None = None

    @model_validator(mode="after")
    def _check_requesters(self) -> Self:
        if self.download_target_requester and not self.download_target_extractor:
            raise ValueError("a download_target_requester needs a download_target_extractor")
        for name, value in self:
            if isinstance(value, HttpRequester):
                unsupported = sorted(_actions_of(value.error_handler) & _PAGE_ACTIONS)
                if unsupported:
                    raise ValueError(f"the {name} does not support the action {unsupported[0]}")
        return self


def _actions_of(handler: ErrorHandler | None) -> set[str]:
    if handler is None or isinstance(handler, CustomErrorHandler):
        return set()
    if isinstance(handler, CompositeErrorHandler):
        return set().union(*map(_actions_of, handler.error_handlers))
    return {filter_.action for filter_ in handler.response_filters or () if filter_.action}


class ComplexFieldType(BaseModel):
    """A type that may also contain the type of its items."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    field_type: str
    items: str | ComplexFieldType | None = None

    @model_validator(mode="after")
    def _check_items(self) -> Self:
        if self.items and self.field_type != "array":
            raise ValueError("only an array can have items")
        return self


class TypesMap(BaseModel):
    """A mapping from the API's name of a type to a JSON schema type."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    target_type: str | list[str] | ComplexFieldType
    current_type: str | list[str]
    condition: str | None = None


class SchemaTypeIdentifier(Component):
    """The paths of the fields in a response, and of each field's name and type."""

    # The default applies if a manifest omits the type: nothing else would identify it.
    type: Literal["SchemaTypeIdentifier"] = "SchemaTypeIdentifier"
    schema_pointer: tuple[str, ...] = ()
    key_pointer: tuple[str, ...]
    type_pointer: tuple[str, ...] | None = None
    types_mapping: tuple[TypesMap, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _remove_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {key: value for key, value in data.items() if value is not None}


class InlineSchemaLoader(Component):
    """A stream's schema that is part of the manifest."""

    type: Literal["InlineSchemaLoader"]
    # Pydantic has a method named `schema`.
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")


class JsonFileSchemaLoader(Component):
    """A stream's schema in a file next to the manifest."""

    type: Literal["JsonFileSchemaLoader"]
    file_path: str | None = None


class ParentStreamConfig(Component):
    """A parent stream, whose records are the partitions of another stream."""

    type: Literal["ParentStreamConfig"]
    stream: AnyStream
    parent_key: str
    partition_field: str
    request_option: RequestOption | None = None
    incremental_dependency: bool = False
    extra_fields: Annotated[tuple[tuple[str, ...], ...], SEVERAL] = ()
    lazy_read_pointer: Annotated[tuple[str, ...], SEVERAL] = ()

    @field_validator("lazy_read_pointer")
    @classmethod
    def _check_pointer(cls, pointer: tuple[str, ...]) -> tuple[str, ...]:
        if any("*" in part for part in pointer):
            raise ValueError("a lazy_read_pointer must not contain a *")
        return pointer


class SubstreamPartitionRouter(Component):
    """A router with a partition for each record of its parent streams."""

    type: Literal["SubstreamPartitionRouter"]
    parent_stream_configs: tuple[ParentStreamConfig, ...] = Field(min_length=1)


class ListPartitionRouter(Component):
    """A router with a partition for each of a list of values."""

    type: Literal["ListPartitionRouter"]
    cursor_field: str
    values: str | tuple[Any, ...]
    request_option: RequestOption | None = None


class CustomPartitionRouter(CustomComponent):
    """A router whose partitions are returned by a class of the connector."""

    type: Literal["CustomPartitionRouter"]
    parent_stream_configs: tuple[ParentStreamConfig, ...] = ()


class UnionPartitionRouter(Component):
    """A router with the partitions of several routers, without duplicates."""

    type: Literal["UnionPartitionRouter"]
    partition_field: str
    partition_routers: tuple[
        Annotated[
            SubstreamPartitionRouter
            | ListPartitionRouter
            | UnionPartitionRouter
            | CustomPartitionRouter,
            Field(discriminator="type"),
        ],
        ...,
    ] = Field(min_length=2)

    @field_validator("partition_routers")
    @classmethod
    def _check_no_request_options(
        cls, routers: tuple[PartitionRouter, ...]
    ) -> tuple[PartitionRouter, ...]:
        for router in routers:
            options = (
                [parent.request_option for parent in router.parent_stream_configs]
                if isinstance(router, SubstreamPartitionRouter)
                else [router.request_option]
                if isinstance(router, ListPartitionRouter)
                else []
            )
            if any(options):
                raise ValueError(
                    "the routers of a UnionPartitionRouter must not have a request_option"
                )
        return routers


class GroupingPartitionRouter(Component):
    """A router that groups the partitions of another router."""

    type: Literal["GroupingPartitionRouter"]
    group_size: int = Field(ge=1)
    underlying_partition_router: Annotated[
        SubstreamPartitionRouter
        | ListPartitionRouter
        | UnionPartitionRouter
        | CustomPartitionRouter,
        Field(discriminator="type"),
    ]
    deduplicate: bool = True


PartitionRouter = Annotated[
    SubstreamPartitionRouter
    | ListPartitionRouter
    | UnionPartitionRouter
    | GroupingPartitionRouter
    | CustomPartitionRouter,
    Field(discriminator="type"),
]


class SimpleRetriever(Component):
    """A retriever that requests records page by page."""

    type: Literal["SimpleRetriever"]
    requester: HttpRequester
    record_selector: RecordSelector
    decoder: Decoder | None = None
    paginator: Paginator | None = None
    partition_router: Annotated[tuple[PartitionRouter, ...], SEVERAL] = ()
    ignore_stream_slicer_parameters_on_paginated_requests: bool = False
    pagination_reset: PaginationReset | None = None
    page_size_reduction: PageSizeReduction | None = None
    request_window_splitting: RequestWindowSplitting | None = None
    #: The requester's query properties, collected from every place where it may define them.
    properties: QueryProperties | None = None

    @model_validator(mode="before")
    @classmethod
    def _collect_properties(cls, data: Any) -> Any:
        requester = data.get("requester") if isinstance(data, dict) else None
        if not isinstance(requester, dict):
            return data
        definitions = list(_properties_of(requester))
        if len(definitions) > 1:
            raise ValueError(
                "a requester must have only one QueryProperties or one property endpoint"
            )
        return {**data, "properties": definitions[0]} if definitions else data


def _properties_of(requester: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the query properties that a requester defines."""
    parameters = requester.get("request_parameters")
    values = parameters.values() if isinstance(parameters, dict) else ()
    in_parameters = [
        value
        for value in values
        if isinstance(value, dict) and value.get("type") == "QueryProperties"
    ]
    yield from in_parameters
    if endpoint := requester.get("fetch_properties_from_endpoint"):
        yield {"type": "QueryProperties", "property_list": endpoint}
    elif (query := requester.get("query_properties")) and not in_parameters:
        yield query


Retriever = Annotated[SimpleRetriever | AsyncRetriever, Field(discriminator="type")]


class DynamicSchemaLoader(Component):
    """A schema loader that derives a stream's schema from the first record of a retriever."""

    type: Literal["DynamicSchemaLoader"]
    retriever: Retriever
    schema_type_identifier: SchemaTypeIdentifier
    schema_filter: AnyRecordFilter | None = None
    schema_transformations: Annotated[tuple[Transformation, ...], SEVERAL] = ()

    @field_validator("retriever")
    @classmethod
    def _check_single_job(cls, retriever: Retriever) -> Retriever:
        if isinstance(retriever, AsyncRetriever) and retriever.partition_router:
            raise ValueError("an AsyncRetriever for a schema must not have a partition_router")
        return retriever


SchemaLoader = Annotated[
    InlineSchemaLoader | JsonFileSchemaLoader | DynamicSchemaLoader | CustomSchemaLoader,
    Field(discriminator="type"),
]


class LegacyToPerPartitionStateMigration(Component):
    """A migration of states of old connectors, which are keyed by the partitions' values."""

    type: Literal["LegacyToPerPartitionStateMigration"]


StateMigration = Annotated[
    LegacyToPerPartitionStateMigration | CustomStateMigration, Field(discriminator="type")
]


class DeclarativeStream(Component):
    """A stream of a manifest."""

    type: Literal["DeclarativeStream"]
    name: str = ""
    primary_key: str | tuple[str | tuple[str, ...], ...] | None = None
    retriever: Retriever
    incremental_sync: IncrementalSync | None = None
    schema_loader: Annotated[tuple[SchemaLoader, ...], SEVERAL] = ()
    transformations: Annotated[tuple[Transformation, ...], SEVERAL] = ()
    state_migrations: Annotated[tuple[StateMigration, ...], SEVERAL] = ()
    file_uploader: Unsupported = None


class StateDelegatingStream(Component):
    """Two streams: one is read while there is no saved state, the other one afterwards."""

    type: Literal["StateDelegatingStream"]
    name: str
    full_refresh_stream: DeclarativeStream
    incremental_stream: DeclarativeStream
    api_retention_period: str | None = None


AnyStream = Annotated[DeclarativeStream | StateDelegatingStream, Field(discriminator="type")]

for _component in (
    PropertiesFromEndpoint,
    QueryProperties,
    AsyncRetriever,
    ParentStreamConfig,
    SubstreamPartitionRouter,
    CustomPartitionRouter,
    UnionPartitionRouter,
    GroupingPartitionRouter,
    SimpleRetriever,
    DeclarativeStream,
    StateDelegatingStream,
):
    _component.model_rebuild()


class ComponentMappingDefinition(Component):
    """A value to set at a path of the template of a dynamic stream."""

    type: Literal["ComponentMappingDefinition"]
    field_path: tuple[str, ...] = Field(min_length=1)
    value: str
    value_type: Literal["string", "number", "integer", "boolean"] | None = None
    create_or_update: bool = False
    condition: str | None = None


def _check_unconditional(
    mappings: tuple[ComponentMappingDefinition, ...],
) -> tuple[ComponentMappingDefinition, ...]:
    if any(mapping.condition for mapping in mappings):
        raise ValueError("only mappings of a ConfigComponentsResolver can have a condition")
    return mappings


_Unconditional = Annotated[
    tuple[ComponentMappingDefinition, ...], AfterValidator(_check_unconditional)
]


class HttpComponentsResolver(Component):
    """A resolver that generates a stream for each record of a retriever."""

    type: Literal["HttpComponentsResolver"]
    retriever: Retriever
    components_mapping: _Unconditional


class StreamConfig(Component):
    """A path to a list in the configuration, whose items become streams."""

    type: Literal["StreamConfig"]
    configs_pointer: tuple[str, ...]
    default_values: tuple[Any, ...] | None = None


class ConfigComponentsResolver(Component):
    """A resolver that generates a stream for each item, or combination of items, in the config."""

    type: Literal["ConfigComponentsResolver"]
    stream_config: Annotated[tuple[StreamConfig, ...], SEVERAL] = Field(min_length=1)
    components_mapping: tuple[ComponentMappingDefinition, ...]


class StreamParametersDefinition(Component):
    """A list of stream parameters in the manifest."""

    type: Literal["StreamParametersDefinition"]
    list_of_parameters_for_stream: tuple[dict[str, Any], ...]


class ParametrizedComponentsResolver(Component):
    """A resolver that generates a stream for each item of a list in the manifest."""

    type: Literal["ParametrizedComponentsResolver"]
    stream_parameters: StreamParametersDefinition
    components_mapping: _Unconditional


ComponentsResolver = Annotated[
    HttpComponentsResolver | ConfigComponentsResolver | ParametrizedComponentsResolver,
    Field(discriminator="type"),
]


class DynamicDeclarativeStream(Component):
    """A template of streams, with the resolver that generates streams from it."""

    type: Literal["DynamicDeclarativeStream"]
    name: str = ""
    stream_template: dict[str, Any]
    components_resolver: ComponentsResolver
    use_parent_parameters: bool = True


class ConditionalStreams(Component):
    """Streams that exist only if a condition holds."""

    type: Literal["ConditionalStreams"]
    condition: str | bool
    streams: list[Any]
