"""YAML whose mappings and lists know the lines they stand in, and references resolved in it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import yaml

from chronolake.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_REFERENCE: Final = "$ref"
#: So many nodes a manifest may have with all references in their places.
_MOST_NODES: Final = 400_000
_DEEPEST: Final = 100
#: These hold values of a configuration, which may look like references.
_LITERAL: Final = ("config_overrides",)


class Mapped(dict[str, Any]):
    """A mapping that knows the lines of its keys, the first of the file being 1."""

    def __init__(
        self, entries: Iterable[tuple[str, Any]] = (), lines: dict[str, int] | None = None
    ) -> None:
        super().__init__(entries)
        self.lines: dict[str, int] = lines if lines is not None else {}


class Listed(list[Any]):
    """A list that knows the lines of its items."""

    def __init__(self, items: Iterable[Any] = (), lines: list[int] | None = None) -> None:
        super().__init__(items)
        self.lines: list[int] = lines if lines is not None else []


def read(path: Path) -> Mapped:
    """The mapping that a YAML or JSON file holds.

    Raises:
        ConfigurationError: the file cannot be read, is no YAML, or holds something else.
    """
    loader_type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        loader = loader_type(path.read_text(encoding="utf-8"))
        try:
            node = loader.get_single_node()
            found = None if node is None else _located(loader, node, {}, 0)
        finally:
            loader.dispose()
    except (OSError, UnicodeDecodeError) as failure:
        reason = getattr(failure, "strerror", None) or "it is not UTF-8 text"
        raise ConfigurationError(f"{path} cannot be read: {reason}.") from failure
    except yaml.MarkedYAMLError as failure:
        mark = failure.problem_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigurationError(f"{path}{line} is not valid YAML: {failure.problem}.") from failure
    except yaml.YAMLError as failure:
        raise ConfigurationError(f"{path} is not valid YAML.") from failure
    if not isinstance(found, Mapped):
        raise ConfigurationError(f"{path} must hold keys and values.")
    return found


def _located(loader: Any, node: yaml.Node, known: dict[int, Any], depth: int) -> Any:
    if depth > _DEEPEST:
        raise yaml.MarkedYAMLError(problem="it is nested too deeply", problem_mark=node.start_mark)
    if id(node) in known:
        return known[id(node)]
    found: Any
    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)
        found = Mapped()
        for key_node, value_node in node.value:
            key = str(loader.construct_object(key_node, deep=True))
            found[key] = _located(loader, value_node, known, depth + 1)
            found.lines[key] = key_node.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        found = Listed(
            (_located(loader, item, known, depth + 1) for item in node.value),
            [item.start_mark.line + 1 for item in node.value],
        )
    else:
        found = loader.construct_object(node, deep=True)
    known[id(node)] = found
    return found


def resolved(whole: Mapped, *, file: str) -> Mapped:
    """A copy in which every reference stands for what it refers to.

    `#/a/b` is the value of `b` in `a`; a key may have slashes in its name, and the longest name
    that is there counts. What stands beside a `$ref` goes over what the reference has.

    Raises:
        ConfigurationError: a reference refers to nothing, or to itself.
    """
    found: Mapped = _Resolution(whole, file).of(whole)
    return found


class _Resolution:
    def __init__(self, whole: Mapped, file: str) -> None:
        self.whole = whole
        self.file = file
        self.nodes = 0
        self.open: list[str] = []

    def of(self, node: Any, line: int | None = None) -> Any:
        self.nodes += 1
        if self.nodes > _MOST_NODES:
            raise ConfigurationError(f"{self.file} is too large with its references resolved.")
        if isinstance(node, Mapped):
            return self._mapping(node)
        if isinstance(node, Listed):
            items = (self.of(item, at) for item, at in zip(node, node.lines, strict=True))
            return Listed(items, list(node.lines))
        if isinstance(node, str) and node.startswith("#/"):
            return self._referred(node, line)
        return node

    def _mapping(self, node: Mapped) -> Any:
        own = Mapped(
            (
                (key, value if key in _LITERAL else self.of(value, node.lines.get(key)))
                for key, value in node.items()
                if key != _REFERENCE
            ),
            {key: line for key, line in node.lines.items() if key != _REFERENCE},
        )
        if _REFERENCE not in node:
            return own
        base = self.of(node[_REFERENCE], node.lines.get(_REFERENCE))
        if not isinstance(base, Mapped):
            return base
        return Mapped({**base, **own}.items(), {**base.lines, **own.lines})

    def _referred(self, reference: str, line: int | None) -> Any:
        where = self.file if line is None else f"{self.file}, line {line}"
        if reference in self.open:
            raise ConfigurationError(f"{where}: the reference {reference} refers to itself.")
        try:
            target = _at(self.whole, reference.removeprefix("#/"))
        except (KeyError, IndexError, TypeError, ValueError):
            raise ConfigurationError(
                f"{where}: the reference {reference} refers to nothing.",
                hint="References are written #/definitions/name, from the top of the file.",
            ) from None
        self.open.append(reference)
        found = self.of(target, line)
        self.open.pop()
        return found


def _at(node: Any, path: str) -> Any:
    while path:
        if isinstance(node, Mapped) and path in node:
            return node[path]
        head, _, path = path.partition("/")
        node = node[int(head)] if isinstance(node, Listed) else node[head]
    return node


def line_of(node: Any, path: Iterable[str | int]) -> tuple[int | None, str]:
    """Where a value stands that is reached by keys and numbers, and its path as people write it.

    Parts of the path that are not there (what tells kinds apart, a key that is missing) are passed
    over.
    """
    line: int | None = None
    spelled = ""
    for part in path:
        if isinstance(part, int) and isinstance(node, list) and part < len(node):
            line = node.lines[part] if isinstance(node, Listed) else line
            spelled += f"[{part}]"
            node = node[part]
        elif isinstance(node, dict) and part in node:
            line = node.lines.get(str(part), line) if isinstance(node, Mapped) else line
            spelled += f".{part}"
            node = node[part]
        elif re.fullmatch(r"[a-z_$]+", str(part)):
            spelled += f".{part}"
    return line, spelled.lstrip(".")


def value_of(node: Any, path: Iterable[str | int]) -> Any:
    """The value that is reached by keys and numbers; parts that are not there are passed over."""
    for part in path:
        is_item = isinstance(node, list) and isinstance(part, int) and part < len(node)
        if is_item or (isinstance(node, dict) and part in node):
            node = node[part]
    return node
