"""Values of fields that mark records as deleted."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from chronolake.source.records.deletions import are_marked

_AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("values", "marked"),
    [
        ([None, False, True], [False, False, True]),
        ([None, 0, 1, -1], [False, False, True, True]),
        ([0.0, 1.5], [False, True]),
        ([Decimal("0.00"), Decimal("1.00")], [False, True]),
        ([None, _AT], [False, True]),
        (
            [None, "", " ", "false", "False", "0", "0.0", "-0"],
            [False] * 8,
        ),
        (["true", "TRUE", "1", "2026-01-01", "2026-01-01T10:00:00Z", "0001-01-01"], [True] * 6),
        (["yes", "Y", "t", "no", "N", "f"], [True] * 3 + [False] * 3),
        ([None, None], [False, False]),
        ([], []),
    ],
)
def test_what_marks_a_record_as_deleted(values: list[Any], marked: list[bool]) -> None:
    found = are_marked(pa.array(values))
    assert found is not None
    assert found.to_pylist() == marked


@pytest.mark.parametrize("text", ["nope", "deleted", "null", "{}"])
def test_a_text_that_may_mean_either_is_not_understood(text: str) -> None:
    assert are_marked(pa.array(["", text])) is None
