"""Maintenance that a server does automatically."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from chronolake.lake import Lake
from chronolake.server import ServeOptions, Server
from chronolake.server.maintenance import BackgroundMaintenance
from chronolake.types import TableName
from support.lakes import lake_config
from support.server.caller import SYNCED, Caller
from support.waiting import wait_until

COLUMNS = ["id*:LONG", SYNCED]
NAME = TableName("kept", "t")
SMALL_FILES = 4


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    folder = tmp_path / "lake"
    config = lake_config(folder, **{"maintenance.small_files": SMALL_FILES})
    with Lake.open(folder, config=config) as opened:
        yield opened


@contextmanager
def serving(lake: Lake, files: Path, *, automatic: bool) -> Iterator[Caller]:
    """Run a server with or without automatic maintenance; yield its caller."""
    maintenance = lake.config.maintenance.model_copy(update={"automatic": automatic})
    lake.config = lake.config.model_copy(update={"maintenance": maintenance})
    with (
        Server(lake, ServeOptions(port=0, grace=20)) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        yield Caller(channel, lake.config.path, files, NAME.schema)


def send(lake: Lake, files: Path, batches: range, *, automatic: bool) -> Caller:
    """Send batches of one row each."""
    with serving(lake, files, automatic=automatic) as caller:
        if not batches.start:
            assert caller.create(NAME.table, COLUMNS).success
        for number in batches:
            row = {"id": str(number), "_fivetran_synced": "2024-01-01T00:00:00Z"}
            assert caller.write(NAME.table, COLUMNS, replace=[row]).success
        if automatic:
            until(lambda: data_files(lake) < SMALL_FILES)
    return caller


def until(holds: Callable[[], bool]) -> None:
    wait_until(holds, "it was not maintained")


def data_files(lake: Lake) -> int:
    snapshot = lake.catalog.load(NAME).metadata.currentSnapshot()
    return int(snapshot.summary().get("total-data-files"))


@pytest.mark.long
def test_a_server_puts_small_files_in_order(lake: Lake, tmp_path: Path) -> None:
    caller = send(lake, tmp_path, range(8), automatic=True)
    assert sorted(caller.rows("t", "id")) == [(number,) for number in range(8)]


@pytest.mark.long
@pytest.mark.parametrize("cell", [None, "no number"])
def test_maintenance_is_repeated_after_a_batch_without_files_or_success(
    lake: Lake, tmp_path: Path, cell: str | None
) -> None:
    send(lake, tmp_path, range(SMALL_FILES + 1), automatic=False)
    with serving(lake, tmp_path, automatic=True) as caller:
        row = {"id": cell, "_fivetran_synced": "2024-01-01T00:00:00Z"}
        answer = caller.write(NAME.table, COLUMNS, replace=[row] if cell else [])
        assert answer.success == (cell is None)
        until(lambda: data_files(lake) < SMALL_FILES)


@pytest.mark.long
@pytest.mark.parametrize(
    "pause", [0.15, *(pytest.param(pause, marks=pytest.mark.long) for pause in (0.0, 0.4, 1.0))]
)
def test_maintenance_ends_when_a_batch_arrives_also_between_its_jobs(
    lake: Lake, tmp_path: Path, pause: float
) -> None:
    send(lake, tmp_path, range(6), automatic=False)
    background = BackgroundMaintenance(lake)
    try:
        background.notify_changed(NAME)
        time.sleep(pause)
        with background.writing(NAME):
            # A commit that has begun is not stopped any more.
            time.sleep(0.3)
            files = data_files(lake)
            time.sleep(2)
            assert data_files(lake) == files
        until(lambda: data_files(lake) == 1)
    finally:
        background.close()


@pytest.mark.long
def test_a_table_that_is_written_waits_unless_it_is_far_beyond(lake: Lake, tmp_path: Path) -> None:
    caller = send(lake, tmp_path, range(6), automatic=False)
    background = BackgroundMaintenance(lake)
    try:
        with lake.writing(NAME):
            background.notify_changed(NAME)
            time.sleep(2)
            assert data_files(lake) == 6
        background.notify_changed(NAME)
        until(lambda: data_files(lake) == 1)
        send(lake, tmp_path, range(6, 6 + 4 * SMALL_FILES + 1), automatic=False)
        with lake.writing(NAME):
            background.notify_changed(NAME)
            until(lambda: data_files(lake) == 1)
    finally:
        background.close()
    assert len(caller.rows("t", "id")) == 6 + 4 * SMALL_FILES + 1
