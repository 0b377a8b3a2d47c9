"""Models of the connection check and of the configuration's specification.

Which streams tell whether a connection works.

What is done to a configuration before anything is read with it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from chronolake.source.declarative.models.base import Component
from chronolake.source.declarative.models.records import AddedFieldDefinition


class DynamicStreamCheckConfig(Component):
    """Of the streams that are made of one template the first, or all."""

    type: Literal["DynamicStreamCheckConfig"]
    dynamic_stream_name: str
    stream_count: Annotated[int, Field(ge=1)] | None = None


class _Look(Component):
    """A look at a connection, for which some values of the configuration are others."""

    config_overrides: dict[str, Any] = Field(default_factory=dict)


class CheckStream(_Look):
    """Streams by their names, and some of those that are made of templates."""

    type: Literal["CheckStream"]
    stream_names: tuple[str, ...] = ()
    dynamic_streams_check_configs: tuple[DynamicStreamCheckConfig, ...] = ()


class CheckDynamicStream(_Look):
    """The first streams, of whatever they are made."""

    type: Literal["CheckDynamicStream"]
    stream_count: int
    use_check_availability: bool = True


Check = Annotated[CheckStream | CheckDynamicStream, Field(discriminator="type")]


class ConfigRemapField(Component):
    """Replaces a field's value by what a table has for it."""

    type: Literal["ConfigRemapField"]
    map: dict[str, Any]
    field_path: list[str] = Field(min_length=1)


class ConfigAddFields(Component):
    """Adds fields."""

    type: Literal["ConfigAddFields"]
    fields: list[AddedFieldDefinition]
    condition: str = ""


class ConfigRemoveFields(Component):
    """Removes fields."""

    type: Literal["ConfigRemoveFields"]
    field_pointers: list[list[str]]
    condition: str = ""


ConfigTransformation = Annotated[
    ConfigRemapField | ConfigAddFields | ConfigRemoveFields, Field(discriminator="type")
]


class CustomConfigTransformation(Component):
    """Python code beside the manifest, which is not run."""

    type: Literal["CustomConfigTransformation"]


class ConfigMigration(Component):
    """What a configuration needs that was written for an older version of the manifest."""

    type: Literal["ConfigMigration"]
    transformations: list[
        Annotated[
            ConfigRemapField | ConfigAddFields | ConfigRemoveFields | CustomConfigTransformation,
            Field(discriminator="type"),
        ]
    ]


class ValidateAdheresToSchema(Component):
    """A value fits a JSON schema."""

    type: Literal["ValidateAdheresToSchema"]
    base_schema: dict[str, Any]


class DpathValidator(Component):
    """What is asked of the values at a path of the configuration."""

    type: Literal["DpathValidator"]
    field_path: list[str] = Field(min_length=1)
    validation_strategy: ValidateAdheresToSchema


class PredicateValidator(Component):
    """What is asked of a value that a template makes."""

    type: Literal["PredicateValidator"]
    value: Any
    validation_strategy: ValidateAdheresToSchema


class ConfigNormalizationRules(Component):
    """What is changed in a configuration, and what is asked of it then."""

    type: Literal["ConfigNormalizationRules"]
    config_migrations: tuple[ConfigMigration, ...] = ()
    transformations: tuple[ConfigTransformation, ...] = ()
    validations: tuple[
        Annotated[DpathValidator | PredicateValidator, Field(discriminator="type")], ...
    ] = ()
