"""Records are found where the reference finds them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from chronolake.errors import SourceError
from chronolake.source.declarative.http.decoders import decode
from chronolake.source.declarative.models.records import Extractor, JsonDecoder
from chronolake.source.declarative.records.extractors import ExtractedRecords, create_extraction
from support.declarative.responses import answer

_JSON = JsonDecoder(type="JsonDecoder")


def _dpath(*path: str) -> dict[str, Any]:
    return {"type": "DpathExtractor", "field_path": list(path), "$parameters": {"p": "y"}}


def _extracted(extractor: dict[str, Any], body: Any) -> ExtractedRecords:
    component: Any = TypeAdapter(Extractor).validate_python(extractor)
    return create_extraction(component, _JSON, {"k": "z"})(answer(body))


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        # Each item of a list is a record, and so is an object; a missing or empty value has none.
        (["d"], {"d": [{"a": 1}, {"a": 2}]}, [{"a": 1}, {"a": 2}]),
        (["d"], {"d": [None, {}, {"a": 1}]}, [None, {}, {"a": 1}]),
        (["d"], {"d": {"x": 1}}, [{"x": 1}]),
        (["d"], {"d": {}}, []),
        (["d"], {"d": None}, []),
        (["d"], {"d": 5}, [5]),
        (["d"], {}, []),
        (["data", "items"], {"data": {"items": [{"i": 1}]}}, [{"i": 1}]),
        # An empty path selects the body itself; each item of a root list is a body.
        ([], {"a": 1}, [{"a": 1}]),
        ([], {}, []),
        ([], [], []),
        ([], [{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 2}]),
        ([], [{"a": 1}, {}, None, [1, 2], 5], [{"a": 1}, 1, 2, 5]),
        (["a", "b"], [{"a": {"b": [1]}}, {"a": {"b": 2}}], [1, 2]),
        # Any key or index.
        (["*"], {"a": [1], "b": {"c": 1}}, [[1], {"c": 1}]),
        (["*"], [{"a": 1, "b": 2}, {"c": 3}], [1, 2, 3]),
        (["*", "*"], {"a": {"b": 1, "c": 2}, "d": [3, 4]}, [1, 2, 3, 4]),
        (["d", "*", "x"], {"d": [{"x": 1}, {"y": 1}, {"x": [2]}]}, [1, [2]]),
        (["a", "*"], {"a": []}, []),
        # Patterns of one value.
        (["d*"], {"data": [1]}, [1]),
        (["a?c"], {"abc": [1]}, [1]),
        (["a[0]"], {"a0": [1], "a[0]": [2]}, [1]),
        # Numbers are indices, never keys.
        (["a", "0"], {"a": [{"x": 1}, {"x": 2}]}, [{"x": 1}]),
        (["a", "-1"], {"a": [{"x": 1}, {"x": 2}]}, [{"x": 2}]),
        (["a", "01"], {"a": [1, 2]}, [2]),
        (["a", "1.5"], {"a": [7, 8]}, [8]),
        # Templates.
        (["{{ config.k }}"], {"z": [1]}, [1]),
        (["{{ parameters['p'] }}", "b"], {"y": {"b": [3]}}, [3]),
    ],
)
def test_records_are_where_the_path_leads(path: list[str], body: Any, expected: Any) -> None:
    assert _extracted(_dpath(*path), body) == ExtractedRecords(expected, len(expected))


@pytest.mark.parametrize(
    ("path", "body", "missing"),
    [
        (["a", "b"], {"a": "text"}, "`a.b` (found a string)"),
        (["a", "b"], {"c": 1, "d": 2}, "`a` (found an object with 'c', 'd')"),
        (["a", "7"], {"a": [1]}, "`a.7` (found a list of length 1)"),
        (["a", "b"], [{"a": {"b": [1]}}, {"a": 5}], "`a.b` (found a number or a boolean)"),
        (["a", "*"], {"b": 1}, "`a` (found an object with 'b')"),
        (["0"], {"0": [1]}, "`0` (found an object with '0')"),
        (["True"], {"True": [1]}, "`True` (found an object with 'True')"),
        (
            ["a"],
            dict.fromkeys("bcdefgh"),
            "`a` (found an object with 'b', 'c', 'd', 'e', 'f', …)",
        ),
        # A pattern without a match, or whose matches all lack the rest of the path.
        (["a", "*"], {"a": "text"}, "`a.*` (found a string)"),
        (["a", "*", "b"], {"a": {"x": 1}}, "`a.*.b` (found a number or a boolean)"),
        (["*", "b"], {"error": {"code": 5}}, "`*.b` (found an object with 'code')"),
        (["*", "b"], [{"x": {"c": 1}}, {"d": 5}], "`*.b` (found an object with 'c')"),
        (["d*"], {"a": 1}, "`d*` (found an object with 'a')"),
        (["a", "**", "b"], {"a": {"x": [{"c": 1}]}}, "`a.**.b` (found an object with 'x')"),
        # Below an empty value nothing is missing, and one complete match of a pattern is enough.
        (["a", "b"], {"a": None}, None),
        (["a", "b"], {"a": []}, None),
        (["a", "b", "c"], {"a": {}}, None),
        (["a", "*", "b"], {"a": {}}, None),
        (["a", "*", "b"], {"a": {"x": {}, "y": {"c": 1}}}, None),
        (["a", "*", "b", "*"], {"a": [{"c": 1}, {"b": []}]}, None),
        (["*", "b"], [{"x": {"c": 1}}, {"x": {"b": 5}}], None),
        (["*", "b"], [{"x": {"c": 1}}, {"x": None}], None),
        (["**", "b", "*"], {"a": {"b": []}}, None),
    ],
)
def test_a_missing_path_is_distinguished_from_an_empty_list(
    path: list[str], body: Any, missing: str | None
) -> None:
    assert _extracted(_dpath(*path), body).missing == missing


def test_a_pattern_for_one_value_must_not_fit_several() -> None:
    with pytest.raises(SourceError, match="matches several values"):
        _extracted(_dpath("d*"), {"da": [1], "db": [2]})


def test_a_list_of_records_is_handed_on_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"data": [{"a": 1}]}
    monkeypatch.setattr(
        "chronolake.source.declarative.records.extractors.decode",
        lambda decoder, given: [body] if decode(decoder, given) else [],
    )
    assert _extracted(_dpath("data"), body).records is body["data"]


def _combined(mode: str, *, skip: bool = False) -> dict[str, Any]:
    return {
        "type": "CombinedExtractor",
        "mode": mode,
        "skip_empty_records": skip,
        "extractors": [_dpath("a"), _dpath("b")],
    }


@pytest.mark.parametrize(
    ("extractor", "body", "expected"),
    [
        (_combined("union"), {"a": [1], "b": [2, 3]}, ExtractedRecords([1, 2, 3], 3)),
        (_combined("first_match"), {"a": [1], "b": [2, 3]}, ExtractedRecords([1], 1)),
        (_combined("first_match"), {"b": [2, 3]}, ExtractedRecords([2, 3], 2)),
        (_combined("first_match"), {}, ExtractedRecords([], 0)),
        (_combined("union", skip=True), {"a": [None, 1], "b": [{}]}, ExtractedRecords([1], 3)),
        (
            _combined("first_match", skip=True),
            {"a": [None], "b": [None, 2]},
            ExtractedRecords([2], 2),
        ),
    ],
)
def test_extractors_combine_and_count_what_they_leave_out(
    extractor: dict[str, Any], body: Any, expected: ExtractedRecords
) -> None:
    assert _extracted(extractor, body) == expected
