"""State of streams whose cursor is a number that grows, and of those that have no cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.stream_slice import StreamSlice
from chronolake.source.declarative.templating.templates import as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from chronolake.source.declarative.models.cursors import IncrementingCountCursor

#: What the state of a stream without a cursor says.
NO_CURSOR: Final = {"__ab_no_cursor_state_message": True}


class WholeState:
    """A stream without a cursor: each run reads all of it."""

    def __init__(self) -> None:
        self.parent_state: dict[str, Any] | None = None

    def slices(self, partition: StreamSlice) -> Iterator[StreamSlice]:
        """The partition."""
        yield partition

    def note(self, one: StreamSlice, latest: object) -> None:
        """A partition has been read."""

    def complete(self) -> None:
        """All have been read."""

    def as_json(self) -> dict[str, Any]:
        """What is stored."""
        return dict(NO_CURSOR)

    def exported(self) -> dict[str, Any]:
        """The state as other readers have it."""
        return dict(NO_CURSOR)


class CountState:
    """A stream whose cursor is a number that grows; it has no partitions."""

    def __init__(
        self,
        model: IncrementingCountCursor,
        config: Mapping[str, Any],
        stored: Mapping[str, Any] | None,
    ) -> None:
        """Begin where a stored state ends.

        Raises:
            ConfigurationError: the start or the stored state is no whole number.
        """
        context = {"config": config, "parameters": model.parameters}
        self.parent_state: dict[str, Any] | None = None
        self.field = _field_of(model, config)
        self._others = {name: value for name, value in (stored or {}).items() if name != self.field}
        start = as_text(str(model.start_value), context) if model.start_value is not None else "0"
        value = (stored or {}).get(self.field)
        try:
            self.start = int(start)
            self._value = None if value is None else int(value)
        except (TypeError, ValueError) as failure:
            raise ConfigurationError(
                f"The cursor {self.field} counts from {start!r}, and its state is {value!r}.",
                hint="Both are whole numbers.",
            ) from failure

    def slices(self, partition: StreamSlice) -> Iterator[StreamSlice]:
        """All from the state on."""
        begin = self.start if self._value is None else max(self._value, self.start)
        yield StreamSlice(partition.partition, {"start": begin, "end": float("inf")})

    def note(self, one: StreamSlice, latest: int | None) -> None:  # noqa: ARG002 - there is one
        """The slice has been read.

        Args:
            one: the slice.
            latest: the greatest number in it, or None: there was none.
        """
        if latest is not None:
            self._value = latest if self._value is None else max(self._value, latest)

    def complete(self) -> None:
        """All has been read."""

    def as_json(self) -> dict[str, Any]:
        """What is stored."""
        return self.exported()

    def exported(self) -> dict[str, Any]:
        """The state as other readers have it."""
        return {**self._others, self.field: self.start if self._value is None else self._value}


def count_reader(
    model: IncrementingCountCursor, config: Mapping[str, Any]
) -> Callable[[Mapping[str, Any]], int | None]:
    """What gives a record's number; None if it has none."""
    name = _field_of(model, config)

    def count_in(record: Mapping[str, Any]) -> int | None:
        try:
            return int(record[name])
        except (KeyError, TypeError, ValueError):
            return None

    return count_in


def _field_of(model: IncrementingCountCursor, config: Mapping[str, Any]) -> str:
    return as_text(model.cursor_field, {"config": config, "parameters": model.parameters})
