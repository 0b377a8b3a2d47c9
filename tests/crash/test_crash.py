"""A server killed at any step of a write leaves the table unchanged, or as it must become."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from chronolake.failpoints import FAILPOINTS
from support.crash.server_process import Served, configure, serve
from support.oracle import Row
from support.server.caller import Caller, catalog
from support.server.sent_rows import Batch, SentTable, differences
from support.server.small_batches import (
    FIRST_HISTORY,
    FIRST_LIVE,
    HISTORY,
    HOUR,
    LIVE,
    T,
    history_batch,
    live_batch,
)

_STAGED: Final = ("staged.deleted",)
_PUBLISHED: Final = ("publish.before-commit", "publish.after-commit")
_REWRITTEN: Final = tuple(name for name in FAILPOINTS if name.startswith("rewrite."))
_DONE: Final = {"publish.after-commit", "rewrite.after-commit"}


@dataclass(frozen=True)
class Operation:
    """A write that is interrupted and sent again.

    Attributes:
        points: the failpoints on its way.
        repeats: whether it writes again when it is already done.
    """

    columns: Sequence[str]
    first: Batch
    points: tuple[str, ...]
    repeats: bool
    send: Callable[[SentTable, Any], None]
    request: Callable[[SentTable], Any]
    apply: Callable[[Any], None]
    after: Callable[[Row], Row] = dict


def _truncate(sent: SentTable, soft: str | None) -> None:
    assert sent.caller.truncate(sent.name, (T + HOUR) / 1000, soft=soft).success


def _alter(sent: SentTable, columns: Sequence[str]) -> None:
    assert sent.caller.alter(sent.name, columns).success


def _batch(columns: Sequence[str], first: Batch, sent_then: Batch) -> Operation:
    # A table without rows has no rows to delete.
    staged = _STAGED if any(first.rows.values()) else ()
    return Operation(
        columns,
        first,
        ("write.planned", *staged, "staged.appended", *_PUBLISHED),
        repeats=True,
        send=SentTable.send,
        request=lambda sent: sent.request(sent_then),
        apply=lambda model: model.write(**sent_then.rows),
    )


OPERATIONS: Final = {
    "first-write": _batch(LIVE, Batch(), FIRST_LIVE),
    "first-history": _batch(HISTORY, Batch(), FIRST_HISTORY),
    "write": _batch(LIVE, FIRST_LIVE, live_batch()),
    "history": _batch(HISTORY, FIRST_HISTORY, history_batch()),
    "truncate": Operation(
        HISTORY,
        FIRST_HISTORY,
        (*_STAGED, *_PUBLISHED),
        repeats=False,
        send=_truncate,
        request=lambda sent: None,
        apply=lambda model: model.truncate("_fivetran_synced", T + HOUR),
    ),
    "soft-truncate": Operation(
        LIVE,
        FIRST_LIVE,
        (*_STAGED, *_PUBLISHED),
        repeats=False,
        send=_truncate,
        request=lambda sent: "_fivetran_deleted",
        apply=lambda model: model.truncate("_fivetran_synced", T + HOUR, soft="_fivetran_deleted"),
    ),
    "alter": Operation(
        LIVE,
        FIRST_LIVE,
        (*_PUBLISHED, *_REWRITTEN),
        repeats=False,
        send=_alter,
        request=lambda sent: [text.replace("n:LONG", "n:STRING") for text in LIVE],
        apply=lambda model: None,
        after=lambda row: row | {"n": str(row["n"])},
    ),
}

EVERY: Final = [
    (name, point) for name, operation in OPERATIONS.items() for point in operation.points
]
SOME: Final = [("history", "staged.appended")]


def test_every_failpoint_is_on_the_way_of_some_operation() -> None:
    # Failpoints of a sync are in test_sync_crash.py, those of landing in test_landing_crash.py;
    # those of reading slices are in tests/source/test_declarative.py, that of CreateTable in
    # tests/server/test_cancelled.py; those of adoption in tests/lake/test_adopt.py; those of copies
    # in test_mysql_crash.py, those of targets in test_target_crash.py, and those of switches while
    # a sync runs in tests/source/test_mode_switches.py.
    assert {point for _, point in EVERY} == {
        name
        for name in FAILPOINTS
        if not name.startswith(("sync.", "land.", "read.", "adopt.", "copy.", "target.", "switch."))
        and name != "create.committed"
    }


def _rounds(cases: Sequence[tuple[str, str]], tmp_path: Path) -> None:
    """Kill a server in every case.

    The server that is started after a kill receives the request again, and is the next one to be
    killed: it passes its failpoint as often as that request reaches it.
    """
    lake = tmp_path / "lake"
    configure(lake)
    with serve(lake, tmp_path) as first:
        for number, (name, _) in enumerate(cases):
            operation = OPERATIONS[name]
            sent = SentTable(first.caller, f"t{number}", operation.columns).create()
            sent.send(sent.request(operation.first))
    with ExitStack() as running:
        server = running.enter_context(serve(lake, tmp_path, failpoint=f"{cases[0][1]}=kill"))
        for number, (name, point) in enumerate(cases):
            operation = OPERATIONS[name]
            request = _killed(server, f"t{number}", operation, point)
            following = cases[number + 1][1] if number + 1 < len(cases) else None
            passes = following in operation.points and (operation.repeats or point not in _DONE)
            failpoint = f"{following}=kill:{1 + passes}" if following else None
            # An `up` outlives its destination, and a lake has only one.
            running.close()
            server = running.enter_context(serve(lake, tmp_path, failpoint=failpoint))
            _sent_again(server, f"t{number}", operation, request, wrote=passes or not following)


def _killed(server: Served, name: str, operation: Operation, point: str) -> Any:
    sent = SentTable(server.caller, name, operation.columns)
    request = operation.request(sent)
    before = sent.rows()
    with pytest.raises((grpc.RpcError, AssertionError), match=r"UNAVAILABLE|Socket closed"):
        operation.send(sent, request)
    assert server.killed(), point
    now, must = sent.rows(), _model(sent, operation, is_applied=point in _DONE)
    wrong = differences(now, must, sent.key)
    assert not wrong, f"killed at {point}: {wrong}"
    assert (now == before) == (point not in _DONE)
    return request


def _sent_again(
    server: Served, name: str, operation: Operation, request: Any, *, wrote: bool
) -> None:
    sent = SentTable(server.caller, name, operation.columns)
    operation.send(sent, request)
    assert not differences(sent.rows(), _model(sent, operation, is_applied=True), sent.key)
    assert _branches(sent) == {"main"}
    if wrote:
        assert not _scratch_tables(server.caller)


def _model(sent: SentTable, operation: Operation, *, is_applied: bool) -> list[Row]:
    model = sent.oracle()
    model.write(**operation.first.rows)
    if not is_applied:
        return model.rows()
    operation.apply(model)
    return [operation.after(row) for row in model.rows()]


def _branches(sent: SentTable) -> set[str]:
    return set(sent.caller.iceberg(sent.name).metadata.refs)


def _scratch_tables(caller: Caller) -> list[Any]:
    iceberg = catalog(caller.lake)
    return [
        table
        for schema in iceberg.list_namespaces()
        if schema != (caller.schema,)
        for table in iceberg.list_tables(schema)
    ]


def test_a_killed_server_leaves_no_half_batch(tmp_path: Path) -> None:
    _rounds(SOME, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", list(OPERATIONS))
def test_a_server_may_be_killed_at_every_step(tmp_path: Path, name: str) -> None:
    _rounds([case for case in EVERY if case[0] == name], tmp_path)
