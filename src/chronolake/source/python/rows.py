"""Records from what authors yield: dictionaries, objects, and tables of Arrow and its relatives."""

from __future__ import annotations

import dataclasses
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, Final, TypeAlias
from uuid import UUID

import pyarrow as pa

from chronolake.errors import SourceError
from chronolake.exact_json import LongNumber

#: Types of values that columns have, or that JSON text has.
_PLAIN: Final = frozenset(
    {type(None), bool, int, float, str, LongNumber, date, datetime, time, Decimal, bytes, UUID}
)

#: Types that JSON has, and that cannot be changed.
_SCALARS: Final = frozenset({type(None), bool, int, float, str, LongNumber})

Rows: TypeAlias = dict[str, Any] | pa.RecordBatch


def rows_in(item: Any, *, stream: str) -> Iterator[Rows]:
    """Yield the records in something that an author yielded.

    Args:
        item: a mapping, a pydantic object or an instance of a dataclass; an Arrow table or batch,
            or another object with Arrow's C stream interface; or an iterable of these.
        stream: the stream's name, for errors.

    Raises:
        SourceError: it is something else.
    """
    if isinstance(item, pa.RecordBatch):
        yield item
    elif isinstance(item, pa.Table):
        yield from item.to_batches()
    elif (record := _record_of(item)) is not None:
        yield record
    elif hasattr(item, "__arrow_c_stream__"):
        yield from pa.table(item).to_batches()
    elif isinstance(item, Iterable) and not isinstance(item, str | bytes):
        for inner in item:
            yield from rows_in(inner, stream=stream)
    else:
        raise SourceError(
            f"The stream {stream} yielded a value of the type {type(item).__name__}, which is not "
            "a record.",
            hint="Yield dictionaries, pydantic objects, dataclasses, Arrow tables, or lists of "
            "them.",
        )


def _record_of(item: Any) -> dict[str, Any] | None:
    if isinstance(item, Mapping):
        fields: Mapping[Any, Any] = item
    elif callable(dump := getattr(item, "model_dump", None)):
        fields = dump(by_alias=True)
    elif dataclasses.is_dataclass(item) and not isinstance(item, type):
        fields = dataclasses.asdict(item)
    else:
        return None
    return {str(name): plain(value) for name, value in fields.items()}


def plain(value: Any) -> Any:
    """Return a value as columns have it: nested values become what JSON has.

    Nested values are copied: their author may change and yield them again.
    """
    type_ = type(value)
    if type_ in _PLAIN:
        return value
    return _json_of(value) if type_ is dict or type_ is list else _plain_of(value)


def _exact_type_of(value: Any) -> Any:
    """Return a value of a subclass as one of its base class, with the same fields."""
    match value:
        case _ if hasattr(value, "to_pydatetime"):
            return value.to_pydatetime()
        case datetime():
            # Subclasses have the same fields, as pendulum's times have.
            at, day = time(*_clock(value), fold=value.fold), date(*_day(value))
            return datetime.combine(day, at, value.tzinfo)
        case date():
            return date(*_day(value))
        case time():
            return time(*_clock(value), value.tzinfo, fold=value.fold)
        case UUID():
            return UUID(int=value.int)
    return value


def _day(value: date) -> tuple[int, int, int]:
    return value.year, value.month, value.day


def _clock(value: datetime | time) -> tuple[int, int, int, int]:
    return value.hour, value.minute, value.second, value.microsecond


#: What other values are in JSON.
_CONVERSIONS: Final[tuple[tuple[Any, Callable[[Any], Any]], ...]] = (
    (Decimal, lambda value: LongNumber(f"{value:f}") if value.is_finite() else str(value)),
    (bytes, lambda value: b64encode(value).decode()),
    (date | time, lambda value: value.isoformat()),
    (UUID, str),
    (Enum, lambda value: _json_of(value.value)),
)


def _plain_of(value: Any) -> Any:
    if isinstance(value, Enum):
        return plain(value.value)
    kinds: tuple[type, ...] = (int, float, str, bytes, Decimal)
    for kind in kinds:
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, date | time | UUID):
        return _exact_type_of(value)
    if hasattr(value, "item") and hasattr(value, "dtype"):
        return plain(value.item())
    return _json_of(value)


def _json_of(value: Any) -> Any:
    """Return a value as JSON has it.

    Raises:
        SourceError: JSON has no such value.
    """
    # Most nested values consist of these types, which are faster to compare.
    type_ = type(value)
    if type_ in _SCALARS or isinstance(value, str | bool | int | float | None):
        return value
    if type_ is list:
        return [_json_of(inner) for inner in value]
    if isinstance(value, Mapping):
        return {str(name): _json_of(inner) for name, inner in value.items()}
    for kind, convert in _CONVERSIONS:
        if isinstance(value, kind):
            return convert(value)
    if (record := _record_of(value)) is not None:
        return _json_of(record)
    if isinstance(value, Iterable):
        return [_json_of(inner) for inner in value]
    raise SourceError(
        f"A value of the type {type(value).__name__} cannot be stored.",
        hint="Convert it to a number, a text, a time, a list or a dictionary.",
    )
