"""Real manifests are read from APIs that are made of their own words.

The API of a manifest (`mockapi`) knows its YAML and nothing of our reader: where records lie, how
pages follow each other, which credentials and parameters a request has. What the reader makes of it
is compared with what was sent.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from mockapi import settings, written
from mockapi.shares import outcomes, table
from mockapi.trying import MANIFESTS, Outcome, Real, mocked, names, real

from chronolake.source.declarative.manifests.manifest import load

_ARE_HERE = MANIFESTS.is_dir()
_SAMPLE = random.Random(119).sample(names(), 16) if _ARE_HERE else []
pytestmark = pytest.mark.skipif(
    not _ARE_HERE, reason="the real manifests are not beside this repository"
)


def _all() -> list[Any]:
    """All of them; those that are no sample belong to the long tests."""
    return [
        name if name in _SAMPLE else pytest.param(name, marks=pytest.mark.long) for name in names()
    ]


@pytest.mark.parametrize("name", _all())
def test_every_stream_reads_or_says_what_is_not_supported(name: str) -> None:
    found = outcomes([name])
    assert found
    assert {one.stream: one.faults for one in found if one.faults} == {}


@pytest.mark.parametrize("name", _all())
def test_each_form_of_a_configuration_gives_access(name: str) -> None:
    one = real(name)
    named = next(iter(written.streams(one.written)))
    for branch in range(1, settings.branches(one.written)):
        with mocked(one, branch) as trial:
            assert trial.tried(*named).faults == []


def _decoded(decoder: dict[str, Any], folder: Path, path: tuple[str, ...] = ()) -> Outcome:
    """What becomes of a stream whose answers have a format."""
    described = {
        "type": "DeclarativeStream",
        "name": "things",
        "primary_key": "id",
        "retriever": {
            "type": "SimpleRetriever",
            "requester": {"type": "HttpRequester", "url_base": "https://a.test", "path": "things"},
            "record_selector": {
                "type": "RecordSelector",
                "extractor": {"type": "DpathExtractor", "field_path": list(path)},
            },
            "decoder": decoder,
        },
        "schema_loader": {
            "type": "InlineSchemaLoader",
            "schema": {"properties": {"id": {"type": "string"}, "at": {"type": "string"}}},
        },
    }
    file = folder / "manifest.yaml"
    file.write_text(yaml.safe_dump({"type": "DeclarativeSource", "streams": [described]}))
    with mocked(Real("things", written.manifest(file), load(file))) as trial:
        return trial.tried("things", next(written.streams(trial.real.written))[1])


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
def test_answers_come_in_the_format_that_the_decoder_reads(
    decoder: dict[str, Any], path: tuple[str, ...], tmp_path: Path
) -> None:
    found = _decoded(decoder, tmp_path, path)
    assert found.faults == []
    assert found.records == 2


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
