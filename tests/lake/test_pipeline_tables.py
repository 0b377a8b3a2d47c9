"""Pipeline tables are a function of the rows that were landed for them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final

import pytest

from chronolake import core
from chronolake.core.pipeline_table import create_pipeline_table
from chronolake.errors import LakeError
from chronolake.lake import Lake
from chronolake.types import ACTIVE, DELETED, END, START, Mode, TableName
from support import pipeline_model, pipeline_tables
from support.lakes import lake_config
from support.pipeline_model import LandedRow
from support.seeds import draw_seeds

_T: Final = 1_704_067_200_000_000
_MS: Final = 1_000
_numbers = count()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    folder = tmp_path_factory.mktemp("pulled")
    return Lake.open(folder, config=lake_config(folder))


def _random_rows(seed: int, *, files: int, rows: int, keys: int, step: int) -> list[LandedRow]:
    """Return rows of a few records: duplicates, late ones, deletes, revivals, purges."""
    chance = random.Random(seed)
    found = []
    for file in range(files):
        for place in range(rows):
            modified = _T + chance.randrange(12) * step
            purged = deleted = None
            if chance.random() < 0.12:
                purged = modified + chance.randrange(-3, 9) * step
            if chance.random() < 0.2:
                deleted = modified + chance.randrange(-2, 6) * step
            fields = {"Name": f"n{file}.{place}", "Size": chance.choice([None, place])}
            found.append(
                LandedRow(
                    key=f"k{chance.randrange(keys)}",
                    modified=modified,
                    sequence=chance.choice(["9", "a", "b", "10", "1a"]),
                    place=(file + 1, place),
                    deleted=deleted,
                    purged=purged,
                    fields={} if purged is not None else fields,
                )
            )
    return found


def _check(
    lake: Lake, name: TableName, mode: Mode, rows: Sequence[LandedRow], eps: int, *, erases: bool
) -> None:
    found = pipeline_tables.read(lake, name)
    if mode is Mode.HISTORY:
        got = sorted(
            (row["Id"], row[START], row[END], row[ACTIVE], row["Name"], row["Size"])
            for row in found
        )
        wanted = sorted(
            (
                version.key,
                version.start,
                version.end,
                version.active,
                version.fields.get("Name"),
                version.fields.get("Size"),
            )
            for version in pipeline_model.versions(rows, eps, erases=erases)
        )
        assert core.verify(lake, name).holds
    else:
        is_soft = mode is Mode.SOFT_DELETE
        got = sorted(
            (row["Id"], row[DELETED] if is_soft else False, row["Name"], row["Size"])
            for row in found
        )
        wanted = sorted(
            (record.key, record.deleted, record.fields.get("Name"), record.fields.get("Size"))
            for record in pipeline_model.current(rows, erases=erases)
            if is_soft or not record.deleted
        )
    assert got == wanted


_WORLDS: Final = [
    # seed, epsilon, distance of modification times, whether purges erase
    pytest.param(1, _MS, 3_600_000_000, False, marks=pytest.mark.long),
    (2, _MS, 400, True),
    pytest.param(3, 1, 1, False, marks=pytest.mark.long),
    *(
        pytest.param(seed, *world, marks=pytest.mark.long)
        for seed in draw_seeds("pulled", 4)
        for world in [(_MS, 400, False), (1, 3_600_000_000, True)]
    ),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "seed", "eps", "step", "is_mixed", "erases"),
    [
        pytest.param(Mode.HISTORY, 1, 1, 3_600_000_000, False, False, marks=pytest.mark.long),
        (Mode.HISTORY, 2, _MS, 400, True, True),
        pytest.param(Mode.LIVE, 2, _MS, 400, True, True, marks=pytest.mark.long),
        *(
            pytest.param(mode, seed, *world, erases, marks=pytest.mark.long)
            for mode in Mode
            for seed in draw_seeds("pulled log", 2)
            for world in [(1, 3_600_000_000, True), (_MS, 400, False), (1, 1, True)]
            for erases in (False, True)
        ),
    ],
)
def test_a_log_that_leaves_columns_out(
    lake: Lake, mode: Mode, seed: int, eps: int, step: int, *, is_mixed: bool, erases: bool
) -> None:
    """A log may leave columns out: deletions have only a key, and updates omit some columns."""
    rows = pipeline_tables.random_log(seed, keys=24, changes=270, step=step, purges=erases)
    chance = random.Random(seed)
    name = TableName("pulled", f"t{next(_numbers)}")
    create_pipeline_table(lake, name, pipeline_tables.COLUMNS, mode=mode, epsilon_micros=eps)
    pieces = [rows[begin : begin + 90] for begin in range(0, len(rows), 90)]
    if is_mixed:
        # The rows may come in any order.
        mixed = chance.sample(rows, len(rows))
        pieces = [mixed[begin : begin + 90] for begin in range(0, len(rows), 90)]

    def write(batch: list[LandedRow]) -> None:
        pipeline_tables.write(lake, name, chance.sample(batch, len(batch)), erases=erases)

    there: list[LandedRow] = []
    for piece in pieces:
        there += piece
        # Applied rows are applied again from time to time.
        write([*piece, *chance.sample(there, len(there) // 10)])
        pipeline_tables.check_hidden(lake, name)
        if not is_mixed:
            # A log without the first row of a record's life is not a valid log.
            _check(lake, name, mode, there, eps, erases=erases)
    _check(lake, name, mode, rows, eps, erases=erases)
    before = pipeline_tables.files(lake, name)
    write(rows)
    _check(lake, name, mode, rows, eps, erases=erases)
    if not erases:
        # Erased rows are written, and erased, once more.
        assert pipeline_tables.files(lake, name) == before, "what is there already changes no file"


@pytest.mark.sampled
@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize(("seed", "eps", "step", "erases"), _WORLDS)
def test_a_table_is_a_function_of_what_was_landed(
    lake: Lake, mode: Mode, seed: int, eps: int, step: int, *, erases: bool
) -> None:
    files, chance = 6, random.Random(seed)
    rows = _random_rows(seed, files=files, rows=150, keys=50, step=step)
    name = TableName("pulled", f"t{next(_numbers)}")
    create_pipeline_table(lake, name, pipeline_tables.COLUMNS, mode=mode, epsilon_micros=eps)

    def write(batch: list[LandedRow]) -> None:
        chance.shuffle(batch)
        pipeline_tables.write(lake, name, batch, erases=erases)

    done = 0
    while done < files:
        upto = min(files, done + chance.choice([1, 2, 3]))
        write([row for row in rows if done < row.place[0] <= upto])
        done = upto
        landed_so_far = [row for row in rows if row.place[0] <= done]
        _check(lake, name, mode, landed_so_far, eps, erases=erases)
    # Applied again, all rows change nothing.
    write(list(rows))
    _check(lake, name, mode, rows, eps, erases=erases)


@pytest.mark.long
@pytest.mark.parametrize(
    "seed",
    [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in draw_seeds("retracted", 4))],
)
def test_a_retraction_undoes_what_has_a_smaller_sequence(lake: Lake, seed: int) -> None:
    """The order in which versions, deletions and retractions land makes no difference."""
    chance = random.Random(seed)
    rows = []
    for number in range(600):
        modified = _T + chance.randrange(8) * 3_600_000_000
        kind = chance.choice(["data", "data", "deletion", "retraction"])
        rows.append(
            LandedRow(
                key=f"k{chance.randrange(40)}",
                modified=modified,
                # One row for each sequence of a version, as a source lands it.
                sequence=f"{number:x}",
                place=(number // 100 + 1, number),
                deleted=modified if kind == "deletion" else None,
                fields={"Name": f"n{number}", "Size": number} if kind == "data" else {},
                provides_data=kind == "data",
            )
        )
    chance.shuffle(rows)
    name = TableName("pulled", f"t{next(_numbers)}")
    create_pipeline_table(
        lake, name, pipeline_tables.COLUMNS, mode=Mode.HISTORY, epsilon_micros=_MS
    )
    for begin in range(0, len(rows), 150):
        pipeline_tables.write(lake, name, rows[begin : begin + 150])
        _check(lake, name, Mode.HISTORY, rows[: begin + 150], _MS, erases=False)
        pipeline_tables.check_hidden(lake, name)
    before = pipeline_tables.files(lake, name)
    pipeline_tables.write(lake, name, list(rows))
    _check(lake, name, Mode.HISTORY, rows, _MS, erases=False)
    assert pipeline_tables.files(lake, name) == before, "what is there already changes no file"


@pytest.mark.sampled
@pytest.mark.parametrize("eps", [1, _MS])
def test_between_start_and_end_a_version_is_true(lake: Lake, eps: int) -> None:
    """A version is valid between its start and end, as in the SQL of docs/history.md.

    This is true at any instant, also between an end and the next start.
    """
    rows = pipeline_tables.random_log(7, keys=12, changes=160, step=400, purges=False)
    name = TableName("pulled", f"t{next(_numbers)}")
    create_pipeline_table(
        lake, name, pipeline_tables.COLUMNS, mode=Mode.HISTORY, epsilon_micros=eps
    )
    pipeline_tables.write(lake, name, rows)
    stored = pipeline_tables.read(lake, name)
    expected = pipeline_model.versions(rows, eps)
    chance = random.Random(7)
    edges = [
        edge
        for version in expected
        for edge in (version.start, version.end)
        if edge != pipeline_model.TMAX
    ]
    instants = {edge + near for edge in edges for near in (-1, 0, 1, eps // 2, eps - 1)}
    instants |= {chance.randint(min(edges), max(edges)) for _ in range(500)}

    def true_in_sql(at: int) -> list[tuple[Any, int]]:
        return sorted((r["Id"], r[START]) for r in stored if r[START] <= at <= r[END])

    in_between = 0
    for at in sorted(instants):
        begun = {version.key: version for version in expected if version.start <= at}
        latest = {
            version.key: version.start for version in begun.values() if at < version.end + eps
        }
        found = dict(true_in_sql(at))
        assert len(found) == len(true_in_sql(at)), "a record has one version at an instant"
        assert found.items() <= latest.items()
        missed = latest.keys() - found.keys()
        assert all(begun[key].end < at for key in missed), "only between an end and the next start"
        in_between += bool(missed)
    assert bool(in_between) is (eps > 1)
    for at in chance.sample(sorted(instants), 4):
        when = f"timestamp_micros({at}L)"
        asked = lake.spark.sql(
            f"SELECT Id, unix_micros({START}) FROM chronolake.{name.sql} "
            f"WHERE {START} <= {when} AND {END} >= {when}"
        )
        assert sorted(tuple(row) for row in asked.collect()) == true_in_sql(at)
        moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=at)
        as_of = lake.table(name).as_of(moment).selectExpr("Id", f"unix_micros({START})").collect()
        assert sorted(tuple(row) for row in as_of) == sorted(
            (r["Id"], r[START]) for r in stored if r[START] <= at < r[END] + eps
        )


def _difference(chance: random.Random, number: int, at: int, keys: int) -> list[LandedRow]:
    """Return the difference between two snapshots: new, changed and deleted records."""
    rows = []
    for place, key in enumerate(chance.sample(range(keys), keys // 3)):
        is_gone = chance.random() < 0.3
        fields = {"Name": f"n{number}.{place}", "Size": chance.choice([None, place])}
        rows.append(
            LandedRow(
                key=f"k{key}",
                modified=at,
                sequence=f"{number:x}",
                place=(number, place),
                deleted=at if is_gone else None,
                provides_data=not is_gone,
                fields={} if is_gone else fields,
            )
        )
    return rows


@pytest.mark.long
@pytest.mark.parametrize("eps", [1, _MS])
@pytest.mark.parametrize("erases", [True, False])
@pytest.mark.parametrize("mode", Mode)
def test_versions_that_begin_later_need_no_look_at_the_table(
    lake: Lake, mode: Mode, eps: int, *, erases: bool
) -> None:
    chance = random.Random(eps)
    name = TableName("pulled", f"t{next(_numbers)}")
    create_pipeline_table(lake, name, pipeline_tables.COLUMNS, mode=mode, epsilon_micros=eps)
    there: list[LandedRow] = []
    table_sql = f"chronolake.{name.sql}"

    def written(rows: list[LandedRow], *, is_distinct: bool = True) -> tuple[bool, int, int]:
        """Write rows; return whether this was an append without a read, and the counts.

        The counts are rows that are new or changed, and rows that were replaced.
        """
        there.extend(rows)
        before = len(pipeline_tables.read(lake, name))
        result = pipeline_tables.write(lake, name, rows, is_distinct=is_distinct, erases=erases)
        _check(lake, name, mode, there, eps, erases=erases)
        pipeline_tables.check_hidden(lake, name)
        assert len(pipeline_tables.read(lake, name)) == before + result.written - result.removed
        return "resolve" not in result.seconds, result.written, result.removed

    is_history = mode is Mode.HISTORY
    first = [row for row in _difference(chance, 1, _T, 90) if row.provides_data]
    assert written(first) == (True, len(first), 0)
    at = _T
    for number in range(2, 5):
        at += chance.choice([1, 7]) * eps
        assert written(_difference(chance, number, at, 60))[0] is is_history
    # The next one would begin before the existing rows have ended.
    at += eps - 1 if eps > 1 else 0
    assert not written(_difference(chance, 5, at, 60))[0]
    # The latest time of the table's rows was not recorded, and is measured.
    at += 5 * eps
    assert written(_difference(chance, 6, at, 60))[0] is is_history
    # Compacted files hold the same rows.
    lake.spark.sql(
        f"CALL chronolake.system.rewrite_data_files(table => '{name.sql}', "
        "options => map('rewrite-all', 'true'))"
    )
    at += eps
    assert written(_difference(chance, 7, at, 60))[0] is is_history
    # A batch that may contain a record twice, and a late one.
    at += 5 * eps
    assert not written(_difference(chance, 8, at, 60), is_distinct=False)[0]
    assert not written(_difference(chance, 9, _T + 1, 60))[0]
    late = LandedRow(key="k1", modified=_T + 2, sequence="a", place=(10, 0), deleted=at + 90 * eps)
    assert not written([replace(late, fields={"Name": "n", "Size": 1})], is_distinct=False)[0]
    # That record was deleted later than the next batch begins: tombstones count, too.
    assert not written(_difference(chance, 11, at + 80 * eps, 60))[0]
    assert written(_difference(chance, 12, at + 100 * eps, 60))[0] is is_history
    lake.spark.sql(f"UPDATE {table_sql} SET _fivetran_synced = _fivetran_synced")
    assert written(_difference(chance, 13, at + 101 * eps, 60))[0] is is_history


def test_a_batch_that_is_not_read_completely_is_not_applied(lake: Lake) -> None:
    name = TableName("pulled", f"t{next(_numbers)}")
    create_pipeline_table(
        lake, name, pipeline_tables.COLUMNS, mode=Mode.HISTORY, epsilon_micros=_MS
    )
    rows = _random_rows(1, files=1, rows=3, keys=3, step=1_000)
    pipeline_tables.write(lake, name, rows)
    before = pipeline_tables.read(lake, name)

    with pytest.raises(LakeError, match="read 3 rows of files that have 4"):
        pipeline_tables.write(lake, name, rows, expected_rows=4)

    assert pipeline_tables.read(lake, name) == before


@pytest.mark.long
def test_a_table_that_another_writer_changed_is_read_again(lake: Lake) -> None:
    name = TableName("pulled", f"t{next(_numbers)}")
    create_pipeline_table(lake, name, pipeline_tables.COLUMNS, mode=Mode.HISTORY, epsilon_micros=1)

    def write(at: int) -> bool:
        fields = {"Name": f"n{at}", "Size": 1}
        rows = [
            LandedRow(key=key, modified=at, sequence="1", place=(at, place), fields=fields)
            for place, key in enumerate("ab")
        ]
        return "resolve" not in pipeline_tables.write(lake, name, rows, is_distinct=True).seconds

    assert write(_T)
    assert write(_T + 10)
    # Somebody moves a version into the future: the next batch is not later than that.
    lake.spark.sql(
        f"UPDATE chronolake.{name.sql} SET _fivetran_start = timestamp_micros({_T + 30}L), "
        f"_chronolake_version = '{_T + 30} - - - 1' WHERE Id = 'a' AND _fivetran_active"
    )
    assert not write(_T + 20)
    assert write(_T + 40)
    versions = [
        (row["Id"], row[START] - _T, row[END] - _T if not row[ACTIVE] else None)
        for row in pipeline_tables.read(lake, name)
    ]
    assert sorted(versions) == [
        ("a", 0, 9),
        ("a", 20, 29),
        ("a", 30, 39),
        ("a", 40, None),
        ("b", 0, 9),
        ("b", 10, 19),
        ("b", 20, 39),
        ("b", 40, None),
    ]
