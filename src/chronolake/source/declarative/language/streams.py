"""Streams: what is read with which requests, and what becomes of the answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from chronolake.source.declarative.language.base import Component, Unsupported
from chronolake.source.declarative.language.cursors import IncrementalSync
from chronolake.source.declarative.language.options import RequestOption
from chronolake.source.declarative.language.paging import Paginator
from chronolake.source.declarative.language.records import (
    Decoder,
    RecordSelector,
    Transformation,
)
from chronolake.source.declarative.language.requests import HttpRequester


def _several(value: object) -> object:
    if not value:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


#: One of them, a list of them, or none.
_SEVERAL = BeforeValidator(_several)


class InlineSchemaLoader(Component):
    """A stream's schema, in the manifest itself."""

    type: Literal["InlineSchemaLoader"]
    # Pydantic has a method of that name.
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")


class JsonFileSchemaLoader(Component):
    """A stream's schema in a file beside the manifest."""

    type: Literal["JsonFileSchemaLoader"]
    file_path: str | None = None


SchemaLoader = Annotated[InlineSchemaLoader | JsonFileSchemaLoader, Field(discriminator="type")]


class ParentStreamConfig(Component):
    """A stream whose records are the partitions of another."""

    type: Literal["ParentStreamConfig"]
    stream: AnyStream
    parent_key: str
    partition_field: str
    request_option: RequestOption | None = None
    incremental_dependency: bool = False
    extra_fields: Annotated[tuple[tuple[str, ...], ...], _SEVERAL] = ()
    lazy_read_pointer: Unsupported = None


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


class GroupingPartitionRouter(Component):
    """Partitions of another router, several at a time."""

    type: Literal["GroupingPartitionRouter"]
    group_size: int = Field(ge=1)
    underlying_partition_router: Annotated[
        SubstreamPartitionRouter | ListPartitionRouter, Field(discriminator="type")
    ]
    deduplicate: bool = True


PartitionRouter = Annotated[
    SubstreamPartitionRouter | ListPartitionRouter | GroupingPartitionRouter,
    Field(discriminator="type"),
]


class SimpleRetriever(Component):
    """Records that requests bring page by page."""

    type: Literal["SimpleRetriever"]
    requester: HttpRequester
    record_selector: RecordSelector
    decoder: Decoder | None = None
    paginator: Paginator | None = None
    partition_router: Annotated[tuple[PartitionRouter, ...], _SEVERAL] = ()
    ignore_stream_slicer_parameters_on_paginated_requests: bool = False
    pagination_reset: Unsupported = None
    page_size_reduction: Unsupported = None
    request_window_splitting: Unsupported = None


class LegacyToPerPartitionStateMigration(Component):
    """State by the partitions' values, as old connectors have it."""

    type: Literal["LegacyToPerPartitionStateMigration"]


class DeclarativeStream(Component):
    """A stream."""

    type: Literal["DeclarativeStream"]
    name: str = ""
    primary_key: str | tuple[str | tuple[str, ...], ...] | None = None
    retriever: SimpleRetriever
    incremental_sync: IncrementalSync | None = None
    schema_loader: Annotated[tuple[SchemaLoader, ...], _SEVERAL] = ()
    transformations: Annotated[tuple[Transformation, ...], _SEVERAL] = ()
    state_migrations: Annotated[tuple[LegacyToPerPartitionStateMigration, ...], _SEVERAL] = ()
    file_uploader: Unsupported = None


class StateDelegatingStream(Component):
    """One stream as long as there is no state, and another one from then on."""

    type: Literal["StateDelegatingStream"]
    name: str
    full_refresh_stream: DeclarativeStream
    incremental_stream: DeclarativeStream
    api_retention_period: str | None = None


AnyStream = Annotated[DeclarativeStream | StateDelegatingStream, Field(discriminator="type")]

ParentStreamConfig.model_rebuild()
SubstreamPartitionRouter.model_rebuild()
