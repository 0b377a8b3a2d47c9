"""Properties that requests ask for by their names, and records that come in parts."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from chronolake.source.declarative.language.properties import PropertiesFromEndpoint
from chronolake.source.declarative.records.fieldpaths import MISSING, only_value, path_of
from chronolake.source.declarative.records.transformations import step_of
from chronolake.source.declarative.streamslice import StreamSlice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from chronolake.source.declarative.language.properties import (
        PropertyChunking,
        QueryProperties,
    )
    from chronolake.source.declarative.language.streams import SimpleRetriever
    from chronolake.source.declarative.records.transformations import Record

#: Where a slice has them for requests.
_NAME = "query_properties"
#: Between two names in a request there are so many characters, as they are encoded.
_SEPARATOR = 3


class Properties:
    """The properties of a stream. Any number of threads may ask for them."""

    def __init__(
        self,
        model: QueryProperties,
        config: Mapping[str, Any],
        schema: Mapping[str, Any] | None,
        fetch_of: Callable[[SimpleRetriever], Callable[[], Iterable[Record]]],
    ) -> None:
        """Makes ready what the manifest says.

        Args:
            model: the properties.
            config: what the user has set.
            schema: the stream's, for a selector.
            fetch_of: makes what reads all records of a retriever.

        Raises:
            ConfigurationError: the endpoint's retriever is wrong.
        """
        wanted = model.property_list
        self._model = model
        self._config = config
        self._fetch: Callable[[], Iterable[Record]] = tuple
        if isinstance(wanted, PropertiesFromEndpoint):
            self._fetch = fetch_of(wanted.retriever)
        self._selected = _selected(model, config, schema)
        self._told: list[str] | None = None
        self._lock = threading.Lock()

    def slices(self, one: StreamSlice) -> Iterator[StreamSlice]:
        """A slice once for each request, with the properties that it asks for.

        Raises:
            SourceError: the API does not tell the properties.
        """
        for names in self._chunks():
            yield StreamSlice(one.partition, one.cursor_slice, {_NAME: names})

    def united(self, parts: Sequence[Sequence[Record]]) -> list[Record]:
        """The records of several requests: those that have a key in common are one."""
        records: list[Record] = []
        by_key: dict[tuple[str, ...], Record] = {}
        for record in (record for part in parts for record in part):
            key = self._key(record)
            if key is None:
                records.append(record)
            else:
                _merge(by_key.setdefault(key, {}), record)
        return [*records, *by_key.values()]

    def _key(self, record: Record) -> tuple[str, ...] | None:
        chunking = self._model.property_chunking
        if chunking is None:
            return None
        strategy = chunking.record_merge_strategy
        values = [record.get(name) for name in (strategy.key if strategy else ("id",))]
        return tuple(map(str, values)) if all(values) else None

    def _names(self) -> Sequence[str]:
        wanted = self._model.property_list
        if not isinstance(wanted, PropertiesFromEndpoint):
            return wanted
        with self._lock:
            if self._told is None:
                path = path_of(wanted.property_field_path, self._config, wanted.parameters)
                found = (only_value(record, path) for record in self._fetch())
                self._told = [str(name) for name in found if name is not MISSING]
            return self._told

    def _chunks(self) -> Iterator[list[str]]:
        names, chunking = self._names(), self._model.property_chunking
        always = self._model.always_include_properties or ()
        if chunking is not None and not chunking.property_limit:
            yield [*names, *always]
            return
        if self._selected is not None:
            names = [name for name in names if name in self._selected]
        if chunking is None:
            yield [*always, *names]
            return
        for chunk in _cut(names, chunking):
            yield [*always, *chunk]


def _cut(names: Sequence[str], chunking: PropertyChunking) -> Iterator[list[str]]:
    chunk: list[str] = []
    size, most = 0, chunking.property_limit or 0
    for name in names:
        more = len(name) + _SEPARATOR if chunking.property_limit_type == "characters" else 1
        if size + more > most:
            yield chunk
            chunk, size = [], 0
        chunk.append(name)
        size += more
    yield chunk


def _selected(
    model: QueryProperties, config: Mapping[str, Any], schema: Mapping[str, Any] | None
) -> set[str] | None:
    """The properties that the stream's schema has; None: all are wanted."""
    declared = (schema or {}).get("properties")
    if model.property_selector is None or not isinstance(declared, dict) or not declared:
        return None
    found: Record = {name: {} for name in declared}
    for one in model.property_selector.transformations:
        found = step_of(one, config)({"config": config, "stream_slice": StreamSlice()})(found)
    return set(found)


def _merge(target: Record, source: Mapping[str, Any]) -> None:
    for name, value in source.items():
        held = target.get(name)
        if isinstance(held, dict) and isinstance(value, dict):
            _merge(held, value)
        else:
            target[name] = value
