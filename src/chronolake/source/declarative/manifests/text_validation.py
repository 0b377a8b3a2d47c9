"""Static validation of the texts and keys of a manifest.

Unknown keys are ignored, as in the reference, because they may be intentional. Keys that are
similar to a field of their component are reported.

None of these problems keeps a stream from being read: a text that is never evaluated does no harm.
"""

from __future__ import annotations

import ast
import codecs
import difflib
import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final, get_args

from chronolake.durations import is_longer, length_of
from chronolake.formatting import did_you_mean
from chronolake.source.declarative.manifests.problems import is_open
from chronolake.source.declarative.manifests.reference_validation import (
    CONDITIONS,
    DURATIONS,
    ENCODINGS,
    FORMATS,
    METHODS,
    NUMBERS,
    OPAQUE,
    PATHS,
    PATTERNS,
    STATUSES,
    UNTYPED,
    URLS,
    VARIABLES,
    WHOLE,
)
from chronolake.source.declarative.manifests.stream_validation import REQUESTER
from chronolake.source.declarative.models import (  # noqa: F401 - they define all components
    requests,
    spec,
    streams,
)
from chronolake.source.declarative.models.base import Component
from chronolake.source.declarative.templating.template_checks import (
    Fault,
    find_faults,
    find_format_faults,
    find_negative_faults,
    find_pattern_faults,
)
from chronolake.source.declarative.templating.templates import is_template, quote_text
from chronolake.source.declarative.templating.times import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from chronolake.source.declarative.manifests.problems import Problem, Spot


_TOKENS: Final = frozenset({("CursorPagination", "cursor_value")})
#: The texts that conditions may consist of.
_CONSTANTS: Final = frozenset({"true", "false", "1", "0"})
#: The minimum similarity (0 to 1) at which a key is taken for a misspelled field.
_CLOSE: Final = 0.8


def find_misspelled(node: Mapping[str, Any], kind: str) -> Iterator[tuple[str, str]]:
    """Yield the unknown keys of a component, each with the field that it is similar to.

    Args:
        node: the component, with inherited values filled in.
        kind: its `type`.
    """
    fields = _fields_by_type().get(kind)
    if fields is None or kind.startswith("Custom"):
        return
    inherited = node.get("$parameters")
    given = inherited if isinstance(inherited, dict) else {}
    # A missing required field is reported separately, with the key that is similar to it.
    left = [name for name, is_required in fields.items() if name not in node and not is_required]
    for key in node:
        if key in fields or key in given:
            continue
        if near := difflib.get_close_matches(key, left, n=1, cutoff=_CLOSE):
            yield key, near[0]


@cache
def _fields_by_type() -> dict[str, dict[str, bool]]:
    """Return the fields of each component type, and whether they are required."""
    return {
        name: {
            field.alias or key: field.is_required() for key, field in component.model_fields.items()
        }
        for component in _subclasses(Component)
        if "type" in component.model_fields
        for name in get_args(component.model_fields["type"].annotation)
    }


def _subclasses(kind: type[Component]) -> Iterator[type[Component]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


_Keys = tuple[str | int, ...]
_METHODS: Final = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
_STATUSES: Final = range(100, 1000)
_SCHEME: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
_JSON_PATH: Final = re.compile(r"\$[.\[]|\$$")
_PERIODS: Final = ("DAY", "MONTH", "WEEK")


def problems_of_texts(
    component: Any,
    spot: Spot,
    stream: str | None = None,
    *,
    kind: str = "",
    open_to: Sequence[Sequence[str]] = (),
) -> list[Problem]:
    """Return the problems of the texts in a component and in its subcomponents.

    Args:
        component: the component, with inherited values filled in.
        spot: the location of the component.
        stream: the stream that the component belongs to, or None.
        kind: the component's type, if it has no `type` key.
        open_to: paths whose values will be replaced, optionally patterns or templates. Problems at
            these paths are ignored.
    """
    carried = _extra_fields_in(component)
    return [
        spot.within(component, keys).problem(fault.message, stream, fault.hint)
        for keys, fault in _check_component(component, (), kind, carried)
        if not is_open(keys, open_to)
    ]


def _extra_fields_in(component: Any) -> frozenset[str] | None:
    """Return the extra fields of partitions, or None if a custom class determines them."""
    found: set[str] = set()
    left = [component]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            if node.get("type") == "CustomPartitionRouter":
                return None
            found.update(field for field, _ in _texts_in(node.get("extra_fields"), ()))
            left += node.values()
        elif isinstance(node, list):
            left += node
    return frozenset(found)


def _check_component(
    node: Any, keys: _Keys, place: str, carried: frozenset[str] | None
) -> Iterator[tuple[_Keys, Fault]]:
    if isinstance(node, list):
        for number, item in enumerate(node):
            yield from _check_component(item, (*keys, number), place, carried)
        return
    if not isinstance(node, dict):
        return
    reported = node.get("type")
    kind = (
        reported
        if isinstance(reported, str)
        else UNTYPED.get(place, place if "." not in place else "")
    )
    for key, near in find_misspelled(node, kind):
        yield (*keys, key), Fault(f"a {kind} has no `{key}`", f"Did you mean {near!r}?")
    if kind == "DatetimeBasedCursor":
        yield from _check_cursor(node, keys)
    elif kind == "ListPartitionRouter":
        yield from _check_list(node.get("values"), (*keys, "values"))
    for name, value in node.items():
        for within, fault in _check_field(kind, name, value, carried):
            yield (*keys, name, *within), fault
        # Only a custom class knows its options.
        is_known = not kind.startswith("Custom") or name == "parent_stream_configs"
        if name not in OPAQUE and is_known:
            yield from _check_component(value, (*keys, name), f"{kind}.{name}", carried)


def _check_field(
    kind: str, name: str, value: Any, carried: frozenset[str] | None
) -> Iterator[tuple[_Keys, Fault]]:
    field = (kind, name)
    if field in VARIABLES:
        known: frozenset[str] | None = VARIABLES[field]
        if kind == REQUESTER:
            known = None if carried is None or known is None else known | carried
        for text, within in _templates_in(field, value):
            for fault in find_faults(text, known):
                yield within, fault
    for fields, look in _TEXT_CHECKS:
        if field in fields:
            for text_or_number, within in _plain_in(value, is_always=field not in VARIABLES):
                for fault in look(text_or_number):
                    yield within, fault


def _templates_in(field: tuple[str, str], value: Any) -> Iterator[tuple[str, _Keys]]:
    """Return the texts of a field that are evaluated, with their keys."""
    if field == ("ListPartitionRouter", "values") and not isinstance(value, str):
        return iter(())
    # A component in this field reports its own texts.
    is_component = isinstance(value, dict) and value.get("type") == "MinMaxDatetime"
    return iter(()) if is_component else _texts_in(value, ())


def _texts_in(value: Any, keys: _Keys) -> Iterator[tuple[str, _Keys]]:
    """Yield the texts of a value, including keys of mappings but not texts of components."""
    if isinstance(value, str):
        yield value, keys
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _texts_in(item, (*keys, number))
    elif isinstance(value, dict) and value.get("type") != "QueryProperties":
        for name, item in value.items():
            if name != "$parameters":
                yield str(name), (*keys, name)
                yield from _texts_in(item, (*keys, name))


def _plain_in(value: Any, *, is_always: bool) -> Iterator[tuple[Any, _Keys]]:
    """Yield the texts and numbers of a field, without templates if the field may contain them."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            for found, _ in _plain_in(item, is_always=is_always):
                yield found, (number,)
    elif isinstance(value, str | int) and value != "" and (is_always or not is_template(value)):
        yield value, ()


def _only_text(look: Callable[[str], Iterator[Fault]]) -> Callable[[Any], Iterator[Fault]]:
    return lambda value: look(value) if isinstance(value, str) else iter(())


def _check_cursor(node: dict[str, Any], keys: _Keys) -> Iterator[tuple[_Keys, Fault]]:
    """Yield the problems of a cursor that concern several of its fields."""
    step, granularity = node.get("step"), node.get("cursor_granularity")
    if bool(step) is not bool(granularity):
        yield (
            (*keys, "step" if step else "cursor_granularity"),
            Fault(
                "a cursor needs both `step` and `cursor_granularity`, or neither",
                "`step` is the length of a slice, `cursor_granularity` the resolution "
                "of the API's times.",
            ),
        )
    elif _is_longer(granularity, step):
        yield (
            (*keys, "cursor_granularity"),
            Fault(
                f"the granularity {granularity!r} is longer than the step {step!r}, so that slices "
                "would end before they begin",
                "`cursor_granularity` is the resolution of the API's times, for example PT1S.",
            ),
        )
    text = node.get("datetime_format")
    if isinstance(text, str):
        # A format that is not used for parsing may have more directives.
        for fault in find_format_faults(text, is_read=not node.get("cursor_datetime_formats")):
            yield (*keys, "datetime_format"), fault
    yield from _check_times(node, keys)
    clamping = node.get("clamping")
    target = clamping.get("target") if isinstance(clamping, dict) else None
    if isinstance(target, str) and not is_template(target) and target not in _PERIODS:
        hint = did_you_mean(target, _PERIODS, "Use DAY, MONTH, or WEEK with a `weekday`.")
        yield (*keys, "clamping", "target"), Fault(f"the target {target} does not exist", hint)


def _is_longer(duration: Any, other: Any) -> bool:
    """Return whether a duration is longer than another one; False unless both are positive."""
    try:
        return is_longer(length_of(duration), length_of(other))
    except (OverflowError, TypeError, ValueError):
        return False


def _check_whole_number(text: str) -> Iterator[Fault]:
    try:
        int(text)
    except ValueError:
        yield Fault(
            f"{text!r} is not an integer", "Write an integer, or a template that returns one."
        )


def _check_number(text: str) -> Iterator[Fault]:
    try:
        float(text)
    except ValueError:
        yield Fault(f"{text!r} is not a number", "Write a number, or a template that returns one.")


def _check_condition(text: str) -> Iterator[Fault]:
    if text.strip().lower() not in _CONSTANTS:
        yield Fault(
            f"the condition {quote_text(text)} contains no template, and is always true",
            "Write it between {{ and }}.",
        )


def _check_token(text: str) -> Iterator[Fault]:
    yield Fault(
        f"{quote_text(text)} contains no template, and is the token of every page",
        "Write it between {{ and }}.",
    )


def _check_list(value: Any, keys: _Keys) -> Iterator[tuple[_Keys, Fault]]:
    """Yield a problem if a text is neither a list nor a template."""
    if not isinstance(value, str) or is_template(value):
        return
    try:
        is_list = isinstance(ast.literal_eval(value), list | tuple)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        is_list = False
    if not is_list:
        message = f"{quote_text(value)} is not a list"
        yield keys, Fault(message, "Write a list, or a template that returns one.")


def _check_times(node: dict[str, Any], keys: _Keys) -> Iterator[tuple[_Keys, Fault]]:
    """Yield the times of a cursor that do not match their format."""
    own = node.get("datetime_format")
    for name in ("start_datetime", "end_datetime"):
        reported = node.get(name)
        within: _Keys = (*keys, name)
        form = own
        if isinstance(reported, dict):
            form = reported.get("datetime_format") or own
            reported, within = reported.get("datetime"), (*within, "datetime")
        if not isinstance(reported, str) or not isinstance(form, str) or is_template(reported):
            continue
        if reported and not is_template(form) and not any(find_format_faults(form)):
            try:
                parse_time(reported, form)
            except ValueError:
                yield (
                    within,
                    Fault(
                        f"the time {reported!r} does not match the format {form}",
                        "Write it in the datetime_format, or correct the format.",
                    ),
                )


def _check_method(text: str) -> Iterator[Fault]:
    if text.upper() not in _METHODS:
        hint = did_you_mean(text, _METHODS, f"Use one of {', '.join(_METHODS)}.")
        yield Fault(f"{text} is not a valid HTTP method", hint)


def _check_status(value: Any) -> Iterator[Fault]:
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if isinstance(number, int) and number not in _STATUSES:
        yield Fault(
            f"{number} is not a valid HTTP status code",
            "Status codes have three digits, for example 429.",
        )


def _check_encoding(text: str) -> Iterator[Fault]:
    try:
        codecs.lookup(text)
    except (LookupError, ValueError):
        yield Fault(
            f"the encoding {text!r} does not exist",
            "Use an encoding that Python supports, for example utf-8.",
        )


def _check_url(text: str) -> Iterator[Fault]:
    found = _SCHEME.match(text)
    if found and found[1].lower() not in {"http", "https"}:
        yield Fault(f"{found[1]}:// is not supported", "Use a URL that begins with https://.")


def _check_path_segment(text: str) -> Iterator[Fault]:
    if _JSON_PATH.match(text):
        yield Fault(
            f"{text!r} is a JSONPath, but keys are expected",
            "For $.data.items, write the keys data and items.",
        )


_TextCheck = tuple["Collection[tuple[str, str]]", "Callable[[Any], Iterator[Fault]]"]
_TEXT_CHECKS: Final[tuple[_TextCheck, ...]] = (
    (DURATIONS, _only_text(find_negative_faults)),
    (FORMATS, _only_text(find_format_faults)),
    (PATTERNS, _only_text(find_pattern_faults)),
    (WHOLE, _only_text(_check_whole_number)),
    (NUMBERS, _only_text(_check_number)),
    (CONDITIONS, _only_text(_check_condition)),
    (_TOKENS, _only_text(_check_token)),
    (PATHS, _only_text(_check_path_segment)),
    (STATUSES, _check_status),
    (ENCODINGS, _only_text(_check_encoding)),
    (METHODS, _only_text(_check_method)),
    (URLS, _only_text(_check_url)),
)
