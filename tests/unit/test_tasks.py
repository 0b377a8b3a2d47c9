"""Tasks that end are restarted, those that end at once ever later, and unwanted ones stop."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from chronolake.engine.health import is_healthy
from chronolake.engine.tasks import Task, Tasks

A, B = Task(lambda: None), Task(lambda: None, uses_java=False)


def test_wanted_tasks_are_due_until_they_run() -> None:
    wanted = {"a": A, "b": B}
    tasks = Tasks(lambda: wanted)

    assert tasks.due([], 0.0) == wanted
    assert tasks.due(["a"], 0.0) == {"b": B}
    del wanted["a"]
    assert tasks.unwanted(["a", "b"]) == {"a"}
    assert tasks.due(["a"], 0.0) == {"b": B}
    assert tasks.state(["a"]) == {"b": {"running": False, "failures": 0}}


def test_a_task_that_ends_at_once_waits_ever_longer() -> None:
    tasks = Tasks(lambda: {"a": A})
    waited = []
    for _ in range(8):
        tasks.note_started("a", 0.0)
        waited.append(tasks.note_ended("a", 0.1))

    assert waited == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert tasks.due([], 60.0) == {}
    assert tasks.due([], 60.1) == {"a": A}
    assert tasks.state([])["a"]["failures"] == 8


def test_a_task_that_has_worked_is_restarted_soon() -> None:
    tasks = Tasks(lambda: {"a": A})
    for _ in range(5):
        tasks.note_started("a", 0.0)
        tasks.note_ended("a", 0.0)
    tasks.note_started("a", 100.0)

    assert tasks.note_ended("a", 161.0) == 1.0


@given(st.lists(st.floats(0.0, 200.0), max_size=30))
def test_a_task_waits_for_a_second_to_a_minute(lasted: list[float]) -> None:
    tasks, now = Tasks(lambda: {"a": A}), 0.0
    for seconds in lasted:
        tasks.note_started("a", now)
        now += seconds
        pause = tasks.note_ended("a", now)
        assert 1.0 <= pause <= 60.0
        now += pause
        assert tasks.due([], now) == {"a": A}


def test_an_engine_is_healthy_with_java_and_all_tasks() -> None:
    task = {"running": True, "failures": 0}
    assert is_healthy({"java_pid": 1, "tasks": {}})
    assert is_healthy({"java_pid": 1, "tasks": {"a": task}})
    assert not is_healthy(None)
    assert not is_healthy({"java_pid": None, "tasks": {"a": task}})
    assert not is_healthy({"java_pid": 1, "tasks": {"a": task, "b": {**task, "running": False}}})


def test_an_unexpected_error_of_a_task_is_logged_without_its_message() -> None:
    program = (
        "import os; from chronolake.engine.server import _run_task; "
        "_run_task('pipeline crm', os.getppid(), None, lambda: int('42 kg'))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (1, "")
    assert "ValueError" in done.stdout
    assert "_run_task" in done.stdout
    assert "42 kg" not in done.stdout
