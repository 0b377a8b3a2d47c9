"""Connectors of the Airbyte protocol: each kind of message, and each kind of misbehavior."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from chronolake.errors import (
    ChronolakeError,
    ConfigurationError,
    MissingRequirementError,
    SourceError,
)
from chronolake.pipeline.store import Store
from chronolake.pipeline.streams import source_of
from chronolake.source.protocol import (
    ChangeSource,
    CheckedSource,
    Level,
    ReadProgress,
    StreamFailure,
)
from chronolake.source.records import reader
from chronolake.types import START
from support.connectors import Shop, stream
from support.datalakes import iceberg

_SNAPSHOT = [stream("orders")]
_POLLED = [stream("orders", cursor="at", at="time")]
_BOTH = [*_POLLED, stream("items", cursor="at", at="time")]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_a_full_refresh_is_compared_with_the_table(shop: Shop) -> None:
    shop.airbyte(_SNAPSHOT, "record('orders', id=1, note='a'); record('orders', id=2, note='b')")
    shop.sync()
    shop.airbyte(_SNAPSHOT, "record('orders', id=1, note='c'); record('orders', id=3, note='d')")
    shop.sync()
    after = [(1, "a", False), (1, "c", True), (2, "b", False), (3, "d", True)]
    assert shop.versions("id", "note") == after


def test_reading_a_log_again_deletes_what_is_missing(shop: Shop) -> None:
    log = [stream("orders", cursor="_ab_cdc_lsn", _ab_cdc_lsn="integer", _ab_cdc_deleted_at="time")]
    read = """
        assert state is None, state
        for key in {keys}:
            record("orders", id=key, note="a", _ab_cdc_lsn=1, _ab_cdc_deleted_at=None)
        record("orders", id=4, note="a", _ab_cdc_lsn=2, _ab_cdc_deleted_at="2026-11-02T00:00:00Z")
        stream_state("orders", {{"lsn": 2}})
    """
    shop.airbyte(log, read.format(keys=[1, 2, 4]))
    shop.sync()
    first = [(1, True), (2, True), (4, False)]
    assert shop.versions("id") == first
    shop.airbyte(log, read.format(keys=[1, 3, 4]))
    shop.sync(full_refresh=True)
    assert shop.versions("id") == [(1, True), (2, False), (3, True), (4, False)]


@pytest.mark.long
def test_an_incremental_stream_continues_after_its_state(shop: Shop) -> None:
    read = """
        day = (state_of("orders") or {"day": 0})["day"] + 1
        record("orders", id=1, note=f"day {day}", at=f"2026-11-0{day}T10:00:00Z")
        stream_state("orders", {"day": day}, sourceStats={"recordCount": 1.0})
    """
    shop.airbyte(_POLLED, read)
    for _ in range(3):
        shop.sync()
    assert shop.versions("note") == [("day 1", False), ("day 2", False), ("day 3", True)]
    assert sorted(row[START].day for row in shop.rows()) == [1, 2, 3]
    shop.sync(full_refresh=True)
    assert shop.versions("note")[-1] == ("day 3", True), "what is read again is known"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["GLOBAL", "LEGACY"])
def test_a_state_of_all_streams_continues_them_together(shop: Shop, kind: str) -> None:
    read = f"""
        kind = {kind!r}
        if kind == "GLOBAL":
            run = state[0]["global"]["shared_state"]["run"] if state else 0
            after = {{"type": "GLOBAL", "global": {{"shared_state": {{"run": run + 1}},
                                                   "stream_states": []}}}}
        else:
            run = state["run"] if state else 0
            after = {{"data": {{"run": run + 1}}}}
        for name in ("orders", "items"):
            record(name, id=run, note="a", at=f"2026-11-0{{run + 1}}T10:00:00Z")
        emit(type="STATE", state=after)
    """
    shop.airbyte(_BOTH, read)
    shop.sync()
    # Some streams do not move the state of all.
    shop.sync(only=("items",))
    shop.sync()
    shop.sync()
    for table in ("orders", "items"):
        assert shop.versions("id", table=table) == [(0, True), (1, True), (2, True)]


def test_deletions_of_a_log_are_deletions(shop: Shop) -> None:
    fields = {"_ab_cdc_deleted_at": "string", "_ab_cdc_updated_at": "string"}
    log = [stream("orders", cursor="_ab_cdc_lsn", **fields)]
    read = """
        if state is None:
            for minute, note in enumerate(("a", "b", "a")):
                record("orders", id=1, note=note, _ab_cdc_deleted_at=None,
                       _ab_cdc_updated_at=f"2026-11-01T10:0{minute}:00.000000Z")
            at = "2026-11-01T10:05:00.000000Z"
            record("orders", id=1, _ab_cdc_deleted_at=at, _ab_cdc_updated_at=at)
        stream_state("orders", {"lsn": 5})
    """
    shop.airbyte(log, read)
    shop.sync()
    shop.sync()
    assert shop.versions("note") == [("a", False), ("b", False), ("a", False)]


def test_only_configured_streams_are_read_with_configured_keys_and_cursors(shop: Shop) -> None:
    offered = [stream("orders"), stream("items")]
    offered[0]["supported_sync_modes"].append("incremental")
    offered[0]["source_defined_primary_key"] = []
    read = """
        (only,) = catalog["streams"]
        assert only["sync_mode"] == "incremental" and only["cursor_field"] == ["at"], only
        assert only["primary_key"] == [["note"]], only
        record("orders", id=1, note="a", at="2026-11-01T10:00:00Z")
        record("items", id=1)
        record("orders", id=2, note="a", at="2026-11-02T10:00:00Z")
    """
    source = {"only": ["orders"], "keys": {"orders": ["note"]}, "cursors": {"orders": "at"}}
    shop.airbyte(offered, read, **source)
    shop.sync()
    assert shop.versions("id", key="note") == [(1, False), (2, True)]
    shop.airbyte(offered, read, only=["order"])
    with pytest.raises(ConfigurationError, match="no stream 'order'"):
        source_of(shop.project, "shop").discover()


def test_namespaces_are_part_of_the_names(shop: Shop) -> None:
    offered = [{**stream("orders"), "namespace": space} for space in ("a", "b")]
    read = """
        for space in ("a", "b"):
            emit(type="RECORD", record={"stream": "orders", "namespace": space,
                                        "data": {"id": 1, "note": space}, "emitted_at": 0})
    """
    shop.airbyte(offered, read)
    shop.configure(
        {"type": "airbyte", "command": [sys.executable, str(shop.folder / "airbyte_connector.py")]},
        streams={"b.orders": {"table": "orders_b"}},
    )
    shop.sync()
    assert shop.versions("note") == [("a", True)]
    assert shop.versions("note", table="orders_b") == [("b", True)]


def test_an_updated_configuration_is_kept_until_the_user_changes_it(shop: Shop) -> None:
    read = """
        record("orders", id=1, note=config["token"])
        changed = {"config": {"token": config["token"] + "+"}}
        emit(type="CONTROL", control={"type": "CONNECTOR_CONFIG", "emitted_at": 0,
                                      "connectorConfig": changed})
    """
    shop.airbyte(_SNAPSHOT, read, config={"token": "first"})
    shop.sync()
    shop.sync()
    shop.airbyte(_SNAPSHOT, read, config={"token": "other"})
    shop.sync()
    notes = [note for note, _ in shop.versions("note")]
    assert notes == ["first", "first+", "other"]


def test_a_stream_that_the_connector_could_not_read_does_not_stop_others(shop: Shop) -> None:
    read = """
        status("orders", "STARTED")
        record("orders", id=1, note="a", at="2026-11-01T10:00:00Z")
        stream_state("orders", {"n": 1})
        status("orders", "COMPLETE")
        record("items", id=1, note="a", at="2026-11-01T10:00:00Z")
        status("items", "INCOMPLETE")
        emit(type="TRACE", trace={"type": "ERROR", "error": {"message": "cut: hidden-word"}})
        sys.exit(1)
    """
    shop.airbyte(_BOTH, read, config={"token": "hidden-word"})
    errors = {found.stream: found.error for found in shop.run().streams}
    assert errors["orders"] is None
    assert errors["items"] is not None
    assert shop.versions("note", table="items") == [("a", True)]
    assert set(Store.open(shop.project.lake).checkpoints("shop")) == {"orders", "items"}


@pytest.mark.sampled
@pytest.mark.parametrize(
    "streams",
    [
        pytest.param(_SNAPSHOT, marks=pytest.mark.long, id="snapshot"),
        pytest.param(_POLLED, id="polled"),
    ],
)
@pytest.mark.parametrize(
    ("then", "words"),
    [
        ("sys.exit(7)", ["exit code 7"]),
        ("os.kill(os.getpid(), signal.SIGKILL)", ["SIGKILL"]),
        ("raise OSError('hidden-word is wrong')", ["exit code 1", "OSError", "•••"]),
        ('raw(b\'{"type": "RECORD", "record": {\\n\')', ["not complete JSON"]),
        ('raw(b\'{"type": "RECORD", "rec\'); sys.exit(1)', ["exit code 1"]),
        ('raw(b\'{"type": "REC\\xff\\n\')', ["not complete JSON"]),
        ("time.sleep(1000)", ["reported nothing for 2 seconds", "silent_seconds"]),
        ("os.close(1); time.sleep(1000)", ["closed its output", "within 2 seconds"]),
        (
            (
                "error = {'message': 'bad hidden-word', 'failure_type': 'config_error'}\n"
                "emit(type='TRACE', trace={'type': 'ERROR', 'error': error}); sys.exit(1)"
            ),
            ["reports: bad •••", "source.config"],
        ),
    ],
)
def test_what_was_read_before_an_error_is_kept(
    shop: Shop, streams: list[dict[str, object]], then: str, words: list[str]
) -> None:
    before = "record('orders', id={id}, note='{note}', at='2026-11-0{id}T10:00:00Z')\n"
    shop.airbyte(streams, before.format(id=1, note="a"))
    shop.sync()
    read = before.format(id=2, note="b") + "stream_state('orders', {'n': 2})\n" + then
    settings = {"config": {"token": "hidden-word"}, "silent_seconds": 2}
    shop.airbyte(streams, read, **settings)
    shop.fail(*words)
    stored = Store.open(shop.project.lake).checkpoints("shop")["orders"]
    if streams is _SNAPSHOT:
        assert shop.versions("id") == [(1, True)], "an incomplete read changes nothing"
    else:
        assert shop.versions("id") == [(1, True), (2, True)]
        assert stored["state"] == {"n": 2}


def test_noise_between_messages_is_logged(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    read = """
        raw(b"Downloading hidden-word...\\n")
        raw(b"\\xff\\xfe\\x00\\n\\n")
        print("a line on the standard error", file=sys.stderr)
        emit(type="LOG", log={"level": "INFO", "message": "token=hidden-word"})
        emit(type="UNKNOWN", unknown={})
        raw(b'{"other": 1}\\n')
        record("orders", id=1, note="a")
        raw(b'{"type": "RECORD", "record": {"stream": "orders", "data": {"id": 2}}}')
    """
    shop.airbyte(_SNAPSHOT, read, config={"token": "hidden-word"})
    shop.sync()
    assert shop.versions("id") == [(1, True), (2, True)]
    output = capsys.readouterr().out
    assert "a line on the standard error" in output
    assert "Downloading" in output
    assert "hidden-word" not in output


def test_a_state_that_counts_missing_records_is_not_stored(shop: Shop) -> None:
    read = """
        stream_state("orders", {"n": 1}, sourceStats={"recordCount": 1.0})
        record("orders", id=1, note="a", at="2026-11-01T10:00:00Z")
    """
    shop.airbyte(_POLLED, read)
    shop.fail("counts 1 records, but the connector has reported 0")
    assert not Store.open(shop.project.lake).checkpoints("shop").get("orders", {}).get("state")


def test_types_and_columns_may_change_between_records(shop: Shop) -> None:
    read = """
        record("orders", id=1, note="a")
        record("orders", id=2, note=5, more=[1, {"a": None}])
        record("orders", id=3, note=None, more="text", number=1.5)
        record("orders", id=4, number=7)
    """
    shop.airbyte(_SNAPSHOT, read)
    shop.sync()
    assert shop.versions("id", "note", "more", "number") == [
        (1, "a", None, None, True),
        (2, "5", '[1,{"a":null}]', None, True),
        (3, None, "text", "1.5", True),
        (4, None, None, "7", True),
    ]


def test_many_records_without_a_state_land_while_they_are_read(shop: Shop) -> None:
    read = """
        for number in range(30_000):
            record("orders", id=number, note="x" * 50, at="2026-11-01T10:00:00Z")
    """
    shop.airbyte(_POLLED, read)
    shop.sync()
    assert len(shop.rows()) == 30_000


def test_the_connector_checks_its_configuration(shop: Shop) -> None:
    shop.airbyte(_SNAPSHOT, "pass", config={"token": "hidden-word"})
    source = source_of(shop.project, "shop")
    assert isinstance(source, CheckedSource)
    (result,) = source.check(create=False)
    assert result.level is Level.OK
    code = (shop.folder / "airbyte_connector.py").read_text()
    failed = '{"status": "FAILED", "message": "bad hidden-word"}'
    code = code.replace('{"status": "SUCCEEDED"}', failed)
    (shop.folder / "airbyte_connector.py").write_text(code)
    (result,) = source.check(create=False)
    assert result.level is Level.FAILED
    assert "bad •••" in result.message


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"command": ["./missing"]}, "cannot be started"),
        ({"command": [sys.executable, "-c", "pass"]}, "did not report its streams"),
        ({"command": [sys.executable, "-c", "import nothing"]}, "It reported nothing.*python"),
        ({"package": "no-such-package-of-airbyte==1"}, "cannot be installed"),
    ],
)
def test_a_connector_that_cannot_run_is_refused(
    shop: Shop, source: dict[str, object], words: str
) -> None:
    shop.configure({"type": "airbyte", **source})
    with pytest.raises(ChronolakeError, match=words):
        source_of(shop.project, "shop").discover()


def test_a_package_or_a_command_is_needed(shop: Shop) -> None:
    for source in ({}, {"package": "a", "command": "b"}):
        with pytest.raises(ConfigurationError, match="either package or command"):
            shop.configure({"type": "airbyte", **source})


def test_a_command_has_no_packages_of_its_own(shop: Shop) -> None:
    for settings in ({"python": "3.10"}, {"requirements": ["pyarrow"]}):
        with pytest.raises(ConfigurationError, match="are for a package"):
            shop.configure({"type": "airbyte", "command": "a", **settings})


def test_a_missing_program_is_a_missing_requirement(shop: Shop) -> None:
    shop.configure({"type": "airbyte", "command": "missing-program"})
    with pytest.raises(MissingRequirementError):
        source_of(shop.project, "shop").discover()


_RESUMABLE = [{**_SNAPSHOT[0], "is_resumable": True}]


def _pages(note: str, *, cut: int = 0) -> str:
    """Return a complete read of three pages that may end in the middle of one."""
    return f"""
        assert catalog["streams"][0]["sync_mode"] == "full_refresh"
        page = (state_of("orders") or {{"page": 0}})["page"]
        while page < 3:
            page += 1
            record("orders", id=page, note={note!r})
            if page == {cut}:
                sys.exit(1)
            stream_state("orders", {{"page": page}})
    """


def test_a_full_refresh_that_was_cut_off_continues_at_its_state(shop: Shop) -> None:
    shop.airbyte(_RESUMABLE, _pages("a") + "    record('orders', id=4, note='a')")
    shop.sync()
    before = [(1, "a", True), (2, "a", True), (3, "a", True), (4, "a", True)]
    shop.airbyte(_RESUMABLE, _pages("b", cut=2))
    shop.fail("code 1")
    assert shop.versions("id", "note") == before, "an incomplete read changes nothing"
    shop.airbyte(_RESUMABLE, _pages("c", cut=3))
    shop.fail("code 1")
    shop.airbyte(_RESUMABLE, _pages("d"))
    shop.sync()
    assert [row for row in shop.versions("id", "note") if row[-1]] == [
        (1, "b", True),
        (2, "c", True),
        (3, "d", True),
    ]
    # A complete read is not continued.
    shop.airbyte(_RESUMABLE, _pages("e"))
    shop.sync()
    assert [row for row in shop.versions("note") if row[-1]] == [("e", True)] * 3


def test_a_full_refresh_that_was_cut_off_survives_the_process(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_BATCH_SECONDS", 0.0)
    shop.airbyte(_RESUMABLE, _pages("a", cut=3))
    source = source_of(shop.project, "shop")
    assert isinstance(source, ChangeSource)
    found = source.read(shop.lake, {"orders": None}, full_refresh=False)
    assert isinstance(next(found), ReadProgress)
    while not any(isinstance(item, StreamFailure) for item in found):
        pass
    shop.airbyte(_RESUMABLE, _pages("b"))
    shop.sync()
    assert shop.versions("id", "note") == [(1, "a", True), (2, "a", True), (3, "b", True)]


@pytest.mark.parametrize("change", ["resync", "key", "columns"])
def test_a_full_refresh_begins_again_if_its_records_cannot_be_used(shop: Shop, change: str) -> None:
    shop.airbyte(_RESUMABLE, _pages("a", cut=2))
    shop.fail("code 1")
    program = {"type": "airbyte", "command": [sys.executable, "airbyte_connector.py"]}
    shop.airbyte(_RESUMABLE, _pages("b"))
    if change == "key":
        shop.configure({**program, "keys": {"orders": ["id", "note"]}})
    elif change == "columns":
        shop.configure(program, columns={"exclude": ["other"]})
    shop.sync(full_refresh=change == "resync")
    assert shop.versions("note") == [("b", True)] * 3


def test_the_state_of_a_stream_that_is_not_resumable_is_not_used(shop: Shop) -> None:
    shop.airbyte(_SNAPSHOT, _pages("a", cut=2))
    shop.fail("code 1")
    shop.airbyte(_SNAPSHOT, _pages("b"))
    shop.sync()
    assert shop.versions("note") == [("b", True)] * 3


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"type": "RECORD"}, "RECORD without `record.stream`"),
        ({"type": "RECORD", "record": None}, "RECORD without `record.stream`"),
        ({"type": "RECORD", "record": {"stream": "orders"}}, "RECORD without `record.data`"),
        (
            {"type": "RECORD", "record": {"stream": "orders", "data": None}},
            "`record.data` is null, and not an object",
        ),
        (
            {"type": "RECORD", "record": {"stream": "orders", "data": ["secret-value"]}},
            "`record.data` is a list, and not an object",
        ),
        ({"type": "STATE", "state": None}, "`state` is null, and not an object"),
        ({"type": "STATE", "state": {"type": "STREAM"}}, "stream without its name"),
        ({"type": "TRACE"}, "TRACE without `trace`"),
    ],
)
def test_a_message_without_its_content_is_an_error(
    shop: Shop, message: dict[str, Any], words: str
) -> None:
    read = f"""
        record("orders", id=1, note="a", at="2026-11-01T10:00:00Z")
        stream_state("orders", {{"n": 1}})
        raw(b"noise\\n")
        raw(json.dumps({message!r}).encode() + b"\\n")
    """
    shop.airbyte(_POLLED, read)
    shop.fail(f"connector {Path(sys.executable).name} wrote", words)
    (found,) = shop.run().streams
    assert found.error is not None
    assert "secret-value" not in found.error
    assert "line 4" in found.error or "STREAM" in str(message)
    assert shop.versions("id") == [(1, True)]


@pytest.mark.parametrize(
    "message",
    [
        {"type": "LOG", "log": "text"},
        {"type": "LOG"},
        {"type": "CONTROL", "control": None},
        {"type": "TRACE", "trace": {"type": "STREAM_STATUS", "stream_status": []}},
        {"type": "OTHER", "stream": []},
    ],
)
def test_a_message_without_consequences_may_have_any_content(
    shop: Shop, message: dict[str, Any]
) -> None:
    raw = f"raw(json.dumps({message!r}).encode() + b'\\n')"
    shop.airbyte(_SNAPSHOT, f"{raw}\nrecord('orders', id=1, note='a')")
    source = source_of(shop.project, "shop")
    assert isinstance(source, ChangeSource)
    found = list(source.read(shop.lake, {"orders": None}, full_refresh=True))
    assert not any(isinstance(item, StreamFailure) for item in found), found


@pytest.mark.long
def test_a_million_records_without_a_state_land(shop: Shop) -> None:
    read = """
        for number in range(1_000_000):
            sys.stdout.write(
                '{"type": "RECORD", "record": {"stream": "orders", "emitted_at": 0, "data": '
                f'{{"id": {number}, "note": "a", "at": "2026-11-01T10:00:00Z"}}}}}}\\n'
            )
    """
    shop.airbyte(_POLLED, read)
    shop.sync()
    found = iceberg(shop.project, "shop", "orders").scan(selected_fields=("id",)).to_arrow()
    assert found.num_rows == 1_000_000
    assert len(found["id"].unique()) == 1_000_000


def test_a_record_after_the_end_of_its_stream_is_an_error(shop: Shop) -> None:
    read = """
        record("orders", id=1, note="a", at="2026-11-01T10:00:00Z")
        status("orders", "COMPLETE")
        record("orders", id=2, note="b", at="2026-11-01T10:00:00Z")
    """
    shop.airbyte(_POLLED, read)
    shop.fail("a record of the stream orders after the end of the stream")


def test_records_are_found_by_their_stream_or_are_an_error(shop: Shop) -> None:
    offered = [{**stream("orders"), "namespace": "public"}]
    # Without the namespace, and after other text on the line.
    read = """
        raw(b"progress 10%")
        record("orders", id=1, note="a")
        status("orders", "COMPLETE")
        status("orders", "COMPLETE")
    """
    shop.airbyte(offered, read)
    (found,) = shop.run().streams
    assert found.error is None
    assert shop.versions("note") == [("a", True)]
    shop.airbyte(offered, 'record("other", id=2, note="b")')
    shop.fail("'other'", "not in its catalog")
    assert shop.versions("note") == [("a", True)]


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ('status("orders", "RUNNING")', "could not read all of orders"),
        (
            'emit(type="TRACE", trace={"type": "ERROR", "error": {"message": "boom"}})',
            "reports: boom",
        ),
    ],
)
def test_a_read_without_its_end_deletes_nothing_whatever_the_exit_code(
    shop: Shop, end: str, reason: str
) -> None:
    """A connector that reports how streams go on, or an error, has not read all records."""
    offered = [stream("orders")]
    shop.airbyte(offered, 'record("orders", id=1, note="a")\nrecord("orders", id=2, note="a")')
    shop.sync()
    shop.airbyte(offered, f'record("orders", id=1, note="b")\n{end}')
    shop.fail(reason)
    assert shop.versions("note") == [("a", True), ("a", True)]
    whole = 'status("orders", "STARTED")\nrecord("orders", id=1, note="b")\n'
    shop.airbyte(offered, whole + 'status("orders", "COMPLETE")')
    shop.sync()
    assert ("b", True) in shop.versions("note")


def test_another_nested_key_of_changed_records_is_refused(shop: Shop) -> None:
    """Records would get new keys, and remain under the old ones."""

    def write(day: int, *key: list[str]) -> None:
        offered = [{**_POLLED[0], "source_defined_primary_key": list(key)}]
        record = (
            f'record("orders", id=1, inner={{"a": 1, "b": 2}}, note="{day}", '
            f'at="2026-11-0{day}T10:00:00Z")\n'
        )
        shop.airbyte(offered, f'{record}stream_state("orders", {{"day": {day}}})')

    write(1, ["inner", "a"])
    shop.sync()
    write(2)
    shop.fail("The key of the stream orders has changed, and is the whole record now")
    write(2, ["inner", "b"])
    shop.fail("The key of the stream orders has changed", "inner.b", "chronolake resync shop")
    assert shop.versions("note", key="_fivetran_id") == [("1", True)]
    shop.sync(full_refresh=True)
    shop.sync()
    found = shop.versions("note", key="_fivetran_id")
    assert sorted(found) == [("1", False), ("2", True)]


def test_a_field_with_the_name_of_the_key_column_is_refused(shop: Shop) -> None:
    offered = [{**stream("orders"), "source_defined_primary_key": []}]
    shop.airbyte(offered, 'record("orders", _fivetran_id="a")')
    shop.fail("_fivetran_id", "as the key of the stream")
    # As a key, it is a column like others.
    keys = {"orders": ["_fivetran_id"]}
    shop.airbyte(offered, 'record("orders", _fivetran_id="a", note="b")', keys=keys)
    shop.sync()
    assert shop.versions("note", key="_fivetran_id") == [("b", True)]


def test_streams_of_several_namespaces_may_not_get_one_name(shop: Shop) -> None:
    offered = [
        {**stream("c.d"), "namespace": "a.b"},
        {**stream("d"), "namespace": "a.b.c"},
    ]
    shop.airbyte(offered, "pass")
    with pytest.raises(SourceError, match=r"several streams with the name 'a\.b\.c\.d'"):
        shop.run()
