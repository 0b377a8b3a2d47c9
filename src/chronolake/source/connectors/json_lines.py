"""Messages of connectors: one JSON object on each line of their output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from chronolake import exact_json
from chronolake.errors import SourceError
from chronolake.source.records.lookup import MISSING, look_up
from chronolake.source.records.messages import Records

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


#: What the messages of a type contain: the type of the value at each path, with dots.
Content: TypeAlias = Mapping[str, Mapping[str, type]]

_TYPES: Final[Mapping[type, str]] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    object: "a value",
    type(None): "null",
}


def messages_in(
    process: ConnectorProcess, content: Content | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the messages of a connector, which have a `type`; other lines are logged.

    Args:
        process: the connector.
        content: what the messages have to contain.

    Raises:
        SourceError: the connector ended with an error or was silent for too long; a line begins
            like a message and is not complete, because a record may be lost; or a message lacks a
            part of its content.
    """
    required = {
        kind: [(path.split("."), type_) for path, type_ in fields.items()]
        for kind, fields in (content or {}).items()
    }
    for number, line in enumerate(process.lines(), 1):
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
            for path, type_ in required.get(found["type"], ()):
                value = look_up(found, path)
                if value is MISSING or not isinstance(value, type_):
                    where = f"line {number:,} of its output"
                    raise _content_error(process.name, where, found, path, type_)
            yield found
        else:
            process.print(line.decode("utf-8", "replace"))


def _content_error(
    connector: str, where: str, message: Mapping[str, Any], path: Sequence[str], type_: type
) -> SourceError:
    name = ".".join(path)
    found = f"without `{name}`"
    value = look_up(message, path)
    if value is not MISSING:
        shown = _TYPES.get(type(value), "a number")
        found = f"whose `{name}` is {shown}, and not {_TYPES[type_]}"
    return SourceError(
        f"The connector {connector} wrote a message {message['type']} {found} ({where}).",
        hint=REPORT,
    )


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
