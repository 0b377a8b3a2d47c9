"""A store that writes and then reports failure, at every write of a sync, loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import postgresql
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from sqlalchemy import make_url

from chronolake.config import Project
from chronolake.core import create, truncate
from chronolake.errors import LakeError
from chronolake.lake import Lake
from chronolake.pipeline.store import Status
from chronolake.pipeline.sync import sync
from chronolake.types import ACTIVE, END, START, SYNCED, Column, ColumnType, Kind, TableName
from support import pipeline_model
from support.datalakes import DataLake, file_row, project
from support.lake.lossy_proxy import Lossy, lossy
from support.pipeline_model import LandedRow

_T: Final = 1_767_225_600_000_000
_SECOND: Final = 1_000_000
_FIRST: Final = [
    LandedRow("a", _T, "1", (1, 0), fields={"Name": "a1"}),
    LandedRow("a", _T + 5 * _SECOND, "2", (1, 1), fields={"Name": "a2"}),
    LandedRow("b", _T, "1", (1, 2), fields={"Name": "b1"}),
]
_LATER: Final = [
    LandedRow("a", _T + 2 * _SECOND, "3", (2, 0), fields={"Name": "late", "City": "Oslo"}),
    LandedRow("b", _T, "2", (2, 1), purged=_T + 3 * _SECOND),
    LandedRow("c", _T, "1", (2, 2), deleted=_T + 3 * _SECOND, fields={"Name": "c1"}),
]


class Through:
    """A pipeline whose catalog and store are reached through a proxy that loses responses."""

    def __init__(self, folder: Path, way: Lossy, address: str) -> None:
        self.way = way
        self.direct = make_url(address)
        self.source = DataLake(folder / "source")
        reported = project(
            folder, "  crm:\n    source: {type: data_lake_v2, path: source, org: X}\n"
        )
        catalog = reported.lake.catalog.model_copy(
            update={"uri": self.direct.set(port=way.port).render_as_string(hide_password=False)}
        )
        self.project = Project(
            file=reported.file,
            lake=reported.lake.model_copy(update={"catalog": catalog}),
            pipelines=reported.pipelines,
        )
        self.lake = Lake.open(folder / "lake", config=self.project.lake)

    def write(self, name: str, rows: list[LandedRow]) -> None:
        self.source.write(name, [file_row(row, **row.fields) for row in rows])

    def sync(self, name: str) -> str | None:
        """Return the error of a stream, or None."""
        try:
            result = sync(self.lake, self.project, "crm", only=[name])
        except LakeError as failure:
            return str(failure)
        return None if result.status is Status.SUCCEEDED else result.streams[0].error

    @contextmanager
    def table(self, schema: str, name: str) -> Iterator[Table]:
        """Yield a table as another process sees it, over a connection without losses."""
        uri = self.direct.set(drivername="postgresql+psycopg")
        catalog = SqlCatalog("chronolake", uri=uri.render_as_string(hide_password=False))
        try:
            yield catalog.load_table((schema, name))
        finally:
            catalog.engine.dispose()

    def versions(self, name: str) -> list[tuple[Any, ...]]:
        with self.table("crm", name) as loaded:
            found = loaded.scan().to_arrow()
        for column in (START, END):
            place = found.column_names.index(column)
            found = found.set_column(place, column, found[column].cast(pa.int64()))
        names = ("Id", START, END, ACTIVE, "Name")
        return sorted(tuple(row[name] for name in names) for row in found.to_pylist())


@pytest.fixture(scope="module")
def through(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Through]:
    with postgresql.server() as address:
        port = make_url(address).port
        assert port is not None
        with lossy(port) as way:
            yield Through(tmp_path_factory.mktemp("lossy"), way, address)


def _expected(*parts: list[LandedRow]) -> list[tuple[Any, ...]]:
    rows = [row for part in parts for row in part]
    return sorted(
        (version.key, version.start, version.end, version.active, version.fields["Name"])
        for version in pipeline_model.versions(rows, 1_000)
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "statement",
    [
        # Commits to the catalog: columns, the publish.
        b"UPDATE iceberg_tables",
        # Every write to the store: runs, streams and leases.
        b"COMMIT",
    ],
)
def test_a_lost_answer_loses_nothing_else(through: Through, statement: bytes) -> None:
    """A lost response loses nothing else.

    The sync continues, or fails and the next one continues; nothing is duplicated.
    """
    outcomes = []
    for nth in range(1, 40):
        name = f"{'Runs' if statement == b'COMMIT' else 'Tables'}{nth}"
        through.write(name, _FIRST)
        assert through.sync(name) is None
        through.write(name, _LATER)
        lost = through.way.lost
        through.way.lose(statement, nth=nth)

        failed = through.sync(name)

        if through.way.lost == lost:
            # The sync has fewer writes than that: the response to every one of them has been lost
            # once.
            through.way.lose(b"never", nth=1)
            assert failed is None
            break
        outcomes.append(failed)
        assert through.versions(name) in (_expected(_FIRST), _expected(_FIRST, _LATER))
        assert through.sync(name) is None
        assert through.versions(name) == _expected(_FIRST, _LATER)
    else:
        pytest.fail("a sync has more writes than are tried")
    assert len(outcomes) > (3 if statement == b"COMMIT" else 1)
    if statement != b"COMMIT":
        # A commit whose response is lost is looked up, and is not a failure.
        assert None in outcomes
    for reported in filter(None, outcomes):
        assert "Traceback" not in reported
        assert "lake@" not in reported


@pytest.mark.long
def test_what_others_publish_after_a_lost_answer_stays(through: Through) -> None:
    """Commits that others publish after a lost response stay.

    A repeated truncate would remove the rows that came after it.
    """
    columns = (
        Column("id", ColumnType(Kind.LONG), primary_key=True),
        Column(SYNCED, ColumnType(Kind.UTC_DATETIME)),
    )
    catalog = through.lake.config.catalog.model_copy(
        update={"uri": through.direct.render_as_string(hide_password=False)}
    )
    config = through.lake.config.model_copy(update={"catalog": catalog})
    other = Lake.open(config.path, config=config)
    kept = []
    for nth in range(1, 10):
        name = TableName("others", f"t{nth}")
        create(through.lake, name, columns)

        insert = f"INSERT INTO chronolake.{name.sql} VALUES"

        def add(key: int, insert: str = insert) -> None:
            other.spark.sql(f"{insert} ({key}, TIMESTAMP '2024-01-01 00:00:00Z')")

        add(1)
        lost = through.way.lost
        through.way.lose(b"UPDATE iceberg_tables", nth=nth, then=lambda: add(2))
        truncate(through.lake, name, synced_column=SYNCED, before_micros=_T)
        if through.way.lost == lost:
            through.way.lose(b"never", nth=1)
            break
        with through.table(name.schema, name.table) as loaded:
            kept.append(loaded.scan().to_arrow()["id"].to_pylist())
    # A row that is added before the last commit, the publish, is truncated as well; a later one
    # stays.
    *before, after = kept
    assert (before, after) == ([[]] * len(before), [2])
