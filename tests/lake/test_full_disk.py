"""Full disks and read-only file systems are reported with their path, by every command."""

from __future__ import annotations

import os
import pwd
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import yaml

from chronolake.config import load_project
from chronolake.core import create
from chronolake.lake import Lake
from chronolake.server import ServeOptions, Server
from chronolake.types import Column, ColumnType, Kind, TableName
from support.commands import run_command, run_words
from support.datalakes import DataLake, file_row
from support.lakes import SPARK, lake_config
from support.pipeline_model import LandedRow
from support.server.caller import SYNCED, Caller

_T = 1_767_225_600_000_000
_BYTES = 40 * 2**20


def _mount(place: Path) -> None:
    place.mkdir(exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={_BYTES}", "tmpfs", str(place)]
    if not _runs(*words):
        pytest.skip("a disk of its own needs the right to mount one")


def _runs(*words: str) -> bool:
    if shutil.which(words[0]) is None:
        return False
    return subprocess.run(words, check=False, capture_output=True).returncode == 0


@dataclass
class SmallDisk:
    """A file system of 40 MiB."""

    path: Path

    def fill(self, *, leave: int) -> None:
        """Fill all its space except some bytes."""
        with (self.path / "filler").open("wb", buffering=0) as filler:
            while (space := self._space() - leave) > 0:
                filler.write(bytes(min(space, 2**20)))

    def free(self) -> None:
        (self.path / "filler").unlink()

    def make_read_only(self) -> None:
        """Mount a read-only copy in its place; processes with open files keep the old one."""
        content = self.path.with_name("content")
        shutil.copytree(self.path, content)
        _mount(self.path)
        shutil.copytree(content, self.path, dirs_exist_ok=True)
        subprocess.run(["mount", "-o", "remount,ro", str(self.path)], check=True)

    def _space(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    place = tmp_path / "disk"
    _mount(place)
    yield SmallDisk(place)
    while _runs("umount", "-l", str(place)):
        pass


def _rows(begin: int, number: int, text: int) -> list[dict]:
    """Return rows whose texts cannot be compressed."""
    chance = random.Random(begin)
    return [
        file_row(
            LandedRow(f"r{key}", _T + begin, "1", (begin, key), fields={}),
            Name=chance.randbytes(text).hex(),
        )
        for key in range(begin, begin + number)
    ]


@pytest.fixture
def project(disk: SmallDisk, tmp_path: Path) -> Path:
    """Return a project that was synced twice; its lake is on the small disk, its source is not."""
    content = {
        "lake": {"path": str(disk.path / "lake"), "spark": {"master": "local[2]", "conf": SPARK}},
        "pipelines": {"crm": {"source": {"type": "data_lake_v2", "path": "source", "org": "X"}}},
    }
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "chronolake.yml").write_text(yaml.safe_dump(content))
    return folder


def _last_line(out: str, err: str) -> str:
    return [line for line in (err or out).splitlines() if line.strip()][-1]


#: Commands that write; each of them with its arguments.
_WRITING = {
    "sync": ["sync", "crm"],
    "resync": ["resync", "crm"],
    "rebuild": ["rebuild", "crm.Account"],
    "maintain": ["maintain"],
    "view": ["view", "crm.Account"],
    "check": ["check"],
    "mode": ["mode", "own.t", "soft-delete"],
    "state set": ["state", "set", "crm", "Account", "batch=00000/data-00000001.parquet", "--yes"],
    "state reset": ["state", "reset", "crm"],
}
#: Those that succeed with little space.
_SMALL = {"maintain", "view", "mode", "state set", "state reset"}
_READING = {
    "tables": ["tables"],
    "status": ["status"],
    "query": ["query", "SELECT count(*) FROM crm.Account"],
    "history": ["history", "crm.Account", "--key", "Id=r1"],
    "diff": ["diff", "crm.Account", "--from", "2026-01-01", "--to", "2026-02-01"],
    "usage": ["usage"],
    "runs": ["runs"],
    "discover": ["discover", "crm"],
    "state show": ["state", "show", "crm"],
    "verify": ["verify", "crm.Account"],
}


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.parametrize(
    "how", ["full", pytest.param("no room for files", marks=pytest.mark.long), "read-only"]
)
def test_every_command_names_the_disk(
    project: Path, disk: SmallDisk, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    source = DataLake(project / "source")

    def run(words: list[str]) -> tuple[int, str, str]:
        return run_words(capsys, *words, "--project", str(project))

    for begin in (0, 100):
        source.write("Account", _rows(begin, 100, 50))
        code, out, err = run(_WRITING["sync"])
        assert code == 0, out + err
    config = load_project(project / "chronolake.yml").lake
    with Lake.open(config.path, config=config) as lake:
        # A table that no pipeline fills may be switched by hand.
        create(lake, TableName("own", "t"), [Column("id", ColumnType(Kind.LONG), primary_key=True)])
        lake.spark.sql("INSERT INTO chronolake.own.t VALUES (1)")
    source.write("Account", _rows(1_000, 400, 4_000))

    if how == "read-only":
        disk.make_read_only()
    else:
        # In one of the cases, there is space for the catalog, and not for files.
        disk.fill(leave=0 if how == "full" else 2**19)
    wrong = []
    for name, words in _WRITING.items():
        code, out, err = run(words)
        is_named = code != 0 and str(disk.path) in _last_line(out, err)
        # A command that has enough space may succeed.
        has_room = code == 0 and how == "no room for files" and name in _SMALL
        if not (is_named or has_room):
            wrong.append(f"{name}: {code}: {out}{err}")
    if how != "no room for files":
        code, out, err = run_words(capsys, "init", str(disk.path / "other"))
        if code == 0 or str(disk.path) not in _last_line(out, err):
            wrong.append(f"init: {code}: {out}{err}")
    assert not wrong, "\n".join(wrong)
    for words in _READING.values():
        code, out, err = run(words)
        is_named = how == "read-only" and str(disk.path) in _last_line(out, err)
        assert code == 0 or is_named, out + err
    if how == "read-only":
        return
    disk.free()
    code, out, err = run(_WRITING["sync"])
    assert code == 0, out + err
    code, out, err = run([*_READING["query"], "--json"])
    assert '"count(1)":600' in out.replace(" ", "")
    assert load_project(project / "chronolake.yml").lake.path == disk.path / "lake"


def test_a_destination_answers_with_the_path(disk: SmallDisk, tmp_path: Path) -> None:
    columns = ["id*:LONG", "v:STRING", SYNCED]
    chance = random.Random(1)

    def rows(number: int) -> list[dict[str, str]]:
        return [
            {
                "id": str(key),
                "v": chance.randbytes(2_000).hex(),
                "_fivetran_synced": "2024-01-01T00:00:00Z",
            }
            for key in range(number)
        ]

    folder = disk.path / "lake"
    with (
        Lake.open(folder, config=lake_config(folder)) as lake,
        Server(lake, ServeOptions(port=0, grace=5)) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        caller = Caller(channel, folder, tmp_path, "s")
        assert caller.create("t", columns).success
        assert caller.write("t", columns, replace=rows(10)).success
        before = caller.rows("t")
        disk.fill(leave=2**19)
        answer = caller.write("t", columns, replace=rows(500))
        assert answer.WhichOneof("response") == "task", answer
        assert "No space left on device" in answer.task.message
        assert str(disk.path) in answer.task.message
        assert caller.rows("t") == before
        disk.free()
        assert caller.write("t", columns, replace=rows(500)).success


@pytest.mark.long
def test_maintain_and_verify_continue_after_a_table_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "lake"
    with Lake.open(folder, config=lake_config(folder)) as lake:
        for name in ("a", "b"):
            table = TableName("s", name)
            create(lake, table, [Column("id", ColumnType(Kind.LONG), primary_key=True)])
            for number in range(3):
                lake.spark.sql(f"INSERT INTO chronolake.s.{name} VALUES ({number})")
        location = Path(lake.catalog.load(TableName("s", "a")).location.removeprefix("file:"))
        next(location.glob("data/**/*.parquet")).unlink()

    code, out, err = run_command(folder, capsys, "maintain")
    assert code == 1
    assert "3 data files compacted into 1" in out
    assert "s.b" in out
    assert "table s.a" in err
    assert "s.b" not in err
    code, out, err = run_command(folder, capsys, "verify", "--all")
    assert code == 1
    assert "s.b" in out
    assert "table s.a" in err


def test_a_folder_that_others_own_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="chronolake-"))
    (folder / "chronolake.yml").write_text("pipelines: {}\n")
    words = ["check", "--project", str(folder)]
    try:
        # Import everything now, because another user might not be allowed to.
        assert run_words(capsys, *words)[0] == 0
        folder.chmod(0o555)
        with _as_nobody():
            code, out, err = run_words(capsys, *words)
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)
    assert code == 1
    assert "Permission denied" in out
    assert str(folder) in _last_line(out, err)


@contextmanager
def _as_nobody() -> Iterator[None]:
    """Run a block without the rights of root, who may write anywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
