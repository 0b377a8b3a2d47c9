"""Maintenance with Iceberg's procedures: compaction, snapshot expiry and orphan removal."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from chronolake.core.publish import swap
from chronolake.core.rewrite import drop_abandoned
from chronolake.core.staging import StagedWrite, Stopwatch
from chronolake.core.table_swap import replacements_of
from chronolake.description import describe_loaded
from chronolake.errors import CommitConflictError, LakeError
from chronolake.iceberg import (
    HIDDEN,
    MAIN,
    java_class_of,
    java_message_of,
    spark_words,
)
from chronolake.location import is_inside, plain, scheme_of
from chronolake.session import CATALOG, PENDING_CATALOG
from chronolake.shared_storage import are_executors_elsewhere
from chronolake.types import SCRATCH_SCHEMA, START, literal, now_micros, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from chronolake.config import MaintenanceConfig
    from chronolake.containment import Containment
    from chronolake.description import TableDescription
    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.types import TableName

log = structlog.get_logger(__name__)

#: Removed rows stay in a data file until it is rewritten; above this share a rewrite pays off.
_FILE_DELETE_RATIO: Final = 0.1
#: The first version of Iceberg's table format with deletion vectors.
_WITH_VECTORS: Final = 3
#: Orphans listed per call before they are deleted: the maximum of Iceberg's procedure.
_LISTED_ORPHANS: Final = 20_000
_DELETED_AT_ONCE: Final = 1_000
_LOST_RACES: Final = ("CommitFailedException", "ValidationException", "CommitStateUnknown")

#: Readers skip fewer removed rows than this without measurable cost.
_REMOVED_ROWS: Final = 10_000

#: At this multiple of the small-file threshold, maintenance no longer waits for an idle moment.
_URGENT: Final = 4


@dataclass(frozen=True)
class TableFiles:
    """Figures about a table's files, from its current snapshot's summary and its metadata.

    Attributes:
        data_files: number of data files.
        small_files: number of data files beyond what the data needs in files of the smallest useful
            size, that is, the number that a compaction could save at best.
        data_bytes: size of all files in bytes.
        records: stored rows, removed ones included.
        removed: rows that deletion vectors or position delete files mark as removed.
        hidden_small_files: like `small_files`, for the hidden rows (`iceberg.HIDDEN`), which only
            later writes read.
        expirable: snapshots that the configuration no longer keeps.
    """

    data_files: int
    small_files: int
    data_bytes: int
    records: int
    removed: int
    expirable: int
    hidden_small_files: int = 0


@dataclass(frozen=True)
class MaintenancePlan:
    """The maintenance that a table needs, and the reasons.

    Attributes:
        files: figures about its files.
        compact, compact_hidden: whether its files, or those of its hidden rows, are compacted.
        expire: whether old snapshots are expired.
        orphans: whether files are removed that no snapshot references.
        reasons: the exceeded thresholds of the configuration, as texts.
        is_urgent: whether the threshold of small files is exceeded several times over.
    """

    table: TableName
    files: TableFiles
    compact: bool
    compact_hidden: bool
    expire: bool
    orphans: bool
    reasons: tuple[str, ...]
    is_urgent: bool = False

    @property
    def is_needed(self) -> bool:
        """Return whether a threshold is exceeded, so that `serve` starts maintenance."""
        return bool(self.reasons)

    @property
    def reason(self) -> str:
        """Return the exceeded thresholds in one line, or "in order"."""
        return ", ".join(self.reasons) or "in order"


@dataclass(frozen=True)
class MaintenanceResult:
    """The outcome of maintaining a table.

    Attributes:
        plan: the planned maintenance.
        rewritten: data files that were compacted.
        written: data files that compaction wrote.
        expired: snapshots that were expired.
        orphans: files that no snapshot referenced and that were removed.
        postponed: whether compaction was postponed because batches kept changing the same files.
        format_version: Iceberg's format version of the table afterwards.
        configured_version: the version that the configuration names, or None.
        seconds: duration in seconds.
    """

    plan: MaintenancePlan
    format_version: int
    configured_version: int | None = None
    rewritten: int = 0
    written: int = 0
    expired: int = 0
    orphans: int = 0
    postponed: bool = False
    seconds: float = 0.0


def files_of(table: IcebergTable, config: MaintenanceConfig) -> TableFiles:
    """Read a table's figures from its metadata; no data file is opened."""
    summary = table.summary_of(MAIN)
    data_files = int(summary.get("total-data-files", 0))
    kept = datetime.now(UTC) - timedelta(hours=config.snapshot_age_hours)
    ages = sorted(int(snapshot.timestampMillis()) for snapshot in table.metadata.snapshots())
    # Each branch keeps this number of snapshots.
    newest = config.keep_snapshots * (1 if table.branch(HIDDEN) is None else 2)
    old = [age for age in ages[:-newest] if age < kept.timestamp() * 1000]
    return TableFiles(
        data_files=data_files,
        small_files=_small_files(summary, config),
        data_bytes=int(summary.get("total-files-size", 0)),
        records=int(summary.get("total-records", 0)),
        removed=int(summary.get("total-position-deletes", 0)),
        expirable=len(old),
        hidden_small_files=_small_files(table.summary_of(HIDDEN), config),
    )


def _small_files(summary: Mapping[str, str], config: MaintenanceConfig) -> int:
    files = int(summary.get("total-data-files", 0))
    return config.spare_files(files, int(summary.get("total-files-size", 0)))


def plan_maintenance(
    name: TableName, files: TableFiles, config: MaintenanceConfig
) -> MaintenancePlan:
    """Return the maintenance that a table with these files needs under this configuration."""
    reasons = []
    if files.small_files >= config.small_files:
        reasons.append(f"{files.small_files} small files")
    # Every batch removes most rows of a tiny table: compacting it each time would cost more than
    # the batch, and make other processes stage their writes again.
    is_worth_it = files.removed >= _REMOVED_ROWS and files.records > 0
    if is_worth_it and files.removed / files.records >= config.deletion_vector_ratio:
        reasons.append(f"{100 * files.removed // files.records} % of the stored rows are removed")
    compact = bool(reasons)
    compact_hidden = files.hidden_small_files >= config.small_files
    if compact_hidden:
        reasons.append(f"{files.hidden_small_files} small files of hidden rows")
    expire = files.expirable >= config.small_files
    if expire:
        reasons.append(f"{files.expirable} old snapshots")
    return MaintenancePlan(
        name,
        files,
        compact,
        compact_hidden,
        expire,
        orphans=False,
        reasons=tuple(reasons),
        is_urgent=files.small_files >= _URGENT * config.small_files,
    )


def plan_table(lake: Lake, name: TableName) -> MaintenancePlan:
    """Return the maintenance that a table needs now.

    Raises:
        TableNotFoundError: the table does not exist.
    """
    return _plan(lake, _load(lake, name))


def _load(lake: Lake, name: TableName) -> IcebergTable:
    table = lake.catalog.find(name)
    if table is None:
        raise lake.missing(name)
    return table


def _plan(lake: Lake, table: IcebergTable) -> MaintenancePlan:
    config = lake.config.maintenance
    return plan_maintenance(table.name, files_of(table, config), config)


def maintain(
    lake: Lake, name: TableName, *, only_if_needed: bool = False, compact_deletes: bool = False
) -> MaintenanceResult:
    """Compact and sort a table's files by key, expire snapshots, remove orphans.

    Batches continue meanwhile: if a batch changes a file under compaction, the batch wins and the
    compaction is postponed. The table's content does not change.

    If `only_if_needed`, it does only what the configured thresholds require, and keeps orphans. If
    not, it does everything, and upgrades the table to the configured format version.

    Args:
        lake: the lake.
        name: the table.
        only_if_needed: as above.
        compact_deletes: whether every data file with a removed row is rewritten, so that readers
            without support for deletes read the right rows.

    Raises:
        TableNotFoundError: the table does not exist.
        LakeLocationError: its metadata or a file that it lists is outside the opened lake.
    """
    began = time.monotonic()
    table = _load(lake, name)
    plan, configured = _plan(lake, table), lake.config.format_version_of(name)
    if compact_deletes and plan.files.removed:
        plan = replace(plan, compact=True)
    elif only_if_needed and not plan.is_needed:
        return MaintenanceResult(plan, table.format_version, configured)
    lake.containment.expect_inside(table)
    borrowed = lake.containment.expect_files_inside(table)
    if not only_if_needed:
        plan = replace(plan, compact=True, compact_hidden=True, expire=True, orphans=True)
    # A table cannot be downgraded.
    version = max(configured or 0, table.format_version)
    is_upgraded = not only_if_needed and version > table.format_version
    result = MaintenanceResult(plan, table.format_version, configured)
    # Position delete files are valid in later versions, too, but may outlive their data files.
    result = _compact(lake, result, all_deletes=compact_deletes or is_upgraded)
    if is_upgraded and not result.postponed:
        _upgrade(lake, name, version)
        result = replace(result, format_version=version)
    if plan.expire and borrowed:
        # Expiring the snapshots that list these files would delete the files, although others may
        # need them.
        log.warning("expiry_skipped", table=str(name), files=len(borrowed), file=borrowed[0])
    elif plan.expire:
        result = replace(result, expired=_expire(lake, name))
    if plan.orphans:
        drop_abandoned(lake)
        result = replace(result, orphans=_remove_orphans(lake, name))
    result = replace(result, seconds=time.monotonic() - began)
    log.info(
        "maintained",
        table=str(name),
        reason=plan.reason,
        rewritten=result.rewritten,
        written=result.written,
        expired=result.expired,
        orphans=result.orphans,
    )
    return result


def _upgrade(lake: Lake, name: TableName, version: int) -> None:
    """Upgrade a table to a format version."""
    swap(lake.catalog.load(name), lambda current: current.builder().upgradeFormatVersion(version))
    log.info("format_version_upgraded", table=str(name), format_version=version)


def _compact(lake: Lake, before: MaintenanceResult, *, all_deletes: bool) -> MaintenanceResult:
    """Compact the planned branches of a table.

    Args:
        before: the plan.
        all_deletes: whether every data file with a removed row is rewritten.
    """
    plan, result = before.plan, before
    for branch, wanted in ((MAIN, plan.compact), (HIDDEN, plan.compact_hidden)):
        if wanted:
            table = lake.catalog.load(plan.table)
            result = _compact_branch(lake, table, branch, result, all_deletes=all_deletes)
    return result


def _compact_branch(
    lake: Lake,
    table: IcebergTable,
    branch: str,
    before: MaintenanceResult,
    *,
    all_deletes: bool,
) -> MaintenanceResult:
    """Compact a branch of a table, and add its counts to those of earlier steps."""
    if not int(table.summary_of(branch).get("total-data-files", 0)):
        return before
    try:
        if are_executors_elsewhere(lake.spark):
            row = _compact_staged(lake, table, branch, all_deletes=all_deletes)
        else:
            row = _rewrite(lake, describe_loaded(table), branch, all_deletes=all_deletes)
        if branch == MAIN and table.format_version < _WITH_VECTORS:
            _drop_dangling_deletes(lake, table.name)
    except (CommitConflictError, Py4JError, PySparkException) as failure:
        if not _lost_race(failure):
            raise
        reason = java_message_of(failure)
        log.info("compaction_postponed", table=str(table.name), branch=branch, reason=reason)
        return replace(before, postponed=True)
    return replace(
        before,
        rewritten=before.rewritten + row["rewritten_data_files_count"],
        written=before.written + row["added_data_files_count"],
    )


def _lost_race(failure: Exception) -> bool:
    text = f"{java_class_of(failure)} {failure}"
    return isinstance(failure, CommitConflictError) or any(name in text for name in _LOST_RACES)


def _rewrite(
    lake: Lake,
    description: TableDescription,
    branch: str,
    *,
    all_deletes: bool,
    catalog: str = CATALOG,
) -> Any:
    """Rewrite files that are small or contain removed rows, sorted by key and start.

    Sorted files have narrow key ranges, so that reading a record's history needs only a few row
    groups.

    Args:
        description: the table; its name is that in the Spark catalog `catalog`.
    """
    order = [*description.record_key]
    if START in description.primary_key:
        order.append(START)
    by = ", ".join(f"{quote(name)} ASC NULLS FIRST" for name in order)
    strategy = f"strategy => 'sort', sort_order => {literal(by)}, " if order else ""
    options = {
        "delete-ratio-threshold": str(_FILE_DELETE_RATIO),
        # Tasks would load the metadata of a pending table, which only the driver has. Deletion
        # vectors go with their data files anyway.
        "remove-dangling-deletes": "true" if catalog == CATALOG else "false",
        "min-input-files": "2",
    }
    if all_deletes:
        # Position delete files are dropped if they are older than all data files.
        options |= {"delete-file-threshold": "1", "use-starting-sequence-number": "false"}
    pairs = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
    return _call(
        lake,
        "rewrite_data_files",
        f"table => {literal(description.name.sql)}, branch => {literal(branch)}, {strategy}"
        f"options => map({pairs})",
        catalog=catalog,
    )


def _drop_dangling_deletes(lake: Lake, name: TableName) -> None:
    """Rewrite position delete files without the rows of data files that no longer exist.

    Compaction drops deletion vectors together with their data file. Of position delete files, it
    drops only those that are older than all data files of their partition; the others would count
    as removed rows, and make the table due for compaction again.
    """
    if int(lake.catalog.load(name).summary_of(MAIN).get("total-delete-files", 0)):
        arguments = f"table => {literal(name.sql)}, options => map('rewrite-all', 'true')"
        _call(lake, "rewrite_position_delete_files", arguments)


def _compact_staged(lake: Lake, table: IcebergTable, branch: str, *, all_deletes: bool) -> Any:
    """Compact a branch, and publish only files that the driver can read.

    If a batch is published meanwhile, it wins, whatever it changes.
    """
    write = StagedWrite(table, lake.spark, Stopwatch())
    try:
        row = _rewrite(
            lake,
            replace(describe_loaded(table), name=write.pending.name),
            branch,
            all_deletes=all_deletes,
            catalog=PENDING_CATALOG,
        )
        write.publish_files()
    finally:
        write.close()
    return row


def _expire(lake: Lake, name: TableName) -> int:
    config = lake.config.maintenance
    before = _snapshots(lake, name)
    _call(
        lake,
        "expire_snapshots",
        f"table => {literal(name.sql)}, older_than => {_ago(config.snapshot_age_hours)}, "
        f"retain_last => {config.keep_snapshots}, clean_expired_metadata => true",
    )
    # Batches may have created snapshots meanwhile.
    return len(before - _snapshots(lake, name))


def _snapshots(lake: Lake, name: TableName) -> set[int]:
    return {int(snapshot.snapshotId()) for snapshot in lake.catalog.load(name).metadata.snapshots()}


def _remove_orphans(lake: Lake, name: TableName) -> int:
    """Remove old files in a table's folder that no table of the lake needs."""
    table = lake.catalog.load(name)
    limit = _micros_ago(lake.config.maintenance.orphan_age_hours)
    begin = 0
    # The files of a table from before its replacement became orphans only then, however old they
    # are.
    for replacement in replacements_of(table):
        if replacement.ended_micros > limit:
            limit = min(limit, begin)
            break
        begin = replacement.began_micros
    if limit == 0:
        return 0
    removed = 0
    while found := _orphans(lake, name, limit):
        folder = f"{table.location.rstrip('/')}/metadata"
        metadata = [file for file in found if is_inside(file, folder)]
        lake.containment.expect_newest(table.reload(), metadata)
        mine = removable_files(
            found, table.location, lake.containment, needed_elsewhere(lake, table)
        )
        for start in range(0, len(mine), _DELETED_AT_ONCE):
            part = mine[start : start + _DELETED_AT_ONCE]
            table.java.io().deleteFiles(lake.catalog.list(part))
        removed += len(mine)
        if len(found) < _LISTED_ORPHANS or not mine:
            break
    return removed


def _orphans(lake: Lake, name: TableName, limit: int) -> list[str]:
    """List old files in a table's folder that its own metadata does not list, up to a limit."""
    # Dry run: the procedure would delete everything that this table's metadata does not list,
    # including files of other tables.
    # Spark has no file system for buckets, whose files Iceberg lists by their prefix.
    is_bucket = scheme_of(lake.catalog.load(name).location) is not None
    rows = lake.spark.sql(
        f"CALL {CATALOG}.system.remove_orphan_files(table => {literal(name.sql)}, "
        f"older_than => {_timestamp(limit)}, dry_run => true, stream_results => true, "
        f"prefix_listing => {str(is_bucket).lower()})"
    )
    return [row[0] for row in rows.take(_LISTED_ORPHANS)]


@dataclass(frozen=True)
class NeededFiles:
    """The files and folders in a table's folder that other tables need.

    Attributes:
        files: files that they list.
        folders: their own folders, if located in the table's folder.
    """

    files: frozenset[str]
    folders: tuple[str, ...]


def needed_elsewhere(lake: Lake, table: IcebergTable) -> NeededFiles | None:
    """Find what other tables of the lake need in a table's folder, by their current metadata.

    Returns:
        None if another table has the same folder or cannot be read, so that nothing in the folder
        is known to be an orphan.
    """
    names = [*lake.catalog.tables(), *lake.catalog.tables_in(SCRATCH_SCHEMA)]
    others = [name for name in names if name != table.name]
    try:
        found = lake.containment.listings(lake.catalog, others)
    except (LakeError, Py4JError, PySparkException) as failure:
        # The files that a damaged table needs are not known.
        log.warning("orphans_kept", table=str(table.name), reason=spark_words(failure) or failure)
        return None
    folders = [listing.location for listing in found if is_inside(listing.location, table.location)]
    if any(is_inside(table.location, folder) for folder in folders):
        log.warning(
            "orphans_kept", table=str(table.name), reason="the folder contains another table"
        )
        return None
    listed = itertools.chain.from_iterable(listing.elsewhere for listing in found)
    files = (file for file in listed if is_inside(file, table.location))
    return NeededFiles(frozenset(map(plain, files)), tuple(folders))


def removable_files(
    found: Iterable[str], folder: str, lake: Containment, needed: NeededFiles | None
) -> list[str]:
    """Return the files that may be deleted: in the table's folder, in the lake, not needed.

    Args:
        found: files that the table's metadata does not list.
        folder: the table's folder.
        lake: the opened lake's boundary.
        needed: what other tables need; None if everything may be needed.
    """
    if needed is None or not lake.contains(folder):
        return []
    return [
        file
        for file in found
        if is_inside(file, folder)
        and lake.contains(file)
        and plain(file) not in needed.files
        and not any(is_inside(file, other) for other in needed.folders)
    ]


def _call(lake: Lake, procedure: str, arguments: str, *, catalog: str = CATALOG) -> Any:
    return lake.spark.sql(f"CALL {catalog}.system.{procedure}({arguments})").first()


def _ago(hours: float) -> str:
    return _timestamp(_micros_ago(hours))


def _micros_ago(hours: float) -> int:
    return now_micros() - int(hours * 3_600_000_000)


def _timestamp(micros: int) -> str:
    stamp = datetime.fromtimestamp(micros / 1_000_000, UTC)
    return f"TIMESTAMP '{stamp:%Y-%m-%d %H:%M:%S.%f}'"
