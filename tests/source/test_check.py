"""`check` reports what a database lacks, with a repairing statement, and creates our objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from postgresql import server
from psycopg.conninfo import make_conninfo

from chronolake.config import load
from chronolake.errors import LakeError
from chronolake.pipeline.store import Store
from support.commands import run_words
from support.datalakes import project
from support.source.databases import Shop


@pytest.fixture(scope="module", params=[18, pytest.param(16, marks=pytest.mark.long)])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    with server(version=request.param, wal_level="logical") as found:
        _run(found, "CREATE ROLE plain LOGIN PASSWORD 'secret-of-plain'")
        yield found


def _run(address: str, *statements: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def _run_check(
    folder: Path, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    code, reported, _ = run_words(capsys, "check", "--json", "--project", str(folder), *words)
    found: dict[str, list[dict[str, Any]]] = {}
    for result in json.loads(reported):
        found.setdefault(result["what"].removeprefix("pipelines.shop: "), []).append(result)
    return code, found


def _project(folder: Path, dsn: str, more: str = "") -> None:
    project(folder, f"  shop:\n    source: {{type: postgres, dsn: '{dsn}'{more}}}\n")


def test_check_create_creates_publication_and_slot(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(address, "CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE log (line text)")
    _project(tmp_path, address)
    code, found = _run_check(tmp_path, capsys)
    assert code == 1
    (finding,) = found["publication chronolake_shop"]
    assert finding["message"] == "does not exist"
    assert finding["hint"].startswith(
        'CREATE PUBLICATION "chronolake_shop" FOR TABLE "public"."orders"'
    )
    assert '"log"' not in finding["hint"], "once published, it could not be updated"
    assert found["slot chronolake_shop"][0]["hint"] == (
        "SELECT pg_create_logical_replication_slot('chronolake_shop', 'pgoutput');"
    )
    assert "ADD PRIMARY KEY" in found["public.log"][0]["hint"]
    assert found["public.orders"][0]["ok"]
    assert found["max_slot_wal_keep_size"][0]["level"] == "warning"

    _, found = _run_check(tmp_path, capsys, "--create")
    assert len(found["created"]) == 2
    assert found["publication chronolake_shop"][0]["message"] == "exists"
    assert found["slot chronolake_shop"][0]["level"] == "ok"
    _run(address, "ALTER TABLE log ADD PRIMARY KEY (line)")
    code, found = _run_check(tmp_path, capsys)
    assert code == 1
    assert found["publication chronolake_shop"][0]["message"] == "does not contain public.log"
    code, found = _run_check(tmp_path, capsys, "--create")
    assert code == 0
    assert [result["message"] for result in found["created"]] == [
        'ALTER PUBLICATION "chronolake_shop" ADD TABLE "public"."log"'
    ]
    code, found = _run_check(tmp_path, capsys, "--create")
    assert code == 0
    assert "created" not in found, "everything exists"

    where = ("--json", "--project", str(tmp_path))
    _, reported, _ = run_words(capsys, "discover", "shop", *where)
    streams = [(row["stream"], row["table"], row["key"]) for row in json.loads(reported)]
    assert streams == [
        ("public.log", "shop.log", ["line"]),
        ("public.orders", "shop.orders", ["id"]),
    ]
    _run(address, "INSERT INTO orders SELECT generate_series(1, 1000)")
    _, reported, _ = run_words(capsys, "status", *where)
    for row in json.loads(reported):
        assert row["sees"] == "every-change"
        assert row["lag"]["behind_bytes"] > 50_000
        assert row["lag"]["kept_bytes"] >= row["lag"]["behind_bytes"]
        assert row["lag"]["warning"] is None


def test_status_shows_what_the_lake_has_while_the_server_is_away(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shop.run(
        # Other tests of the server leave theirs.
        "DROP PUBLICATION IF EXISTS chronolake_shop",
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots",
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "INSERT INTO orders VALUES (1)",
    )
    shop.prepare()
    shop.sync_or_fail()
    shop.dsn, dsn = "postgresql://u@127.0.0.1:1/lake", shop.dsn
    shop.configure()
    shop.dsn = dsn

    code, reported, problem = run_words(capsys, "status", "--project", str(shop.folder))

    assert code == 1
    assert "The server cannot be reached" in problem
    row = next(line for line in reported.splitlines() if "shop.orders" in line)
    for words in ("history", "every-change", "succeeded"):
        assert words in row
    assert "shop  its source cannot be read" in reported


def test_check_reports_problems_with_fixes(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(
        address,
        "CREATE SCHEMA odd",
        'CREATE TABLE odd."no one" (id int PRIMARY KEY)',
        'ALTER TABLE odd."no one" REPLICA IDENTITY NOTHING',
        "CREATE TABLE odd.hidden (id int PRIMARY KEY)",
        "ALTER TABLE odd.hidden ENABLE ROW LEVEL SECURITY",
        "CREATE TABLE odd.late (id int PRIMARY KEY DEFERRABLE)",
        "CREATE TABLE odd.shown (id int, at timestamptz, PRIMARY KEY (id, at))",
        "CREATE PUBLICATION part FOR TABLE odd.shown WITH (publish = 'insert')",
        "SELECT pg_create_logical_replication_slot('old', 'pgoutput', false, true)",
        "GRANT USAGE ON SCHEMA odd TO plain",
        'GRANT SELECT ON odd.hidden, odd."no one" TO plain',
    )
    host = address.partition("@")[2]
    dsn = f"postgresql://plain:secret-of-plain@{host}"
    _project(tmp_path, dsn, ", schemas: [odd], publication: part, slot: old")

    code, found = _run_check(tmp_path, capsys)

    assert code == 1
    assert found["role"][0]["hint"] == 'ALTER ROLE "plain" REPLICATION;'
    by_message = {result["message"]: result["hint"] for result in found["publication part"]}
    assert any("all operations" in message for message in by_message)
    assert 'ALTER PUBLICATION "part" ADD TABLE "odd"."hidden";' in by_message.values()
    assert "prepared transactions" in found["slot old"][0]["message"]
    assert 'ALTER TABLE odd."no one" REPLICA IDENTITY DEFAULT;' in [
        result["hint"] for result in found["odd.no one"]
    ]
    assert found["odd.hidden"][0]["hint"] == 'ALTER ROLE "plain" BYPASSRLS;'
    assert "no primary key" in found["odd.late"][0]["message"]
    assert 'GRANT SELECT ON odd.shown TO "plain";' in found["odd.shown"][0]["hint"]
    _run(
        address,
        "SELECT pg_drop_replication_slot('old')",
        "CREATE PUBLICATION cut FOR TABLE odd.shown (id, at) WHERE (id > 1), "
        "TABLE odd.hidden WITH (publish_via_partition_root = true)",
        "ALTER TABLE odd.shown ADD COLUMN more text",
    )
    _project(tmp_path, address, ", tables: [odd.shown], schemas: [odd], publication: cut")
    _, found = _run_check(tmp_path, capsys)
    assert [result["message"] for result in found["publication cut"]] == [
        "does not contain the columns more of odd.shown",
        "contains the rows of odd.shown WHERE (id > 1)",
    ]
    assert "columns: {exclude: [more]}" in found["publication cut"][0]["hint"]


def test_secrets_are_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _project(tmp_path, "postgresql://me:very-secret@127.0.0.1:1/lake")
    code, reported, error = run_words(capsys, "check", "--project", str(tmp_path))
    assert code == 1
    assert "cannot be reached" in reported
    assert "very-secret" not in reported + error


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"user": "plain", "password": "not-the-one"}, "password authentication failed"),
        (
            {"user": "plain", "password": ""},
            "the server requires a password, and none is configured",
        ),
        ({"user": "nobody", "password": "not-the-one"}, "password authentication failed"),
        ({"dbname": "missing"}, 'database "missing" does not exist'),
    ],
)
def test_refusing_server_is_not_reported_as_unreachable(
    address: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, str],
    reason: str,
) -> None:
    _project(tmp_path, make_conninfo(address, **changed).replace("'", "''"))

    code, found = _run_check(tmp_path, capsys)

    reported = [result["message"] for results in found.values() for result in results]
    assert code == 1
    assert any(message.startswith("The server refuses the connection: ") for message in reported), (
        reported
    )
    assert any(reason in message for message in reported), reported
    assert not any(
        "cannot be reached" in message or "not-the-one" in message for message in reported
    )


def test_unreachable_server_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _project(tmp_path, "postgresql://me:secret@127.0.0.1:1/postgres")

    code, found = _run_check(tmp_path, capsys)

    reported = [result["message"] for results in found.values() for result in results]
    assert code == 1
    assert any(message.startswith("The server cannot be reached: ") for message in reported), (
        reported
    )


def test_refusing_catalog_is_reported(address: str, tmp_path: Path) -> None:
    parts = urlsplit(address)
    uri = f"postgresql://plain:not-the-one@{parts.hostname}:{parts.port}/postgres"
    with pytest.raises(LakeError) as refused:
        Store.open(load(tmp_path, overrides={"catalog.uri": uri}))
    assert "refused the connection: password authentication failed" in refused.value.message
    assert "not-the-one" not in str(refused.value)


@pytest.mark.parametrize(
    ("role", "fix"),
    [
        ("ALTER ROLE reader REPLICATION", None),
        ("ALTER ROLE reader SUPERUSER", None),
        ("SELECT 1", 'ALTER ROLE "reader" REPLICATION;'),
        # Membership alone grants nothing: managed services do that in their own way.
        ("GRANT boss TO reader", 'ALTER ROLE "reader" REPLICATION;'),
        # The flag is checked for the role that runs the statements, and for the one that connects.
        (
            "ALTER ROLE reader REPLICATION; ALTER ROLE reader SET role = 'plain'",
            'ALTER ROLE "plain" REPLICATION;',
        ),
        (
            "GRANT boss TO reader; ALTER ROLE reader SET role = 'boss'",
            'ALTER ROLE "reader" REPLICATION;',
        ),
        (
            (
                "ALTER ROLE reader REPLICATION; "
                "REVOKE EXECUTE ON FUNCTION pg_replication_slot_advance FROM PUBLIC"
            ),
            (
                "GRANT EXECUTE ON FUNCTION pg_catalog.pg_replication_slot_advance(name, pg_lsn) "
                'TO "reader";'
            ),
        ),
    ],
)
def test_role_check_tries_to_read_the_log(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], role: str, fix: str | None
) -> None:
    _run(
        address,
        "CREATE ROLE boss REPLICATION",
        "CREATE ROLE reader LOGIN PASSWORD 'secret-of-reader' IN ROLE plain",
        role,
    )
    try:
        _project(tmp_path, f"postgresql://reader:secret-of-reader@{address.partition('@')[2]}")
        _, found = _run_check(tmp_path, capsys)
        (finding,) = found["role"]
        assert (finding["ok"], finding["hint"]) == (fix is None, fix)
        if fix is not None:
            _run(address, fix)
            _, found = _run_check(tmp_path, capsys)
            assert found["role"][0]["ok"] or found["role"][0]["hint"] != fix
    finally:
        _run(
            address,
            "GRANT EXECUTE ON FUNCTION pg_replication_slot_advance TO PUBLIC",
            "REVOKE ALL ON FUNCTION pg_replication_slot_advance FROM reader",
            "ALTER ROLE plain NOREPLICATION",
            "DROP ROLE reader",
            "DROP ROLE boss",
        )


def test_a_role_of_a_managed_service_gets_what_grants_it_there(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(address, "CREATE ROLE rds_replication", "ALTER ROLE me SET rds.logical_replication = off")
    try:
        _project(tmp_path, f"postgresql://plain:secret-of-plain@{address.partition('@')[2]}")
        _, found = _run_check(tmp_path, capsys)
        assert found["role"][0]["hint"] == 'GRANT "rds_replication" TO "plain";'
        _project(tmp_path, address)
        _, found = _run_check(tmp_path, capsys)
        assert "parameter group" in found["max_slot_wal_keep_size"][0]["hint"]
    finally:
        _run(address, "DROP ROLE rds_replication", "ALTER ROLE me RESET ALL")


def test_server_that_rejects_replication_connections_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with server(wal_level="logical", max_wal_senders="0") as address:
        _project(tmp_path, address)
        _, found = _run_check(tmp_path, capsys)
        assert not found["role"][0]["ok"]
        assert "max_wal_senders" in found["role"][0]["hint"]
        assert 'ALTER ROLE "me" REPLICATION' in found["role"][0]["hint"]
