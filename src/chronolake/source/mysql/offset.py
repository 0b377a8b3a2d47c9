"""Places in a server's binary log, and a stream's offset as its checkpoint stores it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

from chronolake.errors import SourceError
from chronolake.source.mysql.columns import SourceColumn
from chronolake.source.mysql.gtids import MariadbGtids, MysqlGtids
from chronolake.source.relational.columns import numbers_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chronolake.source.mysql.binlog import Transaction
    from chronolake.source.mysql.catalog import SourceTable

#: How many bits of a place's number are the position in its file: 32 GiB.
_POSITION_BITS: Final = 35
#: How many bits are the number of the file and the position. Above them is the log's generation.
_PLACE_BITS: Final = 56
_FILE: Final = re.compile(r"(.*)\.([0-9]+)")


@dataclass(frozen=True)
class LogPlace:
    """A place in a server's log.

    Attributes:
        file: the name of the file, such as `binlog.000017`.
        position: the offset in it, in bytes.
    """

    file: str
    position: int

    @property
    def number(self) -> int:
        """Return a number by which places of one server's log are ordered.

        Raises:
            SourceError: the file's name has no number, or the place is too far in the log.
        """
        found = _FILE.fullmatch(self.file)
        number = int(found[2]) if found else -1
        if not 0 <= number < 1 << (_PLACE_BITS - _POSITION_BITS) or self.position >> _POSITION_BITS:
            raise SourceError(
                f"The place {self.position} of the file {self.file} is not one in a binary log "
                "that Chronolake can read.",
                hint="Files need a name that ends with a number, and at most 32 GiB.",
            )
        return number << _POSITION_BITS | self.position

    def with_number(self, number: int) -> LogPlace:
        """Return the place with a number in the same log."""
        base, _, digits = self.file.rpartition(".")
        file = number >> _POSITION_BITS
        return LogPlace(f"{base}.{file:0{len(digits)}}", number & ((1 << _POSITION_BITS) - 1))

    def as_json(self) -> list[Any]:
        """Return the place in the form that a checkpoint stores."""
        return [self.file, self.position]


def generation_of(number: int) -> int:
    """Return the generation of the log of a place with its generation."""
    return number >> _PLACE_BITS


def with_generation(place: int, generation: int) -> int:
    """Return the number of a place in a generation of the log, by which all places are ordered."""
    return generation << _PLACE_BITS | place


def parse_gtids(text: str, *, is_mariadb: bool) -> MysqlGtids | MariadbGtids:
    """Return the set of GTIDs that a server's text describes."""
    return MariadbGtids.of(text) if is_mariadb else MysqlGtids.of(text)


@dataclass(frozen=True)
class Evidence:
    """The last transaction that was read. It proves that a log is the one that was read.

    Attributes:
        gtid: its identifier; None if the server does not use them.
        place: where it begins.
        commit_micros: its time.
        before: the transactions of the stream's offset before it, as the server prints them; None
            if it does not use GTIDs.
    """

    gtid: str | None
    place: LogPlace
    commit_micros: int
    before: str | None = None

    def is_of(self, transaction: Transaction, *, is_same_server: bool) -> bool | None:
        """Return whether a transaction is this one, or another one in its place; None: neither."""
        if self.gtid is not None:
            is_here = transaction.gtid == self.gtid
        else:
            is_here = is_same_server and transaction.commit_lsn == self.place.number
        if not is_here:
            return None
        is_in_place = not is_same_server or transaction.commit_lsn == self.place.number
        found = transaction.gtid, transaction.commit_micros
        return is_in_place and found == (self.gtid, self.commit_micros)

    def as_json(self) -> dict[str, Any]:
        """Return the evidence in the form that a checkpoint stores."""
        return {
            "gtid": self.gtid,
            "place": self.place.as_json(),
            "commit_micros": self.commit_micros,
            "before": self.before,
        }


@dataclass(frozen=True)
class LogOffset:
    """A stream's offset.

    Attributes:
        place: all transactions before this place have landed.
        gtids: the transactions up to the offset, as the server prints them; None if it does not use
            GTIDs.
        server: the server of this log (`connection.Server.identity`).
        generation: increases whenever the log of another server continues.
        last_micros: the time of the last transaction or copy, in microseconds since 1970.
        columns: the table's columns at that time.
        key: the columns that identified its rows.
        greatest: the greatest column number that was used.
        has_unlogged: whether the table may have values that the log does not contain.
        evidence: proves that a log is this one; None: no transaction was read yet.
        prepared: where XA transactions begin that were prepared before the offset, and whose end
            was not read yet, by their identifiers.
    """

    place: LogPlace
    gtids: str | None
    server: str
    generation: int
    last_micros: int
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    greatest: int
    has_unlogged: bool = False
    evidence: Evidence | None = None
    prepared: Mapping[str, LogPlace] = field(default_factory=dict)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Return the offset that `as_json` stored."""
        evidence = stored["evidence"]
        return cls(
            LogPlace(*stored["place"]),
            stored["gtids"],
            stored["server"],
            stored["generation"],
            stored["last_micros"],
            tuple(SourceColumn(*column) for column in stored["columns"]),
            tuple(stored["key"]),
            stored["greatest"],
            stored["has_unlogged"],
            None
            if evidence is None
            else Evidence(
                evidence["gtid"],
                LogPlace(*evidence["place"]),
                evidence["commit_micros"],
                evidence["before"],
            ),
            {xid: LogPlace(*place) for xid, place in stored["prepared"].items()},
        )

    def as_json(self) -> dict[str, Any]:
        """Return the offset in the form that a checkpoint stores."""
        return {
            "place": self.place.as_json(),
            "gtids": self.gtids,
            "server": self.server,
            "generation": self.generation,
            "last_micros": self.last_micros,
            "columns": [[column.number, column.name, column.form] for column in self.columns],
            "key": list(self.key),
            "greatest": self.greatest,
            "has_unlogged": self.has_unlogged,
            "evidence": None if self.evidence is None else self.evidence.as_json(),
            "prepared": {xid: place.as_json() for xid, place in self.prepared.items()},
        }

    @property
    def number(self) -> int:
        """Return a number by which all offsets of the stream are ordered."""
        return with_generation(self.place.number, self.generation)

    def is_of(self, table: SourceTable) -> bool:
        """Return whether this is an offset of the table with its present identifying columns."""
        return self.key == table.log_key

    def numbers(self, columns: Sequence[SourceColumn]) -> dict[str, int]:
        """Return the numbers that identify columns in the lake, by column name."""
        return numbers_of(columns)


def numbered(
    columns: Sequence[SourceColumn], before: Sequence[SourceColumn], greatest: int
) -> tuple[tuple[SourceColumn, ...], int]:
    """Return columns with the numbers that those of the same names have, and new ones.

    Returns:
        The columns, and the greatest number.
    """
    known = numbers_of(before)
    found = []
    for column in columns:
        number = known.get(column.name)
        if number is None:
            number = greatest = greatest + 1
        found.append(replace(column, number=number))
    return tuple(found), greatest
