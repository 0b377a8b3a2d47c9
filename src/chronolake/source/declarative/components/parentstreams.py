"""The parent streams of routers that are the connector's own classes.

They have what such classes ask the reference's streams for, and are read as all streams are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.exchange.injection import Injection
from chronolake.source.declarative.templating.templates import as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from chronolake.source.declarative.language.streams import ParentStreamConfig
    from chronolake.source.declarative.partitions import Parent
    from chronolake.source.declarative.streamslice import StreamSlice


class Text(str):
    """A text that may have been a template, as classes of the reference's kind ask for it."""

    __slots__ = ()

    @property
    def string(self) -> str:
        """The text."""
        return str(self)

    def eval(self, config: Any = None, **_: Any) -> str:  # noqa: ARG002 - it has been evaluated
        """The text."""
        return str(self)


class ParentRecord(dict[str, Any]):
    """A parent's record, which knows the slice that it stands in."""

    def __init__(self, values: Mapping[str, Any], associated_slice: StreamSlice) -> None:
        super().__init__(values)
        self.associated_slice = associated_slice

    @property
    def data(self) -> dict[str, Any]:
        """The record."""
        return self


class _Place(str):
    """Where a request gets a value; the same as a member of an enumeration with this value."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str(self) == getattr(other, "value", other)

    def __hash__(self) -> int:
        return hash(str(self))


@dataclass(frozen=True)
class _Option:
    """How a partition's value gets into requests."""

    inject_into: _Place
    put: Callable[[Any, Any], None]

    def inject_into_request(self, into: dict[str, Any], value: Any, config: Any) -> None:  # noqa: ARG002
        """Puts a value into what goes to its place of a request."""
        self.put(into, value)


@dataclass(frozen=True)
class _Partition:
    slice: StreamSlice
    rows: Callable[[], Iterator[Mapping[str, Any]]]

    def read(self) -> Iterator[ParentRecord]:
        for record in self.rows():
            yield ParentRecord(record, self.slice)

    def to_slice(self) -> StreamSlice:
        return self.slice


@dataclass(frozen=True)
class _Cursor:
    """How far a parent is; reading it moves it on."""

    parent: Callable[[], Parent]

    @property
    def state(self) -> dict[str, Any]:
        return dict(self.parent().state())

    def observe(self, record: Any) -> None:
        """Reading has seen it."""

    def close_partition(self, partition: Any) -> None:
        """Reading has closed it."""

    def ensure_at_least_one_state_emitted(self) -> None:
        """States are told elsewhere."""


@dataclass(frozen=True)
class ParentStream:
    """A stream that a router reads for its records."""

    name: str
    parent: Callable[[], Parent]

    @property
    def cursor(self) -> _Cursor:
        """How far it is."""
        return _Cursor(self.parent)

    def generate_partitions(self) -> Iterator[_Partition]:
        """Its slices, one after the other; the next may be asked for before one is read."""
        for one, rows in self.parent().slices():
            yield _Partition(one, rows)

    def read_records(self, *_: Any, **__: Any) -> Iterator[ParentRecord]:
        """Its records."""
        for one, record in self.parent().records():
            yield ParentRecord(record, one)

    def read_only_records(self, *_: Any, **__: Any) -> Iterator[ParentRecord]:
        """Its records."""
        return self.read_records()


@dataclass(frozen=True)
class ParentConfig:
    """A parent of a router, as the manifest has it."""

    stream: ParentStream
    parent_key: Text
    partition_field: Text
    extra_fields: list[list[Text]] | None
    lazy_read_pointer: list[Text] | None
    request_option: _Option | None
    incremental_dependency: bool


def parent_config_of(
    described: ParentStreamConfig, config: Mapping[str, Any], parent: Callable[[], Parent]
) -> ParentConfig:
    """A parent for a router of the connector's own.

    Args:
        described: as the manifest has it.
        config: what the user has set.
        parent: gives what reads it.

    Raises:
        ConfigurationError: a template cannot be evaluated.
    """
    context = {"config": config, "parameters": described.parameters}

    def text(template: str) -> Text:
        return Text(as_text(template, context))

    if described.lazy_read_pointer:
        raise ConfigurationError(
            f"The parent {described.stream.name} has a lazy_read_pointer, which routers of a "
            "connector's own do not know.",
            hint="Leave the lazy_read_pointer out.",
        )
    option = described.request_option
    return ParentConfig(
        stream=ParentStream(described.stream.name, parent),
        parent_key=text(described.parent_key),
        partition_field=text(described.partition_field),
        extra_fields=[[text(part) for part in path] for path in described.extra_fields] or None,
        lazy_read_pointer=None,
        request_option=None
        if option is None
        else _Option(
            _Place(option.inject_into),
            lambda into, value: _put(cast("Any", option), into, value, config),
        ),
        incremental_dependency=described.incremental_dependency,
    )


def _put(option: Any, into: dict[str, Any], value: Any, config: Mapping[str, Any]) -> None:
    places = {
        "request_parameter": "params",
        "header": "headers",
        "body_data": "body_data",
        "body_json": "body_json",
    }
    Injection(place="a router", **{places[option.inject_into]: into}).put(option, value, config)
