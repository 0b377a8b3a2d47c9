"""Relocation: a copied, restored or moved lake gets metadata with its own locations.

It needs neither Spark nor the original.
"""

from chronolake.relocation.adopt import Adoption, adopt
from chronolake.relocation.table_tree import RelocatedTable

__all__ = ["Adoption", "RelocatedTable", "adopt"]
