"""Data lakes that tests write: files of rows in the format of Data Lake v2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from sqlalchemy import NullPool, create_engine

from chronolake.config import LakeConfig, Project, load_project
from support.lakes import SPARK
from support.pipeline_model import LandedRow

TYPES = {
    "source__modified": pa.timestamp("us", tz="UTC"),
    "grax__deleted": pa.timestamp("us", tz="UTC"),
    "grax__purged": pa.timestamp("us", tz="UTC"),
}
_ENDINGS = {
    "_b": pa.bool_(),
    "_i": pa.int64(),
    "_f": pa.float64(),
    "_ts": pa.timestamp("us", tz="UTC"),
    "_d": pa.date32(),
}


@dataclass
class DataLake:
    """The files of an organization; their names increase."""

    root: Path
    org: str = "X"
    files: int = 0
    types: dict[str, pa.DataType] = field(default_factory=lambda: dict(TYPES))

    def write(
        self,
        name: str,
        rows: Sequence[dict[str, Any]],
        *,
        statistics: bool = True,
        **types: pa.DataType,
    ) -> Path:
        """Write one file of an object; it has each column that some row has."""
        self.files += 1
        columns = dict.fromkeys(column for row in rows for column in row)
        known = {**self.types, **types}
        arrays = {
            column: pa.array(
                [row.get(column) for row in rows], known.get(column) or _by_ending(column, columns)
            )
            for column in columns
        }
        path = self.path(name, self.files)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(arrays), path, write_statistics=statistics)
        return path

    def write_names(self, name: str, names: Mapping[str, str], *, at: int) -> Path:
        """Write a file with a version of some records, later than those of all earlier files.

        Args:
            name: the object.
            names: the value of the field `Name` by `Id`.
            at: the time of the first file, in microseconds since 1970.
        """
        row = {"source__modified": at + self.files, "grax__idseq": str(self.files)}
        return self.write(name, [{"Id": key, **row, "Name": text} for key, text in names.items()])

    def path(self, name: str, number: int) -> Path:
        folder = self.root / "parquet" / "v2" / f"org={self.org}" / f"object={name}"
        return folder / f"batch={number // 4:05x}" / f"data-{number:08x}.parquet"


def _by_ending(column: str, columns: dict[str, None]) -> pa.DataType:
    for ending, kind in _ENDINGS.items():
        if column.endswith(ending) and column.removesuffix(ending) in columns:
            return kind
    return pa.string()


def file_row(row: LandedRow, **fields: Any) -> dict[str, Any]:
    """Return the row of a file for a row of the model."""
    found = {
        "Id": row.key,
        "source__modified": row.modified,
        "grax__idseq": row.sequence,
        "grax__deleted": row.deleted,
        "grax__deletesource": row.delete_source,
        "grax__purged": row.purged,
        **fields,
    }
    return {name: value for name, value in found.items() if value is not None}


def project(folder: Path, pipelines: str) -> Project:
    """Return a project in a folder, with the Spark settings of tests."""
    conf = ", ".join(f"{key}: {value!r}" for key, value in SPARK.items())
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "chronolake.yml"
    file.write_text(
        f"lake: {{spark: {{master: 'local[2]', conf: {{{conf}}}}}}}\npipelines:\n{pipelines}"
    )
    return load_project(file)


def iceberg(found: Project, schema: str, table: str) -> Table:
    """Return a table of a project as PyIceberg sees it."""
    return iceberg_in(found.lake, schema, table)


def iceberg_in(config: LakeConfig, schema: str, table: str) -> Table:
    """Return a table of a lake as PyIceberg sees it."""
    catalog = SqlCatalog(
        "chronolake",
        uri=f"sqlite:///{config.catalog_file}",
        warehouse=config.warehouse_location,
    )
    catalog.engine.dispose()
    catalog.engine = create_engine(f"sqlite:///{config.catalog_file}", poolclass=NullPool)
    return catalog.load_table((schema, table))
