"""A real S3 server for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chronolake.object_store import BucketPath
from support.store.faulty_proxy import FaultyProxy, faulty_proxy
from support.store.server import S3Server, s3_server, storage_at


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def bucket(s3: S3Server) -> BucketPath:
    """Return an empty bucket."""
    return s3.bucket()


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultyProxy]:
    with faulty_proxy(s3.port) as found:
        yield found


@pytest.fixture
def faulty(bucket: BucketPath, proxy: FaultyProxy) -> BucketPath:
    """Return the bucket as it is reached through the proxy."""
    return BucketPath(str(bucket), storage_at(proxy.port), timeout_seconds=2)
