"""Sources of ours follow the source protocol, and each check finds the sources that do not."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, cast

import change_log_source
import pyarrow as pa
import pytest
from change_log_source import ChangeLogSource, create

from chronolake.arrow_tasks import ArrowRows
from chronolake.lake import Lake
from chronolake.landing import ObjectFolder
from chronolake.pipeline.streams import source_of
from chronolake.source import conformance
from chronolake.source.conformance import CHECKS, Check, ConformanceError, Subject, name_of
from chronolake.source.protocol import (
    DELETED_AT,
    MODIFIED,
    SEQUENCE,
    CaptureMethod,
    ChangeBatch,
    ChangeSource,
    Offset,
    Snapshot,
    SourceError,
    StreamCapabilities,
    StreamDescriptor,
    StreamFailure,
)
from chronolake.source.records import reader
from chronolake.types import Column, ColumnType, Kind
from support.connectors import Shop, failing, stream, tap_stream
from support.datalakes import project
from support.python_functions import Functions

_COLUMNS = (
    Column("id", ColumnType(Kind.LONG), primary_key=True),
    Column("note", ColumnType(Kind.STRING)),
)


def _rows(rows: list[dict[str, Any]]) -> ArrowRows:
    table = pa.Table.from_pylist(rows)
    return ArrowRows(lambda: cast("Any", None), lambda batches: batches, "", table)


class Log:
    """A log of changes: a record's key, its note or None if it was deleted."""

    def __init__(self) -> None:
        self.changes: list[tuple[int, str | None]] = [(1, "a"), (2, "b"), (1, "c"), (3, "d")]
        self.discarded = 0
        self.fails = False
        self.reads = count()

    def change(self) -> None:
        self.changes += [(2, None), (4, "e"), (1, "f")]

    @contextmanager
    def broken(self) -> Iterator[None]:
        self.fails = True
        yield
        self.fails = False


class LogSource:
    """A source of a log that follows the protocol, unless it has a flaw."""

    def __init__(self, log: Log, flaw: str = "") -> None:
        self.log = log
        self.flaw = flaw

    def discover(self) -> list[StreamDescriptor]:
        found = StreamDescriptor(
            StreamCapabilities("orders", reports_changes=True),
            CaptureMethod.EVERY_CHANGE,
            epsilon_micros=1,
            folder=ObjectFolder(Path("raw"), "shop", "orders"),
            is_ours=True,
            key=("note",) if self.flaw == "other key" else ("id",),
        )
        if self.flaw == "wrong method":
            found = replace(found, capture_method=CaptureMethod.SNAPSHOT_DIFF)
        return [found, found] if self.flaw == "same name" else [found]

    def read(
        self,
        lake: Lake,
        positions: Mapping[str, Offset | None],
        *,
        full_refresh: bool,
    ) -> Iterator[ChangeBatch | Snapshot | StreamFailure]:
        stored = positions["orders"]
        begun = 0 if stored is None else stored["next"]
        log, reads = self.log, next(self.log.reads)
        if full_refresh and self.flaw != "no full refresh":
            records = dict(log.changes)
            if self.flaw == "incomplete snapshot" and log.fails:
                records.popitem()
            if log.fails and self.flaw != "incomplete snapshot":
                yield from self._fail()
                return
            rows = [{"id": key, "note": note} for key, note in records.items() if note is not None]
            if self.flaw == "deletes in a full refresh":
                rows.pop()
            end = len(log.changes)
            at = 10 if self.flaw == "early snapshot" else 1_000 + end + reads
            columns, sequence = self._columns(reads), f"{end:016x}"
            yield Snapshot("orders", _rows(rows), columns, at, sequence, {"next": end, "at": at})
            if log.fails:
                yield from self._fail()
            return
        for first in range(begun, len(log.changes), 2):
            if log.fails and first > begun:
                yield from self._fail()
                return
            numbers = range(max(first, log.discarded), min(first + 2, len(log.changes)))
            if self.flaw == "discards when reading":
                log.discarded = max(log.discarded, first + 2)
            yield self._batch(numbers, first, reads)
        if log.fails:
            yield from self._fail()

    def _fail(self) -> Iterator[StreamFailure]:
        if self.flaw == "raises":
            raise OSError("no answer")
        if self.flaw != "silent failure":
            hint = None if self.flaw == "no hint" else "Run it again."
            yield StreamFailure("orders", SourceError("There is no answer.", hint=hint))

    def _batch(self, numbers: range, first: int, reads: int) -> ChangeBatch:
        rows = []
        for number in numbers:
            key, note = self.log.changes[number]
            at = 100 + number
            if self.flaw == "time of the read":
                at += reads * 1_000
            elif self.flaw == "times decrease":
                at = 500 - number
            row: dict[str, Any] = {
                "id": None if self.flaw == "no key" and number == 3 else key,
                "note": f"{note} {reads}" if self.flaw == "other values" else note,
                MODIFIED: at,
                SEQUENCE: f"{number:016x}",
                DELETED_AT: None if note is not None else at,
            }
            if self.flaw == "undeclared":
                row["extra"] = 1
            rows.append(row)
        if self.flaw == "repeats a record":
            rows += [dict(rows[-1])]
        end = len(self.log.changes)
        position = {"next": min(first + 2, end), "at": 0} | {
            "offset ahead": {"next": end},
            "offset behind": {"next": first},
            "not JSON": {"at": object()},
            "tuple": {"at": (1, 2)},
        }.get(self.flaw, {})
        return ChangeBatch(
            "items" if self.flaw == "other stream" else "orders",
            _rows(rows) if rows else None,
            self._columns(reads, first),
            position,
            is_distinct=self.flaw == "repeats a record",
        )

    def _columns(self, reads: int, first: int = 0) -> tuple[Column, ...]:
        if self.flaw == "narrower" and first:
            return (_COLUMNS[0], Column("note", ColumnType(Kind.JSON)))
        if self.flaw == "no key columns":
            return (Column("id", ColumnType(Kind.LONG)), _COLUMNS[1])
        if self.flaw == "unstable columns":
            return (*_COLUMNS, Column(f"new_{id(self.log)}", ColumnType(Kind.LONG)))
        return _COLUMNS

    def acknowledge(self, positions: Mapping[str, Offset]) -> None:
        if "orders" in positions and self.flaw not in {"discards when reading", "offset ahead"}:
            self.log.discarded = max(self.log.discarded, positions["orders"]["next"])
        if self.flaw == "discards everything":
            self.log.discarded = len(self.log.changes)
        if self.flaw == "forgets changes" and positions:
            self.log.change = lambda: None  # type: ignore[method-assign]


def _toy(flaw: str = "") -> Subject:
    log = Log()
    lake = cast("Lake", None)

    def change() -> None:
        if flaw == "forgets changes":
            log.changes += [(1, "c")]
        else:
            log.change()

    return Subject(
        lambda: cast("ChangeSource", LogSource(log, flaw)),
        lake,
        change,
        log.broken,
        lambda: {"orders": sum(note is not None for note in dict(log.changes).values())},
    )


def test_a_source_that_follows_the_protocol_passes_all_checks() -> None:
    conformance.check_source(_toy)


@pytest.mark.parametrize(
    ("flaw", "check", "message"),
    [
        ("other key", "capabilities", "has the key note, but its batches id"),
        ("same name", "capabilities", "describes orders twice"),
        ("wrong method", "capabilities", "captured by snapshots, but returned changes"),
        ("other stream", "capabilities", "is not described"),
        ("no key", "keys", "a row without id"),
        ("no key columns", "keys", "rows without key columns"),
        ("repeats a record", "keys", "in a batch that is_distinct"),
        ("not JSON", "offsets", "not JSON"),
        ("tuple", "offsets", "not the same after it was stored"),
        ("offset behind", "offsets", "have landed before"),
        ("times decrease", "times", "with an earlier time"),
        ("unstable columns", "schema", "have different columns"),
        ("narrower", "schema", "which is narrower"),
        ("undeclared", "schema", "undeclared columns extra"),
        ("offset ahead", "restart", "died after 1 batches lost records"),
        ("discards everything", "completeness", "has 3 records in its system, but 0 were read"),
        ("other values", "restart", "led to other values"),
        ("offset ahead", "restart_after_changes", "batches of changes led to other values"),
        ("time of the read", "repeated_rows", "differently or not at all"),
        ("discards when reading", "repeated_rows", "differently or not at all"),
        ("forgets changes", "acknowledge", "was not read"),
        ("deletes in a full refresh", "full_refresh", "which were up to date"),
        ("no full refresh", "full_refresh", "did not return"),
        ("silent failure", "incomplete_read", "did not report it"),
        ("no hint", "incomplete_read", "without a hint"),
        ("incomplete snapshot", "incomplete_read", "deleted records of orders"),
    ],
)
def test_each_check_finds_the_source_that_breaks_its_rule(
    flaw: str, check: str, message: str
) -> None:
    (chosen,) = (found for found in CHECKS if name_of(found) == check)
    chosen(_toy)
    with pytest.raises(ConformanceError, match=message) as caught:
        chosen(lambda: _toy(flaw))
    assert caught.value.hint


def test_a_change_without_a_time_may_be_read_with_another_one() -> None:
    conformance.check_repeated_rows(lambda: replace(_toy("time of the read"), has_times=False))


def test_each_check_is_broken_by_some_source() -> None:
    (mark,) = (
        found
        for found in test_each_check_finds_the_source_that_breaks_its_rule.pytestmark  # type: ignore[attr-defined]
        if found.name == "parametrize"
    )
    assert {check for _, check, _ in mark.args[1]} == set(map(name_of, CHECKS))


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each group of records be a batch, so that there are points for crashes."""
    monkeypatch.setattr(reader, "_BATCH_SECONDS", 0.0)
    monkeypatch.setattr(change_log_source, "BATCH_ROWS", 2)


@pytest.mark.sampled
@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_the_example_of_the_documentation(check: Check, tmp_path: Path) -> None:
    numbers = count()
    settings = project(tmp_path, "  crm:\n    source: {type: data_lake_v2, path: a, org: b}\n")
    lake = Lake.open(settings.lake.path, config=settings.lake)

    def new_subject() -> Subject:
        database = tmp_path / f"{next(numbers)}.db"
        create(database)

        def change() -> None:
            with closing(sqlite3.connect(database)) as connection, connection:
                for statement in (
                    "UPDATE customers SET city = 'Paris' WHERE id = 1",
                    "DELETE FROM customers WHERE id = 2",
                    "UPDATE customers SET city = 'Rome' WHERE id = 1",
                    "INSERT INTO customers VALUES (4, 'Barbara', 'Boston')",
                ):
                    connection.execute(statement)

        def number() -> dict[str, int]:
            with closing(sqlite3.connect(database)) as connection:
                (found,) = connection.execute("SELECT count(*) FROM customers").fetchone()
            return {"customers": found}

        return Subject(
            lambda: ChangeLogSource(settings, "crm", database), lake, change, count=number
        )

    check(new_subject)


def _functions(code: str, folder: Path) -> Subject:
    shop = Functions(folder)
    shop.write(code)
    given = folder / "given"
    given.write_text("1")

    return Subject(
        lambda: cast("ChangeSource", source_of(shop.project, "shop")),
        shop.lake,
        lambda: given.write_text("2"),
        lambda: failing(given),
        lambda: {"orders": 2 if given.read_text() == "2" else 3},
    )


_GIVEN = """
    from pathlib import Path

    GIVEN = Path(__file__).with_name("given")

    def rows():
        run = GIVEN.read_text()
        yield {"id": 1, "note": "a", "at": "2026-11-01T10:00:00Z", "gone": False}
        yield {"id": 2, "note": "b", "at": "2026-11-02T10:00:00Z", "gone": False}
        if run == "fail":
            raise OSError("no answer")
        yield {"id": 3, "note": "c", "at": "2026-11-03T10:00:00Z", "gone": False}
        if run == "2":
            yield {"id": 1, "note": "d", "at": "2026-11-04T10:00:00Z", "gone": False}
            yield {"id": 2, "note": None, "at": "2026-11-05T10:00:00Z", "gone": True}
"""
_POLLED = """
    @chronolake.stream(key="id", cursor="at", deletes="gone")
    def orders(state):
        for row in rows():
            if row["at"] > state.get("at", ""):
                yield row
                state["at"] = row["at"]
                yield chronolake.CHECKPOINT
"""
_SNAPSHOT = """
    @chronolake.stream(key="id")
    def orders():
        found = {}
        for row in rows():
            found[row["id"]] = row
            yield []
        yield from (row for row in found.values() if not row["gone"])
"""


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
@pytest.mark.parametrize("code", [_POLLED, _SNAPSHOT], ids=["polling", "snapshot"])
def test_functions(check: Check, code: str, tmp_path: Path) -> None:
    numbers = count()
    check(lambda: _functions(_GIVEN + code, tmp_path / f"{next(numbers)}"))


_ROWS = """
    rows = [(1, "a", 1), (2, "b", 2), (3, "c", 3)]
    run = open(os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "given")).read()
    if run == "2":
        rows += [(1, "d", 4), (4, "e", 5)]
    last = 0
    if {state}:
        last = {state}["day"]
    for key, note, day in rows:
        if day > last:
            record("orders", id=key, note=note, at=f"2026-11-0{{day}}T10:00:00Z")
            {emit}
        if run == "fail" and day == 2:
            sys.exit(1)
"""


def _connector(folder: Path, kind: str) -> Subject:
    shop = Shop(folder)
    given = folder / "given"
    given.write_text("1")
    if kind == "singer":
        emit = "emit(type='STATE', value={'day': day})"
        head = "emit(type='SCHEMA', stream='orders', schema=STREAMS[0]['schema'],\n"
        head = f"    {head}         key_properties=['id'])\n"
        shop.singer(
            [tap_stream("orders", cursor="at")], head + _ROWS.format(state="state", emit=emit)
        )
    else:
        cursor = "at" if kind == "airbyte" else None
        offered = [stream("orders", cursor=cursor, at="time")]
        if kind == "resumable":
            offered[0]["is_resumable"] = True
        emit = "stream_state('orders', {'day': day})"
        shop.airbyte(offered, _ROWS.format(state="state_of('orders')", emit=emit))

    return Subject(
        lambda: cast("ChangeSource", source_of(shop.project, "shop")),
        shop.lake,
        lambda: given.write_text("2"),
        lambda: failing(given),
        lambda: {"orders": 4 if given.read_text() == "2" else 3},
    )


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
@pytest.mark.parametrize("kind", ["airbyte", "resumable", "singer"])
def test_connectors(check: Check, kind: str, tmp_path: Path) -> None:
    numbers = count()
    check(lambda: _connector(tmp_path / f"{next(numbers)}", kind))
