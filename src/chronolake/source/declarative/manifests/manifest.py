"""A manifest, its streams, and everything that is wrong with it.

The streams of a manifest while they are found, and what is wrong with them.

The streams by which a manifest wants a connection to be tried.

A manifest: the streams that it describes, and everything that is wrong with it.

What a stream cannot do keeps none of the others from being read.
"""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from chronolake.errors import ConfigurationError
from chronolake.humanize import did_you_mean
from chronolake.source.declarative.manifests.problems import (
    Problem,
    Spot,
    problems_in,
    problems_of_code,
)
from chronolake.source.declarative.manifests.reference_validation import (
    problems_of_lookups,
    settings_of,
)
from chronolake.source.declarative.manifests.text_validation import problems_of_texts
from chronolake.source.declarative.manifests.yaml_source import (
    Listed,
    Mapped,
    Unknown,
    inherited,
    is_unknown,
    read,
    resolved,
    unknown_in,
)
from chronolake.source.declarative.models.base import Origin
from chronolake.source.declarative.models.requests import HTTPAPIBudget
from chronolake.source.declarative.models.spec import (
    Check,
    CheckDynamicStream,
    CheckStream,
    ConfigNormalizationRules,
)
from chronolake.source.declarative.models.streams import (
    AnyStream,
    ConditionalStreams,
    DynamicDeclarativeStream,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


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
            reported = f"; for that, these cannot be read: {', '.join(names)}" if names else ""
            message = f"{one.message}{reported}"
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


_KEY: Final = "check"
_CONFIGS: Final = "dynamic_streams_check_configs"
_CHECK: Final[TypeAdapter[CheckStream | CheckDynamicStream]] = TypeAdapter(Check)


def check_of(
    content: Mapped, templates: Collection[str]
) -> tuple[CheckStream | CheckDynamicStream | None, list[Problem]]:
    """What a manifest says of trying a connection, or None; and what is wrong with that.

    Args:
        content: the manifest.
        templates: the names of its dynamic streams.
    """
    described = content.get(_KEY)
    if not described:
        return None, []
    try:
        found = _CHECK.validate_python(described)
    except ValidationError as failure:
        return None, problems_in(failure, described, Spot.of(content, (_KEY,)))
    if isinstance(found, CheckDynamicStream):
        return found, []
    return found, [
        Spot.of(content, (_KEY, _CONFIGS, number, "dynamic_stream_name")).problem(
            f"there are no dynamic streams {config.dynamic_stream_name}",
            hint=did_you_mean(
                config.dynamic_stream_name,
                templates,
                f"There are: {', '.join(templates) or 'none'}.",
            ),
        )
        for number, config in enumerate(found.dynamic_streams_check_configs)
        if config.dynamic_stream_name not in templates
    ]


def checked_streams(manifest: Manifest, wanted: Collection[str] | None) -> tuple[str, ...]:
    """The names of the streams that tell whether a connection works.

    Args:
        manifest: the manifest, with the streams that configuration and API tell.
        wanted: the streams that matter, or None: all of them. Of those that are made of templates
            no others are looked at.

    Returns:
        The names, each once, also of streams that nobody knows; not of those that cannot be read,
        which the manifest's problems tell. The first stream's if there would be none.
    """
    names = tuple(name for name in manifest.streams if wanted is None or name in wanted)
    check = manifest.check
    if isinstance(check, CheckDynamicStream):
        return names[: max(check.stream_count, 0)] if check.use_check_availability else ()
    if check is None:
        return names[:1]
    reported = {problem.stream for problem in manifest.problems}
    found = [
        name
        for name in check.stream_names
        if name in manifest.streams or (name not in reported and manifest.is_whole)
    ]
    for config in check.dynamic_streams_check_configs:
        made = manifest.generated.get(config.dynamic_stream_name, ())
        found += islice((name for name in made if name in names), config.stream_count)
    return tuple(dict.fromkeys(found)) or names[:1]


#: The manifest's name in a folder or a package.
FILE_NAME: Final = "manifest.yaml"
_PACKAGE: Final = re.compile(r"airbyte-source-[a-z0-9-]+")
_BUDGET: Final = "api_budget"
_DYNAMIC: Final = "dynamic_streams"
_STREAMS: Final = "List them below `streams`, or `dynamic_streams` that make them."
_ALL: Final = "`chronolake check` lists everything that is wrong with the manifest."
#: What of a manifest concerns nothing but the streams that have it.
_OF_STREAMS: Final = frozenset({"definitions", "streams", _DYNAMIC, "check", "schemas", "metadata"})
_RULES: Final = "config_normalization_rules"


@dataclass(frozen=True)
class Conditional:
    """Streams that are there if a condition of the configuration holds.

    Attributes:
        condition: the condition.
        streams: the streams, each with the place it stands at.
    """

    condition: str | bool
    streams: tuple[tuple[Mapped, Spot], ...]


@dataclass(frozen=True)
class Dynamic:
    """Streams that are made of a template.

    Attributes:
        name: what they are called together.
        definition: how.
        template: the template, with the lines it stands in.
        spot: where it stands.
    """

    name: str
    definition: DynamicDeclarativeStream
    template: Mapped
    spot: Spot


@dataclass(frozen=True)
class Manifest:
    """A manifest with its references resolved.

    Attributes:
        file: the file.
        streams: the streams that can be read, by name, in the manifest's order.
        problems: everything that is wrong, in the order of the file.
        content: all of it, for what is no stream.
        conditional: streams that only the configuration tells.
        dynamic: streams that only the configuration or the API tells.
        allow_components: whether the connector's own Python classes may run.
        generated: the names of those that were told, by what they are called together.
        check: by which streams a connection is tried, or None.
    """

    file: Path
    streams: Mapping[str, AnyStream]
    problems: tuple[Problem, ...]
    content: Mapped = field(repr=False)
    conditional: tuple[Conditional, ...] = ()
    dynamic: tuple[Dynamic, ...] = ()
    allow_components: bool = False
    generated: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    check: CheckStream | CheckDynamicStream | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it takes nothing but the manifest to know its streams (see `api_of`)."""
        return not (self.conditional or self.dynamic)

    def lists(self, wanted: Collection[str] | None) -> bool:
        """Whether it has all the streams that are wanted; None: all that there are."""
        return self.is_whole or (wanted is not None and self.streams.keys() >= set(wanted))

    @property
    def specification(self) -> Mapping[str, Any]:
        """The JSON schema of the configuration; empty if the manifest has none that is known."""
        spec = self.content.get("spec")
        found = spec.get("connection_specification") if isinstance(spec, dict) else None
        return found if isinstance(found, dict) and not any(unknown_in(found)) else {}

    def expect_known(self) -> None:
        """Refuse a manifest of which nobody knows what is secret, or what its API allows.

        Raises:
            ConfigurationError: a reference there leads nowhere.
        """
        for key, value in self.content.items():
            if key not in _OF_STREAMS and (one := next(unknown_in(value), None)):
                line = "" if one.line is None else f", line {one.line}"
                raise ConfigurationError(
                    f"{self.file}{line}: {one.path}: {one.message}.", hint=one.hint
                )

    def stream(self, name: str) -> AnyStream:
        """A stream of the manifest.

        Raises:
            ConfigurationError: it has none of that name, or it cannot be read.
        """
        if name in self.streams:
            return self.streams[name]
        own = [problem for problem in self.problems if name in {problem.stream, *problem.streams}]
        wrong = (
            own
            or [problem for problem in self.problems if problem.stream is None]
            or [
                # Which streams these would be, nobody knows.
                problem
                for problem in self.problems
                if problem.path.startswith(_DYNAMIC)
            ]
        )
        if wrong:
            first = wrong[0]
            line = "" if first.line is None else f", line {first.line}"
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise ConfigurationError(
                f"{self.file}{line}: {first.path}: {first.message}{more}",
                hint=f"{first.hint or ''} {_ALL}".strip(),
            )
        raise ConfigurationError(
            f"{self.file} has no stream {name!r}.",
            hint=did_you_mean(name, self.streams, f"It has: {', '.join(self.streams) or 'none'}."),
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
        for file in files:
            if file.name == FILE_NAME:
                return Path(str(file.locate())).resolve()
    raise ConfigurationError(
        f"There is no manifest {given}.",
        hint="Name a YAML file, a folder with a manifest.yaml, or an installed package "
        "airbyte-source-….",
    )


def load(file: Path, *, allow_components: bool = False) -> Manifest:
    """Read a manifest, and find everything that is wrong with it.

    Args:
        file: the manifest.
        allow_components: whether the connector's own Python classes may run; none runs by loading.

    Raises:
        ConfigurationError: the file is no YAML, or too large.
    """
    return of(read(file), file, allow_components=allow_components)


def of(content: Mapped, file: Path, *, allow_components: bool = False) -> Manifest:
    """A manifest of what its file holds; arguments as of `load`.

    Raises:
        ConfigurationError: it is too large.
    """
    whole, unknown = resolved(content, file=str(file))
    whole.setdefault("type", "DeclarativeSource")
    whole = inherited(whole)
    found = Gathering(file, allow_components=allow_components, settings=settings_of(whole))
    found.problems += (*rules_of(whole)[1], *_of_the_api(whole))
    if not whole.get("streams") and not whole.get(_DYNAMIC):
        found.problems.append(
            Spot.of(whole, ("streams",)).problem("there are no streams", hint=_STREAMS)
        )
    conditional: list[Conditional] = []
    for described, spot in _listed(whole, "streams"):
        if isinstance(described, Mapped) and described.get("type") == "ConditionalStreams":
            conditional += _conditional(described, spot, found)
        else:
            found.add(described, spot)
    dynamic: list[Dynamic] = []
    templates: list[str] = []
    for number, (described, spot) in enumerate(_listed(whole, _DYNAMIC)):
        templates.append(_called(described, number))
        dynamic += _dynamic(described, spot, found, templates[-1])
    check, wrong = check_of(whole, templates)
    return Manifest(
        file,
        found.streams,
        (*found.of_references(unknown), *found.problems, *wrong),
        whole,
        tuple(conditional),
        tuple(dynamic),
        allow_components,
        check=check,
    )


def _of_the_api(whole: Mapped) -> list[Problem]:
    """What is wrong with what a manifest says of all requests, and of its configuration."""
    found: list[Problem] = []
    if described := whole.get(_BUDGET):
        try:
            HTTPAPIBudget.model_validate(described)
        except ValidationError as failure:
            found += problems_in(failure, described, Spot.of(whole, (_BUDGET,)))
    spec = whole.get("spec")
    for keys, described, kind in (
        ((_BUDGET,), whole.get(_BUDGET), "HTTPAPIBudget"),
        (("concurrency_level",), whole.get("concurrency_level"), "ConcurrencyLevel"),
        (("spec", _RULES), spec.get(_RULES) if isinstance(spec, dict) else None, "Rules"),
    ):
        found += problems_of_texts(described, Spot.of(whole, keys), kind=kind)
    return found


def rules_of(content: Mapping[str, Any]) -> tuple[ConfigNormalizationRules | None, list[Problem]]:
    """What a manifest does to a configuration, or None; and what is wrong with that."""
    spec = content.get("spec")
    described = spec.get(_RULES) if isinstance(spec, dict) else None
    if not described:
        return None, []
    try:
        return ConfigNormalizationRules.model_validate(described), []
    except ValidationError as failure:
        return None, problems_in(failure, described, Spot.of(content, ("spec", _RULES)))


def _listed(whole: Mapped, key: str) -> list[tuple[Any, Spot]]:
    listed = whole.get(key)
    return [
        (described, Spot.of(whole, (key, number)))
        for number, described in enumerate(listed if isinstance(listed, list) else [])
    ]


def _conditional(described: Mapped, spot: Spot, found: Gathering) -> list[Conditional]:
    """Streams on a condition; what is wrong with them is wrong whether it holds or not."""
    alone = Mapped(
        ((key, described[key]) for key in ("type", "condition") if key in described),
        described.lines,
    )
    found.problems += problems_of_texts(alone, spot)
    try:
        condition = ConditionalStreams.model_validate(described).condition
    except ValidationError as failure:
        found.problems += problems_in(failure, described, spot, spot.path)
        return []
    tried = found.nothing()
    streams = [
        (one, spot.within(described, ("streams", number)))
        for number, one in enumerate(described["streams"])
    ]
    for one, place in streams:
        tried.add(one, place)
    found.problems += tried.problems
    for unknown, names in tried.unread.items():
        found.unread.setdefault(unknown, []).extend(names)
    return [Conditional(condition, tuple(streams))]


def _called(described: Any, number: int) -> str:
    """What the streams of a template are called together."""
    name = described.get("name") if isinstance(described, Mapped) else None
    return f"dynamic_stream_{number}" if name is None or is_unknown(name) else str(name)


def _dynamic(described: Any, spot: Spot, found: Gathering, called: str) -> list[Dynamic]:
    """Streams of a template, if all is right that can be known before they are made."""
    if not isinstance(described, Mapped):
        if not is_unknown(described):
            found.problems.append(spot.problem("dynamic streams are keys and values", spot.path))
        return []
    name = name_of(described, spot)
    is_known = found.lacks_nothing(described, name)
    if not found.may_run(described, spot, name):
        return []
    origin = Origin(found.file, name)
    resolver = spot.within(described, ("components_resolver",))
    found.problems += problems_of_texts(described.get("components_resolver"), resolver, name)
    try:
        definition = DynamicDeclarativeStream.model_validate(described, context=origin)
    except ValidationError as failure:
        found.problems += problems_in(failure, described, spot, name)
        return []
    template: Mapped = described["stream_template"]
    place = spot.within(described, ("stream_template",))
    paths = [one.field_path for one in definition.components_resolver.components_mapping]
    found.problems += problems_of_texts(template, place, name, open_to=paths)
    try:
        STREAM.validate_python(template, context=origin)
    except ValidationError as failure:
        wrong = problems_in(failure, template, place, name, open_to=paths)
        if wrong:
            found.problems += wrong
            return []
    if not is_known:
        return []
    return [Dynamic(called, definition, template, place)]


def mapped(value: Any) -> Any:
    """Plain dictionaries and lists as if they had been read from a file."""
    if isinstance(value, dict):
        return Mapped(((str(key), mapped(one)) for key, one in value.items()))
    if isinstance(value, list):
        return Listed((mapped(one) for one in value), [1] * len(value))
    return value
