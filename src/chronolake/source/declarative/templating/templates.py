"""The templates of a manifest: texts that are evaluated with what a stream knows at the moment.

What a template makes is read as a Python literal if it is one, unless that would be spelled in
another way: "7" becomes 7 and "[1, 2]" a list, but "2.10", "1e5" and "1,2" stay texts. Tokens, keys
and cursors look like numbers now and then, and have to be sent as they came: of what an answer, a
slice or a token holds, a text that looks like a list stays a text, with the blanks around it. What
a manifest says without a template is read as the reference reads it: "2.10" is 2.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError, UndefinedError

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.templating.literals import literal_of
from chronolake.source.declarative.templating.sandbox import ENVIRONMENT, Compiled, compiled
from chronolake.source.declarative.templating.syntax import parsed

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
