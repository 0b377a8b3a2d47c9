"""Times and durations that users write."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronolake.durations import length_of, seconds_of
from chronolake.errors import ValueRefusedError
from chronolake.instants import micros_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSETS = st.integers(-18 * 60, 18 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(timezones=st.one_of(_OFFSETS, st.just(UTC))))
def test_an_instant_is_the_same_as_a_text_and_as_a_datetime(at: datetime) -> None:
    expected = (at - _EPOCH) // timedelta(microseconds=1)
    assert micros_of(at) == micros_of(at.isoformat()) == expected


@given(st.dates())
def test_a_date_is_its_first_instant_in_utc(day: date) -> None:
    begin = datetime(day.year, day.month, day.day)
    assert micros_of(day) == micros_of(day.isoformat()) == micros_of(begin)


@pytest.mark.parametrize(
    "text", ["", "1", "12:00", "yesterday", "2024-13-01", "2024-05-02T25:00", "infinity", "NaN"]
)
def test_other_texts_are_rejected(text: str) -> None:
    with pytest.raises(ValueRefusedError, match="not a valid time"):
        micros_of(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("5m", 300), ("12h", 43_200), ("10d", 864_000), ("PT1M", 60), ("P7D", 604_800)],
)
def test_a_length_of_time_in_seconds(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "0s", "5", "5w", "-5m", "P0D", "-P1D", "soon", "P1", "9" * 20 + "d", "٣m"]
)
def test_other_lengths_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="write a duration such as 30s"):
        length_of(text)


def test_a_length_that_ends_after_the_last_year_has_no_seconds() -> None:
    with pytest.raises(ValueError, match="write a duration such as 30s"):
        seconds_of("P7990Y")
