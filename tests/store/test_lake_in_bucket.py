"""A lake in a bucket: every command works with one setting, and failures are repeated."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow.parquet as pq
import pytest
from postgresql import server

from chronolake.failpoints import FAILPOINTS
from chronolake.object_store import BucketPath
from chronolake.source.protocol import raw_folder
from support.datalakes import DataLake
from support.engines import AT
from support.processes import KILLED
from support.store.faulty_proxy import CutUpload, Fault, FaultyProxy, LoseResponse, Refuse
from support.store.projects import CREDENTIALS, BucketProject, bucket_engine
from support.store.server import S3Server
from support.waiting import TIMEOUT

_SHOP: Final = {"mode": "history"}


@pytest.fixture(scope="module")
def socket() -> Iterator[str]:
    with bucket_engine() as found:
        yield found


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with server(wal_level="logical") as found:
        yield found


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


Open = Callable[..., BucketProject]


@pytest.fixture
def open_project(tmp_path: Path, bucket: BucketPath, proxy: FaultyProxy, socket: str) -> Open:
    def open_(**pipelines: Any) -> BucketProject:
        return BucketProject(tmp_path, f"{bucket}/lake", proxy.port, pipelines, socket)

    return open_


@pytest.fixture
def shop(address: str, open_project: Open) -> Iterator[BucketProject]:
    """Yield a project that syncs a database with a table `orders`."""
    _run(
        address,
        "DROP TABLE IF EXISTS orders",
        "CREATE TABLE orders (id INT PRIMARY KEY, name TEXT, price NUMERIC(10, 2))",
        "INSERT INTO orders SELECT n, 'name ' || n, n FROM generate_series(1, 500) n",
    )
    there = open_project(shop={**_SHOP, "source": {"type": "postgres", "dsn": address}})
    there.run("check", "--create")
    yield there
    _run(
        address,
        "DROP PUBLICATION IF EXISTS chronolake_shop",
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots",
    )


def _run(address: str, *statements: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def _expect_equal(there: BucketProject, address: str) -> None:
    """Compare the active versions of `orders` with the database."""
    active = [row for row in there.rows("shop", "orders") if row["_fivetran_active"]]
    with psycopg.connect(address) as connection:
        wanted = connection.execute("SELECT id, name, price FROM orders ORDER BY id").fetchall()
    assert sorted((row["id"], row["name"], row["price"]) for row in active) == wanted


def _change_orders(address: str) -> None:
    """Update, delete and insert rows."""
    _run(
        address,
        "UPDATE orders SET name = 'other' WHERE id <= 3",
        "DELETE FROM orders WHERE id = 4",
        "INSERT INTO orders VALUES (501, 'new', 1)",
    )


@pytest.mark.long
def test_every_command_works_on_a_lake_in_a_bucket(
    shop: BucketProject, address: str, s3: S3Server, bucket: BucketPath
) -> None:
    shop.run("sync", "shop")
    _change_orders(address)
    shop.run("sync", "shop")
    _expect_equal(shop, address)

    table = "shop.orders"
    assert [found["table"] for found in shop.json("tables")] == [table]
    assert "other" in shop.run("history", table, "--key", "id=1")
    count = f"SELECT count(*) AS n FROM {table} WHERE _fivetran_active"
    assert shop.query(count) == [{"n": 500}]
    shop.run("status")
    shop.run("verify", table, "--against-lake")
    shop.run("usage")
    shop.run("diff", table, "--from", "2020-01-01", "--to", "2100-01-01")

    shop.run("maintain", table)
    _expect_equal(shop, address)
    shop.run("rebuild", table)
    _expect_equal(shop, address)
    shop.run("verify", "--all")

    for mode, rows in (("live", 500), ("history", None)):
        shop.pipelines["shop"]["mode"] = mode
        shop.configure()
        _run(address, f"UPDATE orders SET name = '{mode}' WHERE id = 1")
        shop.run("sync", "shop")
        assert rows in {None, len(shop.rows("shop", "orders"))}
    _expect_equal(shop, address)
    shop.run("resync", "shop")
    _expect_equal(shop, address)
    shop.run("verify", table, "--against-lake")

    # Everything is in the bucket; what is in the folder are the settings, catalog and spools.
    place = s3.folder_of(bucket)
    assert list(place.glob("lake/tables/*/metadata/*.metadata.json"))
    assert list(place.glob("lake/raw/parquet/v2/org=shop/object=*/batch=*/data-*"))
    assert not list(shop.folder.rglob("*.parquet"))
    assert not list(place.rglob("_staging/*/*"))


class Accounts:
    """A data lake in the bucket that another system writes, and the project that syncs it."""

    def __init__(self, there: BucketProject, place: Path) -> None:
        self.there = there
        self._lake = DataLake(place)
        self._wanted: dict[str, str] = {}

    def write(self, **names: str) -> None:
        self._wanted |= names
        self._lake.write_names("Account", names, at=AT)

    def expect(self) -> None:
        """Compare the active versions with what was written last, and all versions."""
        rows = self.there.rows("crm", "Account")
        active = {row["Id"]: row["Name"] for row in rows if row["_fivetran_active"]}
        assert active == self._wanted
        assert len({(row["Id"], row["_fivetran_start"]) for row in rows}) == len(rows)


@pytest.fixture
def accounts(open_project: Open, bucket: BucketPath, s3: S3Server) -> Accounts:
    source = {"type": "data_lake_v2", "path": f"{bucket}/crm", "org": "X"}
    there = open_project(crm={"mode": "history", "source": source})
    found = Accounts(there, s3.folder_of(bucket) / "crm")
    found.write(a="Ann", b="Bob")
    there.run("sync", "crm")
    found.expect()
    found.write(a="Anna", c="Carl")
    return found


@pytest.mark.long
def test_the_files_of_a_stream_are_listed_once_in_a_run(
    accounts: Accounts, proxy: FaultyProxy
) -> None:
    proxy.requests.clear()

    accounts.there.run("sync", "crm")

    listed = [found for found in proxy.requests if re.search("list-type.*object=Account", found)]
    # Once the files, and once the batches and their control records.
    assert len(listed) == 3, listed
    accounts.expect()


_SLOW_DOWN: Final = Refuse(503, "SlowDown")
_FAULTS: Final = [
    ("PUT .*/data/", _SLOW_DOWN),
    ("PUT .*/data/", CutUpload()),
    ("PUT .*/metadata/", LoseResponse()),
    ("GET .*/crm/.*data-", _SLOW_DOWN),
    ("PUT .*/metadata/", CutUpload()),
    ("PUT .*/metadata/", _SLOW_DOWN),
    ("PUT .*/data/", LoseResponse()),
    ("GET .*/crm/.*data-", LoseResponse()),
    ("GET .*/metadata/", LoseResponse()),
    ("GET .*/metadata/", _SLOW_DOWN),
    ("HEAD .*/crm/", LoseResponse()),
    ("GET .*list-type", _SLOW_DOWN),
    ("GET .*list-type", LoseResponse()),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("requests", "fault"),
    [
        pytest.param(*case, marks=[] if number < 4 else [pytest.mark.long])
        for number, case in enumerate(_FAULTS)
    ],
)
def test_a_sync_repeats_what_fails_for_a_moment(
    accounts: Accounts, proxy: FaultyProxy, requests: str, fault: Fault
) -> None:
    proxy.fail(requests, fault, times=2)

    accounts.there.run("sync", "crm")

    assert proxy.failed
    accounts.expect()


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("requests", "fault", "message"),
    [
        ("PUT .*/data/", Refuse(403, "AccessDenied"), "refuses access"),
        ("PUT .*/metadata/", Refuse(404, "NoSuchBucket"), "bucket does not exist"),
        pytest.param(
            "GET .*/crm/", Refuse(403, "AccessDenied"), "refuses access", marks=pytest.mark.long
        ),
        pytest.param(
            "PUT .*/data/", _SLOW_DOWN, "responds with an error (", marks=pytest.mark.long
        ),
        pytest.param("PUT .*/metadata/", LoseResponse(), "respond", marks=pytest.mark.long),
    ],
)
def test_a_lasting_failure_is_reported_and_the_next_sync_continues(
    accounts: Accounts, proxy: FaultyProxy, requests: str, fault: Fault, message: str
) -> None:
    proxy.fail(requests, fault, times=100_000)

    reported = accounts.there.run("sync", "crm", code=1)

    assert message in " ".join(reported.split()), reported
    assert "s3://" in reported
    assert "secret" not in reported
    proxy.heal()
    accounts.there.run("sync", "crm")
    accounts.expect()


@pytest.mark.long
def test_a_catalog_that_does_not_fit_the_bucket_is_refused(accounts: Accounts) -> None:
    """A restored catalog would lose the changes since, and a second one mix two lakes."""
    lake = accounts.there.folder / "lake"
    backup = accounts.there.folder / "backup"
    shutil.copytree(lake, backup)
    accounts.there.run("sync", "crm")
    # A table that is one commit ahead may have an unfinished one.
    accounts.write(b="Bob")
    accounts.there.run("sync", "crm")
    present = accounts.there.folder / "present"
    lake.rename(present)
    backup.rename(lake)

    reported = accounts.there.run("sync", "crm", code=1)
    assert "metadata version" in " ".join(reported.split())

    for file in lake.glob("catalog.db*"):
        file.unlink()
    reported = accounts.there.run("sync", "crm", code=1)
    assert "lists no tables" in " ".join(reported.split())

    shutil.rmtree(lake)
    present.rename(lake)
    accounts.write(a="Anna again")
    accounts.there.run("sync", "crm")
    accounts.expect()


def test_check_reports_a_bucket_that_cannot_be_written(
    open_project: Open, proxy: FaultyProxy, bucket: BucketPath
) -> None:
    there = open_project()
    assert "ok" in there.run("check")
    assert list(bucket.objects()) == []

    proxy.fail("PUT", Refuse(403, "AccessDenied"), times=100)

    reported = there.run("check", code=1)
    assert "refuses access (AccessDenied)" in reported
    assert f"{bucket}/lake" in reported


@pytest.mark.long
def test_a_destination_writes_to_a_bucket(
    tmp_path: Path, bucket: BucketPath, proxy: FaultyProxy, s3: S3Server
) -> None:
    there = BucketProject(tmp_path, f"{bucket}/lake", proxy.port, {})

    def let_requests_fail() -> None:
        # Failures of the store are repeated, whatever the batch.
        proxy.fail("PUT .*/data/", _SLOW_DOWN, times=3, after=2)
        proxy.fail("PUT .*/metadata/", LoseResponse(), times=3, after=10)

    there.send_examples("shop", before=let_requests_fail)
    assert len(proxy.failed) == 6
    assert {found["table"] for found in there.json("tables")} == {"shop.customers", "shop.orders"}
    assert list(s3.folder_of(bucket).glob("lake/tables/*/data"))


#: Lands rows by tasks, and erases one of them.
_ERASE: Final = """
import sys
from pathlib import Path
from chronolake.config import load_project
from chronolake.lake import Lake
from chronolake.landing import erase, land, purges_in
from chronolake.source.protocol import raw_folder
from chronolake.types import Column, ColumnType, Kind

project = load_project(Path("chronolake.yml"))
lake = Lake.open(project.lake.path, config=project.lake)
folder = raw_folder(project, "shop", "orders")
columns = [Column("id", ColumnType(Kind.LONG), True), Column("name", ColumnType(Kind.STRING))]
guard = lambda: None

def rows(ids, parts, name, at, purged):
    return lake.spark.range(0, ids, 1, parts).selectExpr(
        "id", f"{name} AS name", f"{at}L AS __chronolake_modified", "'1' AS __chronolake_sequence",
        "CAST(NULL AS BIGINT) AS __chronolake_deleted_at", f"{purged} AS __chronolake_purged_at")

landed = land(rows(400, 4, "'secret'", 1, "CAST(NULL AS BIGINT)"), columns, folder, guard=guard)
assert len(landed) == 4, landed
land(rows(1, 1, "CAST(NULL AS STRING)", 5, "5L"), columns, folder, guard=guard)
files = folder.files()
print(erase(purges_in(lake.spark, files), files, folder, guard=guard))
"""


@pytest.mark.long
def test_tasks_land_files_and_purged_values_are_erased(
    tmp_path: Path, bucket: BucketPath, proxy: FaultyProxy
) -> None:
    there = BucketProject(tmp_path, f"{bucket}/lake", proxy.port, {})
    proxy.fail("PUT .*_staging", _SLOW_DOWN, times=2)
    proxy.fail("PUT .*batch=.*partNumber", LoseResponse())

    done = subprocess.run(
        [sys.executable, "-c", _ERASE], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1"]
    folder = raw_folder(there.project, "shop", "orders")
    names: dict[str, Any] = {}
    for file in folder.files()[:-1]:
        assert isinstance(file.path, BucketPath)
        with file.path.open() as content:
            table = pq.read_table(content)
            names |= dict(zip(table["Id"].to_pylist(), table["name"].to_pylist(), strict=True))
    assert len(names) == 400
    assert {key for key, name in names.items() if name is None} == {"0"}
    assert list((folder.bucket_path / "_staging").objects()) == []


@pytest.mark.long
@pytest.mark.parametrize(
    "failpoint",
    [
        "land.file-published",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in sorted(FAILPOINTS)
            if name.partition(".")[0] in {"land", "staged", "publish", "sync"}
            and name != "land.file-published"
        ),
    ],
)
def test_a_sync_that_is_killed_is_continued(
    shop: BucketProject, address: str, failpoint: str
) -> None:
    shop.run("sync", "shop")
    _change_orders(address)

    command = shop.start("sync", "shop", failpoint=f"{failpoint}=kill")
    command.communicate(timeout=TIMEOUT)
    # A sync does not reach each of them.
    assert command.returncode in {0, KILLED}
    assert failpoint != "land.file-published" or command.returncode == KILLED

    shop.run("sync", "shop")
    _expect_equal(shop, address)
    shop.run("verify", "shop.orders", "--against-lake")
