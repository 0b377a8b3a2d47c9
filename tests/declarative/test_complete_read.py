"""Only a complete read finds deletes: a stream has to be read up to the present."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from chronolake.source.declarative.cursors.datetime_cursor import TimeCursor, time_cursor
from chronolake.source.declarative.models.streams import DatetimeBasedCursor
from chronolake.source.declarative.reconcile import is_requested_until

_SECONDS = "%Y-%m-%dT%H:%M:%SZ"


def cursor(form: str, end: str | None = None, **more: Any) -> TimeCursor:
    described = {
        "type": "DatetimeBasedCursor",
        "cursor_field": "at",
        "datetime_format": form,
        "start_datetime": datetime(2020, 1, 1, tzinfo=UTC).strftime(form),
        "end_datetime": end,
        **more,
    }
    return time_cursor(DatetimeBasedCursor.model_validate(described), {})


def now_as(form: str) -> str:
    return f"{{{{ now_utc().strftime('{form}') }}}}"


@pytest.mark.parametrize("end", [None, now_as("%Y-%m-%d"), "{{ today_utc() }}"])
def test_a_day_is_all_of_that_day(end: str | None) -> None:
    days = cursor("%Y-%m-%d", end)
    # Unless midnight passes between the two calls.
    assert is_requested_until(days, datetime.now(UTC)) or is_requested_until(
        days, datetime.now(UTC)
    )
    assert not is_requested_until(days, datetime.now(UTC) + timedelta(days=1))


def test_a_time_that_is_cut_is_before_the_present() -> None:
    now = datetime.now(UTC)
    for cursor_model in (cursor(_SECONDS), cursor(_SECONDS, now_as(_SECONDS)), cursor("%s")):
        assert not is_requested_until(cursor_model, now + timedelta(seconds=2))
        assert is_requested_until(cursor_model, now - timedelta(seconds=1))
    assert is_requested_until(cursor("%Y-%m-%dT%H:%M:%S.%fZ"), now)


def test_a_fixed_end_reaches_no_further() -> None:
    now = datetime.now(UTC)
    assert not is_requested_until(cursor(_SECONDS, "2026-01-01T00:00:00Z"), now)
    assert not is_requested_until(cursor("%Y-%m-%d", "2026-01-01"), now)
    assert not is_requested_until(
        cursor(_SECONDS, now_as("%Y-%m-%dT00:00:00Z")), now + timedelta(seconds=1)
    )
    assert is_requested_until(cursor(_SECONDS, "2100-01-01T00:00:00Z"), now)
    assert is_requested_until(cursor("%Y-%m-%d", "9999-12-31"), now)


def test_periods_that_have_not_ended_are_not_reached() -> None:
    clamped = cursor(_SECONDS, step="P1D", cursor_granularity="PT1S", clamping={"target": "DAY"})
    assert not is_requested_until(clamped, datetime.now(UTC))
