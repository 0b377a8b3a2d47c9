"""Storage failures, such as a full disk or a read-only folder, with the affected path.

Python, Arrow, SQLite, Java and Spark report them with different messages and classes, often without
the path, and often as the cause of another error.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from chronolake.errors import ChronolakeError, ObjectStoreError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class _Reason:
    """A kind of storage failure.

    Attributes:
        message: the message for the user.
        hint: what to do, before the path.
        numbers: the system's error numbers of this kind.
        words: the pattern of messages of Java, SQLite and Arrow.
        affects: returns whether a folder is affected, for messages without a path.
    """

    message: str
    hint: str
    numbers: frozenset[int]
    words: re.Pattern[str]
    affects: Callable[[Path], bool]


def _is_full(folder: Path) -> bool:
    found = os.statvfs(folder)
    # Less than a batch needs to write; network drives may report larger blocks.
    return found.f_bavail * found.f_frsize < _FULL_BYTES or (found.f_files > 0 == found.f_favail)


def _is_read_only(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def _is_denied(folder: Path) -> bool:
    return not os.access(folder, os.W_OK)


_FULL_BYTES: Final = 2**20
_TEMPORARY: Final = frozenset({408, 409, 429})
_REASONS: Final = (
    _Reason(
        "No space left on device.",
        "Free space on the disk of",
        frozenset({errno.ENOSPC, errno.EDQUOT}),
        re.compile(
            r"no space left on device|disk quota exceeded|database or disk is full", re.IGNORECASE
        ),
        _is_full,
    ),
    _Reason(
        "The file system is read-only.",
        "Mount it for writing, or choose another folder than",
        frozenset({errno.EROFS}),
        re.compile(r"read-only file system", re.IGNORECASE),
        _is_read_only,
    ),
    _Reason(
        "Permission denied.",
        "Give this user the right to use",
        frozenset({errno.EACCES, errno.EPERM}),
        re.compile(r"\(permission denied\)|AccessDeniedException", re.IGNORECASE),
        _is_denied,
    ),
)
#: Messages that do not identify the reason.
_UNCLEAR: Final = re.compile(
    r"mkdirs failed|attempt to write a readonly database|unable to open database file",
    re.IGNORECASE,
)
#: A path in a message, directly before or after the reason.
_PATHS: Final = tuple(
    re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    for pattern in (
        r"(?:^|[\s:'\"])(?:file:)?(/[^:()\n]+?)(?:: | \()(?:no space|disk quota|read-|permission)",
        r"(?:on device|exceeded|file system|denied): '(/[^'\n]+)'",
        r"mkdirs failed to create (?:file:)?(/.+?)(?: \(|$)",
    )
)

#: Messages of the clients of object stores in Java (AWS, Google, Azure) and in Arrow.
_STORE_STATUS: Final = re.compile(
    r"\(Service: S3, Status Code: (\d{3})|HTTP Status Code: (\d{3})|Status code (\d{3}),"
    r"|HTTP status (\d{3})|StorageException: (\d{3}) "
)
_STORE_CODE: Final = re.compile(r"<Code>(\w+)</Code>|AWS Error ([A-Z_]+) during")
_STORE_SILENT: Final = re.compile(
    r"SdkClientException|ApiCallTimeoutException|AWS Error NETWORK_CONNECTION"
    r"|AWS Error (?:SLOW_DOWN|INTERNAL_FAILURE|REQUEST_TIMEOUT)"
)
_STORE_NO_CREDENTIALS: Final = re.compile(r"Unable to load credentials")
_STORE_NO_REGION: Final = re.compile(r"Unable to load region")
_STORE_LOCATION: Final = re.compile(r"\b((?:s3[an]?|gs|abfss?)://[^\s,;'\")]+)")
_CREDENTIALS: Final = (
    "Check the credentials (`storage` in chronolake.yml, or the provider's default chain), and "
    "that they may list, read, write and delete there."
)
#: S3's codes for temporary credentials that ended or are wrong, with status 400.
_REFUSED_TOKENS: Final = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired"})
_REGION: Final = (
    "Set `storage.region` in chronolake.yml, or the environment variable AWS_REGION, to the region "
    "of the bucket."
)
#: S3's codes for requests to the endpoint of another region, or that were signed for one.
_OTHER_REGION: Final = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed"})
_SKEWED: Final = frozenset({"RequestTimeTooSkewed"})
_NO_SUCH_BUCKET: Final = frozenset({"NoSuchBucket", "NO_SUCH_BUCKET"})

_folders: set[Path] = set()
_buckets: set[str] = set()


def register_folder(folder: Path) -> None:
    """Register a folder that this process writes to, as a candidate for errors without a path."""
    _folders.add(folder)


def register_bucket(url: str) -> None:
    """Register a bucket that this process writes to, as the location of errors without one."""
    _buckets.add(url)


def object_store_error(
    status: int | None, code: str | None, location: str | None
) -> ObjectStoreError:
    """Return the error for a request that an object store refused or did not answer.

    Args:
        status: the HTTP status; None if there was no response.
        code: the store's name of the error, or None.
        location: the URL of the object or folder, or None.
    """
    where = location or ", ".join(sorted(_buckets)) or None
    message, hint = _refusal(status, code, code or f"status {status}")
    return ObjectStoreError(message, file=where, hint=hint)


def _refusal(status: int | None, code: str | None, label: str) -> tuple[str, str]:
    """Return the message and the hint for a request that failed."""
    if code in _NO_SUCH_BUCKET:
        found = "The bucket does not exist.", "Create it, or correct the URL in chronolake.yml."
    elif code in _OTHER_REGION or status == HTTPStatus.MOVED_PERMANENTLY:
        found = f"The bucket is in another region ({label}).", _REGION
    elif code in _SKEWED:
        found = (
            f"The object store refuses access, because this machine's clock is wrong ({label}).",
            "Synchronize the machine's clock, and run the command again.",
        )
    elif status in {401, 403} or code in _REFUSED_TOKENS:
        found = f"The object store refuses access ({label}).", _CREDENTIALS
    elif status == HTTPStatus.NOT_FOUND:
        found = (
            "The object or the bucket does not exist.",
            "Check the URL in chronolake.yml, and that nothing else removes objects.",
        )
    elif status is None:
        found = (
            "The object store does not respond.",
            "Check `storage.endpoint` and the network, and run the command again.",
        )
    elif is_temporary(status):
        found = (
            f"The object store responds with an error ({label}).",
            "Run the command again when the store has recovered.",
        )
    else:
        found = (
            f"The object store responds with an error ({label}).",
            "Check the URL and `storage` in chronolake.yml.",
        )
    return found


def is_temporary(status: int | None) -> bool:
    """Return whether a request may succeed later; without a status, there was no response."""
    return status is None or status in _TEMPORARY or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def _object_store_error(text: str) -> ObjectStoreError | None:
    """Return the error for a message of an object store's client, or None for other messages."""
    found, named = _STORE_STATUS.search(text), _STORE_CODE.search(text)
    if found is None and named is None and _STORE_SILENT.search(text) is None:
        return None
    if _STORE_NO_CREDENTIALS.search(text):
        return ObjectStoreError(
            "Credentials for the object store were not found.",
            file=", ".join(sorted(_buckets)) or None,
            hint="Set `storage` in chronolake.yml, whose keys executors of a cluster get as well, "
            "or credentials of the provider's default chain on every machine.",
        )
    if _STORE_NO_REGION.search(text):
        return ObjectStoreError(
            "The region of the bucket is not known.",
            file=", ".join(sorted(_buckets)) or None,
            hint=_REGION,
        )
    status = None if found is None else int(next(filter(None, found.groups())))
    code = None if named is None else next(filter(None, named.groups()))
    place = _STORE_LOCATION.search(text)
    return object_store_error(status, code, None if place is None else place[1])


def storage_error(failure: BaseException) -> StorageError | None:
    """Return the storage failure that caused an error, or None if it had another cause.

    Args:
        failure: an error of Python, or of Java through Py4J or Spark.
    """
    for cause in _causes(failure):
        if isinstance(cause, StorageError):
            return cause
        for text, number, path in _messages_of(cause):
            if number is None and (refused := _object_store_error(text)) is not None:
                return refused
            for reason in _REASONS:
                if number in reason.numbers or (number is None and reason.words.search(text)):
                    return _error(reason, path or _path_in(text) or _affected(reason))
            if number is None and _UNCLEAR.search(text):
                return _unclear(_path_in(text))
    return None


def raise_unless_writable(folder: Path) -> None:
    """Write a file to a folder, sync it, and remove it; the folder is created if missing.

    Raises:
        StorageError: one of these steps fails.
    """
    path = folder / f".chronolake-check-{uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("wb") as file:
                file.write(bytes(_FULL_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            path.unlink(missing_ok=True)
    except OSError as failure:
        raise error_of(failure, folder) from failure


def error_of(failure: OSError, path: Path) -> StorageError:
    """Return the storage error for a failed operation on a path."""
    for reason in _REASONS:
        if failure.errno in reason.numbers:
            return _error(reason, str(path))
    return StorageError(
        f"The path cannot be written: {failure.strerror}.",
        file=str(path),
        hint=f"Choose a writable folder, or check {path}.",
    )


def _error(reason: _Reason, path: str | None) -> StorageError:
    where = path or "the lake, the raw lake or Spark's temporary files"
    return StorageError(reason.message, file=path, hint=f"{reason.hint} {where}, and try again.")


def _path_in(text: str) -> str | None:
    found = (pattern.search(text) for pattern in _PATHS)
    return next((match[1] for match in found if match), None)


def _affected(reason: _Reason, path: str | None = None) -> str | None:
    """Return the folder that a reason applies to: `path`, or one that this process writes to."""
    known = [*sorted(_folders), Path(tempfile.gettempdir())] if path is None else [Path(path)]
    for folder in known:
        place = next(place for place in (folder, *folder.parents) if place.exists())
        if reason.affects(place):
            return str(folder)
    return None


def _unclear(path: str | None) -> StorageError | None:
    for reason in _REASONS:
        if affected := _affected(reason, path):
            return _error(reason, affected)
    return None


def _causes(failure: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = failure
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _messages_of(failure: BaseException) -> Iterator[tuple[str, int | None, str | None]]:
    """Yield a failure's message, error number and path; the last two may be None."""
    if isinstance(failure, OSError) and failure.errno is not None:
        yield (
            str(failure),
            failure.errno,
            None if failure.filename is None else str(failure.filename),
        )
        return
    if isinstance(failure, ChronolakeError):
        # Its own message has another subject, but its cause is checked, too.
        return
    java: Any = getattr(failure, "java_exception", None) or getattr(failure, "_origin", None)
    if java is None and type(failure).__module__.partition(".")[0] not in _PACKAGES:
        return
    yield str(failure), None, None
    for _ in range(_DEPTH):
        if java is None:
            return
        yield str(java.getMessage()), None, None
        java = java.getCause()


#: Packages whose errors contain the system's message only as text.
_PACKAGES: Final = frozenset({"pyarrow", "sqlalchemy", "sqlite3", "py4j", "pyspark"})
_DEPTH: Final = 12
