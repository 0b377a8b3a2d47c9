"""The text of a proposed chronolake.yml: entries with comments, and tables of streams."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_WIDTH: Final = 100
_SHORTEST: Final = 30
_INDENT: Final = "  "


@dataclass(frozen=True)
class Entry:
    """A key of the file with its value.

    Attributes:
        key: the key.
        value: a value as YAML has it, or the entries of a section. `${NAME}` in texts is a
            reference to an environment variable.
        comment: what is written above it.
        is_disabled: whether it is written as a comment, because the default is right.
    """

    key: str
    value: Value
    comment: str = ""
    is_disabled: bool = False


#: A value as YAML has it, or the entries of a section.
Value: TypeAlias = "Any | tuple[Entry, ...]"


def literal(value: Any) -> Any:
    """Return a value whose texts are not read as references to environment variables."""
    if isinstance(value, str):
        return value.replace("${", "$${")
    if isinstance(value, dict):
        return {name: literal(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [literal(inner) for inner in value]
    return value


def values_of(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return the values of entries as nested dictionaries, without disabled ones."""
    return {
        entry.key: values_of(entry.value) if is_section(entry.value) else entry.value
        for entry in entries
        if not entry.is_disabled
    }


def is_section(value: Value) -> bool:
    """Return whether a value is the entries of a section."""
    return isinstance(value, tuple)


def lines_of(entries: Sequence[Entry], depth: int, *, is_disabled: bool = False) -> Iterator[str]:
    """Yield the lines of entries.

    Args:
        entries: the entries.
        depth: how many sections they are in.
        is_disabled: whether they are written as comments.
    """
    indent = _INDENT * depth
    for entry in entries:
        if entry.comment:
            yield from comment_lines(entry.comment, depth)
        disabled = is_disabled or entry.is_disabled
        begin = f"{indent}# " if disabled else indent
        if is_section(entry.value) and entry.value:
            yield f"{begin}{yaml_of(entry.key)}:"
            inner = lines_of(entry.value, 1 if disabled else depth + 1)
            yield from (f"{begin}{line}" for line in inner) if disabled else inner
        else:
            value = {} if is_section(entry.value) else entry.value
            yield f"{begin}{yaml_of(entry.key)}: {yaml_of(value)}"


def comment_lines(text: str, depth: int) -> list[str]:
    """Return a text as lines of a comment."""
    begin = f"{_INDENT * depth}# "
    width = max(_SHORTEST, _WIDTH - len(begin))
    return [
        f"{begin}{line}".rstrip()
        for paragraph in text.split("\n")
        for line in textwrap.wrap(
            printable(paragraph), width, break_long_words=False, break_on_hyphens=False
        )
        or [""]
    ]


def table_lines(rows: Sequence[Mapping[str, str]], depth: int) -> Iterator[str]:
    """Yield rows as a table in comments; the keys of the first one are the titles."""
    titles = list(rows[0])
    cells = [titles, *([printable(row[title]) for title in titles] for row in rows)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(titles))]
    for line in cells:
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        yield f"{_INDENT * depth}#   {'   '.join(padded)}".rstrip()


def printable(text: str) -> str:
    """Return a text without characters that would end a comment or cannot be shown."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def yaml_of(value: Any) -> str:
    """Return a value as YAML on one line."""
    import yaml  # noqa: PLC0415 - only `init` writes YAML

    text = yaml.safe_dump(
        value, default_flow_style=True, allow_unicode=True, sort_keys=False, width=2**30
    )
    text = text.removesuffix("\n").removesuffix("\n...").strip()
    # A text with line breaks would need several lines. YAML also reads texts of JSON.
    return json.dumps(value, ensure_ascii=False) if "\n" in text else text
