"""`on_purge: erase` in our own raw lake: what a purged record said goes out of its files, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from chronolake.config import OnPurge
from chronolake.rawlake import applied_of, erase, identifier, purges_in
from chronolake.table.pulled import ensure_hidden, purges_of
from chronolake.types import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from chronolake.iceberg import IcebergTable
    from chronolake.pipeline.filling import Filling
    from chronolake.rawlake import DataFile, Landing

log = structlog.get_logger(__name__)


def erase_purged(filling: Filling, table: IcebergTable | None, landed: Landing) -> None:
    """Erase in the raw lake what landed files purge, and what is purged already in these.

    It comes before the files count as applied: after a crash it is done again.

    Args:
        filling: the stream whose files these are.
        table: the stream's table before the files are applied, or None.
        landed: the files.

    Raises:
        LeaseLostError: another process runs the pipeline; no file has changed.
    """
    stream = filling.stream
    if stream.on_purge is not OnPurge.ERASE or not stream.offered.is_ours:
        return

    changed = 0
    if landed.has_purges:
        files = applied_of(stream.folder.files(), landed.watermark)
        purges = purges_in(landed.spark, landed.files)
        changed += erase(purges, files, stream.folder, guard=filling.lease.expect_held)
    if table is not None:
        # A crash may have left it without.
        ensure_hidden(table)
        purges = _identified(purges_of(landed.spark, table), landed)
        changed += erase(purges, landed.files, stream.folder, guard=filling.lease.expect_held)
    if changed:
        log.info("files_erased", table=str(stream.table), files=changed)


def erase_all(filling: Filling, spark: SparkSession, files: Sequence[DataFile]) -> None:
    """Erase in files of our own raw lake what any of them purges.

    Args:
        filling: the stream whose files these are.
        spark: the session that does the work.
        files: all that are, or will be, in the stream's table.

    Raises:
        LeaseLostError: another process runs the pipeline; no file has changed.
    """
    stream = filling.stream
    if stream.on_purge is OnPurge.ERASE and stream.offered.is_ours:
        purges = purges_in(spark, files)
        changed = erase(purges, files, stream.folder, guard=filling.lease.expect_held)
        log.info("files_erased", table=str(stream.table), files=changed)


def _identified(purges: DataFrame, landed: Landing) -> DataFrame:
    """Purges by the identifiers that the landed files have for their records."""
    key = landed.declared_key
    casts = (f"CAST({quoted(one.name)} AS {one.type.sql}) AS {quoted(one.name)}" for one in key)
    return purges.selectExpr(*casts, "at").selectExpr(f"{identifier(key)} AS Id", "at")
