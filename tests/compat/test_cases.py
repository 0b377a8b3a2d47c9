"""The same manifest, API and state: equal records, requests, states and waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.compat import ours
from support.compat.case import PARTS, Case, cases
from support.compat.outcome import Outcome, differences, unmet
from support.compat.readers import Reference, readings
from support.compat.server import Server

CASES = list(cases())
#: Parts of an outcome that a case may expect in another form.
_SHOWN_BY = {"ids": "records", "sent": "requests"}


def named(case: Case) -> str:
    return case.name.replace(" ", "-")


def apart(differs: Any) -> set[str]:
    """Return the parts in which ours differs on purpose."""
    expected = (differs or {}).get("expect", {})
    return {_SHOWN_BY.get(part, part) for part in expected} & set(PARTS)


def read_by_both() -> list[Any]:
    """Return the cases of manifests; CI runs every second one, `make test-compat` all."""
    found = [case for case in CASES if not case.is_of_cdk]
    return [
        pytest.param(case, marks=pytest.mark.long) if number % 2 else case
        for number, case in enumerate(found)
    ]


@pytest.mark.parametrize("case", read_by_both(), ids=named)
def test_read_as_the_reference_reads(case: Case, reader: Reference, server: Server) -> None:
    _compared(case, reader, server, ours.outcome)


@pytest.mark.parametrize("case", [case for case in CASES if case.is_of_cdk], ids=named)
def test_classes_of_the_reference_do_here_what_they_do_there(
    case: Case, reader: Reference, beside: Reference, server: Server
) -> None:
    def outcome(server: Server, api: list[dict[str, Any]], **question: Any) -> Outcome:
        return beside.outcome(server, api, **question)

    _compared(case, reader, server, outcome)


def _compared(
    case: Case, reader: Reference, server: Server, outcome: Callable[..., Outcome]
) -> None:
    for number, (sync, (state, theirs)) in enumerate(
        zip(case.syncs, readings(case, reader, server), strict=True)
    ):
        assert not unmet(theirs, sync.expect), f"{case.name} #{number}: not what the case shows"
        found = outcome(
            server,
            sync.api,
            manifest=case.manifest,
            config=case.configured(server.address),
            stream=case.stream,
            state=state,
            components=case.components,
        )
        reported = differences(theirs, found, case.compare, apart(sync.differs))
        if sync.differs:
            assert differences(theirs, found, case.compare), f"{case.name} #{number}: alike by now"
            reported += unmet(found, {"failure": bool(theirs.failure), **sync.differs["expect"]})
        assert not reported, f"{case.name} #{number}, from {state}: {case.shows}\n" + "\n".join(
            reported
        )


@pytest.mark.differs("more than 10,000 partitions")
def test_the_oldest_partitions_are_dropped_where_the_reference_switches_to_a_global_cursor(
    reader: Reference, server: Server
) -> None:
    """The document drops the oldest partitions beyond 10,000; the reference then has one cursor."""
    case = next(case for case in CASES if case.name == "state per partition")
    cursor = {"updated": "2024-01-20"}
    states = [
        {"partition": {"team": f"old {number}"}, "cursor": cursor} for number in range(10_001)
    ]
    state = {"use_global_cursor": False, "states": states, "state": cursor, "lookback_window": 0}
    question = {
        "manifest": case.manifest,
        "config": case.configured(server.address),
        "stream": case.stream,
        "state": state,
    }

    theirs = reader.outcome(server, case.syncs[0].api, **question)
    found = ours.outcome(server, case.syncs[0].api, **question)

    assert theirs.state["use_global_cursor"] is True
    assert "states" not in theirs.state
    kept = [partition_state["partition"]["team"] for partition_state in found.state["states"]]
    assert found.state["use_global_cursor"] is False
    assert len(kept) == 10_000
    assert {"a", "b", "c"} <= set(kept)
    assert "old 0" not in kept


def test_cases_are_many_and_named_apart() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    assert len(names) >= 60
