"""`scripts/check_prose.py` counts wordings, and its budget never grows."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_prose.py"
MODULE = '''"""A reader that tells its state."""


def is_open() -> bool:
    """Whether the door is open."""
    # What was read is
    # none of it.
    return bool("anew")  # a single word is a value


def fail(name: str) -> None:
    """Raise an error; `tell` is code here."""
    raise ValueError(f"{name} is no date: at most so {name} many, by "
                     "now")
'''
PAGE = """# A page

The state is
none. There is no such table, and `so many` is code.

```console
$ besides
```

It lies in a folder, and stands for another one.
"""


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--root", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def budget_file(root: Path) -> Path:
    return root / "scripts" / "prose-budget.toml"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in {
        "src/module.py": MODULE,
        "docs/page.md": PAGE,
        "scripts/prose-budget.toml": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_matches_above_the_budget_fail_with_their_lines_and_what_to_write(checkout: Path) -> None:
    result = run(checkout)
    assert result.returncode == 1
    lines = result.stdout.splitlines()
    places = [line.split(": ")[0].strip() for line in lines if line.startswith("  ")]
    assert places == [
        "docs/page.md:3",  # is none
        "docs/page.md:10",  # lies
        "src/module.py:1",  # tell
        "src/module.py:6",  # is none
        "src/module.py:13",  # is no
        "src/module.py:13",  # by now
        "src/module.py:5",  # fragment
    ]
    assert "src: 1 of 'by-now', at most 0. Write: already, now" in lines


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("# He told it.\n", 1),
        ("x = 1\n# is\ny = 2\n# none\n", 0),
        ("def f():\n    '''The text.'''\n", 0),
        ("told = 1\n", 0),
        ("x = f'{1} tells {2}'\n", 1),
        ("x = f'{f(\"one tells\")}'\n", 1),
    ],
)
def test_comments_and_strings_of_several_words_are_prose(
    checkout: Path, source: str, count: int
) -> None:
    (checkout / "tests").mkdir()
    (checkout / "tests" / "sample.py").write_text(source)
    listed = [run(checkout, "--list", rule, "tests").stdout for rule in ("tell", "is-none")]
    assert sum(text.count("tests/sample.py:") for text in listed) == count


def test_shrinking_lowers_the_budget_to_the_counts(checkout: Path) -> None:
    budget_file(checkout).write_text(
        "[src]\ntell = 7\nis-none = 1\nis-no = 1\nby-now = 1\nfragment = 1\nanew = 3\n"
        "[docs]\nis-none = 2\nstands = 1\n"
    )
    assert "--shrink" in run(checkout).stdout
    assert run(checkout, "--shrink").returncode == 0
    assert tomllib.loads(budget_file(checkout).read_text()) == {
        "src": {"tell": 1, "is-none": 1, "is-no": 1, "by-now": 1, "fragment": 1},
        "docs": {"is-none": 1, "stands": 1},
    }
    again = run(checkout)
    assert (again.returncode, again.stdout) == (0, "")


def test_a_budget_never_grows(checkout: Path) -> None:
    budget_file(checkout).write_text("[docs]\nis-none = 0\nstands = 1\n[src]\nfragment = 1\n")
    assert run(checkout, "--shrink").returncode == 1
    after = tomllib.loads(budget_file(checkout).read_text())
    assert after == {"docs": {"stands": 1}, "src": {"fragment": 1}}


def test_an_unknown_rule_is_refused_with_the_names_of_the_rules(checkout: Path) -> None:
    result = run(checkout, "--list", "nothing")
    assert result.returncode == 2
    assert "so-many" in result.stderr
