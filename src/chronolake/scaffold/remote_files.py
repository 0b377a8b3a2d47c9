"""Proposals for folders of files in buckets and on SFTP servers.

Their files are listed, and empty files with the same names are made in a temporary folder. Only the
files of which rows are read are downloaded.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from chronolake.config import SftpSettings
from chronolake.config.file_sources import FilesSource, check_file_location
from chronolake.errors import ConfigurationError, SourceError
from chronolake.object_store import BucketPath
from chronolake.scaffold.document import Entry
from chronolake.scaffold.files import Folder, propose_folder
from chronolake.scaffold.proposal import ProposedPipeline, Variable, name_from, password_variable
from chronolake.scaffold.sample import ending_of
from chronolake.source.files.sftp import download, is_sftp, list_source

if TYPE_CHECKING:
    from chronolake.config import StorageConfig
    from chronolake.scaffold.origin import Request
    from chronolake.source.files.file_list import SourceFile

#: Bytes that one request reads.
_READ_BYTES: Final = 8 * 2**20
_KEY: Final = "~/.ssh/id_ed25519"


def propose_remote_files(request: Request, storage: StorageConfig) -> list[ProposedPipeline]:
    """Return the pipelines for the files below a URL.

    Args:
        request: the URL.
        storage: how an object store is reached.

    Raises:
        ConfigurationError: the URL is not valid, or there are no data files.
        SourceError: the files cannot be listed, or one cannot be read.
        ObjectStoreError: the store refuses, or does not respond.
    """
    url, settings, variables = _without_password(request)
    is_file = ending_of(url)[0] is not None
    root = url.rpartition("/")[0] if is_file else url
    name = _name_of(request, url)
    request.report(f"Listing {root} ...")
    source = FilesSource(type="files", path=f"{root}/*", stream="x", sftp=settings)
    listed = {
        file.name: file
        for file in list_source(root, request.folder, source, storage)
        if not is_file or f"{root}/{file.name}" == url
    }
    if not listed:
        raise ConfigurationError(f"There are no files in {url}.", hint="Check the URL.")
    with tempfile.TemporaryDirectory(prefix="chronolake-init-") as temporary:
        copies = _Copies(Path(temporary, name), listed, root, settings)
        copies.make()
        options = _options(url, settings, variables)
        folder = Folder(copies.root, root, copies.load, options, root)
        found = propose_folder(request, folder, name, only=next(iter(listed)) if is_file else None)
    return [replace(proposed, variables=variables) for proposed in found]


def _name_of(request: Request, url: str) -> str:
    """Return the name of the first pipeline: that of the folder or file, or of the bucket."""
    parts = urlsplit(url)
    path = PurePosixPath(parts.path)
    last = path.stem if ending_of(path.name)[0] is not None else path.name
    return request.name or name_from(last or parts.netloc.rpartition("@")[2])


class _Copies:
    """Local copies of files: empty ones, until they are loaded."""

    def __init__(
        self,
        root: Path,
        files: dict[str, SourceFile],
        url: str,
        settings: SftpSettings | None,
    ) -> None:
        self.root = root
        self._files = files
        self._url = url
        self._settings = settings
        self._loaded: set[str] = set()

    def make(self) -> None:
        """Make an empty file for each one."""
        for name in self._files:
            # A server may send any name.
            parts = PurePosixPath(name).parts
            if ".." in parts or name.startswith("/") or not parts:
                continue
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def load(self, path: Path) -> None:
        """Download a file, unless that was done."""
        name = path.relative_to(self.root).as_posix()
        if name in self._loaded:
            return
        self._loaded.add(name)
        place = self._files[name].path
        assert isinstance(place, BucketPath)  # noqa: S101 - it has a URL
        if is_sftp(self._url):
            download([str(place)], [path], self._settings)
            return
        try:
            with place.open_binary(_READ_BYTES) as content, path.open("wb") as copy:
                shutil.copyfileobj(content, copy, _READ_BYTES)
        except OSError as failure:
            raise SourceError(
                f"The file cannot be read: {failure.strerror}.",
                file=str(place),
                hint="Check the disk of the temporary folder.",
            ) from failure


def _without_password(
    request: Request,
) -> tuple[str, SftpSettings | None, tuple[Variable, ...]]:
    """Return the URL without a password, how a server is reached, and the variables.

    Raises:
        ConfigurationError: the URL is not valid.
    """
    url = request.origin.rstrip("/")
    if any(char in url.partition("@")[2] or char in url.rpartition("@")[2] for char in "{}*"):
        raise ConfigurationError(
            "The URL contains a character that is a placeholder in paths of files.",
            hint="Its path must not contain {, } or *.",
        )
    variables: tuple[Variable, ...] = ()
    settings = SftpSettings() if is_sftp(url) else None
    if settings is not None:
        scheme, _, rest = url.partition("://")
        user, at, place = rest.rpartition("@")
        who, has_password, password = user.partition(":")
        if has_password:
            url = f"{scheme}://{who}{at}{place}"
            name, about = _name_of(request, url), "the user's password"
            variables = (password_variable(name, "password", unquote(password), about),)
            if variables[0].value is None:
                raise ConfigurationError(
                    f"The environment variable {variables[0].name} is not set.",
                    hint="Set it to the password.",
                )
            settings = SftpSettings(password=variables[0].value)
    try:
        check_file_location(url)
    except ValueError as failure:
        raise ConfigurationError(f"The URL is not valid: {failure}.", hint="Correct it.") from None
    return url, settings, variables


def _options(
    url: str, settings: SftpSettings | None, variables: tuple[Variable, ...]
) -> tuple[Entry, ...]:
    """Return the entries of a source with how its files are reached."""
    if settings is not None:
        about = "How the server is reached. Its key has to be in ~/.ssh/known_hosts."
        if variables:
            return (Entry("sftp", (Entry("password", f"${{{variables[0].name}}}"),), about),)
        key = (Entry("private_key", _KEY),)
        about = f"{about} Without settings: by the keys in ~/.ssh and of the SSH agent."
        return (Entry("sftp", key, about, is_disabled=True),)
    if url.startswith("s3://"):
        endpoint = (Entry("endpoint", "http://minio:9000"), Entry("region", "us-east-1"))
        about = (
            "How the bucket is reached. Default: as lake.storage, and by the credentials of the "
            "environment (AWS_ACCESS_KEY_ID, AWS_PROFILE …)."
        )
        return (Entry("storage", endpoint, about, is_disabled=True),)
    return ()
