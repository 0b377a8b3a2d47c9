"""The pure folds against the model, without Spark: thousands of batches in seconds."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from chronolake.change_set import SEQ, UNMODIFIED
from chronolake.core import scd2_fold, upsert_fold
from chronolake.core.key_groups import Runs, fold_by_run
from support.oracle import ACTIVE, END, KEEP, START, TMAX, HistoryTable, KeyedTable
from support.seeds import examples

COLUMNS = ("k", "a", "b", START, END, ACTIVE)
LAYOUT = scd2_fold.Layout(COLUMNS, COLUMNS, ("k",), frozenset({"a", "b"}))
EVENTS = pa.schema(
    [
        (scd2_fold.KIND, pa.int32()),
        (scd2_fold.TIME, pa.int64()),
        (SEQ, pa.int64()),
        (UNMODIFIED, pa.list_(pa.int64())),
        (scd2_fold.FILE, pa.string()),
        (scd2_fold.POSITION, pa.int64()),
        ("k", pa.int64()),
        ("a", pa.int64()),
        ("b", pa.int64()),
        (START, pa.timestamp("us", tz="UTC")),
        (END, pa.timestamp("us", tz="UTC")),
        (ACTIVE, pa.bool_()),
    ]
)
KINDS = {
    "update": scd2_fold.UPDATE,
    "replace": scd2_fold.REPLACE,
    "delete": scd2_fold.DELETE,
    "earliest": scd2_fold.EARLIEST_START,
}

times = st.integers(1, 12).map(lambda step: step * 500)
keys = st.one_of(st.none(), st.integers(0, 2))
cells = st.one_of(st.none(), st.integers(0, 9))


@st.composite
def history_batches(draw: Any) -> list[dict[str, list[dict[str, Any]]]]:
    batches = []
    for _ in range(draw(st.integers(1, 4))):
        batch: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
        for kind in ("update", "replace"):
            for _ in range(draw(st.integers(0, 4))):
                start = draw(times)
                end = draw(st.one_of(st.just(TMAX), times.map(lambda step, s=start: s + step)))
                cell = st.one_of(cells, st.just(KEEP)) if kind == "update" else cells
                row = {"k": draw(keys), "a": draw(cell), "b": draw(cell)}
                batch[kind].append({**row, START: start, END: end, ACTIVE: end == TMAX})
        for _ in range(draw(st.integers(0, 2))):
            batch["earliest"].append({"k": draw(keys), START: draw(times)})
        for _ in range(draw(st.integers(0, 3))):
            batch["delete"].append({"k": draw(keys), END: draw(times)})
        batches.append(batch)
    return batches


def copied(batch: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    return {kind: [dict(row) for row in rows] for kind, rows in batch.items()}


def sort_key(event: dict[str, Any], *order: str) -> tuple[Any, ...]:
    return (event["k"] is not None, event["k"] or 0, *(event[name] for name in order))


def as_event(kind: int, seq: int, row: dict[str, Any]) -> dict[str, Any]:
    bits = sum(1 << place for place, name in enumerate(COLUMNS) if row.get(name) is KEEP)
    return {
        scd2_fold.KIND: kind,
        scd2_fold.TIME: row[END] if kind == scd2_fold.DELETE else row[START],
        SEQ: seq,
        UNMODIFIED: [bits] if bits else None,
        **{name: None if row.get(name) is KEEP else row.get(name) for name in COLUMNS},
    }


def resolve(events: list[dict[str, Any]], size: int) -> list[dict[str, Any]]:
    events = sorted(events, key=lambda e: sort_key(e, scd2_fold.TIME, scd2_fold.KIND, SEQ))
    table = pa.Table.from_pylist(events, schema=EVENTS)
    pieces = fold_by_run(
        table.to_batches(max_chunksize=size), ("k",), lambda rows: scd2_fold.resolve(rows, LAYOUT)
    )
    rows = [row for piece in pieces for row in _plain(piece).to_pylist()]
    for row in rows:
        row["place"] = row[scd2_fold.POSITION]
    return rows


def _plain(piece: pa.RecordBatch) -> pa.Table:
    """Convert times to integers: Python's datetime does not have the range for all of them."""
    table = pa.Table.from_batches([piece])
    for name in (START, END):
        place = table.column_names.index(name)
        table = table.set_column(place, name, table.column(name).cast(pa.int64()))
    return table


class Applied:
    """A table to which the pure fold applies batches as the staged write does."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        #: Key and start of the versions that count as written by the last batch.
        self.counted: list[tuple[Any, int]] = []
        #: Active versions that deletes from before their start have closed so far.
        self.closed_at_start = 0

    def write(self, batch: dict[str, list[dict[str, Any]]], size: int) -> int:
        events = [
            as_event(kind, seq, row)
            for name, kind in KINDS.items()
            for seq, row in enumerate(batch[name])
        ]
        since: dict[Any, int] = {}
        for event in events:
            key, time = event["k"], event[scd2_fold.TIME]
            since[key] = min(time, since.get(key, time))
        stored = [
            as_event(scd2_fold.STORED, 0, row) | {scd2_fold.FILE: "f", scd2_fold.POSITION: place}
            for place, row in enumerate(self.rows)
        ]
        near = [e for e in stored if e["k"] in since and e[END] >= since[e["k"]] - 1_000]
        found = resolve(events + near, size)
        baseless = {row["k"]: row[scd2_fold.EARLIEST] for row in found if row[scd2_fold.BASELESS]}
        if baseless:
            older: dict[Any, dict[str, Any]] = {}
            for event in stored:
                key = event["k"]
                if key in baseless and event[START] < baseless[key]:
                    older[key] = max(older.get(key, event), event, key=lambda e: e[START])
            found = resolve(events + near + list(older.values()), size)
        gone = {row["place"] for row in found if row[scd2_fold.REMOVED]}
        self.rows = [row for place, row in enumerate(self.rows) if place not in gone]
        self.rows += [
            {name: row[name] for name in COLUMNS} for row in found if row[scd2_fold.ADDED]
        ]
        self.counted = [(row["k"], row[START]) for row in found if row[scd2_fold.COUNTED]]
        self.closed_at_start += sum(row[scd2_fold.CLOSED_AT_START] for row in found)
        return sum(row[scd2_fold.IGNORED] for row in found)


def shown(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in COLUMNS) for row in rows), key=repr)


@settings(max_examples=examples(400))
@given(history_batches(), st.integers(1, 7))
def test_a_history_batch_follows_the_rules(batches: Any, size: int) -> None:
    """Late, repeated, partial, deleted, revived, replayed: the fold and the model agree."""
    model, applied = HistoryTable(("k",), COLUMNS), Applied()
    for batch in batches:
        if has_overlaps(model) and any(KEEP in row.values() for row in batch["update"]):
            # Only versions that reach the batch are read, so the values are those of any of them.
            return
        for _ in range(2):
            before, said = model.ignored, says(model)
            model.write(**copied(batch))
            ignored = applied.write(batch, size)
            assert shown(applied.rows) == shown(model.rows())
            assert ignored == model.ignored - before
            assert applied.closed_at_start == model.closed_at_start
            now = says(model)
            brought = {(row["k"], row[START]) for row in batch["update"] + batch["replace"]}
            # Rows of the batch are written, unless their values were stored before.
            written = {
                record_key
                for record_key in brought & now.keys()
                if said.get(record_key) != now[record_key]
            }
            assert sorted(applied.counted, key=repr) == sorted(written, key=repr)


def has_overlaps(model: HistoryTable) -> bool:
    """Return whether two versions of a record are valid at the same time: the sender's error."""
    for versions in model.versions.values():
        starts = sorted(versions)
        if any(versions[start][END] >= later for start, later in pairwise(starts)):
            return True
    return False


def test_a_delete_ends_all_versions_that_are_valid_at_its_time() -> None:
    """Of versions that overlap, the sender's error, none is active after a delete."""
    model, applied = HistoryTable(("k",), COLUMNS), Applied()
    rows = [
        {"k": 1, "a": 1, "b": 1, START: start, END: TMAX, ACTIVE: True} for start in (500, 1_000)
    ]
    first = {"update": [], "replace": rows, "delete": [{"k": 1, END: 1_000}], "earliest": []}
    second = {"update": [], "replace": [], "delete": [{"k": 1, END: 2_500}], "earliest": []}
    for batch in (first, second, second):
        model.write(**copied(batch))
        applied.write(batch, 1)
        assert shown(applied.rows) == shown(model.rows())
        assert not any(row[ACTIVE] for row in applied.rows)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5)), max_size=40))
def test_the_greatest_so_far_is_that_of_the_run(rows: list[tuple[int, int]]) -> None:
    rows = sorted(rows, key=lambda row: row[0])
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    runs = Runs.of(pa.table({"k": pa.array(keys, pa.int64())}), ("k",))

    found = runs.greatest_so_far(np.array(values, dtype=np.int64))

    assert found.tolist() == [
        max(value for key, value in rows[: place + 1] if key == keys[place])
        for place in range(len(rows))
    ]


def says(model: HistoryTable) -> dict[tuple[Any, int], tuple[Any, Any]]:
    """Return the values of each version, by key and start."""
    return {(row["k"], row[START]): (row["a"], row["b"]) for row in model.rows()}


def test_a_repeated_version_with_nan_is_unchanged() -> None:
    layout = scd2_fold.Layout(("k", "x", START, END, ACTIVE), ("k", "x"), ("k",), frozenset())
    fields = [field for field in EVENTS if field.name not in {"a", "b"}]
    schema = pa.schema([*fields, ("x", pa.float32())])

    def counts(stored: float | None, brought: float | None) -> bool:
        row = {scd2_fold.TIME: 500, SEQ: 0, "k": 1, START: 500, END: TMAX, ACTIVE: True}
        events = [
            {**row, scd2_fold.KIND: kind, "x": x}
            for kind, x in ((scd2_fold.STORED, stored), (scd2_fold.REPLACE, brought))
        ]
        found = scd2_fold.resolve(pa.Table.from_pylist(events, schema=schema), layout)
        return bool(found.column(scd2_fold.COUNTED).to_pylist()[-1])

    nan = float("nan")
    assert not counts(nan, nan)
    assert not counts(None, None)
    assert not counts(1.5, 1.5)
    for before, other in (
        (nan, None),
        (None, nan),
        (nan, 1.0),
        (1.0, nan),
        (None, 1.0),
        (1.0, None),
    ):
        assert counts(before, other)


LIVE = ("k", "a", "b")


@st.composite
def live_batches(draw: Any) -> list[dict[str, list[dict[str, Any]]]]:
    return [
        {
            kind: [
                {"k": draw(keys), "a": draw(cell), "b": draw(cell)}
                for _ in range(draw(st.integers(0, 4)))
            ]
            for kind, cell in (
                ("replace", cells),
                ("update", st.one_of(cells, st.just(KEEP))),
                ("delete", st.none()),
            )
        }
        for _ in range(draw(st.integers(1, 4)))
    ]


@settings(max_examples=examples(300))
@given(live_batches(), st.integers(1, 7))
def test_a_batch_follows_the_rules(batches: Any, size: int) -> None:
    """Repeated keys, partial updates, null keys and deletes: the fold and the model agree."""
    layout = scd2_fold.Layout(LIVE, LIVE, ("k",), frozenset({"a", "b"}))
    schema = pa.schema(
        [
            (upsert_fold.KIND, pa.int32()),
            (SEQ, pa.int64()),
            (UNMODIFIED, pa.list_(pa.int64())),
            *((name, pa.int64()) for name in LIVE),
        ]
    )
    kinds = {
        "replace": upsert_fold.REPLACE,
        "update": upsert_fold.UPDATE,
        "delete": upsert_fold.DELETE,
    }
    model = KeyedTable(("k",), LIVE)
    rows: list[dict[str, Any]] = []
    for batch in batches:
        before = model.ignored
        model.write(**copied(batch))
        touched = {row["k"] for kind in batch.values() for row in kind}
        events = [
            {upsert_fold.KIND: upsert_fold.STORED, SEQ: 0, UNMODIFIED: None, **row}
            for row in rows
            if row["k"] in touched
        ]
        for name, kind in kinds.items():
            for seq, row in enumerate(batch[name]):
                bits = sum(1 << place for place, cell in enumerate(LIVE) if row[cell] is KEEP)
                plain = {cell: None if row[cell] is KEEP else row[cell] for cell in LIVE}
                events.append(
                    {
                        upsert_fold.KIND: kind,
                        SEQ: seq,
                        UNMODIFIED: [bits] if bits else None,
                        **plain,
                    }
                )
        events.sort(key=lambda e: sort_key(e, upsert_fold.KIND, SEQ))
        batches_of = pa.Table.from_pylist(events, schema=schema).to_batches(max_chunksize=size)
        pieces = fold_by_run(
            batches_of, ("k",), lambda table: upsert_fold.final_rows(table, layout)
        )
        final = [row for piece in pieces for row in piece.to_pylist()]
        ignored = sum(
            row.pop(upsert_fold.IGNORED) for row in list(final) if row[upsert_fold.IGNORED]
        )
        final = [row for row in final if upsert_fold.IGNORED in row]
        rows = [row for row in rows if row["k"] not in touched]
        rows += [{name: row[name] for name in LIVE} for row in final]
        expected = [tuple(row[name] for name in LIVE) for row in model.rows()]
        assert sorted((tuple(r[n] for n in LIVE) for r in rows), key=repr) == sorted(
            expected, key=repr
        )
        deleted = {row["k"] for row in batch["delete"]}
        if not deleted:
            assert ignored == model.ignored - before
