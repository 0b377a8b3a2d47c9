"""Record selector: extracts, filters and transforms records, and converts their types."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from chronolake import exact_json
from chronolake.errors import SourceError
from chronolake.source.declarative.models.base import (
    CustomComponent,
    CustomRecordFilter,
    CustomSchemaNormalization,
)
from chronolake.source.declarative.models.records import RecordFilter
from chronolake.source.declarative.records.extractors import (
    ExtractedRecords,
    create_extraction,
    raise_if_missing,
)
from chronolake.source.declarative.records.transformations import Record, create_step
from chronolake.source.declarative.stream_slice import slice_for_class
from chronolake.source.declarative.templating.templates import as_truth

if TYPE_CHECKING:
    from chronolake.source.declarative.http.response import Response
    from chronolake.source.declarative.models.records import Decoder, RecordSelector, Transformation
    from chronolake.source.declarative.records.extractors import FetchOf
    from chronolake.source.declarative.stream_slice import StreamSlice


_TRUE = frozenset(("y", "yes", "t", "true", "on", "1"))
_FALSE = frozenset(("n", "no", "f", "false", "off", "0"))
_SIMPLE = frozenset(("string", "number", "integer", "boolean", "null"))
_SCALARS = (str, float, int, bool, type(None))


@dataclass
class Converter:
    """A converter for one part of a schema: it converts a value itself, then its contents.

    Attributes:
        own: converts the value itself, or None.
        properties: converters of an object's fields, without those that do nothing.
        items: converts a list's items, or None.
        others: converters of the same value that the schema refers to.
    """

    own: Callable[[Any], Any] | None = None
    properties: dict[str, Converter] = field(default_factory=dict)
    items: Converter | None = None
    others: list[Converter] = field(default_factory=list)

    def convert_contents(self, value: Any) -> None:
        """Convert the contents of a value in place; keep what cannot be converted."""
        if isinstance(value, dict):
            for name, converter in self.properties.items():
                if name in value:
                    value[name] = converter.convert(value[name])
        elif isinstance(value, list) and self.items is not None:
            value[:] = map(self.items.convert, value)
        for other in self.others:
            other.convert_contents(value)

    def convert(self, value: Any) -> Any:
        """Return a value with its contents, converted as far as possible."""
        if self.own is not None:
            value = self.own(value)
        if isinstance(value, dict | list):
            self.convert_contents(value)
        return value


def create_converter(schema: Mapping[str, Any]) -> Converter:
    """Return a converter for a JSON schema: by `type`, `properties`, `items` and local `$ref`.

    A value is converted if its schema has exactly one type other than null. As in the reference, a
    null that the type does not allow becomes the text `None`, or false.
    """
    return _compile(schema, schema, {})


def _compile(part: Any, schema: Mapping[str, Any], known: dict[str, Converter]) -> Converter:
    converter = Converter()
    if not isinstance(part, Mapping):
        return converter
    converter.own = _conversion(part)
    properties = part.get("properties")
    if isinstance(properties, Mapping):
        parts = {name: _compile(property_, schema, known) for name, property_ in properties.items()}
        converter.properties = {
            name: inner for name, inner in parts.items() if inner != Converter()
        }
    if isinstance(part.get("items"), Mapping):
        converter.items = _compile(part["items"], schema, known)
    if isinstance(reference := part.get("$ref"), str):
        converter.others.append(_compile_reference(reference, schema, known))
    return converter


def _compile_reference(
    reference: str, schema: Mapping[str, Any], known: dict[str, Converter]
) -> Converter:
    if reference not in known:
        # Stored before it is compiled, because a schema may refer to itself.
        known[reference] = Converter()
        found: Any = schema
        for name in reference.removeprefix("#").split("/")[1:]:
            found = found.get(name) if isinstance(found, Mapping) else None
        known[reference].others.append(_compile(found, schema, known))
    return known[reference]


def _conversion(part: Mapping[str, Any]) -> Callable[[Any], Any] | None:
    declared = part.get("type", [])
    types = [declared] if isinstance(declared, str) else declared
    wanted = [type_ for type_ in types if type_ != "null"]
    if isinstance(declared, list) and len(wanted) != 1:
        return None
    convert = _list_conversion(part) if wanted == ["array"] else _CONVERSIONS.get("".join(wanted))
    if convert is None:
        return None
    may_be_null = "null" in types

    def own(value: Any) -> Any:
        if value is None and may_be_null:
            return None
        try:
            return convert(value)
        except (ValueError, TypeError, OverflowError):
            return value

    return own


def _list_conversion(part: Mapping[str, Any]) -> Callable[[Any], Any] | None:
    items = part.get("items", {})
    kinds = items.get("type", []) if isinstance(items, Mapping) else None
    if not isinstance(kinds, list) or not _SIMPLE.issuperset(kinds):
        return None
    return lambda value: [value] if isinstance(value, _SCALARS) else value


def _to_boolean(value: Any) -> bool:
    if not isinstance(value, str):
        return bool(value)
    text = value.lower().strip()
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise ValueError


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "string": str,
    "number": float,
    "integer": int,
    "boolean": _to_boolean,
}


Keep = Callable[[Record], bool]


@dataclass(frozen=True)
class Page:
    """The records of one response.

    Attributes:
        records: the records that are kept, after transformation.
        extracted: number of records in the response, for pagination.
        digest: hash of the extracted records; None: not requested, or not possible.
    """

    records: list[Record]
    extracted: int
    digest: bytes | None = None

    @property
    def last(self) -> Record | None:
        """Return the last record that is kept, for templates."""
        return self.records[-1] if self.records else None


class Selection:
    """A prepared record selector of a stream."""

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
        """Prepare the selector.

        Args:
            selector: the extractor, the filter, and the setting for type conversion.
            decoder: decodes responses.
            transformations: the stream's, in their order.
            config: the user's configuration.
            schema: the JSON schema for type conversion, if the selector enables it.
            is_client_side: whether the stream's cursor filters records. They are then transformed
                before they are filtered, unless the manifest sets `transform_before_filtering`.
            fetch_of: creates the function that reads complete lists in place of truncated ones.
            may_lack_records: whether a response without the path of the records means no records;
                if not, it is an error.
            is_paged: whether pages get a digest.

        Raises:
            ConfigurationError: the manifest uses an unsupported feature.
        """
        self._extraction = create_extraction(selector.extractor, decoder, config, fetch_of)
        # As in the reference, an empty condition is false for all records, unless the cursor
        # filters.
        self._filter = selector.record_filter
        self._own_filter = (
            self._filter.calls if isinstance(self._filter, CustomRecordFilter) else None
        )
        transformations = tuple(transformations)
        self._steps = [create_step(transformation, config) for transformation in transformations]
        self._convert = (
            _create_normalizer(selector.schema_normalization, schema) if schema else None
        )
        #: Whether custom classes of the connector are involved.
        self._is_own = any(
            isinstance(transformation, CustomComponent)
            for transformation in (
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
        answer: Response,
        stream_slice: StreamSlice,
        next_page_token: Mapping[str, Any] | None = None,
        *,
        keep: Keep | None = None,
    ) -> Page:
        """Return the records of a page's response.

        Args:
            answer: a response with records.
            stream_slice: for templates.
            next_page_token: the token that was sent.
            keep: the cursor's filter, which is applied before the record filter.

        Raises:
            SourceError: the response cannot be decoded, has nothing where its records should be, or
                has records that are not objects.
            ConfigurationError: a template cannot be evaluated.
        """
        found = self._extraction(answer)
        if answer.may_lack_records:
            found = replace(found, missing=None)
        return self.select(found, stream_slice, next_page_token, keep=keep)

    def select(
        self,
        extracted: ExtractedRecords,
        stream_slice: StreamSlice,
        next_page_token: Mapping[str, Any] | None = None,
        *,
        keep: Keep | None = None,
    ) -> Page:
        """Return the selected records of an extraction.

        Args:
            extracted: the extracted records.
            stream_slice: for templates.
            next_page_token: the token that was sent.
            keep: the cursor's filter, which is applied before the record filter.

        Raises:
            SourceError: there was nothing where records should be, or there are records that are
                not objects.
            ConfigurationError: a template cannot be evaluated.
        """
        if not self._may_lack_records:
            raise_if_missing(extracted)
        context = {"config": self._config, "stream_slice": stream_slice}
        # Computed first, because transformations change records in place.
        digest = _hash_records(extracted.records) if self._is_paged else None
        if self._is_transformed_first:
            records = self._transform(extracted.records, context)
            records = self._filter_records(
                records, keep, {**context, "next_page_token": next_page_token}
            )
        else:
            kept = self._filter_records(
                extracted.records, keep, {**context, "next_page_token": next_page_token}
            )
            records = self._transform(kept, context)
        if self._convert is not None:
            for record in records:
                self._convert(record)
        if self._is_own:
            records = _to_json_records(records)
        return Page(records, extracted.count, digest)

    def _filter_records(
        self, records: list[Any], keep: Keep | None, context: Mapping[str, Any]
    ) -> list[Any]:
        if keep is not None:
            records = [record for record in _expect_objects(records) if keep(record)]
        if self._own_filter is not None:
            kept: list[Any] = self._own_filter.call_for_list(
                "filter_records",
                records,
                stream_state={},
                stream_slice=slice_for_class(context["stream_slice"]),
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

    def _transform(self, records: list[Any], context: Mapping[str, Any]) -> list[Record]:
        records = _expect_objects(records)
        for step in self._steps if records else ():
            records = list(map(step(context), records))
        return records


def _hash_records(records: list[Any]) -> bytes | None:
    """Return a hash of records, or None if they contain values that JSON does not have."""
    try:
        # Version 2 writes equal values identically, without references to shared objects.
        content = marshal.dumps(records, 2)
    except ValueError:
        try:
            content = exact_json.dumps(records)
        except TypeError:
            return None
    return blake2b(content, digest_size=16).digest()


def _create_normalizer(
    how: str | CustomSchemaNormalization, schema: Mapping[str, Any]
) -> Callable[[Record], object] | None:
    """Return a function that converts a record's values in place, or None."""
    if isinstance(how, CustomSchemaNormalization):
        calls = how.calls
        own = deepcopy(dict(schema))
        return lambda record: calls.call("transform", record, own)
    return create_converter(schema).convert_contents if how == "Default" else None


def _to_json_records(records: list[Record]) -> list[Record]:
    """Return records that contain only JSON values, whatever custom classes added."""
    try:
        plain: list[Record] = exact_json.loads(exact_json.dumps(records))
    except TypeError as failure:
        raise SourceError(
            "The connector's own code returned a record with values that JSON does "
            f"not support: {failure}.",
            hint="Return only strings, numbers, booleans, times, lists and objects.",
        ) from failure
    return plain


def _expect_objects(records: list[Any]) -> list[Record]:
    if not set(map(type, records)) <= {dict}:
        raise SourceError(
            "The API returned records that are not objects.",
            hint="Correct the extractor's field_path: it must lead to objects.",
        )
    return records
