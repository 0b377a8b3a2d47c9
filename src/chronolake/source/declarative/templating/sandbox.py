"""The sandbox that evaluates templates with limits on steps and memory.

A manifest is untrusted input, so that a template must not exhaust memory or run without end.
Jinja's sandbox blocks access to Python's internals, and thus to files. This module measures
everything that Jinja's sandbox allows: each call, filter, operator and loop iteration is a step,
and each result has a size. A template that exceeds its allowance is stopped by an OverflowError.
Steps that can produce large results from small inputs (`'a' * 10**9`) are measured before they are
run.

A template can read its variables but not change them, because other templates use the same values.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date
from datetime import time as clock_time
from functools import wraps
from sys import getsizeof
from types import GeneratorType
from typing import TYPE_CHECKING, Any, cast

from jinja2 import meta, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.filters import FILTERS as GENERAL_FILTERS
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment, SandboxedFormatter
from jinja2.visitor import NodeTransformer

from chronolake.source.declarative.templating.macros import (
    FILTERS,
    MACROS,
    regex_search,
    sanitize_url,
)
from chronolake.source.declarative.templating.times import raise_if_too_long

if TYPE_CHECKING:
    from jinja2.environment import Template


#: Warning filters are global to the process, so that only one thread may change them.
_parse_lock = threading.Lock()


def parse_template(environment: SandboxedEnvironment, text: str) -> nodes.Template:
    """Parse a template.

    Python warns about invalid escapes, which regular expressions in templates contain. Readers of a
    manifest cannot do anything about them, and parsing would fail if warnings were errors. The
    warnings are therefore suppressed.

    Raises:
        jinja2.TemplateSyntaxError: the template is invalid.
    """
    with _parse_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return environment.parse(text)


#: Steps and bytes that one evaluation is allowed, and the bytes counted for an element.
STEPS = 1_000_000
SIZE = 32_000_000
ELEMENT = 16
#: The maximum width of padding, digits of a fraction, and bits of an integer.
WIDTH = 100_000
DIGITS = 300
BITS = 65_536

#: Filters and macros for page layout. They can produce large results, and no request needs them.
_LAYOUT = {"batch", "center", "indent", "pprint", "slice", "urlize", "wordwrap", "xmlattr"}
_REFUSED_GLOBALS = {"lipsum", "range"}
#: Filters that do not convert their values to strings, so that the contents need not be counted.
_STRUCTURAL = frozenset(
    {"attr", "count", "d", "default", "dictsort", "first", "groupby", "items", "last", "length"}
    | {"list", "map", "max", "min", "random", "reject", "rejectattr", "reverse", "select"}
    | {"selectattr", "sort", "sum", "unique"}
)
#: Values that are constant, or counted already.
_COUNTED = (nodes.Const, nodes.Filter)
# Names of the filters that `_CounterInserter` inserts. No template can call them by these names.
_ROUNDS, _MADE, _JOINED = "a round", "a made value", "joined values"
_SLICED = "a sliced value"
#: Filters that split strings into pieces, each of which is a string object.
_TAKING_APART = frozenset(
    {"dictsort", "groupby", "items", "list", "map", "max", "min", "reject", "rejectattr", "select"}
    | {"selectattr", "sort", "sum", "title", "unique", "wordcount"}
)
#: The bytes of a piece of a string, and of one ASCII letter, which exists once per process. The
#: characters that end a line.
_PIECE, _LETTER = 88, 16
#: Additional bytes that URL encoding needs for each byte of a string.
_GROWS = 4
_LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
#: Methods that change their object.
_CHANGING = frozenset(
    {"add", "append", "appendleft", "clear", "difference_update", "discard", "extend"}
    | {"extendleft", "insert", "intersection_update", "pop", "popitem", "popleft", "remove"}
    | {"reverse", "rotate", "setdefault", "sort", "symmetric_difference_update", "update"}
)
#: The maximum length of a regular expression. Python's compiled form takes 100 bytes per letter.
PATTERN = 10_000

_SPECIFIER = re.compile(r"%(?:\([^()]*\))?[#0\- +]*(\*|\d+)?(?:\.(\*|\d+))?")
_NUMBER = re.compile(r"\d+")


class _Allowance:
    """The remaining steps and bytes of an evaluation, its variables, and its last output.

    Attributes:
        steps: the remaining steps.
        size: the remaining bytes.
        shown: the value that was output last.
    """

    __slots__ = ("_given", "_shared", "shown", "size", "steps")

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self.steps = STEPS
        self.size = SIZE
        self.shown: Any = None
        self._given = given or {}
        self._shared: set[int] | None = None

    def is_given(self, owner: object) -> bool:
        """Return whether a value is a variable or part of one, so that other templates share it."""
        if self._shared is None:
            self._shared = set()
            left: list[Any] = list(self._given.values())
            while left:
                node = left.pop()
                if isinstance(node, str | bytes | int | float | None) or id(node) in self._shared:
                    continue
                self._shared.add(id(node))
                if isinstance(node, Mapping):
                    left += node.values()
                elif isinstance(node, Sequence | AbstractSet):
                    left += node
                left += getattr(node, "__dict__", {}).values()
        return id(owner) in self._shared

    def step(self, size: int = 0) -> None:
        """Count a step that produces `size` bytes.

        Raises:
            OverflowError: the steps or the bytes are used up.
        """
        self.steps -= 1
        self.size -= size
        if self.steps < 0 or self.size < 0:
            raise OverflowError("A template exceeds its limit of steps or bytes.")

    def weigh(self, value: object) -> int:
        """Return the size of everything that is printed if a value is converted to a string.

        Raises:
            OverflowError: the size exceeds the remaining bytes; also for a value that contains
                itself.
        """
        if isinstance(value, str):
            return _text_size(value)
        size, left = 0, [value]
        while left:
            node = left.pop()
            if isinstance(node, str):
                size += _text_size(node)
            elif isinstance(node, bytes | bytearray):
                size += len(node)
            elif isinstance(node, int):
                size += node.bit_length() // 3
            elif isinstance(node, Mapping):
                size += 2 * ELEMENT * len(node)
                left += node.keys()
                left += node.values()
            elif isinstance(node, Sequence | AbstractSet):
                size += ELEMENT * len(node)
                left += node
            if size > self.size:
                raise OverflowError("A template's value is too large.")
        return size


_allowance: ContextVar[_Allowance] = ContextVar("allowance")


@dataclass(frozen=True, slots=True)
class CompiledTemplate:
    """A compiled template.

    Attributes:
        variables: the names that its context must define.
    """

    template: Template
    variables: frozenset[str]

    def render(self, context: Mapping[str, Any]) -> tuple[str, Any]:
        """Render the template; return the text and the value that was output last.

        Raises:
            OverflowError: the template needs more steps or bytes than allowed.
            Exception: any error that the template's own steps raise.
        """
        _allowance.set(allowance := _Allowance(context))
        return self.template.render(context), allowance.shown


def compile_template(text: str) -> CompiledTemplate:
    """Compile a template.

    Raises:
        jinja2.TemplateSyntaxError: the template is invalid, or includes other templates.
    """
    # Jinja evaluates constant expressions during compilation.
    _allowance.set(_Allowance())
    tree = _CounterInserter().visit(parse_template(ENVIRONMENT, text))
    variables = frozenset(meta.find_undeclared_variables(tree))
    return CompiledTemplate(ENVIRONMENT.from_string(tree), variables)


class _CounterInserter(NodeTransformer):
    """A transformer that inserts counters into loops, literals, slices, `in` and `~`.

    Jinja has no hooks for them.
    """

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802 - Jinja's name
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _pipe(node.node, _SLICED)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802 - Jinja's name
        self.generic_visit(node)
        for operand in node.ops:
            # The whole value is searched. Literals are counted when they are made.
            if operand.op in {"in", "notin"} and not isinstance(operand.expr, _COUNTED):
                operand.expr = _pipe(operand.expr, _SLICED)
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - Jinja's name
        if node.recursive:
            raise TemplateSyntaxError("recursive loops are not supported", node.lineno)
        texts = [part.data for part in node.find_all(nodes.TemplateData)]
        texts += [str(constant.value) for constant in node.find_all(nodes.Const)]
        self.generic_visit(node)
        node.iter = _pipe(cast("nodes.Expr", node.iter), _ROUNDS, nodes.Const(sum(map(len, texts))))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _pipe(nodes.List(node.nodes, lineno=node.lineno), _JOINED)

    def visit_List(self, node: nodes.List | nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _pipe(node, _MADE)

    visit_Dict = visit_List  # noqa: N815

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _pipe(node, _MADE) if node.ctx == "load" else node

    def visit_Include(self, node: nodes.Stmt) -> nodes.Node:  # noqa: N802
        raise TemplateSyntaxError("templates cannot include others", node.lineno)

    visit_Import = visit_FromImport = visit_Extends = visit_Include  # noqa: N815


def _pipe(value: nodes.Expr, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(
        value, name, list(args), [], None, None, lineno=value.lineno, environment=ENVIRONMENT
    )


class _Environment(SandboxedEnvironment):
    """Jinja's sandbox with an allowance."""

    intercepted_binops = frozenset({"+", "*", "**", "//", "%"})

    def __init__(self) -> None:
        super().__init__(finalize=_note_output)
        self.filters = {
            name: _measure_filter(name, run)
            for name, run in {**GENERAL_FILTERS, **FILTERS, **_GROWING}.items()
            if name not in _LAYOUT
        } | {_ROUNDS: _count_steps, _MADE: _measure, _JOINED: _join_values, _SLICED: _measure_slice}
        self.globals.update(MACROS)
        for name in _REFUSED_GLOBALS:
            del self.globals[name]

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # The size of `translate`'s result cannot be bounded cheaply.
        return attr != "translate" and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        text, formatter = str(value.__self__), _Formatter(self)
        if value.__name__ == "format":
            return lambda *args, **options: formatter.vformat(text, args, options)
        return lambda options: formatter.vformat(text, (), options)

    def call(self, context: Context, obj: Any, /, *args: Any, **options: Any) -> Any:
        allowance = _allowance.get()
        # A list that is extended by an iterator over itself never ends, so iterators are counted.
        args = tuple(
            _count_steps(value) if isinstance(value, GeneratorType | reversed) else value
            for value in args
        )
        allowance.step(sum(map(allowance.weigh, (*args, *options.values()))))
        _raise_if_changing(obj, args)
        if any(getattr(value, "__name__", "") in _CHANGING for value in (*args, *options.values())):
            # `max(key=config.pop)` would call it.
            raise SecurityError("A method that changes values must not be passed as an argument.")
        if obj is sanitize_url:
            allowance.step(sum(_GROWS * allowance.weigh(value) for value in args))
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str | bytes | int):
            args = _check_method(owner, obj.__name__, args, options)
        if _is_of_times(owner):
            for text in (*args, *options.values()):
                if isinstance(text, str):
                    raise_if_too_long(text)
        made = super().call(context, obj, *args, **options)
        allowance.step(_shallow_size(made))
        return made

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        allowance = _allowance.get()
        if isinstance(left, int) and isinstance(right, int):
            _check_integers(operator, left, right)
        elif operator == "*":
            for times, value in ((left, right), (right, left)):
                if isinstance(times, int) and isinstance(value, Sequence):
                    allowance.step(max(times, 0) * allowance.weigh(value))
        elif operator == "%" and isinstance(left, str | bytes):
            _check_percent(left, right)
        made = super().call_binop(context, operator, left, right)
        allowance.step(allowance.weigh(made))
        return made


class _Formatter(SandboxedFormatter):
    """`str.format` with counted results."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        allowance = _allowance.get()
        if any(int(number) > WIDTH for number in _NUMBER.findall(format_spec)):
            raise OverflowError("A template pads too widely.")
        allowance.step(allowance.weigh(value))
        if isinstance(value, date | clock_time):
            raise_if_too_long(format_spec)
        made = super().format_field(value, format_spec)
        allowance.step(len(made))
        return made


def _raise_if_changing(method: Any, args: tuple[Any, ...]) -> None:
    """Raise SecurityError if a method would change the template's variables."""
    if getattr(method, "__name__", "") not in _CHANGING:
        return
    # `dict.clear(config)` has its object as an argument.
    changed = [method.__self__] if hasattr(method, "__self__") else args[:1]
    if any(map(_allowance.get().is_given, changed)):
        raise SecurityError("A template must not change its variables.")


def _text_size(text: str) -> int:
    return len(text) if text.isascii() else getsizeof(text)


def _shallow_size(value: object) -> int:
    if isinstance(value, str):
        return _text_size(value)
    return getsizeof(value) if isinstance(value, bytes | list | tuple | dict | set) else 0


def _is_of_times(owner: object) -> bool:
    """Return whether a method belongs to a datetime, date or time, or to their classes."""
    kinds = (date, clock_time)
    return isinstance(owner, kinds) or (isinstance(owner, type) and issubclass(owner, kinds))


def _measure_slice(value: Any) -> Any:
    """Return the value after counting what a slice copies, or `in` searches: its own bytes."""
    _allowance.get().step(_shallow_size(value))
    return value


def _letter_sizes(text: str) -> int:
    """Return the bytes of a string's letters, each as a separate string."""
    return len(text) * (_LETTER if text.isascii() else _PIECE)


def _check_integers(operator: str, left: int, right: int) -> None:
    bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
    if bits > BITS:
        raise OverflowError("A template's number is too large.")


def _check_percent(template: str | bytes, values: Any) -> None:
    """Count the result of `%`: each specifier may print the longest value with padding."""
    allowance = _allowance.get()
    text = template.decode("latin-1") if isinstance(template, bytes) else template
    if isinstance(values, Mapping):
        values = tuple(values.values())
    elif not isinstance(values, tuple):
        values = (values,)
    numbers = [abs(value) for value in values if isinstance(value, int)]
    longest = max(map(allowance.weigh, values), default=0)
    for found in _SPECIFIER.finditer(text):
        if text.startswith("(", found.end()):
            raise OverflowError("A name in a template contains brackets.")
        for width in found.groups(default="0"):
            allowance.step(max(numbers, default=0) if width == "*" else int(width))
        allowance.step(longest)


def _check_method(
    owner: str | bytes | int, name: str, args: tuple[Any, ...], options: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return the arguments of a string's or number's method after counting its possible result."""
    allowance = _allowance.get()
    numbers = [abs(value) for value in (*args, *options.values()) if isinstance(value, int)]
    if max(numbers, default=0) > WIDTH:
        raise OverflowError("A template pads too widely.")
    if isinstance(owner, int):
        return args
    if name in {"split", "rsplit"}:
        by: Any = args[0] if args else options.get("sep")
        allowance.step(_PIECE * (owner.count(by) if by else len(owner) // 2))
    if name == "splitlines":
        text = owner if isinstance(owner, str) else owner.decode("latin-1")
        allowance.step(_PIECE * sum(map(text.count, _LINE_ENDS)))
    if name == "join" and args:
        parts = list(_count_steps(args[0], len(owner)))
        allowance.step(sum(map(allowance.weigh, parts)))
        return (parts, *args[1:])
    if name == "replace" and len(args) > 1:
        allowance.step(owner.count(args[0]) * len(args[1]))
    if name == "expandtabs":
        tab: Any = "\t" if isinstance(owner, str) else b"\t"
        allowance.step(owner.count(tab) * max(numbers, default=8))
    return args


def _count_steps(values: Iterable[Any], weight: int = 0) -> Iterator[Any]:
    """Yield the values, each counted as a step of `weight` bytes."""
    allowance = _allowance.get()
    for value in values:
        allowance.step(weight)
        yield value


def _measure(value: Any) -> Any:
    """Return the value after counting all its contents."""
    allowance = _allowance.get()
    allowance.step(allowance.weigh(value))
    return value


def _note_output(value: Any) -> Any:
    """Count a value that is output, and store it before it becomes a string."""
    _allowance.get().shown = _measure(value)
    return value


def _join_values(values: Iterable[Any], separator: str = "") -> str:
    return separator.join(str(_measure(value)) for value in _count_steps(values, len(separator)))


def _measure_filter(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that counts its arguments and its result."""

    @wraps(run)  # also marks, for Jinja, which internal arguments the filter needs
    def measure_and_run(*args: Any, **options: Any) -> Any:
        allowance = _allowance.get()
        for value in (*args, *options.values()):
            if isinstance(value, str | bytes | int) or (
                name not in _STRUCTURAL
                and isinstance(value, Mapping | Sequence | AbstractSet)
                and not isinstance(value, Context)
            ):
                allowance.step(allowance.weigh(value))
        if name in _TAKING_APART and args:
            # The environment or the context may be the first argument.
            allowance.step(
                sum(_letter_sizes(value) for value in args[:2] if isinstance(value, str))
            )
        if name == "urlencode":
            allowance.step(sum(_GROWS * allowance.weigh(value) for value in args[:1]))
        made = run(*args, **options)
        allowance.step(_shallow_size(made))
        return made

    return measure_and_run


def _format(value: Any, *args: Any, **options: Any) -> Any:
    text, values = str(value), options or args
    _check_percent(text, values)
    return text % values


@pass_context
def _join(context: Context, value: Any, d: Any = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = GENERAL_FILTERS["map"](context, value, attribute=attribute)
    return _join_values(value, str(d))


def _replace(s: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = str(s), str(old), str(new)
    _allowance.get().step(text.count(old) * len(new))
    return text.replace(old, new, -1 if count is None else count)


def _round(value: Any, precision: int = 0, method: Any = "common") -> Any:
    if abs(precision) > DIGITS:
        raise OverflowError("A template rounds to too many digits.")
    return GENERAL_FILTERS["round"](value, precision, method)


@pass_context
def _tojson(context: Context, value: Any, indent: int | None = None) -> Any:
    if indent is not None and indent > DIGITS:
        raise OverflowError("A template indents too far.")
    return GENERAL_FILTERS["tojson"](context.eval_ctx, value, indent)


def _raise_if_long(regex: str) -> None:
    if len(regex) > PATTERN:
        raise OverflowError("A template's regular expression is too long.")


def _regex_search(value: str, regex: str) -> str:
    """Return the first group of a pattern's first match, or an empty string."""
    _raise_if_long(regex)
    return regex_search(value, regex)


def _regex_replace(value: str, regex: str, replacement: str) -> str:
    """Replace a pattern's matches by a string that may refer to their groups."""
    _raise_if_long(regex)
    groups = replacement.count("\\")
    _allowance.get().step(
        sum(len(replacement) + groups * len(found[0]) for found in re.finditer(regex, value))
    )
    return re.sub(regex, replacement, value)


#: Filters that can produce large results from small inputs, and count them in advance.
_GROWING: dict[str, Callable[..., Any]] = {
    "format": _format,
    "join": _join,
    "regex_replace": _regex_replace,
    "regex_search": _regex_search,
    "replace": _replace,
    "round": _round,
    "tojson": _tojson,
}

ENVIRONMENT = _Environment()
