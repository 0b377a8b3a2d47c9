"""Sources and resources of dlt, as they are: their hints, their incremental state, their records.

Source: dlt 1.31 (`dlt.extract`). A resource is read through dlt's own pipes, which load its
configuration, call its transformations, and filter what an incremental cursor has seen. dlt gets
its state from us as a dictionary, changes it while records are read, and it is stored when all
records of the source are durable. dlt's normalization, load packages and destinations are not used.
"""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import dlt
from dlt.common.configuration.container import Container
from dlt.common.configuration.specs.config_section_context import ConfigSectionContext
from dlt.common.json import json
from dlt.common.pipeline import StateInjectableContext
from dlt.common.schema.utils import normalize_schema_name
from dlt.extract.exceptions import ResourceExtractionError
from dlt.extract.hints import HintsMeta
from dlt.extract.incremental import Incremental, IncrementalResourceWrapper
from dlt.extract.items import TableNameMeta
from dlt.extract.pipe_iterator import ManagedPipeIterator
from dlt.extract.reference import SourceFactory
from dlt.extract.resource import DltResource
from dlt.extract.source import DltSource, SourceInjectableContext, SourceSchemaInjectableContext

from chronolake import exact_json
from chronolake.errors import ChronolakeError, ConfigurationError, SourceError
from chronolake.masking import Secrets
from chronolake.source.connectors.foreign_state import unknown_stream_error
from chronolake.source.protocol import CaptureMethod
from chronolake.source.python.declarations import StreamDeclaration
from chronolake.source.python.failures import failure_of
from chronolake.source.python.groups import YieldedRecords
from chronolake.source.records.messages import Complete, Declared, Progress
from chronolake.types import ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from datetime import datetime

    from chronolake.source.records.messages import Message

_SOURCES: Final = "sources"
_RESOURCES: Final = "resources"
#: Column types by dlt's names. A decimal without precision and a wei get the type of their values.
_KINDS: Final = {
    "text": Kind.STRING,
    "double": Kind.DOUBLE,
    "bool": Kind.BOOLEAN,
    "bigint": Kind.LONG,
    "binary": Kind.BINARY,
    "json": Kind.JSON,
    "date": Kind.NAIVE_DATE,
    "time": Kind.NAIVE_TIME,
}
#: The error's hint for a resource that lacks a hint of dlt.
_APPLY: Final = "Set it in the module: {}.apply_hints({})."


@dataclass(frozen=True)
class DltTarget:
    """A source of dlt; a `Target`.

    Attributes:
        path: its module and name, as configured.
        source: the source; that of a resource has only this resource.
        streams: its selected resources, by name.
    """

    path: str
    source: Any
    streams: Mapping[str, StreamDeclaration]

    @property
    def is_shared(self) -> bool:
        """Return whether it has one state for several resources."""
        return len(self.streams) > 1

    @property
    def takes_window(self) -> bool:
        """Return False: dlt's sources have parameters of their own for time ranges."""
        return False

    @classmethod
    def of(cls, path: str, found: Any, config: Mapping[str, Any]) -> DltTarget:
        """Return the target for a source, a resource, or a function that returns a source.

        Args:
            path: its module and name, as configured.
            found: a source or resource, or a function that returns one.
            config: its arguments.

        Raises:
            ConfigurationError: arguments are missing or unknown, or its hints cannot be followed.
            SourceError: the source cannot be created.
        """
        try:
            source = _source_of(path, found, config)
            streams = {
                str(name): _declaration_of(path, resource)
                for name, resource in source.selected_resources.items()
            }
        except ChronolakeError:
            raise
        except Exception as failure:
            raise failure_of(path, failure, Secrets(config)) from failure
        if not streams:
            raise ConfigurationError(
                f"The source {path} has no selected resources.",
                hint="Select some in the module: source.with_resources(...).",
            )
        return cls(path, source, streams)

    def read(
        self,
        config: Mapping[str, Any],  # noqa: ARG002 - the source has its arguments
        state: Any,
        *,
        streams: Collection[str],
        new: Collection[str],
        secrets: Secrets,
        window: tuple[datetime, datetime] | None = None,  # noqa: ARG002 - see takes_window
    ) -> Iterator[Message]:
        """Read resources, and yield their records and the state after them.

        Raises:
            SourceError: a resource fails, or yields something that is not a record.
        """
        source = self.source.with_resources(*streams)
        current = {} if state is None else json.typed_loadb(exact_json.dumps(state))
        self._forget(current, source, new)
        groups = YieldedRecords()
        try:
            for stream, item, meta in _items_of(source, current):
                yield from self._declare(stream, meta)
                yield from groups.add(stream, item)
        except ChronolakeError:
            raise
        except Exception as failure:
            yield from groups.pass_on()
            error = failure_of(self.path, _cause_of(failure), secrets)
            if secrets.hides_messages:
                raise error from None
            raise error from failure
        yield from groups.pass_on()
        stored = exact_json.loads(json.typed_dumpb(current))
        yield Progress(stored, None if self.is_shared else next(iter(self.streams)))
        yield from (Complete(name) for name in streams)

    def import_state(self, sources: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the state that continues a pipeline of dlt; None if it did not load this source.

        Args:
            sources: the states of the pipeline's sources, by name.

        Raises:
            ConfigurationError: the state names a resource that the source does not have.
        """
        own = sources.get(self.source.name)
        if own is None:
            # A resource without a source has the name of its pipeline or module there.
            found = [
                state
                for state in sources.values()
                if self.streams.keys() & (state.get(_RESOURCES) or {}).keys()
            ]
            if len(found) != 1:
                return None
            (own,) = found
        for name in own.get(_RESOURCES) or {}:
            if name not in self.source.resources:
                raise unknown_stream_error(name, list(self.source.resources))
        return {_SOURCES: {self.source.name: own}}

    @staticmethod
    def _forget(state: dict[str, Any], source: Any, new: Collection[str]) -> None:
        """Remove the state of resources that are read as a whole, as dlt does for `replace`."""
        of_resources = state.get(_SOURCES, {}).get(source.name, {}).get(_RESOURCES, {})
        # A resource without a parent is in the graph with an edge to itself.
        edges = source.resources.selected_dag
        parents = {child: parent for parent, child in edges if parent != child}
        for resource in source.resources.extracted:
            if resource.write_disposition == "replace":
                of_resources.pop(resource.name, None)
        for stream in new:
            # The records of a resource that takes its data from another come from that one.
            name: str | None = stream
            while name is not None:
                of_resources.pop(name, None)
                name = parents.get(name)

    def _declare(self, stream: str, meta: Any) -> Iterator[Declared]:
        """Yield the types that are declared with records.

        Raises:
            SourceError: the records belong to another table, or have another key.
        """
        declared = self.streams[stream]
        table: str | None = None
        hints: Mapping[str, Any] = {}
        if isinstance(meta, TableNameMeta):
            table = meta.table_name
        elif isinstance(meta, HintsMeta):
            hints = meta.hints or {}
            table = hints.get("table_name")
        if table not in {None, stream, declared.table}:
            raise SourceError(
                f"The resource {stream} of {self.path} yielded records of the table {table!r}.",
                hint="Write a resource for each table; a stream has one table.",
            )
        key = hints.get("primary_key")
        if key is not None and _names(key) != declared.key:
            raise SourceError(
                f"The resource {stream} of {self.path} reports its key only with its records.",
                hint=_APPLY.format(stream, f"primary_key={list(_names(key))}"),
            )
        if columns := hints.get("columns"):
            yield Declared(stream, _types_of(columns))


def _source_of(path: str, found: Any, config: Mapping[str, Any]) -> Any:
    """Return the source for an object; that of a resource has only this resource."""
    is_bound = getattr(found, "_args_bound", True)
    if isinstance(found, SourceFactory) or (
        isinstance(found, DltResource) and not is_bound and (config or found.requires_args)
    ):
        _expect_arguments(path, found, config)
        found = found(**config)
    elif config:
        raise ConfigurationError(
            f"{path} has its arguments already, and chronolake.yml sets source.config.",
            hint="Remove source.config, or set source.run to the function.",
        )
    if isinstance(found, DltSource):
        return found
    section = found.section or found.name
    return DltSource(dlt.Schema(normalize_schema_name(section)), section, [found])


def _expect_arguments(path: str, called: Any, config: Mapping[str, Any]) -> None:
    try:
        inspect.signature(called).bind(**config)
    except TypeError as failure:
        raise ConfigurationError(
            f"{path} cannot be called with source.config: {failure}.",
            hint="Set values for its parameters below source.config in chronolake.yml.",
        ) from None


def _declaration_of(path: str, resource: Any) -> StreamDeclaration:
    """Return the declaration for a resource's hints.

    Raises:
        ConfigurationError: the hints depend on records, or cannot be followed.
    """
    name = resource.name
    if resource.has_dynamic_table_name or resource.has_other_dynamic_hints:
        raise ConfigurationError(
            f"The hints of the resource {name} of {path} depend on its records.",
            hint="Write a resource for each table; a stream has one table and one key.",
        )
    schema = resource.compute_table_schema()
    columns = schema.get("columns") or {}
    disposition = schema.get("write_disposition") or resource.write_disposition
    strategy = schema.get("x-merge-strategy")
    key = tuple(column for column, hints in columns.items() if hints.get("primary_key"))
    merged = {column for column, hints in columns.items() if hints.get("merge_key")}
    if merged and disposition == "merge" and not (key and merged >= set(key)):
        raise ConfigurationError(
            f"The resource {name} of {path} replaces all records of the same "
            f"{', '.join(sorted(merged))} (merge_key), which a table of record versions cannot do.",
            hint="If these columns identify a record, set them as its key: "
            f"{name}.apply_hints(primary_key={sorted(merged)}).",
        )
    deleted_by = next((column for column, hints in columns.items() if hints.get("hard_delete")), "")
    if deleted_by and not key:
        raise ConfigurationError(
            f"The resource {name} of {path} reports deleted records, and has no key.",
            hint=_APPLY.format(name, "primary_key=..."),
        )
    is_complete = disposition == "replace" or (strategy == "scd2" and not merged)
    cursor = _cursor_of(resource)
    ordered_by = next((column for column, hints in columns.items() if hints.get("dedup_sort")), "")
    capture = CaptureMethod.SNAPSHOT_DIFF if is_complete else CaptureMethod.OBSERVED_CHANGES
    table = schema.get("name")
    return StreamDeclaration(
        key,
        None if is_complete else ordered_by or cursor,
        deleted_by or None,
        capture,
        _types_of(columns),
        None if table == name else table,
    )


def _cursor_of(resource: Any) -> str | None:
    """Return the field of a resource's incremental reads, or None without them."""
    step = resource.incremental
    if step is None:
        return None
    found = step.incremental if isinstance(step, IncrementalResourceWrapper) else step
    if found is None:
        parameter = IncrementalResourceWrapper.get_incremental_arg(inspect.signature(resource))
        given = (
            (getattr(resource, "_explicit_args", None) or {}).get(parameter.name)
            if parameter
            else None
        )
        found = given or (parameter.default if parameter else None)
    if not isinstance(found, Incremental) or found.is_partial():
        return None
    # A path into nested values has no simple name.
    name: str | None = found.get_cursor_column_name()
    return name


def _types_of(columns: Mapping[str, Mapping[str, Any]]) -> dict[str, ColumnType]:
    found = {}
    for name, hints in columns.items():
        declared = hints.get("data_type")
        if declared in _KINDS:
            found[name] = ColumnType(_KINDS[declared])
        elif declared == "timestamp":
            is_naive = hints.get("timezone") is False
            found[name] = ColumnType(Kind.NAIVE_DATETIME if is_naive else Kind.UTC_DATETIME)
        elif declared == "decimal" and hints.get("precision"):
            found[name] = ColumnType(Kind.DECIMAL, hints["precision"], hints.get("scale") or 0)
    return found


def _names(key: str | Collection[str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)


def _items_of(source: Any, state: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the resource, the records, and dlt's remark about them, and change the state.

    The contexts in which resources run are those of `dlt.extract.extract.Extract`. They are active
    while dlt's code runs, and not while records are landed.
    """
    section = ConfigSectionContext(
        sections=(_SOURCES, source.section, source.name), source_state_key=source.name
    )
    contexts = [
        section,
        StateInjectableContext(state=state),
        SourceInjectableContext(source),
        SourceSchemaInjectableContext(source.schema),
    ]
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(Container().injectable_context(context))
        pipes = ManagedPipeIterator.from_pipes(source.resources.selected_pipes)
    pipes.set_context(contexts)
    with pipes:
        for found in pipes:
            yield found.pipe.name, found.item, found.meta


def _cause_of(failure: Exception) -> Exception:
    """Return the exception in the author's code that dlt reports."""
    cause = failure.__cause__
    is_reported = isinstance(failure, ResourceExtractionError) and isinstance(cause, Exception)
    return cause if is_reported and isinstance(cause, Exception) else failure
