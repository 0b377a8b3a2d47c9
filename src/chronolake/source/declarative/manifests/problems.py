"""What is wrong with a manifest, told with the lines it stands in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from chronolake.source.declarative.language.custom import RUNNABLE
from chronolake.source.declarative.manifests.located import is_unknown, line_of, value_of
from chronolake.source.declarative.templating.templates import is_template

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

#: What pydantic puts into the path of a value to say what it was taken for.
_KIND: Final = re.compile(r"[A-Z]\w*|(tagged-union|tuple|function|nullable)\[.*\]")


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
    """

    line: int | None
    path: str
    message: str
    stream: str | None = None
    hint: str | None = None
    streams: tuple[str, ...] = ()


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

    def problem(self, message: str, stream: str | None = None, hint: str | None = None) -> Problem:
        """What is wrong with what stands here."""
        return Problem(self.line, self.path, message, stream, hint)


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
        spot.within(described, error["loc"]).problem(_words(error, described), stream)
        for error in _telling(errors)
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
            f"a {kind} is Python code, which runs only with `allow_components: true`", stream
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
    told = error["input"]
    return (
        error["type"] == "union_tag_invalid"
        and isinstance(told, dict)
        and is_unknown(told.get("type"))
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


def _telling(errors: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Those of several errors that are not consequences of others.

    What fails within a list fails the list as well; and of a component of another kind the keys are
    of no interest.
    """
    others = {error["loc"][:-1] for error in errors if error["type"] == "literal_error"}
    return [
        error
        for error in errors
        if not (
            (
                error["type"] in {"tuple_type", "too_short"}
                and any(_is_within(other["loc"], error["loc"]) for other in errors)
            )
            or (error["type"] != "literal_error" and error["loc"][:-1] in others)
        )
    ]


def _is_within(place: tuple[int | str, ...], other: tuple[int | str, ...]) -> bool:
    """Whether a place is within another, whatever kinds the values there are taken for."""
    keys, above = _keys_of(place), _keys_of(other)
    return len(keys) > len(above) and keys[: len(above)] == above


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


def _unknown_kind(kind: str) -> str:
    if kind in RUNNABLE:
        return f"{kind} cannot stand here"
    if kind.startswith("Custom"):
        return (
            f"{kind} is Python code {_IN_PLACE.get(kind, 'beside the manifest')}, which is not run"
        )
    return f"{kind} is not supported here"
