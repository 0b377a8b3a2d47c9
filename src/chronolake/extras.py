"""Extras of the package, such as `chronolake[ui]`: packages that few commands and sources need."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from chronolake.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Import names and packages of each extra; a test compares them with pyproject.toml.
EXTRAS: Final[Mapping[str, Mapping[str, str]]] = {
    "ui": {
        "jinja2": "jinja2",
        "plotly": "plotly",
        "starlette": "starlette",
        "uvicorn": "uvicorn",
    },
    "serve": {
        "cryptography": "cryptography",
        "google.protobuf": "protobuf",
        "grpc": "grpcio",
        "grpc_health": "grpcio-health-checking",
        "grpc_reflection": "grpcio-reflection",
        "zstandard": "zstandard",
    },
    "api": {
        "cryptography": "cryptography",
        "dateutil": "python-dateutil",
        "grpc": "grpcio",
        "httpx": "httpx",
        "jinja2": "jinja2",
        "jwt": "pyjwt",
        "requests": "requests",
        "xmltodict": "xmltodict",
    },
    "mysql": {"cryptography": "cryptography", "pymysql": "pymysql"},
    "postgres": {"cryptography": "cryptography", "psycopg": "psycopg"},
    "sftp": {"asyncssh": "asyncssh"},
    "delta": {"deltalake": "deltalake"},
    "components": {"airbyte_cdk": "airbyte-cdk"},
}

#: The feature that needs the extra `postgres`, for `require`.
POSTGRESQL_CATALOG: Final = "A catalog in PostgreSQL"


def require(extra: str, feature: str) -> None:
    """Raise an error unless the packages of an extra are installed.

    Args:
        extra: the extra, a key of `EXTRAS`.
        feature: the command or source that needs it, such as "The command `ui`".

    Raises:
        MissingExtraError: a package is not installed.
    """
    missing = [package for module, package in EXTRAS[extra].items() if not _is_installed(module)]
    if missing:
        raise MissingExtraError(
            f"{feature} needs packages that are not installed: {', '.join(missing)}.",
            hint=f"Install them with `{install_command(extra)}`.",
        )


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra."""
    return f"pip install 'chronolake[{extra}]'"


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # raised if the parent package is missing
        return False
