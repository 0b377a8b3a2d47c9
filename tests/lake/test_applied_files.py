"""A table keeps all rows of its applied files, even if these are moved, pruned or renamed."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from chronolake import core
from chronolake.cli.pipelines import hold_lease_of
from chronolake.core.table_swap import REPLACED_PROPERTY
from chronolake.errors import LeaseLostError, PipelineBusyError
from chronolake.pipeline.apply import apply
from chronolake.pipeline.lease import hold_lease, holder
from chronolake.pipeline.rebuild import differences, rebuild
from chronolake.pipeline.state import move_watermark
from chronolake.pipeline.store import LEASES, Status, Store
from chronolake.pipeline.streams import streams_of
from chronolake.pipeline.sync import Event, EventKind
from chronolake.pipeline.table_writer import TableWriter
from support.datalakes import DataLake, iceberg, project
from support.lake.pipelines import Pipeline

_T = 1_767_225_600_000_000


def _row(key: str, at: int = 1, **fields: Any) -> dict[str, Any]:
    return {"Id": key, "source__modified": _T + at * 10**6, "grax__idseq": "1", **fields}


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """Return a pipeline with two files in its lake, and a table made from them."""
    found = Pipeline(tmp_path)
    found.source.write("Account", [_row("1", N="5", N_i=5), _row("2", N="6", N_i=6)])
    found.source.write("Account", [_row("3", N="7", N_i=7)])
    found.done()
    return found


def _moved(pipeline: Pipeline, number: int | None) -> None:
    (stream,) = streams_of(pipeline.project, "crm")
    mark = None if number is None else stream.folder.files()[number].mark
    with hold_lease(Store.open(pipeline.project.lake), "crm") as lease:
        move_watermark(pipeline.lake, stream, lease, mark)


@pytest.mark.sampled
@pytest.mark.parametrize("back_to", [None, 0])
@pytest.mark.parametrize("change", ["    mode: live\n", "    on_purge: erase\n", ""])
def test_moved_back_it_is_still_not_made_of_less(
    pipeline: Pipeline, back_to: int | None, change: str
) -> None:
    _moved(pipeline, back_to)
    before = iceberg(pipeline.project, "crm", "Account").metadata.table_uuid
    pipeline.source.path("Account", 1).unlink()
    if change:
        pipeline.configure(change)
    else:
        # This makes the field a text, for which the table is rebuilt.
        pipeline.source.write("Account", [_row("4", N="x")])

    (stream,) = pipeline.sync().streams

    assert "1 of the 2 files that the table was built from are missing" in (stream.error or "")
    assert [row[0] for row in pipeline.versions("N")] == ["1", "2", "3"]
    assert iceberg(pipeline.project, "crm", "Account").metadata.table_uuid == before


def test_skipped_files_are_applied_by_a_rebuild(pipeline: Pipeline) -> None:
    pipeline.source.write("Account", [_row("4")])
    pipeline.source.write("Account", [_row("5")])
    _moved(pipeline, 2)
    pipeline.done()
    assert [row[0] for row in pipeline.versions()] == ["1", "2", "3", "5"]
    (stream,) = streams_of(pipeline.project, "crm")
    with hold_lease(Store.open(pipeline.project.lake), "crm") as lease:
        made = rebuild(pipeline.lake, stream, lease)
    assert (len(made.files), made.read, made.written) == (4, 5, 5)
    assert [row[0] for row in pipeline.versions()] == ["1", "2", "3", "4", "5"]


@pytest.mark.long
def test_what_is_applied_again_is_not_seen_half(pipeline: Pipeline) -> None:
    for name in ("old", "new"):
        pipeline.source.write("Account", [_row("9", Name=name)])
    pipeline.done()
    _moved(pipeline, None)
    pipeline.source.write("Account", [_row("10", Name="more")])
    seen: list[list[str]] = []

    def watch(event: Event) -> None:
        if event.kind is EventKind.PUBLISHED:
            seen.append([row["Name"] for row in pipeline.rows() if row["Name"]])

    pipeline.sync(watch=watch, step_bytes=1)
    assert [sorted(names) for names in seen] == [["new"], ["more", "new"]]
    (stream,) = streams_of(pipeline.project, "crm")
    with hold_lease(Store.open(pipeline.project.lake), "crm") as lease:
        found = differences(pipeline.lake, stream, lease)
        assert len(rebuild(pipeline.lake, stream, lease).files) == 5
    assert found.count == 0


def test_a_table_that_was_never_written_is_not_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Pipeline(tmp_path)
    found.source.write("Account", [_row("1", Name="a")])
    with monkeypatch.context() as patched:
        patched.setenv("CHRONOLAKE_FAILPOINT", "sync.table-ready=raise")
        assert found.sync().status is Status.FAILED
    before = iceberg(found.project, "crm", "Account").metadata.table_uuid
    found.configure("    mode: live\n")
    found.done()
    assert [row["Name"] for row in found.rows()] == ["a"]
    assert iceberg(found.project, "crm", "Account").metadata.table_uuid == before


def test_another_lake_is_refused_and_the_same_in_another_place_is_not(pipeline: Pipeline) -> None:
    other = DataLake(pipeline.folder / "source", org="Y")
    for key in ("1", "4", "5"):
        other.write("Account", [_row(key, Name="of Y")])
    text = "  crm:\n    source: {{type: data_lake_v2, path: {path}, org: {org}}}\n"
    pipeline.project = project(pipeline.folder, text.format(path="source", org="Y"))
    before = pipeline.versions("N")
    (stream,) = pipeline.sync().streams
    assert "Its earlier files would be skipped" in (stream.error or "")
    assert pipeline.versions("N") == before

    (pipeline.folder / "source").rename(pipeline.folder / "moved")
    pipeline.project = project(pipeline.folder, text.format(path="moved", org="X"))
    pipeline.source = DataLake(pipeline.folder / "moved", files=2)
    pipeline.source.write("Account", [_row("4", N="8", N_i=8)])
    pipeline.done()
    assert [row[0] for row in pipeline.versions()] == ["1", "2", "3", "4"]

    pipeline.project = project(pipeline.folder, text.format(path="moved", org="Y"))
    assert pipeline.sync(full_refresh=True).status is Status.SUCCEEDED
    assert [row[0] for row in pipeline.versions()] == ["1", "4", "5"]
    pipeline.done()
    assert {row["Name"] for row in pipeline.rows()} == {"of Y"}


def test_a_table_can_be_read_while_it_is_rebuilt(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = pipeline.versions("N")
    (stream,) = streams_of(pipeline.project, "crm")
    held = tmp_path / "held"
    held.touch()
    monkeypatch.setenv("CHRONOLAKE_FAILPOINT", "rewrite.before-commit=pause")
    monkeypatch.setenv("CHRONOLAKE_FAILPOINT_FILE", str(held))
    with (
        ThreadPoolExecutor(1) as thread,
        hold_lease(Store.open(pipeline.project.lake), "crm") as lease,
    ):
        running = thread.submit(rebuild, pipeline.lake, stream, lease)
        while not held.with_suffix(".reached").exists():
            assert not running.done(), running.result()
            time.sleep(0.05)
        old = iceberg(pipeline.project, "crm", "Account")
        assert pipeline.versions("N") == before
        assert pipeline.lake.table(stream.table).df.count() == len(before)
        held.unlink()
        assert running.result().written == len(before)
    assert pipeline.versions("N") == before
    assert old.scan().to_arrow().num_rows == len(before), "who has opened it reads on"


def test_a_re_sync_is_a_run(pipeline: Pipeline) -> None:
    broken = pipeline.source.write("Broken", [_row("1")])
    pipeline.source.write("Contact", [_row("1")])
    pipeline.done()
    broken.write_bytes(b"no Parquet")
    result = pipeline.sync(full_refresh=True)
    assert result.status is Status.PARTIAL
    reported = {
        stream.stream: (stream.status, stream.files, stream.rows, stream.written)
        for stream in result.streams
    }
    assert reported["Account"] == (Status.SUCCEEDED, 2, 3, 3)
    assert reported["Broken"][0] is Status.FAILED
    assert reported["Contact"] == (Status.SUCCEEDED, 1, 1, 1)


def test_a_dropped_column_is_noticed_and_restored_by_a_rebuild(pipeline: Pipeline) -> None:
    pipeline.lake.spark.sql("ALTER TABLE chronolake.crm.Account DROP COLUMN N")
    (stream,) = streams_of(pipeline.project, "crm")
    with hold_lease(Store.open(pipeline.project.lake), "crm") as lease:
        found = differences(pipeline.lake, stream, lease)
    assert (found.columns, found.missing, found.extra) == (("N",), 0, 0)
    pipeline.source.write("Account", [_row("4", N="8", N_i=8)])
    pipeline.done()
    assert [row[-1] for row in pipeline.versions("N")] == [5, 6, 7, 8]


def test_a_lease_of_another_numbering_of_processes_is_not_taken(pipeline: Pipeline) -> None:
    store = Store.open(pipeline.project.lake)
    host, number, _ = holder().rsplit(":", 2)
    for other, is_free in ((f"{host}:{number}:elsewhere", False), (holder(), True)):
        with store.transaction() as connection:
            connection.execute(LEASES.update().values(holder=other, expires=time.time() + 60))
        if is_free:
            # The lease is left over from a failed request of this process.
            with hold_lease(store, "crm"):
                pass
        else:
            with (
                pytest.raises(PipelineBusyError, match=f"is run by {host}:{number}."),
                hold_lease(store, "crm"),
            ):
                pass


def test_who_has_lost_the_lease_makes_no_table(tmp_path: Path) -> None:
    found = Pipeline(tmp_path)
    found.source.write("Account", [_row("1", Name="a")])
    store = Store.open(found.project.lake)
    (stream,) = streams_of(found.project, "crm")
    with hold_lease(store, "crm") as lease:
        with store.transaction() as connection:
            connection.execute(LEASES.update().values(token=LEASES.c.token + 1))
        with pytest.raises(LeaseLostError, match="Another process has taken over the pipeline crm"):
            list(apply(TableWriter(found.lake, stream, lease), None, stream.folder.files()))
    assert found.lake.catalog.find(stream.table) is None


@pytest.mark.sampled
@pytest.mark.parametrize("number", [None, 0])
def test_a_table_is_moved_where_the_store_was_lost(pipeline: Pipeline, number: int | None) -> None:
    store = Store.open(pipeline.project.lake)
    pipeline.source.write("Account", [_row("4")])
    pipeline.done()
    with store.transaction() as connection:
        connection.execute(LEASES.delete())
    (stream,) = streams_of(pipeline.project, "crm")
    mark = None if number is None else stream.folder.files()[number].mark
    with hold_lease_of(pipeline.lake, [stream]) as lease:
        move_watermark(pipeline.lake, stream, lease, mark)
    (again,) = pipeline.sync().streams
    assert (again.status, again.error) == (Status.SUCCEEDED, None)
    assert again.files == (3 if number is None else 2)
    assert [row[0] for row in pipeline.versions()] == ["1", "2", "3", "4"]


@pytest.mark.long
def test_files_of_a_replaced_table_are_removed_after_their_grace_period(pipeline: Pipeline) -> None:
    (stream,) = streams_of(pipeline.project, "crm")
    hours = 3600 * 1_000_000
    folder = Path(pipeline.lake.catalog.load(stream.table).location.removeprefix("file:"))

    def files() -> set[Path]:
        return set(folder.rglob("*.parquet"))

    generations = [files()]
    for _ in range(2):
        with hold_lease(Store.open(pipeline.project.lake), "crm") as lease:
            rebuild(pipeline.lake, stream, lease)
        generations.append(files() - set().union(*generations))
    assert all(generations)
    aged = (100, 90, 80)
    for generation, age in zip(generations, aged, strict=True):
        for path in generation:
            os.utime(path, (time.time() - age * 3600,) * 2)

    def replaced(*ago: tuple[float, float]) -> None:
        now = time.time_ns() // 1_000
        spans = " ".join(f"{int(now - a * hours)}:{int(now - b * hours)}" for a, b in ago)
        pipeline.lake.spark.sql(
            "ALTER TABLE chronolake.crm.Account "
            f"SET TBLPROPERTIES ('{REPLACED_PROPERTY}'='{spans}')"
        )

    # Both were replaced just now: somebody may still read the files, however old they are.
    core.maintain(pipeline.lake, stream.table)
    assert set().union(*generations) <= files()
    # The first generation was replaced 80 hours ago, the second an hour ago.
    replaced((91, 80), (81, 1))
    core.maintain(pipeline.lake, stream.table)
    assert not generations[0] & files()
    assert generations[1] <= files()
    replaced((91, 80), (81, 79))
    core.maintain(pipeline.lake, stream.table)
    assert not generations[1] & files()
    assert pipeline.versions("N")
