"""Scenarios: which parts of the JSON files are read, and which are refused."""

from __future__ import annotations

import json

import pytest

from chronolake.errors import ScenarioError
from chronolake.tester.definition import VendorVersion, with_system_columns
from chronolake.tester.rows import check_rows
from chronolake.tester.scenario import (
    MIGRATIONS,
    AddColumnInHistoryMode,
    DropTable,
    RenameTable,
    RowOperation,
    RowStep,
    TruncateStep,
    read_scenario,
    scenario_files,
)


def scenario(tmp_path, content, name="case.json"):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_scenario(path)


def refused(tmp_path, content):
    with pytest.raises(ScenarioError) as caught:
        scenario(tmp_path, content)
    assert caught.value.file == str(tmp_path / "case.json")
    return caught.value.message


def test_every_real_scenario_is_understood(vendor):
    files = scenario_files([vendor / "inputs"])
    assert len(files) == 20
    notices = {path.name: read_scenario(path).notices for path in files}
    assert {name: found for name, found in notices.items() if found} == {
        "tester_input_3.json": ("$.create_table.web_events.foreign_key is unknown and is ignored.",)
    }


def test_the_official_sample_is_read_in_full(vendor):
    found = read_scenario(vendor / "inputs" / "input.json")
    assert list(found.create) == ["transaction", "campaign", "composite_table"]
    assert found.create["transaction"].history_mode
    assert found.alter["transaction"].columns["amount_decimal"].scale == 15
    kinds = [
        step.operation if isinstance(step, RowStep) else ("soft" if step.soft else "hard")
        for step in found.steps
    ]
    assert kinds == ["upsert", "hard", "soft", "update", "delete", "soft_delete"]
    assert found.soft_deleted_tables == {"composite_table", "transaction"}


def test_a_folder_means_its_scenarios_in_alphabetical_order(tmp_path):
    for name in ("b.json", "a.json", "configuration.json", "notes.txt"):
        (tmp_path / name).write_text("{}")
    assert [path.name for path in scenario_files([tmp_path])] == ["a.json", "b.json"]
    with pytest.raises(ScenarioError, match="no such scenario"):
        scenario_files([tmp_path / "c.json"])


def test_migrations_keep_the_order_in_which_they_are_written(tmp_path):
    found = scenario(
        tmp_path,
        {
            "schema_migration": [
                {
                    "rename_table": [{"from_table": "a", "to_table": "b"}],
                    "add_column_in_history_mode": [
                        {
                            "table": "b",
                            "column": "c",
                            "data_type": "BOOLEAN",
                            "default_value": False,
                            "operation_timestamp": "2025-12-01T08:00:00Z",
                        }
                    ],
                },
                {"drop_table": [{"table": "b"}]},
            ]
        },
    )
    rename, add, drop = found.migrations
    assert isinstance(rename, RenameTable)
    assert isinstance(add, AddColumnInHistoryMode)
    assert isinstance(drop, DropTable)
    assert add.default_value == "false"
    assert add.place == "$.schema_migration[0].add_column_in_history_mode[0]"
    assert rename.tables == ("a", "b")


def test_every_migration_of_the_specification_is_known():
    lines = """
        add_column change_column_data_type drop_column copy_column update_column_value
        set_column_to_null add_column_with_default_value copy_table rename_column rename_table
        drop_table add_column_in_history_mode drop_column_in_history_mode copy_table_to_history_mode
        migrate_soft_delete_to_history migrate_history_to_soft_delete migrate_history_to_live
        migrate_soft_delete_to_live migrate_live_to_soft_delete migrate_live_to_history
    """
    assert set(MIGRATIONS) == set(lines.split())


def test_unknown_keys_are_ignored_and_listed(tmp_path):
    found = scenario(
        tmp_path,
        {
            "comment": 1,
            "create_table": {"t": {"columns": {"a": {"type": "INT", "unit": "m"}}, "note": 2}},
            "ops": [{"wait": 5, "truncate_before": ["t"]}],
            "schema_migration": [{"split_table": []}],
        },
    )
    assert found.notices == (
        "$.comment is unknown and is ignored.",
        "$.create_table.t.note is unknown and is ignored.",
        "$.create_table.t.columns.a.unit is unknown and is ignored.",
        "$.ops[0].wait is not an operation and is ignored.",
        "$.schema_migration[0].split_table is not a migration and is ignored.",
    )
    assert found.steps == (TruncateStep(("t",), soft=False, place="$.ops[0].truncate_before"),)


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("[]", "$: An object"),
        ('{"ops": {}}', "$.ops: An array"),
        ('{"ops": [{"upsert": {"t": {}}}]}', "$.ops[0].upsert.t: An array"),
        ('{"ops": [{"upsert": {"t": [3]}}]}', "$.ops[0].upsert.t[0]: An object"),
        (
            '{"ops": [{"upsert": {"t": [{"op_time": "noon"}]}}]}',
            "$.ops[0].upsert.t[0].op_time: This is not a date-time",
        ),
        (
            '{"ops": [{"upsert": {"t": [{"_fivetran_start": "x"}]}}]}',
            "$.ops[0].upsert.t[0]._fivetran_start: This column is computed",
        ),
        (
            '{"create_table": {"t": {"columns": {"a": "NUMBER"}}}}',
            "$.create_table.t.columns.a.type",
        ),
        ('{"create_table": {"t": {}}}', "$.create_table.t.columns: Field required"),
        (
            '{"create_table": {"t": {"columns": {"a": "INT"}, "primary_key": ["b"]}}}',
            "$.create_table.t.primary_key: 'b' is not a column",
        ),
        (
            '{"create_table": {"t": {"columns": {"a": {"type": "DECIMAL", "precision": 40}}}}}',
            "$.create_table.t.columns.a: Value error, DECIMAL(40,0)",
        ),
        (
            '{"schema_migration": [{"rename_table": [{"from_table": "a"}]}]}',
            "$.schema_migration[0].rename_table[0].to_table: Field required",
        ),
        ('{"describe_table": [1]}', "$.describe_table: An array of table names"),
        ('{"ops": [], "ops": []}', "'ops' occurs twice"),
        ("{", "not valid JSON"),
    ],
)
def test_what_is_wrong_is_named_by_its_json_path(tmp_path, content, place):
    assert place in refused(tmp_path, content)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"id": 1, "other": 2}, "$.ops[0].upsert.t[0].other: The table has no such column"),
        ({"n": 2}, "The key column 'id' is missing"),
        ({"id": None}, "The key column 'id' is missing"),
        ({"id": 1, "n": "secret"}, "$.ops[0].upsert.t[0].n: The value does not fit INT"),
    ],
)
def test_rows_that_fit_no_table_are_refused_without_naming_values(tmp_path, row, reason):
    found = scenario(
        tmp_path,
        {
            "create_table": {"t": {"columns": {"id": "INT", "n": "INT"}, "primary_key": ["id"]}},
            "ops": [{"upsert": {"t": [row]}}],
        },
    )
    form = found.create["t"]
    definition = with_system_columns(
        [kind.column(name, key=name == "id") for name, kind in form.columns.items()],
        history=False,
        soft_deleted=False,
        version=VendorVersion.V2_26,
    )
    with pytest.raises(ScenarioError) as caught:
        check_rows(found, {"t": definition})
    assert reason in caught.value.message
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("case", "columns"),
    [
        ((False, True, False, "2.25"), "id _fivetran_synced"),
        ((False, True, True, "2.25"), "id _fivetran_synced _fivetran_deleted"),
        ((False, True, False, "2.26"), "id _fivetran_synced _fivetran_deleted"),
        ((False, False, False, "2.26"), "id _fivetran_synced _fivetran_id _fivetran_deleted"),
        (
            (True, True, True, "2.26"),
            "id _fivetran_synced _fivetran_start _fivetran_end _fivetran_active",
        ),
    ],
)
def test_system_columns_follow_the_version_of_the_tester(tmp_path, case, columns):
    history, key, soft_deleted, version = case
    form = scenario(tmp_path, {"create_table": {"t": {"columns": {"id": "INT"}}}}).create["t"]
    definition = with_system_columns(
        [kind.column(name, key=key) for name, kind in form.columns.items()],
        history=history,
        soft_deleted=soft_deleted,
        version=VendorVersion(version),
    )
    assert definition.names == tuple(columns.split())
    assert definition.key == (("id",) if key else ("_fivetran_id",))


def test_operations_are_the_four_of_the_specification():
    assert list(RowOperation) == ["upsert", "update", "delete", "soft_delete"]
