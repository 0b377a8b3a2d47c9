"""A lake that was copied, moved or restored writes and deletes nothing outside of it."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import postgresql
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from chronolake import core, inspect
from chronolake.core import migration, views
from chronolake.core.create import properties_of
from chronolake.errors import LakeLocationError, LakeLocationWarning
from chronolake.iceberg import COLUMNS_PROPERTY
from chronolake.lake import Lake
from chronolake.location import local_path
from chronolake.pipeline.store import Store
from chronolake.types import LAKE_PROPERTY, Column, ColumnType, Kind, TableName
from support.commands import run_command
from support.datalakes import iceberg_in
from support.lake.customers import COLUMNS, NAME, opened, write
from support.lakes import lake_config

_OLD: Final = time.time() - 100 * 3600


def made(folder: Path, **settings: object) -> Lake:
    lake = opened(folder, **settings)
    core.create(lake, NAME, COLUMNS)
    for number in range(2):
        write(lake, range(number * 10, number * 10 + 20), f"b{number}")
    return lake


def keys_in(lake: Lake, name: TableName = NAME) -> list[int]:
    found = iceberg_in(lake.config, name.schema, name.table).scan().to_arrow()
    return sorted(found["id"].to_pylist())


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Return everything that is stored, except SQLite's own temporary files."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("catalog.db")
    }


def dump_of(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "catalog.db")) as connection:
        return list(connection.iterdump())


def folder_of(lake: Lake) -> Path:
    folder = local_path(lake.catalog.load(NAME).location)
    assert folder is not None
    return folder


def age(folder: Path) -> None:
    """Make all files old enough to be taken for orphans."""
    for path in folder.rglob("*"):
        os.utime(path, (_OLD, _OLD))


def forget(folder: Path) -> None:
    """Turn a lake into one of an earlier version: without a recorded identity."""
    with closing(sqlite3.connect(folder / "catalog.db")) as connection:
        connection.execute("DROP TABLE chronolake_lake")
        connection.commit()


@pytest.fixture(scope="module")
def original(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Return a lake of three batches; `lake` has started Spark with the settings of tests."""
    return made(tmp_path_factory.mktemp("original") / "lake")


@pytest.fixture
def copy(original: Lake, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    shutil.copytree(original.config.path, folder, symlinks=True)
    return folder


WRITES: Final[dict[str, Callable[[Lake], object]]] = {
    "create": lambda lake: core.create(lake, TableName("sales", "new"), COLUMNS),
    "write": lambda lake: write(lake, range(5), "b9"),
    "alter": lambda lake: core.alter(
        lake, NAME, (*COLUMNS, Column("more", ColumnType(Kind.LONG))), drop_columns=False
    ),
    "truncate": lambda lake: core.truncate(
        lake, NAME, synced_column="_fivetran_synced", before_micros=2**60, deleted_column=None
    ),
    "drop": lambda lake: migration.drop_table(lake, NAME),
    "rename": lambda lake: migration.rename_table(lake, NAME, TableName("sales", "b")),
    "copy": lambda lake: migration.copy_table(lake, NAME, TableName("sales", "b")),
    "maintain": lambda lake: core.maintain(lake, NAME),
    "view": lambda lake: views.create_current_view(lake, NAME),
    "pipeline": lambda lake: Store.open(lake.config),
}


@pytest.mark.sampled
@pytest.mark.parametrize("is_known", [True, False], ids=["recorded", "earlier version"])
def test_a_copy_is_not_written_and_its_original_stays_as_it_is(
    original: Lake, copy: Path, *, is_known: bool
) -> None:
    if not is_known:
        forget(copy)
    age(original.config.path)
    before, copied, catalog = files_of(original.config.path), files_of(copy), dump_of(copy)
    lake = opened(copy)
    for words, change in WRITES.items():
        with pytest.raises(LakeLocationError) as refused:
            change(lake)
        assert str(original.config.path) in str(refused.value), words
        assert "symbolic link" in (refused.value.hint or ""), words
    assert files_of(original.config.path) == before
    assert files_of(copy) == copied
    assert dump_of(copy) == catalog
    # The original is still written and maintained, and others can read it.
    write(original, range(100, 110), "again")
    assert core.maintain(original, NAME).orphans == 0
    assert keys_in(original)[-10:] == list(range(100, 110))


def test_maintain_of_a_copy_has_a_hint(
    original: Lake, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, reported = run_command(copy, capsys, "maintain")
    assert code == 1
    reported = " ".join(reported.split())
    assert f"belongs in {original.config.path}, but was opened in {copy}" in reported
    assert "chronolake sync" in reported


def test_a_copy_is_read_with_a_note(
    original: Lake, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found, reported = run_command(copy, capsys, "tables", "--json")
    assert (code, '"sales.customers"' in found) == (0, True)
    note = json.loads(reported)["note"]
    assert f"are stored outside {copy}, for example {NAME} in {original.config.path}" in note
    _, _, reported = run_command(copy, capsys, "history", str(NAME), "--key", "id=1")
    assert reported.startswith("Note: 1 of 1 tables are stored outside")
    _, _, reported = run_command(original.config.path, capsys, "tables")
    assert not reported
    with pytest.warns(LakeLocationWarning, match="is located outside the opened lake"):
        assert opened(copy).table(NAME).df.count() > 0


def test_a_lake_of_an_earlier_version_is_recorded_at_its_first_write(
    original: Lake, tmp_path: Path
) -> None:
    folder = original.config.path
    forget(folder)
    # Its tables have no mark either: their files are checked once.
    original.spark.sql(f"ALTER TABLE {NAME.sql} UNSET TBLPROPERTIES ('{LAKE_PROPERTY}')")
    again = opened(folder)
    write(again, range(5), "adopted")
    marked = again.catalog.load(NAME).property_of(LAKE_PROPERTY)
    assert marked is not None
    assert again.containment.expect_writable() == marked
    with closing(sqlite3.connect(folder / "catalog.db")) as connection:
        assert connection.execute(
            "SELECT id, folder, warehouse FROM chronolake_lake"
        ).fetchall() == [(marked, str(folder), str(folder))]


def test_folders_of_an_earlier_version_have_no_scheme(lake: Lake, tmp_path: Path) -> None:
    ours = opened(tmp_path / "lake")
    place = f"{ours.config.warehouse_location}/tables/{'0a' * 16}"
    properties = properties_of(COLUMNS)
    ours.catalog.create(NAME, COLUMNS, location=place, properties=properties)
    write(ours, range(5), "b")
    orphan = Path(place) / "data" / "orphan.parquet"
    orphan.touch()
    age(tmp_path / "lake")
    assert core.maintain(ours, NAME).orphans == 1
    assert not orphan.exists()
    assert keys_in(ours) == list(range(5))
    migration.drop_table(ours, NAME)
    assert not Path(place).exists()


@pytest.mark.long
def test_new_folders_do_not_depend_on_the_default_file_system(lake: Lake, tmp_path: Path) -> None:
    elsewhere = {"catalog.properties": {"hadoop.fs.defaultFS": "hdfs://127.0.0.1:9"}}
    ours = made(tmp_path / "lake", **elsewhere)
    (folder_of(ours) / "data" / "orphan.parquet").touch()
    age(tmp_path / "lake")
    assert core.maintain(ours, NAME).orphans == 1
    migration.copy_column(ours, NAME, "name", "again")
    assert keys_in(ours) == sorted({*range(30)})
    assert inspect.tables(ours.config)[0].rows == 30


def test_other_ways_to_the_same_folder_are_the_same_lake(
    original: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "link"
    link.symlink_to(original.config.path)
    write(opened(link), range(5), "link")
    unresolved = lake_config(link).model_copy(update={"path": link})
    write(Lake.open(link, config=unresolved), range(5), "unresolved link")
    monkeypatch.chdir(original.config.path.parent)
    write(opened(Path("lake")), range(5), "relative path")


@pytest.mark.long
def test_a_moved_lake_works_again_behind_a_link(lake: Lake, tmp_path: Path) -> None:
    first = tmp_path / "first"
    made(first)
    moved = first.rename(tmp_path / "moved")
    with pytest.raises(LakeLocationError, match="it was copied or moved"):
        write(opened(moved), range(5), "moved")
    first.symlink_to(moved)
    again = opened(moved)
    write(again, range(200, 205), "linked")
    core.maintain(again, NAME)
    assert keys_in(again)[-5:] == list(range(200, 205))


@pytest.mark.long
def test_the_catalog_of_another_warehouse_is_not_copied_either(lake: Lake, tmp_path: Path) -> None:
    settings = {"warehouse": str(tmp_path / "big")}
    first = made(tmp_path / "lake", **settings)
    core.maintain(first, NAME)
    shutil.copytree(tmp_path / "lake", tmp_path / "copy")
    with pytest.raises(LakeLocationError, match="lose each other's changes"):
        write(opened(tmp_path / "copy", **settings), range(5), "copied")
    # Another warehouse for new tables does not make a copy, as long as the old ones are inside.
    write(opened(tmp_path / "lake", **settings), range(5), "again")
    with pytest.raises(LakeLocationError, match="1 of 1 tables"):
        write(opened(tmp_path / "lake"), range(5), "outside")


def test_a_catalog_copied_without_its_log_is_reported(
    lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, copied = tmp_path / "lake", tmp_path / "copied"
    first = opened(folder)
    # Changes that are only in the log are lost if the log is not copied.
    with closing(sqlite3.connect(folder / "catalog.db")) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM sqlite_master").fetchall()
        core.create(first, NAME, COLUMNS)
        write(first, range(5), "logged")
        shutil.copytree(folder, copied, ignore=shutil.ignore_patterns("catalog.db-*"))
    code, found, reported = run_command(copied, capsys, "tables")
    assert (code, found) == (1, "")
    # A long path is wrapped at any character.
    reported = "".join(reported.split())
    assert f"listsnotables,but{copied / 'tables'}containsthefilesoftables" in reported
    assert "catalog.db-wal" in reported
    again = opened(copied)
    for change in (Lake.tables, WRITES["create"]):
        with pytest.raises(LakeLocationError, match="lists no tables"):
            change(again)
    # A folder in which a table was only created may be the result of a crash.
    created = tmp_path / "created"
    (created / "tables" / "a" / "metadata").mkdir(parents=True)
    (created / "tables" / "a" / "metadata" / "00000-0a-0b.metadata.json").touch()
    core.create(opened(created), NAME, COLUMNS)


def test_a_catalog_older_than_its_tables_is_reported(lake: Lake, tmp_path: Path) -> None:
    first = made(tmp_path / "lake")
    catalog = tmp_path / "lake" / "catalog.db"
    with closing(sqlite3.connect(catalog)) as source, closing(sqlite3.connect(tmp_path / "b")) as b:
        source.backup(b)
    for number in range(3):
        write(first, range(300, 305), f"later{number}")
    with closing(sqlite3.connect(tmp_path / "b")) as b, closing(sqlite3.connect(catalog)) as target:
        b.backup(target)
    age(tmp_path / "lake")
    before = files_of(tmp_path / "lake")
    for change in (WRITES["write"], WRITES["maintain"]):
        with pytest.raises(LakeLocationError, match="the catalog points to an older one"):
            change(opened(tmp_path / "lake"))
    assert files_of(tmp_path / "lake") == before


@pytest.mark.long
def test_a_shared_catalog_belongs_to_one_warehouse(lake: Lake, tmp_path: Path) -> None:
    with postgresql.server() as uri:
        settings = {"catalog.uri": uri}
        first = made(tmp_path / "lake", **settings)
        # Another machine, or a container, that mounts the folder elsewhere.
        (tmp_path / "mounted").symlink_to(tmp_path / "lake")
        write(opened(tmp_path / "mounted", **settings), range(5), "the same")
        with pytest.raises(LakeLocationError, match="or is mounted elsewhere"):
            write(opened(tmp_path / "other", **settings), range(5), "another")
        # A machine with its own folder for files outside the warehouse.
        shared = {**settings, "warehouse": str(tmp_path / "lake")}
        write(opened(tmp_path / "own", **shared), range(5), "shared")
        # The disk that is not mounted.
        (tmp_path / "lake").rename(tmp_path / "unmounted")
        (tmp_path / "lake").mkdir()
        fresh = opened(tmp_path / "lake", **settings)
        with pytest.raises(LakeLocationError, match="None of the lake's 1 tables is in"):
            core.create(fresh, TableName("sales", "new"), COLUMNS)
        (tmp_path / "lake").rmdir()
        (tmp_path / "unmounted").rename(tmp_path / "lake")
        write(first, range(400, 405), "mounted")


@pytest.mark.long
def test_only_files_that_no_table_needs_are_orphans(lake: Lake, tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    ours = made(folder)
    location = folder_of(ours)
    orphan, needed = location / "data" / "orphan.parquet", location / "data" / "needed.parquet"
    some = next(location.glob("data/**/*.parquet"))
    for path in (orphan, needed):
        shutil.copy(some, path)
    foreign = SqlCatalog("chronolake", uri=f"sqlite:///{folder}/catalog.db")
    place = str(location / "nested")
    other = foreign.create_table(
        ("sales", "other"), iceberg_in(ours.config, NAME.schema, NAME.table).schema(), place
    )
    other.add_files([str(needed)])
    (location / "nested" / "mine.parquet").touch()
    age(folder)
    assert core.maintain(ours, NAME).orphans == 1
    assert not orphan.exists()
    assert needed.exists()
    assert (location / "nested" / "mine.parquet").exists()
    assert len(keys_in(ours, TableName("sales", "other"))) > 0
    # Files in another table's folder are not expired or purged with the table that lists them.
    core.maintain(ours, TableName("sales", "other"))
    migration.drop_table(ours, TableName("sales", "other"))
    assert needed.exists()


@pytest.mark.long
def test_a_table_of_files_outside_is_neither_written_nor_maintained(
    lake: Lake, tmp_path: Path
) -> None:
    folder, outside = tmp_path / "lake", tmp_path / "outside.parquet"
    ours = made(folder)
    location = folder_of(ours)
    shutil.copy(next(location.glob("data/**/*.parquet")), outside)
    foreign = SqlCatalog("chronolake", uri=f"sqlite:///{folder}/catalog.db")
    ours_too = iceberg_in(ours.config, NAME.schema, NAME.table)
    as_ours = {COLUMNS_PROPERTY: ours_too.properties[COLUMNS_PROPERTY]}
    places = {"inside": f"{folder}/tables/x", "away": str(tmp_path / "away")}
    for name, place in places.items():
        foreign.create_table(("sales", name), ours_too.schema(), place, properties=as_ours)
    foreign.load_table(("sales", "inside")).add_files([str(outside)])
    for name in places:
        for change in (
            lambda name: write(ours, range(5), "b", TableName("sales", name)),
            lambda name: core.maintain(ours, TableName("sales", name)),
            lambda name: migration.drop_table(ours, TableName("sales", name)),
        ):
            with pytest.raises(LakeLocationError, match="outside the opened lake"):
                change(name)
    assert outside.exists()
    # The other tables are not affected.
    write(ours, range(5), "b")
    core.maintain(ours, NAME)
