"""Extractors: find the records in the values of a response.

A record expander replaces a record by the items of a list within it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.field_paths import (
    evaluate_path,
    find_missing_part,
    find_places,
    get_only_value,
    is_empty,
    is_pattern,
    put,
)
from chronolake.source.declarative.http.decoders import Memory, decode
from chronolake.source.declarative.http.requests_conversion import to_requests_response
from chronolake.source.declarative.http.response import Response
from chronolake.source.declarative.models.base import CustomRecordExtractor
from chronolake.source.declarative.models.records import (
    CombinedExtractor,
    CsvDecoder,
    Decoder,
    DpathExtractor,
    Extractor,
    GzipDecoder,
    XmlDecoder,
)
from chronolake.source.declarative.models.streams import DownloadExtractor, ResponseToFileExtractor
from chronolake.source.records.lookup import MISSING, look_up

if TYPE_CHECKING:
    from chronolake.source.declarative.models.records import RecordExpander


_log = structlog.get_logger(__name__)

#: Returns the records that belong to a record.
Fetch = Callable[[Mapping[str, Any]], Iterable[Any]]
#: Creates a `Fetch` from the manifest's description of a retriever.
FetchOf = Callable[[Mapping[str, Any]], Fetch]


class Expansion:
    """A prepared record expander of a stream."""

    def __init__(
        self, model: RecordExpander, config: Mapping[str, Any], fetch_of: FetchOf | None = None
    ) -> None:
        """Prepare the expander and check its settings.

        Args:
            model: the manifest's component.
            config: the user's configuration.
            fetch_of: creates the function that reads complete lists in place of truncated ones.

        Raises:
            ConfigurationError: a path that must be unambiguous contains a pattern, or the component
                needs requests that are not available here.
        """
        self._model = model
        self._path = evaluate_path(model.expand_records_from_field, config, model.parameters)
        self._indicator = evaluate_path(
            model.truncation_indicator_path or (), config, model.parameters
        )
        self._parents = [
            (
                _texts(evaluate_path(field.parent_path, config, field.parameters)),
                _texts(evaluate_path(field.record_path, config, field.parameters)),
            )
            for field in model.parent_fields or ()
        ]
        described = model.truncated_list_retriever
        self._fetch: Fetch | None = None
        if described is not None:
            if fetch_of is None or not self._indicator:
                raise ConfigurationError(
                    "A truncated_list_retriever is not supported here.",
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
                    f"The path {list(path)} of a RecordExpander may match several values.",
                    hint="Write a path without the characters *, ? and [.",
                )
        self._has_warned = False

    def of(self, record: Any) -> Iterator[Any]:
        """Yield the records that a record expands to; raise what the list's own requests raise."""
        if not isinstance(record, dict) or not self._path:
            yield record
            return
        lists = [
            place.value
            for place in find_places(record, self._path)
            if isinstance(place.value, list)
        ]
        items: Iterable[Any] = (item for list_ in lists for item in list_)
        embedded = sum(map(len, lists))
        base = self._base(record) if self._model.merge_parent else None
        if self._indicator and look_up(record, self._indicator) not in (MISSING, False, None, 0):
            whole = [] if self._fetch is None else list(self._fetch(record))
            self._warn_of_truncation(record, len(whole) if self._fetch is not None else embedded)
            if whole:
                items, embedded = whole, len(whole)
        for item in items:
            yield self._with_context(record, item, base)
        if not embedded and self._model.on_no_records == "emit_parent":
            yield record

    def find_missing_part(self, record: Any) -> str | None:
        """Return where a record lacks its list, or None if the list exists or is optional."""
        if self._model.on_no_records == "emit_parent" or not self._path:
            return None
        return find_missing_part(record, self._path)

    def _with_context(
        self, parent: Mapping[str, Any], item: Any, base: Mapping[str, Any] | None
    ) -> Any:
        """Return an item with the values that it takes from its parent."""
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
            value = look_up(parent, source)
            put(record, target, None if value is MISSING else deepcopy(value))
        if model.remain_original_record:
            record["original_record"] = deepcopy(parent)
        return record

    def _base(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record without the lists that are expanded."""
        base = deepcopy(dict(record))
        for place in reversed(list(find_places(base, self._path))):
            if isinstance(place.value, list):
                del place.holder[place.key]
        return base

    def _warn_of_truncation(self, record: Mapping[str, Any], got: int) -> None:
        """Log once that a list is truncated, unless it is known to be complete."""
        total = look_up(record, (*self._indicator[:-1], "total_count"))
        is_number = isinstance(total, int) and not isinstance(total, bool)
        is_short = is_number and got < total if self._fetch is not None else True
        if is_short and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "nested_list_is_cut",
                path=list(self._path),
                got=got,
                of=total if is_number else None,
            )


def _texts(path: Iterable[Any]) -> tuple[str, ...]:
    return tuple(map(str, path))


#: The most values of a download that are in memory at a time.
_BATCH: Final = 5_000
#: A batch is complete once it uses this fraction of the memory limit.
_BATCHES: Final = 8
_TABLE: Final = GzipDecoder(
    type="GzipDecoder", decoder=CsvDecoder(type="CsvDecoder", encoding="utf-8-sig")
)
#: The values that mean a missing value in a table, unless `preserve_na_values` is set.
_MISSING: Final = frozenset(
    {
        *(None, "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND"),
        *("1.#QNAN", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
    }
)


@dataclass(frozen=True)
class ExtractedRecords:
    """The records that an extractor finds in a response.

    Attributes:
        records: usually objects, but an API may return any values.
        count: number of records, including empty ones that the extractor drops.
        missing: description of the path where the records should be, if the response has nothing
            there; None: it exists, or the response is empty.
    """

    records: list[Any]
    count: int
    missing: str | None = None


def raise_if_missing(extracted: ExtractedRecords) -> None:
    """Raise SourceError if a response has nothing where its records should be."""
    if extracted.missing is not None:
        raise SourceError(
            f"A response has no {extracted.missing}, where its records should be.",
            hint="Read again later. If the API omits it when there are no records, list "
            "the stream in the source's `may_lack_records`. If the response is an "
            "error, add an error handler with the action RETRY or IGNORE to the "
            "manifest.",
        )


#: Finds the records of a response. It raises the same errors as `decode`, and SourceError for a
#: path whose pattern matches several values.
Extraction = Callable[[Response], ExtractedRecords]
#: Finds records in decoded values.
Find = Callable[[Iterable[Any]], ExtractedRecords]


def create_extraction(
    component: Extractor,
    decoder: Decoder,
    config: Mapping[str, Any],
    fetch_of: FetchOf | None = None,
) -> Extraction:
    """Return a function that finds records with an extractor.

    Args:
        component: the extractor.
        decoder: decodes responses.
        config: the user's configuration.
        fetch_of: creates the function that reads complete lists in place of truncated ones.

    Raises:
        ConfigurationError: the extractor's settings contradict each other.
    """
    if isinstance(component, CombinedExtractor):
        return _create_combined_extraction(component, decoder, config, fetch_of)
    if isinstance(component, CustomRecordExtractor):
        return _create_custom_extraction(component)
    find = _create_finder(component, decoder, config, fetch_of)
    return lambda answer: find(decode(decoder, answer))


def create_batch_extraction(
    component: DownloadExtractor, decoder: Decoder, config: Mapping[str, Any]
) -> Callable[[Response], Iterator[ExtractedRecords]]:
    """Return a function that finds records with an extractor in batches, as they are decoded.

    The batches raise the same errors as an `Extraction`.

    Raises:
        ConfigurationError: the extractor's settings contradict each other.
    """
    if isinstance(component, CombinedExtractor | CustomRecordExtractor):
        extraction = create_extraction(component, decoder, config)
        return lambda answer: iter([extraction(answer)])
    if isinstance(component, ResponseToFileExtractor):
        return _batches(_TABLE, partial(_extract_rows, component))
    find = _create_finder(component, decoder, config)
    return _batches(decoder, find)


def _batches(decoder: Decoder, find: Find) -> Callable[[Response], Iterator[ExtractedRecords]]:
    def batches(answer: Response) -> Iterator[ExtractedRecords]:
        memory = Memory(answer.memory_limit)
        iterator = iter(decode(decoder, answer, memory))
        known = memory.used
        while batch := list(_take_batch(iterator, memory, known)):
            yield find(batch)
            # Values of earlier batches are no longer in memory.
            memory.used = known

    return batches


def _take_batch(iterator: Iterator[Any], memory: Memory, known: int) -> Iterator[Any]:
    """Yield values until their number or size is enough for a batch."""
    for body in itertools.islice(iterator, _BATCH):
        yield body
        if memory.used - known > memory.limit // _BATCHES:
            return


def _extract_rows(component: ResponseToFileExtractor, rows: Iterable[Any]) -> ExtractedRecords:
    missing = {"", None} if component.preserve_na_values else _MISSING
    found = []
    for row in rows:
        if any(isinstance(value, list) for value in row.values()):
            raise SourceError(
                "A row of a download has more values than the header has columns.",
                hint="Look at the API's response, and choose the decoder that matches it.",
            )
        # NUL characters are not valid in text, and are removed.
        texts = ((name, value and value.replace("\0", "")) for name, value in row.items())
        found.append({name: None if text in missing else text for name, text in texts})
    return _extract_all(found)


def _create_finder(
    component: DpathExtractor,
    decoder: Decoder,
    config: Mapping[str, Any],
    fetch_of: FetchOf | None = None,
) -> Find:
    path = evaluate_path(component.field_path, config, component.parameters)
    find = _create_finder_at(path, isinstance(decoder, XmlDecoder)) if path else _extract_bodies
    if component.record_expander is None:
        return find
    expansion = Expansion(component.record_expander, config, fetch_of)

    def expand(bodies: Iterable[Any]) -> ExtractedRecords:
        found = find(bodies)
        records = [expanded for record in found.records for expanded in expansion.of(record)]
        missing = found.missing
        if not path and not records:
            # The body is the record, so the path to its list is the path of the records.
            missing = next(filter(None, map(expansion.find_missing_part, found.records)), None)
        return ExtractedRecords(records, len(records), missing)

    return expand


def _create_finder_at(path: tuple[Any, ...], is_xml: bool) -> Find:  # noqa: FBT001 - it has one caller
    has_pattern = any(map(is_pattern, path))
    lookup = get_only_value if has_pattern else look_up
    # XML has no empty list: without items, the element is missing.
    needed = path[:-1] if is_xml and len(path) > 1 else path

    def find_in(body: Any) -> list[Any]:
        # A pattern returns all of its values; a plain path returns one value: a list of records, or
        # a record.
        if "*" in path:
            return [place.value for place in find_places(body, path)]
        found = lookup(body, path)
        return _records_of(None if found is MISSING else found)

    def find(bodies: Iterable[Any]) -> ExtractedRecords:
        if isinstance(bodies, list) and len(bodies) == 1:
            records = find_in(bodies[0])
            return ExtractedRecords(
                records, len(records), None if records else find_missing_part(bodies[0], needed)
            )
        records, missing, is_there = [], None, False
        for body in bodies:
            found = find_in(body)
            lacks = (
                None if found or (missing and not has_pattern) else find_missing_part(body, needed)
            )
            missing = missing or lacks
            is_there = is_there or lacks is None
            records.extend(found)
        # For a pattern, one body that contains the path is enough, as with the values that it
        # matches.
        return ExtractedRecords(
            records, len(records), None if has_pattern and is_there else missing
        )

    return find


def _extract_all(records: list[Any]) -> ExtractedRecords:
    return ExtractedRecords(records, len(records))


def _extract_bodies(bodies: Iterable[Any]) -> ExtractedRecords:
    if isinstance(bodies, list) and set(map(type, bodies)) == {dict} and all(bodies):
        return _extract_all(bodies)
    return _extract_all([record for body in bodies for record in _records_of(body)])


def _records_of(found: Any) -> list[Any]:
    if isinstance(found, list):
        return found
    return [] if is_empty(found) else [found]


def _create_custom_extraction(component: CustomRecordExtractor) -> Extraction:
    """Return a function that finds records with a custom extractor class."""
    calls = component.calls

    def extract(answer: Response) -> ExtractedRecords:
        found = calls.call_for_list("extract_records", to_requests_response(answer))
        records = [dict(record) if isinstance(record, Mapping) else record for record in found]
        return ExtractedRecords(records, len(records))

    return extract


def _create_combined_extraction(
    component: CombinedExtractor,
    decoder: Decoder,
    config: Mapping[str, Any],
    fetch_of: FetchOf | None,
) -> Extraction:
    extractions = [
        create_extraction(extractor, decoder, config, fetch_of)
        for extractor in component.extractors
    ]

    def extract(extraction: Extraction, answer: Response) -> ExtractedRecords:
        found = extraction(answer)
        if not component.skip_empty_records:
            return found
        kept = [record for record in found.records if record]
        if len(kept) < len(found.records):
            _log.warning("empty records were left out", records=len(found.records) - len(kept))
        return ExtractedRecords(kept, found.count, found.missing)

    def missing_of(parts: Sequence[ExtractedRecords]) -> str | None:
        # One path that exists is enough: an error response has none of them.
        missing = [part.missing for part in parts if part.missing is not None]
        return " and no ".join(missing) if missing and len(missing) == len(parts) else None

    # The response is decoded again for each extractor, because records are changed in place later.
    def union(answer: Response) -> ExtractedRecords:
        parts = [extract(extraction, answer) for extraction in extractions]
        records = [record for part in parts for record in part.records]
        return ExtractedRecords(records, sum(part.count for part in parts), missing_of(parts))

    def first_match(answer: Response) -> ExtractedRecords:
        parts: list[ExtractedRecords] = []
        for extraction in extractions:
            parts.append(part := extract(extraction, answer))
            if part.records:
                return part
        return ExtractedRecords([], 0, missing_of(parts))

    return union if component.mode == "union" else first_match
