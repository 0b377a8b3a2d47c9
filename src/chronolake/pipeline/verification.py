"""When tables were verified last, and what came of it: noted in the operational store."""

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
    """Note what was found of tables; never fails, because what was found counts without it.

    Args:
        config: the lake. One with a REST catalog has no store, and nothing is noted.
        reports: what was found just now.
        against_lake: whether the tables were compared with their raw lakes, too.
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
