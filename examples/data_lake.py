"""Write a Data Lake v2 of a few thousand record versions, the same each time.

Two objects, Account and Contact, over a month: rows appear twice and out of order, fields are added
and change their type, records are deleted, one is purged and one comes back.

    python examples/data_lake.py DIR first     # the first three weeks
    python examples/data_lake.py DIR second    # the rest of the month
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

ORG: Final = "X"
_BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
_DAYS: Final = 31
_FIRST_DAYS: Final = 21
_RECORDS: Final = {"Account": 120, "Contact": 300}
_CITIES: Final = ("Oslo", "Lima", "Kyoto", "Accra")

Row = dict[str, Any]


def rows(name: str) -> Iterator[tuple[int, Row]]:
    """Yield every row of an object, with the day on which it is written, from 0."""
    chance = random.Random(name)  # noqa: S311 - the same lake each time, nothing secret
    for number in range(_RECORDS[name]):
        record = f"{name[:3].lower()}{number:04}"
        at = _BEGIN + timedelta(minutes=chance.randrange(40_000))
        for change in range(chance.randrange(1, 12)):
            day = min(_DAYS - 1, (at - _BEGIN).days)
            yield day, _version(chance, record, at, change, day)
            if chance.random() < 0.25:
                # The same version, written again some days later.
                later = min(_DAYS - 1, day + chance.randrange(4))
                yield later, _version(chance, record, at, change, later)
            at += timedelta(minutes=chance.randrange(30, 6_000))
            if (at - _BEGIN).days >= _DAYS:
                break
    if name == "Account":
        yield from _lives()


def _version(chance: random.Random, record: str, at: datetime, change: int, day: int) -> Row:
    row: Row = {
        "Id": record,
        "source__modified": at,
        "grax__idseq": f"{change:x}{day:02x}",
        "Name": f"Record {record}",
        "City": chance.choice(_CITIES),
    }
    employees = chance.randrange(5_000)
    if day < 14:
        row |= {"Employees": str(employees), "Employees_i": employees}
    else:
        # From that day the source counts halves: an integer field became a number.
        row |= {"Employees": f"{employees}.5", "Employees_f": employees + 0.5}
    if day >= 7:
        row |= {"Rating__c": chance.choice(["true", "false"])}
        row["Rating__c_b"] = row["Rating__c"] == "true"
    if chance.random() < 0.04:
        row |= {"grax__deleted": at + timedelta(hours=5), "grax__deletesource": "source"}
    return row


def _lives() -> Iterator[tuple[int, Row]]:
    """Yield a record that is deleted and comes back, one restored from it, and a purged one."""

    def at(day: int) -> datetime:
        return _BEGIN + timedelta(days=day, hours=9)

    def version(record: str, day: int, sequence: str, city: str, **more: Any) -> Row:
        name = {"Id": record, "Name": "A life", "City": city}
        return {**name, "source__modified": at(day), "grax__idseq": sequence, **more}

    yield 2, version("acc9001", 2, "1", "Oslo")
    yield 9, version("acc9001", 9, "3", "Lima")
    # Written late: the change was made between the two.
    yield 12, version("acc9001", 5, "2", "Kyoto")
    yield 16, version("acc9001", 9, "4", "Lima", grax__deleted=at(15), grax__deletesource="source")
    yield 25, version("acc9001", 24, "5", "Accra")
    yield 22, version("acc9003", 21, "1", "Lima", grax__restoredfrom="acc9001")
    yield 3, version("acc9002", 3, "1", "Oslo")
    purge = {"Id": "acc9002", "source__modified": at(3), "grax__idseq": "2"}
    yield 26, {**purge, "grax__purged": at(26)}


_TYPES: Final = {
    "source__modified": pa.timestamp("ms", tz="UTC"),
    "grax__deleted": pa.timestamp("ms", tz="UTC"),
    "grax__purged": pa.timestamp("ms", tz="UTC"),
    "Employees_i": pa.int64(),
    "Employees_f": pa.float64(),
    "Rating__c_b": pa.bool_(),
}


def write(root: Path, *, first: int, last: int) -> int:
    """Write the files of some days, both included; return their number."""
    written = 0
    for name in _RECORDS:
        by_day: dict[int, list[Row]] = {}
        for day, row in rows(name):
            by_day.setdefault(day, []).append(row)
        for day in range(first, last + 1):
            shuffled = by_day.get(day, [])
            random.Random(day).shuffle(shuffled)  # noqa: S311 - the same lake each time
            if shuffled:
                _write(root, name, day, shuffled)
                written += 1
    return written


def _write(root: Path, name: str, day: int, day_rows: list[Row]) -> None:
    folder = root / "parquet" / "v2" / f"org={ORG}" / f"object={name}" / f"batch={day // 5:09x}"
    folder.mkdir(parents=True, exist_ok=True)
    columns = dict.fromkeys(column for row in day_rows for column in row)
    # Only fields with values are in a file, which is why every file has its own schema.
    arrays = {
        column: pa.array([row.get(column) for row in day_rows], _TYPES.get(column, pa.string()))
        for column in columns
    }
    whole = folder / f"data-{0x16F5E66E800 + day * 7919:011x}.parquet"
    partial = whole.with_suffix(".partial")
    pq.write_table(pa.table(arrays), partial)
    partial.rename(whole)


if __name__ == "__main__":
    folder, part = Path(sys.argv[1]), sys.argv[2]
    days = {"first": (0, _FIRST_DAYS - 1), "second": (_FIRST_DAYS, _DAYS - 1)}[part]
    number = write(folder, first=days[0], last=days[1])
    print(f"{number} files for days {days[0] + 1} to {days[1] + 1} of January 2026")
