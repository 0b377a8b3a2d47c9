"""Addresses of databases whose passwords become environment variables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from chronolake.errors import ConfigurationError
from chronolake.masking import URL_ESCAPES, is_broken_by_password
from chronolake.scaffold.document import literal
from chronolake.scaffold.proposal import Variable, password_variable

if TYPE_CHECKING:
    from collections.abc import Sequence

_PASSWORDS: Final = frozenset({"password", "sslpassword"})
_REFERENCE: Final = re.compile(r"(?<!\$)\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def without_password(url: str, pipeline: str) -> tuple[str, tuple[Variable, ...]]:
    """Return a URL with references instead of its passwords, and their variables.

    Raises:
        ConfigurationError: the URL cannot be parsed, or refers to a variable that is not set.
    """
    scheme, _, rest = url.partition("://")
    if is_broken_by_password(url):
        raise ConfigurationError(
            "The address cannot be parsed: its user or password contains a character that must be "
            "escaped.",
            hint=f"Write {URL_ESCAPES}.",
        )
    before, has_query, query = rest.partition("?")
    user, at, place = before.rpartition("@")
    who, has_password, password = user.partition(":")
    found = []
    shown = literal(user)
    if has_password:
        found.append(_variable(pipeline, "password", password))
        shown = f"{literal(who)}:${{{found[0].name}}}"
    pairs = []
    for pair in query.split("&") if has_query else ():
        key, equals, value = pair.partition("=")
        if key in _PASSWORDS:
            found.append(_variable(pipeline, key, value))
            pairs.append(f"{key}=${{{found[-1].name}}}")
        else:
            pairs.append(f"{key}{equals}{literal(value)}")
    dsn = f"{scheme}://{shown}{at}{literal(place)}{has_query}{'&'.join(pairs)}"
    for variable in found:
        if variable.value is None:
            raise ConfigurationError(
                f"The environment variable {variable.name} is not set.",
                hint="Set it to the password, as it is written in the URL.",
            )
    return dsn, tuple(found)


def _variable(pipeline: str, key: str, value: str) -> Variable:
    return password_variable(pipeline, key, value, f"the {key}, as it is written in the URL")


def with_values(dsn: str, variables: Sequence[Variable]) -> str:
    """Return a URL with the values of its variables."""
    values = {variable.name: variable.value or "" for variable in variables}
    return _REFERENCE.sub(lambda found: values[found[1]], dsn).replace("$${", "${")
