"""A real REST catalog for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.catalogs.accounts import Accounts, Open
from support.catalogs.projects import CatalogProject
from support.catalogs.server import RestCatalogServer, rest_catalog
from support.engines import shared_engine
from support.store.faulty_proxy import FaultyProxy, faulty_proxy
from support.store.projects import bucket_engine


@pytest.fixture(scope="session")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalogServer]:
    with rest_catalog(tmp_path_factory.mktemp("rest")) as server:
        yield server


@pytest.fixture
def proxy(rest: RestCatalogServer) -> Iterator[FaultyProxy]:
    with faulty_proxy(rest.port) as found:
        yield found


@pytest.fixture(scope="session")
def s3_socket() -> Iterator[str]:
    """Yield the socket of an engine with the client of S3, but without credentials."""
    with bucket_engine(credentials={}) as found:
        yield found


@pytest.fixture
def open_accounts(tmp_path: Path, proxy: FaultyProxy) -> Open:
    """Return a function that creates a project with a schema that no other test uses."""

    def open_(schema: str | None = None, **given: Any) -> Accounts:
        given = {"warehouse": "", "port": proxy.port, "pipelines": {}, **given}
        if "socket" not in given:
            # An engine's Java runs only commands that need the same jars: none for S3.
            given["socket"] = str(shared_engine())
        there = CatalogProject(tmp_path, **given)
        return Accounts(there, schema or f"crm_{tmp_path.name.lower()}"[:60])

    return open_


@pytest.fixture
def accounts(open_accounts: Open) -> Accounts:
    """Return a table that was synced once, and a second file for it."""
    found = open_accounts()
    found.write(a="Ann", b="Bob")
    found.there.run("sync", "crm")
    found.expect()
    found.write(a="Anna", c="Carl")
    return found
