"""A manifest: the streams that it describes, and everything that is wrong with it.

What a stream cannot do keeps none of the others from being read.
"""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.inheritance import inherited
from chronolake.source.declarative.language.streams import AnyStream
from chronolake.source.declarative.located import Listed, Mapped, line_of, read, resolved, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydantic_core import ErrorDetails

#: The manifest's name in a folder or a package.
FILE_NAME: Final = "manifest.yaml"
_PACKAGE: Final = re.compile(r"airbyte-source-[a-z0-9-]+")
#: What pydantic puts into the path of a value to say what it was taken for.
_KIND: Final = re.compile(r"[A-Z]\w*|(tagged-union|tuple|function|nullable)\[.*\]")
_STREAM: Final[TypeAdapter[AnyStream]] = TypeAdapter(AnyStream)


@dataclass(frozen=True)
class Problem:
    """What keeps a part of a manifest from being used.

    Attributes:
        line: where, the first line being 1; None if it is about the file as a whole.
        path: the keys that lead there.
        message: what is wrong.
        stream: the stream that cannot be read, or None: none of them can.
    """

    line: int | None
    path: str
    message: str
    stream: str | None = None


@dataclass(frozen=True)
class Manifest:
    """A manifest with its references resolved.

    Attributes:
        file: the file.
        streams: the streams that can be read, by name, in the manifest's order.
        problems: everything that is wrong, in the order of the file.
        content: all of it, for what is no stream.
    """

    file: Path
    streams: Mapping[str, AnyStream]
    problems: tuple[Problem, ...]
    content: Mapped = field(repr=False)

    @property
    def specification(self) -> Mapping[str, Any]:
        """The JSON schema of the configuration; empty if the manifest has none."""
        spec = self.content.get("spec")
        found = spec.get("connection_specification") if isinstance(spec, dict) else None
        return found if isinstance(found, dict) else {}

    @property
    def checked_streams(self) -> tuple[str, ...]:
        """The streams that tell whether a connection works; empty if the manifest names none."""
        check = self.content.get("check")
        names = check.get("stream_names") if isinstance(check, dict) else None
        return tuple(map(str, names)) if isinstance(names, list) else ()

    def stream(self, name: str) -> AnyStream:
        """A stream of the manifest.

        Raises:
            ConfigurationError: it has none of that name, or it cannot be read.
        """
        if name in self.streams:
            return self.streams[name]
        wrong = [one for one in self.problems if one.stream in {name, None}]
        if wrong:
            first = wrong[0]
            line = "" if first.line is None else f", line {first.line}"
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise ConfigurationError(
                f"{self.file}{line}: {first.path}: {first.message}{more}",
                hint="`chronolake check` lists everything that is wrong with the manifest.",
            )
        raise ConfigurationError(
            f"{self.file} has no stream {name!r}.", hint=f"It has: {', '.join(self.streams)}."
        )


def find(given: str, *, beside: Path) -> Path:
    """The file of a manifest.

    Args:
        given: a file, a folder that holds `manifest.yaml`, or the name of an installed package
            `airbyte-source-*`.
        beside: what a relative path is taken from.

    Raises:
        ConfigurationError: there is none.
    """
    path = (beside / Path(given).expanduser()).resolve()
    if path.is_dir():
        path /= FILE_NAME
    if path.is_file():
        return path
    if _PACKAGE.fullmatch(given):
        try:
            files = importlib.metadata.files(given) or []
        except importlib.metadata.PackageNotFoundError:
            raise ConfigurationError(
                f"The package {given} is not installed.", hint=f"pip install {given}"
            ) from None
        for one in files:
            if one.name == FILE_NAME:
                return Path(str(one.locate())).resolve()
    raise ConfigurationError(
        f"There is no manifest {given}.",
        hint="Name a YAML file, a folder with a manifest.yaml, or an installed package "
        "airbyte-source-….",
    )


def load(file: Path) -> Manifest:
    """Read a manifest, and find everything that is wrong with it.

    Raises:
        ConfigurationError: the file is no YAML, or a reference in it refers to nothing.
    """
    return of(read(file), file)


def of(content: Mapped, file: Path) -> Manifest:
    """A manifest of what its file holds.

    Raises:
        ConfigurationError: a reference in it refers to nothing.
    """
    whole = resolved(content, file=str(file))
    whole.setdefault("type", "DeclarativeSource")
    whole = inherited(whole)
    streams: dict[str, AnyStream] = {}
    problems = list(_problems_at_the_top(whole))
    listed = whole.get("streams")
    for number, described in enumerate(listed if isinstance(listed, list) else []):
        place = ("streams", number)
        if not isinstance(described, Mapped):
            problems.append(_problem(whole, place, "a stream is keys and values"))
            continue
        name = str(described.get("name") or f"streams[{number}]")
        try:
            stream = _STREAM.validate_python(described)
        except ValidationError as failure:
            told = failure.errors(include_url=False, include_input=False)
            problems += [
                _problem(whole, (*place, *error["loc"]), _words(error, described), name)
                for error in _telling(told)
            ]
            continue
        if not stream.name:
            problems.append(_problem(whole, place, "the stream has no name"))
        elif stream.name in streams:
            problems.append(_problem(whole, place, f"there are two streams {stream.name}"))
        else:
            streams[stream.name] = stream
    return Manifest(file, streams, tuple(problems), whole)


def mapped(value: Any) -> Any:
    """Plain dictionaries and lists as if they had been read from a file."""
    if isinstance(value, dict):
        return Mapped(((str(key), mapped(one)) for key, one in value.items()))
    if isinstance(value, list):
        return Listed((mapped(one) for one in value), [1] * len(value))
    return value


def _problems_at_the_top(whole: Mapped) -> Iterator[Problem]:
    if not whole.get("streams") and not whole.get("dynamic_streams"):
        yield _problem(whole, ("streams",), "there are no streams")
    for number, _ in enumerate(whole.get("dynamic_streams") or []):
        name = f"dynamic_streams[{number}]"
        yield _problem(
            whole, ("dynamic_streams", number), "dynamic streams are not supported", name
        )


def _problem(
    whole: Mapped, path: Sequence[str | int], message: str, stream: str | None = None
) -> Problem:
    line, spelled = line_of(whole, path)
    return Problem(line, spelled, message, stream)


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
    keys, above = (
        [part for part in one if not _KIND.fullmatch(str(part))] for one in (place, other)
    )
    return len(keys) > len(above) and keys[: len(above)] == above


def _words(error: ErrorDetails, described: Mapped) -> str:
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
    if kind.startswith("Custom"):
        return f"{kind} is Python code beside the manifest, which is not run"
    return f"{kind} is not supported here"
