"""Diffs of offsets, and how large ones are shortened."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronolake.pipeline.runs import CUT, WHOLE_BYTES, diff_states, encode_states

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({}, {}, []),
        ({"lsn": 1}, {"lsn": 2}, [("lsn", "changed", 1, 2)]),
        ({}, {"lsn": 2}, [("lsn", "added", None, 2)]),
        (
            {},
            {"state": {"at": 1, "slices": [{"cursor": "a"}]}},
            [("state.at", "added", None, 1), ("state.slices[0].cursor", "added", None, "a")],
        ),
        ({"state": {"at": 1}}, {}, [("state.at", "removed", 1, None)]),
        ({}, {"state": {}}, [("state", "added", None, {})]),
        ({"lsn": 1}, {}, [("lsn", "removed", 1, None)]),
        ({"lsn": None}, {}, [("lsn", "removed", None, None)]),
        ({"at": 1}, {"at": True}, [("at", "changed", 1, True)]),
        (
            {"state": {"slices": [{"cursor": "a"}, {"cursor": "b"}]}},
            {"state": {"slices": [{"cursor": "a"}, {"cursor": "c"}, 7]}},
            [
                ("state.slices[1].cursor", "changed", "b", "c"),
                ("state.slices[2]", "added", None, 7),
            ],
        ),
        ({"a b": {"": 1}}, {"a b": {"": 2}}, [('["a b"][""]', "changed", 1, 2)]),
        ({"x": {"y": 1}}, {"x": [1]}, [("x", "changed", {"y": 1}, [1])]),
    ],
)
def test_each_place_that_differs_is_named(before: Any, after: Any, found: list[Any]) -> None:
    reported = [
        (difference.path, difference.kind, difference.before, difference.after)
        for difference in diff_states(before, after)
    ]
    assert reported == found


@given(_JSON, _JSON)
def test_equal_states_and_only_these_have_no_difference(first: Any, other: Any) -> None:
    assert diff_states(first, first) == []
    is_same = json.dumps(first, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert bool(diff_states(first, other)) is not is_same


def test_a_small_state_is_kept_as_it_is() -> None:
    state = {"partitions": [{"cursor": "2026-01-01"}]}
    assert encode_states(None, None) == (None, None)
    first, second = encode_states(None, state)
    assert first is None
    assert json.loads(second or "") == state


def test_of_a_large_state_what_differs_is_kept() -> None:
    before = {"partitions": {f"p{number}": {"cursor": 1} for number in range(10_000)}}
    after = {"partitions": {**before["partitions"], "p7": {"cursor": 2}, "new": "x" * 100_000}}

    texts = encode_states(before, after)

    assert all(text is not None and len(text) <= WHOLE_BYTES for text in texts)
    first, second = (json.loads(text or "") for text in texts)
    assert first == {"partitions.p7.cursor": 1, CUT: 2}
    assert second == {
        "partitions.p7.cursor": 2,
        "partitions.new": "(100,002 bytes)",
        CUT: 2,
    }


def test_the_first_of_many_changes_are_kept_with_their_number() -> None:
    before = {f"partition {number}": "2026-01-01" for number in range(10_000)}
    after = dict.fromkeys(before, "2026-01-02")
    texts = encode_states(before, after)
    assert all(text is not None and len(text) <= 2 * WHOLE_BYTES for text in texts)
    first, second = (json.loads(text or "") for text in texts)
    assert first[CUT] == second[CUT] == 10_000
    assert len(first) == len(second) > 10


def test_no_secret_is_kept_but_that_one_changed_is_seen() -> None:
    before = {
        "oauth": {"refresh_token": "hunter2", "expires": 7},
        "next": "https://me:hunter2@example.org/x?api_key=hunter2&page=3&token=hunter2",
        "accounts": [{"clientSecret": {"value": "hunter2"}, "cursor": "2026-01-01"}],
        "told": '{"password": "hunter2", "a": 1}',
        "https://example.org/?sig=hunter2": {"last_key": 5},
    }
    after = {**before, "oauth": {"refresh_token": "hunter2 too", "expires": 8}}
    large = {f"partition {number}": "2026-01-01" for number in range(1_000)}

    for first, second in (
        encode_states(before, after),
        encode_states(before | large, after),
        encode_states(None, after),
    ):
        assert "hunter2" not in f"{first}{second}"

    states = [json.loads(text or "") for text in encode_states(before, after)]
    assert [difference.path for difference in diff_states(*states)] == [
        "oauth.refresh_token",
        "oauth.expires",
    ]
    assert states[1]["next"].endswith("page=3&token=•••")
    assert states[1]["accounts"][0]["cursor"] == "2026-01-01"
    assert states[1]["https://example.org/?sig=•••"] == {"last_key": 5}
