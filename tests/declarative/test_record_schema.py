"""Columns of records have the schema's types where the values fit, and wider ones elsewhere."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from chronolake import exact_json
from chronolake.errors import SourceError
from chronolake.landing import wider
from chronolake.source.declarative.manifests.capabilities import has_only_texts, primary_key_of
from chronolake.source.declarative.models.streams import DeclarativeStream
from chronolake.source.records.identity import HASHED, Identity
from chronolake.source.records.schema import Shape, declared_columns, infer_type, to_array
from chronolake.types import ColumnType, Kind


def shape(**kinds: Kind) -> Shape:
    """Make a shape whose columns a schema declares."""
    return Shape({name: ColumnType(kind) for name, kind in kinds.items()}, frozenset(kinds))


def columns_of(of: Shape, records: list[dict[str, Any]]) -> dict[str, tuple[Kind, list[Any]]]:
    columns, arrays = of.cells(records, ())
    return {
        column.name: (column.type.kind, array.to_pylist())
        for column, array in zip(columns, arrays, strict=True)
    }


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": ["null", "string"]}, Kind.STRING),
        ({"type": "integer"}, Kind.LONG),
        ({"type": ["integer", "number"]}, Kind.DOUBLE),
        ({"type": "string", "format": "date"}, Kind.NAIVE_DATE),
        ({"type": "string", "format": "date-time"}, Kind.UTC_DATETIME),
        (
            {
                "type": "string",
                "format": "date-time",
                "airbyte_type": "timestamp_without_timezone",
            },
            Kind.NAIVE_DATETIME,
        ),
        ({"type": ["null", "object"], "properties": {}}, Kind.JSON),
        ({"type": ["string", "integer"]}, Kind.STRING),
        ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, Kind.BOOLEAN),
        ({"description": "anything"}, None),
    ],
)
def test_what_a_schema_declares(schema: dict[str, Any], expected: Kind | None) -> None:
    found = declared_columns({"properties": {"a": schema}})
    assert found == ({} if expected is None else {"a": ColumnType(expected)})


def test_values_that_fit_have_the_declared_types() -> None:
    declared = shape(
        n=Kind.LONG, d=Kind.DOUBLE, at=Kind.UTC_DATETIME, on=Kind.NAIVE_DATE, o=Kind.JSON
    )
    found = columns_of(
        declared,
        [
            {
                "n": 1,
                "d": 2,
                "at": "2024-01-01T02:00:00.5+02:00",
                "on": "2024-02-29",
                "o": {"a": 1},
            },
            {"n": None, "d": 0.5, "at": "2024-01-01T00:00:00Z", "o": [2]},
        ],
    )
    assert found == {
        "n": (Kind.LONG, [1, None]),
        "d": (Kind.DOUBLE, [2.0, 0.5]),
        "at": (
            Kind.UTC_DATETIME,
            [datetime(2024, 1, 1, 0, 0, 0, 500_000, UTC), datetime(2024, 1, 1, tzinfo=UTC)],
        ),
        "on": (Kind.NAIVE_DATE, [date(2024, 2, 29), None]),
        "o": (Kind.JSON, ['{"a":1}', "[2]"]),
    }


def test_values_that_do_not_fit_make_a_column_wider_for_good() -> None:
    declared = shape(n=Kind.LONG, at=Kind.UTC_DATETIME, flag=Kind.BOOLEAN)
    columns_of(declared, [{"n": 1, "at": "2024-01-01T00:00:00Z", "flag": True}])
    found = columns_of(declared, [{"n": 0.5, "at": "yesterday", "flag": 1}])
    assert found == {
        "n": (Kind.STRING, ["0.5"]),
        "at": (Kind.STRING, ["yesterday"]),
        "flag": (Kind.STRING, ["1"]),
    }
    assert columns_of(declared, [{"n": 2, "at": None, "flag": False}]) == {
        "n": (Kind.STRING, ["2"]),
        "at": (Kind.STRING, [None]),
        "flag": (Kind.STRING, ["false"]),
    }


def test_undeclared_fields_become_columns_with_their_first_value() -> None:
    free = shape()
    assert columns_of(free, [{"a": None}]) == {}
    assert columns_of(free, [{"a": 1, "b": [1]}, {"c": True}]) == {
        "a": (Kind.LONG, [1, None]),
        "b": (Kind.JSON, ["[1]", None]),
        "c": (Kind.BOOLEAN, [None, True]),
    }
    assert columns_of(free, [{"d": 10**30}])["d"] == (Kind.STRING, [str(10**30)])


def test_numbers_with_more_digits_than_a_type_holds_become_texts() -> None:
    text = b"""[
      {"i": 1, "big": 18446744073709551616, "d": 0.5, "n": {"a": [12345678901234567.89, 1e400]}},
      {"i": 2, "big": -9223372036854775809, "d": 12345678901234567.89, "n": 7}
    ]"""
    found = columns_of(shape(big=Kind.LONG, d=Kind.DOUBLE, n=Kind.JSON), exact_json.loads(text))
    assert found == {
        "big": (Kind.STRING, ["18446744073709551616", "-9223372036854775809"]),
        "d": (Kind.STRING, ["0.5", "12345678901234567.89"]),
        "n": (Kind.JSON, ['{"a":[12345678901234567.89,1e400]}', "7"]),
        "i": (Kind.LONG, [1, 2]),
    }
    free = columns_of(shape(), exact_json.loads(b'[{"a": 0.1234567890123456789}, {"a": null}]'))
    assert free == {"a": (Kind.STRING, ["0.1234567890123456789", None])}


def test_keys_of_numbers_that_a_float_does_not_hold_differ() -> None:
    text = b'[{"a": 18446744073709551616}, {"a": 18446744073709551617}, {"a": 0.12345678901234567}]'
    for identity in (Identity(()), Identity((("a", "b"), ("a",)))):
        records = identity.add_keys(exact_json.loads(text))
        assert len({record[HASHED] for record in records}) == 3


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(st.lists(_JSON, min_size=1, max_size=6))
def test_no_value_is_lost(values: list[Any]) -> None:
    """Each value can be restored from its column, whatever the column's type is."""
    kind = infer_type(values)
    if kind is None:
        assert all(value is None for value in values)
        return
    array = to_array(values, kind)
    assert array is not None
    assert array.type == kind.arrow
    for value, kept in zip(values, array.to_pylist(), strict=True):
        if (
            value is None
            or isinstance(kept, bool | int | float)
            or (kind.kind is Kind.STRING and isinstance(value, str))
        ):
            assert kept == value
        else:
            assert json.loads(kept) == value


@given(st.lists(st.lists(_JSON, min_size=1, max_size=3), min_size=1, max_size=5), st.randoms())
def test_pages_in_any_order_make_the_same_column(
    pages: list[list[Any]], chance: random.Random
) -> None:
    shuffled = chance.sample(pages, len(pages))
    found = []
    for order in (pages, shuffled):
        column = shape()
        for values in order:
            columns_of(column, [{"a": value} for value in values])
        found.append(column.types.get("a"))
    assert found[0] == found[1]


def test_threads_make_one_shape() -> None:
    both = shape()
    pages = [
        [{"a": n if n % 7 else str(n), f"f{n % 20}": n} for n in range(k, k + 50)]
        for k in range(0, 2_000, 50)
    ]
    with ThreadPoolExecutor(8) as pool:
        for columns, arrays in pool.map(lambda page: both.cells(page, ()), pages):
            for column, array in zip(columns, arrays, strict=True):
                assert array.type == column.type.arrow
    assert both.types["a"] == ColumnType(Kind.STRING)
    assert len(both.types) == 21


def test_types_only_get_wider() -> None:
    """The order of `wider` is the order of types in a shape."""
    column = shape(a=Kind.DOUBLE)
    columns_of(column, [{"a": 2**60}])
    assert column.types["a"] == wider(ColumnType(Kind.DOUBLE), ColumnType(Kind.LONG))


def _stream(primary_key: Any) -> DeclarativeStream:
    return DeclarativeStream.model_validate(
        {
            "type": "DeclarativeStream",
            "name": "a",
            "primary_key": primary_key,
            "retriever": {
                "type": "SimpleRetriever",
                "requester": {"type": "HttpRequester", "url_base": "https://a.example"},
                "record_selector": {
                    "type": "RecordSelector",
                    "extractor": {"type": "DpathExtractor", "field_path": []},
                },
            },
        }
    )


@pytest.mark.parametrize(
    ("key", "columns"),
    [
        ("id", ("id",)),
        (["a", "b"], ("a", "b")),
        ([["a"], ["b"]], ("a", "b")),
        (None, (HASHED,)),
        ([], (HASHED,)),
        ("", (HASHED,)),
        ([["a", "b"]], (HASHED,)),
    ],
)
def test_records_are_identified_by_their_key(key: Any, columns: tuple[str, ...]) -> None:
    assert primary_key_of(_stream(key)).columns == columns


def test_a_key_within_an_object_or_none_at_all_is_a_hash() -> None:
    inner = primary_key_of(_stream([["a", "b"]]))
    one, two, other = inner.add_keys([{"a": {"b": 1}, "c": 1}, {"a": {"b": 1}}, {"a": {"b": "1"}}])
    assert one[HASHED] == two[HASHED] != other[HASHED]
    whole = primary_key_of(_stream(None))
    one, two, other = whole.add_keys([{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}])
    assert one[HASHED] == two[HASHED] != other[HASHED]
    (large,) = whole.add_keys([{"a": 2**70}])
    assert len(large[HASHED]) == 40
    assert pa.array([large[HASHED]]).type == pa.string()


def test_a_lone_surrogate_is_replaced() -> None:
    whole = to_array(["cut \ud83d", "\U0001f600", None], ColumnType(Kind.STRING))
    assert whole is not None
    assert whole.to_pylist() == ["cut \ufffd", "\U0001f600", None]
    nested = to_array([{"a": "cut \ud83d"}], ColumnType(Kind.JSON))
    assert nested is not None
    assert json.loads(nested.to_pylist()[0]) == {"a": "cut \ufffd"}


def test_half_a_character_may_be_in_a_key() -> None:
    one, other = Identity(()).add_keys([{"a": "\ud83d"}, {"a": "\ud83e"}])
    assert one[HASHED] != other[HASHED]


def test_a_key_that_is_declared_as_any_number_has_the_type_of_its_values() -> None:
    identity = Identity((("id",),))
    declared = {"id": ColumnType(Kind.DOUBLE), "total": ColumnType(Kind.DOUBLE)}
    assert identity.add_key_column(declared) == {"total": ColumnType(Kind.DOUBLE)}
    of = Shape(identity.add_key_column(declared), frozenset({"total"}))
    assert columns_of(of, [{"id": 5, "total": 5}]) == {
        "total": (Kind.DOUBLE, [5.0]),
        "id": (Kind.LONG, [5]),
    }


@pytest.mark.parametrize(
    ("record", "hint"),
    [
        ({"id": None, "at": "2026-11-27"}, "or correct the stream's primary_key."),
        ({"id": 1, "at": None}, "or remove cursor_in_key."),
    ],
)
def test_the_error_names_the_setting_of_the_missing_part(record: dict[str, Any], hint: str) -> None:
    with pytest.raises(SourceError) as raised:
        primary_key_of(_stream("id"), "at").add_keys([record])
    assert raised.value.hint is not None
    assert raised.value.hint.endswith(hint)


def test_a_record_without_its_key_is_refused() -> None:
    with pytest.raises(SourceError, match="A record has no id, which is part of its primary key"):
        Identity((("id",),)).add_keys([{"id": 1}, {"id": None}])


@pytest.mark.parametrize(
    ("kind", "texts", "expected"),
    [
        (Kind.DOUBLE, ["1.10", "-2", "3e2", ".5", "", None], [1.1, -2.0, 300.0, 0.5, None, None]),
        (Kind.LONG, ["0", "-7", "9223372036854775807", ""], [0, -7, 2**63 - 1, None]),
        (Kind.BOOLEAN, ["true", "False", ""], [True, False, None]),
        (Kind.UTC_DATETIME, ["2024-01-01T00:00:00Z", ""], [datetime(2024, 1, 1, tzinfo=UTC), None]),
        (Kind.NAIVE_DATE, ["2024-02-29", ""], [date(2024, 2, 29), None]),
        (Kind.JSON, ['{"a": 1}', "plain", "null", ""], ['{"a":1}', '"plain"', None, None]),
        (Kind.STRING, ["1", ""], ["1", ""]),
    ],
)
def test_texts_of_a_csv_body_are_values_of_the_declared_type(
    kind: Kind, texts: list[str | None], expected: list[Any]
) -> None:
    declared = shape(a=kind)
    declared.texts_only = True
    assert columns_of(declared, [{"a": text} for text in texts]) == {"a": (kind, expected)}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Kind.LONG, "007"),
        (Kind.LONG, "9223372036854775808"),
        (Kind.LONG, "1.5"),
        (Kind.DOUBLE, "0.12345678901234567890"),
        (Kind.DOUBLE, "00.5"),
        (Kind.DOUBLE, "NaN"),
        (Kind.DOUBLE, "1e400"),
        (Kind.DOUBLE, "e5"),
        (Kind.DOUBLE, "+"),
        (Kind.BOOLEAN, "yes"),
    ],
)
def test_a_text_that_would_lose_something_widens_the_column_and_is_logged(
    kind: Kind, text: str
) -> None:
    declared = shape(a=kind)
    declared.texts_only = True
    declared.stream = "rates"
    with capture_logs() as logs:
        found = columns_of(declared, [{"a": text}, {"a": "1"}])
        columns_of(declared, [{"a": text}])
    assert found == {"a": (Kind.STRING, [text, "1"])}
    assert [(log["event"], log["stream"], log["column"], log["now"]) for log in logs] == [
        ("column_wider_than_its_schema", "rates", "a", "STRING")
    ]


@given(st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_every_number_survives_a_csv_body(numbers: list[float | None]) -> None:
    declared = shape(a=Kind.DOUBLE)
    declared.texts_only = True
    texts = ["" if number is None else repr(number) for number in numbers]
    assert columns_of(declared, [{"a": text} for text in texts])["a"] == (Kind.DOUBLE, numbers)


def test_texts_of_a_json_body_stay_texts() -> None:
    assert columns_of(shape(a=Kind.DOUBLE), [{"a": "1.10"}]) == {"a": (Kind.STRING, ["1.10"])}


@pytest.mark.parametrize(
    ("decoder", "expected"),
    [
        ({"type": "CsvDecoder"}, True),
        ({"type": "GzipDecoder", "decoder": {"type": "CsvDecoder"}}, True),
        ({"type": "XmlDecoder"}, True),
        ({"type": "JsonlDecoder"}, False),
        (None, False),
    ],
)
def test_the_decoder_determines_whether_a_body_has_only_texts(
    decoder: dict[str, Any] | None, expected: bool
) -> None:
    retriever = {
        "type": "SimpleRetriever",
        "requester": {"type": "HttpRequester", "url_base": "https://example.com"},
        "record_selector": {
            "type": "RecordSelector",
            "extractor": {"type": "DpathExtractor", "field_path": []},
        },
        "decoder": decoder,
    }
    stream = {
        "type": "DeclarativeStream",
        "name": "rates",
        "retriever": retriever,
        "schema_loader": {"type": "InlineSchemaLoader", "schema": {}},
    }
    assert has_only_texts(DeclarativeStream.model_validate(stream)) is expected
