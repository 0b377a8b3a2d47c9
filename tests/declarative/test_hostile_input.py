"""Responses and manifests cannot exhaust the memory: limits are checked before values are made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.http.client import Sender
from chronolake.source.declarative.http.request_builder import Request
from chronolake.source.declarative.http.response import loads, parse_json, size_of
from chronolake.source.declarative.http.transport import Network, http_client
from chronolake.source.declarative.manifests import yaml_source
from chronolake.source.declarative.manifests.manifest import parse
from chronolake.source.declarative.templating import templates
from support.declarative import hostile
from support.declarative.apis import Api, Reply

#: Known hostile cases, at least one of each kind.
_FOUND = (
    "body: objects",
    "body: gzip of objects",
    "body: lines of objects",
    "body: CSV cells",
    "body: XML attributes",
    "body: XML entities",
    "body: a download's lines",
    "template: literal: a tuple",
    "template: strftime",
    "template: sort",
    "template: slices",
    "template: pattern",
)
#: Allowed MiB beyond the input: a response's limit and a margin; a template's limit.
_MOST = {"body": 1.25 * hostile.MEMORY / (1 << 20), "template": 160}


def _measured(*cases: str) -> dict[str, dict[str, Any]]:
    """Measure each case in a worker: another process, with nothing of ours in memory."""
    done = subprocess.run(
        [sys.executable, str(Path(hostile.__file__)), *cases],
        check=True,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=900,
    )
    found = map(json.loads, done.stdout.splitlines())
    return {result["case"]: result for result in found}


def _expect_small(measured: dict[str, dict[str, Any]]) -> None:
    too_much = {
        name: result
        for name, result in measured.items()
        if result["mib"] > _MOST[name.partition(":")[0]]
    }
    assert not too_much


def test_the_worker_measures_memory() -> None:
    def much() -> Any:
        return lambda: bytearray(os.urandom(1 << 20) * 200)

    assert hostile.measured(much)["mib"] > 150


@pytest.mark.differs("the memory of a response")
def test_hostile_input_does_not_fill_a_worker() -> None:
    measured = _measured(*_FOUND)

    assert measured.keys() == set(_FOUND)
    _expect_small(measured)
    assert "values of a response need" in measured["body: gzip of objects"]["outcome"]
    assert measured["template: literal: a tuple"]["outcome"] == "done"


@pytest.mark.long
def test_no_hostile_input_that_we_know_fills_a_worker() -> None:
    measured = _measured()

    assert measured.keys() == hostile.CASES.keys()
    _expect_small(measured)


# --------------------------------------------------------------------------- JSON

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
)  # fmt: skip


@given(_JSON)
def test_a_json_text_within_the_limit_is_read(value: Any) -> None:
    text = orjson.dumps(value)

    assert parse_json(text) == value
    # Brackets within strings do not count, if the depth matters.
    assert size_of(orjson.dumps("{[,:" * 1000), 5_000) <= 5_000


@pytest.mark.parametrize("text", [b"[NaN]", b"[Infinity]", rb'["\ud800"]'])
def test_what_the_reference_takes_for_json_is_read(text: bytes) -> None:
    assert str(parse_json(text)) == str(json.loads(text))


def test_templates_read_json_in_bounds() -> None:
    assert loads('{"a": [1, 2]}') == {"a": [1, 2]}
    with pytest.raises(ValueError, match="too much memory"):
        loads("[" + "{}," * 300_000 + "0]")


def test_the_configuration_sets_the_memory_limit() -> None:
    with Api({"/items": Reply([{}] * 10_000)}) as api, http_client() as client:
        request = Request("GET", f"{api.url}/items")
        enough = Sender(Network(client), {}).send(request)
        little = Sender(Network(client, memory_limit=100_000), {}).send(request)

    assert enough is not None
    assert little is not None
    assert len(enough.json()) == 10_000
    with pytest.raises(SourceError, match="values of a response need") as caught:
        little.json()
    assert "response_memory_mib" in str(caught.value)


# --------------------------------------------------------------------------- literals

_LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.tuples(inner)
    | st.just(()) | st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=3)
    | st.sets(st.integers(), min_size=1, max_size=3),
)  # fmt: skip
_PARTS = ["1", "'a'", '"b"', ",", ":", "[", "]", "(", ")", "{", "}", " ", "\n", "-", "None", "0x1f",
          "01", "1.5", "1e5", "'''x'y'''", "b'z'", "_1", "1_0", "+", "a", "''"]  # fmt: skip


def _both(text: str) -> tuple[Any, Any]:
    """Parse a text with Python and with our parser; "nothing" means that it is not a literal."""
    found = []
    for read in (templates.ast.literal_eval, lambda text: templates.LongLiteral(text).value()):
        try:
            value = read(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            found.append("nothing")
        else:
            found.append((type(value), repr(value)))
    return found[0], found[1]


@given(_LITERALS)
def test_long_texts_are_read_as_python_prints_them(value: Any) -> None:
    python, ours = _both(repr(value))

    assert ours == python


@pytest.mark.filterwarnings("ignore")
@given(st.lists(st.sampled_from(_PARTS), max_size=9).map("".join))
def test_long_texts_are_read_as_python_reads_them(text: str) -> None:
    python, ours = _both(text)

    assert ours == python or (ours == "nothing" and _is_unusual(text))


def _is_unusual(text: str) -> bool:
    """Return whether a text contains arithmetic, which no printed value does."""
    return "+" in text or "-" in text


def test_long_texts_are_read_as_short_ones_are() -> None:
    records = [{"id": n, "name": f"it's {n}", "tags": ("a", None, 1.5)} for n in range(2_000)]

    assert len(repr(records)) > templates.SHORT
    assert templates.parse_literal(repr(records)) == records


# --------------------------------------------------------------------------- manifests


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 100_000,
        "a: " + "{" * 100_000,
        "a0: &a0 [x, x]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)),
    ],
    ids=["lists", "objects", "aliases"],
)
def test_no_manifest_fills_the_machine_or_ends_the_process(text: str, tmp_path: Path) -> None:
    file = tmp_path / "manifest.yaml"
    file.write_text(text)

    with pytest.raises(ConfigurationError, match=r"too deeply|too large"):
        parse(yaml_source.read(file), file)
