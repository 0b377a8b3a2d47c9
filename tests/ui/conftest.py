"""The lake of these tests, made once by Spark, and the page over it in a process of its own."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from processes import COMMAND


@dataclass(frozen=True)
class Shop:
    """The lake, and what Spark says of its past."""

    folder: Path
    expected: dict[str, Any]


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Shop:
    """Made by whichever worker comes first: Spark is dear."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "ui-shop"
    done = folder / "expected.json"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            _make(folder, done)
    return Shop(folder, json.loads(done.read_text(encoding="utf-8")))


def _make(folder: Path, done: Path) -> None:
    # Imported here: tests of other workers, and those without the lake, do without Spark.
    from shop import break_one, build, expected  # noqa: PLC0415

    from chronolake.lake import Lake  # noqa: PLC0415
    from lakes import lake_config  # noqa: PLC0415

    with Lake.open(folder, config=lake_config(folder)) as lake:
        build(lake)
        told = expected(lake)
        break_one(lake)
    done.write_text(json.dumps(told), encoding="utf-8")


@dataclass(frozen=True)
class Served:
    """A page that is up."""

    process: subprocess.Popen[str]
    url: str
    token: str | None


def start(folder: Path, *words: str, **environment: str) -> Served:
    """Run `chronolake ui` on a lake; the test ends it."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "ui", "--lake", str(folder), "--port", "0", "--json",
         *words],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "chronolake ui ended without an address"
    told = json.loads(line)
    return Served(process, f"http://{told['host']}:{told['port']}", told["token"])


def stop(served: Served) -> int:
    """End a page as a service manager does; its exit code."""
    served.process.send_signal(signal.SIGTERM)
    code = served.process.wait(timeout=10)
    if served.process.stdout is not None:
        served.process.stdout.close()
    return code


@pytest.fixture(scope="session")
def served(shop: Shop) -> Iterator[Served]:
    """The page over the lake."""
    running = start(shop.folder)
    yield running
    assert stop(running) == 0


@pytest.fixture(scope="session")
def chromium() -> str:
    """Debian's Chromium. Without it these tests are skipped; in CI, `.ci/run` has brought it."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        assert not os.environ.get("CI"), "CI has no Chromium: .ci/run should have installed it"
        pytest.skip("Chromium is missing: apt-get install chromium")
    return found
