"""Simulated loss of power: a folder keeps only what was synced.

A library that is preloaded into processes (`synced.c`) records the content of every file and the
names of every folder at each of their syncs. From these, `Replay.after` makes the folder that a
loss of power leaves after the n-th sync: every later write and every later name is lost.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_SOURCE = Path(__file__).parent / "synced.c"


@dataclass(frozen=True)
class Disk:
    """A folder whose syncs are recorded.

    Attributes:
        root: the folder.
        log: where its syncs are recorded.
        library: the library that processes have to preload.
    """

    root: Path
    log: Path
    library: Path

    @classmethod
    def under(cls, folder: Path) -> Disk:
        """Return a new, empty disk; skip the test where it cannot be recorded."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("there is no C compiler for the library that records syncs")
        disk = cls(folder / "disk", folder / "syncs", folder / "synced.so")
        subprocess.run(
            [compiler, "-O1", "-shared", "-fPIC", "-o", disk.library, _SOURCE], check=True
        )
        disk.root.mkdir()
        disk.log.mkdir()
        return disk

    def environment(self) -> dict[str, str]:
        """Return the environment in which syncs of a process and its children are recorded."""
        return {
            "LD_PRELOAD": str(self.library),
            "SYNCED_ROOT": str(self.root),
            "SYNCED_LOG": str(self.log),
        }

    @property
    def syncs(self) -> int:
        """Return the number of syncs until now."""
        counter = self.log / "counter"
        return int(counter.read_text()) if counter.exists() else 0

    def moments(self, catalog: str, further: Collection[int]) -> list[int]:
        """Return the syncs after which a loss of power may have effects of its own.

        A commit makes the catalog name other files. Between two commits, files that it does not
        name are created and removed: if one is missing, it is also missing right after a commit, or
        right before the next one.

        Args:
            catalog: the prefix of the names of the catalog's files.
            further: syncs that matter to the caller; nothing before the first of them does.
        """
        commits = {
            number
            for number in range(1, self.syncs + 1)
            if self._path(number).name.startswith(catalog)
        }
        wanted = {*further, self.syncs, *commits, *(number - 1 for number in commits)}
        return sorted(number for number in wanted if number >= min(further))

    def _path(self, number: int) -> Path:
        with (self.log / str(number)).open("rb") as event:
            return Path(event.readline().decode().rstrip("\n").split(" ", 2)[2])

    @contextmanager
    def only_synced(self) -> Iterator[Replay]:
        """Yield a replay of the recorded syncs in the folder's place; restore it afterwards."""
        aside = self.root.with_name("aside")
        self.root.rename(aside)
        try:
            yield Replay(self, _key_of(aside))
        finally:
            shutil.rmtree(self.root, ignore_errors=True)
            aside.rename(self.root)


def _key_of(path: Path) -> str:
    """Return a file's key, as `synced.c` writes it."""
    reported = subprocess.run(
        ["stat", "--format", "%i %W %w", path], check=True, capture_output=True, text=True
    ).stdout
    number, seconds, _, clock, *_ = reported.split()
    return f"{number}-{seconds}-{int(clock.partition('.')[2])}"


class Replay:
    """The syncs of a disk, one after the other."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._root = root
        self._files: dict[str, bytes] = {}
        self._folders: dict[str, list[tuple[str, str, str]]] = {}
        self._read = 0

    def after(self, number: int) -> None:
        """Restore the folder as a loss of power leaves it after a sync, later than the last one."""
        while self._read < number:
            self._read += 1
            header, _, content = (self._disk.log / str(self._read)).read_bytes().partition(b"\n")
            kind, key, _ = header.decode().split(" ", 2)
            if kind == "file":
                self._files[key] = content
            else:
                lines = content.decode().splitlines()
                self._folders[key] = [tuple(line.split(" ", 2)) for line in lines]  # type: ignore[misc]
        shutil.rmtree(self._disk.root, ignore_errors=True)
        self._restore(self._root, self._disk.root)

    def _restore(self, key: str, place: Path) -> None:
        place.mkdir()
        for kind, child, name in self._folders.get(key, []):
            if kind == "d":
                self._restore(child, place / name)
            else:
                # The name was synced, but the file was not: it exists, and is empty.
                (place / name).write_bytes(self._files.get(child, b""))
