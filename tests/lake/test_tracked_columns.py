"""History tables that track only some columns are a function of the rows that were landed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from chronolake import core
from chronolake.core.pipeline_table import create_pipeline_table
from chronolake.lake import Lake
from chronolake.types import ACTIVE, END, START, VERSION, Mode, TableName
from support import pipeline_model, pipeline_tables
from support.lakes import lake_config
from support.pipeline_model import LandedRow

_T: Final = 1_704_067_200_000_000
_MS: Final = 1_000
_HOUR: Final = 3_600_000_000
_numbers = count()

# A table has many records, and is checked after each batch: a failing example needs no smaller one.
_many = settings(
    database=None,
    max_examples=3,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    deadline=None,
    print_blob=True,
)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    folder = tmp_path_factory.mktemp("tracked")
    return Lake.open(folder, config=lake_config(folder))


class _Table:
    """A table, and all rows that were landed for it."""

    def __init__(
        self, lake: Lake, eps: int, tracked: Sequence[str], *, erases: bool = False
    ) -> None:
        self.lake = lake
        self.name = TableName("tracked", f"t{next(_numbers)}")
        self.eps = eps
        self.tracked = tuple(tracked)
        self.erases = erases
        self.landed: list[LandedRow] = []
        create_pipeline_table(
            lake, self.name, pipeline_tables.COLUMNS, mode=Mode.HISTORY, epsilon_micros=eps
        )

    def land(self, rows: Sequence[LandedRow]) -> None:
        """Write rows, some of which may have been written before."""
        pipeline_tables.write(self.lake, self.name, rows, erases=self.erases, tracked=self.tracked)
        self.landed += rows

    def check(self) -> None:
        """Compare the table with the model of all landed rows."""
        found = sorted(
            (row["Id"], row[START], row[END], row[ACTIVE], row["Name"], row["Size"])
            for row in pipeline_tables.read(self.lake, self.name)
        )
        wanted = sorted(
            (v.key, v.start, v.end, v.active, v.fields.get("Name"), v.fields.get("Size"))
            for v in pipeline_model.tracked_versions(
                self.landed, self.eps, self.tracked, erases=self.erases
            )
        )
        assert found == wanted
        assert core.verify(self.lake, self.name).holds
        pipeline_tables.check_hidden(self.lake, self.name)

    def check_again(self) -> None:
        """Land all rows once more, which changes no file; and in a new table, which is the same."""
        before = pipeline_tables.files(self.lake, self.name)
        pipeline_tables.write(
            self.lake, self.name, self.landed, erases=self.erases, tracked=self.tracked
        )
        self.check()
        if not self.erases:
            assert pipeline_tables.files(self.lake, self.name) == before
        other = _Table(self.lake, self.eps, self.tracked, erases=self.erases)
        other.land(self.landed)
        other.check()
        assert other.versions() == self.versions(), "they are compared by `verify --against-lake`"

    def versions(self) -> list[tuple[str, str]]:
        return sorted(
            (row["Id"], row[VERSION]) for row in pipeline_tables.read(self.lake, self.name)
        )


def _record(chance: random.Random, key: str, kinds: Sequence[str], step: int) -> list[LandedRow]:
    """Return rows of a record: few times and values, so that versions merge and split."""
    rows = []
    # Between batches, rows of equal sequences have no order.
    sequences = chance.sample(range(10, 24), chance.randint(1, 10))
    for number, sequence in enumerate(sequences):
        kind = chance.choice(kinds)
        modified = _T + chance.randrange(8) * step
        row = LandedRow(
            key=key,
            modified=modified,
            sequence=f"{sequence:x}",
            place=(chance.randint(1, 4), number),
            fields={"Name": chance.choice("xyz"), "Size": chance.choice([1, 1, 2])},
        )
        if kind == "ended":
            row = replace(row, deleted=modified + chance.randrange(-2, 6) * step)
        elif kind == "purge":
            row = replace(row, purged=modified + chance.randrange(-3, 8) * step, fields={})
        elif kind != "data":
            deleted = modified if kind == "deletion" else None
            row = replace(row, provides_data=False, fields={}, deleted=deleted)
        rows.append(row)
    return rows


_WORLDS: Final = {
    "hours apart": (1, _HOUR, ("data", "data", "data", "ended", "deletion"), False),
    "moved": (1, 1, ("data", "data", "data", "ended", "deletion"), False),
    "closer than an epsilon": (_MS, 400, ("data", "data", "data", "ended", "purge"), False),
    "erased": (_MS, 400, ("data", "data", "data", "data", "ended", "purge"), True),
    "retracted": (_MS, _HOUR, ("data", "data", "data", "deletion", "retraction"), False),
}


@pytest.mark.long
@pytest.mark.parametrize("world", _WORLDS)
@_many
@given(seed=st.integers(0, 2**32))
def test_neighbors_with_equal_tracked_values_are_one_version(
    lake: Lake, world: str, seed: int
) -> None:
    """Rows land in any order, distributed over batches in any way, and more than once."""
    eps, step, kinds, erases = _WORLDS[world]
    chance = random.Random(seed)
    rows = [row for n in range(150) for row in _record(chance, f"k{n}", kinds, step)]
    chance.shuffle(rows)
    tracked = chance.choice([("Size",), ("Size",), ("Id", "Name"), (), ("Name", "Size")])
    table = _Table(lake, eps, tracked, erases=erases)
    done = 0
    while done < len(rows):
        upto = done + chance.choice([200, 400])
        table.land([*rows[done:upto], *chance.sample(rows[:done], min(done, 5))])
        table.check()
        done = upto
    table.check_again()


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "eps", "step", "erases"), [(1, 1, _HOUR, False), (2, _MS, 400, True)]
)
def test_a_log_that_leaves_columns_out(
    lake: Lake, seed: int, eps: int, step: int, *, erases: bool
) -> None:
    """Omitted columns, tracked ones too, have the values of earlier changes."""
    rows = pipeline_tables.random_log(seed, keys=60, changes=900, step=step, purges=erases)
    # Few values, so that versions merge.
    rows = [
        replace(row, fields={name: _few(name, value) for name, value in row.fields.items()})
        for row in rows
    ]
    chance = random.Random(seed)
    table = _Table(lake, eps, ["Name"], erases=erases)
    for begin in range(0, len(rows), 300):
        again = chance.sample(rows[:begin], begin // 10)
        table.land([*rows[begin : begin + 300], *again])
        table.check()
        core.maintain(lake, table.name)
        table.check()
    table.check_again()


def _few(name: str, value: object) -> object:
    if value is None:
        return None
    number = int(str(value).removeprefix("n"))
    return number % 5 if name == "Size" else f"n{number % 2}"
