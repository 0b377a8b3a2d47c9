"""A lake's REST catalog as Python reads it, without Spark."""

from __future__ import annotations

import functools
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from chronolake.errors import CatalogError, ChronolakeError
from chronolake.types import TableName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from requests import Session

    from chronolake.config import LakeConfig

_CATALOG: Final = "chronolake"
#: Seconds to wait for a connection, and for a response; PyIceberg would wait without a limit.
_TIMEOUT: Final = (10, 60)


def open_catalog(config: LakeConfig) -> Catalog:
    """Return a client of the lake's catalog.

    Raises:
        CatalogError: the catalog does not respond, or refuses the credentials.
    """
    from pyiceberg.catalog.rest import RestCatalog  # noqa: PLC0415 - slow to import

    class Client(RestCatalog):
        """A client whose requests end."""

        def _create_session(self) -> Session:
            session = super()._create_session()
            any_session: Any = session
            any_session.request = functools.partial(session.request, timeout=_TIMEOUT)
            return session

    with _errors(config):
        return Client(_CATALOG, uri=config.catalog.uri or "", **config.pyiceberg_properties)


def list_tables(config: LakeConfig) -> list[TableName]:
    """Return the names of all tables, in any order.

    Raises:
        CatalogError: the catalog does not respond, or refuses the request.
    """
    from pyiceberg.exceptions import (  # noqa: PLC0415 - slow to import
        BadRequestError,
        NoSuchNamespaceError,
    )

    found = []
    catalog = open_catalog(config)
    with _errors(config):
        pending = list(catalog.list_namespaces())
        while pending:
            namespace = pending.pop()
            # A schema may be dropped meanwhile. A catalog that does not nest schemas may refuse
            # the request, or list all schemas again.
            with suppress(BadRequestError, NoSuchNamespaceError):
                children = catalog.list_namespaces(namespace)
                pending += [child for child in children if len(child) > len(namespace)]
            with suppress(NoSuchNamespaceError):
                found += [
                    TableName(".".join(identifier[:-1]), identifier[-1])
                    for identifier in catalog.list_tables(namespace)
                ]
    return found


def find_table(config: LakeConfig, catalog: Catalog, name: TableName) -> Table | None:
    """Return a table with its current metadata, or None if it does not exist.

    Raises:
        CatalogError: the catalog does not respond, or refuses the request.
    """
    from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - slow to import

    with _errors(config, name):
        try:
            return catalog.load_table((*name.levels, name.table))
        except NoSuchTableError:
            return None


@contextmanager
def _errors(config: LakeConfig, name: TableName | None = None) -> Iterator[None]:
    """Convert errors of the catalog's client to `CatalogError`."""
    try:
        yield
    except ChronolakeError:
        raise
    except Exception as failure:  # the client's errors have no common base class
        kind = type(failure).__name__
        table = None if name is None else str(name)
        if kind in _REFUSED:
            raise CatalogError(
                f"The lake's catalog {config.catalog.label} refuses access ({kind}).",
                hint="Check `token`, `credential`, `scope` and `oauth2-server-uri` in "
                "lake.catalog.properties, and the rights of the principal.",
                table=table,
            ) from failure
        raise CatalogError(
            f"The lake's catalog {config.catalog.label} does not respond: {kind}.",
            hint="Check lake.catalog.uri and lake.catalog.properties.",
            table=table,
        ) from failure


#: The client's errors about credentials and rights.
_REFUSED: Final = frozenset(
    ("UnauthorizedError", "AuthorizationExpiredError", "OAuthError", "ForbiddenError")
)
