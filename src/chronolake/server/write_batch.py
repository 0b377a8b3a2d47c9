"""A write request, from the table's description to the published batch."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import structlog

from chronolake import batch_files, core
from chronolake.change_set import Op
from chronolake.errors import BatchError, TableNotFoundError, UnknownColumnError
from chronolake.frames import rename
from chronolake.types import END, HISTORY_COLUMNS, START, Column, Mode, sent_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from chronolake.core import BatchResult, TableDescription
    from chronolake.lake import Lake
    from chronolake.server.messages import Write

_log = structlog.get_logger(__name__)

_IGNORED: Final = "no stored row contains the unmodified columns"
_CONTRADICTING: Final = (
    "active versions must end at Tmax, others before it, and no version before it starts"
)
_EARLY_DELETES: Final = (
    "the deletes are earlier than the active versions, which now end at their start"
)


@dataclass(frozen=True, slots=True)
class WritePlan:
    """The requirements of a write for its files.

    Attributes:
        columns: the request's columns with the types and keys of the table.
        required: the columns that a file of each kind must have.
        times: those of them that must not be null in any row of such a file.
        may_keep_times: whether update rows may have unmodified times.
    """

    columns: tuple[Column, ...]
    required: Mapping[Op, frozenset[str]]
    times: Mapping[Op, frozenset[str]] = field(default_factory=dict)
    may_keep_times: bool = False


def plan_batch(write: Write, description: TableDescription) -> WritePlan:
    """Plan a WriteBatch.

    Raises:
        UnknownColumnError: a column does not exist in the table.
        BatchError: a column is listed twice, or the request's key is not the table's.
    """
    columns = _table_columns(write, description)
    claimed = frozenset(column.name for column in write.columns if column.primary_key)
    _check_key(write, claimed, frozenset(description.primary_key))
    everything = frozenset(column.name for column in columns)
    return WritePlan(
        columns,
        {
            Op.REPLACE: everything,
            Op.UPDATE: everything,
            # The other cells of a deleted row are ignored.
            Op.DELETE: frozenset(description.primary_key),
        },
        # Rows of a history table are versions, whichever call writes them.
        dict.fromkeys((Op.REPLACE, Op.UPDATE), everything.intersection(HISTORY_COLUMNS))
        if description.mode is Mode.HISTORY
        else {},
        may_keep_times=True,
    )


def plan_history_batch(write: Write, description: TableDescription) -> WritePlan:
    """Plan a WriteHistoryBatch.

    Raises:
        UnknownColumnError: a column does not exist in the table.
        BatchError: the table is not in history mode, the request lacks one of the history columns
            or lists a column twice, or its key is not the table's.
    """
    if description.mode is not Mode.HISTORY:
        raise BatchError(
            f"The table is in {description.mode} mode and does not accept history batches.",
            hint="Re-sync the table in history mode.",
            table=str(write.name),
        )
    columns = _table_columns(write, description)
    names = frozenset(column.name for column in columns)
    for name in HISTORY_COLUMNS:
        if name not in names:
            raise BatchError(
                "The request does not list the column, which every version needs.",
                hint="Send all three history columns.",
                table=str(write.name),
                column=name,
            )
    # Callers differ in whether the key includes the start, which never identifies a record.
    claimed = frozenset(column.name for column in write.columns if column.primary_key) - {START}
    key = frozenset(description.record_key)
    _check_key(write, claimed, key)
    return WritePlan(
        columns,
        {
            Op.EARLIEST: key | {START},
            Op.REPLACE: names,
            Op.UPDATE: names,
            Op.DELETE: key | {END},
        },
        {
            Op.EARLIEST: frozenset({START}),
            Op.REPLACE: frozenset(HISTORY_COLUMNS),
            Op.UPDATE: frozenset(HISTORY_COLUMNS),
            Op.DELETE: frozenset({END}),
        },
    )


def _table_columns(write: Write, description: TableDescription) -> tuple[Column, ...]:
    seen: set[str] = set()
    for column in write.columns:
        if column.name in seen:
            raise BatchError(
                "The request lists the column twice.", table=str(write.name), column=column.name
            )
        seen.add(column.name)
        if column.name not in description.by_name:
            raise UnknownColumnError(
                "The table does not have the column.",
                hint="Add it with AlterTable first.",
                table=str(write.name),
                column=column.name,
            )
    return tuple(description.by_name[column.name] for column in write.columns)


def _check_key(write: Write, claimed: frozenset[str], key: frozenset[str]) -> None:
    if not claimed:
        raise BatchError(
            "The request lists no primary key column, so its rows do not identify records.",
            hint="Send the key columns, or _fivetran_id for a table without a key.",
            table=str(write.name),
        )
    if claimed != key:
        raise BatchError(
            f"The request's primary key ({_join_names(claimed)}) is not the table's "
            f"({_join_names(key)}).",
            hint="Change the key with AlterTable first.",
            table=str(write.name),
        )


def _join_names(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "none"


@dataclass(frozen=True, slots=True)
class WriteResult:
    """A published write.

    Attributes:
        mode: the table's mode.
        result: the result of the batch; None if the request had no files.
        size: bytes of its files on disk.
        seconds: duration until the publication.
    """

    mode: Mode
    result: BatchResult | None
    size: int
    seconds: float


def run(lake: Lake, write: Write, *, history: bool, batch: str) -> WriteResult:
    """Write a request's files to its table, atomically.

    Args:
        lake: the lake of the table.
        write: the request.
        history: whether it is a WriteHistoryBatch.
        batch: identity of this attempt.

    Raises:
        TableNotFoundError: the table does not exist.
        ChronolakeError: any other error; the table is unchanged.
    """
    started = time.monotonic()
    # The table is locked before its description is read, so that its columns do not change.
    with lake.writing(write.name):
        description = lake.describe(write.name)
        if description is None:
            raise TableNotFoundError(
                "The table does not exist.", hint="Create it first.", table=str(write.name)
            )
        plan = (plan_history_batch if history else plan_batch)(write, description)
        if not write.files:
            return WriteResult(description.mode, None, 0, time.monotonic() - started)
        # Measured before the write, because callers may delete their files after the response.
        size = sum(batch_files.size_of(file, str(write.name), batch) for file in write.files)
        with batch_files.copy_for_tasks(
            write.files, lake.executor_files, str(write.name), batch
        ) as files:
            spark = lake.session_for(write.name, size)
            changes = _read(spark, replace(write, files=files), plan, batch)
            result = _publish(lake, write, plan, changes, history=history, batch=batch)
    for event, rows, reason in (
        ("updates_ignored", result.ignored, _IGNORED),
        ("versions_contradict_themselves", result.contradicting, _CONTRADICTING),
        ("deletes_precede_their_versions", result.closed_at_start, _EARLY_DELETES),
    ):
        if rows:
            # No sample key, because a key may be personal data.
            _log.warning(event, table=str(write.name), batch=batch, rows=rows, reason=reason)
    return WriteResult(description.mode, result, size, time.monotonic() - started)


def _read(spark: SparkSession, write: Write, plan: WritePlan, batch: str) -> DataFrame:
    """Read the request's files as a change set, and rename the sender's columns to the table's."""
    changes = batch_files.read(
        spark,
        write.files,
        [replace(column, name=sent_name(column.name)) for column in plan.columns],
        write.form,
        required={op: frozenset(map(sent_name, names)) for op, names in plan.required.items()},
        table=str(write.name),
        batch=batch,
        times=plan.times,
        may_keep_times=plan.may_keep_times,
    )
    stored = {sent_name(column.name): column.name for column in plan.columns}
    if all(sent == own for sent, own in stored.items()):
        return changes
    return rename(changes, [stored.get(name, name) for name in changes.columns])


def _publish(
    lake: Lake, write: Write, plan: WritePlan, changes: DataFrame, *, history: bool, batch: str
) -> BatchResult:
    publish = core.write_history_batch if history else core.write_batch
    try:
        return publish(lake, write.name, changes, columns=plan.columns, batch=batch)
    except Exception as failure:
        error = batch_files.error_of(failure)
        if error is None:
            raise
        # Not chained: Spark's message around it quotes the executor's message.
        raise error from None


@contextmanager
def cancellable(lake: Lake, batch: str) -> Iterator[None]:
    """Tag this thread's Spark jobs with the batch, so that other threads can cancel them.

    Each thread also has its own scheduler pool: a large batch and a small one get the same share of
    the cores, while one pool would run them in order of arrival.
    """
    context = lake.spark.sparkContext
    context.setLocalProperty("spark.scheduler.pool", threading.current_thread().name)
    context.addJobTag(batch)
    try:
        yield
    finally:
        context.removeJobTag(batch)
