"""The docs list exactly the differences from the reference that tests show."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from support.compat.case import FOLDER, cases_in

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs" / "sources" / "declarative.md"
_HEADING = "## Differences from the reference"


def listed() -> dict[str, list[str]]:
    """Return the differences in the docs: the cells of each row, by the difference's name."""
    section = DOCS.read_text().partition(f"\n{_HEADING}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in row] for row in rows]
    found = {name: others for name, *others in cells if name}
    assert len(found) == sum(bool(name) for name, *_ in cells), "a difference is listed twice"
    return found


@cache
def shown() -> dict[str, set[str]]:
    """Return the differences that cases and tests show, with the files that contain them."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in FOLDER.glob("*.yaml"):
        for case in cases_in(path):
            for name in case.differences:
                found[name].add(path.name)
    for path in TESTS.rglob("test_*.py"):
        for name in _marked(path):
            found[name].add(path.name)
    return found


def _marked(path: Path) -> set[str]:
    """Return the marks of a file's tests: the names in `@pytest.mark.differs(name)`."""
    return {
        str(ast.literal_eval(mark.args[0]))
        for test in ast.parse(path.read_text()).body
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test_")
        for mark in test.decorator_list
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.differs"
    }


def test_the_docs_list_each_difference_that_a_test_shows_and_no_other() -> None:
    assert sorted(listed()) == sorted(shown())


@pytest.mark.parametrize(("name", "cells"), listed().items())
def test_the_docs_describe_each_difference_with_its_reason_and_test(
    name: str, cells: list[str]
) -> None:
    assert len(cells) == 4
    assert all(cells)
    *_, files = cells
    assert files == ", ".join(f"`{file}`" for file in sorted(shown()[name]))
