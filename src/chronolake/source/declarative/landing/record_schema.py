"""Columns of records by schema and values, nested objects, and primary key.

The columns of a stream's records: as its schema declares them, as long as the values fit.

Bodies in CSV and XML have texts only: there, a text that spells a value of the declared type is
that value. What a schema promises, answers do not always keep. A column whose values do not fit
gets the narrowest type that holds all of them (`rawlake.wider`), with a warning in the log; a field
that no schema has gets the type of its values. Columns only come, and types only get wider.

Objects within records as columns: those fields of them that the schema declares.

A field `city` of the object `address` is the column `address_city`, at any depth. What the schema
does not declare of an object stays together, as a JSON text in the object's own column; so does
what is no object where one is declared. Arrays are JSON texts.

What tells the records of a stream apart: its primary key, or a hash of what they say.
"""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import orjson
import pyarrow as pa
import structlog

from chronolake.errors import ConfigurationError, SourceError
from chronolake.landing import wider
from chronolake.source.declarative.models.records import (
    CsvDecoder,
    GzipDecoder,
    XmlDecoder,
    ZipfileDecoder,
)
from chronolake.source.declarative.records.field_paths import MISSING, looked_up
from chronolake.types import Column, ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from chronolake.source.declarative.models.streams import DeclarativeStream


log = structlog.get_logger(__name__)

_TEXT: Final = ColumnType(Kind.STRING)
_LEAST_LONG: Final = -(2**63)
_MOST_LONG: Final = 2**63 - 1
#: Whole numbers up to here are as exact as numbers with fractions.
_EXACT: Final = 2**53

#: What a value's own type tells.
_KINDS: Final = {
    bool: Kind.BOOLEAN,
    int: Kind.LONG,
    float: Kind.DOUBLE,
    str: Kind.STRING,
    dict: Kind.JSON,
    list: Kind.JSON,
}
_DECLARED: Final = {
    "boolean": Kind.BOOLEAN,
    "integer": Kind.LONG,
    "number": Kind.DOUBLE,
    "string": Kind.STRING,
    "object": Kind.JSON,
    "array": Kind.JSON,
}
_WHOLE: Final = re.compile(r"[+-]?(0|[1-9][0-9]*)")
_NUMBER: Final = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_TRUTHS: Final = {"true": True, "false": False}
#: Types whose values are texts in JSON.
_TIMES: Final = {Kind.UTC_DATETIME, Kind.NAIVE_DATETIME, Kind.NAIVE_DATE}


def has_texts_only(stream: DeclarativeStream) -> bool:
    """Return whether all values of a stream's answers are texts, as in CSV and XML."""
    retriever = stream.retriever
    decoder = getattr(retriever, "download_decoder", None) or getattr(retriever, "decoder", None)
    while isinstance(decoder, GzipDecoder | ZipfileDecoder):
        decoder = decoder.decoder
    return isinstance(decoder, CsvDecoder | XmlDecoder)


def declared_columns(schema: Mapping[str, Any]) -> dict[str, ColumnType]:
    """The types of the fields that a JSON schema declares, where it says something of them."""
    properties = schema.get("properties")
    found = {}
    for name, reported in properties.items() if isinstance(properties, dict) else ():
        kind = _declared(reported) if isinstance(reported, dict) else None
        if kind is not None:
            found[str(name)] = ColumnType(kind)
    return found


def _declared(told: Mapping[str, Any]) -> Kind | None:
    types = set(types_in(told))
    kinds = {_DECLARED[type_] for type_ in types if type_ in _DECLARED}
    if kinds == {Kind.LONG, Kind.DOUBLE}:
        return Kind.DOUBLE
    if len(kinds) > 1:
        return Kind.STRING
    kind = next(iter(kinds), None)
    if kind is Kind.STRING:
        form, airbyte = told.get("format"), told.get("airbyte_type")
        if form == "date":
            return Kind.NAIVE_DATE
        if form == "date-time":
            is_naive = airbyte == "timestamp_without_timezone"
            return Kind.NAIVE_DATETIME if is_naive else Kind.UTC_DATETIME
    return kind


def types_in(told: Mapping[str, Any]) -> Iterable[str]:
    """The types that a JSON schema allows."""
    types = told.get("type", ())
    yield from (types,) if isinstance(types, str) else (str(type_) for type_ in types)
    for union in ("anyOf", "oneOf"):
        for one in told.get(union) or ():
            if isinstance(one, dict):
                yield from types_in(one)


@dataclass
class Shape:
    """The columns of a stream's records; any number of threads may use it.

    Attributes:
        types: the columns' types so far, by name, in their order.
        declared: the columns that a schema declares: of these a type may hold more than values of
            its own kind, as a number may be written without a fraction.
        nesting: how fields of objects are columns; None: objects are JSON texts.
        stream: the stream's name, for the log.
        texts_only: whether the answers' format knows texts only, so that a text stands for the
            value of the declared type that it spells, and an empty one for null.
    """

    types: dict[str, ColumnType]
    declared: frozenset[str] = frozenset()
    nesting: Nesting | None = None
    stream: str = ""
    texts_only: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def columns(self, key: Sequence[str]) -> list[Column]:
        """The columns so far, with the key."""
        with self._lock:
            return [Column(name, kind, name in key) for name, kind in self.types.items()]

    def widen(self, types: Mapping[str, ColumnType]) -> None:
        """Take over what others have found of the same stream's columns."""
        with self._lock:
            for name, kind in types.items():
                known = self.types.get(name)
                self.types[name] = kind if known is None else wider(known, kind)

    def known(self) -> dict[str, ColumnType]:
        """The columns' types so far."""
        with self._lock:
            return dict(self.types)

    def cells(
        self, records: Sequence[Mapping[str, Any]], key: Sequence[str]
    ) -> tuple[list[Column], list[pa.Array]]:
        """The records' values by column.

        Args:
            records: the records of a page.
            key: the columns that tell them apart.

        Returns:
            All columns that are known by now, in their order, in their types by now, and their
            values. A field that never had a value, and that no schema declares, is no column.

        Raises:
            ConfigurationError: two fields would be the same column.
        """
        if self.nesting is not None:
            records = self.nesting.spread(records)
        names = dict.fromkeys(self.types)
        for record in records:
            # Most records have the same keys: then nothing is new.
            if record.keys() - names.keys():
                names.update(dict.fromkeys(record))
        cells = {name: [record.get(name) for record in records] for name in names}
        made = {name: self._array(name, values) for name, values in cells.items()}
        while True:
            with self._lock:
                types = dict(self.types)
            # Another thread may have made a column wider meanwhile.
            old = [name for name, one in made.items() if one is not None and one[1] != types[name]]
            if not old:
                break
            made |= {name: self._array(name, cells[name]) for name in old}
        columns = [Column(name, kind, name in key) for name, kind in types.items()]
        found = ((kind, made.get(name)) for name, kind in types.items())
        return columns, [
            pa.nulls(len(records), kind.arrow) if one is None else one[0] for kind, one in found
        ]

    def _array(self, name: str, values: list[Any]) -> tuple[pa.Array, ColumnType] | None:
        """A column's values in a type that holds them; None: nothing is known of it."""
        known = self.types.get(name)
        if known is not None and name in self.declared:
            given = values_of_texts(values, known) if self.texts_only else values
            array = None if given is None else array_of(given, known)
            if array is not None:
                return array, known
        found = type_of(values)
        if found is not None and self.nesting is not None and name in self.nesting.places:
            # What is left of objects, and what is none where one is declared.
            found = ColumnType(Kind.JSON)
        if found is None:
            return None if known is None else (pa.nulls(len(values), known.arrow), known)
        with self._lock:
            before = self.types.get(name)
            self.types[name] = kind = found if before is None else wider(before, found)
        if before not in {None, kind} and name in self.declared:
            log.warning(
                "column_wider_than_its_schema",
                stream=self.stream,
                column=name,
                before=str(before),
                now=str(kind),
            )
        return array_of(values, kind), kind


def values_of_texts(values: list[Any], kind: ColumnType) -> list[Any] | None:
    """Return the values of a type that texts spell; None: one of them spells no such value.

    No digit is lost: a text with leading zeros is no number, and neither is one with more digits
    than the type holds. An empty text is null, unless the type is a text itself.
    """
    if kind.kind is Kind.STRING:
        return values
    found = [
        _value_of(value, kind.kind) if isinstance(value, str) and value else value
        for value in values
    ]
    if None in found and kind.kind is not Kind.JSON:
        spelled = zip(values, found, strict=True)
        if any(value not in {None, ""} and one is None for value, one in spelled):
            return None
    return [None if one == "" else one for one in found]


def _value_of(text: str, kind: Kind) -> Any:
    match kind:
        case Kind.BOOLEAN:
            return _TRUTHS.get(text.lower())
        case Kind.LONG:
            return int(text) if _WHOLE.fullmatch(text) else None
        case Kind.DOUBLE if _NUMBER.fullmatch(text):
            number = float(text)
            return number if Decimal(repr(number)) == Decimal(text) else None
        case Kind.JSON:
            return _json_of(text)
    return None if kind is Kind.DOUBLE else text


def _json_of(text: str) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:
        return text


def type_of(values: Iterable[Any]) -> ColumnType | None:
    """The narrowest type that holds some values of JSON; None: they are all null.

    Whole numbers and others have no type in common, so that 5 does not become 5.0.
    """
    present = [value for value in values if value is not None]
    kinds = {_KINDS[kind] for kind in set(map(type, present))}
    if kinds == {Kind.LONG}:
        fits = min(present) >= _LEAST_LONG and max(present) <= _MOST_LONG
        return ColumnType(Kind.LONG) if fits else _TEXT
    if len(kinds) > 1:
        return _TEXT
    return ColumnType(next(iter(kinds))) if kinds else None


def array_of(values: list[Any], kind: ColumnType) -> pa.Array | None:
    """Values of JSON in a type; None: it does not hold all of them."""
    types = set(map(type, values)) - {type(None)}
    if kind.kind is Kind.STRING:
        return _texts(values if types <= {str} else [_spelled(value) for value in values])
    if kind.kind is Kind.JSON:
        return _texts([None if value is None else json_text(value) for value in values])
    if not types:
        return pa.nulls(len(values), kind.arrow)
    try:
        if kind.kind in _TIMES:
            return pa.array(values, pa.string()).cast(kind.arrow) if types <= {str} else None
        if kind.kind is Kind.DOUBLE:
            fits = types <= {int, float} and (int not in types or _are_exact_in(values))
        else:
            fits = {_KINDS[type_] for type_ in types} == {kind.kind}
        return pa.array(values, kind.arrow) if fits else None
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return None


def _texts(texts: list[str | None]) -> pa.Array:
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        # APIs cut texts within a character: the half of it that is left is none.
        return pa.array([None if text is None else _whole(text) for text in texts], pa.string())


def _whole(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _are_exact_in(values: list[Any]) -> bool:
    return all(not isinstance(value, int) or -_EXACT <= value <= _EXACT for value in values)


def _spelled(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json_text(value)


def json_text(value: Any) -> str:
    """A value of JSON as a text."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        # Whole numbers may be larger than orjson writes them.
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


#: Where a value stands in a record.
_Path: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class _Object:
    """An object whose declared fields are columns.

    Attributes:
        column: its own column.
        fields: the columns of its fields, by their names; of an object in it, that object.
    """

    column: str
    fields: Mapping[str, str | _Object]


class Nesting:
    """The columns that a schema declares, where fields of objects are columns.

    Attributes:
        declared: their types, by name.
        places: the own columns of objects whose fields are columns.
    """

    def __init__(self, stream: str, schema: Mapping[str, Any], key: Collection[str]) -> None:
        """Give every declared field a column.

        Args:
            stream: the stream's name.
            schema: the schema of its records.
            key: the columns that tell them apart, which stay what they are.

        Raises:
            ConfigurationError: two fields would have one column.
        """
        self.declared: dict[str, ColumnType] = {}
        self.places: set[str] = set()
        self._stream = stream
        self._key = frozenset(key)
        self._paths: dict[str, _Path] = {name: (name,) for name in key}
        self._objects = {
            name: one
            for name, one in self._fields_of((), schema).items()
            if isinstance(one, _Object)
        }
        self._inner = {name: path for name, path in self._paths.items() if len(path) > 1}

    def _fields_of(self, path: _Path, told: Mapping[str, Any]) -> dict[str, str | _Object]:
        properties = told.get("properties")
        found: dict[str, str | _Object] = {}
        for name, one in properties.items() if isinstance(properties, dict) else ():
            place = (*path, str(name))
            column = "_".join(place)
            if self._paths.setdefault(column, place) != place:
                raise self._both(place, column)
            if _is_spread(one) and column not in self._key:
                self.places.add(column)
                found[str(name)] = _Object(column, self._fields_of(place, one))
            else:
                self.declared |= declared_columns({"properties": {column: one}})
                found[str(name)] = column
        return found

    def spread(self, records: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The records by their columns.

        Raises:
            ConfigurationError: a field that no schema declares has the name of such a column.
        """
        return [self._spread(record) for record in records] if self._objects else records

    def _spread(self, record: Mapping[str, Any]) -> dict[str, Any]:
        if clash := record.keys() & self._inner.keys():
            raise self._both((min(clash),), min(clash))
        found: dict[str, Any] = {}
        for name, value in record.items():
            if name in self._objects:
                _put(found, self._objects[name], value)
            else:
                found[name] = value
        return found

    def _both(self, path: _Path, column: str) -> ConfigurationError:
        one, other = ".".join(self._paths[column]), ".".join(path)
        return ConfigurationError(
            f"The fields {one} and {other} of the stream {self._stream} would both be the column "
            f"{column}.",
            column=column,
            hint=f"Set streams.{self._stream}.nested to json, or rename one of them in the "
            "manifest (`transformations`).",
        )


def _is_spread(told: Any) -> bool:
    """Whether a schema declares an object, perhaps a null or an array instead, and its fields."""
    if not isinstance(told, dict) or not isinstance(told.get("properties"), dict):
        return False
    types = set(types_in(told))
    return bool(told["properties"]) and "object" in types <= {"object", "array", "null"}


def _put(found: dict[str, Any], one: _Object, value: Any) -> None:
    """The columns of an object."""
    if not isinstance(value, dict):
        found[one.column] = value
        return
    rest = {}
    for name, inside in value.items():
        place = one.fields.get(name)
        if place is None:
            rest[name] = inside
        elif isinstance(place, _Object):
            _put(found, place, inside)
        else:
            found[place] = inside
    found[one.column] = rest or None


#: The key of records whose stream has none, or one within an object.
HASHED: Final = "_fivetran_id"


@dataclass(frozen=True)
class Identity:
    """A stream's primary key.

    Attributes:
        paths: where its parts stand in a record; none: all that a record says is its key.
        cursor: the field with the record's time, if it is part of the key; None: it is not.
    """

    paths: tuple[tuple[str, ...], ...]
    cursor: str | None = None

    @classmethod
    def of(cls, stream: DeclarativeStream, cursor: str | None = None) -> Self:
        """The primary key as the manifest has it: a field, several, or paths.

        Args:
            stream: the stream.
            cursor: as of the class.
        """
        key = stream.primary_key or ()
        parts = (key,) if isinstance(key, str) else key
        paths = tuple((part,) if isinstance(part, str) else tuple(part) for part in parts)
        return cls(paths, cursor)

    @property
    def is_hashed(self) -> bool:
        """Whether the key is a hash, in a column of its own."""
        return not self.paths or any(len(path) != 1 for path in self.paths)

    @property
    def columns(self) -> tuple[str, ...]:
        """The key's columns."""
        own = (HASHED,) if self.is_hashed else tuple(path[0] for path in self.paths)
        return own if self.cursor is None else tuple(dict.fromkeys([*own, self.cursor]))

    def typed(self, declared: Mapping[str, ColumnType]) -> dict[str, ColumnType]:
        """The declared columns, and the key's own first if it has one.

        A key that is declared as any number has the type of its values: as numbers with fractions,
        5 would be another key as soon as one value of the column is a text.
        """
        own = {HASHED: ColumnType(Kind.STRING)} if self.is_hashed else {}
        number = ColumnType(Kind.DOUBLE)
        of_key = {name for name in self.columns if declared.get(name) == number}
        return {**own, **{name: kind for name, kind in declared.items() if name not in of_key}}

    def added(self, records: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """The records with their key.

        Raises:
            SourceError: a record lacks a part of its key.
        """
        if self.cursor is not None and any(one.get(self.cursor) is None for one in records):
            raise SourceError(
                f"A record has no {self.cursor}, which is part of its key (`cursor_in_key`).",
                column=self.cursor,
                hint="Filter such records in the manifest (`record_filter`), or leave "
                "cursor_in_key out.",
            )
        plain = () if self.is_hashed else self.paths
        for (name,) in plain:
            if any(record.get(name) is None for record in records):
                raise SourceError(
                    f"A record has no {name}, which is part of its primary key.",
                    column=name,
                    hint="Filter such records in the manifest (`record_filter`), or correct the "
                    "stream's primary_key.",
                )
        if self.is_hashed:
            for record in records:
                record[HASHED] = self._hash(record)
        return records

    def _hash(self, record: Mapping[str, Any]) -> str:
        if not self.paths:
            reported = record
        else:
            values = (looked_up(record, path) for path in self.paths)
            reported = {"key": [None if value is MISSING else value for value in values]}
        try:
            text = orjson.dumps(reported, option=orjson.OPT_SORT_KEYS)
        except TypeError:
            text = json_text(dict(sorted(reported.items()))).encode("utf-8", "surrogatepass")
        return sha256(text).hexdigest()[:40]
