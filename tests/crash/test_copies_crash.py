"""A sync of dated copies is killed at every step and run again: the history is that of the copies.

Some of the copies are late, and one is corrected: their differences land in several steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chronolake.types import ACTIVE, END, START
from support import copies_model
from support.datalakes import iceberg, project
from support.processes import COMMAND, run_command, run_command_until_failpoint

#: The content of a record in the copies of these days, of which the last one corrects day 5.
_DAYS: Final = (1, 2, 3, 5, 6, 5)
_LIVES: Final = list(product(["", "a", "b"], repeat=len(_DAYS)))
_FIRST: Final = (0, 2, 3)
_THEN: Final = (1, 4, 5)


def _content(number: int) -> dict[int, str]:
    return {key: life[number] for key, life in enumerate(_LIVES) if life[number]}


class Shop:
    """A project whose syncs run in processes of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "dumps").mkdir()
        source = "{type: copies, path: 'dumps/orders_{date:%Y-%m-%d}.parquet', key: [id]}"
        self.project = project(folder, f"  shop:\n    source: {source}\n")
        self.copies: dict[int, Mapping[int, str]] = {}

    def put(self, day: int, content: Mapping[int, str]) -> None:
        self.copies[day] = content
        rows = pa.table({"id": list(content), "name": list(content.values())})
        pq.write_table(rows, self.folder / "dumps" / f"orders_2026-01-{day:02}.parquet")

    def sync(self) -> None:
        code, output = run_command("sync", "shop", "--project", str(self.folder))
        assert code == 0, output

    def check(self) -> None:
        rows = iceberg(self.project, "shop", "orders").scan().to_arrow().to_pylist()
        found = sorted(
            (row["id"], row["name"], row[START], None if row[ACTIVE] else row[END]) for row in rows
        )
        begin, millisecond = datetime(2025, 12, 31, tzinfo=UTC), timedelta(milliseconds=1)

        def end_of(version: copies_model.Version) -> Any:
            if version.end is None:
                return None
            end = begin + timedelta(days=version.end)
            return end if version.is_deleted else end - millisecond

        expected = [
            (version.key, version.value, begin + timedelta(days=version.start), end_of(version))
            for version in copies_model.history(self.copies)
        ]
        assert found == sorted(expected)


#: The late copy lands in three steps after its checkpoint of what is about to land, the others
#: in one step.
_STEPS: Final = [
    *(f"land.checkpointed=kill:{nth}" for nth in (1, 2, 3, 4)),
    *(f"land.done=kill:{nth}" for nth in (1, 2, 4)),
    *(f"land.step-done=kill:{nth}" for nth in (1, 2, 3, 4)),
    *(f"land.staged=kill:{nth}" for nth in (1, 2, 3, 4)),
    *(f"land.file-published=kill:{nth}" for nth in (1, 2, 3, 4)),
    *("sync.surveyed=kill", "sync.table-ready=kill", "write.planned=kill"),
    *("staged.deleted=kill", "staged.appended=kill", "staged.appended=kill:3"),
    *("publish.before-commit=kill", "publish.after-commit=kill"),
]
_COMMON: Final = {"land.step-done=kill:2"}


@pytest.mark.long
@pytest.mark.parametrize(
    "failpoint",
    [step if step in _COMMON else pytest.param(step, marks=pytest.mark.long) for step in _STEPS],
)
@pytest.mark.parametrize("changes", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_sync_of_copies_may_be_killed_at_every_step(
    tmp_path: Path, failpoint: str, *, changes: bool
) -> None:
    """Copies may also be changed before the next run."""
    shop = Shop(tmp_path)
    for number in _FIRST:
        shop.put(_DAYS[number], _content(number))
    shop.sync()
    shop.check()
    for number in _THEN:
        shop.put(_DAYS[number], _content(number))
    words = ("sync", "shop", "--project", str(tmp_path))
    assert run_command_until_failpoint(*words, failpoint=failpoint), COMMAND
    if changes:
        # The late copy is corrected, and there is another late one beside it.
        shop.put(2, _content(5))
        shop.put(4, _content(1))
    shop.sync()
    shop.check()
