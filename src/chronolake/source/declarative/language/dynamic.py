"""Streams that a manifest does not list: made of a template, or there on a condition."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from chronolake.source.declarative.language.base import SEVERAL, Component
from chronolake.source.declarative.language.streams import Retriever


class ComponentMappingDefinition(Component):
    """What stands at a place of a stream that is made of a template."""

    type: Literal["ComponentMappingDefinition"]
    field_path: tuple[str, ...] = Field(min_length=1)
    value: str
    value_type: Literal["string", "number", "integer", "boolean"] | None = None
    create_or_update: bool = False
    condition: str | None = None


def _unconditional(
    mappings: tuple[ComponentMappingDefinition, ...],
) -> tuple[ComponentMappingDefinition, ...]:
    if any(one.condition for one in mappings):
        raise ValueError("only mappings of a ConfigComponentsResolver have a condition")
    return mappings


_Unconditional = Annotated[tuple[ComponentMappingDefinition, ...], AfterValidator(_unconditional)]


class HttpComponentsResolver(Component):
    """A stream for each record that requests bring."""

    type: Literal["HttpComponentsResolver"]
    retriever: Retriever
    components_mapping: _Unconditional


class StreamConfig(Component):
    """A place of the configuration with a list of things that have streams."""

    type: Literal["StreamConfig"]
    configs_pointer: tuple[str, ...]
    default_values: tuple[Any, ...] | None = None


class ConfigComponentsResolver(Component):
    """A stream for each thing that the configuration lists, or each combination of several."""

    type: Literal["ConfigComponentsResolver"]
    stream_config: Annotated[tuple[StreamConfig, ...], SEVERAL] = Field(min_length=1)
    components_mapping: tuple[ComponentMappingDefinition, ...]


class StreamParametersDefinition(Component):
    """What streams there are, in the manifest itself."""

    type: Literal["StreamParametersDefinition"]
    list_of_parameters_for_stream: tuple[dict[str, Any], ...]


class ParametrizedComponentsResolver(Component):
    """A stream for each thing that the manifest lists."""

    type: Literal["ParametrizedComponentsResolver"]
    stream_parameters: StreamParametersDefinition
    components_mapping: _Unconditional


ComponentsResolver = Annotated[
    HttpComponentsResolver | ConfigComponentsResolver | ParametrizedComponentsResolver,
    Field(discriminator="type"),
]


class DynamicDeclarativeStream(Component):
    """Streams that are made of one template, which is no stream yet."""

    type: Literal["DynamicDeclarativeStream"]
    name: str = ""
    stream_template: dict[str, Any]
    components_resolver: ComponentsResolver
    use_parent_parameters: bool = True


class ConditionalStreams(Component):
    """Streams that are there if a condition holds."""

    type: Literal["ConditionalStreams"]
    condition: str | bool
    streams: list[Any]
