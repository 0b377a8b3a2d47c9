"""Columns whose changes start a version of a record (`track_history`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import orjson

from chronolake.config import TrackHistory, is_pattern, matches
from chronolake.errors import ConfigurationError
from chronolake.formatting import did_you_mean
from chronolake.landing.reader import SOURCE_TIME

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chronolake.config import PipelineConfig


@dataclass(frozen=True)
class TrackedColumns:
    """The tracked columns of a stream, by names and patterns of its source.

    Attributes:
        patterns: the names and patterns.
        are_excluded: whether all other columns are tracked, instead of these.
        is_own: whether the setting is the stream's own.
        names: pairs of source name and lake name of renamed columns.
    """

    patterns: tuple[str, ...]
    are_excluded: bool
    is_own: bool = False
    names: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(
        cls, config: PipelineConfig, stream: str, names: Sequence[tuple[str, str]]
    ) -> Self | None:
        """Return the tracked columns of a stream; None: all changes start a version."""
        own = config.streams.get(stream)
        setting = None if own is None else own.track_history
        is_own = setting is not None
        setting = setting or config.track_history
        if not isinstance(setting, TrackHistory):
            return None
        patterns = setting.only or setting.excepted or ()
        return cls(tuple(patterns), setting.only is None, is_own, tuple(names))

    def select(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Return the tracked ones of a table's columns.

        The source's own time is never tracked: it changes with each change.
        """
        source_names = {now: name for name, now in self.names}
        return tuple(
            name
            for name in columns
            if name != SOURCE_TIME.name
            and self._is_listed(source_names.get(name, name)) is not self.are_excluded
        )

    def _is_listed(self, name: str) -> bool:
        return any(matches(name, pattern) for pattern in self.patterns)

    def to_json(self) -> str:
        """Return a text that changes with the tracked columns, for a table's property."""
        found = {"except" if self.are_excluded else "only": self.patterns}
        names = {"names": dict(sorted(self.names))} if self.names else {}
        return orjson.dumps({**found, **names}).decode()

    def expect_known(self, columns: Sequence[str], *, place: str) -> None:
        """Raise if the stream's setting names a column that does not exist.

        Args:
            columns: the names of the stored columns in the source.
            place: the stream's path in chronolake.yml, for the message.

        Raises:
            ConfigurationError: the stream does not store such a column.
        """
        folded = {column.casefold() for column in columns}
        key = "except" if self.are_excluded else "only"
        for name in self.patterns if self.is_own else ():
            if not is_pattern(name) and name.casefold() not in folded:
                raise ConfigurationError(
                    f"{place}.track_history.{key}: the stream has no column {name!r}.",
                    hint=did_you_mean(name, columns, f"It has: {', '.join(columns)}."),
                )
