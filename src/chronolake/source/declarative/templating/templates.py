"""Templates and the Python literals they produce.

Python literals in texts that templates make, read in bounded memory.

Python's own parser takes 500 bytes for each character of "1,1,1". It reads short texts; longer ones
are read here, piece by piece, and what is made of them is counted before it is made. Both give the
same, but for what no value is printed as: a long text with comments, arithmetic or `set()` in it
stays a text.

The templates of a manifest: texts that are evaluated with what a stream knows at the moment.

What a template makes is read as a Python literal if it is one, unless that would be spelled in
another way: "7" becomes 7 and "[1, 2]" a list, but "2.10", "1e5" and "1,2" stay texts. Tokens, keys
and cursors look like numbers now and then, and have to be sent as they came: of what an answer, a
slice or a token holds, a text that looks like a list stays a text, with the blanks around it. What
a manifest says without a template is read as the reference reads it: "2.10" is 2.1.
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
from chronolake.source.declarative.templating.sandbox import ENVIRONMENT, Compiled, compiled, parsed

if TYPE_CHECKING:
    from collections.abc import Iterator


#: Characters that Python's parser may have: it then needs some MiB.
SHORT: Final = 8_192
#: Bytes that the values of one text may take, as far as they are counted: some more, in fact.
LIMIT: Final = 64 << 20
#: Python's parser does not read brackets within more brackets than these.
_DEEPEST: Final = 200
#: Bytes of a container, and of any other value, each with its place in another.
_CONTAINER, _ATOM = 96, 64
#: Texts that stand side by side, and are one.
_JOINED: Final = 1_000
_EMPTY: Final = frozenset({"''", '""'})
_LINE_ENDS: Final = frozenset("\r\n")
_BITS: Final = 65_536

_SPACE: Final = re.compile(r"[ \t\f\r\n]*+")
_WITHIN_LINE: Final = re.compile(r"[ \t\f]*+")
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


def literal_of(text: str) -> Any:
    """Return the value of a text that is a Python literal.

    Raises:
        OverflowError: its value would take more memory than a template may have.
        Exception: it is not one; whatever `ast.literal_eval` raises then.
    """
    value = ast.literal_eval(text) if len(text) <= SHORT else LongText(text).value()
    if isinstance(value, int) and value.bit_length() > _BITS:
        raise ValueError("too long a number")
    return value


class _Open:
    """A container that is being read.

    Attributes:
        closes: the bracket at its end.
        values: what is in it so far; of a dictionary keys and values in turn.
        is_dict: whether it is a dictionary; None: nothing says so yet.
        has_comma: whether there was a comma, which makes a tuple.
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
            # A colon follows each key of a dictionary, and nothing in a set.
            if self.closes != "}" or self.is_dict is False or len(self.values) % 2 == 0:
                raise ValueError("a colon")
            self.is_dict = True
        else:
            if self.is_dict is None:
                self.is_dict = False
            if self.is_dict and len(self.values) % 2:
                raise ValueError("no value")
            self.has_comma = True


class LongText:
    """A text that is read from its beginning to its end, without recursion."""

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
        """Return what the text says.

        Raises:
            ValueError: it is not a literal, or has what no value is printed as.
            OverflowError: it would take more than `LIMIT` bytes.
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
                    # Texts side by side are one.
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
            # Another letter of a text takes four bytes at most.
            self._take(4 * len(token))
            if token[0] in "'\"" and "\\" not in token and "\r" not in token:
                is_long = token[:3] in {"'''", '"""'} and len(token) >= len("''''''")
                return token[3:-3] if is_long else token[1:-1]
        return ast.literal_eval(token)


#: The variables a template may name: config, parameters, stream_slice, response, record and so on.
Context = Mapping[str, Any]

_SHOWN = 200
_ALIASES = ("stream_interval", "stream_partition")
_REFUSED = "stream_state"
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

#: How a literal may begin; no other text need be looked at by Python's parser.
_LITERAL = re.compile(
    r"""[\s\\\#\ufeff]|[-+.\d'"(\[{]|True\b|False\b|None\b|set\b|[rRbBuU]{1,2}['"]"""
)
#: Dates begin like literals, and are none.
_DATE = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?)?", re.ASCII
)
#: Filters that give a value as it is.
_LOOKUPS = frozenset({"default", "d", "first", "last"})
#: Variables whose texts people write: in the configuration, and in records.
_WRITTEN = frozenset({"config", "parameters", "record"})
#: Bits of a number: Python does not print longer ones.
_LONGEST_NUMBER = 14_000
_SMALL = 18  # digits that are read as a number at once
#: What a template's steps may raise, but for a TypeError.
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
    """Whether a value is a text with something in it that is to be evaluated."""
    return isinstance(text, str) and any(mark in text for mark in _MARKS)


def is_refused(text: str) -> bool:
    """Whether a text reads what templates once knew, and the reference refuses today."""
    return _REFUSED in text


def evaluated(
    text: Any, context: Context, *, default: str | None = None, kinds: tuple[type, ...] = ()
) -> Any:
    """What a text makes with a context; what is no text comes back as it is.

    Args:
        text: a template, or a plain text.
        context: the variables by name; `stream_interval` and `stream_partition` are `stream_slice`.
        default: evaluated in its stead when it makes an empty text, or looks into what is missing.
        kinds: the types as which the result may be read; any but a complex number if empty. What is
            read as no such type stays a text.

    Raises:
        ConfigurationError: it is no template, names what the context does not tell, makes too much
            or fails; not for a TypeError, which gives the template itself, as in the reference.
    """
    if not isinstance(text, str):
        return text
    try:
        made = _rendered(text, context)
    except UndefinedError:
        made = _NOTHING
    if made.text:
        return _value_of(text, made, kinds)
    if default is None:
        return None
    return _value_of(default, _with_parts(default, context), kinds)


def as_text(text: str, context: Context) -> str:
    """The text of what a text makes with a context.

    Raises:
        ConfigurationError: as `evaluated` does, and when it looks into what is missing.
    """
    return str(_value_of(text, _with_parts(text, context), ()))


def as_truth(condition: str | bool, context: Context) -> bool:  # noqa: FBT001 - as manifests say
    """Whether a condition holds: unless it makes nothing, zero, an empty collection or "false".

    Raises:
        ConfigurationError: as `evaluated` does.
    """
    if isinstance(condition, bool):
        return condition
    return evaluated(condition, context, default="False") not in _FALSE


def as_mapping(
    mapping: Mapping[str, Any], context: Context, *, kinds: tuple[type, ...] = ()
) -> dict[str, Any]:
    """A mapping with its keys and values evaluated; a key stays a text whatever it looks like.

    Raises:
        ConfigurationError: as `evaluated` does.
    """
    return {
        evaluated(name, context, kinds=(str,)): evaluated(value, context, kinds=kinds)
        for name, value in mapping.items()
    }


def as_nested(value: Any, context: Context) -> Any:
    """A value with all texts in it evaluated; mappings lose the keys whose values become None.

    Raises:
        ConfigurationError: as `evaluated` does, or a key becomes what can be none.
    """
    if isinstance(value, Mapping):
        pairs = [(as_nested(key, context), as_nested(each, context)) for key, each in value.items()]
        try:
            return {key: each for key, each in pairs if each is not None}
        except TypeError:
            raise ConfigurationError(
                "A key of a mapping becomes a collection.", hint="Make it a text or a number."
            ) from None
    if isinstance(value, list):
        return [as_nested(each, context) for each in value]
    return evaluated(value, context)


def variables_of(text: str) -> frozenset[str]:
    """Return the names of the variables that a text reads: of a plain text there are none.

    Raises:
        ConfigurationError: it cannot be read as a template.
    """
    return made_ready(text).variables if is_template(text) else frozenset()


class _Made(NamedTuple):
    """The text that a template has made, and the value that it has put out last."""

    text: str
    shown: Any = None


_NOTHING = _Made("")


def _with_parts(text: str, context: Context) -> _Made:
    try:
        return _rendered(text, context)
    except UndefinedError as error:
        raise _failure(text, error) from None


def syntax_of(text: str) -> nodes.Template | None:
    """What a template says, unevaluated; None: it is none."""
    try:
        return parsed(ENVIRONMENT, text)
    except TemplateSyntaxError:
        return None


def _rendered(text: str, context: Context) -> _Made:
    """The text that a text makes.

    Raises:
        UndefinedError: it looks into what is missing.
        ConfigurationError: it fails in any other way.
    """
    if is_refused(text):
        raise ConfigurationError(
            f"The template {shown(text)} reads `{_REFUSED}`, which is not supported.",
            hint="Use `stream_interval` instead.",
        )
    if not is_template(text):
        return _Made(_unfolded(text))
    ready = made_ready(text)
    variables = dict(context)
    if "stream_slice" in variables:
        variables.update(dict.fromkeys(_ALIASES, variables["stream_slice"]))
    if unknown := [name for name in ready.variables if name not in variables]:
        names = ", ".join(f"`{name}`" for name in sorted(unknown))
        raise ConfigurationError(
            f"The template {shown(text)} names {names}, which is not known there.",
            hint="Correct its spelling, or use a variable that this place of the manifest has.",
        )
    try:
        return _Made(*ready.rendered(variables))
    except UndefinedError:
        raise
    except TypeError:
        return _Made(text)
    except _FAILURES as error:
        raise _failure(text, error) from None


@lru_cache(maxsize=8192)
def made_ready(text: str) -> Compiled:
    """A template that is ready to be evaluated.

    Raises:
        ConfigurationError: it is none, or calls filters that are not there.
    """
    try:
        return compiled(text)
    except _FAILURES as error:
        raise _failure(text, error) from None


def _failure(text: str, error: BaseException) -> ConfigurationError:
    """The error to raise, which says nothing that the template's own text does not say."""
    if isinstance(error, TemplateSyntaxError):
        why = f"cannot be read: {(error.message or '').rstrip('.')}"
    elif isinstance(error, SecurityError):
        why = "does what templates may not"
    elif isinstance(error, UndefinedError):
        named = [name for name in re.findall(r"'(\w+)'", str(error)) if name in text]
        why = f"looks for {named[-1]!r} in vain" if named else "looks into what is missing"
    elif isinstance(error, OverflowError | MemoryError | RecursionError):
        why = "makes too much, or repeats too often"
    else:
        why = f"fails with a {type(error).__name__}"
    return ConfigurationError(
        f"The template {shown(text)} {why}.", hint="Correct it in the manifest."
    )


def shown(text: str) -> str:
    """A text as errors quote it."""
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def _unfolded(text: str) -> str:
    """A plain text as a template's text is taken: with no newline at its end."""
    if "\n" not in text and "\r" not in text:
        return text
    lines = _NEWLINE.split(text)
    return "\n".join(lines if lines[-1] else lines[:-1])


def _value_of(text: str, made: _Made, kinds: tuple[type, ...]) -> Any:
    """Return the value of what a text has made."""
    if not is_template(text):
        return _plain(made.text, kinds)
    value = _read(made.text, kinds)
    # Where the manifest asks for numbers, it gets them however they are spelled.
    if value is made.text or (kinds and str not in kinds):
        return value
    if isinstance(made.shown, str) and _is_sent(text):
        return value if _is_plainly(value, made.shown) else made.shown
    return made.text.strip() if _is_respelled(value, made.text, text) else value


@lru_cache(maxsize=8192)
def _is_sent(text: str) -> bool:
    """Return whether a template gives a token, a key or a cursor: a value that is to be sent back.

    What a record or the configuration holds may be a list that is written as a text.
    """
    return looks_up(text) and not made_ready(text).variables <= _WRITTEN


def _is_plainly(value: Any, text: str) -> bool:
    """Return whether a text may be read as a value: it is a number, or how nothing is written."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_nothing = not value and isinstance(value, bool | list | dict | None)
    return (is_number or is_nothing) and str(value) == text


def _is_respelled(value: Any, made: str, text: str) -> bool:
    """Return whether a literal's value would be sent otherwise than the template has made it."""
    if not made_ready(text).variables:
        return False
    if isinstance(value, int) and value.bit_length() > _LONGEST_NUMBER:
        return True
    if isinstance(value, int | float | None):
        return str(value) != made.strip()
    if not looks_up(text):
        return False
    # What is only looked up is a value of JSON: quotes and the rest are a text's own.
    return not isinstance(value, list | dict) or str(value) != made.strip()


@lru_cache(maxsize=8192)
def looks_up(text: str) -> bool:
    """Return whether a template gives one of the values that it looks up, and nothing else."""
    tree = syntax_of(text)
    return tree is not None and _only_looks_up(tree.body)


def _only_looks_up(body: Sequence[nodes.Node]) -> bool:
    outputs = 0
    for node in body:
        if isinstance(node, nodes.If):
            branches = [node.body, *(one.body for one in node.elif_), node.else_]
            if not all(map(_only_looks_up, branches)):
                return False
            outputs += 1
        elif isinstance(node, nodes.Output):
            shown = [
                one
                for one in node.nodes
                if not (isinstance(one, nodes.TemplateData) and not one.data.strip())
            ]
            if not all(map(_is_lookup, shown)):
                return False
            outputs += len(shown)
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


def _plain(text: str, kinds: tuple[type, ...]) -> Any:
    value = _remembered(text, kinds)
    # What can be changed is not shared.
    return _read(text, kinds) if isinstance(value, list | dict | set | tuple) else value


def _read(text: str, kinds: tuple[type, ...]) -> Any:
    """A text as the literal it is, or as it is."""
    if text.isdecimal() and text.isascii() and len(text) <= _SMALL and text[0] != "0":
        value: Any = int(text)
    elif not _LITERAL.match(text) or _DATE.fullmatch(text):
        return text
    else:
        try:
            value = literal_of(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return text
        except OverflowError as error:
            raise ConfigurationError(
                f"A template's text of {len(text)} characters holds too many values.",
                hint="Let the manifest take less of the answer at once.",
            ) from error
    if value is Ellipsis:
        return text
    return (
        value if (isinstance(value, kinds) if kinds else not isinstance(value, complex)) else text
    )


_remembered: Callable[[str, tuple[type, ...]], Any] = lru_cache(maxsize=8192)(_read)
