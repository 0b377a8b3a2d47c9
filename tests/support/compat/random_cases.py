"""Random manifests with random data: a cursor, its state, pages, partitions, failures.

What differs on purpose is left out: a lookback never reaches before start_datetime, and texts of
times sort as the times do. (A remainder as long as a step cannot be left out beforehand: see
`ends_with_a_whole_step`.)
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from support.compat.api import Request
from support.compat.case import whole

UTC = dt.timezone.utc  # noqa: UP017 - shorter where it is used
BASE = dt.datetime(2024, 1, 1, tzinfo=UTC)
PARTITIONS = ("a", "b", "c")
SIZE = 2


@dataclass(frozen=True)
class Form:
    """A manifest's format of times, and its smallest unit."""

    format: str
    granularity: str
    unit: dt.timedelta
    written: Callable[[dt.datetime], str]
    read: Callable[[str], dt.datetime]


def _textual(format: str, granularity: str, unit: dt.timedelta) -> Form:  # noqa: A002
    return Form(
        format,
        granularity,
        unit,
        lambda time: time.strftime(format),
        lambda text: dt.datetime.strptime(text, format).replace(tzinfo=UTC),
    )


def _counted(format: str, granularity: str, unit: dt.timedelta) -> Form:  # noqa: A002
    epoch = dt.datetime.fromtimestamp(0, UTC)
    return Form(
        format,
        granularity,
        unit,
        lambda time: str((time - epoch) // unit),
        lambda text: epoch + int(text) * unit,
    )


FORMS = (
    _textual("%Y-%m-%d", "P1D", dt.timedelta(days=1)),
    _textual("%Y-%m-%dT%H:%M:%SZ", "PT1S", dt.timedelta(seconds=1)),
    _textual("%Y-%m-%dT%H:%M:%S.%fZ", "PT0.000001S", dt.timedelta(microseconds=1)),
    _textual("%Y%m%dT%H", "PT1H", dt.timedelta(hours=1)),
    _counted("%s", "PT1S", dt.timedelta(seconds=1)),
    _counted("%ms", "PT0.001S", dt.timedelta(milliseconds=1)),
)
#: Lengths of steps; None for a month, whose length depends on the calendar.
STEPS = {
    "P1D": dt.timedelta(days=1),
    "P3D": dt.timedelta(days=3),
    "P1W": dt.timedelta(days=7),
    "P30D": dt.timedelta(days=30),
    "P1M": None,
}


@dataclass(frozen=True)
class World:
    """A manifest, and the API's content at each of two syncs."""

    manifest: dict[str, Any]
    state: Any
    apis: tuple[list[dict[str, Any]], ...]
    form: Form
    step: dt.timedelta | None
    end: str

    def up_to_end(self, text: str) -> str:
        """Return a time, or the end of the last slice, whichever is earlier."""
        cursor = self.manifest["streams"][0]["incremental_sync"]
        end = self.form.read(self.end)
        if cursor.get("is_compare_strictly"):
            # A slice that would begin at the end is omitted.
            end -= self.form.unit
        return self.form.written(min(self.form.read(text), end))

    def ends_with_a_whole_step(self, asked: Iterable[Request]) -> bool:
        """Return whether a last slice is as long as a step, which ours cuts in two."""
        for request in asked:
            start, end = request.value("start"), request.value("end")
            if end == self.end and start and self.step is not None:
                length = self.form.read(end) - self.form.read(start)
                if length == self.step:
                    return True
        return False


def times(form: Form, first: int, last: int) -> st.SearchStrategy[dt.datetime]:
    """Draw times of a form, between two days."""
    unit = max(form.unit, dt.timedelta(hours=1))
    hours = st.integers(0, int(dt.timedelta(days=last - first) / unit))
    fine = st.sampled_from([0, 0, 1]) if form.unit < unit else st.just(0)
    return st.builds(
        lambda many, more: BASE + dt.timedelta(days=first) + many * unit + more * form.unit,
        hours,
        fine,
    )


@st.composite
def rows(draw: st.DrawFn, form: Form, *, first: int = 1) -> list[dict[str, Any]]:
    """Draw records on time, late, in the future, without a time, and with an unreadable one."""
    written = times(form, -5, 45).map(form.written)
    odd = st.sampled_from([None, "", "soon", "20th"]) if draw(st.booleans()) else written
    value = st.one_of(written, written, written, odd)
    found = []
    for number in range(draw(st.sampled_from([3, 6, 9, 1, 0]))):
        row: dict[str, Any] = {"id": first + number, "kind": draw(st.sampled_from(PARTITIONS))}
        if draw(st.integers(0, 9)) < 9:
            row["updated"] = draw(value)
        found.append(row)
    return found


def option(name: str) -> dict[str, str]:
    return {"type": "RequestOption", "inject_into": "request_parameter", "field_name": name}


def paginators() -> st.SearchStrategy[tuple[dict[str, Any] | None, dict[str, Any] | None]]:
    """Draw a paginator, and how the API pages."""

    def made(
        strategy: dict[str, Any], token: dict[str, Any] | None, pages: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        paginator = {"type": "DefaultPaginator", "pagination_strategy": strategy}
        if token is not None:
            paginator["page_token_option"] = token
        if "page_size" in strategy:
            paginator["page_size_option"] = option("size")
        return paginator, {"size": SIZE, **pages}

    def numbered(first: int, sized: bool, injected: bool) -> tuple[Any, Any]:
        strategy = {"type": "PageIncrement", "start_from_page": first}
        strategy |= {"page_size": SIZE} if sized else {}
        strategy |= {"inject_on_first_request": True} if injected else {}
        return made(strategy, option("page"), {"by": "page", "from": "page", "first": first})

    def offset(sized: bool, injected: bool) -> tuple[Any, Any]:
        strategy: dict[str, Any] = {"type": "OffsetIncrement"}
        strategy |= {"page_size": SIZE} if sized else {}
        strategy |= {"inject_on_first_request": True} if injected else {}
        return made(strategy, option("offset"), {"by": "offset", "from": "offset"})

    cursor = {
        "type": "CursorPagination",
        "cursor_value": "{{ response.get('next') }}",
        "stop_condition": "{{ not response.get('next') }}",
    }
    link = {
        "type": "CursorPagination",
        "cursor_value": "{{ headers['link']['next']['url'] }}",
        "stop_condition": "{{ 'next' not in headers['link'] }}",
    }
    truth = st.booleans()
    return st.one_of(
        st.just((None, None)),
        st.builds(numbered, st.integers(0, 1), truth, truth),
        st.builds(offset, truth, truth),
        st.just(made(cursor, option("after"), {"by": "cursor", "from": "after", "to": "next"})),
        st.just(made(link, {"type": "RequestPath"}, {"by": "link"})),
    )


def router(kind: str, requester: dict[str, Any], cursor: dict[str, Any]) -> dict[str, Any]:
    """Return a partition router: a list, parents, or parents that are read incrementally."""
    if kind == "list":
        return {
            "type": "ListPartitionRouter",
            "cursor_field": "kind",
            "values": list(PARTITIONS),
            "request_option": option("kind"),
        }
    parents: dict[str, Any] = {
        "name": "kinds",
        "retriever": {
            "type": "SimpleRetriever",
            "requester": {**requester, "path": "/kinds"},
            "record_selector": {"extractor": {"field_path": []}},
        },
    }
    config: dict[str, Any] = {
        "type": "ParentStreamConfig",
        "stream": parents,
        "parent_key": "name",
        "partition_field": "kind",
        "request_option": option("kind"),
    }
    if kind == "dependent":
        parents["incremental_sync"] = cursor
        config["incremental_dependency"] = True
    return {"type": "SubstreamPartitionRouter", "parent_stream_configs": [config]}


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Draw a world in which both readers must do the same."""
    form = draw(st.sampled_from(FORMS))
    step = draw(st.sampled_from([None, *STEPS]))
    kind = draw(st.sampled_from(["none", "none", "list", "parents", "dependent"]))
    start = BASE + dt.timedelta(days=draw(st.integers(0, 5)))
    end = draw(times(form, 6, 40))
    lookback = draw(st.sampled_from([0, 0, 1, 4]))
    cursor: dict[str, Any] = {
        "type": "DatetimeBasedCursor",
        "cursor_field": "updated",
        "datetime_format": form.format,
        "start_datetime": form.written(start),
        "end_datetime": form.written(end),
        "start_time_option": option("start"),
        "end_time_option": option("end"),
    }
    if step is not None:
        cursor |= {"step": step, "cursor_granularity": form.granularity}
    requester = {"type": "HttpRequester", "url_base": "{{ config['api'] }}", "path": "/items"}
    retriever: dict[str, Any] = {
        "type": "SimpleRetriever",
        "requester": requester,
        "record_selector": {"extractor": {"field_path": ["data"]}},
    }
    paginator, pages = draw(paginators())
    if paginator is not None:
        retriever["paginator"] = paginator
    if kind != "none":
        retriever["partition_router"] = router(kind, requester, cursor)
    own = dict(cursor)
    if draw(st.booleans()) and kind != "none":
        own["global_substream_cursor"] = True
    if filtering := draw(
        st.sampled_from(["", "", "is_client_side_incremental", "is_data_feed", "strictly"])
    ):
        own["is_compare_strictly" if filtering == "strictly" else filtering] = True
    state = draw(states(form, kind, start + dt.timedelta(days=lookback)))
    if state is not None and lookback and kind == "none":
        own["lookback_window"] = f"P{lookback}D"
    manifest = whole(
        {"streams": [{"name": "items", "retriever": retriever, "incremental_sync": own}]}
    )
    before = draw(rows(form))
    after = before + draw(rows(form, first=100))
    faults = draw(failures(kind)) if kind != "dependent" else []
    return World(
        manifest,
        state,
        (routes(draw, form, before, pages, faults), routes(draw, form, after, pages, [])),
        form,
        STEPS[step] if step is not None else None,
        form.written(end),
    )


def routes(
    draw: st.DrawFn,
    form: Form,
    held: list[dict[str, Any]],
    pages: dict[str, Any] | None,
    faults: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return the API: the records by partition and time, and the partitions' own."""
    kinds = [
        {"name": name, "updated": form.written(draw(times(form, 0, 30)))} for name in PARTITIONS
    ]
    span = {"from": "start", "to": "end", "field": "updated"}
    items: dict[str, Any] = {
        "path": "/items",
        "rows": held,
        "envelope": "data",
        "match": {"kind": "kind"},
        "pages": pages,
        "faults": faults,
    }
    if draw(st.booleans()):
        items["filter"] = span
    # A parent that appears twice is read once or twice, depending on the reference's threads.
    return [items, {"path": "/kinds", "rows": kinds, "filter": span}]


@st.composite
def states(draw: st.DrawFn, form: Form, kind: str, earliest: dt.datetime) -> Any:
    """Draw no state, one value, or a value for some partitions; never before a time."""
    if draw(st.booleans()):
        return None
    first = (earliest - BASE).days + 1
    value = times(form, first, 42).map(form.written)
    if kind == "none":
        return {"updated": draw(value)}
    partitions = [
        {"kind": name} if kind == "list" else {"kind": name, "parent_slice": {}}
        for name in draw(st.lists(st.sampled_from(PARTITIONS), unique=True))
    ]
    found = {
        "use_global_cursor": draw(st.booleans()),
        "states": [
            {"partition": partition, "cursor": {"updated": draw(value)}} for partition in partitions
        ],
        "state": {"updated": draw(value)},
        "lookback_window": draw(st.sampled_from([0, 1, 3600, 86400])),
    }
    if kind == "dependent" and draw(st.booleans()):
        found["parent_state"] = {"kinds": {"updated": draw(value)}}
    if found["use_global_cursor"]:
        del found["states"]
    elif draw(st.booleans()):
        del found["state"]
    return found


@st.composite
def failures(draw: st.DrawFn, kind: str) -> list[dict[str, Any]]:
    """Draw temporary faults, and sometimes a partition that is refused."""
    passing = draw(
        st.lists(
            st.sampled_from(
                [{"status": 503}, {"status": 429}, {"cut": "before"}, {"cut": "middle"}]
            ),
            max_size=2,
        )
    )
    if kind != "none" and draw(st.integers(0, 3)) == 0:
        refused = {"status": 403, "times": "always", "when": {"values": {"kind": "b"}}}
        return [*passing, refused]
    return list(passing)
