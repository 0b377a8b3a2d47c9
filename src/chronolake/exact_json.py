"""JSON in which every number keeps its digits.

orjson reads an integer beyond 64 bits as a float, rounds other numbers to a float, and cannot write
integers beyond 64 bits. Here, integers have any size, and a number that a float does not represent
is a `LongNumber`, a float with its text. Both are rare; orjson reads and writes all other texts.
"""

from __future__ import annotations

import json
import math
import sys
from decimal import Decimal
from operator import itemgetter
from typing import Any, Final, Self

import orjson

#: Maps each digit and the decimal point to 0, so that a long number is a run of zeros.
_AS_ZEROS: Final = bytes.maketrans(b"123456789.E", b"0000000000e")
#: A float represents each number with this many significant digits.
_SAFE_DIGITS: Final = sys.float_info.dig
_LONG: Final = b"0" * (_SAFE_DIGITS + 1)
#: The end of a number that may be too small for a float, which orjson reads as 0.
_TINY: Final = b"0e-000"


class LongNumber(float):
    """A number with more digits than a float has: a float that is written with all of its digits.

    Attributes:
        text: the number as it was written.
    """

    text: str

    def __new__(cls, text: str) -> Self:
        """Return the number of a JSON text."""
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        """Return how copy and pickle make the number again."""
        return type(self), (self.text,)

    def __repr__(self) -> str:
        """Return all digits; templates print them."""
        return self.text

    __str__ = __repr__


def loads(text: bytes) -> Any:
    """Return the value of a JSON text; NaN, Infinity and lone surrogates are accepted.

    Raises:
        ValueError: the text is not valid JSON.
        RecursionError: values are nested too deeply.
    """
    zeros = text.translate(_AS_ZEROS)
    if _LONG not in zeros and _TINY not in zeros:
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            # Too large for a float, or not valid.
            pass
    return json.loads(text, parse_float=number_of)


def number_of(text: str) -> float:
    """Return a number with a fraction or an exponent; a `LongNumber` if a float loses digits."""
    number = float(text)
    if len(text) <= _SAFE_DIGITS and "e" not in text and "E" not in text:
        return number
    return number if is_exact(text, number) else LongNumber(text)


def is_exact(text: str, number: float) -> bool:
    """Return whether a number's text has no digits that its float does not have.

    That is so if both are equal, or if the text is the float with more digits than necessary:
    many programs write 0.1 as 0.10000000000000001.
    """
    if not math.isfinite(number):
        return False
    wanted = Decimal(text)
    if wanted == Decimal(repr(number)):
        return True
    # Both expansions have up to 1,075 digits.
    return f"{Decimal(number):.{len(wanted.as_tuple().digits) - 1}e}" == f"{wanted:e}"


def dumps(value: Any, *, sort_keys: bool = False) -> bytes:
    """Return a value's JSON text, with all digits of its numbers; lone surrogates are kept.

    Args:
        value: a value that `loads` could return, or one of orjson's other types.
        sort_keys: whether the keys of objects are sorted.

    Raises:
        TypeError: a value has no JSON form.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else 0)
    except TypeError:
        return _text_of(value, sort_keys=sort_keys).encode("utf-8", "surrogatepass")


def _text_of(value: Any, *, sort_keys: bool) -> str:
    """Return the JSON text of a value that orjson cannot write."""
    match value:
        case dict():
            pairs = [(_key_of(key), item) for key, item in value.items()]
            if sort_keys:
                pairs.sort(key=itemgetter(0))
            texts = (f"{key}:{_text_of(item, sort_keys=sort_keys)}" for key, item in pairs)
            return "{" + ",".join(texts) + "}"
        case list() | tuple():
            return "[" + ",".join(_text_of(item, sort_keys=sort_keys) for item in value) + "]"
        case LongNumber():
            return value.text
        case float() if not math.isfinite(value):
            return "null"
        case str() | bool() | int() | float():
            return json.dumps(value, ensure_ascii=False)
    return orjson.dumps(value).decode()


def _key_of(key: Any) -> str:
    if isinstance(key, str):
        return json.dumps(key, ensure_ascii=False)
    return orjson.dumps({key: 0}, option=orjson.OPT_NON_STR_KEYS).decode()[1:-3]
