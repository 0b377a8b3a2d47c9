"""Lakes made by PyIceberg alone."""

from __future__ import annotations

from layout import config, make

__all__ = ["config", "make"]
