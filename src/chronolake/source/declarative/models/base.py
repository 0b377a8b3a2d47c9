"""The base model of manifest components, and the models of custom components.

Custom components are Python classes next to the manifest. Their options are kept in `model_extra`,
because only the class knows what they mean.
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
    """A component as the manifest describes it, with inherited values already filled in.

    Unknown keys are ignored, because `$parameters` of outer components become keys of inner ones.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)

    parameters: dict[str, Any] = Field(default_factory=dict, alias="$parameters", repr=False)


def _reject(value: object) -> None:
    if value:
        raise ValueError("is not supported")


def _as_sequence(value: object) -> object:
    if not value:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


#: Accepts one value, a list of values, or nothing, and returns a sequence.
SEVERAL = BeforeValidator(_as_sequence)
#: An option that would change what is read and is not supported yet.
Unsupported = Annotated[None, BeforeValidator(_reject)]
#: HTTP status codes. They are serialized in sorted order, so that the output is stable.
Statuses = Annotated[frozenset[int], PlainSerializer(sorted, when_used="json")]
#: A number, or a template that renders to one.
Number = int | float | str
#: A boolean, or a template that renders to one.
Truth = bool | str


@dataclass(frozen=True)
class Origin:
    """The location of a component, passed to validations as their context.

    Attributes:
        file: the path of the manifest.
        stream: the name of the stream.
    """

    file: Path
    stream: str


class CustomComponent(Component):
    """A component that is implemented by a class of the connector."""

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True)

    type: str
    class_name: str

    _origin: Origin | None = PrivateAttr(default=None)
    _owner: object = PrivateAttr(default=None)
    _calls: Any = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _set_origin(self, info: ValidationInfo) -> CustomComponent:
        if isinstance(info.context, Origin):
            self._origin = info.context
        return self

    @property
    def origin(self) -> Origin:
        """Return the location of the component.

        Raises:
            ConfigurationError: the component was not found in a stream of a manifest.
        """
        if self._origin is None:
            raise ConfigurationError(
                f"The {self.type} {self.class_name} is not supported at its place.",
                hint="Use custom components only in streams and their parts.",
            )
        return self._origin

    def bind(self, owner: object, calls: Any) -> None:
        """Bind an instance of the class to the component.

        Args:
            owner: the object that the instance belongs to.
            calls: the instance, ready to be called.
        """
        self._owner, self._calls = owner, calls

    def is_bound_to(self, owner: object) -> bool:
        """Return whether the component has an instance for `owner`."""
        return self._owner is owner and self._calls is not None

    @property
    def calls(self) -> Any:
        """Return the instance of the class (`custom_classes.Calls`).

        Raises:
            ConfigurationError: no instance is bound.
        """
        if self._calls is None:
            raise ConfigurationError(
                f"The {self.type} {self.class_name} is not supported at its place.",
                hint="Use custom components only in streams and their parts.",
            )
        return self._calls


class CustomRecordExtractor(CustomComponent):
    """A custom extractor: finds records in a response."""

    type: Literal["CustomRecordExtractor"]


class CustomRecordFilter(CustomComponent):
    """A custom filter: removes records."""

    type: Literal["CustomRecordFilter"]


class CustomTransformation(CustomComponent):
    """A custom transformation: changes a record in place."""

    type: Literal["CustomTransformation"]


class CustomSchemaNormalization(CustomComponent):
    """A custom schema normalization: converts a record's values to the schema's types, in place."""

    type: Literal["CustomSchemaNormalization"]


class CustomDecoder(CustomComponent):
    """A custom decoder: parses a response into bodies."""

    type: Literal["CustomDecoder"]


class CustomAuthenticator(CustomComponent):
    """A custom authenticator: adds credentials to requests."""

    type: Literal["CustomAuthenticator"]


class CustomErrorHandler(CustomComponent):
    """A custom error handler: decides what a response, or a missing response, means."""

    type: Literal["CustomErrorHandler"]


class CustomBackoffStrategy(CustomComponent):
    """A custom backoff strategy: returns how long to wait."""

    type: Literal["CustomBackoffStrategy"]


class CustomPaginationStrategy(CustomComponent):
    """A custom pagination strategy: returns the token of the next page."""

    type: Literal["CustomPaginationStrategy"]


class CustomSchemaLoader(CustomComponent):
    """A custom schema loader: returns a stream's schema."""

    type: Literal["CustomSchemaLoader"]


class CustomStateMigration(CustomComponent):
    """A custom state migration: converts a saved state to the stream's current format."""

    type: Literal["CustomStateMigration"]


#: The component types that can be run. Routers are defined in `streams`, as they contain streams.
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
