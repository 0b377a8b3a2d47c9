"""Targets in a project: the command, `check`, and publications beside `up` and `serve`."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from chronolake.config import Project, load_project
from chronolake.errors import TargetError
from chronolake.target.check import check_target
from chronolake.target.publication import PublishResult
from chronolake.target.runner import ChangeWatch, PublishFailure, publish, publish_on_schedule
from support.processes import run_command
from support.target.targets import HISTORY, LIVE, Target, write, write_versions
from support.waiting import wait_until

pytestmark = pytest.mark.parametrize("config", ["postgres"], indirect=True)


def _project(target: Target, folder: Path, more: str = "") -> Project:
    file = folder / "chronolake.yml"
    file.write_text(
        f"lake: {{path: '{target.lake.config.path}', spark: {{master: 'local[2]'}}}}\n"
        "targets:\n  reporting:\n    type: postgres\n"
        f"    dsn: '{target.config.dsn}'\n    tables: ['sales.*']\n{more}"
    )
    return load_project(file)


def test_command_publishes_and_reports_each_table(target: Target, tmp_path: Path) -> None:
    write(target.lake, range(10), "first")
    _project(target, tmp_path)
    words = ("publish", "--project", str(tmp_path), "--json")
    code, output = run_command(*words, "--dry-run")
    assert code == 0, output
    planned = json.loads(output.splitlines()[-1])
    assert (planned["outcome"], planned["done"]) == ("loaded", False)
    code, output = run_command(*words)
    assert code == 0, output
    result = json.loads(output.splitlines()[-1])
    snapshot = target.lake.catalog.load(LIVE).snapshot_id
    assert (result["inserted"], result["snapshot"]) == (10, snapshot)
    target.expect_equal(LIVE)
    target.run(f"DELETE FROM {target.table(LIVE)} WHERE id = 1")
    code, output = run_command(*words)
    assert code == 1
    assert "changed by others: DELETE by the user" in output
    code, _ = run_command(*words, "--take-over", "--table", str(LIVE))
    assert code == 0
    target.expect_equal(LIVE)


def test_check_rejects_history_for_kafka(target: Target, tmp_path: Path) -> None:
    write(target.lake, range(3), "first")
    write_versions(target.lake, 1, ["a"])
    kafka = "  stream:\n    type: kafka\n    servers: localhost:9092\n    tables: ['sales.*']\n"
    project = _project(target, tmp_path, kafka)
    found = {result.table: result.error for result in check_target(project, "stream")}
    failure = found[str(HISTORY)]
    assert isinstance(failure, TargetError)
    assert failure.message == "Apache Kafka does not support history mode."
    assert "live and soft-delete" in (failure.hint or "")
    assert str(LIVE) not in found
    (result,) = check_target(project, "reporting")
    assert result.error is None
    assert result.message == "its database responds; 0 of 2 tables are published"


def test_changes_are_published_until_stopped(target: Target, tmp_path: Path) -> None:
    write(target.lake, range(10), "first")
    project = _project(target, tmp_path)
    project = Project(project.file, target.lake.config, {}, targets=project.targets)
    is_stopped = threading.Event()
    thread = threading.Thread(
        target=publish_on_schedule, args=(target.lake, lambda: project, "reporting", is_stopped)
    )
    thread.start()
    try:
        exists = f"SELECT to_regclass('{target.table(LIVE)}') IS NOT NULL"
        wait_until(lambda: target.run(exists) == [(True,)], "nothing was published")
        write(target.lake, range(10, 20), "second")
        count = f"SELECT count(*) FROM {target.table(LIVE)}"
        wait_until(lambda: target.run(count) == [(20,)], "the change was not published")
    finally:
        is_stopped.set()
        thread.join()
    target.expect_equal(LIVE)


def test_failed_table_is_tried_again_after_a_pause(target: Target, tmp_path: Path) -> None:
    write(target.lake, range(10), "first")
    config = _project(target, tmp_path).targets["reporting"]
    watch = ChangeWatch(target.lake, "reporting")
    assert watch.publish_changed(config, now=0.0) == 1
    assert watch.publish_changed(config, now=1.0) == 0
    target.run(f"DELETE FROM {target.table(LIVE)} WHERE id = 1")
    write(target.lake, [1], "second")
    assert watch.publish_changed(config, now=2.0) == 1
    assert watch.publish_changed(config, now=3.0) == 0
    assert watch.publish_changed(config, now=100.0) == 1
    assert watch.tables[LIVE].failures == 2


@pytest.mark.long
def test_serve_publishes_changes(target: Target, tmp_path: Path) -> None:
    write(target.lake, range(10), "first")
    _project(target, tmp_path)
    server = subprocess.Popen(
        [sys.executable, "-m", "chronolake", "serve", "--project", str(tmp_path), "--port", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        exists = f"SELECT to_regclass('{target.table(LIVE)}') IS NOT NULL"
        wait_until(
            lambda: server.poll() is not None or target.run(exists) == [(True,)],
            "nothing was published",
        )
        assert server.poll() is None
    finally:
        server.terminate()
        code = server.wait()
    assert code == 0
    target.expect_equal(LIVE)


def test_missing_table_does_not_affect_others(target: Target, tmp_path: Path) -> None:
    write(target.lake, range(3), "first")
    project = _project(target, tmp_path)
    config = project.targets["reporting"].model_copy(update={"tables": ["sales.*", "sales.later"]})
    project = Project(project.file, target.lake.config, {}, targets={"reporting": config})
    failure, result = publish(target.lake, project, [])
    assert isinstance(failure, PublishFailure)
    assert failure.table == "sales.later"
    assert isinstance(result, PublishResult)
    assert result.table == str(LIVE)
    assert ChangeWatch(target.lake, "reporting").publish_changed(config, now=0.0) == 1
    missing, database = check_target(project, "reporting")
    assert (missing.table, missing.error) == ("sales.later", None)
    assert missing.hint
    assert database.message == "its database responds; 1 of 1 table are published"
