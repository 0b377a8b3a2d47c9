"""Commands find the project, and refuse invalid requests before they start Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import chronolake
from chronolake.cli import main
from chronolake.cli.app import PANELS
from chronolake.config import load_project
from chronolake.errors import ChronolakeError
from chronolake.pipeline.lease import hold_lease
from chronolake.pipeline.run_history import runs
from chronolake.pipeline.runs import Status
from chronolake.pipeline.store import Store

#: Every command that works on a lake or a project, with its arguments.
WORDS = {
    "adopt": (),
    "backfill": ("crm", "--stream", "Account", "--from", "2024-01-01"),
    "check": (),
    "diff": ("crm.Account", "--from", "2024-01-01", "--to", "2024-02-01"),
    "discover": ("crm",),
    "import-history": (
        *("old.orders", "orders.csv", "--key", "id"),
        *("--start", "begin", "--end", "finish"),
    ),
    "history": ("crm.Account", "--key", "id=1"),
    "maintain": (),
    "mode": ("crm.Account", "live"),
    "publish": (),
    "query": ("SELECT 1",),
    "read": ("crm", "Account"),
    "rebuild": ("crm.Account",),
    "resync": ("crm",),
    "runs": (),
    "serve": (),
    "state show": ("crm",),
    "state set": ("crm", "Account", "batch=05/data-16.parquet", "--yes"),
    "state reset": ("crm",),
    "status": (),
    "sync": (),
    "tables": (),
    "ui": ("--no-browser",),
    "usage": (),
    "verify": ("--all",),
    "view": ("crm.Account",),
}
#: Commands that work without a lake: they create it, or show that it is empty.
_WITHOUT_A_LAKE = {
    *(
        "backfill",
        "import-history",
        "check",
        "discover",
        "read",
        "rebuild",
        "resync",
        "runs",
        "serve",
        "state show",
    ),
    *("state set", "state reset", "status", "sync", "ui"),
}
#: Commands that show something else without a lake, or name it in their own way.
_WITHOUT_A_CATALOG = {"backfill", "check", "discover", "read", "serve", "state show", "ui"}
_PROJECT = """\
targets:
  reporting: {type: postgres, dsn: postgresql://localhost/reports, tables: ["crm.*"]}
pipelines:
  crm:
    source: {type: data_lake_v2, path: ./files, org: X, objects: [Account]}
"""


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CHRONOLAKE_LAKE", "CHRONOLAKE_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    # Without Java, a command that starts Spark fails with a message about it.
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    monkeypatch.setenv("PATH", str(tmp_path / "no-java"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder below the one that has a chronolake.yml, without a lake."""
    folder = tmp_path / "project"
    (folder / "queries").mkdir(parents=True)
    (folder / "chronolake.yml").write_text(_PROJECT)
    monkeypatch.chdir(folder / "queries")
    return folder


def run_command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Run a command; return its exit code and what it printed on standard error."""
    with pytest.raises(SystemExit) as stopped:
        main(words)
    return int(stopped.value.code or 0), capsys.readouterr().err


def test_every_command_that_needs_a_lake_is_here() -> None:
    # Those of the last two are in tests/engine.
    without = {"test-destination", "init", "schema", "version", "engine", "up"}
    named = {name for names in PANELS.values() for name in names}
    assert {words.split()[0] for words in WORDS} == named - without


@pytest.mark.parametrize("command", sorted(WORDS.keys() - _WITHOUT_A_LAKE))
def test_a_command_finds_the_lake_of_the_project_around_it(
    command: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, error = run_command(capsys, *command.split(), *WORDS[command])

    assert code == 1
    assert f"There is no lake in {project / 'lake'}." in error
    assert "Starting Spark" not in error
    assert not (project / "lake").exists()


@pytest.mark.parametrize("command", WORDS)
def test_a_command_without_a_project_names_the_missing_option(
    command: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    code, error = run_command(capsys, *command.split(), *WORDS[command])

    assert code in {1, 2}
    assert f"here is no chronolake.yml in {tmp_path} or a folder above it." in error
    assert "--project" in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", WORDS)
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("lake: [", "line 1 is not valid YAML"),
        ("lake: {spark: {mastr: local}}", "unknown key 'lake.spark.mastr'"),
        ("- lake", "must contain keys and values"),
    ],
)
def test_a_broken_project_is_named_before_anything_happens(
    command: str, text: str, reason: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "chronolake.yml").write_text(text)

    code, error = run_command(capsys, *command.split(), *WORDS[command])

    assert code == 1
    assert f"{project / 'chronolake.yml'}" in error
    assert reason in error
    assert sorted(file.name for file in project.iterdir()) == ["chronolake.yml", "queries"]


@pytest.mark.parametrize("command", sorted(WORDS.keys() - _WITHOUT_A_CATALOG))
def test_a_broken_catalog_is_named_before_spark_starts(
    command: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "files" / "parquet" / "v2" / "org=X" / "object=Account").mkdir(parents=True)
    (project / "lake").mkdir()
    (project / "lake" / "catalog.db").write_text("no database")

    code, error = run_command(capsys, *command.split(), *WORDS[command])

    assert code == 1
    assert "catalog" in error
    assert "Starting Spark" not in error
    assert (project / "lake" / "catalog.db").read_text() == "no database"


@pytest.mark.parametrize("command", ["sync", "resync", "state show", "discover"])
def test_an_unknown_pipeline_is_refused_before_spark_starts(
    command: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, error = run_command(capsys, *command.split(), "cmr")

    assert code == 1
    assert "has no pipeline 'cmr'" in error
    assert "crm" in error.partition("What to do: ")[2]
    assert "Starting Spark" not in error
    assert not (project / "lake").exists()


def test_an_unknown_stream_is_refused_before_spark_starts(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "files" / "parquet" / "v2" / "org=X" / "object=Account").mkdir(parents=True)

    code, error = run_command(capsys, "sync", "crm", "--stream", "Acount")

    assert code == 1
    assert "Acount" in error
    assert "Starting Spark" not in error


@pytest.mark.parametrize("command", ["sync", "resync", "rebuild", "state set", "state reset"])
def test_a_pipeline_that_runs_is_refused_before_spark_starts(
    command: str,
    project: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("chronolake.pipeline.lease.PATIENCE_SECONDS", 0.3)
    words = {"sync": ("crm",)}.get(command, WORDS[command])
    (project / "files" / "parquet" / "v2" / "org=X" / "object=Account").mkdir(parents=True)
    (project / "lake").mkdir()
    store = Store.open(load_project(project / "chronolake.yml").lake)
    with hold_lease(store, "crm"):
        code, error = run_command(capsys, *command.split(), *words)

    assert code == 1
    assert "The pipeline crm is run by" in error
    assert "Wait until it has finished." in error
    assert "Starting Spark" not in error


#: Sources that cannot be read, and what is said about each.
_UNREADABLE = {
    "{type: data_lake_v2, path: files, org: X}": "files does not contain parquet/v2/org=X",
    "{type: postgres, dsn: 'postgresql://u@127.0.0.1:1/x', method: logical_replication}": (
        "The server cannot be reached"
    ),
    "{type: postgres, dsn: 'postgresql://u@127.0.0.1:1/x', method: snapshot_diff}": (
        "The server cannot be reached"
    ),
    "{type: declarative, manifest: missing.yaml, config: {}}": "missing.yaml",
}


@pytest.mark.parametrize(("source", "reason"), _UNREADABLE.items())
@pytest.mark.parametrize("command", ["sync", "resync"])
def test_a_source_that_cannot_be_read_is_named_before_spark_starts(
    command: str, source: str, reason: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "chronolake.yml").write_text(
        f"lake: {{path: lake}}\npipelines: {{crm: {{source: {source}}}}}\n"
    )

    code, error = run_command(capsys, command, "crm")

    assert code == 1
    assert reason in error
    assert "Starting Spark" not in error
    assert not (project / "lake").exists()

    (project / "lake").mkdir()
    Store.open(load_project(project / "chronolake.yml").lake)
    assert run_command(capsys, command, "crm")[0] == 1
    (run,) = runs(load_project(project / "chronolake.yml").lake).runs
    assert run.run.status is Status.FAILED
    assert reason in str(run.run.error)
    with pytest.raises(ChronolakeError, match=reason):
        chronolake.sync("crm", project=project)
    assert len(runs(load_project(project / "chronolake.yml").lake).runs) == 2


@pytest.mark.long
def test_a_run_begins_where_one_of_its_pipelines_can(project: Path) -> None:
    second = _PROJECT.partition("pipelines:\n")[2].replace("crm", "other")
    (project / "files" / "parquet" / "v2" / "org=X" / "object=Account").mkdir(parents=True)
    (project / "chronolake.yml").write_text(_PROJECT + second)
    (project / "lake").mkdir()
    with hold_lease(Store.open(load_project(project / "chronolake.yml").lake), "crm"):
        done = subprocess.run(
            [str(Path(sys.executable).with_name("chronolake")), "sync"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    assert "The pipeline crm is run by" in done.stderr
    assert "nothing new" in done.stdout
    assert done.returncode == 3


@pytest.mark.parametrize("command", ["verify", "maintain", "mode", "diff", "history", "view"])
def test_a_missing_table_is_named_before_spark_starts(
    command: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {"verify": ("crm.Account",), "maintain": ("crm.Account",)}.get(command, WORDS[command])
    (project / "lake").mkdir()
    Store.open(load_project(project / "chronolake.yml").lake)

    code, error = run_command(capsys, command, *words)

    assert code == 1
    assert "The lake has no such table." in error
    assert "crm.Account" in error
    assert "Starting Spark" not in error
