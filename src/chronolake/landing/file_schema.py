"""Declarations of columns in the footers of Chronolake's own landing files.

Such a file is a Data Lake v2 file that any reader can read. In addition, its footer contains what
its source declared: the fields of the records, their types, and the key. A table can therefore be
rebuilt from the lake alone, with its original decimals, empty texts and composite keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from chronolake.errors import SchemaError, SourceError
from chronolake.landing.field_types import (
    FORM_OF,
    ID,
    OF_THE_LAKE,
    SUFFIXES,
    Field,
    Fields,
    Form,
    Physical,
    is_field,
)
from chronolake.types import DELETE_SOURCE, OF_VERSIONS, RESTORED_FROM, Column, ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: The key of the declaration in a Parquet file's key-value metadata.
DECLARATION: Final = b"chronolake.declaration"
#: Prefix of our own columns that are not fields of the record.
OWN: Final = "chronolake__"
#: The source's operation on the record: a text in the source's terms, for readers of the lake.
OPERATION: Final = f"{OWN}operation"
#: The omitted fields as a JSON array: they keep the values of the previous version.
UNMODIFIED: Final = f"{OWN}unmodified"
#: True for a row that only reports that the record was deleted.
IS_MARK: Final = f"{OWN}is_mark"

_FORMAT: Final = 1
_SUFFIX_OF: Final = {form: suffix for suffix, form in SUFFIXES.items()}


@dataclass(frozen=True)
class PlacedField:
    """A field that a source declared, and the columns that contain it in files.

    Attributes:
        column: the field's name and type, and whether it is part of the key.
        text: the column with its values as texts.
        typed: the column with its typed values, or None.
    """

    column: Column
    text: str
    typed: str | None

    @property
    def form(self) -> Form:
        """Return the form of the typed values."""
        return FORM_OF[self.column.type.kind]


Declaration = tuple[PlacedField, ...]


def declare_fields(columns: Sequence[Column]) -> Declaration:
    """Assign the fields of a stream to columns in files.

    No two columns of a file have names that differ only in case, because many readers of data lakes
    ignore case.

    Args:
        columns: the fields, with the key.

    Raises:
        SchemaError: there is no key, or a field has the name of one of the lake's own columns.
    """
    key = [column.name for column in columns if column.primary_key]
    if not key:
        raise SchemaError(
            "The stream has no primary key, so its records cannot be identified.",
            hint="Name the fields that identify a record.",
        )
    used_names = {name.lower() for name in (*OF_THE_LAKE, *OF_VERSIONS)}
    placed: list[PlacedField] = []
    for number, column in enumerate(columns):
        if not is_field(column.name) and column.name != ID:
            raise SchemaError(
                f"A field has the name {column.name}, which is reserved in a data lake.",
                column=column.name,
                hint="Rename the field in the source's configuration.",
            )
        if key == [column.name] and column.name.lower() == ID.lower():
            # The column contains the record's own identifier anyway.
            placed.append(PlacedField(column, ID, None))
            continue
        text = column.name
        if _is_provided(column):
            placed.append(PlacedField(column, text, None))
            continue
        if text.lower() in used_names or text.lower().startswith(OWN):
            text = f"{OWN}field_{number}"
        used_names.add(text.lower())
        placed.append(PlacedField(column, text, None))
    return tuple(_add_typed_column(field, used_names) for field in placed)


def _is_provided(column: Column) -> bool:
    """Return whether a field has the meaning and type of one of the data lake's columns."""
    # Of other types, it could not hold the value of our own deletions.
    is_text = column.type.kind is Kind.STRING
    return column.name == RESTORED_FROM or (column.name == DELETE_SOURCE and is_text)


def _add_typed_column(placed: PlacedField, used_names: set[str]) -> PlacedField:
    # A source may provide those of versions as fields: texts without typed values.
    if placed.column.type.kind not in FORM_OF or placed.text in {ID, *OF_VERSIONS}:
        return placed
    typed = f"{placed.text}{_SUFFIX_OF[placed.form]}"
    if typed.lower() in used_names:
        # Another field has that name; the text contains the complete value.
        return placed
    used_names.add(typed.lower())
    return PlacedField(placed.column, placed.text, typed)


def key_of(declaration: Declaration) -> tuple[str, ...]:
    """Return the fields that identify a record."""
    return tuple(field.column.name for field in declaration if field.column.primary_key)


def with_names(declaration: Declaration, names: Mapping[str, str]) -> Declaration:
    """Return a declaration with renamed fields.

    Args:
        declaration: a file's declaration of its columns.
        names: the fields renamed since: the file's name to the current name.
    """
    return tuple(
        replace(
            field,
            column=replace(field.column, name=names.get(field.column.name, field.column.name)),
        )
        for field in declaration
    )


def fields_declared(
    declaration: Declaration, columns: Mapping[str, Physical], names: Mapping[str, str]
) -> Fields:
    """Return the fields of a file of our own, including those of the lake itself.

    Args:
        declaration: the file's declaration of its columns.
        columns: the file's columns.
        names: the fields renamed since: the file's name to the current name.
    """
    found = {
        name: Field(name, name, columns[name])
        for name in columns
        if name in {*OF_THE_LAKE, UNMODIFIED, IS_MARK} and name != ID
    }
    if UNMODIFIED in found:
        found[UNMODIFIED] = replace(found[UNMODIFIED], renamed=tuple(sorted(names.items())))
    for field in with_names(declaration, names):
        for name in filter(None, (field.text, field.typed)):
            if name in columns:
                found[name] = Field(field.column.name, name, columns[name], field.column.type)
    return found


def to_json(declaration: Declaration, *, each_once: str | None = None) -> bytes:
    """Return a declaration as the value for a file's footer.

    Args:
        declaration: the fields and their columns.
        each_once: a common name of files that together are known to contain each record at most
            once, or None.
    """
    fields = [
        {
            "name": field.column.name,
            "type": str(field.column.type),
            "key": field.column.primary_key,
            "text": field.text,
            "typed": field.typed,
        }
        for field in declaration
    ]
    reported = {"format": _FORMAT, "fields": fields}
    return orjson.dumps(reported if each_once is None else {**reported, "each_once": each_once})


def from_json(text: bytes, *, file: str) -> Declaration:
    """Return a declaration from a file's footer, the inverse of `to_json`.

    Raises:
        SourceError: the file was written by a later version of Chronolake.
    """
    reported: dict[str, Any] = orjson.loads(text)
    if reported["format"] != _FORMAT:
        raise SourceError(
            f"The file has format {reported['format']} of the raw lake, but this version of "
            f"Chronolake reads only format {_FORMAT}.",
            file=file,
            hint="Install the version of Chronolake that wrote the file, or a later one.",
        )
    return tuple(_placed_from_json(field) for field in reported["fields"])


def each_once_in(text: bytes) -> str | None:
    """Return the `each_once` name in a file's declaration (see `to_json`), or None."""
    name: str | None = orjson.loads(text).get("each_once")
    return name


def _placed_from_json(fields: Mapping[str, Any]) -> PlacedField:
    kind = ColumnType.parse(fields["type"])
    return PlacedField(Column(fields["name"], kind, fields["key"]), fields["text"], fields["typed"])


def types_of(declaration: Iterable[PlacedField]) -> dict[str, ColumnType]:
    """Return the declared types of fields."""
    return {field.column.name: field.column.type for field in declaration}
