"""Batches into live and soft-delete tables: replace, update, delete.

Source: `seeds/destination-connector.txt` ("WriteBatchRequest"). For each key, replace rows are
applied first, then update rows, then delete rows, each in the order of the request:

* a replace row is the whole row (columns that the batch does not contain keep their stored value);
* an update row changes the cells that are not marked unmodified, and needs a row to change: without
  a stored or replaced row of its key it is ignored;
* a delete row removes the row.

A soft delete is an ordinary update row: it sets the deletion flag.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chronolake.change_set import BITS_PER_WORD, OP, SEQ, UNMODIFIED, Op
from chronolake.core import upsert_fold, usage
from chronolake.core.batch_profile import BatchProfile, profile_changes
from chronolake.core.merge import BatchResult, fold_by_key
from chronolake.core.scd2_fold import Layout
from chronolake.core.sql import (
    BATCH,
    KEYS,
    TABLE,
    broadcast,
    cached_view,
    cells,
    column_list,
    numbered_key,
    sample,
)
from chronolake.core.staging import (
    BATCH_PROPERTY,
    StagedWrite,
    Stopwatch,
    expect_unaltered,
    write_staged,
)
from chronolake.core.upsert_fold import IGNORED
from chronolake.errors import TableNotFoundError
from chronolake.failpoints import reach
from chronolake.types import quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from chronolake.description import TableDescription
    from chronolake.lake import Lake
    from chronolake.types import Column, TableName

#: Up to this number of columns, Spark plans one statement with an assignment for each quickly.
_ASSIGNED_COLUMNS: Final = 100
_KINDS: Final = {
    Op.REPLACE: upsert_fold.REPLACE,
    Op.UPDATE: upsert_fold.UPDATE,
    Op.DELETE: upsert_fold.DELETE,
}


def write_batch(
    lake: Lake, name: TableName, changes: DataFrame, *, columns: Sequence[Column], batch: str
) -> BatchResult:
    """Apply a batch to a live or soft-delete table, all of it or nothing.

    The whole primary key identifies rows, so that a history table can be seeded this way too.
    Sending the same batch again gives the same table.

    Args:
        name: the table.
        changes: the batch's change set (`chronolake.change_set`).
        columns: the change set's data columns.
        batch: the batch's identity, for logs and the table's properties.

    Raises:
        TableNotFoundError: the table does not exist.
        BatchError: the batch cannot be applied to this table, or a file cannot be read.
        CommitError: the result could not be published.
    """
    description = lake.describe(name)
    if description is None:
        raise TableNotFoundError(
            "The table does not exist.", table=str(name), hint="Create it before writing to it."
        )
    watch = Stopwatch()
    outcome = _Outcome()
    with profile_changes(
        changes, description, description.primary_key, columns, watch, is_history=False
    ) as profile:

        def write(attempt: StagedWrite) -> Mapping[str, str]:
            nonlocal outcome
            expect_unaltered(attempt, description)
            outcome = _stage(attempt, profile, description, watch)
            return {
                BATCH_PROPERTY: batch,
                **usage.monthly_properties(attempt.table, outcome.written),
            }

        if not profile.is_empty:
            write_staged(lake, name, write, watch, spark=changes.sparkSession)
    return BatchResult(
        batch=batch,
        replaced=profile.replaced,
        updated=profile.updated,
        deleted=profile.deleted,
        ignored=outcome.ignored,
        ignored_key=outcome.ignored_key,
        seconds=watch.seconds,
    )


@dataclass(frozen=True)
class _Outcome:
    """Counts of a batch's rows after merging.

    Attributes:
        ignored: number of update rows whose record does not exist.
        ignored_key: the key of one of these, or None.
        written: the sketch of the rows that the batch writes (`core/usage.py`).
    """

    ignored: int = 0
    ignored_key: str | None = None
    written: bytes | None = None


def _stage(
    write: StagedWrite, profile: BatchProfile, description: TableDescription, watch: Stopwatch
) -> _Outcome:
    """Compute the changes of a table by a batch, and stage them."""
    key = description.primary_key
    retained = [column.name for column in description.columns if column.name not in profile.names]
    needs_stored = bool(retained and profile.replaced)
    outcome = _Outcome(written=profile.sketch)
    with ExitStack() as stack:
        added = None
        is_changed_in_place = (
            profile.updated
            and profile.has_each_once
            and not (needs_stored or write.is_empty)
            and len(key) < len(profile.names) <= _ASSIGNED_COLUMNS
        )
        needs_merge = needs_stored or not profile.has_each_once
        if needs_merge or (profile.updated and not is_changed_in_place):
            with watch.stage("resolve"):
                needed = (Op.UPDATE, Op.REPLACE) if retained else (Op.UPDATE,)
                events = [_batch_events(profile, description)]
                if not write.is_empty:
                    events.append(_stored_events(write.source, profile, description, needed))
                final, outcome = _fold(write, events, profile, description, stack)
                names = column_list(column.name for column in description.columns)
                added = f"SELECT {names} FROM {final} WHERE {IGNORED} = 0"
        elif profile.replaced:
            added = profile.replace_rows(description)
        reach("write.planned")
        if is_changed_in_place:
            outcome = _change(write, profile, description, watch)
        elif not write.is_empty:
            # All stored rows whose key is in the batch: only key columns are read.
            hint = broadcast(profile.view, profile.rows)
            write.delete(
                f"SELECT {hint} {numbered_key(key)} FROM {profile.view}",
                profile.same_key(key),
            )
        if added is not None:
            write.append(added)
    return outcome


def _change(
    write: StagedWrite, profile: BatchProfile, description: TableDescription, watch: Stopwatch
) -> _Outcome:
    """Change the rows of update rows, and remove those of other rows, in one pass.

    Each key occurs at most once in the batch.
    """
    key = description.primary_key
    data = [name for name in profile.names if name not in key]
    hint = broadcast(profile.view, profile.rows)
    values = "".join(f", {quote(name)} AS c{number}" for number, name in enumerate(data))
    source = f"SELECT {hint} {numbered_key(key)}, {OP}, {UNMODIFIED}{values} FROM {profile.view}"
    assignments = []
    for number, name in enumerate(data):
        value, column = f"{KEYS}.c{number}", f"{TABLE}.{quote(name)}"
        if name in profile.omitted:
            word, bit = divmod(profile.names.index(name), BITS_PER_WORD)
            is_kept = f"getbit(coalesce(get({KEYS}.{UNMODIFIED}, {word}), 0L), {bit}) = 1"
            value = f"IF({is_kept}, {column}, {value})"
        assignments.append(f"{column} = {value}")
    matched = " AND ".join(profile.same_key(key))
    changed = write.update(
        source,
        matched,
        assignments=", ".join(assignments),
        changed=f"{KEYS}.{OP} = {int(Op.UPDATE)}",
    )
    if changed == profile.updated:
        return _Outcome(written=profile.sketch)
    # Rare: some update rows have no row to change.
    with watch.stage("resolve"):
        (found,) = write.spark.sql(
            f"SELECT {sample(key, IGNORED)}, {usage.sketch_aggregate(key, f'NOT {IGNORED}')} "
            f"FROM ({_written_keys(write.source, profile, key)})"
        ).collect()
    return _Outcome(profile.updated - changed, *found)


def _written_keys(table: str, profile: BatchProfile, key: Sequence[str]) -> str:
    """Return SQL for the keys of replace and update rows, and for updates without a stored row."""
    stored = ", ".join(f"{TABLE}.{quote(name)} AS f{number}" for number, name in enumerate(key))
    same = " AND ".join(
        f"{BATCH}.{quote(name)} <=> {KEYS}.f{number}" for number, name in enumerate(key)
    )
    is_written = f"({BATCH}.{OP} = {int(Op.REPLACE)} OR {KEYS}.is_stored <=> true)"
    return (
        f"SELECT {column_list(key, of=BATCH)}, NOT {is_written} AS {IGNORED} "
        f"FROM {profile.view} AS {BATCH} LEFT JOIN ("
        f"SELECT {broadcast(KEYS, profile.rows)} {stored}, true AS is_stored "
        f"FROM {table} AS {TABLE} JOIN (SELECT {numbered_key(key)} FROM {profile.view}) AS {KEYS} "
        f"ON {' AND '.join(profile.same_key(key))}) AS {KEYS} ON {same} "
        f"WHERE {BATCH}.{OP} <> {int(Op.DELETE)}"
    )


def _fold(
    write: StagedWrite,
    events: Sequence[str],
    profile: BatchProfile,
    description: TableDescription,
    stack: ExitStack,
) -> tuple[str, _Outcome]:
    """Compute a batch's final rows once, keep and count them; return their SQL name and counts."""
    layout = Layout(
        columns=tuple(column.name for column in description.columns),
        carried=profile.names,
        key=description.primary_key,
        unmodified=frozenset(profile.omitted),
    )
    final = fold_by_key(
        write.spark,
        " UNION ALL ".join(events),
        key=layout.key,
        order=(upsert_fold.KIND, SEQ),
        rows=profile.rows,
        fold=lambda rows: upsert_fold.final_rows(rows, layout),
        description=description,
        others=f"{IGNORED} bigint",
    )
    name = stack.enter_context(cached_view(final))
    (found,) = write.spark.sql(
        f"SELECT coalesce(sum({IGNORED}), 0), {sample(layout.key, f'{IGNORED} > 0')}, "
        f"{usage.sketch_aggregate(layout.key, f'{IGNORED} = 0')} FROM {name}"
    ).collect()
    return name, _Outcome(*found)


def _batch_events(profile: BatchProfile, description: TableDescription) -> str:
    """Return the batch's rows as events."""
    kinds = " ".join(f"WHEN {int(op)} THEN {kind}" for op, kind in _KINDS.items())
    return (
        f"SELECT CASE {OP} {kinds} END AS {upsert_fold.KIND}, {SEQ}, {UNMODIFIED}, "
        f"{cells(description, profile.names, of=BATCH)} FROM {profile.view} AS {BATCH}"
    )


def _stored_events(
    table: str, profile: BatchProfile, description: TableDescription, needed: Sequence[Op]
) -> str:
    """Return the table's rows that update rows (or retained columns) build on, as events."""
    names = [column.name for column in description.columns]
    key = description.primary_key
    ops = ", ".join(str(int(op)) for op in needed)
    keys = f"SELECT DISTINCT {numbered_key(key)} FROM {profile.view} WHERE {OP} IN ({ops})"
    conditions = " AND ".join(profile.same_key(key))
    return (
        f"SELECT {broadcast(KEYS, profile.rows)} "
        f"{upsert_fold.STORED} AS {upsert_fold.KIND}, 0L AS {SEQ}, "
        f"CAST(NULL AS ARRAY<BIGINT>) AS {UNMODIFIED}, {column_list(names, of=TABLE)} "
        f"FROM {table} AS {TABLE} JOIN ({keys}) AS {KEYS} ON {conditions}"
    )
