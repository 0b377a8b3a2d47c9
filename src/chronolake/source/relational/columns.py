"""Columns of tables whose values are read as texts, and the conversion to typed values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronolake.types import Column, ColumnType, Kind, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


class TextColumn(Protocol):
    """A column of a table whose values are read as texts.

    If a column has a value that its type cannot hold, it becomes a string: no value is lost or
    changed.
    """

    @property
    def number(self) -> int | None:
        """Return the number that identifies it across renames; None if it has none."""
        ...

    @property
    def name(self) -> str:
        """Return its name."""
        ...

    @property
    def type(self) -> ColumnType:
        """Return the type for its values, except those that match `out_of_range_pattern`."""
        ...

    @property
    def out_of_range_pattern(self) -> str | None:
        """Return a regular expression for texts that the type cannot hold, or None."""
        ...

    def values(self, texts: pa.Array, target: ColumnType) -> pa.Array:
        """Return the values of texts in a type that can hold them."""
        ...

    def as_text(self) -> Self:
        """Return the column with texts instead of its values."""
        ...


#: The type of a source's columns.
ColumnT = TypeVar("ColumnT", bound=TextColumn)


def can_hold(column: TextColumn, texts: pa.Array | pa.ChunkedArray) -> bool:
    """Return whether a column's type can hold all of some values."""
    if column.out_of_range_pattern is None:
        return True
    return not pc.any(
        pc.match_substring_regex(texts, column.out_of_range_pattern), min_count=0
    ).as_py()


@dataclass(frozen=True)
class TypeConversion:
    """A conversion of texts to typed values; it is sent to executors.

    Attributes:
        columns: the source's columns.
        wanted: the same columns with the wanted types; STRING accepts every text.
        others: columns that stay unchanged, as a Spark schema.
        out_of_range: for some columns, the name of another column that receives the texts which the
            wanted type cannot hold; the value itself is null there. Other columns have no such
            values.
    """

    columns: Sequence[TextColumn]
    wanted: tuple[Column, ...]
    others: str = ""
    out_of_range: Mapping[str, str] = field(default_factory=dict)

    @property
    def schema(self) -> str:
        """Return the output's Spark schema."""
        columns = [f"{quote(column.name)} {column.type.sql}" for column in self.wanted]
        texts = [f"{quote(name)} string" for name in self.out_of_range.values()]
        return ", ".join(filter(None, [*columns, *texts, self.others]))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return batches with typed values in these columns, and the others unchanged."""
        for batch in batches:
            values, out_of_range = {}, {}
            for column, target in zip(self.columns, self.wanted, strict=True):
                texts = batch[column.name]
                if column.name in self.out_of_range:
                    texts, out_of_range_texts = _split_by_range(column, texts)
                    out_of_range[self.out_of_range[column.name]] = out_of_range_texts
                values[column.name] = column.values(texts, target.type)
            others = {name: batch[name] for name in batch.schema.names if name not in values}
            yield pa.RecordBatch.from_pydict(values | out_of_range | others)


def typed_values(column: TextColumn, texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the values of texts in the column's type, and the texts that it cannot hold."""
    texts, out_of_range = _split_by_range(column, texts)
    return column.values(texts, column.type), out_of_range


def _split_by_range(column: TextColumn, texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the texts that the column's type can hold, and the others."""
    nulls = pa.nulls(len(texts), pa.string())
    if can_hold(column, texts):
        return texts, nulls
    is_out_of_range = pc.match_substring_regex(texts, column.out_of_range_pattern)
    printed = column.values(texts, ColumnType(Kind.STRING))
    return pc.if_else(is_out_of_range, nulls, texts), pc.if_else(is_out_of_range, printed, nulls)


def numbers_of(columns: Iterable[TextColumn]) -> dict[str, int]:
    """Return the known column numbers, by column name."""
    return {column.name: column.number for column in columns if column.number is not None}


def bytes_of(texts: pa.Array, *, prefix: int = 0) -> pa.Array:
    """Return the bytes of texts with hexadecimal digits.

    Args:
        texts: the texts.
        prefix: how many characters precede the digits.
    """
    digits = pc.binary_replace_slice(texts, 0, prefix, "").cast(pa.large_binary())
    validity, offsets, data = digits.buffers()
    ends = np.frombuffer(offsets, np.int64, len(digits) + 1, digits.offset * 8)
    content = bytes.fromhex(bytes(data or b"")[ends[0] : ends[-1]].decode("ascii"))
    halves = pa.py_buffer((ends - ends[0]) // 2)
    values = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(digits), [validity, halves, pa.py_buffer(content)], offset=0
    )
    return values.cast(pa.binary())
