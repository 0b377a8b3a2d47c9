"""Columns that a change omits: they keep the value of the previous version.

A log omits large values that an update has not touched (PostgreSQL's "unchanged TOAST"). The value
of such a cell is a *fact* from an earlier row: the latest fact before the version, whichever of the
two rows landed first. A row carries the facts that it uses, so that the fact's own version need not
be stored: `_chronolake_version` contains the name of each omitted column and the fact's version.

A row that omits a column follows a version that existed until then, as in any log: after a deletion
or a purge, the first row of a record contains all columns. If this does not hold, the cell's value
depends on which rows are resolved together.

All functions here return SQL text, for `chronolake.core.scd2_sql`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chronolake.change_set import MODIFIED, OMITTED, PROVIDES_DATA, PURGED_AT, RESERVED, SEQUENCE
from chronolake.types import literal, quote

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Table property: the data columns that some row omitted, as JSON.
OMITTED_PROPERTY: Final = "chronolake.untold"
#: In `_chronolake_version`: no column was omitted; all were, the row is a tombstone.
NONE_OMITTED: Final = "-"
ALL_OMITTED: Final = "*"

# The origin of an omitted column's value: its name, and modification and sequence of its fact.
_ORIGIN: Final = "struct<n:string,m:bigint,s:string>"
_ORIGINS: Final = f"array<{_ORIGIN}>"
_PLACE: Final = "struct<m:bigint,l:int,s:string>"
#: Orders facts: those of one version by their sequence.
_OWN: Final = f"struct({MODIFIED} AS m, length({SEQUENCE}) AS l, {SEQUENCE} AS s)"

#: The result of `stored_origins` for a stored row, and its type.
CARRIED: Final = f"{RESERVED}carried"
CARRIED_TYPE: Final = f"map<string,{_ORIGIN}>"
#: All facts that a row's cells used before, and the facts that they use now.
PREVIOUS_FACTS: Final = f"{RESERVED}told"
FACTS: Final = f"{RESERVED}facts"

#: SQL: whether a row has data. A version that consists only of purges has none.
HAS_DATA: Final = f"({PROVIDES_DATA} AND {PURGED_AT} IS NULL)"


@dataclass(frozen=True)
class OmittedColumn:
    """A column that some row of the table omitted."""

    name: str
    number: int

    @property
    def origin(self) -> str:
        """Return the column with the origin of the cell's fact; null if it is not known."""
        return f"{RESERVED}origin{self.number}"

    @property
    def previous_fact(self) -> str:
        """Return the fact that the cell used before: origin and value; null without origin."""
        return f"{PREVIOUS_FACTS}.f{self.number}"

    @property
    def fact(self) -> str:
        """Return the fact that the cell uses now."""
        return f"{FACTS}.f{self.number}"

    @property
    def value(self) -> str:
        """Return the cell's value; null for tombstones and versions without data."""
        return f"IF({HAS_DATA}, {self.fact}.v, NULL)"

    @property
    def is_provided(self) -> str:
        """Return whether the row itself has the column's value."""
        return f"({self.origin} <=> {_OWN})"

    @property
    def has_changed(self) -> str:
        """Return whether the cell uses another fact than before, if it has data."""
        same = (f"{self.fact}.{part} <=> {self.previous_fact}.{part}" for part in "ms")
        return f"NOT ({' AND '.join(same)})"


def number_columns(names: Sequence[str]) -> tuple[OmittedColumn, ...]:
    """Return descriptions of omitted columns, numbered in the order of their names."""
    return tuple(OmittedColumn(name, number) for number, name in enumerate(names))


def stored_origins(part: str) -> str:
    """Return SQL for the origins of the cells that a stored row omitted.

    Args:
        part: SQL for the part of `_chronolake_version` about omitted columns.
    """
    marks = f"'{NONE_OMITTED}', '{ALL_OMITTED}'"
    parsed = (
        f"from_json(IF({part} IN ({marks}), '[]', CAST(unbase64({part}) AS STRING)), '{_ORIGINS}')"
    )
    return f"map_from_entries(transform({parsed}, one -> struct(one.n, one)))"


def origins(columns: Sequence[OmittedColumn]) -> list[str]:
    """Return columns to select from landed and stored rows: the origins of their cells."""
    fields = []
    for column in columns:
        name = literal(column.name)
        fact = f"try_element_at({CARRIED}, {name})"
        place = f"struct({fact}.m AS m, length({fact}.s) AS l, {fact}.s AS s)"
        fields.append(
            f"CASE WHEN NOT {HAS_DATA} OR array_contains({OMITTED}, {name}) "
            f"THEN CAST(NULL AS {_PLACE}) "
            f"WHEN {fact} IS NULL THEN {_OWN} WHEN {fact}.m IS NOT NULL THEN {place} END "
            f"AS {column.origin}"
        )
    return fields


def pack_facts(columns: Sequence[OmittedColumn]) -> str:
    """Return SQL for the facts that a row's cells used before, in one column (`PREVIOUS_FACTS`)."""
    fields = []
    for column in columns:
        parts = (f"{column.origin}.{part} AS {part}" for part in "mls")
        fact = f"struct({', '.join(parts)}, {quote(column.name)} AS v)"
        fields.append(f"IF({column.origin} IS NULL, NULL, {fact}) AS f{column.number}")
    return f"struct({', '.join(fields)})"


def latest_facts(columns: Sequence[OmittedColumn]) -> str:
    """Return SQL for the latest earlier fact of each cell, in one column (`FACTS`).

    Earlier rows are those of a window `until`.
    """
    fields = (f"max({column.previous_fact}) OVER until AS f{column.number}" for column in columns)
    return f"struct({', '.join(fields)})"


def to_version(columns: Sequence[OmittedColumn]) -> str:
    """Return SQL for the part of `_chronolake_version` about omitted columns."""
    origins = (
        f"IF({column.fact}.m <=> {MODIFIED} AND {column.fact}.s <=> {SEQUENCE}, NULL, "
        f"named_struct('n', {literal(column.name)}, 'm', {column.fact}.m, 's', {column.fact}.s))"
        for column in columns
    )
    if not columns:
        return f"IF({PROVIDES_DATA}, '{NONE_OMITTED}', '{ALL_OMITTED}')"
    used_origins = f"filter(array({', '.join(origins)}), one -> one IS NOT NULL)"
    # Spark's base64 output has line breaks.
    encoded = f"replace(base64(CAST(to_json({used_origins}) AS BINARY)), '\\r\\n', '')"
    return (
        f"CASE WHEN NOT {PROVIDES_DATA} THEN '{ALL_OMITTED}' "
        f"WHEN {PURGED_AT} IS NOT NULL OR size({used_origins}) = 0 THEN '{NONE_OMITTED}' "
        f"ELSE {encoded} END"
    )
