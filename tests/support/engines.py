"""Engines in processes of their own, and waiting for what they do."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

from support.datalakes import project

TIMEOUT: Final = 300.0
#: An engine of a project without an idle time, and without a warm-up that competes with commands.
ENGINE: Final = """\
import sys
from pathlib import Path
from chronolake.cli import main
from chronolake.config import lake_of_project
from chronolake.engine.server import Engine

file = Path(sys.argv[1])
ran = Engine(lake_of_project(file).path, file, lambda: lake_of_project(file), main, None).run()
sys.exit(0 if ran else 1)
"""


def wait_until(is_met: Callable[[], object], what: str) -> None:
    """Wait until a condition is met.

    Raises:
        AssertionError: it was not met in time, with `what` as the message.
    """
    until = time.monotonic() + TIMEOUT
    while not is_met():
        assert time.monotonic() < until, what
        time.sleep(0.05)


@cache
def shared_engine() -> Path:
    """Start an engine that ends with this process; return its socket.

    It runs commands of any lake that has the Spark settings of tests.
    """
    # A socket's path has at most 107 bytes, which a folder of pytest's may exceed.
    folder = Path(tempfile.mkdtemp(prefix="chronolake-tests-"))
    file = project(folder, "  none: {source: {type: data_lake_v2, path: none, org: X}}\n").file
    with (folder / "engine.log").open("wb") as log:
        engine = subprocess.Popen(
            [sys.executable, "-c", ENGINE, str(file)],
            env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def stop() -> None:
        engine.terminate()
        engine.wait()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    sockets = folder / "chronolake"
    wait_until(
        lambda: engine.poll() is not None or list(sockets.glob("*.sock")),
        "the shared engine does not listen",
    )
    assert engine.poll() is None, (folder / "engine.log").read_text()
    return next(sockets.glob("*.sock"))
