"""What the log says of a table, on its way to Spark: files, so that memory stays bounded.

A transaction may be larger than memory, and is landed as a whole. What is spooled of it lies in
files in the lake's folder, which tasks can read, and goes when it has landed.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from chronolake.arrowrows import ArrowRows
from chronolake.changes import FOLLOWS, PURGED_AT
from chronolake.source.postgres.columns import is_held
from chronolake.source.postgres.versions import SYSTEM
from chronolake.types import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from chronolake.source.postgres.columns import SourceColumn
    from chronolake.source.postgres.rowkey import RowKey
    from chronolake.types import Column

_BUFFER_BYTES: Final = 16 * 2**20
_SQL: Final = {
    pa.int64(): "bigint",
    pa.string(): "string",
    pa.bool_(): "boolean",
    pa.list_(pa.string()): "array<string>",
}
#: What versions have besides their data, as a Spark schema.
_SYSTEM_COLUMNS: Final = ", ".join(
    f"{one.name} {_SQL[one.type]}" for one in SYSTEM.append(pa.field(PURGED_AT, pa.int64()))
)


@dataclass
class Spool:
    """Record versions of one table, of one set of columns.

    Attributes:
        columns: the table's columns, whose values are texts here.
        key: what identifies a record.
        file: where the versions go.
        bytes: how much has been added.
        has_followers: whether records got another key, and kept values that were not sent.
    """

    columns: tuple[SourceColumn, ...]
    key: RowKey
    file: Path
    bytes: int = 0
    has_followers: bool = False
    _beyond: set[str] = field(default_factory=set)
    _waiting: list[pa.Table] = field(default_factory=list)
    _waiting_bytes: int = 0
    _writer: pq.ParquetWriter | None = None

    def add(self, versions: pa.Table) -> None:
        """Append versions, as `versions.versions_of` gives them."""
        for column in self.columns:
            if column.name not in self._beyond and not is_held(column, versions[column.name]):
                self._beyond.add(column.name)
        self.has_followers |= versions[FOLLOWS].null_count < versions.num_rows
        self._waiting.append(versions)
        self._waiting_bytes += versions.nbytes
        self.bytes += versions.nbytes
        if self._waiting_bytes >= _BUFFER_BYTES:
            self._write()

    def _write(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting).combine_chunks()
        if self._writer is None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self.file, rows.schema, compression="lz4")
        self._writer.write_table(rows)
        self._waiting, self._waiting_bytes = [], 0

    def close(self) -> None:
        """Write what waits; nothing can be added any more."""
        self._write()
        if self._writer is not None:
            self._writer.close()

    @property
    def declared(self) -> list[Column]:
        """The columns as they land: with types that hold all of these values."""
        return self.key.declared(self.columns, beyond=self._beyond)

    def versions(self, spark: SparkSession) -> ArrowRows:
        """The versions as `rawlake.land` takes them, after `close`."""
        groups = pq.read_metadata(self.file).num_row_groups
        places = pa.table({"file": [str(self.file)] * groups, "row_group": range(groups)})
        tasks = max(1, min(groups, spark.sparkContext.defaultParallelism))
        texts = [f"{quoted(column.name)} string" for column in self.columns]
        rows = ArrowRows(
            spark.createDataFrame(places).coalesce(1).repartition(tasks),
            _spooled,
            ", ".join([*texts, _SYSTEM_COLUMNS]),
        )
        return self.key.typed(rows, self.columns, self.declared, others=_SYSTEM_COLUMNS)


def _spooled(places: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read groups of rows, in an executor."""
    with ExitStack() as opened:
        files: dict[str, pq.ParquetFile] = {}
        for batch in places:
            for place in batch.to_pylist():
                path, group = place["file"], place["row_group"]
                if path not in files:
                    files[path] = opened.enter_context(pq.ParquetFile(path))
                for rows in files[path].iter_batches(row_groups=[group], use_threads=False):
                    never = pa.nulls(rows.num_rows, pa.int64())
                    yield rows.append_column(PURGED_AT, never)
