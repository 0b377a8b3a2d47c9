"""A lake is opened from Python."""

from __future__ import annotations

from pathlib import Path

import pytest
from py4j.protocol import Py4JError

from chronolake.core.create import create
from chronolake.errors import ConfigurationError
from chronolake.lake import Lake
from chronolake.session import CATALOG
from chronolake.types import Column, ColumnType, Kind, TableName


@pytest.mark.usefixtures("lake")
def test_a_lake_opens_with_a_file_of_settings(tmp_path: Path) -> None:
    file = tmp_path / "settings.yml"
    file.write_text("lake: {maintenance: {small_files: 7}}")
    for config in (file, str(file)):
        with Lake.open(tmp_path / "lake", config=config) as opened:
            assert opened.config.maintenance.small_files == 7
    with pytest.raises(ConfigurationError, match="missing"):
        Lake.open(tmp_path / "lake", config=tmp_path / "missing.yml")


def test_a_damaged_data_file_is_not_read_as_other_rows(lake: Lake) -> None:
    name = TableName("opening", "numbers")
    create(lake, name, [Column("id", ColumnType(Kind.LONG), primary_key=True)])
    # Numbers that cannot be compressed: any bit that changes belongs to one of them.
    lake.spark.range(20_000).selectExpr("xxhash64(id) AS id").coalesce(1).writeTo(
        f"{CATALOG}.{name.sql}"
    ).append()
    (row,) = lake.spark.sql(f"SELECT file_path FROM {CATALOG}.{name.sql}.files").collect()
    file = Path(row["file_path"].removeprefix("file:"))
    assert not list(file.parent.glob(".*.crc"))

    whole = file.read_bytes()
    for place in (1_000, len(whole) // 2):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(Py4JError, match="CRC checksum verification failed"):
            lake.spark.sql(f"SELECT bit_xor(id) FROM {CATALOG}.{name.sql}").collect()
    file.write_bytes(whole)
    assert lake.spark.table(f"{CATALOG}.{name.sql}").count() == 20_000
