"""The tester against a real destination over gRPC: its requests, findings and expectations."""

from __future__ import annotations

import io
import json
import re
import socket
import time
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from typer.testing import CliRunner

from chronolake.cli import app
from chronolake.errors import ConfigurationError
from chronolake.protos import common_pb2 as common
from chronolake.protos import destination_sdk_pb2 as sdk
from chronolake.tester import RunOptions, run
from chronolake.tester.options import parse_accepted_type, read_configuration
from support.tester.reference_destination import ReferenceDestination, serve
from support.tester.replay import assert_contents_agree, play

EXAMPLES = Path(__file__).parents[2] / "examples"

TABLE = {"columns": {"id": "INT", "n": "LONG", "j": "JSON"}, "primary_key": ["id"]}


def story(tmp_path, **content):
    path = tmp_path / "story.json"
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def simple(tmp_path):
    return story(
        tmp_path,
        create_table={"t": TABLE},
        ops=[{"upsert": {"t": [{"id": 1, "n": 2}]}}, {"truncate_before": ["t"]}],
        alter_table={"t": {"columns": {"id": "INT", "n": "LONG"}, "primary_key": ["id"]}},
        describe_table=["t"],
    )


@pytest.mark.parametrize(
    ("fault", "found", "stops"),
    [
        ("field twice", ("ConfigurationForm", "unique field names"), False),
        ("test fails", ("Test", "answer"), False),
        ("no keys", ("DescribeTable", "column 'id'"), False),
        ("text only", ("DescribeTable", "type of 'j'"), False),
        ("drops columns", ("DescribeTable", "column 'j'"), False),
        ("CreateTable breaks", ("CreateTable", "answer"), True),
        ("CreateTable is silent", ("CreateTable", "answer"), False),
        ("AlterTable says false", ("AlterTable", "answer"), False),
        ("WriteBatch breaks", ("WriteBatch", "answer"), True),
        ("Truncate says false", ("Truncate", "answer"), False),
    ],
)
def test_a_destination_that_is_wrong_is_found_out(simple, tmp_path, fault, found, stops):
    rpc, what = found
    outcome = play([simple], tmp_path, ReferenceDestination(faults=[fault]))
    assert outcome.code == 1
    failed = next(call for call in outcome.calls if not call["ok"])
    assert failed["rpc"] == rpc
    assert failed["failures"][0]["what"] == what
    assert failed["failures"][0]["expected"] != failed["failures"][0]["actual"]
    assert (outcome.calls[-1] is failed) is stops


@pytest.mark.parametrize("fault", ["WriteBatch is silent", "WriteBatch warns", "Truncate warns"])
def test_a_response_that_lets_a_sync_continue_is_a_notice_and_not_a_failure(
    simple, tmp_path, fault
):
    outcome = play([simple], tmp_path, ReferenceDestination(faults=[fault]))
    assert outcome.code == 0
    assert any("warning" in text or "empty" in text for text in outcome.notices)


def test_a_type_can_be_accepted_in_the_place_of_another(simple, tmp_path):
    wrong = ReferenceDestination(faults=["text only"])
    accepted = dict([parse_accepted_type("json=string")])
    outcome = play([simple], tmp_path, wrong, accepted_types=accepted)
    assert outcome.code == 0
    assert any("STRING in place of JSON" in text for text in outcome.notices)
    with pytest.raises(ConfigurationError):
        parse_accepted_type("json")


def test_a_table_that_is_there_already_is_found_out(simple, tmp_path):
    destination = ReferenceDestination()
    assert play([simple], tmp_path, destination).code == 0
    again = play([simple], tmp_path, destination)
    assert again.code == 1
    assert again.failures[0]["expected"] == "not_found"


def test_a_second_create_of_a_known_table_alters_it(simple, tmp_path):
    outcome = play([simple, simple], tmp_path)
    assert outcome.code == 0
    assert any("AlterTable in place of CreateTable" in text for text in outcome.notices)


def test_an_existing_table_is_modelled_from_its_description(simple, tmp_path):
    destination = ReferenceDestination()
    play([simple], tmp_path, destination)
    path = tmp_path / "later.json"
    path.write_text(json.dumps({"ops": [{"upsert": {"t": [{"id": 7}], "none": [{"x": 1}]}}]}))
    outcome = play([path], tmp_path, destination)
    assert outcome.code == 0
    assert not outcome.model["tester"]["t"]["rows_known"]
    assert 7 in [row["id"] for row in destination.rows("tester", "t")]
    assert any("no table 'none'" in text for text in outcome.notices)


def test_soft_deletes_add_their_column(tmp_path):
    first = story(tmp_path, create_table={"t": TABLE}, ops=[{"upsert": {"t": [{"id": 1}]}}])
    later = tmp_path / "later.json"
    later.write_text(json.dumps({"ops": [{"soft_delete": {"t": [{"id": 1}]}}]}))
    outcome = play([first, later], tmp_path, tester_version="2.25")
    assert outcome.code == 0
    assert [row["_fivetran_deleted"] for row in outcome.rows("t")] == [True]
    assert_contents_agree(outcome)


def migrating(tmp_path, *migrations):
    return story(
        tmp_path,
        create_table={"t": TABLE},
        ops=[{"upsert": {"t": [{"id": 1, "n": 70000}]}}],
        schema_migration=list(migrations),
    )


ADD = {"table": "t", "column": "c", "data_type": "INT", "default_value": "5"}


@pytest.mark.parametrize(
    ("migration", "body", "tables", "columns"),
    [
        ("add_column_with_default_value", ADD, ["t"], "n c"),
        ("copy_column", {"table": "t", "from_column": "n", "to_column": "c"}, ["t"], "n c"),
        ("rename_column", {"table": "t", "from_column": "n", "to_column": "c"}, ["t"], "n c"),
        ("copy_table", {"from_table": "t", "to_table": "u"}, ["t", "u"], "n"),
        ("rename_table", {"from_table": "t", "to_table": "u"}, ["t", "u"], "n"),
        ("update_column_value", {"table": "t", "column": "n", "value": "9"}, ["t"], "n"),
    ],
)
def test_without_a_migration_the_model_follows_the_platform(
    tmp_path, migration, body, tables, columns
):
    path = migrating(tmp_path, {migration: [body]})
    destination = ReferenceDestination(unsupported=[migration])
    outcome = play([path], tmp_path, destination)
    assert outcome.code == 0
    assert any("unsupported" in text for text in outcome.notices)
    assert sorted(outcome.model["tester"]) == tables
    found = outcome.model["tester"]["t"]["columns"]
    assert set(columns.split()) == {"n", "c"} & set(found)
    assert outcome.rows("t")[0]["n"] == "70000"
    assert outcome.rows("t")[0].get("c") is None
    assert_contents_agree(outcome)


def test_strictly_an_unsupported_migration_is_a_failure(tmp_path):
    path = migrating(tmp_path, {"add_column_with_default_value": [ADD]})
    destination = ReferenceDestination(unsupported=["add_column_with_default_value"])
    outcome = play([path], tmp_path, destination, strict_migrations=True)
    assert outcome.code == 1
    assert outcome.failures == [{"what": "answer", "expected": "success", "actual": "unsupported"}]


def test_withdrawn_migrations_must_be_unsupported_even_strictly(tmp_path):
    path = migrating(tmp_path, {"migrate_live_to_history": [{"table": "t"}]})
    assert play([path], tmp_path, strict_migrations=True).code == 0


def test_a_change_that_must_be_refused_may_be_refused(tmp_path):
    change = {"table": "t", "column": "n", "data_type": "SHORT"}
    outcome = play([migrating(tmp_path, {"change_column_data_type": [change]})], tmp_path)
    assert outcome.code == 0
    assert any("refused, as it must be" in text for text in outcome.notices)
    assert outcome.model["tester"]["t"]["columns"]["n"] == "LONG"


def test_rows_that_need_a_change_that_must_be_refused_are_an_error_of_the_scenario(tmp_path):
    first = story(
        tmp_path,
        create_table={"t": TABLE},
        ops=[{"upsert": {"t": [{"id": 1, "n": 9007199254740993}]}}],
    )
    second = tmp_path / "second.json"
    inexact = {**TABLE, "columns": {**TABLE["columns"], "n": "DOUBLE"}}
    rows = [{"id": 2, "n": "0.5"}]
    second.write_text(json.dumps({"alter_table": {"t": inexact}, "ops": [{"upsert": {"t": rows}}]}))
    outcome = play([first, second], tmp_path)
    assert outcome.code == 2
    (error,) = (line for line in outcome.lines if line["event"] == "error")
    assert "$.ops[0].upsert.t[0].n" in error["message"]


def test_a_migration_that_must_be_refused_must_not_succeed(tmp_path):
    missing = {"table": "t", "from_column": "nope", "to_column": "c"}
    path = migrating(tmp_path, {"rename_column": [missing]})
    assert play([path], tmp_path).code == 0

    class Lenient(ReferenceDestination):
        def _rename_column(self, place, body):
            pass

    outcome = play([path], tmp_path, Lenient())
    assert outcome.code == 1
    assert "no column 'nope'" in outcome.failures[0]["expected"]


def test_a_migration_without_its_table_has_no_specified_result(tmp_path):
    rename = {"rename_column": [{"table": "none", "from_column": "a", "to_column": "b"}]}
    path = migrating(tmp_path, rename)
    strict = play([path], tmp_path)

    class Lenient(ReferenceDestination):
        def _rename_column(self, place, body):
            pass

    lenient = play([path], tmp_path, Lenient())
    assert (strict.code, lenient.code) == (0, 0)
    assert any("refused, as it may be" in text for text in strict.notices)
    assert any("not refused, although" in text for text in lenient.notices)


def test_every_write_is_sent_twice_when_replayed(simple, tmp_path):
    outcome = play([simple], tmp_path, replay=True)
    writes = [r for r in outcome.destination.requests if isinstance(r, sdk.WriteBatchRequest)]
    assert len(writes) == 2
    assert writes[0] == writes[1]


def test_requests_carry_schema_configuration_and_the_times_of_operations(simple, tmp_path):
    outcome = play([simple], tmp_path, schema="other", configuration={"place": "here"})
    truncate = next(r for r in outcome.destination.requests if isinstance(r, sdk.TruncateRequest))
    assert (truncate.schema_name, dict(truncate.configuration)) == ("other", {"place": "here"})
    assert truncate.utc_delete_before.nanos % 1_000_000 == 0
    assert outcome.rows("t", "other") == []  # at least two milliseconds passed before it
    write = next(r for r in outcome.destination.requests if isinstance(r, sdk.WriteBatchRequest))
    assert {column.name for column in write.table.columns} == {
        "id",
        "n",
        "_fivetran_synced",
        "_fivetran_deleted",
    }
    assert write.table.columns[0].type != common.UNSPECIFIED


def test_the_destination_decides_about_the_format(simple, tmp_path):
    outcome = play([simple], tmp_path, ReferenceDestination(faults=["parquet"]))
    write = next(r for r in outcome.destination.requests if isinstance(r, sdk.WriteBatchRequest))
    assert write.replace_files[0].endswith(".parquet.zstd.aes")
    assert outcome.code == 0


def test_files_are_taken_away_unless_they_are_to_be_kept(simple, tmp_path):
    work = tmp_path / "work"
    play([simple], tmp_path, work_dir=work)
    assert list(work.iterdir()) == []
    play([simple], tmp_path, work_dir=work, keep_files=True)
    assert [path.name for path in work.iterdir()] == ["t_story_upsert.csv.zstd.aes"]


def test_an_unreachable_target_is_a_failure(simple):
    report = io.StringIO()
    options = RunOptions(target="127.0.0.1:1", connect_timeout=0.2)
    assert run([simple], options, stream=report) == 1
    assert "a server at 127.0.0.1:1" in report.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"ops": 3}, "$.ops"),
        (
            {"create_table": {"t": TABLE}, "ops": [{"upsert": {"t": [{"x": 1}]}}]},
            "$.ops[0].upsert.t[0].x",
        ),
        (
            {
                "create_table": {"t": {**TABLE, "history_mode": True}},
                "ops": [{"soft_truncate_before": ["t"]}],
            },
            "has no '_fivetran_deleted' column",
        ),
        (
            {
                "create_table": {"t": {**TABLE, "history_mode": True}},
                "ops": [{"upsert": {"t": [{"id": 1}]}}],
            },
            "must have an op_time",
        ),
        (
            {
                "create_table": {"t": {**TABLE, "history_mode": True}},
                "ops": [{"upsert": {"t": [{"id": 1, "op_time": "2024-01-01T00:00:00Z"}] * 2}}],
            },
            "have the same key and op_time",
        ),
    ],
)
def test_a_wrong_scenario_ends_with_its_own_code(tmp_path, content, reason):
    outcome = play([story(tmp_path, **content)], tmp_path)
    assert outcome.code == 2
    (error,) = [line for line in outcome.lines if line["event"] == "error"]
    assert reason in error["text"]


def test_the_text_report_names_calls_checks_and_differences(simple):
    report = io.StringIO()
    with serve(ReferenceDestination(faults=["text only"])) as target:
        code = run([simple], RunOptions(target=target, shuffle_seed=42), stream=report)
    text = report.getvalue()
    assert code == 1
    assert "--shuffle-seed 42" in text
    assert "✗ DescribeTable" in text
    assert "expected  JSON" in text
    assert "actual    STRING" in text
    assert "failed" in text.splitlines()[-1]


def test_a_configuration_is_texts_only_and_its_values_stay_private(tmp_path):
    path = tmp_path / "configuration.json"
    path.write_text('{"a": "1", "b": ""}')
    assert read_configuration(path) == {"a": "1", "b": ""}
    path.write_text('{"secret": 12345}')
    with pytest.raises(ConfigurationError) as caught:
        read_configuration(path)
    assert "$.secret" in str(caught.value)
    assert "12345" not in str(caught.value)
    with pytest.raises(ConfigurationError):
        read_configuration(Path("missing.json"))
    assert "sesame" not in repr(RunOptions(target="x:1", configuration={"key": "sesame"}))


def test_the_command_passes_its_options_on(tmp_path):
    destination = ReferenceDestination(faults=["text only"])
    configuration = tmp_path / "configuration.json"
    configuration.write_text('{"place": "here"}')
    words = f"""drive {EXAMPLES} --schema-name shop --configuration {configuration} --replay
    --split 2 --delete-columns minimal --plain-text --mode sequential --shuffle-seed 3
    --tester-version 2.25 --accept-type JSON=STRING --work-dir {tmp_path}/w --keep-files --json
    --dump-model {tmp_path}/model.json --strict-migrations --timeout 60 --format csv"""
    with serve(destination) as target:
        result = CliRunner().invoke(app, [*words.split(), "--target", target])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output.splitlines()[-1])["ok"]
    assert set(json.loads((tmp_path / "model.json").read_text())) == {"shop"}
    assert "orders_demo_2_changes_update_1.csv" in {p.name for p in (tmp_path / "w").iterdir()}
    wrong = CliRunner().invoke(app, ["drive", "missing.json", "--target", "x:1", "--json"])
    assert wrong.exit_code == 2
    reported = json.loads(wrong.output)
    assert (reported["error"], reported["file"]) == ("ScenarioError", "missing.json")
    assert reported["hint"]


def test_the_example_in_the_guide_plays(tmp_path):
    guide = (EXAMPLES.parent / "docs" / "test-destination.md").read_text()
    example = guide.split("```json\n")[1].split("```")[0]
    path = tmp_path / "guide.json"
    path.write_text(example)
    outcome = play([path], tmp_path, strict_migrations=True)
    assert outcome.code == 0
    assert_contents_agree(outcome)
    assert outcome.rows("visits") == []
    assert [row["town"] for row in outcome.rows("customers")] == ["Lisbon", "Bergen"]


def test_every_option_is_documented_in_the_guide():
    guide = (EXAMPLES.parent / "docs" / "test-destination.md").read_text()
    result = CliRunner().invoke(app, ["drive", "--help"], env={"COLUMNS": "200"})
    options = set(re.findall(r"(--[a-z-]+)", result.output)) - {"--help"}
    assert len(options) > 20
    assert {option for option in options if option not in guide} == set()


def certificate(tmp_path):
    """Make a self-signed certificate for localhost; return credentials and the file to trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    chain = made.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    trusted = tmp_path / "ca.pem"
    trusted.write_bytes(chain)
    return grpc.ssl_server_credentials([(private, chain)]), trusted


@pytest.mark.parametrize("call", ["Capabilities", "Test"])
def test_a_call_that_a_destination_may_lack_is_noted(simple, tmp_path, call):
    outcome = play([simple], tmp_path, ReferenceDestination(faults=[f"no {call}"]))
    assert outcome.code == 0
    assert any(f"does not implement {call}" in text for text in outcome.notices)
    assert "WriteBatch" in {call["rpc"] for call in outcome.calls}
    assert_contents_agree(outcome)


class WithoutMigrations(ReferenceDestination):
    def Migrate(self, request, context):  # noqa: N802 - the name of the call
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such call")


def test_a_destination_without_migrations_is_one_that_supports_none(tmp_path):
    column = {"table": "t", "from_column": "n", "to_column": "m"}
    migrations = [{"rename_column": [column]}]
    path = story(tmp_path, create_table={"t": TABLE}, schema_migration=migrations)

    outcome = play([path], tmp_path, WithoutMigrations())
    assert outcome.code == 0
    assert any("does not implement Migrate" in text for text in outcome.notices)
    assert_contents_agree(outcome)

    assert play([path], tmp_path, WithoutMigrations(), strict_migrations=True).code == 1


def test_a_finding_is_reported_once_and_counted(tmp_path):
    """A wrong type appears in every description of its table."""
    stories = []
    for number in range(4):
        path = tmp_path / f"story_{number}.json"
        content = {"describe_table": ["t"], "ops": [{"upsert": {"t": [{"id": number}]}}]}
        path.write_text(
            json.dumps(content | ({"create_table": {"t": TABLE}} if not number else {}))
        )
        stories.append(path)

    outcome = play(stories, tmp_path, ReferenceDestination(faults=["text only", "no keys"]))

    assert outcome.code == 1
    described = [call for call in outcome.calls if call["rpc"] == "DescribeTable"][1:]
    assert not any(call["ok"] for call in described)
    assert [len(call["failures"]) for call in described] == [2, 0, 0, 0, 0]
    assert [call["known"] for call in described] == [0, 2, 2, 2, 2]
    last = outcome.lines[-1]
    assert last["failures"] == 2
    counts = {finding["what"].partition(":")[0]: finding["count"] for finding in last["repeated"]}
    assert counts == {"type of 'j'": 5, "column 'id'": 5}


def test_columns_that_are_missing_are_findings_of_their_own(tmp_path):
    """A second missing column does not repeat the first one."""
    stories = []
    for number, names in enumerate((["id", "n"], ["id", "n", "b"], ["id", "n", "b", "c"])):
        path = tmp_path / f"story_{number}.json"
        table = {"columns": dict.fromkeys(names, "INT"), "primary_key": ["id"]}
        path.write_text(json.dumps({"create_table" if not number else "alter_table": {"t": table}}))
        stories.append(path)

    class Forgetful(ReferenceDestination):
        def DescribeTable(self, request, context):  # noqa: N802 - the name of the call
            answer = super().DescribeTable(request, context)
            for column in [one for one in answer.table.columns if one.name in {"n", "b", "c"}]:
                answer.table.columns.remove(column)
            return answer

    outcome = play(stories, tmp_path, Forgetful())

    described = [call for call in outcome.calls if call["rpc"] == "DescribeTable"][1:]
    assert [[one["what"] for one in call["failures"]] for call in described] == [
        ["column 'n'"],
        ["column 'b'"],
        ["column 'c'"],
    ]
    assert outcome.lines[-1]["failures"] == 3


def test_a_notice_is_reported_once_and_counted(tmp_path):
    table = {"columns": {"id": "INT", "at": "NAIVE_DATETIME"}, "primary_key": ["id"]}
    stories = []
    for number in range(3):
        path = tmp_path / f"story_{number}.json"
        content = {"ops": [{"upsert": {"t": [{"id": number, "at": "2024-06-15T13:45:00"}]}}]}
        path.write_text(
            json.dumps(content | ({"create_table": {"t": table}} if not number else {}))
        )
        stories.append(path)

    outcome = play(stories, tmp_path, ReferenceDestination(faults=["parquet"]))

    assert outcome.code == 0
    (notice,) = [text for text in outcome.notices if "NAIVE_DATETIME" in text]
    (repeated,) = outcome.lines[-1]["repeated"]
    assert repeated == {"schema": "tester", "rpc": None, "table": None, "what": notice, "count": 3}
    assert outcome.lines[-1]["notices"] == len(outcome.notices)


def test_an_unknown_file_format_is_noted(simple, tmp_path):
    class Modern(ReferenceDestination):
        def Capabilities(self, request, context):  # noqa: N802 - the name of the call
            return sdk.CapabilitiesResponse(batch_file_format=7)

    outcome = play([simple], tmp_path, Modern())
    assert outcome.code == 0
    assert any("an unknown format (7)" in text for text in outcome.notices)


def test_a_finding_of_each_schema_counts_for_itself(simple, tmp_path):
    other = tmp_path / "other.json"
    other.write_text(simple.read_text())
    outcome = play(
        [simple, other],
        tmp_path,
        ReferenceDestination(faults=["text only"]),
        schema_per_file=True,
    )
    assert outcome.lines[-1]["failures"] == 2


def test_a_destination_that_is_still_starting_is_waited_for(simple):
    """The server starts to listen only after the tester has reported that it waits."""

    class Starting(io.StringIO):
        server = None

        def write(self, text):
            if '"event": "waiting"' in text and self.server is None:
                assert "refused" in text
                self.server = serve(ReferenceDestination(), port=port)
                self.server.__enter__()
            return super().write(text)

    with socket.create_server(("localhost", 0)) as taken:
        port = taken.getsockname()[1]
    report = Starting()
    target = f"localhost:{port}"
    try:
        code = run([simple], RunOptions(target=target, json_lines=True), stream=report)
    finally:
        if report.server is not None:
            report.server.__exit__(None, None, None)
    assert report.server is not None
    assert code == 0


def test_the_tester_reports_why_there_was_no_response(simple, tmp_path):
    def reason(target, **options):
        report = io.StringIO()
        wanted = RunOptions(target=target, json_lines=True, **options)
        assert run([simple], wanted, stream=report) == 1
        errors = [json.loads(line) for line in report.getvalue().splitlines()]
        return next(error["text"] for error in errors if error["event"] == "error")

    with socket.create_server(("localhost", 0)) as silent:
        port = silent.getsockname()[1]
        text = reason(f"localhost:{port}", connect_timeout=0.5)
        assert "gave up after" in text
    text = reason(f"localhost:{port}", connect_timeout=0.5)
    assert "Connection refused" in text
    assert "listens on this port" in text
    credentials, _ = certificate(tmp_path)
    with serve(ReferenceDestination(), credentials) as target:
        assert "--ca-cert" in reason(target, tls=True)
    with serve(ReferenceDestination()) as target:
        assert "does not use TLS" in reason(target, tls=True)


def test_a_server_without_grpc_is_named(simple):
    class Web(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Web) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        report = io.StringIO()
        target = f"127.0.0.1:{server.server_port}"
        assert run([simple], RunOptions(target=target, connect_timeout=1), stream=report) == 1
        server.shutdown()
    assert "does not use gRPC" in report.getvalue()


@pytest.mark.parametrize(
    "target", ["localhost", "localhost:0", "[::1]:65536", "http://a.example:1"]
)
def test_a_target_has_a_host_and_a_port(target):
    with pytest.raises(ConfigurationError, match="is not a host and port"):
        RunOptions(target=target)


def test_tls_is_spoken_to_those_who_are_trusted(simple, tmp_path):
    credentials, trusted = certificate(tmp_path)
    with serve(ReferenceDestination(), credentials) as target:

        def code(connect_timeout=2, **options):
            wanted = RunOptions(target=target, connect_timeout=connect_timeout, **options)
            return run([simple], wanted, stream=io.StringIO())

        assert code(connect_timeout=30, ca_certificate=trusted) == 0
        assert code(tls=True) == 1
        assert code() == 1
        assert code(ca_certificate=tmp_path / "missing.pem") == 2


def test_a_call_that_takes_too_long_stops_the_run(simple, tmp_path):
    class Slow(ReferenceDestination):
        def CreateTable(self, request, context):  # noqa: N802 - the name of the call
            time.sleep(1)
            return super().CreateTable(request, context)

    outcome = play([simple], tmp_path, Slow(), timeout=0.3)
    assert outcome.code == 1
    assert outcome.calls[-1]["answer"] == "DEADLINE_EXCEEDED"
