"""The layout of a Data Lake v2: the location of its files, and their order.

```
parquet/v2/org=X/object=Account/batch=05e0be100/data-16f5e66e800.parquet
```

Names of batches and of files increase with every file: a longer name is later than a shorter one,
and names of equal length compare by bytes. A file that is written later has a greater name, in the
same batch or a later one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, Self

from chronolake.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

_ROOT: Final = ("parquet", "v2")
_ORG: Final = "org="
_OBJECT: Final = "object="
_BATCH: Final = re.compile(r"batch=([0-9a-zA-Z]+)")
_FILE: Final = re.compile(r"data-([0-9a-zA-Z]+)\.parquet")
_CONTROL: Final = re.compile(r"control-([0-9a-zA-Z]+)\.json")


@dataclass(frozen=True)
class DataFile:
    """A file of record versions.

    Attributes:
        batch: the name of its batch, without `batch=`.
        name: its own name, without `data-` and `.parquet`.
        path: its path.
        size: its size in bytes.
    """

    batch: str
    name: str
    path: Path
    size: int

    @property
    def mark(self) -> str:
        """Return the file as a watermark: its path below the object's folder."""
        return f"batch={self.batch}/data-{self.name}.parquet"

    @property
    def rank(self) -> tuple[int, str]:
        """Return a key that orders files by the time at which they were written."""
        return rank(self.name)


@dataclass(frozen=True)
class ControlFile:
    """A control record (`control_records`) of our own raw lake.

    Attributes:
        name: its own name, from one sequence with those of data files.
        path: its path.
    """

    name: str
    path: Path


def rank(name: str) -> tuple[int, str]:
    """Return a key that orders increasing names: by length, then by bytes."""
    return len(name), name


def files_up_to(files: Sequence[DataFile], mark: str | None) -> list[DataFile]:
    """Return an object's files up to and including a watermark; empty without a watermark.

    Raises:
        SourceError: `mark` is not a valid watermark.
    """
    if mark is None:
        return []
    _, name = _parse_mark(mark)
    return [file for file in files if file.rank <= rank(name)]


@dataclass(frozen=True)
class ObjectFolder:
    """The files of one object of one organisation."""

    root: Path
    org: str
    name: str

    @classmethod
    def at(cls, path: Path) -> Self | None:
        """Return the object whose batches are in a folder (`path`), or None for other folders."""
        org, name = path.parent.name, path.name
        is_one = path.parts[-4:-2] == _ROOT and org.startswith(_ORG) and name.startswith(_OBJECT)
        if not is_one:
            return None
        return cls(path.parents[3], org.removeprefix(_ORG), name.removeprefix(_OBJECT))

    @property
    def path(self) -> Path:
        """Return the folder with the object's batches."""
        return self.root.joinpath(*_ROOT, f"{_ORG}{self.org}", f"{_OBJECT}{self.name}")

    def files(self, *, after: str | None = None) -> list[DataFile]:
        """Return the object's files in the order in which they were written.

        Batches that are older than the watermark's are not listed.

        Args:
            after: a watermark (`DataFile.mark`): return only files that were written after it.

        Raises:
            SourceError: `after` is not a valid watermark, or the folder cannot be read.
        """
        found = [
            DataFile(batch, name, path, _size_of(path))
            for batch, name, path in self._match_files(_FILE, after)
        ]
        return sorted(found, key=lambda file: file.rank)

    def controls(self) -> list[ControlFile]:
        """Return the object's control records in the order in which they were written.

        Raises:
            SourceError: the folder cannot be read.
        """
        found = [ControlFile(name, path) for _, name, path in self._match_files(_CONTROL, None)]
        return sorted(found, key=lambda file: rank(file.name))

    def newest(self) -> str | None:
        """Return the greatest name of a data file or control record, or None.

        Raises:
            SourceError: the folder cannot be read.
        """
        return self._greatest(_FILE, _CONTROL)

    def last(self) -> str | None:
        """Return the name of the data file that was written last, or None.

        Raises:
            SourceError: the folder cannot be read.
        """
        return self._greatest(_FILE)

    def has(self, mark: str) -> bool:
        """Return whether the file of a watermark exists.

        Raises:
            SourceError: `mark` is not a valid watermark.
        """
        batch, name = _parse_mark(mark)
        return (self.path / f"batch={batch}" / f"data-{name}.parquet").is_file()

    def is_same_object(self, path: str) -> bool:
        """Return whether a path belongs to this object, wherever the lake is located."""
        return PurePath(path).parts[-2:] == self.path.parts[-2:]

    def expect(self, mark: str) -> None:
        """Refuse a watermark that is not one of the object's files.

        Raises:
            SourceError: the file does not exist.
        """
        if not self.has(mark):
            raise SourceError(
                "The file does not exist in the lake.",
                file=mark,
                hint="Name a file below the object's folder: batch=…/data-….parquet.",
            )

    def _greatest(self, *forms: re.Pattern[str]) -> str | None:
        for _, folder in sorted(self._batches(), key=lambda item: rank(item[0]), reverse=True):
            listed = _list_folder(folder)
            found = [name for form in forms for name, _ in _match_names(form, listed)]
            if found:
                return max(found, key=rank)
        return None

    def _match_files(
        self, form: re.Pattern[str], after: str | None
    ) -> Iterator[tuple[str, str, Path]]:
        """Yield batch, name and path of files, without batches older than the watermark's."""
        since = _parse_mark(after) if after is not None else None
        for batch, folder in self._batches():
            if since is not None and rank(batch) < rank(since[0]):
                continue
            for name, path in _match_names(form, _list_folder(folder)):
                if since is None or rank(name) > rank(since[1]):
                    yield batch, name, path

    def _batches(self) -> Iterator[tuple[str, Path]]:
        if not self.path.is_dir():
            # An object without files has no folder.
            return
        for folder in _list_folder(self.path):
            if matched := _BATCH.fullmatch(folder.name):
                yield matched[1], folder


def objects_of(root: Path, org: str) -> list[str]:
    """Return the objects for which an organisation has files, sorted.

    Raises:
        SourceError: the organisation does not exist in the folder.
    """
    folder = root.joinpath(*_ROOT, f"{_ORG}{org}")
    if not folder.is_dir():
        raise SourceError(
            f"{root} does not contain {'/'.join([*_ROOT, f'{_ORG}{org}'])}.",
            hint="Check `path` and `org` of the source in chronolake.yml.",
        )
    names = (place.name for place in _list_folder(folder))
    return sorted(name.removeprefix(_OBJECT) for name in names if name.startswith(_OBJECT))


def _parse_mark(mark: str) -> tuple[str, str]:
    folder, _, file = mark.partition("/")
    batch, name = _BATCH.fullmatch(folder), _FILE.fullmatch(file)
    if batch is None or name is None:
        raise SourceError(
            f"{mark!r} is not a valid watermark of a data lake.",
            hint="A watermark has the form batch=…/data-….parquet; re-sync the stream.",
        )
    return batch[1], name[1]


def _match_names(form: re.Pattern[str], paths: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """Yield names and paths of files; other names are staged files, or files of other programs."""
    for path in paths:
        if matched := form.fullmatch(path.name):
            yield matched[1], path


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as failure:
        raise SourceError(
            f"The file cannot be read: {failure.strerror}.",
            file=str(path),
            hint="Do not move files of a data lake; sync again.",
        ) from failure


def _list_folder(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as failure:
        raise SourceError(
            f"{folder} cannot be listed: {failure.strerror}.",
            hint="Check the folder's permissions.",
        ) from failure
