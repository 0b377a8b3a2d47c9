"""Columns of which a source says nothing: they are what they were in the version before.

A log leaves out large values that an update has not touched (PostgreSQL's "unchanged TOAST"). What
such a cell holds is a *fact* that an earlier row told: the latest before the version, whichever of
the two came first. A row carries the facts that it goes by, so that the fact's own version need not
be stored: `_chronolake_version` names each column that was not told, and the fact's version.

A row that does not tell a column follows a version that was there until then, as in any log: after
a deletion or a purge, the first row of a record tells everything. Otherwise, what the cell holds
depends on which rows are looked at together.

Everything here is SQL text, for `chronolake.core.scd2_sql`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chronolake.change_set import MODIFIED, OMITTED, PROVIDES_DATA, PURGED_AT, RESERVED, SEQUENCE
from chronolake.types import literal, quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Table property: the data columns of which some row said nothing, as JSON.
OMITTED_PROPERTY: Final = "chronolake.untold"
#: In `_chronolake_version`: every column was told; none was, the row is a mark.
NONE_OMITTED: Final = "-"
ALL_OMITTED: Final = "*"

# What is known of a column that was not told: its name, and modification and sequence of its fact.
_ORIGIN: Final = "struct<n:string,m:bigint,s:string>"
_ORIGINS: Final = f"array<{_ORIGIN}>"
_PLACE: Final = "struct<m:bigint,l:int,s:string>"
#: What orders facts: those of one version by their sequence.
_OWN: Final = f"struct({MODIFIED} AS m, length({SEQUENCE}) AS l, {SEQUENCE} AS s)"

#: What `carried` gives of a stored row, and its type.
CARRIED: Final = f"{RESERVED}carried"
CARRIED_TYPE: Final = f"map<string,{_ORIGIN}>"
#: All facts that a row's cells went by so far, and go by now.
TOLD: Final = f"{RESERVED}told"
FACTS: Final = f"{RESERVED}facts"

#: SQL: whether a row says what its fields were. A version of which only purges speak does not.
HAS_DATA: Final = f"({PROVIDES_DATA} AND {PURGED_AT} IS NULL)"


@dataclass(frozen=True)
class UntoldColumn:
    """A column that some row of the table did not tell."""

    name: str
    number: int

    @property
    def origin(self) -> str:
        """The column that holds where the cell's fact was told; null if it is not known."""
        return f"{RESERVED}origin{self.number}"

    @property
    def told(self) -> str:
        """The fact that the cell went by: where it was told, and its value; null without origin."""
        return f"{TOLD}.f{self.number}"

    @property
    def fact(self) -> str:
        """The fact that the cell goes by now."""
        return f"{FACTS}.f{self.number}"

    @property
    def value(self) -> str:
        """What the cell holds; a mark's is empty, and so is that of a version without data."""
        return f"IF({HAS_DATA}, {self.fact}.v, NULL)"

    @property
    def is_provided(self) -> str:
        """Whether the row itself tells."""
        return f"({self.origin} <=> {_OWN})"

    @property
    def has_changed(self) -> str:
        """Whether the cell goes by another fact than it did, if it has data."""
        same = (f"{self.fact}.{part} <=> {self.told}.{part}" for part in "ms")
        return f"NOT ({' AND '.join(same)})"


def numbered(names: Sequence[str]) -> tuple[UntoldColumn, ...]:
    """Columns that some rows did not tell."""
    return tuple(UntoldColumn(name, number) for number, name in enumerate(names))


def carried(told: str) -> str:
    """SQL: where the cells of a stored row were told that the row itself did not tell.

    Args:
        told: SQL: what `_chronolake_version` says of the row's columns.
    """
    marks = f"'{NONE_OMITTED}', '{ALL_OMITTED}'"
    parsed = (
        f"from_json(IF({told} IN ({marks}), '[]', CAST(unbase64({told}) AS STRING)), '{_ORIGINS}')"
    )
    return f"map_from_entries(transform({parsed}, one -> struct(one.n, one)))"


def origins(columns: Sequence[UntoldColumn]) -> list[str]:
    """Columns to select of landed and stored rows: the origins of their cells."""
    found = []
    for column in columns:
        name = literal(column.name)
        fact = f"try_element_at({CARRIED}, {name})"
        place = f"struct({fact}.m AS m, length({fact}.s) AS l, {fact}.s AS s)"
        found.append(
            f"CASE WHEN NOT {HAS_DATA} OR array_contains({OMITTED}, {name}) "
            f"THEN CAST(NULL AS {_PLACE}) "
            f"WHEN {fact} IS NULL THEN {_OWN} WHEN {fact}.m IS NOT NULL THEN {place} END "
            f"AS {column.origin}"
        )
    return found


def packed(columns: Sequence[UntoldColumn]) -> str:
    """SQL: the facts that a row's cells go by so far, in one column (`TOLD`)."""
    found = []
    for column in columns:
        parts = (f"{column.origin}.{part} AS {part}" for part in "mls")
        fact = f"struct({', '.join(parts)}, {quoted(column.name)} AS v)"
        found.append(f"IF({column.origin} IS NULL, NULL, {fact}) AS f{column.number}")
    return f"struct({', '.join(found)})"


def facts(columns: Sequence[UntoldColumn]) -> str:
    """SQL: for each cell the latest fact that was told until then, in one column (`FACTS`).

    They are the rows of a window `until`.
    """
    found = (f"max({column.told}) OVER until AS f{column.number}" for column in columns)
    return f"struct({', '.join(found)})"


def to_version(columns: Sequence[UntoldColumn]) -> str:
    """SQL: what `_chronolake_version` says of a row's columns."""
    origins = (
        f"IF({column.fact}.m <=> {MODIFIED} AND {column.fact}.s <=> {SEQUENCE}, NULL, "
        f"named_struct('n', {literal(column.name)}, 'm', {column.fact}.m, 's', {column.fact}.s))"
        for column in columns
    )
    if not columns:
        return f"IF({PROVIDES_DATA}, '{NONE_OMITTED}', '{ALL_OMITTED}')"
    carried = f"filter(array({', '.join(origins)}), one -> one IS NOT NULL)"
    # Texts that Spark encodes come in lines.
    encoded = f"replace(base64(CAST(to_json({carried}) AS BINARY)), '\\r\\n', '')"
    return (
        f"CASE WHEN NOT {PROVIDES_DATA} THEN '{ALL_OMITTED}' "
        f"WHEN {PURGED_AT} IS NOT NULL OR size({carried}) = 0 THEN '{NONE_OMITTED}' "
        f"ELSE {encoded} END"
    )
