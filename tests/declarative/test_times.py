"""Times in a manifest's formats: expectations were taken from airbyte-cdk 7.39.1."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import isodate
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chronolake.durations import iso_duration
from chronolake.source.declarative.templating.times import (
    Reader,
    format_exactly,
    format_time,
    micros_of,
    parse_time,
    parse_time_by,
)

INDIA = timezone(timedelta(hours=5, minutes=30))
MOMENT = datetime(2024, 1, 2, 3, 4, 5, 678912, UTC)
IN_INDIA = MOMENT.replace(tzinfo=INDIA)
BEFORE_1970 = datetime(1969, 12, 31, 23, 59, 59, 500000, UTC)
MIDNIGHT = datetime(2024, 1, 1, tzinfo=UTC)

#: Formats that contain the whole time, to the microsecond.
EXACT = [
    "%epoch_microseconds",
    "%Y-%m-%dT%H:%M:%S.%fZ",
    "%Y-%m-%dT%H:%M:%S.%f",
    "%Y-%m-%d %H:%M:%S.%f+00:00",
]
EXACT_WITH_OFFSET = ["%Y-%m-%dT%H:%M:%S.%f%z", "%Y-%m-%d %H:%M:%S.%f%z"]
FORMATS = [
    *EXACT,
    *EXACT_WITH_OFFSET,
    "%Y-%m-%d",
    "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%dT%H:%M:%SZ",
    "%Y-%m-%dT%H:%M:%S%z",
    "%Y-%m-%dT%H:%M:%S.%_msZ",
    "%Y-%m-%dT%H:%M:%S.%_ms%z",
    "%Y-%m-%dT%H:%M:%S+00:00",
    "%Y-%m-%dT%H:%M:%S+0000",
    "%Y-%m-%dT%H:%M:%S-12:00",
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%d %H:%M:%SZ",
    "%Y-%m-%d %H:%M:%S%z",
    "%Y%m%d",
    "%Y%m%dT%H",
    "%d/%m/%Y %H:%M",
    "%d-%m-%Y",
    "modified_on:gt:%Y-%m-%dT%H:%M:%SZ",
    "%s",
    "%ms",
    "%s_as_float",
]
#: Texts at the limits of strptime; errors are likely before, within or after them.
ODD = [
    "",
    " ",
    "2024-1-2",
    "2024-01- 2",
    "2024-W01-1",
    "20240102",
    "2024-01-02T03",
    "2024-01-02T24:00:00Z",
    "2024-01-02T03:04:60Z",
    "2024-01-02t03:04:05z",
    "2024-01-02T03:04:05Z\n",
    "2024-01-02T3:4:5Z",
    "2024-01-02T030405Z",
    "2024-01-02T0304.05Z",
    "2024-01-02  03:04:05",
    "2024-01-02\t03:04:05",
    "2024-01-02T03:04:05,123Z",
    "2024-01-02T03:04:05.1234567Z",
    "2024-01-02T03:04:05.Z",
    "2024-01-02T03:04:05.1 Z",
    "2024-01-02T03:04:05.1_0Z",
    "2024-01-02T03:04:05.-1Z",
    "2024-01-02T03:04:05.\u00b2Z",
    "2024-01-02T03:04:05.\u0661\u0662Z",
    "\u0662\u0660\u0662\u0664-01-02T03:04:05Z",
    "2024-01-02T03:04:05+05",
    "2024-01-02T03:04:05+05:60",
    "2024-01-02T03:04:05+24:00",
    "2024-01-02T03:04:05+05:30:15",
    "2024-01-02T03:04:05+05:30:15.5",
    "2024-01-02T03:04:05.5-05:30:15.5",
    "2024-01-02T03:04:05.5-0530",
    "2024-01-02T03:04:05-00:00",
    "2024-01-02T03:04:05.5+05:30",
    "2024-01-02T03:04:05.5+00:00",
    "2024-01-02 03:04:05.5+05:30",
    "2024-01-02 03:04:05.5+00:00",
    "2024-02-30",
    "0000-01-01",
    "0999-01-01",
    "9999-12-31T23:59:59-23:59",
    "0001-01-01T00:00:00+23:59",
    " 17 ",
    "1_0",
    "-5",
    "\u0661\u0662",
    "1e3",
    "nan",
    "inf",
    "-inf",
    "99999999999999999999",
    "9" * 5000,
    "253402300799",
    "253402300800",
    "-62135596800",
    "-62135596801",
]

moments = st.datetimes(datetime(1000, 1, 1), timezones=st.just(UTC))
offsets = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda m: timezone(timedelta(minutes=m)))


@pytest.mark.parametrize(
    ("value", "code", "moment"),
    [
        ("170", "%s", datetime(1970, 1, 1, 0, 2, 50, tzinfo=UTC)),
        (170.5, "%s", datetime(1970, 1, 1, 0, 2, 50, tzinfo=UTC)),
        (" 17 ", "%s", datetime(1970, 1, 1, 0, 0, 17, tzinfo=UTC)),
        ("1_0", "%s", datetime(1970, 1, 1, 0, 0, 10, tzinfo=UTC)),
        (-1, "%s", datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)),
        ("170.25", "%s_as_float", datetime(1970, 1, 1, 0, 2, 50, 250000, UTC)),
        ("1700000000001", "%ms", datetime(2023, 11, 14, 22, 13, 20, 1000, UTC)),
        (
            "1700000000000001",
            "%epoch_microseconds",
            datetime(2023, 11, 14, 22, 13, 20, 1, UTC),
        ),
        (
            "2024-01-02T03:04:05.123Z",
            "%Y-%m-%dT%H:%M:%S.%_msZ",
            MOMENT.replace(microsecond=123000),
        ),
        (
            "2024-01-02T03:04:05.123456Z",
            "%Y-%m-%dT%H:%M:%S.%_msZ",
            MOMENT.replace(microsecond=123456),
        ),
        ("2024-1-2", "%Y-%m-%d", datetime(2024, 1, 2, tzinfo=UTC)),
        ("2024-01- 2", "%Y-%m-%d", datetime(2024, 1, 2, tzinfo=UTC)),
        ("2024-01-02t03:04:05z", "%Y-%m-%dT%H:%M:%SZ", MOMENT.replace(microsecond=0)),
        (20240102, "%Y%m%d", datetime(2024, 1, 2, tzinfo=UTC)),
        (
            "2024-01-02T03:04:05+05:30",
            "%Y-%m-%dT%H:%M:%S%z",
            IN_INDIA.replace(microsecond=0),
        ),
        ("2024-01-02T03:04:05Z", "%Y-%m-%dT%H:%M:%S%z", MOMENT.replace(microsecond=0)),
        (
            "2024-01-02T03:04:05+05:30",
            "%Y-%m-%dT%H:%M:%S+05:30",
            IN_INDIA.replace(microsecond=0),
        ),
        (
            "2024-01-02T03:04:05.678912+0530",
            "%Y-%m-%dT%H:%M:%S.%f+0530",
            IN_INDIA,
        ),
        (
            "2024-01-02T00:00:00-1200",
            "%Y-%m-%dT00:00:00-1200",
            datetime(2024, 1, 2, tzinfo=timezone(timedelta(hours=-12))),
        ),
        ("2024-01-02-1230", "%Y-%m-%d-1230", datetime(2024, 1, 2, tzinfo=UTC)),
        ("2024-01-02  03:04:05", "%Y-%m-%d %H:%M:%S", MOMENT.replace(microsecond=0)),
    ],
)
def test_a_value_is_parsed_by_its_format(value, code, moment):
    read = parse_time(value, code)

    assert read == moment
    assert read.utcoffset() == moment.utcoffset()
    assert Reader([code]).micros(value) == micros_of(moment)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("170.5", "%s"),
        (10**12, "%s"),
        ("", "%s"),
        ("inf", "%s_as_float"),
        ("nan", "%s_as_float"),
        (float("inf"), "%ms"),
        ("9" * 5000, "%ms"),
        ("x", "%Y %Y"),
        ("1700000000", "%Q"),
        ("2024-01-02T03:04:60Z", "%Y-%m-%dT%H:%M:%SZ"),
        ("2024-01-02T03:04:05", "%Y-%m-%dT%H:%M:%S%z"),
        ("2024-01-02T03:04:05Z", "%Y-%m-%dT%H:%M:%S"),
        ("%d", "%"),
    ],
)
def test_what_does_not_fit_its_format_is_refused_without_being_shown(value, code):
    with pytest.raises(ValueError, match="does not match the format") as refused:
        parse_time(value, code)

    assert str(refused.value) == f"The time does not match the format {code!r}."
    assert Reader([code]).micros(value) is None


@pytest.mark.parametrize(
    ("moment", "code", "text"),
    [
        (MOMENT, "%s", "1704164645"),
        (MOMENT, "%s_as_float", "1704164645.678912"),
        (MOMENT, "%ms", "1704164645678"),
        (MOMENT, "%epoch_microseconds", "1704164645678912"),
        (MOMENT, "%Y-%m-%dT%H:%M:%S.%_msZ", "2024-01-02T03:04:05.678Z"),
        (MOMENT, "%H%M%S.%_ms", "030405.678"),
        (MOMENT, "%Y-%m-%dT%H:%M:%S.%f%z", "2024-01-02T03:04:05.678912+0000"),
        (MOMENT, "%y/%b/%d %I%p", "24/Jan/02 03AM"),
        (MOMENT, "%%", "%"),
        (MOMENT.replace(tzinfo=None), "%s", "1704164645"),
        (IN_INDIA, "%s", "1704144845"),
        (IN_INDIA, "%ms", "1704144845678"),
        (IN_INDIA, "%Y-%m-%dT%H:%M:%SZ", "2024-01-02T03:04:05Z"),
        (IN_INDIA, "%Y-%m-%dT%H:%M:%S.%f%z", "2024-01-02T03:04:05.678912+0530"),
        (BEFORE_1970, "%s", "0"),
        (BEFORE_1970, "%s_as_float", "-0.5"),
        (BEFORE_1970, "%ms", "-500"),
        (datetime(999, 1, 2, 3, 4, 5, 9, UTC), "%s", "-30641662554"),
        (datetime(999, 1, 2, 3, 4, 5, 9, UTC), "%ms", "-30641662554999"),
        # The reference prints "000.000": it replaces each text that looks like the microseconds.
        (MIDNIGHT, "%H%M%S.%_ms", "000000.000"),
    ],
)
def test_a_time_is_printed_by_its_format(moment, code, text):
    assert format_time(moment, code) == text


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("%Y-%m-%dT%H:%M:%SZ", "2024-01-01T21:34:05Z"),
        ("%Y-%m-%d", "2024-01-01"),
        ("%Y-%m-%dT%H:%M:%S+02:00", "2024-01-01T23:34:05+02:00"),
        ("%Y-%m-%d %H:%M %Z", "2024-01-01 21:34 UTC"),
        ("%Y-%m-%dT%H:%M:%S%z", "2024-01-02T03:04:05+0530"),
        ("%H %%z", "21 %z"),
        ("%s", "1704144845"),
    ],
)
def test_a_time_is_printed_in_the_offset_of_its_format(code, text):
    assert format_exactly(IN_INDIA, code) == text


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5))), "9999-12-31T23"),
        (datetime(1, 1, 1, 1, tzinfo=timezone(timedelta(hours=5))), "1-01-01T00"),
    ],
)
def test_a_moment_that_utc_cannot_have_is_the_nearest_that_it_has(moment, text):
    assert format_exactly(moment, "%Y-%m-%dT%H").lstrip("0") == text


def test_the_first_format_that_fits_is_taken():
    assert parse_time_by("2024-01-02", ["%d-%m-%Y", "%Y-%m-%d"]) == datetime(2024, 1, 2, tzinfo=UTC)
    assert parse_time_by("20240102", ["%s", "%Y%m%d"]) == parse_time("20240102", "%s")
    with pytest.raises(ValueError, match="matches none of the formats '%s', '%Y'"):
        parse_time_by("secret", ["%s", "%Y"])
    assert Reader(["%Y-%m-%d", "%s"]).micros("60") == 60_000_000


@pytest.mark.parametrize("value", [None, [], {}, b"170", object()])
def test_values_other_than_texts_and_numbers_match_no_format(value):
    assert [Reader([format_]).micros(value) for format_ in FORMATS] == [None] * len(FORMATS)


def test_durations_are_those_of_iso_8601():
    assert iso_duration("P1DT2H") == timedelta(days=1, hours=2)
    assert datetime(2024, 3, 31) - iso_duration("P1M") == datetime(2024, 2, 29)
    assert isinstance(iso_duration("P1Y"), isodate.Duration)
    with pytest.raises(ValueError, match="Unable to parse"):
        iso_duration("1 day")


def test_an_impossible_duration_is_invalid():
    with pytest.raises(ValueError, match="too long: P9999999999999D"):
        iso_duration("P9999999999999D")


@given(moment=moments, code=st.sampled_from(EXACT + EXACT_WITH_OFFSET))
def test_a_printed_moment_is_read_again(moment, code):
    assert parse_time(format_time(moment, code), code) == moment
    assert Reader([code]).micros(format_time(moment, code)) == micros_of(moment)


@given(moment=moments, offset=offsets, code=st.sampled_from(EXACT_WITH_OFFSET))
def test_an_offset_is_kept(moment, offset, code):
    there = moment.replace(tzinfo=offset)

    again = parse_time(format_time(there, code), code)

    assert (again, again.utcoffset()) == (there, there.utcoffset())


@given(moment=moments, code=st.sampled_from(FORMATS))
def test_a_text_that_was_printed_is_printed_alike_again(moment, code):
    text = format_time(moment, code)

    assert format_time(parse_time(text, code), code) == text


def by_strptime(value: object, formats: list[str]) -> int | None:
    try:
        return micros_of(parse_time_by(value, formats))
    except ValueError:
        return None


printed = st.builds(format_time, st.datetimes(timezones=offsets), st.sampled_from(FORMATS))


@st.composite
def damaged(draw):
    """Draw a printed time of which one or two characters were removed, inserted or changed."""
    text = draw(printed)
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(text)))
        put = draw(st.sampled_from(["", *"0123456789TtZzW:-+._ ,/\u0663\u00b2\n", "+00:00", ":30"]))
        text = text[:at] + put + text[at + draw(st.integers(0, 1)) :]
    return text


values = st.one_of(
    printed,
    damaged(),
    st.sampled_from(ODD),
    st.integers(-(10**13), 10**16),
    st.floats(),
    st.booleans(),
    st.text(max_size=30),
)


@given(value=values, formats=st.lists(st.sampled_from(FORMATS), min_size=1, max_size=3))
@example(value="2024-01-02T03:04:05+05:30", formats=["%Y-%m-%dT%H:%M:%S+00:00"])
@example(value="2024-01-02T03:04:05.5+05:30", formats=["%Y-%m-%d %H:%M:%S.%f+00:00"])
def test_a_reader_reads_and_refuses_exactly_what_strptime_does(value, formats):
    reader = Reader(formats)

    assert reader.micros(value) == by_strptime(value, formats)
    assert reader.micros(value) == by_strptime(value, formats)


def test_odd_spellings_are_read_and_refused_exactly_as_strptime_does():
    for code in FORMATS:
        reader = Reader([code])
        for text in ODD:
            assert reader.micros(text) == by_strptime(text, [code]), (text, code)


def test_a_reader_remembers_only_what_it_read_last():
    reader = Reader(["%Y-%m-%dT%H:%M:%SZ"])
    texts = [f"2024-01-02T03:04:{second:02d}Z" for second in range(60)]

    read = [reader.micros(text) for text in texts for _ in range(2)]

    assert [after - before for before, after in pairwise(read)] == [0, 1_000_000] * 59 + [0]
