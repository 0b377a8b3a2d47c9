"""Lakes made by PyIceberg alone."""

from __future__ import annotations

from support.inspect.layout import config, make

__all__ = ["config", "make"]
