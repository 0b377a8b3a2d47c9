"""How far a stream of an API is, as its checkpoint keeps it: its state, and its columns so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from chronolake.types import ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

_STATE: Final = "state"
_COLUMNS: Final = "columns"


@dataclass(frozen=True)
class Place:
    """How far a stream is.

    Attributes:
        state: its state; None: there is none.
        types: the types of the columns that it had so far, by their names.
    """

    state: Mapping[str, Any] | None = None
    types: Mapping[str, ColumnType] = field(default_factory=dict)

    @classmethod
    def of(cls, told: Mapping[str, Any] | None) -> Self:
        """What a checkpoint says; a state that another reader has stored is one, too."""
        if not told:
            return cls()
        if _COLUMNS not in told:
            return cls(told)
        types = {name: ColumnType(Kind(kind)) for name, kind in told[_COLUMNS].items()}
        return cls(told[_STATE], types)

    def as_json(self) -> dict[str, Any]:
        """The inverse of `of`."""
        columns = {name: kind.kind for name, kind in self.types.items()}
        return {_STATE: self.state, _COLUMNS: columns}
