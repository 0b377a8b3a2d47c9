"""Filters for the versions that are true at an instant, and the snapshot that was current then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chronolake.errors import ValueRefusedError
from chronolake.formatting import instant
from chronolake.types import (
    END,
    EPSILON_MICROS,
    EPSILON_PROPERTY,
    HISTORY_SINCE_PROPERTY,
    START,
)

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression

    from chronolake.inspect.catalog import CatalogTable


def epsilon_of(table: CatalogTable) -> int:
    """Return the microseconds between a version's end and the start of the next."""
    return int(table.iceberg.properties.get(EPSILON_PROPERTY, EPSILON_MICROS))


def known_since(table: CatalogTable) -> str | None:
    """Return the ISO instant of a table's switch to history mode: earlier changes are not known.

    None if the table always kept history, or keeps none.
    """
    since = table.iceberg.properties.get(HISTORY_SINCE_PROPERTY)
    return instant(int(since)) if since else None


def valid_at(micros: int, epsilon: int) -> BooleanExpression:
    """Return a filter for versions with start <= time < end + epsilon, as in `LakeTable.as_of`."""
    from pyiceberg.expressions import And  # noqa: PLC0415 - slow to import

    return And(started_by(micros), ending_after(micros - epsilon))


def started_by(micros: int) -> BooleanExpression:
    """Return a filter for versions that start at a time or before."""
    from pyiceberg.expressions import LessThanOrEqual  # noqa: PLC0415 - slow to import
    from pyiceberg.expressions.literals import LongLiteral  # noqa: PLC0415 - slow to import

    return LessThanOrEqual(START, LongLiteral(micros))


def ending_after(micros: int) -> BooleanExpression:
    """Return a filter for versions that end after a time."""
    from pyiceberg.expressions import GreaterThan  # noqa: PLC0415 - slow to import
    from pyiceberg.expressions.literals import LongLiteral  # noqa: PLC0415 - slow to import

    return GreaterThan(END, LongLiteral(micros))


@dataclass(frozen=True)
class Publication:
    """A snapshot that was once a table's current one.

    Attributes:
        at_micros: when it became current, in microseconds since 1970.
        snapshot_id: its identity.
    """

    at_micros: int
    snapshot_id: int


def publications(table: CatalogTable) -> list[Publication]:
    """Return the retained snapshots that were published, ordered by time.

    A write creates several snapshots and publishes the last one: readers never see the others.
    """
    metadata = table.iceberg.metadata
    retained = {snapshot.snapshot_id for snapshot in metadata.snapshots}
    published = [
        Publication(entry.timestamp_ms * 1_000, entry.snapshot_id)
        for entry in metadata.snapshot_log
        if entry.snapshot_id in retained
    ]
    current = table.iceberg.current_snapshot()
    if current is not None and (not published or published[-1].snapshot_id != current.snapshot_id):
        published.append(Publication(current.timestamp_ms * 1_000, current.snapshot_id))
    return sorted(published, key=lambda publication: publication.at_micros)


def publication_at(table: CatalogTable, micros: int) -> Publication | None:
    """Return the newest snapshot that was published at a time or before, or None."""
    published = publications(table)
    if not published:
        return None
    before = [publication for publication in published if publication.at_micros <= micros]
    if not before:
        raise ValueRefusedError(
            f"The table's rows at {instant(micros)} are no longer available: it has no history, "
            f"and its oldest snapshot is from {instant(published[0].at_micros)}.",
            hint="Choose a later time. A table in history mode keeps all versions.",
            table=str(table.name),
        )
    return before[-1]
