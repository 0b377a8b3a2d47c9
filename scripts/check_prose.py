#!/usr/bin/env python3
"""Count wordings that make prose hard to read, and compare the counts with a budget.

    scripts/check_prose.py                   compare the counts with scripts/prose-budget.toml
    scripts/check_prose.py --list tell src/  list the matches of a rule, in files below a path
    scripts/check_prose.py --shrink          lower the budget to the counts

CONTRIBUTING.md explains the rules. The script reads comments, docstrings and other strings of
several words in Python files, and the text of Markdown files and HTML templates. It ignores code
in backquotes. Each top-level folder has a budget for each rule, which `--shrink` never raises.

Exit code: 0 if no count is above its budget, 1 if one is, 2 if the arguments are wrong.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
#: The top-level folders. "." contains the Markdown files of the root folder, such as README.md.
FOLDERS = (".", "bench", "docs", "examples", "scripts", "src", "tests")
#: Generated code, and the files that have to name the wordings.
SKIPPED = re.compile(r"_pb2|check_prose|prose_check")
#: How many matches are printed for a count above its budget; `--list` prints all.
SHOWN = 30

#: A function's docstring that begins with one of these is not an imperative.
FIRST_WORDS = (
    "A|All|An|And|As|At|Both|By|Each|Every|For|From|How|If|In|It|Its|No|None|Nothing|Of|On|One|Only"
    "|That|The|Their|These|This|Those|To|Until|What|When|Where|Whether|Which|Who|Whose|Why|With"
)
#: For each rule, what it finds and what to write instead.
RULES = {
    "tell": (r"(?i)\b(tells?|told)\b", "report, return, print, mean, distinguish"),
    "say": (r"(?i)\bsays?\b", "report, return, contain, mean"),
    "is-none": (r"\b(is|are|was|were)\snone\b", "is not a valid X, is missing"),
    "is-no": (
        r"(?<!\b[Tt]here\s)\b(is|are|was|were)\sno\s(?!longer\b|more\b|less\b)",
        "is not a valid X, is not an X",
    ),
    "anew": (r"(?i)\banew\b", "again"),
    "by-now": (r"(?i)\bby\snow\b", "already, now"),
    "besides": (r"(?i)\bbesides\b", "also, in addition to"),
    "so-many": (r"(?i)\bso\s(many|much)\b", "up to N, N"),
    "stands": (
        r"(?i)\bstands?\b(?!\s(for|alone|out|by|still)\b)|\b(lies|lie)\b",
        "is stored, is located, appears, is",
    ),
    "fragment": (rf"^({FIRST_WORDS})\b", '"Return ...", "Read ...", "Raise ... if ..."'),
}
PATTERNS = {rule: re.compile(pattern) for rule, (pattern, _) in RULES.items()}
FRAGMENT = PATTERNS.pop("fragment")
#: What is not prose in a text file.
MARKUP = {
    ".md": re.compile(r"^ *(```|~~~).*?^ *\1", re.DOTALL | re.MULTILINE),
    ".html": re.compile(r"<[^>]*>|\{%.*?%\}|\{#.*?#\}", re.DOTALL),
}
CODE = re.compile(r"``.+?``|`[^`]+`|\{\{.*?\}\}", re.DOTALL)
SPACE = re.compile(r"[ \t]*(\n| |\t)[ \t]*")


class Match(NamedTuple):
    """A match of a rule. The place is a file and a line number, the text is what surrounds it."""

    folder: str
    rule: str
    place: str
    text: str


def without(pattern: re.Pattern[str], text: str) -> str:
    """Remove the parts of a text that match a pattern; keep the number of lines."""
    return pattern.sub(lambda part: "\n" * part[0].count("\n") or "-", text)


def comments(text: str) -> str:
    """Return the comments of Python code, in their lines; other lines are a period."""
    lines = ["."] * (text.count("\n") + 1)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0] - 1] = token.string.lstrip("#:!")
    return "\n".join(lines)


def strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the strings of several words, each with its first line; values in f-strings are "-"."""
    parts: set[ast.AST] = set()  # of f-strings, which `walk` yields before their parts
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts.update(node.values)
            values = [part.value if isinstance(part, ast.Constant) else "-" for part in node.values]
            yield node.lineno, "".join(map(str, values))
        elif isinstance(node, ast.Constant) and node not in parts:
            text = node.value if isinstance(node.value, str) else ""
            if " " in text.strip():
                yield node.lineno, text


def fragments(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield docstrings of functions that are not imperatives: first line, text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node) or ""
            is_property = any(
                "property" in ast.unparse(decorator) for decorator in node.decorator_list
            )
            if FRAGMENT.match(docstring) and not is_property:
                yield node.body[0].lineno, docstring


def matches(root: Path) -> Iterator[Match]:
    """Yield the matches of all rules in the files of a checkout."""
    for folder in FOLDERS:
        for path in sorted((root / folder).glob("*.md" if folder == "." else "**/*")):
            if path.suffix not in {".py", *MARKUP} or SKIPPED.search(path.name):
                continue
            file = path.relative_to(root).as_posix()
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".py":
                tree = ast.parse(text)
                prose = [(1, comments(text)), *strings(tree)]
                for line, docstring in fragments(tree) if folder != "tests" else ():
                    yield Match(folder, "fragment", f"{file}:{line}", docstring.split("\n")[0])
            else:
                prose = [(1, without(MARKUP[path.suffix], text))]
            for first, raw in prose:
                words = SPACE.sub(r"\1", without(CODE, raw))  # one space or newline between words
                for rule, pattern in PATTERNS.items():
                    for found in pattern.finditer(words):
                        line = first + words.count("\n", 0, found.start())
                        around = words[max(0, found.start() - 40) : found.end() + 40]
                        yield Match(folder, rule, f"{file}:{line}", " ".join(around.split()))


def compare(found: list[Match], budget: dict[str, dict[str, int]]) -> bool:
    """Print each count that is above the budget, with its matches; return whether one is."""
    failed = False
    for folder in FOLDERS:
        for rule, (_, instead) in RULES.items():
            here = [match for match in found if match[:2] == (folder, rule)]
            allowed = budget.get(folder, {}).get(rule, 0)
            if len(here) > allowed:
                failed = True
                print(f"{folder}: {len(here)} of {rule!r}, at most {allowed}. Write: {instead}")
                print(*(f"  {match.place}: {match.text}" for match in here[:SHOWN]), sep="\n")
    return failed


def shrunk(budget: dict[str, dict[str, int]], found: list[Match]) -> str:
    """Return the text of the budget file, with each number at most the count."""
    lines = ["# The highest counts that scripts/check_prose.py accepts; --shrink lowers them."]
    for folder, rules in budget.items():
        lines += ["", f'["{folder}"]']
        for rule, allowed in rules.items():
            count = sum(match[:2] == (folder, rule) for match in found)
            lines += [f"{rule} = {min(allowed, count)}"] if min(allowed, count) else []
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", nargs="+", metavar=("RULE", "PATH"), help="list matches")
    parser.add_argument("--shrink", action="store_true", help="lower the budget to the counts")
    parser.add_argument("--root", type=Path, default=ROOT, help="a checkout; default: this one")
    options = parser.parse_args()
    found = list(matches(options.root))
    if options.list:
        rule, *paths = options.list
        if rule not in RULES:
            parser.error(f"unknown rule {rule!r}; the rules are {', '.join(RULES)}")
        for match in found:
            if match.rule == rule and (not paths or match.place.startswith(tuple(paths))):
                print(f"{match.place}: {match.text}")
        return 0
    file = options.root / "scripts" / "prose-budget.toml"
    before = file.read_text(encoding="utf-8")
    failed = compare(found, tomllib.loads(before))
    after = shrunk(tomllib.loads(before), found)
    if options.shrink:
        file.write_text(after, encoding="utf-8")
    elif after != before:
        print("Some counts are below the budget. Lower it: scripts/check_prose.py --shrink")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
