"""A Data Lake v1 that someone else writes is synced into tables.

Source: `seeds/data-lake-v2.txt`, "Key differences from v1". The rule of order is Chronolake's own
(docs/pipelines.md).
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chronolake.inspect import history
from chronolake.lake import Lake
from chronolake.pipeline.store import Status
from chronolake.pipeline.sync import sync
from chronolake.types import ACTIVE, END, START, TMAX_MICROS, TableName
from support.commands import run_words
from support.datalakes import iceberg, project
from support.seeds import with_drawn_seeds

_BEGIN: Final = datetime(2021, 8, 20, 10, tzinfo=UTC)
_SECOND: Final = 1_000_000
_TIMES: Final = ("grax__added", "grax__deleted", "grax__purged")


def _micros(time: datetime) -> int:
    return round(time.timestamp()) * _SECOND


def _at(seconds: int) -> datetime:
    return _BEGIN + timedelta(seconds=seconds)


def _salesforce(seconds: int) -> str:
    """Return a time as Salesforce writes it."""
    return _at(seconds).strftime("%Y-%m-%dT%H:%M:%S.000+0000")


class Hourly:
    """A project with a pipeline of a Data Lake v1."""

    def __init__(self, folder: Path, more: str = "") -> None:
        self.folder = folder
        source = f"{{type: data_lake, version: 1, path: source, org: X{more}}}"
        self.project = project(folder, f"  crm:\n    source: {source}\n")
        self.lake = Lake.open(self.project.lake.path, config=self.project.lake)

    def write(
        self, hour: int, name: str, rows: Sequence[dict[str, Any]], **types: pa.DataType
    ) -> Path:
        """Write a file into the folder of an hour, counted from the begin."""
        columns = dict.fromkeys(column for row in rows for column in row)
        time = pa.timestamp("ms", tz="UTC")
        known = dict.fromkeys(_TIMES, time) | types
        arrays = {
            column: pa.array([row.get(column) for row in rows], known.get(column, pa.string()))
            for column in columns
        }
        at = _BEGIN + timedelta(hours=hour)
        path = self.folder / at.strftime(
            f"source/parquet/org=X/object=Account/day=%Y-%m-%d/hr=%H/{name}"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(arrays), path)
        return path

    def done(self) -> None:
        result = sync(self.lake, self.project, "crm")
        assert result.status is Status.SUCCEEDED, [stream.error for stream in result.streams]

    def rows(self) -> list[dict[str, Any]]:
        found = iceberg(self.project, "crm", "Account").scan().to_arrow()
        for column in (START, END):
            place = found.column_names.index(column)
            found = found.set_column(place, column, found[column].cast(pa.int64()))
        rows: list[dict[str, Any]] = found.to_pylist()
        return sorted(rows, key=lambda row: (row["Id"], row[START]))

    def versions(self, *fields: str) -> list[tuple[Any, ...]]:
        return [
            (row["Id"], row[START], row[END], row[ACTIVE], *(row[name] for name in fields))
            for row in self.rows()
        ]


@pytest.fixture
def hourly(tmp_path: Path) -> Hourly:
    return Hourly(tmp_path)


def test_versions_of_a_data_lake_v1(hourly: Hourly) -> None:
    """Times are Salesforce's; later writes of a version win; deletions and purges end records."""
    hourly.write(
        0,
        "b.parquet",
        [
            {"Id": "1", "SystemModstamp": _salesforce(5), "grax__added": _at(60), "Name": "Alicia"},
            {"Id": "2", "SystemModstamp": _salesforce(1), "grax__added": _at(60), "Name": "Bob"},
            {"Id": "3", "SystemModstamp": _salesforce(1), "grax__added": _at(60), "Name": "Eve"},
        ],
    )
    hourly.write(
        25,
        "a.parquet",
        [
            # Out of order: an earlier version, and an earlier write of a version.
            {"Id": "1", "SystemModstamp": _salesforce(2), "grax__added": _at(90), "Name": "Alice"},
            {"Id": "1", "SystemModstamp": _salesforce(5), "grax__added": _at(30), "Name": "late"},
            {"Id": "2", "SystemModstamp": _salesforce(1), "grax__added": _at(90), "Name": "Bob",
             "grax__deleted": _at(8), "grax__deletesource": "grax"},
            {"Id": "3", "SystemModstamp": _salesforce(1), "grax__added": _at(90),
             "grax__purged": _at(9)},
        ],
    )  # fmt: skip

    hourly.done()

    at = [_micros(_at(second)) for second in range(10)]
    assert hourly.versions("Name") == [
        ("1", at[2], at[5] - 1_000, False, "Alice"),
        ("1", at[5], TMAX_MICROS, True, "Alicia"),
        ("2", at[1], at[8], False, "Bob"),
        ("3", at[1], at[9], False, "Eve"),
    ]
    (version,) = history(hourly.lake.config, TableName("crm", "Account"), {"Id": "2"}).versions
    assert version.outcome == "archived"
    columns = set(hourly.rows()[0])
    assert columns >= {"SystemModstamp", "grax__deletesource"}
    assert not columns & {*_TIMES, "source__modified", "grax__idseq"}


@pytest.mark.long
def test_without_times_of_the_source_those_of_the_writer_are_used(hourly: Hourly) -> None:
    """Without SystemModstamp: `grax__added`, and without this the hour."""
    hourly.write(0, "a.parquet", [{"Id": "1", "grax__added": _at(5), "Name": "added"}])
    hourly.write(2, "a.parquet", [{"Id": "1", "Name": "hour"}])
    # Times may be texts, and texts may be anything.
    hourly.write(
        1,
        "a.parquet",
        [
            {"Id": "2", "SystemModstamp": "10:30", "grax__added": _salesforce(7), "Name": "text"},
            {"Id": "3", "SystemModstamp": "2021-08-20T10:00:09Z", "grax__added": "", "Name": "z"},
            {"Id": "4", "SystemModstamp": "2021-13-20", "grax__added": "yesterday", "Name": "no"},
        ],
        grax__added=pa.string(),
    )

    hourly.done()

    found = [(row["Id"], row[START], row["Name"]) for row in hourly.rows()]
    hour = _micros(_BEGIN + timedelta(hours=1))
    assert found == [
        ("1", _micros(_at(5)), "added"),
        ("1", hour + 3_600 * _SECOND, "hour"),
        ("2", _micros(_at(7)), "text"),
        ("3", _micros(_at(9)), "z"),
        ("4", hour, "no"),
    ]


@pytest.mark.long
def test_each_column_is_a_field_of_its_own(hourly: Hourly) -> None:
    """Only v2 has typed fields: `X_i` beside `X` is another field."""
    row = {"Id": "1", "SystemModstamp": _salesforce(1), "Size": "5 m", "Size_i": 5}
    hourly.write(0, "a.parquet", [row], Size_i=pa.int64())

    hourly.done()

    (found,) = hourly.rows()
    assert (found["Size"], found["Size_i"]) == ("5 m", 5)


def _random_files(chance: random.Random) -> list[tuple[int, str, list[dict[str, Any]]]]:
    """Return files of an hour and name with rows, of which many are of the same version."""
    files = []
    for number in range(12):
        hour, name = number // 2, f"{chance.randrange(10**6):x}-{'x' * chance.randrange(3)}.parquet"
        rows = []
        for _ in range(12):
            row: dict[str, Any] = {
                "Id": chance.choice("abcd"),
                "SystemModstamp": _salesforce(60 * chance.randrange(4)),
                "Name": f"{number}-{chance.randrange(10**9)}",
            }
            if chance.random() < 0.7:
                row["grax__added"] = _at(3_600 * chance.randrange(3))
            rows.append(row)
        files.append((hour, name, rows))
    return files


def _expected(files: list[tuple[int, str, list[dict[str, Any]]]]) -> dict[tuple[str, str], str]:
    """Return the name of each version: the model of the documented order."""
    ranked = []
    for hour, name, rows in files:
        begin = _BEGIN + timedelta(hours=hour)
        file = sha256(name.encode()).hexdigest()[:16]
        for number, row in enumerate(rows):
            rank = (row.get("grax__added", begin), begin, file, number)
            ranked.append((rank, row))
    ranked.sort(key=lambda item: item[0])
    return {(row["Id"], row["SystemModstamp"]): row["Name"] for _, row in ranked}


@pytest.mark.long
@pytest.mark.parametrize("seed", with_drawn_seeds(1, test="data lake v1", number=3))
def test_the_order_of_reading_does_not_matter(tmp_path: Path, seed: int) -> None:
    """All files at once make the same table as files hour by hour, and as the model."""
    chance = random.Random(seed)
    files = _random_files(chance)
    at_once, by_hour = Hourly(tmp_path / "once"), Hourly(tmp_path / "hours")
    for hour, name, rows in chance.sample(files, len(files)):
        at_once.write(hour, name, rows)
    at_once.done()
    for hour in range(6):
        for number, name, rows in files:
            if number == hour:
                by_hour.write(hour, name, rows)
        if hour % 2:
            by_hour.done()

    found = {(row["Id"], row["SystemModstamp"]): row["Name"] for row in at_once.rows()}

    assert found == _expected(files)
    assert at_once.versions("Name", "_chronolake_version") == by_hour.versions(
        "Name", "_chronolake_version"
    )


def test_what_the_format_cannot_guarantee_is_reported(
    hourly: Hourly, capsys: pytest.CaptureFixture[str]
) -> None:
    """`check` and `status` list it; a file in an hour that was read waits for a re-sync."""

    def run(*words: str) -> tuple[int, str]:
        code, reported, _ = run_words(capsys, *words, "--project", str(hourly.folder))
        return code, reported

    hourly.write(0, "b.parquet", [{"Id": "1", "SystemModstamp": _salesforce(1), "Name": "a"}])
    hourly.write(1, "b.parquet", [{"Id": "2", "SystemModstamp": _salesforce(1), "Name": "b"}])
    code, reported = run("check", "--json")
    assert code == 0
    warnings = [found["message"] for found in json.loads(reported) if found["level"] == "warning"]
    assert len(warnings) == 3
    assert any("grax__added" in message for message in warnings)
    _, reported = run("discover", "crm", "--json")
    assert [(row["stream"], row["files"], row["key"]) for row in json.loads(reported)] == [
        ("Account", 2, ["Id"])
    ]
    hourly.done()
    hourly.write(0, "a.parquet", [{"Id": "3", "SystemModstamp": _salesforce(1), "Name": "late"}])
    # An hour that has not ended is not read.
    ahead = (datetime.now(UTC) - _BEGIN) // timedelta(hours=1) + 1
    hourly.write(ahead, "a.parquet", [{"Id": "4", "Name": "early"}])

    hourly.done()
    _, reported = run("status", "--json")
    (status,) = json.loads(reported)

    assert status["limits"] == warnings
    assert (status["files_waiting"], status["files_late"]) == (0, 1)
    assert [row["Id"] for row in hourly.rows()] == ["1", "2"]
    _, printed = run("status")
    assert "1 file appeared in hours that were already read" in " ".join(printed.split())
    hourly.lake.close()
    code, _ = run("resync", "crm", "--stream", "Account")
    assert code == 0
    assert [row["Id"] for row in hourly.rows()] == ["1", "2", "3"]
    _, reported = run("status", "--json")
    assert json.loads(reported)[0]["files_late"] == 0


@pytest.mark.long
def test_a_file_in_a_folder_of_no_hour_stops_its_stream(hourly: Hourly) -> None:
    path = hourly.write(0, "a.parquet", [{"Id": "1", "SystemModstamp": _salesforce(1)}])
    misplaced = path.parents[2] / "day=2021-08-20/hr=5"
    misplaced.mkdir(parents=True, exist_ok=True)
    # Files of other programs do not matter.
    (misplaced / "notes.txt").write_text("x")
    (misplaced / "_staged.parquet").write_text("x")
    hourly.done()
    shutil.copy(path, misplaced / "b.parquet")

    (stream,) = sync(hourly.lake, hourly.project, "crm").streams

    assert "in a folder of no hour" in str(stream.error)
    assert [row["Id"] for row in hourly.rows()] == ["1"]


@pytest.mark.long
def test_a_bad_file_is_named_by_its_hour_and_may_be_left_out(tmp_path: Path) -> None:
    """Files of several hours may have one name."""
    hourly = Hourly(tmp_path, ", on_bad_file: quarantine")
    hourly.write(0, "data.parquet", [{"Id": "1", "SystemModstamp": _salesforce(1)}])
    hourly.write(1, "data.parquet", [{"Id": None, "SystemModstamp": _salesforce(1)}])
    hourly.write(2, "data.parquet", [{"Name": "without Id"}])
    hourly.write(3, "data.parquet", [{"Id": "2", "SystemModstamp": _salesforce(1)}])

    hourly.done()

    assert [row["Id"] for row in hourly.rows()] == ["1", "2"]
    properties = iceberg(hourly.project, "crm", "Account").properties
    left_out = json.loads(properties["chronolake.quarantined"])
    assert [file["mark"] for file in left_out] == [
        f"day=2021-08-20/hr={hour}/data.parquet" for hour in (11, 12)
    ]
