"""Publishing: new metadata of a table, by a compare-and-set.

The first writer to change the table wins: changes that were made from another state are made again.
If the catalog's response is lost, the table itself shows whether the change was committed.
Publishing is idempotent: a batch that is sent again is recognized by its identity in the table.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from chronolake.cancellation import raise_if_cancelled
from chronolake.errors import (
    CommitConflictError,
    CommitError,
    CommitUnknownError,
    ConfigurationError,
    LakeError,
    TableNotFoundError,
)
from chronolake.failpoints import reach
from chronolake.iceberg import COLUMNS_PROPERTY, HIDDEN, IcebergTable, java_message_of
from chronolake.storage import storage_error
from chronolake.types import STREAM_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from chronolake.lake import Lake
    from chronolake.types import TableName

log = structlog.get_logger(__name__)

_Outcome = TypeVar("_Outcome")

PUBLISHED_PROPERTY: Final = "chronolake.published-at"
#: Identity of the last publish: shows whether a commit with a lost response has happened.
PUBLISH_PROPERTY: Final = "chronolake.last-publish"

#: Maximum number of attempts when other writers publish first.
ATTEMPTS: Final = 20


class UnansweredError(CommitError):
    """The catalog did not report whether a commit has happened.

    Attributes:
        snapshot_id: the snapshot that the commit would make the table's current one, or None.
    """

    def __init__(self, message: str, snapshot_id: int | None, **place: Any) -> None:
        super().__init__(message, **place)
        self.snapshot_id = snapshot_id


class TableMovedError(CommitConflictError):
    """The table has changed since the write was staged: it has to be staged again."""


def expect_unmoved(table: IcebergTable, current: IcebergTable) -> None:
    """Refuse to publish changes that were made from another state than the table's current one.

    Raises:
        TableMovedError: rows, columns or the table itself have changed.
    """
    if _state_of(table) != _state_of(current):
        raise TableMovedError("Another writer published first.", table=str(current.name))


def expect_as_planned(planned_on: IcebergTable | None, current: IcebergTable) -> None:
    """Refuse a change that was planned, and perhaps confirmed, on another state of the table.

    Unlike `expect_unmoved`, staging the change again would not help: its plan is outdated.

    Args:
        planned_on: the state that the plan was made from; None: any.

    Raises:
        CommitError: rows, columns or the table itself have changed.
    """
    if planned_on is not None and _state_of(planned_on) != _state_of(current):
        raise CommitError(
            "Another process has written to the table since it was read for this change, which was "
            "not made.",
            table=str(current.name),
            hint="Run it again: what was read may be older than what was written.",
        )


def _state_of(table: IcebergTable) -> tuple[object, ...]:
    # Columns are compared instead of the schema's number, because a replaced table restarts its
    # numbers. Key and declared types are stored only in a property.
    declared = table.property_of(COLUMNS_PROPERTY)
    snapshots = table.snapshot_id, table.branch(HIDDEN)
    return *snapshots, table.fields, declared, str(table.metadata.uuid())


def swap(table: IcebergTable, change: Callable[[IcebergTable], Any]) -> None:
    """Apply a change of metadata with a compare-and-set, and retry if another writer was first.

    Args:
        table: the state to begin with.
        change: gets the table's current state and returns a metadata builder made from it; it
            raises if the change is no longer valid.

    Raises:
        CommitConflictError: other writers were first too often; nothing has changed.
        TableNotFoundError: the table was dropped or renamed meanwhile.
        UnansweredError: the catalog did not report the outcome of the commit.
        Exception: any error of `change`; nothing has changed.
    """
    for attempt in range(1, ATTEMPTS + 1):
        metadata = change(table).build()
        snapshot_id = _new_snapshot_of(metadata, table)
        try:
            table.commit(metadata)
        except (Py4JError, PySparkException) as failure:
            raise UnansweredError(
                f"The catalog did not respond to a commit: {java_message_of(failure)}",
                snapshot_id,
                table=str(table.name),
                hint="Check that the catalog can be reached.",
            ) from failure
        except CommitConflictError:
            if attempt == ATTEMPTS:
                raise
            time.sleep(0.02 * attempt)
            table = _found_again(table)
            if _has_published(table, snapshot_id):
                # The catalog's client retries when a response is lost: it conflicted with its own
                # commit.
                return
        else:
            return


def _found_again(table: IcebergTable) -> IcebergTable:
    """Return the current state of a table that another process has changed."""
    found = table.catalog.find(table.name)
    if found is None:
        raise TableNotFoundError(
            "The table was dropped or renamed while it was written.",
            table=str(table.name),
            hint="Create it again.",
        )
    return found


def _new_snapshot_of(metadata: Any, table: IcebergTable) -> int | None:
    """Return the snapshot that metadata would make current, or None if it stays the same."""
    snapshot = metadata.currentSnapshot()
    snapshot_id = None if snapshot is None else int(snapshot.snapshotId())
    return None if snapshot_id == table.snapshot_id else snapshot_id


def _has_published(table: IcebergTable, snapshot_id: int | None) -> bool:
    return snapshot_id is not None and table.has_published(snapshot_id)


def publish(
    table: IcebergTable, change: Callable[[IcebergTable], Any], properties: Mapping[str, str]
) -> None:
    """Publish a change of metadata together with properties and the publish's identity.

    If the catalog's response is lost, the table is read again: if it has this publish's identity,
    or has had its snapshot since, the commit has happened.

    Raises:
        CommitConflictError: other writers were first too often; nothing has changed.
        TableNotFoundError: the table was dropped or renamed meanwhile.
        StorageError: the disk is full or not writable; nothing has changed.
        CommitUnknownError: the response was lost, and the table cannot be read either.
        CallCancelledError: the call that this thread works for was cancelled; nothing has changed.
    """
    stamped = {**publishing_properties(), **table.catalog.guard.marks}

    def with_stamp(current: IcebergTable) -> Any:
        return change(current).setProperties(current.catalog.map({**properties, **stamped}))

    reach("publish.before-commit")
    raise_if_cancelled()
    try:
        swap(table, with_stamp)
    except UnansweredError as failure:
        _settle(table, stamped[PUBLISH_PROPERTY], failure)
    reach("publish.after-commit")


def publishing_properties() -> dict[str, str]:
    """Return properties for a table that is published now: a new identity, and the time."""
    stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {PUBLISH_PROPERTY: uuid4().hex, PUBLISHED_PROPERTY: stamp}


def _settle(table: IcebergTable, identity: str, failure: UnansweredError) -> None:
    log.warning("commit_outcome_unknown", table=str(table.name), reason=failure.message)
    for pause in (0.1, 1.0, 5.0):
        time.sleep(pause)
        try:
            now = table.reload()
        except (Py4JError, PySparkException, LakeError):
            continue
        if now.property_of(PUBLISH_PROPERTY) == identity:
            return
        if _has_published(now, failure.snapshot_id):
            # Other writers have published after it.
            return
        raise storage_error(failure) or CommitConflictError(
            f"The commit did not happen: {failure.message}",
            table=str(table.name),
            hint="Try again: the table is unchanged.",
        ) from failure
    raise CommitUnknownError(
        f"The outcome of a commit is unknown: {failure.message}",
        hint="Send the batch again when the catalog responds. If the batch is already in the "
        "table, this changes nothing.",
        table=str(table.name),
    ) from failure


def stream_of(table: IcebergTable) -> tuple[str, str] | None:
    """Return the pipeline and stream that fill a table; None if it is not a pipeline table."""
    filled_by = table.property_of(STREAM_PROPERTY)
    if filled_by is None:
        return None
    pipeline, _, stream = filled_by.partition("/")
    return pipeline, stream


def expect_destination_table(table: IcebergTable) -> None:
    """Refuse to change a pipeline table: its content would differ from its source.

    Raises:
        ConfigurationError: a pipeline fills the table.
    """
    filled_by = stream_of(table)
    if filled_by is not None:
        pipeline, stream = filled_by
        raise ConfigurationError(
            f"The table is written by stream {stream} of pipeline {pipeline}, and nothing else "
            "may change it.",
            table=str(table.name),
            hint=f"Change pipelines.{pipeline} in chronolake.yml, or choose another table.",
        )


def publish_with_retries(
    lake: Lake,
    name: TableName,
    attempt: Callable[[IcebergTable], _Outcome],
    *,
    allow_pipeline_table: bool = False,
) -> _Outcome:
    """Run a change of a table, again until no other writer publishes in between.

    The table is locked meanwhile: no other thread of this process writes to it.

    Args:
        name: the table.
        attempt: makes the change from the table's current state and publishes it; it runs again on
            the new state if another process published first.
        allow_pipeline_table: whether pipeline tables are allowed.

    Raises:
        TableNotFoundError: the table does not exist.
        ConfigurationError: a pipeline fills the table, and `allow_pipeline_table` is false.
        LakeLocationError: the table is outside the opened lake.
        CommitConflictError: other writers were first too often.
    """
    for number in range(1, ATTEMPTS + 1):
        with lake.writing(name):
            table = lake.catalog.find(name)
            if table is None:
                raise TableNotFoundError(
                    "The table does not exist.", table=str(name), hint="Create it first."
                )
            if not allow_pipeline_table:
                expect_destination_table(table)
            lake.containment.expect_inside(table)
            try:
                return attempt(table)
            except CommitConflictError as conflict:
                if number == ATTEMPTS:
                    raise
                log.info("changed_again", table=str(name), attempt=number, reason=conflict.message)
        time.sleep(min(0.05 * number, 1.0))
    raise AssertionError
