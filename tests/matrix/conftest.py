"""Every place of tables with every catalog, each a real server or a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from postgresql import server as postgresql_server

from support.catalogs.server import properties_on_s3, rest_catalog
from support.declarative.apis import Api
from support.engines import shared_engine
from support.matrix.projects import StoredProject
from support.matrix.sources import (
    ApiRecords,
    DataLakeRecords,
    JdbcRecords,
    PostgresRecords,
    RecordSource,
)
from support.store.projects import CREDENTIALS, bucket_engine
from support.store.server import S3Server, s3_server

PLACES = ("folder", "s3")
CATALOGS = ("sqlite", "postgresql", "rest")
SOURCES = ("replication", "snapshots", "jdbc", "api", "data-lake")


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    with postgresql_server(wal_level="logical") as address:
        yield address


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def rest_in_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rest_catalog(tmp_path_factory.mktemp("rest")) as server:
        yield server.uri


@pytest.fixture(scope="session")
def rest_on_s3(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[str]:
    properties = properties_on_s3(s3, str(s3.bucket()))
    with rest_catalog(tmp_path_factory.mktemp("rest"), properties) as server:
        yield server.uri


@pytest.fixture(scope="session")
def s3_engine() -> Iterator[str]:
    """Yield the socket of an engine whose Java has the client of S3."""
    with bucket_engine() as found:
        yield found


@pytest.fixture
def new_database(postgresql: str) -> Iterator[Callable[[], str]]:
    """Yield a function that creates a database and returns its address."""
    made: list[str] = []

    def create() -> str:
        name = f"matrix_{uuid4().hex[:8]}"
        with psycopg.connect(postgresql, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        made.append(name)
        return f"{postgresql.rpartition('/')[0]}/{name}"

    yield create
    with psycopg.connect(postgresql, autocommit=True) as connection:
        for name in made:
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                "WHERE database = %s",
                (name,),
            )
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=CATALOGS)
def catalog(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def there(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    catalog: str,
) -> StoredProject:
    """Return a project whose lake is empty."""
    address, warehouse, port, variables, buckets = "", "", 0, {}, Path()
    if place == "s3":
        s3 = request.getfixturevalue("s3")
        warehouse, port, variables, buckets = f"{s3.bucket()}/lake", s3.port, CREDENTIALS, s3.folder
    if catalog == "postgresql":
        address = request.getfixturevalue("new_database")()
    elif catalog == "rest":
        address = request.getfixturevalue("rest_in_folder" if place == "folder" else "rest_on_s3")
    for name, value in variables.items():
        # PyIceberg and the commands find them.
        monkeypatch.setenv(name, value)
    return StoredProject(
        *(tmp_path, warehouse, port, {}),
        socket=str(shared_engine()) if place == "folder" else request.getfixturevalue("s3_engine"),
        environment=variables,
        catalog=address,
        # A REST catalog is that of all tests.
        schema=f"shop_{uuid4().hex[:8]}",
        buckets=buckets,
    )


@pytest.fixture
def api() -> Iterator[Api]:
    with Api() as running:
        yield running


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, there: StoredProject) -> RecordSource:
    """Return a source that the project reads."""
    kind = request.param
    found: RecordSource
    if kind in {"replication", "snapshots"}:
        address = request.getfixturevalue("new_database")()
        methods = {"replication": "logical_replication", "snapshots": "snapshot_diff"}
        found = PostgresRecords(address, methods[kind])
    elif kind == "jdbc":
        found = JdbcRecords(there.folder)
    elif kind == "api":
        found = ApiRecords(there.folder, request.getfixturevalue("api"))
    elif there.warehouse:
        s3 = request.getfixturevalue("s3")
        location = there.warehouse.replace("/lake", "/crm")
        found = DataLakeRecords(location, s3.folder / location.removeprefix("s3://"))
    else:
        found = DataLakeRecords("crm", there.folder / "crm")
    there.read(found)
    return found
