"""Templates, evaluated by plain Jinja; values that only the reader knows are holes in a text."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Any, Self

import isodate
import jinja2
from jinja2 import nodes

from support.declarative.mockapi import clock

#: Variables that only the reader knows.
HIDDEN = (
    "stream_slice",
    "stream_partition",
    "stream_interval",
    "next_page_token",
    "record",
    "creation_response",
    "polling_response",
    "download_target",
    "last_record",
    "session_token",
)
_HOLE = re.compile("\ue000(.*?)\ue001")
_FALSE = ("", "False", "false", "0", "{}", "[]", "()", "None", "0.0")


class Hole:
    """An unknown value: every operation on it returns another one."""

    def __init__(self, path: str, form: str | None = None) -> None:
        self.path = path
        self.form = form

    def __str__(self) -> str:
        return f"\ue000{self.path}|{self.form or ''}\ue001"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "strftime":
            return lambda form: Hole(self.path, form)
        return Hole(f"{self.path}.{name}")

    def __getitem__(self, key: Any) -> Hole:
        return Hole(f"{self.path}.{key}") if isinstance(key, str) else self.changed()

    def __call__(self, *given: Any) -> Hole:
        if self.path.endswith(".get") and given:
            return Hole(f"{self.path.removesuffix('.get')}.{given[0]}")
        return self.changed()

    def changed(self, *_: Any) -> Hole:
        return Hole("")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __mod__ = changed

    def __lt__(self, _: Any) -> bool:
        return False

    __gt__ = __le__ = __ge__ = __lt__

    def __contains__(self, _: Any) -> bool:
        return False

    def __iter__(self) -> Iterator[Self]:
        return iter(())


def _format_datetime(at: Any, form: str, input_format: str | None = None) -> Any:
    if isinstance(at, Hole):
        return Hole(at.path, form)
    forms = [input_format] if input_format else _GUESSED
    found = at if isinstance(at, datetime) else clock.read(at, forms)
    if found is None:
        raise ValueError(f"no time: {at}")
    return clock.written(found.astimezone(UTC), form)


_GUESSED = (
    "%Y-%m-%dT%H:%M:%SZ",
    "%Y-%m-%dT%H:%M:%S.%fZ",
    "%Y-%m-%dT%H:%M:%S%z",
    "%Y-%m-%dT%H:%M:%S.%f%z",
    "%Y-%m-%d",
    "%s",
)


def _day_delta(days: int, format: str = "%Y-%m-%dT%H:%M:%S.%f%z") -> str:  # noqa: A002 - its name
    return clock.written(clock.NOW + timedelta(days=days), format)


_MACROS: dict[str, Any] = {
    "now_utc": lambda: clock.NOW,
    "today_utc": clock.NOW.date,
    "format_datetime": _format_datetime,
    "day_delta": _day_delta,
    "timestamp": lambda at: clock.read(at, _GUESSED).timestamp(),  # type: ignore[union-attr]
    "duration": isodate.parse_duration,
    "max": max,
    "min": min,
}


def _regex_search(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    return "" if found is None else (found.groups() or [found.group()])[0]


def _through_holes(made: Any) -> Any:
    def run(*given: Any, **more: Any) -> Any:
        # Some filters take their context as the first argument.
        if any(isinstance(argument, Hole) for argument in given):
            return Hole("")
        return made(*given, **more)

    for mark in ("jinja_pass_arg", "jinja_async_variant"):
        if hasattr(made, mark):
            setattr(run, mark, getattr(made, mark))
    return run


_ENVIRONMENT = jinja2.Environment(autoescape=False)  # noqa: S701 - it does not generate HTML
_ENVIRONMENT.globals.update(_MACROS)
_ENVIRONMENT.filters["regex_search"] = _regex_search
for _name, _made in list(_ENVIRONMENT.filters.items()):
    _ENVIRONMENT.filters[_name] = _through_holes(_made)


@cache
def _template(text: str) -> jinja2.Template:
    with _without_warnings():
        return _ENVIRONMENT.from_string(text)


@cache
def _syntax(text: str) -> nodes.Template:
    with _without_warnings():
        return _ENVIRONMENT.parse(text)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Ignore warnings about escapes: authors of manifests write such regular expressions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def text_of(template: Any, variables: Mapping[str, Any]) -> str:
    """Return a template's text; its holes remain in it as they are."""
    return _template(template).render(variables) if isinstance(template, str) else str(template)


def value_of(template: Any, variables: Mapping[str, Any]) -> Any:
    """Evaluate a template: return a number, list and so on if its text is one."""
    if not isinstance(template, str):
        return template
    text = text_of(template, variables)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError):
        return text


def holds(condition: str, variables: Mapping[str, Any]) -> bool:
    """Return whether a condition is true by the rules of manifests."""
    return text_of(condition, variables).strip() not in _FALSE


def known(config: Mapping[str, Any], component: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of a component's templates, with holes for the reader's own values."""
    holes: dict[str, Any] = {name: Hole(name) for name in HIDDEN}
    # Only the reader knows its current time.
    holes |= dict.fromkeys(("now_utc", "today_utc", "day_delta"), Hole("").changed)
    return {**holes, "config": config, "parameters": component.get("$parameters") or {}}


def pattern_of(text: str) -> tuple[re.Pattern[str], list[tuple[str, str]]]:
    """Return a pattern for a template's text with filled holes, and where each hole comes from.

    The pattern has a group for each hole. Each hole has its path and, if it is a time in its own
    format, that format.
    """
    holes: list[tuple[str, str]] = []
    pattern = ""
    rest = 0
    for found in _HOLE.finditer(text):
        pattern += re.escape(text[rest : found.start()]) + "(.*?)"
        path, _, form = found.group(1).partition("|")
        holes.append((path, form))
        rest = found.end()
    return re.compile(pattern + re.escape(text[rest:]), re.DOTALL), holes


def has_holes(text: str) -> bool:
    """Return whether a text has a hole."""
    return "\ue000" in text


def paths_in(template: Any, root: str) -> list[tuple[str, ...]]:
    """Return the places below a variable that a template reads, the longest of each."""
    if not isinstance(template, str) or "{" not in template:
        return []
    tree = _syntax(template)
    methods = {id(call.node) for call in tree.find_all(nodes.Call)}
    found = {_path(node, root) for node in tree.find_all(nodes.Expr) if id(node) not in methods}
    found.discard(())
    return sorted(
        path for path in found if not any(path == other[: len(path)] for other in found - {path})
    )


def names_in(template: Any) -> list[str]:
    """Return the string constants in a template's expressions."""
    if not isinstance(template, str) or "{" not in template:
        return []
    found = (node.value for node in _syntax(template).find_all(nodes.Const))
    return [value for value in found if isinstance(value, str)]


def _path(node: nodes.Node, root: str) -> tuple[str, ...]:
    """Return the place that an expression reads; empty if it reads none."""
    keys: list[str] = []
    while not isinstance(node, nodes.Name):
        if (
            isinstance(node, nodes.Call)
            and isinstance(node.node, nodes.Getattr)
            and node.node.attr == "get"
            and node.args
            and isinstance(node.args[0], nodes.Const)
        ):
            keys.append(node.args[0].value)
            node = node.node.node
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
            keys.append(node.arg.value)
            node = node.node
        elif isinstance(node, nodes.Getattr):
            keys.append(node.attr)
            node = node.node
        else:
            return ()
    return (
        tuple(reversed(keys))
        if node.name == root and all(isinstance(key, str) for key in keys)
        else ()
    )


def wanted_values(condition: Any, config: Any) -> dict[tuple[str, ...], Any]:
    """Return values that a condition requires in a record (`==`, or `in` a list in the config)."""
    found: dict[tuple[str, ...], Any] = {}
    if not isinstance(condition, str):
        return found
    for compared in _syntax(condition).find_all(nodes.Compare):
        (operand, *_) = compared.ops
        path = _path(compared.expr, "record")
        if path and operand.op == "eq" and isinstance(operand.expr, nodes.Const):
            found[path] = operand.expr.value
        elif path and operand.op == "in" and (listed := _path(operand.expr, "config")):
            values = config
            for key in listed:
                values = values[key]
            found[path] = values[0]
    return found


def as_text(value: Any) -> str:
    """Return a value as requests contain it."""
    return value.isoformat() if isinstance(value, date) else str(value)
