"""Objects of a bucket: nothing is overwritten, and each failure is repeated or reported."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chronolake.config import StorageConfig
from chronolake.errors import ObjectStoreError
from chronolake.object_store import BucketPath
from support.store.bucket_rules import BUCKET_RULES
from support.store.faulty_proxy import CutUpload, Fault, FaultyProxy, LoseResponse, Refuse
from support.store.server import ACCESS_KEY, SECRET_KEY, S3Server, storage_at

_SLOW_DOWN = Refuse(503, "SlowDown")


@pytest.mark.parametrize("expect", BUCKET_RULES)
def test_the_rules_of_buckets_hold(
    bucket: BucketPath, expect: Callable[[BucketPath], None]
) -> None:
    expect(bucket)


@pytest.mark.parametrize("name", ["a%2Fb", "a b", "ü#?&=+", "{a}[b]*", "a\\b", "~!@$^()"])
def test_names_are_stored_as_they_are(s3: S3Server, bucket: BucketPath, name: str) -> None:
    (bucket / "folder" / name).create(b"1")

    assert [path.name for path in s3.folder_of(bucket / "folder").iterdir()] == [name]
    assert [stored.path.name for stored in (bucket / "folder").objects()] == [name]


def test_parquet_files_are_read_by_range(bucket: BucketPath, proxy: FaultyProxy) -> None:
    table = pa.table({"a": range(200_000), "b": [os.urandom(8) for _ in range(200_000)]})
    content = pa.BufferOutputStream()
    pq.write_table(table, content, row_group_size=20_000, compression=None)
    (bucket / "f").create(content.getvalue().to_pybytes())
    path = replace(bucket / "f", storage=storage_at(proxy.port))

    with path.open() as file:
        assert pq.read_metadata(file).num_rows == 200_000
        # One HEAD, and one request for the footer.
        assert len(proxy.requests) == 2
    with path.open() as file:
        assert pq.read_table(file) == table


def test_a_path_is_sent_to_tasks_and_shows_no_secret(bucket: BucketPath) -> None:
    (bucket / "a").create(b"1")

    sent = pickle.loads(pickle.dumps(bucket / "a"))  # noqa: S301 - pickled here

    assert sent.read_bytes() == b"1"
    assert "secret" not in repr(bucket)


_CREATED = b"content " * 1_000_000


@pytest.mark.parametrize(
    ("requests", "fault", "times"),
    [
        ("PUT", _SLOW_DOWN, 3),
        ("PUT", Refuse(500, "InternalError"), 2),
        ("PUT", Refuse(409, "ConditionalRequestConflict"), 2),
        ("PUT", CutUpload(), 2),
        ("PUT", LoseResponse(), 1),
        ("PUT", LoseResponse(seconds=3), 1),
    ],
)
def test_a_failed_upload_is_repeated_until_its_outcome_is_known(
    faulty: BucketPath, proxy: FaultyProxy, requests: str, fault: Fault, times: int
) -> None:
    proxy.fail(requests, fault, times=times)

    assert (faulty / "a").create(_CREATED)

    assert len(proxy.failed) == times
    assert (faulty / "a").read_bytes() == _CREATED


@pytest.mark.parametrize("fault", [_SLOW_DOWN, LoseResponse()])
@pytest.mark.parametrize("requests", ["POST .*uploads", "PUT .*partNumber", "POST .*uploadId="])
def test_a_failed_copy_is_repeated_until_its_outcome_is_known(
    faulty: BucketPath, proxy: FaultyProxy, requests: str, fault: Fault
) -> None:
    (faulty / "a").create(b"content")
    proxy.fail(requests, fault)

    assert (faulty / "a").copy_to(faulty / "b")

    assert len(proxy.failed) == 1
    assert (faulty / "b").read_bytes() == b"content"


def test_a_lost_response_does_not_claim_the_object_of_another_writer(
    faulty: BucketPath, proxy: FaultyProxy, bucket: BucketPath
) -> None:
    (bucket / "a").create(b"other's")
    proxy.fail("PUT", LoseResponse())

    assert not (faulty / "a").create(b"content")

    assert (bucket / "a").read_bytes() == b"other's"


@pytest.mark.parametrize("fault", [_SLOW_DOWN, LoseResponse(), Refuse(429, "TooManyRequests")])
def test_failed_reads_are_repeated(faulty: BucketPath, proxy: FaultyProxy, fault: Fault) -> None:
    (faulty / "f" / "a").create(b"content")
    proxy.fail("GET", fault, times=2)

    assert (faulty / "f" / "a").read_bytes() == b"content"
    proxy.fail("GET", fault)
    assert [stored.size for stored in (faulty / "f").objects()] == [7]
    proxy.fail("HEAD", fault)
    assert (faulty / "f" / "a").find() is not None


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Refuse(403, "AccessDenied"), "refuses access (AccessDenied)"),
        (Refuse(404, "NoSuchBucket"), "The bucket does not exist"),
        (Refuse(400, "ExpiredToken"), "refuses access (ExpiredToken)"),
        (Refuse(403, "RequestTimeTooSkewed"), "this machine's clock is wrong"),
        (Refuse(301, "PermanentRedirect"), "in another region (status 301)"),
        (Refuse(400, "AuthorizationHeaderMalformed"), "in another region"),
        (_SLOW_DOWN, "responds with an error ("),
        (LoseResponse(), "does not respond"),
    ],
)
def test_a_lasting_failure_is_a_clear_error(
    faulty: BucketPath, proxy: FaultyProxy, fault: Fault, message: str
) -> None:
    proxy.fail(".", fault, times=1_000)

    for use in (
        lambda: (faulty / "a").create(b"1"),
        (faulty / "a").read_bytes,
        lambda: list((faulty / "f").objects()),
    ):
        with pytest.raises(ObjectStoreError) as refused:
            use()
        assert message in refused.value.message
        assert refused.value.hint
        assert (refused.value.file or "").startswith("s3://")
        # The library's message contains the signed request.
        assert refused.value.__cause__ is None


def test_wrong_keys_and_missing_buckets_are_reported(s3: S3Server, bucket: BucketPath) -> None:
    wrong = s3.storage.model_copy(update={"secret_key": "wrong"})

    with pytest.raises(ObjectStoreError, match="refuses access"):
        (replace(bucket, storage=wrong) / "a").read_bytes()
    with pytest.raises(ObjectStoreError, match="bucket does not exist"):
        (BucketPath("s3://missing-bucket", s3.storage) / "a").create(b"1")
    with pytest.raises(ObjectStoreError, match="object does not exist"):
        (bucket / "a").read_bytes()


def test_a_store_that_is_not_reachable_is_reported(bucket: BucketPath) -> None:
    nowhere = StorageConfig(endpoint="http://127.0.0.1:9", access_key="a", secret_key="b")

    with pytest.raises(ObjectStoreError, match="does not respond"):
        (replace(bucket, storage=nowhere) / "a").find()


@pytest.mark.parametrize("profile", [None, "work"])
def test_keys_are_found_in_the_default_chain(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str | None
) -> None:
    bucket = replace(s3.bucket(), storage=StorageConfig(endpoint=s3.endpoint))
    file = tmp_path / "credentials"
    file.write_text(
        f"[{profile or 'default'}]\naws_access_key_id = {ACCESS_KEY}\n"
        f"aws_secret_access_key = {SECRET_KEY}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    if profile:
        monkeypatch.setenv("AWS_PROFILE", profile)

    # Another time limit, so that the client of the other test is not used.
    assert (replace(bucket, timeout_seconds=len(profile or "") + 30.0) / "a").create(b"1")


def test_keys_in_the_environment_are_used(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = replace(s3.bucket(), storage=StorageConfig(endpoint=s3.endpoint), timeout_seconds=29)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)

    assert (bucket / "a").create(b"1")
