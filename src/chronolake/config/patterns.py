"""Names and patterns of tables and columns in chronolake.yml.

`*` matches any text, `?` one character, `[…]` one of several characters. The case of letters does
not matter: a name that is meant to be left out must not be read because of it.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from chronolake.config.section import Section

_PATTERN: Final = re.compile(r"[*?\[]")


def is_pattern(text: str) -> bool:
    """Return whether a text is a pattern, and not only a name."""
    return _PATTERN.search(text) is not None


def matches(name: str, pattern: str) -> bool:
    """Return whether a name matches a pattern, or is equal to it."""
    name, pattern = name.casefold(), pattern.casefold()
    return name == pattern or fnmatchcase(name, pattern)


def _check_patterns(patterns: list[str]) -> list[str]:
    if not all(patterns):
        raise ValueError("a name or pattern is empty")
    return patterns


Patterns = Annotated[list[str], AfterValidator(_check_patterns)]


class TablePatterns(Section):
    """The tables of a source that are replicated, by names or patterns of their streams."""

    include: Patterns = Field(
        default_factory=list,
        description="The streams to replicate: names or patterns, such as 'public.*'. Default: all "
        "streams of the source.",
    )
    exclude: Patterns = Field(
        default_factory=list, description="Streams that are not replicated, even if included."
    )

    def select(self, stream: str) -> bool:
        """Return whether a stream is replicated."""
        is_included = not self.include or any(matches(stream, name) for name in self.include)
        return is_included and not any(matches(stream, name) for name in self.exclude)
