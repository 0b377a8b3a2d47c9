"""How a response becomes records: decoders, extractors, filters and transformations."""

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
    """The body is one JSON document."""

    type: Literal["JsonDecoder"]


class JsonItemsDecoder(Component):
    """The body is one JSON document, of which only the items of one array are wanted."""

    type: Literal["JsonItemsDecoder"]
    items_path: str = Field(min_length=1)
    encoding: str | None = "utf-8"


class JsonlDecoder(Component):
    """Each line of the body is a JSON document."""

    type: Literal["JsonlDecoder"]


class IterableDecoder(Component):
    """Each line of the body is a text."""

    type: Literal["IterableDecoder"]


class XmlDecoder(Component):
    """The body is one XML document."""

    type: Literal["XmlDecoder"]


class CsvDecoder(Component):
    """The body is CSV with a header."""

    type: Literal["CsvDecoder"]
    encoding: str | None = "utf-8"
    delimiter: str | None = ","
    set_values_to_none: list[str] | None = None


class GzipDecoder(Component):
    """The body may be compressed; what is within is decoded by another decoder."""

    type: Literal["GzipDecoder"]
    decoder: ContentDecoder


class ZipfileDecoder(Component):
    """The body is an archive; each file within is decoded by another decoder."""

    type: Literal["ZipfileDecoder"]
    decoder: ContentDecoder


#: What can stand within a compressed body.
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
    """A field of a record that each of the items in it gets."""

    type: Literal["ParentFieldPath"]
    parent_path: list[str] = Field(min_length=1)
    record_path: list[str] = Field(min_length=1)


class RecordExpander(Component):
    """Each item of a list within a record is a record; `*` is any key or index."""

    type: Literal["RecordExpander"]
    expand_records_from_field: list[str]
    remain_original_record: bool = False
    parent_fields: list[ParentFieldPath] | None = None
    merge_parent: bool = False
    on_no_records: Literal["skip", "emit_parent"] = "skip"
    truncation_indicator_path: list[str] | None = None
    # A retriever has an extractor: it is read as one when it is used.
    truncated_list_retriever: dict[str, Any] | None = None


class DpathExtractor(Component):
    """Records stand at one path of a body; `*` is any key or index."""

    type: Literal["DpathExtractor"]
    field_path: list[str]
    record_expander: RecordExpander | None = None


class CombinedExtractor(Component):
    """Records of several extractors: of all, or of the first that finds any."""

    type: Literal["CombinedExtractor"]
    extractors: list[Extractor] = Field(min_length=1)
    mode: Literal["union", "first_match"] = "union"
    skip_empty_records: bool = False


Extractor = Annotated[
    DpathExtractor | CombinedExtractor | CustomRecordExtractor, Field(discriminator="type")
]
CombinedExtractor.model_rebuild()


class RecordFilter(Component):
    """Only records for which the condition holds are kept."""

    type: Literal["RecordFilter"]
    condition: str = ""


AnyRecordFilter = Annotated[RecordFilter | CustomRecordFilter, Field(discriminator="type")]


class RecordSelector(Component):
    """From a response to records."""

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
    """Adds fields to records."""

    type: Literal["AddFields"]
    fields: list[AddedFieldDefinition]
    condition: str = ""


class RemoveFields(Component):
    """Removes fields from records."""

    type: Literal["RemoveFields"]
    field_pointers: list[list[str]]
    condition: str = ""


class KeysToLower(Component):
    """Puts a record's own keys in lower case."""

    type: Literal["KeysToLower"]


class KeysToSnakeCase(Component):
    """Puts all keys in snake case."""

    type: Literal["KeysToSnakeCase"]


class KeysReplace(Component):
    """Replaces a text within all keys."""

    type: Literal["KeysReplace"]
    old: str
    new: str


class FlattenFields(Component):
    """Brings everything that is nested to the top of a record."""

    type: Literal["FlattenFields"]
    flatten_lists: bool = True


class KeyTransformation(Component):
    """What is put before and after keys."""

    type: Literal["KeyTransformation"]
    prefix: str | None = None
    suffix: str | None = None


class DpathFlattenFields(Component):
    """Brings the fields of one nested object to the top of a record."""

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
