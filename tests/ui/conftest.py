"""The lake of these tests, made once by Spark, and the web UI over it in its own process."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from support.inspect.layout import config, make
from support.ui.uiprocess import Served, Shop, start, stop

__all__ = ["config", "make"]

# A busy machine is slow.
expect.set_options(timeout=20_000)


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Shop:
    """Make the lake in the first worker that needs it: starting Spark is expensive."""
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
    from chronolake.lake import Lake  # noqa: PLC0415
    from support.lakes import lake_config  # noqa: PLC0415
    from support.ui.uishop import break_one, build, expected  # noqa: PLC0415

    with Lake.open(folder, config=lake_config(folder)) as lake:
        build(lake)
        reported = expected(lake)
        break_one(lake)
    done.write_text(json.dumps(reported), encoding="utf-8")


@pytest.fixture(scope="session")
def served(shop: Shop) -> Iterator[Served]:
    """Serve the web UI over the lake."""
    running = start(shop.folder)
    yield running
    assert stop(running) == 0


@pytest.fixture(scope="session")
def chromium() -> str:
    """Find Debian's Chromium. Without it tests are skipped; in CI, `.ci/run` installs it."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        assert not os.environ.get("CI"), "CI has no Chromium: .ci/run should have installed it"
        pytest.skip("Chromium is missing: apt-get install chromium")
    return found
