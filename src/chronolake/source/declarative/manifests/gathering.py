"""The streams of a manifest while they are found, and what is wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from chronolake.source.declarative.language.custom import Origin
from chronolake.source.declarative.language.streams import AnyStream
from chronolake.source.declarative.manifests.located import (
    Mapped,
    Unknown,
    is_unknown,
    unknown_in,
)
from chronolake.source.declarative.manifests.lookups import problems_of_lookups
from chronolake.source.declarative.manifests.problems import (
    Problem,
    Spot,
    problems_in,
    problems_of_code,
)
from chronolake.source.declarative.manifests.texts import problems_of_texts

if TYPE_CHECKING:
    from pathlib import Path

STREAM: Final[TypeAdapter[AnyStream]] = TypeAdapter(AnyStream)


class Gathering:
    """The streams of a manifest while they are found, and what is wrong with them.

    Attributes:
        file: the manifest.
        allow_components: whether the connector's own Python classes may run.
        settings: the names that a configuration can have; None: nobody knows them.
        streams: the streams that can be read, by name.
        problems: what is wrong.
        unread: the streams that cannot be read for a reference that leads nowhere.
    """

    def __init__(
        self, file: Path, *, allow_components: bool, settings: frozenset[str] | None = None
    ) -> None:
        self.file = file
        self.settings = settings
        self.allow_components = allow_components
        self.streams: dict[str, AnyStream] = {}
        self.problems: list[Problem] = []
        self.unread: dict[Unknown, list[str]] = {}

    def nothing(self) -> Gathering:
        """Another one of the same manifest, with nothing found yet."""
        return Gathering(self.file, allow_components=self.allow_components, settings=self.settings)

    def lacks_nothing(self, described: Any, name: str) -> bool:
        """Whether all references in a stream lead somewhere; if not, it is noted for `unread`."""
        unknown = set(unknown_in(described))
        for one in unknown:
            self.unread.setdefault(one, []).append(name)
        return not unknown

    def of_references(self, unknown: list[Unknown]) -> list[Problem]:
        """What is wrong with references: each once, with the streams that cannot be read for it."""
        problems = []
        for one in unknown:
            names = tuple(self.unread.get(one, ()))
            if len(names) == 1:
                problems.append(Problem(one.line, one.path, one.message, names[0], one.hint))
                continue
            told = f"; for that, these cannot be read: {', '.join(names)}" if names else ""
            message = f"{one.message}{told}"
            problems.append(Problem(one.line, one.path, message, None, one.hint, names))
        return problems

    def may_run(self, described: Any, spot: Spot, name: str) -> bool:
        """Whether the Python code of a stream may run, if it needs any; if not, that is wrong."""
        refused = [] if self.allow_components else problems_of_code(described, spot, name)
        self.problems += refused
        return not refused

    def add(self, described: Any, spot: Spot) -> None:
        """Take a stream in, or what is wrong with it.

        Args:
            described: the stream, with what it inherits in its place.
            spot: where it stands.
        """
        if not isinstance(described, Mapped):
            if not is_unknown(described):
                self.problems.append(spot.problem("a stream is keys and values"))
            return
        name = name_of(described, spot)
        is_known = self.lacks_nothing(described, name)
        self.problems += problems_of_texts(described, spot, name)
        if is_known:
            self.problems += problems_of_lookups(described, spot, name, self.settings)
        may_run = self.may_run(described, spot, name)
        try:
            stream = STREAM.validate_python(described, context=Origin(self.file, name))
        except ValidationError as failure:
            self.problems += problems_in(failure, described, spot, name)
            return
        if not (may_run and is_known):
            return
        if not stream.name:
            self.problems.append(spot.problem("the stream has no name", hint="Give it a `name`."))
        elif stream.name in self.streams:
            message = f"there are two streams {stream.name}"
            self.problems.append(spot.problem(message, hint="Give one of them another `name`."))
        else:
            self.streams[stream.name] = stream


def name_of(described: Mapped, spot: Spot) -> str:
    """What problems call a stream: its name, or where it stands if it has none."""
    name = described.get("name")
    return spot.path if not name or is_unknown(name) else str(name)
