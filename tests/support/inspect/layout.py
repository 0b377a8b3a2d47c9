"""Tables in the layout that the core writes, for lakes made by PyIceberg alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from chronolake.config import LakeConfig, load
from chronolake.types import ACTIVE, Column, ColumnType, Kind, TableName

HISTORY = [
    "_fivetran_start*:UTC_DATETIME",
    "_fivetran_end:UTC_DATETIME",
    "_fivetran_active:BOOLEAN",
]
TMAX = "9999-12-31T23:59:59.999Z"

Make: TypeAlias = Callable[..., Table]


@pytest.fixture
def config(tmp_path: Path) -> LakeConfig:
    (tmp_path / "lake").mkdir()
    return load(tmp_path / "lake")


@pytest.fixture
def make(config: LakeConfig) -> Make:
    """Make a table: its name, its columns as texts, and appends of rows."""
    return maker(config)


def column(text: str) -> Column:
    """Parse a column: `name*:TYPE`, with a star for a key column."""
    name, _, kind = text.rpartition(":")
    key = name.endswith("*")
    if kind.startswith("DECIMAL("):
        precision, scale = kind[8:-1].split(";")
        return Column(
            name.rstrip("*"), ColumnType(Kind.DECIMAL, int(precision), int(scale)), primary_key=key
        )
    return Column(name.rstrip("*"), ColumnType(Kind(kind)), primary_key=key)


def arrow(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Convert rows of texts and plain values to an Arrow table of the columns' types."""
    arrays = []
    for place, column in enumerate(columns):
        values = [row[place] for row in rows]
        if any(isinstance(value, str) for value in values):
            arrays.append(pa.array(values, pa.string()).cast(column.type.arrow))
        else:
            arrays.append(pa.array(values, column.type.arrow))
    return pa.table(arrays, [column.name for column in columns])


def property_of(columns: Sequence[Column]) -> str:
    items = []
    for column in columns:
        item: dict[str, Any] = {"name": column.name, "type": column.type.kind.value}
        if column.type.kind is Kind.DECIMAL:
            item |= {"precision": column.type.precision, "scale": column.type.scale}
        if column.primary_key:
            item["primary_key"] = True
        items.append(item)
    return json.dumps(items)


def maker(config: LakeConfig) -> Make:
    """Return a function that makes tables: name, columns as texts, and appends of rows."""

    def made(
        name: TableName,
        texts: Sequence[str],
        *appends: Sequence[Sequence[Any]],
        declared: bool = True,
        **properties: str,
    ) -> Table:
        catalog = SqlCatalog("chronolake", uri=f"sqlite:///{config.catalog_file}")
        columns = [column(text) for text in texts]
        if not catalog.namespace_exists((name.schema,)):
            catalog.create_namespace((name.schema,))
        wanted = {f"chronolake.{key.replace('_', '-')}": text for key, text in properties.items()}
        if declared:
            wanted["chronolake.columns"] = property_of(columns)
        folder = config.path / "tables" / str(len(list(config.path.glob("tables/*"))))
        table = catalog.create_table(
            (name.schema, name.table),
            schema=arrow(columns, []).schema,
            location=str(folder),
            properties=wanted,
        )
        if ACTIVE in {column.name for column in columns}:
            with table.update_spec() as spec:
                spec.add_field(ACTIVE, IdentityTransform(), ACTIVE)
        for rows in appends:
            table.append(arrow(columns, rows))
        catalog.engine.dispose()
        return table

    return made
