"""A model of pipeline tables in plain Python, without Chronolake: a function of all landed rows.

Written from `seeds/data-lake-v2.txt` and docs/pipelines.md. Times are microseconds since 1970.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

TMAX: Final = 253_402_300_799_999_000


@dataclass(frozen=True)
class LandedRow:
    """One row of a file; `place` orders rows by file, then by their place in it."""

    key: Any
    modified: int
    sequence: str
    place: tuple[int, int]
    deleted: int | None = None
    purged: int | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    #: False: the row only marks the record as deleted, or purged; or it retracts its version.
    provides_data: bool = True
    #: Fields that the row omits: they keep the value of the latest earlier row.
    omitted: frozenset[str] = frozenset()
    #: Who deleted the record: `grax` or `source`.
    delete_source: str | None = None


@dataclass(frozen=True)
class Version:
    """A version of a record in a history table."""

    key: Any
    start: int
    end: int
    active: bool
    modified: int
    fields: dict[str, Any]
    #: False: only purges mention this version; nothing is known of its fields.
    has_data: bool = True
    #: When the record was deleted or purged, whether or not another version begins before.
    gone: int | None = None
    #: Who deleted the record, according to its data or any purge of this version.
    delete_source: str | None = None


def versions(rows: Iterable[LandedRow], epsilon: int, *, erases: bool = False) -> list[Version]:
    """Return all versions of all records, by key and start; a purge may erase their fields."""
    records: dict[Any, dict[int, list[LandedRow]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        records[row.key][row.modified].append(row)
    found = []
    for key in sorted(records):
        found += _of_record(key, records[key], epsilon, erases=erases)
    return found


def tracked_versions(
    rows: Iterable[LandedRow], epsilon: int, tracked: Iterable[str], *, erases: bool = False
) -> list[Version]:
    """Return the versions of a table with `track_history`.

    A version whose tracked fields equal those of the version before continues it, unless the record
    was deleted in between: it keeps the start of the first, and has the fields of the last.
    """
    names = list(tracked)
    found: list[Version] = []
    for version in versions(rows, epsilon, erases=erases):
        before = found[-1] if found else None
        if (
            before is not None
            and before.key == version.key
            and before.has_data
            and version.has_data
            and all(before.fields.get(name) == version.fields.get(name) for name in names)
            and (before.gone is None or before.gone >= version.start)
        ):
            found[-1] = replace(version, start=before.start)
        else:
            found.append(version)
    return found


def _of_record(
    key: Any, by_time: dict[int, list[LandedRow]], epsilon: int, *, erases: bool
) -> list[Version]:
    reported: list[tuple[LandedRow, list[int], bool]] = []
    sources: dict[int, str | None] = {}
    purges: list[int] = []
    deletions: list[int] = []
    for modified in sorted(by_time):
        ranked = sorted(
            by_time[modified], key=lambda row: (len(row.sequence), row.sequence, row.place)
        )
        ranked = _without_retracted(ranked)
        telling = [row for row in ranked if row.purged is None and row.provides_data]
        purging = [row for row in ranked if row.purged is not None]
        purges += [max(row.purged, modified) for row in purging if row.purged is not None]
        provided = [row.delete_source for row in [*telling[-1:], *purging] if row.delete_source]
        sources[modified] = max(provided, default=None)
        for row in ranked:
            # Deleted, and back at the same instant: the record was never gone.
            is_back = telling and _rank(telling[-1]) > _rank(row)
            if not (row.provides_data or row.purged is not None or is_back):
                deletions.append(modified)
        if telling:
            marks = [telling[-1].deleted, *(row.deleted for row in purging)]
            reported.append((telling[-1], [mark for mark in marks if mark is not None], True))
        elif purging:
            marks = [row.deleted for row in purging]
            reported.append((purging[-1], [mark for mark in marks if mark is not None], False))
    starts: list[int] = []
    for row, _, _ in reported:
        starts.append(max(row.modified, starts[-1] + epsilon) if starts else row.modified)
    result = []
    for number, (row, deleted, has_data) in enumerate(reported):
        start = starts[number]
        ends = deleted + [mark for mark in [*purges, *deletions] if mark >= row.modified]
        gone = min(ends, default=None)
        if number + 1 < len(reported):
            ends.append(starts[number + 1] - epsilon)
        end = max(start, min(ends)) if ends else TMAX
        erased = erases and any(purge >= row.modified for purge in purges)
        fields = _with_untold(row, by_time, purged=max(purges, default=0) if erases else 0)
        if erased or not has_data:
            fields = dict.fromkeys(_every_field(by_time))
        source = sources[row.modified]
        result.append(
            Version(key, start, end, not ends, row.modified, fields, has_data, gone, source)
        )
    return result


def _without_retracted(ranked: list[LandedRow]) -> list[LandedRow]:
    """Return the rows of a version that happened: those after its last retraction."""
    for number in reversed(range(len(ranked))):
        row = ranked[number]
        if not row.provides_data and row.deleted is None and row.purged is None:
            return ranked[number + 1 :]
    return ranked


def _every_field(by_time: dict[int, list[LandedRow]]) -> set[str]:
    return {name for rows in by_time.values() for row in rows for name in row.fields}


def _rank(row: LandedRow) -> tuple[int, str]:
    return len(row.sequence), row.sequence


def _with_untold(
    row: LandedRow, by_time: dict[int, list[LandedRow]], *, purged: int
) -> dict[str, Any]:
    """Return all fields of a row; an omitted one has its latest earlier value, unless erased."""
    fields = dict(row.fields)
    for name in row.omitted:
        earlier = [
            other
            for rows in by_time.values()
            for other in rows
            if other.provides_data
            and other.purged is None
            and name not in other.omitted
            and (other.modified, _rank(other)) < (row.modified, _rank(row))
        ]
        last = max(earlier, key=lambda other: (other.modified, _rank(other)), default=None)
        is_known = last is not None and last.modified > purged
        fields[name] = last.fields[name] if last is not None and is_known else None
    return fields


@dataclass(frozen=True)
class Current:
    """A record in a live or soft-delete table."""

    key: Any
    modified: int
    deleted: bool
    fields: dict[str, Any]


def current(rows: Iterable[LandedRow], *, erases: bool = False) -> list[Current]:
    """Return the newest version of each record, deleted or not.

    A version that only purges mention counts only if its record has no other version.
    """
    rows = list(rows)
    newest: dict[Any, Current] = {}
    with_data: set[Any] = set()
    # With epsilon 0, because the newest version, and whether it is deleted, does not depend on
    # where versions of the same instant are moved.
    for version in versions(rows, 0, erases=erases):
        if version.has_data:
            with_data.add(version.key)
        elif version.key in with_data:
            continue
        newest[version.key] = Current(
            version.key, version.modified, not version.active, version.fields
        )
    return list(newest.values())
