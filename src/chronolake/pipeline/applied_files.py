"""The files that a stream's table was built from, as table properties published with its rows.

The watermark is the file after which the next files are applied, and a user may move it back. The
set of applied files only grows. Delivery is at least once and application is idempotent (exactly
once in the table): applying a file twice has no effect, so nothing else removes duplicates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from chronolake.landing import QUARANTINED_PROPERTY, Quarantine, files_up_to
from chronolake.pipeline.properties import (
    FILES_PROPERTY,
    FURTHEST_PROPERTY,
    WATERMARK_PROPERTY,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.landing import BadFile, DataFile
    from chronolake.types import TableName


@dataclass(frozen=True)
class AppliedFiles:
    """The files that a table was built from.

    Attributes:
        watermark: files that were written after this one are applied next; None to apply all.
        furthest: the last file that was ever applied; None if none was.
        files: number of files that the table was built from.
        quarantine: the files up to the furthest one that were left out; None if none ever was.
    """

    watermark: str | None = None
    furthest: str | None = None
    files: int = 0
    quarantine: Quarantine | None = None

    @classmethod
    def of(cls, table: IcebergTable) -> Self:
        """Return the applied files from a table's properties."""
        return cls.from_properties(table.property_of)

    @classmethod
    def from_properties(cls, property_of: Callable[[str], str | None]) -> Self:
        """Return the applied files from a function that returns a table's property, or None."""
        watermark = property_of(WATERMARK_PROPERTY)
        furthest = property_of(FURTHEST_PROPERTY) or watermark
        stored = property_of(QUARANTINED_PROPERTY)
        quarantine = None if stored is None else Quarantine.from_json(stored)
        return cls(watermark, furthest, int(property_of(FILES_PROPERTY) or 0), quarantine)

    @property
    def properties(self) -> dict[str, str]:
        """Return the table properties; callers must remove that of a missing watermark."""
        marks = {WATERMARK_PROPERTY: self.watermark, FURTHEST_PROPERTY: self.furthest}
        known = {name: mark for name, mark in marks.items() if mark is not None}
        if self.quarantine is not None:
            known[QUARANTINED_PROPERTY] = self.quarantine.to_json()
        return {**known, FILES_PROPERTY: str(self.files)}

    def with_files(self, files: Sequence[DataFile], bad: Sequence[BadFile] = ()) -> Self:
        """Return the applied files with more files.

        Args:
            files: in the order of their writing, at least one.
            bad: those of them that cannot be read, and are left out.
        """
        known = self.quarantine or Quarantine()
        before = {file.mark for file in files_up_to(files, self.furthest)} - known.marks
        left_out = {file.mark for file in bad}
        read = [file for file in files if file.mark not in left_out]
        new = sum(file.mark not in before for file in read) - len(before & left_out)
        later = files[len(files_up_to(files, self.furthest)) :]
        found = known.without(read).with_files(bad)
        return replace(
            self,
            watermark=files[-1].mark,
            furthest=later[-1].mark if later else self.furthest,
            files=self.files + new,
            quarantine=None if self.quarantine is None and not found.files else found,
        )

    def count_missing(self, files: Sequence[DataFile]) -> int:
        """Return the number of applied files that are missing in the lake.

        It is negative if files appeared among those that had been applied before: later runs do not
        apply them, only a rebuild or a re-sync does.

        Args:
            files: all files of the lake.
        """
        existing = (self.quarantine or Quarantine()).readable(files_up_to(files, self.furthest))
        return self.files - len(existing)

    def move_watermark(self, watermark: str | None, files: Sequence[DataFile]) -> Self:
        """Return the applied files after moving the watermark.

        Args:
            watermark: the new watermark; None to apply all files. Skipped files count as applied.
            files: all files of the lake, in the order of their writing.
        """
        skipped = files_up_to(files, watermark)[len(files_up_to(files, self.furthest)) :]
        found = self.with_files(skipped) if skipped else self
        return replace(found, watermark=watermark)


def quarantine_of(lake: Lake, name: TableName) -> Quarantine:
    """Return the files that were left out of a table.

    Raises:
        TableNotFoundError: the table does not exist.
    """
    return Quarantine.from_json(lake.catalog.load(name).property_of(QUARANTINED_PROPERTY))
