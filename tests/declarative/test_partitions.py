"""Partitions of several routers, children within their parents, and states that are too old."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from chronolake import exact_json
from chronolake.errors import ConfigurationError
from support.declarative.apis import Api, Reply
from support.declarative.stream_reads import (
    option,
    read_stream,
    requester,
    response_filter,
    retriever,
    stream,
)

_TEAMS = [
    {"id": 1, "items": {"data": [{"id": 11}, {"id": 12}], "next": "x"}},
    {"id": 2, "items": {"data": [{"id": 21}]}},
    {"id": 3},
]
_DAYS = {
    "type": "DatetimeBasedCursor",
    "cursor_field": "updated",
    "datetime_format": "%Y-%m-%d",
    "start_datetime": "2024-01-01",
}


def _list(*values: str, name: str = "team", **more: Any) -> dict[str, Any]:
    return {"type": "ListPartitionRouter", "cursor_field": name, "values": list(values), **more}


def _parents(**more: Any) -> dict[str, Any]:
    config = {
        "type": "ParentStreamConfig",
        "stream": stream("teams", retriever=retriever("/teams")),
        "parent_key": "id",
        "partition_field": "team",
        **more,
    }
    return {"type": "SubstreamPartitionRouter", "parent_stream_configs": [config]}


def _union(*routers: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "UnionPartitionRouter",
        "partition_field": "team",
        "partition_routers": list(routers),
    }


def _children(router: dict[str, Any], **more: Any) -> dict[str, Any]:
    paths = retriever("/teams/{{ stream_partition.team }}/items", partition_router=router)
    return stream(retriever={**paths, **more.pop("parts", {})}, **more)


# ---------------------------------------------------------------------- several routers


def test_each_partition_of_several_routers_is_read_once() -> None:
    described = _children(
        _union(_list("1", "9"), _union(_list("9"), _parents(extra_fields=[["items", "next"]]))),
        incremental_sync=_DAYS,
    )
    rows = Reply({"data": [{"id": 5, "updated": "2024-01-02"}]})
    with Api(
        {
            "/teams": Reply({"data": _TEAMS}),
            **{f"/teams/{team}/items": rows for team in (1, 2, 3, 9)},
        }
    ) as api:
        found = read_stream(described, api)
        paths = api.paths()

    assert found.result.failure is None
    # 1 and "1" are different partitions.
    assert paths == ["/teams/1/items", "/teams/9/items", "/teams", *_paths(1, 2, 3)]
    assert found.result.state is not None
    partitions = [partition_state["partition"] for partition_state in found.result.state["states"]]
    assert partitions == [{"team": team} for team in ("1", "9", 1, 2, 3)]
    assert found.result.state["parent_state"] == {}


def test_partitions_keep_the_digits_of_their_numbers() -> None:
    """Two ids that are equal as floats are different partitions, also in the next run's state."""
    ids = (2**64 + 1, 2**64 + 2)
    described = _children(_parents(), incremental_sync=_DAYS)
    rows = Reply({"data": [{"id": 5, "updated": "2024-01-02"}]})
    teams = f'{{"data": [{{"id": {ids[0]}}}, {{"id": {ids[1]}}}]}}'.encode()
    with Api({"/teams": Reply(teams), **{f"/teams/{team}/items": rows for team in ids}}) as api:
        found = read_stream(described, api)
        assert found.result.failure is None
        assert found.result.state is not None
        partitions = [
            partition_state["partition"]["team"] for partition_state in found.result.state["states"]
        ]
        state = exact_json.loads(exact_json.dumps(found.result.state))
        assert partitions == list(ids)
        assert state == found.result.state
        again = read_stream(described, api, state)
        assert again.result.failure is None
        assert again.result.state is not None
        assert len(again.result.state["states"]) == 2


@pytest.mark.differs("a duplicate partition")
def test_a_partition_that_has_a_cursor_is_read_once() -> None:
    rows = Reply({"data": [{"id": 5, "updated": "2024-01-02"}]})
    with Api({f"/teams/{team}/items": rows for team in "ab"}) as api:
        found = read_stream(_children(_list("a", "b", "a"), incremental_sync=_DAYS), api)
        paths = api.paths()

    assert paths == ["/teams/a/items", "/teams/b/items"]
    assert found.result.state is not None
    assert len(found.result.state["states"]) == 2


def _paths(*teams: int) -> list[str]:
    return [f"/teams/{team}/items" for team in teams]


def test_states_by_value_are_migrated_for_several_routers() -> None:
    described = _children(
        _union(_list("1"), _list("2")),
        incremental_sync={**_DAYS, "end_datetime": "2024-02-01", "start_time_option": option("s")},
        state_migrations=[{"type": "LegacyToPerPartitionStateMigration"}],
    )
    rows = Reply({"data": []})
    with Api(dict.fromkeys(_paths(1, 2), rows)) as api:
        read_stream(described, api, {"2": {"updated": "2024-01-20"}})
        asked = [request.params["s"] for request in api.requests]

    assert asked == ["2024-01-01", "2024-01-20"]


def test_groups_are_made_of_several_routers() -> None:
    groups = {
        "type": "GroupingPartitionRouter",
        "group_size": 2,
        "underlying_partition_router": _union(_list("1", "2"), _list("2", "3")),
    }
    asks = {"request_parameters": {"teams": "{{ stream_partition.team | join('+') }}"}}
    with Api({"/items": Reply({"data": []})}) as api:
        read_stream(stream(retriever=retriever(asks=asks, partition_router=groups)), api)
        asked = [request.params["teams"] for request in api.requests]

    assert asked == ["1+2", "3"]


@pytest.mark.parametrize(
    ("routers", "reason"),
    [
        ([_list("1")], "partition_routers"),
        ([_list("1"), _list("2", request_option=option("t"))], "request_option"),
        ([_list("1"), _parents(request_option=option("t"))], "request_option"),
    ],
)
def test_invalid_unions_of_routers_are_errors(routers: list[dict[str, Any]], reason: str) -> None:
    with Api() as api, pytest.raises(ConfigurationError, match=reason):
        read_stream(_children(_union(*routers)), api)


def test_routers_of_a_union_name_their_values_alike() -> None:
    with Api() as api, pytest.raises(ConfigurationError, match="named team"):
        read_stream(_children(_union(_list("1"), _list("2", name="club"))), api)


def test_partitions_of_a_union_are_plain_values() -> None:
    with Api({"/teams": Reply({"data": [{"id": {"not": "plain"}}]})}) as api:
        found = read_stream(_children(_union(_parents(), _parents())), api)

    assert "single values named team" in str(found.result.failure)


# ---------------------------------------------------------------------- within the parents


def _within(**more: Any) -> dict[str, Any]:
    pages = {
        "type": "DefaultPaginator",
        "page_token_option": option("after"),
        "pagination_strategy": {
            "type": "CursorPagination",
            "cursor_value": "{{ response.next }}",
            "stop_condition": "{{ not response.next }}",
        },
    }
    parts = {"paginator": pages, **more.pop("parts", {})}
    return _children(_parents(lazy_read_pointer=["items"]), parts=parts, **more)


def test_first_pages_come_from_the_parents() -> None:
    with Api(
        {"/teams": Reply({"data": _TEAMS}), "/teams/1/items": Reply({"data": [{"id": 13}]})}
    ) as api:
        found = read_stream(_within(), api)
        asked = [(request.path, request.params) for request in api.requests]

    assert found.ids == [11, 12, 13, 21]
    assert asked == [("/teams", {}), ("/teams/1/items", {"after": "x"})]


def test_with_a_state_all_pages_are_requested() -> None:
    described = _within(incremental_sync={**_DAYS, "end_datetime": "2024-02-01"})
    with Api(
        {
            "/teams": Reply({"data": _TEAMS}),
            **{path: Reply({"data": []}) for path in _paths(1, 2, 3)},
        }
    ) as api:
        first = read_stream(described, api)
        api.requests.clear()
        read_stream(described, api, first.result.state)
        paths = api.paths()

    assert first.ids == [11, 12, 21]
    assert paths == ["/teams", *_paths(1, 2, 3)]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"incremental_sync": {**_DAYS, "step": "P1D", "cursor_granularity": "P1D"}}, "slices"),
        ({"parts": {"decoder": {"type": "JsonlDecoder"}, "paginator": None}}, "JsonlDecoder"),
        (
            {"parts": {"requester": requester(**response_filter("REDUCE_PAGE_SIZE", 413))}},
            "smaller",
        ),
    ],
)
def test_what_first_pages_do_not_go_together_with(more: dict[str, Any], reason: str) -> None:
    with Api() as api, pytest.raises(ConfigurationError, match=reason):
        read_stream(_within(**more), api)


def test_a_pointer_leads_to_one_place() -> None:
    with Api() as api, pytest.raises(ConfigurationError, match="must not contain"):
        read_stream(_children(_parents(lazy_read_pointer=["*"])), api)


# ---------------------------------------------------------------------- states that are too old


def _turns(**more: Any) -> dict[str, Any]:
    return {
        "type": "StateDelegatingStream",
        "name": "items",
        "full_refresh_stream": stream(retriever=retriever("/all"), incremental_sync=_DAYS),
        "incremental_stream": stream(retriever=retriever("/new"), incremental_sync=_DAYS),
        "api_retention_period": "P{{ config['days'] }}D",
        **more,
    }


def _path_read(described: dict[str, Any], state: dict[str, Any]) -> str:
    with Api({"/all": Reply({"data": []}), "/new": Reply({"data": []})}) as api:
        found = read_stream(described, api, state, {"days": 30})
        assert found.result.failure is None
        return api.paths()[0]


def _day(age: int) -> str:
    return (datetime.now(UTC) - timedelta(days=age)).strftime("%Y-%m-%d")


def test_a_state_that_is_too_old_is_ignored() -> None:
    assert _path_read(_turns(), {"updated": _day(20)}) == "/new"
    assert _path_read(_turns(), {"updated": _day(40)}) == "/all"
    assert _path_read(_turns(), {"other": 1}) == "/all"
    assert _path_read(_turns(api_retention_period=None), {"updated": _day(40)}) == "/new"


def test_how_old_a_state_is_depends_on_its_form() -> None:
    slices = [{"start": _day(90), "end": _day(20), "most_recent_cursor_value": _day(40)}]
    assert _path_read(_turns(), {"state_type": "date-range", "slices": slices}) == "/all"
    del slices[0]["most_recent_cursor_value"]
    assert _path_read(_turns(), {"state_type": "date-range", "slices": slices}) == "/new"

    router = {"partition_router": _list("1")}
    described = _turns(
        full_refresh_stream=stream(retriever=retriever("/all", **router), incremental_sync=_DAYS),
        incremental_stream=stream(retriever=retriever("/new", **router), incremental_sync=_DAYS),
    )
    for age, path in ((20, "/new"), (40, "/all")):
        state = {"use_global_cursor": True, "state": {"updated": _day(age)}, "lookback_window": 0}
        assert _path_read(described, state) == path


def test_a_stream_that_was_read_as_a_whole_is_not_too_old() -> None:
    described = _turns(full_refresh_stream=stream(retriever=retriever("/all")))
    assert _path_read(described, {"__ab_no_cursor_state_message": True}) == "/new"
    assert _path_read(described, {"updated": _day(40)}) == "/all"


@pytest.mark.parametrize(
    ("described", "state", "reason"),
    [
        (_turns(), {"updated": "nonsense"}, "state"),
        (_turns(api_retention_period="a month"), {"updated": "2024-01-01"}, "not a valid duration"),
        (
            _turns(
                incremental_stream=stream(
                    incremental_sync={"type": "IncrementingCountCursor", "cursor_field": "id"}
                )
            ),
            {"id": 5},
            "not a datetime cursor",
        ),
    ],
)
def test_ages_that_cannot_be_determined(
    described: dict[str, Any], state: dict[str, Any], reason: str
) -> None:
    with Api() as api, pytest.raises(ConfigurationError, match=reason):
        read_stream(described, api, state, {"days": 30})
