"""The records of an answer: extracted, filtered, transformed and converted."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import orjson

from chronolake.errors import SourceError
from chronolake.source.declarative.components.responses import slice_seen
from chronolake.source.declarative.language.custom import (
    CustomComponent,
    CustomRecordFilter,
    CustomSchemaNormalization,
)
from chronolake.source.declarative.language.records import RecordFilter
from chronolake.source.declarative.records.extracting import (
    Extracted,
    extraction_of,
    raise_if_missing,
)
from chronolake.source.declarative.records.normalization import converter_of
from chronolake.source.declarative.records.transformations import Record, step_of
from chronolake.source.declarative.templating.templates import as_truth

if TYPE_CHECKING:
    from chronolake.source.declarative.exchange.answers import Answer
    from chronolake.source.declarative.language.records import (
        Decoder,
        RecordSelector,
        Transformation,
    )
    from chronolake.source.declarative.records.expanding import FetchOf
    from chronolake.source.declarative.streamslice import StreamSlice

Keep = Callable[[Record], bool]


@dataclass(frozen=True)
class Page:
    """The records of one answer.

    Attributes:
        records: those that are kept, transformed.
        extracted: how many the answer had; pages are counted by it.
        digest: of what was extracted, the same for the same records; None: it was not wanted.
    """

    records: list[Record]
    extracted: int
    digest: bytes | None = None

    @property
    def last(self) -> Record | None:
        """The last record that is kept, as templates see it."""
        return self.records[-1] if self.records else None


class Selection:
    """What makes records of answers, made ready once for a stream."""

    def __init__(
        self,
        selector: RecordSelector,
        *,
        decoder: Decoder,
        transformations: Iterable[Transformation],
        config: Mapping[str, Any],
        schema: Mapping[str, Any] | None = None,
        is_client_side: bool = False,
        fetch_of: FetchOf | None = None,
        may_lack_records: bool = False,
        is_paged: bool = False,
    ) -> None:
        """Makes ready what the manifest says.

        Args:
            selector: the extractor, the filter, and whether values are converted.
            decoder: of the answers.
            transformations: of the stream, in their order.
            config: what the user has set.
            schema: the JSON schema that values are converted to, if the selector wants it.
            is_client_side: the stream's cursor filters records, so that they are transformed
                before they are filtered unless the manifest says otherwise.
            fetch_of: makes what reads whole lists in place of those that an answer has cut.
            may_lack_records: whether an answer that has nothing where its records should be has no
                records; else it is an error.
            is_paged: whether pages have a digest.

        Raises:
            ConfigurationError: the manifest uses what is not supported.
        """
        self._extraction = extraction_of(selector.extractor, decoder, config, fetch_of)
        # As in the reference, an empty condition holds for nothing, unless the cursor filters, too.
        self._filter = selector.record_filter
        self._own_filter = (
            self._filter.calls if isinstance(self._filter, CustomRecordFilter) else None
        )
        transformations = tuple(transformations)
        self._steps = [step_of(one, config) for one in transformations]
        self._convert = _conversion(selector.schema_normalization, schema) if schema else None
        #: Whether classes of the connector's own have a hand in it.
        self._is_own = any(
            isinstance(one, CustomComponent)
            for one in (
                selector.extractor,
                selector.record_filter,
                selector.schema_normalization,
                decoder,
                *transformations,
            )
        )
        before = selector.transform_before_filtering
        self._is_transformed_first = is_client_side if before is None else before
        self._config = config
        self._may_lack_records = may_lack_records
        self._is_paged = is_paged

    def page(
        self,
        answer: Answer,
        stream_slice: StreamSlice,
        next_page_token: Mapping[str, Any] | None = None,
        *,
        keep: Keep | None = None,
    ) -> Page:
        """The records of an answer to a request for a page of a slice.

        Args:
            answer: an answer with records.
            stream_slice: what templates know as such.
            next_page_token: the token that was sent.
            keep: the cursor's word on a record, which is asked before the filter.

        Raises:
            SourceError: the answer cannot be read, has nothing where its records should be, or has
                records that are no objects.
            ConfigurationError: a template cannot be evaluated.
        """
        found = self._extraction(answer)
        if answer.may_lack_records:
            found = replace(found, missing=None)
        return self.selected(found, stream_slice, next_page_token, keep=keep)

    def selected(
        self,
        found: Extracted,
        stream_slice: StreamSlice,
        next_page_token: Mapping[str, Any] | None = None,
        *,
        keep: Keep | None = None,
    ) -> Page:
        """The records of what has been extracted already.

        Args:
            found: what an answer had.
            stream_slice: what templates know as such.
            next_page_token: the token that was sent.
            keep: the cursor's word on a record, which is asked before the filter.

        Raises:
            SourceError: there was nothing where records should be, or there are records that are no
                objects.
            ConfigurationError: a template cannot be evaluated.
        """
        if not self._may_lack_records:
            raise_if_missing(found)
        context = {"config": self._config, "stream_slice": stream_slice}
        # Transformations change records in place.
        digest = _digest(found.records) if self._is_paged else None
        if self._is_transformed_first:
            records = self._transformed(found.records, context)
            records = self._kept(records, keep, {**context, "next_page_token": next_page_token})
        else:
            kept = self._kept(found.records, keep, {**context, "next_page_token": next_page_token})
            records = self._transformed(kept, context)
        if self._convert is not None:
            for record in records:
                self._convert(record)
        if self._is_own:
            records = _plain(records)
        return Page(records, found.count, digest)

    def _kept(self, records: list[Any], keep: Keep | None, context: Mapping[str, Any]) -> list[Any]:
        if keep is not None:
            records = [record for record in _objects(records) if keep(record)]
        if self._own_filter is not None:
            kept: list[Any] = self._own_filter.listed(
                "filter_records",
                records,
                stream_state={},
                stream_slice=slice_seen(context["stream_slice"]),
                next_page_token=context["next_page_token"],
            )
            return kept
        if not isinstance(self._filter, RecordFilter) or (
            keep is not None and not self._filter.condition
        ):
            return records
        condition = self._filter.condition
        variables = {**context, "parameters": self._filter.parameters}

        def holds(record: Any) -> bool:
            variables["record"] = record
            return as_truth(condition, variables)

        return [record for record in records if holds(record)]

    def _transformed(self, records: list[Any], context: Mapping[str, Any]) -> list[Record]:
        records = _objects(records)
        for step in self._steps if records else ():
            records = list(map(step(context), records))
        return records


def _digest(records: list[Any]) -> bytes | None:
    """Return a digest of records; None: they have what JSON does not have."""
    try:
        # The second version writes equal values alike, wherever in memory they are.
        return blake2b(marshal.dumps(records, 2), digest_size=16).digest()
    except ValueError:
        return None


def _conversion(
    how: str | CustomSchemaNormalization, schema: Mapping[str, Any]
) -> Callable[[Record], object] | None:
    """What converts a record's values in place; None: nothing does."""
    if isinstance(how, CustomSchemaNormalization):
        calls = how.calls
        own = deepcopy(dict(schema))
        return lambda record: calls.call("transform", record, own)
    return converter_of(schema).within if how == "Default" else None


def _plain(records: list[Record]) -> list[Record]:
    """Records of nothing but what JSON has, whatever classes have put into them."""
    try:
        plain: list[Record] = orjson.loads(orjson.dumps(records, option=orjson.OPT_NON_STR_KEYS))
    except TypeError as failure:
        raise SourceError(
            f"The connector's own code makes records of what JSON does not have: {failure}.",
            hint="Let it give texts, numbers, truth values, times, lists and objects.",
        ) from failure
    return plain


def _objects(records: list[Any]) -> list[Record]:
    if not set(map(type, records)) <= {dict}:
        raise SourceError(
            "The API answers records that are no objects.",
            hint="Look at the extractor's field_path: it has to lead to objects.",
        )
    return records
