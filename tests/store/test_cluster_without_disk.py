"""Executors that share nothing with the driver but a bucket: everything works as on one machine."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any, Final

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from postgresql import server

from chronolake import jars
from chronolake.session import java_home
from chronolake.spark_requirements import EXTENSIONS
from support.cluster import PYTHON, Cluster, can_isolate, cluster, conf
from support.datalakes import DataLake
from support.declarative.apis import Api, Reply
from support.engines import AT
from support.source.mysql_servers import FLAVORS, MysqlShop
from support.source.mysql_servers import server as mysql_server
from support.source.sftp import sftp_server
from support.store.projects import CREDENTIALS, BucketProject, bucket_engine
from support.store.server import S3Server
from support.waiting import TIMEOUT, wait_until

_WORKERS: Final = ("one", "two")
#: Sent to executors with the jobs.
_KEYS: Final = {
    "access_key": "${AWS_ACCESS_KEY_ID}",
    "secret_key": "${AWS_SECRET_ACCESS_KEY}",
}
_MANIFEST: Final = """
version: 6.48.0
type: DeclarativeSource
check: {type: CheckStream, stream_names: [orders]}
streams:
  - type: DeclarativeStream
    name: orders
    primary_key: [id]
    retriever:
      type: SimpleRetriever
      requester: {type: HttpRequester, url_base: "{{ config['url'] }}", path: /orders}
      record_selector: {type: RecordSelector, extractor: {type: DpathExtractor, field_path: [data]}}
    schema_loader:
      type: InlineSchemaLoader
      schema:
        type: object
        properties: {id: {type: integer}, note: {type: string}}
spec:
  type: Spec
  connection_specification: {properties: {url: {type: string}}}
"""


#: A job as users write it; Spark's settings are those that `Lake.open` asks for.
_JOB: Final = """
import json
import sys

import chronolake
from pyspark.sql import SparkSession

builder = SparkSession.builder
for name, value in json.loads(sys.argv[1]).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
lake = chronolake.Lake.open("lake", spark=spark)
result = chronolake.sync("crm", project=".")
print(result.status, [stream.error for stream in result.streams])
print(lake.sql("SELECT count(*) AS n FROM crm.Account WHERE _fivetran_active").collect()[0].n)
"""


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if not can_isolate():
        pytest.skip("mount namespaces cannot be created here")
    with cluster(tmp_path_factory.mktemp("cluster"), *_WORKERS) as running:
        yield running


@pytest.fixture(scope="module")
def engine(workers: Cluster) -> Iterator[str]:
    """Yield the socket of an engine whose executors are on the cluster."""
    with bucket_engine(spark=_spark(workers), keys=_KEYS) as found:
        yield found


def _spark(workers: Cluster) -> dict[str, Any]:
    return {"master": workers.master, "conf": conf()}


Open = Callable[..., BucketProject]


@pytest.fixture
def open_project(tmp_path: Path, s3: S3Server, workers: Cluster, engine: str) -> Open:
    bucket = s3.bucket()

    def open_(**pipelines: Any) -> BucketProject:
        return BucketProject(
            *(tmp_path, f"{bucket}/lake", s3.port, pipelines),
            socket=engine,
            spark=_spark(workers),
            keys=_KEYS,
        )

    return open_


def _place(there: BucketProject, s3: S3Server) -> Path:
    return s3.folder / there.warehouse.removeprefix("s3://").rpartition("/")[0]


class Accounts:
    """A data lake in the bucket, and its latest names."""

    def __init__(self, place: Path) -> None:
        self._lake = DataLake(place)
        self.names: dict[str, str] = {}

    def write(self, names: dict[str, str]) -> None:
        self.names |= names
        self._lake.write_names("Account", names, at=AT)

    def write_names_and_changes(self) -> None:
        """Write a thousand names, and a change of every other one."""
        self.write({str(number): f"name {number}" for number in range(1000)})
        self.write({str(number): f"new {number}" for number in range(0, 1000, 2)})

    def expect(self, there: BucketProject) -> None:
        rows = there.rows("crm", "Account")
        active = {row["Id"]: row["Name"] for row in rows if row["_fivetran_active"]}
        assert active == self.names
        assert len({(row["Id"], row["_fivetran_start"]) for row in rows}) == len(rows)


@pytest.fixture
def accounts(open_project: Open, s3: S3Server) -> tuple[BucketProject, Accounts]:
    there = open_project()
    place = _place(there, s3) / "crm"
    source = {"type": "data_lake_v2", "path": f"s3://{place.parent.name}/crm", "org": "X"}
    there.pipelines["crm"] = {"mode": "history", "source": source}
    there.configure()
    return there, Accounts(place)


@pytest.mark.long
def test_a_data_lake_is_synced_by_executors_without_a_shared_folder(
    accounts: tuple[BucketProject, Accounts], workers: Cluster
) -> None:
    there, lake = accounts
    lake.write_names_and_changes()

    there.run("sync", "crm")

    lake.expect(there)
    # One executor may have done all of it before the other one had started.
    wait_until(lambda: all(map(workers.executors, _WORKERS)), "a worker has no executor")


def _run(address: str, *statements: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.mark.long
def test_a_database_is_copied_by_executors_and_its_spooled_log_is_landed_by_them(
    open_project: Open, s3: S3Server
) -> None:
    with server(wal_level="logical") as address:
        # A table with a key, and one whose rows are identified by a hash.
        _run(
            address,
            "CREATE TABLE orders (id INT PRIMARY KEY, note TEXT)",
            "CREATE TABLE visits (page TEXT NOT NULL, hits INT NOT NULL)",
            "CREATE UNIQUE INDEX visits_key ON visits (page)",
            "ALTER TABLE visits REPLICA IDENTITY USING INDEX visits_key",
            "INSERT INTO orders SELECT n, repeat('x', 200) || n FROM generate_series(1, 30000) n",
            "INSERT INTO visits SELECT 'page ' || n, n FROM generate_series(1, 1000) n",
        )
        there = open_project(
            shop={"mode": "history", "source": {"type": "postgres", "dsn": address}}
        )
        there.run("check", "--create")
        there.run("sync", "shop")
        # More than the driver lands by itself.
        _run(
            address,
            "UPDATE orders SET note = repeat('y', 200) || id WHERE id <= 20000",
            "DELETE FROM orders WHERE id > 29000",
            "UPDATE visits SET hits = hits + 1",
        )
        there.run("sync", "shop")

        expected = {f"{'y' * 200}{n}" for n in range(1, 20001)}
        expected |= {f"{'x' * 200}{n}" for n in range(20001, 29001)}
        rows = [row for row in there.rows("shop", "orders") if row["_fivetran_active"]]
        assert {row["note"] for row in rows} == expected
        assert len(rows) == 29000
        visits = [row for row in there.rows("shop", "visits") if row["_fivetran_active"]]
        assert sorted(row["hits"] for row in visits) == list(range(2, 1002))

        before = len(there.rows("shop", "orders"))
        there.run("rebuild", "shop.orders")
        assert len(there.rows("shop", "orders")) == before
        there.run("verify", "--all")
        there.run("maintain")
        there.pipelines["shop"]["mode"] = "live"
        there.configure()
        there.run("sync", "shop")
        assert len(there.rows("shop", "orders")) == 29000
    assert not list(_place(there, s3).rglob("_executor_files/*"))


@pytest.mark.long
@pytest.mark.parametrize("flavor", FLAVORS)
def test_mysql_is_copied_by_executors_and_its_spooled_log_is_landed_by_them(
    flavor: str, open_project: Open, s3: S3Server, tmp_path: Path
) -> None:
    with mysql_server(flavor) as address:
        shop = MysqlShop(tmp_path / "elsewhere", address)
        shop.prepare()
        shop.run(
            "SET SESSION cte_max_recursion_depth = 300000"
            if flavor == "mysql"
            else "SET SESSION max_recursive_iterations = 300000",
            "CREATE TABLE orders (id INT PRIMARY KEY, note TEXT)",
            "INSERT INTO orders WITH RECURSIVE s AS (SELECT 1 AS n UNION ALL "
            "SELECT n + 1 FROM s WHERE n < 250000) SELECT n, CONCAT(REPEAT('x', 200), n) FROM s",
        )
        source = {"type": "mysql", "dsn": f"{address}/shop"}
        there = open_project(shop={"mode": "history", "source": source})
        there.run("check")
        there.run("sync", "shop")
        shop.run(
            "UPDATE orders SET note = CONCAT(REPEAT('y', 200), id) WHERE id <= 20000",
            "DELETE FROM orders WHERE id > 29000",
        )
        there.run("sync", "shop")

        expected = {f"{'y' * 200}{n}" for n in range(1, 20001)}
        expected |= {f"{'x' * 200}{n}" for n in range(20001, 29001)}
        rows = [row for row in there.rows("shop", "orders") if row["_fivetran_active"]]
        assert {row["note"] for row in rows} == expected
        assert len(rows) == 29000
        there.run("verify", "--all")
    place = _place(there, s3)
    assert not list(place.rglob("_executor_files/*"))
    assert not [path for path in place.rglob("_copies/**/*") if path.is_file()]


@pytest.mark.long
def test_records_of_an_api_are_landed_by_executors(open_project: Open, tmp_path: Path) -> None:
    records = [{"id": number, "note": f"{number} " * 40} for number in range(20000)]
    with Api({"/orders": Reply({"data": records})}) as api:
        (tmp_path / "shop.yaml").write_text(_MANIFEST)
        source = {"type": "declarative", "manifest": "shop.yaml", "config": {"url": api.url}}
        there = open_project(api={"mode": "soft-delete", "source": source})
        there.run("sync", "api")
        assert {row["id"] for row in there.rows("api", "orders")} == set(range(20000))
        records[:] = records[:-100]
        there.run("sync", "api")
    rows = [row for row in there.rows("api", "orders") if not row["_fivetran_deleted"]]
    assert {row["id"] for row in rows} == set(range(19900))


class _SharedFolder(BucketProject):
    """A project whose lake is in a folder."""

    @property
    def lake(self) -> dict[str, Any]:
        return {}


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """Yield a folder that the workers see, too: it is in the checkout."""
    with tempfile.TemporaryDirectory(prefix=".shared-", dir=Path(__file__).parents[2]) as found:
        yield Path(found)


@pytest.mark.long
@pytest.mark.parametrize("shared", ["bucket", "folder"])
def test_files_of_an_sftp_server_are_sent_to_executors(
    tmp_path: Path, s3: S3Server, workers: Cluster, shared_folder: Path, shared: str
) -> None:
    exports = tmp_path / "exports"
    exports.mkdir()
    with sftp_server("asyncssh", tmp_path / "keys") as server:
        (client,) = (path for path in sys.path if (Path(path) / "asyncssh").is_dir())
        place = {"sftp": server.settings, "key": ["id"]}
        pipelines = {
            name: {"source": {"type": kind, "path": f"{server.address}{exports}/{path}", **place}}
            for name, kind, path in (
                ("csv", "files", "{stream}_*.csv.gz"),
                ("lines", "files", "{stream}_*.jsonl"),
                ("dumps", "copies", "{stream}/{date}.parquet"),
            )
        }
        in_bucket = shared == "bucket"
        there = (BucketProject if in_bucket else _SharedFolder)(
            tmp_path / "project" if in_bucket else shared_folder,
            *(f"{s3.bucket()}/lake", s3.port, pipelines),
            spark=_spark(workers),
            keys=_KEYS,
            environment={
                **CREDENTIALS,
                "PYTHONPATH": f"{os.environ['PYTHONPATH']}{os.pathsep}{client}",
            },
        )
        for number in range(3):
            text = f"id,name\n{number},é {number}\n".encode()
            (exports / f"orders_{number}.csv.gz").write_bytes(gzip.compress(text))
            (exports / f"visits_{number}.jsonl").write_text(f'{{"id": {number}}}\n')
            (exports / "items").mkdir(exist_ok=True)
            rows = pa.table({"id": list(range(number, 5))})
            pq.write_table(rows, exports / "items" / f"2026-01-0{number + 1}.parquet")
        for name in pipelines:
            there.run("sync", name)
    names = sorted((row["id"], row["name"]) for row in there.rows("csv", "orders"))
    assert names == [(f"{number}", f"é {number}") for number in range(3)]
    assert sorted(row["id"] for row in there.rows("lines", "visits")) == [0, 1, 2]
    items = sorted((row["id"], row["_fivetran_active"]) for row in there.rows("dumps", "items"))
    assert items == [(number, number > 1) for number in range(5)]
    assert not list(_place(there, s3).rglob("_executor_files/*"))
    assert not list((there.folder / "lake" / "raw").glob("_sftp/*"))


@pytest.mark.long
def test_a_destination_sends_its_batch_files_to_executors(
    open_project: Open, tmp_path: Path, s3: S3Server
) -> None:
    there = open_project()
    there.send_examples("shop")
    assert {found["table"] for found in there.json("tables")} == {"shop.customers", "shop.orders"}
    assert not list(_place(there, s3).rglob("_executor_files/*"))


class Loss:
    """The loss of a worker as soon as new objects exist in a bucket."""

    def __init__(self, workers: Cluster, place: Path, objects: str) -> None:
        self._workers = workers
        self._place = place
        self._objects = objects
        self._before = self._found()

    def _found(self) -> set[Path]:
        return set(self._place.glob(self._objects))

    def happen(self, *, unless: Callable[[], object] = lambda: None) -> None:
        """Wait for the objects, and kill a worker, which is replaced by `recover`."""
        wait_until(lambda: self._found() - self._before or unless(), "no objects")
        assert not unless()
        self._workers.kill_worker("one")

    def recover(self) -> None:
        self._workers.add_worker("one")
        self._workers.registered()

    def happen_and_recover(self) -> None:
        self.happen()
        self.recover()

    def during(self, there: BucketProject, *words: str) -> None:
        """Run a command, which loses a worker and succeeds."""
        command = there.start(*words)
        self.happen(unless=lambda: command.poll() is not None)
        output, errors = command.communicate(timeout=TIMEOUT)
        self.recover()
        assert command.returncode == 0, output + errors


@pytest.mark.long
def test_a_job_opens_the_lake_in_its_own_session_on_the_cluster(
    accounts: tuple[BucketProject, Accounts], workers: Cluster
) -> None:
    there, lake = accounts
    lake.write_names_and_changes()
    files = map(str, jars.paths(java_home(), schemes=["s3"]))
    settings = {
        **conf(),
        "spark.master": workers.master,
        "spark.jars": ",".join(files),
        "spark.sql.extensions": EXTENSIONS,
        # Of the application, whose machines may have other ones than the driver's.
        "spark.sql.session.timeZone": "America/New_York",
        "spark.executorEnv.TZ": "Asia/Tokyo",
        "spark.speculation": "true",
    }

    done = subprocess.run(
        [sys.executable, "-c", _JOB, json.dumps(settings)],
        env={**os.environ, "PYSPARK_PYTHON": PYTHON, "JAVA_HOME": java_home()},
        cwd=there.folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["succeeded [None]", "1000"]
    lake.expect(there)


@pytest.mark.long
@pytest.mark.parametrize("objects", ["tables/*/data/**/*", "tables/*/metadata/*"])
def test_a_worker_that_ends_during_a_sync_changes_nothing(
    accounts: tuple[BucketProject, Accounts], s3: S3Server, workers: Cluster, objects: str
) -> None:
    there, lake = accounts
    lake.write({str(number): f"name {number}" for number in range(1000)})
    there.run("sync", "crm")
    for number in range(12):
        lake.write({str(key): f"{number} {key}" for key in range(number * 50, 20000)})

    Loss(workers, _place(there, s3) / "lake", objects).during(there, "sync", "crm")

    lake.expect(there)
    there.run("verify", "--all")


@pytest.mark.long
def test_a_worker_that_ends_during_a_copy_changes_nothing(
    open_project: Open, s3: S3Server, workers: Cluster
) -> None:
    count = 200_000
    with server(wal_level="logical") as address:
        _run(
            address,
            "CREATE TABLE orders (id INT PRIMARY KEY, note TEXT)",
            "INSERT INTO orders SELECT n, repeat(md5(n::text), 30) "
            f"FROM generate_series(1, {count}) n",
        )
        source = {"type": "postgres", "dsn": address}
        there = open_project(shop={"mode": "history", "source": source})
        place = _place(there, s3) / "lake"
        there.run("check", "--create")

        def expect(change: str, until: int) -> None:
            rows = there.rows("shop", "orders")
            active = {row["id"]: row["note"] for row in rows if row["_fivetran_active"]}
            assert sorted(active) == list(range(1, count + 1))
            changed = {key for key, note in active.items() if note.startswith(change)}
            assert changed == set(range(1, until + 1))
            assert len(rows) == count + until

        # Of the first copy, one task writes a file before the others end.
        Loss(workers, place, "raw/**/_staging/**/*").during(there, "sync", "shop")
        expect("-", 0)
        _run(address, f"UPDATE orders SET note = '-' || id WHERE id <= {count // 2}")
        # Executors read the spooled log from copies.
        Loss(workers, place, "_executor_files/*").during(there, "sync", "shop")
        expect("-", count // 2)
        there.run("verify", "--all")


@pytest.mark.long
def test_a_worker_that_ends_during_a_rebuild_changes_nothing(
    accounts: tuple[BucketProject, Accounts], s3: S3Server, workers: Cluster
) -> None:
    there, lake = accounts
    for number in range(3):
        lake.write({str(key): f"{number} {key}" for key in range(number * 50, 20000)})
    there.run("sync", "crm")
    before = there.rows("crm", "Account")

    # The new table is in a folder of the old one.
    objects = "tables/*/*/data/**/*.parquet"
    Loss(workers, _place(there, s3) / "lake", objects).during(there, "rebuild", "crm.Account")

    lake.expect(there)
    assert _plain(there.rows("crm", "Account")) == _plain(before)


def _plain(rows: list[dict[str, Any]]) -> list[list[tuple[str, str]]]:
    """Return rows in a fixed order, without the time of their batch."""
    return sorted(
        sorted((name, repr(row[name])) for name in row.keys() - {"_fivetran_synced"})
        for row in rows
    )


@pytest.mark.long
def test_a_worker_that_ends_while_a_destination_writes_changes_nothing(
    open_project: Open, s3: S3Server, workers: Cluster
) -> None:
    there = open_project()
    there.send_examples("whole")
    loss = Loss(workers, _place(there, s3) / "lake", "_executor_files/*")
    replacing = Thread(target=loss.happen_and_recover)
    there.send_examples("shop", before=replacing.start)
    replacing.join()
    for table in ("customers", "orders"):
        assert _plain(there.rows("shop", table)) == _plain(there.rows("whole", table))


@pytest.mark.long
def test_executors_without_python_are_reported(accounts: tuple[BucketProject, Accounts]) -> None:
    there, lake = accounts
    lake.write({"a": "Ann"})
    there.socket = "off"
    there.spark["conf"] = conf(**{"spark.pyspark.python": "/usr/bin/missing"})
    there.configure()

    reported = " ".join(there.run("sync", "crm", code=1).split())

    assert "The executors' Python cannot run Chronolake" in reported
    assert "/usr/bin/missing" in reported
    assert "spark.pyspark.python" in reported
