"""Changes land first; no crash loses a change that the source has forgotten."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
import sqlalchemy as sql

from chronolake.errors import LeaseLostError
from chronolake.failpoints import FAILPOINTS
from chronolake.lake import Lake
from chronolake.pipeline.lease import hold_lease
from chronolake.pipeline.rebuild import differences
from chronolake.pipeline.store import LEASES, Status, Store
from chronolake.pipeline.streams import streams_of
from chronolake.pipeline.sync import Event, EventKind, RunResult, sync
from chronolake.source.protocol import raw_folder
from chronolake.types import ACTIVE, END, START
from support import pipeline_model
from support.datalakes import iceberg
from support.lake.changelog import STREAM, ChangeLog, shop
from support.pipeline_model import LandedRow
from support.processes import run_until_failpoint
from support.seeds import with_drawn_seeds

_T: Final = 1_767_225_600_000_000
_PROGRAM: Final = f"""
import sys
from pathlib import Path
sys.path[:0] = {[str(Path(__file__).parents[1])]!r}
from support.lake.changelog import synced
from chronolake.pipeline.store import Status
assert synced(Path(sys.argv[1])).status is Status.SUCCEEDED
"""


def _changes(seed: int, number: int, *, begin: int = 0) -> Iterator[LandedRow]:
    """Yield changes of a few records in order, as a log contains them."""
    chance = random.Random(seed)
    alive: set[str] = set()
    for place in range(begin, begin + number):
        key, at = f"k{chance.randrange(12)}", _T + place * 1_000_000
        fields: dict[str, Any] = {"Name": f"n{place}", "Size": chance.choice([None, place])}
        omitted = frozenset[str]()
        is_deletion = key in alive and chance.random() < 0.25
        if is_deletion:
            alive.discard(key)
            fields = {}
        else:
            if key in alive and chance.random() < 0.5:
                omitted = frozenset({"Name"})
                del fields["Name"]
            alive.add(key)
        yield LandedRow(
            key,
            at,
            f"{place + 1:x}",
            (1, place),
            deleted=at if is_deletion else None,
            provides_data=not is_deletion,
            omitted=omitted,
            fields=fields,
        )


class Shop:
    """The pipeline of a change log."""

    def __init__(self, folder: Path) -> None:
        self.project = shop(folder)
        self.log = ChangeLog(self.project)
        self.lake = Lake.open(self.project.lake.path, config=self.project.lake)
        self.events: list[Event] = []

    def sync(self) -> RunResult:
        return sync(self.lake, self.project, "shop", source=self.log, watch=self.events.append)

    def versions(self) -> list[tuple[Any, ...]]:
        found = iceberg(self.project, "shop", STREAM).scan().to_arrow()
        for column in (START, END):
            place = found.column_names.index(column)
            found = found.set_column(place, column, found[column].cast(pa.int64()))
        names = ("id", START, END, ACTIVE, "Name", "Size")
        return sorted((tuple(row[name] for name in names) for row in found.to_pylist()), key=repr)

    def agrees(self) -> bool:
        (stream,) = streams_of(self.project, "shop", self.log)
        with hold_lease(Store.open(self.project.lake), "shop", above=10**6) as lease:
            found = differences(self.lake, stream, lease)
        return found.missing == found.extra == 0


def _model(rows: list[LandedRow]) -> list[tuple[Any, ...]]:
    found = (
        (
            version.key,
            version.start,
            version.end,
            version.active,
            version.fields["Name"],
            version.fields["Size"],
        )
        for version in pipeline_model.versions(rows, 1)
    )
    return sorted(found, key=repr)


def test_changes_of_a_source_land_and_are_applied(tmp_path: Path) -> None:
    there = Shop(tmp_path)
    rows = list(_changes(1, 100))
    there.log.append(rows)

    result = there.sync()

    assert result.status is Status.SUCCEEDED, result.streams
    assert there.versions() == _model(rows)
    steps = [event for event in there.events if event.kind is EventKind.LANDED]
    assert len(steps) == 3
    assert all(event.files and event.bytes for event in steps)
    folder = raw_folder(there.project, "shop", STREAM)
    assert folder.path == tmp_path / "lake/raw/parquet/v2/org=shop/object=orders"
    assert len(folder.files()) == sum(event.files for event in steps)
    store = Store.open(there.project.lake)
    assert store.checkpoints("shop") == {STREAM: {"number": 100}}
    assert there.log.left() == [], "what is durable may be forgotten"

    there.events.clear()
    result = there.sync()
    assert result.streams[0].files == 0, "nothing new"
    more = list(_changes(2, 30, begin=100))
    there.log.append(more)
    result = there.sync()
    assert result.status is Status.SUCCEEDED
    assert store.checkpoints("shop") == {STREAM: {"number": 130}}
    assert there.agrees()


@pytest.mark.long
def test_a_source_that_fails_continues_at_its_checkpoint(tmp_path: Path) -> None:
    there = Shop(tmp_path)
    rows = list(_changes(3, 100))
    there.log.append(rows)

    def fail(piece: int) -> None:
        if piece == 1:
            raise OSError("the connection was lost")

    there.log.before = fail
    result = there.sync()

    assert result.status is Status.FAILED
    assert result.streams[0].error == "OSError: the connection was lost"
    assert there.log.left() == list(range(41, 101)), "the first piece is durable"
    assert there.versions() == _model(rows[:40]), "and is in the table, whatever the source does"
    there.log.before = lambda _: None
    assert there.sync().status is Status.SUCCEEDED
    assert there.versions() == _model(rows)
    assert there.agrees()


def test_who_lost_the_lease_lands_nothing(tmp_path: Path) -> None:
    there = Shop(tmp_path)
    there.log.append(list(_changes(4, 100)))
    store = Store.open(there.project.lake)

    def lose(piece: int) -> None:
        if piece == 1:
            with store.transaction() as connection:
                connection.execute(sql.update(LEASES).values(token=LEASES.c.token + 1))

    there.log.before = lose
    with pytest.raises(LeaseLostError, match="Another process has taken over the pipeline shop"):
        there.sync()

    folder = raw_folder(there.project, "shop", STREAM)
    first = [event.files for event in there.events if event.kind is EventKind.LANDED]
    assert len(folder.files()) == sum(first)
    assert store.checkpoints("shop") == {STREAM: {"number": 40}}
    assert there.log.left() == list(range(41, 101))


_POINTS: Final = [
    name for name in FAILPOINTS if not name.startswith(("create.", "rewrite.", "switch."))
]


@pytest.mark.long
@pytest.mark.parametrize("seed", with_drawn_seeds(1, test="pulling", number=4))
def test_whatever_fails_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    there = Shop(tmp_path)
    rows = list(_changes(seed, 360))
    failed = 0
    for begin in range(0, len(rows), 60):
        there.log.append(rows[begin : begin + 60])
        there.log.piece = chance.choice([7, 40, 100])
        with monkeypatch.context() as patched:
            patched.setenv("CHRONOLAKE_FAILPOINT", f"{chance.choice(_POINTS)}=raise")
            failed += there.sync().status is not Status.SUCCEEDED
    assert there.sync().status is Status.SUCCEEDED

    assert failed, "no failpoint was on the way"
    assert there.versions() == _model(rows)
    assert there.log.left() == []
    assert there.agrees()


@pytest.mark.long
@pytest.mark.parametrize(
    "failpoint",
    [
        "land.staged=kill",
        "land.file-published=kill:1",
        "land.file-published=kill:3",
        "land.done=kill:1",
        "land.done=kill:2",
        "land.checkpointed=kill:1",
        "land.checkpointed=kill:3",
        "sync.surveyed=kill",
        "staged.appended=kill",
        "publish.before-commit=kill",
        "publish.after-commit=kill",
    ],
)
def test_a_run_may_be_killed_at_every_step(tmp_path: Path, failpoint: str) -> None:
    rows = list(_changes(5, 100))
    log = ChangeLog(shop(tmp_path))
    log.append(rows)

    assert run_until_failpoint(_PROGRAM, str(tmp_path), failpoint=failpoint)
    assert not run_until_failpoint(_PROGRAM, str(tmp_path), failpoint="")

    there = Shop(tmp_path)
    assert there.versions() == _model(rows)
    assert log.left() == []
    assert there.agrees()
