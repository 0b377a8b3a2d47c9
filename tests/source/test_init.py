"""`init --from` proposes a chronolake.yml for a source that exists, and `check` accepts it."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import yaml
from postgresql import server

from chronolake.config import SqlServerMethod, SqlServerSource, load_project, project_of_text
from chronolake.lake import Lake
from chronolake.pipeline.runs import Status
from chronolake.pipeline.sync import sync
from chronolake.scaffold.document import Entry, lines_of
from chronolake.scaffold.jdbc import address_of, proposal_of
from chronolake.scaffold.proposal import Variable
from chronolake.source.jdbc_metadata import DatabaseTable
from chronolake.types import ACTIVE
from support.commands import run_words
from support.connectors import airbyte_program, singer_program, stream, tap_stream
from support.datalakes import iceberg
from support.declarative.apis import Api, Reply
from support.declarative.mockapi.trials import MANIFESTS
from support.lakes import SPARK, lake_config
from support.source.mysql_servers import MysqlShop
from support.source.mysql_servers import server as mysql_server

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    # Modules of other tests have the same names.
    monkeypatch.setattr(sys, "path", list(sys.path))
    return lambda *words: run_words(capsys, *words)


def _propose(run: Run, *words: str) -> dict[str, dict[str, Any]]:
    """Run `init --from`, and return its pipelines by name."""
    code, reported, error = run("init", "--from", *words, "--json")
    assert code == 0, error
    return {found["pipeline"]: found for found in json.loads(reported)["pipelines"]}


def _streams(pipeline: dict[str, Any], *fields: str) -> list[tuple[Any, ...]]:
    return [tuple(found[field] for field in fields) for found in pipeline["streams"]]


def _check(run: Run, *words: str) -> None:
    """Run `check`, which accepts everything."""
    code, reported, error = run("check", "--json", *words)
    assert code == 0, f"{reported}{error}"


def _sources() -> dict[str, Any]:
    content = yaml.safe_load(Path("chronolake.yml").read_text())
    return {name: found["source"] for name, found in content["pipelines"].items()}


# -------------------------------------------------------------------------------- databases


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with server(wal_level="logical") as found:
        yield found


@pytest.fixture
def database(address: str) -> Iterator[str]:
    _execute(
        address,
        "DROP SCHEMA IF EXISTS public, sales CASCADE",
        "CREATE SCHEMA public",
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "CREATE TABLE log (line text)",
    )
    yield address
    _execute(
        address,
        "DROP PUBLICATION IF EXISTS chronolake_shop",
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots",
    )


def _execute(address: str, *statements: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def test_a_database_with_a_log_is_read_from_it(
    run: Run, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _propose(run, database, "--name", "shop")["shop"]

    fields = ("name", "table", "key", "capture_method", "deletes", "mode")
    missing = "captured: missing records"
    assert _streams(found, *fields) == [
        ("public.log", "shop.log", ["_fivetran_id"], "snapshot-diff", missing, "history"),
        ("public.orders", "shop.orders", ["id"], "every-change", "captured", "history"),
    ]
    text = Path("chronolake.yml").read_text()
    password = urlsplit(database).password or ""
    assert password not in text
    assert "dsn: postgresql://me:${SHOP_PASSWORD}@" in text
    (step,) = found["steps"]
    assert step.startswith("Run `chronolake check --create` once")
    assert "publication chronolake_shop and the slot chronolake_shop" in step
    code, _, error = run("check")
    assert code == 1
    assert "SHOP_PASSWORD is not set" in " ".join(error.split())
    monkeypatch.setenv("SHOP_PASSWORD", password)
    _check(run, "--create")
    _check(run)


def test_a_database_without_a_log_is_compared(
    run: Run, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _execute(
        database,
        "DROP ROLE IF EXISTS plain",
        "CREATE ROLE plain LOGIN PASSWORD 'secret'",
        "GRANT USAGE ON SCHEMA public TO plain",
        "GRANT SELECT ON orders TO plain",
        "CREATE SCHEMA sales",
        "CREATE TABLE sales.orders (id int PRIMARY KEY)",
        "GRANT USAGE ON SCHEMA sales TO plain",
        "GRANT SELECT ON sales.orders TO plain",
    )
    parts = urlsplit(database)
    dsn = f"postgresql://plain:${{SECRET}}@{parts.netloc.rpartition('@')[2]}{parts.path}"
    monkeypatch.setenv("SECRET", "secret")
    found = _propose(run, dsn, "--name", "shop")["shop"]

    assert _sources()["shop"] == {
        "type": "postgres",
        "dsn": dsn,
        "method": "snapshot_diff",
        "schemas": ["public", "sales"],
    }
    assert _streams(found, "name", "table", "capture_method") == [
        ("public.orders", "shop.orders", "snapshot-diff"),
        ("sales.orders", "shop.sales_orders", "snapshot-diff"),
    ]
    assert list(found["excluded"]) == ["public.log"]
    assert "plain may not read it" in found["excluded"]["public.log"]
    assert "may not read the log" in found["notes"][0]
    _check(run)


def test_a_database_that_cannot_be_reached_is_refused(run: Run, database: str) -> None:
    parts = urlsplit(database)
    wrong = database.replace(parts.password or "", "wrong-word")
    code, _, error = run("init", "--from", wrong)
    assert code == 1
    assert "password authentication failed" in error
    assert "wrong-word" not in error
    assert not Path("chronolake.yml").exists()


# ------------------------------------------------------------------------------- connectors


_SPEC = {
    "required": ["token", "count"],
    "properties": {
        "token": {"type": "string", "title": "API token", "airbyte_secret": True},
        "count": {"type": "integer", "default": 3},
        "start": {
            "type": "string",
            "examples": ["2026-01-01"],
            "description": "The <b>first</b> day",
        },
    },
}


def _connector(code: str) -> None:
    program = Path("connector")
    program.write_text(f"#!{sys.executable}\n{code}")
    program.chmod(0o755)


def test_an_airbyte_connector_gets_the_settings_that_it_needs(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [stream("orders", cursor="at", at="time"), stream("items")]
    _connector(airbyte_program(streams, spec=_SPEC))

    (found,) = _propose(run, "./connector").values()
    assert found["streams"] is None
    assert found["notes"] == ["The source is not checked yet: CONNECTOR_TOKEN must be set."]
    text = Path("chronolake.yml").read_text()
    assert "# The first day" in text
    assert "# start: '2026-01-01'" in text

    monkeypatch.setenv("CONNECTOR_TOKEN", "hidden")
    (found,) = _propose(run, "./connector", "--force").values()
    assert _sources()["connector"] == {
        "type": "airbyte",
        "command": "./connector",
        "config": {"token": "${CONNECTOR_TOKEN}", "count": 3},
    }
    assert _streams(found, "name", "key", "cursor", "capture_method", "deletes") == [
        ("orders", ["id"], "at", "observed-changes", "not captured"),
        ("items", ["id"], None, "snapshot-diff", "captured: missing records"),
    ]
    assert "hidden" not in Path("chronolake.yml").read_text()
    _check(run)


def test_secrets_of_a_given_configuration_become_variables(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _connector(airbyte_program([stream("orders")], spec=_SPEC))
    given = {
        "token": "hidden-1",
        "count": 5,
        "login": {"password": "hidden-2", "user": "me"},
        "account": "hidden0123456789abcdefgh",
        "passwords": ["hidden-3"],
        "primary_key": "id",
        "query": "select 1\nfrom: 'x'  # y",
        "first": "2026-01-01",
    }
    Path("config.json").write_text(json.dumps(given))

    code, reported, _ = run("init", "--from", "./connector", "--source-config", "config.json")
    assert code == 0
    text = Path("chronolake.yml").read_text()
    assert "hidden" not in text + reported
    assert _sources()["connector"]["config"] == {
        "token": "${CONNECTOR_TOKEN}",
        "count": 5,
        "login": {"password": "${CONNECTOR_LOGIN_PASSWORD}", "user": "me"},
        "account": "${CONNECTOR_ACCOUNT}",
        "passwords": ["${CONNECTOR_PASSWORDS_1}"],
        "primary_key": "id",
        "query": "select 1\nfrom: 'x'  # y",
        "first": "2026-01-01",
    }
    assert "Set the environment variable CONNECTOR_LOGIN_PASSWORD" in reported
    monkeypatch.setenv("CONNECTOR_TOKEN", "hidden-1")
    monkeypatch.setenv("CONNECTOR_LOGIN_PASSWORD", "hidden-2")
    monkeypatch.setenv("CONNECTOR_ACCOUNT", "hidden0123456789abcdefgh")
    monkeypatch.setenv("CONNECTOR_PASSWORDS_1", "hidden-3")
    _check(run)
    loaded = load_project(Path("chronolake.yml")).pipelines["connector"].source
    assert loaded.config == given  # type: ignore[union-attr]


def test_a_singer_tap_is_recognized(run: Run) -> None:
    tap = singer_program([tap_stream("orders", cursor="at"), tap_stream("log", method="LOG_BASED")])
    Path("tap.py").write_text(tap)

    (found,) = _propose(run, "tap.py").values()
    assert _sources()["tap"] == {"type": "singer", "command": ["python3", "./tap.py"]}
    assert _streams(found, "name", "cursor", "capture_method", "deletes") == [
        ("orders", "at", "observed-changes", "not captured"),
        ("log", None, "every-change", "captured"),
    ]
    _check(run)


def test_a_program_that_is_no_connector_is_refused(run: Run) -> None:
    _connector("print('hello')")
    code, _, error = run("init", "--from", "./connector")
    assert code == 1
    assert "neither an Airbyte connector nor a Singer tap" in error


@pytest.mark.long
def test_packages_from_the_index_are_pinned(run: Run) -> None:
    found = _propose(run, "airbyte-source-faker==6.2.38")
    assert _sources()["faker"]["package"] == "airbyte-source-faker==6.2.38"
    streams = {"users", "products", "purchases"}
    assert {row["name"] for row in found["faker"]["streams"]} == streams
    _check(run)

    Path("config.json").write_text('{"path": "*.jsonl", "stream_name": "orders"}')
    Path("one.jsonl").write_text('{"id": 1}\n')
    _propose(run, "tap-jsonl", "--source-config", "config.json", "--force")
    package = _sources()["jsonl"]["package"]
    assert package.startswith("tap-jsonl==")
    _check(run)


@pytest.mark.long
def test_a_fivetran_project_keeps_its_own_configuration(run: Run) -> None:
    folder = Path("projects", "shop")
    folder.mkdir(parents=True)
    (folder / "configuration.json").write_text('{"token": "hidden"}')
    (folder / "connector.py").write_text(
        "from fivetran_connector_sdk import Connector\n"
        "def schema(configuration):\n"
        "    return [{'table': 'orders', 'primary_key': ['id']}]\n"
        "def update(configuration, state):\n"
        "    pass\n"
        "connector = Connector(update=update, schema=schema)\n"
    )
    found = _propose(run, "projects/shop")["shop"]
    assert _sources()["shop"] == {"type": "fivetran", "path": "projects/shop"}
    assert _streams(found, "name", "key", "capture_method") == [("orders", ["id"], "every-change")]
    assert "hidden" not in Path("chronolake.yml").read_text()
    _check(run)


def test_a_manifest_gets_the_settings_that_it_needs(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = {
        "version": "6.48.0",
        "type": "DeclarativeSource",
        "check": {"type": "CheckStream", "stream_names": ["orders"]},
        "streams": [
            {
                "type": "DeclarativeStream",
                "name": "orders",
                "primary_key": "id",
                "schema_loader": {"type": "InlineSchemaLoader", "schema": {}},
                "retriever": {
                    "type": "SimpleRetriever",
                    "requester": {
                        "type": "HttpRequester",
                        "url_base": "{{ config['url'] }}",
                        "path": "/orders",
                        "authenticator": {
                            "type": "BearerAuthenticator",
                            "api_token": "{{ config['token'] }}",
                        },
                    },
                    "record_selector": {
                        "type": "RecordSelector",
                        "extractor": {"type": "DpathExtractor", "field_path": []},
                    },
                },
            }
        ],
        "spec": {
            "type": "Spec",
            "connection_specification": {
                "required": ["url", "token"],
                "properties": {"token": {"type": "string", "airbyte_secret": True}},
            },
        },
    }
    Path("shop.yaml").write_text(yaml.safe_dump(manifest))

    found = _propose(run, "shop.yaml")["shop"]
    expected = [("orders", ["id"], None, "snapshot-diff")]
    assert _streams(found, "name", "key", "cursor", "capture_method") == expected
    assert found["notes"] == ["The source is not checked yet: SHOP_URL, SHOP_TOKEN must be set."]
    assert _sources()["shop"]["config"] == {"url": "${SHOP_URL}", "token": "${SHOP_TOKEN}"}
    api = Api({"/orders": Reply([{"id": 1}])})  # type: ignore[arg-type]
    with api:
        monkeypatch.setenv("SHOP_URL", api.url)
        monkeypatch.setenv("SHOP_TOKEN", "hidden")
        assert _propose(run, "shop.yaml", "--force")["shop"]["notes"] == []
        _check(run)


@pytest.mark.skipif(not MANIFESTS.is_dir(), reason="the manifests are not part of the repository")
@pytest.mark.parametrize("name", ["7shifts", "algolia", "braze"])
def test_real_manifests_are_proposed(run: Run, name: str) -> None:
    (found,) = _propose(run, str(MANIFESTS / f"{name}.yaml")).values()
    assert found["streams"]


def test_functions_are_proposed_with_their_parameters(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("proposed_shop.py").write_text(
        "import chronolake\n"
        "@chronolake.stream(key='id', cursor='at', deletes='deleted')\n"
        "def orders(url, token, limit=10, state=None):\n"
        "    yield {}\n"
        "def items():\n"
        "    yield {}\n"
        "@chronolake.streams(a={'key': 'id', 'capture': 'log'}, b={})\n"
        "def both(state):\n"
        "    yield 'a', {}\n"
    )
    found = _propose(run, "proposed_shop:orders", "--name", "shop")["shop"]
    assert _sources()["shop"]["config"] == {"url": "${SHOP_URL}", "token": "${SHOP_TOKEN}"}
    assert "# limit: 10" in Path("chronolake.yml").read_text()
    assert _streams(found, "name", "key", "cursor", "deletes") == [
        ("orders", ["id"], "at", "captured: deleted")
    ]
    monkeypatch.setenv("SHOP_URL", "http://localhost")
    monkeypatch.setenv("SHOP_TOKEN", "hidden")
    _check(run)

    found = _propose(run, "proposed_shop:items", "--force")["proposed_shop"]
    assert "# key: id" in Path("chronolake.yml").read_text()
    assert _streams(found, "capture_method", "deletes") == [
        ("snapshot-diff", "captured: missing records")
    ]
    _check(run)
    found = _propose(run, "proposed_shop:both", "--force")["proposed_shop"]
    assert _streams(found, "name", "deletes") == [
        ("a", "not captured"),
        ("b", "captured: missing records"),
    ]
    _check(run)


# ------------------------------------------------------------------------------------- JDBC


def _start_spark_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHRONOLAKE_SPARK_MASTER", "local[2]")


def test_a_database_over_jdbc(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _start_spark_of_tests(monkeypatch)
    with closing(sqlite3.connect("office.db")) as connection:
        for statement in (
            "CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT)",
            "INSERT INTO items VALUES (1, 'a')",
            "CREATE TABLE parts (item INTEGER, no INTEGER, PRIMARY KEY (no, item))",
            "CREATE TABLE codes (code TEXT NOT NULL UNIQUE, note TEXT UNIQUE)",
            "CREATE TABLE log (line TEXT)",
            'CREATE TABLE "old items" (id INTEGER PRIMARY KEY)',
            "CREATE VIEW names AS SELECT name FROM items",
        ):
            connection.execute(statement)
        connection.commit()
    found = _propose(run, "jdbc:sqlite:office.db")["office"]
    assert _sources() == {
        "office": {
            "type": "jdbc",
            "url": f"jdbc:sqlite:{tmp_path}/office.db",
            "tables": {
                "codes": {"key": ["code"]},
                "items": {"key": ["id"]},
                "parts": {"key": ["no", "item"]},
            },
        }
    }
    assert "# split_by: id" in Path("chronolake.yml").read_text()
    notes = " ".join(found["notes"])
    assert "primary key are not included: log." in notes
    assert "need quotes are not included: old items." in notes
    _check(run)
    project = load_project(tmp_path / "chronolake.yml")
    lake = Lake.open(project.lake.path, config=project.lake)
    assert sync(lake, project, "office").status is Status.SUCCEEDED
    assert len(iceberg(project, "office", "items").scan().to_arrow()) == 1


def test_postgresql_over_jdbc(run: Run, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _start_spark_of_tests(monkeypatch)
    parts = urlsplit(database)
    _execute(database, "CREATE ROLE reader LOGIN PASSWORD 'a&b:c'", "CREATE SCHEMA sales")
    try:
        _execute(
            database,
            "CREATE TABLE sales.lines (a int, b text, PRIMARY KEY (b, a))",
            "GRANT USAGE ON SCHEMA public, sales TO reader",
            "GRANT SELECT ON ALL TABLES IN SCHEMA public, sales TO reader",
        )
        monkeypatch.setenv("READER", "a&b:c")
        url = f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}"
        _propose(run, f"{url}?user=reader&password=${{READER}}&connectTimeout=20", "--name", "shop")
        assert _sources() == {
            "shop": {
                "type": "jdbc",
                "url": f"{url}?connectTimeout=20",
                "user": "reader",
                "password": "${READER}",
                "tables": {
                    "public.orders": {"key": ["id"]},
                    "sales.lines": {"key": ["b", "a"]},
                },
            }
        }
        _check(run)
        code, _, error = run("init", "--from", f"{url}?user=none&password=hidden", "--force")
        assert code == 1
        assert "hidden" not in error
        assert "What to do: " in error
    finally:
        _execute(database, "DROP OWNED BY reader", "DROP ROLE reader")


def test_mysql(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with mysql_server("mysql", binlog_row_metadata="MINIMAL") as address:
        shop = MysqlShop(Path("elsewhere"), address)
        shop.prepare()
        shop.run(
            "CREATE TABLE orders (id INT PRIMARY KEY)",
            "CREATE TABLE plain (n INT)",
            "CREATE USER reader IDENTIFIED BY 'a@b'",
            "GRANT SELECT ON shop.* TO reader",
        )
        place = address.rpartition("@")[2]
        found = _propose(run, f"mysql://reader:a%40b@{place}/shop")
        assert _sources() == {
            "shop": {"type": "mysql", "dsn": f"mysql://reader:${{SHOP_PASSWORD}}@{place}/shop"}
        }
        assert _streams(found["shop"], "name", "capture_method") == [
            ("shop.orders", "every-change"),
            ("shop.plain", "snapshot-diff"),
        ]
        text = Path("chronolake.yml").read_text()
        for part in ("SET GLOBAL binlog_row_metadata", "GRANT REPLICATION SLAVE"):
            assert part in text.replace("\n# ", " ")
        found = _propose(run, f"mysql://root@{place}", "--name", "all", "--force")
        assert _sources()["all"]["databases"] == ["shop"]
        shop.administer("SET GLOBAL binlog_row_metadata = 'FULL'")
        _check(run)


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (
            "sqlserver://me:p%40%3Bw@db:1433/office?encrypt=false",
            ("jdbc:sqlserver://db:1433;databaseName=office;encrypt=false", "me", "p@;w"),
        ),
        (
            "jdbc:sqlserver://db;user=me;password={a;b}}c};databaseName={x;y}",
            ("jdbc:sqlserver://db;databaseName={x;y}", "me", "a;b}c"),
        ),
        ("jdbc:mysql://me:pw@db/shop", ("jdbc:mysql://db/shop", "me", "pw")),
        ("jdbc:oracle:thin:me/pw@//db:1521/x", ("jdbc:oracle:thin:@//db:1521/x", "me", "pw")),
        ("jdbc:db2://db/shop", ("jdbc:db2://db/shop", None, None)),
    ],
)
def test_addresses_of_databases_have_no_passwords(
    origin: str, expected: tuple[str, str | None, str | None]
) -> None:
    assert address_of(origin) == expected


def test_tables_of_sql_server(tmp_path: Path) -> None:
    table = DatabaseTable("dbo.items", ("id",), is_numbered=True)
    given = (Variable("OFFICE_PASSWORD", "the user's password", "pw"),)
    found = proposal_of("office", "jdbc:sqlserver://db;databaseName=x", "me", given, [table])
    text = "\n".join(lines_of([Entry("office", (Entry("source", found.source),))], 1))
    project = project_of_text(
        f"pipelines:\n{text}\n", tmp_path / "chronolake.yml", variables={"OFFICE_PASSWORD": "pw"}
    )
    source = project.pipelines["office"].source
    assert isinstance(source, SqlServerSource)
    assert source.password == "pw"
    assert source.method is SqlServerMethod.CHANGE_TRACKING
    assert source.tables["dbo.items"].key == ["id"]


# ------------------------------------------------------------------------------------ files


@pytest.mark.parametrize("codec", ["uncompressed", "deflate", "snappy", "zstandard", "bzip2", "xz"])
def test_avro_files(run: Run, tmp_path: Path, codec: str) -> None:
    lake = Lake.open(tmp_path / "other", config=lake_config(tmp_path / "other"))
    rows = lake.spark.sql(
        "SELECT 'x' AS kind, id % 3 AS part, id, id % 2 = 0 AS flag, array(id) AS ids, "
        "timestamp_micros(id) AS updated_at, CAST(NULL AS STRING) AS note FROM range(2000)"
    ).coalesce(1)
    Path("dumps").mkdir()
    for day in ("2026-01-30", "2026-01-31"):
        rows.write.format("avro").option("compression", codec).mode("overwrite").save(
            str(tmp_path / "part")
        )
        (file,) = Path("part").glob("*.avro")
        file.rename(f"dumps/orders_{day}.avro")
    _propose(run, "dumps")
    assert _sources() == {
        "dumps": {
            "type": "copies",
            "path": "dumps/orders_{date:%Y-%m-%d}.avro",
            "key": ["id"],
        }
    }
    _check(run)


def test_a_damaged_avro_file_is_refused(run: Run) -> None:
    Path("orders.avro").write_bytes(b"Obj\x01\x00nothing")
    code, _, error = run("init", "--from", "orders.avro")
    assert code == 1
    assert "The file cannot be read" in error


def _write(path: str, **columns: list[Any]) -> None:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    if path.endswith(".parquet"):
        pq.write_table(table, file)
    elif path.endswith((".csv", ".csv.gz", ".tsv")):
        options = pa_csv.WriteOptions(delimiter="\t" if path.endswith(".tsv") else ",")
        with pa.output_stream(
            str(file), compression="gzip" if path.endswith(".gz") else None
        ) as out:
            pa_csv.write_csv(table, out, options)
    else:
        file.write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))


def test_a_folder_of_dated_copies_of_several_tables(run: Run) -> None:
    for day, amount in (("2026-01-30", 1), ("2026-01-31", 2), ("2026-02-01", 3)):
        _write(f"dumps/orders_{day}.parquet", id=[1, 2], name=["a", "b"], amount=[1, amount])
        _write(f"dumps/items_{day}.csv.gz", order_id=[1, 1, 2], line_no=[1, 2, 1], amount=[1, 1, 1])
    found = _propose(run, "dumps/")

    assert _sources() == {
        "dumps": {
            "type": "copies",
            "tables": {
                "items": {
                    "path": "dumps/items_{date:%Y-%m-%d}.csv.gz",
                    "key": ["order_id", "line_no"],
                },
                "orders": {"path": "dumps/orders_{date:%Y-%m-%d}.parquet", "key": ["id"]},
            },
        }
    }
    assert _streams(found["dumps"], "name", "table", "capture_method", "mode") == [
        ("items", "dumps.items", "snapshot-diff", "history"),
        ("orders", "dumps.orders", "snapshot-diff", "history"),
    ]
    text = " ".join(Path("chronolake.yml").read_text().replace("#", " ").split())
    assert "id is unique and never null in the 4 rows of orders_2026-02-01.parquet" in text
    assert "Also unique: name. Confirm that it identifies a row." in text
    assert "order_id and line_no together are unique" in text
    _check(run)


def test_proposed_copies_become_a_history(run: Run, tmp_path: Path) -> None:
    for day, amount in (("2026-01-30", 1), ("2026-01-31", 2)):
        _write(f"dumps/orders_{day}.parquet", id=[1, 2], amount=[1, amount])
    _propose(run, "dumps")
    with Path("chronolake.yml").open("a") as file:
        file.write(f"spark: {json.dumps({'master': 'local[2]', 'conf': SPARK})}\n")
    project = load_project(tmp_path / "chronolake.yml")
    lake = Lake.open(project.lake.path, config=project.lake)
    assert sync(lake, project, "dumps").status is Status.SUCCEEDED
    rows = iceberg(project, "dumps", "orders").scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["amount"], row[ACTIVE]) for row in rows) == [
        (1, 1, True),
        (2, 1, False),
        (2, 2, True),
    ]


def test_no_java_is_needed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    del run  # The working folder is empty.
    _write("dumps/orders_2026-01-30.parquet", id=[1, 2])
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    words = [sys.executable, "-m", "chronolake", "init", "--from", "dumps", "-o", "-"]
    environment = {**os.environ, "PATH": "/nowhere"}
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)
    assert yaml.safe_load(done.stdout)["pipelines"]["dumps"]["source"]["key"] == ["id"]


@pytest.mark.parametrize(
    ("files", "path", "stream"),
    [
        (
            ["shop/orders-20260131.csv", "shop/orders-20260201.csv"],
            "orders-{date:%Y%m%d}.csv",
            "orders",
        ),
        (
            ["shop/2026/01/31/orders.csv", "shop/2026/02/01/orders.csv"],
            "{date:%Y/%m/%d}/orders.csv",
            "orders",
        ),
        (
            ["shop/orders/date=2026-01-31/part-0.csv", "shop/orders/date=2026-02-01/part-1.csv"],
            "orders/date={date:%Y-%m-%d}/part-*.csv",
            "orders",
        ),
        (
            ["shop/20260131T120000Z_users.csv", "shop/20260201T120000Z_users.csv"],
            "{date:%Y%m%dT%H%M%S%z}_users.csv",
            "users",
        ),
        (["shop/2026-01.csv", "shop/2026-02.csv"], "{date:%Y-%m}.csv", "shop"),
        (["shop/users_v2_2026_01_31.csv"], "users_v2_{date:%Y_%m_%d}.csv", "users_v2"),
    ],
)
def test_dates_are_found_in_paths(run: Run, files: list[str], path: str, stream: str) -> None:
    for file in files:
        _write(file, id=[1, 2])
    found = _propose(run, "shop")["shop"]
    source = _sources()["shop"]
    assert (source["type"], source["path"]) == ("copies", f"shop/{path}")
    assert _streams(found, "name") == [(stream,)]
    _check(run)


def test_files_with_different_records_are_not_copies(run: Run) -> None:
    _write("new/orders_2026-01-01.jsonl", id=[1, 2], updated_at=["a", "b"])
    _write("new/orders_2026-01-02.jsonl", id=[3, 4], updated_at=["a", "b"])
    _write("new/clicks_2026-01-01.jsonl", page=["a", "a"])
    _write("new/clicks_2026-01-02.jsonl", page=["a", "a"])
    found = _propose(run, "new")
    assert _sources() == {
        "new_clicks": {"type": "files", "path": "new/clicks_{date:%Y-%m-%d}.jsonl"},
        "new_orders": {
            "type": "files",
            "path": "new/orders_{date:%Y-%m-%d}.jsonl",
            "key": ["id"],
        },
    }
    assert _streams(found["new_clicks"], "table", "key") == [
        ("new.clicks", ["source_file", "source_row"])
    ]
    assert "# modified: updated_at" in Path("chronolake.yml").read_text()
    _check(run)


def test_plain_files_are_read_once(run: Run) -> None:
    _write("exports/orders_1.csv", id=[1, 2], price=["1.5", "2"])
    _write("exports/orders_2.csv", id=[3, 4], price=["1.5", "x"])
    _write("exports/notes.tsv", id=["001"], text=["a"])
    Path("exports/notes.txt").write_text("not data")
    found = _propose(run, "exports", "--name", "shop")
    assert _sources() == {
        "shop_notes": {"type": "files", "path": "exports/notes.tsv", "key": ["id"]},
        "shop_orders": {"type": "files", "path": "exports/orders_*.csv", "key": ["id"]},
    }
    assert _streams(found["shop_orders"], "table", "deletes") == [("shop.orders", "not captured")]
    text = Path("chronolake.yml").read_text()
    assert "# types: {id: LONG}" in text
    assert "001" not in text
    _check(run)


def test_a_single_file_with_another_delimiter(run: Run) -> None:
    Path("orders.csv").write_text('id;"the; note"\n1;"a\n;b"\n2;c\n')
    _propose(run, "orders.csv")
    assert _sources()["orders"] == {
        "type": "files",
        "path": "./orders.csv",
        "key": ["id"],
        "delimiter": ";",
    }
    _check(run)


@pytest.mark.parametrize(
    ("content", "reason"),
    [("[1, 2]\n", "not a JSON object"), ('{"a":\n', "not a JSON object"), (None, "no data files")],
)
def test_unusable_files_are_refused(run: Run, content: str | None, reason: str) -> None:
    Path("dumps").mkdir()
    if content is None:
        Path("dumps", "a.bin").write_bytes(b"")
    else:
        Path("dumps", "a.jsonl").write_text(content)
    code, _, error = run("init", "--from", "dumps")
    assert code == 1
    assert reason in error
    assert not Path("chronolake.yml").exists()


# ------------------------------------------------------------------------------ the command


def test_an_existing_file_is_kept(run: Run) -> None:
    _write("orders.jsonl", id=[1])
    Path("chronolake.yml").write_text("lake: {path: mine}\n")
    code, _, error = run("init", "--from", "orders.jsonl")
    assert code == 1
    assert "chronolake.yml already exists." in error
    assert "--force" in error

    code, shown, _ = run("init", "--from", "orders.jsonl", "--dry-run")
    assert code == 0
    assert yaml.safe_load(shown)["pipelines"]["orders"]["source"]["path"] == "./orders.jsonl"
    code, same, _ = run("init", "--from", "orders.jsonl", "--output", "-")
    assert same == shown
    assert Path("chronolake.yml").read_text() == "lake: {path: mine}\n"
    assert not Path("chronolake.schema.json").exists()

    assert run("init", "--from", "orders.jsonl", "--output", "other/new.yml")[0] == 0
    (source,) = yaml.safe_load(Path("other/new.yml").read_text())["pipelines"].values()
    assert source["source"]["path"] == "../orders.jsonl"
    _check(run, "--project", "other/new.yml")
    assert run("init", "--from", "orders.jsonl", "--force")[0] == 0
    _check(run)


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["--from", "nothing"], 1, "nothing does not exist."),
        (["--from", "mysql://me:hidden@127.0.0.1:1/db"], 1, "The MySQL server does not respond"),
        (["--from", "ftp://me:hidden@host/db"], 1, "No pipeline can be proposed for ftp://"),
        (["--from", "sqlserver://me:hidden@host/db"], 1, "driver of sqlserver is not included"),
        (["--from", "sqlserver://me:hidden@host"], 1, "no host or no database"),
        (["--from", "jdbc:mysql://me:hidden@host/db"], 1, "driver of mysql is not included"),
        (["--from", "jdbc:sqlite:none.db"], 1, "There is no file"),
        (["--from", "jdbc:x", "--driver-jar", "none.jar"], 1, "There is no file none.jar."),
        (["--from", "s3:///dumps"], 1, "does not contain a bucket"),
        (["--from", "s3://bucket/{x}"], 1, "a placeholder in paths"),
        (["--from", "no_module:orders"], 1, "The Python module no_module does not exist."),
        (["--name", "shop"], 2, "need --from"),
        (["--from", "x", "--source-config", "none.json"], 1, "none.json cannot be read"),
    ],
)
def test_errors_say_what_to_do(run: Run, words: list[str], code: int, reason: str) -> None:
    found, _, error = run("init", *words)
    assert found == code
    assert reason in " ".join(error.split())
    assert "What to do: " in error
    assert "hidden" not in error
    assert not Path("chronolake.yml").exists()
