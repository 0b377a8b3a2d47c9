"""Buckets of object stores: S3, Google Cloud Storage and Azure, through one library.

An object appears whole or not at all. `create` and `copy_new` never overwrite: the store refuses
the request if the name is taken. A request whose response was lost may have succeeded; the next
attempt is then refused, and what is stored decides whether it was this one.
"""

from __future__ import annotations

import io
import os
import re
import time
from configparser import ConfigParser, ParsingError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from uuid import uuid4

import pyarrow as pa

from chronolake.errors import ObjectStoreError
from chronolake.location import plain
from chronolake.storage import is_temporary, object_store_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

    from chronolake.config import StorageConfig

#: Attempts of a request that must not be repeated blindly, and the first pause between them.
_ATTEMPTS: Final = 4
_PAUSE_SECONDS: Final = 0.2
#: Repetitions of all other requests, and of those that a store refuses to execute now.
_RETRIES: Final = 8
#: Bytes at the end of two objects that decide whether they are the same: Parquet's footers differ.
_COMPARED_BYTES: Final = 64 * 2**10
#: Bytes that one request reads at least; a footer needs one request.
_READ_BYTES: Final = 256 * 2**10
#: Objects that one request lists.
LISTED_AT_ONCE: Final = 1_000
_STATUS: Final = re.compile(r"status code: (\d{3})")
#: The library's words for S3's answer from the endpoint of another region.
_REDIRECTED: Final = "Received redirect without LOCATION"
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")


@dataclass(frozen=True)
class StoredObject:
    """An object of a bucket.

    Attributes:
        path: its path.
        size: in bytes.
        modified: when it was written.
        identity: what identifies its content in the store.
    """

    path: BucketPath
    size: int
    modified: datetime
    identity: Mapping[str, str]


@dataclass(frozen=True)
class BucketPath:
    """An object or folder of a bucket, as `pathlib.Path` is one of a file system.

    It can be sent to Spark's tasks.

    Attributes:
        url: its URL, without a slash at the end.
        storage: how the store is reached.
        timeout_seconds: how long one request may take.
    """

    url: str
    storage: StorageConfig = field(repr=False, compare=False)
    timeout_seconds: float = field(default=120.0, repr=False, compare=False)

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> BucketPath:
        return replace(self, url=f"{self.url}/{name}")

    def joinpath(self, *names: str) -> BucketPath:
        """Return a path below this one."""
        return self / "/".join(names)

    @property
    def name(self) -> str:
        """Return the last part of the path."""
        return self.url.rpartition("/")[2]

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the parts of the path below its bucket."""
        return PurePosixPath(self.key).parts

    @property
    def parents(self) -> list[BucketPath]:
        """Return the folders that contain this path, the nearest first."""
        ends = range(1, len(self.parts) + 1)
        return [replace(self, url=self.url.rsplit("/", end)[0]) for end in ends]

    @property
    def parent(self) -> BucketPath:
        """Return the folder that contains this path."""
        return self.parents[0]

    @property
    def key(self) -> str:
        """Return the path below its bucket."""
        parts = self.url.split("/", 3)
        return parts[3] if len(parts) > 3 else ""  # noqa: PLR2004

    @property
    def _client(self) -> Any:
        root = plain("/".join(self.url.split("/", 3)[:3]))
        return _connect(root, self.storage, self.timeout_seconds)

    def folders(self) -> list[BucketPath]:
        """Return the folders in this one; empty if it does not exist.

        Raises:
            ObjectStoreError: the store refuses, or does not respond.
        """
        with _errors(self):
            found = self._client.list_with_delimiter(self.key or None)["common_prefixes"]
        return [self / path.rstrip("/").rpartition("/")[2] for path in found]

    def objects(self, *, after: str | None = None) -> Iterator[StoredObject]:
        """Yield the objects below this folder, in the order of the bytes of their paths.

        Args:
            after: yield only those with greater paths; this one is below the folder.

        Raises:
            ObjectStoreError: the store refuses, or does not respond.
        """
        offset = None if after is None else (self / after).key
        with _errors(self):
            chunks = self._client.list(self.key, offset=offset, chunk_size=LISTED_AT_ONCE)
            for chunk in chunks:
                # Not every store compares: one that ignores the offset lists all objects.
                yield from (
                    self._stored(item) for item in chunk if offset is None or item["path"] > offset
                )

    def find(self) -> StoredObject | None:
        """Return the object, or None if it does not exist.

        Raises:
            ObjectStoreError: the store refuses, or does not respond.
        """
        with _errors(self):
            try:
                return self._stored(self._client.head(self.key))
            except FileNotFoundError:
                return None

    def read_bytes(self) -> bytes:
        """Return the content of the object.

        Raises:
            ObjectStoreError: it does not exist, or the store refuses or does not respond.
        """
        with _errors(self):
            return bytes(self._client.get(self.key).bytes())

    def read_range(self, start: int, end: int) -> bytes:
        """Return bytes of the object, from `start` to before `end`.

        Raises:
            ObjectStoreError: it does not exist, or the store refuses or does not respond.
        """
        if start >= end:
            return b""
        with _errors(self):
            return bytes(self._client.get_range(self.key, start=start, end=end))

    def open(self) -> pa.PythonFile:
        """Open the object for reads at any position.

        Raises:
            ObjectStoreError: it does not exist, or the store refuses or does not respond.
        """
        return pa.PythonFile(self.open_binary(), mode="r")

    def open_binary(self, read_bytes: int = _READ_BYTES) -> io.BufferedReader:
        """Open the object as Python opens files.

        Args:
            read_bytes: bytes that one request reads at least.

        Raises:
            ObjectStoreError: it does not exist, or the store refuses or does not respond.
        """
        return io.BufferedReader(_Content(self, self._existing().size), read_bytes)

    def upload(self, content: BinaryIO) -> None:
        """Write the object from a file of any size; an object with the name is replaced.

        Raises:
            ObjectStoreError: the store refuses, or does not respond.
        """
        with _errors(self):
            self._client.put(self.key, content)

    def create(self, content: bytes) -> bool:
        """Create the object, unless its name is taken.

        Returns:
            Whether the object has this content now; if not, another one has the name.

        Raises:
            ObjectStoreError: the store refuses, or does not respond; the object may exist.
        """
        own = len(content), content[-_COMPARED_BYTES:]
        return self._attempt(
            lambda: self._client.put(self.key, content, mode="create"), lambda: own
        )

    def copy_to(self, new: BucketPath) -> bool:
        """Copy the object within its bucket, unless the new name is taken.

        Returns:
            Whether the new name has the object's content now; if not, another one has the name.

        Raises:
            ObjectStoreError: the store refuses, or does not respond; the copy may exist.
        """
        return new._attempt(
            lambda: self._client.copy(self.key, new.key, overwrite=False), self._tail
        )

    def replace(self, content: bytes, *, identity: Mapping[str, str]) -> None:
        """Replace the object, if it has not changed since it was read.

        Args:
            content: its new content.
            identity: that of the object as it was found before it was read.

        Raises:
            ObjectStoreError: it has changed, or the store refuses or does not respond.
        """
        own = len(content), content[-_COMPARED_BYTES:]
        if not self._attempt(
            lambda: self._client.put(self.key, content, mode=dict(identity)),
            lambda: own,
            is_new=False,
        ):
            raise ObjectStoreError(
                "The object was changed by another process while it was rewritten.",
                file=self.url,
                hint="Run the command again.",
            )

    def delete(self) -> None:
        """Remove the object; a missing one is ignored.

        Raises:
            ObjectStoreError: the store refuses, or does not respond.
        """
        with _errors(self), suppress(FileNotFoundError):
            self._client.delete(self.key)

    def raise_unless_writable(self) -> None:
        """Create an object in this folder, and remove it.

        Raises:
            ObjectStoreError: one of these steps fails.
        """
        probe = self / f".chronolake-check-{uuid4().hex}"
        probe.create(b"")
        probe.delete()

    def _attempt(
        self,
        request: Callable[[], object],
        own: Callable[[], tuple[int, bytes]],
        *,
        is_new: bool = True,
    ) -> bool:
        """Send a conditional request that writes this object, until its outcome is known.

        Args:
            request: sends it.
            own: returns the size and the last bytes that the object has if the request succeeded.
            is_new: whether the request creates the object.

        Returns:
            Whether the object has this content.
        """
        from obstore.exceptions import (  # noqa: PLC0415 - slow to import
            AlreadyExistsError,
            GenericError,
            PreconditionError,
        )

        with _errors(self):
            for attempt in range(_ATTEMPTS):
                try:
                    request()
                except (AlreadyExistsError, PreconditionError, GenericError) as failure:
                    is_refused = not isinstance(failure, GenericError)
                    if not (is_refused or is_temporary(_status_of(failure))):
                        raise
                    # This attempt or an earlier one may have succeeded, also one that the library
                    # has repeated. A store may also end the connection instead of refusing.
                    if self.find() is not None:
                        if self._tail() == own():
                            return True
                        if is_refused or is_new:
                            return False
                    # Otherwise the store was busy with a request for the object that failed.
                    if attempt + 1 == _ATTEMPTS:
                        raise
                else:
                    return True
                time.sleep(_PAUSE_SECONDS * 2**attempt)
        raise AssertionError

    def _tail(self) -> tuple[int, bytes]:
        """Return the object's size and its last bytes."""
        size = self._existing().size
        return size, self.read_range(max(0, size - _COMPARED_BYTES), size)

    def _existing(self) -> StoredObject:
        found = self.find()
        if found is None:
            raise _missing_error(self.url)
        return found

    def _stored(self, item: dict[str, Any]) -> StoredObject:
        bucket = "/".join(self.url.split("/", 3)[:3])
        path = replace(self, url=f"{bucket}/{item['path']}")
        names = ("e_tag", "version")
        identity = {name: item[name] for name in names if item[name] is not None}
        return StoredObject(path, item["size"], item["last_modified"], identity)


class _Content(io.RawIOBase):
    """The bytes of an object; a read near its end fetches all that follows."""

    def __init__(self, path: BucketPath, size: int) -> None:
        super().__init__()
        self._path, self._size = path, size
        self._position = 0
        self._tail: bytes | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        start = self._position
        end = min(start + len(buffer), self._size)
        tail_start = max(0, self._size - _READ_BYTES)
        if start >= tail_start:
            if self._tail is None:
                self._tail = self._path.read_range(tail_start, self._size)
            found = self._tail[start - tail_start : end - tail_start]
        else:
            found = self._path.read_range(start, end)
        buffer[: len(found)] = found
        self._position += len(found)
        return len(found)


@lru_cache(maxsize=16)
def _connect(root: str, storage: StorageConfig, timeout_seconds: float) -> Any:
    from obstore import store  # noqa: PLC0415 - slow to import

    connect: Any = store.from_url
    profile = _profile() if root.startswith("s3:") and storage.access_key is None else {}
    return connect(
        root,
        config={**profile, **storage.for_obstore(root)},
        client_options={
            "allow_http": (storage.endpoint or "").startswith("http://"),
            "timeout": timedelta(seconds=timeout_seconds),
            "connect_timeout": timedelta(seconds=min(10.0, timeout_seconds)),
        },
        retry_config={
            "max_retries": _RETRIES,
            "backoff": {
                "init_backoff": timedelta(seconds=_PAUSE_SECONDS),
                "max_backoff": timedelta(seconds=5),
                "base": 2,
            },
            "retry_timeout": timedelta(seconds=timeout_seconds / 2),
        },
    )


def _profile() -> dict[str, str]:
    """Return the keys and the region of an AWS profile, which the library does not read itself.

    Environment variables come first, as in the default chain of AWS.
    """
    name = os.environ.get("AWS_PROFILE", "default")
    found: dict[str, str] = {}
    for variable, file, section in (
        ("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name),
    ):
        parser = ConfigParser(interpolation=None)
        with suppress(ParsingError):
            parser.read(os.environ.get(variable) or Path.home() / ".aws" / file)
        if parser.has_section(section):
            found |= parser[section]
    keys = {
        "aws_access_key_id": "access_key_id",
        "aws_secret_access_key": "secret_access_key",
        "aws_session_token": "session_token",
    }
    wanted = {} if "AWS_ACCESS_KEY_ID" in os.environ else dict(keys)
    if not {"AWS_REGION", "AWS_DEFAULT_REGION"} & os.environ.keys():
        wanted["region"] = "region"
    return {key: found[given] for given, key in wanted.items() if given in found}


@contextmanager
def _errors(path: BucketPath) -> Iterator[None]:
    """Convert errors of the library to `ObjectStoreError`.

    Not chained: the library's messages contain the signed request.
    """
    from obstore.exceptions import BaseError  # noqa: PLC0415 - slow to import

    try:
        yield
    except (BaseError, FileNotFoundError) as failure:
        raise _error_of(failure, path.url) from None


def _error_of(failure: BaseException, location: str) -> ObjectStoreError:
    from obstore.exceptions import (  # noqa: PLC0415 - slow to import
        NotFoundError,
        PermissionDeniedError,
        UnauthenticatedError,
    )

    text = str(failure)
    code = found[1] if (found := _CODE.search(text)) else None
    status = HTTPStatus.MOVED_PERMANENTLY if _REDIRECTED in text else _status_of(failure)
    if isinstance(failure, PermissionDeniedError | UnauthenticatedError):
        status = status or 403
    if code != "NoSuchBucket" and isinstance(failure, FileNotFoundError | NotFoundError):
        return _missing_error(location)
    return object_store_error(status, code, location)


def _status_of(failure: BaseException) -> int | None:
    found = _STATUS.search(str(failure))
    return None if found is None else int(found[1])


def _missing_error(location: str) -> ObjectStoreError:
    return ObjectStoreError(
        "The object does not exist.",
        file=location,
        hint="Check that nothing else removes objects from the bucket.",
    )
