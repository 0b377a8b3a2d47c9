"""A lake that was moved or restored is adopted at its new location, with everything it had."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import postgresql
import psycopg
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from chronolake import core, database
from chronolake.config import LakeConfig
from chronolake.core import migration, views
from chronolake.errors import CommitConflictError, LakeError, LakeLocationError
from chronolake.failpoints import FAILPOINTS
from chronolake.identity import recorded_tables
from chronolake.inspect.catalog import look_up
from chronolake.inspect.tables import summary
from chronolake.lake import Lake
from chronolake.location import local_path
from chronolake.pipeline.store import LEASES
from chronolake.relocation import adopt
from chronolake.types import Mode, TableName
from support.commands import run_command
from support.datalakes import iceberg, iceberg_in
from support.lake.customers import COLUMNS, write
from support.lake.pipelines import Pipeline
from support.lakes import lake_config
from support.processes import COMMAND, run_until_failpoint

LIVE: Final = TableName("sales", "customers")
OLD_FORMAT: Final = TableName("sales", "orders")
HISTORY: Final = TableName("sales.eu", "kept")
NAMES: Final = (LIVE, OLD_FORMAT, HISTORY)
DAY: Final = 86_400_000_000


def settings_of(folder: Path, **settings: object) -> LakeConfig:
    tables = {str(OLD_FORMAT): {"format_version": 2}}
    return lake_config(folder, **{"tables": tables, **settings})


def opened(folder: Path, **settings: object) -> Lake:
    return Lake.open(folder, config=settings_of(folder, **settings))


def fill(lake: Lake) -> None:
    """Make three tables with deleted rows: in both format versions, and of several partitions."""
    for name in (LIVE, OLD_FORMAT):
        core.create(lake, name, COLUMNS)
        write(lake, range(30), "a", name)
        write(lake, range(20, 40), "b", name)
        write(lake, range(1), "c", name)
    core.create(lake, HISTORY, COLUMNS)
    write(lake, range(20), "a", HISTORY)
    migration.switch_mode(lake, HISTORY, Mode.HISTORY)
    views.create_current_view(lake, HISTORY)


@pytest.fixture(scope="module")
def template(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake that is only copied; `lake` has started Spark with the settings of tests."""
    folder = tmp_path_factory.mktemp("template") / "lake"
    fill(opened(folder))
    return folder


@dataclass
class Moved:
    """A lake that was moved to another folder.

    Attributes:
        before: its rows at its first location.
    """

    folder: Path
    first: Path
    before: dict[TableName, list[dict[str, Any]]]

    @property
    def config(self) -> LakeConfig:
        return settings_of(self.folder)


def rows_of(config: LakeConfig, name: TableName) -> list[dict[str, Any]]:
    return rows_in(iceberg_in(config, name.schema, name.table))


def rows_in(table: Table, snapshot: int | None = None) -> list[dict[str, Any]]:
    found = table.scan(snapshot_id=snapshot).to_arrow().to_pylist()
    return sorted(found, key=lambda row: row["id"])


@pytest.fixture
def moved(template: Path, tmp_path: Path) -> Moved:
    first, folder = template.with_name("gone"), tmp_path / "new place"
    shutil.copytree(template, folder)
    before = {name: rows_of(settings_of(template), name) for name in NAMES}
    # The metadata names a folder that does not exist.
    _point_to(folder, template, first)
    return Moved(folder, first, before)


def _point_to(folder: Path, before: Path, after: Path) -> None:
    """Adopt a copy at its place, and move the copy to another one."""
    home = after
    shutil.move(folder, home)
    renamed = before.with_name("hidden")
    before.rename(renamed)
    try:
        adopt(settings_of(home))
    finally:
        renamed.rename(before)
    shutil.move(home, folder)


def contents_of(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("catalog.db-")
    }


def locations_in(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [place for item in value.values() for place in locations_in(item)]
    if isinstance(value, list):
        return [place for item in value for place in locations_in(item)]
    return [value] if isinstance(value, str) and value.startswith(("/", "file:")) else []


def all_locations(table: Table) -> list[str]:
    """Return everything that a table refers to, as PyIceberg reads it."""
    with table.io.new_input(table.metadata_location).open() as stream:
        found = locations_in(json.loads(stream.read()))
    for snapshot in table.snapshots():
        for manifest in snapshot.manifests(table.io):
            found.append(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
            found += [entry.data_file.file_path for entry in entries]
    return found


@pytest.mark.long
def test_a_moved_lake_is_adopted(moved: Moved, capsys: pytest.CaptureFixture[str]) -> None:
    config = moved.config
    with pytest.raises(LakeLocationError):
        write(opened(moved.folder), range(1), "d", LIVE)
    kept = contents_of(moved.folder)

    code, out, _ = run_command(moved.folder, capsys, "adopt", "--dry-run")
    assert code == 0, out
    assert "Would adopt 4 tables" in out
    assert contents_of(moved.folder) == kept

    code, out, err = run_command(moved.folder, capsys, "adopt", "--json")
    assert code == 0, err
    *tables, last = map(json.loads, out.splitlines())
    assert {table["table"] for table in tables} >= {str(LIVE), str(OLD_FORMAT), str(HISTORY)}
    assert last == {
        "adopted": 4,
        "moved": {str(moved.first): str(moved.folder)},
        "done": True,
    }

    for name in NAMES:
        table = iceberg_in(config, name.schema, name.table)
        assert rows_in(table) == moved.before[name]
        places = all_locations(table)
        assert len(places) > 5
        assert {place for place in places if str(moved.folder) not in place} == set()
    # Data files stay as they are.
    after = contents_of(moved.folder)
    assert {file: after.get(file) for file in kept if file != "catalog.db"} == {
        file: size for file, size in kept.items() if file != "catalog.db"
    }
    assert run_command(moved.folder, capsys, "adopt")[:2] == (
        0,
        "The lake is at its recorded location: nothing to do\n",
    )


def test_an_adopted_lake_is_a_complete_lake(moved: Moved) -> None:
    adopt(moved.config)
    lake = opened(moved.folder)
    for name in (LIVE, OLD_FORMAT):
        assert summary(look_up(lake.config, name)).rows == 40
        stored = lake.spark.sql(f"SELECT id, name FROM chronolake.{name.sql} ORDER BY id").collect()
        assert [row["name"] for row in stored] == ["c"] + ["a"] * 19 + ["b"] * 20
        # Each of its snapshots is readable, with deleted rows of its own.
        counts = [
            len(rows_in(iceberg_in(lake.config, name.schema, name.table), snapshot.snapshot_id))
            for snapshot in iceberg_in(lake.config, name.schema, name.table).snapshots()
        ]
        assert 30 in counts
        assert counts[-1] == 40
        write(lake, range(39, 50), "d", name)
        for path in moved.folder.rglob("*"):
            os.utime(path, (time.time() - 10**6,) * 2)
        result = core.maintain(lake, name, compact_deletes=True)
        # The metadata of the earlier location is no longer needed.
        assert result.orphans > 5
        assert core.verify(lake, name).holds
        now = {row["id"]: row["name"] for row in rows_of(lake.config, name)}
        assert len(now) == 50
        assert (now[0], now[25], now[39]) == ("c", "b", "d")
    assert lake.spark.sql("SELECT * FROM chronolake.`sales.eu`.kept_current").count() == 20
    migration.switch_mode(lake, HISTORY, Mode.LIVE)
    assert [row["id"] for row in rows_of(lake.config, HISTORY)] == list(range(20))


_POINTS: Final = [name for name in FAILPOINTS if name.startswith("adopt.")]
_KILLS: Final = [f"{point}=kill" for point in _POINTS] + ["adopt.table-written=kill:3"]


@pytest.mark.sampled
@pytest.mark.parametrize("failpoint", _KILLS)
def test_a_killed_adoption_is_repeated(moved: Moved, failpoint: str) -> None:
    config = moved.config
    before = recorded_tables(config)
    words = ("adopt", "--lake", str(moved.folder))
    assert run_until_failpoint(COMMAND, *words, failpoint=failpoint)
    if "after-commit" not in failpoint:
        assert recorded_tables(config) == before

    adopt(config)
    for name in NAMES:
        assert rows_of(config, name) == moved.before[name]
        # An unfinished attempt does not look like a newer state.
        look_up(config, name)
    assert recorded_tables(config)[0] != before[0]


def test_a_lake_is_not_adopted_while_its_original_exists(
    moved: Moved, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(moved.folder, moved.first)
    adopt_of_the_first = settings_of(moved.first)
    assert not adopt(adopt_of_the_first).tables
    kept = contents_of(moved.folder)
    try:
        code, _, err = run_command(moved.folder, capsys, "adopt")
        assert code == 1
        assert f"The original of this lake is still in {moved.first}" in " ".join(err.split())
        assert contents_of(moved.folder) == kept
    finally:
        moved.first.rename(moved.folder.with_name("renamed"))
    assert adopt(moved.config).tables


@pytest.mark.long
def test_an_original_that_was_written_since_the_copy_is_in_use(
    template: Path, tmp_path: Path, lake: Lake
) -> None:
    """The catalog of a moved warehouse is one and the same, or a copy."""
    first, second = tmp_path / "first", tmp_path / "second"
    with postgresql.server() as uri:
        of_first = {"catalog.uri": uri, "warehouse": str(first)}
        made = opened(tmp_path / "a", **of_first)
        core.create(made, LIVE, COLUMNS)
        write(made, range(30), "a", LIVE)
        write(made, range(20, 40), "b", LIVE)
        shutil.copytree(first, second)
        moved = settings_of(tmp_path / "b", **{**of_first, "warehouse": str(second)})
        places = dict(recorded_tables(moved)[1])

        # Another process goes on writing between the read of the catalog and the commit.
        with pytest.raises(CommitConflictError, match="in use"):
            adopt(moved, on_table=lambda *_: write(made, range(1), "late", LIVE))
        with psycopg.connect(uri) as connection:
            connection.execute("UPDATE iceberg_tables SET metadata_location = %s", (places[LIVE],))
        with pytest.raises(LakeLocationError, match="was written after the copy"):
            adopt(moved)

        shutil.rmtree(first)
        assert adopt(moved, is_dry=True).tables
        assert len(adopt(moved).tables) == 1
        catalog = SqlCatalog("chronolake", uri=uri.replace("postgresql:", "postgresql+psycopg:"))
        table = catalog.load_table(("sales", "customers"))
        assert [row["id"] for row in rows_in(table)] == list(range(40))
        catalog.engine.dispose()
        there = opened(tmp_path / "b", **{**of_first, "warehouse": str(second)})
        write(there, range(40, 41), "c", LIVE)
        assert there.table(LIVE).to_pandas()["id"].max() == 40


def _last_file(folder: Path, pattern: str) -> Path:
    return max(folder.rglob(pattern), key=lambda path: path.stat().st_mtime_ns)


def _remove(path: Path) -> None:
    path.unlink()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [_remove, _cut])
@pytest.mark.parametrize("pattern", ["*.parquet", "*.puffin"])
def test_an_incomplete_copy_is_refused(
    moved: Moved, damage: Callable[[Path], None], pattern: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(_last_file(moved.folder, pattern))
    before = recorded_tables(moved.config)
    for words in (("adopt", "--dry-run"), ("adopt",)):
        code, _, err = run_command(moved.folder, capsys, *words)
        assert code == 1
        assert "missing at the new location, or cut off" in " ".join(err.split())
    assert recorded_tables(moved.config) == before


@pytest.mark.parametrize("pattern", ["*-m0*.avro", "snap-*.avro", "*.metadata.json"])
def test_damaged_metadata_is_named(moved: Moved, pattern: str) -> None:
    for path in moved.folder.rglob(pattern):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(LakeError) as failure:
        adopt(moved.config)
    assert failure.value.file is not None
    assert failure.value.table is not None


def test_a_catalog_older_than_its_tables_is_refused(moved: Moved) -> None:
    """`catalog.db` was copied before the tables, or without its write-ahead log."""
    _, tables = recorded_tables(moved.config)
    place = local_path(tables[LIVE].replace(str(moved.first), str(moved.folder)))
    assert place is not None
    for number in (8, 9):
        shutil.copy(place, place.with_name(f"0{number}000-{place.name.partition('-')[2]}"))
    with pytest.raises(LakeLocationError, match="copied at different times"):
        adopt(moved.config)


def test_a_lake_without_a_record_is_adopted_from_its_tables(moved: Moved) -> None:
    """Lakes of an earlier version have no recorded location."""
    with closing(sqlite3.connect(moved.folder / "catalog.db")) as connection:
        connection.execute("DROP TABLE chronolake_lake")
        connection.commit()
    assert len(adopt(moved.config).tables) == 4
    assert rows_of(moved.config, LIVE) == moved.before[LIVE]
    recorded, _ = recorded_tables(moved.config)
    assert recorded is not None
    assert recorded.folder == str(moved.folder)


def test_an_earlier_location_can_be_named(moved: Moved, capsys: pytest.CaptureFixture[str]) -> None:
    """A warehouse was moved more than once, and the record is that of another location."""
    with closing(sqlite3.connect(moved.folder / "catalog.db")) as connection:
        connection.execute("UPDATE chronolake_lake SET folder = '/x', warehouse = '/x'")
        connection.commit()
    code, _, err = run_command(moved.folder, capsys, "adopt")
    assert code == 1
    assert "--from" in err
    code, _, err = run_command(moved.folder, capsys, "adopt", "--from", str(moved.first))
    assert code == 0, err
    assert rows_of(moved.config, HISTORY) == moved.before[HISTORY]


def test_a_warehouse_leaves_the_folder_of_the_lake(moved: Moved, tmp_path: Path) -> None:
    adopt(moved.config)
    config = settings_of(moved.folder, warehouse=str(tmp_path / "warehouse"))
    # New tables go there, and those that were left behind stay in the lake's folder.
    assert not adopt(config).tables
    (tmp_path / "warehouse").mkdir()
    (moved.folder / "tables").rename(tmp_path / "warehouse" / "tables")
    assert adopt(config, earlier=[str(moved.folder)]).moved == {
        str(moved.folder): str(tmp_path / "warehouse")
    }
    for name in NAMES:
        assert rows_of(config, name) == moved.before[name]


def test_a_lake_with_a_running_pipeline_is_not_adopted(
    moved: Moved, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = database.write_engine(moved.config, moved.config.store_database)
    with engine.begin() as connection:
        LEASES.create(connection, checkfirst=True)
        expires = time.time() + 60
        values = {"pipeline": "crm", "token": 1, "holder": "elsewhere:1:", "expires": expires}
        connection.execute(LEASES.insert().values(values))
    code, _, err = run_command(moved.folder, capsys, "adopt", "--json")
    assert code == 1
    assert "The pipeline crm is run by elsewhere:1" in json.loads(err)["message"]
    with engine.begin() as connection:
        connection.execute(LEASES.update().values(expires=0))
    assert run_command(moved.folder, capsys, "adopt")[0] == 0


def test_a_lake_returns_to_where_it_was(moved: Moved, tmp_path: Path) -> None:
    """Names of files that were adopted before are not used again for other content."""
    places = [moved.folder, tmp_path / "third"]
    for number in range(4):
        here, there = places[number % 2], places[(number + 1) % 2]
        adopt(settings_of(here))
        assert all(rows_of(settings_of(here), name) == moved.before[name] for name in NAMES)
        shutil.move(here, there)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["live", "history"])
def test_a_pipeline_goes_on_in_an_adopted_lake(tmp_path: Path, mode: str) -> None:
    first = tmp_path / "first"
    pipeline = Pipeline(first, f"    mode: {mode}\n")

    def row(key: int, at: int, name: str, **fields: Any) -> dict[str, Any]:
        reported = {"Id": f"{key:02}", "source__modified": at, "grax__idseq": "1"}
        return {**reported, "Name": name, **fields}

    pipeline.source.write("Account", [row(key, 0, "a") for key in range(9)])
    pipeline.done()
    pipeline.source.write("Account", [row(1, DAY, "b"), row(2, DAY, "", grax__deleted=DAY)])
    pipeline.done()
    second = tmp_path / "second"
    first.rename(second)
    project = Pipeline.__new__(Pipeline)
    project.folder, project.source = second, pipeline.source
    project.source.root = second / "source"
    project.configure(f"    mode: {mode}\n")
    adopt(project.project.lake)
    project.lake = Lake.open(project.project.lake.path, config=project.project.lake)
    project.source.write("Account", [row(1, 2 * DAY, "c"), row(2, DAY // 2, "late")])
    result = project.sync()
    assert result.streams[0].files == 1
    now = {
        found["Id"]: found["Name"]
        for found in project.rows()
        if found.get("_fivetran_active", True)
    }
    assert now["01"] == "c"
    assert "02" not in now
    assert not any(
        f"{first}/" in place for place in all_locations(iceberg(project.project, "crm", "Account"))
    )
