"""Record schema: columns and their types, and flattened nested objects.

Types. Columns have the types that the stream's schema declares, as long as the values fit. CSV
and XML contain only text: there, a text is converted to the declared type. If a column's values do
not fit, it gets the narrowest type that holds all of them (`wider`), and a warning is logged. A
field that is not in the schema gets the type of its values. Columns are only added, and types only
become wider.

Nested objects. With flattening, the declared field `city` of the object `address` becomes the
column `address_city`, at any depth. Fields that the schema does not declare remain together as JSON
text in the object's own column, and so do values that are not objects although the schema declares
one. Arrays are JSON text.
"""

from __future__ import annotations

import re
import threading
from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

import pyarrow as pa
import structlog

from chronolake import exact_json
from chronolake.errors import ConfigurationError
from chronolake.landing import wider
from chronolake.source.records.arrow_columns import from_arrow, type_of_arrow
from chronolake.types import MAX_PRECISION, Column, ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


log = structlog.get_logger(__name__)

_TEXT: Final = ColumnType(Kind.STRING)
_LEAST_LONG: Final = -(2**63)
_MOST_LONG: Final = 2**63 - 1
#: The largest absolute value of an integer that a double represents exactly.
_EXACT: Final = 2**53

#: The column type for each Python type of a value, except `datetime`: its zone decides.
_KINDS: Final = {
    bool: Kind.BOOLEAN,
    int: Kind.LONG,
    float: Kind.DOUBLE,
    exact_json.LongNumber: Kind.STRING,
    str: Kind.STRING,
    dict: Kind.JSON,
    list: Kind.JSON,
    date: Kind.NAIVE_DATE,
    time: Kind.NAIVE_TIME,
    Decimal: Kind.DECIMAL,
    bytes: Kind.BINARY,
    UUID: Kind.STRING,
}
_KNOWN: Final = frozenset({*_KINDS, datetime})
_DECLARED: Final = {
    "boolean": Kind.BOOLEAN,
    "integer": Kind.LONG,
    "number": Kind.DOUBLE,
    "string": Kind.STRING,
    "object": Kind.JSON,
    "array": Kind.JSON,
}
#: Types of values that a declared decimal may have; a value with more digits does not fit.
_DECIMALS: Final = {str, int, float, Decimal}
#: Numbers that JSON does not have, as texts.
_NOT_IN_JSON: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_WHOLE: Final = re.compile(r"[+-]?(0|[1-9][0-9]*)")
_NUMBER: Final = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_TRUTHS: Final = {"true": True, "false": False}


def declared_columns(schema: Mapping[str, Any]) -> dict[str, ColumnType]:
    """Return the types of the fields for which a JSON schema declares a type."""
    properties = schema.get("properties")
    found = {}
    for name, reported in properties.items() if isinstance(properties, dict) else ():
        kind = _declared_type(reported) if isinstance(reported, dict) else None
        if kind is not None:
            found[str(name)] = ColumnType(kind)
    return found


def declared_fields(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the fields that a JSON schema declares, with or without a type."""
    properties = schema.get("properties")
    return frozenset(map(str, properties)) if isinstance(properties, dict) else frozenset()


def _declared_type(schema: Mapping[str, Any]) -> Kind | None:
    types = set(allowed_types(schema))
    kinds = {_DECLARED[type_] for type_ in types if type_ in _DECLARED}
    if kinds == {Kind.LONG, Kind.DOUBLE}:
        return Kind.DOUBLE
    if len(kinds) > 1:
        return Kind.STRING
    kind = next(iter(kinds), None)
    if kind is Kind.STRING:
        form, airbyte = schema.get("format"), schema.get("airbyte_type")
        if form == "date":
            return Kind.NAIVE_DATE
        if form == "date-time":
            is_naive = airbyte == "timestamp_without_timezone"
            return Kind.NAIVE_DATETIME if is_naive else Kind.UTC_DATETIME
    return kind


def allowed_types(schema: Mapping[str, Any]) -> Iterable[str]:
    """Yield the types that a JSON schema allows."""
    types = schema.get("type", ())
    yield from (types,) if isinstance(types, str) else (str(type_) for type_ in types)
    for union in ("anyOf", "oneOf"):
        for alternative in schema.get(union) or ():
            if isinstance(alternative, dict):
                yield from allowed_types(alternative)


@dataclass
class Shape:
    """The columns of a stream's records; thread-safe.

    Attributes:
        types: the columns' types so far, by name, in their order.
        declared: the columns declared by a schema. The type of such a column may also hold values
            of another kind, such as a number that is written without a fraction.
        nesting: how fields of objects become columns; None: objects are JSON text.
        stream: the stream's name, for the log.
        texts_only: whether the responses' format contains only text, so that a text is converted to
            the declared type, and an empty text is null.
        fields: the columns declared by a schema, also those without a type.
    """

    types: dict[str, ColumnType]
    declared: frozenset[str] = frozenset()
    nesting: Nesting | None = None
    stream: str = ""
    texts_only: bool = False
    fields: frozenset[str] = frozenset()
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def columns(self, key: Sequence[str]) -> list[Column]:
        """Return the columns so far, including the key."""
        with self._lock:
            return [Column(name, kind, name in key) for name, kind in self.types.items()]

    def declare(self, types: Mapping[str, ColumnType]) -> None:
        """Add columns that a schema declares."""
        self.widen(types)
        with self._lock:
            self.declared |= types.keys()

    def widen(self, types: Mapping[str, ColumnType]) -> None:
        """Add columns and types that other readers of the same stream have found."""
        with self._lock:
            for name, kind in types.items():
                known = self.types.get(name)
                self.types[name] = kind if known is None else wider(known, kind)

    def current_types(self) -> dict[str, ColumnType]:
        """Return the columns' types so far."""
        with self._lock:
            return dict(self.types)

    def cells(
        self, records: Sequence[Mapping[str, Any]], key: Sequence[str]
    ) -> tuple[list[Column], list[pa.Array]]:
        """Return the records' values by column.

        Args:
            records: the records of a page.
            key: the key columns.

        Returns:
            All columns known so far, in their order and with their present types, and their values.
            A field that has never had a value, and that no schema declares, is not a column.

        Raises:
            ConfigurationError: two fields would become the same column.
        """
        if self.nesting is not None:
            records = self.nesting.flatten(records)
        names = dict.fromkeys(self.types)
        for record in records:
            # Most records have the same keys, so this rarely adds names.
            if record.keys() - names.keys():
                names.update(dict.fromkeys(record))
        cells = {name: [record.get(name) for record in records] for name in names}
        made = {name: self._array(name, values) for name, values in cells.items()}
        while True:
            with self._lock:
                types = dict(self.types)
            # Another thread may have widened a column in the meantime.
            old = [
                name
                for name, array in made.items()
                if array is not None and array[1] != types[name]
            ]
            if not old:
                break
            made |= {name: self._array(name, cells[name]) for name in old}
        columns = [Column(name, kind, name in key) for name, kind in types.items()]
        found = ((kind, made.get(name)) for name, kind in types.items())
        return columns, [
            pa.nulls(len(records), kind.arrow) if array is None else array[0]
            for kind, array in found
        ]

    def cells_of(
        self, records: pa.RecordBatch, key: Sequence[str]
    ) -> tuple[list[Column], list[pa.Array]]:
        """Return records in Arrow columns by column, as `cells` does.

        Lists, structures and maps become JSON text.
        """
        found = {
            name: (kind, values)
            for name, values in zip(records.schema.names, records.columns, strict=True)
            if (kind := type_of_arrow(values.type)) is not None
        }
        self.widen({name: kind for name, (kind, _) in found.items()})
        types = self.current_types()
        columns = [Column(name, kind, name in key) for name, kind in types.items()]
        return columns, [
            from_arrow(found[name][1], found[name][0], kind)
            if name in found
            else pa.nulls(records.num_rows, kind.arrow)
            for name, kind in types.items()
        ]

    def _array(self, name: str, values: list[Any]) -> tuple[pa.Array, ColumnType] | None:
        """Return a column's values in a type that holds them, or None if no type is known."""
        known = self.types.get(name)
        if known is not None and name in self.declared:
            given = parse_texts(values, known) if self.texts_only else values
            array = None if given is None else to_array(given, known)
            if array is not None:
                return array, known
        found = infer_type(values)
        if found is not None and self.nesting is not None and name in self.nesting.places:
            # The remaining fields of objects, and values that are not objects although one is
            # declared.
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
        return to_array(values, kind), kind


def parse_texts(values: list[Any], kind: ColumnType) -> list[Any] | None:
    """Return texts converted to a type, or None if one of them cannot be converted.

    No digit is lost: a text with leading zeros is not a number, and neither is a text with more
    digits than the type holds. An empty text is null, unless the type is a string.
    """
    if kind.kind is Kind.STRING:
        return values
    found = [
        _parse_text(value, kind.kind) if isinstance(value, str) and value else value
        for value in values
    ]
    if None in found and kind.kind is not Kind.JSON:
        spelled = zip(values, found, strict=True)
        if any(value not in {None, ""} and parsed is None for value, parsed in spelled):
            return None
    return [None if parsed == "" else parsed for parsed in found]


def _parse_text(text: str, kind: Kind) -> Any:
    match kind:
        case Kind.BOOLEAN:
            return _TRUTHS.get(text.lower())
        case Kind.LONG:
            return int(text) if _WHOLE.fullmatch(text) else None
        case Kind.DOUBLE if _NUMBER.fullmatch(text):
            number = float(text)
            return number if exact_json.is_exact(text, number) else None
        case Kind.JSON:
            return _parse_json(text)
    return None if kind is Kind.DOUBLE else text


def _parse_json(text: str) -> Any:
    try:
        return exact_json.loads(text.encode())
    except ValueError:
        return text


def infer_type(values: Iterable[Any]) -> ColumnType | None:
    """Return the narrowest type that holds values, or None if all are null.

    Integers and other numbers have no common type except text, so that 5 does not become 5.0.

    Args:
        values: values as JSON has them, or Python's dates, times, decimals, bytes and UUIDs.
    """
    present = [value for value in values if value is not None]
    types = set(map(type, present))
    kinds = {kind for type_ in types for kind in _kinds_of(type_, present)}
    if kinds == {Kind.LONG}:
        fits = min(present) >= _LEAST_LONG and max(present) <= _MOST_LONG
        return ColumnType(Kind.LONG) if fits else _TEXT
    if kinds == {Kind.DECIMAL}:
        return _decimal_type(present)
    if len(kinds) > 1:
        return _TEXT
    return ColumnType(next(iter(kinds))) if kinds else None


def _kinds_of(type_: type, values: Iterable[Any]) -> set[Kind]:
    if type_ is datetime:
        times = (value for value in values if type(value) is datetime)
        return {Kind.NAIVE_DATETIME if at.tzinfo is None else Kind.UTC_DATETIME for at in times}
    return {_KINDS[type_]}


def _decimal_type(values: Iterable[Decimal]) -> ColumnType:
    """Return the decimal type with enough digits for all values; text if they need too many."""
    scale = whole = 0
    for value in values:
        _, digits, exponent = value.as_tuple()
        if not isinstance(exponent, int):
            # Neither NaN nor infinity is a decimal.
            return _TEXT
        scale = max(scale, -exponent)
        whole = max(whole, len(digits) + exponent)
    if whole + scale > MAX_PRECISION:
        return _TEXT
    return ColumnType(Kind.DECIMAL, max(1, whole + scale), scale)


def to_array(values: list[Any], kind: ColumnType) -> pa.Array | None:
    """Return values in a type, or None if it does not hold all of them."""
    types = set(map(type, values)) - {type(None)}
    if kind.kind in {Kind.STRING, Kind.NAIVE_TIME}:
        return _to_text_array(
            values if types <= {str} else [_to_optional_text(value) for value in values]
        )
    if kind.kind is Kind.JSON:
        return _to_text_array([None if value is None else to_json_text(value) for value in values])
    if not types:
        return pa.nulls(len(values), kind.arrow)
    try:
        return _to_typed_array(values, types, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, InvalidOperation, BinasciiError):
        return None


def _to_typed_array(values: list[Any], types: set[type], kind: ColumnType) -> pa.Array | None:
    """Return values of some types in a type that is not text; it raises if one does not fit."""
    match kind.kind:
        case Kind.UTC_DATETIME | Kind.NAIVE_DATETIME | Kind.NAIVE_DATE if types <= {str}:
            return pa.array(values, pa.string()).cast(kind.arrow)
        case Kind.BINARY if types <= {str}:
            given = [None if text is None else b64decode(text, validate=True) for text in values]
            return pa.array(given, kind.arrow)
        case Kind.DECIMAL if types <= _DECIMALS:
            numbers = [None if value is None else Decimal(str(value)) for value in values]
            return pa.array(numbers, kind.arrow)
        case Kind.SHORT | Kind.INT:
            fits = types == {int}
        case Kind.DOUBLE:
            fits = types <= {int, float} and (int not in types or _are_exact_numbers(values))
        case _:
            known = (type_ for type_ in types if type_ in _KNOWN)
            kinds = {found for type_ in known for found in _kinds_of(type_, values)}
            fits = kinds == {kind.kind} and types <= _KNOWN
    return pa.array(values, kind.arrow) if fits else None


def _to_text_array(texts: list[str | None]) -> pa.Array:
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        # APIs truncate text within a surrogate pair; the remaining half is not a valid character.
        return pa.array(
            [None if text is None else _replace_surrogates(text) for text in texts], pa.string()
        )


def _replace_surrogates(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _are_exact_numbers(values: list[Any]) -> bool:
    return all(not isinstance(value, int) or -_EXACT <= value <= _EXACT for value in values)


def _to_optional_text(value: Any) -> str | None:
    match value:
        case None | str():
            return value
        case date() | time():
            return value.isoformat()
        case Decimal():
            return f"{value:f}"
        case bytes():
            return b64encode(value).decode()
        case UUID():
            return str(value)
    other = _NOT_IN_JSON.get(str(value)) if type(value) is float else None
    return other or to_json_text(value)


def to_json_text(value: Any) -> str:
    """Return a JSON value as text."""
    return exact_json.dumps(value).decode("utf-8", "surrogatepass")


#: The path of a value in a record.
_Path: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class _Object:
    """An object whose declared fields are columns.

    Attributes:
        column: the object's own column.
        fields: the columns of its fields by name; a nested object is another `_Object`.
    """

    column: str
    fields: Mapping[str, str | _Object]


class Nesting:
    """The declared columns of a stream that flattens objects.

    Attributes:
        declared: their types, by name.
        fields: their names, also of those without a type.
        places: the own columns of flattened objects.
    """

    def __init__(self, stream: str, schema: Mapping[str, Any], key: Collection[str]) -> None:
        """Assign a column to every declared field.

        Args:
            stream: the stream's name.
            schema: the schema of its records.
            key: the key columns, which are never flattened.

        Raises:
            ConfigurationError: two fields would become the same column.
        """
        self.declared: dict[str, ColumnType] = {}
        self.fields: set[str] = set()
        self.places: set[str] = set()
        self._stream = stream
        self._key = frozenset(key)
        self._paths: dict[str, _Path] = {name: (name,) for name in key}
        self._objects = {
            name: field_object
            for name, field_object in self._fields_of((), schema).items()
            if isinstance(field_object, _Object)
        }
        self._inner = {name: path for name, path in self._paths.items() if len(path) > 1}

    def _fields_of(self, path: _Path, schema: Mapping[str, Any]) -> dict[str, str | _Object]:
        properties = schema.get("properties")
        found: dict[str, str | _Object] = {}
        for name, field_schema in properties.items() if isinstance(properties, dict) else ():
            place = (*path, str(name))
            column = "_".join(place)
            if self._paths.setdefault(column, place) != place:
                raise self._conflict_error(place, column)
            if _is_flattened(field_schema) and column not in self._key:
                self.places.add(column)
                found[str(name)] = _Object(column, self._fields_of(place, field_schema))
            else:
                self.declared |= declared_columns({"properties": {column: field_schema}})
                self.fields.add(column)
                found[str(name)] = column
        return found

    def flatten(self, records: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Return the records with their objects flattened.

        Raises:
            ConfigurationError: an undeclared field has the same name as a nested field's column.
        """
        return [self._flatten(record) for record in records] if self._objects else records

    def _flatten(self, record: Mapping[str, Any]) -> dict[str, Any]:
        if clash := record.keys() & self._inner.keys():
            raise self._conflict_error((min(clash),), min(clash))
        found: dict[str, Any] = {}
        for name, value in record.items():
            if name in self._objects:
                _set_fields(found, self._objects[name], value)
            else:
                found[name] = value
        return found

    def _conflict_error(self, path: _Path, column: str) -> ConfigurationError:
        one, other = ".".join(self._paths[column]), ".".join(path)
        return ConfigurationError(
            f"The fields {one} and {other} of the stream {self._stream} would both "
            f"become the column {column}.",
            column=column,
            hint=f"Set streams.{self._stream}.nested to json, or rename one of them in the "
            "manifest (`transformations`).",
        )


def _is_flattened(schema: Any) -> bool:
    """Return whether a schema declares an object with fields, possibly also null or an array."""
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        return False
    types = set(allowed_types(schema))
    return bool(schema["properties"]) and "object" in types <= {"object", "array", "null"}


def _set_fields(cells: dict[str, Any], flattened: _Object, value: Any) -> None:
    """Store an object's fields in their columns."""
    if not isinstance(value, dict):
        cells[flattened.column] = value
        return
    rest = {}
    for name, inside in value.items():
        place = flattened.fields.get(name)
        if place is None:
            rest[name] = inside
        elif isinstance(place, _Object):
            _set_fields(cells, place, inside)
        else:
            cells[place] = inside
    cells[flattened.column] = rest or None
