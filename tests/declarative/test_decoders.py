"""Bodies are decoded as the reference's decoders do."""

from __future__ import annotations

import gzip
import io
import zipfile
from math import inf, isnan
from typing import Any

import pytest
from pydantic import TypeAdapter

from chronolake.errors import ConfigurationError, SourceError
from chronolake.exact_json import dumps
from chronolake.source.declarative.http import decoders
from chronolake.source.declarative.models.records import Decoder
from support.declarative.responses import answer

_JSON = {"type": "JsonDecoder"}
_JSONL = {"type": "JsonlDecoder"}
_CSV = {"type": "CsvDecoder"}
_XML = {"type": "XmlDecoder"}


def _gzip(decoder: dict[str, Any]) -> dict[str, Any]:
    return {"type": "GzipDecoder", "decoder": decoder}


def _items(path: str) -> dict[str, Any]:
    return {"type": "JsonItemsDecoder", "items_path": path}


def _zip(decoder: dict[str, Any]) -> dict[str, Any]:
    return {"type": "ZipfileDecoder", "decoder": decoder}


def _packed(content: bytes) -> bytes:
    # No time: examples are identified by their bytes, which must be equal in every process.
    return gzip.compress(content, mtime=0)


def _archive(**members: str | bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return packed.getvalue()


def _bodies(
    decoder: dict[str, Any], body: bytes, headers: dict[str, str] | None = None
) -> list[Any]:
    component: Any = TypeAdapter(Decoder).validate_python(decoder)
    return list(decoders.decode(component, answer(body, headers)))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"a": 1}', [{"a": 1}]),
        (b'[{"a": 1}, {"a": 2}]', [{"a": 1}, {"a": 2}]),
        (b"0", [0]),
        (b'"s"', ["s"]),
        (b'[{"a": Infinity}]', [{"a": inf}]),
        (b'{"a": [-1e999, 18446744073709551616]}', [{"a": [-inf, 18446744073709551616]}]),
        (b'{"a": "\\ud800"}', [{"a": "\ud800"}]),
    ],
)
def test_json_is_read_as_leniently_as_the_reference_reads_it(body: bytes, expected: Any) -> None:
    assert _bodies(_JSON, body) == expected


_LONG = b'{"a": 123456789012345678901234567890, "b": [12345678901234567.89]}'


@pytest.mark.differs("numbers with many digits")
@pytest.mark.parametrize(
    ("decoder", "body"),
    [
        (_JSON, b"[" + _LONG + b"]"),
        (_JSONL, _LONG + b"\n"),
        (_items("c"), b'{"c": [' + _LONG + b"]}"),
        (_gzip(_JSONL), _packed(_LONG + b"\n")),
        (_zip(_JSON), _archive(x=_LONG)),
    ],
)
def test_numbers_keep_every_digit_whatever_the_decoder(
    decoder: dict[str, Any], body: bytes
) -> None:
    assert [dumps(document) for document in _bodies(decoder, body)] == [_LONG.replace(b" ", b"")]


def test_nan_is_a_number() -> None:
    assert isnan(_bodies(_JSON, b'{"a": NaN}')[0]["a"])


@pytest.mark.parametrize("body", [b"", b" \n", b"null", b"[]"])
def test_a_body_without_values_is_an_empty_object(body: bytes) -> None:
    assert _bodies(_JSON, body) == [{}]


@pytest.mark.parametrize("body", [b"<x>", b'{"a": 1', b'{"a": "\xe4"}', b"[" * 2000 + b"]" * 2000])
def test_invalid_json_is_not_an_empty_page(body: bytes) -> None:
    with pytest.raises(SourceError, match="A response is not valid JSON"):
        _bodies(_JSON, body)


def test_each_line_of_jsonl_is_a_body() -> None:
    body = b'{"a":1}\n{"a":2}\r\n\n[1,2]\n{"a":null}'
    assert _bodies(_JSONL, body) == [{"a": 1}, {"a": 2}, [1, 2], {"a": None}]
    assert _bodies(_JSONL, b"") == []


@pytest.mark.parametrize(
    ("decoder", "body", "message"),
    [
        (_JSONL, b'{"a":1}\n{"a":', "not valid JSON in line 2"),
        (_JSONL, b"<html>busy</html>", "not valid JSON in line 1"),
        (_JSONL, b'"\xff"', "not valid JSON in line 1"),
        (_CSV, b'{"error": {"code": "busy"}}', "not valid CSV"),
        (_CSV, b"\n <html>\n<body>", "not valid CSV"),
        (_CSV, b'\xef\xbb\xbf[{"a": 1}]', "not valid CSV"),
        (_XML, b"nope", "not valid XML: ExpatError"),
        (_XML, b"<r><i>1</i>", "not valid XML: ExpatError"),
        (_XML, b'{"error": "busy"}', "not valid XML: ExpatError"),
        (_items("data.items"), b'{"error": "busy"}', "no list at data.items"),
        (_items("data.items"), b'{"data": {"total": 0}}', "no list at data.items"),
        (_items("data.items"), b'{"data": {"items": {"a": 1}}}', "no list at data.items"),
        (_items("data.items"), b'"busy"', "no list at data.items"),
    ],
)
def test_a_body_in_another_format_is_not_an_empty_page(
    decoder: dict[str, Any], body: bytes, message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        _bodies(decoder, body)


@pytest.mark.parametrize("body", [b"{}", b'{"data": null}', b'{"data": {"items": []}}', b"[]"])
def test_a_list_that_the_api_marks_as_empty_has_no_items(body: bytes) -> None:
    assert _bodies(_items("data.items"), body) == []


@pytest.mark.parametrize(
    ("options", "body", "expected"),
    [
        ({}, b'a,b\n1,2\n"x\r\ny",3\n', [{"a": "1", "b": "2"}, {"a": "x\ny", "b": "3"}]),
        ({}, b"a,b\n1\n\n5,6", [{"a": "1", "b": None}, {"a": "5", "b": "6"}]),
        ({}, b"a\n1,2,3\n", [{"a": "1", "null": ["2", "3"]}]),
        ({}, b"", []),
        ({}, b"\xef\xbb\xbfa\n1\n", [{"\ufeffa": "1"}]),
        ({"delimiter": "\\t"}, b"a\tb\n1\t2\n", [{"a": "1", "b": "2"}]),
        ({"delimiter": ";", "encoding": "latin-1"}, b"a;b\n\xe9;2\n", [{"a": "é", "b": "2"}]),
        ({"set_values_to_none": ["", "N/A"]}, b"a,b\n,N/A\nx,y", [
            {"a": None, "b": None}, {"a": "x", "b": "y"}
        ]),
    ],
)  # fmt: skip
def test_rows_of_csv_have_the_names_of_its_header(
    options: dict[str, Any], body: bytes, expected: Any
) -> None:
    assert _bodies(_CSV | options, body) == expected


@pytest.mark.parametrize("options", [{"encoding": "utf-99"}, {"delimiter": "||"}])
def test_csv_with_invalid_options_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        _bodies(_CSV | options, b"a\n1\n")


@pytest.mark.parametrize(
    ("decoder", "body", "expected"),
    [
        (_gzip(_JSON), _packed(b'[{"a": 1}]'), [{"a": 1}]),
        (_gzip(_JSON), b'{"a": 1}', [{"a": 1}]),
        (_gzip(_JSONL), _packed(b"1\n") + _packed(b"2\n"), [1, 2]),
        (_gzip(_gzip(_CSV)), _packed(_packed(b"a\n1\n")), [{"a": "1"}]),
        (_zip(_CSV), _archive(x="a\n1\n", y="a\n2\n"), [{"a": "1"}, {"a": "2"}]),
        (_zip(_gzip(_JSON)), _archive(x=_packed(b'{"a": 1}')), [{"a": 1}]),
    ],
)
def test_compressed_bodies_have_what_is_within(
    decoder: dict[str, Any], body: bytes, expected: Any
) -> None:
    assert _bodies(decoder, body) == expected


@pytest.mark.parametrize(
    ("decoder", "body"),
    [
        (_gzip(_JSON), _packed(b"nope")),
        (_gzip(_JSON), _packed(b"null")),
        (_gzip(_CSV), _packed(b"a\n1\n")[:-6]),
        (_zip(_CSV), b"no archive"),
        (_zip(_JSON), _archive(x="nope")),
        (_CSV, b"a\n\xff\xfe\n"),
        ({"type": "IterableDecoder"}, b"\xff"),
    ],
)
def test_what_a_decoder_cannot_read_is_an_error(decoder: dict[str, Any], body: bytes) -> None:
    with pytest.raises(SourceError, match="does not have the format that its"):
        _bodies(decoder, body)


@pytest.mark.parametrize(
    ("decoder", "body"),
    [
        (_gzip(_CSV), _packed(b"a\n" + b"1\n" * 600)),
        (_gzip(_gzip(_JSON)), _packed(_packed(b" " * 2000))),
        (_zip(_CSV), _archive(x="a\n" + "1\n" * 400, y="a\n" + "1\n" * 400)),
    ],
)
def test_a_decompressed_body_never_exceeds_the_limit(
    decoder: dict[str, Any], body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoders, "MOST_DECOMPRESSED", 1000)
    with pytest.raises(SourceError, match="more than 1000 bytes"):
        _bodies(decoder, body)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            b'<r><i id="1">A &amp; B</i><i/><n>1</n></r>',
            {"r": {"i": [{"@id": "1", "#text": "A & B"}, None], "n": "1"}},
        ),
        (b'<?xml version="1.0" encoding="latin-1"?><r>\xe9</r>', {"r": "é"}),
        (b"", {}),
        (b" \n", {}),
    ],
)
def test_xml_is_one_object(body: bytes, expected: Any) -> None:
    assert _bodies(_XML, body) == [expected]


def test_xml_is_decoded_with_the_encoding_of_the_headers() -> None:
    headers = {"Content-Type": "text/xml; charset=iso-8859-1"}
    assert _bodies(_XML, b"<r>\xe9</r>", headers) == [{"r": "é"}]


def test_xml_that_declares_entities_is_refused() -> None:
    body = b'<!DOCTYPE r [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><r>&b;</r>'
    with pytest.raises(SourceError, match="declares entities"):
        _bodies(_XML, body)


def test_each_line_is_a_record_of_its_own() -> None:
    expected = [{"record": "a"}, {"record": "b"}, {"record": ""}, {"record": "c"}]
    assert _bodies({"type": "IterableDecoder"}, b"a\nb\r\n\nc") == expected


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("a.b", b'{"a": {"b": [{"x": 1}, 2.5]}, "c": 1}', [{"x": 1}, 2.5]),
        ("a.item.b", b'{"a": [{"b": [1]}, {"b": [2, 3]}]}', [1, 2, 3]),
    ],
)
def test_items_of_one_list_are_bodies(path: str, body: bytes, expected: Any) -> None:
    assert _bodies({"type": "JsonItemsDecoder", "items_path": path}, body) == expected
