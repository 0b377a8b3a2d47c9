"""A server killed at any step of a migration leaves the old tables or the new ones."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from support.crash.server_process import configure, serve
from support.oracle import ACTIVE, END, MILLISECOND, START, TMAX, Row
from support.server.caller import DELETED, HISTORY, SYNCED, Caller, catalog, column_texts
from support.server.sent_rows import Batch, SentTable

_T: Final = 1_704_067_200_000_000
_HOUR: Final = 3_600_000_000
_DELETED: Final = "_fivetran_deleted"
_LATER: Final = "2024-02-01T00:00:00Z"
_SOFT: Final = ["id*:LONG", "a:STRING", "n:LONG", SYNCED, DELETED]
_VERSIONS: Final = ["id*:LONG", "a:STRING", "n:LONG", *HISTORY]

_PUBLISHED: Final = ("publish.before-commit", "publish.after-commit")
_ASIDE: Final = ("rewrite.written", "rewrite.before-commit", "rewrite.after-commit")
_DONE: Final = {"publish.after-commit", "rewrite.after-commit"}

#: Columns and rows by table.
State = dict[str, tuple[list[str], list[str]]]


def _soft_rows() -> list[Row]:
    return [
        {"id": key, "a": f"a{key}", "n": key, "_fivetran_synced": _T + key, _DELETED: key == 3}
        for key in range(8)
    ]


def _versions() -> list[Row]:
    rows = []
    for key in range(8):
        first = {"id": key, "a": f"a{key}", "n": key, "_fivetran_synced": _T}
        closed = {START: _T, END: _T + _HOUR - MILLISECOND, ACTIVE: False}
        rows.append(first | closed)
        rows.append(first | {"n": key + 1, START: _T + _HOUR, END: TMAX, ACTIVE: True})
    return rows[:-1]


@dataclass(frozen=True)
class Migration:
    """One operation, and the failpoints on its way."""

    operation: str
    parts: dict[str, str]
    points: tuple[str, ...]
    history: bool = False


_AT: Final = {"operation_timestamp": _LATER}
_NEW: Final = {"column": "c", "column_type": "STRING", "default_value": "x"}
_TABLES: Final = {"from_table": "t", "to_table": "u"}
_COLUMNS: Final = {"from_column": "a", "to_column": "b"}
_MARKED: Final = {"soft_deleted_column": _DELETED}
MIGRATIONS: Final = [
    Migration("drop_table", {}, _PUBLISHED),
    Migration("rename_table", _TABLES, _PUBLISHED),
    Migration("rename_column", _COLUMNS, _PUBLISHED),
    Migration("copy_table", _TABLES, _ASIDE),
    Migration("copy_table_to_history_mode", _TABLES | _MARKED, _ASIDE),
    Migration("copy_column", _COLUMNS, (*_ASIDE, *_PUBLISHED)),
    Migration("update_column_value", {"column": "a", "value": "x"}, (*_ASIDE, *_PUBLISHED)),
    Migration("add_column_with_default_value", _NEW, (*_ASIDE, *_PUBLISHED)),
    Migration("add_column_in_history_mode", _NEW | _AT, (*_ASIDE, *_PUBLISHED), history=True),
    Migration(
        "drop_column_in_history_mode", {"column": "a"} | _AT, (*_ASIDE, *_PUBLISHED), history=True
    ),
    Migration("SOFT_DELETE_TO_HISTORY", _MARKED, (*_ASIDE, *_PUBLISHED)),
    Migration("HISTORY_TO_SOFT_DELETE", {}, (*_ASIDE, *_PUBLISHED), history=True),
]
EVERY: Final = [(migration, point) for migration in MIGRATIONS for point in migration.points]
SOME: Final = [
    (migration, point)
    for migration, point in EVERY
    if (migration.operation, point)
    in {
        ("SOFT_DELETE_TO_HISTORY", "publish.before-commit"),
        ("add_column_in_history_mode", "rewrite.after-commit"),
    }
]


def _state(caller: Caller) -> State:
    iceberg = catalog(caller.lake)
    found: State = {}
    for _, name in iceberg.list_tables((caller.schema,)):
        rows = iceberg.load_table((caller.schema, name)).scan().to_arrow()
        # Compare texts: PyArrow's text of a time covers the whole range of times.
        texts = [[str(cell) for cell in rows.column(place)] for place in range(rows.num_columns)]
        found[name] = (rows.column_names, sorted(map(str, zip(*texts, strict=True))))
    return found


def _ask(caller: Caller, migration: Migration) -> None:
    answer = caller.migrate("t", migration.operation, **migration.parts)
    assert answer.success, answer


def _rounds(cases: Sequence[tuple[Migration, str]], tmp_path: Path) -> None:
    """Kill a server in every case; at the end, send every operation again."""
    lake = tmp_path / "lake"
    configure(lake)
    before: dict[str, State] = {}
    after: dict[str, State] = {}
    with serve(lake, tmp_path) as server:
        for migration in {id(case): case for case, _ in cases}.values():
            done = _made(server.caller, f"done_{migration.operation}", migration)
            _ask(done, migration)
            after[migration.operation] = _state(done)
        for number, (migration, _) in enumerate(cases):
            made = _made(server.caller, f"case_{number}", migration)
            before[migration.operation] = _state(made)
            assert before[migration.operation] != after[migration.operation]
    for number, (migration, point) in enumerate(cases):
        with serve(lake, tmp_path, failpoint=f"{point}=kill") as server:
            caller = replace(server.caller, schema=f"case_{number}")
            with pytest.raises(grpc.RpcError, match=r"UNAVAILABLE|Socket closed"):
                _ask(caller, migration)
            assert server.killed(), point
            must = (after if point in _DONE else before)[migration.operation]
            assert _state(caller) == must, (migration.operation, point)
    with ExitStack() as running:
        server = running.enter_context(serve(lake, tmp_path))
        for number, (migration, point) in enumerate(cases):
            caller = replace(server.caller, schema=f"case_{number}")
            _ask(caller, migration)
            assert _state(caller) == after[migration.operation], (migration.operation, point)
            described = caller.describe("t")
            if "t" in after[migration.operation]:
                columns, _ = after[migration.operation]["t"]
                names = [text.partition(":")[0] for text in column_texts(described.table.columns)]
                assert [name.removesuffix("*") for name in names] == columns
            else:
                assert described.not_found
        hidden = {("__chronolake_scratch",)} & set(catalog(lake).list_namespaces())
        assert not [name for schema in hidden for name in catalog(lake).list_tables(schema)]


def _made(caller: Caller, schema: str, migration: Migration) -> Caller:
    own: Any = replace(caller, schema=schema)
    columns = _VERSIONS if migration.history else _SOFT
    rows = _versions() if migration.history else _soft_rows()
    sent = SentTable(own, "t", columns).create()
    sent.send(sent.request(Batch(replace=rows)))
    return own


@pytest.mark.long
def test_a_killed_server_leaves_no_half_migration(tmp_path: Path) -> None:
    _rounds(SOME, tmp_path)


@pytest.mark.long
def test_a_server_may_be_killed_at_every_step_of_every_migration(tmp_path: Path) -> None:
    _rounds(EVERY, tmp_path)
