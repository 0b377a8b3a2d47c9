"""In any state of a publication or slot, `check` and a run report the same recovery."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import structlog
from postgresql import server
from psycopg.pq import ExecStatus

from chronolake.config import load_project
from chronolake.errors import ConfigurationError, SourceError
from chronolake.pipeline.store import Store
from chronolake.pipeline.streams import source_of
from chronolake.source.postgres import catalog
from chronolake.source.postgres.connection import connect
from chronolake.source.postgres.database import PostgresDatabase
from chronolake.source.postgres.offset import LogOffset
from chronolake.source.postgres.slot import confirmed_lsn
from chronolake.source.protocol import ChangeBatch, CheckResult, Level, StreamFailure
from support.commands import run_words
from support.datalakes import project
from support.source.databases import Shop

_PUBLICATION = (
    "CREATE PUBLICATION chronolake_shop FOR TABLE items WITH (publish_via_partition_root)"
)
_DROP = "SELECT pg_drop_replication_slot('chronolake_shop')"
_CREATE = "SELECT pg_create_logical_replication_slot('chronolake_shop', 'pgoutput')"
_RECOVERY = "pg_drop_replication_slot('chronolake_shop')"
_CHANGE = "INSERT INTO items SELECT coalesce(max(id), 0) + 1 FROM items"


@dataclass(frozen=True)
class _State:
    """Statements on a publication and a slot, and the expected error's words; None: no error."""

    statements: tuple[str, ...]
    words: str | None = None


_STATES = {
    "as it should be": _State(()),
    "read on": _State((_CHANGE,)),
    "publication missing": _State(("DROP PUBLICATION chronolake_shop",), _RECOVERY),
    "publication missing when something changed": _State(
        ("DROP PUBLICATION chronolake_shop", _CHANGE, _PUBLICATION), _RECOVERY
    ),
    "the same, and changes before and after": _State(
        (_CHANGE, "DROP PUBLICATION chronolake_shop", _CHANGE, _PUBLICATION, _CHANGE), _RECOVERY
    ),
    "publication made again before anything changed": _State(
        ("DROP PUBLICATION chronolake_shop", _PUBLICATION)
    ),
    "publication of inserts": _State(
        ("ALTER PUBLICATION chronolake_shop SET (publish = 'insert')",),
        "--create|ALTER PUBLICATION"
    ),
    "publication of partitions": _State(
        ("ALTER PUBLICATION chronolake_shop SET (publish_via_partition_root = false)",),
        "ALTER PUBLICATION|--create",
    ),
    "table not published": _State(
        ("ALTER PUBLICATION chronolake_shop DROP TABLE items",), "ADD TABLE|--create"
    ),
    "some columns": _State(
        ("ALTER PUBLICATION chronolake_shop SET TABLE items (id)",), "without a column list"
    ),
    "some rows": _State(
        ("ALTER PUBLICATION chronolake_shop SET TABLE items WHERE (id > 0)",)
    ),
    "slot missing": _State((_DROP,), "pg_create_logical_replication_slot|--create"),
    "slot made again": _State((_DROP, _CHANGE, _CREATE), "resync"),
    "slot advanced by somebody": _State(
        (
            _CHANGE,
            "SELECT pg_replication_slot_advance('chronolake_shop', pg_current_wal_flush_lsn())",
        ),
        "resync",
    ),
    "physical slot": _State(
        (_DROP, "SELECT pg_create_physical_replication_slot('chronolake_shop')"), "`slot: …`"
    ),
    "slot of prepared transactions": _State(
        (_DROP, _CREATE.replace("'pgoutput'", "'pgoutput', false, true")), _RECOVERY
    ),
    "log removed": _State(
        (
            "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'",
            "SELECT pg_reload_conf()",
            *(
                ("SELECT pg_logical_emit_message(false, 'x', repeat('x', 100000))",
                 "SELECT pg_switch_wal()") * 4
            ),
            "CHECKPOINT",
        ),
        _RECOVERY,
    ),
}  # fmt: skip


@pytest.fixture
def ready(shop: Shop) -> Iterator[Shop]:
    """Yield a database with a published table and a slot."""
    shop.run("CREATE TABLE items (id int PRIMARY KEY, note text)", _CHANGE, _PUBLICATION, _CREATE)
    yield shop
    shop.run("ALTER SYSTEM RESET ALL", "SELECT pg_reload_conf()")


def _position(shop: Shop, source: PostgresDatabase) -> LogOffset:
    """Return the offset of a stream that was copied when the slot was created."""
    with connect(shop.dsn) as connection:
        (table,) = catalog.tables_in(connection, ["public"])
        return LogOffset.initial(
            table,
            lsn=confirmed_lsn(connection, source.slot),
            published=catalog.published_tables(connection, source.slot.publication)[table.oid],
            server=catalog.server_of(connection),
        )


def _source(shop: Shop) -> PostgresDatabase:
    source = source_of(shop.project, "shop")
    assert isinstance(source, PostgresDatabase)
    return source


def _run(shop: Shop, position: LogOffset) -> str | None:
    """Return the error of a run that fails before it needs Spark."""
    try:
        for brought in _source(shop).read(
            shop.lake, {"public.items": position.as_json()}, full_refresh=False
        ):
            if isinstance(brought, StreamFailure):
                assert isinstance(brought.error, SourceError)
                return f"{brought.error.message} {brought.error.hint}"
            if not isinstance(brought, ChangeBatch) or brought.versions is not None:
                break
    except SourceError as failure:
        return f"{failure.message} {failure.hint}"
    return None


def _check(shop: Shop, position: LogOffset) -> list[CheckResult]:
    positions = {"public.items": position.as_json()}
    found = _source(shop).check(create=False, positions=positions)
    return [
        result
        for result in found
        if result.level is not Level.OK and "keep_size" not in result.what
    ]


@pytest.mark.sampled
@pytest.mark.parametrize("name", _STATES)
def test_check_and_run_name_the_same_way_out(ready: Shop, name: str) -> None:
    state = _STATES[name]
    position = _position(ready, _source(ready))
    ready.run(*state.statements)

    findings = _check(ready, position)
    reported = _run(ready, position)

    if state.words is None:
        assert reported is None
        assert findings == []
        return
    assert reported is not None
    assert any(finding.level is Level.FAILED for finding in findings), findings
    words = state.words.split("|")
    assert any(word in reported for word in words), reported
    assert any(
        word in f"{finding.message} {finding.fix}" for finding in findings for word in words
    ), findings
    if state.words == _RECOVERY:
        text = " ".join(f"{finding.message} {finding.fix}" for finding in findings)
        for steps in (reported, text):
            assert steps.index(_RECOVERY) < steps.index("check --create") < steps.index("resync")


def test_a_slot_of_another_database_is_left_alone(ready: Shop, address: str) -> None:
    position = _position(ready, _source(ready))
    ready.run(_DROP, "DROP DATABASE IF EXISTS other", "CREATE DATABASE other")
    with psycopg.connect(address.replace("/lake", "/other"), autocommit=True) as other:
        other.execute(_CREATE)
    reported = _run(ready, position)
    (finding,) = (
        result for result in _check(ready, position) if result.what == "slot chronolake_shop"
    )
    for words in (reported or "", f"{finding.message} {finding.fix}"):
        assert "another database" in words
        assert "drop" not in words
    ready.run(_DROP)


@contextmanager
def _reading(dsn: str) -> Iterator[int]:
    """Start another reader of the slot; yield the ID of its server process."""
    with connect(dsn, replication="database") as connection:
        started = connection.pgconn.exec_(
            b"START_REPLICATION SLOT chronolake_shop LOGICAL 0/0 (proto_version '1', "
            b"publication_names 'chronolake_shop')"
        )
        assert started.status == ExecStatus.COPY_BOTH
        yield connection.info.backend_pid
        connection.pgconn.finish()


@pytest.mark.long
def test_a_slot_in_use_is_reported(ready: Shop) -> None:
    position = _position(ready, _source(ready))
    ready.run(_CHANGE)
    with _reading(ready.dsn) as pid:
        reported = _run(ready, position)
        (finding,) = _check(ready, position)
    assert reported is not None
    assert str(pid) in reported
    assert str(pid) in finding.message
    for words in (reported, finding.fix or ""):
        assert "`slot: …`" in words


def test_slot_without_an_offset_causes_a_warning(
    ready: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    def warned(*words: str) -> list[str]:
        _, reported, _ = run_words(
            capsys, "check", "--json", "--project", str(ready.project.file.parent), *words
        )
        return [
            load["message"]
            for load in json.loads(reported)
            if load["what"] == "pipelines.shop: slot chronolake_shop" and load["level"] == "warning"
        ]

    (message,) = warned()
    assert "no offset" in message
    with structlog.testing.capture_logs() as logged:
        source = _source(ready)
        next(iter(source.read(ready.lake, {"public.items": None}, full_refresh=False)), None)
    assert [line["slot"] for line in logged if line["event"] == "slot_has_no_position"] == [
        "chronolake_shop"
    ]

    ready.run(_DROP)
    assert warned("--create") == [], "it was made for this lake"
    assert warned() == []
    ready.run(_DROP, _CREATE)
    assert len(warned()) == 0, "it has the name of the one that was made"
    store = Store.open(ready.project.lake)
    assert store.checkpoints("shop") == {}


@pytest.mark.parametrize(
    ("first", "second", "is_refused"),
    [
        ("shop-eu: {dsn: 'postgresql://a@h/x'}", "shop_eu: {dsn: 'postgresql://b@h:5432/y'}", True),
        ("a: {dsn: 'host=h dbname=x', slot: s}", "b: {dsn: 'postgresql://h/x', slot: s}", True),
        ("a: {dsn: 'postgresql://localhost', slot: s}", "b: {dsn: 'dbname=x', slot: s}", True),
        ("a: {dsn: 'postgresql://u:p@[::1]:6/x', slot: s}",
         "b: {dsn: 'postgresql:///x?host=127.0.0.1&port=6', slot: s}", True),
        ("a: {dsn: 'postgresql://h1/x', slot: s}", "b: {dsn: 'postgresql://h2/x', slot: s}", False),
        ("a: {dsn: 'postgresql://h:1/', slot: s}", "b: {dsn: 'postgresql://h:2/', slot: s}", False),
        ("a: {dsn: 'postgresql://h/x'}", "b: {dsn: 'postgresql://h/x'}", False),
        ("a: {dsn: 'postgresql://h/x', slot: s}",
         "b: {dsn: 'postgresql://h/x', slot: s, method: snapshot_diff}", False),
    ],
)  # fmt: skip
def test_two_pipelines_of_a_project_never_read_one_slot(
    tmp_path: Path, first: str, second: str, *, is_refused: bool
) -> None:
    reported = ""
    for pipeline in (first, second):
        name, _, rest = pipeline.partition(": ")
        reported += f"  {name}:\n    source: {{type: postgres, {rest[1:]}\n"
    if not is_refused:
        project(tmp_path, reported)
        return
    with pytest.raises(ConfigurationError, match="use the same replication slot") as failed:
        project(tmp_path, reported)
    assert "slot" in str(failed.value)


@pytest.mark.long
def test_server_is_recognized_at_any_address(ready: Shop, tmp_path: Path) -> None:
    ready.sync_or_fail()
    ((folder, port),) = ready.rows(
        "SELECT current_setting('unix_socket_directories'), current_setting('port')"
    )
    text = ready.project.file.read_text()
    password = psycopg.conninfo.conninfo_to_dict(ready.dsn)["password"]
    socket = f"host={folder} port={port} user=me password={password} dbname=lake"

    def found(address: str) -> list[str]:
        ready.project.file.write_text(
            f"{text}  other:\n    source:\n      type: postgres\n"
            f"      dsn: '{address}'\n      slot: chronolake_shop\n"
        )
        source = source_of(load_project(ready.project.file), "shop")
        assert isinstance(source, PostgresDatabase)
        failed = [
            result.message for result in source.check(create=True) if result.level == "failed"
        ]
        if failed:
            with pytest.raises(SourceError, match="lead to the same server"):
                next(iter(source.read(ready.lake, {"public.items": None}, full_refresh=False)))
        return failed

    (message,) = found(socket)
    assert "shop and other" in message
    assert found(socket.replace("dbname=lake", "dbname=postgres")), "slots are of the server"
    with server(wal_level="logical") as another:
        assert found(another) == []
    assert found("postgresql://127.0.0.1:1/nobody") == [], "a server that does not answer"


@pytest.mark.long
def test_recovery_from_a_missing_publication_reads_current_rows(ready: Shop) -> None:
    ready.sync_or_fail()
    ready.run("DROP PUBLICATION chronolake_shop", _CHANGE, _PUBLICATION, _CHANGE)
    (failed,) = ready.sync().streams
    assert _RECOVERY in (failed.hint or "")

    ready.run(_DROP)
    assert [
        result.message for result in _source(ready).check(create=True) if result.what == "created"
    ] == [_CREATE]
    ready.sync_or_fail(full_refresh=True)
    ready.run(_CHANGE)
    ready.sync_or_fail()
    assert [row[0] for row in ready.present("items", ("id",))] == [1, 2, 3, 4]
    assert ready.agrees()
