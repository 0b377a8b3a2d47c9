"""Proposals for PostgreSQL databases."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from psycopg.rows import scalar_row

from chronolake.scaffold.address import with_values, without_password
from chronolake.scaffold.document import Entry
from chronolake.scaffold.proposal import (
    ProposedPipeline,
    name_from,
)
from chronolake.source.postgres.connection import connect, translate_errors
from chronolake.source.protocol import Level

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chronolake.scaffold.origin import Request
    from chronolake.source.protocol import CheckResult

_LOG: Final = "logical_replication"
_COMPARE: Final = "snapshot_diff"
_SCHEMAS: Final = """
SELECT DISTINCT nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE relkind IN ('r', 'p') AND relpersistence = 'p' AND NOT relispartition
AND nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'
AND has_schema_privilege(n.oid, 'usage') ORDER BY 1
"""


def propose_postgres(request: Request) -> ProposedPipeline:
    """Return the pipeline for a PostgreSQL database.

    Raises:
        SourceError: the server cannot be reached, or refuses the connection.
    """
    database = unquote(urlsplit(request.origin).path.strip("/"))
    name = request.name or name_from(database)
    dsn, variables = without_password(request.origin, name)
    with connect(with_values(dsn, variables)) as connection, translate_errors():
        schemas = list(connection.cursor(row_factory=scalar_row).execute(_SCHEMAS))
    return ProposedPipeline(
        name,
        (
            Entry("type", "postgres"),
            Entry("dsn", dsn, "The server's address, without its password."),
            Entry(
                "method",
                _LOG,
                "logical_replication reads every change from the server's log; snapshot_diff reads "
                "every table in every run, and compares it.",
            ),
            Entry("schemas", schemas or ["public"], "The schemas whose tables are replicated."),
        ),
        variables=variables,
    )


def is_about_server(result: CheckResult, streams: Sequence[str]) -> bool:
    """Return whether a failed check of a database is about its server or role, and not a table."""
    is_ours = result.what.startswith(("publication ", "slot "))
    return result.level is Level.FAILED and result.what not in streams and not is_ours


def without_log(proposed: ProposedPipeline, problems: Sequence[CheckResult]) -> ProposedPipeline:
    """Return the pipeline for a database whose log cannot be read."""
    why = "; ".join(f"{problem.what} {problem.message}" for problem in problems)
    fixes = " ".join(problem.fix for problem in problems if problem.fix)
    comment = (
        f"The server's log cannot be read: {why}. So every run reads every table, and compares it. "
        f"To capture every change: {fixes} Then set logical_replication."
    )
    source = [
        replace(entry, value=_COMPARE, comment=comment) if entry.key == "method" else entry
        for entry in proposed.source
    ]
    return replace(proposed, source=tuple(source), notes=(*proposed.notes, f"{comment}"))


def steps_for_log(results: Sequence[CheckResult]) -> tuple[str, ...]:
    """Return what is to be done before the log can be read."""
    missing = [
        result.what
        for result in results
        if result.level is Level.FAILED and result.what.startswith(("publication ", "slot "))
    ]
    if not missing:
        return ()
    return (f"Run `chronolake check --create` once: it creates the {' and the '.join(missing)}.",)
