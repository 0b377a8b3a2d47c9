"""PostgreSQL columns and the types that hold their values.

Source: `specs/postgres-facts.md` (5.1 to 5.3). The log and COPY both send values as texts, under
the settings of `connection`. If a column has a value that its type cannot hold (dates before year 1
or after 9999, infinity, NaN in a decimal), the column becomes a string: no value is lost or
changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from chronolake.source.postgres.messages import TEXT_OID
from chronolake.source.postgres.value_forms import type_of, values_of
from chronolake.source.relational.columns import bytes_of
from chronolake.types import MAX_PRECISION, ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

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
#: Type modifiers include the bytes of their own length.
_HEADER: Final = 4

#: `\\x` precedes hexadecimal digits.
_HEX_PREFIX: Final = 2
#: text and varchar.
_TEXTS: Final = {TEXT_OID, 1043}
#: Types whose values have another representation than `value::text` (`specs/postgres-facts.md`,
#: 5.1).
_INET: Final = 869
_BPCHAR: Final = 1042
#: A time that UTC_DATETIME can hold, as the server prints it.
_HELD_TIME: Final = r"^([0-9]{4}-[0-9-]{5}) ([0-9:.]+)\+00$"
#: Patterns of the values that a type cannot hold.
_OUT_OF_RANGE: Final = {
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
        type_oid: its type, or its domain's base type, as `pg_type.oid`.
        type_modifier: length, precision or similar; -1 without.
        form: the representation of its values instead of their texts, or None. It depends on the
            type and on the configuration.
    """

    number: int | None
    name: str
    type_oid: int
    type_modifier: int
    form: ValueForm | None = field(default=None, compare=False)

    @property
    def type(self) -> ColumnType:
        """Return the type for its values, except those that match `out_of_range_pattern`."""
        if self.form is not None:
            return type_of(self.form)
        if self.type_oid == _NUMERIC:
            return _decimal(self.type_modifier)
        return ColumnType(_KINDS.get(self.type_oid, Kind.STRING))

    def has_same_texts(self, other: SourceColumn) -> bool:
        """Return whether values keep their texts if the column gets another column's type.

        This applies as long as the server does not rewrite the table for it.
        """
        types = {self.type_oid, other.type_oid}
        return len(types) == 1 or types == _TEXTS

    @property
    def out_of_range_pattern(self) -> str | None:
        """Return a regular expression for texts that the type cannot hold, or None."""
        return None if self.form is not None else _OUT_OF_RANGE.get(self.type.kind)

    def as_text(self) -> SourceColumn:
        """Return the column with texts instead of its values."""
        return replace(self, type_oid=TEXT_OID, type_modifier=-1, form=None)

    def values(self, texts: pa.Array, target: ColumnType) -> pa.Array:
        """Return the values of texts in a type that can hold them."""
        match target.kind:
            case _ if self.form is not None:
                return values_of(self.form, texts).cast(target.arrow)
            case Kind.BOOLEAN:
                return pc.equal(texts, "t")
            case Kind.BINARY:
                return bytes_of(texts, prefix=_HEX_PREFIX)
            case Kind.STRING if self.type_oid == _INET:
                return _with_mask(texts)
            case Kind.STRING if self.type_oid == _BPCHAR:
                # A string value does not include the padding.
                return pc.utf8_rtrim(texts, " ").cast(target.arrow)
            case Kind.STRING if self.type.kind is Kind.UTC_DATETIME:
                # In the format of a UTC_DATETIME value that is converted to a string.
                texts = pc.replace_substring_regex(texts, _HELD_TIME, r"\1T\2Z")
        return texts.cast(target.arrow)


def _decimal(modifier: int) -> ColumnType:
    if modifier < _HEADER:
        # Up to 131,072 digits: more than a decimal can hold.
        return ColumnType(Kind.STRING)
    modifier -= _HEADER
    precision, scale = (modifier >> 16) & 0xFFFF, modifier & 0x3FF
    if modifier & 0x400:
        # The first of eleven bits is a sign: negative scales round to hundreds, thousands and so
        # on.
        precision, scale = precision + 0x400 - scale, 0
    precision = max(precision, scale)
    if precision > MAX_PRECISION:
        return ColumnType(Kind.STRING)
    return ColumnType(Kind.DECIMAL, precision, scale)


def _with_mask(texts: pa.Array) -> pa.Array:
    """Return addresses with the prefix length, also of hosts, as `value::text` prints them."""
    of_host = pc.if_else(pc.match_substring(texts, ":"), "/128", "/32")
    mask = pc.if_else(pc.match_substring(texts, "/"), "", of_host)
    return pc.binary_join_element_wise(texts, mask, "")


def assign_numbers(
    described_columns: Sequence[SourceColumn],
    before: Sequence[SourceColumn],
    now: Sequence[SourceColumn],
    *,
    greatest: int = 0,
) -> tuple[SourceColumn, ...]:
    """Return the columns of a description in the log with their numbers.

    A table's columns are ordered by number, and an added column is last, with the next number. So
    an unknown name at the position of a known column is that column, renamed.

    Args:
        described_columns: columns without numbers, as they were at some time.
        before: the columns when the log was last read.
        now: the columns in the catalog, at that time or after further changes.
        greatest: the greatest column number known when the log was last read.

    Returns:
        The same columns with numbers; without a number where the column cannot be identified.
    """
    names = [column.name for column in described_columns]
    for known in (before, now):
        if names == [column.name for column in known]:
            return tuple(
                replace(column, number=other.number)
                for column, other in zip(described_columns, known, strict=True)
            )
    of_before = {column.name: column.number for column in before}
    of_now = {column.name: column.number for column in now}
    assigned = [of_before.get(name, of_now.get(name)) for name in names]
    _fill_gaps(assigned, sorted(_known_numbers(now)), _dropped_numbers(before, greatest))
    certain = [number for number in assigned if number is not None]
    if certain != sorted(set(certain)):
        # Names were swapped: the columns cannot be identified.
        assigned = [None] * len(assigned)
    return tuple(
        replace(column, number=number)
        for column, number in zip(described_columns, assigned, strict=True)
    )


def _known_numbers(columns: Sequence[SourceColumn]) -> list[int]:
    return [column.number for column in columns if column.number is not None]


def _dropped_numbers(columns: Sequence[SourceColumn], greatest: int) -> set[int]:
    """Return the known numbers, up to the greatest, that no column has any more."""
    known = _known_numbers(columns)
    if len(known) < len(columns):
        return set()
    return set(range(1, max([greatest, *known]) + 1)) - set(known)


def _fill_gaps(numbers: list[int | None], live: Sequence[int], dropped: set[int]) -> None:
    """Fill in the numbers that follow from those of other columns.

    No number is used twice, so a column that exists now existed when a newer one was described.

    Args:
        numbers: the numbers of the described columns; None where a number is to be filled in.
        live: the numbers of the columns that exist now.
        dropped: the numbers that no column had any more before.
    """
    place = 0
    while place < len(numbers):
        end = place
        while end < len(numbers) and numbers[end] is None:
            end += 1
        least = (numbers[place - 1] if place else None) or 0
        greatest = numbers[end] if end < len(numbers) else None
        following = [
            number
            for number in range(least + 1, least + 1 + end - place + len(dropped))
            if number not in dropped
        ][: end - place]
        if greatest is not None:
            live_between = [number for number in live if least < number < greatest]
            free_between = [
                number for number in range(least + 1, greatest) if number not in dropped
            ]
            for candidates in (live_between, free_between):
                if len(candidates) == end - place:
                    numbers[place:end] = candidates
        elif set(following) <= set(live):
            # No later column was dropped.
            numbers[place:end] = following
        place = end + 1
