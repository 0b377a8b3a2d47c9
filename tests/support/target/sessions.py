"""Loads and changes of a target table without Spark, as publications make them."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from chronolake.target.database import TargetSession, Written
from chronolake.target.encoding import RowEncoder
from chronolake.target.limits import TargetColumn
from chronolake.target.state import Published


def load_rows(
    session: TargetSession,
    columns: tuple[TargetColumn, ...],
    rows: pa.RecordBatch,
    base: Published | None = None,
    *,
    takes_over: bool = False,
) -> Published:
    load = session.create_load(columns, is_stage=False)
    write_rows(session, load, columns, rows, is_stage=False)
    published = Published("sales.keyed", None, 1, columns, load, has_rows=True)
    session.swap_in(load, base, published, takes_over=takes_over)
    stored = session.published()
    assert stored is not None
    return stored


def write_rows(
    session: TargetSession,
    load: str,
    columns: tuple[TargetColumn, ...],
    rows: pa.RecordBatch,
    *,
    is_stage: bool,
) -> Written:
    encoder = RowEncoder(session.limits, columns, "sales.keyed")
    if is_stage:
        for operation in rows.column(0).to_pylist():
            encoder.rows[operation] += 1
        lines = encoder.encode(rows.select(range(1, rows.num_columns)), rows.column(0))
    else:
        encoder.rows["I"] = rows.num_rows
        lines = encoder.encode(rows)
    session.sink(load, columns, is_stage=is_stage).write(0, iter([lines]), encoder)
    return session.written(load, 1)


def change_rows(
    session: TargetSession,
    base: Published,
    operations: str,
    rows: pa.RecordBatch,
) -> Published:
    """Apply rows, each with its operation, and return the state."""
    load = session.create_load(base.columns, is_stage=True)
    batch = pa.RecordBatch.from_arrays(
        [pa.array(list(operations)), *rows.columns], ["o", *rows.schema.names]
    )
    written = write_rows(session, load, base.columns, batch, is_stage=True)
    session.apply(load, written, base, replace(base, snapshot_id=(base.snapshot_id or 0) + 1), [])
    session.drop(load)
    stored = session.published()
    assert stored is not None
    return stored
