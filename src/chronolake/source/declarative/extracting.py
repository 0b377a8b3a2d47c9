"""Where in the bodies of an answer its records are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.answers import Answer
from chronolake.source.declarative.bodies import decoded
from chronolake.source.declarative.fieldpaths import (
    MISSING,
    is_pattern,
    looked_up,
    only_value,
    path_of,
    places,
)
from chronolake.source.declarative.language.records import (
    CombinedExtractor,
    Decoder,
    DpathExtractor,
    Extractor,
)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Extracted:
    """What an extractor finds in an answer.

    Attributes:
        records: mostly objects, but an API may answer anything.
        count: how many there were, with the empty ones that the extractor leaves out.
    """

    records: list[Any]
    count: int


#: Finds the records of an answer. It raises what `decoded` raises, and SourceError for a path with
#: a pattern that fits several values.
Extraction = Callable[[Answer], Extracted]


def extraction_of(component: Extractor, decoder: Decoder, config: Mapping[str, Any]) -> Extraction:
    """What finds records as an extractor says.

    Raises:
        ConfigurationError: the extractor has a part that is not supported.
    """
    if isinstance(component, CombinedExtractor):
        return _combined(component, decoder, config)
    find = _finder(component, config)

    def extracted(answer: Answer) -> Extracted:
        records = find(decoded(decoder, answer))
        return Extracted(records, len(records))

    return extracted


def _finder(
    component: DpathExtractor, config: Mapping[str, Any]
) -> Callable[[Iterable[Any]], list[Any]]:
    if component.record_expander is not None:
        raise ConfigurationError(
            "The record_expander of a DpathExtractor is not supported.",
            hint="Extract the inner records with a field path of their own.",
        )
    path = path_of(component.field_path, config, component.parameters)
    if not path:
        return _own_records
    lookup = only_value if any(map(is_pattern, path)) else looked_up

    def found_in(body: Any) -> list[Any]:
        # A pattern has all its values, a plain path has one value: a list of records, or a record.
        if "*" in path:
            return [place.value for place in places(body, path)]
        found = lookup(body, path)
        return _records_of(None if found is MISSING else found)

    def find(bodies: Iterable[Any]) -> list[Any]:
        if isinstance(bodies, list) and len(bodies) == 1:
            return found_in(bodies[0])
        return [record for body in bodies for record in found_in(body)]

    return find


def _own_records(bodies: Iterable[Any]) -> list[Any]:
    if isinstance(bodies, list) and set(map(type, bodies)) == {dict} and all(bodies):
        return bodies
    return [record for body in bodies for record in _records_of(body)]


def _records_of(found: Any) -> list[Any]:
    if isinstance(found, list):
        return found
    return [found] if found else []


def _combined(
    component: CombinedExtractor, decoder: Decoder, config: Mapping[str, Any]
) -> Extraction:
    extractions = [extraction_of(one, decoder, config) for one in component.extractors]

    def of(extraction: Extraction, answer: Answer) -> Extracted:
        found = extraction(answer)
        if not component.skip_empty_records:
            return found
        kept = [record for record in found.records if record]
        if len(kept) < len(found.records):
            _log.warning("empty records were left out", records=len(found.records) - len(kept))
        return Extracted(kept, found.count)

    # Each extractor has the answer decoded anew: what one of them gives may be changed later.
    def union(answer: Answer) -> Extracted:
        parts = [of(extraction, answer) for extraction in extractions]
        records = [record for part in parts for record in part.records]
        return Extracted(records, sum(part.count for part in parts))

    def first_match(answer: Answer) -> Extracted:
        parts = (of(extraction, answer) for extraction in extractions)
        return next((part for part in parts if part.records), Extracted([], 0))

    return union if component.mode == "union" else first_match
