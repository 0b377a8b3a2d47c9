"""Schemas as texts, which are read without Spark."""

from __future__ import annotations

import pytest

from chronolake.arrow_tasks import schema_of, types_in


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ("", {}),
        ("id bigint, note STRING", {"id": "bigint", "note": "STRING"}),
        (
            "`a, b` DECIMAL(10,2),`c``d` array<string>, e STRUCT<f: INT, `g,`: MAP<STRING, INT>>",
            {
                "a, b": "DECIMAL(10,2)",
                "c`d": "array<string>",
                "e": "STRUCT<f: INT, `g,`: MAP<STRING, INT>>",
            },
        ),
        ("` ` TIMESTAMP NOT NULL", {" ": "TIMESTAMP NOT NULL"}),
    ],
)
def test_columns_of_a_schema(schema: str, types: dict[str, str]) -> None:
    assert types_in(schema) == types
    assert types_in(schema_of(types)) == types
