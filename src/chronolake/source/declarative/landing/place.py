"""How far a stream of an API is, as its checkpoint keeps it.

That is its state, its columns so far, and when it was last compared with all that the API has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from chronolake.source.offered import COMPARED
from chronolake.types import ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

_STATE: Final = "state"
_COLUMNS: Final = "columns"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Place:
    """How far a stream is.

    Attributes:
        state: its state; None: there is none.
        types: the types of the columns that it had so far, by their names.
        compared: the last complete comparison (`offered.COMPARED`); None: there was none.
    """

    state: Mapping[str, Any] | None = None
    types: Mapping[str, ColumnType] = field(default_factory=dict)
    compared: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, told: Mapping[str, Any] | None) -> Self:
        """What a checkpoint says; a state that another reader has stored is one, too."""
        if not told:
            return cls()
        if _COLUMNS not in told:
            return cls(told)
        types = {name: ColumnType(Kind(kind)) for name, kind in told[_COLUMNS].items()}
        return cls(told[_STATE], types, told.get(COMPARED))

    @property
    def compared_at(self) -> datetime | None:
        """When the last complete comparison began."""
        if self.compared is None:
            return None
        return _EPOCH + timedelta(microseconds=self.compared["at"])

    def as_json(self) -> dict[str, Any]:
        """The inverse of `of`."""
        columns = {name: kind.kind for name, kind in self.types.items()}
        told = {_STATE: self.state, _COLUMNS: columns}
        return told if self.compared is None else {**told, COMPARED: dict(self.compared)}
