"""Problems of a manifest, with their line numbers."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from chronolake.formatting import did_you_mean
from chronolake.source.declarative.manifests.yaml_source import is_unresolved, line_of, value_of
from chronolake.source.declarative.models.base import RUNNABLE
from chronolake.source.declarative.templating.templates import is_template, quote_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

#: The parts that pydantic adds to the path of a value to name its assumed type.
_KIND: Final = re.compile(r"[A-Z]\w*|(tagged-union|tuple|function|nullable)\[.*\]")
_PLAIN: Final = frozenset({"bool", "float", "int", "str"})
_QUOTED: Final = re.compile(r"'([^']+)'")
_LEFT_OUT: Final = "To read only the streams that do not need it, list them in `only`."
#: The minimum similarity (0 to 1) at which a key is taken for a misspelled missing key.
_CLOSE: Final = 0.75


#: What custom classes that cannot be run would replace.
_IN_PLACE: Final = {
    "CustomIncrementalSync": "that replaces the cursor, which determines slices, state and history",
    "CustomRequester": "that replaces the requester, which sends and limits requests",
    "CustomRetriever": "that replaces the retriever, which reads slices page by page",
}


@dataclass(frozen=True)
class Problem:
    """A problem that keeps a part of a manifest from being used.

    Attributes:
        line: the line, starting at 1, or None if the problem concerns the whole file.
        path: the path of the keys.
        message: the description.
        stream: the stream that the problem concerns, or None.
        hint: how to correct it, or None.
        streams: the streams that cannot be read because of it, if it concerns several.
        is_warning: whether the stream can still be read; the part only has no effect.
    """

    line: int | None
    path: str
    message: str
    stream: str | None = None
    hint: str | None = None
    streams: tuple[str, ...] = ()
    is_warning: bool = False


@dataclass(frozen=True)
class Spot:
    """The location of a value in a manifest.

    Attributes:
        line: the line, starting at 1, or None if the value has no line of its own.
        path: the path of the keys.
    """

    line: int | None
    path: str

    @classmethod
    def of(cls, whole: Any, keys: Iterable[str | int]) -> Spot:
        """Return the location of a value in a manifest, given its keys and indexes."""
        return cls(*line_of(whole, keys))

    def within(self, component: Any, keys: Iterable[str | int]) -> Spot:
        """Return the location of a value inside the value at this location."""
        line, path = line_of(component, keys)
        return Spot(line or self.line, f"{self.path}.{path}" if path else self.path)

    def problem(
        self,
        message: str,
        stream: str | None = None,
        hint: str | None = None,
        *,
        is_warning: bool = False,
    ) -> Problem:
        """Return a problem of the value at this location."""
        return Problem(self.line, self.path, message, stream, hint, is_warning=is_warning)


def convert_errors(
    failure: ValidationError,
    component: Any,
    spot: Spot,
    stream: str | None = None,
    *,
    open_to: Iterable[Sequence[str]] = (),
) -> list[Problem]:
    """Convert the errors of a failed validation to problems in the terms of manifests.

    Errors that are only consequences of an unresolved reference are ignored.

    Args:
        failure: the validation error.
        component: the validated value.
        spot: the location of the value.
        stream: the stream that cannot be read because of the errors, or None.
        open_to: paths whose values will be replaced; their parts may be patterns and templates.
            Errors at these paths are ignored.
    """
    paths = tuple(open_to)
    errors = [
        error
        for error in failure.errors(include_url=False)
        if not _follows_from_unknown(error, component)
        and not is_open(_keys_of(error["loc"]), paths)
    ]
    return [
        spot.within(component, _error_location(error)).problem(
            _message(error, component), stream, _hint(error)
        )
        for error in _root_errors(errors)
    ]


def problems_of_code(component: Any, spot: Spot, stream: str) -> list[Problem]:
    """Return a problem for each Python component of a stream; used if custom code is forbidden."""
    return [
        spot.within(component, (*keys, "class_name")).problem(
            f"a {kind} is Python code, which only runs with `allow_components: true`",
            stream,
            "Set it below `source` if you trust the connector's code.",
        )
        for keys, kind in _code_in(component, ())
    ]


def _code_in(
    value: Any, keys: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, dict):
        kind = value.get("type")
        if isinstance(kind, str) and kind in RUNNABLE and "class_name" in value:
            yield keys, kind
        for key, inner in value.items():
            if key != "$parameters":
                yield from _code_in(inner, (*keys, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _code_in(inner, (*keys, number))


def _follows_from_unknown(error: ErrorDetails, component: Any) -> bool:
    """Return whether an error is only a consequence of an unresolved reference."""
    if is_unresolved(error["input"]) or is_unresolved(value_of(component, error["loc"])):
        return True
    reported = error["input"]
    return (
        error["type"] == "union_tag_invalid"
        and isinstance(reported, dict)
        and is_unresolved(reported.get("type"))
    )


def _keys_of(place: Iterable[int | str]) -> list[int | str]:
    """Return the keys and indexes of a location, without the assumed types."""
    return [part for part in place if not _KIND.fullmatch(str(part))]


def is_open(keys: Sequence[int | str], paths: Iterable[Sequence[str]]) -> bool:
    """Return whether one of several paths matches `keys`, up to the length of the shorter one."""
    return any(_matches(keys, path) for path in paths)


def _matches(keys: Sequence[int | str], path: Sequence[str]) -> bool:
    """Return whether a path matches `keys`, up to the length of the shorter one.

    Segments of the path may be templates or patterns.
    """
    for key, segment in zip(keys, path, strict=False):
        # A component with parameters may get any key from them.
        if segment in {"**", "$parameters"}:
            return True
        if not is_template(segment) and not fnmatchcase(str(key), segment):
            return False
    return True


def _root_errors(errors: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Return the errors that are not consequences of others.

    An error in a list's item also makes the list invalid. If a component has the wrong type, errors
    of its keys are irrelevant.
    """
    others = {
        error["loc"][:-1]
        for error in errors
        if error["type"] == "literal_error" and error["loc"][-1] == "type"
    }
    return [
        error
        for number, error in enumerate(errors)
        if not (
            _is_other_type(error, errors[:number], errors[number + 1 :])
            or (
                error["type"] in {"tuple_type", "too_short"}
                and any(_is_within(other["loc"], error["loc"]) for other in errors)
            )
            or (error["type"] != "literal_error" and error["loc"][:-1] in others)
        )
    ]


def _is_other_type(
    error: ErrorDetails, before: Sequence[ErrorDetails], after: Sequence[ErrorDetails]
) -> bool:
    """Return whether an error is one of several for the alternative types of one value."""
    if _error_location(error) == error["loc"]:
        return False
    stem = _error_location(error)
    others = (*before, *(later for later in after if _error_location(later) == later["loc"]))
    return any(other["loc"][: len(stem)] == stem for other in others)


def _is_within(place: tuple[int | str, ...], other: tuple[int | str, ...]) -> bool:
    """Return whether a location is inside another, ignoring the assumed types."""
    keys, above = _keys_of(place), _keys_of(other)
    return len(keys) > len(above) and keys[: len(above)] == above


def _error_location(error: ErrorDetails) -> tuple[int | str, ...]:
    """Return the location of an error, without the assumed type of a value with several types."""
    place = error["loc"]
    return place[:-1] if place and place[-1] in _PLAIN else place


def _message(error: ErrorDetails, component: Any) -> str:
    """Return the message of an error in the terms of manifests."""
    if error["type"] == "missing":
        return "it is missing"
    if error["type"] == "union_tag_invalid":
        return _unknown_kind(error["ctx"]["tag"])
    if error["type"] == "literal_error" and error["loc"][-1] == "type":
        return _unknown_kind(str(value_of(component, error["loc"])))
    if error["type"] == "union_tag_not_found":
        return "it has no `type`"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return error["msg"][0].lower() + error["msg"][1:]


def _hint(error: ErrorDetails) -> str | None:
    """Return the hint for an error, or None."""
    kind, name = error["type"], str(error["loc"][-1]) if error["loc"] else ""
    reported = error["input"]
    expected = _QUOTED.findall(str(_context(error).get("expected_tags") or _expected(error)))
    if kind in {"union_tag_invalid", "literal_error"} and expected:
        wrong = reported.get("type") if isinstance(reported, dict) else reported
        return _LEFT_OUT if _is_code(wrong) else _nearest(str(wrong), expected)
    if kind == "missing":
        there = reported if isinstance(reported, dict) else ()
        near = difflib.get_close_matches(name, there, n=1, cutoff=_CLOSE)
        return f"Is {near[0]!r} a misspelling of it?" if near else f"Add the key `{name}`."
    if kind == "union_tag_not_found":
        return "Add a `type`."
    if kind.endswith(("_type", "_parsing")) and not isinstance(reported, dict | list):
        return f"The value is {quote_text(str(reported))}."
    return None


def _context(error: ErrorDetails) -> dict[str, Any]:
    return error.get("ctx") or {}


def _expected(error: ErrorDetails) -> str:
    return str(_context(error).get("expected", ""))


def _is_code(kind: object) -> bool:
    return isinstance(kind, str) and (kind in RUNNABLE or kind.startswith("Custom"))


def _nearest(name: str, known: Sequence[str]) -> str:
    return did_you_mean(name, known, f"Use one of {', '.join(known)}.")


def _unknown_kind(kind: str) -> str:
    if kind in RUNNABLE:
        return f"{kind} is not allowed here"
    if kind.startswith("Custom"):
        return (
            f"{kind} is Python code {_IN_PLACE.get(kind, 'next to the manifest')}, which is not run"
        )
    return f"{kind} is not supported here"
