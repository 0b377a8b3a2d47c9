"""Syncs of connectors and functions are killed at every step and run again: nothing is lost.

Every source reports two streams, and one day of changes in each run.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from chronolake.failpoints import FAILPOINTS
from support.connectors import Shop, stream, tap_stream
from support.processes import run_command_until_failpoint

_DAYS: Final = 2
#: The steps of a sync, with how often they are reached: each stream lands, and is applied.
_POINTS: Final = [
    (name, nth)
    for name in FAILPOINTS
    if name.startswith(("create.", "staged.", "publish.", "sync.", "land."))
    and name != "land.file-replaced"
    for nth in ((1, 2, 3) if name.startswith("land.") else (1, 2))
]
_DAY: Final = """
    for name in ("orders", "items"):
        record(name, id=1, note=f"day {day}", at=f"2026-11-0{day}T10:00:00Z")
        record(name, id=day + 1, note="new", at=f"2026-11-0{day}T11:00:00Z")
"""


def _airbyte(shop: Shop) -> None:
    offered = [stream(name, cursor="at", at="time") for name in ("orders", "items")]
    read = """
days = {name: (state_of(name) or {"day": 0})["day"] for name in ("orders", "items")}
for name, before in days.items():
    day = before + 1
    if day <= int(open("day").read()):
        record(name, id=1, note=f"day {day}", at=f"2026-11-0{day}T10:00:00Z")
        record(name, id=day + 1, note="new", at=f"2026-11-0{day}T11:00:00Z")
        stream_state(name, {"day": day})
"""
    shop.airbyte(offered, read)


def _airbyte_global(shop: Shop) -> None:
    offered = [stream(name, cursor="at", at="time") for name in ("orders", "items")]
    read = f"""
day = (state[0]["global"]["shared_state"]["day"] if state else 0) + 1
if day <= int(open("day").read()):
{textwrap.indent(textwrap.dedent(_DAY), "    ")}
    shared = {{"shared_state": {{"day": day}}, "stream_states": []}}
    emit(type="STATE", state={{"type": "GLOBAL", "global": shared}})
"""
    shop.airbyte(offered, read)


def _singer(shop: Shop) -> None:
    offered = [tap_stream(name, cursor="at") for name in ("orders", "items")]
    read = f"""
day = (state or {{"day": 0}})["day"] + 1
if day <= int(open("day").read()):
{textwrap.indent(textwrap.dedent(_DAY), "    ")}
    emit(type="STATE", value={{"day": day}})
"""
    shop.singer(offered, read)


def _python(shop: Shop) -> None:
    options = '{"key": "id", "cursor": "at"}'
    (shop.folder / "crash_functions.py").write_text(
        f"""
import chronolake

@chronolake.streams(orders={options}, items={options})
def both(state):
    day = state.get("day", 0) + 1
    if day <= int(open("{shop.folder}/day").read()):
        for name in ("orders", "items"):
            yield name, {{"id": 1, "note": f"day {{day}}", "at": f"2026-11-0{{day}}T10:00:00Z"}}
            yield name, {{"id": day + 1, "note": "new", "at": f"2026-11-0{{day}}T11:00:00Z"}}
        state["day"] = day
"""
    )
    shop.configure({"type": "python", "run": "crash_functions:both"})


def _fivetran(shop: Shop) -> None:
    tables = [{"table": name, "primary_key": ["id"]} for name in ("orders", "items")]
    update = """
day = state.get("day", 0) + 1
if day <= int(open("../day").read()):
    for name in ("orders", "items"):
        op.upsert(name, {"id": 1, "note": f"day {day}"})
        op.upsert(name, {"id": day + 1, "note": "new"})
    op.checkpoint({"day": day})
"""
    shop.fivetran(tables, update, **shop.fivetran_stand_in())


_SHORT: Final = ("airbyte", "land.checkpointed", 1)
_SOURCES: Final[dict[str, Callable[[Shop], None]]] = {
    "airbyte": _airbyte,
    "airbyte-global": _airbyte_global,
    "singer": _singer,
    "fivetran": _fivetran,
    "python": _python,
}


#: Their changes have no times of their own: after a crash, equal versions may follow each other.
_WITHOUT_TIMES: Final = {"fivetran"}


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    path = list(sys.path)
    yield Shop(tmp_path)
    sys.path[:] = path


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "point", "nth"),
    [
        pytest.param(
            *(source, point, nth),
            marks=[] if (source, point, nth) == _SHORT else [pytest.mark.long],
            id=f"{source}-{point}-{nth}",
        )
        for source in _SOURCES
        for point, nth in _POINTS
    ],
)
def test_a_sync_may_be_killed_at_every_step(shop: Shop, source: str, point: str, nth: int) -> None:
    _SOURCES[source](shop)
    words = ("sync", "shop", "--project", str(shop.folder))
    for day in range(1, _DAYS + 1):
        (shop.folder / "day").write_text(f"{day}")
        # Later steps are not reached by every source.
        while run_command_until_failpoint(*words, failpoint=f"{point}=kill:{nth}"):
            assert not run_command_until_failpoint(*words, failpoint="")
            break
    for table in ("orders", "items"):
        found = shop.versions("id", "note", table=table)
        if source in _WITHOUT_TIMES:
            found = [
                version
                for version, after in pairwise([*found, (None, None, None)])
                if version[:2] != after[:2]
            ]
        assert found == _expected()


def _expected() -> list[tuple[Any, ...]]:
    changed = [(1, f"day {day}", day == _DAYS) for day in range(1, _DAYS + 1)]
    return [*changed, *((day + 1, "new", True) for day in range(1, _DAYS + 1))]


def _pages(shop: Shop, note: str, *, cut: int = 0) -> None:
    """Write a connector whose complete read of three pages may end in the middle of one."""
    read = f"""
page = (state_of("orders") or {{"page": 0}})["page"]
while page < 3:
    page += 1
    record("orders", id=page, note={note!r})
    if page == {cut}:
        sys.exit(1)
    stream_state("orders", {{"page": page}})
"""
    shop.airbyte([{**stream("orders"), "is_resumable": True}], read)


@pytest.mark.long
@pytest.mark.parametrize(
    ("point", "nth"),
    [
        pytest.param(
            *(point, nth),
            marks=[] if (point, nth) == ("land.done", 1) else [pytest.mark.long],
            id=f"{point}-{nth}",
        )
        for point, nth in _POINTS
        if nth == 1
    ],
)
def test_a_complete_read_that_continues_may_be_killed_at_every_step(
    shop: Shop, point: str, nth: int
) -> None:
    _pages(shop, "a", cut=2)
    shop.fail("code 1")
    _pages(shop, "b")
    words = ("sync", "shop", "--project", str(shop.folder))
    if run_command_until_failpoint(*words, failpoint=f"{point}=kill:{nth}"):
        assert not run_command_until_failpoint(*words, failpoint="")
    notes = [note for note, active in shop.versions("note") if active]
    # After the kill, the read was continued again, or began at the start if it had landed.
    assert notes in (["a", "b", "b"], ["b", "b", "b"])
    _pages(shop, "c")
    shop.sync()
    assert [note for note, active in shop.versions("note") if active] == ["c", "c", "c"]
