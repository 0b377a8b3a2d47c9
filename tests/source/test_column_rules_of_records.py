"""Values of columns with rules appear in no file, log, spool or error: connectors and functions.

Each source reports secrets in its records, and repeats them wherever a program can write: on its
standard error, between its messages, in log messages, and in its errors.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import structlog
import yaml

from chronolake.config import load_project
from chronolake.pipeline.streams import source_of
from chronolake.source.connectors.environments import environment
from chronolake.types import ACTIVE, TableName
from support.connectors import Shop, stream, tap_stream
from support.processes import run_command, run_command_until_failpoint
from support.source.secrets import (
    COLUMNS,
    KEY,
    MASKED,
    RULES,
    STORED_COLUMNS,
    Secrets,
    hashed,
    stored_row,
)

_JSON_TYPES: Final = {
    name: "string" if name.endswith("text") else "integer" for name in (*COLUMNS, "name")
}
#: What a program may do after its records.
_ENDINGS: Final = ["cut-off", "exit", "error", "killed"]
_OUTSIDE: Final = "given.json"


class People:
    """The stream `people` of a source with secrets, which are stored outside the lake."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.given = folder / _OUTSIDE
        self.shop = Shop(folder / "project")
        self.secrets = Secrets()
        self.rows: dict[int, dict[str, Any]] = {}
        self.end("well")
        _KINDS[kind](self)
        self.settings(**yaml.safe_load(RULES))

    def settings(self, **settings: Any) -> None:
        """Set settings of the pipeline, such as column rules."""
        file = self.shop.folder / "chronolake.yml"
        content = yaml.safe_load(file.read_text())
        content["pipelines"]["shop"] |= settings
        file.write_text(yaml.safe_dump(content))
        self.shop.project = load_project(file)

    def source_settings(self, **settings: Any) -> None:
        """Set settings of the source."""
        source = yaml.safe_load((self.shop.folder / "chronolake.yml").read_text())
        self.settings(source=source["pipelines"]["shop"]["source"] | settings)

    def put(self, *numbers: int) -> None:
        """Insert or replace rows with new secrets."""
        for number in numbers:
            self.rows[number] = {"id": number, "name": "a name", **self.secrets.row()}
        self.end(self.ending)

    def remove(self, number: int) -> None:
        del self.rows[number]
        self.end(self.ending)

    def end(self, ending: str) -> None:
        """Set how the program ends."""
        self.ending = ending
        self.given.write_text(json.dumps({"rows": [*self.rows.values()], "ending": ending}))

    def expect_stored(self) -> None:
        """Check the active rows, and that no file contains a secret."""
        found = self.shop.rows("people")
        assert not [name for name in found[0] if name.startswith("exclude_")]
        columns = ["id", "name", *STORED_COLUMNS]
        active = [tuple(row[name] for name in columns) for row in found if row.get(ACTIVE, True)]
        assert sorted(active) == sorted(stored_row(row) for row in self.rows.values())
        self.expect_hidden()

    def expect_hidden(self) -> None:
        assert self.secrets.found_in(self.shop.folder) == []


#: What programs have in common: they repeat all of their secrets.
_NOISE: Final = f"""
from pathlib import Path
given = json.loads(Path("../{_OUTSIDE}").read_text())
print(given, file=sys.stderr, flush=True)
"""
_TALK: Final = """
raw(b"noise " + repr(given).encode() + b"\\n")
raw(json.dumps(given).encode() + b"\\n")
"""
_LAST: Final = """
if given["ending"] == "cut-off":
    raw(json.dumps({"type": "RECORD", **given}).encode()[:-5])
    os.kill(os.getpid(), signal.SIGKILL)
elif given["ending"] == "exit":
    sys.exit(f"cannot convert {given}")
elif given["ending"] == "error":
    raise ValueError(f"cannot convert {given}")
elif given["ending"] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _airbyte(people: People, *, cursor: str | None = None) -> None:
    offered = stream("people", cursor=cursor, at="time")
    offered["json_schema"]["properties"] |= {
        name: {"type": ["null", kind]} for name, kind in _JSON_TYPES.items()
    }
    read = f"""{_NOISE}{_TALK}
emit(type="LOG", log={{"level": "ERROR", "message": repr(given)}})
for row in given["rows"]:
    record("people", at="2026-11-01T10:00:00Z", **row)
if {cursor!r}:
    stream_state("people", {{"at": "2026-11-01T10:00:00Z"}})
if given["ending"] == "error":
    emit(type="TRACE", trace={{"type": "ERROR", "error": {{"message": repr(given)}}}})
    sys.exit(1)
{_LAST}"""
    people.shop.airbyte([offered], read)


def _singer(people: People, *, method: str = "FULL_TABLE") -> None:
    offered = tap_stream("people", method=method)
    offered["schema"]["properties"] |= {
        name: {"type": ["null", kind]} for name, kind in _JSON_TYPES.items()
    }
    read = f"""{_NOISE}{_TALK}
emit(type="SCHEMA", stream="people", key_properties=["id"], schema=STREAMS[0]["schema"])
for row in given["rows"]:
    record("people", **row)
emit(type="STATE", value={{"day": 1}})
{_LAST}"""
    people.shop.singer([offered], read)


def _fivetran(people: People) -> None:
    kinds = {name: "STRING" if kind == "string" else "LONG" for name, kind in _JSON_TYPES.items()}
    tables = [{"table": "people", "primary_key": ["id"], "columns": {"id": "LONG", **kinds}}]
    update = f"""
import json, os, signal, sys
raw = lambda data: os.write(2, data)
os.chdir("..")
{_NOISE}
print(given)
for row in given["rows"]:
    op.upsert("people", row)
op.checkpoint({{"day": 1}})
{_LAST}
"""
    people.shop.fivetran(tables, update, **people.shop.fivetran_stand_in())


def _python(people: People, *, is_arrow: bool = False) -> None:
    rows = 'pa.Table.from_pylist(given["rows"])' if is_arrow else 'given["rows"]'
    code = f"""
import json
from pathlib import Path
import chronolake
import pyarrow as pa

@chronolake.stream(key="id")
def people():
    given = json.loads(Path({str(people.given)!r}).read_text())
    yield {rows}
    if given["ending"] != "well":
        raise ValueError(f"cannot convert {{given}}") from KeyError(repr(given))
"""
    name = f"functions_{people.shop.folder.parent.name.replace('-', '_')}"
    (people.shop.folder / f"{name}.py").write_text(code)
    people.shop.configure({"type": "python", "run": f"{name}:people"})


def _dlt(people: People) -> None:
    (packages,) = (environment(["dlt==1.31.0"]) / "lib").glob("python*/site-packages")
    if str(packages) not in sys.path:
        # It stays there: dlt imports more of itself when the process ends.
        sys.path.append(str(packages))
    code = f"""
import json
from pathlib import Path
import dlt

@dlt.resource(primary_key="id", write_disposition="replace")
def people():
    given = json.loads(Path({str(people.given)!r}).read_text())
    yield given["rows"]
    if given["ending"] != "well":
        raise ValueError(f"cannot convert {{given}}") from KeyError(repr(given))
"""
    name = f"dlt_functions_{people.shop.folder.parent.name.replace('-', '_')}"
    (people.shop.folder / f"{name}.py").write_text(code)
    people.shop.configure({"type": "python", "run": f"{name}:people"})


_KINDS: Final[dict[str, Callable[[People], None]]] = {
    "airbyte": _airbyte,
    "airbyte-incremental": lambda people: _airbyte(people, cursor="at"),
    "singer": _singer,
    "singer-log": lambda people: _singer(people, method="LOG_BASED"),
    "fivetran": _fivetran,
    "python": _python,
    "python-arrow": lambda people: _python(people, is_arrow=True),
    "dlt": _dlt,
}
_SNAPSHOTS: Final = {"airbyte", "singer", "python", "python-arrow", "dlt"}
#: It installs a package, which uses what newer versions of others deprecate.
_OF_DLT: Final = [pytest.mark.long, pytest.mark.filterwarnings("default")]


@pytest.fixture(
    params=[pytest.param(kind, marks=_OF_DLT if kind == "dlt" else []) for kind in _KINDS]
)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    """Yield the events that are logged during the test."""
    with structlog.testing.capture_logs() as events:
        yield events


@pytest.mark.long
def test_values_are_in_no_file_or_log(
    tmp_path: Path, kind: str, logged: list[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    people = People(tmp_path, kind)
    people.put(1, 2)
    people.shop.sync()
    people.expect_stored()
    people.put(1, 3)
    if kind in _SNAPSHOTS:
        people.remove(2)
    people.shop.sync()
    people.expect_stored()
    people.shop.sync(full_refresh=True)
    people.expect_stored()
    assert not people.secrets.are_in(repr(logged))
    assert not people.secrets.are_in("".join(capfd.readouterr()))


@pytest.mark.sampled
def test_errors_do_not_contain_values(tmp_path: Path, kind: str, logged: list[Any]) -> None:
    people = People(tmp_path, kind)
    people.put(1, 2)
    for ending in _ENDINGS:
        people.end(ending)
        (failed,) = people.shop.run().streams
        reason = f"{failed.error} {failed.hint}"
        assert failed.error
        assert not people.secrets.are_in(reason), reason
        assert not people.secrets.are_in(repr(logged))
        people.expect_hidden()
    # The same error contains more if the configuration asks for it.
    people.source_settings(show_messages=True)
    people.end("error")
    (failed,) = people.shop.run().streams
    assert people.secrets.are_in(f"{failed.error} {logged!r}")


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "failpoint"),
    [
        ("airbyte", "land.staged=kill"),
        pytest.param("singer-log", "land.done=kill", marks=pytest.mark.long),
        pytest.param("fivetran", "staged.appended=kill", marks=pytest.mark.long),
        pytest.param("python", "land.staged=kill", marks=pytest.mark.long),
    ],
)
def test_a_killed_run_leaves_no_values(tmp_path: Path, kind: str, failpoint: str) -> None:
    people = People(tmp_path, kind)
    people.put(*range(1, 50))
    words = ("sync", "shop", "--project", str(people.shop.folder))
    assert run_command_until_failpoint(*words, failpoint=failpoint)
    people.expect_hidden()
    code, output = run_command(*words)
    assert code == 0, output
    assert not people.secrets.are_in(output)
    people.expect_stored()


def test_a_bad_record_is_not_quoted(tmp_path: Path, kind: str, logged: list[Any]) -> None:
    people = People(tmp_path, kind)
    people.put(1)
    people.rows[2] = {**people.rows[1], "id": None}
    people.end("well")
    (failed,) = people.shop.run().streams
    assert "has no id" in f"{failed.error}"
    assert not people.secrets.are_in(f"{failed.error} {failed.hint} {logged!r}")
    people.expect_hidden()


@pytest.mark.long
def test_keys_are_hashed(tmp_path: Path, kind: str, logged: list[Any]) -> None:
    people = People(tmp_path, kind)
    people.settings(columns={"hash": ["id", "*_*"], "hash_key": KEY})
    keys = [people.secrets.number() for _ in range(3)]
    people.put(*keys[:2])
    people.shop.sync()
    people.put(keys[0], keys[2])
    if kind in _SNAPSHOTS:
        people.remove(keys[1])
    people.shop.sync()
    found = [row for row in people.shop.rows("people") if row[ACTIVE]]
    assert {row["id"] for row in found} == {hashed(str(key)) for key in people.rows}
    people.expect_hidden()
    assert not people.secrets.are_in(repr(logged))


def test_records_without_key_have_a_keyed_hash(tmp_path: Path, logged: list[Any]) -> None:
    people = People(tmp_path, "python")
    file = next(people.shop.folder.glob("functions_*.py"))
    file.write_text(file.read_text().replace('@chronolake.stream(key="id")\n', ""))
    people.put(1, 2)
    people.shop.sync()
    people.expect_stored()
    assert not people.secrets.are_in(repr(logged))
    assert set(MASKED) <= {name.split("_")[0] for name in people.shop.rows("people")[0]}


@pytest.mark.long
def test_a_new_rule_of_a_key_does_not_leave_the_old_records(tmp_path: Path) -> None:
    read = """
        record("orders", id=1, note="a", at="2026-11-01T10:00:00Z")
        emit(type="STATE", value={"n": 1})
    """
    shop = Shop(tmp_path)
    shop.singer([tap_stream("orders", cursor="at")], read)
    shop.sync()
    source = {"type": "singer", "command": [sys.executable, str(tmp_path / "singer_connector.py")]}
    shop.configure(source, columns={"hash": ["id"], "hash_key": KEY})
    for _ in range(2):
        shop.fail("rules of the key (id)", "chronolake resync shop --stream orders")
    assert shop.versions("id") == [(1, True)]
    shop.sync(full_refresh=True)
    shop.sync()
    assert sorted(shop.versions("id")) == [("1", False), (hashed("1"), True)]
    # The rules of other columns may change.
    shop.configure(source, columns={"hash": ["id", "note"], "hash_key": KEY})
    shop.sync()


def test_a_new_rule_of_a_key_in_a_log_needs_another_folder(tmp_path: Path) -> None:
    (tmp_path / "key_of_log.py").write_text(
        "import chronolake\n\n"
        '@chronolake.stream(key="id", capture="log")\n'
        'def orders():\n    yield {"id": 1}\n'
    )
    shop = Shop(tmp_path)
    source = {"type": "python", "run": "key_of_log:orders"}
    shop.configure(source)
    shop.sync()
    shop.configure(source, columns={"hash": ["id"], "hash_key": KEY})
    result = shop.run(full_refresh=True)
    assert "Drop the table and the folder" in (result.streams[0].hint or "")
    shop.lake.catalog.drop(TableName("shop", "orders"), purge=True)
    shutil.rmtree(source_of(shop.project, "shop").discover()[0].folder.path)
    shop.sync(full_refresh=True)
    assert shop.versions("id") == [(hashed("1"), True)]


def test_a_rule_whose_column_no_record_has_is_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelled name would leave the values as they are."""
    shop = Shop(tmp_path)
    shop.singer([tap_stream("orders")], 'record("orders", id=1, email="a", phone=None)')
    source = {"type": "singer", "command": [sys.executable, str(tmp_path / "singer_connector.py")]}
    for name, is_logged in (("emial", True), ("EMAIL", False), ("phone", True), ("*_x", False)):
        shop.configure(source, streams={"orders": {"columns": {"exclude": [name]}}})
        capsys.readouterr()
        shop.sync()
        found = capsys.readouterr().out
        assert ("column_rule_without_column" in found) == is_logged, name
