"""The publication of a table: a bulk load first, then the changes between two snapshots.

A target table is loaded again if its changes cannot be computed or applied: the published snapshot
was expired or belongs to another table, the key or the mode has changed, or a column's type has
changed in a way that the target cannot follow. Nothing is written, and Spark is not started, if
the target already has the table's snapshot and columns.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from chronolake.description import describe_loaded
from chronolake.errors import TargetChangedError, TargetError
from chronolake.executor_errors import error_of
from chronolake.failpoints import reach
from chronolake.iceberg import java_message_of
from chronolake.session import CATALOG, active
from chronolake.target import changes
from chronolake.target.database import write_rows
from chronolake.target.encoding import RowEncoder
from chronolake.target.limits import raise_unless_mode, target_columns
from chronolake.target.state import Published, plan_column_changes
from chronolake.types import LAKE_PROPERTY, START, Mode, quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.target.database import TargetDatabase, TargetSession, Written
    from chronolake.target.limits import TargetLimits
    from chronolake.target.selection import TargetTable
    from chronolake.target.state import ColumnChange

_log = structlog.get_logger(__name__)
_MICROS: Final = 1_000_000


class Outcome(StrEnum):
    """What a publication does."""

    UNCHANGED = "unchanged"
    CHANGED = "changed"
    LOADED = "loaded"


@dataclass(frozen=True)
class PublishResult:
    """What was published, or would be.

    Attributes:
        target: the target's name.
        table: the table in the lake.
        relation: the table in the target.
        snapshot_id: the snapshot that the target has now; None for a table without rows.
        outcome: what was done.
        reason: why the table was loaded, or None.
        rows: the number of rows that were inserted, updated and deleted.
        converted: the number of values that were changed because they do not fit, by column.
        seconds: how long it took.
    """

    target: str
    table: str
    relation: str
    snapshot_id: int | None
    outcome: Outcome
    reason: str | None = None
    rows: Mapping[str, int] = field(default_factory=dict)
    converted: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class _Plan:
    """What has to be done.

    Attributes:
        outcome: the kind of work.
        wanted: the state after it.
        reason: why the table is loaded, or None.
        changes: the changes of columns.
    """

    outcome: Outcome
    wanted: Published
    reason: str | None = None
    changes: Sequence[ColumnChange] = ()


def publish_table(
    lake: Lake,
    target: str,
    database: TargetDatabase,
    table: TargetTable,
    *,
    takes_over: bool = False,
    is_dry_run: bool = False,
) -> PublishResult:
    """Publish a table, so that the target has the rows of its current snapshot.

    Args:
        lake: the lake; Spark starts only if something has changed.
        target: the target's name.
        database: the target's database.
        table: the table.
        takes_over: whether a table that others have created or changed is replaced.
        is_dry_run: whether nothing is written to the target table.

    Raises:
        TableNotFoundError: the table does not exist.
        TargetError: the target is not reachable, or cannot hold the table.
        TargetChangedError: somebody else has created or changed the target table.
        TargetBusyError: another process publishes the table.
    """
    began = time.monotonic()
    (found,) = lake.catalog.peek([table.name])
    if found is None:
        raise lake.missing(table.name)
    try:
        with database.open(table.relation) as session:
            base = session.published()
            plan = _plan(session, base, found, takes_over=takes_over)
            written: Written | None = None
            if plan.outcome is not Outcome.UNCHANGED and not is_dry_run:
                with active(lake.spark):
                    plan, written = _write(lake, session, base, table, takes_over=takes_over)
    except TargetError as failure:
        failure.table = failure.table or str(table.name)
        raise
    except (PySparkException, Py4JError) as failure:
        known = error_of(failure)
        if known is not None:
            known.table = known.table or str(table.name)
            raise known from failure
        raise TargetError(
            f"The table could not be published: {java_message_of(failure)}",
            table=str(table.name),
            hint="Publish again. Nothing was changed in the target.",
        ) from failure
    result = PublishResult(
        target,
        str(table.name),
        str(table.relation),
        plan.wanted.snapshot_id,
        plan.outcome,
        plan.reason,
        {} if written is None else dict(written.rows),
        {} if written is None else dict(written.changed),
        time.monotonic() - began,
    )
    if written is not None or (plan.outcome is not Outcome.UNCHANGED and not is_dry_run):
        _log_result(result)
    return result


def _log_result(result: PublishResult) -> None:
    _log.info(
        "table_published",
        target=result.target,
        table=result.table,
        relation=result.relation,
        snapshot=result.snapshot_id,
        outcome=result.outcome.value,
        reason=result.reason,
        inserted=result.rows.get(changes.INSERT, 0),
        updated=result.rows.get(changes.UPDATE, 0),
        deleted=result.rows.get(changes.DELETE, 0),
        seconds=round(result.seconds, 3),
    )
    if result.converted:
        _log.warning(
            "values_converted",
            target=result.target,
            table=result.table,
            columns=dict(result.converted),
        )


def wanted_state(table: IcebergTable, limits: TargetLimits) -> Published:
    """Return the state of a target table that has a table's current snapshot.

    Raises:
        TargetError: the target cannot hold the table.
    """
    description = describe_loaded(table)
    raise_unless_mode(limits, table.name, description.mode)
    identity = set(description.primary_key)
    if identity and description.mode is Mode.HISTORY:
        identity.add(START)
    ids = {field.name: field.field_id for field in table.fields}
    columns = [(column, ids[column.name]) for column in description.columns]
    return Published(
        str(table.name),
        table.property_of(LAKE_PROPERTY),
        table.snapshot_id,
        target_columns(limits, table.name, columns, identity),
        "",
        has_rows=False,
    )


def _plan(
    session: TargetSession, base: Published | None, table: IcebergTable, *, takes_over: bool
) -> _Plan:
    """Return what has to be done for a table, from its metadata and the target's state."""
    wanted = wanted_state(table, session.limits)
    if takes_over:
        return _Plan(Outcome.LOADED, wanted, "it was taken over")
    if base is None:
        if session.is_present():
            raise TargetChangedError(
                f"The target already has a table {session.relation}, which Chronolake did not "
                "create.",
                hint="Drop or rename it, or set another name in `rename` of the target. "
                "`chronolake publish --take-over` replaces it.",
            )
        return _Plan(Outcome.LOADED, wanted, "it was never published")
    if base.table != wanted.table or (base.lake and wanted.lake and base.lake != wanted.lake):
        raise TargetChangedError(
            f"{session.relation} contains the table {base.table} of another lake or schema.",
            hint="Set another name in `rename` of the target. `chronolake publish --take-over` "
            "replaces it.",
        )
    session.raise_if_changed(base)
    column_changes = plan_column_changes(base.columns, wanted.columns)
    if column_changes is None:
        return _Plan(Outcome.LOADED, wanted, "its key, mode or types have changed")
    if base.snapshot_id == wanted.snapshot_id and base.columns == wanted.columns:
        # Triggers are created or dropped if `detect_changes` has changed.
        is_same = base.has_triggers == session.detects_changes
        return _Plan(Outcome.UNCHANGED if is_same else Outcome.CHANGED, wanted)
    if not any(column.is_key for column in wanted.columns):
        return _Plan(Outcome.LOADED, wanted, "it has no key")
    return _Plan(Outcome.CHANGED, wanted, changes=column_changes)


def _write(
    lake: Lake,
    session: TargetSession,
    base: Published | None,
    target: TargetTable,
    *,
    takes_over: bool,
) -> tuple[_Plan, Written | None]:
    """Publish the table's current state, which may be newer than the one that was looked at."""
    table = lake.catalog.load(target.name)
    plan = _plan(session, base, table, takes_over=takes_over)
    if (
        plan.outcome is Outcome.CHANGED
        and base is not None
        and base.snapshot_id is not None
        and not changes.has_snapshot(table, base.snapshot_id)
    ):
        plan = _Plan(Outcome.LOADED, plan.wanted, "the published snapshot was expired")
    reach("target.planned")
    if plan.outcome is Outcome.UNCHANGED:
        return plan, None
    _raise_if_starts_collide(lake, table, plan.wanted, session.limits)
    if base is None or plan.outcome is Outcome.LOADED:
        return plan, _load(lake, session, base, table, plan.wanted, takes_over=takes_over)
    return plan, _change(lake, session, base, table, plan)


def _load(
    lake: Lake,
    session: TargetSession,
    base: Published | None,
    table: IcebergTable,
    wanted: Published,
    *,
    takes_over: bool,
) -> Written:
    load = session.create_load(wanted.columns, is_stage=False)
    names = [column.name for column in wanted.columns]
    with changes.all_rows(lake.spark, table, wanted.snapshot_id, names) as rows:
        written = _stage(session, load, rows, wanted, is_stage=False)
    loaded = Published(**{**vars(wanted), "load_id": load, "has_rows": bool(written.rows)})
    session.swap_in(load, base, loaded, takes_over=takes_over)
    return written


def _change(
    lake: Lake, session: TargetSession, base: Published, table: IcebergTable, plan: _Plan
) -> Written:
    wanted = plan.wanted
    names = [column.name for column in wanted.columns]
    key = [column.name for column in wanted.columns if column.is_key]
    published = Published(**{**vars(wanted), "load_id": base.load_id, "physical": base.physical})
    with changes.changed_rows(
        lake.spark, table, base.snapshot_id, wanted.snapshot_id, columns=names, identity=key
    ) as rows:
        load = None if rows is None else session.create_load(wanted.columns, is_stage=True)
        written = _stage(session, load, rows, wanted, is_stage=True)
    session.apply(load if written.rows else None, written, base, published, plan.changes)
    if load is not None:
        session.drop(load)
    return written


def _stage(
    session: TargetSession,
    load: str | None,
    rows: DataFrame | None,
    wanted: Published,
    *,
    is_stage: bool,
) -> Written:
    """Write rows to a temporary table by Spark's tasks."""
    parts = 0
    if rows is not None and load is not None:
        sink = session.sink(load, wanted.columns, is_stage=is_stage)
        encoder = RowEncoder(session.limits, wanted.columns, wanted.table)
        parts = write_rows(rows, sink, encoder, has_operations=is_stage)
    return session.written(load or "", parts)


def _raise_if_starts_collide(
    lake: Lake, table: IcebergTable, wanted: Published, limits: TargetLimits
) -> None:
    """Raise if two versions of a record would have the same start in the target.

    Raises:
        TargetError: they would: starts outside the target's limits are moved to the limits.
    """
    key = [column.name for column in wanted.columns if column.is_key]
    if START not in key or wanted.snapshot_id is None:
        return
    if not limits.clamps and limits.has_fractions:
        return
    micros: Any = F.unix_micros(F.col(quote(START)))
    stored = F.least(F.greatest(micros, F.lit(limits.tmin)), F.lit(limits.tmax))
    conditions = [
        F.col(quote(START)) < F.timestamp_micros(F.lit(limits.tmin)),
        F.col(quote(START)) > F.timestamp_micros(F.lit(limits.tmax)),
    ]
    if not limits.has_fractions:
        stored = F.floor(stored / _MICROS)
        conditions = [F.lit(True)]
    rows = lake.spark.read.option("versionAsOf", str(wanted.snapshot_id)).table(
        f"{CATALOG}.{table.name.sql}"
    )
    # A version at the limit itself may be inside, too.
    moved = rows.where(reduce(or_, [*conditions, micros.isin(limits.tmin, limits.tmax)]))
    record = [F.col(quote(name)) for name in key if name != START]
    doubled = moved.groupBy(*record, stored.alias("__chronolake_start")).count()
    if doubled.where("count > 1").limit(1).count():
        raise TargetError(
            f"Two versions of a record would have the same start in {limits.product}, because "
            "they start outside its limits.",
            table=wanted.table,
            column=START,
            hint="Publish the table to PostgreSQL, or publish a view's table without these "
            "versions.",
        )
