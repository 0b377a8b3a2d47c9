"""A call whose caller is gone commits nothing, leaves nothing, and releases its worker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from chronolake.lake import Lake
from chronolake.protos import destination_sdk_pb2
from chronolake.server import ServeOptions, Server
from chronolake.types import TableName
from support.server.caller import SYNCED, Caller, column
from support.waiting import wait_until

COLUMNS = ["id*:LONG", "v:STRING", SYNCED]
_WORKERS = ServeOptions(port=0).max_workers


def _row(key: int, value: str) -> dict[str, str]:
    return {"id": str(key), "v": value, "_fivetran_synced": "2024-01-01T00:00:00Z"}


def _batch(caller: Caller, name: str, value: str) -> Any:
    files = [caller.file("upsert", [_row(key, value) for key in range(3)])]
    return caller.request(name, COLUMNS, replace=files)


def _until(holds: Callable[[], Any]) -> None:
    wait_until(holds, "it did not happen")


@contextmanager
def _paused_at(point: str, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let the next write pause at a failpoint until the block ends.

    The yielded file exists once the failpoint is reached.
    """
    paused = folder / "paused"
    paused.touch()
    with patch.context() as set_for_now:
        set_for_now.setenv("CHRONOLAKE_FAILPOINT", f"{point}=pause")
        set_for_now.setenv("CHRONOLAKE_FAILPOINT_FILE", str(paused))
        try:
            yield paused.with_suffix(".reached")
        finally:
            paused.unlink()


def _cancel_at(
    point: str,
    server: Server,
    call: Callable[[], grpc.Future],
    folder: Path,
    patch: pytest.MonkeyPatch,
) -> None:
    with _paused_at(point, folder, patch) as reached:
        running = call()
        _until(reached.exists)
        running.cancel()
        _until(lambda: all(call.is_cancelled() for call in server._destination._calls))
    assert server._destination.wait_until_idle(60)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "point",
    [
        "write.planned",
        "staged.deleted",
        "staged.appended",
        "publish.before-commit",
    ],
)
def test_a_batch_that_is_cancelled_before_its_commit_changes_nothing(
    server: Server, caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    caller.create("t", COLUMNS)
    assert caller.write("t", COLUMNS, replace=[_row(key, "first") for key in range(4)]).success
    before, rows = caller.iceberg("t").metadata.current_snapshot_id, caller.rows("t")

    request = _batch(caller, "t", "second")
    call = caller.stub.WriteBatch.future
    _cancel_at(point, server, lambda: call(request), tmp_path, monkeypatch)

    table = caller.iceberg("t")
    assert table.metadata.current_snapshot_id == before
    assert set(table.metadata.refs) == {"main"}
    assert caller.rows("t") == rows
    assert caller.stub.WriteBatch(request).success
    assert [row[1] for row in caller.rows("t")] == ["second"] * 3 + ["first"]


def test_a_cancelled_create_leaves_neither_table_nor_schema_nor_files(
    server: Server,
    caller: Caller,
    lake: Lake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = TableName(caller.schema, "t")
    before = set((Path(lake.warehouse) / "tables").glob("*"))
    request = destination_sdk_pb2.CreateTableRequest(schema_name=name.schema)
    request.table.name = name.table
    request.table.columns.extend(map(column, COLUMNS))

    _cancel_at(
        "create.committed",
        server,
        lambda: caller.stub.CreateTable.future(request),
        tmp_path,
        monkeypatch,
    )

    assert lake.catalog.find(name) is None
    assert name.schema not in lake.catalog.schemas()
    assert set((Path(lake.warehouse) / "tables").glob("*")) == before
    assert caller.stub.CreateTable(request).success


def test_calls_that_wait_for_a_table_give_their_workers_back(
    server: Server, caller: Caller, lake: Lake
) -> None:
    caller.create("held", COLUMNS)
    caller.create("free", COLUMNS)
    requests = [_batch(caller, "held", str(number)) for number in range(_WORKERS)]

    with lake.writing(TableName(caller.schema, "held")):
        calls = [caller.stub.WriteBatch.future(request, timeout=1) for request in requests]
        for call in calls:
            with pytest.raises(grpc.RpcError) as ended:
                call.result()
            assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        # Another table's batch gets a worker while the table is still held.
        assert caller.stub.WriteBatch(_batch(caller, "free", "x"), timeout=60).success
        assert server._destination.wait_until_idle(60)
    assert not caller.rows("held")


def test_a_cancelled_batch_does_not_wait_for_cores_of_spark(
    server: Server, caller: Caller, lake: Lake, tmp_path: Path
) -> None:
    caller.create("t", COLUMNS)
    busy = tmp_path / "busy"
    busy.touch()
    cores = lake.spark.sparkContext.defaultParallelism

    def occupy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time as clock  # noqa: PLC0415 - this runs in a worker of Spark
        from pathlib import Path as File  # noqa: PLC0415

        File(f"{busy}.begun").touch()
        while File(busy).exists():
            clock.sleep(0.05)
        yield from batches

    busy_rows = lake.spark.range(0, cores, 1, cores).mapInArrow(occupy, "id long")
    spark_job = threading.Thread(target=busy_rows.collect)
    spark_job.start()
    try:
        _until(Path(f"{busy}.begun").exists)
        running = caller.stub.WriteBatch.future(_batch(caller, "t", "x"), timeout=1.5)
        with pytest.raises(grpc.RpcError) as ended:
            running.result()
        assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert server._destination.wait_until_idle(60)
    finally:
        busy.unlink()
        spark_job.join()
    assert not caller.rows("t")
