"""A part of a stream that is read with requests of its own: one partition, one interval of time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson


@dataclass(frozen=True, eq=False, repr=False)
class StreamSlice(Mapping[str, Any]):
    """A slice, as templates see it: its partition's values and its interval's by their names.

    Attributes:
        partition: what tells the partition apart; a substream's has `parent_slice`, too.
        cursor_slice: the bounds of the interval in the stream's own format.
        extra_fields: what else a parent record tells, which tells no partitions apart.
    """

    partition: Mapping[str, Any] = field(default_factory=dict)
    cursor_slice: Mapping[str, Any] = field(default_factory=dict)
    extra_fields: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.cursor_slice[name] if name in self.cursor_slice else self.partition[name]

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys([*self.partition, *self.cursor_slice])

    def __len__(self) -> int:
        return len({*self.partition, *self.cursor_slice})

    def __bool__(self) -> bool:
        """A slice is one, also without any values."""
        return True

    def __repr__(self) -> str:
        """What a template prints."""
        return repr(dict(self))

    @property
    def partition_key(self) -> bytes:
        """What tells the partition apart, in one spelling."""
        return key_of(self.partition)


def key_of(partition: Mapping[str, Any]) -> bytes:
    """A partition in one spelling: 1 and "1" are different partitions."""
    return orjson.dumps(partition, option=orjson.OPT_SORT_KEYS)
