"""Evaluation of a manifest's templates, and parsing of the Python literals that they produce.

The output of a template is parsed as a Python literal, unless printing the value would give another
text: "7" becomes 7 and "[1, 2]" a list, but "2.10", "1e5" and "1,2" remain strings. Tokens, keys
and cursors sometimes look like numbers and must be sent back unchanged. A string from a response, a
slice or a token that looks like a list therefore remains a string, including surrounding blanks.
Text in a manifest without a template is parsed as the reference parses it: "2.10" is 2.1.

Literals are parsed in bounded memory. Python's own parser takes 500 bytes for each character of
"1,1,1", so it parses short texts only. Longer texts are parsed here token by token, and values are
counted before they are created. Both parsers return the same values, except for texts that no
printed value has: a long text with comments, arithmetic or `set()` remains a string.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError, UndefinedError

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.templating.sandbox import (
    ENVIRONMENT,
    CompiledTemplate,
    compile_template,
    parse_template,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


#: The maximum characters for Python's parser, which then needs a few MiB.
SHORT: Final = 8_192
#: The maximum bytes of the values of one text. The estimate is slightly below the real size.
LIMIT: Final = 64 << 20
#: The maximum nesting of brackets in Python's parser.
_DEEPEST: Final = 200
#: Bytes of a container, and of any other value, each including its reference.
_CONTAINER, _ATOM = 96, 64
#: The maximum number of adjacent strings that are concatenated to one.
_JOINED: Final = 1_000
_EMPTY: Final = frozenset({"''", '""'})
_LINE_ENDS: Final = frozenset("\r\n")
_BITS: Final = 65_536

_BLANK_LINES: Final = re.compile(r"(?:[ \t\f]*+[\r\n])*+")
_STRING: Final = (
    r"(?:[rR]?[bB]?|[bB][rR]|[uU])"
    r"(?:'''(?:[^\\']|\\.|'(?!''))*+'''|\"\"\"(?:[^\\\"]|\\.|\"(?!\"\"))*+\"\"\""
    r"|'[^'\\\n]*+(?:\\.[^'\\\n]*+)*+'|\"[^\"\\\n]*+(?:\\.[^\"\\\n]*+)*+\")"
)
_TOKEN: Final = re.compile(
    r"(?P<space>[ \t\f\r\n]*+)"
    r"(?:(?P<sign>[\[\](){},:])"
    r"|(?P<whole>-?(?:0|[1-9][0-9]{0,17}+)(?![\w.]))"
    r"|(?P<fraction>-?[0-9]{1,18}+\.[0-9]{1,18}+(?:[eE][-+]?[0-9]{1,3})?+(?![\w.]))"
    r"|(?P<number>[-+]?[ \t]*+(?:0[xXoObB]\w+|[\d.][\d._]*+(?:[eE][-+]?\d[\d_]*+)?[jJ]?))"
    r"|(?P<name>None\b|True\b|False\b)"
    rf"|(?P<text>{_STRING}))",
    re.DOTALL,
)
_NAMES: Final = {"None": None, "True": True, "False": False}
_OPENS: Final = {"[": "]", "(": ")", "{": "}"}


def parse_literal(text: str) -> Any:
    """Return the value of a text that is a Python literal.

    Raises:
        OverflowError: its value would take more memory than a template may use.
        Exception: the text is not a literal; any error of `ast.literal_eval`.
    """
    value = ast.literal_eval(text) if len(text) <= SHORT else LongLiteral(text).value()
    if isinstance(value, int) and value.bit_length() > _BITS:
        raise ValueError("too long a number")
    return value


class _Open:
    """A container that is being parsed.

    Attributes:
        closes: its closing bracket.
        values: the values so far; keys and values alternate for a dictionary.
        is_dict: whether it is a dictionary, or None if that is not known yet.
        has_comma: whether it contains a comma, which makes it a tuple.
    """

    __slots__ = ("closes", "has_comma", "is_dict", "values")

    def __init__(self, closes: str) -> None:
        self.closes = closes
        self.values: list[Any] = []
        self.is_dict: bool | None = None
        self.has_comma = False

    def value(self) -> Any:
        if self.closes == "]":
            return self.values
        if self.closes == "}":
            if self.values and not self.is_dict:
                return set(self.values)
            return dict(zip(self.values[::2], self.values[1::2], strict=True))
        if self.has_comma or not self.values:
            return tuple(self.values)
        return self.values[0]

    def may_close(self, *, wants_value: bool) -> bool:
        is_complete = not self.is_dict or len(self.values) % 2 == 0
        return is_complete and (not wants_value or self.has_comma or not self.values)

    def separate(self, sign: str) -> None:
        if sign == ":":
            # A colon follows each key of a dictionary and never appears in a set.
            if self.closes != "}" or self.is_dict is False or len(self.values) % 2 == 0:
                raise ValueError("a colon")
            self.is_dict = True
        else:
            if self.is_dict is None:
                self.is_dict = False
            if self.is_dict and len(self.values) % 2:
                raise ValueError("no value")
            self.has_comma = True


class LongLiteral:
    """A parser of long literals, which works from start to end without recursion."""

    def __init__(self, text: str) -> None:
        text = text.lstrip(" \t")
        blank = _BLANK_LINES.match(text)
        if blank and blank.end():
            text = text[blank.end() :]
            if text[:1] in {" ", "\t"}:
                raise ValueError("an indented line")
        self._text = text.rstrip("\r\n").rstrip(" \t\f")
        self._size = 0

    def value(self) -> Any:  # noqa: C901 - one branch for each kind of token
        """Parse the text and return its value.

        Raises:
            ValueError: the text is not a literal, or is not the printed form of any value.
            OverflowError: the value would take more than `LIMIT` bytes.
        """
        # The text itself may be a tuple without brackets.
        stack = [top := _Open("")]
        wants_value = True
        last, joined = "", 0
        for kind, token in self._tokens(stack):
            if kind != "sign":
                joined += not wants_value
                if not wants_value and not (kind == last == "text" and joined <= _JOINED):
                    raise ValueError("neither a comma nor an end")
                value = self._atom(kind, token)
                if wants_value:
                    top.values.append(value)
                else:
                    # Adjacent strings are concatenated.
                    top.values[-1] += value
                wants_value = False
            elif token in _OPENS:
                if not wants_value or len(stack) > _DEEPEST:
                    raise ValueError("too deep")
                stack.append(top := _Open(_OPENS[token]))
                self._take(_CONTAINER)
            elif token in {",", ":"}:
                if wants_value:
                    raise ValueError("no value")
                top.separate(token)
                wants_value = True
            else:
                if token != top.closes or not top.may_close(wants_value=wants_value):
                    raise ValueError("another end")
                value = stack.pop().value()
                top = stack[-1]
                top.values.append(value)
                wants_value = False
            last = kind
        if len(stack) > 1 or not top.values or (wants_value and not top.has_comma):
            raise ValueError("unfinished")
        return top.value()

    def _tokens(self, stack: list[_Open]) -> Iterator[tuple[str, str]]:
        text, at, end, match = self._text, 0, len(self._text), _TOKEN.match
        while at < end:
            found = match(text, at)
            if found is None:
                raise ValueError("no literal")
            at = found.end()
            kind = found.lastgroup or ""
            if len(stack) == 1 and found["space"] and _LINE_ENDS.intersection(found["space"]):
                raise ValueError("more than a line")
            token = found[kind]
            if token in _EMPTY and text[at : at + 1] == token[0]:
                raise ValueError("an unfinished text")
            yield kind, token

    def _take(self, size: int) -> None:
        self._size += size
        if self._size > LIMIT:
            raise OverflowError("A template's value is too large.")

    def _atom(self, kind: str, token: str) -> Any:
        self._take(_ATOM)
        if kind == "whole":
            return int(token)
        if kind == "fraction":
            return float(token)
        if kind == "name":
            return _NAMES[token]
        if kind == "text":
            # Each character of a string takes up to four bytes.
            self._take(4 * len(token))
            if token[0] in "'\"" and "\\" not in token and "\r" not in token:
                is_long = token[:3] in {"'''", '"""'} and len(token) >= len("''''''")
                return token[3:-3] if is_long else token[1:-1]
        return ast.literal_eval(token)


#: The variables of a template by name: config, parameters, stream_slice, response, record etc.
Context = Mapping[str, Any]

_SHOWN = 200
_ALIASES = ("stream_interval", "stream_partition")
_UNSUPPORTED = "stream_state"
_FALSE: tuple[Any, ...] = (
    "False",
    "false",
    "{}",
    "[]",
    "()",
    "",
    "0",
    "0.0",
    {},
    False,
    None,
    [],
    (),
    set(),
)
_MARKS = ("{{", "{%", "{#")
_NEWLINE = re.compile(r"\r\n|\r|\n")

#: The start of a possible literal. Other texts are not passed to Python's parser.
_LITERAL = re.compile(
    r"""[\s\\\#\ufeff]|[-+.\d'"(\[{]|True\b|False\b|None\b|set\b|[rRbBuU]{1,2}['"]"""
)
#: Dates, which start like literals but are not.
_DATE = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?)?", re.ASCII
)
#: Filters that return a value unchanged.
_LOOKUPS = frozenset({"default", "d", "first", "last"})
#: Variables whose strings are written by people: configuration and records.
_WRITTEN = frozenset({"config", "parameters", "record"})
#: Bits of an integer. Python does not print longer ones.
_LONGEST_NUMBER = 14_000
_SMALL = 18  # maximum digits that are parsed as an integer directly
#: Errors that a template's steps may raise, except TypeError.
_FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TemplateError,
    ValueError,
    re.error,
)


def is_template(text: object) -> bool:
    """Return whether a value is a string with an expression to evaluate."""
    return isinstance(text, str) and any(mark in text for mark in _MARKS)


def is_unsupported(text: str) -> bool:
    """Return whether a text uses a variable that the reference removed."""
    return _UNSUPPORTED in text


def evaluate(
    text: Any, context: Context, *, default: str | None = None, kinds: tuple[type, ...] = ()
) -> Any:
    """Evaluate a text in a context; values that are not strings are returned unchanged.

    Args:
        text: a template, or a plain text.
        context: the variables by name; `stream_interval` and `stream_partition` are `stream_slice`.
        default: evaluated instead if the result is empty, or if an attribute of a missing value is
            read.
        kinds: the types that the result may be parsed as; all types except complex if empty. A
            result of any other type remains a string.

    Raises:
        ConfigurationError: the template is invalid, uses unknown variables, exceeds its allowance
            or fails. A TypeError does not raise: the result is the template's text, as in the
            reference.
    """
    if not isinstance(text, str):
        return text
    try:
        made = _render(text, context)
    except UndefinedError:
        made = _NOTHING
    if made.text:
        return _value_of(text, made, kinds)
    if default is None:
        return None
    return _value_of(default, _render_or_raise(default, context), kinds)


def as_text(text: str, context: Context) -> str:
    """Evaluate a text in a context and return the result as a string.

    Raises:
        ConfigurationError: as for `evaluate`, and if an attribute of a missing value is read.
    """
    return str(_value_of(text, _render_or_raise(text, context), ()))


def as_truth(condition: str | bool, context: Context) -> bool:  # noqa: FBT001 - as in manifests
    """Evaluate a condition: an empty result, zero, an empty collection and "false" are false.

    Raises:
        ConfigurationError: as for `evaluate`.
    """
    if isinstance(condition, bool):
        return condition
    return evaluate(condition, context, default="False") not in _FALSE


def as_mapping(
    mapping: Mapping[str, Any], context: Context, *, kinds: tuple[type, ...] = ()
) -> dict[str, Any]:
    """Evaluate the keys and values of a mapping; keys always remain strings.

    Raises:
        ConfigurationError: as for `evaluate`.
    """
    return {
        evaluate(name, context, kinds=(str,)): evaluate(value, context, kinds=kinds)
        for name, value in mapping.items()
    }


def as_nested(value: Any, context: Context) -> Any:
    """Evaluate all texts in a value; keys of mappings whose values become None are removed.

    Raises:
        ConfigurationError: as for `evaluate`, or if a key becomes a collection.
    """
    if isinstance(value, Mapping):
        pairs = [(as_nested(key, context), as_nested(item, context)) for key, item in value.items()]
        try:
            return {key: item for key, item in pairs if item is not None}
        except TypeError:
            raise ConfigurationError(
                "A key of a mapping evaluates to a collection.",
                hint="Change the template so that it returns a string or a number.",
            ) from None
    if isinstance(value, list):
        return [as_nested(item, context) for item in value]
    return evaluate(value, context)


def variables_of(text: str) -> frozenset[str]:
    """Return the names of the variables that a text uses; a plain text uses none.

    Raises:
        ConfigurationError: the template is invalid.
    """
    return compile_cached(text).variables if is_template(text) else frozenset()


class _Rendered(NamedTuple):
    """The text that a template produced, and the value that it output last."""

    text: str
    shown: Any = None


_NOTHING = _Rendered("")


def _render_or_raise(text: str, context: Context) -> _Rendered:
    try:
        return _render(text, context)
    except UndefinedError as error:
        raise _template_error(text, error) from None


def parse_syntax(text: str) -> nodes.Template | None:
    """Return the syntax tree of a template, or None if it is invalid."""
    try:
        return parse_template(ENVIRONMENT, text)
    except TemplateSyntaxError:
        return None


def _render(text: str, context: Context) -> _Rendered:
    """Render a text.

    Raises:
        UndefinedError: an attribute of a missing value is read.
        ConfigurationError: rendering fails for another reason.
    """
    if is_unsupported(text):
        raise ConfigurationError(
            f"The template {quote_text(text)} reads `{_UNSUPPORTED}`, which is not supported.",
            hint="Use `stream_interval` instead.",
        )
    if not is_template(text):
        return _Rendered(_trim_newline(text))
    ready = compile_cached(text)
    variables = dict(context)
    if "stream_slice" in variables:
        variables.update(dict.fromkeys(_ALIASES, variables["stream_slice"]))
    if unknown := [name for name in ready.variables if name not in variables]:
        names = ", ".join(f"`{name}`" for name in sorted(unknown))
        raise ConfigurationError(
            f"The template {quote_text(text)} uses {names}, which does not exist there.",
            hint="Correct the spelling, or use a variable that is available in this "
            "part of the manifest.",
        )
    try:
        return _Rendered(*ready.render(variables))
    except UndefinedError:
        raise
    except TypeError:
        return _Rendered(text)
    except _FAILURES as error:
        raise _template_error(text, error) from None


@lru_cache(maxsize=8192)
def compile_cached(text: str) -> CompiledTemplate:
    """Return the compiled template.

    Raises:
        ConfigurationError: the template is invalid, or uses unknown filters.
    """
    try:
        return compile_template(text)
    except _FAILURES as error:
        raise _template_error(text, error) from None


def _template_error(text: str, error: BaseException) -> ConfigurationError:
    """Return the error to raise. Its message contains nothing but the template's own text."""
    if isinstance(error, TemplateSyntaxError):
        why = f"is not valid: {(error.message or '').rstrip('.')}"
    elif isinstance(error, SecurityError):
        why = "does something that templates must not do"
    elif isinstance(error, UndefinedError):
        named = [name for name in re.findall(r"'(\w+)'", str(error)) if name in text]
        why = (
            f"refers to {named[-1]!r}, which does not exist"
            if named
            else "reads an attribute of a missing value"
        )
    elif isinstance(error, OverflowError | MemoryError | RecursionError):
        why = "creates too many values, or repeats too often"
    else:
        why = f"fails with a {type(error).__name__}"
    return ConfigurationError(
        f"The template {quote_text(text)} {why}.", hint="Correct it in the manifest."
    )


def quote_text(text: str) -> str:
    """Return a text as error messages quote it."""
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def _trim_newline(text: str) -> str:
    """Return a plain text in the form of a rendered template: without a newline at its end."""
    if "\n" not in text and "\r" not in text:
        return text
    lines = _NEWLINE.split(text)
    return "\n".join(lines if lines[-1] else lines[:-1])


def _value_of(text: str, made: _Rendered, kinds: tuple[type, ...]) -> Any:
    """Return the value of a rendered text."""
    if not is_template(text):
        return _parse_plain(made.text, kinds)
    value = _parse_text(made.text, kinds)
    # If the manifest asks for numbers, they are accepted in any notation.
    if value is made.text or (kinds and str not in kinds):
        return value
    if isinstance(made.shown, str) and _is_sent_unchanged(text):
        return value if _is_plain_value(value, made.shown) else made.shown
    return made.text.strip() if _changes_notation(value, made.text, text) else value


@lru_cache(maxsize=8192)
def _is_sent_unchanged(text: str) -> bool:
    """Return whether a template returns a token, key or cursor, which must be sent back unchanged.

    A string from a record or the configuration may be a list in text form.
    """
    return is_lookup(text) and not compile_cached(text).variables <= _WRITTEN


def _is_plain_value(value: Any, text: str) -> bool:
    """Return whether a text may be parsed as a value: a number, or the text of an empty value."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_nothing = not value and isinstance(value, bool | list | dict | None)
    return (is_number or is_nothing) and str(value) == text


def _changes_notation(value: Any, made: str, text: str) -> bool:
    """Return whether a parsed literal would be sent in another notation than it was rendered."""
    if not compile_cached(text).variables:
        return False
    if isinstance(value, int) and value.bit_length() > _LONGEST_NUMBER:
        return True
    if isinstance(value, int | float | None):
        return str(value) != made.strip()
    if not is_lookup(text):
        return False
    # A looked-up value comes from JSON, so quotes and brackets belong to the string itself.
    return not isinstance(value, list | dict) or str(value) != made.strip()


@lru_cache(maxsize=8192)
def is_lookup(text: str) -> bool:
    """Return whether a template only looks up a value."""
    tree = parse_syntax(text)
    return tree is not None and _only_looks_up(tree.body)


def _only_looks_up(body: Sequence[nodes.Node]) -> bool:
    outputs = 0
    for node in body:
        if isinstance(node, nodes.If):
            branches = [node.body, *(child.body for child in node.elif_), node.else_]
            if not all(map(_only_looks_up, branches)):
                return False
            outputs += 1
        elif isinstance(node, nodes.Output):
            outputs_here = [
                child
                for child in node.nodes
                if not (isinstance(child, nodes.TemplateData) and not child.data.strip())
            ]
            if not all(map(_is_lookup, outputs_here)):
                return False
            outputs += len(outputs_here)
        else:
            return False
    return outputs <= 1


def _is_lookup(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Getattr | nodes.Getitem):
        return _is_lookup(node.node)
    if isinstance(node, nodes.Call):
        return isinstance(node.node, nodes.Getattr) and node.node.attr == "get"
    if isinstance(node, nodes.Filter):
        return node.name in _LOOKUPS and node.node is not None and _is_lookup(node.node)
    if isinstance(node, nodes.CondExpr):
        others = [node.expr1, *([] if node.expr2 is None else [node.expr2])]
        return all(map(_is_lookup, others))
    if isinstance(node, nodes.And | nodes.Or):
        return _is_lookup(node.left) and _is_lookup(node.right)
    return isinstance(node, nodes.Name | nodes.Const)


def _parse_plain(text: str, kinds: tuple[type, ...]) -> Any:
    value = _remembered(text, kinds)
    # Mutable values are not shared.
    return _parse_text(text, kinds) if isinstance(value, list | dict | set | tuple) else value


def _parse_text(text: str, kinds: tuple[type, ...]) -> Any:
    """Parse a text as a literal, or return it unchanged."""
    if text.isdecimal() and text.isascii() and len(text) <= _SMALL and text[0] != "0":
        value: Any = int(text)
    elif not _LITERAL.match(text) or _DATE.fullmatch(text):
        return text
    else:
        try:
            value = parse_literal(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return text
        except OverflowError as error:
            raise ConfigurationError(
                f"The output of a template has {len(text)} characters and too many values.",
                hint="Change the manifest to use a smaller part of the response.",
            ) from error
    if value is Ellipsis:
        return text
    return (
        value if (isinstance(value, kinds) if kinds else not isinstance(value, complex)) else text
    )


_remembered: Callable[[str, tuple[type, ...]], Any] = lru_cache(maxsize=8192)(_parse_text)
