"""Addresses of PostgreSQL servers, and a project that syncs a database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from postgresql import server

from support.source.databases import Shop


@pytest.fixture(scope="module", params=[18, pytest.param(16, marks=pytest.mark.long)])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the address of a server, once for each supported version."""
    with server(version=request.param, wal_level="logical", max_prepared_transactions="5") as found:
        yield found


@pytest.fixture
def shop(address: str, tmp_path: Path) -> Iterator[Shop]:
    """Yield a database without tables, and the project that syncs it."""
    there = Shop(tmp_path, address)
    there.run("DROP SCHEMA IF EXISTS public, oracle CASCADE", "CREATE SCHEMA public")
    yield there
    there.run(
        "DROP PUBLICATION IF EXISTS chronolake_shop",
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots",
    )
