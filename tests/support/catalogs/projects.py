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
        name: the name of the catalog's warehouse, or empty.
        properties: properties of the catalog.
        settings: further settings of the lake.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    properties: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def lake(self) -> dict[str, Any]:
        uri = f"http://127.0.0.1:{self.port}"
        named = {"warehouse": self.name} if self.name else {}
        return {
            "catalog": {"uri": uri, "properties": self.properties, **named},
            **({"warehouse": self.warehouse} if self.warehouse else {}),
            **self.settings,
        }

    def rows(self, *identifier: str) -> list[dict[str, Any]]:
        """Return the rows of a table as PyIceberg reads them through the catalog.

        Args:
            identifier: the levels of its schema, and its name.
        """
        given = self.project.lake.pyiceberg_properties
        with RestCatalog("reader", uri=f"http://127.0.0.1:{self.port}", **given) as catalog:
            table = catalog.load_table(identifier)
            found: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
        return found
