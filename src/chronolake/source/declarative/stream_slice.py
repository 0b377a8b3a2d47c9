"""A part of a stream that is read with its own requests: one partition, one time interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from chronolake import exact_json


@dataclass(frozen=True, eq=False, repr=False)
class StreamSlice(Mapping[str, Any]):
    """A slice for templates: the values of its partition and its interval, by name.

    Attributes:
        partition: the values that identify the partition; a substream's also contain
            `parent_slice`.
        cursor_slice: the bounds of the interval, in the stream's own format.
        extra_fields: other values of a parent record, which do not identify the partition.
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
        """Return True: a slice without values is a valid slice."""
        return True

    def __repr__(self) -> str:
        """Return the text that a template prints."""
        return repr(dict(self))

    @property
    def partition_key(self) -> bytes:
        """Return the partition's canonical form."""
        return partition_key_of(self.partition)


def partition_key_of(partition: Mapping[str, Any]) -> bytes:
    """Return a partition's canonical form; 1 and "1" are different partitions."""
    return exact_json.dumps(partition, sort_keys=True)


class _ClassSlice(StreamSlice):
    def __bool__(self) -> bool:
        return bool(len(self) or self.extra_fields)


def slice_for_class(stream_slice: StreamSlice) -> StreamSlice:
    """Return a copy of a slice for custom classes; an empty slice is falsy, as in the reference."""
    return _ClassSlice(
        deepcopy(stream_slice.partition),
        deepcopy(stream_slice.cursor_slice),
        deepcopy(stream_slice.extra_fields),
    )
