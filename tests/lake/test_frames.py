"""Tables in Arrow, pandas and Polars, and the names that a notebook starts with."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import chronolake
from chronolake import core
from chronolake.errors import ConfigurationError, MissingRequirementError, ValueRefusedError
from chronolake.lake import Lake
from chronolake.types import Column, ColumnType, Kind, TableName
from support.datalakes import DataLake, project

T_MAX = datetime(9999, 12, 31, 23, 59, 59, 999000, UTC)
T_MIN = datetime(1, 1, 1, tzinfo=UTC)
COLUMNS = (
    Column("id", ColumnType(Kind.LONG), primary_key=True),
    Column("price", ColumnType(Kind.DECIMAL, 8, 2)),
    Column("count", ColumnType(Kind.LONG)),
    Column("is new", ColumnType(Kind.BOOLEAN)),
    Column("day", ColumnType(Kind.NAIVE_DATE)),
    Column("bytes", ColumnType(Kind.BINARY)),
)
HISTORY = (
    Column("_fivetran_start", ColumnType(Kind.UTC_DATETIME), primary_key=True),
    Column("_fivetran_end", ColumnType(Kind.UTC_DATETIME)),
    Column("_fivetran_active", ColumnType(Kind.BOOLEAN)),
)
#: Greater than the integers that a double holds exactly.
LARGE = 2**53 + 1
_CELLS = f"1.10, {LARGE}, true, date'2024-02-29', X'00FF'"
_NULLS = "NULL, NULL, NULL, NULL, NULL"


@pytest.fixture(scope="module")
def versions(lake: Lake) -> chronolake.LakeTable:
    """Return a table of record 1, since 2024, and record 2, deleted before there was history."""
    name = TableName("frames", "versions")
    core.create(lake, name, (*COLUMNS, *HISTORY))
    lake.sql(
        f"INSERT INTO {name.sql} VALUES "
        f"(1, {_CELLS}, timestamp'2024-01-01', timestamp'9999-12-31 23:59:59.999', true), "
        f"(2, {_NULLS}, timestamp'0001-01-01', timestamp'0001-01-01', false)"
    )
    return lake.table(name)


def expected(row: dict[str, Any]) -> None:
    assert row["price"] == Decimal("1.10")
    assert row["count"] == LARGE
    assert row["is new"] is True
    assert row["day"] == date(2024, 2, 29)
    assert row["bytes"] == b"\x00\xff"
    assert row["_fivetran_end"] == T_MAX


def test_arrow_pandas_and_polars_hold_every_time_and_number(
    versions: chronolake.LakeTable,
) -> None:
    arrow = versions.to_arrow().sort_by("id").to_pylist()
    pandas = versions.to_pandas().sort_values("id")
    polars = versions.to_polars().sort("id").to_dicts()

    assert str(pandas["_fivetran_end"].dtype) == "datetime64[us, UTC]"
    assert str(pandas["count"].dtype) == "Int64"
    for rows in (arrow, polars, pandas.to_dict("records")):
        assert len(rows) == 2
        expected(rows[0])
        assert rows[1]["_fivetran_start"] == rows[1]["_fivetran_end"] == T_MIN
        assert rows[1]["price"] is None
        assert rows[1]["count"] is None or rows[1]["count"] is pd.NA


def test_the_history_and_a_past_state_convert_like_the_table(
    versions: chronolake.LakeTable,
) -> None:
    for frame in (versions.history(id=1), versions.as_of("2024-06-01"), versions.df.to_pandas()):
        found = frame if isinstance(frame, pd.DataFrame) else frame.to_pandas()
        expected(found[found["id"] == 1].to_dict("records")[0])
    changes = versions.diff("2023-01-01", "2024-06-01").to_polars().to_dicts()
    assert [(row["key"]["id"], row["change"]) for row in changes] == [(1, "inserted")]


# PySpark uses deprecated functions of pandas.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("record", [1, 2])
def test_the_error_for_times_beyond_pandas_nanoseconds_names_the_alternative(
    versions: chronolake.LakeTable, record: int
) -> None:
    """The error for times that pandas cannot hold in nanoseconds names the alternative.

    Record 1 ends in the year 9999 and record 2 began in the year 1.
    """
    with pytest.raises(ValueRefusedError, match="nanoseconds") as caught:
        versions.history(id=record).toPandas()
    assert "to_pandas()" in (caught.value.hint or "")


def test_without_polars_the_error_names_what_to_install(
    versions: chronolake.LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingRequirementError) as caught:
        versions.to_polars()
    assert "pip install polars" in (caught.value.hint or "")


def _current_versions() -> str:
    """Return SQL values: record 1 with two versions, 2 deleted, 3 with one version."""
    first, second = "timestamp'2024-01-01'", "timestamp'2024-01-02'"
    end = "timestamp'9999-12-31 23:59:59.999'"
    old = f"(1, {first}, {first}, false), (2, {first}, {second}, false)"
    return f"{old}, (1, {second}, {end}, true), (3, {first}, {end}, true)"


@pytest.mark.parametrize("mode", ["live", "soft-delete", "history"])
def test_the_current_records_are_those_that_exist(lake: Lake, mode: str) -> None:
    name = TableName("frames", f"current {mode}")
    key = Column("id", ColumnType(Kind.LONG), primary_key=True)
    deleted = Column("_fivetran_deleted", ColumnType(Kind.BOOLEAN))
    columns, rows = {
        "live": ((key,), "(1), (3)"),
        "soft-delete": ((key, deleted), "(1, false), (2, true), (3, NULL)"),
        "history": (
            (key, *HISTORY),
            _current_versions(),
        ),
    }[mode]
    core.create(lake, name, columns)
    lake.sql(f"INSERT INTO {name.sql} VALUES {rows}")

    found = lake.table(name).current()

    assert found.columns == ["id"]
    assert sorted(found.to_pandas()["id"]) == [1, 3]


def test_sql_takes_parameters_and_gives_frames(lake: Lake, versions: chronolake.LakeTable) -> None:
    found = lake.sql("SELECT id FROM frames.versions WHERE price > :least", least=1)
    assert found.to_arrow().to_pydict() == {"id": [1]}


def test_names_are_readable(lake: Lake, versions: chronolake.LakeTable) -> None:
    assert repr(versions) == "LakeTable('frames.versions')"
    assert repr(lake) == f"<Lake {lake.config.path}, catalog: SQLite>"
    assert chronolake.__version__ == "0.1.0"


def test_a_pipeline_runs_from_python(tmp_path: Path) -> None:
    source = DataLake(tmp_path / "source")
    row = {"Id": "1", "source__modified": 1_767_225_600_000_000, "grax__idseq": "1", "Name": "one"}
    source.write("Account", [row])
    project(tmp_path, "  crm:\n    source: {type: data_lake_v2, path: source, org: X}\n")

    result = chronolake.sync("crm", project=tmp_path)

    assert result.status == "succeeded"
    assert str(result) == "crm: succeeded\n  crm.Account  succeeded, 1 rows written"
    with pytest.raises(ConfigurationError, match="has no pipeline 'cmr'"):
        chronolake.sync("cmr", project=tmp_path)
