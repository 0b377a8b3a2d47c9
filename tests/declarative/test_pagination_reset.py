"""Pagination resets: pages and slices that the API wants to be requested differently."""

from __future__ import annotations

from typing import Any

import pytest

from chronolake.errors import ConfigurationError
from support.declarative.apis import Api, ReceivedRequest, Reply
from support.declarative.stream_reads import (
    StreamRead,
    option,
    read_stream,
    requester,
    response_filter,
    retriever,
    stream,
)

_ROWS = [{"id": day, "updated": f"2024-01-{day:02}"} for day in range(1, 9)]
_DAYS = {
    "type": "DatetimeBasedCursor",
    "cursor_field": "updated",
    "datetime_format": "%Y-%m-%d",
    "start_datetime": "2024-01-01",
    "end_datetime": "2024-01-08",
    "step": "P30D",
    "cursor_granularity": "P1D",
    "start_time_option": option("start"),
    "end_time_option": option("end"),
}
_PAGES = {
    "type": "DefaultPaginator",
    "page_token_option": option("offset"),
    "page_size_option": option("size"),
    "pagination_strategy": {"type": "OffsetIncrement", "page_size": 4},
}


def _rows(asked: ReceivedRequest) -> Reply:
    """Return the rows of a time, page by page."""
    params = asked.params
    rows = [
        row
        for row in _ROWS
        if params.get("start", "") <= str(row["updated"]) <= params.get("end", "3")
    ]
    offset = int(params.get("offset", 0))
    return Reply({"data": rows[offset : offset + int(params.get("size", 100))]})


def _refusing(status: int, *refused: dict[str, str]) -> Any:
    """Refuse each of some requests once."""
    left = list(refused)

    def answer(asked: ReceivedRequest) -> Reply:
        if asked.params in left:
            left.remove(asked.params)
            return Reply(status=status)
        return _rows(asked)

    return answer


def _read(described: dict[str, Any], answer: Any, **options: Any) -> tuple[StreamRead, list[Any]]:
    with Api({"/items": answer}) as api:
        found = read_stream(described, api, **options)
        return found, [request.params for request in api.requests]


def _reducing(answer: Any, **reduction: Any) -> tuple[StreamRead, list[Any]]:
    strategy = reduction.pop("strategy", _PAGES["pagination_strategy"])
    described = stream(
        retriever=retriever(
            asks=response_filter("REDUCE_PAGE_SIZE", 413),
            paginator={**_PAGES, "pagination_strategy": strategy},
            page_size_reduction={"type": "PageSizeReduction", **reduction},
        )
    )
    return _read(described, answer)


# ---------------------------------------------------------------------- smaller pages


def test_page_size_stays_reduced() -> None:
    found, asked = _reducing(_refusing(413, {"size": "4"}))

    assert found.ids == list(range(1, 9))
    assert [params["size"] for params in asked] == ["4", "2", "2", "2", "2", "2"]
    assert found.waits == [0.5]


def test_page_size_is_reset_after_a_successful_page() -> None:
    found, asked = _reducing(
        _refusing(413, {"size": "4"}, {"size": "4", "offset": "2"}),
        reset_policy="AFTER_SUCCESSFUL_PAGE",
        backoff_seconds=3,
    )

    assert found.ids == list(range(1, 9))
    assert [params["size"] for params in asked] == ["4", "2", "4", "2", "4", "4"]
    assert found.waits == [3, 3]


def test_smallest_page_is_retried_and_then_fails() -> None:
    found, asked = _reducing(
        lambda _: Reply(status=413),
        minimum_page_size=2,
        retries_at_minimum_page_size=2,
        failure_message="Select fewer fields.",
    )

    assert found.result.failure is not None
    assert found.result.failure.hint == "Select fewer fields."
    assert [params["size"] for params in asked] == ["4", "2", "2", "2"]
    assert found.waits == [0.5, 0.5, 1.0]


def test_number_of_reductions_is_limited() -> None:
    found, asked = _reducing(
        lambda _: Reply(status=413),
        max_attempts=1,
        strategy={"type": "OffsetIncrement", "page_size": 100},
    )

    assert found.result.failure is not None
    assert [params["size"] for params in asked] == ["100", "50"]


def test_conditions_see_the_requested_page_size() -> None:
    found, asked = _reducing(
        _refusing(413, {"size": "4"}),
        strategy={
            "type": "CursorPagination",
            "page_size": 4,
            "cursor_value": "{{ last_record.id }}",
            "stop_condition": "{{ last_page_size < page_size }}",
        },
    )

    assert found.ids == list(range(1, 9))
    assert asked[-1] == {"size": "2", "offset": "8"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"paginator": None}, "does not send a page size"),
        ({"paginator": {**_PAGES, "page_size_option": None}}, "does not send a page size"),
        ({"paginator": {**_PAGES, "page_token_option": {"type": "RequestPath"}}}, "URL"),
        (
            {
                "paginator": {
                    **_PAGES,
                    "pagination_strategy": {"type": "PageIncrement", "page_size": 4},
                }
            },
            "PageIncrement",
        ),
        (
            {"page_size_reduction": {"type": "PageSizeReduction", "minimum_page_size": 4}},
            "page_size of 4",
        ),
        ({"page_size_reduction": None}, "has no page_size_reduction"),
        (
            {
                "requester": requester(
                    request_parameters={"f": {"type": "QueryProperties", "property_list": ["a"]}},
                )
            },
            "chunks",
        ),
    ],
)
def test_page_size_reduction_conflicts(changes: dict[str, Any], reason: str) -> None:
    whole = retriever(
        asks=response_filter("REDUCE_PAGE_SIZE", 413),
        paginator=_PAGES,
        page_size_reduction={"type": "PageSizeReduction"},
    )
    with Api() as api, pytest.raises(ConfigurationError, match=reason):
        read_stream(stream(retriever={**whole, **changes}), api)


@pytest.mark.parametrize(
    ("condition", "is_refused"),
    [
        ("{{ last_page_size < 4 }}", True),
        ("{{ 4 > last_page_size }}", True),
        ("{{ not response.next or last_page_size <= 3 }}", True),
        ("{{ last_page_size < config['size'] }}", True),
        ("{% if last_page_size < 4 %}true{% endif %}", True),
        ("{% if last_page_size < 4 %}{% else %}true{% endif %}", False),
        ("{{ last_page_size < page_size }}", False),
        ("{{ last_page_size < 1 }}", False),
        ("{{ last_page_size == 0 }}", False),
        ("{{ not response.next }}", False),
        ("{{ not last_page_size >= 4 }}", False),
    ],
)
def test_stop_conditions_that_end_at_a_smaller_page_are_refused(
    condition: str, *, is_refused: bool
) -> None:
    strategy = {
        "type": "CursorPagination",
        "page_size": 4,
        "cursor_value": "{{ last_record.id }}",
        "stop_condition": condition,
    }
    if is_refused:
        with pytest.raises(ConfigurationError, match="stop_condition"):
            _reducing(lambda _: Reply({"data": []}), strategy=strategy)
    else:
        found, _ = _reducing(lambda _: Reply({"data": []}), strategy=strategy)
        assert found.result.failure is None


# ---------------------------------------------------------------------- pages from the begin


def _resetting(answer: Any, **more: Any) -> tuple[StreamRead, list[Any]]:
    reset = more.pop("reset", None)
    parts = {
        "asks": response_filter("RESET_PAGINATION", 410),
        "paginator": _PAGES,
        "pagination_reset": reset,
    }
    return _read(stream(retriever=retriever(**parts), **more), answer)


@pytest.mark.parametrize("reset", [None, {"type": "PaginationReset", "action": "RESET"}])
def test_pagination_restarts_once(reset: dict[str, Any] | None) -> None:
    page = {"size": "4", "offset": "4"}
    found, asked = _resetting(_refusing(410, page), reset=reset)

    assert found.ids == [*range(1, 5), *range(1, 9)]
    assert found.result.failure is None
    assert asked == [{"size": "4"}, page, {"size": "4"}, page, {"size": "4", "offset": "8"}]

    found, asked = _resetting(_refusing(410, page, page), reset=reset)

    assert "too often without progress" in str(found.result.failure)
    assert len(asked) == 4


def test_pagination_restarts_at_the_latest_record() -> None:
    found, asked = _resetting(
        _refusing(410, {"size": "4", "offset": "4", "start": "2024-01-01", "end": "2024-01-08"}),
        reset={"type": "PaginationReset", "action": "SPLIT_USING_CURSOR"},
        incremental_sync=_DAYS,
    )

    assert found.ids == [*range(1, 5), *range(4, 9)]
    assert found.result.state == {"updated": "2024-01-08"}
    assert [params["start"][-2:] for params in asked] == ["01", "01", "04", "04"]


def test_pagination_does_not_restart_at_a_record_beyond_its_slice() -> None:
    """No records would be found after it, and the rest of the slice would be lost."""
    future = {"id": 9, "updated": "2031-05-05"}

    def answer(asked: ReceivedRequest) -> Reply:
        if asked.params.get("offset") == "4" and asked.params["start"] == "2024-01-01":
            return Reply(status=410)
        rows = [row for row in _ROWS if asked.params["start"] <= str(row["updated"])]
        offset = int(asked.params.get("offset", 0))
        return Reply({"data": [*rows[:3], future, *rows[3:]][offset : offset + 4]})

    found, asked = _resetting(
        answer,
        reset={"type": "PaginationReset", "action": "SPLIT_USING_CURSOR"},
        incremental_sync=_DAYS,
    )

    assert found.result.failure is None
    assert set(found.ids) == set(range(1, 10))
    assert [params["start"][-2:] for params in asked] == ["01", "01", "03", "03"]
    assert found.result.state == {"updated": "2024-01-08"}


def test_pagination_restarts_after_the_record_limit() -> None:
    found, asked = _resetting(
        _rows,
        reset={
            "type": "PaginationReset",
            "action": "SPLIT_USING_CURSOR",
            "limits": {"type": "PaginationResetLimits", "number_of_records": 5},
        },
        incremental_sync=_DAYS,
    )

    # The last sequence is as long as the others, and contains no new records.
    assert set(found.ids) == set(range(1, 9))
    assert [(params["start"][-2:], params.get("offset")) for params in asked] == [
        ("01", None),
        ("01", "4"),
        ("08", None),
    ]


def test_pagination_without_progress_is_an_error() -> None:
    found, asked = _resetting(
        _rows,
        reset={
            "type": "PaginationReset",
            "action": "SPLIT_USING_CURSOR",
            "limits": {"type": "PaginationResetLimits", "number_of_records": 1},
        },
        incremental_sync=_DAYS,
    )

    assert "too often without progress" in str(found.result.failure)
    assert len(asked) == 4


def test_pagination_restarts_at_the_latest_number_of_a_count_cursor() -> None:
    found, asked = _resetting(
        _refusing(410, {"size": "4", "offset": "4", "since": "0"}),
        reset={"type": "PaginationReset", "action": "SPLIT_USING_CURSOR"},
        incremental_sync={
            "type": "IncrementingCountCursor",
            "cursor_field": "id",
            "start_value_option": option("since"),
        },
    )

    assert found.result.failure is None
    assert [params["since"] for params in asked] == ["0", "0", "4", "4", "4"]
    assert found.result.state == {"id": 8}


def test_record_limit_conflicts_with_a_filter() -> None:
    described = stream(
        retriever=retriever(
            pagination_reset={
                "type": "PaginationReset",
                "action": "RESET",
                "limits": {"type": "PaginationResetLimits", "number_of_records": 1},
            }
        )
    )
    described["retriever"]["record_selector"]["record_filter"] = {
        "type": "RecordFilter",
        "condition": "{{ true }}",
    }
    with Api() as api, pytest.raises(ConfigurationError, match="record_filter"):
        read_stream(described, api)


# ---------------------------------------------------------------------- halves of slices


def _splitting(
    answer: Any, cursor: dict[str, Any] | None = None, **splitting: Any
) -> tuple[StreamRead, list[str]]:
    described = stream(
        incremental_sync={**_DAYS, **(cursor or {})},
        retriever=retriever(
            asks=response_filter("SPLIT_REQUEST_WINDOW", 413),
            request_window_splitting={"type": "RequestWindowSplitting", **splitting},
        ),
    )
    found, asked = _read(described, answer)
    return found, [f"{params['start'][-2:]}-{params['end'][-2:]}" for params in asked]


def _at_most(days: int) -> Any:
    def answer(asked: ReceivedRequest) -> Reply:
        begin, end = (int(asked.params[name][-2:]) for name in ("start", "end"))
        return _rows(asked) if end - begin < days else Reply(status=413)

    return answer


def test_slices_are_halved_until_the_api_accepts_them() -> None:
    found, asked = _splitting(_at_most(3))

    assert found.ids == list(range(1, 9))
    assert asked == ["01-08", "01-04", "01-02", "03-04", "05-08", "05-06", "07-08"]
    assert found.result.state == {"updated": "2024-01-08"}


def test_a_slice_of_one_moment_is_not_halved() -> None:
    found, asked = _splitting(_at_most(0), failure_message="Ask for less.")

    assert found.result.failure is not None
    assert found.result.failure.hint == "Ask for less."
    assert found.result.state == {"updated": "2024-01-01"}
    assert asked == ["01-08", "01-04", "01-02", "01-01"]


def test_slices_are_halved_down_to_a_length() -> None:
    found, asked = _splitting(_at_most(1), min_split_window="P3D")

    assert found.result.failure is not None
    assert asked == ["01-08", "01-04"]


@pytest.mark.parametrize(
    ("cursor", "splitting", "reason"),
    [
        ({"step": None, "cursor_granularity": None}, {}, "cursor_granularity"),
        ({"is_client_side_incremental": True}, {}, "is_client_side_incremental"),
        ({"cursor_granularity": "PT1S"}, {}, "cannot represent"),
        ({}, {"min_split_window": "P1M"}, "min_split_window"),
        ({}, {"min_split_window": "soon"}, "min_split_window"),
        ({}, {"min_split_window": "P9999999999999D"}, "min_split_window"),
        ({"step": "P9999999999999D"}, {}, "`step` is not a valid duration"),
    ],
)
def test_request_window_splitting_conflicts(
    cursor: dict[str, Any], splitting: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        _splitting(_rows, cursor, **splitting)


def test_an_action_needs_its_component() -> None:
    described = stream(retriever=retriever(asks=response_filter("SPLIT_REQUEST_WINDOW", 413)))
    with Api() as api, pytest.raises(ConfigurationError, match="request_window_splitting"):
        read_stream(described, api)
