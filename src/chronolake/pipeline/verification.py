"""Results of the last verification of tables, recorded in the operational store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from chronolake.config import CatalogKind
from chronolake.errors import LakeError
from chronolake.pipeline.runs import Verified, now
from chronolake.pipeline.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chronolake.config import LakeConfig
    from chronolake.core import VerifyReport

log = structlog.get_logger(__name__)


def note_verified(
    config: LakeConfig, reports: Iterable[VerifyReport], *, against_lake: bool = False
) -> None:
    """Record verification results; never fails, because the results are reported in any case.

    Args:
        config: the lake. A REST catalog does not have a store, so nothing is recorded.
        reports: the results.
        against_lake: whether the tables were also compared with their raw lakes.
    """
    if config.catalog.kind is CatalogKind.REST:
        return
    try:
        store = Store.open(config)
        for report in reports:
            broken = [
                f"{promise.text} ({promise.broken:,} rows)"
                for promise in report.promises
                if not promise.holds
            ]
            store.note_verified(
                Verified(
                    str(report.table),
                    now(),
                    report.holds,
                    report.rows,
                    against_lake,
                    "\n".join(broken) or None,
                )
            )
    except LakeError as failure:
        log.warning("verification_not_noted", reason=failure.message)
