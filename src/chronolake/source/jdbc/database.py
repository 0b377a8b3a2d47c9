"""Any database that Spark reads over JDBC: each run reads every table as a whole.

Source: `seeds/history-mode.txt` ("History mode and … Teleport Sync differences"). What differs from
the table in the lake is brought, at the time of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from chronolake.errors import SourceError
from chronolake.limits import StreamTraits
from chronolake.rawlake import landed_micros
from chronolake.source.jdbc.reader import JdbcReader, cell, columns_of, expect_distinct
from chronolake.source.offered import Failure, OfferedStream, Sight, Snapshot, raw_folder
from chronolake.types import now_micros

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from chronolake.config import JdbcAddress, JdbcSource, Project
    from chronolake.lake import Lake
    from chronolake.source.jdbc.reader import Reader
    from chronolake.source.offered import Piece, Position

_EPSILON_MICROS: Final = 1


def offered_by(
    project: Project, pipeline: str, config: JdbcAddress, sight: Sight
) -> list[OfferedStream]:
    """A stream for each table that a configuration names."""
    return [
        OfferedStream(
            StreamTraits(name, tells_changes=True, is_reimported=False),
            sight,
            _EPSILON_MICROS,
            raw_folder(project, pipeline, name),
            is_ours=True,
            key=tuple(table.key),
            default_table=name.rpartition(".")[2],
        )
        for name, table in config.tables.items()
    ]


def latest_micros(told: Position) -> int:
    """The greatest time that a position tells, in microseconds since 1970; 0 if it tells none.

    A pipeline may change how it reads a database: what follows is later than what was brought.
    """
    return max((int(told[name]) for name in told if name.endswith("_micros")), default=0)


def each_table(
    reader: Reader,
    positions: Mapping[str, Position | None],
    read: Callable[[str, Position], Iterator[Piece | Snapshot]],
) -> Iterator[Piece | Snapshot | Failure]:
    """What tables bring one after the other; one that fails does not stop the others.

    Args:
        reader: what reads the database; it says what went wrong.
        positions: how far each table is; None: nothing of it has landed.
        read: gives what a table brings after a position, which is empty if nothing has landed.
    """
    for name, told in positions.items():
        try:
            yield from read(name, told or {})
        except SourceError as failure:
            yield Failure(name, failure)
        except (Py4JError, PySparkException) as failure:
            yield Failure(name, reader.said(f"The table {name}", failure))


def snapshot_of(
    name: str,
    rows: DataFrame,
    key: Sequence[str],
    *,
    at_micros: int,
    sequence: str,
    position: Position,
) -> Snapshot:
    """All rows of a table, as a source brings them; reading them fails if two have one key.

    Raises:
        SourceError: the table has not all columns of the key.
    """
    columns = columns_of(rows.schema, key, name)
    cells = map(cell, rows.schema)
    told = expect_distinct(rows, key, name).selectExpr(*cells)
    return Snapshot(name, told, columns, at_micros, sequence, position)


@dataclass(frozen=True)
class JdbcDatabase:
    """The tables of a database, by the difference of complete reads."""

    project: Project
    pipeline: str
    config: JdbcSource

    def offered(self) -> list[OfferedStream]:
        """The tables that the configuration names."""
        return offered_by(self.project, self.pipeline, self.config, Sight.SNAPSHOT_DIFF)

    def bring(
        self,
        lake: Lake,
        positions: Mapping[str, Position | None],
        *,
        anew: bool,  # noqa: ARG002 - every run reads everything
    ) -> Iterator[Piece | Snapshot | Failure]:
        """All tables as they are; what changes while one is read may be in it or not."""
        reader = JdbcReader(self.config)

        def read(name: str, told: Position) -> Iterator[Snapshot]:
            table = self.config.tables[name]
            # Of a run that died, nothing but what has landed may tell how late it was.
            landed = landed_micros(raw_folder(self.project, self.pipeline, name))
            at = max(now_micros(), latest_micros(told) + 1, landed + 1)
            yield snapshot_of(
                name,
                reader.table(lake.spark, name, split_by=table.split_by),
                table.key,
                at_micros=at,
                sequence=f"{at:016x}",
                position={"last_micros": at},
            )

        return each_table(reader, positions, read)

    def landed(self, positions: Mapping[str, Position]) -> None:
        """The database keeps nothing for a pipeline."""
