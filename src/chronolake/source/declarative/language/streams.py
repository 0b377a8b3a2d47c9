"""Streams: what is read with which requests, and what becomes of the answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from chronolake.source.declarative.language.base import SEVERAL, Component, Unsupported
from chronolake.source.declarative.language.cursors import IncrementalSync
from chronolake.source.declarative.language.custom import (
    CustomComponent,
    CustomSchemaLoader,
    CustomStateMigration,
)
from chronolake.source.declarative.language.options import RequestOption
from chronolake.source.declarative.language.paging import (
    PageSizeReduction,
    PaginationReset,
    Paginator,
    RequestWindowSplitting,
)
from chronolake.source.declarative.language.properties import (
    PropertiesFromEndpoint,
    QueryProperties,
)
from chronolake.source.declarative.language.records import (
    AnyRecordFilter,
    Decoder,
    RecordSelector,
    Transformation,
)
from chronolake.source.declarative.language.reports import AsyncRetriever
from chronolake.source.declarative.language.requests import HttpRequester
from chronolake.source.declarative.language.schemas import SchemaTypeIdentifier


class InlineSchemaLoader(Component):
    """A stream's schema, in the manifest itself."""

    type: Literal["InlineSchemaLoader"]
    # Pydantic has a method of that name.
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")


class JsonFileSchemaLoader(Component):
    """A stream's schema in a file beside the manifest."""

    type: Literal["JsonFileSchemaLoader"]
    file_path: str | None = None


class ParentStreamConfig(Component):
    """A stream whose records are the partitions of another."""

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
    def _leads_to_one_place(cls, pointer: tuple[str, ...]) -> tuple[str, ...]:
        if any("*" in part for part in pointer):
            raise ValueError("a lazy_read_pointer leads to one place, without a *")
        return pointer


class SubstreamPartitionRouter(Component):
    """A partition for each record of some parent streams."""

    type: Literal["SubstreamPartitionRouter"]
    parent_stream_configs: tuple[ParentStreamConfig, ...] = Field(min_length=1)


class ListPartitionRouter(Component):
    """A partition for each of some values."""

    type: Literal["ListPartitionRouter"]
    cursor_field: str
    values: str | tuple[Any, ...]
    request_option: RequestOption | None = None


class CustomPartitionRouter(CustomComponent):
    """Partitions that a class of the connector's own tells."""

    type: Literal["CustomPartitionRouter"]
    parent_stream_configs: tuple[ParentStreamConfig, ...] = ()


class UnionPartitionRouter(Component):
    """The partitions of several routers, each once."""

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
    def _put_nothing_into_requests(
        cls, routers: tuple[PartitionRouter, ...]
    ) -> tuple[PartitionRouter, ...]:
        for one in routers:
            options = (
                [parent.request_option for parent in one.parent_stream_configs]
                if isinstance(one, SubstreamPartitionRouter)
                else [one.request_option]
                if isinstance(one, ListPartitionRouter)
                else []
            )
            if any(options):
                raise ValueError("the routers of a UnionPartitionRouter have no request_option")
        return routers


class GroupingPartitionRouter(Component):
    """Partitions of another router, several at a time."""

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
    """Records that requests bring page by page."""

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
    #: What its requester says of them, wherever it does.
    properties: QueryProperties | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_properties(cls, told: Any) -> Any:
        requester = told.get("requester") if isinstance(told, dict) else None
        if not isinstance(requester, dict):
            return told
        found = list(_properties_of(requester))
        if len(found) > 1:
            raise ValueError("a requester has one QueryProperties, or properties from one endpoint")
        return {**told, "properties": found[0]} if found else told


def _properties_of(requester: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What a requester says of the properties that it asks for."""
    asked = requester.get("request_parameters")
    values = asked.values() if isinstance(asked, dict) else ()
    named = [
        one for one in values if isinstance(one, dict) and one.get("type") == "QueryProperties"
    ]
    yield from named
    if endpoint := requester.get("fetch_properties_from_endpoint"):
        yield {"type": "QueryProperties", "property_list": endpoint}
    elif (query := requester.get("query_properties")) and not named:
        yield query


Retriever = Annotated[SimpleRetriever | AsyncRetriever, Field(discriminator="type")]


class DynamicSchemaLoader(Component):
    """A stream's schema, from the first record that a retriever brings."""

    type: Literal["DynamicSchemaLoader"]
    retriever: Retriever
    schema_type_identifier: SchemaTypeIdentifier
    schema_filter: AnyRecordFilter | None = None
    schema_transformations: Annotated[tuple[Transformation, ...], SEVERAL] = ()

    @field_validator("retriever")
    @classmethod
    def _makes_one_report(cls, retriever: Retriever) -> Retriever:
        if isinstance(retriever, AsyncRetriever) and retriever.partition_router:
            raise ValueError("reports that tell a schema have no partition_router")
        return retriever


SchemaLoader = Annotated[
    InlineSchemaLoader | JsonFileSchemaLoader | DynamicSchemaLoader | CustomSchemaLoader,
    Field(discriminator="type"),
]


class LegacyToPerPartitionStateMigration(Component):
    """State by the partitions' values, as old connectors have it."""

    type: Literal["LegacyToPerPartitionStateMigration"]


StateMigration = Annotated[
    LegacyToPerPartitionStateMigration | CustomStateMigration, Field(discriminator="type")
]


class DeclarativeStream(Component):
    """A stream."""

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
    """One stream as long as there is no state, and another one from then on."""

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
