"""Static checks of templates, durations, regular expressions and time formats."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jinja2 import meta, nodes
from jinja2.exceptions import TemplateSyntaxError

from chronolake.durations import is_negative, iso_duration
from chronolake.errors import ConfigurationError
from chronolake.formatting import did_you_mean
from chronolake.source.declarative.templating.macros import MACROS
from chronolake.source.declarative.templating.sandbox import ENVIRONMENT
from chronolake.source.declarative.templating.templates import (
    compile_cached,
    is_template,
    is_unsupported,
    parse_syntax,
    quote_text,
)
from chronolake.source.declarative.templating.times import raise_if_invalid_format

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

#: Filters whose first argument is a regular expression.
_PATTERNS: Final = frozenset({"regex_search", "regex_replace"})


class Fault(NamedTuple):
    """A problem in a text, with a hint that says how to correct it."""

    message: str
    hint: str


def find_faults(text: str, known: Collection[str] | None) -> Iterator[Fault]:
    """Yield the problems of a text that will be evaluated.

    `known` are the variables that are available at its place, or None if they are unknown.
    """
    if is_unsupported(text) or not is_template(text):
        if is_unsupported(text):
            yield Fault(
                f"the template {quote_text(text)} reads `stream_state`, which is not supported",
                "Use `stream_interval` instead.",
            )
        return
    tree = parse_syntax(text)
    found = list(_check_syntax(tree, known) if tree is not None else ())
    if not found:
        try:
            compile_cached(text)
        except ConfigurationError as failure:
            message = failure.message.rstrip(".")
            found = [Fault(message[0].lower() + message[1:], failure.hint or "")]
    yield from found


def _check_syntax(tree: nodes.Template, known: Collection[str] | None) -> Iterator[Fault]:
    for kind, there in (("filter", ENVIRONMENT.filters), ("test", ENVIRONMENT.tests)):
        kinds = nodes.Filter if kind == "filter" else nodes.Test
        for name in dict.fromkeys(node.name for node in tree.find_all(kinds)):
            if name not in there:
                yield Fault(f"there is no {kind} `{name}`", did_you_mean(name, there, "Remove it."))
    called = {id(node.node): node.node for node in tree.find_all(nodes.Call)}
    functions = {node.name for node in called.values() if isinstance(node, nodes.Name)}
    if known is not None:
        yield from _check_names(tree, known, functions)
    yield from _check_constants(tree)


def _check_names(
    tree: nodes.Template, known: Collection[str], functions: Collection[str]
) -> Iterator[Fault]:
    """Yield a fault for each name that is neither a variable nor a function."""
    try:
        named = meta.find_undeclared_variables(tree)
    except TemplateSyntaxError:
        # Unknown filters or tests are already reported.
        return
    for name in sorted(named - set(known)):
        if name in functions:
            yield Fault(
                f"there is no function `{name}`",
                did_you_mean(
                    name, MACROS, "Use a function that the documentation of manifests lists."
                ),
            )
        else:
            yield Fault(
                f"the variable `{name}` does not exist there",
                did_you_mean(name, known, f"Variables there: {', '.join(sorted(known))}."),
            )


def _check_constants(tree: nodes.Template) -> Iterator[Fault]:
    """Yield the problems of constant arguments of filters and functions."""
    for node in tree.find_all(nodes.Filter):
        if node.name in _PATTERNS and (pattern := _constant_text(node.args)) is not None:
            yield from find_pattern_faults(pattern)
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == "duration":
            text = _constant_text(call.args)
            if text is not None:
                yield from find_duration_faults(text)


def _constant_text(arguments: list[nodes.Expr]) -> str | None:
    value: Any = arguments[0].value if arguments and isinstance(arguments[0], nodes.Const) else None
    return value if isinstance(value, str) else None


def find_pattern_faults(text: str) -> Iterator[Fault]:
    """Yield the problems of a regular expression."""
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as failure:
        yield Fault(
            f"{quote_text(text)} is not a valid regular expression: {failure}",
            "Correct the expression.",
        )


def find_duration_faults(text: str) -> Iterator[Fault]:
    """Yield the problems of a duration."""
    try:
        iso_duration(text)
    except ValueError:
        yield Fault(
            f"{quote_text(text)} is not a valid duration",
            "Write an ISO 8601 duration, for example P1D, PT1H or P1M.",
        )


def find_negative_faults(text: str) -> Iterator[Fault]:
    """Yield the problems of a duration that must not be negative."""
    faults = tuple(find_duration_faults(text))
    yield from faults
    if not faults and is_negative(iso_duration(text)):
        yield Fault(f"the duration {quote_text(text)} is negative", "Remove its sign.")


def find_format_faults(text: str, *, is_read: bool = True) -> Iterator[Fault]:
    """Yield the problems of a time format.

    The format is used for parsing if `is_read`, else only for printing.
    """
    try:
        raise_if_invalid_format(text, is_read=is_read)
    except ValueError as failure:
        yield Fault(
            f"{quote_text(text)} is not a valid time format: {failure}",
            "Use the directives of strptime, for example %Y-%m-%dT%H:%M:%S%z, or "
            "one of %s, %s_as_float, %ms and %epoch_microseconds.",
        )
