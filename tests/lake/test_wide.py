"""What is asked of the JVM does not grow with the number of a table's columns."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from py4j.protocol import MEMORY_COMMAND_NAME

from chronolake import table
from chronolake.lake import Lake
from chronolake.types import SYNCED, Column, ColumnType, Kind, TableName

_numbers = count()
_KINDS = [kind for kind in Kind if kind is not Kind.DECIMAL]


def _columns(width: int) -> list[Column]:
    """A key, and columns of all types in turns; a name may hold what paths consist of."""
    types = [ColumnType(Kind.DECIMAL, 38, 10), ColumnType(Kind.DECIMAL, 9, 2)]
    types += [ColumnType(kind) for kind in _KINDS]
    return [
        Column("id", ColumnType(Kind.LONG), primary_key=True),
        Column(SYNCED, ColumnType(Kind.UTC_DATETIME)),
        *(Column(f"c.`{place}\"'", types[place % len(types)]) for place in range(width)),
    ]


def _calls(lake: Lake, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> int:
    """Count the calls to the JVM that some work makes.

    Calls that free what Python has dropped come whenever the garbage collector runs: not counted.
    """
    client = lake.spark.sparkContext._gateway._gateway_client
    send, calls = client.send_command, count()

    def counted(command: str, *given: Any, **named: Any) -> Any:
        if not command.startswith(MEMORY_COMMAND_NAME):
            next(calls)
        return send(command, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(client, "send_command", counted)
        work()
    return next(calls)


def test_creating_and_altering_cost_no_call_for_each_column(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    created, altered = [], []
    for width in (10, 400):
        name, wanted = TableName("wide", f"t{next(_numbers)}"), _columns(2 * width)
        half = wanted[: width + 2]
        created.append(_calls(lake, monkeypatch, lambda n=name, c=half: table.create(lake, n, c)))
        altered.append(
            _calls(
                lake,
                monkeypatch,
                lambda n=name, c=wanted: table.alter(lake, n, c, drop_columns=False),
            )
        )
        found = lake.describe(name)
        assert found is not None
        assert list(found.columns) == wanted
        fields = lake.catalog.load(name).fields
        assert [field.name for field in fields] == [column.name for column in wanted]
        assert [field.field_id for field in fields] == list(range(1, len(wanted) + 1))
    assert created[1] - created[0] < 100
    assert altered[1] - altered[0] < 100
