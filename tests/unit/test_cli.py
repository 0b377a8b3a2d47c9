"""The command line: exit codes, and messages when something is wrong."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer

from chronolake.cli import app, main
from chronolake.cli.app import PANELS
from chronolake.errors import LakeError


def run(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the installed program in a process of its own, as a user starts it."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("chronolake")), *words],
        env={**os.environ, "COLUMNS": "100", **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def ended(*words: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    return int(stopped.value.code or 0)


COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_the_commands_are_these() -> None:
    expected = """
        adopt backfill check diff discover drive engine history import-history init maintain mode
        publish query read rebuild resync runs schema serve state status sync tables
        test-destination ui up usage verify version view
    """
    assert expected.split() == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(command, "--help") == 0

    shown = capsys.readouterr().out
    assert f"chronolake {command}" in shown.partition("Example")[2] + shown.partition("$")[2]


@pytest.mark.parametrize("words", [("mode",), ("test-destination",), ("state", "show")])
def test_help_is_wrapped_at_the_width_of_the_terminal(words: tuple[str, ...]) -> None:
    """A docstring's own line ends within a paragraph would leave half a line empty."""
    printed = run(*words, "--help", env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).stdout
    text = printed.partition("Usage")[2].partition("╭")[0]

    lines = [line.strip() for line in text.splitlines()]
    for line, following in itertools.pairwise(lines):
        assert not following or len(line) > 60 or not line, f"{line} | {following}"


@pytest.mark.parametrize(
    "words",
    [
        ("nonsense",),
        ("tables",),
        ("history", "a.b", "--lake", "x"),
        ("history", "a.b", "--key", "id", "--lake", "x"),
        ("history", "a.b", "--key", "id=1", "--key", "id=2", "--lake", "x"),
        ("history", "a.b", "--key", "id=1", "--null", "id", "--lake", "x"),
        ("history", "a.b", "--null", "id", "--null", "id", "--lake", "x"),
        ("history", "no-dot", "--key", "id=1", "--lake", "x"),
        ("verify", "--lake", "x"),
        ("verify", "a.b", "--all", "--lake", "x"),
        ("query", "--lake", "x"),
        ("tables", "--lake", "x", "--set", "spark.master"),
    ],
)
def test_wrong_usage_ends_with_two(words: tuple[str, ...]) -> None:
    assert ended(*words) == 2


@pytest.mark.parametrize("given", [("--key", "a=1"), ("--null", "a")])
@pytest.mark.parametrize("again", [("--key", "a=2"), ("--null", "a")])
def test_a_column_given_twice_is_named(
    given: tuple[str, str], again: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended("history", "a.b", "--key", "b=1", *given, *again, "--lake", "x") == 2

    assert "duplicate key a" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("nonsense",), "No such command 'nonsense'.", "`chronolake --help`"),
        (("--lake", "x"), "No such option", "`chronolake --help`"),
        (("tables", "--lak", "x"), "--lake)", "`chronolake tables --help`"),
        (("tables",), "there is no chronolake.yml in", "`chronolake tables --help`"),
        (("tables", "more", "--lake", "x"), "unexpected extra argument", "tables --help`"),
        (("mode", "a.b", "dead", "--lake", "x"), "'dead'", "`chronolake mode --help`"),
        (("query", "--lake", "x"), "Missing argument 'SQL'", "`chronolake query --help`"),
        (("query", "SELECT 1", "--limit", "x", "--lake", "x"), "--limit", "query --help`"),
        (("history", "a.b", "--key", "id", "--lake", "x"), "write KEY=VALUE", "history --help`"),
        (("state", "mvoe"), "No such command 'mvoe'", "`chronolake state --help`"),
    ],
)
@pytest.mark.parametrize("as_json", [True, False])
def test_wrong_usage_is_reported_like_other_errors(
    words: tuple[str, ...],
    message: str,
    hint: str,
    as_json: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CHRONOLAKE_LAKE", raising=False)
    monkeypatch.setenv("COLUMNS", "200")

    assert ended(*words, *(["--json"] if as_json else [])) == 2

    printed = capsys.readouterr()
    assert printed.out == ""
    if not as_json:
        assert printed.err.startswith("Error: ")
        assert message in printed.err
        assert hint in printed.err.partition("What to do: ")[2]
        return
    failure = json.loads(printed.err)
    assert failure.keys() == {"error", "message", "hint", "retryable"}
    assert failure["error"] == "ConfigurationError"
    assert message in failure["message"]
    assert hint in failure["hint"]


def test_a_misspelled_variable_is_named_where_its_option_is_missing(tmp_path: Path) -> None:
    alone = {name: text for name, text in os.environ.items() if name != "CHRONOLAKE_LAKE"}
    done = subprocess.run(
        [str(Path(sys.executable).with_name("chronolake")), "tables", "--json"],
        # Another variable has more first letters in common, and is read.
        env={**alone, "CHRONOLAKE_LAEK": str(tmp_path), "CHRONOLAKE_JARS": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 2
    assert "CHRONOLAKE_LAEK is unknown. Did you mean CHRONOLAKE_LAKE?" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("serve --lake x --port 70000", "--port is 70000"),
        ("serve --lake x --host 0.0.0.0", "--allow-plaintext"),
        ("serve --lake x --tls-cert x.pem", "Set both --tls-cert"),
        ("drive x.json --target localhost", "Use HOST:PORT"),
        ("test-destination x.json --target localhost", "Use HOST:PORT"),
    ],
)
def test_options_that_contradict_themselves_are_wrong_usage(words: str, message: str) -> None:
    done = run(*words.split())

    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_a_missing_lake_is_an_error_with_location_and_hint(tmp_path: Path) -> None:
    done = run("tables", "--lake", str(tmp_path / "lake"))

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("Error: There is no lake in")
    assert "What to do: `chronolake sync`" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("command", ["verify", "maintain", "query"])
def test_asking_for_a_missing_lake_makes_none(command: str, tmp_path: Path) -> None:
    done = run(command, "a.b", "--lake", str(tmp_path / "lake"))

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: There is no lake in")
    assert not (tmp_path / "lake").exists()


def test_an_error_is_json_if_json_is_requested(tmp_path: Path) -> None:
    done = run("history", "a.b", "--key", "id=1", "--lake", str(tmp_path), "--json")

    assert done.returncode == 1
    reported = json.loads(done.stderr)
    assert reported["error"] == "LakeError"
    assert reported["message"]
    assert reported["hint"]
    assert reported["retryable"] is False


def test_debug_shows_the_traceback_at_any_position(tmp_path: Path) -> None:
    done = run("tables", "--lake", str(tmp_path), "--debug")

    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "LakeError" in done.stderr


def test_a_wrong_setting_is_named(tmp_path: Path) -> None:
    done = run("tables", "--lake", str(tmp_path), "--set", "spark.mastr=x")

    assert done.returncode == 1
    assert "Did you mean 'spark.master'?" in done.stderr


def test_the_lake_may_come_from_the_environment(tmp_path: Path) -> None:
    done = run("tables", env={"CHRONOLAKE_LAKE": str(tmp_path / "here")})

    assert "here" in done.stderr
    assert done.returncode == 1


def test_the_help_groups_every_command() -> None:
    named = [name for names in PANELS.values() for name in names]
    assert sorted([*named, "drive"]) == COMMANDS, "drive is a former name"


def test_the_readme_lists_every_command() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    rows = [line for line in readme.splitlines() if line.startswith("| `")]
    listed = [name.strip("` ") for row in rows for name in row.split("|")[1].split(",")]
    assert sorted(listed) == COMMANDS


def test_the_version_is_an_option_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("--version") == 0

    assert capsys.readouterr().out == f"chronolake {version('chronolake')}\n"


def test_shells_can_complete_commands() -> None:
    done = run(
        env={
            "_CHRONOLAKE_COMPLETE": "complete_bash",
            "COMP_WORDS": "chronolake ta",
            "COMP_CWORD": "1",
        }
    )
    assert done.stdout.split() == ["tables"]


def test_version_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("version", "--json") == 0

    versions = json.loads(capsys.readouterr().out)
    assert {"chronolake", "pyspark", "pyiceberg", "pyarrow", "python"} == set(versions)


def test_a_name_that_looks_like_markup_is_printed_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert ended("init", "[red]a:bug:") == 0

    assert "Created [red]a:bug:/chronolake.yml" in capsys.readouterr().out


def test_looking_imports_no_spark() -> None:
    program = (
        "import sys, chronolake.cli, chronolake.inspect.render, chronolake.inspect;"
        "sys.exit(any(name.partition('.')[0] in {'pyspark', 'py4j'} for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_sync_without_changes_imports_no_pandas() -> None:
    program = (
        "import sys, chronolake.cli.app, chronolake.pipeline.sync, chronolake.source.postgres;"
        "sys.exit('pandas' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    "failure", [LakeError("The rest failed.", hint="Nothing."), BrokenPipeError(), KeyError("x")]
)
def test_an_error_after_ctrl_c_is_not_reported(
    failure: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    @app.command("interrupted", hidden=True)
    def interrupted() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise failure

    try:
        code = ended("interrupted")
    finally:
        app.registered_commands.pop()

    assert code == 130
    assert capsys.readouterr() == ("", "")
