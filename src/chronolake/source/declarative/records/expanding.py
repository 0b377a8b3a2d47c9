"""Records that are lists of others: each item of a list within becomes a record of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import structlog

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.records.fieldpaths import (
    MISSING,
    is_pattern,
    looked_up,
    missing_in,
    path_of,
    places,
    put,
)

if TYPE_CHECKING:
    from chronolake.source.declarative.language.records import RecordExpander

_log = structlog.get_logger(__name__)

#: Gives the records that belong to one record.
Fetch = Callable[[Mapping[str, Any]], Iterable[Any]]
#: Makes that of a retriever as the manifest describes it.
FetchOf = Callable[[Mapping[str, Any]], Fetch]


class Expansion:
    """What makes records of the items of records, made ready once for a stream."""

    def __init__(
        self, model: RecordExpander, config: Mapping[str, Any], fetch_of: FetchOf | None = None
    ) -> None:
        """Makes ready what the manifest says.

        Args:
            model: the component.
            config: what the user has set.
            fetch_of: makes what reads whole lists in place of cut ones.

        Raises:
            ConfigurationError: a path that has to lead to one place may lead to several, or the
                component needs more requests than can be made here.
        """
        self._model = model
        self._path = path_of(model.expand_records_from_field, config, model.parameters)
        self._indicator = path_of(model.truncation_indicator_path or (), config, model.parameters)
        self._parents = [
            (
                _texts(path_of(one.parent_path, config, one.parameters)),
                _texts(path_of(one.record_path, config, one.parameters)),
            )
            for one in model.parent_fields or ()
        ]
        described = model.truncated_list_retriever
        self._fetch: Fetch | None = None
        if described is not None:
            if fetch_of is None or not self._indicator:
                raise ConfigurationError(
                    "A truncated_list_retriever cannot be used here.",
                    hint="It belongs to the extractor of a stream's own records, and needs a "
                    "truncation_indicator_path.",
                )
            self._fetch = fetch_of(described)
        single = [self._indicator, *(path for pair in self._parents for path in pair)]
        if described is not None:
            single.append(self._path)
        for path in single:
            if any(map(is_pattern, path)):
                raise ConfigurationError(
                    f"The path {list(path)} of a RecordExpander may lead to several places.",
                    hint="Write a path without the signs * ? and [.",
                )
        self._is_told = False

    def of(self, record: Any) -> Iterator[Any]:
        """The records that a record becomes; raises what the whole list's requests raise."""
        if not isinstance(record, dict) or not self._path:
            yield record
            return
        lists = [
            place.value for place in places(record, self._path) if isinstance(place.value, list)
        ]
        items: Iterable[Any] = (item for one in lists for item in one)
        embedded = sum(map(len, lists))
        base = self._base(record) if self._model.merge_parent else None
        if self._indicator and looked_up(record, self._indicator) not in (MISSING, False, None, 0):
            whole = [] if self._fetch is None else list(self._fetch(record))
            self._tell(record, len(whole) if self._fetch is not None else embedded)
            if whole:
                items, embedded = whole, len(whole)
        for item in items:
            yield self._with_context(record, item, base)
        if not embedded and self._model.on_no_records == "emit_parent":
            yield record

    def missing_in(self, record: Any) -> str | None:
        """Name where a record lacks its list; None: it has it, or need not have it."""
        if self._model.on_no_records == "emit_parent" or not self._path:
            return None
        return missing_in(record, self._path)

    def _with_context(
        self, parent: Mapping[str, Any], item: Any, base: Mapping[str, Any] | None
    ) -> Any:
        """An item with what it takes over from its parent."""
        model = self._model
        if isinstance(item, dict):
            record = dict(item)
        elif self._parents or base is not None or model.remain_original_record:
            record = {"value": item}
        else:
            return item
        if base is not None:
            record = {**deepcopy(base), **record}
        for source, target in self._parents:
            value = looked_up(parent, source)
            put(record, target, None if value is MISSING else deepcopy(value))
        if model.remain_original_record:
            record["original_record"] = deepcopy(parent)
        return record

    def _base(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """A record without the lists that become records."""
        base = deepcopy(dict(record))
        for place in reversed(list(places(base, self._path))):
            if isinstance(place.value, list):
                del place.holder[place.key]
        return base

    def _tell(self, record: Mapping[str, Any], got: int) -> None:
        """Say once that a list is cut, unless it is known to be whole."""
        total = looked_up(record, (*self._indicator[:-1], "total_count"))
        is_number = isinstance(total, int) and not isinstance(total, bool)
        is_short = is_number and got < total if self._fetch is not None else True
        if is_short and not self._is_told:
            self._is_told = True
            _log.warning(
                "nested_list_is_cut",
                path=list(self._path),
                got=got,
                of=total if is_number else None,
            )


def _texts(path: Iterable[Any]) -> tuple[str, ...]:
    return tuple(map(str, path))
