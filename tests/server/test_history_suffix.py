"""Tables of the destination whose names end in `_history` are in history mode, or opted out.

`seeds/history-mode.txt`: "For the tables with _history suffix in the name, history mode is the only
sync mode." The operations are calls of gRPC, and what the command `mode` runs; PyIceberg reads the
tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
import structlog
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.exceptions import NoSuchNamespaceError

from chronolake import core
from chronolake.errors import ChronolakeError
from chronolake.lake import Lake
from chronolake.server import ServeOptions, Server
from chronolake.types import Mode, TableName, mode_of
from support.commands import run_command, run_words
from support.crash.server_process import configure, serve
from support.lakes import lake_config
from support.server.caller import DELETED, HISTORY, SYNCED, Caller, catalog

#: A table that the rule leaves alone, one whose name ends in _history, and the two with a setting.
PLAIN, SUFFIX, FREE, KEPT = "prices", "price_history", "free_history", "versions"
SETTINGS: Final = {FREE: False, KEPT: True}
HISTORY_ONLY: Final = {SUFFIX, KEPT}
#: The schemas of the lake for which tables are configured.
STORY_SCHEMA, ANY_SCHEMA = "story", "any"
LIVE: Final = ["id*:LONG", "name:STRING", SYNCED]
COLUMNS: Final = {
    Mode.LIVE: LIVE,
    Mode.SOFT_DELETE: [*LIVE, DELETED],
    Mode.HISTORY: ["id*:LONG", "name:STRING", *HISTORY],
}
T1, TMAX = "2024-01-01T00:00:00Z", "9999-12-31T23:59:59.999Z"

Modes = dict[str, Mode]


@pytest.fixture(scope="module", autouse=True)
def _spark(lake: Lake) -> None:
    """Start Spark with the settings of tests."""


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Return a lake with the settings of tables."""
    tables = {
        f"{schema}.{table}": {"history_only": value}
        for schema in (STORY_SCHEMA, ANY_SCHEMA)
        for table, value in SETTINGS.items()
    }
    folder = tmp_path_factory.mktemp("ruled")
    return Lake.open(folder, config=lake_config(folder, tables=tables))


@contextmanager
def serving(lake: Lake, folder: Path, schema: str) -> Iterator[Caller]:
    with (
        Server(lake, ServeOptions(port=0)) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        yield Caller(channel, lake.config.path, folder, schema)


@pytest.fixture(scope="module")
def ruled_caller(ruled: Lake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    with serving(ruled, tmp_path_factory.mktemp("sent"), STORY_SCHEMA) as found:
        yield found


def stored(caller: Caller) -> dict[str, tuple[Mode, str]]:
    """Return the modes of all tables as PyIceberg reads their columns, and their metadata files."""
    found = catalog(caller.lake)
    try:
        names = found.list_tables(caller.schema)
    except NoSuchNamespaceError:
        return {}
    tables = {name: found.load_table((schema, name)) for schema, name in names}
    return {
        name: (mode_of(table.schema().column_names), table.metadata_location)
        for name, table in tables.items()
    }


def modes_of(caller: Caller) -> Modes:
    return {name: mode for name, (mode, _) in stored(caller).items()}


def row(mode: Mode, key: int = 1) -> dict[str, str]:
    """Return a row, or a version, of a table with the columns of a mode."""
    cells = {"id": str(key), "name": f"n{key}", "_fivetran_synced": T1}
    if mode is Mode.HISTORY:
        times = {"_fivetran_start": T1, "_fivetran_end": TMAX, "_fivetran_active": "true"}
        return cells | times
    return cells | ({"_fivetran_deleted": "false"} if mode is Mode.SOFT_DELETE else {})


def write(caller: Caller, table: str, mode: Mode, key: int = 1) -> None:
    file = caller.file("rows", [row(mode, key)])
    is_history = mode is Mode.HISTORY
    request = caller.request(table, COLUMNS[mode], history=is_history, replace=[file])
    call = caller.stub.WriteHistoryBatch if is_history else caller.stub.WriteBatch
    assert call(request).success


# ------------------------------------------------------------------ the rule


@dataclass(frozen=True)
class Step:
    """An operation: on a table, perhaps to another name or to a mode."""

    operation: str
    table: str
    other: str = ""
    mode: Mode = Mode.HISTORY

    @property
    def target(self) -> str:
        """Return the table whose mode the operation decides."""
        return self.other or self.table


def after(step: Step, modes: Modes) -> Modes | None:
    """Return the modes after an operation, without the rule; None: it fails and changes nothing."""
    mode = modes.get(step.table)
    if step.operation == "create":
        return None if mode else {**modes, step.table: step.mode}
    if step.operation == "drop":
        return without(modes, step.table)
    if mode is None or step.other in modes:
        return None
    became = mode_after(step, mode)
    if became is None:
        return None
    kept = without(modes, step.table) if step.operation == "rename" else modes
    return {**kept, step.target: became}


def mode_after(step: Step, mode: Mode) -> Mode | None:
    """Return the mode of an operation's target; None if no table of this mode can have it."""
    match step.operation:
        case "switch" | "migrate":
            return step.mode
        case "alter":
            return step.mode if (mode is Mode.HISTORY) == (step.mode is Mode.HISTORY) else None
        case "add a marker":
            return mode if mode is Mode.HISTORY else Mode.SOFT_DELETE
        case "rename" | "copy":
            return mode
        case "copy to history":
            return None if mode is Mode.HISTORY else Mode.HISTORY
    return None


def without(modes: Modes, table: str) -> Modes:
    return {name: mode for name, mode in modes.items() if name != table}


def after_again(step: Step, modes: Modes) -> Modes | None:
    """Return the modes after a copy is made again, which replaces an unchanged one."""
    if not step.operation.startswith("copy") or step.table == step.other:
        return None
    return after(step, without(modes, step.other))


def run(lake: Lake, caller: Caller, step: Step) -> str:
    """Run an operation; return the text of its refusal, or nothing."""
    if step.operation == "switch":
        return _switch(lake, TableName(caller.schema, step.table), step.mode)
    if step.operation == "migrate":
        answer = caller.migrate(step.table, _SWITCHES[step.mode])
    elif step.operation == "create":
        answer = caller.create(step.table, COLUMNS[step.mode])
    elif step.operation == "alter":
        answer = caller.alter(step.table, COLUMNS[step.mode], drop=True)
    else:
        operation, parts = _MIGRATIONS[step.operation]
        names = {"from_table": step.table, "to_table": step.other} if step.other else {}
        answer = caller.migrate(step.table, operation, **parts, **names)
    return "" if answer.WhichOneof("response") == "success" else answer.task.message


_SWITCHES: Final = {
    Mode.HISTORY: "SOFT_DELETE_TO_HISTORY",
    Mode.SOFT_DELETE: "HISTORY_TO_SOFT_DELETE",
}
_MIGRATIONS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "drop": ("drop_table", {}),
    "rename": ("rename_table", {}),
    "copy": ("copy_table", {}),
    "copy to history": ("copy_table_to_history_mode", {}),
    "add a marker": (
        "add_column_with_default_value",
        {"column": "_fivetran_deleted", "column_type": "BOOLEAN", "default_value": "false"},
    ),
    "lose a system column": (
        "rename_column",
        {"from_column": "_fivetran_active", "to_column": "is_active"},
    ),
}


def _switch(lake: Lake, name: TableName, mode: Mode) -> str:
    """Switch a table as the command `mode` does; its plan is refused like the switch itself."""
    planned = _refusal(lambda: core.plan_switch(lake, name, mode))
    refused = _refusal(lambda: core.switch_mode(lake, name, mode))
    assert is_rule(planned) == is_rule(refused)
    return refused


def _refusal(work: Any) -> str:
    try:
        work()
    except ChronolakeError as failure:
        return str(failure)
    return ""


def is_rule(text: str) -> bool:
    return "can only be in history mode" in text


def play(lake: Lake, caller: Caller, steps: Sequence[Step]) -> set[str]:
    """Run operations, compare each with the model; return those that the rule has refused."""
    refused = set()
    now = stored(caller)
    for step in steps:
        before, modes = now, {name: mode for name, (mode, _) in now.items()}
        expected = after(step, modes)
        text = run(lake, caller, step)
        now = stored(caller)
        found = {name: mode for name, (mode, _) in now.items()}
        assert all(found[name] is Mode.HISTORY for name in HISTORY_ONLY & found.keys()), step
        breaks_rule = expected is not None and any(
            mode is not Mode.HISTORY for name, mode in expected.items() if name in HISTORY_ONLY
        )
        if breaks_rule:
            assert is_rule(text), (step, text)
            assert f'{{"{caller.schema}.{step.target}": {{history_only: false}}}}' in text
            assert now == before
            refused.add(step.operation)
        elif expected is None:
            # A table that exists may also be refused for its name.
            assert step.target in HISTORY_ONLY or not is_rule(text), (step, text)
            assert found in (modes, after_again(step, modes)), step
        else:
            assert not text, step
            assert found == expected, step
    return refused


#: Each way in which a table could leave history mode, or appear in another one.
STORY: Final = [
    Step("create", SUFFIX, mode=Mode.LIVE),
    Step("create", SUFFIX, mode=Mode.SOFT_DELETE),
    Step("create", KEPT, mode=Mode.LIVE),
    Step("create", PLAIN, mode=Mode.SOFT_DELETE),
    Step("rename", PLAIN, SUFFIX),
    Step("copy", PLAIN, SUFFIX),
    Step("copy", PLAIN, KEPT),
    Step("copy", PLAIN, FREE),
    Step("copy to history", PLAIN, SUFFIX),
    Step("switch", SUFFIX, mode=Mode.SOFT_DELETE),
    Step("switch", SUFFIX, mode=Mode.LIVE),
    Step("migrate", SUFFIX, mode=Mode.SOFT_DELETE),
    Step("alter", SUFFIX, mode=Mode.LIVE),
    Step("add a marker", SUFFIX),
    Step("lose a system column", SUFFIX),
    Step("drop", SUFFIX),
    Step("create", SUFFIX, mode=Mode.LIVE),
    Step("create", SUFFIX, mode=Mode.HISTORY),
]


def test_no_operation_gives_a_table_with_the_suffix_another_mode(
    ruled: Lake, ruled_caller: Caller
) -> None:
    ruled_caller.schema = STORY_SCHEMA
    refused = play(ruled, ruled_caller, STORY)
    assert refused == {"create", "rename", "copy", "switch", "migrate"}
    assert modes_of(ruled_caller) == {
        PLAIN: Mode.SOFT_DELETE,
        FREE: Mode.SOFT_DELETE,
        SUFFIX: Mode.HISTORY,
    }


_names = st.sampled_from([PLAIN, SUFFIX, FREE, KEPT])
_modes = st.sampled_from(list(Mode))
_steps = st.one_of(
    st.builds(Step, st.sampled_from(["create", "switch", "alter"]), _names, mode=_modes),
    st.builds(Step, st.just("migrate"), _names, mode=st.sampled_from(list(_SWITCHES))),
    st.builds(Step, st.sampled_from(["rename", "copy", "copy to history"]), _names, _names),
    st.builds(Step, st.sampled_from(["drop", "add a marker", "lose a system column"]), _names),
)


@pytest.mark.long
@settings(max_examples=25)
@given(
    created=st.dictionaries(_names, _modes, min_size=2),
    steps=st.lists(_steps, min_size=2, max_size=8),
)
def test_over_any_operations_the_suffix_means_history_mode(
    ruled: Lake, ruled_caller: Caller, created: Modes, steps: list[Step]
) -> None:
    ruled_caller.schema = ANY_SCHEMA
    for name in modes_of(ruled_caller):
        assert ruled_caller.migrate(name, "drop_table").success
    creations = [Step("create", name, mode=mode) for name, mode in created.items()]
    play(ruled, ruled_caller, [*creations, *steps])


# ------------------------------------------------------------------ tables from before


@pytest.fixture
def from_before(tmp_path: Path) -> Iterator[tuple[Lake, Caller]]:
    """Return a lake where a table has its mode since before the rule, and its caller."""
    folder = tmp_path / "lake"
    tables = {f"shop.{SUFFIX}": {"history_only": False}}
    before = Lake.open(folder, config=lake_config(folder, tables=tables))
    with serving(before, tmp_path, "shop") as caller:
        assert caller.create(SUFFIX, COLUMNS[Mode.SOFT_DELETE]).success
        with structlog.testing.capture_logs() as logged:
            write(caller, SUFFIX, Mode.SOFT_DELETE)
        assert not warnings_in(logged)
    reopened = Lake.open(folder, config=lake_config(folder))
    with serving(reopened, tmp_path, "shop") as caller:
        yield reopened, caller


def test_a_table_from_before_is_written_and_logged_once(from_before: tuple[Lake, Caller]) -> None:
    _, caller = from_before
    with structlog.testing.capture_logs() as logged:
        write(caller, SUFFIX, Mode.SOFT_DELETE, key=2)
        write(caller, SUFFIX, Mode.SOFT_DELETE, key=3)
    (warned,) = warnings_in(logged)
    assert (warned["log_level"], warned["mode"]) == ("warning", "soft-delete")
    assert warned["table"] == f"shop.{SUFFIX}"
    assert f'lake.tables: {{"shop.{SUFFIX}": {{history_only: false}}}}' in warned["reason"]
    assert caller.rows(SUFFIX, "id") == [(1,), (2,), (3,)]


@pytest.mark.long
def test_a_table_from_before_stays_usable_and_may_become_a_history_table(
    from_before: tuple[Lake, Caller],
) -> None:
    lake, caller = from_before
    altered = [*COLUMNS[Mode.SOFT_DELETE], "note:STRING"]
    assert caller.alter(SUFFIX, altered).success
    assert caller.truncate(SUFFIX, 0).success
    # It has this mode already: perhaps the request was sent before the upgrade.
    assert caller.migrate(SUFFIX, "HISTORY_TO_SOFT_DELETE").success
    assert caller.rows(SUFFIX, "id", "note") == [(1, None)]

    assert is_rule(_switch(lake, TableName("shop", SUFFIX), Mode.LIVE))
    parts = {"from_table": SUFFIX, "to_table": "cost_history"}
    assert is_rule(caller.migrate(SUFFIX, "copy_table", **parts).task.message)
    assert modes_of(caller) == {SUFFIX: Mode.SOFT_DELETE}
    assert caller.migrate(SUFFIX, "SOFT_DELETE_TO_HISTORY").success
    assert is_rule(caller.migrate(SUFFIX, "HISTORY_TO_SOFT_DELETE").task.message)
    with structlog.testing.capture_logs() as logged:
        write(caller, SUFFIX, Mode.HISTORY, key=2)
    assert not warnings_in(logged)
    assert modes_of(caller) == {SUFFIX: Mode.HISTORY}
    assert caller.rows(SUFFIX, "id") == [(1,), (2,)]


def warnings_in(logged: Sequence[Any]) -> list[Any]:
    return [line for line in logged if line["event"] == "not_in_history_mode"]


@pytest.mark.long
def test_the_setting_in_the_answer_takes_effect_when_serve_starts_again(tmp_path: Path) -> None:
    lake, live = tmp_path / "lake", COLUMNS[Mode.LIVE]
    configure(lake)
    with serve(lake, tmp_path) as served:
        answer = served.caller.create(SUFFIX, live)
        assert answer.WhichOneof("response") == "task"
        assert served.caller.describe(SUFFIX).not_found
        (logged,) = served.events("task")
        assert logged["error"] == "SchemaError"
    opt_out(lake / "chronolake.yml", answer.task.message)
    with serve(lake, tmp_path) as served:
        assert served.caller.create(SUFFIX, live).success
        write(served.caller, SUFFIX, Mode.LIVE)
        assert served.caller.rows(SUFFIX, "id") == [(1,)]
        assert is_rule(served.caller.create("cost_history", live).task.message)
        assert not served.events("not_in_history_mode")


def opt_out(file: Path, text: str) -> None:
    """Write the setting that a text contains to a chronolake.yml."""
    found = re.search(r"`lake\.tables: (\{.*\})` in chronolake\.yml", " ".join(text.split()))
    assert found is not None, text
    content = yaml.safe_load(file.read_text())
    content["lake"]["tables"] = yaml.safe_load(found[1])
    file.write_text(yaml.safe_dump(content))


# ------------------------------------------------------------------ the command


def test_the_command_refuses_to_switch_such_a_table(
    lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, name = lake.config.path, TableName("of the command", SUFFIX)
    with serving(lake, tmp_path, name.schema) as caller:
        assert caller.create(name.table, COLUMNS[Mode.HISTORY]).success
        files = stored(caller)
        for more in (["--yes"], ["--dry-run"], ["--yes", "--keep-history-as", "shop.kept"]):
            words = ("mode", str(name), "soft-delete", *more)
            code, reported, problem = run_command(folder, capsys, *words)
            assert (code, reported) == (1, "")
            text = " ".join(problem.split())
            assert "not in soft-delete mode: its name ends in _history" in text
            assert f"Where: table {name} What to do: Use history mode." in text
            assert stored(caller) == files
        words = ("mode", str(name), "live", "--dry-run", "--json")
        code, _, problem = run_command(folder, capsys, *words)
        failure = json.loads(problem)
        assert (code, failure["error"], failure["table"]) == (1, "SchemaError", str(name))
        code, _, problem = run_command(folder, capsys, "mode", str(name), "history")
        assert code == 0, problem

        project = tmp_path / "chronolake.yml"
        project.write_text(yaml.safe_dump({"lake": {"path": str(folder)}}))
        opt_out(project, failure["hint"])
        words = ("mode", str(name), "soft-delete", "--yes", "--project", str(tmp_path))
        code, _, problem = run_words(capsys, *words)
        assert code == 0, problem
        assert modes_of(caller) == {SUFFIX: Mode.SOFT_DELETE}
