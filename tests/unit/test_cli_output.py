"""The words that commands use for the contents of tables."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from chronolake.cli import output
from chronolake.core import SwitchPlan, VerifyReport
from chronolake.landing import Quarantine
from chronolake.types import Mode, TableName

ORDERS = TableName("shop", "orders")


def printed(what: RenderableType) -> str:
    stream = io.StringIO()
    Console(file=stream, width=80, highlight=False).print(what)
    return " ".join(stream.getvalue().split())


@pytest.mark.parametrize(
    ("mode", "number", "words"),
    [
        (Mode.HISTORY, 2100, "history, 2,100 versions"),
        (Mode.SOFT_DELETE, 2100, "soft-delete, 2,100 rows"),
        (Mode.LIVE, 1, "live, 1 row "),
    ],
)
def test_the_rows_of_a_history_table_are_called_versions(
    mode: Mode, number: int, words: str
) -> None:
    report = VerifyReport(ORDERS, mode, number, ())

    assert words in f"{printed(output.format_verify_report(report, Quarantine(())))} "


def test_a_switch_of_modes_counts_versions_and_rows() -> None:
    plan = SwitchPlan(ORDERS, Mode.HISTORY, Mode.LIVE, (), (), rows_before=6, rows_after=4)

    assert "6 versions → 4 rows" in printed(output.format_switch_plan(plan, done=False))
