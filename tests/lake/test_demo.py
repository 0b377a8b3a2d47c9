"""`make demo` works as a user sees it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_demo_runs_to_its_end_and_leaves_no_process() -> None:
    done = subprocess.run(
        ["examples/demo.sh"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=900
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert set(done.stderr.splitlines()) <= {"Starting Spark ..."}
    for words in ("all checks passed", "shop.orders", "placed → paid", "versions do not overlap"):
        assert words in done.stdout
    assert "violated" not in done.stdout
    running = subprocess.run(["ps", "ax"], capture_output=True, text=True, check=True).stdout
    assert "serve --port 0 --files-root demo-lake" not in running
    shutil.rmtree(ROOT / "demo-lake")
