"""What the columns of a file mean: fields as texts, with typed values beside them.

`Custom__c_b` holds the booleans of the field `Custom__c` if `Custom__c` stands beside it and the
column is boolean; otherwise it is a field of its own. Files differ in that, so that each file's
schema is read by itself, and files that agree are read together (`grouped`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from chronolake.rawlake.forms import Form

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from chronolake.types import ColumnType

ID: Final = "Id"
MODIFIED: Final = "source__modified"
SEQUENCE: Final = "grax__idseq"
DELETED: Final = "grax__deleted"
PURGED: Final = "grax__purged"
#: What every file has.
GUARANTEED: Final = (ID, MODIFIED, SEQUENCE)
_TIMES: Final = (MODIFIED, DELETED, PURGED)
#: Columns that are no fields of the record.
OF_THE_LAKE: Final = (*GUARANTEED, DELETED, PURGED)

SUFFIXES: Final = {
    "_b": Form.BOOLEAN,
    "_i": Form.INTEGER,
    "_f": Form.FLOAT,
    "_ts": Form.TIMESTAMP,
    "_t": Form.TIME,
    "_d": Form.DATE,
}


@dataclass(frozen=True)
class Physical:
    """How Spark reads a Parquet column.

    Attributes:
        ddl: the Spark type to read it as, or None: it cannot be read.
        form: what its values are.
        per_second: for times that are read as numbers, how many of the unit are a second.
    """

    ddl: str | None
    form: Form
    per_second: int | None = None


@dataclass(frozen=True)
class Field:
    """One form of a field of the record, and the column that holds it.

    Attributes:
        name: the field.
        column: the column in the files.
        physical: how the column is read.
        declared: the type that the source declared, in files of our own.
        renamed: where values are names of fields: those that have another name by now, and which.
    """

    name: str
    column: str
    physical: Physical
    declared: ColumnType | None = None
    renamed: tuple[tuple[str, str], ...] = ()

    @property
    def form(self) -> Form:
        """How the values are written."""
        return self.physical.form


Fields = dict[str, Field]


_TEXTS: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES: Final = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_binary_view,
)
_READ_AS: Final = (
    (
        lambda kind: any(is_text(kind) for is_text in _TEXTS),
        "string",
        Form.TEXT,
    ),
    (lambda kind: any(is_bytes(kind) for is_bytes in _BYTES), "binary", Form.TEXT),
    (pa.types.is_boolean, "boolean", Form.BOOLEAN),
    # Its greatest values are no BIGINT.
    (pa.types.is_uint64, "decimal(20,0)", Form.TEXT),
    (pa.types.is_integer, "bigint", Form.INTEGER),
    (lambda kind: pa.types.is_float32(kind) or pa.types.is_float64(kind), "double", Form.FLOAT),
    (pa.types.is_date, "date", Form.DATE),
)
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def physical(kind: pa.DataType) -> Physical:
    """How Spark reads a column of an Arrow type."""
    if pa.types.is_dictionary(kind):
        return physical(kind.value_type)
    if pa.types.is_timestamp(kind):
        if kind.unit == "ns":
            return Physical("bigint", Form.TIMESTAMP, per_second=_PER_SECOND["ns"])
        return Physical("timestamp", Form.TIMESTAMP)
    if pa.types.is_time(kind):
        ddl = "int" if pa.types.is_time32(kind) else "bigint"
        return Physical(ddl, Form.TIME, per_second=_PER_SECOND[kind.unit])
    if pa.types.is_decimal(kind):
        return Physical(f"decimal({kind.precision},{kind.scale})", Form.TEXT)
    found = (Physical(ddl, form) for fits, ddl, form in _READ_AS if fits(kind))
    return next(found, Physical(None, Form.TEXT))


def fields_of(columns: Mapping[str, Physical]) -> Fields:
    """The fields of a file by its columns, those of the lake itself included.

    Args:
        columns: the file's columns.
    """
    found: Fields = {}
    # Shorter names first: a typed column belongs to a field that is known to be one.
    for name in sorted(columns, key=lambda column: (len(column), column)):
        stem = _stem_of(name, columns[name])
        is_typed = (
            stem in found
            and found[stem].name == stem
            and found[stem].form is Form.TEXT
            and stem not in OF_THE_LAKE
            and name not in OF_THE_LAKE
        )
        found[name] = Field(stem if is_typed and stem else name, name, columns[name])
    return {name: found[name] for name in columns}


def _stem_of(name: str, column: Physical) -> str | None:
    for suffix, form in SUFFIXES.items():
        if name.endswith(suffix) and column.form is form:
            return name.removesuffix(suffix)
    return None


#: Which column holds a form of a field.
_Places = dict[tuple[str, Form], str]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Group:
    """Files that can be read together.

    Attributes:
        fields: what their columns mean, by column.
        files: their numbers in the list that was grouped.
    """

    fields: Fields
    files: tuple[int, ...]


def grouped(schemas: Iterable[tuple[Fields, Sequence[int]]]) -> list[Group]:
    """Files in as few groups as possible, where columns mean one thing, and stand for one each.

    Args:
        schemas: the fields of files, and the numbers of the files that have them.
    """
    groups: list[tuple[Fields, _Places, list[int]]] = []
    # Those with most columns first: the others mostly fit into them.
    for fields, files in sorted(schemas, key=lambda item: (-len(item[0]), tuple(item[1]))):
        places = {(field.name, field.form): column for column, field in fields.items()}
        for known, known_places, members in groups:
            if _agree(known, fields) and _agree(known_places, places):
                known.update(fields)
                known_places.update(places)
                members.extend(files)
                break
        else:
            groups.append((dict(fields), places, list(files)))
    return [Group(fields, tuple(sorted(files))) for fields, _, files in groups]


def _agree(known: Mapping[_Key, _Value], other: Mapping[_Key, _Value]) -> bool:
    return all(known.get(key, value) == value for key, value in other.items())


def by_field(fields: Fields) -> dict[str, dict[Form, Field]]:
    """The forms of every field."""
    found: dict[str, dict[Form, Field]] = {}
    for field in fields.values():
        found.setdefault(field.name, {})[field.form] = field
    return found


def is_field(name: str) -> bool:
    """Whether a field is one of the record, or tells about its versions."""
    return name not in OF_THE_LAKE


def is_time(name: str) -> bool:
    """Whether a column of the lake itself is a time."""
    return name in _TIMES
