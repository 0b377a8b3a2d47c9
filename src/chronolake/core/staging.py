"""Staged writes: all changes are made on a pending table and published by one compare-and-set.

Readers see the table before the write or after it. The order is delete (Iceberg writes deletion
vectors), append, publish. A crash before the publish leaves the table unchanged, and new files to
which nothing refers. `docs/architecture.md` has a diagram.
"""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import structlog

from chronolake.cancellation import raise_if_cancelled
from chronolake.core.publish import (
    ATTEMPTS,
    expect_destination_table,
    expect_unmoved,
    publish,
    swap,
)
from chronolake.core.sql import KEYS, TABLE
from chronolake.description import describe_loaded
from chronolake.errors import CommitConflictError, CommitError, TableNotFoundError
from chronolake.failpoints import reach
from chronolake.iceberg import HIDDEN, MAIN, IcebergTable, PendingTable
from chronolake.shared_storage import expect_stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from chronolake.description import TableDescription
    from chronolake.lake import Lake
    from chronolake.types import TableName

log = structlog.get_logger(__name__)

BATCH_PROPERTY: Final = "chronolake.last-batch"

_PREFIX: Final = "chronolake-stage"
#: Matches names from `stage_name`: host, process ID, its token, seconds since 1970, a random end.
#: Branches and tables with other names do not belong to staged writes.
_STAGED: Final = re.compile(
    rf"{_PREFIX}-([^-]*)-([0-9]{{1,9}})-([0-9a-f]{{8}})-([0-9]{{1,12}})-[0-9a-f]{{8}}"
)
#: A staged write of another machine counts as abandoned after this time.
_ABANDONED_AFTER_SECONDS: Final = 24 * 3600
#: A random part of the names of this process, by its ID.
_tokens: Final[dict[int, str]] = {}


@dataclass
class Stopwatch:
    """Seconds spent, by stage."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the block to the stage `name`.

        Raises:
            CallCancelledError: the call that this thread works for was cancelled before the stage.
        """
        raise_if_cancelled()
        begin = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - begin


class StagedBranch:
    """Changes of one branch of a table, which only this write sees."""

    def __init__(self, pending: PendingTable, of: str, watch: Stopwatch) -> None:
        self.pending = pending
        self.table = pending.table
        self.spark = pending.spark
        self.of = of
        self._watch = watch

    @property
    def source(self) -> str:
        """Return the rows before the write, as a SQL name.

        If another process changes them meanwhile, the publish is refused and this attempt has no
        effect.
        """
        return self.pending.before(self.of)

    @property
    def is_empty(self) -> bool:
        """Return whether there are no rows according to the metadata."""
        return self.table.rows_of(self.of) == 0

    @property
    def rows(self) -> int | None:
        """Return the number of rows with the changes, removed rows included; None if unknown."""
        return self.pending.state.rows_of(self.of)

    def delete(self, source: str, conditions: Sequence[str]) -> None:
        """Remove the table's rows that match a row of a query.

        Args:
            source: a query in SQL.
            conditions: SQL over `sql.TABLE` and `sql.KEYS` (the query). All of them must be true.
        """
        # Spark 4.0 cannot run a MERGE whose condition reads `_file` or `_pos`. It passes conditions
        # in a subquery to the scan too late to prune files, so those of the table are outside.
        of_table = [condition for condition in conditions if KEYS not in condition]
        of_both = [condition for condition in conditions if KEYS in condition]
        exists = f"EXISTS (SELECT * FROM ({source}) AS {KEYS} WHERE {' AND '.join(of_both)})"
        with self._watch.stage("delete"):
            self.spark.sql(
                f"DELETE FROM {self._target()} AS {TABLE} WHERE {' AND '.join([*of_table, exists])}"
            )
        reach("staged.deleted")

    def update(self, source: str, condition: str, *, assignments: str, changed: str) -> int:
        """Change or remove the table's rows that match a row of a query; return how many changed.

        Args:
            source: a query in SQL; at most one of its rows matches each row of the table.
            condition: SQL over `sql.TABLE` and `sql.KEYS` (the query).
            assignments: SQL over both, for rows that change.
            changed: SQL over both: whether a matching row changes; the others are removed.
        """
        with self._watch.stage("delete"):
            before = self.pending.state.branch(self.of)
            self.spark.sql(
                f"MERGE INTO {self._target()} AS {TABLE} USING ({source}) AS {KEYS} ON {condition} "
                f"WHEN MATCHED AND {changed} THEN UPDATE SET {assignments} "
                "WHEN MATCHED THEN DELETE"
            )
            after = self.pending.state
        reach("staged.deleted")
        if after.branch(self.of) == before:
            return 0
        return int(after.summary_of(self.of).get("added-records", 0))

    def delete_where(self, condition: str) -> None:
        """Remove the table's rows that meet a SQL condition."""
        with self._watch.stage("delete"):
            self.spark.sql(f"DELETE FROM {self._target()} WHERE {condition}")
        reach("staged.deleted")

    def update_where(self, assignment: str, condition: str) -> None:
        """Change the table's rows that meet a SQL condition."""
        with self._watch.stage("delete"):
            self.spark.sql(f"UPDATE {self._target()} SET {assignment} WHERE {condition}")
        reach("staged.deleted")

    def append(self, source: str) -> None:
        """Append the rows of a SQL query; columns are matched by name."""
        with self._watch.stage("append"):
            self.spark.sql(f"INSERT INTO {self._target()} BY NAME {source}")
        reach("staged.appended")

    def _target(self) -> str:
        return self.pending.after(self.of)


class StagedWrite(StagedBranch):
    """One attempt at a write to a table: the changes of `main`, which all readers see.

    Attributes:
        hidden: the changes of the hidden rows, which only later writes read (`iceberg.HIDDEN`).
    """

    def __init__(
        self,
        table: IcebergTable,
        spark: SparkSession,
        watch: Stopwatch,
        guard: Callable[[IcebergTable], None] | None = None,
    ) -> None:
        pending = PendingTable(table, spark)
        super().__init__(pending, MAIN, watch)
        self.hidden = StagedBranch(pending, HIDDEN, watch)
        self._guard = guard

    def publish(self, properties: Mapping[str, str]) -> None:
        """Publish the changes and set properties, in one compare-and-set.

        Raises:
            LakeError: executors wrote files that the driver cannot read.
            CommitConflictError: the table has changed since the attempt began; nothing was
                published.
            CommitUnknownError: the catalog's response was lost and the table cannot be read.
        """
        with self._watch.stage("publish"):
            self._expect_stored()
            publish(self.table, self._with_changes, properties)

    def publish_files(self) -> None:
        """Publish rewritten files whose rows are unchanged, without a batch's properties.

        Raises:
            LakeError: executors wrote files that the driver cannot read.
            CommitConflictError: the table has changed since the attempt began; nothing was
                published.
            UnansweredError: the catalog did not report the outcome of the commit.
        """
        self._expect_stored()
        swap(self.table, self._with_changes)

    def close(self) -> None:
        """Forget the changes; if they were not published, maintenance removes their files."""
        self.pending.close()

    def _expect_stored(self) -> None:
        now = self.pending.state
        for branch in (MAIN, HIDDEN):
            expect_stored(now, now.branch(branch), since=self.table.branch(branch))

    def _with_changes(self, current: IcebergTable) -> Any:
        expect_unmoved(self.table, current)
        if self._guard is not None:
            self._guard(current)
        builder = current.builder()
        for leftover in filter(is_abandoned, current.branches()):
            # Earlier versions staged on branches.
            log.warning("leftover_dropped", table=str(current.name), branch=leftover)
            builder.removeRef(leftover)
        self.pending.add_to(builder)
        return builder


class TableAlteredError(CommitError):
    """The table's columns differ from those for which the batch was read."""


def stage_name() -> str:
    """Return a new name for a staged write, with its process and time."""
    return f"{_PREFIX}-{_process(os.getpid())}-{int(time.time())}-{uuid4().hex[:8]}"


def _process(pid: int) -> str:
    """Return the name of this process, which is not that of an earlier one with the same ID.

    Args:
        pid: its ID, because a fork inherits the names that its parent process has used.
    """
    # Threads that begin their first writes at the same time must get the same name.
    token = _tokens.setdefault(pid, uuid4().hex[:8])
    return f"{socket.gethostname().replace('-', '_')}-{pid}-{token}"


def is_abandoned(branch: str) -> bool:
    """Return whether a branch or scratch table belongs to a staged write that will not be finished.

    A staged write of this machine is abandoned if its process has ended; one of another machine if
    it is older than a day. Names of any other form are never abandoned.
    """
    found = _STAGED.fullmatch(branch)
    if found is None:
        return False
    host, pid, token, since = found.groups()
    own = _process(os.getpid())
    if f"{host}-{pid}-{token}" == own:
        return False
    own_host, own_pid, _ = own.split("-")
    if host == own_host:
        return pid == own_pid or not _is_running(int(pid))
    return time.time() - int(since) > _ABANDONED_AFTER_SECONDS


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def write_staged(
    lake: Lake,
    name: TableName,
    write: Callable[[StagedWrite], Mapping[str, str] | None],
    watch: Stopwatch,
    *,
    spark: SparkSession | None = None,
    guard: Callable[[IcebergTable], None] | None = None,
    allow_pipeline_table: bool = False,
) -> None:
    """Run a write until it is published.

    `write` gets a `StagedWrite` on the table's current state, stages its changes, and returns the
    properties to publish with them, or None if there is nothing to publish. It runs again, on the
    new state, if another process published first. Its statements run in the session `spark`, by
    default the lake's. Writes to one table are serialized within a process.

    `guard` gets the table as it is when it is published, and raises if this writer must no longer
    write to it. `allow_pipeline_table` allows pipeline tables.

    Raises:
        TableNotFoundError: the table does not exist.
        ConfigurationError: a pipeline fills the table, and `allow_pipeline_table` is false.
        LakeLocationError: the table is outside the opened lake.
        CommitConflictError: other writers were first too often.
    """

    def begin(table: IcebergTable) -> StagedWrite:
        if not allow_pipeline_table:
            expect_destination_table(table)
        return StagedWrite(table, spark or lake.spark, watch, guard)

    for attempt in range(1, ATTEMPTS + 1):
        try:
            with lake.writing(name):
                _attempt(lake, name, write, begin)
        except CommitConflictError as conflict:
            if attempt == ATTEMPTS:
                raise
            log.info("staged_again", table=str(name), attempt=attempt, reason=conflict.message)
            time.sleep(min(0.05 * attempt, 1.0))
        else:
            return


def _attempt(
    lake: Lake,
    name: TableName,
    write: Callable[[StagedWrite], Mapping[str, str] | None],
    begin: Callable[[IcebergTable], StagedWrite],
) -> None:
    table = lake.catalog.find(name)
    if table is None:
        raise TableNotFoundError(
            "The table no longer exists.", table=str(name), hint="Create it again."
        )
    lake.containment.expect_inside(table)
    attempted = begin(table)
    try:
        properties = write(attempted)
        if properties is not None:
            attempted.publish(properties)
    finally:
        attempted.close()


def expect_unaltered(write: StagedWrite, description: TableDescription) -> None:
    """Refuse to stage a batch that was read for other columns than the table has now.

    Raises:
        TableAlteredError: the table's columns or key changed since `description` was read.
    """
    if describe_loaded(write.table) != description:
        raise TableAlteredError(
            "The table's columns were changed while the batch was read.",
            table=str(description.name),
            hint="Send the batch again.",
        )
