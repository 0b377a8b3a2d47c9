"""The records of slices, written to files while they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from chronolake.changes import MODIFIED, SEQUENCE
from chronolake.errors import SourceError
from chronolake.source.declarative.landing.parts import PartWriter
from chronolake.types import now_micros

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from chronolake.source.declarative.landing.identity import Identity
    from chronolake.source.declarative.landing.parts import Part
    from chronolake.source.declarative.landing.shape import Shape
    from chronolake.source.declarative.records.transformations import Record
    from chronolake.source.declarative.slices import Slice
    from chronolake.types import Column


def unforeseen(failure: Exception, mask: Callable[[str], str]) -> SourceError:
    """What nobody has thought of, as the failure of one stream or slice."""
    return SourceError(
        f"It could not be read: {type(failure).__name__}: {mask(str(failure))}",
        hint="Other streams are not concerned. If it stays so, it is a fault of Chronolake's.",
    )


@dataclass(frozen=True)
class Read:
    """What one slice has brought.

    Attributes:
        parts: its records.
        latest: the cursor of the latest of them (`Slice.latest`).
        is_undated: whether a record did not tell when it was changed, though it should.
    """

    parts: list[Part]
    latest: Any
    is_undated: bool = False


@dataclass(frozen=True)
class SliceFiles:
    """Writes the records of a stream's slices; any number of threads may use it.

    Attributes:
        folder: where the files are.
        identity: what tells the records apart.
        shape: their columns so far.
        ahead_micros: how much the driver's clock is ahead of this one.
    """

    folder: Path
    identity: Identity
    shape: Shape
    ahead_micros: int = 0

    def columns(self) -> list[Column]:
        """The columns so far, with the key."""
        return self.shape.columns(self.identity.columns)

    def read(self, one: Slice) -> Read:
        """Read a slice into files of its own.

        Raises:
            SourceError: it cannot be read; nothing is left of it. So with all that is raised.
            ConfigurationError: the manifest and the configuration make no request.
        """
        writer = PartWriter(self.folder)
        try:
            for records in one.pages():
                if records:
                    self._write(writer, one, records)
        except BaseException:
            writer.discard()
            raise
        return Read(writer.close(), one.latest, one.is_undated)

    def _write(self, writer: PartWriter, one: Slice, records: list[Record]) -> None:
        # All that read a stream go by one clock: the later answer counts.
        now = now_micros() + self.ahead_micros
        columns, arrays = self.shape.cells(self.identity.added(records), self.identity.columns)
        facts = {
            MODIFIED: pa.array([now if at is None else at for at in one.times], pa.int64()),
            # Of two answers the later one counts, and in an answer the later record.
            SEQUENCE: pa.array([f"{now:016x}{number:08x}" for number in range(len(records))]),
        }
        known = [at for at in one.times if at is not None]
        earliest = min(known) if len(known) == len(records) else None
        writer.add(columns, arrays, facts, earliest=earliest, is_undated=one.is_undated)
