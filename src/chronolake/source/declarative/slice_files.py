"""The files of a stream's slices. Each slice is written to its own ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from chronolake.change_set import MODIFIED, SEQUENCE
from chronolake.errors import SourceError
from chronolake.source.records.pending_files import PartWriter, filled_columns
from chronolake.types import now_micros

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from chronolake.source.declarative.records.transformations import Record
    from chronolake.source.declarative.stream_reader import Slice
    from chronolake.source.records.identity import Identity
    from chronolake.source.records.pending_files import Part
    from chronolake.source.records.schema import Shape
    from chronolake.types import Column


def hide(text: str) -> str:  # noqa: ARG001 - whatever it is
    """Return a replacement for a text that may contain values of columns with rules."""
    return "(details are left out because the stream's columns have rules)"


def unexpected_error(failure: Exception, mask: Callable[[str], str]) -> SourceError:
    """Return an unexpected exception as the failure of one stream or slice."""
    return SourceError(
        f"Reading failed unexpectedly with {type(failure).__name__}: {mask(str(failure))}",
        hint="Other streams are not affected. If the error persists, report it as a "
        "bug of Chronolake.",
    )


@dataclass(frozen=True)
class SliceResult:
    """The result of reading one slice.

    Attributes:
        parts: files with its records.
        latest: the latest record's cursor value (`Slice.latest`).
        is_undated: whether a record lacks a modification time that it should have.
    """

    parts: list[Part]
    latest: Any
    is_undated: bool = False


@dataclass(frozen=True)
class SliceFiles:
    """A writer of the files of a stream's slices; thread-safe.

    Attributes:
        folder: contains the files.
        identity: the records' key.
        shape: the records' columns so far.
        ahead_micros: microseconds that the driver's clock is ahead of this machine's.
    """

    folder: Path
    identity: Identity
    shape: Shape
    ahead_micros: int = 0

    def columns(self) -> list[Column]:
        """Return the stored columns so far, including the key."""
        return self.identity.rules.columns(self.shape.columns(self.identity.columns))

    def read(self, stream_slice: Slice) -> SliceResult:
        """Read a slice into its own files.

        Raises:
            SourceError: the slice cannot be read; its files are deleted, as after any other error.
            ConfigurationError: the requests cannot be built from the manifest and the
                configuration.
        """
        writer = PartWriter(self.folder)
        try:
            for records in stream_slice.pages():
                if records:
                    self._write(writer, stream_slice, records)
        except BaseException:
            writer.discard()
            raise
        return SliceResult(writer.close(), stream_slice.latest, stream_slice.is_undated)

    def _write(self, writer: PartWriter, stream_slice: Slice, records: list[Record]) -> None:
        # All readers of a stream use the same clock, because the later response wins.
        now = now_micros() + self.ahead_micros
        columns, arrays = self.shape.cells(self.identity.add_keys(records), self.identity.columns)
        filled = filled_columns(columns, arrays)
        columns, arrays = self.identity.rules.protect_columns(columns, arrays)
        facts = {
            MODIFIED: pa.array(
                [now if at is None else at for at in stream_slice.times], pa.int64()
            ),
            # The later of two responses wins, and within a response the later record.
            SEQUENCE: pa.array([f"{now:016x}{number:08x}" for number in range(len(records))]),
        }
        known = [at for at in stream_slice.times if at is not None]
        earliest = min(known) if len(known) == len(records) else None
        writer.add(
            columns,
            arrays,
            facts,
            filled=filled,
            earliest=earliest,
            is_undated=stream_slice.is_undated,
        )
