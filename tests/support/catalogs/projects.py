"""Projects whose tables are in a REST catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table

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

    def table(self, *identifier: str) -> Table:
        given = self.project.lake.pyiceberg_properties
        with RestCatalog("reader", uri=f"http://127.0.0.1:{self.port}", **given) as catalog:
            return catalog.load_table(identifier)
