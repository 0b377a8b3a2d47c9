"""The layout of a Data Lake v1: files in a folder for each hour.

```
parquet/org=X/object=Account/day=2021-08-20/hr=15/….parquet
```

Source: `seeds/data-lake-v2.txt`, "Key differences from v1": the path has no `v2`, and folders for
days and hours instead of batches. Names of files do not increase. So an hour is read when it has
ended, and files are ordered by their hour and then by their name. A file that appears in an hour
that was read before is not found by later runs.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from chronolake.errors import SourceError
from chronolake.landing.layout import (
    HourlyFile,
    ObjectFolder,
    list_folder,
    list_folders,
    parse_hourly_path,
    size_of,
)
from chronolake.object_store import BucketPath

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chronolake.landing.layout import ControlFile, DataFile, Location

_ROOT: Final = "parquet"
_HOUR: Final = timedelta(hours=1)
#: The path of a Parquet file below its object's folder, in a folder for a day or an hour.
_DATED: Final = re.compile(r"day=[^/]*/(?:hr=[^/]*/)?[^/._][^/]*\.parquet")
#: What a Data Lake v1 cannot guarantee, for people.
HOURLY_LIMITS: Final = (
    "A Data Lake v1 has no sequence: grax__added, hour and file order the writes of a version.",
    "A Data Lake v1 has duplicates: without SystemModstamp, each of them is another version.",
    "A Data Lake v1 can lack writes, and get files for hours that were already read.",
)


class HourlyFolder(ObjectFolder):
    """The files of one object of one organisation in a Data Lake v1."""

    @classmethod
    def at(cls, path: Location) -> Self | None:
        """Return the object whose days are in a folder (`path`), or None for other folders."""
        org, name = path.parent.name, path.name
        is_one = path.parts[-3:-2] == (_ROOT,)
        if not (is_one and org.startswith("org=") and name.startswith("object=")):
            return None
        return cls(path.parents[2], org.removeprefix("org="), name.removeprefix("object="))

    @classmethod
    def organization(cls, root: Location, org: str) -> Location:
        """Return the folder of an organisation."""
        return root.joinpath(_ROOT, f"org={org}")

    @property
    def limits(self) -> tuple[str, ...]:
        """Return what the files cannot guarantee."""
        return HOURLY_LIMITS

    def files(self, *, after: str | None = None) -> list[DataFile]:
        """Return the files of the hours that have ended, by hour and name.

        Args:
            after: a watermark (`DataFile.mark`): return only files that follow it.

        Raises:
            SourceError: `after` is not a valid watermark, the folder cannot be read, or a file is
                in a folder of no valid hour.
        """
        if after is not None:
            _expect_hourly(after)
        now = datetime.now(UTC)
        found: list[DataFile] = [
            file
            for file in self._listed(after)
            if file.hour + _HOUR <= now and (after is None or file.mark > after)
        ]
        return sorted(found, key=lambda file: file.rank)

    def controls(self) -> list[ControlFile]:
        """Return no control records: only our own lakes have them."""
        return []

    def last(self) -> str | None:
        """Return the path of the last file below the object's folder, or None.

        Raises:
            SourceError: the folder cannot be read.
        """
        files = self.files()
        return files[-1].mark if files else None

    def has(self, mark: str) -> bool:
        """Return whether the file of a watermark exists.

        Raises:
            SourceError: `mark` is not a valid watermark.
        """
        _expect_hourly(mark)
        path = self.path / mark
        return path.is_file() if isinstance(path, Path) else path.find() is not None

    def _listed(self, after: str | None) -> Iterator[HourlyFile]:
        folder = self.path
        if isinstance(folder, BucketPath):
            for stored in folder.objects(after=after):
                if _is_data(folder, stored.path):
                    yield _known_file(stored.path, stored.size)
            return
        first_day = "" if after is None else after.partition("/")[0]
        for day in list_folders(folder):
            if day.name < first_day:
                continue
            for hour in list_folders(day):
                assert isinstance(hour, Path)  # noqa: S101 - buckets are listed above
                for path in list_folder(hour) if hour.is_dir() else [hour]:
                    if _is_data(folder, path):
                        yield _known_file(path, size_of(path))


def folder_at(path: Location) -> ObjectFolder | None:
    """Return the object of a data lake of any version whose files are in a folder, or None."""
    return ObjectFolder.at(path) or HourlyFolder.at(path)


def _is_data(folder: Location, path: Location) -> bool:
    """Return whether a file below an object's folder is a data file.

    Raises:
        SourceError: it would be, but the hour of its folder is not valid.
    """
    below = "/".join(path.parts[len(folder.parts) :])
    if parse_hourly_path(below) is not None:
        return True
    if _DATED.fullmatch(below):
        raise SourceError(
            "The file is in a folder of no hour, so its records would be missing.",
            file=str(path),
            hint="Rename the folder to day=YYYY-MM-DD/hr=HH, with an hour from 00 to 23, or move "
            "the file to another place.",
        )
    return False


def _known_file(path: Location, size: int) -> HourlyFile:
    batch = "/".join(path.parts[-3:-1])
    return HourlyFile(batch, path.name, path, size)


def _expect_hourly(mark: str) -> None:
    if parse_hourly_path(mark) is None:
        raise SourceError(
            f"{mark!r} is not a valid watermark of a Data Lake v1.",
            hint="A watermark has the form day=YYYY-MM-DD/hr=HH/….parquet; re-sync the stream.",
        )
