"""Values of columns with rules appear in no file, log or error: files, copies, tables of versions.

The files of the source are outside the project's folder, which is searched.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import structlog
import yaml

from chronolake.errors import ConfigurationError
from chronolake.lake import Lake
from chronolake.pipeline.store import StreamRun
from chronolake.pipeline.sync import sync
from chronolake.types import ACTIVE
from support.datalakes import iceberg, project
from support.processes import ENGINE_VARIABLE, run_command, run_command_until_failpoint
from support.source.secrets import (
    COLUMNS,
    KEY,
    RULES,
    STORED_COLUMNS,
    Secrets,
    hashed,
    stored_row,
)

Row = dict[str, Any]
_HASHED_KEY: Final = f"columns: {{hash: [id, '*_*'], hash_key: '{KEY}'}}"
_TYPES: Final = "{id: LONG, " + ", ".join(f"{n}: LONG" for n in COLUMNS if "number" in n) + "}"
_SOURCES: Final = {
    "files": "type: files, path: '../given/people_*.{ending}', key: [id], stream: people",
    "copies": "type: copies, path: '../given/people_{{date:%Y-%m-%d}}.{ending}', key: [id]",
    "history": "type: history, path: '../given/people_*.{ending}', stream: people, key: [id], "
    "start: begin, end: finish",
}


class People:
    """The pipeline `shop` of files with secrets."""

    def __init__(
        self, folder: Path, kind: str, ending: str, rules: str = RULES, **settings: str | None
    ) -> None:
        self.given = folder / "given"
        self.given.mkdir()
        self.folder = folder / "project"
        self.folder.mkdir()
        self.kind = kind
        self.ending = ending
        self.secrets = Secrets()
        source = _SOURCES[kind].format(ending=ending)
        found = yaml.safe_load(f"{{{source}}}") | settings
        if ending != "parquet":
            found["types"] = yaml.safe_load(_TYPES)
        text = json.dumps({name: value for name, value in found.items() if value is not None})
        self.project = project(self.folder, f"  shop:\n    source: {text}\n    {rules}\n")

    def row(self, number: int) -> Row:
        return {"id": number, "name": f"n{number}", **self.secrets.row()}

    def put(self, day: int, rows: Sequence[Row]) -> Path:
        """Write the file of a day."""
        path = self.given / f"people_2026-01-{day:02}.{self.ending}"
        if self.kind == "history":
            times = {"begin": datetime(2026, 1, day, tzinfo=UTC), "finish": None}
            rows = [{**times, **row} for row in rows]
        path.write_bytes(_encoded(rows, self.ending))
        return path

    def sync(self, **how: Any) -> StreamRun:
        lake = Lake.open(self.project.lake.path, config=self.project.lake)
        (stream,) = sync(lake, self.project, "shop", **how).streams
        return stream

    def expect_stored(self, rows: Sequence[Row]) -> None:
        found = iceberg(self.project, "shop", "people").scan().to_arrow().to_pylist()
        columns = ["id", "name", *STORED_COLUMNS]
        assert not [name for name in found[0] if name.startswith("exclude_")]
        active = [tuple(row[name] for name in columns) for row in found if row[ACTIVE]]
        assert sorted(active) == sorted(map(stored_row, rows))
        self.expect_hidden()

    def expect_hidden(self) -> None:
        assert self.secrets.found_in(self.folder) == []


def _encoded(rows: Sequence[Mapping[str, Any]], ending: str) -> bytes:
    if ending == "parquet":
        content = io.BytesIO()
        table = pa.Table.from_pylist([dict(row) for row in rows])
        if "finish" in table.column_names:
            place = table.column_names.index("finish")
            times = table["finish"].cast(pa.timestamp("us", "UTC"))
            table = table.set_column(place, "finish", times)
        pq.write_table(table, content)
        return content.getvalue()
    if ending == "jsonl":
        return b"".join(json.dumps(row, default=str).encode() + b"\n" for row in rows)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    """Yield the events that are logged during the test."""
    with structlog.testing.capture_logs() as events:
        yield events


@pytest.mark.long
@pytest.mark.parametrize(
    "ending",
    [
        pytest.param("csv", marks=pytest.mark.long),
        "jsonl",
        pytest.param("parquet", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("kind", _SOURCES)
def test_values_are_in_no_file_or_log(
    tmp_path: Path, kind: str, ending: str, logged: list[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    people = People(tmp_path, kind, ending)
    first = [people.row(1), people.row(2)]
    people.put(1, first)
    assert people.sync().error is None
    people.expect_stored(first)
    second = [people.row(1), people.row(3)]
    if kind == "history":
        people.put(1, [{**row, "finish": datetime(2026, 1, 2, tzinfo=UTC)} for row in first])
    people.put(2, second)
    assert people.sync().error is None
    people.expect_stored([*second, *(first[1:] if kind == "files" else [])])
    assert people.sync(full_refresh=True).error is None
    people.expect_hidden()
    assert not people.secrets.are_in(repr(logged))
    assert not people.secrets.are_in("".join(capfd.readouterr()))


def _bad_files(people: People) -> Iterator[tuple[str, bytes]]:
    """Yield files that cannot be read as they should, each with secrets."""
    rows = [people.row(1), people.row(2)]
    good = _encoded(rows, people.ending)
    secret = people.secrets.text().encode()
    yield "cut-off", good[:-20]
    yield "noise", good + secret + b"\x00\xff" + secret
    yield "no key", _encoded([{**rows[0], "id": None}], people.ending)
    if people.ending == "csv":
        yield "more cells", good + b",".join([secret] * 30) + b"\n"
        yield "fewer cells", good + secret + b",1\n"
        yield "other type", good.replace(b"\r\n2,", b"\r\n" + secret + b",")
        yield "other type of a secret", _encoded([{**rows[0], COLUMNS[1]: secret}], "csv")
        yield "open quote", good + b'3,"' + secret
    elif people.ending == "jsonl":
        yield "other type", good.replace(b'"id": 2', b'"id": "' + secret + b'"')
        yield "nested", good.replace(b'"id": 2', b'"id": {"' + secret + b'": 1}')
        yield "no object", good + b'["' + secret + b'", ' + secret + b"]\n"
        yield "array", json.dumps(rows).encode() + b"\n"
        yield "text", b'"' + secret + b'"\n'
        yield "token", good + b'{"id": ' + secret + b"}\n"
        yield "other number", good + b'{"id": 3, "hash_number": "' + secret + b'"}\n'
    else:
        damaged = bytearray(good)
        for place in range(40, 200, 7):
            damaged[place] ^= 0xFF
        yield "damaged", bytes(damaged)


@pytest.mark.long
@pytest.mark.parametrize(
    "ending",
    [
        pytest.param("csv", marks=pytest.mark.long),
        "jsonl",
        pytest.param("parquet", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("kind", _SOURCES)
def test_bad_files_are_not_quoted(
    tmp_path: Path, kind: str, ending: str, logged: list[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    people = People(tmp_path, kind, ending)
    for name, content in _bad_files(people):
        path = people.put(1, [people.row(1)])
        path.write_bytes(content)
        run = people.sync()
        reason = f"{run.error} {run.hint}"
        assert not people.secrets.are_in(reason), f"{name}: {reason}"
        assert not people.secrets.are_in(repr(logged)), name
        assert not people.secrets.are_in("".join(capfd.readouterr())), name
    people.expect_hidden()


@pytest.mark.long
@pytest.mark.parametrize("engine", ["on", pytest.param("off", marks=pytest.mark.long)])
def test_processes_do_not_print_bad_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """Spark logs why a task has failed, which must not be printed, or be in a log file."""
    monkeypatch.setenv(ENGINE_VARIABLE, engine)
    people = People(tmp_path, "files", "jsonl")
    for name, content in _bad_files(people):
        people.put(1, [people.row(1)]).write_bytes(content)
        code, output = run_command("sync", "shop", "--project", str(people.folder))
        assert code in {0, 1}, output
        assert not people.secrets.are_in(output), f"{name}: {output}"
    people.expect_hidden()


@pytest.mark.long
@pytest.mark.parametrize("kind", _SOURCES)
def test_hashed_keys(tmp_path: Path, kind: str, logged: list[Any]) -> None:
    people = People(tmp_path, kind, "parquet", _HASHED_KEY)
    keys = [people.secrets.number() for _ in range(3)]
    first = [people.row(key) | {"name": "a"} for key in keys[:2]]
    people.put(1, first)
    assert people.sync().error is None
    if kind == "history":
        people.put(1, [{**row, "finish": datetime(2026, 1, 2, tzinfo=UTC)} for row in first])
    people.put(2, [people.row(key) | {"name": "b"} for key in keys[1:]])
    assert people.sync().error is None
    found = iceberg(people.project, "shop", "people").scan().to_arrow().to_pylist()
    active = {row["id"] for row in found if row[ACTIVE]}
    expected = keys if kind == "files" else keys[1:]
    assert active == {hashed(str(key)) for key in expected}
    # Twice the same key, and in a table of versions two overlapping versions.
    people.put(3, [people.row(keys[0]) | {"name": "c"}] * 2)
    run = people.sync()
    assert (run.error is None) is (kind == "files")
    assert not people.secrets.are_in(f"{run.error} {run.hint} {logged!r}")
    people.expect_hidden()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["files", pytest.param("copies", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "failpoint", ["land.staged=kill", pytest.param("staged.appended=kill", marks=pytest.mark.long)]
)
def test_a_killed_run_leaves_no_values(tmp_path: Path, kind: str, failpoint: str) -> None:
    people = People(tmp_path, kind, "jsonl")
    rows = [people.row(number) for number in range(50)]
    people.put(1, rows)
    words = ("sync", "shop", "--project", str(people.folder))
    assert run_command_until_failpoint(*words, failpoint=failpoint)
    people.expect_hidden()
    code, output = run_command(*words)
    assert code == 0, output
    assert not people.secrets.are_in(output)
    people.expect_stored(rows)


def test_events(tmp_path: Path, logged: list[Any]) -> None:
    people = People(tmp_path, "files", "jsonl", key=None)
    rows = [people.row(1), people.row(2)]
    people.put(1, rows)
    assert people.sync().error is None
    people.expect_stored(rows)
    assert not people.secrets.are_in(repr(logged))


@pytest.mark.parametrize("rule", ["exclude", "mask"])
def test_the_column_of_times_has_no_rule(tmp_path: Path, rule: str) -> None:
    rules = f"columns: {{{rule}: [name]}}"
    people = People(tmp_path, "files", "jsonl", rules, modified="name")
    people.put(1, [people.row(1)])
    with pytest.raises(ConfigurationError, match="the column name cannot be in columns"):
        people.sync()
