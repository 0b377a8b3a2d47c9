"""The docs name modules and files that exist, and explain the field's terms."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
#: Table properties, which look like modules.
PROPERTIES = {
    "chronolake.fields",
    "chronolake.furthest",
    "chronolake.latest",
    "chronolake.quarantined",
    "chronolake.sight",
    "chronolake.watermark",
    "chronolake.yml",
}
TERMS = """
    SCD2, CDC, change set, offset, checkpoint, watermark, merge, upsert, tombstone,
    deletion vector, backoff, rate limit, pagination, decoder, extractor, row hash, snapshot diff,
    time travel, replication slot
"""
_MODULE = re.compile(r"`(chronolake(?:\.[A-Za-z_]\w*)+)")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def names_something(dotted: str) -> bool:
    """Return whether a name is a module of the package, or defined in one."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        place = (ROOT / "src").joinpath(*parts[:end])
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if file.is_file():
            rest = parts[end:]
            return not rest or bool(re.search(rf"\b{rest[0]}\b", file.read_text(encoding="utf-8")))
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_that_a_page_names_exist(page: Path) -> None:
    named = set(_MODULE.findall(page.read_text(encoding="utf-8"))) - PROPERTIES
    assert sorted(name for name in named if not names_something(name)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_links_to_exist(page: Path) -> None:
    links = _LINK.findall(page.read_text(encoding="utf-8"))
    files = [link for link in links if "://" not in link]
    assert [link for link in files if not (page.parent / link).exists()] == []


def test_the_glossary_names_a_module_for_each_term_of_the_field() -> None:
    rows = [
        line.strip("| ").split(" | ")
        for line in (DOCS / "glossary.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| **")
    ]
    modules = {re.sub(r"\*\*|\s*\(.*", "", term).strip().lower(): found for term, _, found in rows}
    terms = [term.strip().lower() for term in TERMS.split(",")]
    assert [term for term in terms if "`chronolake." not in modules.get(term, "")] == []


def test_the_site_loads_nothing_from_other_hosts() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert site["strict"] is True
    assert site["theme"]["font"] is False
    assert {"extra_javascript", "extra_css"} & set(site) == set()
    assert "analytics" not in site.get("extra", {})
