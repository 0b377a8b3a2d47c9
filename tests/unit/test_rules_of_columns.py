"""Column rules: which column a rule applies to, and what is hashed."""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronolake.config import PipelineConfig, load_project
from chronolake.errors import ConfigurationError
from chronolake.landing import Action, ColumnRules, Rule, canonical_texts, keyed_hashes
from chronolake.types import Column, ColumnType

KEY = "0123456789abcdef"
_SOURCE = {"type": "data_lake_v2", "path": "x", "org": "X"}


def rules(columns: dict[str, Any], own: dict[str, Any] | None = None) -> ColumnRules:
    """Return the rules of the stream `s`, with settings of the pipeline and of the stream."""
    config = {"source": _SOURCE, "columns": columns, "streams": {"s": {"columns": own or {}}}}
    return ColumnRules.of(PipelineConfig.model_validate(config), "s")


@given(st.lists(st.one_of(st.none(), st.binary(max_size=200))), st.binary(min_size=1, max_size=100))
def test_hashes_are_those_of_hmac(values: list[bytes | None], key: bytes) -> None:
    expected = [
        None if value is None else hmac.new(key, value, hashlib.sha256).hexdigest()
        for value in values
    ]
    assert keyed_hashes(pa.array(values, pa.binary()), key).to_pylist() == expected


@pytest.mark.parametrize(
    ("kind", "values", "texts"),
    [
        ("BOOLEAN", [True, False], ["true", "false"]),
        ("INT", [5, -7], ["5", "-7"]),
        ("LONG", [5, 2**60], ["5", str(2**60)]),
        ("DECIMAL(10,2)", [Decimal("5.00"), Decimal("-0.50")], ["5", "-0.5"]),
        ("DECIMAL(38,0)", [Decimal(10**37), Decimal(100)], [str(10**37), "100"]),
        ("DOUBLE", [5.0, -0.0, 0.1, 1e300], ["5", "0", "0.1", "1.0E300"]),
        ("DOUBLE", [float("nan"), float("inf")], ["NaN", "Infinity"]),
        ("FLOAT", [5.0, 0.1], ["5", "0.1"]),
        ("STRING", ["5", "", "é"], ["5", "", "é"]),
        ("BINARY", [b"\x00\xff", b"5"], [b"\x00\xff", b"5"]),
        ("NAIVE_DATE", [date(2026, 1, 2)], ["2026-01-02"]),
        ("NAIVE_DATETIME", [datetime(2026, 1, 2, 3, 4, 5, 600_000)], ["2026-01-02 03:04:05.6"]),
        ("UTC_DATETIME", [datetime(2026, 1, 2, tzinfo=UTC)], ["2026-01-02T00:00:00Z"]),
    ],
)
def test_equal_values_have_equal_texts(kind: str, values: list[Any], texts: list[Any]) -> None:
    type_ = ColumnType.parse(kind)
    array = pa.array([*values, None], type_.arrow)
    assert canonical_texts(array, type_).to_pylist() == [*texts, None]


@given(st.integers(-(2**53), 2**53))
def test_whole_numbers_have_one_text(number: int) -> None:
    for kind in ("LONG", "DOUBLE", "DECIMAL(22,3)", "STRING"):
        type_ = ColumnType.parse(kind)
        value = str(number) if kind == "STRING" else number
        array = pa.array([value]).cast(type_.arrow)
        assert canonical_texts(array, type_).to_pylist() == [str(number)]


def test_the_strictest_rule_wins_and_streams_override_pipelines() -> None:
    found = rules(
        {"exclude": ["A*"], "mask": {"ab*": "x"}, "hash": ["*"], "hash_key": KEY},
        {"mask": ["abc"]},
    )
    assert [found.rule_of(name) for name in ("aB", "abc", "b")] == [
        Rule(Action.EXCLUDE),
        Rule(Action.MASK),
        Rule(Action.HASH),
    ]
    columns = [Column(name, ColumnType.parse("INT")) for name in ("aB", "abc", "b")]
    assert [str(column.type) for column in found.columns(columns)] == ["INT", "STRING"]


def test_names_are_compared_without_case() -> None:
    assert rules({"exclude": ["Email"]}).is_removed("EMAIL")


def test_rules_of_renamed_columns() -> None:
    found = rules({"exclude": ["a"], "mask": ["b"]}).renamed({"a": "b", "c": "a"})
    assert [found.rule_of(name) for name in "abc"] == [None, Rule(Action.EXCLUDE), None]


def test_the_digest_depends_on_rules_and_key() -> None:
    settings = [
        {},
        {"exclude": ["a"]},
        {"mask": ["a"]},
        {"hash": ["a"], "hash_key": KEY},
        {"hash": ["a"], "hash_key": KEY[::-1]},
    ]
    digests = [rules(columns).digest for columns in settings]
    assert digests[0] == ""
    assert len(set(digests)) == len(digests)
    assert KEY not in repr(rules(settings[3]))


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("{hash: [a]}", "columns.hash needs a key"),
        ("{hash: [a], hash_key: short}", "at least 16 characters"),
        ("{exclude: ['']}", "a name or pattern is empty"),
        ("{type: {a: number}}", "'number' is not a column type"),
        ("{type: {a: 'decimal(99)'}}", "not supported"),
        ("{rename: {a: ''}}", "the new name of 'a' is empty"),
    ],
)
def test_invalid_settings(tmp_path: Path, columns: str, problem: str) -> None:
    file = tmp_path / "chronolake.yml"
    source = "{type: data_lake_v2, path: x, org: X}"
    file.write_text(f"pipelines: {{p: {{source: {source}, columns: {columns}}}}}")
    with pytest.raises(ConfigurationError) as caught:
        load_project(file)
    assert problem in str(caught.value)


def test_unknown_names_of_a_stream_are_reported() -> None:
    found = rules({"exclude": ["nothing"]}, {"mask": ["emial"], "exclude": ["x*"]})
    with pytest.raises(ConfigurationError, match="the stream has no column 'emial'") as caught:
        found.expect_known(["id", "email"], place="pipelines.p.streams.s")
    assert "Did you mean 'email'?" in (caught.value.hint or "")
    found.expect_known(["id", "emial"], place="")
