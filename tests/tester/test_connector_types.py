"""The scenarios of connectors: their content, and an independent destination that plays them."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from chronolake.cli import app
from chronolake.errors import ConfigurationError
from chronolake.tester.connector_types import (
    ALL,
    PLATFORM,
    connector_names,
    connector_scenarios,
)
from chronolake.tester.files import FileFormat
from chronolake.tester.scenario import RowStep, TruncateStep
from chronolake.types import Kind
from support.tester.reference_destination import ReferenceDestination, serve
from support.tester.replay import assert_contents_agree, play

#: Rows of each large batch of logs; the reference destination inserts row by row.
LOG_ROWS = 100
#: Connectors with many cells or rows, for the same reason.
LARGE = {"hubspot", PLATFORM}
FORMS = {
    "encrypted, replayed": {"replay": True, "split": 2, "minimal_deletes": True},
    "parquet": {"format": FileFormat.PARQUET},
}


def syncs(connector, log_rows=LOG_ROWS):
    return [found.scenario for found in connector_scenarios([connector], log_rows=log_rows)]


def tables(connector):
    """Return the tables of a connector's first sync."""
    return syncs(connector)[0].create


def steps(connector, kind):
    return [step for scenario in syncs(connector) for step in scenario.steps if type(step) is kind]


def altered(connector):
    """Yield each altered table as it was before, and as it is afterwards."""
    for scenario in syncs(connector):
        current = dict(tables(connector))
        for earlier in syncs(connector):
            if earlier.path == scenario.path:
                break
            current |= earlier.alter
        for name, form in scenario.alter.items():
            yield current[name], form


def changed_types(connector):
    return {
        (before.columns[name].type, after.columns[name].type)
        for before, after in altered(connector)
        for name in before.columns.keys() & after.columns.keys()
        if before.columns[name] != after.columns[name]
    }


def keys_of(table):
    return table.primary_key or ("_fivetran_id",)


@pytest.mark.sampled
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "connector",
    [
        pytest.param(name, marks=pytest.mark.long if name in LARGE else ())
        for name in connector_names()
    ],
)
def test_an_independent_destination_ends_in_the_modelled_contents(tmp_path, connector, form):
    outcome = play([], tmp_path, connectors=(connector,), log_rows=LOG_ROWS, **FORMS[form])
    assert outcome.failures == []
    assert outcome.code == 0
    assert list(outcome.model) == [f"tester_{connector}"]
    assert_contents_agree(outcome)


@pytest.mark.parametrize("connector", connector_names())
def test_a_key_appears_once_in_the_operations_of_a_sync(connector):
    current = dict(tables(connector))
    for scenario in syncs(connector):
        assert scenario.notices == ()
        current |= scenario.alter
        seen = set()
        for step in scenario.steps:
            if isinstance(step, TruncateStep):
                continue
            for name, rows in step.tables.items():
                if current[name].history_mode:
                    continue
                for row in rows:
                    key = name, *(row.cells[column] for column in keys_of(current[name]))
                    assert key not in seen
                    seen.add(key)


def test_a_relational_database_has_all_types_keys_and_truncates_after_upserts():
    forms = tables("postgresql")
    assert {column.type for form in forms.values() for column in form.columns.values()} == set(Kind)
    assert {len(form.primary_key) for form in forms.values()} == {0, 1, 3}
    assert any(form.history_mode for form in forms.values())
    # The time of a truncate is that of the sync's begin, so it precedes the rows of the sync.
    assert [type(step) for step in syncs("postgresql")[0].steps] == [TruncateStep, RowStep]
    assert {step.soft for step in steps("postgresql", TruncateStep)} == {True, False}
    keys = [(set(a.primary_key), set(b.primary_key)) for a, b in altered("postgresql")]
    assert any(before < after for before, after in keys)
    assert any(before > after for before, after in keys)
    assert (Kind.SHORT, Kind.INT) in changed_types("postgresql")
    assert any(
        before.columns[name] != after.columns[name]
        for before, after in altered("postgresql")
        for name in before.primary_key
    )


def test_a_document_database_changes_types_and_has_the_key_id():
    assert {form.primary_key for form in tables("mongodb").values()} == {("_id",)}
    assert {
        (Kind.INT, Kind.LONG),
        (Kind.LONG, Kind.STRING),
        (Kind.INT, Kind.DOUBLE),
        (Kind.BOOLEAN, Kind.STRING),
        (Kind.NAIVE_DATE, Kind.UTC_DATETIME),
        (Kind.JSON, Kind.STRING),
    } <= changed_types("mongodb")
    documents = [
        json.loads(row.cells[name])
        for step in steps("mongodb", RowStep)
        for row in step.tables.get("product", ())
        for name in ("specs",)
        if row.cells.get(name) is not None
    ]
    assert {type(document) for document in documents} >= {dict, list, str, int, bool, type(None)}


def test_applications_are_wide_and_sparse_and_rename_headers():
    assert len(tables("hubspot")["contact"].columns) > 200
    contacts = steps("hubspot", RowStep)[0].tables["contact"]
    assert max(len(row.cells) for row in contacts) < 20
    for connector in ("github", "hubspot", "google_sheets"):
        assert any(not form.primary_key for form in tables(connector).values())
    renamed = [
        (before.columns.keys() - after.columns.keys(), after.columns.keys() - before.columns.keys())
        for before, after in altered("google_sheets")
    ]
    assert any("owner" in gone and "responsible" in added for gone, added in renamed)


def test_files_have_their_keys_and_are_imported_again():
    for connector, table in (("s3", "sales"), ("google_drive", "invoice")):
        form = tables(connector)[table]
        assert form.primary_key == ("_file", "_line")
        assert form.columns["_modified"].type is Kind.UTC_DATETIME
        modified = {}
        for step in steps(connector, RowStep):
            for row in step.tables.get(table, ()):
                if "_modified" in row.cells:
                    modified.setdefault(row.cells["_file"], set()).add(row.cells["_modified"])
        assert max(map(len, modified.values())) == 2


def test_logs_have_no_key_and_grow_by_what_is_asked_for():
    assert not tables(PLATFORM)["log"].primary_key
    *small, first, second = syncs(PLATFORM, log_rows=1_000)
    assert syncs(PLATFORM, log_rows=0) == small

    def ids(scenario):
        return [row.cells["_fivetran_id"] for row in scenario.steps[0].tables["log"]]

    assert len(ids(first)) == len(set(ids(first))) == 1_000
    assert len(set(ids(first)) & set(ids(second))) == 10
    assert len(set(ids(first)) | set(ids(second))) == 2_000


def test_an_unknown_connector_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ConfigurationError, match="Unknown connector: 'oracle'") as caught:
        list(connector_scenarios(["oracle"], log_rows=0))
    assert all(name in (caught.value.hint or "") for name in [*connector_names(), ALL])


def test_the_command_plays_each_connector_in_its_schema():
    destination = ReferenceDestination()
    command = ["test-destination", "--connector", "s3", "--connector", "google_drive"]
    with serve(destination) as target:
        done = CliRunner().invoke(app, [*command, "--target", target, "--schema-name", "x"])
    assert done.exit_code == 0, done.output
    assert "schema x_s3" in done.output
    assert "schema x_google_drive" in done.output
    assert destination.rows("x_s3", "sales")


def test_the_help_lists_all_connectors():
    shown = CliRunner().invoke(app, ["test-destination", "--help"], env={"COLUMNS": "200"}).output
    assert all(name in shown for name in connector_names())
