"""Landing in a bucket: names without gaps, and every failure of the store loses nothing."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chronolake import change_set
from chronolake.arrow_tasks import ArrowRows
from chronolake.errors import LeaseLostError, ObjectStoreError, SourceError
from chronolake.landing import (
    Control,
    ControlKind,
    ObjectFolder,
    controls_of,
    declare,
    land,
    land_control,
    landed_micros,
    layout,
    objects_of,
    rows_in,
)
from chronolake.landing.bucket_sequence import StagedObjects, _last
from chronolake.landing.encoding import DECLARING
from chronolake.landing.file_sequence import publish, staging
from chronolake.landing.writer import encode_file
from chronolake.object_store import BucketPath
from chronolake.types import Column, ColumnType, Kind
from support.store.faulty_proxy import (
    CutUpload,
    Fault,
    FaultyProxy,
    HideKeys,
    LoseResponse,
    Refuse,
)
from support.store.server import S3Server

_COLUMNS = (Column("id", ColumnType(Kind.LONG), True), Column("name", ColumnType(Kind.STRING)))
_FIRST = "batch=05e0be100/data-16f5e66e800.parquet"


def _rows(*ids: int) -> ArrowRows:
    table = pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": [f"name {number}" for number in ids],
            change_set.MODIFIED: pa.array([1_700_000_000_000_000 + number for number in ids]),
            change_set.SEQUENCE: ["1" for _ in ids],
            change_set.DELETED_AT: pa.nulls(len(ids), pa.int64()),
            change_set.PURGED_AT: pa.nulls(len(ids), pa.int64()),
        }
    )
    return ArrowRows(lambda: pytest.fail("Spark is not needed."), iter, "", table)


def _held() -> None:
    """Guard of a process that has its lease."""


def _land(folder: ObjectFolder, *ids: int, guard: Callable[[], None] = _held) -> list[str]:
    return [file.mark for file in land(_rows(*ids), _COLUMNS, folder, guard=guard)]


def _ids(folder: ObjectFolder) -> list[int]:
    """Return the records of all files in their order."""
    found: list[int] = []
    for file in folder.files():
        assert isinstance(file.path, BucketPath)
        with file.path.open() as content:
            found += map(int, pq.read_table(content)["Id"].to_pylist())
    return found


@pytest.fixture
def folder(bucket: BucketPath) -> ObjectFolder:
    return ObjectFolder(bucket / "raw", "shop", "orders")


@pytest.fixture
def fresh() -> Callable[[], None]:
    """Return a function after which this process knows no more than another one."""
    return _last.clear


def test_names_have_no_gaps_and_files_are_those_of_a_data_lake(
    s3: S3Server, bucket: BucketPath, folder: ObjectFolder
) -> None:
    assert _land(folder, 1, 2) == [_FIRST]
    assert _land(folder, 3) == ["batch=05e0be100/data-16f5e66e801.parquet"]

    path = s3.folder_of(bucket / "raw/parquet/v2/org=shop/object=orders") / _FIRST
    assert pq.read_table(path, partitioning=None)["Id"].to_pylist() == ["1", "2"]
    assert objects_of(bucket / "raw", "shop") == ["orders"]
    assert folder.newest() == folder.last() == "16f5e66e801"
    assert [file.mark for file in folder.files(after=_FIRST)] == [
        "batch=05e0be100/data-16f5e66e801.parquet"
    ]
    assert folder.has(_FIRST)
    assert not folder.has("batch=05e0be100/data-16f5e66e802.parquet")
    assert rows_in(folder.files()) == 3
    assert landed_micros(folder) == 1_700_000_000_000_003


def test_an_object_without_files_is_empty(bucket: BucketPath, folder: ObjectFolder) -> None:
    assert folder.files() == []
    assert folder.newest() is None
    assert controls_of(folder) == []
    with pytest.raises(SourceError, match="does not contain parquet/v2/org=shop"):
        objects_of(bucket / "raw", "shop")


def test_a_few_rows_need_one_request(faulty: BucketPath, proxy: FaultyProxy) -> None:
    folder = ObjectFolder(faulty / "raw", "shop", "orders")
    _land(folder, 1)
    proxy.requests.clear()

    _land(folder, 2)

    assert [request.split(" ")[0] for request in proxy.requests] == ["PUT"]


def test_files_of_tasks_are_copied_to_their_names_and_leave_nothing_behind(
    folder: ObjectFolder,
) -> None:
    _land(folder, 1)
    with staging(folder) as staged:
        assert isinstance(staged, StagedObjects)
        names = [staged.write(encode_file(_file(number), b"")) for number in (2, 3)]
        files = publish(folder, staged, names, guard=_held)

    assert [file.name for file in files] == ["16f5e66e801", "16f5e66e802"]
    assert _ids(folder) == [1, 2, 3]
    assert list((folder.bucket_path / "_staging").objects()) == []


def _file(number: int) -> pa.Table:
    return pa.table(
        {
            "Id": [str(number)],
            "source__modified": pa.array([number], pa.timestamp("us", tz="UTC")),
            "grax__idseq": ["1"],
        }
    )


def test_control_records_take_a_number_of_their_own(folder: ObjectFolder) -> None:
    _land(folder, 1)
    assert land_control(folder, Control(ControlKind.KEPT, {"mode": "history"}), guard=_held)
    assert not land_control(folder, Control(ControlKind.KEPT, {"mode": "history"}), guard=_held)
    _land(folder, 2)
    assert land_control(folder, Control(ControlKind.KEPT, {"mode": "live"}), guard=_held)

    assert [(file.name, record.content) for file, record in controls_of(folder)] == [
        ("16f5e66e801", {"mode": "history"}),
        ("16f5e66e803", {"mode": "live"}),
    ]
    assert [rows_in([file]) for file in folder.files()] == [1, 0, 1, 0]


def test_a_process_without_its_lease_lands_nothing(folder: ObjectFolder) -> None:
    _land(folder, 1)

    def lost() -> None:
        raise LeaseLostError("Another process runs the pipeline.")

    with pytest.raises(LeaseLostError):
        _land(folder, 2, guard=lost)

    assert _ids(folder) == [1]


def test_a_process_that_was_paused_finds_that_its_lease_is_gone(
    folder: ObjectFolder, fresh: Callable[[], None]
) -> None:
    _land(folder, 1)
    checks = 0

    def guard() -> None:
        nonlocal checks
        checks += 1
        if checks == 1:
            # Directly after the check, the process is paused, and another one takes over.
            fresh()
            _land(folder, 2)
        else:
            raise LeaseLostError("Another process runs the pipeline.")

    with pytest.raises(LeaseLostError):
        _land(folder, 9, guard=guard)

    assert _ids(folder) == [1, 2]


def test_processes_that_know_an_old_number_continue_after_the_newest_file(
    folder: ObjectFolder, fresh: Callable[[], None]
) -> None:
    _land(folder, 1)
    old = dict(_last)
    for number in range(2, 8):
        _land(folder, number)
    fresh()
    _last.update(old)

    _land(folder, 8)

    assert _ids(folder) == list(range(1, 9))


def _land_many(root: BucketPath, process: int, times: int) -> None:
    folder = ObjectFolder(root, "shop", "orders")
    for number in range(times):
        _land(folder, 1_000 * process + number)


def test_names_increase_across_processes(s3: S3Server, folder: ObjectFolder) -> None:
    context = multiprocessing.get_context("spawn")
    root = folder.root
    workers = [context.Process(target=_land_many, args=(root, part, 15)) for part in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=120)
        assert worker.exitcode == 0

    files = folder.files()
    assert [int(file.name, 16) - layout.FIRST_IN_BUCKET for file in files] == list(range(45))
    found = _ids(folder)
    assert sorted(found) == [1_000 * part + number for part in range(3) for number in range(15)]
    for part in range(3):
        mine = [number for number in found if number // 1_000 == part]
        assert mine == sorted(mine)
    # A later file never appeared before an earlier one.
    written = [s3.folder_of(file.path).stat().st_mtime_ns for file in files]
    assert written == sorted(written)


@pytest.mark.parametrize(
    ("requests", "fault"),
    [
        ("PUT .*data-", Refuse(503, "SlowDown")),
        ("PUT .*data-", CutUpload()),
        ("PUT .*data-", LoseResponse()),
        ("PUT .*data-", LoseResponse(seconds=3)),
        ("GET .*list-type", Refuse(503, "SlowDown")),
        ("GET .*list-type", LoseResponse()),
    ],
)
@pytest.mark.parametrize("times", [1, 2])
def test_a_failure_of_the_store_neither_loses_nor_repeats_a_file(
    faulty: BucketPath,
    proxy: FaultyProxy,
    fresh: Callable[[], None],
    requests: str,
    fault: Fault,
    times: int,
) -> None:
    folder = ObjectFolder(faulty / "raw", "shop", "orders")
    _land(folder, 1)
    fresh()
    proxy.fail(requests, fault, times=times)

    _land(folder, 2)
    _land(folder, 3)

    assert proxy.failed
    assert _ids(folder) == [1, 2, 3]
    assert [file.name for file in folder.files()] == ["16f5e66e800", "16f5e66e801", "16f5e66e802"]


@pytest.mark.sampled
@pytest.mark.parametrize("fault", [Refuse(503, "SlowDown"), LoseResponse(), CutUpload()])
@pytest.mark.parametrize(
    "requests", ["PUT .*_staging", "POST .*data-.*uploads", "PUT .*partNumber", "POST .*uploadId="]
)
def test_a_failure_while_files_of_tasks_are_copied_is_repeated(
    faulty: BucketPath, proxy: FaultyProxy, requests: str, fault: Fault
) -> None:
    folder = ObjectFolder(faulty / "raw", "shop", "orders")
    proxy.fail(requests, fault)

    with staging(folder) as staged:
        assert isinstance(staged, StagedObjects)
        names = [staged.write(encode_file(_file(number), b"")) for number in (1, 2)]
        publish(folder, staged, names, guard=_held)

    assert len(proxy.failed) == 1
    assert _ids(folder) == [1, 2]


def test_a_store_that_refuses_is_reported_and_landing_again_continues(
    faulty: BucketPath, proxy: FaultyProxy
) -> None:
    folder = ObjectFolder(faulty / "raw", "shop", "orders")
    _land(folder, 1)
    proxy.fail("PUT", Refuse(403, "AccessDenied"), times=100)

    with pytest.raises(ObjectStoreError, match="refuses access"):
        _land(folder, 2)

    proxy.heal()
    _land(folder, 2)
    assert _ids(folder) == [1, 2]


def test_a_writer_with_a_stale_listing_does_not_overwrite(
    faulty: BucketPath, proxy: FaultyProxy, fresh: Callable[[], None]
) -> None:
    folder = ObjectFolder(faulty / "raw", "shop", "orders")
    _land(folder, 1)
    _land(folder, 2)
    _land(folder, 3)
    fresh()
    proxy.fail("GET .*list-type", HideKeys("data-16f5e66e80[12]"), times=1_000)

    _land(folder, 4)

    proxy.heal()
    assert _ids(folder) == [1, 2, 3, 4]


def test_a_reader_with_a_stale_listing_misses_no_file_before_a_later_one(
    faulty: BucketPath, proxy: FaultyProxy
) -> None:
    folder = ObjectFolder(faulty / "raw", "shop", "orders")
    for number in range(1, 6):
        _land(folder, number)
    proxy.fail("GET .*list-type", HideKeys("data-16f5e66e80[13]"), times=2)

    assert [file.name[-1] for file in folder.files(after=_FIRST)] == ["1", "2", "3", "4"]
    assert [file.name[-1] for file in folder.files()] == ["0", "1", "2", "3", "4"]

    # A first run would never look for the beginning of the sequence again.
    proxy.heal()
    proxy.fail("GET .*list-type", HideKeys("data-16f5e66e80[01]"))
    assert [file.name[-1] for file in folder.files()] == ["0", "1", "2", "3", "4"]

    # The end of the sequence is missing at most until the next listing.
    proxy.heal()
    proxy.fail("GET .*list-type", HideKeys("data-16f5e66e80[34]"))
    assert [file.name[-1] for file in folder.files(after=_FIRST)] == ["1", "2"]
    assert [file.name[-1] for file in folder.files(after=_FIRST)] == ["1", "2", "3", "4"]


def test_the_newest_of_many_files_is_found_with_few_requests(
    s3: S3Server, bucket: BucketPath, faulty: BucketPath, proxy: FaultyProxy
) -> None:
    place = s3.folder_of(bucket / "raw/parquet/v2/org=shop/object=orders")
    first = place / _FIRST
    first.parent.mkdir(parents=True)
    for number in range(5_300):
        (first.parent / f"data-{layout.FIRST_IN_BUCKET + number:x}.parquet").touch()
    folder = ObjectFolder(faulty / "raw", "shop", "orders")

    assert folder.newest() == f"{layout.FIRST_IN_BUCKET + 5_299:x}"
    assert len(proxy.requests) < 12
    assert len(folder.files()) == 5_300


def test_files_of_another_writer_may_have_gaps_and_names_of_any_length(
    s3: S3Server, bucket: BucketPath
) -> None:
    place = s3.folder_of(bucket / "crm/parquet/v2/org=X/object=Account")
    for name in (
        "batch=ff/data-fe",
        "batch=ff/data-ff",
        "batch=100/data-100",
        "batch=100/data-1ff",
    ):
        (place / f"{name}.parquet").parent.mkdir(parents=True, exist_ok=True)
        (place / f"{name}.parquet").write_bytes(b"x")
    folder = ObjectFolder(bucket / "crm", "X", "Account")

    assert [file.name for file in folder.files()] == ["fe", "ff", "100", "1ff"]
    assert [file.name for file in folder.files(after="batch=ff/data-ff.parquet")] == ["100", "1ff"]


def test_a_lake_that_was_copied_from_a_folder_is_continued(
    s3: S3Server, bucket: BucketPath, folder: ObjectFolder, tmp_path: Path
) -> None:
    local = ObjectFolder(tmp_path / "raw", "shop", "orders")
    land(_rows(1), _COLUMNS, local, guard=_held)
    land(_rows(2), _COLUMNS, local, guard=_held)
    (tmp_path / "raw").rename(s3.folder_of(bucket / "raw"))

    _land(folder, 3)

    names = [int(file.name, 16) for file in folder.files()]
    assert names[2] == names[1] + 1
    assert _ids(folder) == [1, 2, 3]


def test_columns_are_declared_without_rows(folder: ObjectFolder) -> None:
    (file,) = declare(_COLUMNS, folder, guard=_held)

    assert rows_in([file]) == 0
    assert file.mark == _FIRST
    assert DECLARING.names == ["Id", "source__modified", "grax__idseq"]


def test_abandoned_staged_files_are_removed_when_they_are_old(
    s3: S3Server, folder: ObjectFolder
) -> None:
    old, new = (folder.bucket_path / "_staging" / name for name in ("old/a", "new/a"))
    old.create(b"1")
    new.create(b"1")
    os.utime(s3.folder_of(old), (1_600_000_000, 1_600_000_000))

    with staging(folder):
        pass

    assert [stored.path for stored in (folder.bucket_path / "_staging").objects()] == [new]
