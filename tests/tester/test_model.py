"""The expected contents: the worked examples, and invariants of any sequence of batches."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronolake.tester import values
from chronolake.tester.definition import DELETED_COLUMN, HISTORY_SPECS, ColumnSpec, TableDefinition
from chronolake.tester.model import Model, ModelRefusal
from chronolake.tester.rows import Changes, FileKind, Marker
from chronolake.types import TMAX_TEXT, Kind

SYNCED = ColumnSpec("_fivetran_synced", Kind.UTC_DATETIME)
KEY = ColumnSpec("k", Kind.INT, key=True)
A, B = ColumnSpec("a", Kind.STRING), ColumnSpec("b", Kind.STRING)
PLAIN = TableDefinition((KEY, A, B, SYNCED, DELETED_COLUMN))
HISTORY = TableDefinition((KEY, A, B, SYNCED, *HISTORY_SPECS))
UNMOD = Marker.UNMODIFIED


def day(text):
    """Format a day of 2024: `02-01`; with a minus sign, one millisecond before it."""
    if text == "TMAX":
        return TMAX_TEXT
    before = text.startswith("-")
    nanos = values.nanos(f"2024-{text.removeprefix('-')}T00:00:00Z")
    return values.time_text(nanos - before * values.NANOS_PER_MILLI)


def version(k, a, b, start, end, *, active):
    """Return a row of a history file."""
    return {
        "k": str(k),
        "a": a,
        "b": b,
        "_fivetran_synced": day("12-01"),
        "_fivetran_start": day(start),
        "_fivetran_end": day(end),
        "_fivetran_active": "true" if active else "false",
    }


def ended(k, end):
    """Return a row of a delete file."""
    row = dict.fromkeys(HISTORY.names, Marker.NULL)
    return {**row, "k": str(k), "_fivetran_end": day(end), "_fivetran_active": "false"}


def earliest(k, start):
    return {"k": str(k), "_fivetran_start": day(start)}


def batch(*, earliest=(), upsert=(), update=(), delete=()):
    lists = {"earliest": earliest, "upsert": upsert, "update": update, "delete": delete}
    return Changes(
        "t", HISTORY, {FileKind(kind): tuple(rows) for kind, rows in lists.items() if rows}
    )


def history(*batches):
    model = Model()
    model.create("t", HISTORY)
    for batch in batches:
        model.write_history(batch)
    return model


def timeline(model):
    rows = model.dump()["t"]["rows"]
    names = ("k", "a", "b", "_fivetran_start", "_fivetran_end", "_fivetran_active")
    return [tuple(row[name] for name in names) for row in rows]


STORED = batch(
    upsert=[
        version(7, "x0", "y0", "01-01", "-02-01", active=False),
        version(7, "x1", "y1", "02-01", "TMAX", active=True),
        version(8, "p", "q", "01-10", "TMAX", active=True),
        version(9, "r", "s", "01-15", "TMAX", active=True),
    ]
)
EXAMPLE = batch(
    earliest=[earliest(7, "03-01"), earliest(8, "01-05")],
    upsert=[version(8, "P", "Q", "01-05", "TMAX", active=True)],
    update=[
        version(7, "x2", UNMOD, "03-01", "-04-01", active=False),
        version(7, UNMOD, "y3", "04-01", "TMAX", active=True),
    ],
    delete=[ended(9, "03-03")],
)
EXAMPLE_RESULT = [
    (7, "x0", "y0", day("01-01"), day("-02-01"), False),
    (7, "x1", "y1", day("02-01"), day("-03-01"), False),
    (7, "x2", "y1", day("03-01"), day("-04-01"), False),
    (7, "x2", "y3", day("04-01"), TMAX_TEXT, True),
    (8, "P", "Q", day("01-05"), TMAX_TEXT, True),
    (9, "r", "s", day("01-15"), day("03-03"), False),
]


def test_the_worked_example_of_the_specification_is_reproduced():
    assert timeline(history(STORED, EXAMPLE)) == EXAMPLE_RESULT


def test_the_worked_example_sent_twice_is_the_same():
    assert timeline(history(STORED, EXAMPLE, EXAMPLE)) == EXAMPLE_RESULT


def test_a_late_update_shortens_the_closed_version_and_starts_history_again_there():
    late = batch(
        earliest=[earliest(7, "01-20")],
        update=[version(7, UNMOD, "late", "01-20", "TMAX", active=True)],
    )
    assert timeline(history(STORED, late))[:2] == [
        (7, "x0", "y0", day("01-01"), day("-01-20"), False),
        (7, "x0", "late", day("01-20"), TMAX_TEXT, True),
    ]


def test_a_version_that_ends_within_the_millisecond_before_is_closed_at_its_begin():
    first = [version(1, "x", "y", "01-01", "TMAX", active=True)]
    deleted = {**ended(1, "01-10"), "_fivetran_end": "2024-01-09T23:59:59.999500Z"}
    again = [version(1, "z", "y", "01-10", "TMAX", active=True)]
    model = history(
        batch(earliest=[earliest(1, "01-01")], upsert=first, delete=[deleted]),
        batch(earliest=[earliest(1, "01-10")], upsert=again),
    )
    assert timeline(model)[0] == (1, "x", "y", day("01-01"), day("-01-10"), False)


def test_an_update_older_than_everything_takes_what_it_removes_as_its_base():
    older = batch(update=[version(8, "new", UNMOD, "01-01", "TMAX", active=True)])
    assert timeline(history(STORED, older))[2] == (8, "new", "q", day("01-01"), TMAX_TEXT, True)


def test_an_update_without_any_version_is_ignored_and_counted():
    model = history(batch(update=[version(1, "a", "b", "01-01", "TMAX", active=True)]))
    assert timeline(model) == []
    assert model.tables["t"].ignored == 1


def test_a_record_deleted_before_is_the_base_of_an_update():
    gone = batch(delete=[ended(8, "02-01")])
    back = batch(
        earliest=[earliest(8, "03-01")],
        update=[version(8, "back", UNMOD, "03-01", "TMAX", active=True)],
    )
    rows = timeline(history(STORED, gone, back))
    assert [row for row in rows if row[0] == 8] == [
        (8, "p", "q", day("01-10"), day("02-01"), False),
        (8, "back", "q", day("03-01"), TMAX_TEXT, True),
    ]


def test_delete_and_re_insert_do_not_depend_on_their_batching():
    gone = ended(8, "02-01")
    back = version(8, "P", "Q", "03-01", "TMAX", active=True)
    together = batch(earliest=[earliest(8, "03-01")], upsert=[back], delete=[gone])
    apart = batch(delete=[gone]), batch(earliest=[earliest(8, "03-01")], upsert=[back])
    # In two batches the delete ends the version; in one it does so after the re-insert closed it.
    assert timeline(history(STORED, together)) == timeline(history(STORED, *apart))


def test_a_delete_from_before_the_active_version_closes_it_at_its_start():
    gone = batch(delete=[ended(8, "01-05"), ended(7, "01-20")])
    for batches in ([gone], [gone, gone]):
        assert timeline(history(STORED, *batches)) == [
            (7, "x0", "y0", day("01-01"), day("01-20"), False),  # a late delete: it is still back
            (7, "x1", "y1", day("02-01"), TMAX_TEXT, True),
            (8, "p", "q", day("01-10"), day("01-10"), False),
            (9, "r", "s", day("01-15"), TMAX_TEXT, True),
        ]


def test_a_delete_between_two_versions_closes_the_active_one_unless_it_is_of_the_same_request():
    stored = [
        version(1, "x", "y", "01-01", "01-10", active=False),
        version(1, "z", "y", "02-01", "TMAX", active=True),
    ]
    gone = batch(delete=[ended(1, "01-20")])
    assert timeline(history(batch(upsert=stored), gone, gone))[1:] == [
        (1, "z", "y", day("02-01"), day("02-01"), False)
    ]
    together = batch(earliest=[earliest(1, "01-01")], upsert=stored, delete=[ended(1, "01-20")])
    assert timeline(history(together, together))[1:] == [
        (1, "z", "y", day("02-01"), TMAX_TEXT, True)
    ]


def test_of_two_rows_with_one_start_the_replace_wins():
    both = batch(
        upsert=[version(8, "replaced", "r", "05-01", "TMAX", active=True)],
        update=[version(8, "updated", UNMOD, "05-01", "TMAX", active=True)],
    )
    assert (8, "replaced", "r", day("05-01"), TMAX_TEXT, True) in timeline(history(STORED, both))


def test_only_earliest_rows_close_and_remove():
    only = batch(earliest=[earliest(7, "02-01"), earliest(9, "01-20")])
    assert timeline(history(STORED, only)) == [
        (7, "x0", "y0", day("01-01"), day("-02-01"), False),
        (8, "p", "q", day("01-10"), TMAX_TEXT, True),
        (9, "r", "s", day("01-15"), day("-01-20"), False),
    ]


# One event a day at most for each key: every order of days is a possible history.
_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["upsert", "update a", "update b", "delete"]),
        st.integers(1, 3),
        st.integers(1, 28),
        st.sampled_from("mnop"),
    ),
    max_size=8,
    unique_by=lambda event: event[1:3],
)


def batch_of(events):
    """Return the batch that a sender makes of events."""
    lists = {"earliest": [], "upsert": [], "update": [], "delete": []}
    for k in {event[1] for event in events}:
        mine = sorted((event for event in events if event[1] == k), key=lambda event: event[2])
        begins = [event for event in mine if event[0] != "delete"]
        for event, following in zip(begins, [*begins[1:], None], strict=False):
            kind, _, at, value = event
            end = "TMAX" if following is None else f"-01-{following[2]:02d}"
            a = UNMOD if kind == "update b" else value
            b = UNMOD if kind == "update a" else value
            row = version(k, a, b, f"01-{at:02d}", end, active=following is None)
            lists[kind.split()[0]].append(row)
        if begins:
            lists["earliest"].append(earliest(k, f"01-{begins[0][2]:02d}"))
        lists["delete"] += [ended(k, f"01-{at:02d}") for kind, _, at, _ in mine if kind == "delete"]
    return batch(**lists)


@settings(max_examples=300)
@given(st.lists(_EVENTS, min_size=1, max_size=4))
def test_any_history_keeps_its_invariants_and_is_idempotent(batches):
    model, again = history(), history()
    for events in batches:
        model.write_history(batch_of(events))
        again.write_history(batch_of(events))
        again.write_history(batch_of(events))
        assert timeline(again) == timeline(model)
    by_key = {}
    for k, _, _, start, end, active in timeline(model):
        by_key.setdefault(k, []).append((values.nanos(start), values.nanos(end), active))
    for versions in by_key.values():
        assert sum(active for _, _, active in versions) <= 1
        assert all(start <= end for start, end, _ in versions)
        for (_, end, _), (start, _, _) in pairwise(versions):
            assert end < start


def plain(k, a, b, synced, deleted="false"):
    return {
        "k": str(k),
        "a": a,
        "b": b,
        "_fivetran_synced": day(synced),
        "_fivetran_deleted": deleted,
    }


def table_of(*records):
    model = Model()
    model.create("t", PLAIN)
    model.write(Changes("t", PLAIN, {FileKind.UPSERT: records}))
    return model


def contents(model):
    return {
        row["k"]: (row["a"], row["b"], row["_fivetran_deleted"])
        for row in model.dump()["t"]["rows"]
    }


def test_a_batch_replaces_then_updates_then_deletes():
    model = table_of(plain(1, "x", "y", "01-01"), plain(2, "x", "y", "01-01"))
    model.write(
        Changes(
            "t",
            PLAIN,
            {
                FileKind.UPSERT: (
                    plain(1, "first", Marker.NULL, "01-02"),
                    plain(1, "second", Marker.NULL, "01-02"),
                    plain(3, "z", "z", "01-02"),
                ),
                FileKind.UPDATE: (
                    plain(1, UNMOD, "b", "01-02"),
                    plain(2, UNMOD, UNMOD, "01-02", "true"),
                    plain(9, "nobody", UNMOD, "01-02"),
                ),
                FileKind.DELETE: ({**dict.fromkeys(PLAIN.names, Marker.NULL), "k": "3"},),
            },
        )
    )
    assert contents(model) == {1: ("second", "b", False), 2: ("x", "y", True)}
    assert model.tables["t"].ignored == 1


def test_truncate_takes_only_rows_synced_strictly_before():
    model = table_of(plain(1, "x", "y", "01-01"), plain(2, "x", "y", "01-02"))
    moment = values.micros(day("01-02"))
    assert model.truncate("t", before_micros=moment, deleted_column="_fivetran_deleted") == 1
    assert contents(model) == {1: ("x", "y", True), 2: ("x", "y", False)}
    assert model.truncate("t", before_micros=moment) == 1
    assert set(contents(model)) == {2}
    assert model.truncate("missing", before_micros=moment) == 0


def test_a_column_that_is_no_longer_wanted_is_retained_outside_the_key():
    model = table_of(plain(1, "x", "y", "01-01"))
    model.alter("t", PLAIN.without_columns(["a"]))
    assert model.dump()["t"]["retained"] == ["a"]
    assert contents(model)[1][0] == "x"
    model.alter("t", PLAIN.without_columns(["b"]), drop_columns=True)
    assert "b" not in model.tables["t"].definition.names


def test_a_key_that_rows_would_share_is_refused_and_nothing_changes():
    model = table_of(plain(1, "x", "y", "01-01"), plain(2, "x", "z", "01-01"))
    shared = TableDefinition(
        tuple(ColumnSpec(c.name, c.kind, key=c.name == "a") for c in PLAIN.columns)
    )
    with pytest.raises(ModelRefusal, match="share a key"):
        model.alter("t", shared)
    assert model.tables["t"].definition == PLAIN


def test_a_key_under_which_versions_would_overlap_is_refused():
    rows = [
        version(1, "same", "x", "01-01", "TMAX", active=True),
        version(2, "same", "y", "02-01", "TMAX", active=True),
    ]
    model = history(batch(earliest=[earliest(1, "01-01"), earliest(2, "02-01")], upsert=rows))
    without = HISTORY.with_column(replace(KEY, key=False))
    with pytest.raises(ModelRefusal, match="overlap"):
        model.alter("t", without.with_column(replace(A, key=True)))
    model.alter("t", without.with_column(replace(B, key=True)))


def test_values_that_do_not_fit_a_new_type_are_refused_and_nothing_changes():
    model = table_of(plain(1, "x", "y", "01-01"))
    with pytest.raises(ModelRefusal, match="do not fit INT"):
        model.alter("t", PLAIN.with_column(ColumnSpec("a", Kind.INT)))
    assert contents(model)[1][0] == "x"


def test_a_decimal_without_parameters_takes_those_that_are_described():
    bare = TableDefinition((KEY, ColumnSpec("n", Kind.DECIMAL)))
    model = Model()
    model.create("t", bare)
    model.write(Changes("t", bare, {FileKind.UPSERT: ({"k": "1", "n": "1.23456"},)}))
    model.settle_decimals("t", TableDefinition((KEY, ColumnSpec("n", Kind.DECIMAL, 18, 3))))
    assert model.tables["t"].rows[0]["n"] == Decimal("1.235")
