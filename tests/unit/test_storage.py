"""A full disk or an unwritable folder is recognized behind every error, with its path."""

from __future__ import annotations

import errno

import pytest
from sqlalchemy.exc import OperationalError

from chronolake.errors import BatchError, CommitConflictError, StorageError
from chronolake.storage import storage_error


class Py4JError(Exception):
    """An error as Py4J raises it, with Java's message in its text."""


Py4JError.__module__ = "py4j.protocol"
FULL, READ_ONLY, DENIED = "No space left on device", "Read-only file system", "Permission denied"


@pytest.mark.parametrize("path", ["/data/lake/x.parquet", "/my lake/a b/x-1.avro"])
@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (lambda path: OSError(errno.ENOSPC, FULL, path), FULL),
        (lambda path: OSError(errno.EDQUOT, "Disk quota exceeded", path), FULL),
        (lambda path: OSError(errno.EROFS, READ_ONLY, path), "The file system is read-only"),
        (lambda path: PermissionError(errno.EACCES, DENIED, path), DENIED),
        (lambda path: Py4JError(f"java.io.IOException: {path}: {FULL}\\n\\tat a.B"), FULL),
        (lambda path: Py4JError(f"x\n: java.io.FileNotFoundException: {path} ({FULL})"), FULL),
        (lambda path: Py4JError(f"FileNotFoundException: {path} ({DENIED})"), DENIED),
        (lambda path: Py4JError(f"OSError: [Errno 28] {FULL}: '{path}'"), FULL),
        (lambda path: Py4JError(f"Caused by: {path} ({READ_ONLY})"), "The file system"),
    ],
)
def test_the_path_is_named(failure, reason: str, path: str) -> None:
    found = storage_error(failure(path))
    assert found is not None
    assert found.message.startswith(reason)
    assert found.file == path
    assert path in str(found.hint)


def test_a_cause_of_another_error_counts() -> None:
    failure = CommitConflictError("The commit did not happen.")
    failure.__cause__ = OSError(errno.ENOSPC, FULL, "/lake/x")

    found = storage_error(failure)

    assert isinstance(found, StorageError)
    assert found.file == "/lake/x"
    assert storage_error(found) is found


@pytest.mark.parametrize(
    "failure",
    [
        BatchError(f"A cell: {FULL}"),
        ValueError(FULL),
        OSError(errno.ENOENT, "No such file or directory", "/x"),
        Py4JError("java.lang.IllegalStateException: closed"),
        OperationalError("SELECT 1", {}, Exception("permission denied for table t")),
        KeyError("/x"),
    ],
)
def test_other_failures_are_not_storage_failures(failure: BaseException) -> None:
    assert storage_error(failure) is None
