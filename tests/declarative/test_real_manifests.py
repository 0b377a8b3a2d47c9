"""Real manifests are read from APIs that are made of their own words.

The API of a manifest (`mockapi`) knows its YAML and nothing of our reader: where the records are,
how pages follow each other, which credentials and parameters a request has. The reader's result is
compared with what was sent.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from chronolake.source.declarative.manifests.manifest import load
from support.declarative.mockapi import configurations, raw_manifest
from support.declarative.mockapi.coverage import outcomes, table
from support.declarative.mockapi.trials import MANIFESTS, Outcome, Real, mock_api, names, real

_ARE_HERE = MANIFESTS.is_dir()
_SAMPLE = random.Random(119).sample(names(), 16) if _ARE_HERE else []
are_here = pytest.mark.skipif(
    not _ARE_HERE, reason="the real manifests are not beside this repository"
)


def _all() -> list[Any]:
    """Return the names of all manifests; those outside the sample belong to the long tests."""
    return [
        name if name in _SAMPLE else pytest.param(name, marks=pytest.mark.long) for name in names()
    ]


@are_here
@pytest.mark.parametrize("name", _all())
def test_every_stream_is_read_or_reports_what_is_not_supported(name: str) -> None:
    found = outcomes([name])
    assert found
    assert {result.stream: result.faults for result in found if result.faults} == {}


@are_here
@pytest.mark.parametrize("name", _all())
def test_each_form_of_a_configuration_gives_access(name: str) -> None:
    manifest = real(name)
    named = next(iter(raw_manifest.streams(manifest.written)))
    for branch in range(1, configurations.branches(manifest.written)):
        with mock_api(manifest, branch) as trial:
            assert trial.tried(*named).faults == []


def _described(**changes: Any) -> dict[str, Any]:
    """Describe a stream with credentials, parameters, pages and slices; changes go to its parts."""
    parts: dict[str, Any] = {
        "path": "things",
        "parameters": {"sort": "at"},
        "token": "{{ config['api_key'] }}",
        "extractor": ["data"],
        "decoder": {"type": "JsonDecoder"},
        "page": "page",
        "first": 1,
        "begin": "since",
        "cursor": "at",
        "added": "{{ record['id'] }}",
        **changes,
    }

    def option(name: str) -> dict[str, Any]:
        return {"type": "RequestOption", "inject_into": "request_parameter", "field_name": name}

    counting = {"type": "PageIncrement", "page_size": 3, "start_from_page": parts["first"]}
    paginator = {
        "type": "DefaultPaginator",
        "page_token_option": option(parts["page"]),
        "page_size_option": option("limit"),
        "pagination_strategy": {**counting, "inject_on_first_request": True},
    }
    cursor = {
        "type": "DatetimeBasedCursor",
        "cursor_field": parts["cursor"],
        "datetime_format": "%Y-%m-%dT%H:%M:%SZ",
        "start_datetime": "{{ config['start_date'] }}",
        "start_time_option": option(parts["begin"]),
    }
    is_paged = parts["decoder"]["type"] == "JsonDecoder"
    names = ("id", "at", "other")
    return {
        "type": "DeclarativeStream",
        "name": "things",
        "primary_key": "id",
        "retriever": {
            "type": "SimpleRetriever",
            "requester": {
                "type": "HttpRequester",
                "url_base": "https://api.example.test/v1",
                "path": parts["path"],
                "request_parameters": parts["parameters"],
                "authenticator": {"type": "BearerAuthenticator", "api_token": parts["token"]},
            },
            "record_selector": {
                "type": "RecordSelector",
                "extractor": {"type": "DpathExtractor", "field_path": parts["extractor"]},
            },
            "decoder": parts["decoder"],
            **({"paginator": paginator} if is_paged else {}),
        },
        "incremental_sync": cursor,
        "transformations": [
            {"type": "AddFields", "fields": [{"path": ["added"], "value": parts["added"]}]}
        ],
        "schema_loader": {
            "type": "InlineSchemaLoader",
            "schema": {"properties": {name: {"type": "string"} for name in names}},
        },
    }


def _file(described: dict[str, Any], folder: Path, name: str) -> Path:
    properties = {"api_key": {"type": "string"}, "start_date": {"type": "string"}}
    whole = {
        "type": "DeclarativeSource",
        "streams": [described],
        "spec": {"type": "Spec", "connection_specification": {"properties": properties}},
    }
    file = folder / name
    file.write_text(yaml.safe_dump(whole))
    return file


def _became(api: dict[str, Any], reader: dict[str, Any], folder: Path) -> Outcome:
    """Read a stream; its API knows one description of it, its reader the other."""
    known = raw_manifest.manifest(_file(api, folder, "api.yaml"))
    manifest = Real("things", known, load(_file(reader, folder, "reader.yaml")))
    with mock_api(manifest) as trial:
        return trial.tried("things", next(raw_manifest.streams(known))[1])


@pytest.mark.parametrize(
    ("decoder", "path"),
    [
        ({"type": "JsonDecoder"}, ("data", "*", "thing")),
        ({"type": "JsonlDecoder"}, ()),
        ({"type": "CsvDecoder", "delimiter": ";"}, ()),
        ({"type": "XmlDecoder"}, ("things", "thing")),
        ({"type": "GzipDecoder", "decoder": {"type": "JsonlDecoder"}}, ()),
        ({"type": "ZipfileDecoder", "decoder": {"type": "CsvDecoder"}}, ()),
    ],
)
def test_responses_have_the_format_that_the_decoder_reads(
    decoder: dict[str, Any], path: tuple[str, ...], tmp_path: Path
) -> None:
    described = _described(decoder=decoder, extractor=list(path))
    found = _became(described, described, tmp_path)
    assert found.faults == []
    assert found.records >= 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": "others"}, "is nothing that the manifest describes"),
        ({"parameters": {}}, "parameter sort: 'at' is wanted, None was sent"),
        ({"parameters": {"sort": "id"}}, "'at' is wanted, 'id' was sent"),
        ({"token": "another"}, "Authorization is 'Bearer another'"),
        ({"extractor": []}, "records were sent, 1 came"),
        ({"page": "sheet"}, "pages [0, 0, 0] were asked for"),
        ({"first": 2}, "pages [1] were asked for"),
        ({"begin": "from"}, "since is missing"),
        ({"cursor": "other"}, "the state is"),
        ({"added": "{{ record['at'] }}"}, "added is"),
    ],
)
def test_a_reader_that_takes_a_manifest_for_another_one_is_found(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    found = _became(_described(), _described(**changes), tmp_path)
    assert message in "; ".join(found.faults)


def test_the_shares_are_counted_by_what_became_of_streams() -> None:
    found = [
        Outcome("one", "a", is_incremental=True, is_rising=True),
        Outcome("one", "b", is_incremental=False, unsupported=["Python component: CustomX"]),
        Outcome("two", "c", is_incremental=False),
        Outcome("two", "d", is_incremental=True, faults=["no record came"]),
    ]
    text = " ".join(table(found).split())
    assert "streams that run 2 of 4 50.0%" in text
    assert "incremental streams that run 1 of 2 50.0%" in text
    assert "Python component: CustomX: 1 streams" in text
    assert "WRONG two d: ['no record came']" in text
