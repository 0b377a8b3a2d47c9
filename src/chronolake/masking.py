"""Masking of secrets in names, texts and states, so that they are neither stored nor shown."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Replacement of a secret.
MASKED: Final = "•••"
#: Replacement of a secret that has changed.
CHANGED: Final = f"{MASKED} (another)"
#: Replacement of a message that may contain values of columns with rules.
HIDDEN: Final = "(not shown, because columns have rules; source.show_messages shows it)"

#: A text that may be a key, whatever its name: letters and digits without spaces.
_LIKE_A_KEY: Final = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w+/=.~-]{16,}")

#: Digits of numbers that are masked: a shorter one may be a part of any number in a message.
_LEAST_DIGITS: Final = 4

_MISSING: Final = object()
_WORDS: Final = (
    r"passw|passphrase|pwd|secret|token|credential|signature|bearer|cookie|assertion|authorization"
    r"|api[-_. ]?key|(?:account|access|private|shared|master|signing|encryption)[-_. ]?key"
    r"|connection[-_. ]?string|(?<![a-z0-9])(?:auth|sas|sig)(?![a-z0-9])"
)
_NAME: Final = re.compile(_WORDS, re.IGNORECASE)
_KEY: Final = re.compile(r"(?<![a-z0-9])key(?![a-z0-9])", re.IGNORECASE)
# Repetitions are bounded, so that no text takes long to match.
_GIVEN: Final = re.compile(
    rf"((?:{_WORDS}|(?<=[?&])key)[\w.\-]{{0,40}}\\?[\"']?\s{{0,5}}[=:]\s{{0,5}})"
    r"(\\?\"[^\"]*\"?|'[^']*'?|[^&;,\s\"'#}]+)",
    re.IGNORECASE,
)
_BEARER: Final = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=\-]{6,}", re.IGNORECASE)
#: Every text with a named secret contains one of these, which are fast to find.
_HINTS: Final = ("passw", "pwd", "passphrase", "secret", "token", "credential", "sig", "bearer",
                 "cookie", "assertion", "auth", "key", "string", "sas", "basic")  # fmt: skip
#: The user part of a URL: a password may contain characters that delimit other parts.
_USER: Final = re.compile(r"(?<=://)(?:[^\s@:/?\"]{0,200}:[^\s\"]{1,300}|[^/@\s\"]{1,200})(?=@)")
_ORACLE: Final = re.compile(r"(?<=thin:)[^\s@]{1,200}(?=@)")


@lru_cache(maxsize=10_000)
def is_secret(name: str, *, keys: bool = False) -> bool:
    """Return whether a name is the name of a secret.

    Args:
        name: the name of a property or parameter, or a path in a state.
        keys: whether the word "key" alone means a secret; in states it names a cursor.
    """
    return bool(_NAME.search(name) or (keys and _KEY.search(name)))


def holds_secret(text: str) -> bool:
    """Return whether a text contains a named secret, such as `password=…`."""
    return _hints(text) and bool(_GIVEN.search(text) or _BEARER.search(text))


def mask_text(text: str) -> str:
    """Return a text with masked secrets: in URLs, and after the name of a secret."""
    if "@" in text:
        text = _ORACLE.sub(MASKED, _USER.sub(MASKED, text))
    if _hints(text):
        text = _GIVEN.sub(rf"\1{MASKED}", _BEARER.sub(rf"\1 {MASKED}", text))
    return text


#: How delimiters are written in a user or a password that is part of a URL.
URL_ESCAPES: Final = "@ as %40, / as %2F, ? as %3F, # as %23 and : as %3A"


def is_broken_by_password(address: str) -> bool:
    """Return whether a URL's user or password contains a delimiter of another part of it.

    In `postgresql://user:p@ss@host/db` or `…:p/ss@host/db`, a part of the password would be parsed
    as the host or the database, and shown.
    """
    rest = address.partition("://")[2]
    before, _, query = rest.partition("?")
    user, at, _ = before.rpartition("@")
    if at:
        return any(sign in user for sign in "@/#")
    return "@" in query and "=" not in query.partition("@")[0]


def may_show_password(url: str) -> bool:
    """Return whether an HTTP URL may contain a part of a password in its host or path."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return True
    begins = parts.query.partition("@")
    return ("@" in parts.netloc and "@" in parts.path) or (bool(begins[1]) and "=" not in begins[0])


def _hints(text: str) -> bool:
    lower = text.lower()
    return any(hint in lower for hint in _HINTS)


class Secrets:
    """Texts of a configuration that must not be shown.

    Attributes:
        hides_messages: whether messages of the configured program must not be shown at all.
    """

    def __init__(self, config: object, *, hides_messages: bool = False) -> None:
        """Collect the texts and numbers with the name of a secret, and texts that may be keys.

        Args:
            config: the configuration, with values as JSON has them.
            hides_messages: whether messages must not be shown at all.
        """
        self.hides_messages = hides_messages
        self._texts = sorted(set(_secrets_in(config, is_named=False)), key=len, reverse=True)

    def mask(self, text: str) -> str:
        """Return a message without secrets."""
        if self.hides_messages:
            return HIDDEN
        for secret in self._texts:
            text = text.replace(secret, MASKED)
        return mask_text(text)


def _count_digits(value: float) -> int:
    return sum(sign.isdigit() for sign in str(value))


def _secrets_in(value: object, *, is_named: bool) -> Iterator[str]:
    match value:
        case str() if (is_named and value) or _LIKE_A_KEY.fullmatch(value):
            yield value
        case int() | float() if is_named and _count_digits(value) >= _LEAST_DIGITS:
            yield str(value)
        case dict():
            for name, inner in value.items():
                named = is_named or is_secret(str(name), keys=True)
                yield from _secrets_in(inner, is_named=named)
        case list():
            for inner in value:
                yield from _secrets_in(inner, is_named=is_named)


def mask(value: Any, before: Any = _MISSING) -> Any:
    """Return a JSON value with masked secrets.

    Args:
        before: its previous value, if known: the mask of a changed secret shows that it changed.
    """
    return _mask(value, before, is_named=False)


def _mask(value: Any, before: Any, *, is_named: bool) -> Any:
    if isinstance(value, dict):
        others: Mapping[Any, Any] = before if isinstance(before, dict) else {}
        return {
            shown: _mask(
                item,
                others.get(name, _MISSING),
                # A URL as a key may contain a secret's name without having a secret as its value.
                is_named=is_named or (shown == name and is_secret(name)),
            )
            for name, item in value.items()
            for shown in [mask_text(name)]
        }
    if isinstance(value, list):
        known = before if isinstance(before, list) else []
        padded = [*known, *[_MISSING] * (len(value) - len(known))]
        return [
            _mask(item, other, is_named=is_named)
            for item, other in zip(value, padded, strict=False)
        ]
    if is_named and value not in (None, "", True, False):
        return MASKED if before is _MISSING or before == value else CHANGED
    return mask_text(value) if isinstance(value, str) else value
