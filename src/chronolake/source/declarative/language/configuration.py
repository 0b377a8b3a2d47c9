"""What is done to a configuration before anything is read with it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from chronolake.source.declarative.language.base import Component
from chronolake.source.declarative.language.records import AddedFieldDefinition


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
