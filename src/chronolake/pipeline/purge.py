"""`on_purge: erase` in Chronolake's own raw lake: purged records are erased from its files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from chronolake.core.pipeline_table import ensure_hidden, purges_of
from chronolake.landing import erase, files_up_to, identifier, purges_in
from chronolake.types import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from chronolake.iceberg import IcebergTable
    from chronolake.landing import Landing
    from chronolake.pipeline.table_writer import TableWriter

log = structlog.get_logger(__name__)


def erase_purged(writer: TableWriter, table: IcebergTable | None, landed: Landing) -> None:
    """Erase records in the raw lake: those that landed files purge, and purged ones in these files.

    It runs before the files count as applied, so it is repeated after a crash.

    Args:
        writer: the stream of the files.
        table: the stream's table before the files are applied, or None.
        landed: the files.

    Raises:
        LeaseLostError: another process runs the pipeline; no file has changed.
    """
    stream = writer.stream
    if not stream.erases_files:
        return
    changed = 0
    if landed.has_purges:
        files = files_up_to(stream.folder.files(), landed.watermark)
        purges = purges_in(landed.spark, landed.files)
        changed += erase(purges, files, stream.folder, guard=writer.lease.expect_held)
    if table is not None:
        # A crash may have left an empty table without its branch of tombstones.
        ensure_hidden(table)
        purges = _with_identifiers(purges_of(landed.spark, table), landed)
        changed += erase(purges, landed.files, stream.folder, guard=writer.lease.expect_held)
    if changed:
        log.info("files_erased", table=str(stream.table), files=changed)


def erase_all(writer: TableWriter, upto: str) -> None:
    """Erase in the raw lake the records that any file purges.

    Args:
        writer: the stream of the files.
        upto: the last file that is, or will be, applied to the stream's table.

    Raises:
        LeaseLostError: another process runs the pipeline; no file has changed.
    """
    stream = writer.stream
    files = files_up_to(stream.folder.files(), upto) if stream.erases_files else []
    if not files:
        return
    size = sum(file.size for file in files)
    purges = purges_in(writer.lake.session_for_versions(stream.table, size), files)
    changed = erase(purges, files, stream.folder, guard=writer.lease.expect_held)
    if changed:
        log.info("files_erased", table=str(stream.table), files=changed)


def _with_identifiers(purges: DataFrame, landed: Landing) -> DataFrame:
    """Return purges with the record identifiers of the landed files."""
    key = landed.declared_key
    casts = (
        f"CAST({quote(column.name)} AS {column.type.sql}) AS {quote(column.name)}" for column in key
    )
    return purges.selectExpr(*casts, "at").selectExpr(f"{identifier(key)} AS Id", "at")
