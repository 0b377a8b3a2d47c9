"""Random lives of tables: batches, modes, migrations, re-syncs and maintenance, in any order."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import count
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import DataFrame
from sqlalchemy import NullPool, create_engine

from chronolake import core
from chronolake.change_set import OP, SEQ, UNMODIFIED, Op
from chronolake.core import MissingRecords, migration
from chronolake.errors import SchemaError
from chronolake.lake import Lake
from chronolake.types import Column, ColumnType, Kind, Mode, TableName
from support.oracle import ACTIVE, END, START, TMAX, Row
from support.table_model import DELETED, SYNCED, Life, RefusedError

_T: Final = 1_704_067_200_000_000
_HOUR: Final = 3_600_000_000
_KEYS: Final = 6
_KINDS: Final = {
    SYNCED: Kind.UTC_DATETIME,
    START: Kind.UTC_DATETIME,
    END: Kind.UTC_DATETIME,
    ACTIVE: Kind.BOOLEAN,
    DELETED: Kind.BOOLEAN,
    "id": Kind.LONG,
}
_numbers = count()

# A step is checked against the whole table, so the failing step is enough; to find a smaller
# example would take an hour of Spark.
_many = settings(
    database=None,
    max_examples=20,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)

_CHANGES: Final = ("fill", "copy", "rename", "add at", "drop at")
_STEPS: Final = (
    ("batch",) * 6 + ("resync",) * 3 + tuple(Mode) + _CHANGES + ("maintain", "add at", "drop at")
)

Step = tuple[str, list[int], list[str | None], int]


def life_of(seed: int) -> tuple[str, list[Step]]:
    """Return an initial mode, and steps: two batches, then any kind."""
    dice = random.Random(seed)

    def step(what: str) -> Step:
        keys = dice.sample(range(_KEYS), dice.randint(1, 4))
        values = [dice.choice(["x", "y", "z", None]) for _ in range(4)]
        return str(what), keys, values, dice.randrange(6)

    steps = ["batch", "batch", *(dice.choice(_STEPS) for _ in range(dice.randint(6, 9)))]
    return str(dice.choice(list(Mode))), [step(what) for what in steps]


class Lived:
    """One table and its model, to which the same steps are applied."""

    def __init__(self, lake: Lake, mode: str) -> None:
        self.lake = lake
        self.name = TableName("lives", f"t{next(_numbers)}")
        system = {"history": [SYNCED, START, END, ACTIVE], "soft-delete": [SYNCED, DELETED]}
        self.model = Life(["id", "v", *system.get(mode, [SYNCED])])
        core.create(lake, self.name, self.columns())
        self.now = _T
        self.steps: list[str] = []
        self.times = {_T}

    def columns(self) -> list[Column]:
        keys = {"id", START}
        return [
            Column(name, ColumnType(_KINDS.get(name, Kind.STRING)), name in keys)
            for name in self.model.columns
        ]

    def step(self, what: str, keys: Sequence[int], values: Sequence[Any], number: int) -> None:
        self.now += _HOUR
        self.times.add(self.now)
        self.steps.append(f"{what} {list(keys)} {list(values)} {number} at {self.now}")
        {
            "batch": self._batch,
            "resync": self._resync,
            "fill": self._fill,
            "copy": self._copy,
            "rename": self._rename,
            "add at": self._change,
            "drop at": self._change,
            "maintain": self._maintain,
        }.get(what, self._switch)(what, keys, values, number)
        self._check()

    # ------------------------------------------------------------------ steps

    def _row(self, key: int, value: Any) -> Row:
        data = [name for name in self.model.columns if name not in _KINDS]
        return {"id": key, **dict.fromkeys(data, value), SYNCED: self.now}

    def _batch(self, _: str, keys: Sequence[int], values: Sequence[Any], number: int) -> None:
        rows = [self._row(key, value) for key, value in zip(keys, values, strict=False)]
        gone, put = rows[: number % 2], rows[number % 2 :]
        # Some are late, by up to two hours.
        at = self.now - (number % 3) * _HOUR
        if self.model.mode != "history":
            marked = {DELETED: number == 3} if self.model.mode == "soft-delete" else {}
            files = {"replace": [row | marked for row in put], "delete": gone}
            self._send(core.write_batch, files)
            return
        times = {START: at, END: TMAX, ACTIVE: True}
        files = {
            "earliest": [{"id": row["id"], START: at} for row in put],
            "replace": [row | times for row in put],
            "delete": [{"id": row["id"], END: at} for row in gone],
        }
        self._send(core.write_history_batch, files)

    def _send(self, write: Callable[..., Any], files: dict[str, list[Row]]) -> None:
        kinds = {"earliest": Op.EARLIEST, "replace": Op.REPLACE, "delete": Op.DELETE}
        rows = [
            {OP: int(kinds[kind]), SEQ: place, **row}
            for kind, some in files.items()
            for place, row in enumerate(some)
        ]
        columns = self.columns()
        changes = self._frame(rows, [f"{OP} int", f"{SEQ} bigint"], columns).selectExpr(
            OP,
            SEQ,
            f"CAST(NULL AS ARRAY<BIGINT>) AS {UNMODIFIED}",
            *(f"`{column.name}`" for column in columns),
        )
        for _ in range(2):
            write(self.lake, self.name, changes, columns=columns, batch="b")
        self.model.write(**files)

    def _frame(self, rows: list[Row], more: list[str], columns: Sequence[Column]) -> DataFrame:
        schema = ", ".join(
            [*more, *(f"`{column.name}` {_wide(column.type.sql)}" for column in columns)]
        )
        lines = [json.dumps(row) for row in rows]
        frame = self.lake.spark.createDataFrame([(line,) for line in lines], "line string")
        parsed = frame.selectExpr(f"from_json(line, '{schema}') AS r").select("r.*")
        names = [text.split()[0] for text in more]
        return parsed.selectExpr(
            *names,
            *(
                f"timestamp_micros(`{column.name}`) AS `{column.name}`"
                if column.type.kind is Kind.UTC_DATETIME
                else f"`{column.name}`"
                for column in columns
            ),
        )

    def _resync(self, _: str, keys: Sequence[int], values: Sequence[Any], number: int) -> None:
        if self.model.mode != "history":
            return
        rows = [self._row(key, value) for key, value in zip(keys, values, strict=False)]
        gone = list(MissingRecords)[number % 3]
        for row in rows:
            del row[SYNCED]
            if number > 2:
                row[START] = self.now - (number % 3) * 2 * _HOUR
        names = list(rows[0])
        columns = [column for column in self.columns() if column.name in names]
        for _ in range(2):
            core.resync(
                self.lake,
                self.name,
                self._frame(rows, [], columns),
                at_micros=self.now,
                batch="r",
                gone=gone,
            )
        self.model.resync(rows, self.now, gone.value)

    def _switch(self, mode: str, *_: Any) -> None:
        migration.switch_mode(self.lake, self.name, Mode(mode))
        self.model.switch(mode)

    def _fill(self, _: str, __: Sequence[int], values: Sequence[Any], number: int) -> None:
        column = f"c{number % 2}"
        migration.add_column_with_default(
            self.lake, self.name, Column(column, ColumnType(Kind.STRING)), _valued(values[0])
        )
        self.model.set_value(column, values[0])

    def _copy(self, *_: Any) -> None:
        new_name = f"copy{len(self.model.columns)}"
        migration.copy_column(self.lake, self.name, self._data(), new_name)
        self.model.copy_column(self._data(), new_name)

    def _rename(self, *_: Any) -> None:
        old, new = self._data(), f"named{self.now // _HOUR}"
        migration.rename_column(self.lake, self.name, old, new)
        self.model.rename_column(old, new)

    def _data(self) -> str:
        return next(name for name in self.model.columns if name not in _KINDS)

    def _change(self, what: str, _: Sequence[int], values: Sequence[Any], number: int) -> None:
        if self.model.mode != "history":
            return
        at = self.now - (number % 3) * _HOUR
        adds = what == "add at"
        column, value = (f"c{number % 2}", values[0] or "w") if adds else (self._data(), None)
        before = [dict(row) for row in self.model.rows], list(self.model.columns)
        try:
            self.model.change_from(column, value, at)
        except RefusedError:
            self.model.rows, self.model.columns = before
            refused = True
        else:
            refused = False
        for _ in range(2):
            try:
                if adds:
                    wanted = Column(column, ColumnType(Kind.STRING))
                    migration.add_column_in_history(
                        self.lake, self.name, wanted, _valued(value), at_micros=at
                    )
                else:
                    migration.drop_column_in_history(self.lake, self.name, column, at_micros=at)
            except SchemaError:
                assert refused
            else:
                assert not refused

    def _maintain(self, *_: Any) -> None:
        core.maintain(self.lake, self.name)

    # ------------------------------------------------------------------ checks

    def _check(self) -> None:
        story = "\n".join(self.steps)
        must = sorted(map(self._text, self.model.rows))
        assert self._stored() == must, story
        described = self.lake.describe(self.name)
        assert described is not None
        assert sorted(column.name for column in described.columns) == sorted(self.model.columns)
        assert core.verify(self.lake, self.name).holds, story
        if self.model.mode == "history":
            self._check_times(story)

    def _check_times(self, story: str) -> None:
        """Check the state at every event's time, an epsilon around it and 1 µs before."""
        instants = sorted({at - back for at in self.times for back in (-1_000, 0, 1, 1_001)})
        states = [
            self.lake.table(self.name)
            .as_of(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at))
            .selectExpr(f"{at} AS at", "id", f"unix_micros({START}) AS start")
            for at in instants
        ]
        found: dict[int, list[tuple[Any, Any]]] = {at: [] for at in instants}
        # One job for all of them.
        for row in reduce(DataFrame.unionAll, states).collect():
            found[row["at"]].append((row["id"], row["start"]))
        for at in instants:
            wanted = sorted((row["id"], row[START]) for row in self.model.as_of(at))
            assert sorted(found[at]) == wanted, f"as of {at}\n{story}"

    def _text(self, row: Row) -> str:
        return str([row.get(name) for name in sorted(self.model.columns)])

    def _stored(self) -> list[str]:
        folder = self.lake.config.path
        catalog = SqlCatalog(
            "chronolake", uri=f"sqlite:///{folder / 'catalog.db'}", warehouse=folder.as_uri()
        )
        catalog.engine.dispose()
        catalog.engine = create_engine(f"sqlite:///{folder / 'catalog.db'}", poolclass=NullPool)
        found = catalog.load_table((self.name.schema, self.name.table)).scan().to_arrow()
        for place, field in enumerate(found.schema):
            if pa.types.is_timestamp(field.type):
                found = found.set_column(place, field.name, found[place].cast(pa.int64()))
        return sorted(map(self._text, found.to_pylist()))


def _wide(sql: str) -> str:
    return "bigint" if sql == "timestamp" else sql


def _valued(value: Any) -> Callable[[ColumnType], pa.Scalar]:
    return lambda kind: pa.scalar(value, kind.arrow)


def live(lake: Lake, seed: int) -> None:
    mode, steps = life_of(seed)
    going = Lived(lake, mode)
    for step in steps:
        going.step(*step)


@pytest.mark.filterwarnings("ignore::chronolake.errors.HistoryWarning")
@pytest.mark.long
@pytest.mark.parametrize("seed", [9, 11])
def test_a_table_lives_as_its_model(lake: Lake, seed: int) -> None:
    live(lake, seed)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::chronolake.errors.HistoryWarning")
def test_tables_live_as_their_models(lake: Lake) -> None:
    @_many
    @given(st.integers(0, 2**32))
    def lived(seed: int) -> None:
        live(lake, seed)

    lived()
