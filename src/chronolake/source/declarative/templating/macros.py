"""The macros that a manifest's templates can call, and the filters for values."""

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
from chronolake.source.declarative.templating.times import (
    format_time,
    format_with_strftime,
    parse_time,
    raise_if_too_long,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def now_utc() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def today_utc() -> date:
    """Return the current date in UTC."""
    return datetime.now(UTC).date()


def today_with_timezone(timezone: str) -> date:
    """Return the current date in a time zone, for example "Pacific/Tarawa".

    Raises:
        LookupError: the time zone does not exist.
    """
    return datetime.now(ZoneInfo(timezone)).date()


def timestamp(dt: float | str) -> float:
    """Return seconds since 1970: an integer for a number, a float for an ISO 8601 string."""
    return int(dt) if isinstance(dt, int | float) else str_to_datetime(dt).timestamp()


def str_to_datetime(s: str) -> datetime:
    """Parse an ISO 8601 string and return the time in UTC.

    Raises:
        ValueError: the string is not in ISO 8601.
    """
    moment = isoparse(s)
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def day_delta(num_days: float, format: str = "%Y-%m-%dT%H:%M:%S.%f%z") -> str:  # noqa: A002
    """Return the current time plus `num_days` days in a format."""
    return format_with_strftime(datetime.now(UTC) + timedelta(days=num_days), format)


def format_datetime(
    dt: str | int | datetime,
    format: str,  # noqa: A002
    input_format: str | None = None,
) -> str:
    """Format a time. Strings and numbers are printed in UTC, datetimes in their own time zone.

    Raises:
        ValueError: the value does not match its format (default: ISO 8601, or seconds since 1970).
    """
    if isinstance(dt, datetime):
        return format_with_strftime(dt, format)
    if isinstance(dt, int):
        return format_time(parse_time(dt, input_format or "%s"), format)
    raise_if_too_long(input_format or "")
    # The reference supports only strptime's formats here, none of its own.
    moment = (
        datetime.strptime(dt, input_format)  # noqa: DTZ007 - `format_time` assumes UTC
        if input_format
        else str_to_datetime(dt)
    )
    return format_time(moment, format)


def sanitize_url(value: str) -> str:
    """Return a string with the quoting of URL queries."""
    return quote_plus(value)


def camel_case_to_snake_case(value: str) -> str:
    """Convert `CamelCase` to `camel_case`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", value).lower()


def generate_uuid() -> str:
    """Return a new random UUID."""
    return str(uuid.uuid4())


def compute_hash(value: Any, hash_type: str = "md5", salt: str | None = None) -> str:
    """Return the hexadecimal digest of a value's string followed by a salt.

    Raises:
        ValueError: the digest algorithm does not exist.
    """
    if hash_type not in hashlib.algorithms_guaranteed:
        raise ValueError("The digest algorithm does not exist.")
    digest = hashlib.new(hash_type, str(value).encode(), usedforsecurity=False)
    if salt:
        digest.update(str(salt).encode())
    return digest.hexdigest()


def compute_hmac(value: Any, key: str, hash_type: str = "sha256") -> str:
    """Return the hexadecimal HMAC of a value's string.

    Raises:
        ValueError: the algorithm is not SHA-256.
    """
    if hash_type != "sha256":
        raise ValueError("The only supported algorithm is SHA-256.")
    return keyed.new(str(key).encode(), str(value).encode(), hashlib.sha256).hexdigest()


def encode_base64(value: str) -> str:
    """Encode a string's UTF-8 bytes in base64."""
    return base64.b64encode(value.encode()).decode()


def decode_base64(value: str) -> str:
    """Decode a base64 string to a UTF-8 string.

    Raises:
        ValueError: the value is not valid base64, or not valid UTF-8.
    """
    return base64.b64decode(value.encode()).decode()


def encode_ascii_base64(value: str) -> str:
    """Encode an ASCII string in base64; the reference's `base64binascii_decode` encodes, too.

    Raises:
        ValueError: the string is not ASCII.
    """
    return base64.standard_b64encode(value.encode("ascii")).decode("ascii")


def as_string(value: Any) -> str:
    """Return a string unchanged, and any other value as JSON in quotes that keep it a string."""
    return value if isinstance(value, str) else f'"""{json.dumps(value)}"""'


def regex_search(value: str, regex: str) -> str:
    """Return the first group of a pattern's first match, or an empty string."""
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
#: `regex_replace` is defined in `sandbox`, because its output is not bounded.
FILTERS: dict[str, Callable[..., Any]] = {
    "hash": compute_hash,
    "hmac": compute_hmac,
    "base64encode": encode_base64,
    "base64decode": decode_base64,
    "base64binascii_decode": encode_ascii_base64,
    "string": as_string,
    "regex_search": regex_search,
}
