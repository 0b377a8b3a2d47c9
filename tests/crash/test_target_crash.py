"""A publication is killed at every step and run again: the target equals the lake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chronolake.config import RelationalTarget
from chronolake.failpoints import FAILPOINTS
from chronolake.lake import Lake
from support.processes import KILLED, run_command
from support.target.fixtures import config_of, target
from support.target.targets import HISTORY, LIVE, Target, delete, write, write_versions

__all__ = ["target"]

_ALWAYS = "target.before-commit"
_STEPS = [
    name if name == _ALWAYS else pytest.param(name, marks=pytest.mark.long)
    for name in FAILPOINTS
    if name.startswith("target.")
]


@pytest.fixture(
    scope="module",
    params=["postgres", *(pytest.param(n, marks=pytest.mark.long) for n in ("mariadb", "mysql"))],
)
def config(request: pytest.FixtureRequest) -> Iterator[RelationalTarget]:
    """Yield the settings of a target, for each kind of database."""
    with config_of(request.param) as found:
        yield found


class Published:
    """A project with one target, whose publications run in processes of their own."""

    def __init__(self, folder: Path, lake: Lake, config: RelationalTarget) -> None:
        self.folder = folder
        self.target = Target(lake, config)
        (folder / "chronolake.yml").write_text(
            f"lake: {{path: {lake.config.path}, spark: {{master: 'local[2]'}}}}\n"
            "targets:\n  reporting:\n"
            f"    type: {config.type}\n    dsn: '{config.dsn}'\n    tables: ['sales.*']\n"
        )

    def publish(self, failpoint: str = "") -> int:
        words = ("publish", "--project", str(self.folder))
        code, output = run_command(*words, failpoint=failpoint)
        assert code in {0, KILLED}, output
        return code


@pytest.mark.long
@pytest.mark.parametrize("step", _STEPS)
def test_killed_publication_is_completed_by_the_next(
    target: Target, tmp_path: Path, step: str
) -> None:
    lake = target.lake
    write(lake, range(50), "first")
    write_versions(lake, 1, ["a", "b"])
    published = Published(tmp_path, lake, target.config)

    killed = published.publish(f"{step}=kill")
    assert published.publish() == 0
    for name in (LIVE, HISTORY):
        target.expect_equal(name)

    write(lake, range(45, 55), "second")
    delete(lake, [1, 2], "third")
    write_versions(lake, 1, ["a", "b", "c"])
    killed_later = published.publish(f"{step}=kill")
    assert KILLED in {killed, killed_later}
    assert published.publish() == 0
    for name in (LIVE, HISTORY):
        target.expect_equal(name)
    assert target.leftovers() == []
