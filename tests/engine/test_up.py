"""`up` runs pipelines on their schedules, whatever ends in between."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest
from pyiceberg.exceptions import NoSuchTableError

from chronolake.config import load_project
from chronolake.engine import lock
from support.crash.server_process import UP_VARIABLE, configure, serve
from support.datalakes import DataLake, iceberg, project
from support.engines import AT, ENGINE, Up, write_accounts
from support.server.caller import SYNCED
from support.server.sent_rows import Batch, SentTable
from support.waiting import TIMEOUT, wait_until

_PIPELINE: Final = "  {name}:\n    source: {{type: data_lake_v2, path: {name}, org: X}}\n"
_EVERY: Final = "    every: 1s\n"
_UP: Final = "up: {ui: '127.0.0.1:0', health: '127.0.0.1:0', grace: 60s}\n"


class Lakes(Up):
    """Data lakes that `chronolake up` syncs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.sources = {name: DataLake(folder / name) for name in ("crm", "erp")}
        self.project = project(folder, _PIPELINE.format(name="crm") + _EVERY)
        self.configure("crm")

    def configure(self, *names: str) -> None:
        file = self.project.file
        head = file.read_text().partition("pipelines:")[0].partition("up:")[0]
        pipelines = "".join(_PIPELINE.format(name=name) + _EVERY for name in names)
        changed = file.with_suffix(".new")
        changed.write_text(f"{head}{_UP}pipelines:\n{pipelines}")
        changed.replace(file)
        self.project = load_project(file)

    def write(self, name: str, *values: str) -> None:
        write_accounts(self.sources[name], values)

    def active(self, name: str) -> list[str]:
        if not self.project.lake.catalog_file.exists():
            # PyIceberg would create it.
            return []
        try:
            rows = iceberg(self.project, name, "Account").scan().to_arrow().to_pylist()
        except NoSuchTableError:
            return []
        return sorted(row["Name"] for row in rows if row["_fivetran_active"])

    def wait_for(self, name: str, *values: str) -> None:
        wait_until(lambda: self.active(name) == sorted(values), f"{name} does not have {values}")


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Lakes]:
    made = Lakes(tmp_path)
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.long
def test_pipelines_follow_the_file_and_each_other_s_failures_do_not_matter(up: Lakes) -> None:
    up.write("crm", "a")
    up.start()
    up.wait_for("crm", "a")

    # A change, a pipeline that is added, and one whose source is missing.
    up.write("crm", "b", "c")
    up.write("erp", "x")
    up.configure("crm", "erp", "gone")
    up.wait_for("crm", "b", "c")
    up.wait_for("erp", "x")
    wait_until(
        lambda: any(line["event"] == "pipeline_backs_off" for line in up.log()),
        "the pipeline without a source does not back off",
    )

    # Pipelines that are removed, and an invalid file, which changes nothing.
    up.configure("erp")
    wait_until(lambda: "pipeline crm" not in up.tasks(), "crm still runs")
    up.project.file.write_text("pipelines: [")
    wait_until(
        lambda: any(line["event"] == "configuration_not_reloaded" for line in up.log()),
        "the invalid file is not reported",
    )
    up.write("erp", "y")
    up.wait_for("erp", "y")
    assert "pipeline erp" in up.tasks()


@pytest.mark.long
def test_health_metrics_and_the_web_ui_are_served(up: Lakes) -> None:
    up.write("crm", "a", "b")
    up.start()
    up.wait_for("crm", "a", "b")
    wait_until(lambda: len(up.tasks()) == 3, "not all tasks run")

    healthy = up.get("/healthz")
    metrics = up.get("/metrics").text
    (ui,) = [line["url"] for line in up.log() if line["event"] == "ui_listening"]

    assert healthy.status_code == 200
    assert healthy.json()["tasks"]["pipeline crm"] == {"running": True, "failures": 0}
    labels = '{pipeline="crm",stream="Account"}'
    assert f"chronolake_stream_rows_total{labels} 2.0" in metrics
    assert f"chronolake_stream_failures_total{labels} 0.0" in metrics
    assert re.search(rf"chronolake_stream_lag_seconds{re.escape(labels)} \d", metrics)
    assert 'chronolake_task_running{task="pipeline crm"} 1.0' in metrics
    assert up.get("/other").status_code == 404
    assert "crm.Account" in httpx.get(ui, trust_env=False, follow_redirects=True, timeout=30).text


def test_commands_run_in_the_same_engine(
    up: Lakes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    up.write("crm", "a")
    up.start()
    up.wait_for("crm", "a")
    java = up.state()["java_pid"]

    rows = up.run("query", "SELECT Name FROM crm.Account", "--json")
    second = up.run("up", variables={"XDG_RUNTIME_DIR": str(tmp_path_factory.mktemp("other"))})

    assert (rows.returncode, rows.stdout, rows.stderr) == (0, '{"Name":"a"}\n', "")
    assert second.returncode == 1
    assert "Another `up`" in second.stdout + second.stderr
    assert up.state()["java_pid"] == java


@pytest.mark.long
def test_an_engine_that_does_not_respond_is_named(up: Lakes) -> None:
    lake = up.project.lake.path
    lake.mkdir()
    with lock.hold(lake, up.folder / "chronolake", shared=False) as has_lock:
        assert has_lock
        refused = up.run("up")

    assert refused.returncode == 1
    assert f"process {os.getpid()} on" in refused.stdout + refused.stderr


@pytest.mark.long
def test_an_idle_engine_makes_way_for_up(up: Lakes) -> None:
    with (up.folder / "engine.log").open("ab") as log:
        engine = subprocess.Popen(
            [sys.executable, "-c", ENGINE, str(up.project.file)],
            env=up.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(lambda: up.state()["running"], "the engine does not listen")
        up.write("crm", "a")
        process = up.start()

        up.wait_for("crm", "a")
        assert engine.wait(TIMEOUT) == 0
        assert up.state()["pid"] == process.pid
    finally:
        engine.kill()


@pytest.mark.long
def test_a_dead_jvm_is_replaced_and_pipelines_go_on(up: Lakes) -> None:
    up.write("crm", "a")
    up.start()
    up.wait_for("crm", "a")

    os.kill(up.state()["java_pid"], signal.SIGKILL)
    up.write("crm", "b")

    up.wait_for("crm", "b")
    wait_until(lambda: up.get("/healthz").status_code == 200, "it does not become healthy")


@pytest.mark.long
def test_the_destination_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(UP_VARIABLE, "on")
    lake = tmp_path / "lake"
    configure(lake)
    with serve(lake, tmp_path) as server:
        table = SentTable(server.caller, "live", ["id*:LONG", "a:STRING", SYNCED])
        table.create()
        row = {"id": 1, "a": "x", "_fivetran_synced": AT}
        table.send(table.request(Batch(replace=[row])))
        (ended,) = table.rows()
    assert (ended["id"], ended["a"]) == (1, "x")
    assert server.process.returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_lost_when_it_ends(up: Lakes, number: signal.Signals) -> None:
    up.write("crm", "a")
    process = up.start()
    up.wait_for("crm", "a")
    held = up.state()["tasks"]
    assert held

    up.write("crm", "b", "c")
    process.send_signal(number)
    code = process.wait(TIMEOUT)

    assert code == (0 if number is signal.SIGTERM else -number)
    assert up.state() == {"running": False}
    up.start()
    up.wait_for("crm", "b", "c")


@pytest.mark.long
def test_settings_of_spark_take_effect_without_a_restart(up: Lakes) -> None:
    up.write("crm", "a")
    up.start()
    up.wait_for("crm", "a")
    before = up.state()["java_pid"]

    file = up.project.file
    file.write_text(file.read_text().replace("local[2]", "local[1]"))
    wait_until(lambda: up.state().get("java_pid") not in {None, before}, "Java is not replaced")

    up.write("crm", "b")
    up.wait_for("crm", "b")


@pytest.mark.long
def test_another_lake_takes_effect_without_a_restart(up: Lakes) -> None:
    up.write("crm", "a")
    process = up.start()
    up.wait_for("crm", "a")

    file = up.project.file
    changed = file.with_suffix(".new")
    changed.write_text(file.read_text().replace("lake: {", "lake: {path: other, "))
    changed.replace(file)
    before, up.project = up.project, load_project(file)

    up.wait_for("crm", "a")
    assert up.project.lake.path != before.lake.path
    assert up.state()["pid"] == process.pid
    assert "engine_ends" in {event["event"] for event in up.log()}
