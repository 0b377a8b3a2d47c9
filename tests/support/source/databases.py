"""Pipelines of real PostgreSQL servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow as pa

from chronolake.config import Project
from chronolake.lake import Lake
from chronolake.pipeline.lease import hold_lease
from chronolake.pipeline.rebuild import differences
from chronolake.pipeline.store import Status, Store
from chronolake.pipeline.streams import source_of, streams_of
from chronolake.pipeline.sync import RunResult, sync
from chronolake.source.protocol import CaptureMethod
from chronolake.types import ACTIVE, END, START
from support.datalakes import iceberg, project

_PIPELINE: Final = """  shop:
    mode: {mode}
    source: {{type: postgres, dsn: '{dsn}', method: {method}{more}}}
    streams: {streams}
    rename: {rename}
    {rules}
"""


class Shop:
    """The pipeline `shop` of a database. `run` changes the database."""

    template = _PIPELINE

    def __init__(self, folder: Path, dsn: str) -> None:
        self.dsn = dsn
        self.folder = folder
        self.configure()
        self.lake = Lake.open(self.project.lake.path, config=self.project.lake)

    def configure(
        self,
        *,
        mode: str = "history",
        method: str = "logical_replication",
        streams: str = "{}",
        rename: str = "{}",
        more: str = "",
        rules: str = "",
    ) -> None:
        """Write the configuration.

        Args:
            mode: of all streams.
            method: of the source.
            streams: settings that differ for single streams.
            rename: names in the lake that differ from the source's.
            more: further settings of the source, after a comma.
            rules: further settings of the pipeline.
        """
        reported = self.template.format(
            mode=mode,
            dsn=self.dsn,
            method=method,
            streams=streams,
            rename=rename,
            more=more,
            rules=rules,
        )
        self.project: Project = project(self.folder, reported)

    def run(self, *statements: str) -> None:
        """Run statements, each in its own transaction."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(query.encode()).fetchall()

    def prepare(self) -> None:
        """Create the publication and the slot."""
        self.run(
            "CREATE PUBLICATION chronolake_shop FOR ALL TABLES "
            "WITH (publish_via_partition_root = true)",
            "SELECT pg_create_logical_replication_slot('chronolake_shop', 'pgoutput')",
        )

    def sync(self, *, full_refresh: bool = False) -> RunResult:
        return sync(self.lake, self.project, "shop", full_refresh=full_refresh)

    def sync_or_fail(self, *, full_refresh: bool = False) -> None:
        result = self.sync(full_refresh=full_refresh)
        assert result.status is Status.SUCCEEDED, result.streams

    def capture_methods(self) -> dict[str, CaptureMethod]:
        """Return the capture method of each stream."""
        source = source_of(self.project, "shop")
        return {stream.capabilities.name: stream.capture_method for stream in source.discover()}

    def table(self, name: str) -> pa.Table:
        found = iceberg(self.project, "shop", name).scan().to_arrow()
        for column in (START, END):
            if column in found.column_names:
                place = found.column_names.index(column)
                found = found.set_column(place, column, found[column].cast(pa.int64()))
        return found

    def versions(self, name: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return the columns of every version, and whether it is active, by key and start."""
        found = self.table(name)
        names = (*columns, ACTIVE)
        rows = sorted(found.to_pylist(), key=lambda row: (repr(row[columns[0]]), row[START]))
        return [tuple(row[name] for name in names) for row in rows]

    def states(
        self, name: str, key: Sequence[str], columns: Sequence[str]
    ) -> dict[tuple[Any, ...], list[Any]]:
        """Return the states of each record in a history table by key; None while it was deleted."""
        found: dict[tuple[Any, ...], list[Any]] = {}
        ends: dict[tuple[Any, ...], int] = {}
        active: Counter[tuple[Any, ...]] = Counter()
        for row in sorted(self.table(name).to_pylist(), key=lambda row: row[START]):
            record = tuple(row[column] for column in key)
            states = found.setdefault(record, [])
            if record in ends and ends[record] + 1 < row[START]:
                states.append(None)
            states.append(tuple(row[column] for column in columns))
            ends[record] = row[END]
            active[record] += row[ACTIVE]
            assert row[START] <= row[END]
        for record, states in found.items():
            assert active[record] <= 1
            if not active[record]:
                states.append(None)
        return found

    def present(self, name: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return the columns of every active version of a history table."""
        rows = [row for row in self.table(name).to_pylist() if row[ACTIVE]]
        return sorted([tuple(row[column] for column in columns) for row in rows], key=repr)

    def agrees(self) -> bool:
        """Return whether every table matches its raw lake."""
        with hold_lease(Store.open(self.project.lake), "shop", above=10**6) as lease:
            found = [
                differences(self.lake, stream, lease) for stream in streams_of(self.project, "shop")
            ]
        return all(report.count == 0 for report in found)
