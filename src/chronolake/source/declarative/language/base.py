"""What every component of a manifest has."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer


class Component(BaseModel):
    """A component as the manifest describes it, with what it inherits already in its place.

    Keys that a component does not know are passed over: `$parameters` of those around it become
    keys of its own.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)

    parameters: dict[str, Any] = Field(default_factory=dict, alias="$parameters", repr=False)


def _refused(value: object) -> None:
    if value:
        raise ValueError("is not supported")


def _several(value: object) -> object:
    if not value:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


#: One of them, a list of them, or none.
SEVERAL = BeforeValidator(_several)
#: What would change what is read, and is not there yet.
Unsupported = Annotated[None, BeforeValidator(_refused)]
#: Statuses of answers; they are written in order, whatever order the set happens to have.
Statuses = Annotated[frozenset[int], PlainSerializer(sorted, when_used="json")]
#: A number, or a template that gives one.
Number = int | float | str
#: A truth value, or a template that gives one.
Truth = bool | str
