"""Lakes made by PyIceberg alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from layout import Make, arrow, column, property_of
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from chronolake.config import LakeConfig, load
from chronolake.types import ACTIVE, TableName


@pytest.fixture
def config(tmp_path: Path) -> LakeConfig:
    (tmp_path / "lake").mkdir()
    return load(tmp_path / "lake")


@pytest.fixture
def make(config: LakeConfig) -> Make:
    """Make a table: its name, its columns as texts, and appends of rows."""

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
        if ACTIVE in {one.name for one in columns}:
            with table.update_spec() as spec:
                spec.add_field(ACTIVE, IdentityTransform(), ACTIVE)
        for rows in appends:
            table.append(arrow(columns, rows))
        catalog.engine.dispose()
        return table

    return made
