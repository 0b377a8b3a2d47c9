"""Secrets in names, texts and states: what looks like one is neither stored nor shown."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What stands in a secret's place.
MASKED: Final = "•••"
#: What stands in the place of a secret that has changed.
CHANGED: Final = f"{MASKED} (another)"

_MISSING: Final = object()
_WORDS: Final = (
    r"passw|passphrase|pwd|secret|token|credential|signature|bearer|cookie|assertion|authorization"
    r"|api[-_. ]?key|(?:account|access|private|shared|master|signing|encryption)[-_. ]?key"
    r"|connection[-_. ]?string|(?<![a-z0-9])(?:auth|sas|sig)(?![a-z0-9])"
)
_NAME: Final = re.compile(_WORDS, re.IGNORECASE)
_KEY: Final = re.compile(r"(?<![a-z0-9])key(?![a-z0-9])", re.IGNORECASE)
# Of bounded length, so that no text takes long.
_GIVEN: Final = re.compile(
    rf"((?:{_WORDS}|(?<=[?&])key)[\w.\-]{{0,40}}\\?[\"']?\s{{0,5}}[=:]\s{{0,5}})"
    r"(\\?\"[^\"]*\"?|'[^']*'?|[^&;,\s\"'#}]+)",
    re.IGNORECASE,
)
_BEARER: Final = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=\-]{6,}", re.IGNORECASE)
#: One of these is in every text that gives a secret by its name: they are found at once.
_HINTS: Final = ("passw", "pwd", "passphrase", "secret", "token", "credential", "sig", "bearer",
                 "cookie", "assertion", "auth", "key", "string", "sas", "basic")  # fmt: skip
#: Who asks, in an address: a password may hold what ends other parts of it.
_USER: Final = re.compile(r"(?<=://)(?:[^\s@:/?\"]{0,200}:[^\s\"]{1,300}|[^/@\s\"]{1,200})(?=@)")
_ORACLE: Final = re.compile(r"(?<=thin:)[^\s@]{1,200}(?=@)")


@lru_cache(maxsize=10_000)
def is_secret(name: str, *, keys: bool = False) -> bool:
    """Whether a name says that what it names is a secret.

    Args:
        name: of a property, a parameter, or a place in a state.
        keys: whether the word "key" by itself says so: in states it names a cursor.
    """
    return bool(_NAME.search(name) or (keys and _KEY.search(name)))


def holds_secret(text: str) -> bool:
    """Whether a text gives a secret by its name, as `password=…` does."""
    return _hints(text) and bool(_GIVEN.search(text) or _BEARER.search(text))


def masked_text(text: str) -> str:
    """A text without the secrets in it: in addresses, and behind a name that says so."""
    if "@" in text:
        text = _ORACLE.sub(MASKED, _USER.sub(MASKED, text))
    if _hints(text):
        text = _GIVEN.sub(rf"\1{MASKED}", _BEARER.sub(rf"\1 {MASKED}", text))
    return text


def is_broken_by_password(address: str) -> bool:
    """Return whether a URL's user or password has a sign that ends another part of it.

    With `postgresql://user:p@ss@host/db` or `…:p/ss@host/db` a part of the password would be taken
    for the host or the database, and shown as such.
    """
    rest = address.partition("://")[2]
    before, _, query = rest.partition("?")
    user, at, _ = before.rpartition("@")
    if at:
        return any(sign in user for sign in "@/#")
    return "@" in query and "=" not in query.partition("@")[0]


def may_show_password(url: str) -> bool:
    """Return whether a URL of the web may show a part of a password where its host or path is."""
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


def masked(value: Any, before: Any = _MISSING) -> Any:
    """A value of JSON's own types without its secrets.

    Args:
        value: the value.
        before: what it was before, if that is known: a secret that has changed says so.
    """
    return _masked(value, before, is_named=False)


def _masked(value: Any, before: Any, *, is_named: bool) -> Any:
    if isinstance(value, dict):
        others: Mapping[Any, Any] = before if isinstance(before, dict) else {}
        return {
            shown: _masked(
                one,
                others.get(name, _MISSING),
                # An address may name a secret without that what stands there is one.
                is_named=is_named or (shown == name and is_secret(name)),
            )
            for name, one in value.items()
            for shown in [masked_text(name)]
        }
    if isinstance(value, list):
        known = before if isinstance(before, list) else []
        padded = [*known, *[_MISSING] * (len(value) - len(known))]
        return [
            _masked(one, other, is_named=is_named)
            for one, other in zip(value, padded, strict=False)
        ]
    if is_named and value not in (None, "", True, False):
        return MASKED if before is _MISSING or before == value else CHANGED
    return masked_text(value) if isinstance(value, str) else value
