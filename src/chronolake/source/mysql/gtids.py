"""Sets of global transaction identifiers (GTIDs), of MySQL and of MariaDB.

Source: MySQL's reference manual, "GTID Sets"; MariaDB's documentation, "Global Transaction ID". A
set of MySQL has intervals of numbers for each server, and a set of MariaDB the last number of each
replication domain: numbers of a domain only increase.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from chronolake.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_INTERVAL: Final = re.compile(r"(\d+)(?:-(\d+))?")
_DOMAIN: Final = re.compile(r"(\d+)-(\d+)-(\d+)")
#: The greatest tag has 32 characters.
_TAG: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")


class GtidSet(Protocol):
    """A set of identifiers of transactions. Its text is the form that servers print and accept."""

    def __contains__(self, gtid: object) -> bool:
        """Return whether a transaction is in the set."""
        ...

    def with_gtid(self, gtid: str) -> GtidSet:
        """Return the set with another transaction."""
        ...


@dataclass(frozen=True)
class MysqlGtids:
    """A set of MySQL.

    Attributes:
        intervals: for each server, or server and tag, its intervals, ordered and not adjacent: the
            first number and the number after the last one.
    """

    intervals: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> MysqlGtids:
        """Return the set that a text describes.

        Raises:
            SourceError: the text does not describe a set.
        """
        found: dict[str, list[tuple[int, int]]] = {}
        for part in filter(None, re.sub(r"\s", "", text).split(",")):
            server, *items = part.split(":")
            place = server.lower()
            for item in items:
                if _TAG.fullmatch(item):
                    place = f"{server.lower()}:{item.lower()}"
                    continue
                numbers = _INTERVAL.fullmatch(item)
                if numbers is None:
                    raise _not_a_set(text)
                first = int(numbers[1])
                found.setdefault(place, []).append((first, int(numbers[2] or first) + 1))
        return cls({place: _merged(intervals) for place, intervals in found.items()})

    def __str__(self) -> str:
        """Return the set as servers print it."""
        return ",".join(
            ":".join([place, *(_interval(*interval) for interval in intervals)])
            for place, intervals in sorted(self.intervals.items())
        )

    def __contains__(self, gtid: object) -> bool:
        """Return whether a transaction is in the set."""
        place, _, number = str(gtid).rpartition(":")
        return any(
            first <= int(number) < end for first, end in self.intervals.get(place.lower(), ())
        )

    def with_gtid(self, gtid: str) -> MysqlGtids:
        """Return the set with another transaction."""
        place, _, number = gtid.rpartition(":")
        added = (int(number), int(number) + 1)
        return self._with(place.lower(), [*self.intervals.get(place.lower(), ()), added])

    def _with(self, place: str, intervals: list[tuple[int, int]]) -> MysqlGtids:
        changed = dict(self.intervals)
        changed.pop(place, None)
        if intervals:
            changed[place] = _merged(intervals)
        return MysqlGtids(changed)

    def intersection(self, other: MysqlGtids) -> MysqlGtids:
        """Return the transactions that both sets contain."""
        common = {}
        for place, intervals in self.intervals.items():
            found = [
                (max(first, other_first), min(end, other_end))
                for first, end in intervals
                for other_first, other_end in other.intervals.get(place, ())
            ]
            if kept := [(first, end) for first, end in found if first < end]:
                common[place] = _merged(kept)
        return MysqlGtids(common)

    def is_subset_of(self, other: MysqlGtids) -> bool:
        """Return whether another set contains all transactions of this one."""
        return self.intersection(other) == self

    def encoded(self) -> bytes:
        """Return the set in the form of the protocol (`COM_BINLOG_DUMP_GTID`).

        Source: MySQL's source code, `Gtid_set::encode`. With tags, the number of servers is
        between two bytes with the number of the format.
        """
        has_tags = any(":" in place for place in self.intervals)
        count = len(self.intervals)
        head = struct.pack("<Q", 1 << 56 | count << 8 | 1 if has_tags else count)
        parts = [head]
        for place, intervals in sorted(self.intervals.items()):
            server, _, tag = place.partition(":")
            parts.append(UUID(server).bytes)
            if has_tags:
                parts.append(bytes([len(tag) << 1]) + tag.encode())
            parts.append(struct.pack("<Q", len(intervals)))
            parts += [struct.pack("<QQ", *interval) for interval in intervals]
        return b"".join(parts)


@dataclass(frozen=True)
class MariadbGtids:
    """A set of MariaDB.

    Attributes:
        last: for each domain, the server and the number of its last transaction.
    """

    last: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> MariadbGtids:
        """Return the set that a text describes.

        Raises:
            SourceError: the text does not describe a set.
        """
        last = {}
        for part in filter(None, text.replace(" ", "").split(",")):
            numbers = _DOMAIN.fullmatch(part)
            if numbers is None:
                raise _not_a_set(text)
            last[int(numbers[1])] = int(numbers[2]), int(numbers[3])
        return cls(last)

    def __str__(self) -> str:
        """Return the set as servers print it."""
        return ",".join(
            f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self.last.items())
        )

    def __contains__(self, gtid: object) -> bool:
        """Return whether a transaction is in the set."""
        domain, _, number = map(int, str(gtid).split("-"))
        return domain in self.last and number <= self.last[domain][1]

    def with_gtid(self, gtid: str) -> MariadbGtids:
        """Return the set with another transaction."""
        domain, server, number = map(int, gtid.split("-"))
        if gtid in self:
            return self
        return MariadbGtids({**self.last, domain: (server, number)})

    def intersection(self, other: MariadbGtids) -> MariadbGtids:
        """Return the transactions that both sets contain."""
        return MariadbGtids(
            {
                domain: min(place, other.last[domain], key=_number)
                for domain, place in self.last.items()
                if domain in other.last
            }
        )

    def is_subset_of(self, other: MariadbGtids) -> bool:
        """Return whether another set contains all transactions of this one."""
        return all(
            domain in other.last and number <= other.last[domain][1]
            for domain, (_, number) in self.last.items()
        )


def _number(place: tuple[int, int]) -> int:
    return place[1]


def _not_a_set(text: str) -> SourceError:
    return SourceError(
        f"{text!r} is not a set of GTIDs.", hint="Report a bug: the server or an offset has it."
    )


def _merged(intervals: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return intervals in their order, and joined where they touch."""
    merged: list[tuple[int, int]] = []
    for first, end in sorted(intervals):
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((first, end))
    return tuple(merged)


def _interval(first: int, end: int) -> str:
    return str(first) if end == first + 1 else f"{first}-{end - 1}"
