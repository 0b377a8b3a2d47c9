"""Responses that are not a list of records: each has no records, or fails its slice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.declarative.apis import Api, Reply
from support.declarative.stream_reads import option, read_stream, retriever, stream

_START = {"updated": "2024-01-01"}
_DPATH = {"type": "DpathExtractor", "field_path": ["data"]}
_ITEMS = {"type": "DpathExtractor", "field_path": ["data", "items"]}
_ROOT = {"type": "DpathExtractor", "field_path": []}
_ANY = {"type": "DpathExtractor", "field_path": ["data", "*", "list"]}
_EXPANDED = {
    **_ROOT,
    "record_expander": {"type": "RecordExpander", "expand_records_from_field": ["data"]},
}
_EITHER = {
    "type": "CombinedExtractor",
    "mode": "first_match",
    "extractors": [_DPATH, {"type": "DpathExtractor", "field_path": ["rows"]}],
}
_BOTH = {**_EITHER, "mode": "union"}
_NONE, _FAILS = "no records", "fails"

#: Bodies of responses to a slice, and their meaning if records are at a path.
_BODIES: list[tuple[bytes, str]] = [
    # It reports that there are no records.
    (b"", _NONE),
    (b" \n", _NONE),
    (b"null", _NONE),
    (b"{}", _NONE),
    (b"[]", _NONE),
    (b'""', _NONE),
    # It reports something else.
    (b'{"error": {"code": "busy"}}', _FAILS),
    (b'{"message": "try again"}', _FAILS),
    (b'{"DATA": []}', _FAILS),
    (b'{"error": null}', _FAILS),
    (b'[{"error": "busy"}]', _FAILS),
    (b'"busy"', _FAILS),
    (b"0", _FAILS),
    (b"17", _FAILS),
    (b"false", _FAILS),
    (b"true", _FAILS),
    (b"<html>busy</html>", _FAILS),
    (b"busy", _FAILS),
    (b'{"data": [{"id": 1}', _FAILS),
    (b"\xff\xfe", _FAILS),
]
#: Values at the path.
_VALUES: list[tuple[bytes, str]] = [
    (b"null", _NONE),
    (b"[]", _NONE),
    (b"{}", _NONE),
    (b'""', _NONE),
    (b"0", _FAILS),
    (b"17", _FAILS),
    (b"false", _FAILS),
    (b"true", _FAILS),
    (b'"busy"', _FAILS),
    (b'["busy"]', _FAILS),
    (b"[null]", _FAILS),
    (b"[[1]]", _FAILS),
]


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with Api() as running:
        yield running


def described(
    extractor: dict[str, Any], decoder: str | None = None, handler: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Describe a stream whose two slices are read by an extractor; the first has a record."""
    made = retriever(asks={} if handler is None else {"error_handler": handler})
    made["record_selector"]["extractor"] = extractor
    if decoder is not None:
        made["decoder"] = {"type": decoder}
    cursor = {
        "type": "DatetimeBasedCursor",
        "cursor_field": "updated",
        "datetime_format": "%Y-%m-%d",
        "start_datetime": "2024-01-01",
        "end_datetime": "2024-01-20",
        "step": "P10D",
        "cursor_granularity": "P1D",
        "start_time_option": option("since"),
    }
    return stream(retriever=made, incremental_sync=cursor)


def outcome(
    api: Api, reply: Reply, record: Any, stream_definition: dict[str, Any]
) -> tuple[str, str | None]:
    """Return the outcome of a slice that gets `reply`; the slice after it has a record."""
    api.on(
        "/items", lambda asked: reply if asked.params["since"] == "2024-01-01" else Reply(record)
    )
    read = read_stream(stream_definition, api)
    if read.result.failure is None:
        assert read.ids == [1], reply
        assert read.result.state == {"updated": "2024-01-15"}, reply
        return _NONE, None
    assert read.ids in ([], [1]), reply
    # The state remains before the slice, so that the next run requests it again.
    assert read.result.state == _START, reply
    return _FAILS, read.result.failure.message


_RECORD = {"id": 1, "updated": "2024-01-15"}
_RIGHT: list[tuple[str, dict[str, Any], Callable[[bytes], bytes], Any]] = [
    ("a path", _DPATH, lambda value: b'{"data": %s}' % value, {"data": [_RECORD]}),
    (
        "a longer path",
        _ITEMS,
        lambda value: b'{"data": {"items": %s}}' % value,
        {"data": {"items": [_RECORD]}},
    ),
    (
        "a pattern",
        _ANY,
        lambda value: b'{"data": %s}' % value,
        {"data": {"a": {"list": _RECORD}}},
    ),
    ("two extractors", _EITHER, lambda value: b'{"rows": %s}' % value, {"data": [_RECORD]}),
    ("a union", _BOTH, lambda value: b'{"data": %s}' % value, {"rows": [_RECORD]}),
    ("an expander", _EXPANDED, lambda value: b'{"data": %s}' % value, {"data": [_RECORD]}),
]


@pytest.mark.sampled
@pytest.mark.differs("responses without the records' path")
@pytest.mark.differs("values that are not records")
@pytest.mark.parametrize(("extractor", "within", "record"), [case[1:] for case in _RIGHT])
def test_response_without_a_list_is_empty_or_fails_its_slice(
    api: Api, extractor: dict[str, Any], within: Callable[[bytes], bytes], record: Any
) -> None:
    cases = [*_BODIES]
    if extractor is not _EXPANDED:
        # Expanders may leave records out by design; null has no list for a pattern.
        values = [value for value in _VALUES if extractor is not _ANY or value[0] != b"[null]"]
        cases += [(within(value), wanted) for value, wanted in values]
    stream_definition = described(extractor)

    found = {body: outcome(api, Reply(body), record, stream_definition)[0] for body, _ in cases}

    assert found == dict(cases)


@pytest.mark.parametrize(
    ("decoder", "path", "body", "wanted"),
    [
        ("JsonlDecoder", [], b"", _NONE),
        ("JsonlDecoder", [], b"busy", _FAILS),
        ("JsonlDecoder", ["data"], b'{"error": "busy"}\n', _FAILS),
        ("JsonlDecoder", ["data"], b'{"data": null}\n{}\n', _NONE),
        ("XmlDecoder", ["r", "i"], b"", _NONE),
        ("XmlDecoder", ["r", "i"], b"<r/>", _NONE),
        ("XmlDecoder", ["r", "i"], b'<r count="0"/>', _NONE),
        ("XmlDecoder", ["r", "i"], b"<error>busy</error>", _FAILS),
        ("XmlDecoder", ["r", "i"], b"<r>busy</r>", _NONE),
        ("XmlDecoder", ["r"], b"<error>busy</error>", _FAILS),
        ("XmlDecoder", ["r", "i"], b'{"error": "busy"}', _FAILS),
        ("CsvDecoder", [], b"", _NONE),
        ("CsvDecoder", [], b"id,updated\n", _NONE),
        ("CsvDecoder", [], b'{"error": "busy"}', _FAILS),
        ("CsvDecoder", [], b"<html>\nbusy\n</html>", _FAILS),
        ("CsvDecoder", ["data"], b"error\nbusy\n", _FAILS),
    ],
)
def test_other_formats_are_empty_or_fail_their_slice(
    api: Api, decoder: str, path: list[str], body: bytes, wanted: str
) -> None:
    right = {
        "JsonlDecoder": b'{"data": {"id": 1, "updated": "2024-01-15"}}\n',
        "XmlDecoder": b"<r><i><id>1</id><updated>2024-01-15</updated></i></r>",
        "CsvDecoder": b"id,updated\n1,2024-01-15\n",
    }[decoder]
    api.on(
        "/items",
        lambda asked: Reply(body if asked.params["since"] == "2024-01-01" else right),
    )
    extractor = {"type": "DpathExtractor", "field_path": path}

    read = read_stream(described(extractor, decoder), api)

    assert (_FAILS if read.result.failure else _NONE) == wanted
    if wanted == _FAILS:
        assert read.result.state == _START


@pytest.mark.parametrize(
    ("status", "body", "wanted"),
    [
        (200, b"", _NONE),
        (202, b'{"status": "pending"}', _FAILS),
        (204, b"", _NONE),
        (300, b"", _FAILS),
        (304, b"", _FAILS),
        (400, b"", _FAILS),
        (404, b'{"data": []}', _FAILS),
    ],
)
@pytest.mark.differs("redirects without a location")
def test_a_status_is_empty_or_fails_its_slice(
    api: Api, status: int, body: bytes, wanted: str
) -> None:
    reply = Reply(body, status=status)
    assert outcome(api, reply, {"data": [_RECORD]}, described(_DPATH))[0] == wanted


def test_error_contains_the_expected_path_and_no_value(api: Api) -> None:
    reply = Reply({"data": {"error": "s3cret", "request": 5}})
    _, message = outcome(api, reply, {"data": {"items": [_RECORD]}}, described(_ITEMS))
    assert message == (
        "A response has no `data.items` (found an object with 'error', 'request'), where its "
        "records should be."
    )


def composite(*handlers: dict[str, Any]) -> dict[str, Any]:
    parts = [
        {
            "type": "DefaultErrorHandler",
            "response_filters": [{"type": "HttpResponseFilter", **handler}] if handler else [],
            "max_retries": 0,
        }
        for handler in handlers
    ]
    return {"type": "CompositeErrorHandler", "error_handlers": parts}


_BUSY = "{{ 'error' in response }}"


@pytest.mark.differs("several handlers of a good response")
@pytest.mark.parametrize(
    ("handlers", "wanted"),
    [
        ([{"predicate": _BUSY, "action": "IGNORE"}], _NONE),
        ([{"predicate": _BUSY, "action": "SUCCESS"}], _NONE),
        ([{"error_message_contains": "busy", "action": "IGNORE"}], _NONE),
        ([{"http_codes": [200], "action": "IGNORE"}], _NONE),
        # A 200 that counts as a success does not describe the body.
        ([{"http_codes": [200], "action": "SUCCESS"}], _FAILS),
        ([{"predicate": _BUSY, "action": "FAIL"}], _FAILS),
        (
            [{"http_codes": [500], "action": "FAIL"}, {"predicate": _BUSY, "action": "IGNORE"}],
            _NONE,
        ),
        ([{}, {"predicate": _BUSY, "action": "RETRY"}], _FAILS),
        ([{}, {}, {"predicate": _BUSY, "action": "IGNORE"}], _NONE),
        # A later handler without a matching filter does not undo an earlier one's decision.
        ([{"predicate": _BUSY, "action": "FAIL"}, {}], _FAILS),
        ([{"predicate": _BUSY, "action": "RATE_LIMITED"}, {"http_codes": [403]}], _FAILS),
    ],
)
def test_error_handler_of_the_manifest_takes_precedence(
    api: Api, handlers: list[dict[str, Any]], wanted: str
) -> None:
    reply = Reply({"error": {"message": "busy"}})
    stream_definition = described(_DPATH, handler=composite(*handlers))
    assert outcome(api, reply, {"data": [_RECORD]}, stream_definition)[0] == wanted


@pytest.mark.parametrize(("names", "wanted"), [((), _FAILS), (("items",), _NONE)])
def test_configuration_lists_streams_that_may_lack_records(
    api: Api, names: tuple[str, ...], wanted: str
) -> None:
    reply = Reply({"kind": "list", "etag": "x"})
    api.on(
        "/items",
        lambda asked: (
            reply if asked.params["since"] == "2024-01-01" else Reply({"data": [_RECORD]})
        ),
    )
    read = read_stream(described(_DPATH), api, may_lack_records=names)
    assert (_FAILS if read.result.failure else _NONE) == wanted


def test_a_later_page_without_the_path_fails_the_slice(api: Api) -> None:
    pages = {
        "type": "DefaultPaginator",
        "page_token_option": option("page"),
        "pagination_strategy": {"type": "PageIncrement", "start_from_page": 1, "page_size": 1},
    }
    stream_definition = described(_DPATH)
    stream_definition["retriever"]["paginator"] = pages
    api.on(
        "/items",
        lambda asked: Reply(
            {"error": "busy"} if asked.params.get("page") == "2" else {"data": [_RECORD]}
        ),
    )
    read = read_stream(stream_definition, api)
    assert read.result.failure is not None
    assert read.result.state == _START
