"""The layout of a Data Lake v1: which files are read, and in which order."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronolake.config import load_project
from chronolake.errors import ConfigurationError, SourceError
from chronolake.landing import HourlyFolder, ObjectFolder, folder_at, objects_of
from chronolake.landing.layout import files_up_to, parse_hourly_path, rank_of


def _write(root: Path, path: str) -> None:
    file = root / "parquet/org=X/object=Account" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x")


def test_files_are_ordered_by_hour_and_name(tmp_path: Path) -> None:
    paths = [
        "day=2021-08-19/hr=23/zz.parquet",
        "day=2021-08-20/hr=09/b.parquet",
        "day=2021-08-20/hr=10/a.parquet",
        "day=2021-08-20/hr=10/aa.parquet",
        "day=2021-08-20/hr=10/b.parquet",
    ]
    others = [
        "day=2021-08-20/hr=10/_staged.parquet",
        "day=2021-08-20/hr=10/.hidden.parquet",
        "day=2021-08-20/hr=10/readme.txt",
        "batch=05e0be100/data-16f5e66e800.parquet",
    ]
    for path in [*reversed(paths), *others]:
        _write(tmp_path, path)
    folder = HourlyFolder(tmp_path, "X", "Account")

    marks = [file.mark for file in folder.files()]

    assert marks == paths
    for number, mark in enumerate(marks):
        assert [file.mark for file in folder.files(after=mark)] == marks[number + 1 :]
        assert [file.mark for file in files_up_to(folder.files(), mark)] == marks[: number + 1]
        assert folder.has(mark)
    assert folder.last() == paths[-1]
    assert not folder.has("day=2021-08-20/hr=10/c.parquet")
    assert folder.controls() == []
    assert objects_of(tmp_path, "X", HourlyFolder) == ["Account"]


@pytest.mark.parametrize(
    "folder", ["day=2021-02-30/hr=10", "day=2021-08-20/hr=24", "day=2021-08-20/hr=5", "day=x"]
)
def test_a_file_in_a_folder_of_no_hour_is_an_error(tmp_path: Path, folder: str) -> None:
    _write(tmp_path, "day=2021-08-20/hr=10/a.parquet")
    for name in ("notes.txt", "_staged.parquet", ".hidden.parquet"):
        _write(tmp_path, f"{folder}/{name}")
    lake = HourlyFolder(tmp_path, "X", "Account")
    assert len(lake.files()) == 1
    _write(tmp_path, f"{folder}/a.parquet")
    with pytest.raises(SourceError, match="in a folder of no hour") as caught:
        lake.files()
    assert str(caught.value.file).endswith(f"{folder}/a.parquet")


def test_an_hour_is_read_when_it_has_ended(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    # Two hours, so that the end of an hour between the two reads makes no difference.
    for hours in (-2, 2):
        _write(tmp_path, f"{now + timedelta(hours=hours):day=%Y-%m-%d/hr=%H}/a.parquet")

    (file,) = HourlyFolder(tmp_path, "X", "Account").files()

    assert file.mark.startswith(f"{now - timedelta(hours=2):day=%Y-%m-%d/hr=%H}")


def test_folders_of_both_versions_are_recognized(tmp_path: Path) -> None:
    for kind in (ObjectFolder, HourlyFolder):
        folder = kind(tmp_path, "X", "Account")
        assert folder_at(folder.path) == folder
        assert type(folder_at(folder.path)) is kind
    assert folder_at(tmp_path / "other") is None
    assert ObjectFolder(tmp_path, "X", "Account").limits == ()
    assert len(HourlyFolder(tmp_path, "X", "Account").limits) == 3


@pytest.mark.parametrize("mark", ["batch=05e0be100/data-16f5e66e800.parquet", "x", ""])
def test_watermarks_of_another_layout_are_refused(tmp_path: Path, mark: str) -> None:
    folder = HourlyFolder(tmp_path, "X", "Account")
    with pytest.raises(SourceError, match="not a valid watermark of a Data Lake v1"):
        folder.files(after=mark)
    with pytest.raises(SourceError, match="not a valid watermark of a Data Lake v1"):
        folder.has(mark)


HOURS = st.datetimes(datetime(2000, 1, 1), datetime(2030, 1, 1)).map(
    lambda time: time.replace(minute=0, second=0, microsecond=0)
)
NAMES = st.text(st.characters(categories=("L", "N")), min_size=1, max_size=8)


@given(st.lists(st.tuples(HOURS, NAMES), max_size=8))
def test_watermarks_have_the_order_of_the_hours_and_names(
    files: list[tuple[datetime, str]],
) -> None:
    marks = {f"{hour:day=%Y-%m-%d/hr=%H}/{name}.parquet": (hour, name) for hour, name in files}

    ranked = sorted(marks, key=rank_of)

    # Names of one hour compare with their endings.
    assert ranked == sorted(marks, key=lambda mark: (marks[mark][0], mark))
    for mark, (hour, _) in marks.items():
        assert parse_hourly_path(mark) == hour.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("source", "version"),
    [("data_lake", 2), ("data_lake, version: 2", 2), ("data_lake, version: 1", 1)],
)
def test_the_version_is_configured(source: str, version: int) -> None:
    assert _load(source).version == version  # type: ignore[attr-defined]


def test_the_earlier_type_has_one_version() -> None:
    with pytest.raises(ConfigurationError, match="version"):
        _load("data_lake_v2, version: 1")


def _load(source: str) -> object:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "chronolake.yml"
        file.write_text(f"pipelines: {{crm: {{source: {{type: {source}, path: a, org: X}}}}}}\n")
        return load_project(file).pipelines["crm"].source
