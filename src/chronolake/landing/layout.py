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
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final, Self, TypeAlias

import pyarrow as pa

from chronolake.errors import SourceError
from chronolake.location import scheme_of
from chronolake.object_store import LISTED_AT_ONCE, BucketPath

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from chronolake.config import StorageConfig

#: A file or folder of a file system, or of a bucket.
Location: TypeAlias = Path | BucketPath

_ROOT: Final = ("parquet", "v2")
_ORG: Final = "org="
_OBJECT: Final = "object="
_BATCH: Final = re.compile(r"batch=([0-9a-zA-Z]+)")
_FILE: Final = re.compile(r"data-([0-9a-zA-Z]+)\.parquet")
#: The path of a file of a Data Lake v1 below its object's folder; staged files begin with `_`.
_HOURLY: Final = re.compile(r"day=([0-9]{4}-[0-9]{2}-[0-9]{2})/hr=([0-9]{2})/[^/._][^/]*\.parquet")
_CONTROL: Final = re.compile(r"control-([0-9a-zA-Z]+)\.json")
#: Lengths of a batch's and a file's name until the year 2527, in all known lakes. Among names of
#: equal length, a bucket's order is theirs.
_BATCH_LENGTH: Final = 9
_NAME_LENGTH: Final = 11
_BATCHES: Final = "batch="
_HEX: Final = re.compile(r"[0-9a-f]{1,15}")
BATCH_SECONDS: Final = 43_200
#: The number of the first file that is landed in a bucket; each further one has the next number.
#: (In folders, numbers are milliseconds since 1970. These are of the first months of 2020.)
FIRST_IN_BUCKET: Final = 0x16F5E66E800
_NUMBERS_IN_BUCKET: Final = 10**10
#: Number of files that are looked up because a listing lacks them.
_MOST_MISSED: Final = 1_000


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
    path: Location
    size: int

    @property
    def mark(self) -> str:
        """Return the file as a watermark: its path below the object's folder."""
        return f"batch={self.batch}/data-{self.name}.parquet"

    @property
    def rank(self) -> tuple[int, str]:
        """Return a key that orders files by the time at which they were written."""
        return rank(self.name)


class HourlyFile(DataFile):
    """A file of a Data Lake v1 (`hourly_layout`).

    `batch` is the path of its hour's folder below the object's folder, and `name` its whole name.
    """

    @property
    def mark(self) -> str:
        """Return the file as a watermark: its path below the object's folder."""
        return f"{self.batch}/{self.name}"

    @property
    def rank(self) -> tuple[int, str]:
        """Return a key that orders files by hour, then by name."""
        # Days and hours have a fixed width.
        return 0, self.mark

    @property
    def hour(self) -> datetime:
        """Return the begin of its hour."""
        hour = parse_hourly_path(self.mark)
        assert hour is not None  # noqa: S101 - only such files are listed
        return hour


@dataclass(frozen=True)
class ControlFile:
    """A control record (`control_records`) of our own raw lake.

    Attributes:
        name: its own name, from one sequence with those of data files.
        path: its path.
    """

    name: str
    path: Location


def rank(name: str) -> tuple[int, str]:
    """Return a key that orders increasing names: by length, then by bytes."""
    return len(name), name


def rank_of(mark: str) -> tuple[int, str]:
    """Return a key that orders watermarks of one lake like its files (`DataFile.rank`).

    Raises:
        SourceError: `mark` is not a valid watermark.
    """
    is_hourly = parse_hourly_path(mark) is not None
    return (0, mark) if is_hourly else rank(parse_data_file_name(mark)[1])


def parse_hourly_path(path: str) -> datetime | None:
    """Return the hour of a file of a Data Lake v1 from its path below its object's folder.

    Returns:
        The begin of the hour; None for other paths.
    """
    matched = _HOURLY.fullmatch(path)
    try:
        return (
            None
            if matched is None
            else datetime.fromisoformat(f"{matched[1]}T{matched[2]}:00").replace(tzinfo=UTC)
        )
    except ValueError:
        # Not a date, or not an hour.
        return None


def files_up_to(files: Sequence[DataFile], mark: str | None) -> list[DataFile]:
    """Return an object's files up to and including a watermark; empty without a watermark.

    Raises:
        SourceError: `mark` is not a valid watermark.
    """
    if mark is None:
        return []
    last = rank_of(mark)
    return [file for file in files if file.rank <= last]


@dataclass(frozen=True)
class ObjectFolder:
    """The files of one object of one organisation."""

    root: Location
    org: str
    name: str

    @classmethod
    def at(cls, path: Location) -> Self | None:
        """Return the object whose batches are in a folder (`path`), or None for other folders."""
        org, name = path.parent.name, path.name
        is_one = path.parts[-4:-2] == _ROOT and org.startswith(_ORG) and name.startswith(_OBJECT)
        if not is_one:
            return None
        return cls(path.parents[3], org.removeprefix(_ORG), name.removeprefix(_OBJECT))

    @classmethod
    def organization(cls, root: Location, org: str) -> Location:
        """Return the folder of an organisation."""
        return root.joinpath(*_ROOT, f"{_ORG}{org}")

    @property
    def path(self) -> Location:
        """Return the folder with the object's batches."""
        return self.organization(self.root, self.org) / f"{_OBJECT}{self.name}"

    @property
    def limits(self) -> tuple[str, ...]:
        """Return what the files cannot guarantee, beyond what every source does not."""
        return ()

    @property
    def is_in_bucket(self) -> bool:
        """Return whether the object's files are in a bucket."""
        return isinstance(self.root, BucketPath)

    @property
    def bucket_path(self) -> BucketPath:
        """Return `path` of an object in a bucket."""
        path = self.path
        if not isinstance(path, BucketPath):
            raise TypeError(path)
        return path

    @property
    def local_path(self) -> Path:
        """Return `path` of an object in a folder."""
        path = self.path
        if not isinstance(path, Path):
            raise TypeError(path)
        return path

    @property
    def local_root(self) -> Path:
        """Return `root` of an object in a folder."""
        if not isinstance(self.root, Path):
            raise TypeError(self.root)
        return self.root

    def files(self, *, after: str | None = None) -> list[DataFile]:
        """Return the object's files in the order in which they were written.

        Batches that are older than the watermark's are not listed.

        Args:
            after: a watermark (`DataFile.mark`): return only files that were written after it.

        Raises:
            SourceError: `after` is not a valid watermark, or the folder cannot be read.
        """
        if isinstance(self.path, BucketPath):
            return _files_in_bucket(self.path, after)
        found = [
            DataFile(batch, name, path, size_of(path))
            for batch, name, path in self._match_files(_FILE, after)
        ]
        return sorted(found, key=lambda file: file.rank)

    def controls(self) -> list[ControlFile]:
        """Return the object's control records in the order in which they were written.

        Raises:
            SourceError: the folder cannot be read.
        """
        found: list[ControlFile] = (
            _controls_in_bucket(self.path, [batch for batch, _ in self._batches()])
            if isinstance(self.path, BucketPath)
            else [ControlFile(name, path) for _, name, path in self._match_files(_CONTROL, None)]
        )
        return sorted(found, key=lambda file: rank(file.name))

    def newest(self) -> str | None:
        """Return the greatest name of a data file or control record, or None.

        Raises:
            SourceError: the folder cannot be read.
        """
        return self._greatest(_FILE, _CONTROL)

    def newest_number(self) -> int | None:
        """Return `newest` as a number.

        Raises:
            SourceError: the folder cannot be read, or the name is not one of Chronolake's.
        """
        newest = self.newest()
        if newest is not None and _HEX.fullmatch(newest) is None:
            raise SourceError(
                f"The newest file has a name that Chronolake does not use, {newest}: another "
                "program writes to the folder.",
                file=str(self.path),
                hint="Use a separate folder for the pipeline's raw lake.",
            )
        return None if newest is None else int(newest, 16)

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
        batch, name = parse_data_file_name(mark)
        path = self.path / f"batch={batch}" / f"data-{name}.parquet"
        return path.is_file() if isinstance(path, Path) else path.find() is not None

    def is_same_object(self, path: str) -> bool:
        """Return whether a path belongs to this object, wherever the lake is located."""
        return PurePath(path).parts[-2:] == tuple(self.path.parts[-2:])

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
            if isinstance(folder, BucketPath):
                # Every control record of a bucket has a data file of its name (`bucket_sequence`).
                found = _greatest_in_bucket(folder)
            else:
                listed = list_folder(folder)
                names = [name for form in forms for name, _ in _match_names(form, listed)]
                found = max(names, key=rank, default=None)
            if found is not None:
                return found
        return None

    def _match_files(
        self, form: re.Pattern[str], after: str | None
    ) -> Iterator[tuple[str, str, Path]]:
        """Yield batch, name and path of files, without batches older than the watermark's."""
        since = parse_data_file_name(after) if after is not None else None
        for batch, folder in self._batches():
            if since is not None and rank(batch) < rank(since[0]):
                continue
            assert isinstance(folder, Path)  # noqa: S101 - buckets are listed in one request
            for name, path in _match_names(form, list_folder(folder)):
                if since is None or rank(name) > rank(since[1]):
                    yield batch, name, path

    def _batches(self) -> Iterator[tuple[str, Location]]:
        for folder in list_folders(self.path):
            if matched := _BATCH.fullmatch(folder.name):
                yield matched[1], folder


def objects_of(root: Location, org: str, layout: type[ObjectFolder] = ObjectFolder) -> list[str]:
    """Return the objects for which an organisation has files, sorted.

    Args:
        root: the folder of the data lake.
        org: the organisation.
        layout: the layout of its objects.

    Raises:
        SourceError: the organisation does not exist in the folder.
    """
    folder = layout.organization(root, org)
    places = list_folders(folder)
    if not places and not (isinstance(folder, Path) and folder.is_dir()):
        raise SourceError(
            f"{root} does not contain {str(folder).removeprefix(str(root)).strip('/')}.",
            hint="Check `path` and `org` of the source in chronolake.yml.",
        )
    names = (place.name for place in places)
    return sorted(name.removeprefix(_OBJECT) for name in names if name.startswith(_OBJECT))


def location_of(text: str, storage: StorageConfig) -> Location:
    """Return the location of a path or of a bucket's URL.

    Args:
        text: an absolute path, or a URL.
        storage: how the object store of a URL is reached.
    """
    return Path(text) if scheme_of(text) is None else BucketPath(text.rstrip("/"), storage)


def location_like(text: str, other: Location) -> Location:
    """Return the location of a path or URL in the same store as another location."""
    return Path(text) if isinstance(other, Path) else BucketPath(text, other.storage)


def open_file(path: Location) -> pa.NativeFile:
    """Open a file for reads at any position.

    Raises:
        OSError, ObjectStoreError: it cannot be opened.
    """
    return pa.OSFile(str(path)) if isinstance(path, Path) else path.open()


def parse_data_file_name(mark: str) -> tuple[str, str]:
    """Return the batch and the name of a data file from its path below its object's folder.

    Raises:
        SourceError: it is not such a path.
    """
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


def size_of(path: Path) -> int:
    """Return the size of a file in bytes.

    Raises:
        SourceError: the file cannot be read.
    """
    try:
        return path.stat().st_size
    except OSError as failure:
        raise SourceError(
            f"The file cannot be read: {failure.strerror}.",
            file=str(path),
            hint="Do not move files of a data lake; sync again.",
        ) from failure


def list_folders(folder: Location) -> Sequence[Location]:
    """Return the folders in a folder, perhaps with files; empty if it does not exist."""
    if isinstance(folder, BucketPath):
        return folder.folders()
    return list_folder(folder) if folder.is_dir() else []


def list_folder(folder: Path) -> list[Path]:
    """Return the entries of a folder, in any order.

    Raises:
        SourceError: the folder cannot be read.
    """
    try:
        return list(folder.iterdir())
    except OSError as failure:
        raise SourceError(
            f"{folder} cannot be listed: {failure.strerror}.",
            hint="Check the folder's permissions.",
        ) from failure


# Buckets.


def data_file_name(number: int) -> str:
    """Return the path of a data file of a number below its object's folder.

    Source: `seeds/data-lake-v2.txt`, whose example has the number of the year 2020.
    """
    # Derived from the number, so that both increase together. A batch covers half a day, because
    # the numbers of files in folders are milliseconds since 1970.
    begin = number // 1_000 // BATCH_SECONDS * BATCH_SECONDS
    return f"batch={begin:09x}/data-{number:x}.parquet"


def _files_in_bucket(folder: BucketPath, after: str | None) -> list[DataFile]:
    since = None if after is None else parse_data_file_name(after)
    # An offset is correct only if the order of the bytes is that of the names.
    has_offset = since is not None and (len(since[0]), len(since[1])) == (
        _BATCH_LENGTH,
        _NAME_LENGTH,
    )
    found = []
    # Greater than the names of staged files.
    for stored in folder.objects(after=after if has_offset else _BATCHES):
        matched = _BATCH.fullmatch(stored.path.parent.name), _FILE.fullmatch(stored.path.name)
        if matched[0] and matched[1] and stored.path.parent.parent == folder:
            file = DataFile(matched[0][1], matched[1][1], stored.path, stored.size)
            if since is None or file.rank > rank(since[1]):
                found.append(file)
    found.sort(key=lambda file: file.rank)
    found += _missed_files(folder, found, None if since is None else since[1])
    return sorted(found, key=lambda file: file.rank)


def _missed_files(
    folder: BucketPath, listed: Sequence[DataFile], after: str | None
) -> list[DataFile]:
    """Return files that a stale listing lacks although it has later ones.

    The numbers of files that Chronolake lands in a bucket have no gaps.
    """
    numbers = [number for file in listed if (number := number_in_bucket(file.name)) is not None]
    first = None if after is None else number_in_bucket(after)
    if not numbers:
        return []
    expected = range(FIRST_IN_BUCKET if first is None else first + 1, numbers[-1])
    if len(expected) - len(numbers) > _MOST_MISSED:
        # Another writer's lake, whose numbers have gaps.
        return []
    missing = sorted(set(expected).difference(numbers))
    found = []
    for number in missing:
        stored = (folder / data_file_name(number)).find()
        if stored is not None:
            batch, name = parse_data_file_name(data_file_name(number))
            found.append(DataFile(batch, name, stored.path, stored.size))
    return found


def number_in_bucket(name: str) -> int | None:
    """Return the number of a file that was landed in a bucket; None for other names.

    Files that were copied from a folder have greater numbers: milliseconds of their time.
    """
    number = int(name, 16) if _HEX.fullmatch(name) else 0
    return number if FIRST_IN_BUCKET <= number < FIRST_IN_BUCKET + _NUMBERS_IN_BUCKET else None


def _controls_in_bucket(folder: BucketPath, batches: Iterable[str]) -> list[ControlFile]:
    found = []
    for batch in batches:
        for stored in folder.objects(after=f"batch={batch}/control-"):
            matched = _CONTROL.fullmatch(stored.path.name)
            if matched is None:
                # Data files follow.
                break
            found.append(ControlFile(matched[1], stored.path))
    return found


def _greatest_in_bucket(batch: BucketPath) -> str | None:
    """Return the greatest name of a data file in a batch, or None, with few requests.

    A bucket lists from the beginning only, a thousand files at a time. So the end is searched by
    listing from ever greater names.
    """
    last = _last_of_page(batch, "data-")
    if last is None or not last[1]:
        return None if last is None else last[0]
    low, step = int(last[0], 16), LISTED_AT_ONCE
    while (last := _last_of_page(batch, f"data-{low + step:x}.parquet")) is not None:
        if not last[1]:
            return last[0]
        low, step = int(last[0], 16), 2 * step
    high = low + step
    while True:
        last = _last_of_page(batch, f"data-{low:x}.parquet")
        if last is None:
            return f"{low:x}"
        if not last[1]:
            return last[0]
        low = int(last[0], 16)
        middle = (low + high) // 2
        if _last_of_page(batch, f"data-{middle:x}.parquet") is None:
            high = middle
        else:
            low = middle


def _last_of_page(batch: BucketPath, after: str) -> tuple[str, bool] | None:
    """Return the last data file of one request after a name, and whether there may be more."""
    page = list(islice(batch.objects(after=after), LISTED_AT_ONCE))
    names = [found[1] for stored in page if (found := _FILE.fullmatch(stored.path.name))]
    if not names:
        return None
    return names[-1], len(page) == LISTED_AT_ONCE
