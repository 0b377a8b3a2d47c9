"""The encoding of values, keys and record versions in landing files.

Values and keys are encoded as texts, in SQL and identically in Arrow; record versions as rows of a
landing file, in Arrow.
"""

from __future__ import annotations

from base64 import b64encode
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronolake.change_set import (
    DELETED_AT,
    MODIFIED,
    OMITTED,
    OPERATED,
    PROVIDES_DATA,
    PURGED_AT,
    SEQUENCE,
)
from chronolake.landing import field_types as lake_fields
from chronolake.landing.file_schema import IS_MARK, OPERATION, UNMODIFIED
from chronolake.types import DELETE_SOURCE, Kind, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chronolake.landing.file_schema import Declaration
    from chronolake.types import Column, ColumnType


#: Java writes numbers in this range without an exponent.
_PLAIN: Final = (1e-3, 1e7)
_NO_NUMBERS: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_CONTROLS: Final = {number: f"\\u{number:04X}" for number in range(32)} | {
    ord(character): f"\\{letter}" for character, letter in zip("\b\t\n\f\r", "btnfr", strict=True)
}


def as_text(column: Column) -> str:
    """Return SQL for a column's value as text."""
    name = quote(column.name)
    match column.type.kind:
        case Kind.BINARY:
            # Without line breaks.
            return f"replace(base64({name}), '\\r\\n', '')"
        case Kind.UTC_DATETIME:
            return f"concat(replace(CAST({name} AS STRING), ' ', 'T'), 'Z')"
        case _:
            return f"CAST({name} AS STRING)"


def as_type(column: Column, kind: ColumnType) -> str:
    """Return SQL for a column's value in a type that contains all of its values."""
    if column.type == kind:
        return quote(column.name)
    if kind.kind is Kind.STRING:
        return as_text(column)
    return f"CAST({quote(column.name)} AS {kind.sql})"


def identifier(key: Sequence[Column]) -> str:
    """Return SQL for a text that identifies a key: for several columns a unique JSON array.

    Args:
        key: the key's columns with their declared types, in any order.

    Returns:
        SQL over these columns; null where one of them is.
    """
    if len(key) == 1:
        return as_text(key[0])
    is_whole = " AND ".join(f"{quote(column.name)} IS NOT NULL" for column in key)
    names = ", ".join(map(as_text, _sorted_key(key)))
    return f"IF({is_whole}, to_json(array({names})), NULL)"


def _sorted_key(key: Sequence[Column]) -> list[Column]:
    # A source may return its columns in another order later.
    return sorted(key, key=lambda column: column.name)


def texts_of(values: pa.Array, kind: Kind) -> pa.Array:
    """Return a column's values as texts: `as_text`, in Arrow.

    The values have the Arrow type of the kind (`ColumnType.arrow`).
    """
    match kind:
        case Kind.BINARY:
            encoded = [
                None if placed is None else b64encode(placed) for placed in values.to_pylist()
            ]
            return pa.array(encoded, pa.binary()).cast(pa.string())
        case Kind.UTC_DATETIME | Kind.NAIVE_DATETIME:
            return _times(values, is_utc=kind is Kind.UTC_DATETIME)
        case Kind.NAIVE_DATE:
            return _signed_years(values.cast(pa.string()), len("2026-01-01"))
        case Kind.FLOAT | Kind.DOUBLE:
            return _numbers(values)
        case Kind.DECIMAL:
            texts = values.cast(pa.string())
            has_exponent = pc.fill_null(pc.match_substring(texts, "E"), False)
            return _replace_texts(texts, has_exponent, lambda text: format(Decimal(text), "f"))
        case _:
            return values.cast(pa.string())


def identifiers_of(key: Sequence[Column], texts: Mapping[str, pa.Array]) -> pa.Array:
    """Return a text for each key: `identifier`, in Arrow.

    Args:
        key: the key's columns, in any order.
        texts: the result of `texts_of` for each of them, by its name.
    """
    if len(key) == 1:
        return texts[key[0].name]
    return json_list([json_texts(texts[column.name]) for column in _sorted_key(key)])


def json_texts(texts: pa.Array) -> pa.Array:
    """Return texts escaped for use between the quotes of a JSON string."""
    escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    is_odd = pc.fill_null(pc.match_substring_regex(texts, r"[\x00-\x1f]"), False)
    return _replace_texts(escaped, is_odd, lambda text: text.translate(_CONTROLS))


def json_list(texts: Sequence[pa.Array]) -> pa.Array:
    """Return JSON arrays of strings from columns of `json_texts`; null where one of them is."""
    joined = pc.binary_join_element_wise(*texts, '","')
    return pc.binary_join_element_wise('["', joined, '"]', "")


def _times(values: pa.Array, *, is_utc: bool) -> pa.Array:
    # Arrow casts timestamps with a time zone slowly.
    texts = values.cast(pa.timestamp("us")).cast(pa.string())
    # Arrow always writes six digits.
    texts = pc.ascii_rtrim(pc.ascii_rtrim(texts, "0"), ".")
    texts = _signed_years(texts, len("2026-01-01 00:00:00"), longest=len(".000000"))
    if not is_utc:
        return texts
    is_short = pc.fill_null(pc.equal(pc.find_substring(texts, " "), len("2026-01-01")), True)
    if pc.all(is_short).as_py():
        texts = pc.binary_replace_slice(texts, 10, 11, "T")
    else:
        texts = pc.replace_substring(texts, " ", "T", max_replacements=1)
    return pc.binary_join_element_wise(texts, "Z", "")


def _signed_years(texts: pa.Array, length: int, *, longest: int = 0) -> pa.Array:
    """Add a sign to years of more than four digits."""
    is_far = pc.greater(pc.binary_length(texts), length)
    if not longest and not pc.any(is_far, min_count=0).as_py():
        return texts
    is_far = pc.fill_null(pc.match_substring_regex(texts, r"^\d{5}"), False)
    if not pc.any(is_far).as_py():
        return texts
    return pc.if_else(is_far, pc.binary_join_element_wise("+", texts, ""), texts)


def _numbers(values: pa.Array) -> pa.Array:
    """Return numbers in Java's format: `1.0`, `1.0E10`, `NaN`."""
    texts = values.cast(pa.string())
    size = pc.abs(values)
    is_plain = pc.or_(
        pc.equal(size, 0.0),
        pc.and_(pc.greater_equal(size, _PLAIN[0]), pc.less(size, _PLAIN[1])),
    )
    is_whole = pc.invert(pc.match_substring(texts, "."))
    plain = pc.if_else(is_whole, pc.binary_join_element_wise(texts, ".0", ""), texts)
    return _replace_texts(plain, pc.fill_null(pc.invert(is_plain), False), _java, of=texts)


def _java(text: str) -> str:
    """Return a number in Java's format, from its shortest text."""
    if text in _NO_NUMBERS:
        return _NO_NUMBERS[text]
    sign, digits, exponent = Decimal(text).normalize().as_tuple()
    first, *others = map(str, digits)
    fraction = "".join(others) or "0"
    power = int(exponent) + len(digits) - 1
    return f"{'-' if sign else ''}{first}.{fraction}E{power}"


def _replace_texts(
    texts: pa.Array, where: pa.Array, spell: Callable[[str], str], *, of: pa.Array | None = None
) -> pa.Array:
    """Replace some texts, for the few formats for which Arrow has no function.

    Args:
        where: flags for the texts to replace; without nulls.
        spell: returns the replacement of a text.
        of: the texts that `spell` gets; by default `texts`.
    """
    if not pc.any(where, min_count=0).as_py():
        return texts
    found = (texts if of is None else of).filter(where).dictionary_encode()
    words = pa.array([spell(text) for text in found.dictionary.to_pylist()], pa.string())
    return pc.replace_with_mask(texts, where, words.take(found.indices))


_MICROS: Final = pa.timestamp("us", tz="UTC")
#: The columns of a file that only declares columns.
DECLARING: Final = pa.schema(
    [
        (lake_fields.ID, pa.string()),
        (lake_fields.MODIFIED, _MICROS),
        (lake_fields.SEQUENCE, pa.string()),
    ]
)
#: The value of `grax__deletesource` for records that the source deleted, in
#: `seeds/data-lake-v2.txt`.
_SOURCE: Final = "source"
#: The types that landing files use for numbers.
_WIDE: Final = {Kind.SHORT: pa.int64(), Kind.INT: pa.int64(), Kind.FLOAT: pa.float64()}


def rows_of_file(versions: pa.RecordBatch, declaration: Declaration) -> pa.RecordBatch:
    """Return some record versions as rows of a landing file.

    Args:
        versions: record versions as in `writer.land`.
        declaration: the fields, and the columns that contain them.
    """
    given = set(versions.schema.names)
    values = {
        placed.column.name: versions[placed.column.name].cast(placed.column.type.arrow)
        for placed in declaration
    }
    purged = versions[PURGED_AT]
    provides_data, deleted = pc.is_null(purged), versions[DELETED_AT]
    key = [placed.column for placed in declaration if placed.column.primary_key]
    key_texts = {column.name: texts_of(values[column.name], column.type.kind) for column in key}
    rows = {
        lake_fields.ID: identifiers_of(key, key_texts),
        lake_fields.MODIFIED: versions[MODIFIED].cast(_MICROS),
        lake_fields.SEQUENCE: versions[SEQUENCE].cast(pa.string()),
    }
    if PROVIDES_DATA in given:
        is_deletion = pc.and_(pc.invert(versions[PROVIDES_DATA]), provides_data)
        rows[IS_MARK] = pc.if_else(is_deletion, True, pa.scalar(None, pa.bool_()))
        # A deletion has only one time, and a retraction none.
        is_dated = pc.and_(is_deletion, pc.is_valid(deleted))
        deleted = pc.if_else(is_dated, versions[MODIFIED], deleted)
        provides_data = pc.and_(versions[PROVIDES_DATA], provides_data)
    rows[lake_fields.DELETED] = deleted.cast(_MICROS)
    rows[lake_fields.PURGED] = purged.cast(_MICROS)
    if OMITTED in given:
        others = [placed.column.name for placed in declaration if not placed.column.primary_key]
        rows[UNMODIFIED] = _omitted_fields(versions[OMITTED], others)
    if OPERATED in given:
        rows[OPERATION] = versions[OPERATED].cast(pa.string())
    placed_texts = {placed.text: placed.column.name for placed in declaration}
    named = placed_texts.get(DELETE_SOURCE)
    rows[DELETE_SOURCE] = _delete_sources(
        deleted, None if named is None else values[named], provides_data
    )
    # Tombstones have no values except the key.
    all_provide = pc.all(provides_data, min_count=0).as_py()
    for placed in declaration:
        if placed.text in {lake_fields.ID, DELETE_SOURCE}:
            continue
        name, kind = placed.column.name, placed.column.type.kind
        value = values[name]
        if not (all_provide or placed.column.primary_key):
            value = pc.if_else(provides_data, value, pa.scalar(None, value.type))
        rows[placed.text] = key_texts[name] if name in key_texts else texts_of(value, kind)
        if placed.typed is not None:
            rows[placed.typed] = value.cast(_WIDE.get(kind, value.type))
    return pa.RecordBatch.from_pydict(rows)


def _delete_sources(
    deleted: pa.Array, provided: pa.Array | None, provides_data: pa.Array
) -> pa.Array:
    """Return who deleted each record: the source, unless it provides another value.

    Args:
        deleted: the times of the deletions, or null.
        provided: the values of a field of this meaning; None if the stream has none.
        provides_data: whether rows contain data.
    """
    is_deleted = pc.is_valid(deleted)
    by_source = pc.if_else(is_deleted, _SOURCE, pa.scalar(None, pa.string()))
    if provided is None:
        return by_source
    # A deletion has its source even if it has no data.
    is_known = pc.or_(is_deleted, provides_data)
    return pc.if_else(is_known, pc.coalesce(provided, by_source), pa.scalar(None, pa.string()))


def _omitted_fields(omitted: pa.Array, fields: list[str]) -> pa.Array:
    """Return for each row the fields that it omits as a JSON array, or null."""
    if omitted.null_count == len(omitted):
        return pa.nulls(len(omitted), pa.string())
    names = pc.list_flatten(omitted)
    which = pc.index_in(names, pa.array(fields, pa.string()))
    is_field = pc.is_valid(which)
    parents = pc.list_parent_indices(omitted).filter(is_field).to_numpy()
    counts = np.bincount(parents, minlength=len(omitted))
    offsets = np.zeros(len(omitted) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    escaped = json_texts(pa.array(fields, pa.string())).take(which.filter(is_field))
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), escaped), '","')
    reported = pc.binary_join_element_wise('["', joined, '"]', "")
    return pc.if_else(pa.array(counts > 0), reported, pa.scalar(None, pa.string()))


def count_incomplete(rows: pa.Table) -> int:
    """Return the number of rows of a file that lack a guaranteed column."""
    lacking = [pc.is_null(rows[name]) for name in lake_fields.GUARANTEED]
    found: int = pc.sum(reduce(pc.or_, lacking)).as_py()
    return found
