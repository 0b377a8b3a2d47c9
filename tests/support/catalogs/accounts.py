"""A data lake that is synced to a REST catalog, and its table there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.catalogs.projects import CatalogProject
from support.datalakes import DataLake
from support.engines import AT


class Accounts:
    """A data lake that another system writes, and the project that syncs it.

    Attributes:
        there: the project.
        schema: the levels of the schema of its table.
    """

    def __init__(self, there: CatalogProject, schema: str) -> None:
        self.there = there
        self.schema = schema
        self.table = f"{schema}.Account" if "." not in schema else f"`{schema}`.Account"
        self._lake = DataLake(there.folder / "crm")
        self._wanted: dict[str, str] = {}
        there.pipelines = {
            "crm": {
                "mode": "history",
                "schema": schema,
                "source": {"type": "data_lake_v2", "path": str(there.folder / "crm"), "org": "X"},
            }
        }
        there.configure()

    def write(self, **names: str) -> None:
        """Add a file with records."""
        self._wanted |= names
        self._lake.write_names("Account", names, at=AT)

    def set_mode(self, mode: str) -> None:
        """Change the configured mode."""
        self.there.pipelines["crm"]["mode"] = mode
        self.there.configure()

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table as PyIceberg reads them through the catalog."""
        return self.there.rows(*self.schema.split("."), "Account")

    def expect(self) -> None:
        """Compare the current rows with what was written last."""
        rows = self.rows()
        current = [row for row in rows if row.get("_fivetran_active", True)]
        assert {row["Id"]: row["Name"] for row in current} == self._wanted
        assert len(current) == len(self._wanted)
        starts = {(row["Id"], row.get("_fivetran_start")) for row in rows}
        assert len(starts) == len(rows)


Open = Callable[..., Accounts]
