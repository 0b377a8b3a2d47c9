"""One lake for all tests of this process that need no lake of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from chronolake.garbage_collection import settle
from chronolake.lake import Lake
from support.lakes import lake_config
from support.seeds import SEED

# The duration of an example depends more on the machine than on the code.
settings.register_profile(
    "random",
    deadline=None,
    # Hypothesis repeats the same examples by default where CI is set.
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow],
)
# The same examples every time; `make test-all` generates others.
settings.register_profile("seeded", settings.get_profile("random"), derandomize=True)
settings.load_profile("seeded")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all but the first parameter set of a sampled test as long."""
    seen: set[tuple[Path, str]] = set()
    for item in items:
        if item.get_closest_marker("sampled") is None or item.get_closest_marker("long"):
            continue
        test = item.path, getattr(item, "originalname", item.name)
        if test in seen:
            item.add_marker(pytest.mark.long)
        seen.add(test)


def pytest_collection_finish() -> None:
    """As in `serve`: the garbage collector need not visit pytest's own objects after each write."""
    settle()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Nor what a module of tests has left."""
    if nextitem is None or nextitem.path != item.path:
        settle()


def pytest_report_header() -> str:
    return f"seed: {SEED}"


@pytest.fixture(autouse=True)
def logging_of_one_test() -> Iterator[None]:
    """Restore the configuration of logs: a command logs to what is closed after its test."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    folder = tmp_path_factory.mktemp("lake")
    with Lake.open(folder, config=lake_config(folder)) as opened:
        yield opened
