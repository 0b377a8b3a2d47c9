"""Properties: the fields that requests ask for by name, maybe a few at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from chronolake.source.declarative.language.base import SEVERAL, Component
from chronolake.source.declarative.language.records import Transformation

if TYPE_CHECKING:
    from chronolake.source.declarative.language.streams import SimpleRetriever


class PropertiesFromEndpoint(Component):
    """The API tells the properties: each record of a retriever names one."""

    type: Literal["PropertiesFromEndpoint"]
    property_field_path: list[str] = Field(min_length=1)
    retriever: SimpleRetriever


class GroupByKeyMergeStrategy(Component):
    """Records with the same values of some fields are one."""

    type: Literal["GroupByKeyMergeStrategy"]
    key: Annotated[tuple[str, ...], SEVERAL]


class PropertyChunking(Component):
    """So many properties, or characters of their names, go into one request."""

    type: Literal["PropertyChunking"]
    property_limit_type: Literal["characters", "property_count"]
    property_limit: int | None = None
    record_merge_strategy: GroupByKeyMergeStrategy | None = None


class JsonSchemaPropertySelector(Component):
    """Only properties that the stream's schema has; transformations change its names first."""

    type: Literal["JsonSchemaPropertySelector"]
    transformations: Annotated[tuple[Transformation, ...], SEVERAL] = ()


class QueryProperties(Component):
    """The properties that requests ask for."""

    type: Literal["QueryProperties"]
    property_list: PropertiesFromEndpoint | tuple[str, ...]
    always_include_properties: tuple[str, ...] | None = None
    property_chunking: PropertyChunking | None = None
    property_selector: JsonSchemaPropertySelector | None = None
