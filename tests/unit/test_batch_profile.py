"""Bounds of a batch's keys, as its statements contain them."""

from __future__ import annotations

from datetime import date

from hypothesis import example, given
from hypothesis import strategies as st

from chronolake.core.batch_profile import bounds_of
from chronolake.types import Kind

LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
INTS = st.integers(-(1 << 31), (1 << 31) - 1)


def read(literals: tuple[str, str], kind: Kind) -> tuple[int, int]:
    if kind is Kind.LONG:
        assert all(text.endswith("L") for text in literals)
    least, greatest = (int(text.removesuffix("L")) for text in literals)
    return least, greatest


@given(LONGS, LONGS)
@example(-(1 << 63), (1 << 63) - 1)
def test_bounds_of_longs_hold_what_is_between_and_little_more(first_value: int, other: int) -> None:
    least, greatest = min(first_value, other), max(first_value, other)
    first, last = read(bounds_of(Kind.LONG, least, greatest), Kind.LONG)
    assert -(1 << 63) <= first <= least
    assert greatest <= last <= (1 << 63) - 1
    assert last - first <= (greatest - least) * 2


@given(INTS, INTS)
@example(-(1 << 31), (1 << 31) - 1)
def test_bounds_of_ints_are_ints(first_value: int, other: int) -> None:
    least, greatest = min(first_value, other), max(first_value, other)
    first, last = read(bounds_of(Kind.INT, least, greatest), Kind.INT)
    assert -(1 << 31) <= first <= least
    assert greatest <= last <= (1 << 31) - 1


@given(st.dates(), st.dates())
@example(date.min, date.max)
def test_bounds_of_dates_hold_what_is_between(first_value: date, other: date) -> None:
    least, greatest = min(first_value, other), max(first_value, other)
    first, last = bounds_of(Kind.NAIVE_DATE, least, greatest)
    assert first <= f"DATE'{least.isoformat()}'"
    assert f"DATE'{greatest.isoformat()}'" <= last


def test_batches_of_about_the_same_keys_have_the_same_bounds() -> None:
    batches = [(7 + number, 1_990_000 + 100 * number) for number in range(30)]
    assert len({bounds_of(Kind.LONG, *batch) for batch in batches}) == 1


def test_new_keys_seldom_move_the_bounds() -> None:
    batches = [(7 * number, 2_000_000 + 100_000 * number) for number in range(60)]
    assert len({bounds_of(Kind.LONG, *batch) for batch in batches}) <= 5


def test_bounds_of_texts_are_the_texts() -> None:
    assert bounds_of(Kind.STRING, "a", "ü") == ("CAST(X'61' AS STRING)", "CAST(X'c3bc' AS STRING)")
