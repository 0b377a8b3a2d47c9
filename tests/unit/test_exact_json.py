"""JSON numbers keep every digit, through reading, copying and writing."""

from __future__ import annotations

import json
import pickle
from copy import deepcopy
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronolake.exact_json import LongNumber, dumps, is_exact, loads

#: Numbers that a float or 64 bits do not hold.
LONG = (
    "18446744073709551616",
    "-9223372036854775809",
    "123456789012345678901234567890",
    "12345678901234567.89",
    "-0.1234567890123456789",
    "3.14159265358979323846",
    "1e400",
    "1e-400",
    "1.5E-1234",
    "9007199254740993.0",
)
#: Numbers that a float holds, also where the text has more digits than it needs.
SHORT = (
    "0.1",
    "1e3",
    "0.30000000000000004",
    "0.10000000000000001",
    "0.10000000000000000555",
    "100000000000000000000000.0",
    f"{52.5200066:.17g}",
    "5e-324",
    "1.7976931348623157e308",
    "0.00000000000000000000000000",
)


@pytest.mark.parametrize("text", LONG)
@pytest.mark.parametrize("place", ["{}", "[{}]", '{{"a": {{"b": [1, {}, "x"]}}}}'])
def test_a_number_that_a_float_does_not_hold_keeps_its_digits(text: str, place: str) -> None:
    given_text = place.format(text)
    read = loads(given_text.encode())
    expected = given_text.replace(" ", "")
    copied = pickle.loads(pickle.dumps(read))  # noqa: S301 - written one call before
    for same in (read, deepcopy(read), copied):
        assert dumps(same).decode() == expected
        assert dumps(same, sort_keys=True).decode() == expected


@pytest.mark.parametrize("text", SHORT)
def test_a_number_that_a_float_holds_is_a_float(text: str) -> None:
    number = loads(text.encode())
    assert type(number) is float
    assert number == float(text)


def test_a_long_number_is_a_number_with_its_text() -> None:
    number = loads(b"12345678901234567.89")
    assert isinstance(number, LongNumber)
    assert str(number) == repr(number) == f"{number}" == "12345678901234567.89"
    assert number == 12345678901234567.89
    assert type(number + 1) is float


def test_digits_in_texts_and_names_change_nothing() -> None:
    text = b'{"18446744073709551616":"18446744073709551616.00","id":7,"n":1.5,"ok":null}'
    assert loads(text) == orjson.loads(text)
    assert dumps(loads(text)) == text


def test_half_a_character_remains_beside_a_long_number() -> None:
    value = {"a": "\ud83d", "\ud83e": 2**70, "b": [1.5, True, None]}
    assert json.loads(dumps(value).decode("utf-8", "surrogatepass")) == value


def _has_own_digits(number: LongNumber) -> bool:
    """Return whether a number is not a float that is written with more digits than necessary."""
    text = str(number)
    return Decimal(text) == Decimal(repr(float(text))) or not is_exact(text, float(text))


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.decimals(allow_nan=False, allow_infinity=False)
    .map(lambda number: LongNumber(f"{number:e}"))
    .filter(_has_own_digits)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(_VALUES)
def test_what_was_written_is_read_with_equal_numbers(value: Any) -> None:
    def exact(text: bytes) -> Any:
        return json.loads(text, parse_float=Decimal)

    text = dumps(value)
    assert exact(dumps(loads(text))) == exact(text)
