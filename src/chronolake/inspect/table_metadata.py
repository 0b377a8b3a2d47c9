"""A table's metadata: its columns, properties, snapshots and partitions."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from chronolake.formatting import Cell, cells, instant
from chronolake.inspect.activity import rows_changed
from chronolake.inspect.as_of import publications
from chronolake.inspect.catalog import CatalogTable, look_up
from chronolake.inspect.manifests import read_entries
from chronolake.masking import MASKED, holds_secret, is_secret, mask_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyiceberg.manifest import DataFile
    from pyiceberg.table.snapshots import Snapshot

    from chronolake.config import LakeConfig
    from chronolake.types import Column, Mode, TableName

#: Shown instead of a value that may be anything: only values of known settings are shown.
HIDDEN: Final = f"{MASKED} (hidden: not an Iceberg setting)"
_OURS: Final = "chronolake."
_BATCH: Final = "chronolake.last-batch"
_PUBLISH: Final = "chronolake.last-publish"
_WATERMARK: Final = "chronolake.watermark"
#: Iceberg's own settings.
_SETTING: Final = re.compile(
    r"(?:write|read|commit|history|gc|compatibility|schema|format|metadata|snapshot)[.-]"
    r"|(?:format-version|owner|comment|engine\.hive\.enabled)$"
)
#: In a setting's name, a column's name follows this text.
_COLUMN: Final = ".column."
#: Number of older metadata files that are read to find the batch that a snapshot published.
_METADATA_FILES: Final = 100


@dataclass(frozen=True)
class PartitionField:
    """A column that partitions a table's files, and its transform (`identity`, `day`, …)."""

    column: str
    transform: str


@dataclass(frozen=True)
class Property:
    """A property of a table. Values that are or may be secret are masked."""

    name: str
    value: str
    is_ours: bool


@dataclass(frozen=True)
class PublishedSnapshot:
    """A snapshot of a table.

    Attributes:
        snapshot_id: its Iceberg snapshot id.
        at: ISO instant of its publication, or of its creation if it was not published itself.
        operation: append, overwrite, delete or replace (a compaction).
        is_published: whether readers ever saw it; snapshots that a write stages before its last
            step are not published.
        batch: the identity of the batch that published it, if it is still known.
        watermark: the last landed file that the table contained then, if it is known.
        rows_added, rows_removed: rows that it added and removed.
        files_added, files_removed: data and delete files that it added and removed.
    """

    snapshot_id: int
    at: str
    operation: str
    is_published: bool
    batch: str | None
    watermark: str | None
    rows_added: int
    rows_removed: int
    files_added: int
    files_removed: int


@dataclass(frozen=True)
class Partition:
    """A partition of a table's files.

    Attributes:
        values: the values of the partition fields, after their transforms. Files that were written
            with another partition spec have other fields.
        files: data files.
        rows: rows in them that are not deleted.
        bytes: size of all of its files.
        delete_files: deletion vectors and other delete files.
    """

    values: dict[str, Cell]
    files: int
    rows: int
    bytes: int
    delete_files: int


@dataclass(frozen=True)
class TableMetadata:
    """A table's metadata.

    Attributes:
        mode: its mode.
        columns: the columns in table order, including system columns.
        key: the columns that identify records.
        partitioning: the fields of the current partition spec.
        properties: the properties by name; only values of known settings are shown, and no secrets.
        snapshots: the newest snapshots, the newest first.
        snapshots_kept: the number of retained snapshots, including those that are not in
            `snapshots`.
        partitions: the partitions, ordered by their values.
    """

    name: TableName
    mode: Mode
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    partitioning: tuple[PartitionField, ...]
    properties: tuple[Property, ...]
    snapshots: tuple[PublishedSnapshot, ...]
    snapshots_kept: int
    partitions: tuple[Partition, ...]


def read_table_metadata(
    config: LakeConfig, name: TableName, *, snapshots: int = 100
) -> TableMetadata:
    """Return a table's metadata. It reads the manifests of the current snapshot, but no rows.

    Args:
        config: the lake.
        name: the table.
        snapshots: the maximum number of snapshots to return.

    Raises:
        LakeError: the lake does not exist, or cannot be read.
        TableNotFoundError: the table does not exist.
    """
    found = look_up(config, name)
    schema = found.iceberg.schema()
    return TableMetadata(
        name=name,
        mode=found.mode,
        columns=found.columns,
        key=found.key,
        partitioning=tuple(
            PartitionField(schema.find_column_name(field.source_id) or "", str(field.transform))
            for field in found.iceberg.spec().fields
        ),
        properties=tuple(_properties(found.iceberg.properties)),
        snapshots=tuple(_snapshots(found, snapshots)),
        snapshots_kept=len(found.iceberg.metadata.snapshots),
        partitions=tuple(_partitions(found)),
    )


def _properties(properties: Mapping[str, str]) -> Iterable[Property]:
    for name, value in sorted(properties.items()):
        is_ours = name.startswith(_OURS)
        yield Property(name, _display_value(name, value, is_ours=is_ours), is_ours)


def _display_value(name: str, value: str, *, is_ours: bool) -> str:
    if is_secret(name.partition(_COLUMN)[0], keys=not is_ours):
        return MASKED
    if not is_ours and not _SETTING.match(name):
        return HIDDEN
    return MASKED if holds_secret(value) else mask_text(value)


def _snapshots(table: CatalogTable, limit: int) -> Iterable[PublishedSnapshot]:
    at_by_id = {
        publication.snapshot_id: publication.at_micros for publication in publications(table)
    }
    ordered = sorted(
        table.iceberg.metadata.snapshots,
        key=lambda snapshot: (snapshot.sequence_number or 0, snapshot.timestamp_ms),
        reverse=True,
    )
    publishes = _publishes(table) if ordered else {}
    for snapshot in ordered[:limit]:
        summary = _summary_of(snapshot)
        number = snapshot.snapshot_id
        batch, watermark = publishes.get(number, (None, None))
        added, removed = rows_changed(summary)
        operation = snapshot.summary.operation.value if snapshot.summary is not None else "unknown"
        if operation == "replace":
            added = removed = 0
        yield PublishedSnapshot(
            snapshot_id=number,
            at=instant(at_by_id.get(number, snapshot.timestamp_ms * 1_000)),
            operation=operation,
            is_published=number in at_by_id,
            batch=batch,
            watermark=watermark,
            rows_added=added,
            rows_removed=removed,
            files_added=_count(summary, "added-data-files") + _count(summary, "added-delete-files"),
            files_removed=_count(summary, "deleted-data-files")
            + _count(summary, "removed-delete-files"),
        )


def _summary_of(snapshot: Snapshot) -> dict[str, str]:
    return {} if snapshot.summary is None else dict(snapshot.summary.additional_properties)


def _count(summary: Mapping[str, str], key: str) -> int:
    value = summary.get(key, "0")
    return int(value) if value.isdecimal() else 0


def _publishes(table: CatalogTable) -> dict[int, tuple[str | None, str | None]]:
    """Return batch and watermark by the snapshot that was published with them.

    They are properties of the table and not of its snapshots. Their earlier values are read from
    older metadata files, as far as these are retained.
    """
    files = [entry.metadata_file for entry in table.iceberg.metadata.metadata_log][
        -_METADATA_FILES:
    ]
    publishes: dict[int, tuple[str | None, str | None]] = {}
    before: Mapping[str, str] = {}
    current: int | None = None
    for file in [*files, table.iceberg.metadata_location]:
        metadata = _read_metadata_file(table, file)
        if metadata is None:
            before = {}
            continue
        properties: Mapping[str, str] = metadata.get("properties") or {}
        snapshot = metadata.get("current-snapshot-id")
        is_publish = bool(before) and properties.get(_PUBLISH) != before.get(_PUBLISH)
        # A batch without changes published no snapshot.
        if is_publish and snapshot is not None and snapshot != current:
            batch, watermark = properties.get(_BATCH), properties.get(_WATERMARK)
            publishes[snapshot] = (
                batch if batch != before.get(_BATCH) else None,
                watermark if watermark != before.get(_WATERMARK) else None,
            )
        before, current = properties or {_PUBLISH: ""}, snapshot
    return publishes


def _read_metadata_file(table: CatalogTable, file: str) -> dict[str, Any] | None:
    """Return a metadata file's contents, or None if it is no longer retained."""
    try:
        with table.iceberg.io.new_input(file).open() as stream:
            content = stream.read()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        metadata: dict[str, Any] = json.loads(content)
    except (OSError, ValueError):
        return None
    return metadata


@dataclass
class _Tally:
    files: int = 0
    rows: int = 0
    bytes: int = 0
    delete_files: int = 0


def _partitions(table: CatalogTable) -> list[Partition]:
    from pyiceberg.manifest import DataFileContent  # noqa: PLC0415 - slow to import

    tallies: dict[tuple[tuple[str, Cell], ...], _Tally] = defaultdict(_Tally)
    for manifest, entry in read_entries(table):
        file = entry.data_file
        tally = tallies[_values(table, file, manifest.partition_spec_id)]
        tally.bytes += file.file_size_in_bytes
        if file.content is DataFileContent.DATA:
            tally.files += 1
            tally.rows += file.record_count
        else:
            tally.delete_files += 1
            if file.content is DataFileContent.POSITION_DELETES:
                tally.rows -= file.record_count
    partitions = [
        Partition(dict(values), tally.files, tally.rows, tally.bytes, tally.delete_files)
        for values, tally in tallies.items()
    ]
    return sorted(
        partitions, key=lambda partition: [str(value) for value in partition.values.values()]
    )


def _values(table: CatalogTable, file: DataFile, spec_id: int) -> tuple[tuple[str, Cell], ...]:
    """Return a partition's values as cells, by field name."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415 - slow to import

    spec, schema = table.iceberg.specs()[spec_id], table.iceberg.schema()
    values = []
    for place, field in enumerate(spec.fields):
        value = file.partition[place]
        source = schema.find_field(field.source_id).field_type
        kind = schema_to_pyarrow(field.transform.result_type(source), include_field_ids=False)
        (displayed,) = cells(pa.array([value], kind))
        values.append((field.name, displayed))
    return tuple(values)
