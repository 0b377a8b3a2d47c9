"""What is wrong with a manifest, told with the lines it stands in."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from chronolake.humanize import did_you_mean
from chronolake.source.declarative.manifests.yaml_source import is_unknown, line_of, value_of
from chronolake.source.declarative.models.base import RUNNABLE
from chronolake.source.declarative.templating.templates import is_template, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

#: What pydantic puts into the path of a value to say what it was taken for.
_KIND: Final = re.compile(r"[A-Z]\w*|(tagged-union|tuple|function|nullable)\[.*\]")
_PLAIN: Final = frozenset({"bool", "float", "int", "str"})
_QUOTED: Final = re.compile(r"'([^']+)'")
_LEFT_OUT: Final = "Without the streams that need it, the others are read (`only`)."
#: How near a key has to be to one that is missing to be taken for it.
_CLOSE: Final = 0.75


#: What classes are meant to take the place of that cannot be run.
_IN_PLACE: Final = {
    "CustomIncrementalSync": "in place of the cursor, by which slices, state and history are made",
    "CustomRequester": "in place of what makes requests and bounds them",
    "CustomRetriever": "in place of what reads slices page by page",
}


@dataclass(frozen=True)
class Problem:
    """What keeps a part of a manifest from being used.

    Attributes:
        line: where, the first line being 1; None if it is about the file as a whole.
        path: the keys that lead there.
        message: what is wrong.
        stream: the stream that it is about, or None: it is not about one.
        hint: what to do about it, or None.
        streams: those that cannot be read for it, if it is about several.
        is_warning: whether it only is of no use.
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
    """Where something of a manifest stands.

    Attributes:
        line: the line, the first being 1; None if it has none of its own.
        path: the keys that lead there.
    """

    line: int | None
    path: str

    @classmethod
    def of(cls, whole: Any, keys: Iterable[str | int]) -> Spot:
        """Where a value of a manifest stands, by the keys and numbers that lead to it."""
        return cls(*line_of(whole, keys))

    def within(self, described: Any, keys: Iterable[str | int]) -> Spot:
        """Where a value within what stands here is."""
        line, path = line_of(described, keys)
        return Spot(line or self.line, f"{self.path}.{path}" if path else self.path)

    def problem(
        self,
        message: str,
        stream: str | None = None,
        hint: str | None = None,
        *,
        is_warning: bool = False,
    ) -> Problem:
        """What is wrong with what stands here."""
        return Problem(self.line, self.path, message, stream, hint, is_warning=is_warning)


def problems_in(
    failure: ValidationError,
    described: Any,
    spot: Spot,
    stream: str | None = None,
    *,
    open_to: Iterable[Sequence[str]] = (),
) -> list[Problem]:
    """What a failed validation says, in the language of manifests.

    What is wrong only because a reference leads nowhere is passed over.

    Args:
        failure: the validation's errors.
        described: what was validated.
        spot: where that stands.
        stream: the stream that cannot be read for it, or None.
        open_to: paths of what is not there yet, whose parts may be patterns and templates: what is
            wrong there is passed over.
    """
    paths = tuple(open_to)
    errors = [
        error
        for error in failure.errors(include_url=False)
        if not _follows_from_unknown(error, described)
        and not is_open(_keys_of(error["loc"]), paths)
    ]
    return [
        spot.within(described, _place(error)).problem(
            _words(error, described), stream, _hint(error)
        )
        for error in _describing(errors)
    ]


def problems_of_code(described: Any, spot: Spot, stream: str) -> list[Problem]:
    """The Python components of a stream, as what keeps it from being read as long as none may run.

    Args:
        described: the stream.
        spot: where it stands.
        stream: its name.
    """
    return [
        spot.within(described, (*keys, "class_name")).problem(
            f"a {kind} is Python code, which runs only with `allow_components: true`",
            stream,
            "Set it below `source` if you trust the connector's code.",
        )
        for keys, kind in _code_in(described, ())
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


def _follows_from_unknown(error: ErrorDetails, described: Any) -> bool:
    """Whether an error says no more than that a reference leads nowhere."""
    if is_unknown(error["input"]) or is_unknown(value_of(described, error["loc"])):
        return True
    reported = error["input"]
    return (
        error["type"] == "union_tag_invalid"
        and isinstance(reported, dict)
        and is_unknown(reported.get("type"))
    )


def _keys_of(place: Iterable[int | str]) -> list[int | str]:
    """The keys and numbers of a place, without the kinds that values there are taken for."""
    return [part for part in place if not _KIND.fullmatch(str(part))]


def is_open(keys: Sequence[int | str], paths: Iterable[Sequence[str]]) -> bool:
    """Whether something may be put where keys lead, or on the way there, by one of some paths."""
    return any(_may_be_at(keys, path) for path in paths)


def _may_be_at(keys: Sequence[int | str], path: Sequence[str]) -> bool:
    """Whether a path, of which segments may be templates or patterns, leads there or on its way."""
    for key, segment in zip(keys, path, strict=False):
        # What gets parameters may get any key from them.
        if segment in {"**", "$parameters"}:
            return True
        if not is_template(segment) and not fnmatchcase(str(key), segment):
            return False
    return True


def _describing(errors: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Those of several errors that are not consequences of others.

    What fails within a list fails the list as well; and of a component of another kind the keys are
    of no interest.
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
    """Whether an error says that a value has not one type, and another that it has not another."""
    if _place(error) == error["loc"]:
        return False
    stem = _place(error)
    others = (*before, *(one for one in after if _place(one) == one["loc"]))
    return any(other["loc"][: len(stem)] == stem for other in others)


def _is_within(place: tuple[int | str, ...], other: tuple[int | str, ...]) -> bool:
    """Whether a place is within another, whatever kinds the values there are taken for."""
    keys, above = _keys_of(place), _keys_of(other)
    return len(keys) > len(above) and keys[: len(above)] == above


def _place(error: ErrorDetails) -> tuple[int | str, ...]:
    """Where an error is, without what a value that may be of several types was taken for."""
    place = error["loc"]
    return place[:-1] if place and place[-1] in _PLAIN else place


def _words(error: ErrorDetails, described: Any) -> str:
    """What one failed check says, in the language of manifests."""
    if error["type"] == "missing":
        return "it is missing"
    if error["type"] == "union_tag_invalid":
        return _unknown_kind(error["ctx"]["tag"])
    if error["type"] == "literal_error" and error["loc"][-1] == "type":
        return _unknown_kind(str(value_of(described, error["loc"])))
    if error["type"] == "union_tag_not_found":
        return "it has no `type`"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return error["msg"][0].lower() + error["msg"][1:]


def _hint(error: ErrorDetails) -> str | None:
    """What to do about what one failed check says."""
    kind, name = error["type"], str(error["loc"][-1]) if error["loc"] else ""
    reported = error["input"]
    expected = _QUOTED.findall(str(_context(error).get("expected_tags") or _expected(error)))
    if kind in {"union_tag_invalid", "literal_error"} and expected:
        wrong = reported.get("type") if isinstance(reported, dict) else reported
        return _LEFT_OUT if _is_code(wrong) else _nearest(str(wrong), expected)
    if kind == "missing":
        there = reported if isinstance(reported, dict) else ()
        near = difflib.get_close_matches(name, there, n=1, cutoff=_CLOSE)
        return f"Did you mean it by {near[0]!r}?" if near else f"Give it a `{name}`."
    if kind == "union_tag_not_found":
        return "Say by a `type` what it is."
    if kind.endswith(("_type", "_parsing")) and not isinstance(reported, dict | list):
        return f"Here stands {shown(str(reported))}."
    return None


def _context(error: ErrorDetails) -> dict[str, Any]:
    return error.get("ctx") or {}


def _expected(error: ErrorDetails) -> str:
    return str(_context(error).get("expected", ""))


def _is_code(kind: object) -> bool:
    return isinstance(kind, str) and (kind in RUNNABLE or kind.startswith("Custom"))


def _nearest(name: str, known: Sequence[str]) -> str:
    return did_you_mean(name, known, f"It is one of {', '.join(known)}.")


def _unknown_kind(kind: str) -> str:
    if kind in RUNNABLE:
        return f"{kind} cannot stand here"
    if kind.startswith("Custom"):
        return (
            f"{kind} is Python code {_IN_PLACE.get(kind, 'beside the manifest')}, which is not run"
        )
    return f"{kind} is not supported here"
