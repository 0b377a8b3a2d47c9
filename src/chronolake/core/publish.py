"""Publishing: new metadata of a table, by a compare-and-set.

Whoever changed the table first wins: what was made from another state is made again. When the
catalog's answer is lost, the table itself tells whether the change has happened.
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
#: Identity of the last publish: tells whether a commit whose answer was lost has happened.
PUBLISH_PROPERTY: Final = "chronolake.last-publish"

#: How often a change is tried again because another writer was first.
ATTEMPTS: Final = 20


class UnansweredError(CommitError):
    """The catalog did not say whether a commit has happened.

    Attributes:
        made: the snapshot that the commit would make the table's current one, or None.
    """

    def __init__(self, message: str, made: int | None, **place: Any) -> None:
        super().__init__(message, **place)
        self.made = made


class TableMovedError(CommitConflictError):
    """The table is not what the write was made for: it has to be staged again."""


def expect_unmoved(table: IcebergTable, current: IcebergTable) -> None:
    """Refuse to publish what was made from another state than the table has now.

    Raises:
        TableMovedError: rows, columns or the table itself are others.
    """
    if _state_of(table) != _state_of(current):
        raise TableMovedError("Another writer published first.", table=str(current.name))


def _state_of(table: IcebergTable) -> tuple[object, ...]:
    # Columns are compared and not a schema's number: a table replaced as a whole numbers anew. Key
    # and declared types stand in a property alone.
    declared = table.property_of(COLUMNS_PROPERTY)
    snapshots = table.snapshot_id, table.branch(HIDDEN)
    return *snapshots, table.fields, declared, str(table.metadata.uuid())


def swap(table: IcebergTable, change: Callable[[IcebergTable], Any]) -> None:
    """Apply a change of metadata with a compare-and-set, again when another one came between.

    Args:
        table: the state to begin with.
        change: gets the table's present state and returns a metadata builder made from it; it
            raises where the change makes no sense any more.

    Raises:
        CommitConflictError: others were first too often; nothing has changed.
        UnansweredError: the catalog did not say what became of the commit.
        Exception: whatever `change` raises; nothing has changed.
    """
    for attempt in range(1, ATTEMPTS + 1):
        metadata = change(table).build()
        made = _made_by(metadata, table)
        try:
            table.commit(metadata)
        except (Py4JError, PySparkException) as failure:
            raise UnansweredError(
                f"The catalog did not answer a commit: {java_message_of(failure)}",
                made,
                table=str(table.name),
                hint="Check that the catalog can be reached.",
            ) from failure
        except CommitConflictError:
            if attempt == ATTEMPTS:
                raise
            time.sleep(0.02 * attempt)
            table = table.refreshed()
            if _has_made(table, made):
                # The catalog's client asks again where an answer is lost: it was in its own way.
                return
        else:
            return


def _made_by(metadata: Any, table: IcebergTable) -> int | None:
    """The snapshot that metadata would make a table's current one, or None if that stays."""
    snapshot = metadata.currentSnapshot()
    made = None if snapshot is None else int(snapshot.snapshotId())
    return None if made == table.snapshot_id else made


def _has_made(table: IcebergTable, made: int | None) -> bool:
    return made is not None and table.has_published(made)


def publish(
    table: IcebergTable, change: Callable[[IcebergTable], Any], properties: Mapping[str, str]
) -> None:
    """Publish a change of metadata together with properties and the publish's identity.

    When the catalog's answer is lost, the table is read again: if it carries this publish's
    identity, or has had its snapshot since, the commit has happened.

    Raises:
        CommitConflictError: others were first too often; nothing has changed.
        StorageError: the disk is full or cannot be written; nothing has changed.
        CommitUnknownError: the answer was lost, and the table does not tell.
        CallCancelledError: the call that this thread works for was cancelled; nothing has changed.
    """
    marks = {**publishing_marks(), **table.catalog.guard.marks}

    def marked(current: IcebergTable) -> Any:
        return change(current).setProperties(current.catalog.map({**properties, **marks}))

    reach("publish.before-commit")
    raise_if_cancelled()
    try:
        swap(table, marked)
    except UnansweredError as failure:
        _settle(table, marks[PUBLISH_PROPERTY], failure)
    reach("publish.after-commit")


def publishing_marks() -> dict[str, str]:
    """Properties of a table that is published now: a new identity, and the time."""
    stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {PUBLISH_PROPERTY: uuid4().hex, PUBLISHED_PROPERTY: stamp}


def _settle(table: IcebergTable, identity: str, failure: UnansweredError) -> None:
    log.warning("commit_outcome_unknown", table=str(table.name), reason=failure.message)
    for pause in (0.1, 1.0, 5.0):
        time.sleep(pause)
        try:
            now = table.refreshed()
        except (Py4JError, PySparkException, LakeError):
            continue
        if now.property_of(PUBLISH_PROPERTY) == identity:
            return
        if _has_made(now, failure.made):
            # Others have published after it.
            return
        raise storage_error(failure) or CommitConflictError(
            f"The commit did not happen: {failure.message}",
            table=str(table.name),
            hint="Do it again: the table is as it was.",
        ) from failure
    raise CommitUnknownError(
        f"Nor did the catalog answer afterwards: {failure.message}",
        hint="Send the batch again when the catalog answers: a batch that is already in the table "
        "changes nothing.",
        table=str(table.name),
    ) from failure


def stream_of(table: IcebergTable) -> tuple[str, str] | None:
    """The pipeline and the stream that fill a table, or None if none does."""
    filled_by = table.property_of(STREAM_PROPERTY)
    if filled_by is None:
        return None
    pipeline, _, stream = filled_by.partition("/")
    return pipeline, stream


def expect_pushed(table: IcebergTable) -> None:
    """Refuse to change a table that a pipeline fills: what it has would not be its source's.

    Raises:
        ConfigurationError: one does.
    """
    filled_by = stream_of(table)
    if filled_by is not None:
        pipeline, stream = filled_by
        raise ConfigurationError(
            f"The stream {stream} of the pipeline {pipeline} fills the table, and nothing else may "
            "change it.",
            table=str(table.name),
            hint=f"Change pipelines.{pipeline} in chronolake.yml, or take another table.",
        )


def until_published(
    lake: Lake,
    name: TableName,
    attempt: Callable[[IcebergTable], _Outcome],
    *,
    also_pulled: bool = False,
) -> _Outcome:
    """Run a change of a table until no other writer comes between.

    The table is held meanwhile: in this process, nobody else writes to it.

    Args:
        lake: the lake.
        name: the table.
        attempt: makes the change from the table's present state and publishes it; it runs again on
            the new state when another process published first.
        also_pulled: whether it may be a table that a pipeline fills.

    Raises:
        TableNotFoundError: there is no such table.
        ConfigurationError: a pipeline fills it.
        LakeLocationError: it lies outside the opened lake.
        CommitConflictError: others were first too often.
    """
    for number in range(1, ATTEMPTS + 1):
        with lake.writing(name):
            table = lake.catalog.find(name)
            if table is None:
                raise TableNotFoundError(
                    "The table does not exist.", table=str(name), hint="Create it first."
                )
            if not also_pulled:
                expect_pushed(table)
            lake.containment.expect_inside(table)
            try:
                return attempt(table)
            except CommitConflictError as conflict:
                if number == ATTEMPTS:
                    raise
                log.info("changed_again", table=str(name), attempt=number, reason=conflict.message)
        time.sleep(min(0.05 * number, 1.0))
    raise AssertionError
