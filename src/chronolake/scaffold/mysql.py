"""Proposals for databases of MySQL and MariaDB."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from chronolake.errors import ConfigurationError
from chronolake.scaffold.address import with_values, without_password
from chronolake.scaffold.document import Entry
from chronolake.scaffold.proposal import ProposedPipeline, name_from
from chronolake.source.mysql.catalog import databases
from chronolake.source.mysql.connection import connect
from chronolake.source.protocol import Level

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chronolake.scaffold.origin import Request
    from chronolake.source.protocol import CheckResult


def propose_mysql(request: Request) -> ProposedPipeline:
    """Return the pipeline for a database, or for all databases of a server if none is named.

    Raises:
        ConfigurationError: the address is not valid, or the server has no databases.
        SourceError: the server cannot be reached, or refuses the connection.
    """
    address = urlsplit(request.origin)
    database = unquote(address.path.strip("/"))
    name = request.name or name_from(database or address.hostname or "mysql")
    dsn, variables = without_password(request.origin, name)
    source: list[Entry] = [
        Entry("type", "mysql"),
        Entry("dsn", dsn, "The server's address, without its password."),
    ]
    with connect(with_values(dsn, variables)) as connection:
        found = [] if database else sorted(databases(connection))
    if not database and not found:
        raise ConfigurationError(
            "The server has no databases that the user can read.",
            hint="Add one to the address, mysql://user@host/database, or grant SELECT on it.",
        )
    if found:
        source.append(Entry("databases", found, "The databases whose tables are replicated."))
    return ProposedPipeline(name, tuple(source), variables=variables)


def with_steps(proposed: ProposedPipeline, results: Sequence[CheckResult]) -> ProposedPipeline:
    """Return a pipeline with what is to be done before the server's log can be read."""
    failed = [result for result in results if result.level is Level.FAILED]
    steps = (f"{result.what} {result.message}. {result.fix or ''}".strip() for result in failed)
    return replace(proposed, steps=(*proposed.steps, *steps))
