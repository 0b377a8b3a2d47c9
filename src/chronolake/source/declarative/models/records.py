"""Models of decoders, extractors, filters and transformations: from a response to records."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from chronolake.source.declarative.models.base import (
    Component,
    CustomDecoder,
    CustomRecordExtractor,
    CustomRecordFilter,
    CustomSchemaNormalization,
    CustomTransformation,
)


class JsonDecoder(Component):
    """A decoder of bodies that are one JSON document."""

    type: Literal["JsonDecoder"]


class JsonItemsDecoder(Component):
    """A decoder of bodies that are one JSON document, which yields the items of one array only."""

    type: Literal["JsonItemsDecoder"]
    items_path: str = Field(min_length=1)
    encoding: str | None = "utf-8"


class JsonlDecoder(Component):
    """A decoder of bodies with one JSON document in each line (JSON Lines)."""

    type: Literal["JsonlDecoder"]


class IterableDecoder(Component):
    """A decoder of bodies with one plain string in each line."""

    type: Literal["IterableDecoder"]


class XmlDecoder(Component):
    """A decoder of bodies that are one XML document."""

    type: Literal["XmlDecoder"]


class CsvDecoder(Component):
    """A decoder of CSV bodies with a header."""

    type: Literal["CsvDecoder"]
    encoding: str | None = "utf-8"
    delimiter: str | None = ","
    set_values_to_none: list[str] | None = None


class GzipDecoder(Component):
    """A decoder of bodies that may be compressed with gzip; another decoder parses the content."""

    type: Literal["GzipDecoder"]
    decoder: ContentDecoder


class ZipfileDecoder(Component):
    """A decoder of ZIP archives; another decoder parses each file in the archive."""

    type: Literal["ZipfileDecoder"]
    decoder: ContentDecoder


#: The decoders that can parse the content of a compressed body.
ContentDecoder = Annotated[
    CsvDecoder | GzipDecoder | JsonDecoder | JsonItemsDecoder | JsonlDecoder,
    Field(discriminator="type"),
]
GzipDecoder.model_rebuild()
ZipfileDecoder.model_rebuild()

Decoder = Annotated[
    JsonDecoder
    | JsonItemsDecoder
    | JsonlDecoder
    | IterableDecoder
    | XmlDecoder
    | CsvDecoder
    | GzipDecoder
    | ZipfileDecoder
    | CustomDecoder,
    Field(discriminator="type"),
]


class ParentFieldPath(Component):
    """A field of a parent record that is copied to each item of a list in it."""

    type: Literal["ParentFieldPath"]
    parent_path: list[str] = Field(min_length=1)
    record_path: list[str] = Field(min_length=1)


class RecordExpander(Component):
    """Settings that make each item of a list in a record a record; `*` matches any key or index."""

    type: Literal["RecordExpander"]
    expand_records_from_field: list[str]
    remain_original_record: bool = False
    parent_fields: list[ParentFieldPath] | None = None
    merge_parent: bool = False
    on_no_records: Literal["skip", "emit_parent"] = "skip"
    truncation_indicator_path: list[str] | None = None
    # A retriever contains an extractor. It is validated when it is used, to avoid a cycle here.
    truncated_list_retriever: dict[str, Any] | None = None


class DpathExtractor(Component):
    """An extractor of the records at one path of a body; `*` matches any key or index."""

    type: Literal["DpathExtractor"]
    field_path: list[str]
    record_expander: RecordExpander | None = None


class CombinedExtractor(Component):
    """A combination of extractors: the records of all, or of the first that finds any."""

    type: Literal["CombinedExtractor"]
    extractors: list[Extractor] = Field(min_length=1)
    mode: Literal["union", "first_match"] = "union"
    skip_empty_records: bool = False


Extractor = Annotated[
    DpathExtractor | CombinedExtractor | CustomRecordExtractor, Field(discriminator="type")
]
CombinedExtractor.model_rebuild()


class RecordFilter(Component):
    """A filter that keeps the records for which the condition holds."""

    type: Literal["RecordFilter"]
    condition: str = ""


AnyRecordFilter = Annotated[RecordFilter | CustomRecordFilter, Field(discriminator="type")]


class RecordSelector(Component):
    """The steps from a response to records: extractor, filter, normalization."""

    type: Literal["RecordSelector"]
    extractor: Extractor
    record_filter: AnyRecordFilter | None = None
    schema_normalization: Literal["None", "Default"] | CustomSchemaNormalization = "None"
    transform_before_filtering: bool | None = None


class AddedFieldDefinition(Component):
    """A field to add, with a template of its value."""

    type: Literal["AddedFieldDefinition"]
    path: list[str] = Field(min_length=1)
    value: str
    value_type: Literal["string", "number", "integer", "boolean"] | None = None


class AddFields(Component):
    """A transformation that adds fields to records."""

    type: Literal["AddFields"]
    fields: list[AddedFieldDefinition]
    condition: str = ""


class RemoveFields(Component):
    """A transformation that removes fields from records."""

    type: Literal["RemoveFields"]
    field_pointers: list[list[str]]
    condition: str = ""


class KeysToLower(Component):
    """A transformation that converts a record's top-level keys to lower case."""

    type: Literal["KeysToLower"]


class KeysToSnakeCase(Component):
    """A transformation that converts all keys, at any depth, to snake case."""

    type: Literal["KeysToSnakeCase"]


class KeysReplace(Component):
    """A transformation that replaces a string in all keys."""

    type: Literal["KeysReplace"]
    old: str
    new: str


class FlattenFields(Component):
    """A transformation that moves all nested values to the top level of a record."""

    type: Literal["FlattenFields"]
    flatten_lists: bool = True


class KeyTransformation(Component):
    """A prefix and a suffix that are added to keys."""

    type: Literal["KeyTransformation"]
    prefix: str | None = None
    suffix: str | None = None


class DpathFlattenFields(Component):
    """A transformation that moves the fields of one nested object to the top level of a record."""

    type: Literal["DpathFlattenFields"]
    field_path: list[str]
    delete_origin_value: bool = False
    replace_record: bool = False
    key_transformation: KeyTransformation | None = None


Transformation = Annotated[
    AddFields
    | RemoveFields
    | KeysToLower
    | KeysToSnakeCase
    | KeysReplace
    | FlattenFields
    | DpathFlattenFields
    | CustomTransformation,
    Field(discriminator="type"),
]
