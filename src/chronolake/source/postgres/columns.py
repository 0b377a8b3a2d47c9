"""Columns of PostgreSQL and the types that hold their values.

Source: `specs/postgres-facts.md` (5.1 to 5.3). Values come as texts, from the log and from COPY
alike, under the settings of `connection`. A value that its column's type cannot hold (dates before
year 1 or beyond 9999, infinity, NaN in a decimal) makes the column a text: nothing is lost or bent.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronolake.source.postgres.value_forms import type_of, values_of
from chronolake.types import MAX_PRECISION, Column, ColumnType, Kind, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from chronolake.source.postgres.value_forms import ValueForm

_KINDS: Final = {
    16: Kind.BOOLEAN,
    17: Kind.BINARY,
    20: Kind.LONG,
    21: Kind.SHORT,
    23: Kind.INT,
    26: Kind.LONG,
    114: Kind.JSON,
    142: Kind.XML,
    700: Kind.FLOAT,
    701: Kind.DOUBLE,
    1082: Kind.NAIVE_DATE,
    1083: Kind.NAIVE_TIME,
    1114: Kind.NAIVE_DATETIME,
    1184: Kind.UTC_DATETIME,
    3802: Kind.JSON,
}
_NUMERIC: Final = 1700
#: Type modifiers count the bytes of their own length.
_HEADER: Final = 4

#: text and varchar.
_TEXTS: Final = {25, 1043}
#: Types whose values the server writes otherwise than as a text (`specs/postgres-facts.md`, 5.1).
_INET: Final = 869
_BPCHAR: Final = 1042
#: A time that UTC_DATETIME holds, as the server writes it.
_HELD_TIME: Final = r"^([0-9]{4}-[0-9-]{5}) ([0-9:.]+)\+00$"
#: Types with values that no column of them can hold, and what these look like.
_BEYOND: Final = {
    Kind.NAIVE_DATE: r"^[^0-9]|^[0-9]{5}|BC$",
    Kind.NAIVE_DATETIME: r"^[^0-9]|^[0-9]{5}|BC$",
    Kind.UTC_DATETIME: r"^[^0-9]|^[0-9]{5}|BC$",
    Kind.DECIMAL: "[A-Za-z]",
}


@dataclass(frozen=True)
class SourceColumn:
    """A column of a table.

    Attributes:
        number: its `attnum`, which survives renames; None if it is not known.
        name: its name.
        type_oid: its type, or that which its domain stands for, as `pg_type.oid`.
        type_modifier: length, precision and the like; -1 without.
        form: the form that its values get in place of their texts, or None. It depends on the type
            and on the configuration.
    """

    number: int | None
    name: str
    type_oid: int
    type_modifier: int
    form: ValueForm | None = field(default=None, compare=False)

    @property
    def type(self) -> ColumnType:
        """The type that holds its values, as far as it can."""
        if self.form is not None:
            return type_of(self.form)
        if self.type_oid == _NUMERIC:
            return _decimal(self.type_modifier)
        return ColumnType(_KINDS.get(self.type_oid, Kind.STRING))

    def same_type(self, other: SourceColumn) -> bool:
        """Whether another column has the same type."""
        mine = self.type_oid, self.type_modifier
        return mine == (other.type_oid, other.type_modifier)

    def same_texts(self, other: SourceColumn) -> bool:
        """Return whether values have the same texts if the column gets another one's type.

        That is, as long as the server does not rewrite the table for it.
        """
        types = {self.type_oid, other.type_oid}
        return len(types) == 1 or types == _TEXTS

    @property
    def beyond(self) -> str | None:
        """What texts look like that the type cannot hold, as a regular expression, or None."""
        return None if self.form is not None else _BEYOND.get(self.type.kind)


def _decimal(modifier: int) -> ColumnType:
    if modifier < _HEADER:
        # Up to 131,072 digits: no decimal has them.
        return ColumnType(Kind.STRING)
    modifier -= _HEADER
    precision, scale = (modifier >> 16) & 0xFFFF, modifier & 0x3FF
    if modifier & 0x400:
        # The first of eleven bits is a sign: whole hundreds, thousands and so on.
        precision, scale = precision + 0x400 - scale, 0
    precision = max(precision, scale)
    if precision > MAX_PRECISION:
        return ColumnType(Kind.STRING)
    return ColumnType(Kind.DECIMAL, precision, scale)


def is_held(column: SourceColumn, texts: pa.Array | pa.ChunkedArray) -> bool:
    """Whether a column's type can hold all of some values."""
    if column.beyond is None:
        return True
    return not pc.any(pc.match_substring_regex(texts, column.beyond), min_count=0).as_py()


@dataclass(frozen=True)
class Typing:
    """Values of a table's columns, by their texts; it goes to the executors.

    Attributes:
        columns: the columns as the source has them.
        wanted: the same with the types that are wanted; STRING takes every text as it is.
        others: columns that stay as they are, as a Spark schema.
        beyond: for some columns, another one that has the texts of those values which the wanted
            type cannot hold; the value is null there. Other columns have no such values.
    """

    columns: tuple[SourceColumn, ...]
    wanted: tuple[Column, ...]
    others: str = ""
    beyond: Mapping[str, str] = field(default_factory=dict)

    @property
    def schema(self) -> str:
        """The columns that it gives, as a Spark schema."""
        mine = [f"{quoted(column.name)} {column.type.sql}" for column in self.wanted]
        texts = [f"{quoted(name)} string" for name in self.beyond.values()]
        return ", ".join(filter(None, [*mine, *texts, self.others]))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give batches with these columns as values, and the others as they are."""
        for batch in batches:
            values, beyond = {}, {}
            for column, one in zip(self.columns, self.wanted, strict=True):
                texts = batch[column.name]
                if column.name in self.beyond:
                    texts, texts_beyond = _held(column, texts)
                    beyond[self.beyond[column.name]] = texts_beyond
                values[column.name] = _values(column, texts, one.type)
            others = {name: batch[name] for name in batch.schema.names if name not in values}
            yield pa.RecordBatch.from_pydict(values | beyond | others)


def _held(column: SourceColumn, texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The texts of values that the column's type can hold, and those of the others."""
    never = pa.nulls(len(texts), pa.string())
    if is_held(column, texts):
        return texts, never
    is_beyond = pc.match_substring_regex(texts, column.beyond)
    spelled = _values(column, texts, ColumnType(Kind.STRING))
    return pc.if_else(is_beyond, never, texts), pc.if_else(is_beyond, spelled, never)


def _values(column: SourceColumn, texts: pa.Array, kind: ColumnType) -> pa.Array:
    match kind.kind:
        case _ if column.form is not None:
            return values_of(column.form, texts).cast(kind.arrow)
        case Kind.BOOLEAN:
            return pc.equal(texts, "t")
        case Kind.BINARY:
            return _bytes(texts)
        case Kind.STRING if column.type_oid == _INET:
            return _with_mask(texts)
        case Kind.STRING if column.type_oid == _BPCHAR:
            # As a text, it is without what fills it up.
            return pc.utf8_rtrim(texts, " ").cast(kind.arrow)
        case Kind.STRING if column.type.kind is Kind.UTC_DATETIME:
            # As a column of its own type is spelled when it becomes a text.
            texts = pc.replace_substring_regex(texts, _HELD_TIME, r"\1T\2Z")
    return texts.cast(kind.arrow)


def _with_mask(texts: pa.Array) -> pa.Array:
    """Addresses, of hosts too, with the number of bits that count: as `value::text` gives them."""
    of_host = pc.if_else(pc.match_substring(texts, ":"), "/128", "/32")
    mask = pc.if_else(pc.match_substring(texts, "/"), "", of_host)
    return pc.binary_join_element_wise(texts, mask, "")


def _bytes(texts: pa.Array) -> pa.Array:
    """What texts say in hexadecimal digits after two other characters."""
    digits = pc.binary_replace_slice(texts, 0, 2, "").cast(pa.large_binary())
    validity, offsets, data = digits.buffers()
    ends = np.frombuffer(offsets, np.int64, len(digits) + 1, digits.offset * 8)
    whole = bytes.fromhex(bytes(data or b"")[ends[0] : ends[-1]].decode("ascii"))
    halves = pa.py_buffer((ends - ends[0]) // 2)
    found = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(digits), [validity, halves, pa.py_buffer(whole)], offset=0
    )
    return found.cast(pa.binary())


def numbers_of(columns: Iterable[SourceColumn]) -> dict[str, int]:
    """The columns' numbers by their names, as far as they are known."""
    return {column.name: column.number for column in columns if column.number is not None}


def numbered(
    described: Sequence[SourceColumn],
    before: Sequence[SourceColumn],
    now: Sequence[SourceColumn],
    *,
    greatest: int = 0,
) -> tuple[SourceColumn, ...]:
    """Give columns that the log describes their numbers.

    A table's columns stand in the order of their numbers, and a column that is added comes last,
    with the next number. So an unknown name in the place of a known column is that column, under
    another name.

    Args:
        described: columns without numbers, as they were at some time.
        before: as they were when the log was last read.
        now: as the catalog has them, at that time or after further changes.
        greatest: the greatest number that a column is known to have had when the log was last read.

    Returns:
        The same columns; where it is not certain which one is meant, without a number.
    """
    names = [column.name for column in described]
    for known in (before, now):
        if names == [column.name for column in known]:
            return tuple(
                replace(column, number=other.number)
                for column, other in zip(described, known, strict=True)
            )
    of_before = {column.name: column.number for column in before}
    of_now = {column.name: column.number for column in now}
    found = [of_before.get(name, of_now.get(name)) for name in names]
    _fill_in(found, sorted(_numbers(now)), _dropped(before, greatest))
    certain = [number for number in found if number is not None]
    if certain != sorted(set(certain)):
        # Names have changed places: which is which cannot be told.
        found = [None] * len(found)
    return tuple(
        replace(column, number=number) for column, number in zip(described, found, strict=True)
    )


def _numbers(columns: Sequence[SourceColumn]) -> list[int]:
    return [column.number for column in columns if column.number is not None]


def _dropped(columns: Sequence[SourceColumn], greatest: int) -> set[int]:
    """The numbers up to the greatest that no column has any more, as far as they are known."""
    known = _numbers(columns)
    if len(known) < len(columns):
        return set()
    return set(range(1, max([greatest, *known]) + 1)) - set(known)


def _fill_in(found: list[int | None], live: Sequence[int], dropped: set[int]) -> None:
    """Fill in the numbers that follow from those of other columns.

    No number is given twice, so a column that is there now was there when a younger one was
    described.

    Args:
        found: the numbers of the columns that are described; None where it is to be filled in.
        live: those of the columns that are there now.
        dropped: those that no column had any more before.
    """
    place = 0
    while place < len(found):
        end = place
        while end < len(found) and found[end] is None:
            end += 1
        least = (found[place - 1] if place else None) or 0
        greatest = found[end] if end < len(found) else None
        following = [
            number
            for number in range(least + 1, least + 1 + end - place + len(dropped))
            if number not in dropped
        ][: end - place]
        if greatest is not None:
            there = [number for number in live if least < number < greatest]
            possible = [number for number in range(least + 1, greatest) if number not in dropped]
            for numbers in (there, possible):
                if len(numbers) == end - place:
                    found[place:end] = numbers
        elif set(following) <= set(live):
            # Nothing was dropped that came after them.
            found[place:end] = following
        place = end + 1
