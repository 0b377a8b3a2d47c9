"""Databases that tables are published to, and the lake with the tables."""

from support.target.fixtures import config, target

__all__ = ["config", "target"]
