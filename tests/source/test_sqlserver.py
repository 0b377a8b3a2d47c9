"""SQL Server: the documented results of its functions become history."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import structlog

from chronolake.errors import ConfigurationError
from chronolake.lake import Lake
from chronolake.pipeline.store import StreamRun
from chronolake.pipeline.streams import source_of
from chronolake.pipeline.sync import sync
from chronolake.types import ACTIVE, END, START
from support.commands import run_words
from support.datalakes import iceberg, project
from support.source.sqlserver import Change, Instance, Server

T = 1_767_225_600_000_000
SECOND = 1_000_000
HOUR = 3_600 * SECOND
#: A copy is dated this long before it began.
MARGIN = 60 * SECOND
FOREVER = 253_402_300_799_999_000
ITEMS = {"id": "INT", "name": "STRING", "price": "DECIMAL(10,2)"}


class Office:
    """The pipeline `office` of a database."""

    def __init__(self, folder: Path, server: Server, method: str, more: str = "") -> None:
        self.server = server
        key = ", ".join(server.key)
        self.project = project(
            folder,
            "  office:\n    source: {type: sqlserver, url: 'jdbc:sqlserver://db.internal', "
            f"method: {method}, tables: {{dbo.items: {{key: [{key}]}}}}{more}}}\n",
        )
        self.lake = Lake.open(self.project.lake.path, config=self.project.lake)

    def sync(self, *, full_refresh: bool = False) -> StreamRun:
        source = dataclasses.replace(source_of(self.project, "office"), reader=self.server)
        (stream,) = sync(
            self.lake, self.project, "office", source=source, full_refresh=full_refresh
        ).streams
        return stream

    def sync_or_fail(self, *, full_refresh: bool = False) -> None:
        assert self.sync(full_refresh=full_refresh).error is None

    def versions(self, *columns: str) -> list[tuple[Any, ...]]:
        """Return columns, start, end and activity of every version, times in µs after T."""
        rows = iceberg(self.project, "office", "items").scan().to_arrow()
        found = []
        for row in rows.to_pylist():
            times = [_micros(row[START]) - T, _micros(row[END])]
            end = None if times[1] == FOREVER else times[1] - T
            found.append((*(row[name] for name in columns), times[0], end, row[ACTIVE]))
        return sorted(found, key=repr)


def _micros(value: Any) -> int:
    seconds = int(value.replace(microsecond=0).timestamp())
    return seconds * SECOND + int(value.microsecond)


def _tracking_office(folder: Path) -> Office:
    return Office(folder, Server(ITEMS, ["id"], at_micros=T), "change_tracking")


@pytest.mark.long
def test_change_tracking_reads_current_rows(tmp_path: Path) -> None:
    office = _tracking_office(tmp_path)
    server = office.server
    server.put(id=1, name="a", price=None)
    server.put(id=2, name="b", price=None)
    server.put(id=3, name="c", price=None)
    office.sync_or_fail()
    server.at_micros = T + HOUR
    server.put(id=1, name="a1", price=None)
    server.put(id=1, name="a2", price=None)
    server.delete(2)
    server.put(id=4, name="d", price=None)
    server.delete(4)
    server.put(id=5, name=None, price=None)
    server.delete(3)
    server.put(id=3, name="c", price=None)
    office.sync_or_fail()
    after = [
        (1, "a", 0, HOUR - 1, False),
        (1, "a2", HOUR, None, True),
        (2, "b", 0, HOUR, False),
        (3, "c", 0, None, True),
        (5, None, HOUR, None, True),
    ]
    assert office.versions("id", "name") == after
    asked = [query for query in server.queries if "CHANGETABLE" in query]
    assert len(asked) == 1
    assert "[items], 3) AS ct" in asked[0]
    office.sync_or_fail()
    assert len([query for query in server.queries if "CHANGETABLE" in query]) == 1
    assert office.versions("id", "name") == after


@pytest.mark.long
def test_a_row_may_be_newer_than_the_change_tracking_version(tmp_path: Path) -> None:
    office = _tracking_office(tmp_path)
    server = office.server
    server.put(id=1, name="a", price=None)
    server.put(id=2, name="b", price=None)
    office.sync_or_fail()
    server.at_micros = T + HOUR
    server.put(id=1, name="a1", price=None)
    server.put(id=2, name="b1", price=None)
    assert server.version is not None
    # Between the queries for the version and for the rows, both were changed again.
    server.version -= 1
    server.delete(2)
    server.version -= 1
    office.sync_or_fail()
    now = [
        (1, "a", 0, HOUR - 1, False),
        (1, "a1", HOUR, None, True),
        (2, "b", 0, HOUR, False),
    ]
    assert office.versions("id", "name") == now
    server.version += 1
    server.at_micros = T + 2 * HOUR
    office.sync_or_fail()
    assert office.versions("id", "name") == now


@pytest.mark.long
def test_a_clock_set_back_after_a_crash_does_not_change_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = _tracking_office(tmp_path)
    server = office.server
    server.put(id=1, name="a", price=None)
    office.sync_or_fail()
    server.at_micros = T + 2 * HOUR
    server.put(id=1, name="b", price=None)
    with monkeypatch.context() as patched:
        patched.setenv("CHRONOLAKE_FAILPOINT", "land.done=raise")
        assert office.sync().error is not None
    server.at_micros = T + HOUR
    server.put(id=1, name="c", price=None)
    office.sync_or_fail()
    assert office.versions("id", "name") == [
        (1, "a", 0, 2 * HOUR - 1, False),
        (1, "b", 2 * HOUR, 2 * HOUR, False),
        (1, "c", 2 * HOUR + 1, None, True),
    ]


@pytest.mark.long
@pytest.mark.parametrize("lost", ["cleaned", pytest.param("restored", marks=pytest.mark.long)])
def test_lost_change_tracking_compares_all_rows(tmp_path: Path, lost: str) -> None:
    office = _tracking_office(tmp_path)
    server = office.server
    for number in range(4):
        server.put(id=number, name="a", price=None)
    office.sync_or_fail()
    server.delete(0)
    server.put(id=1, name="b", price=None)
    server.tracked.clear()
    if lost == "cleaned":
        server.oldest = server.version
    else:
        server.version = 2
    server.at_micros = T + HOUR
    with structlog.testing.capture_logs() as logged:
        office.sync_or_fail()
    assert [line["stream"] for line in logged if line["event"] == "read_as_a_whole"] == [
        "dbo.items"
    ]
    assert office.versions("id", "name") == [
        (0, "a", 0, HOUR, False),
        (1, "a", 0, HOUR - 1, False),
        (1, "b", HOUR, None, True),
        (2, "a", 0, None, True),
        (3, "a", 0, None, True),
    ]


@pytest.mark.long
def test_cleanup_during_a_read_compares_all_rows(tmp_path: Path) -> None:
    office = _tracking_office(tmp_path)
    server = office.server
    server.put(id=1, name="a", price=None)
    office.sync_or_fail()
    server.put(id=1, name="b", price=None)
    server.at_micros = T + HOUR
    server.is_cleaned_while_read = True
    office.sync_or_fail()
    assert [version[1] for version in office.versions("id", "name")] == ["a", "b"]


@pytest.mark.long
def test_key_that_does_not_identify_rows_is_rejected(tmp_path: Path) -> None:
    office = _tracking_office(tmp_path)
    office.server.rows = [{"id": 1, "name": name, "price": None} for name in "ab"]
    assert "Two rows of dbo.items have the same id" in (office.sync().error or "")
    captured = _cdc_office(tmp_path / "cdc")
    captured.server.rows = office.server.rows
    assert "Two rows of dbo.items have the same id" in (captured.sync().error or "")


@pytest.mark.long
def test_a_pipeline_may_change_how_it_reads(tmp_path: Path) -> None:
    office = _tracking_office(tmp_path)
    server = office.server
    server.put(id=1, name="a", price=None)
    server.put(id=2, name="b", price=None)
    office.sync_or_fail()
    server.delete(1)
    server.instances = [Instance("dbo_items", list(ITEMS), oldest=30)]
    # The capture job has not reached the start of the instance.
    server.commits = {10: T}
    server.at_micros = T + HOUR + MARGIN
    captured = Office(tmp_path, server, "cdc")
    captured.sync_or_fail()
    server.commits[30] = T + 2 * HOUR
    server.instances[0].changes = [Change(30, 1, 1, _row(2, "b"))]
    captured.sync_or_fail()
    assert captured.versions("id", "name") == [
        (1, "a", 0, HOUR, False),
        (2, "b", 0, 2 * HOUR, False),
    ]
    server.at_micros = T + 3 * HOUR
    server.put(id=3, name="c", price=None)
    again = Office(tmp_path, server, "change_tracking")
    again.sync_or_fail()
    assert again.versions("id", "name")[-1] == (3, "c", 3 * HOUR, None, True)


@pytest.mark.long
def test_a_key_of_several_columns_is_tracked(tmp_path: Path) -> None:
    server = Server({"a": "INT", "b": "STRING", "c": "INT"}, ["a", "b"], at_micros=T)
    office = Office(tmp_path, server, "change_tracking")
    server.put(a=1, b="x", c=1)
    server.put(a=1, b="y", c=1)
    office.sync_or_fail()
    server.at_micros = T + HOUR
    server.delete(1, "x")
    server.put(a=1, b="y", c=2)
    office.sync_or_fail()
    assert office.versions("a", "b", "c") == [
        (1, "x", 1, 0, HOUR, False),
        (1, "y", 1, 0, HOUR - 1, False),
        (1, "y", 2, HOUR, None, True),
    ]


@pytest.mark.parametrize(
    ("version", "oldest", "said"),
    [
        (None, None, "ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON"),
        (5, None, "ALTER TABLE [dbo].[items] ENABLE CHANGE_TRACKING"),
    ],
)
def test_missing_change_tracking_has_a_hint(
    tmp_path: Path, version: int | None, oldest: int | None, said: str
) -> None:
    office = _tracking_office(tmp_path)
    office.server.version, office.server.oldest = version, oldest
    reported = office.sync()
    assert said in f"{reported.error} {reported.hint}"


def _cdc_office(folder: Path, more: str = "") -> Office:
    instance = Instance("dbo_items", list(ITEMS), oldest=10)
    server = Server(
        ITEMS, ["id"], at_micros=T + MARGIN, instances=[instance], commits={10: T - HOUR}
    )
    return Office(folder, server, "cdc", more)


def _row(key: int, name: str) -> dict[str, Any]:
    return {"id": key, "name": name, "price": None}


def test_change_data_capture_reads_every_change(tmp_path: Path) -> None:
    office = _cdc_office(tmp_path)
    server = office.server
    server.rows = [_row(1, "a"), _row(2, "b"), _row(3, "c"), _row(7, "old")]
    office.sync_or_fail()
    renamed = frozenset({"name"})
    server.commits |= {11: T + SECOND, 12: T + 2 * SECOND, 13: T + 2 * SECOND, 14: T + SECOND}
    server.instances[0].changes = [
        # Two updates of a row in one transaction are one version.
        Change(11, 1, 3, _row(1, "a"), renamed),
        Change(11, 1, 4, _row(1, "a1"), renamed),
        Change(11, 2, 3, _row(1, "a1"), renamed),
        Change(11, 2, 4, _row(1, "a2"), renamed),
        # Written and deleted in one transaction.
        Change(11, 3, 2, _row(9, "i")),
        Change(11, 4, 1, _row(9, "i")),
        # Two transactions within one tick of the clock.
        Change(12, 5, 3, _row(1, "a2"), renamed),
        Change(12, 5, 4, _row(1, "a3"), renamed),
        Change(13, 6, 3, _row(1, "a3"), renamed),
        Change(13, 6, 4, _row(1, "a4"), renamed),
        Change(13, 7, 1, _row(2, "b")),
        # The clock was set back; and the key changed.
        Change(14, 8, 3, _row(3, "c"), frozenset({"id"})),
        Change(14, 8, 4, _row(33, "c"), frozenset({"id"})),
        # An update that is an insert and a delete in the log, in this order of their places.
        Change(14, 9, 2, _row(7, "new"), command=3),
        Change(14, 10, 1, _row(7, "old"), command=2),
    ]
    office.sync_or_fail()
    tick = 2 * SECOND
    after = [
        (1, "a", 0, SECOND - 1, False),
        (1, "a2", SECOND, tick - 1, False),
        (1, "a3", tick, tick, False),
        (1, "a4", tick + 1, None, True),
        (2, "b", 0, tick + 1, False),
        (3, "c", 0, tick + 2, False),
        (33, "c", tick + 2, None, True),
        (7, "old", 0, tick + 1, False),
        (7, "new", tick + 2, None, True),
        (9, "i", SECOND, SECOND, False),
    ]
    assert _ends(office.versions("id", "name")) == _ends(sorted(after, key=repr))
    asked = len(server.queries)
    office.sync_or_fail()
    assert not [query for query in server.queries[asked:] if "fn_cdc_get_all_changes" in query]
    server.commits[15] = T + HOUR
    server.instances[0].changes += [Change(15, 9, 2, _row(2, "b2"))]
    office.sync_or_fail()
    assert (2, "b2", HOUR, None, True) in office.versions("id", "name")


def _ends(versions: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Replace the end of each version by whether it is open.

    The exact distance between an end and the next start is not tested here.
    """
    return [(*version[:3], version[3] is None, version[4]) for version in versions]


@pytest.mark.long
def test_a_copy_after_a_crash_is_later_than_the_one_that_landed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = _cdc_office(tmp_path)
    office.server.rows = [_row(1, "a")]
    with monkeypatch.context() as patched:
        patched.setenv("CHRONOLAKE_FAILPOINT", "land.done=raise")
        assert office.sync().error is not None
    office.server.at_micros -= HOUR
    office.server.rows = [_row(1, "b")]
    office.sync_or_fail()
    assert office.versions("id", "name") == [(1, "a", 0, 0, False), (1, "b", 1, None, True)]


@pytest.mark.long
def test_late_captured_changes_precede_the_copy(tmp_path: Path) -> None:
    office = _cdc_office(tmp_path, ", time_zone: Europe/Berlin")
    server = office.server
    assert "from UTC is 0 minutes, which does not match Europe/Berlin" in (
        office.sync().error or ""
    )
    server.offset_minutes = 60
    server.rows = [_row(1, "a2"), _row(2, "b")]
    office.sync_or_fail()
    server.commits |= {11: T + HOUR - 2 * SECOND, 12: T + HOUR - SECOND, 13: T + HOUR + SECOND}
    renamed = frozenset({"name"})
    server.instances[0].changes = [
        Change(11, 1, 2, _row(1, "a")),
        Change(12, 2, 3, _row(1, "a"), renamed),
        Change(12, 2, 4, _row(1, "a2"), renamed),
        Change(13, 3, 1, _row(2, "b")),
    ]
    office.sync_or_fail()
    # The server's clock is one hour ahead of UTC.
    assert _ends(office.versions("id", "name")) == [
        (1, "a", -2 * SECOND, False, False),
        (1, "a2", -SECOND, False, False),
        (1, "a2", 0, True, True),
        (2, "b", 0, False, False),
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("cleaned", "The cleanup job removed"),
        pytest.param("restored", "The database was restored", marks=pytest.mark.long),
        pytest.param(
            "dropped", "Its capture instance dbo_items was dropped", marks=pytest.mark.long
        ),
    ],
)
def test_gap_is_reported_and_resync_bridges_it(tmp_path: Path, lost: str, said: str) -> None:
    office = _cdc_office(tmp_path)
    server = office.server
    server.commits[20] = T
    server.rows = [_row(1, "a"), _row(2, "b")]
    office.sync_or_fail()
    if lost == "cleaned":
        server.commits[40] = T + SECOND
        server.instances[0].oldest = 22
    elif lost == "restored":
        del server.commits[20]
    else:
        server.instances = [Instance("again", list(ITEMS), oldest=10)]
    before = office.versions("id", "name")
    server.rows = [_row(1, "b")]
    server.at_micros = T + HOUR + MARGIN
    reported = office.sync()
    assert said in (reported.hint or "")
    assert "chronolake resync office --stream dbo.items" in (reported.hint or "")
    assert office.versions("id", "name") == before
    office.sync_or_fail(full_refresh=True)
    assert office.versions("id", "name") == [
        (1, "a", 0, HOUR - 1, False),
        (1, "b", HOUR, None, True),
        (2, "b", 0, HOUR, False),
    ]
    office.sync_or_fail()


@pytest.mark.long
def test_newer_capture_instance_adds_its_columns(tmp_path: Path) -> None:
    office = _cdc_office(tmp_path)
    server = office.server
    server.rows = [_row(1, "a"), _row(2, "b")]
    office.sync_or_fail()
    server.ddl = {**ITEMS, "size": "INT"}
    server.rows = [{**_row(1, "a1"), "size": 7}, {**_row(2, "b"), "size": None}]
    server.commits |= {11: T + SECOND, 12: T + 2 * SECOND}
    renamed = frozenset({"name"})
    server.instances[0].changes = [
        Change(11, 1, 3, _row(1, "a"), renamed),
        Change(11, 1, 4, _row(1, "a1"), renamed),
    ]
    server.instances.append(Instance("dbo_items_2", list(server.ddl), oldest=14, made_micros=9))
    server.at_micros = T + HOUR + MARGIN
    # The capture job has not reached the start of the new instance.
    office.sync_or_fail()
    assert "size" not in iceberg(office.project, "office", "items").schema().column_names
    server.commits[13] = T + 3 * SECOND
    office.sync_or_fail()
    after = [
        (1, "a", None, 0, SECOND - 1, False),
        (1, "a1", None, SECOND, HOUR - 1, False),
        (1, "a1", 7, HOUR, None, True),
        (2, "b", None, 0, None, True),
    ]
    assert _sized_versions(office) == after
    server.instances.pop(0)
    server.commits[14] = T + 2 * HOUR
    moved = {**_row(2, "b"), "size": 8}
    server.instances[0].changes = [Change(14, 2, 4, moved, frozenset({"size"}))]
    office.sync_or_fail()
    assert _sized_versions(office)[-1] == (2, "b", 8, 2 * HOUR, None, True)


def _sized_versions(office: Office) -> list[tuple[Any, ...]]:
    found = office.versions("id", "name", "size")
    return sorted(found, key=lambda version: (version[0], version[3]))


@pytest.mark.long
def test_columns_that_are_not_captured_are_not_copied(tmp_path: Path) -> None:
    office = _cdc_office(tmp_path)
    office.server.instances[0].columns = ["id", "name"]
    office.server.rows = [_row(1, "a")]
    office.sync_or_fail()
    assert "price" not in iceberg(office.project, "office", "items").schema().column_names
    office.server.instances[0].computed = frozenset({"name"})
    office.sync_or_fail(full_refresh=True)
    assert office.versions("id") == [(1, 0, None, True)]
    office.server.instances[0].columns = ["id", "name"]
    office.server.instances[0].computed = frozenset({"id"})
    assert "does not have id" in (office.sync().error or "")


def test_missing_change_data_capture_has_a_hint(tmp_path: Path) -> None:
    office = _cdc_office(tmp_path)
    server = office.server
    server.instances[0].columns = []
    assert "GRANT SELECT ON SCHEMA::cdc" in (office.sync().hint or "")
    server.instances[0].oldest = 0
    assert "has not begun, or the user may not see it" in (office.sync().error or "")
    server.instances.clear()
    assert "EXEC sys.sp_cdc_enable_table" in (office.sync().hint or "")
    server.commits.clear()
    assert "Start SQL Server Agent" in (office.sync().hint or "")
    server.is_capturing = False
    assert "EXEC sys.sp_cdc_enable_db" in (office.sync().hint or "")


def test_a_change_without_its_commit_is_refused(tmp_path: Path) -> None:
    office = _cdc_office(tmp_path)
    office.sync_or_fail()
    office.server.commits[12] = T
    office.server.instances[0].changes = [Change(11, 1, 2, _row(1, "a"))]
    assert "1 versions lack" in (office.sync().error or "")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("method: cdc, tables: {items: {key: [id]}}", "with its schema: dbo.items"),
        ("method: cdc, tables: {a.b.items: {key: [id]}}", "with its schema: dbo.items"),
        ("method: log, tables: {dbo.items: {key: [id]}}", "change_tracking"),
        (
            "method: cdc, time_zone: Central Europe, tables: {dbo.items: {key: [id]}}",
            "unknown time zone",
        ),
    ],
)
def test_a_configuration_that_cannot_be(tmp_path: Path, source: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        project(
            tmp_path,
            f"  office:\n    source: {{type: sqlserver, url: 'jdbc:sqlserver://db', {source}}}\n",
        )


def test_check_and_discover_call_it_experimental(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    office = _cdc_office(tmp_path)
    where = ("--project", str(office.project.file))
    code, reported, _ = run_words(capsys, "check", "--json", *where)
    assert code == 0, "a warning does not fail"
    warnings = [line for line in json.loads(reported) if line["level"] == "warning"]
    assert [line["what"] for line in warnings] == ["pipelines.office"]
    assert warnings[0]["message"].startswith("experimental: It has not been run")
    _, reported, _ = run_words(capsys, "discover", "office", "--json", *where)
    assert [row["experimental"] for row in json.loads(reported)] == [True]
    _, reported, _ = run_words(capsys, "discover", "office", *where)
    assert "experimental: It has not been run against a SQL Server" in reported


def test_this_page_lists_all_tests() -> None:
    page = (Path(__file__).parents[2] / "docs/sqlserver.md").read_text()
    listed = re.findall(r"^\| `(test_\w+)` \|", page, re.MULTILINE)
    assert listed == re.findall(r"^def (test_\w+)", Path(__file__).read_text(), re.MULTILINE)
