"""The small universe: every short sequence of events, split into batches in every way."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from chronolake import core
from chronolake.types import TableName
from support.oracle import ACTIVE, END, KEEP, MILLISECOND, START, TMAX, Row, violated_invariants
from support.server.caller import DELETED, HISTORY, SYNCED, Caller
from support.server.sent_rows import Batch, SentTable, differences, micros

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chronolake.lake import Lake

LENGTH = 4
_SYNCED, _DELETED = "_fivetran_synced", "_fivetran_deleted"
_BEGIN, _HOUR = micros("2024-01-01T00:00:00+00:00"), 3_600_000_000


@dataclass(frozen=True)
class Scenario:
    """A key's events, split into batches: `parts` holds the places of the events of each batch."""

    key: int
    events: str
    parts: tuple[tuple[int, ...], ...]

    def part(self, number: int) -> tuple[int, ...]:
        return self.parts[number] if number < len(self.parts) else ()


def compositions(length: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield every way to split 0, 1, … into consecutive parts."""
    for cuts in itertools.product((False, True), repeat=length - 1):
        parts: list[tuple[int, ...]] = [(0,)]
        for place, cut in enumerate(cuts, start=1):
            if cut:
                parts.append((place,))
            else:
                parts[-1] = (*parts[-1], place)
        yield tuple(parts)


def universe(letters: str) -> list[Scenario]:
    strings = (
        "".join(string)
        for length in range(1, LENGTH + 1)
        for string in itertools.product(letters, repeat=length)
    )
    cases = ((string, parts) for string in strings for parts in compositions(len(string)))
    return [Scenario(key, string, parts) for key, (string, parts) in enumerate(cases)]


def time_of(place: int) -> int:
    return _BEGIN + place * _HOUR


# --------------------------------------------------------------------------- history tables


def history_batch(scenarios: Sequence[Scenario], number: int) -> Batch:
    """Return a batch as a sender makes it: ends and active flags are right within the batch."""
    kinds: defaultdict[str, list[Row]] = defaultdict(list)
    for scenario in scenarios:
        places = scenario.part(number)
        begins = [place for place in places if scenario.events[place] != "d"]
        if begins:
            kinds["earliest"].append({"id": scenario.key, START: time_of(begins[0])})
        for place in places:
            event = scenario.events[place]
            row: Row = {"id": scenario.key, _SYNCED: time_of(place) + 7}
            if event == "d":
                kinds["delete"].append(
                    {**row, "a": None, "b": None, START: None, END: time_of(place), ACTIVE: False}
                )
                continue
            following = [other for other in begins if other > place]
            row |= {START: time_of(place), END: TMAX, ACTIVE: True}
            if following:
                row |= {END: time_of(following[0]) - MILLISECOND, ACTIVE: False}
            if event == "p":
                kinds["update"].append({**row, "a": f"p{place}", "b": KEEP})
            else:
                kinds["replace"].append({**row, "a": event, "b": f"{event}{place}"})
    return Batch(**kinds, shuffle=number, short_deletes=number % 2 == 1)


def timeline(scenario: Scenario) -> list[Row]:
    """Return the versions that the events make in order, whatever the batches are."""
    versions: list[Row] = []
    for place, event in enumerate(scenario.events):
        at = time_of(place)
        newest = versions[-1] if versions else None
        if event == "d":
            if newest and newest[ACTIVE]:
                newest |= {END: at, ACTIVE: False}
            continue
        if event == "p" and newest is None:
            continue
        if newest and newest[ACTIVE]:
            newest |= {END: at - MILLISECOND, ACTIVE: False}
        cells = {"a": event, "b": f"{event}{place}"}
        if event == "p":
            cells = {"a": f"p{place}", "b": newest["b"] if newest else None}
        versions.append(
            {"id": scenario.key, **cells, START: at, END: TMAX, ACTIVE: True, _SYNCED: at + 7}
        )
    return versions


@pytest.mark.long
@pytest.mark.parametrize("times", [1, 2])
def test_history_does_not_depend_on_how_it_is_batched_or_repeated(
    caller: Caller, lake: Lake, times: int
) -> None:
    sent = SentTable(caller, "t", ["id*:LONG", "a:STRING", "b:STRING", *HISTORY]).create()
    scenarios, model = universe("ABpd"), sent.oracle()
    for number in range(LENGTH):
        batch = history_batch(scenarios, number)
        request = sent.request(batch)
        for _ in range(times):
            sent.send(request)
            model.write(**batch.rows)
    found = sent.rows()
    assert not differences(found, model.rows(), sent.key)
    in_order = [row for scenario in scenarios for row in timeline(scenario)]
    assert not differences(found, in_order, sent.key)
    assert not violated_invariants(found, sent.key)
    report = core.verify(lake, TableName(caller.schema, "t"))
    assert report.holds, report


# --------------------------------------------------------------- live and soft-delete tables


def keyed_batch(scenarios: Sequence[Scenario], number: int, *, soft: bool) -> Batch:
    kinds: defaultdict[str, list[Row]] = defaultdict(list)
    mark = {_DELETED: False} if soft else {}
    for scenario in scenarios:
        for place in scenario.part(number):
            event = scenario.events[place]
            row: Row = {"id": scenario.key, **mark, _SYNCED: time_of(place) + 7}
            if event == "d":
                kinds["delete"].append(row)
            elif event == "p":
                kinds["update"].append({**row, "a": f"p{place}", "b": KEEP})
            elif event == "s":
                kinds["update"].append({**row, "a": KEEP, "b": KEEP, _DELETED: True})
            else:
                kinds["replace"].append({**row, "a": event, "b": f"{event}{place}"})
    return Batch(**kinds, shuffle=number, short_deletes=number % 2 == 1)


@pytest.mark.parametrize(
    ("letters", "times"),
    [
        pytest.param("ABpd", 1, id="live"),
        pytest.param("Apsd", 1, id="soft", marks=pytest.mark.long),
        pytest.param("Apsd", 2, id="soft-twice", marks=pytest.mark.long),
    ],
)
def test_a_keyed_table_holds_what_the_batches_left(
    caller: Caller, lake: Lake, letters: str, times: int
) -> None:
    soft = [DELETED] if "s" in letters else []
    sent = SentTable(caller, "t", ["id*:LONG", "a:STRING", "b:STRING", SYNCED, *soft]).create()
    scenarios, model = universe(letters), sent.oracle()
    for number in range(LENGTH):
        batch = keyed_batch(scenarios, number, soft=bool(soft))
        request = sent.request(batch)
        for _ in range(times):
            sent.send(request)
            model.write(**batch.rows)
    assert not sent.differences(model)
    assert core.verify(lake, TableName(caller.schema, "t")).holds
