"""A run shows its progress on a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.progress import Progress

from chronolake.cli.progress import SparkTasks
from chronolake.lake import Lake
from support.datalakes import DataLake, project


@pytest.mark.long
def test_a_terminal_sees_bars_and_how_far_spark_is(tmp_path: Path) -> None:
    project(tmp_path, "  crm:\n    source: {type: data_lake_v2, path: source, org: X}\n")
    source = DataLake(tmp_path / "source")
    rows = [
        {"Id": f"{key:06}", "source__modified": key, "grax__idseq": "1", "Name": "x" * 50}
        for key in range(20_000)
    ]
    for _ in range(4):
        source.write("Account", rows)
    main, terminal = pty.openpty()
    command = [Path(sys.executable).with_name("chronolake"), "sync", "--project", tmp_path]
    running = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "160"},
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            more = os.read(main, 65536)
        except OSError:  # the terminal's other side is closed
            break
        shown += more
    os.close(main)
    assert running.stdout is not None
    reported = running.stdout.read().decode()
    running.stdout.close()
    assert running.wait() == 0, shown.decode()
    screen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "crm.Account " in screen
    assert re.search(r"\d+ of \d+ tasks", screen)
    assert "4 files" in reported, "the result is not part of the lines that come and go"
    assert "tasks" not in reported


def test_the_remaining_time_of_spark_is_shown(lake: Lake) -> None:
    spark = lake.spark.sparkContext
    slow = spark.parallelize(range(12), 12)
    working = threading.Thread(target=lambda: slow.foreach(lambda _: time.sleep(0.4)))
    column = SparkTasks(lake)
    bars = Progress()
    bars.add_task("orders")
    (task,) = bars.tasks
    working.start()
    reported: set[str] = set()
    while working.is_alive():
        reported.add(column.render(task).plain)
        time.sleep(0.1)
    working.join()
    assert any(re.search(r"^\d+ of 12 tasks, about 0:00:0\d left$", text) for text in reported), (
        reported
    )
