"""The expected contents, compared with an independent destination and the specification."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chronolake.tester.files import Compression, FileFormat
from chronolake.tester.options import FlushMode
from chronolake.types import TMAX_TEXT
from support.tester.replay import assert_contents_agree, play

SCENARIOS = [
    "delete_missing_record",
    "history_mode_1_INIT",
    "input",
    "schema_migrations_input_ddl",
    "schema_migrations_input_dml",
    "schema_migrations_input_sync_modes",
    "soft_delete_missing_record",
    "tester_input_1",
    "tester_input_2",
    "tester_input_3",
    "tester_input_4",
    "tester_input_6",
    "truncate_missing_table",
    "truncate_then_delete",
    "truncate_then_soft_delete",
    "truncate_then_update",
    "update_missing_record",
]
FORMS = {
    "encrypted": {},
    "plain": {"compression": Compression.OFF, "encrypted": False},
    "replayed": {"replay": True},
    "split, minimal deletes": {"split": 3, "minimal_deletes": True, "replay": True},
    "gzip": {"compression": Compression.GZIP},
    "parquet": {"format": FileFormat.PARQUET},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_independent_destination_ends_in_the_modelled_contents(vendor, tmp_path, scenario, form):
    outcome = play([vendor / "inputs" / f"{scenario}.json"], tmp_path, **FORMS[form])
    assert outcome.failures == []
    assert outcome.code == 0
    assert_contents_agree(outcome)


@pytest.mark.parametrize("mode", FlushMode)
@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name.startswith("truncate")])
def test_both_orders_of_truncates_are_modelled(vendor, tmp_path, scenario, mode):
    outcome = play([vendor / "inputs" / f"{scenario}.json"], tmp_path, mode=mode)
    assert outcome.code == 0
    assert_contents_agree(outcome)


def test_the_official_sample_ends_as_specified(vendor, tmp_path):
    outcome = play([vendor / "inputs" / "input.json"], tmp_path)
    table = outcome.model["tester"]["transaction"]
    assert {"old_column", "new_column"} <= set(table["columns"])
    assert table["retained"] == ["old_column"]
    assert table["columns"]["amount_decimal"] == "DECIMAL(38,15)"
    assert table["primary_key"] == ["id", "_fivetran_start"]
    first, second, third, other = table["rows"]
    times = [
        (r["_fivetran_start"], r["_fivetran_end"], r["_fivetran_active"]) for r in table["rows"]
    ]
    assert times == [
        ("2005-05-23T20:57:00Z", "2005-05-23T20:57:59.999Z", False),
        ("2005-05-23T20:58:00Z", "2023-10-30T14:59:59.999Z", False),
        ("2023-10-30T15:00:00Z", "2023-10-30T16:30:00Z", False),
        ("2005-05-23T20:57:00Z", "2023-10-30T16:00:00Z", False),
    ]
    changed = {"amount_double", "flag"} | {n for n in table["columns"] if n.startswith("_fivetran")}
    assert {n: third[n] for n in third.keys() - changed} == {
        n: second[n] for n in second.keys() - changed
    }
    assert (third["amount_double"], third["flag"]) == (400.555, False)
    assert (first["string_val"], other["id"]) == ("Some text", 2)
    assert outcome.rows("campaign") == []
    composite = outcome.model["tester"]["composite_table"]
    assert composite["primary_key"] == ["pk1", "pk2", "new_pk"]
    assert composite["retained"] == ["old_pk"]
    assert [(r["old_pk"], r["_fivetran_deleted"]) for r in composite["rows"]] == [(None, True)] * 2


@pytest.mark.parametrize(
    ("case", "names"),
    [
        ("truncate_then_delete campaign merged", []),
        ("truncate_then_delete transaction merged", []),
        ("truncate_then_update campaign merged", ["Campaign A Updated"]),
        ("truncate_then_update transaction merged", [("2023-10-30T15:00:00Z", TMAX_TEXT)]),
        ("truncate_then_update campaign sequential", []),
        ("truncate_then_update transaction sequential", []),
        ("truncate_then_soft_delete campaign merged", ["Campaign C"]),
        ("truncate_then_soft_delete campaign sequential", []),
        ("truncate_then_soft_delete transaction merged", []),
        ("update_missing_record transaction merged", []),
        ("soft_delete_missing_record campaign merged", []),
    ],
)
def test_truncates_end_as_specified(vendor, tmp_path, case, names):
    scenario, table, mode = case.split()
    path = vendor / "inputs" / f"{scenario}.json"
    rows = play([path], tmp_path, mode=FlushMode(mode)).rows(table)
    assert [
        row.get("name") or (row["_fivetran_start"], row["_fivetran_end"]) for row in rows
    ] == names


def test_plain_migrations_end_as_specified(vendor, tmp_path):
    ddl = play([vendor / "inputs" / "schema_migrations_input_ddl.json"], tmp_path)
    table = ddl.model["tester"]["transaction"]
    assert "desc" not in table["columns"]
    assert table["columns"]["amount"] == "FLOAT"
    assert [row["operation_time"] for row in table["rows"]] == [None] * 6
    dml = play([vendor / "inputs" / "schema_migrations_input_dml.json"], tmp_path)
    assert set(dml.model["tester"]) == {"transaction", "transaction_renamed"}
    for name, column in (("transaction", "amount_renamed"), ("transaction_renamed", "amount")):
        rows = dml.rows(name)
        assert {row[column] for row in rows} == {202.57}
        assert {row["desc"] for row in rows} == {None}
        assert [row["desc_detailed"] for row in rows] == [None, *["two"] * 3, "three", "money"]
        assert {row["operation_time"] for row in rows} == {"2005-05-28T20:57:00Z"}


def test_mode_migrations_end_as_specified(vendor, tmp_path):
    path = vendor / "inputs" / "schema_migrations_input_sync_modes.json"
    outcome = play([path], tmp_path)
    rows = outcome.rows("transaction_history")
    active = [row for row in rows if row["_fivetran_active"]]
    assert (len(rows), len(active)) == (13, 6)
    assert {(r["_fivetran_start"], r["article"], r["desc"]) for r in active} == {
        ("2005-05-28T20:57:00Z", "Ordered article", None)
    }
    ends = [row["_fivetran_end"] for row in rows if not row["_fivetran_active"]]
    assert sorted(set(ends)) == ["2005-05-26T20:57:59.999Z", "2005-05-28T20:56:59.999Z"]
    converted = outcome.model["tester"]["transaction"]
    assert converted["primary_key"] == ["id", "_fivetran_start"]
    assert "_fivetran_deleted" not in converted["columns"]
    newest = max(row["_fivetran_synced"] for row in converted["rows"])
    assert {(r["_fivetran_start"], r["_fivetran_end"]) for r in converted["rows"]} == {
        (newest, TMAX_TEXT)
    }
    back = outcome.model["tester"]["new_transaction_history"]
    assert back["primary_key"] == ["id"]
    assert [row["_fivetran_deleted"] for row in back["rows"]] == [False] * 6


def test_a_model_is_kept_across_files(vendor, tmp_path):
    first = json.loads((vendor / "inputs" / "history_mode_1_INIT.json").read_text())
    del first["schema_migration"]
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "history_mode_1.json").write_text(json.dumps(first))
    rest = sorted((vendor / "inputs").glob("history_mode_[234]*.json"))
    outcome = play([tmp_path / "inputs", *rest], tmp_path)
    tens = [row for row in outcome.rows("transaction_history") if row["id"] == 10]
    assert [(r["amount"], r["desc"], r["_fivetran_end"], r["_fivetran_active"]) for r in tens] == [
        (200.0, "three", "2005-05-26T20:57:59.999Z", False),
        (100.0, "three", "2005-06-26T20:56:59.999Z", False),
        (300.0, "three", "2005-07-26T20:56:59.999Z", False),
        (400.0, "three", "2005-08-26T20:57:00Z", False),
    ]
    assert_contents_agree(outcome)


def test_a_folder_plays_with_a_schema_for_each_file(vendor, tmp_path):
    outcome = play([vendor / "inputs"], tmp_path, schema_per_file=True)
    assert outcome.code == 0
    assert len(outcome.model) == 20
    assert_contents_agree(outcome)


EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_examples_end_with_the_documented_contents(tmp_path):
    outcome = play([EXAMPLES], tmp_path, schema="shop")
    assert outcome.failures == []
    assert_contents_agree(outcome)
    timelines = {}
    for row in outcome.rows("orders", "shop"):
        timelines.setdefault(row["id"], []).append(row)
    assert [row["status"] for row in timelines[100]] == [
        "placed",
        "paid",
        "packed",
        "shipped",
        "delivered",
    ]
    assert [(row["_fivetran_start"], row["_fivetran_end"]) for row in timelines[101]] == [
        ("2024-05-01T09:30:00Z", "2024-05-01T18:44:59.999Z"),
        ("2024-05-01T18:45:00Z", "2024-05-02T11:59:59.999Z"),
        ("2024-05-02T12:00:00Z", TMAX_TEXT),
    ]
    assert timelines[102][-1]["_fivetran_end"] == "2024-05-02T10:00:00Z"
    customers = {row["id"]: row for row in outcome.rows("customers", "shop")}
    gone = {name for name, row in customers.items() if row["_fivetran_deleted"]}
    assert gone == {"3", "5"}
    assert "4" not in customers
    assert (customers["1"]["city"], customers["1"]["points"]) == ("Porto", 120)
    assert customers["3000000000"]["name"] == "Goran"
