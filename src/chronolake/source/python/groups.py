"""Records that were yielded one by one, in groups."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from chronolake.source.python.rows import rows_in
from chronolake.source.records.messages import Records

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Records are passed on in groups of this size, or after this time in seconds.
_ROWS: Final = 5_000
_SECONDS: Final = 5.0


class YieldedRecords:
    """Records of several streams that are passed on in groups, in their order within a stream."""

    def __init__(self) -> None:
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._count = 0
        self._began = time.monotonic()

    def add(self, stream: str, item: Any) -> Iterator[Records]:
        """Take the records in something that was yielded, and yield the groups that are full.

        Raises:
            SourceError: it is not a record, and does not contain records.
        """
        for row in rows_in(item, stream=stream):
            if isinstance(row, dict):
                self._rows.setdefault(stream, []).append(row)
                self._count += 1
                if self._count >= _ROWS:
                    yield from self.pass_on()
            else:
                yield from self.pass_on()
                yield Records(stream, row)
        if time.monotonic() - self._began >= _SECONDS:
            yield from self.pass_on()

    def pass_on(self) -> Iterator[Records]:
        """Yield what was not passed on."""
        rows, self._rows, self._count = self._rows, {}, 0
        self._began = time.monotonic()
        for stream, group in rows.items():
            yield Records(stream, group)
