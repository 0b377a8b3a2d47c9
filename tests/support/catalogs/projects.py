"""Projects whose tables are in a REST catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.catalog.rest import RestCatalog

from support.store.projects import BucketProject


@dataclass
class CatalogProject(BucketProject):
    """A project that reaches a REST catalog at a port of this machine.

    Attributes:
        warehouse: where tables are stored; if empty, the catalog chooses.
        properties: properties of the catalog.
        settings: further settings of the lake.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def lake(self) -> dict[str, Any]:
        catalog = {"uri": f"http://127.0.0.1:{self.port}", "properties": self.properties}
        warehouse = {"warehouse": self.warehouse} if self.warehouse else {}
        return {"catalog": catalog, **warehouse, **self.settings}

    def rows(self, *identifier: str, port: int | None = None) -> list[dict[str, Any]]:
        """Return the rows of a table as PyIceberg reads them through the catalog.

        Args:
            identifier: the levels of its schema, and its name.
            port: the catalog's port, by default that of the project.
        """
        lake = self.project.lake
        uri = f"http://127.0.0.1:{port or self.port}"
        with RestCatalog("reader", uri=uri, **lake.pyiceberg_properties) as catalog:
            found: list[dict[str, Any]] = (
                catalog.load_table(identifier).scan().to_arrow().to_pylist()
            )
        return found
