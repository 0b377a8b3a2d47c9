"""Failures of object stores in the words of Java's clients and of Arrow."""

from __future__ import annotations

import pyarrow as pa
import pytest

from chronolake.errors import ObjectStoreError
from chronolake.storage import storage_error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "Access Denied (Service: S3, Status Code: 403, Request ID: 1, Extended ID: 2)",
            "The object store refuses access (status 403).",
        ),
        (
            "Please reduce your request rate. (Service: S3, Status Code: 503, Request ID: 1)",
            "The object store responds with an error (status 503).",
        ),
        (
            "SdkClientException: Unable to load region from any of the providers in the chain",
            "The region of the bucket is not known.",
        ),
        (
            "must be addressed using the specified endpoint. (Service: S3, Status Code: 301, ",
            "The bucket is in another region (status 301).",
        ),
        (
            "software.amazon.awssdk.core.exception.SdkClientException: Unable to execute",
            "The object store does not respond.",
        ),
        (
            "AWS Error ACCESS_DENIED during HeadObject operation: No body. (HTTP status 403)",
            "The object store refuses access (ACCESS_DENIED).",
        ),
        (
            "When listing: AWS Error NO_SUCH_BUCKET during ListObjectsV2 operation: gone",
            "The bucket does not exist.",
        ),
        (
            "AWS Error NETWORK_CONNECTION during GetObject operation: curlCode: 7",
            "The object store does not respond.",
        ),
        (
            "com.azure.storage.file.datalake.models.DataLakeStorageException: Status code 403, no",
            "The object store refuses access (status 403).",
        ),
    ],
)
def test_a_failure_is_recognized(text: str, message: str) -> None:
    found = storage_error(pa.ArrowException(text))

    assert isinstance(found, ObjectStoreError)
    assert found.message == message
    assert found.hint


def test_other_messages_are_no_failures_of_a_store() -> None:
    assert storage_error(pa.ArrowException("Status code of the row is 403.")) is None
