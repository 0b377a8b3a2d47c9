"""Azurite, a server with the protocol of Azure's blobs. It is installed once, by npm."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import pytest

from support.servers import connect, free_port, running

_START_SECONDS: Final = 30
_CONTAINER: Final = "lake1"
_AZURITE: Final = "3.35.0"
#: The account that every Azurite has.
_ACCOUNT: Final = "devstoreaccount1"
_KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


@dataclass(frozen=True)
class Store:
    """A running server. It lists blobs, but not folders as Data Lake Storage does.

    Attributes:
        bucket: the URL of a bucket that exists.
        keys: the keys of `lake.storage`.
        environment: variables that the keys refer to.
    """

    bucket: str
    keys: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def azurite(folder: Path) -> Iterator[Store]:
    """Run Azurite over a folder; the test is skipped without npm."""
    program = _azurite()
    if program is None:
        pytest.skip("Azurite is installed by npm, which is not installed")
    endpoint = f"http://127.0.0.1:{(port := free_port())}/{_ACCOUNT}"
    command = [str(program), "--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    command += ["--location", str(folder), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    with running(
        command,
        partial(connect, port),
        environment=os.environ,
        output=subprocess.DEVNULL,
        seconds=_START_SECONDS,
    ):
        _create_container(endpoint)
        yield Store(
            f"abfss://{_CONTAINER}@{_ACCOUNT}.dfs.core.windows.net",
            {"endpoint": endpoint, "account_key": "${AZURE_KEY}"},
            {"AZURE_KEY": _KEY},
        )


def _create_container(endpoint: str) -> None:
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    signed = "\n".join(
        [
            "PUT" + "\n" * 11,
            *(f"{name}:{value}" for name, value in headers.items()),
            f"/{_ACCOUNT}/{_ACCOUNT}/{_CONTAINER}",
            "restype:container",
        ]
    )
    digest = hmac.new(base64.b64decode(_KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"
    created = httpx.put(f"{endpoint}/{_CONTAINER}?restype=container", headers=headers)
    created.raise_for_status()


def _azurite() -> Path | None:
    """Return the program, which is installed if there is npm; None without npm."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "chronolake-tests"
    folder = cache / f"azurite-{_AZURITE}"
    npm = shutil.which("npm")
    if npm is None and not folder.exists():
        return None
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "azurite.lock").open("a") as lock:
        # Other test processes wait for the first one.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            assert npm is not None
            place = folder.with_suffix(".new")
            shutil.rmtree(place, ignore_errors=True)
            command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
            command += ["--prefix", str(place), f"azurite@{_AZURITE}"]
            subprocess.run(command, check=True)
            place.rename(folder)
    return folder / "node_modules" / ".bin" / "azurite-blob"
