"""Schemas that the API tells: where an answer names fields, and what it calls their types."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from chronolake.source.declarative.language.base import Component


class ComplexFieldType(BaseModel):
    """A type that may say what its items are."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    field_type: str
    items: str | ComplexFieldType | None = None

    @model_validator(mode="after")
    def _only_arrays_have_items(self) -> Self:
        if self.items and self.field_type != "array":
            raise ValueError("only an array has items")
        return self


class TypesMap(BaseModel):
    """A type as the API calls it, and what it is."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    target_type: str | list[str] | ComplexFieldType
    current_type: str | list[str]
    condition: str | None = None


class SchemaTypeIdentifier(Component):
    """Where in an answer the fields are, and in each of them its name and its type."""

    # Nothing tells its kind where a manifest leaves it out.
    type: Literal["SchemaTypeIdentifier"] = "SchemaTypeIdentifier"
    schema_pointer: tuple[str, ...] = ()
    key_pointer: tuple[str, ...]
    type_pointer: tuple[str, ...] | None = None
    types_mapping: tuple[TypesMap, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _without_nothing(cls, told: Any) -> Any:
        if not isinstance(told, dict):
            return told
        return {key: value for key, value in told.items() if value is not None}
