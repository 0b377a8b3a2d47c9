"""Batch files are opened only in the allowed folders."""

from __future__ import annotations

import os
from pathlib import Path

import grpc
import pytest

from chronolake.batch_files.files import open_file
from chronolake.errors import ConfigurationError, FileAccessError, RefusedPathError
from chronolake.lake import Lake
from chronolake.server import ServeOptions, Server
from support.server.caller import SYNCED, Caller

COLUMNS = ["id*:LONG", SYNCED]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a root with a file in a folder, and with a secret beside it."""
    (tmp_path / "root" / "in").mkdir(parents=True)
    (tmp_path / "root" / "in" / "file").write_text("content")
    (tmp_path / "secret").write_text("secret")
    return tmp_path / "root"


def read(path: Path | str, root: Path | None) -> bytes:
    with open_file(str(path), None if root is None else str(root)) as file:
        return file.read()


def test_a_file_below_the_root_is_opened_however_it_is_spelled(root: Path) -> None:
    (root / "link").symlink_to(root / "in")
    (root / "alias").symlink_to("in/file")
    for path in ("in/file", "in/../in/file", "link/file", "alias", "./in//file"):
        assert read(root / path, root) == b"content"
        assert read(f"{root}/{path}", root) == b"content"
    assert read(root / "in" / "file", None) == b"content"


def test_a_file_outside_the_root_is_refused_however_it_is_spelled(root: Path) -> None:
    outside = root.parent
    (root / "link").symlink_to(outside)
    (root / "alias").symlink_to(outside / "secret")
    (root / "chain").symlink_to("alias")
    beside = Path(f"{root}-beside")
    beside.mkdir()
    (beside / "file").write_text("secret")
    for path in (
        outside / "secret",
        root / ".." / "secret",
        root / "in" / ".." / ".." / "secret",
        root / "link" / "secret",
        root / "alias",
        root / "chain",
        beside / "file",
        Path("/etc/passwd"),
        Path("/proc/self/environ"),
        root,
        outside / "not there",
        "",
    ):
        with pytest.raises(RefusedPathError) as caught:
            read(path if path == "" else f"{path}", root)
        assert "secret" not in caught.value.message


def test_a_folder_swapped_for_a_link_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.path.realpath
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "file").write_text("secret")

    def swapped(path: str, **options: bool) -> str:
        found = real(path, **options)
        (root / "in").rename(root / "was")
        (root / "in").symlink_to(outside)
        return found

    monkeypatch.setattr(os.path, "realpath", swapped)
    with pytest.raises(RefusedPathError):
        read(root / "in" / "file", root)


@pytest.mark.parametrize("rooted", [True, False])
def test_a_path_that_is_not_a_regular_file_is_refused_without_waiting(
    root: Path, *, rooted: bool
) -> None:
    os.mkfifo(root / "pipe")
    for path in (root / "pipe", root / "in"):
        with pytest.raises(RefusedPathError):
            read(path, root if rooted else None)


@pytest.mark.parametrize("rooted", [True, False])
def test_a_file_that_is_not_there_is_an_access_error(root: Path, *, rooted: bool) -> None:
    for path in (root / "nowhere", root / "no" / "where", root / ("x" * 300)):
        with pytest.raises(FileAccessError) as caught:
            read(path, root if rooted else None)
        assert not isinstance(caught.value, RefusedPathError)
        assert caught.value.file == str(path)


def test_a_path_with_a_nul_is_an_access_error(root: Path) -> None:
    for root_folder in (root, None):
        with pytest.raises(FileAccessError):
            read(f"{root}/a\0b", root_folder)


def test_a_server_with_a_root_loads_files_below_it_and_no_others(
    lake: Lake, tmp_path: Path
) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    for folder in (allowed, other):
        folder.mkdir()
    options = ServeOptions(port=0, files_root=allowed, grace=1)
    with (
        Server(lake, options) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        inside = Caller(channel, lake.config.path, allowed, "rooted")
        outside = Caller(channel, lake.config.path, other, "rooted")
        assert inside.create("t", COLUMNS).success
        row = {"id": "1", "_fivetran_synced": "2024-01-01T00:00:00Z"}
        assert inside.write("t", COLUMNS, replace=[row]).success
        answer = outside.write("t", COLUMNS, replace=[{**row, "id": "2"}])
        assert answer.WhichOneof("response") == "task"
        assert "--files-root" in answer.task.message
        assert inside.rows("t", "id") == [(1,)]


def test_a_root_that_is_not_there_is_refused_at_the_start(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(ConfigurationError):
            Server(lake, ServeOptions(port=0, files_root=folder))
