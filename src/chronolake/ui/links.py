"""The web UI's URLs. Each contains everything that its page shows, so that it can be shared."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from chronolake import instants
from chronolake.errors import SchemaError, ValueRefusedError
from chronolake.types import LAST_MICROS, TMIN_MICROS, TableName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from chronolake.formatting import Cell

#: The prefix of a key column's name in a query, because columns may have any name.
KEY: Final = "key."
#: The prefix of a key column's name for the initial value of the form, as JSON. An input removes
#: line breaks, and a form does not send them unchanged.
WAS: Final = "was."
#: The parameter with the name of a key column whose value is too long for a link.
LONG: Final = "long"
#: In bytes. The server reads up to 64 KiB of a request's line and headers together.
_MAX_URL_BYTES: Final = 48 * 1024
_MAX_NUMBER_DIGITS: Final = 12
#: In a URL that was typed by hand, the plus of a UTC offset becomes a blank.
_ZONE: Final = re.compile(r"(:\d\d(?:\.\d+)?) (\d\d:?\d\d)$")


def to(path: str, **query: str | int | None) -> str:
    """Return a path with a query; parameters that are None or empty are omitted."""
    given = [(name, str(value)) for name, value in query.items() if value not in {None, ""}]
    return f"{path}?{urlencode(given)}" if given else path


def table(name: TableName) -> str:
    """Return the URL of a table's metadata page."""
    return to("/table", name=str(name))


def record(
    name: TableName,
    key: Mapping[str, Cell] | None = None,
    *,
    path: str = "/record",
    **query: str | int | None,
) -> str:
    """Return the URL of a record's timeline or of a part of it; without a key, of the key form.

    A key that is too long for a URL gives a URL that `key_of` rejects with a hint.
    """
    table = [("table", str(name))]
    given = [
        ("null", column) if value is None else (KEY + column, text_of(value))
        for column, value in (key or {}).items()
    ]
    parameters = [(name, str(value)) for name, value in query.items() if value is not None]
    url = f"{path}?{urlencode([*table, *given, *parameters])}"
    if len(url) <= _MAX_URL_BYTES or not given:
        return url
    longest = max(given, key=lambda pair: len(pair[1]))[0].removeprefix(KEY)
    return f"{path}?{urlencode([*table, (LONG, longest)])}"


def time_travel(name: TableName, **query: str | None) -> str:
    """Return the URL of a table as of a time."""
    return to("/past", table=str(name), **query)


def text_of(value: Cell) -> str:
    """Return a key's value as the text that `chronolake history --key` accepts."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def table_of(request: Request, parameter: str = "table") -> TableName | None:
    """Return the table that a URL names, or None.

    Raises:
        SchemaError: the text is not schema.table.
    """
    text = request.query_params.get(parameter, "").strip()
    return TableName.parse(text) if text else None


def required_table_of(request: Request, parameter: str = "table") -> TableName:
    """Return the table that a URL names.

    Raises:
        SchemaError: the URL names no table.
    """
    found = table_of(request, parameter)
    if found is None:
        raise SchemaError(
            "The URL does not name a table.", hint=f"Add {parameter}=schema.table to the URL."
        )
    return found


def key_of(request: Request) -> dict[str, str | None]:
    """Return the record's key in a URL: text by column, None for null.

    Raises:
        ValueRefusedError: the key is too long for a URL.
    """
    if LONG in request.query_params or len(request.url.query) > _MAX_URL_BYTES:
        raise ValueRefusedError(
            "The record's key is too long for a URL.",
            hint="Use `chronolake history`, or SQL with `chronolake query`.",
            column=request.query_params.get(LONG),
        )
    given: dict[str, str | None] = {}
    for name, value in request.query_params.multi_items():
        if name.startswith(KEY):
            given[name.removeprefix(KEY)] = value
    for name, value in request.query_params.multi_items():
        column = name.removeprefix(WAS)
        original = _original(value) if name.startswith(WAS) else None
        if original is not None and given.get(column) == without_breaks(original):
            given[column] = original
    return given | dict.fromkeys(request.query_params.getlist("null"))


def without_breaks(text: str) -> str:
    """Return a text as an input of a form keeps it."""
    return text.replace("\r", "").replace("\n", "")


def _original(text: str) -> str | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def number_of(request: Request, name: str, *, default: int, minimum: int = 1) -> int:
    """Return an integer parameter of a URL; the default if it is not valid."""
    # Python cannot parse very long integers, and no list has that many pages.
    text = request.query_params.get(name, "")[:_MAX_NUMBER_DIGITS]
    return max(minimum, int(text)) if text.isascii() and text.isdecimal() else default


def micros_of(text: str) -> int:
    """Parse an instant that a person typed, in microseconds since 1970; UTC without an offset.

    Args:
        text: ISO 8601, such as `2024-05-02T00:00:00Z`; a date, a month or a year is its first
            instant. The plus of a UTC offset may have become a blank. Times out of range become the
            first or last instant.

    Raises:
        ValueRefusedError: the text is not a time.
    """
    found = instants.micros_of(_ZONE.sub(r"\1+\2", text.strip()))
    return min(max(found, TMIN_MICROS), LAST_MICROS)
