"""Names that lakes, scripts and dashboards rely on never change.

`persisted_names.json` beside this file lists them: table properties, branches, columns of tables
and of the operational store, log events with their keys, metrics, JSON keys, configuration keys,
commands with their options, exit codes and error types. They are read from the outside (the syntax
tree of the sources, the program's help and schema), so that code can be moved and renamed freely.

A missing name breaks stored lakes or what users built on it. A new name is added to the list with
`python tests/unit/test_persisted_names.py`, which refuses to remove one.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "chronolake"
GOLDEN = Path(__file__).with_name("persisted_names.json")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
METRICS = {"Counter", "Gauge", "Histogram", "Summary", "Info"}
#: Functions that end the program.
ENDS = {"exit", "Exit", "fail"}
#: Names that were removed on purpose, each with the reason.
RETIRED: dict[str, str] = {
    "PromiseBrokenError": "never raised",
    "branch_left_behind": "writes no longer make branches",
}


@cache
def trees() -> dict[Path, ast.Module]:
    files = sorted(path for path in SOURCES.rglob("*.py") if "_pb2" not in path.name)
    return {path: ast.parse(path.read_text()) for path in files}


def nodes(*, without: Path | None = None) -> Iterator[ast.AST]:
    for path, tree in trees().items():
        if without is None or not path.is_relative_to(without):
            yield from ast.walk(tree)


@cache
def texts() -> frozenset[str]:
    """Return all string constants but docstrings, the constant parts of f-strings included."""
    docstrings = {
        id(node.body[0].value)
        for node in nodes()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return frozenset(
        node.value
        for node in nodes()
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docstrings
    )


def is_module(name: str) -> bool:
    place = ROOT / "src" / Path(*name.split("."))
    return place.is_dir() or place.with_suffix(".py").is_file()


def properties() -> list[str]:
    """Table properties, keys of Parquet files and of Iceberg snapshots."""
    found = {text for text in texts() if re.fullmatch(r"chronolake\.[a-z0-9_.-]+", text)}
    return sorted(text for text in found if not is_module(text) and text != "chronolake.yml")


def branches() -> list[str]:
    return sorted(text for text in texts() if re.fullmatch(r"chronolake-[a-z-]+", text))


def columns() -> list[str]:
    return sorted(
        {name for text in texts() for name in re.findall(r"\b_(?:_?chronolake|fivetran)_\w+", text)}
    )


def environment() -> list[str]:
    return sorted(
        {name for text in texts() for name in re.findall(r"\bCHRONOLAKE_[A-Z_]*[A-Z]\b", text)}
    )


def log_events() -> dict[str, list[str]]:
    """Return each event with the keys that it may have."""
    found: dict[str, set[str]] = {}
    for node in nodes():
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        receiver = ast.unparse(node.func.value)
        is_log = re.fullmatch(r"(self\.)?_?log(ger)?|structlog\.get_logger\(.*\)", receiver)
        if (
            node.func.attr in LEVELS
            and is_log
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            keys = found.setdefault(str(node.args[0].value), set())
            keys |= {keyword.arg for keyword in node.keywords if keyword.arg}
    return {event: sorted(keys) for event, keys in sorted(found.items())}


def log_context() -> list[str]:
    """Keys that every event of a call has."""
    return sorted(
        keyword.arg
        for node in nodes()
        if isinstance(node, ast.Call) and re.search(r"bound?_contextvars$", ast.unparse(node.func))
        for keyword in node.keywords
        if keyword.arg
    )


def metrics() -> dict[str, list[str]]:
    """Return each metric with its labels."""
    found = {}
    for node in nodes():
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if is_call and node.func.id in METRICS and len(node.args) > 1:
            name, _, *rest = node.args
            labels = (
                [item.value for item in rest[0].elts]
                if rest and isinstance(rest[0], ast.List)
                else []
            )
            found[name.value] = labels  # type: ignore[attr-defined]
    return dict(sorted(found.items()))


def store() -> dict[str, list[str]]:
    """Return the tables of the operational store and of the catalog's database, with columns."""
    found = {}
    for node in nodes():
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Table") and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                found[first.value] = [
                    inner.args[0].value
                    for inner in node.args
                    if isinstance(inner, ast.Call)
                    and ast.unparse(inner.func).endswith("Column")
                    and isinstance(inner.args[0], ast.Constant)
                ]
    return {name: columns for name, columns in sorted(found.items()) if columns}


def json_keys() -> list[str]:
    """Keys of all dictionaries in the code: output with `--json`, checkpoints, state, logs.

    Those of the web UI are variables of its own templates and scripts.
    """
    found = set()
    for node in nodes(without=SOURCES / "ui"):
        keys: list[Any] = []
        if isinstance(node, ast.Dict):
            keys = list(node.keys)
        elif isinstance(node, ast.Assign):
            keys = [target.slice for target in node.targets if isinstance(target, ast.Subscript)]
        found |= {
            key.value
            for key in keys
            if isinstance(key, ast.Constant) and isinstance(key.value, str)
        }
    return sorted(key for key in found if re.fullmatch(r"[A-Za-z_][\w.-]*", key))


def values() -> list[str]:
    """Values of enumerations and literal types, such as `every-change`."""
    found = set()
    for node in nodes():
        if isinstance(node, ast.ClassDef) and any(
            "Enum" in ast.unparse(base) for base in node.bases
        ):
            for inner in node.body:
                if isinstance(inner, ast.Assign) and isinstance(inner.value, ast.Constant):
                    found.add(inner.value.value)
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
            found |= {
                inner.value for inner in ast.walk(node.slice) if isinstance(inner, ast.Constant)
            }
    return sorted(value for value in found if isinstance(value, str))


def manifest() -> dict[str, list[str]]:
    """Components of the manifest language, with their fields."""
    found: dict[str, set[str]] = {}
    for node in nodes():
        if not isinstance(node, ast.ClassDef):
            continue
        fields = {
            inner.target.id: ast.unparse(inner.annotation)
            for inner in node.body
            if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name)
        }
        kind = re.fullmatch(r"Literal\['(\w+)'\]", fields.pop("type", ""))
        if kind and any(isinstance(base, ast.Name) for base in node.bases):
            found.setdefault(kind[1], set()).update(fields)
    return {kind: sorted(fields) for kind, fields in sorted(found.items())}


def program(*arguments: str) -> str:
    command = [sys.executable, "-c", "from chronolake.cli import main; main()", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def configuration() -> list[str]:
    """Paths of keys in chronolake.yml, with their fixed values."""
    schema = json.loads(program("schema"))
    found: set[str] = set()

    def walk(node: Any, path: str, within: tuple[str, ...]) -> None:
        if isinstance(node, list):
            for item in node:
                walk(item, path, within)
        if not isinstance(node, dict):
            return
        if reference := node.get("$ref"):
            if reference not in within:
                walk(schema["$defs"][reference.rpartition("/")[2]], path, (*within, reference))
            return
        found.update(f"{path} = {json.dumps(value)}" for value in node.get("enum", []))
        if "const" in node:
            found.add(f"{path} = {json.dumps(node['const'])}")
        for name, inner in node.get("properties", {}).items():
            found.add(f"{path}.{name}".lstrip("."))
            walk(inner, f"{path}.{name}".lstrip("."), within)
        for key in ("anyOf", "oneOf", "allOf", "items", "prefixItems"):
            walk(node.get(key), path, within)
        walk(node.get("additionalProperties"), f"{path}.*".lstrip("."), within)

    walk(schema, "", ())
    return sorted(found)


def commands() -> dict[str, list[str]]:
    """Return each command with its options and arguments."""
    script = (
        "import json, typer; from chronolake.cli import app; command = typer.main.get_command(app);"
        "print(json.dumps({'': sorted(o for p in command.params for o in p.opts + p.secondary_opts)"
        ", **{name: sorted(o for p in inner.params for o in p.opts + p.secondary_opts)"
        " for name, inner in sorted(command.commands.items())}}))"
    )
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    found: dict[str, list[str]] = json.loads(run.stdout)
    return found


def errors() -> dict[str, bool]:
    """Return the types of errors, which logs and metrics name, and whether each is retryable."""
    from chronolake import errors as module  # noqa: PLC0415 - a name that does not change

    return {
        name: bool(getattr(kind, "retryable", False))
        for name, kind in sorted(vars(module).items())
        if isinstance(kind, type)
        and issubclass(kind, Exception)
        and kind.__module__ == module.__name__
        and name not in RETIRED
    }


def exit_codes() -> list[int]:
    """Numbers that the program ends with, as constants or by their names."""
    found = set()
    for tree in trees().values():
        named = {
            target.id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            and isinstance(node.value, ast.Constant)
            and type(node.value.value) is int
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ENDS:
                inner = [inner for argument in node.args for inner in ast.walk(argument)]
                found |= {
                    i.value for i in inner if isinstance(i, ast.Constant) and type(i.value) is int
                }
                found |= {named[i.id] for i in inner if isinstance(i, ast.Name) and i.id in named}
    return sorted(found)


KINDS = {
    kind.__name__: kind
    for kind in (
        properties, branches, columns, environment, log_events, log_context, metrics, store,
        json_keys, values, manifest, configuration, commands, errors, exit_codes,
    )
}  # fmt: skip


def flat(found: Any) -> set[str]:
    """Names one by one: `event`, `event.key`."""
    if not isinstance(found, dict):
        return {str(item) for item in found}
    out = set()
    for name, inner in found.items():
        out.add(name)
        out |= {f"{name}.{item}" for item in (inner if isinstance(inner, list) else [inner])}
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_persisted_and_public_names_are_kept(kind: str) -> None:
    golden = flat(json.loads(GOLDEN.read_text())[kind])
    found = flat(KINDS[kind]())
    missing, fresh = sorted(golden - found), sorted(found - golden)
    assert not missing, f"{kind} that lakes or users rely on are gone: {missing}"
    assert not fresh, f"new {kind}: {fresh}; run `python {Path(__file__).relative_to(ROOT)}`"


def test_wrong_usage_ends_with_2() -> None:
    command = [sys.executable, "-c", "from chronolake.cli import main; main()", "no-such-command"]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 2


def test_the_list_is_sorted_and_complete() -> None:
    golden = json.loads(GOLDEN.read_text())
    assert list(golden) == list(KINDS)
    for kind, names in golden.items():
        assert names, kind
        assert all(name < other for name, other in pairwise(names)), kind


def write() -> None:
    """Write the list. Names that it has are kept; if one is missing in the code, stop."""
    found = {kind: read() for kind, read in KINDS.items()}
    if GOLDEN.exists():
        golden = json.loads(GOLDEN.read_text())
        missing = {kind: sorted(flat(golden.get(kind, [])) - flat(found[kind])) for kind in KINDS}
        if any(missing.values()):
            sys.exit(
                f"names are gone: { {kind: names for kind, names in missing.items() if names} }"
            )
    GOLDEN.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write()
