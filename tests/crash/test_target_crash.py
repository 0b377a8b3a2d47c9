"""A publication is killed at every step and run again: the target equals the lake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chronolake import core
from chronolake.config import MysqlTarget, PostgresTarget, RelationalTarget
from chronolake.core import migration
from chronolake.failpoints import FAILPOINTS
from chronolake.lake import Lake
from chronolake.types import Column, ColumnType, Kind
from support.processes import KILLED, run_command
from support.target.fixtures import config_of, target
from support.target.targets import COLUMNS, HISTORY, LIVE, Target, delete, write, write_versions

__all__ = ["target"]

_ALWAYS = "target.before-commit"
#: Only MySQL alters a table in a step of its own: it cannot undo that.
_IN_STEPS = "target.step-stored"
_STEPS = [
    name if name == _ALWAYS else pytest.param(name, marks=pytest.mark.long)
    for name in FAILPOINTS
    if name.startswith("target.") and name != _IN_STEPS
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


@pytest.mark.long
@pytest.mark.parametrize("step", [_IN_STEPS, "target.altered", "target.before-commit"])
def test_killed_change_of_columns_is_completed_by_the_next(
    target: Target, tmp_path: Path, step: str
) -> None:
    lake = target.lake
    write(lake, range(20), "first")
    published = Published(tmp_path, lake, target.config)
    assert published.publish() == 0

    more = [*COLUMNS, Column("number", ColumnType(Kind.INT))]
    delete(lake, [1], "second")
    core.alter(lake, LIVE, more, drop_columns=False)
    is_reached = step != _IN_STEPS or isinstance(target.config, MysqlTarget)
    assert published.publish(f"{step}=kill") == (KILLED if is_reached else 0)
    core.alter(lake, LIVE, [column for column in more if column.name != "name"], drop_columns=True)
    assert published.publish(f"{step}=kill") == (KILLED if is_reached else 0)
    assert published.publish() == 0
    target.expect_equal(LIVE)
    assert target.leftovers() == []


@pytest.mark.long
@pytest.mark.parametrize(
    "step", ["target.written", "target.before-swap", "target.before-commit", "target.after-commit"]
)
def test_killed_reload_keeps_what_others_have_added(
    target: Target, tmp_path: Path, step: str
) -> None:
    lake = target.lake
    write(lake, range(20), "first")
    published = Published(tmp_path, lake, target.config)
    assert published.publish() == 0
    target.run(f"CREATE INDEX users_own ON {target.table(LIVE)} (id, _fivetran_synced)")

    migration.drop_table(lake, LIVE)
    write(lake, range(10, 30), "again")
    assert published.publish(f"{step}=kill") == KILLED
    assert published.publish() == 0
    target.expect_equal(LIVE)
    found = target.run(
        "SELECT count(*) FROM pg_indexes WHERE indexname = 'users_own'"
        if isinstance(target.config, PostgresTarget)
        else "SELECT count(DISTINCT index_name) FROM information_schema.statistics "
        "WHERE index_name = 'users_own'"
    )
    assert found == [(1,)]
    assert target.leftovers() == []
