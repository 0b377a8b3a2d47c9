"""A sync goes on if the reader of its output, such as `head`, has closed it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chronolake.pipeline.runs import Status
from chronolake.pipeline.store import Store
from support.connectors import Shop
from support.engines import shared_engine
from support.waiting import TIMEOUT

_FUNCTIONS = """
import chronolake, pathlib, time

@chronolake.streams(a={"key": "id"}, b={"key": "id"})
def both():
    while not pathlib.Path("FOLDER/go").exists():
        time.sleep(0.01)
    yield "a", {"id": 1}
    yield "b", {"id": 2}
"""


@pytest.mark.long
@pytest.mark.parametrize("words", [["--json"], []], ids=["json", "text"])
def test_a_closed_output_does_not_fail_a_stream(tmp_path: Path, words: list[str]) -> None:
    shop = Shop(tmp_path)
    code = _FUNCTIONS.replace("FOLDER", str(tmp_path))
    (tmp_path / "closed_output_functions.py").write_text(code)
    shop.configure({"type": "python", "run": "closed_output_functions:both"})
    process = subprocess.Popen(
        [sys.executable, "-m", "chronolake", "sync", "shop", "--project", str(tmp_path), *words],
        env={**os.environ, "CHRONOLAKE_ENGINE": str(shared_engine())},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        if words:
            assert "run-began" in process.stdout.readline()
        process.stdout.close()
        (tmp_path / "go").touch()
        errors = process.stderr.read()
        assert process.wait(TIMEOUT) == 0, errors
    assert "Traceback" not in errors
    (run,) = Store.open(shop.project.lake).runs(pipeline="shop")
    assert run.status is Status.SUCCEEDED
    assert shop.versions("id", table="b") == [(2, True)]
