"""Representations of values other than their texts, where the configuration selects them.

Arrays and composite values become JSON, in the format of the server's `to_jsonb`: numbers, booleans
and nulls as JSON values, nested arrays, attributes by name, everything else as strings. `money`
becomes a decimal.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from chronolake.landing import ColumnRules
from chronolake.source.postgres.connection import translate_errors
from chronolake.source.postgres.encoding import name_cursor
from chronolake.types import ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import psycopg


@dataclass(frozen=True)
class ColumnOptions:
    """The configured options of columns.

    Attributes:
        json_arrays: whether arrays become JSON.
        json_composites: whether composite values become JSON.
        decimal_money: whether `money` becomes a decimal.
        generated: which generated columns are read: `s` for stored ones, `v` for virtual ones.
        rules: returns the rules of a stream's columns.
    """

    json_arrays: bool = False
    json_composites: bool = False
    decimal_money: bool = False
    generated: str = ""
    rules: Callable[[str], ColumnRules] = field(default=lambda _: ColumnRules(), compare=False)

    @property
    def has_forms(self) -> bool:
        """Return whether some types have another representation than their text."""
        return self.json_arrays or self.json_composites or self.decimal_money

    @property
    def description(self) -> str:
        """Return the representations as text, to detect changes; empty if none is configured."""
        options = {
            "arrays=json": self.json_arrays,
            "composites=json": self.json_composites,
            "money=decimal": self.decimal_money,
        }
        return " ".join(name for name, is_set in options.items() if is_set)


#: All values as texts, without generated columns.
PLAIN: Final = ColumnOptions()


class Scalar(StrEnum):
    """The JSON type of a value that is neither an array nor a composite."""

    NUMBER = "number"
    BOOLEAN = "boolean"
    JSON = "json"
    TEXT = "text"


@dataclass(frozen=True)
class ArrayForm:
    """An array: the form of its elements, and their delimiter."""

    element: JsonForm
    delimiter: str


@dataclass(frozen=True)
class CompositeForm:
    """A composite value: its attributes' names and forms, in their order."""

    attributes: tuple[tuple[str, JsonForm], ...]


@dataclass(frozen=True)
class MoneyForm:
    """An amount of money with its number of fractional digits."""

    scale: int


JsonForm: TypeAlias = "Scalar | ArrayForm | CompositeForm"
ValueForm: TypeAlias = "ArrayForm | CompositeForm | MoneyForm"

#: The greatest amounts have 19 digits.
_MONEY_DIGITS: Final = 19
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_SCALARS: Final = {
    16: Scalar.BOOLEAN,
    114: Scalar.JSON,
    3802: Scalar.JSON,
    **dict.fromkeys((20, 21, 23, 700, 701, 1700), Scalar.NUMBER),
}
_MONEY: Final = 790
#: Types that columns of some tables have, directly or within other types.
_TYPES: Final = """
WITH RECURSIVE used(type) AS (
    SELECT a.atttypid FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    UNION
    SELECT part.type FROM used JOIN pg_catalog.pg_type t ON t.oid = used.type
    CROSS JOIN LATERAL (
        SELECT t.typbasetype WHERE t.typtype = 'd'
        UNION ALL SELECT t.typelem WHERE t.typcategory = 'A'
        UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
                  WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    ) part(type)
    WHERE part.type <> 0
)
SELECT t.oid::bigint, t.typtype::text, t.typbasetype::bigint,
       -- What is written as an array: int2vector and oidvector are not.
       CASE WHEN t.typcategory = 'A' AND t.typlen = -1
            AND t.oid NOT IN (22, 30) THEN t.typelem::bigint ELSE 0 END,
       coalesce((SELECT e.typdelim::text FROM pg_catalog.pg_type e WHERE e.oid = t.typelem), ','),
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
             WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
             ORDER BY a.attnum),
       ARRAY(SELECT a.atttypid::bigint FROM pg_catalog.pg_attribute a
             WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
             ORDER BY a.attnum)
FROM used JOIN pg_catalog.pg_type t ON t.oid = used.type
"""


def forms_of(
    connection: psycopg.Connection, tables: Sequence[int], options: ColumnOptions
) -> dict[int, ValueForm]:
    """Return the forms of types that have another representation than their text, by type oid.

    Args:
        connection: a connection to the database.
        tables: the oids of the tables whose columns have the types.
        options: the configured representations.

    Raises:
        SourceError: the catalog cannot be read.
    """
    if not options.has_forms:
        return {}
    with translate_errors(), name_cursor(connection) as cursor:
        rows = cursor.execute(_TYPES.encode(), (list(tables),)).fetchall()
        (scale,) = connection.execute("SELECT scale(0::money::numeric)").fetchone() or (2,)
    types = {oid: rest for oid, *rest in rows}
    known: dict[int, JsonForm] = {}

    def form_of(oid: int) -> JsonForm:
        if oid not in known:
            kind, base, element, delimiter, names, attributes = types[oid]
            if kind == "d":
                known[oid] = form_of(base)
            elif element:
                known[oid] = ArrayForm(form_of(element), delimiter)
            elif kind == "c":
                parts = zip(names, map(form_of, attributes), strict=True)
                known[oid] = CompositeForm(tuple(parts))
            else:
                known[oid] = _SCALARS.get(oid, Scalar.TEXT)
        return known[oid]

    forms: dict[int, ValueForm] = {}
    for oid in types:
        form = form_of(oid)
        if (isinstance(form, ArrayForm) and options.json_arrays) or (
            isinstance(form, CompositeForm) and options.json_composites
        ):
            forms[oid] = form
    if options.decimal_money:
        forms[_MONEY] = MoneyForm(int(scale))
    return forms


def type_of(form: ValueForm) -> ColumnType:
    """Return the column type for values of a form."""
    if isinstance(form, MoneyForm):
        return ColumnType(Kind.DECIMAL, _MONEY_DIGITS, form.scale)
    return ColumnType(Kind.JSON)


def values_of(form: ValueForm, texts: pa.Array) -> pa.Array:
    """Return values in their form: JSON texts, or decimals.

    Args:
        texts: the values as the server prints them. A text that does not match the present type
            becomes a JSON string; its table is read again.
    """
    if isinstance(form, MoneyForm):
        return _money(form, texts)
    values = (None if text is None else _to_json(form, text) for text in texts.to_pylist())
    return pa.array(list(values), pa.string())


def _money(form: MoneyForm, texts: pa.Array) -> pa.Array:
    """Return amounts in any locale's format: their digits are a number of the smallest unit."""
    digits = pc.replace_substring_regex(texts, r"[^0-9]", "")
    is_negative = pc.match_substring_regex(texts, "[-\u2212(]")
    signs = pc.if_else(is_negative, "-", "")
    units = pc.binary_join_element_wise(signs, digits, "").cast(pa.int64())
    unscaled = units.cast(pa.decimal128(_MONEY_DIGITS, 0))
    scaled = pa.decimal128(_MONEY_DIGITS, form.scale)
    return pa.Array.from_buffers(scaled, len(unscaled), unscaled.buffers(), offset=unscaled.offset)


def _to_json(form: JsonForm, text: str) -> str:
    try:
        return _json(form, text)
    except (ValueError, IndexError):
        return _quote(text)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _json(form: JsonForm, text: str) -> str:
    """Return a value as JSON.

    Raises:
        ValueError: the text does not match the present type.
        IndexError: the text ends too early.
    """
    if isinstance(form, ArrayForm):
        return _array(form, text)
    if isinstance(form, CompositeForm):
        cells = list(_cells(text))
        if len(cells) != len(form.attributes):
            raise ValueError(text)
        pairs = (
            f"{_quote(name)}:{'null' if cell is None else _json(of_cell, cell)}"
            for (name, of_cell), cell in zip(form.attributes, cells, strict=True)
        )
        return f"{{{','.join(pairs)}}}"
    match form:
        case Scalar.NUMBER if _NUMBER.fullmatch(text):
            return text
        case Scalar.BOOLEAN:
            return "true" if text == "t" else "false"
        case Scalar.JSON:
            return text
        case _:
            return _quote(text)


def _array(form: ArrayForm, text: str) -> str:
    """Return an array as JSON, with any number of dimensions; bounds other than 1 are omitted."""
    place = text.index("{")
    parts: list[str] = []
    while place < len(text):
        char = text[place]
        if char == "{":
            parts.append("[")
        elif char == "}":
            parts.append("]")
        elif char == form.delimiter:
            parts.append(",")
        else:
            cell, place = _element(form, text, place)
            parts.append(cell)
            continue
        place += 1
    return "".join(parts)


def _element(form: ArrayForm, text: str, place: int) -> tuple[str, int]:
    """Return an element as JSON, and the index after it."""
    if text[place] != '"':
        end = place
        while text[end] not in {form.delimiter, "}"}:
            end += 1
        cell = text[place:end]
        return ("null" if cell == "NULL" else _json(form.element, cell)), end
    parts = []
    place += 1
    while text[place] != '"':
        # A backslash escapes quotes and backslashes.
        place += text[place] == "\\"
        parts.append(text[place])
        place += 1
    return _json(form.element, "".join(parts)), place + 1


def _cells(text: str) -> Iterator[str | None]:
    """Return the texts of a composite's attributes; None for nulls."""
    if text[0] != "(" or text[-1] != ")":
        raise ValueError(text)
    place, last = 1, len(text) - 1
    while True:
        parts: list[str] = []
        is_null, is_within = True, False
        while is_within or text[place] not in ",)":
            char = text[place]
            if char == "\\" or (char == '"' and is_within and text[place + 1] == '"'):
                # Quotes and backslashes are doubled.
                parts.append(text[place + 1])
                place += 1
            elif char == '"':
                is_within = not is_within
            else:
                parts.append(char)
            is_null = False
            place += 1
        yield None if is_null else "".join(parts)
        if place == last:
            return
        place += 1
