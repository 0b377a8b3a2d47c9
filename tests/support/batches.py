"""Strategies for random sequences of batches, as a careful or careless sender may send them.

Many keys share a batch, and no rule mixes keys, so one example tests many stories at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from hypothesis import strategies as st

from support.oracle import ACTIVE, END, KEEP, MILLISECOND, START, TMAX, Row

SYNCED: Final = "_fivetran_synced"
DELETED: Final = "_fivetran_deleted"
DATA: Final = {"a": "STRING", "n": "LONG", "d": "DECIMAL(12,3)"}
COLUMNS: Final = ["k*:LONG", "r*:STRING", *(f"{name}:{kind}" for name, kind in DATA.items())]

_VALUES: Final = {
    "STRING": lambda serial: f'{serial} "{serial}"',
    "LONG": lambda serial: -serial,
    "DECIMAL(12,3)": lambda serial: Decimal(serial).scaleb(-1).quantize(Decimal("0.001")),
}

#: Keys of two columns, either of which may be null; keys have equal values in one of them.
KEYS: Final = [(k, r) for k in (1, 2, 3, None) for r in ("x", "y,\n", "", None)]
_HOUR: Final = 3_600_000_000
_BEGIN: Final = 1_704_067_200_000_000  # 2024-01-01T00:00:00Z
_APART: Final = (0, 500, MILLISECOND, MILLISECOND + 1)
#: Hours, and instants that are less than a millisecond apart.
TIMES: Final = [
    _BEGIN + hour * _HOUR + apart for hour in range(4) for apart in (_APART if hour == 1 else (0,))
]


@dataclass(frozen=True)
class Sent:
    """One request of a story.

    Attributes:
        rows: the rows by kind of file, as the oracle takes them.
        files: the number of files for each kind's rows.
        times: how often the request is sent in a row.
        repeat: the number of an earlier request to send again after it, or None.
        truncate: truncate before this time afterwards, or None.
        without: a column that the request omits, or None.
    """

    rows: dict[str, list[Row]]
    files: int
    times: int
    repeat: int | None
    truncate: int | None
    without: str | None


@dataclass(frozen=True)
class _Event:
    kind: str
    key: int
    time: int
    kept: int
    null: int
    mark: int


def _events(kinds: Sequence[str], least: int, most: int) -> st.SearchStrategy[list[_Event]]:
    number = st.integers
    event = st.builds(
        _Event,
        kind=st.sampled_from(kinds),
        key=number(0, len(KEYS) - 1),
        time=number(0, len(TIMES) - 1),
        kept=number(0, 7),
        null=number(0, 7),
        mark=number(0, 3),
    )
    return st.lists(event, min_size=least, max_size=most)


def _stories(
    kinds: Sequence[str], build: Any, least: int, most: int, requests: int
) -> st.SearchStrategy[list[Sent]]:
    request = st.builds(
        build,
        events=_events(kinds, least, most),
        serial=st.integers(0, 999),
        files=st.integers(1, 3),
        times=st.sampled_from([1, 1, 1, 2]),
        repeat=st.none() | st.integers(0, requests - 1),
        truncate=st.none() | st.none() | st.sampled_from(TIMES),
        without=st.none() | st.none() | st.sampled_from([*DATA]),
    )
    return st.lists(request, min_size=2, max_size=requests)


def _cells(event: _Event, serial: int, without: str | None) -> Row:
    row: Row = dict(zip(("k", "r"), KEYS[event.key], strict=True))
    row[SYNCED] = TIMES[event.time]
    for place, (name, kind) in enumerate(DATA.items()):
        if name == without:
            continue
        if event.kind == "update" and event.kept >> place & 1:
            row[name] = KEEP
        elif event.null >> place & 1:
            row[name] = None
        else:
            row[name] = _VALUES[kind](serial)
    return row


# --------------------------------------------------------------------------- history tables


def _history_request(*, events: list[_Event], serial: int, without: str | None, **how: Any) -> Sent:
    """Return a request whose ends and active flags are right, as the sender sets them."""
    rows: defaultdict[str, list[Row]] = defaultdict(list)
    starts: defaultdict[int, set[int]] = defaultdict(set)
    for event in events:
        if event.kind in {"replace", "update"}:
            starts[event.key].add(TIMES[event.time])
    for number, event in enumerate(events):
        at = TIMES[event.time]
        row = _cells(event, serial + number, without)
        if event.kind == "earliest":
            rows["earliest"].append({"k": row["k"], "r": row["r"], START: at})
        elif event.kind == "delete":
            data = {name: None for name in DATA if name != without}
            rows["delete"].append({**row, **data, START: None, END: at, ACTIVE: False})
        else:
            row |= {START: at, END: TMAX, ACTIVE: True}
            following = [other for other in starts[event.key] if other > at]
            if following:
                row |= {END: min(following) - MILLISECOND, ACTIVE: False}
            elif not event.mark:
                row |= {END: at, ACTIVE: False}  # the record was deleted when it was made
            rows[event.kind].append(row)
    if serial % 3:  # the file that a sender must send; sometimes it is forgotten
        for key, found in starts.items():
            k, r = KEYS[key]
            rows["earliest"].append({"k": k, "r": r, START: min(found)})
    return Sent(dict(rows), without=without, **how)


def histories(*, least: int = 0, most: int, requests: int) -> st.SearchStrategy[list[Sent]]:
    """Return a strategy for requests to a history table.

    It includes late, repeated and deleted versions, partial updates, two rows with one start, rows
    older than everything else, and earliest rows without versions.
    """
    kinds = ["replace"] * 3 + ["update"] * 4 + ["delete"] * 3 + ["earliest"]
    return _stories(kinds, _history_request, least, most, requests)


# --------------------------------------------------------------- live and soft-delete tables


def _keyed_request(*, events: list[_Event], serial: int, without: str | None, **how: Any) -> Sent:
    rows: defaultdict[str, list[Row]] = defaultdict(list)
    for number, event in enumerate(events):
        row = _cells(event, serial + number, without) | {DELETED: event.mark == 0}
        if event.kind == "delete":
            row |= {name: None for name in (*DATA, DELETED) if name != without}
        rows[event.kind].append(row)
    return Sent(dict(rows), without=without, **how)


def keyed_stories(*, least: int = 0, most: int, requests: int) -> st.SearchStrategy[list[Sent]]:
    """Return a strategy for requests to a soft-delete table.

    A key may be in every kind of file, and twice in one.
    """
    kinds = ["replace"] * 3 + ["update"] * 4 + ["delete"] * 2
    return _stories(kinds, _keyed_request, least, most, requests)
