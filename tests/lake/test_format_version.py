"""Tables in Iceberg's format version 2 mark deleted rows in files that more readers understand."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from pyiceberg.table import Table

from chronolake import core, inspect
from chronolake.config import LakeConfig
from chronolake.core import migration
from chronolake.errors import ConfigurationError
from chronolake.inspect.catalog import look_up
from chronolake.lake import Lake
from chronolake.pipeline.lease import hold_lease
from chronolake.pipeline.rebuild import differences, rebuild
from chronolake.pipeline.store import Store
from chronolake.pipeline.streams import streams_of
from chronolake.types import ACTIVE, Column, ColumnType, Kind, Mode, TableName
from support.commands import run_command
from support.datalakes import iceberg, iceberg_in
from support.lake.customers import COLUMNS, NAME, opened, write
from support.lake.pipelines import Pipeline
from support.lakes import lake_config

DAY: Final = 86_400_000_000


@pytest.fixture(scope="module", autouse=True)
def _spark(lake: Lake) -> None:
    """Start Spark with the settings of tests."""


def filled(folder: Path, **settings: object) -> Lake:
    """Return a lake whose table has two data files, and a deleted row in the first."""
    lake = opened(folder, **settings)
    core.create(lake, NAME, COLUMNS)
    write(lake, range(100), "a")
    write(lake, range(99, 150), "b")
    return lake


def stored(config: LakeConfig) -> Table:
    return iceberg_in(config, NAME.schema, NAME.table)


def names_in(table: Table) -> dict[int, str]:
    found = table.scan().to_arrow()
    return dict(zip(found["id"].to_pylist(), found["name"].to_pylist(), strict=True))


def deletes_of(table: Table) -> list[str]:
    """Return the formats of the table's delete files."""
    found = table.inspect.delete_files()
    return sorted(found["file_format"].to_pylist())


EXPECTED: Final = {**dict.fromkeys(range(99), "a"), **dict.fromkeys(range(99, 150), "b")}


def test_tables_of_version_2_have_position_delete_files(tmp_path: Path) -> None:
    lake = filled(tmp_path, format_version=2)
    table = stored(lake.config)
    assert table.format_version == 2
    assert deletes_of(table) == ["PARQUET"]
    assert names_in(table) == EXPECTED
    (summary,) = inspect.tables(lake.config)
    assert summary.rows == 150

    write(lake, range(10), "c")
    assert names_in(stored(lake.config)) == {**EXPECTED, **dict.fromkeys(range(10), "c")}
    assert core.verify(lake, NAME).holds


def test_the_setting_of_a_table_overrides_that_of_the_lake(tmp_path: Path) -> None:
    other = TableName("sales", "b.c")
    tables = {str(other): {"format_version": "3"}}
    lake = opened(tmp_path, format_version="2", tables=tables)
    for name in (NAME, other):
        core.create(lake, name, COLUMNS)
    assert lake.catalog.load(NAME).format_version == 2
    assert lake.catalog.load(other).format_version == 3
    assert look_up(lake.config, other).iceberg.format_version == 3


@pytest.mark.long
@pytest.mark.parametrize("version", [2, pytest.param(3, marks=pytest.mark.long)])
def test_compact_deletes_leaves_none(tmp_path: Path, version: int) -> None:
    lake = filled(tmp_path, format_version=version)
    core.maintain(lake, NAME)
    # One row of a hundred is not worth a rewrite: the usual maintenance merges small files only.
    write(lake, range(1), "c")
    assert deletes_of(stored(lake.config))

    result = core.maintain(lake, NAME, compact_deletes=True, only_if_needed=True)
    assert result.rewritten
    table = stored(lake.config)
    assert deletes_of(table) == []
    assert names_in(table) == {**EXPECTED, 0: "c"}
    assert core.maintain(lake, NAME, compact_deletes=True, only_if_needed=True).rewritten == 0


@pytest.mark.long
def test_deletes_of_removed_files_do_not_count(tmp_path: Path) -> None:
    """Position delete files may outlive their data files, unlike deletion vectors."""
    lake = opened(tmp_path, format_version=2)
    core.create(lake, NAME, COLUMNS)
    write(lake, range(1000), "a")
    for number in range(3):
        write(lake, range(number, number + 20), f"b{number}")
    small = "map('min-input-files', '2', 'max-file-size-bytes', '4000', 'min-file-size-bytes', "
    lake.spark.sql(
        f"CALL chronolake.system.rewrite_data_files(table => '{NAME}', "
        f"options => {small}'3000', 'target-file-size-bytes', '3500'))"
    )
    (summary,) = inspect.tables(lake.config)
    assert summary.rows == stored(lake.config).scan().count() == 1000
    core.maintain(lake, NAME)
    (summary,) = inspect.tables(lake.config)
    assert summary.rows == 1000


@pytest.mark.long
def test_maintain_upgrades_to_the_configured_version(tmp_path: Path) -> None:
    filled(tmp_path, format_version=2)
    unset = opened(tmp_path)
    assert core.maintain(unset, NAME).format_version == 2
    write(unset, range(1), "c")
    assert deletes_of(stored(unset.config)) == ["PARQUET"]

    lake = opened(tmp_path, format_version=3)
    assert core.maintain(lake, NAME, only_if_needed=True).format_version == 2
    assert core.maintain(lake, NAME).format_version == 3
    table = stored(lake.config)
    assert table.format_version == 3
    assert names_in(table) == {**EXPECTED, 0: "c"}

    write(lake, range(2), "d")
    table = stored(lake.config)
    assert deletes_of(table) == ["PUFFIN"]
    assert names_in(table) == {**EXPECTED, 0: "d", 1: "d"}


@pytest.mark.long
def test_a_table_is_not_downgraded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path)
    lake = opened(tmp_path, format_version=2)
    write(lake, range(1), "c")
    assert core.maintain(lake, NAME).format_version == 3
    assert names_in(stored(lake.config)) == {**EXPECTED, 0: "c"}
    (tmp_path / "chronolake.yml").write_text("lake: {format_version: 2}\n")
    code, out, _ = run_command(tmp_path, capsys, "maintain", "--if-needed")
    assert code == 0
    assert "stays in format version 3, although 2 is configured" in " ".join(out.split())

    # A table that is made again gets the configured version.
    migration.switch_mode(lake, NAME, Mode.SOFT_DELETE)
    assert stored(lake.config).format_version == 2
    assert names_in(stored(lake.config)) == {**EXPECTED, 0: "c"}


@pytest.mark.long
def test_changes_of_columns_and_modes_keep_version_2(tmp_path: Path) -> None:
    filled(tmp_path, format_version=2)
    # Without the setting, as by a machine with another chronolake.yml.
    lake = opened(tmp_path)
    changed = tuple(
        Column("name", ColumnType(Kind.BINARY)) if column.name == "name" else column
        for column in COLUMNS
    )
    migration.switch_mode(lake, NAME, Mode.HISTORY)
    assert stored(lake.config).format_version == 2
    migration.switch_mode(lake, NAME, Mode.LIVE)
    assert stored(lake.config).format_version == 2
    core.alter(lake, NAME, changed, drop_columns=True)
    table = stored(lake.config)
    assert table.format_version == 2
    assert names_in(table) == {key: name.encode() for key, name in EXPECTED.items()}
    assert deletes_of(table) == []


def _row(key: int, at: int, name: str, **fields: Any) -> dict[str, Any]:
    reported = {"Id": f"{key:02}", "source__modified": at, "grax__idseq": "1"}
    return {**reported, "Name": name, **fields}


@pytest.mark.long
@pytest.mark.parametrize("mode", [pytest.param("live", marks=pytest.mark.long), "history"])
def test_rebuild_makes_a_pipeline_table_in_the_configured_version(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(tmp_path, f"    mode: {mode}\n")
    pipeline.source.write("Account", [_row(key, key, "a") for key in range(9)])
    pipeline.done()
    monkeypatch.setenv("CHRONOLAKE_FORMAT_VERSION", "2")
    second = Pipeline(tmp_path, f"    mode: {mode}\n")
    second.source.files = pipeline.source.files
    second.source.write("Account", [_row(1, DAY, "b"), _row(2, DAY, "", grax__deleted=DAY)])
    second.done()
    assert iceberg(second.project, "crm", "Account").format_version == 3

    (stream,) = streams_of(second.project, "crm")
    with hold_lease(Store.open(second.project.lake), "crm") as lease:
        rebuild(second.lake, stream, lease)
        assert differences(second.lake, stream, lease).count == 0
    table = iceberg(second.project, "crm", "Account")
    assert table.format_version == 2
    second.source.write("Account", [_row(1, 2 * DAY, "c"), _row(3, 2 * DAY, "", grax__deleted=DAY)])
    second.done()
    rows = [row for row in second.rows() if row.get(ACTIVE, True)]
    assert len(rows) == 7
    assert [row["Name"] for row in rows if row["Id"] == "01"] == ["c"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"format_version": "1"}, "format_version"),
        ({"tables": {"customers": {"format_version": 2}}}, "customers"),
        ({"tables": {"sales.customers": {"version": 2}}}, "version"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        lake_config(tmp_path, **setting)
