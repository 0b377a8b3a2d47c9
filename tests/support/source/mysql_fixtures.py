"""A MySQL or MariaDB server, and an empty database of it with the project that syncs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.source.mysql_servers import ONE_FLAVOR, MysqlShop, server


@pytest.fixture(scope="module", params=ONE_FLAVOR)
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the address of a server."""
    with server(request.param) as found:
        yield found


@pytest.fixture
def shop(address: str, tmp_path: Path) -> MysqlShop:
    """Return an empty database, and the project that syncs it."""
    found = MysqlShop(tmp_path, address)
    found.prepare()
    return found
