"""Base model of components, and custom components.

What every component of a manifest has.

Components that are Python classes beside the manifest.

What a class is given besides its name stands in `model_extra`: only the class knows what it means.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    ValidationInfo,
    model_validator,
)

from chronolake.errors import ConfigurationError


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


@dataclass(frozen=True)
class Origin:
    """Where a component stands; given to validations as their context.

    Attributes:
        file: the manifest.
        stream: the stream's name.
    """

    file: Path
    stream: str


class CustomComponent(Component):
    """A class of the connector's own."""

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True)

    type: str
    class_name: str

    _origin: Origin | None = PrivateAttr(default=None)
    _owner: object = PrivateAttr(default=None)
    _calls: Any = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _knows_where_it_stands(self, info: ValidationInfo) -> CustomComponent:
        if isinstance(info.context, Origin):
            self._origin = info.context
        return self

    @property
    def origin(self) -> Origin:
        """Where it stands.

        Raises:
            ConfigurationError: it was not found in a manifest's stream.
        """
        if self._origin is None:
            raise ConfigurationError(
                f"A {self.type} cannot stand where {self.class_name} does.",
                hint="Components stand in streams, and in what these say themselves.",
            )
        return self._origin

    def bind(self, owner: object, calls: Any) -> None:
        """Have an instance of the class.

        Args:
            owner: whose instance it is.
            calls: the instance, ready to be called.
        """
        self._owner, self._calls = owner, calls

    def is_bound_to(self, owner: object) -> bool:
        """Whether it has an instance for an owner."""
        return self._owner is owner and self._calls is not None

    @property
    def calls(self) -> Any:
        """The instance of the class (`components.calls.Calls`).

        Raises:
            ConfigurationError: none has been made.
        """
        if self._calls is None:
            raise ConfigurationError(
                f"A {self.type} cannot stand where {self.class_name} does.",
                hint="Components stand in streams, and in what these say themselves.",
            )
        return self._calls


class CustomRecordExtractor(CustomComponent):
    """Finds records in an answer."""

    type: Literal["CustomRecordExtractor"]


class CustomRecordFilter(CustomComponent):
    """Leaves records out."""

    type: Literal["CustomRecordFilter"]


class CustomTransformation(CustomComponent):
    """Changes a record in place."""

    type: Literal["CustomTransformation"]


class CustomSchemaNormalization(CustomComponent):
    """Converts a record's values to what the schema says, in place."""

    type: Literal["CustomSchemaNormalization"]


class CustomDecoder(CustomComponent):
    """Makes bodies of an answer."""

    type: Literal["CustomDecoder"]


class CustomAuthenticator(CustomComponent):
    """Proves who sends a request."""

    type: Literal["CustomAuthenticator"]


class CustomErrorHandler(CustomComponent):
    """Says what an answer, or none, means."""

    type: Literal["CustomErrorHandler"]


class CustomBackoffStrategy(CustomComponent):
    """Says how long to wait."""

    type: Literal["CustomBackoffStrategy"]


class CustomPaginationStrategy(CustomComponent):
    """Says which page comes next."""

    type: Literal["CustomPaginationStrategy"]


class CustomSchemaLoader(CustomComponent):
    """Has a stream's schema."""

    type: Literal["CustomSchemaLoader"]


class CustomStateMigration(CustomComponent):
    """Brings a state into the form that the stream has now."""

    type: Literal["CustomStateMigration"]


#: The kinds that can be run; routers are in `streams`, as they hold streams.
RUNNABLE = frozenset(
    {
        "CustomAuthenticator",
        "CustomBackoffStrategy",
        "CustomDecoder",
        "CustomErrorHandler",
        "CustomPaginationStrategy",
        "CustomPartitionRouter",
        "CustomRecordExtractor",
        "CustomRecordFilter",
        "CustomSchemaLoader",
        "CustomSchemaNormalization",
        "CustomStateMigration",
        "CustomTransformation",
    }
)
