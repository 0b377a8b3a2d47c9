"""The package has a small core; packages of an extra are imported only where they are used."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any, Final

import pytest

import chronolake
from chronolake.extras import EXTRAS

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = Path(chronolake.__file__).parent
MAX_CORE_PACKAGES: Final = 18

#: The extra from which each package may import; all other modules may use only the core.
EXTRA_OF_PACKAGE: Final = {
    "chronolake.ui": "ui",
    "chronolake.batch_files": "serve",
    "chronolake.tester": "serve",
    "chronolake.protos": "serve",
    "chronolake.server": "serve",
    "chronolake.source.declarative": "api",
    "chronolake.source.mysql": "mysql",
    "chronolake.source.postgres": "postgres",
    "chronolake.scaffold.database": "postgres",
    "chronolake.scaffold.mysql": "mysql",
    "chronolake.target.mysql": "mysql",
    "chronolake.target.mysql_errors": "mysql",
    "chronolake.target.postgres": "postgres",
    "chronolake.target.postgres_errors": "postgres",
}
#: Modules that are imported only if the code of a user has imported their package.
OF_USERS: Final = {"chronolake.source.python.dlt_sources": "dlt"}
#: Imports in functions that first check whether the package is installed.
CHECKED_IMPORTS: Final = {
    ("chronolake.inspect.catalog", "psycopg"),
    ("chronolake.lake_table", "polars"),
    ("chronolake.source.files.delta_versions", "deltalake"),
    ("chronolake.source.files.sftp", "asyncssh"),
}
#: Packages that are part of another package.
PARTS: Final = {
    "httpcore": "httpx",
    "markupsafe": "jinja2",
    "py4j": "pyspark",
    "pydantic-core": "pydantic",
}


def project_table() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return table["project"]


def package_names(requirements: list[str]) -> set[str]:
    """Return the packages of requirements, without references to other extras."""
    names = {normalized(re.split(r"[\[<>=!~ ;]", text)[0]) for text in requirements}
    return names - {"chronolake"}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def modules() -> Iterator[tuple[str, Path]]:
    for file in sorted(SOURCE.rglob("*.py")):
        parts = file.relative_to(SOURCE.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


def extra_of(module: str) -> str | None:
    return next(
        (
            extra
            for package, extra in EXTRA_OF_PACKAGE.items()
            if module == package or module.startswith(f"{package}.")
        ),
        None,
    )


def imported_packages(file: Path) -> set[str]:
    """Return the third-party packages that a module imports when it runs."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = [ast.Pass()]
    packages = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            packages.add(node.module.partition(".")[0])
    return packages - set(sys.stdlib_module_names) - {"chronolake"}


def test_core_is_small() -> None:
    assert len(package_names(project_table()["dependencies"])) <= MAX_CORE_PACKAGES


def test_extras_are_those_that_errors_name() -> None:
    extras = project_table()["optional-dependencies"]
    assert set(extras) == {*EXTRAS, "all"}
    for extra, packages in EXTRAS.items():
        assert package_names(extras[extra]) == set(packages.values())
    assert extras["all"] == [f"chronolake[{','.join(EXTRAS)}]"]
    assert extras["components"][0] == "chronolake[api]"


def test_requirements_are_ranges() -> None:
    project = project_table()
    groups = {"core": project["dependencies"], **project["optional-dependencies"]}
    assert not [text for texts in groups.values() for text in texts if "==" in text]


def test_lock_files_contain_no_host_names() -> None:
    for file in ROOT.glob("requirements*.lock"):
        assert "://" not in file.read_text(encoding="utf-8"), file


def test_each_module_imports_only_packages_of_its_extra() -> None:
    distributions = packages_distributions()
    core = package_names(project_table()["dependencies"])
    wrong = []
    for module, file in modules():
        extra = extra_of(module)
        allowed = core | (set(EXTRAS[extra].values()) if extra else set())
        for package in imported_packages(file):
            installed = {normalized(name) for name in distributions.get(package, [package])}
            names = {PARTS.get(name, name) for name in installed}
            is_checked = (module, package) in {*CHECKED_IMPORTS, *OF_USERS.items()}
            if not names & allowed and not is_checked:
                wrong.append((module, package))
    assert wrong == []


#: Hides the packages of the extras from the program that follows.
_WITHOUT: Final = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in {names!r} or name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def run_without_extras(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    names = {module for packages in EXTRAS.values() for module in packages}
    # pyiceberg depends on them, and imports them.
    hidden = sorted(names - {"dateutil", "requests", "zstandard"})
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT.format(names=hidden) + program, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_core_modules_are_imported_without_extras() -> None:
    names = [
        module for module, _ in modules() if extra_of(module) is None and module not in OF_USERS
    ]
    program = f"import importlib\nfor name in {names!r}: importlib.import_module(name)"
    done = run_without_extras(program)
    assert done.returncode == 0, done.stderr


_COMMAND: Final = "from chronolake.cli import main; main()"
_CONFIGURATION: Final = """
lake: {{path: lake, {catalog}}}
pipelines:
  first:
    source: {source}
"""
_POSTGRES: Final = "{type: postgres, dsn: 'postgresql://nobody@localhost:1/nothing'}"
_API: Final = "{type: declarative, manifest: manifest.yaml}"
_LAKE: Final = "{type: data_lake_v2, path: source, org: X}"
_CATALOG: Final = "catalog: {uri: 'postgresql://nobody@localhost:1/nothing'}"
_TESTER: Final = "test-destination"


@pytest.mark.parametrize(
    ("words", "source", "catalog", "feature", "extra"),
    [
        (["ui", "--no-browser"], _LAKE, "", "The command `ui`", "ui"),
        (["serve", "--port", "0"], _LAKE, "", "The command `serve`", "serve"),
        ([_TESTER, "none.json", "--target", "x:1"], _LAKE, "", f"The command `{_TESTER}`", "serve"),
        (["read", "first", "a"], _API, "", "The command `read`", "api"),
        (["check"], _API, "", "A source of the type declarative", "api"),
        (["sync", "first"], _API, "", "A source of the type declarative", "api"),
        (["check"], _POSTGRES, "", "A source of the type postgres", "postgres"),
        (["sync", "first"], _POSTGRES, "", "A source of the type postgres", "postgres"),
        (["discover", "first"], _POSTGRES, "", "A source of the type postgres", "postgres"),
        (["tables"], _LAKE, _CATALOG, "A catalog in PostgreSQL", "postgres"),
        (["status"], _LAKE, _CATALOG, "A catalog in PostgreSQL", "postgres"),
        (["sync", "first"], _LAKE, _CATALOG, "A catalog in PostgreSQL", "postgres"),
    ],
)
def test_error_names_missing_extra_before_spark_starts(
    words: list[str], source: str, catalog: str, feature: str, extra: str, tmp_path: Path
) -> None:
    file = tmp_path / "chronolake.yml"
    file.write_text(_CONFIGURATION.format(source=source, catalog=catalog), encoding="utf-8")
    located = [] if words[0] == _TESTER else ["--project", str(tmp_path)]
    done = run_without_extras(_COMMAND, *words, *located)
    output = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 1, output
    assert f"{feature} needs packages that are not installed: " in output
    assert f"pip install 'chronolake[{extra}]'" in output
    assert "Traceback" not in output
    assert "Starting Spark" not in output
