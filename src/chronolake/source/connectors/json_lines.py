"""Messages of connectors: one JSON object on each line of their output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from chronolake import exact_json
from chronolake.errors import SourceError
from chronolake.source.records.messages import Records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chronolake.source.connectors.process import ConnectorProcess

#: Records are passed on in groups of this size.
_ROWS: Final = 5_000
#: What to do about an error of a connector that a user cannot correct.
REPORT: Final = (
    "Run the sync again; it continues after the last state. If that repeats, report it to the "
    "connector's authors."
)


#: How messages begin.
_START: Final = b'{"type":'


def undeclared_stream_error(name: str) -> SourceError:
    """Return the error for a record of a stream that the connector does not offer."""
    return SourceError(
        f"The connector reported a record of the stream {name!r}, which is not in its catalog.",
        hint=REPORT,
    )


def messages_in(process: ConnectorProcess) -> Iterator[dict[str, Any]]:
    """Yield the messages of a connector, which have a `type`; other lines are logged.

    Raises:
        SourceError: the connector ended with an error or was silent for too long; or a line begins
            like a message and is not complete, because a record may be lost.
    """
    for line in process.lines():
        message = line
        if not line.lstrip().startswith(b"{"):
            noise, start, rest = line.partition(_START)
            if noise.strip():
                process.print(noise.decode("utf-8", "replace"))
            if not start:
                continue
            # It follows other text on its line, which lacks a line break.
            message = start + rest
        try:
            found = exact_json.loads(message)
        except (ValueError, RecursionError):
            raise SourceError(
                "The connector wrote a message that is not complete JSON.", hint=REPORT
            ) from None
        if isinstance(found, dict) and isinstance(found.get("type"), str):
            yield found
        else:
            process.print(line.decode("utf-8", "replace"))


class RecordGroups:
    """Records of several streams that are passed on in groups, in their order within a stream."""

    def __init__(self) -> None:
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._count = 0

    def add(self, stream: str, record: dict[str, Any]) -> Iterator[Records]:
        """Take a record, and yield all groups if they are large enough."""
        rows = self._rows.get(stream)
        if rows is None:
            rows = self._rows[stream] = []
        rows.append(record)
        self._count += 1
        if self._count >= _ROWS:
            yield from self.pass_on()

    def pass_on(self) -> Iterator[Records]:
        """Yield what was not passed on."""
        rows, self._rows, self._count = self._rows, {}, 0
        for stream, group in rows.items():
            yield Records(stream, group)
