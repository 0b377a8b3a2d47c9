"""The page about the five documents names tests and sentences that exist.

`test_docs.py` checks that the modules exist that it names.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import yaml

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs/reference/documents.md"
DOCUMENTS: Final = ROOT.parent / "shared" / "seeds"
#: The document of each section of the page, in order.
NAMES: Final = (
    "history-mode.txt",
    "history-batch-files.txt",
    "data-lake-v2.txt",
    "destination-connector.txt",
    "incremental-syncs.txt",
)
WITHOUT_TEST: Final = ("**Not implemented**", "**Not proven**", "**Not testable**")
_TEST: Final = re.compile(r"`([\w/]+\.(?:py|yaml))(?:::([^`]+))?`")
_MODULE: Final = re.compile(r"`(chronolake(?:\.\w+)+)`")


class Claim(NamedTuple):
    """A row of the page."""

    document: str
    id: str
    claim: str
    where: str
    proof: str


def claims() -> list[Claim]:
    """Return the rows of the page."""
    found = []
    document = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.strip("`") in NAMES:
            document = line.strip("`")
        if re.match(r"\| [A-Z]\d+ \|", line):
            id_, claim, where, proof = (cell.strip() for cell in line.strip("|").split("|"))
            found.append(Claim(document, id_, claim, where, proof))
    return found


CLAIMS: Final = claims()


@cache
def named_in(file: Path) -> frozenset[str]:
    """Return the names of the tests in a module, or of the cases in a YAML file."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".yaml":
        return frozenset(case["name"] for case in yaml.safe_load(text)["cases"])
    return frozenset(
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def plain(text: str) -> str:
    """Return a text as its words, without markup and line breaks."""
    return " ".join(re.sub(r"[`*]", "", text).split())


def test_each_document_has_rows_and_each_row_an_id() -> None:
    assert list(dict.fromkeys(claim.document for claim in CLAIMS)) == list(NAMES)
    assert [
        id_ for id_, number in Counter(claim.id for claim in CLAIMS).items() if number > 1
    ] == []


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_tests_that_a_row_names_exist(claim: Claim) -> None:
    named = _TEST.findall(claim.proof)
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (ROOT / "tests" / file).is_file()
        or (name and name not in named_in(ROOT / "tests" / file))
    ]
    assert missing == []


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_a_row_has_a_module_and_a_test_or_a_reason(claim: Claim) -> None:
    has_reason = any(reason in claim.proof for reason in WITHOUT_TEST)
    assert has_reason or (_TEST.search(claim.proof) and _MODULE.search(claim.where))


@pytest.mark.parametrize("name", NAMES)
def test_quotes_are_sentences_of_the_document(name: str) -> None:
    if not DOCUMENTS.is_dir():
        pytest.skip("the documents are not there (../shared/seeds)")
    document = plain((DOCUMENTS / name).read_text(encoding="utf-8"))
    quotes = [
        (claim.id, quote)
        for claim in CLAIMS
        if claim.document == name
        for quote in re.findall(r'"([^"]+)"', claim.claim)
    ]
    assert len(quotes) > 3
    assert [(id_, quote) for id_, quote in quotes if plain(quote) not in document] == []
