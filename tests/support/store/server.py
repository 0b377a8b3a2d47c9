"""versitygw, a real S3 server over a folder. It is built once, into a cache folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest

from chronolake.config import StorageConfig
from chronolake.object_store import BucketPath
from support.servers import connect, free_port, running

_VERSION: Final = "v1.8.0"
_MODULE: Final = "github.com/versity/versitygw/cmd/versitygw"
_START_SECONDS: Final = 20
ACCESS_KEY: Final = "tester"
SECRET_KEY: Final = "a-secret-of-tests"


@dataclass(frozen=True)
class S3Server:
    """A running server.

    Attributes:
        port: its port on this machine.
        folder: where it stores a folder for each bucket, with a file for each object.
    """

    port: int
    folder: Path
    storage: StorageConfig = field(repr=False)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def bucket(self) -> BucketPath:
        """Return a new empty bucket."""
        name = f"lake-{uuid4().hex[:12]}"
        (self.folder / name).mkdir()
        return BucketPath(f"s3://{name}", self.storage)

    def folder_of(self, path: BucketPath) -> Path:
        """Return where the server stores an object or a folder of a bucket."""
        return self.folder / path.url.removeprefix("s3://")


def storage_at(port: int) -> StorageConfig:
    """Return how a server, or a proxy to one, is reached."""
    return StorageConfig(
        endpoint=f"http://127.0.0.1:{port}", access_key=ACCESS_KEY, secret_key=SECRET_KEY
    )


def _program() -> Path | None:
    """Return the program, which is built if Go is installed; None without Go."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "chronolake-tests"
    program = cache / f"versitygw-{_VERSION}"
    go = shutil.which("go")
    if program.exists() or go is None:
        return program if program.exists() else None
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "versitygw.lock").open("a") as lock:
        # Other test processes wait for the first one.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            place = cache / uuid4().hex
            environment = {**os.environ, "GOBIN": str(place), "CGO_ENABLED": "0"}
            # Compiling without optimization takes two thirds of the time.
            flags = ["-gcflags=all=-N -l", "-ldflags=-s -w"]
            command = [go, "install", *flags, f"{_MODULE}@{_VERSION}"]
            subprocess.run(command, env=environment, check=True)
            (place / "versitygw").rename(program)
            place.rmdir()
    return program


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Run a server over a folder; the test is skipped if it cannot be built here."""
    program = _program()
    if program is None:
        pytest.skip("versitygw is built by Go, which is not installed")
    port = free_port()
    environment = {**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    command = [str(program), "--quiet", "--port", f"127.0.0.1:{port}", "posix", str(folder)]
    with running(
        command,
        partial(connect, port),
        environment=environment,
        output=subprocess.DEVNULL,
        seconds=_START_SECONDS,
    ):
        yield S3Server(port, folder, storage_at(port))


if __name__ == "__main__":
    _program()
