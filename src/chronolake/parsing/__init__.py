"""Parsing of texts in batch files: the value of each text in a column of each type."""

from chronolake.parsing.columns import clocks_of, value_of

__all__ = ["clocks_of", "value_of"]
