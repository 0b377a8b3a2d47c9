"""Texts as values, as batch files have them: what each text means for a column of each type."""

from chronolake.parsing.columns import clocks_of, value_of

__all__ = ["clocks_of", "value_of"]
