"""State of streams with an incrementing count cursor, and of streams without a cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.stream_slice import StreamSlice
from chronolake.source.declarative.templating.templates import as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from chronolake.source.declarative.models.streams import IncrementingCountCursor

#: The state of a stream without a cursor.
NO_CURSOR: Final = {"__ab_no_cursor_state_message": True}


class FullRefreshState:
    """State of a stream without a cursor: each run reads all of it."""

    def __init__(self) -> None:
        self.parent_state: dict[str, Any] | None = None

    def slices(self, partition: StreamSlice) -> Iterator[StreamSlice]:
        """Yield the partition as its only slice."""
        yield partition

    def note(self, stream_slice: StreamSlice, latest: object) -> None:
        """Do nothing: a partition that has been read does not change the state."""

    def complete(self) -> None:
        """Do nothing: a complete run does not change the state."""

    def as_json(self) -> dict[str, Any]:
        """Return the state to store."""
        return dict(NO_CURSOR)

    def export(self) -> dict[str, Any]:
        """Return the state in the form that other readers use."""
        return dict(NO_CURSOR)


class CountState:
    """State of a stream whose cursor is an incrementing number; it has no partitions."""

    def __init__(
        self,
        model: IncrementingCountCursor,
        config: Mapping[str, Any],
        stored: Mapping[str, Any] | None,
    ) -> None:
        """Continue from a stored state.

        Raises:
            ConfigurationError: the start or the stored state is not an integer.
        """
        context = {"config": config, "parameters": model.parameters}
        self.parent_state: dict[str, Any] | None = None
        self.field = _cursor_field(model, config)
        self._others = {name: value for name, value in (stored or {}).items() if name != self.field}
        start = as_text(str(model.start_value), context) if model.start_value is not None else "0"
        value = (stored or {}).get(self.field)
        try:
            self.start = int(start)
            self._value = None if value is None else int(value)
        except (TypeError, ValueError) as failure:
            raise ConfigurationError(
                f"The cursor {self.field} starts at {start!r}, and its state is {value!r}.",
                hint="Both must be whole numbers.",
            ) from failure

    def slices(self, partition: StreamSlice) -> Iterator[StreamSlice]:
        """Yield one slice: everything from the state on."""
        begin = self.start if self._value is None else max(self._value, self.start)
        yield StreamSlice(partition.partition, {"start": begin, "end": float("inf")})

    def note(self, stream_slice: StreamSlice, latest: int | None) -> None:  # noqa: ARG002 - only one slice
        """Record that the slice has been read.

        Args:
            latest: the greatest number in it, or None if it has no numbers.
        """
        if latest is not None:
            self._value = latest if self._value is None else max(self._value, latest)

    def complete(self) -> None:
        """Do nothing: a complete run does not change the state."""

    def as_json(self) -> dict[str, Any]:
        """Return the state to store."""
        return self.export()

    def export(self) -> dict[str, Any]:
        """Return the state in the form that other readers use."""
        return {**self._others, self.field: self.start if self._value is None else self._value}


def count_reader(
    model: IncrementingCountCursor, config: Mapping[str, Any]
) -> Callable[[Mapping[str, Any]], int | None]:
    """Return a function that returns a record's number, or None if it has none."""
    name = _cursor_field(model, config)

    def count_in(record: Mapping[str, Any]) -> int | None:
        try:
            return int(record[name])
        except (KeyError, TypeError, ValueError):
            return None

    return count_in


def _cursor_field(model: IncrementingCountCursor, config: Mapping[str, Any]) -> str:
    return as_text(model.cursor_field, {"config": config, "parameters": model.parameters})
