"""The tables of a lake, the health of their files, and monthly active rows, from metadata only.

See `core/usage.py` for how active rows are counted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chronolake.errors import LakeError
from chronolake.formatting import instant
from chronolake.inspect.catalog import look_up_all
from chronolake.inspect.manifests import count_rows, table_errors
from chronolake.types import ACTIVE, USAGE_PREFIX, Column, Mode, TableName

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.snapshots import Snapshot

    from chronolake.config import LakeConfig
    from chronolake.inspect.catalog import CatalogTable

#: The first version of Iceberg's table format with deletion vectors.
_WITH_VECTORS: Final = 3


@dataclass(frozen=True)
class MonthlyUsage:
    """The active rows of one table in one month.

    Attributes:
        mode: its mode; a history table's rows are versions.
        month: a UTC month, as `2026-11`.
        rows: distinct rows that were written.
        is_exact: whether `rows` is exact, and not an estimate.
    """

    table: TableName
    mode: Mode
    month: str
    rows: int
    is_exact: bool

    def as_json(self) -> dict[str, Any]:
        """Return the usage as JSON types."""
        return {
            "table": str(self.table),
            "mode": self.mode.value,
            "month": self.month,
            "rows": self.rows,
            "exact": self.is_exact,
        }


def usage(config: LakeConfig, month: str | None = None) -> list[MonthlyUsage]:
    """Return the usage of every table by table and month, optionally for one month only.

    Args:
        config: the lake.
        month: a month, as `2026-11`; None: all months in the tables' properties.

    Raises:
        LakeError: the lake does not exist, or cannot be read.
    """
    return [
        monthly
        for table in look_up_all(config)
        for monthly in usage_of(table)
        if month in {None, monthly.month}
    ]


def usage_of(table: CatalogTable) -> tuple[MonthlyUsage, ...]:
    """Return the usage of a table in all months in its properties, in order.

    Raises:
        LakeError: a usage property is not in Chronolake's format.
    """
    return tuple(
        _parse_usage(table, name, text)
        for name, text in sorted(table.iceberg.properties.items())
        if name.startswith(USAGE_PREFIX)
    )


def _parse_usage(table: CatalogTable, name: str, text: str) -> MonthlyUsage:
    month = name.removeprefix(USAGE_PREFIX)
    try:
        reported = json.loads(text)
        return MonthlyUsage(
            table.name, table.mode, month, int(reported["rows"]), bool(reported["exact"])
        )
    except (ValueError, KeyError, TypeError) as failure:
        raise LakeError(
            f"The table's property {name} is not valid.",
            hint=f"Remove the property {name}; the usage of that month is then unknown.",
            table=str(table.name),
        ) from failure


_PUBLISHED = "chronolake.published-at"
_BATCH = "chronolake.last-batch"


@dataclass(frozen=True)
class TableSummary:
    """A summary of a table.

    Attributes:
        name: schema and table.
        mode: live, soft-delete or history.
        columns: the columns in table order, including system columns.
        key: the columns that identify records.
        rows: rows of the table; versions, for a table in history mode.
        active: active versions of a table in history mode, or None.
        data_files: files that contain rows.
        delete_files: deletion vectors and other delete files.
        bytes: size of all of these files.
        published_at: ISO instant of the last published batch, or None.
        last_batch: identity of that batch, or None.
    """

    name: TableName
    mode: Mode
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    rows: int
    active: int | None
    data_files: int
    delete_files: int
    bytes: int
    published_at: str | None
    last_batch: str | None

    def as_json(self) -> dict[str, Any]:
        """Return the summary as JSON types."""
        return {
            "table": str(self.name),
            "schema": self.name.schema,
            "name": self.name.table,
            "mode": self.mode.value,
            "key": list(self.key),
            "rows": self.rows,
            "active": self.active,
            "data_files": self.data_files,
            "delete_files": self.delete_files,
            "bytes": self.bytes,
            "published_at": self.published_at,
            "last_batch": self.last_batch,
            "columns": [
                {
                    "name": column.name,
                    "type": str(column.type),
                    "primary_key": column.primary_key,
                }
                for column in self.columns
            ],
        }


def tables(config: LakeConfig) -> list[TableSummary]:
    """Return the summaries of all tables of the lake, sorted by name, from metadata only.

    Raises:
        LakeError: the lake does not exist, or its catalog or a table's metadata cannot be read.
    """
    return [summary(found) for found in look_up_all(config)]


def summary(table: CatalogTable) -> TableSummary:
    """Return the summary of one table."""
    totals = _summary_of(table.iceberg.current_snapshot())
    properties = table.iceberg.properties
    return TableSummary(
        name=table.name,
        mode=table.mode,
        columns=table.columns,
        key=table.key,
        rows=_stored_rows(table, totals),
        active=_active(table) if table.mode is Mode.HISTORY else None,
        data_files=int(totals.get("total-data-files", 0)),
        delete_files=int(totals.get("total-delete-files", 0)),
        bytes=int(totals.get("total-files-size", 0)),
        published_at=properties.get(_PUBLISHED),
        last_batch=properties.get(_BATCH),
    )


def _stored_rows(table: CatalogTable, totals: dict[str, str]) -> int:
    if table.iceberg.current_snapshot() is None:
        return 0
    if "total-records" in totals and totals.get("total-equality-deletes", "0") == "0":
        removed = int(totals.get("total-position-deletes", 0))
        if not removed or table.iceberg.format_version >= _WITH_VECTORS:
            # A deletion vector counts each marked row once, so the difference is exact.
            return int(totals["total-records"]) - removed
    count = count_rows(table, lambda _manifest, _file: True)
    if count is not None:
        return count
    with table_errors(table.name):
        return table.iceberg.scan().count()


def _active(catalog_table: CatalogTable) -> int:
    """Return the number of active versions: rows in the active partition without deleted ones."""
    from pyiceberg.expressions import EqualTo  # noqa: PLC0415 - slow to import

    table = catalog_table.iceberg
    place_by_spec = {
        number: _active_position(table.schema(), spec) for number, spec in table.specs().items()
    }

    def is_active(manifest: ManifestFile, file: DataFile) -> bool | None:
        place = place_by_spec[manifest.partition_spec_id]
        return None if place is None else bool(file.partition[place])

    count = count_rows(catalog_table, is_active)
    if count is not None:
        return count
    # Another engine's layout requires a scan.
    with table_errors(catalog_table.name):
        return table.scan(row_filter=EqualTo(ACTIVE, True)).count()


def _active_position(schema: Schema, spec: PartitionSpec) -> int | None:
    """Return the index of `_fivetran_active` itself among a spec's partition values, or None."""
    for place, field in enumerate(spec.fields):
        if (
            str(field.transform) == "identity"
            and schema.find_column_name(field.source_id) == ACTIVE
        ):
            return place
    return None


@dataclass(frozen=True)
class Health:
    """The health of a table's files.

    Attributes:
        small_files: the maximum number of data files that a compaction could save, which
            maintenance uses to decide.
        data_files: data files.
        delete_ratio: the share of the stored rows that deletion vectors mark, from 0 to 1.
        maintained_at: ISO instant of the last compaction; None if its snapshot is not retained, or
            the table was never compacted.
        snapshots: retained snapshots.
    """

    small_files: int
    data_files: int
    delete_ratio: float
    maintained_at: str | None
    snapshots: int


def health(catalog_table: CatalogTable, config: LakeConfig) -> Health:
    """Return the health of a table's files.

    It is computed from the snapshots' summaries; nothing is read but the table's metadata.
    """
    table = catalog_table.iceberg
    reported = _summary_of(table.current_snapshot())
    data_files = int(reported.get("total-data-files", 0))
    rows = int(reported.get("total-records", 0))
    removed = int(reported.get("total-position-deletes", 0))
    size = int(reported.get("total-files-size", 0))
    return Health(
        small_files=config.maintenance.spare_files(data_files, size),
        data_files=data_files,
        delete_ratio=removed / rows if rows else 0.0,
        maintained_at=_compacted_at(catalog_table),
        snapshots=len(table.metadata.snapshots),
    )


def _summary_of(snapshot: Snapshot | None) -> dict[str, str]:
    if snapshot is None or snapshot.summary is None:
        return {}
    return dict(snapshot.summary.additional_properties)


def _compacted_at(table: CatalogTable) -> str | None:
    """Return when files were last rewritten without a change of rows."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.iceberg.metadata.snapshots}
    snapshot = table.iceberg.current_snapshot()
    while snapshot is not None:
        is_rewrite = snapshot.summary is not None and snapshot.summary.operation.value == "replace"
        if is_rewrite and int(_summary_of(snapshot).get("deleted-data-files", 0)):
            return instant(snapshot.timestamp_ms * 1_000)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else by_id.get(parent)
    return None
