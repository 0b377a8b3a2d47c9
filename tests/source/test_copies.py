"""Dated copies: the differences between the copies of a table become its history."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count, permutations, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog

from chronolake import failpoints
from chronolake.config import load_project
from chronolake.core import verify
from chronolake.errors import ConfigurationError
from chronolake.lake import Lake
from chronolake.pipeline.store import StreamRun
from chronolake.pipeline.sync import sync
from chronolake.types import ACTIVE, END, START, TableName
from support import copies_model
from support.commands import run_words
from support.datalakes import iceberg, project

Row = Mapping[str, Any]
#: The content of a copy: names by id.
Content = Mapping[int, str]


class Dumps:
    """The pipeline `shop` of the copies `dumps/orders_DATE.parquet`."""

    def __init__(self, folder: Path, *, more: str = "", **settings: Any) -> None:
        self.folder = folder
        self.dumps = folder / "dumps"
        self.dumps.mkdir()
        given = {"path": "dumps/orders_{date:%Y-%m-%d}.parquet", "key": ["id"], **settings}
        text = ", ".join(f"{name}: {value!r}" for name, value in given.items())
        self.project = project(folder, f"  shop:\n    source: {{type: copies, {text}}}\n{more}")
        self.lake = Lake.open(self.project.lake.path, config=self.project.lake)

    def put(self, day: int, rows: Sequence[Row], *, name: str = "orders") -> Path:
        path = self.dumps / f"{name}_2026-01-{day:02}.parquet"
        schema = None if rows else pa.schema([("id", pa.int64()), ("name", pa.string())])
        pq.write_table(pa.Table.from_pylist(list(rows), schema), path)
        return path

    def sync(self, **settings: Any) -> StreamRun:
        (stream,) = sync(self.lake, self.project, "shop", **settings).streams
        return stream

    def history(self, *columns: str, name: str = "orders") -> list[tuple[Any, ...]]:
        rows = iceberg(self.project, "shop", name).scan().to_arrow().to_pylist()
        assert verify(self.lake, TableName("shop", name)).holds
        found = [
            (
                *(row[column] for column in columns),
                _day(row[START]),
                None if row[ACTIVE] else _day(row[END]),
            )
            for row in rows
        ]
        return sorted(found, key=lambda row: (row[0], row[-2]))


def _expected(copies: Mapping[int, Content]) -> list[tuple[Any, ...]]:
    """Return the history of copies by day, as `Dumps.history` returns it."""
    return [
        (key, value, start, end if end is None or is_deleted else end - 0.001)
        for key, value, start, end, is_deleted in copies_model.history(copies)
    ]


def _rows(content: Content) -> list[Row]:
    return [{"id": key, "name": name} for key, name in content.items()]


def _day(at: datetime) -> float:
    """Return a time in days of January 2026, with 0.001 less for the millisecond before one."""
    days = (at - datetime(2025, 12, 31, tzinfo=UTC)).total_seconds() / 86_400
    return round(days) if abs(days - round(days)) < 1e-9 else round(days) - 0.001


@pytest.mark.long
def test_differences_get_the_time_of_the_copy(tmp_path: Path) -> None:
    shop = Dumps(tmp_path)
    shop.put(1, [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    shop.put(2, [{"id": 1, "name": "a"}, {"id": 2, "name": "c"}, {"id": 3, "name": "d"}])
    assert shop.sync().error is None
    expected = [(1, "a", 1, None), (2, "b", 1, 1.999), (2, "c", 2, None), (3, "d", 2, None)]
    assert shop.history("id", "name") == expected
    shop.put(4, [{"id": 1, "name": "a"}])
    assert shop.sync().error is None
    after = [(1, "a", 1, None), (2, "b", 1, 1.999), (2, "c", 2, 4), (3, "d", 2, 4)]
    assert shop.history("id", "name") == after
    # Late: in it, record 2 is gone already, and record 3 is another.
    shop.put(3, [{"id": 1, "name": "a"}, {"id": 3, "name": "e"}])
    assert shop.sync().error is None
    late = [(1, "a", 1, None), (2, "b", 1, 1.999), (2, "c", 2, 3)]
    late += [(3, "d", 2, 2.999), (3, "e", 3, 4)]
    assert shop.history("id", "name") == late


class Streams(Dumps):
    """The same for several streams, each with copies of its own."""

    def __init__(self, folder: Path, *, more: str = "") -> None:
        path = "dumps/{stream}_{date:%Y-%m-%d}.parquet"
        super().__init__(folder, more=more, path=path, min_rows=0)

    def sync_all(self) -> None:
        result = sync(self.lake, self.project, "shop")
        assert [stream.error for stream in result.streams] == [None] * len(result.streams)

    def check(self, name: str, copies: Mapping[int, Content]) -> None:
        assert self.history("id", "name", name=name) == _expected(copies)


@pytest.mark.long
@pytest.mark.parametrize("days", [3, 4])
def test_copies_may_arrive_in_any_order(tmp_path: Path, days: int) -> None:
    """All orders of arrival, of records with all sequences of being absent, `a` and `b`."""
    lives = list(product([None, "a", "b"], repeat=days))
    copies: dict[int, Content] = {
        day: {key: name for key, life in enumerate(lives) if (name := life[day - 1])}
        for day in range(1, days + 1)
    }
    shop = Streams(tmp_path)
    orders = {f"s{number}": order for number, order in enumerate(permutations(copies))}
    for step in range(days):
        for name, order in orders.items():
            shop.put(order[step], _rows(copies[order[step]]), name=name)
        shop.sync_all()
        for name, order in orders.items():
            shop.check(name, {day: copies[day] for day in order[: step + 1]})
    # Nothing has changed, and a full refresh compares everything again.
    shop.sync_all()
    sync(shop.lake, shop.project, "shop", full_refresh=True)
    for name in orders:
        shop.check(name, copies)


@pytest.mark.long
def test_copies_with_tracked_columns_may_arrive_in_any_order(tmp_path: Path) -> None:
    """Late copies are compared with the values at their times, and not with later ones."""
    lives = list(product([None, "a1", "a2", "b1"], repeat=3))
    copies: dict[int, Content] = {
        day: {key: both for key, life in enumerate(lives) if (both := life[day - 1])}
        for day in range(1, 4)
    }
    shop = Streams(tmp_path, more="    track_history: {only: [name]}\n")
    orders = {f"s{number}": order for number, order in enumerate(permutations(copies))}

    def check(name: str, days: Sequence[int]) -> None:
        found = shop.history("id", "name", "note", name=name)
        assert found == _expected_merged({day: copies[day] for day in days})

    for step in range(3):
        for name, order in orders.items():
            content = copies[order[step]].items()
            rows = [{"id": key, "name": both[0], "note": both[1]} for key, both in content]
            shop.put(order[step], rows, name=name)
        shop.sync_all()
        for name, order in orders.items():
            check(name, order[: step + 1])
    # A corrected copy.
    copies[2] = {key: both for key, both in copies[1].items() if key % 3} | {99: "b1"}
    for name in orders:
        content = copies[2].items()
        rows = [{"id": key, "name": both[0], "note": both[1]} for key, both in content]
        shop.put(2, rows, name=name)
    shop.sync_all()
    for name in orders:
        check(name, [1, 2, 3])


def _expected_merged(copies: Mapping[int, Content]) -> list[tuple[Any, ...]]:
    """Return the history of copies, with neighbors of one name (the first letter) merged."""
    found: list[copies_model.Version] = []
    for version in copies_model.history(copies):
        before = found[-1] if found else None
        is_same = (
            before is not None
            and before.key == version.key
            and before.value[0] == version.value[0]
            and before.end == version.start
            and not before.is_deleted
        )
        if before is not None and is_same:
            found[-1] = version._replace(start=before.start)
        else:
            found.append(version)
    return [
        (key, value[0], value[1], start, end if end is None or is_deleted else end - 0.001)
        for key, value, start, end, is_deleted in found
    ]


_folders = count()
#: Copies that are put before a run: their day, and the seed of their content.
_ARRIVALS = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5)), min_size=1, max_size=4)
_STORY = st.lists(_ARRIVALS, min_size=2, max_size=4)


def _content(seed: int) -> Content:
    chance = random.Random(seed)
    found = {key: chance.choice(["", "a", "b"]) for key in range(30)}
    return {key: name for key, name in found.items() if name} if seed else {}


def _check_stories(folder: Path, stories: Sequence[Sequence[Sequence[tuple[int, int]]]]) -> None:
    """Check that copies that arrive late, twice, or corrected give the history of the last ones."""
    place = folder / f"shop{next(_folders)}"
    place.mkdir()
    shop = Streams(place)
    there: dict[str, dict[int, Content]] = {}
    for step in range(max(map(len, stories))):
        for number, story in enumerate(stories):
            for day, seed in story[step] if step < len(story) else ():
                there.setdefault(f"s{number}", {})[day] = _content(seed)
                shop.put(day, _rows(_content(seed)), name=f"s{number}")
        shop.sync_all()
        for name, copies in there.items():
            if any(copies.values()):
                shop.check(name, copies)


_SETTINGS = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


@pytest.mark.long
@settings(max_examples=2, **_SETTINGS)
@given(st.lists(_STORY, min_size=3, max_size=3))
def test_late_repeated_and_corrected_copies(tmp_path: Path, stories: list[Any]) -> None:
    _check_stories(tmp_path, stories)


@pytest.mark.long
@settings(max_examples=20, **_SETTINGS)
@given(st.lists(_STORY, min_size=4, max_size=4))
def test_many_late_repeated_and_corrected_copies(tmp_path: Path, stories: list[Any]) -> None:
    _check_stories(tmp_path, stories)


def _some(*ids: int, name: str = "a") -> list[Row]:
    return [{"id": number, "name": name} for number in ids]


def _orders(days: Mapping[int, Sequence[int]]) -> list[tuple[Any, ...]]:
    """Return the history of copies with these ids by day, all with the same name."""
    return _expected({day: dict.fromkeys(ids, "a") for day, ids in days.items()})


@pytest.mark.long
def test_a_truncated_copy_is_rejected_and_later_ones_continue(tmp_path: Path) -> None:
    shop = Dumps(tmp_path, max_deleted="20%", min_rows=2)
    shop.put(1, _some(*range(10)))
    assert shop.sync().error is None
    truncated = shop.put(2, _some(*range(7)))
    shop.put(3, _some(*range(9)))
    shop.put(4, _some(0))
    failed = shop.sync()
    reported = failed.error or ""
    assert "it lacks 3 of the 10 rows of the copy before it, and max_deleted is 20%" in reported
    assert str(truncated) in reported
    assert "1 more copy was rejected" in reported
    assert "min_rows or max_deleted" in (failed.hint or "")
    landed = {1: range(10), 3: range(9)}
    assert shop.history("id", "name") == _orders(landed)
    # Every run reports it, without reading it again.
    lake = Lake.prepare(shop.project.lake)
    (again,) = sync(lake, shop.project, "shop").streams
    assert again.error == failed.error
    assert not lake.has_started
    # The complete copy is a late one.
    shop.put(2, _some(*range(10)))
    (shop.dumps / "orders_2026-01-04.parquet").unlink()
    assert shop.sync().error is None
    assert shop.history("id", "name") == _orders({**landed, 2: range(10)})


@pytest.mark.long
def test_a_rejected_copy_is_accepted_when_the_limit_allows_it(tmp_path: Path) -> None:
    shop = Dumps(tmp_path)
    shop.put(1, _some(1, 2))
    shop.put(2, [])
    assert "it has 0 rows, and min_rows is 1" in (shop.sync().error or "")
    assert shop.history("id", "name") == _orders({1: [1, 2]})
    file = shop.project.file
    file.write_text(file.read_text().replace("key:", "min_rows: 0, key:"))
    shop.project = load_project(file)
    assert shop.sync().error is None
    assert shop.history("id", "name") == _orders({1: [1, 2], 2: []})


def test_invalid_copies_are_rejected_with_their_file(tmp_path: Path) -> None:
    shop = Dumps(tmp_path)
    shop.put(1, _some(1, 2))
    twice = shop.put(2, _some(1, 2, 2, 3))
    keyless = shop.put(3, [{"id": None, "name": "a"}, *_some(1)])
    other = shop.put(4, [{"nr": 1}])
    cut = shop.put(5, _some(*range(1000)))
    cut.write_bytes(cut.read_bytes()[:-100])
    shop.put(6, _some(1, 3))
    for path, reason in {
        twice: "1 of its rows have the same id as another one, such as 2",
        keyless: "1 of its rows have no id",
        other: "no column id",
        cut: "damaged, or not complete",
    }.items():
        reported = shop.sync().error or ""
        assert reason in reported
        assert str(path) in reported
        path.unlink()
    assert shop.sync().error is None
    assert shop.history("id", "name") == _orders({1: [1, 2], 6: [1, 3]})


@pytest.mark.long
def test_columns_and_types_may_change_between_copies(tmp_path: Path) -> None:
    shop = Dumps(tmp_path)
    day = shop.dumps / "orders_2026-01-01.parquet"
    small = {name: pa.array([1, 2], pa.int32()) for name in ("id", "size")}
    pq.write_table(pa.table(small), day)
    assert shop.sync().error is None
    shop.put(3, [{"id": 1, "size": 1.0, "more": "x"}, {"id": 2**40, "size": 0.5, "more": None}])
    assert shop.sync().error is None
    shop.put(4, [{"id": 1, "more": "x"}])
    shop.put(2, [{"id": 1, "size": 1.0}, {"id": 2, "size": 7.0}])
    assert shop.sync().error is None
    assert shop.history("id", "size", "more") == [
        (1, 1.0, None, 1, 2.999),
        (1, 1.0, "x", 3, 3.999),
        (1, None, "x", 4, None),
        (2, 2.0, None, 1, 1.999),
        (2, 7.0, None, 2, 3),
        (2**40, 0.5, None, 3, 4),
    ]


def _cell(value: object) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return "" if value is None else f"{value}"


def _text(rows: Sequence[Row], ending: str) -> bytes:
    if ending == "csv":
        cells = [[_cell(value) for value in row.values()] for row in rows]
        return "\n".join(",".join(line) for line in [list(rows[0]), *cells]).encode()
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.mark.sampled
@pytest.mark.parametrize("ending", ["csv", "csv.gz", "csv.zst", "jsonl", "json.gz", "ndjson.zst"])
def test_formats(tmp_path: Path, ending: str) -> None:
    shop = Dumps(
        tmp_path,
        path=f"dumps/{{date:%Y/%m/%d}}/orders.{ending}",
        types={"id": "LONG", "price": "DECIMAL(10,2)"},
    )
    first = [
        {"id": 1, "name": "a,\n\u00fc", "price": 1.5},
        {"id": 2, "name": "", "price": None},
    ]
    for day, rows in {
        1: first,
        2: [{**first[0], "price": 2.25}, {**first[1], "name": None}],
    }.items():
        folder = shop.dumps / "2026" / "01" / f"{day:02}"
        folder.mkdir(parents=True)
        content = _text(rows, ending.partition(".")[0])
        match ending.rpartition(".")[2]:
            case "gz":
                content = gzip.compress(content)
            case "zst":
                content = zstandard.compress(content)
        (folder / f"orders.{ending}").write_bytes(content)
    assert shop.sync().error is None
    assert shop.history("id", "price", "name") == [
        (1, Decimal("1.50"), "a,\n\u00fc", 1, 1.999),
        (1, Decimal("2.25"), "a,\n\u00fc", 2, None),
        (2, None, "", 1, 1.999),
        (2, None, None, 2, None),
    ]


def test_values_of_another_type_and_damaged_text_files_are_rejected(tmp_path: Path) -> None:
    shop = Dumps(tmp_path, path="dumps/orders_{date}.csv.gz", types={"id": "LONG"})
    good, bad = b"id,name\n1,a\n2,a\n", b"id,name\n1,a\nsecret,a\n"
    contents = {
        1: gzip.compress(good),
        2: gzip.compress(bad),
        3: gzip.compress(good)[:-8],
        4: gzip.compress(b"id,name\n1,a\n3,a\n"),
    }
    paths = {day: shop.dumps / f"orders_2026-01-{day:02}.csv.gz" for day in contents}
    for day, content in contents.items():
        paths[day].write_bytes(content)
    reported = shop.sync().error or ""
    assert "A value of the column id is not of the type LONG" in reported
    assert str(paths[2]) in reported
    assert "secret" not in reported
    paths[2].unlink()
    reported = shop.sync().error or ""
    assert "damaged" in reported
    assert str(paths[3]) in reported
    paths[3].unlink()
    assert shop.sync().error is None
    assert shop.history("id", "name") == _orders({1: [1, 2], 4: [1, 3]})


@pytest.mark.sampled
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_copy_that_was_cut_off_is_rejected(tmp_path: Path, ending: str) -> None:
    """Rows after the cut are not deleted, and later copies do not wait."""
    shop = Dumps(tmp_path, path="dumps/orders_{date}." + ending)
    whole, cut = (
        (b"id,name\n1,a\n2,a\n3,a\n", b'id,name\n1,a\n2,"a\n3,a\n')
        if ending == "csv"
        else (_text(_some(1, 2, 3), "jsonl"), _text(_some(1, 2), "jsonl") + b'{"id": 3, "na')
    )
    for day, content in ((1, whole), (2, cut), (3, whole)):
        (shop.dumps / f"orders_2026-01-{day:02}.{ending}").write_bytes(content)
    reported = shop.sync().error or ""
    assert f"orders_2026-01-02.{ending}" in reported
    assert "cannot be read" in reported
    assert [row[1:] for row in shop.history("id", "name")] == [("a", 1, None)] * 3


def test_a_value_that_does_not_fit_a_configured_type_is_named(tmp_path: Path) -> None:
    more = "    columns: {type: {size: LONG}}\n"
    shop = Dumps(tmp_path, more=more, path="dumps/orders_{date}.csv")
    (shop.dumps / "orders_2026-01-01.csv").write_text("id,size\n1,5\n")
    bad = shop.dumps / "orders_2026-01-02.csv"
    bad.write_text("id,size\n1,secret\n")
    reported = shop.sync().error or ""
    assert "A value of the column size, of the type STRING, does not fit LONG" in reported
    assert "columns.type sets." in reported
    assert str(bad) in reported
    assert "secret" not in reported


@pytest.mark.long
def test_a_copy_may_be_a_folder_and_a_date_may_have_a_zone(tmp_path: Path) -> None:
    shop = Dumps(
        tmp_path,
        path="dumps/{date:%Y%m%dT%H%M}/{stream}",
        format="parquet",
        time_zone="Europe/Berlin",
        key=["id"],
        tables={"orders": {}, "items": {"key": ["nr", "id"]}},
    )
    for hour, ids in {"20260102T0100": [1, 2], "20260103T0100": [2]}.items():
        for name in ("orders", "items", "others"):
            folder = shop.dumps / hour / name
            folder.mkdir(parents=True)
            for number in ids:
                row = {"id": number, "nr": 1, "name": "a"}
                pq.write_table(pa.Table.from_pylist([row]), folder / f"part-{number}.parquet")
            (folder / "_SUCCESS").touch()
    result = sync(shop.lake, shop.project, "shop")
    assert [(stream.stream, stream.error) for stream in result.streams] == [
        ("orders", None),
        ("items", None),
    ]
    # One o'clock in Berlin is midnight of UTC.
    days = {2: [1, 2], 3: [2]}
    assert shop.history("id", "name") == _orders(days)
    assert shop.history("id", "name", name="items") == _orders(days)


def test_unchanged_copies_need_no_jvm(tmp_path: Path) -> None:
    shop = Dumps(tmp_path)
    path = shop.put(1, _some(1))
    shop.sync()

    def starts() -> bool:
        lake = Lake.prepare(shop.project.lake)
        (stream,) = sync(lake, shop.project, "shop").streams
        assert stream.error is None
        return lake.has_started

    assert not starts()
    # The same content is written again: a corrected copy without differences.
    path.write_bytes(path.read_bytes())
    assert starts()
    assert not starts()
    assert shop.history("id", "name") == _orders({1: [1]})


@pytest.mark.long
def test_a_copy_that_was_removed_stays_in_the_history(tmp_path: Path) -> None:
    shop = Dumps(tmp_path)
    for day, ids in {1: [1], 3: [1, 2]}.items():
        shop.put(day, _some(*ids))
    shop.sync()
    for path in shop.dumps.iterdir():
        path.unlink()
    shop.put(2, _some(2))
    assert shop.sync().error is None
    assert shop.history("id", "name") == _orders({1: [1], 2: [2], 3: [1, 2]})


@pytest.mark.long
def test_a_rebuilt_table_has_the_same_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Dumps(tmp_path)
    days = {1: [1, 2], 4: [2, 3], 2: [1, 3], 3: [2]}
    for day, ids in days.items():
        shop.put(day, _some(*ids))
        assert shop.sync().error is None
    assert shop.history("id", "name") == _orders(days)
    code, reported, _ = run_words(capsys, "rebuild", "shop.orders", "--project", str(tmp_path))
    assert code == 0, reported
    assert shop.history("id", "name") == _orders(days)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"path": "dumps/orders.parquet"}, "the path has no date"),
        ({"path": "dumps/{date}_{when}.parquet"}, "{when} is not a placeholder"),
        ({"path": "dumps/{date:%A}.parquet"}, "a date cannot contain %A"),
    ],
)
def test_invalid_paths_are_refused(tmp_path: Path, settings: Any, reason: str) -> None:
    shop = Dumps(tmp_path, **settings)
    with pytest.raises(ConfigurationError) as refused:
        shop.sync()
    assert reason in str(refused.value)


def test_only_history_keeps_what_copies_show(tmp_path: Path) -> None:
    shop = Dumps(tmp_path)
    file = shop.project.file
    file.write_text(file.read_text() + "    mode: live\n")
    shop.project = load_project(file)
    with pytest.raises(ConfigurationError) as refused:
        shop.sync()
    assert "can only be in history mode" in str(refused.value)


def test_snapshots_of_an_iceberg_table_are_copies(tmp_path: Path) -> None:
    catalog = SqlCatalog("gold", uri=f"sqlite:///{tmp_path / 'c.db'}", warehouse=str(tmp_path))
    catalog.create_namespace("gold")
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    table = catalog.create_table("gold.orders", schema)
    folder = table.location().removeprefix("file://")
    shop = Dumps(tmp_path, path=folder, format="iceberg", stream="orders")
    copies: list[Content] = []

    def overwrite(content: Content) -> None:
        # A commit with two snapshots: one deletes everything, and one appends.
        write = table.overwrite if copies else table.append
        write(pa.Table.from_pylist(_rows(content), schema))
        copies.append(content)

    overwrite({1: "a", 2: "a"})
    overwrite({1: "a", 2: "b", 3: "a"})
    shop.sync()
    overwrite({1: "c", 3: "a"})
    assert shop.sync().error is None
    rows = iceberg(shop.project, "shop", "orders").scan().to_arrow().to_pylist()
    found = sorted((row["id"], row[START], row["name"], row[ACTIVE]) for row in rows)
    expected = copies_model.history(dict(enumerate(copies)))
    assert [(key, name, is_active) for key, _, name, is_active in found] == [
        (version.key, version.value, version.end is None) for version in expected
    ]
    times = {entry.timestamp_ms for entry in table.history()}
    assert {round(row[START].timestamp() * 1000) for row in rows} <= times
    assert verify(shop.lake, TableName("shop", "orders")).holds


@pytest.mark.long
@pytest.mark.parametrize("steps", [1, 2])
def test_a_copy_that_was_removed_before_it_had_landed_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    shop = Dumps(tmp_path)
    days = {1: [1, 2, 3], 4: [1, 3, 5]}
    for day, ids in days.items():
        shop.put(day, _some(*ids))
    shop.sync()
    late = shop.put(2, _some(1, 2, 4, name="b"))
    with monkeypatch.context() as patched:
        patched.setenv("CHRONOLAKE_FAILPOINT", f"land.step-done=raise:{steps}")
        patched.setattr(failpoints, "_reached", Counter())
        assert "failpoint" in (shop.sync().error or "")
    late.unlink()
    assert shop.sync().error is None
    assert shop.history("id", "name") == _orders(days)
    lake = Lake.prepare(shop.project.lake)
    assert sync(lake, shop.project, "shop").streams[0].error is None
    assert not lake.has_started


@pytest.mark.long
def test_copies_are_compared_again_after_the_offset_was_lost(tmp_path: Path) -> None:
    shop = Dumps(tmp_path)
    days = {1: [1, 2], 2: [2, 3], 3: [1, 3]}
    for day, ids in days.items():
        shop.put(day, _some(*ids))
    shop.sync()
    # The table is what the copies are compared with, also those that do not exist any more.
    (shop.dumps / "orders_2026-01-01.parquet").unlink()
    shop.put(2, _some(1, 2))
    with closing(sqlite3.connect(shop.project.lake.catalog_file)) as connection, connection:
        connection.execute("DELETE FROM chronolake_checkpoints")
    assert shop.sync().error is None
    assert shop.history("id", "name") == _orders({**days, 2: [1, 2]})
