"""The commands for pipelines, as a person and a script use them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import yaml
from structlog.testing import capture_logs

import chronolake
from chronolake.config import FileConfig
from support.commands import run_words
from support.datalakes import DataLake, project

_DROPPED = "columns_of_others_dropped"
_T = 1_767_225_600_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = DataLake(tmp_path / "source")
    source.write("Account", [_row("1", 1, "1", Name="one"), _row("1", 2, "2", Name="two")])
    source.write("Contact", [_row("7", 1, "1", Name="seven")])
    project(tmp_path, "  crm:\n    source: {type: data_lake_v2, path: source, org: X}\n")
    return tmp_path


def _row(key: str, at: int, sequence: str, **fields: Any) -> dict[str, Any]:
    return {
        "Id": key,
        "source__modified": _T + at * 1_000_000,
        "grax__idseq": sequence,
        **fields,
    }


def _ran(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    return run_words(capsys, *words, "--project", str(folder))


def test_a_pipeline_from_its_check_to_its_rebuild(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, reported, _ = _ran(folder, capsys, "check", "--json")
    assert code == 0
    assert [(load["what"], load["ok"]) for load in json.loads(reported)] == [
        ("lake", True),
        ("pipelines.crm", True),
    ]
    _, reported, _ = _ran(folder, capsys, "discover", "crm", "--json")
    assert [(load["stream"], load["files"], load["sees"]) for load in json.loads(reported)] == [
        ("Account", 1, "observed-changes"),
        ("Contact", 1, "observed-changes"),
    ]
    _, reported, _ = _ran(folder, capsys, "status", "--json")
    before = json.loads(reported)
    assert [(table["mode"], table["files_waiting"]) for table in before] == [(None, 1)] * 2
    assert [table["behind_seconds"] for table in before] == [None] * 2

    code, reported, _ = _ran(folder, capsys, "sync", "--json")

    assert code == 0
    events = [json.loads(line) for line in reported.splitlines()]
    assert (events[0]["event"], events[-1]["event"]) == ("run-began", "run-ended")
    assert events[-1]["status"] == "succeeded"
    for table, rows in (("crm.Account", 2), ("crm.Contact", 1)):
        assert [
            (event["event"], event.get("files_left"), event["rows"])
            for event in events
            if event.get("table") == table
        ] == [
            ("stream-began", None, 0),
            ("applying", 1, 0),
            ("published", 0, rows),
            ("stream-ended", None, rows),
        ]
    _, reported, _ = _ran(folder, capsys, "status", "--json")
    after = json.loads(reported)
    assert [(table["mode"], table["files_waiting"]) for table in after] == [("history", 0)] * 2
    assert all(0 <= table["behind_seconds"] < 600 for table in after)
    _, reported, _ = _ran(folder, capsys, "runs", "--json")
    (run,) = json.loads(reported)
    assert run["status"] == "succeeded"
    assert [stream["written"] for stream in run["streams"]] == [2, 1]
    _, reported, _ = _ran(folder, capsys, "state", "show", "crm")
    assert json.loads(reported)["Account"] == {"applied": ANY, "landed": None}
    code, reported, _ = run_words(
        capsys,
        *("verify", "crm.Account", "--against-lake", "--json"),
        *("--lake", str(folder / "lake"), "--config", str(folder / "chronolake.yml")),
    )
    assert code == 0
    assert json.loads(reported)[0]["promises"][-1]["promise"] == "the table matches its raw lake"
    code, reported, _ = _ran(folder, capsys, "rebuild", "crm.Account", "--json")
    assert (code, json.loads(reported)) == (0, {"table": "crm.Account", "rows": 2})
    code, reported, _ = _ran(folder, capsys, "resync", "crm", "--stream", "Contact", "--json")
    assert code == 0
    (published,) = [
        event for event in map(json.loads, reported.splitlines()) if event.get("files")
    ][:1]
    assert (published["table"], published["files"], published["rows"]) == ("crm.Contact", 1, 1)
    _, reported, _ = _ran(folder, capsys, "runs", "--json")
    assert len(json.loads(reported)) == 2, "a re-sync is a run"
    code, _, _ = _ran(folder, capsys, "state", "reset", "crm", "--stream", "Account")
    assert code == 0
    _, reported, _ = _ran(folder, capsys, "runs", "--json")
    assert len(reported.splitlines()) == 2 + 2, "a run is one line"
    for columns in ("60", "80", "120"):
        monkeypatch.setenv("COLUMNS", columns)
        _, reported, _ = _ran(folder, capsys, "status")
        assert "crm.Account" in reported.split(), "a name is never broken"
        for command in ("status", "runs"):
            _, reported, _ = _ran(folder, capsys, command)
            assert ".parquet" not in reported
            if columns != "60":
                assert max(map(len, reported.splitlines())) <= int(columns)


def test_runs_of_no_pipeline_are_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, reported = _ran(folder, capsys, "runs", "cmr")
    assert code == 1
    assert "cmr" in reported
    assert "crm" in reported, "it lists what exists"


@pytest.mark.long
def test_a_pipeline_may_be_added_while_sync_is_running(folder: Path) -> None:
    program = "from chronolake.cli import main; main()"
    words = ["sync", "--every", "1s", "--json", "--project", str(folder)]
    running = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert running.stdout is not None
        events = map(json.loads, running.stdout)
        assert next(event["pipeline"] for event in events if event["event"] == "run-ended") == "crm"
        file = folder / "chronolake.yml"
        more = (
            "  other:\n    source: {type: data_lake_v2, path: source, org: X, objects: [Contact]}\n"
        )
        file.write_text(file.read_text() + more)
        came = next(event for event in events if event["event"] == "published")
        assert (came["pipeline"], came["table"]) == ("other", "other.Contact")
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
        assert running.returncode == 130
    finally:
        running.kill()
        running.wait()


def test_check_names_what_two_pipelines_fill_and_what_is_not_there(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "chronolake.yml"
    file.write_text(
        file.read_text()
        + "  other:\n    schema: crm\n"
        + "    source: {type: data_lake_v2, path: source, org: X, objects: [Account, Kontakt]}\n"
    )
    code, reported, _ = _ran(folder, capsys, "check", "--json")
    found = {load["what"]: load for load in json.loads(reported)}
    assert code == 1
    assert found["pipelines.other"]["message"] == "The pipelines crm and other both fill the table."
    file.write_text(file.read_text().replace("schema: crm", "schema: elsewhere"))
    code, reported, _ = _ran(folder, capsys, "check", "--json")
    found = {load["what"]: load for load in json.loads(reported)}
    assert code == 0
    assert "the source lake has no files of Kontakt yet" in found["pipelines.other"]["message"]


def test_the_mode_of_a_piped_table_is_not_switched_by_hand(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _ran(folder, capsys, "sync")[0] == 0

    code, _, reported = run_words(
        capsys,
        *("mode", "crm.Account", "live", "--lake", str(folder / "lake")),
        *("--config", str(folder / "chronolake.yml")),
    )

    assert code == 1
    line = "pipelines: {crm: {streams: {Account: {mode: live}}}}"
    assert line in " ".join(reported.split())


def test_a_table_that_no_sync_has_created_is_not_switched(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _ran(folder, capsys, "sync", "crm", "--stream", "Account")[0] == 0

    for mode, needed in (("live", True), ("history", False)):
        code, _, reported = run_words(
            capsys,
            *("mode", "crm.Contact", mode, "--lake", str(folder / "lake")),
            *("--config", str(folder / "chronolake.yml")),
        )
        message = " ".join(reported.split())
        assert code == 1
        assert "No sync of the pipeline crm has created the table yet" in message
        assert "The first sync creates it in history mode." in message
        setting = "pipelines: {crm: {streams: {Contact: {mode: live}}}}"
        assert (setting in message) == needed


@pytest.mark.long
def test_a_switch_by_the_configuration_warns_of_foreign_columns_only(folder: Path) -> None:
    """A mode switch by the configuration warns only of columns that are not its own.

    The columns that belong to a mode are added and dropped with it, without a warning.
    """
    dropped = []
    for mode in ("live", "history", "soft-delete", "history"):
        reported = (
            f"  crm:\n    mode: {mode}\n    source: {{type: data_lake_v2, path: source, org: X}}\n"
        )
        project(folder, reported)
        with capture_logs() as logs:
            assert chronolake.sync("crm", project=folder, streams=["Account"]).status == "succeeded"
        dropped.append([log["columns"] for log in logs if log["event"] == _DROPPED])
        if mode == "soft-delete":
            with chronolake.Lake.open(folder / "lake") as lake:
                lake.sql("ALTER TABLE crm.Account ADD COLUMN note STRING")

    assert dropped == [[], [], [], [["note"]]]


@pytest.mark.long
def test_what_fails_within_spark_is_an_error_like_others(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _ran(folder, capsys, "sync")[0] == 0
    for file in (folder / "lake").rglob("data/**/*.parquet"):
        file.unlink()

    code, _, reported = run_words(
        capsys,
        *("verify", "crm.Account", "--lake", str(folder / "lake"), "--json"),
        *("--config", str(folder / "chronolake.yml")),
    )

    assert code == 1
    failure = json.loads(reported.splitlines()[-1])
    assert failure["error"] == "LakeError"
    assert failure["message"].startswith("Spark failed: ")
    assert "--debug" in failure["hint"]


def test_a_partial_run_is_reported_as_partial(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (broken,) = (folder / "source").rglob("object=Contact/batch=*/*.parquet")
    broken.write_bytes(b"nothing")

    code, reported, _ = _ran(folder, capsys, "sync")

    assert code == 3
    assert "failed" in reported
    assert "partial" in reported
    (whole,) = (folder / "source").rglob("object=Account/batch=*/*.parquet")
    whole.write_bytes(b"nothing")
    _ran(folder, capsys, "state", "reset", "crm", "--stream", "Account")
    assert _ran(folder, capsys, "sync")[0] == 1


def test_a_source_that_is_away_does_not_hide_the_others(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "  crm:\n    source: {type: data_lake_v2, path: source, org: X}\n"
    project(folder, source + source.replace("crm", "away").replace("path: source", "path: gone"))

    code, reported, problem = _ran(folder, capsys, "status", "--json")

    assert code == 1
    assert [row["table"] for row in json.loads(reported)] == ["crm.Account", "crm.Contact"]
    assert "gone does not contain parquet/v2/org=X" in json.loads(problem)["message"]
    code, reported, _ = _ran(folder, capsys, "check", "--json")
    assert code == 1
    assert [load["ok"] for load in json.loads(reported)] == [True, True, False]


def test_status_shows_what_the_lake_has_while_a_source_is_away(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert _ran(folder, capsys, "sync")[0] == 0
    _, reported, _ = _ran(folder, capsys, "status", "--json")
    there = json.loads(reported)
    assert [row["source_error"] for row in there] == [None, None]

    (folder / "source").rename(folder / "away")
    code, reported, problem = _ran(folder, capsys, "status", "--json")

    assert code == 1
    reason = json.loads(problem)["message"]
    assert "source does not contain parquet/v2/org=X" in reason
    away = json.loads(reported)
    for row, before in zip(away, there, strict=True):
        assert reason in row.pop("source_error")
        same = {name: before[name] for name in row.keys() - {"behind_seconds", "wanted_mode"}}
        # Its files cannot be listed.
        same |= dict.fromkeys(["files_waiting", "bytes_waiting", "files_late"])
        assert {name: row[name] for name in same} == same
    code, reported, problem = _ran(folder, capsys, "status")
    assert code == 1
    assert "source does not contain parquet/v2/org=X" in problem
    assert "crm  its source cannot be read" in reported
    for words in ("crm.Account", "crm.Contact", "history", "succeeded"):
        assert words in reported

    # A run that could not begin is listed, and Spark is not started for it.
    code, _, problem = _ran(folder, capsys, "sync")
    assert code == 1
    assert "Starting Spark" not in problem
    _, reported, _ = _ran(folder, capsys, "runs", "--json")
    newest = json.loads(reported)[0]
    assert newest["status"] == "failed"
    assert "source does not contain parquet/v2/org=X" in newest["error"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("sync", "crn"), "Did you mean 'crm'?"),
        (("sync", "crm", "--stream", "Acount"), "Did you mean 'Account'?"),
        (("sync", "crm", "--every", "soon"), "write a duration such as 30s"),
        (("rebuild", "crm.Other"), "No pipeline of"),
        (("state", "set", "crm", "Account", "x"), "Confirm with --yes"),
    ],
)
def test_wrong_arguments_are_explained(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    code, _, reported = _ran(folder, capsys, *words)

    assert code in {1, 2}
    assert message in " ".join(reported.replace("│", " ").split())


def test_a_new_project_is_right_and_known_to_editors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_words(capsys, "init", "shop")[0] == 0

    text = (tmp_path / "shop" / "chronolake.yml").read_text()
    schema = json.loads((tmp_path / "shop" / "chronolake.schema.json").read_text())

    assert schema == json.loads(json.dumps(FileConfig.model_json_schema()))
    # The settings in the comments are valid as well.
    reported = "\n".join(line.replace("  # ", "  ", 1) for line in text.splitlines())
    monkeypatch.setenv("LAKE_PASSWORD", "secret")
    pipelines = FileConfig.model_validate(yaml.safe_load(reported)).pipelines
    assert pipelines["crm"].streams["Account"].table == "accounts"
    assert _ran(tmp_path / "shop", capsys, "check")[0] == 0
    assert run_words(capsys, "init", "shop")[0] == 1
