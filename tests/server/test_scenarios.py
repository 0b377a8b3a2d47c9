"""The vendor's scenarios, our examples and those of connectors run against the real server.

The tables are read back with PyIceberg and compared with the tester's model, and with the end
states of `specs/partner-sdk.md`, 5.9.
"""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from chronolake.lake import Lake
from chronolake.server import ServeOptions, Server
from chronolake.tester import RunOptions, run
from chronolake.tester.connector_types import connector_names
from chronolake.tester.files import Compression
from chronolake.tester.options import FlushMode
from chronolake.tester.values import to_json
from chronolake.types import TMAX_TEXT, Kind, Mode, TableName, stored_name
from support.lakes import lake_config
from support.server.caller import catalog

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
INPUTS = ROOT.parent / "shared" / "data" / "partner-sdk" / "inputs"
EXAMPLES = ROOT / "examples"

SCENARIOS = {
    "input": ["input.json"],
    "delete missing": ["delete_missing_record.json"],
    "update missing": ["update_missing_record.json"],
    "soft-delete missing": ["soft_delete_missing_record.json"],
    "truncate missing": ["truncate_missing_table.json"],
    "truncate then delete": ["truncate_then_delete.json"],
    "truncate then update": ["truncate_then_update.json"],
    "truncate then soft-delete": ["truncate_then_soft_delete.json"],
    "tester 1": ["tester_input_1.json"],
    "tester 2": ["tester_input_2.json"],
    "tester 3": ["tester_input_3.json"],
    "tester 4": ["tester_input_4.json"],
    "tester 6": ["tester_input_6.json"],
    "migrations by AlterTable": ["schema_migrations_input_ddl.json"],
    "migrations of data": ["schema_migrations_input_dml.json"],
    "history": [
        "history_mode_1_INIT.json",
        "history_mode_2_UPSERT.json",
        "history_mode_3_UPDATE.json",
        "history_mode_4_DELETE.json",
    ],
}
#: The vendor's scenario that switches the table of this name to soft-delete mode.
MODES, SWITCHED = "schema_migrations_input_sync_modes.json", "new_transaction_history"
FORMS: dict[str, dict[str, Any]] = {
    "encrypted": {},
    "encrypted, replayed": {"replay": True, "split": 2, "minimal_deletes": True},
    "plain": {"compression": Compression.OFF, "encrypted": False},
    "plain, replayed": {"compression": Compression.OFF, "encrypted": False, "replay": True},
}
#: The scenarios that CI runs; `make test-all` runs every scenario in every form.
SAMPLE = {
    ("input", "encrypted, replayed"),
    ("tester 1", "encrypted"),
    ("tester 4", "plain"),
    ("truncate then update", "encrypted"),
    ("migrations by AlterTable", "encrypted"),
    ("migrations of data", "encrypted"),
}
#: A connector that CI runs; `make test-all` runs every connector in every form.
CONNECTOR_SAMPLE = ("postgresql", "plain")
_schemas = (f"scenario_{number}" for number in itertools.count())

Tables = dict[str, dict[str, Any]]


def drive(
    server: Server, scenarios: list[Path], schema: str, dump: Path, **options: Any
) -> tuple[int, str]:
    """Run scenarios; return the exit code and the report."""
    if not all(path.exists() for path in scenarios):
        pytest.skip("the vendor's scenarios are not there (../shared/data/partner-sdk)")
    report, target = io.StringIO(), f"127.0.0.1:{server.port}"
    settings = RunOptions(target=target, schema=schema, dump_model=dump, **options)
    return run(scenarios, settings, stream=report), report.getvalue()


def play(
    server: Server, folder: Path, scenarios: list[Path], schema: str | None = None, **options: Any
) -> Tables:
    """Run scenarios in their own schema; return the model, with the schema's name."""
    schema, dump = schema or next(_schemas), folder / "model.json"
    code, report = drive(server, scenarios, schema, dump, **options)
    assert code == 0, report
    schemas: dict[str, Tables] = json.loads(dump.read_text())
    return {
        f"{schema}.{name}": table
        for schema, tables in schemas.items()
        for name, table in tables.items()
    }


def stored(lake: Lake, name: str, kinds: dict[str, Kind]) -> list[dict[str, Any]]:
    """Return the rows that PyIceberg reads, in the form of the model's dump."""
    found = catalog(lake.config.path).load_table(tuple(name.split(".", 1))).scan().to_arrow()
    columns = {}
    for column, kind in kinds.items():
        values = found.column(stored_name(column))
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.timestamp("us", tz=values.type.tz)).cast(pa.int64())
        elif pa.types.is_date(values.type):
            values = values.cast(pa.int32())
        columns[column] = [to_json(value, kind) for value in values.to_pylist()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def assert_stored_as_modelled(lake: Lake, tables: Tables) -> None:
    for name, table in tables.items():
        kinds = {
            column: Kind(text.partition("(")[0])
            for column, text in table["columns"].items()
            if column not in table["inexact"]
        }
        wanted = [{column: row[column] for column in kinds} for row in table["rows"]]
        assert sorted(map(str, stored(lake, name, kinds))) == sorted(map(str, wanted)), name


@pytest.mark.long
@pytest.mark.parametrize(
    ("scenario", "form"),
    [
        pytest.param(
            scenario,
            form,
            id=f"{scenario}, {form}",
            marks=() if (scenario, form) in SAMPLE else pytest.mark.long,
        )
        for scenario in SCENARIOS
        for form in FORMS
    ],
)
def test_a_scenario_ends_in_the_modelled_tables(
    lake: Lake, server: Server, tmp_path: Path, scenario: str, form: str
) -> None:
    paths = [INPUTS / name for name in SCENARIOS[scenario]]
    assert_stored_as_modelled(lake, play(server, tmp_path, paths, **FORMS[form]))


@pytest.mark.long
@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if "truncate" in name])
def test_truncates_in_between_end_in_the_modelled_tables(
    lake: Lake, server: Server, tmp_path: Path, scenario: str
) -> None:
    paths = [INPUTS / name for name in SCENARIOS[scenario]]
    tables = play(server, tmp_path, paths, mode=FlushMode.SEQUENTIAL)
    assert all(table["rows"] == [] for table in tables.values())
    assert_stored_as_modelled(lake, tables)


def test_the_official_sample_is_stored_as_specified(
    lake: Lake, server: Server, tmp_path: Path
) -> None:
    tables = play(server, tmp_path, [INPUTS / "input.json"])
    names = {key.split(".", 1)[1]: key for key in tables}
    kinds = {
        "id": Kind.INT,
        "_fivetran_start": Kind.UTC_DATETIME,
        "_fivetran_end": Kind.UTC_DATETIME,
        "_fivetran_active": Kind.BOOLEAN,
        "amount_double": Kind.DOUBLE,
        "string_val": Kind.STRING,
    }
    found = sorted(tuple(row.values()) for row in stored(lake, names["transaction"], kinds))
    begin, second, third = "2005-05-23T20:57:00Z", "2005-05-23T20:58:00Z", "2023-10-30T15:00:00Z"
    assert found == [
        (1, begin, "2005-05-23T20:57:59.999Z", False, 100.123456789, "Some text"),
        (1, second, "2023-10-30T14:59:59.999Z", False, 300.111, "Duplicate text"),
        (1, third, "2023-10-30T16:30:00Z", False, 400.555, "Duplicate text"),
        (2, begin, "2023-10-30T16:00:00Z", False, 200.987654321, "Another text"),
    ]
    retained = stored(lake, names["transaction"], {"old_column": Kind.STRING})
    assert retained == [{"old_column": None}] * 4
    assert stored(lake, names["campaign"], {"name": Kind.STRING}) == []
    composite = stored(
        lake, names["composite_table"], {"old_pk": Kind.STRING, "_fivetran_deleted": Kind.BOOLEAN}
    )
    assert composite == [{"old_pk": None, "_fivetran_deleted": True}] * 2


@pytest.mark.long
def test_missing_records_and_truncates_end_as_specified(
    server: Server, lake: Lake, tmp_path: Path
) -> None:
    for name in ("delete_missing_record", "soft_delete_missing_record", "update_missing_record"):
        tables = play(server, tmp_path, [INPUTS / f"{name}.json"])
        synced = {"_fivetran_synced": Kind.UTC_DATETIME}
        assert [stored(lake, table, synced) for table in tables] == [[]] * 2
    tables = play(server, tmp_path, [INPUTS / "truncate_then_update.json"])
    (history,) = (key for key in tables if key.endswith(".transaction"))
    kinds = {"_fivetran_start": Kind.UTC_DATETIME, "_fivetran_end": Kind.UTC_DATETIME}
    assert stored(lake, history, kinds) == [
        {"_fivetran_start": "2023-10-30T15:00:00Z", "_fivetran_end": TMAX_TEXT}
    ]


@pytest.mark.long
def test_a_table_changed_by_alter_table_ends_as_specified(
    lake: Lake, server: Server, tmp_path: Path
) -> None:
    tables = play(server, tmp_path, [INPUTS / "schema_migrations_input_ddl.json"])
    (name,) = tables
    found = stored(lake, name, {"operation_time": Kind.UTC_DATETIME, "amount": Kind.FLOAT})
    assert len(found) == 6
    assert {row["operation_time"] for row in found} == {None}
    schema = catalog(lake.config.path).load_table(tuple(name.split(".", 1))).schema()
    assert "desc" not in schema.column_names
    assert str(schema.find_type("amount")) == "float"


@pytest.mark.long
def test_migrations_of_data_end_as_specified(lake: Lake, server: Server, tmp_path: Path) -> None:
    tables = play(server, tmp_path, [INPUTS / "schema_migrations_input_dml.json"])
    names = {key.split(".", 1)[1]: key for key in tables}
    assert set(names) == {"transaction", "transaction_renamed"}
    for table, amount in (("transaction", "amount_renamed"), ("transaction_renamed", "amount")):
        kinds = {
            amount: Kind.DOUBLE,
            "desc": Kind.STRING,
            "operation_time": Kind.UTC_DATETIME,
        }
        found = {tuple(row.values()) for row in stored(lake, names[table], kinds)}
        assert found == {(202.57, None, "2005-05-28T20:57:00Z")}
        detailed = stored(lake, names[table], {"desc_detailed": Kind.STRING})
        assert len(detailed) == 6
        assert {"two", "three"} <= {row["desc_detailed"] for row in detailed}


@pytest.fixture
def opted_out(lake: Lake, tmp_path: Path) -> Lake:
    """Return a lake that is configured as docs/test-destination.md describes."""
    tables = {f"tester.{SWITCHED}": {"history_only": False}}
    folder = tmp_path / "opted out"
    return Lake.open(folder, config=lake_config(folder, tables=tables))


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_migrations_of_modes_end_in_the_modelled_tables(
    opted_out: Lake, tmp_path: Path, form: str
) -> None:
    with Server(opted_out, ServeOptions(port=0)) as server:
        tables = play(server, tmp_path, [INPUTS / MODES], "tester", **FORMS[form])
    assert_stored_as_modelled(opted_out, tables)


@pytest.mark.long
def test_without_the_setting_migrations_of_modes_end_with_a_task(
    lake: Lake, server: Server, tmp_path: Path
) -> None:
    schema = next(_schemas)
    code, report = drive(server, [INPUTS / MODES], schema, tmp_path / "model.json")
    assert code == 1
    assert f'lake.tables: {{"{schema}.{SWITCHED}": {{history_only: false}}}}' in report
    description = lake.describe(TableName(schema, SWITCHED))
    assert description is not None
    assert description.mode is Mode.HISTORY


@pytest.mark.long
def test_migrations_of_modes_end_as_specified(opted_out: Lake, tmp_path: Path) -> None:
    lake = opted_out
    with Server(lake, ServeOptions(port=0)) as server:
        tables = play(server, tmp_path, [INPUTS / MODES], "tester")
    names = {key.split(".", 1)[1]: key for key in tables}
    kinds = {
        "id": Kind.INT,
        "_fivetran_start": Kind.UTC_DATETIME,
        "_fivetran_end": Kind.UTC_DATETIME,
        "_fivetran_active": Kind.BOOLEAN,
        "article": Kind.STRING,
        "desc": Kind.STRING,
    }
    found = stored(lake, names["transaction_history"], kinds)
    assert len(found) == 13
    active = [row for row in found if row["_fivetran_active"]]
    assert len(active) == 6
    assert all(
        (row["_fivetran_start"], row["_fivetran_end"], row["desc"])
        == ("2005-05-28T20:57:00Z", TMAX_TEXT, None)
        and row["article"]
        for row in active
    )
    closed = [row for row in found if not row["_fivetran_active"]]
    assert {row["article"] for row in closed} == {None}
    ends = {(row["id"], row["_fivetran_end"]) for row in closed}
    assert sum(end == "2005-05-28T20:56:59.999Z" for _, end in ends) == 6
    assert (10, "2005-05-26T20:57:59.999Z") in ends
    assert {(row["id"], row["desc"]) for row in closed} == {
        (1, None), (2, "two"), (3, "two"), (4, "two"), (10, "three"), (20, "money"),
    }  # fmt: skip
    switched = stored(
        lake,
        names["transaction"],
        {
            "_fivetran_start": Kind.UTC_DATETIME,
            "_fivetran_synced": Kind.UTC_DATETIME,
            "_fivetran_end": Kind.UTC_DATETIME,
            "_fivetran_active": Kind.BOOLEAN,
        },
    )
    newest = max(row["_fivetran_synced"] for row in switched)
    assert {
        (row["_fivetran_start"], row["_fivetran_end"], row["_fivetran_active"]) for row in switched
    } == {(newest, TMAX_TEXT, True)}
    back = stored(lake, names[SWITCHED], {"_fivetran_deleted": Kind.BOOLEAN})
    assert back == [{"_fivetran_deleted": False}] * 6
    keys = {
        "transaction_history": ("id", "_fivetran_start"),
        "transaction": ("id", "_fivetran_start"),
        SWITCHED: ("id",),
    }
    for table, key in keys.items():
        description = lake.describe(TableName(*names[table].split(".", 1)))
        assert description is not None
        assert description.primary_key == key
        assert ("_fivetran_deleted" in description.by_name) is (len(key) == 1)


@pytest.mark.long
def test_history_in_four_files_ends_as_specified(
    lake: Lake, server: Server, tmp_path: Path
) -> None:
    names = SCENARIOS["history"]
    if not INPUTS.is_dir():
        pytest.skip("the vendor's scenarios are not there (../shared/data/partner-sdk)")
    first = json.loads((INPUTS / names[0]).read_text())
    del first["schema_migration"]  # live modes, and a missing table
    (tmp_path / names[0]).write_text(json.dumps(first))
    paths = [tmp_path / names[0], *(INPUTS / name for name in names[1:])]
    tables = play(server, tmp_path, paths)
    assert_stored_as_modelled(lake, tables)
    (history,) = (key for key in tables if key.endswith(".transaction_history"))
    kinds = {
        "id": Kind.INT,
        "_fivetran_end": Kind.UTC_DATETIME,
        "amount": Kind.DOUBLE,
        "desc": Kind.STRING,
        "_fivetran_active": Kind.BOOLEAN,
    }
    found = sorted(tuple(row.values()) for row in stored(lake, history, kinds) if row["id"] == 10)
    assert found == [
        (10, "2005-05-26T20:57:59.999Z", 200.0, "three", False),
        (10, "2005-06-26T20:56:59.999Z", 100.0, "three", False),
        (10, "2005-07-26T20:56:59.999Z", 300.0, "three", False),
        (10, "2005-08-26T20:57:00Z", 400.0, "three", False),
    ]


@pytest.mark.parametrize(
    "form",
    [pytest.param(form, marks=pytest.mark.long) for form in ("encrypted", "plain, replayed")],
)
def test_the_examples_end_in_the_modelled_tables(
    lake: Lake, server: Server, tmp_path: Path, form: str
) -> None:
    assert_stored_as_modelled(lake, play(server, tmp_path, [EXAMPLES], **FORMS[form]))


@pytest.fixture(scope="session")
def parquet_server(lake: Lake) -> Iterator[Server]:
    with Server(lake, ServeOptions(port=0, batch_format="parquet")) as running:
        yield running


def _connector_cases(*forms: str) -> list[Any]:
    return [
        pytest.param(
            connector,
            form,
            id=f"{connector}, {form}",
            marks=() if (connector, form) == CONNECTOR_SAMPLE else pytest.mark.long,
        )
        for connector in connector_names()
        for form in forms
    ]


def _assert_connector_is_stored(
    lake: Lake, server: Server, folder: Path, connector: str, form: str
) -> None:
    tables = play(
        server, folder, [], connectors=(connector,), strict_migrations=True, **FORMS[form]
    )
    assert all(table["rows_known"] and table["rows"] for table in tables.values())
    assert_stored_as_modelled(lake, tables)


@pytest.mark.long
@pytest.mark.parametrize(("connector", "form"), _connector_cases("plain", "encrypted, replayed"))
def test_what_a_connector_sends_ends_in_the_modelled_tables(
    lake: Lake, server: Server, tmp_path: Path, connector: str, form: str
) -> None:
    _assert_connector_is_stored(lake, server, tmp_path, connector, form)


@pytest.mark.parametrize(("connector", "form"), _connector_cases("encrypted"))
def test_what_a_connector_sends_in_parquet_ends_in_the_modelled_tables(
    lake: Lake, parquet_server: Server, tmp_path: Path, connector: str, form: str
) -> None:
    _assert_connector_is_stored(lake, parquet_server, tmp_path, connector, form)
