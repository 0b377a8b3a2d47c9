"""Partition routers: lists, parent records, groups, products, unions and custom routers.

Sources: `seeds/incremental-syncs.txt` ("Nested Streams"), `specs/airbyte-declarative.md` (2.5).
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.field_paths import MISSING, looked_up
from chronolake.source.declarative.models.streams import (
    CustomPartitionRouter,
    GroupingPartitionRouter,
    ListPartitionRouter,
    SubstreamPartitionRouter,
    UnionPartitionRouter,
)
from chronolake.source.declarative.retrieval.lazy_read import FIRST_PAGE, first_page
from chronolake.source.declarative.stream_slice import StreamSlice, slice_for_class
from chronolake.source.declarative.templating.templates import as_text, evaluated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from chronolake.source.declarative.http.request_builder import Injection
    from chronolake.source.declarative.models.base import Component
    from chronolake.source.declarative.models.streams import ParentStreamConfig, PartitionRouter


#: The methods of a custom router that return request options, and the part that each one fills.
_PLACES: Final = {
    "get_request_params": "params",
    "get_request_headers": "headers",
    "get_request_body_data": "body_data",
    "get_request_body_json": "body_json",
}


@dataclass(frozen=True)
class OwnRouter:
    """Partitions that a custom router class returns."""

    router: CustomPartitionRouter

    def partitions(self) -> Iterator[StreamSlice]:
        """Yield the partitions; raise SourceError if the class fails."""
        for one in self.router.calls.each("stream_slices"):
            partition = getattr(one, "partition", one)
            extra = getattr(one, "extra_fields", None) or {}
            if not isinstance(partition, Mapping):
                raise self._no_slice()
            yield StreamSlice(self._told(partition), {}, dict(extra))

    def _told(self, partition: Mapping[str, Any]) -> dict[str, Any]:
        """Return a partition as JSON values for the state, whatever types the class uses."""
        try:
            text = orjson.dumps(dict(partition), option=orjson.OPT_NON_STR_KEYS)
        except TypeError as failure:
            raise self._no_slice() from failure
        reported: dict[str, Any] = orjson.loads(text)
        return reported

    def _no_slice(self) -> SourceError:
        return SourceError(
            f"{self.router.class_name}.stream_slices returned a value that is not a valid slice.",
            hint="A slice is a mapping of names to JSON values.",
        )

    def parent_state(self) -> dict[str, Any] | None:
        """Return the parents' state, if the class provides it."""
        calls = self.router.calls
        return calls.mapping("get_stream_state") if calls.has("get_stream_state") else None


def inject_own(router: CustomPartitionRouter, into: Injection, partition: StreamSlice) -> None:
    """Put the request options that a custom router returns for a partition into a request."""
    calls, one = router.calls, slice_for_class(partition)
    for method, place in _PLACES.items():
        if calls.has(method):
            getattr(into, place).update(calls.mapping(method, stream_slice=one) or {})


class Parent(Protocol):
    """A stream that is read for its records."""

    def records(self) -> Iterator[tuple[StreamSlice, Mapping[str, Any]]]:
        """Yield the records with their slices, without slices that the state marks as read."""
        ...

    def slices(self) -> Iterator[tuple[StreamSlice, Callable[[], Iterator[Mapping[str, Any]]]]]:
        """Yield slices with a function that reads their records; it must be called once."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Return the state of what has been read."""
        ...


class Router(Protocol):
    """A source of a stream's partitions."""

    def partitions(self) -> Iterator[StreamSlice]:
        """Yield the partitions."""
        ...

    def parent_state(self) -> dict[str, Any] | None:
        """Return the state of incremental parents by name, or None without such parents."""
        ...


def router_of(
    routers: Sequence[PartitionRouter],
    config: Mapping[str, Any],
    parent_of: Callable[[ParentStreamConfig], Parent],
) -> Router | None:
    """Return the router of a stream's partitions, or None if it has no partitions.

    Args:
        routers: the manifest's components; several form a Cartesian product.
        config: the user's configuration.
        parent_of: returns the stream whose records are partitions.

    Raises:
        ConfigurationError: the routers' settings contradict each other.
    """
    made = [_router_of(router, config, parent_of) for router in routers]
    if not made:
        return None
    return made[0] if len(made) == 1 else _Product(made)


def _router_of(
    router: PartitionRouter,
    config: Mapping[str, Any],
    parent_of: Callable[[ParentStreamConfig], Parent],
) -> Router:
    if isinstance(router, ListPartitionRouter):
        return _Values(router, config)
    if isinstance(router, SubstreamPartitionRouter):
        return _Substream(router, config, parent_of)
    if isinstance(router, CustomPartitionRouter):
        return OwnRouter(router)
    if isinstance(router, UnionPartitionRouter):
        name = named(router, config, router.partition_field)
        if any(other != name for one in router.partition_routers for other in _names(one, config)):
            raise _other_names(name)
        made = [_router_of(one, config, parent_of) for one in router.partition_routers]
        return _Union(name, made)
    return _Groups(router, _router_of(router.underlying_partition_router, config, parent_of))


def _names(router: PartitionRouter, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of a router's partition values."""
    if isinstance(router, ListPartitionRouter):
        yield named(router, config, router.cursor_field)
    elif isinstance(router, SubstreamPartitionRouter):
        for parent in router.parent_stream_configs:
            yield named(parent, config, parent.partition_field)
    elif isinstance(router, UnionPartitionRouter):
        yield named(router, config, router.partition_field)


def _other_names(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"Not all routers of a UnionPartitionRouter return single values named {name}.",
        hint="Set their cursor_field or partition_field to the union's partition_field.",
    )


def named(component: Component, config: Mapping[str, Any], template: str) -> str:
    """Return a component's template, evaluated with the configuration."""
    return as_text(template, {"config": config, "parameters": component.parameters})


def inject_partition(
    routers: Sequence[PartitionRouter],
    config: Mapping[str, Any],
    into: Injection,
    partition: StreamSlice,
) -> None:
    """Put a partition's values into a request where the manifest defines request options.

    Groups and unions are available only to templates.

    Args:
        routers: the manifest's components.
        config: the user's configuration.
        into: the request.
        partition: the partition, or a slice of it.
    """
    # The first router wins if two use the same option.
    for router in reversed(routers):
        if isinstance(router, CustomPartitionRouter):
            inject_own(router, into, partition)
            continue
        if isinstance(router, ListPartitionRouter):
            reported = [(router.request_option, named(router, config, router.cursor_field))]
        elif isinstance(router, SubstreamPartitionRouter):
            reported = [
                (one.request_option, named(one, config, one.partition_field))
                for one in router.parent_stream_configs
            ]
        else:
            continue
        for option, name in reported:
            if option is not None and (value := partition.get(name)):
                into.put(option, value, config)


@dataclass(frozen=True)
class _Values:
    """A router with a partition for each value of a list."""

    router: ListPartitionRouter
    config: Mapping[str, Any]

    @property
    def name(self) -> str:
        return named(self.router, self.config, self.router.cursor_field)

    def partitions(self) -> Iterator[StreamSlice]:
        name = self.name
        for value in self._values():
            yield StreamSlice({name: value})

    def _values(self) -> Iterable[Any]:
        values = self.router.values
        if not isinstance(values, str):
            return values
        context = {"config": self.config, "parameters": self.router.parameters}
        found = evaluated(values, context, default=values)
        if isinstance(found, str):
            found = _listed(found)
        if not isinstance(found, list | tuple):
            raise ConfigurationError(
                f"The values of the partitions are not a list: {values}",
                hint="Write a list, or a template that returns one.",
            )
        return found

    def parent_state(self) -> dict[str, Any] | None:
        return None


def _listed(text: str) -> Any:
    """Return the values of a list in text form, numbers as they are written, or None."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
    if isinstance(found, list | tuple) and set(map(type, found)) <= {int, float}:
        spelled = [one.strip() for one in text.strip().strip("[]()").rstrip(" ,").split(",")]
        if len(spelled) == len(found):
            return [
                value if str(value) == one else one
                for value, one in zip(found, spelled, strict=True)
            ]
    return found


class _Substream:
    """A router with a partition for each parent record that has the parent key."""

    def __init__(
        self,
        router: SubstreamPartitionRouter,
        config: Mapping[str, Any],
        parent_of: Callable[[ParentStreamConfig], Parent],
    ) -> None:
        self._config = config
        self._configs = router.parent_stream_configs
        self._parent_of = parent_of
        self._parents: dict[int, Parent] = {}

    def partitions(self) -> Iterator[StreamSlice]:
        for number, config in enumerate(self._configs):
            name = named(config, self._config, config.partition_field)
            key = named(config, self._config, config.parent_key).split("/")
            paths = [
                [named(config, self._config, part) for part in path] for path in config.extra_fields
            ]
            pointer = [named(config, self._config, part) for part in config.lazy_read_pointer]
            for one, record in self._parent(number).records():
                value = looked_up(record, key)
                if value is MISSING or value is None:
                    continue
                extra: dict[str, Any] = {FIRST_PAGE: first_page(record, pointer)} if pointer else {}
                for path in paths:
                    found = looked_up(record, path)
                    extra[".".join(path)] = None if found is MISSING else found
                yield StreamSlice({name: value, "parent_slice": one.partition}, {}, extra)

    def _parent(self, number: int) -> Parent:
        if number not in self._parents:
            self._parents[number] = self._parent_of(self._configs[number])
        return self._parents[number]

    def parent_state(self) -> dict[str, Any] | None:
        return {
            config.stream.name: dict(self._parent(number).state())
            for number, config in enumerate(self._configs)
            if config.incremental_dependency
        }


@dataclass(frozen=True)
class _Groups:
    """A router that groups the partitions of another router."""

    router: GroupingPartitionRouter
    underlying: Router

    def partitions(self) -> Iterator[StreamSlice]:
        for group in _in_groups(self._distinct(), self.router.group_size):
            names = list(group[0].partition)
            extra = dict.fromkeys(name for one in group for name in one.extra_fields)
            yield StreamSlice(
                {name: [one.partition.get(name) for one in group] for name in names},
                {},
                {name: [one.extra_fields.get(name) for one in group] for name in extra},
            )

    def _distinct(self) -> Iterator[StreamSlice]:
        seen: set[Any] = set()
        for partition in self.underlying.partitions():
            values = [
                value for name, value in partition.partition.items() if name != "parent_slice"
            ]
            if len(values) != 1:
                raise ConfigurationError(
                    "Only partitions with one value can be grouped.",
                    hint="Group the values of one list, or the records of one parent stream.",
                )
            if self.router.deduplicate:
                if values[0] in seen:
                    continue
                seen.add(values[0])
            yield partition

    def parent_state(self) -> dict[str, Any] | None:
        return self.underlying.parent_state()


def _in_groups(items: Iterable[StreamSlice], size: int) -> Iterator[list[StreamSlice]]:
    iterator = iter(items)
    yield from iter(partial(lambda: list(itertools.islice(iterator, size))), [])


@dataclass(frozen=True)
class _Union:
    """A router with the distinct partitions of several routers, by their one value."""

    name: str
    routers: Sequence[Router]

    def partitions(self) -> Iterator[StreamSlice]:
        seen: set[Any] = set()
        for one in (partition for router in self.routers for partition in router.partitions()):
            value = one.partition.get(self.name, MISSING)
            if value is MISSING or isinstance(value, dict | list):
                raise _other_names(self.name)
            if value in seen:
                continue
            seen.add(value)
            others = {name: each for name, each in one.partition.items() if name != self.name}
            yield StreamSlice({self.name: value}, {}, {**one.extra_fields, **others})

    def parent_state(self) -> dict[str, Any] | None:
        states = [router.parent_state() or {} for router in self.routers]
        return {name: state for one in states for name, state in one.items()}


@dataclass(frozen=True)
class _Product:
    """A router with every combination of the partitions of several routers."""

    routers: Sequence[Router]

    def partitions(self) -> Iterator[StreamSlice]:
        for combination in itertools.product(*(router.partitions() for router in self.routers)):
            partition: dict[str, Any] = {}
            extra: dict[str, Any] = {}
            # The first router wins if two use the same name.
            for one in reversed(combination):
                partition |= one.partition
                extra |= one.extra_fields
            yield StreamSlice(partition, {}, extra)

    def parent_state(self) -> dict[str, Any] | None:
        return None


@dataclass
class OpenPartitions:
    """The partitions that are being read, which determine the parents' state to save.

    A parent's state is saved once all partitions before it have been read.
    """

    state: dict[str, Any] | None = None
    _opened: int = 0
    _open: set[int] = field(default_factory=set)
    _waiting: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def open(self, state: dict[str, Any] | None) -> int:
        """Start a partition and return its number.

        Args:
            state: the parents' state when the partition was found.
        """
        number = self._opened
        self._opened += 1
        self._open.add(number)
        if state is not None and (not self._waiting or self._waiting[-1][1] != state):
            self._waiting.append((number, state))
        return number

    def close(self, number: int) -> None:
        """Record that a partition has been read."""
        self._open.discard(number)
        earliest = min(self._open, default=self._opened)
        while self._waiting and self._waiting[0][0] < earliest:
            self.state = self._waiting.pop(0)[1]
