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

from chronolake import exact_json
from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.models.streams import (
    CustomPartitionRouter,
    GroupingPartitionRouter,
    ListPartitionRouter,
    SubstreamPartitionRouter,
    UnionPartitionRouter,
)
from chronolake.source.declarative.retrieval.lazy_read import FIRST_PAGE, first_page
from chronolake.source.declarative.stream_slice import StreamSlice, slice_for_class
from chronolake.source.declarative.templating.templates import as_text, evaluate
from chronolake.source.records.lookup import MISSING, look_up

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
class CustomRouter:
    """Partitions that a custom router class returns."""

    router: CustomPartitionRouter

    def partitions(self) -> Iterator[StreamSlice]:
        """Yield the partitions; raise SourceError if the class fails."""
        for returned in self.router.calls.iterate("stream_slices"):
            partition = getattr(returned, "partition", returned)
            extra = getattr(returned, "extra_fields", None) or {}
            if not isinstance(partition, Mapping):
                raise self._empty_slice()
            yield StreamSlice(self._to_json(partition), {}, dict(extra))

    def _to_json(self, partition: Mapping[str, Any]) -> dict[str, Any]:
        """Return a partition as JSON values for the state, whatever types the class uses."""
        try:
            text = exact_json.dumps(dict(partition))
        except TypeError as failure:
            raise self._empty_slice() from failure
        reported: dict[str, Any] = exact_json.loads(text)
        return reported

    def _empty_slice(self) -> SourceError:
        return SourceError(
            f"{self.router.class_name}.stream_slices returned a value that is not a valid slice.",
            hint="A slice is a mapping of names to JSON values.",
        )

    def parent_state(self) -> dict[str, Any] | None:
        """Return the parents' state, if the class provides it."""
        calls = self.router.calls
        return calls.call_for_mapping("get_stream_state") if calls.has("get_stream_state") else None


def inject_custom_options(
    router: CustomPartitionRouter, into: Injection, partition: StreamSlice
) -> None:
    """Put the request options that a custom router returns for a partition into a request."""
    calls, stream_slice = router.calls, slice_for_class(partition)
    for method, place in _PLACES.items():
        if calls.has(method):
            getattr(into, place).update(
                calls.call_for_mapping(method, stream_slice=stream_slice) or {}
            )


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


def create_router(
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
    made = [_create_router(router, config, parent_of) for router in routers]
    if not made:
        return None
    return made[0] if len(made) == 1 else _ProductRouter(made)


def _create_router(
    router: PartitionRouter,
    config: Mapping[str, Any],
    parent_of: Callable[[ParentStreamConfig], Parent],
) -> Router:
    if isinstance(router, ListPartitionRouter):
        return _ListRouter(router, config)
    if isinstance(router, SubstreamPartitionRouter):
        return _SubstreamRouter(router, config, parent_of)
    if isinstance(router, CustomPartitionRouter):
        return CustomRouter(router)
    if isinstance(router, UnionPartitionRouter):
        name = evaluate_name(router, config, router.partition_field)
        if any(
            other != name
            for inner in router.partition_routers
            for other in _partition_names(inner, config)
        ):
            raise _different_names_error(name)
        made = [_create_router(inner, config, parent_of) for inner in router.partition_routers]
        return _UnionRouter(name, made)
    return _GroupingRouter(
        router, _create_router(router.underlying_partition_router, config, parent_of)
    )


def _partition_names(router: PartitionRouter, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of a router's partition values."""
    if isinstance(router, ListPartitionRouter):
        yield evaluate_name(router, config, router.cursor_field)
    elif isinstance(router, SubstreamPartitionRouter):
        for parent in router.parent_stream_configs:
            yield evaluate_name(parent, config, parent.partition_field)
    elif isinstance(router, UnionPartitionRouter):
        yield evaluate_name(router, config, router.partition_field)


def _different_names_error(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"Not all routers of a UnionPartitionRouter return single values named {name}.",
        hint="Set their cursor_field or partition_field to the union's partition_field.",
    )


def evaluate_name(component: Component, config: Mapping[str, Any], template: str) -> str:
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
            inject_custom_options(router, into, partition)
            continue
        if isinstance(router, ListPartitionRouter):
            reported = [(router.request_option, evaluate_name(router, config, router.cursor_field))]
        elif isinstance(router, SubstreamPartitionRouter):
            reported = [
                (parent.request_option, evaluate_name(parent, config, parent.partition_field))
                for parent in router.parent_stream_configs
            ]
        else:
            continue
        for option, name in reported:
            if option is not None and (value := partition.get(name)):
                into.put(option, value, config)


@dataclass(frozen=True)
class _ListRouter:
    """A router with a partition for each value of a list."""

    router: ListPartitionRouter
    config: Mapping[str, Any]

    @property
    def name(self) -> str:
        return evaluate_name(self.router, self.config, self.router.cursor_field)

    def partitions(self) -> Iterator[StreamSlice]:
        name = self.name
        for value in self._values():
            yield StreamSlice({name: value})

    def _values(self) -> Iterable[Any]:
        values = self.router.values
        if not isinstance(values, str):
            return values
        context = {"config": self.config, "parameters": self.router.parameters}
        found = evaluate(values, context, default=values)
        if isinstance(found, str):
            found = _parse_list(found)
        if not isinstance(found, list | tuple):
            raise ConfigurationError(
                f"The values of the partitions are not a list: {values}",
                hint="Write a list, or a template that returns one.",
            )
        return found

    def parent_state(self) -> dict[str, Any] | None:
        return None


def _parse_list(text: str) -> Any:
    """Return the values of a list in text form, numbers as they are written, or None."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
    if isinstance(found, list | tuple) and set(map(type, found)) <= {int, float}:
        spelled = [
            written.strip() for written in text.strip().strip("[]()").rstrip(" ,").split(",")
        ]
        if len(spelled) == len(found):
            return [
                value if str(value) == written else written
                for value, written in zip(found, spelled, strict=True)
            ]
    return found


class _SubstreamRouter:
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
            name = evaluate_name(config, self._config, config.partition_field)
            key = evaluate_name(config, self._config, config.parent_key).split("/")
            paths = [
                [evaluate_name(config, self._config, part) for part in path]
                for path in config.extra_fields
            ]
            pointer = [
                evaluate_name(config, self._config, part) for part in config.lazy_read_pointer
            ]
            for parent_slice, record in self._parent(number).records():
                value = look_up(record, key)
                if value is MISSING or value is None:
                    continue
                extra: dict[str, Any] = {FIRST_PAGE: first_page(record, pointer)} if pointer else {}
                for path in paths:
                    found = look_up(record, path)
                    extra[".".join(path)] = None if found is MISSING else found
                yield StreamSlice({name: value, "parent_slice": parent_slice.partition}, {}, extra)

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
class _GroupingRouter:
    """A router that groups the partitions of another router."""

    router: GroupingPartitionRouter
    underlying: Router

    def partitions(self) -> Iterator[StreamSlice]:
        for group in _split_into_groups(self._distinct_partitions(), self.router.group_size):
            names = list(group[0].partition)
            extra = dict.fromkeys(name for partition in group for name in partition.extra_fields)
            yield StreamSlice(
                {name: [partition.partition.get(name) for partition in group] for name in names},
                {},
                {name: [partition.extra_fields.get(name) for partition in group] for name in extra},
            )

    def _distinct_partitions(self) -> Iterator[StreamSlice]:
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


def _split_into_groups(items: Iterable[StreamSlice], size: int) -> Iterator[list[StreamSlice]]:
    iterator = iter(items)
    yield from iter(partial(lambda: list(itertools.islice(iterator, size))), [])


@dataclass(frozen=True)
class _UnionRouter:
    """A router with the distinct partitions of several routers, by their one value."""

    name: str
    routers: Sequence[Router]

    def partitions(self) -> Iterator[StreamSlice]:
        seen: set[Any] = set()
        for partition in (
            partition for router in self.routers for partition in router.partitions()
        ):
            value = partition.partition.get(self.name, MISSING)
            if value is MISSING or isinstance(value, dict | list):
                raise _different_names_error(self.name)
            if value in seen:
                continue
            seen.add(value)
            others = {
                name: value for name, value in partition.partition.items() if name != self.name
            }
            yield StreamSlice({self.name: value}, {}, {**partition.extra_fields, **others})

    def parent_state(self) -> dict[str, Any] | None:
        states = [router.parent_state() or {} for router in self.routers]
        return {name: state for parents in states for name, state in parents.items()}


@dataclass(frozen=True)
class _ProductRouter:
    """A router with every combination of the partitions of several routers."""

    routers: Sequence[Router]

    def partitions(self) -> Iterator[StreamSlice]:
        for combination in itertools.product(*(router.partitions() for router in self.routers)):
            partition: dict[str, Any] = {}
            extra: dict[str, Any] = {}
            # The first router wins if two use the same name.
            for part in reversed(combination):
                partition |= part.partition
                extra |= part.extra_fields
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
