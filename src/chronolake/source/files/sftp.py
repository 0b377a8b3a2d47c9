"""Files on SFTP servers: their list, and copies that Spark's tasks can read.

Files are downloaded into a temporary folder, which only this user can read, and removed when they
have landed. Tasks on other machines read them in the lake's folder if it is shared, and otherwise
get copies in the lake's bucket.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from chronolake.config import SftpSettings, StorageConfig
from chronolake.errors import SourceError
from chronolake.extras import require
from chronolake.object_store import BucketPath
from chronolake.private_folder import private_folder
from chronolake.source.files.file_list import (
    SourceFile,
    list_files,
    missing_folder_error,
    root_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence

    from chronolake.config import FileSettings
    from chronolake.lake import Lake

_SCHEME: Final = "sftp://"
#: Seconds until a server has to respond to the first request.
_CONNECT_SECONDS: Final = 30
#: Files that are downloaded at the same time.
_DOWNLOADS: Final = 4
#: Seconds between two signs of life, and how many of them may be missed.
_ALIVE_SECONDS: Final = 30
_ALIVE_MISSED: Final = 4


def is_sftp(path: str) -> bool:
    """Return whether a path is the URL of an SFTP server."""
    return path.startswith(_SCHEME)


def list_server(root: str, settings: SftpSettings | None) -> list[SourceFile]:
    """Return the files below a folder of a server.

    Raises:
        MissingExtraError: the client is not installed.
        SourceError: the folder does not exist, or the server cannot be reached, is not the known
            one, or refuses.
    """
    found: list[SourceFile] = _run(_list(root.rstrip("/"), settings or SftpSettings()), root)
    return found


def list_source(
    root: str, base: Path, settings: FileSettings, storage: StorageConfig
) -> Iterator[SourceFile]:
    """Yield the files below a folder of any kind, in no particular order.

    Args:
        root: the folder.
        base: relative paths are resolved against it.
        settings: the source's settings.
        storage: how an object store is reached.

    Raises:
        SourceError: the folder cannot be read.
        ObjectStoreError: the store refuses, or does not respond.
    """
    if is_sftp(root):
        yield from list_server(root, settings.sftp)
    else:
        yield from list_files(root_of(root, base, storage))


def download(urls: Sequence[str], paths: Sequence[Path], settings: SftpSettings | None) -> None:
    """Download files of a server.

    Args:
        urls: the files, at least one; all of the same server.
        paths: where they are written.
        settings: how the server is reached.

    Raises:
        MissingExtraError: the client is not installed.
        SourceError: the server cannot be reached, is not the known one, or refuses.
    """
    _run(_download(urls, paths, settings or SftpSettings()), urls[0])


@contextmanager
def stage(
    files: Sequence[SourceFile], settings: SftpSettings | None, lake: Lake, *, is_hidden: bool
) -> Iterator[list[SourceFile]]:
    """Download files of a server, until the block ends; other files stay where they are.

    Args:
        files: the files; all of the same server, or none of a server.
        settings: how the server is reached.
        lake: the lake whose tasks read them.
        is_hidden: whether columns have rules: their values must not be in the lake.

    Yields:
        The files as tasks can read them.

    Raises:
        SourceError: a file cannot be downloaded, or would have to be copied to the lake.
    """
    if not files or not is_sftp(str(files[0].path)):
        yield [*files]
        return
    shared = lake.executor_files
    if is_hidden and not lake.is_local:
        raise SourceError(
            "Files of an SFTP server cannot be read on a cluster if columns are excluded, hashed "
            "or masked: they would be copied to the lake's storage as they are.",
            hint="Sync this pipeline with spark.master local[*], or copy the files to a bucket.",
        )
    copies: list[BucketPath] = []
    with private_folder("chronolake-sftp-", _shared_folder(lake)) as folder:
        paths = [folder / f"{n:06}-{file.path.name}" for n, file in enumerate(files)]
        download([str(file.path) for file in files], paths, settings)
        found = []
        for file, path in zip(files, paths, strict=True):
            if shared.are_shared:
                found.append(replace(file, path=path))
                continue
            with path.open("rb") as content:
                copies.append(shared.copy(content, ending="".join(path.suffixes[-2:])))
            found.append(replace(file, path=copies[-1]))
        try:
            yield found
        finally:
            shared.discard(copies)


def _shared_folder(lake: Lake) -> Path | None:
    """Return the folder that tasks on other machines see, too; None: they get copies."""
    if lake.is_local or not lake.executor_files.are_shared:
        return None
    place = lake.config.path / "raw" / "_sftp"
    place.mkdir(parents=True, exist_ok=True)
    return place


def _run(work: Coroutine[Any, Any, Any], url: str) -> Any:
    """Run a conversation with a server.

    Raises:
        MissingExtraError: the client is not installed.
        SourceError: the server cannot be reached, is not the known one, or refuses.
    """
    try:
        require("sftp", "A source on an SFTP server")
        import asyncssh  # noqa: PLC0415 - of an extra
    except BaseException:
        work.close()
        raise
    try:
        return asyncio.run(work)
    except asyncssh.HostKeyNotVerifiable:
        raise SourceError(
            "The key of the SFTP server is not a known one.",
            file=url,
            hint="Check the server's key, and add it to ~/.ssh/known_hosts, or set "
            "source.sftp.known_hosts or source.sftp.host_key.",
        ) from None
    except asyncssh.PermissionDenied:
        raise SourceError(
            "The SFTP server does not accept the user.",
            file=url,
            hint="Check the user in the URL, and source.sftp.password or source.sftp.private_key.",
        ) from None
    except asyncssh.KeyImportError:
        raise SourceError(
            "A key for the SFTP server cannot be read.",
            file=url,
            hint="Check source.sftp.private_key, source.sftp.passphrase and source.sftp.host_key.",
        ) from None
    except (asyncssh.Error, OSError, TimeoutError) as failure:
        # Texts of servers are not shown: they may contain anything.
        reason = getattr(failure, "strerror", None) or type(failure).__name__
        raise SourceError(
            f"The SFTP server cannot be read: {reason}.",
            file=url,
            hint="Check the URL, and the permissions of the user.",
        ) from None


def _options(url: str, settings: SftpSettings) -> dict[str, Any]:
    """Return how the server of a URL is reached, as the client has it."""
    import asyncssh  # noqa: PLC0415 - of an extra

    place = urlsplit(url)
    options: dict[str, Any] = {
        "host": place.hostname,
        "connect_timeout": _CONNECT_SECONDS,
        "login_timeout": _CONNECT_SECONDS,
        "keepalive_interval": _ALIVE_SECONDS,
        "keepalive_count_max": _ALIVE_MISSED,
    }
    if place.username:
        options["username"] = unquote(place.username)
    if place.port:
        options["port"] = place.port
    if settings.password is not None:
        options |= {"password": settings.password, "client_keys": None}
    if settings.private_key is not None:
        key = settings.private_key
        text = key if "PRIVATE KEY" in key else _read_key(Path(key).expanduser())
        options["client_keys"] = [asyncssh.import_private_key(text, settings.passphrase)]
    if settings.host_key is not None:
        options["known_hosts"] = ([asyncssh.import_public_key(settings.host_key)], [], [])
    elif settings.known_hosts is not None:
        known = Path(settings.known_hosts).expanduser()
        if not known.is_file():
            raise SourceError(
                "The file that source.sftp.known_hosts names does not exist.",
                file=str(known),
                hint="Create it, or set source.sftp.host_key to the server's public key.",
            )
        options["known_hosts"] = str(known)
    return options


def _read_key(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        reason = getattr(failure, "strerror", None) or "it is not a text"
        raise SourceError(
            # Not its name: a key without its header may have been taken for one.
            f"The file that source.sftp.private_key names cannot be read: {reason}.",
            hint="Set source.sftp.private_key to a file with a private key, or to the key itself.",
        ) from None


@asynccontextmanager
async def _connect(url: str, settings: SftpSettings) -> AsyncIterator[Any]:
    """Connect to the server of a URL, and yield the client."""
    import asyncssh  # noqa: PLC0415 - of an extra

    async with (
        asyncssh.connect(**_options(url, settings)) as connection,
        connection.start_sftp_client() as client,
    ):
        yield client


def _path_in(url: str) -> str:
    """Return the path on the server; `/~/` is the user's home."""
    path = "/" + url.removeprefix(_SCHEME).partition("/")[2]
    return path.removeprefix("/~/") if path.startswith("/~/") else path


async def _list(root: str, settings: SftpSettings) -> list[SourceFile]:
    import asyncssh  # noqa: PLC0415 - of an extra

    found: list[SourceFile] = []
    async with _connect(root, settings) as client:
        base = PurePosixPath(_path_in(root))
        folders = [base]
        while folders:
            folder = folders.pop()
            try:
                entries = await client.readdir(str(folder))
            except asyncssh.SFTPNoSuchFile:
                if folder == base:
                    raise missing_folder_error(root) from None
                # It was removed meanwhile.
                continue
            for entry in entries:
                if entry.filename in {".", ".."}:
                    continue
                path = folder / entry.filename
                attributes = entry.attrs
                if attributes.type == asyncssh.FILEXFER_TYPE_SYMLINK:
                    try:
                        attributes = await client.stat(str(path))
                    except asyncssh.SFTPNoSuchFile:
                        continue
                if attributes.type == asyncssh.FILEXFER_TYPE_DIRECTORY:
                    folders.append(path)
                elif attributes.type == asyncssh.FILEXFER_TYPE_REGULAR:
                    name = path.relative_to(base).as_posix()
                    modified = int(attributes.mtime or 0) * 1_000_000
                    # Nothing reads it here: it is downloaded before.
                    place = BucketPath(f"{root}/{name}", StorageConfig())
                    size = int(attributes.size or 0)
                    found.append(SourceFile(place, name, size, f"{modified}", modified))
    return found


async def _download(urls: Sequence[str], paths: Sequence[Path], settings: SftpSettings) -> None:
    limit = asyncio.Semaphore(_DOWNLOADS)
    async with _connect(urls[0], settings) as client:

        async def download(url: str, path: Path) -> None:
            async with limit:
                await client.get(_path_in(url), str(path))

        await asyncio.gather(*map(download, urls, paths))
