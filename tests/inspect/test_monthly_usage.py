"""Usage that is stored in tables, and records that are not valid usage: without Spark."""

from __future__ import annotations

import pytest

from chronolake import inspect
from chronolake.config import LakeConfig
from chronolake.errors import LakeError
from chronolake.types import TableName
from support.inspect.layout import HISTORY, TMAX, Make

ORDERS = TableName("shop", "orders")


@pytest.mark.parametrize("text", ["[7", "7", "[]", "{}", '{"rows": null, "exact": true}'])
def test_an_invalid_usage_property_is_named(config: LakeConfig, make: Make, text: str) -> None:
    table = make(ORDERS, ["id*:INT", *HISTORY], [(1, "2026-01-01T00:00:00Z", TMAX, True)])
    with table.transaction() as change:
        change.set_properties({"chronolake.usage.2026-11": text})

    with pytest.raises(LakeError, match=r"chronolake\.usage\.2026-11 is not valid") as failure:
        inspect.usage(config)
    assert "Remove the property" in str(failure.value)
