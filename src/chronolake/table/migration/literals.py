"""Values as SQL: exactly the value, whatever its type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from chronolake.types import Kind

if TYPE_CHECKING:
    from chronolake.types import ColumnType


def literal(value: pa.Scalar, kind: ColumnType) -> str:
    """A value as a SQL expression of its column's stored type.

    Args:
        value: of the type `kind.arrow`; it may be null.
        kind: the column's type.
    """
    if not value.is_valid:
        return f"CAST(NULL AS {kind.sql})"
    match kind.kind:
        case Kind.BINARY:
            text = f"X'{value.as_py().hex()}'"
        case Kind.STRING | Kind.JSON | Kind.XML | Kind.NAIVE_TIME:
            # A raw hexadecimal literal needs no escaping, whatever the text holds.
            text = f"X'{value.as_py().encode().hex()}'"
        case Kind.UTC_DATETIME | Kind.NAIVE_DATETIME:
            # The session's time zone is UTC: a time of no zone has the same digits.
            text = f"timestamp_micros({_number(value)})"
        case Kind.NAIVE_DATE:
            text = f"date_from_unix_date({_number(value)})"
        case Kind.FLOAT:
            text = f"'{value.cast(pa.string()).as_py()}'"
        case _:
            text = f"'{value.as_py()}'"
    return f"CAST({text} AS {kind.sql})"


def _number(value: pa.Scalar) -> int:
    """Microseconds or days since 1970; Python's own times do not reach both ends."""
    return int(value.value)
