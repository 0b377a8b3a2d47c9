"""The outcome of a read, and how two outcomes, or one and a case's expectations, differ."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from support.compat.api import Request

#: How much the two readers' clocks may differ, in a wait until a point in time.
SLACK = 2.0
#: The longest duration of a sync that a test stores in its state.
LONGEST = 60


@dataclass(frozen=True)
class Outcome:
    """The results of a reader for one stream, and its requests to the API."""

    records: list[dict[str, Any]]
    state: Any
    failure: str | None
    waits: list[float]
    requests: list[Request]
    log: list[str] = field(default_factory=list)


def steady(state: Any) -> Any:
    """Return a state without the parts that depend on the clock or the order of threads."""
    if isinstance(state, list):
        return [steady(inner) for inner in state]
    if not isinstance(state, Mapping):
        return state
    plain = {key: steady(inner) for key, inner in state.items()}
    took = plain.get("lookback_window")
    if isinstance(took, int) and 0 < took < LONGEST:
        plain["lookback_window"] = 1
    if isinstance(plain.get("states"), list):
        plain["states"] = sorted(plain["states"], key=_line)
    return plain


def _line(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _counted(title: str, there: Iterable[str], here: Iterable[str]) -> Iterator[str]:
    expected, given = Counter(there), Counter(here)
    for line, times in sorted((expected - given).items()):
        yield f"{title} missing{f' ({times} times)' if times > 1 else ''}: {line}"
    for line, times in sorted((given - expected).items()):
        yield f"{title} too many{f' ({times} times)' if times > 1 else ''}: {line}"


def _same_waits(there: list[float], here: list[float]) -> bool:
    return len(there) == len(here) and all(
        abs(seconds - other) <= (SLACK if seconds > SLACK else 0.01)
        for seconds, other in zip(sorted(there), sorted(here), strict=True)
    )


def differences(
    reference: Outcome, ours: Outcome, compare: Mapping[str, Any], apart: Iterable[str] = ()
) -> list[str]:
    """Describe how our outcome differs from the reference's; empty if they are equal.

    `compare` lists what is compared loosely or not at all, `apart` what differs on purpose.
    """
    left_out = {*apart, *(part for part, how in compare.items() if how is False)}
    found: list[str] = []
    if "failure" not in left_out and bool(reference.failure) != bool(ours.failure):
        found.append(f"failure: theirs {reference.failure!r}, ours {ours.failure!r}")
    if "records" not in left_out:
        found += _counted("record", map(_line, reference.records), map(_line, ours.records))
    if "requests" not in left_out:
        asked = [[request.text for request in side.requests] for side in (reference, ours)]
        if compare.get("requests") == "set":
            asked = [sorted(set(side)) for side in asked]
        found += _counted("request", *asked)
    if "state" not in left_out and steady(reference.state) != steady(ours.state):
        found.append(
            f"state: theirs {_line(steady(reference.state))}, ours {_line(steady(ours.state))}"
        )
    if "waits" not in left_out and not _same_waits(reference.waits, ours.waits):
        found.append(f"waits: theirs {reference.waits}, ours {ours.waits}")
    return found


def unmet(outcome: Outcome, expect: Mapping[str, Any], *, words: bool = True) -> list[str]:
    """Describe how an outcome differs from what a case expects.

    With `words`, a failure's message is compared, too; two readers may word it differently.
    """
    found: list[str] = []
    for part, wanted in expect.items():
        if part != "failure":
            found += _UNMET[part](outcome, wanted)
    wanted = expect.get("failure", False)
    if bool(wanted) != bool(outcome.failure):
        found.append(f"failure {outcome.failure!r}, expected {wanted!r}")
    elif words and isinstance(wanted, str) and wanted not in (outcome.failure or ""):
        found.append(f"failure {outcome.failure!r} does not say {wanted!r}")
    return found


def _unmet_records(outcome: Outcome, wanted: int | list[Any]) -> Iterator[str]:
    if isinstance(wanted, list):
        yield from _counted("record", map(_line, wanted), map(_line, outcome.records))
    elif len(outcome.records) != wanted:
        yield f"{len(outcome.records)} records, not {wanted}"


def _unmet_ids(outcome: Outcome, wanted: list[Any]) -> Iterator[str]:
    ids = [_line(record.get("id")) for record in outcome.records]
    yield from _counted("id", map(_line, wanted), ids)


def _unmet_requests(outcome: Outcome, wanted: int | list[str]) -> Iterator[str]:
    if isinstance(wanted, list):
        yield from _counted("request", wanted, [request.line for request in outcome.requests])
    elif len(outcome.requests) != wanted:
        yield f"{len(outcome.requests)} requests, not {wanted}"


def _unmet_sent(outcome: Outcome, wanted: list[str]) -> Iterator[str]:
    yield from _counted("request", wanted, [request.text for request in outcome.requests])


def _unmet_state(outcome: Outcome, wanted: Any) -> Iterator[str]:
    if steady(outcome.state) != steady(wanted):
        yield f"state {_line(steady(outcome.state))}, not {_line(steady(wanted))}"


def _unmet_waits(outcome: Outcome, wanted: list[float]) -> Iterator[str]:
    if not _same_waits(list(map(float, wanted)), outcome.waits):
        yield f"waits {outcome.waits}, not {wanted}"


#: Expectations that a case may have, beside a failure; `sent` are requests with header and body.
_UNMET: dict[str, Callable[[Outcome, Any], Iterator[str]]] = {
    "records": _unmet_records,
    "ids": _unmet_ids,
    "requests": _unmet_requests,
    "sent": _unmet_sent,
    "state": _unmet_state,
    "waits": _unmet_waits,
}
