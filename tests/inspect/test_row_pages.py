"""The rows at a time, page by page, without Spark."""

from __future__ import annotations

from chronolake.config import LakeConfig
from chronolake.inspect.time_travel import rows_at
from chronolake.types import TableName
from support.inspect.layout import HISTORY, TMAX, Make, arrow, column

ORDERS = TableName("shop", "orders")


def test_pages_continue_where_they_ended_although_files_are_rewritten(
    config: LakeConfig, make: Make
) -> None:
    texts = ["id*:INT", *HISTORY]
    versions = [(number, "2026-01-01T00:00:00Z", TMAX, True) for number in range(12)]
    table = make(ORDERS, texts, versions)

    seen, after = [], None
    for _ in versions:
        page = rows_at(config, ORDERS, "2026-02-01", after=after, limit=1)
        seen += [row["id"] for row in page.rows]
        after = page.next
        table.overwrite(arrow([column(text) for text in texts], versions))

    assert seen == list(range(12))
    assert after is None
