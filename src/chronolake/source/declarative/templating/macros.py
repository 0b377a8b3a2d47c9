"""What a manifest's templates can call, and what values can be piped through."""

from __future__ import annotations

import base64
import builtins
import hashlib
import hmac as keyed
import json
import re
import uuid
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus
from zoneinfo import ZoneInfo

from dateutil.parser import isoparse

from chronolake.durations import iso_duration
from chronolake.source.declarative.templating.times import expect_narrow, formatted, parsed, spelled

if TYPE_CHECKING:
    from collections.abc import Callable


def now_utc() -> datetime:
    """Now, in UTC."""
    return datetime.now(UTC)


def today_utc() -> date:
    """The day that it is in UTC."""
    return datetime.now(UTC).date()


def today_with_timezone(timezone: str) -> date:
    """The day that it is in a time zone, "Pacific/Tarawa".

    Raises:
        LookupError: there is no such zone.
    """
    return datetime.now(ZoneInfo(timezone)).date()


def timestamp(dt: float | str) -> float:
    """Seconds since 1970: whole ones of a number, a float of a text in ISO 8601."""
    return int(dt) if isinstance(dt, int | float) else str_to_datetime(dt).timestamp()


def str_to_datetime(s: str) -> datetime:
    """The moment a text in ISO 8601 spells, in UTC.

    Raises:
        ValueError: it spells none.
    """
    moment = isoparse(s)
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def day_delta(num_days: float, format: str = "%Y-%m-%dT%H:%M:%S.%f%z") -> str:  # noqa: A002
    """Now and so many days, in a format."""
    return spelled(datetime.now(UTC) + timedelta(days=num_days), format)


def format_datetime(
    dt: str | int | datetime,
    format: str,  # noqa: A002
    input_format: str | None = None,
) -> str:
    """A moment in another format: a text's and a number's in UTC, any other on its own clock.

    Raises:
        ValueError: the text or number is not as its format says (ISO 8601; seconds since 1970).
    """
    if isinstance(dt, datetime):
        return spelled(dt, format)
    if isinstance(dt, int):
        return formatted(parsed(dt, input_format or "%s"), format)
    expect_narrow(input_format or "")
    # The reference knows no format of its own here, only strptime's.
    moment = (
        datetime.strptime(dt, input_format)  # noqa: DTZ007 - `formatted` takes it for one in UTC
        if input_format
        else str_to_datetime(dt)
    )
    return formatted(moment, format)


def sanitize_url(value: str) -> str:
    """A text as a URL's query spells it."""
    return quote_plus(value)


def camel_case_to_snake_case(value: str) -> str:
    """`CamelCase` as `camel_case`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", value).lower()


def generate_uuid() -> str:
    """A new random UUID."""
    return str(uuid.uuid4())


def hashed(value: Any, hash_type: str = "md5", salt: str | None = None) -> str:
    """The hexadecimal digest of a value's text and a salt behind it.

    Raises:
        ValueError: there is no such digest.
    """
    if hash_type not in hashlib.algorithms_guaranteed:
        raise ValueError("There is no such digest.")
    digest = hashlib.new(hash_type, str(value).encode(), usedforsecurity=False)
    if salt:
        digest.update(str(salt).encode())
    return digest.hexdigest()


def signed(value: Any, key: str, hash_type: str = "sha256") -> str:
    """The hexadecimal HMAC of a value's text.

    Raises:
        ValueError: another digest than SHA-256 is asked for.
    """
    if hash_type != "sha256":
        raise ValueError("Only SHA-256 signs.")
    return keyed.new(str(key).encode(), str(value).encode(), hashlib.sha256).hexdigest()


def base64_encoded(value: str) -> str:
    """A text's UTF-8 in base64."""
    return base64.b64encode(value.encode()).decode()


def base64_decoded(value: str) -> str:
    """The text whose UTF-8 is in base64.

    Raises:
        ValueError: it is not.
    """
    return base64.b64decode(value.encode()).decode()


def base64_of_ascii(value: str) -> str:
    """An ASCII text in base64; the reference's `base64binascii_decode` encodes, too.

    Raises:
        ValueError: the text is not ASCII.
    """
    return base64.standard_b64encode(value.encode("ascii")).decode("ascii")


def as_string(value: Any) -> str:
    """A text as it is; anything else as JSON in quotes that keep it a text."""
    return value if isinstance(value, str) else f'"""{json.dumps(value)}"""'


def regex_search(value: str, regex: str) -> str:
    """The first group of a pattern's first match, or an empty text."""
    found = re.search(regex, value)
    return found.group(1) if found and found.re.groups else ""


MACROS: dict[str, Callable[..., Any]] = {
    "now_utc": now_utc,
    "today_utc": today_utc,
    "timestamp": timestamp,
    "max": builtins.max,
    "min": builtins.min,
    "day_delta": day_delta,
    "duration": iso_duration,
    "format_datetime": format_datetime,
    "today_with_timezone": today_with_timezone,
    "str_to_datetime": str_to_datetime,
    "sanitize_url": sanitize_url,
    "camel_case_to_snake_case": camel_case_to_snake_case,
    "generate_uuid": generate_uuid,
}
#: `regex_replace`, which makes text without end, is `sandbox`'s.
FILTERS: dict[str, Callable[..., Any]] = {
    "hash": hashed,
    "hmac": signed,
    "base64encode": base64_encoded,
    "base64decode": base64_decoded,
    "base64binascii_decode": base64_of_ascii,
    "string": as_string,
    "regex_search": regex_search,
}
