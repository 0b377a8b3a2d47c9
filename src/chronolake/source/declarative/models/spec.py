"""Models of the connection check and of the configuration's specification.

The check names the streams that are read to test a connection. The specification contains
migrations, transformations and validations, which run before a configuration is used.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from chronolake.source.declarative.models.base import Component
from chronolake.source.declarative.models.records import AddedFieldDefinition


class DynamicStreamCheckConfig(Component):
    """The streams of one dynamic stream to check: the first `stream_count`, or all."""

    type: Literal["DynamicStreamCheckConfig"]
    dynamic_stream_name: str
    stream_count: Annotated[int, Field(ge=1)] | None = None


class _CheckOptions(Component):
    """Options of all connection checks: values of the configuration to replace during the check."""

    config_overrides: dict[str, Any] = Field(default_factory=dict)


class CheckStream(_CheckOptions):
    """A check of streams by their names, and of streams that are generated from templates."""

    type: Literal["CheckStream"]
    stream_names: tuple[str, ...] = ()
    dynamic_streams_check_configs: tuple[DynamicStreamCheckConfig, ...] = ()


class CheckDynamicStream(_CheckOptions):
    """A check of the first `stream_count` streams, whether they are static or generated."""

    type: Literal["CheckDynamicStream"]
    stream_count: int
    use_check_availability: bool = True


Check = Annotated[CheckStream | CheckDynamicStream, Field(discriminator="type")]


class ConfigRemapField(Component):
    """A transformation that replaces a field's value by the value that `map` has for it."""

    type: Literal["ConfigRemapField"]
    map: dict[str, Any]
    field_path: list[str] = Field(min_length=1)


class ConfigAddFields(Component):
    """A transformation that adds fields to the configuration."""

    type: Literal["ConfigAddFields"]
    fields: list[AddedFieldDefinition]
    condition: str = ""


class ConfigRemoveFields(Component):
    """A transformation that removes fields from the configuration."""

    type: Literal["ConfigRemoveFields"]
    field_pointers: list[list[str]]
    condition: str = ""


ConfigTransformation = Annotated[
    ConfigRemapField | ConfigAddFields | ConfigRemoveFields, Field(discriminator="type")
]


class CustomConfigTransformation(Component):
    """A custom transformation, which is Python code next to the manifest. It is not run."""

    type: Literal["CustomConfigTransformation"]


class ConfigMigration(Component):
    """The transformations that convert a configuration of an older version of the manifest."""

    type: Literal["ConfigMigration"]
    transformations: list[
        Annotated[
            ConfigRemapField | ConfigAddFields | ConfigRemoveFields | CustomConfigTransformation,
            Field(discriminator="type"),
        ]
    ]


class ValidateAdheresToSchema(Component):
    """A validation of a value against a JSON schema."""

    type: Literal["ValidateAdheresToSchema"]
    base_schema: dict[str, Any]


class DpathValidator(Component):
    """A validation of the values at a path of the configuration."""

    type: Literal["DpathValidator"]
    field_path: list[str] = Field(min_length=1)
    validation_strategy: ValidateAdheresToSchema


class PredicateValidator(Component):
    """A validation of a value that a template renders."""

    type: Literal["PredicateValidator"]
    value: Any
    validation_strategy: ValidateAdheresToSchema


class ConfigNormalizationRules(Component):
    """The migrations, transformations and validations of a configuration, in this order."""

    type: Literal["ConfigNormalizationRules"]
    config_migrations: tuple[ConfigMigration, ...] = ()
    transformations: tuple[ConfigTransformation, ...] = ()
    validations: tuple[
        Annotated[DpathValidator | PredicateValidator, Field(discriminator="type")], ...
    ] = ()
