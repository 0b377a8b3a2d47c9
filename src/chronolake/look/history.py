"""A record's timeline: its versions in order, what changed, and how each ended."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from chronolake.cells import typed
from chronolake.errors import UnknownColumnError, ValueRefusedError
from chronolake.look.catalog import LookedUp, look_up
from chronolake.look.moments import epsilon_of, known_since
from chronolake.look.stored import FILE, ROW, StoredRows
from chronolake.look.versions import StoredVersions, Version, as_they_are
from chronolake.spelling import did_you_mean
from chronolake.texts import clocks_of
from chronolake.types import Kind, Mode, TableName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyiceberg.expressions import BooleanExpression

    from chronolake.config import LakeConfig

#: The kinds of which a text may have blanks around it.
NUMBERS: Final = {Kind.SHORT, Kind.INT, Kind.LONG, Kind.DECIMAL, Kind.FLOAT, Kind.DOUBLE}


@dataclass(frozen=True)
class Timeline:
    """All versions of one record, by start.

    Attributes:
        table: the table.
        mode: its mode.
        key: the record's key, as it was asked for.
        versions: the versions, whose values come into being as they are asked for; the only row of
            a table that keeps none.
        known_since: ISO instant of the switch to history mode: what was before is not known. None
            if the table always kept history, or keeps none.
        bytes: how much memory its versions hold.
    """

    table: TableName
    mode: Mode
    key: dict[str, str | None]
    versions: Sequence[Version]
    known_since: str | None = None
    bytes: int = 0

    def outline(self) -> Timeline:
        """The timeline without what its versions say: when each was, and what columns changed."""
        if not isinstance(self.versions, StoredVersions):
            return self
        return replace(self, versions=self.versions.outline())

    def as_json(self) -> dict[str, Any]:
        """The timeline as JSON's own types."""
        return {
            "table": str(self.table),
            "mode": self.mode.value,
            "key": self.key,
            "known_since": self.known_since,
            "versions": [
                {
                    "start": version.start,
                    "end": version.end,
                    "ending": version.ending.value,
                    "synced": version.synced,
                    "values": version.values,
                    "changes": [
                        {"column": change.column, "old": change.old, "new": change.new}
                        for change in version.changes
                    ],
                }
                for version in self.versions
            ],
        }


def history(
    config: LakeConfig,
    name: TableName,
    key: Mapping[str, str | None],
    *,
    most: int | None = None,
    most_bytes: int | None = None,
) -> Timeline:
    """The timeline of the record with a key.

    Only files and row groups whose statistics admit the key are read.

    Args:
        config: the lake.
        name: the table; one without history gives the record's current row.
        key: the value of every key column, as text: times in ISO 8601, binary values in base64;
            None for null.
        most: refuse a record that has more versions than that; None: there is no limit.
        most_bytes: refuse a record whose versions take more memory than that, as Arrow has them;
            None: there is no limit.

    Returns:
        The timeline, without versions if the table has no such record.

    Raises:
        LakeError: there is no lake, or it cannot be read.
        TableNotFoundError: there is no such table.
        UnknownColumnError: a column of `key` is no key column, or one is missing.
        ValueRefusedError: a text is no value of its column's type, or the record has more
            versions than may be.
    """
    found = look_up(config, name)
    condition = _condition(found, key)
    rows = _stored(found, condition, most, most_bytes)
    versions: Sequence[Version] = ()
    if rows.num_rows and found.mode is Mode.HISTORY:
        versions = StoredVersions(rows, epsilon_of(found))
    elif rows.num_rows:
        versions = as_they_are(rows)
    since = known_since(found)
    return Timeline(name, found.mode, dict(key), versions, since, rows.get_total_buffer_size())


def _stored(
    found: LookedUp, condition: BooleanExpression, most: int | None, most_bytes: int | None
) -> pa.Table:
    """A record's rows, unless there are too many: then no more are read than tell so."""
    stored, kept, count, size = StoredRows(found), [], 0, 0
    for batch in stored.batches(stored.columns, condition):
        rows = batch.drop_columns([FILE, ROW])
        kept.append(rows)
        count += rows.num_rows
        size += rows.nbytes
        told = None
        if most is not None and count > most:
            told = f"The record has more than {most:,} versions, too many to show all."
        elif most_bytes is not None and size > most_bytes:
            told = (
                f"The record's versions hold more than {most_bytes >> 20:,} MiB, too much to show."
            )
        if told is not None:
            raise ValueRefusedError(
                told,
                hint="Ask for those of some time in SQL, with `chronolake query`, or for all with "
                "`chronolake history --json`.",
                table=str(found.name),
            )
    return pa.concat_tables(kept) if kept else pa.table({})


def _condition(found: LookedUp, key: Mapping[str, str | None]) -> BooleanExpression:
    from pyiceberg.expressions import AlwaysTrue, And  # noqa: PLC0415 - slow to import

    table = str(found.name)
    by_name = {column.name: column for column in found.columns}
    # A table that another engine made has no declared key: any columns may be asked for.
    wanted = found.key or tuple(key)
    for column in key:
        if column not in by_name:
            raise UnknownColumnError(
                "The table has no such column.",
                hint=f"Its key is {_listed(found.key)}."
                if found.key
                else did_you_mean(column, by_name, f"Its columns are {_listed(list(by_name))}."),
                table=table,
                column=column,
            )
        if column not in wanted:
            raise UnknownColumnError(
                "The column is not part of the table's key.",
                hint=f"The key is {_listed(wanted)}; for other questions use `chronolake query`.",
                table=table,
                column=column,
            )
    if missing := [column for column in wanted if column not in key] or (["id"] if not key else []):
        raise UnknownColumnError(
            f"The key is not complete: {_listed(missing)} is missing.",
            hint="Give --key COLUMN=VALUE for each key column, or --null COLUMN where it is null.",
            table=table,
        )
    condition: BooleanExpression = AlwaysTrue()
    for column, text in key.items():
        condition = And(condition, equal_to(found, column, text))
    return condition


def equal_to(found: LookedUp, column: str, text: str | None) -> BooleanExpression:
    """Rows in which a column has the value that a text stands for; None is null.

    Raises:
        ValueRefusedError: the text is no value of the column's type.
    """
    from pyiceberg.expressions import EqualTo, In, IsNaN, IsNull  # noqa: PLC0415 - slow to import
    from pyiceberg.expressions.literals import (  # noqa: PLC0415 - slow to import
        FloatLiteral,
        LongLiteral,
        literal,
    )

    if text is None:
        return IsNull(column)
    by_name = {one.name: one for one in found.columns}
    if by_name[column].type.kind is Kind.NAIVE_TIME:
        return In(column, clocks_of(text))
    if by_name[column].type.kind in NUMBERS:
        text = text.strip()  # As it may come with what was copied.
    value = typed(by_name[column], text, table=str(found.name))
    if isinstance(value, float) and math.isnan(value):
        return IsNaN(column)
    if isinstance(value, int) and not isinstance(value, bool):
        # Whole numbers, times in microseconds and days since 1970 are all of this kind.
        return EqualTo(column, LongLiteral(value))
    if isinstance(value, float) and by_name[column].type.kind is Kind.FLOAT:
        # As one of eight bytes, infinity would be beyond what the column can hold.
        return EqualTo(column, FloatLiteral(value))
    return EqualTo(column, literal(value))


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(columns)
